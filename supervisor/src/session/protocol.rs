//! The messages of the session protocol, version 1: JSON-RPC 2.0, one message a line. docs/serve.md is its text.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::terminal::outer_size;

/// The version that is spoken.
pub(crate) const VERSION: u32 = 1;
/// Longest line, in bytes.
pub(crate) const LONGEST: usize = 16 << 20;

/// A request.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// Always "2.0".
    pub(crate) jsonrpc: String,
    /// Comes back in the answer; a request without one is a notification, which this protocol has none of.
    pub(crate) id: Value,
    /// What is wanted.
    pub(crate) method: String,
    /// See the method.
    #[serde(default)]
    #[schemars(with = "Value")]
    pub(crate) params: Option<Box<RawValue>>,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Failure {
    /// See [`Code`].
    pub(crate) code: i32,
    /// What failed, on what, why.
    pub(crate) message: String,
    /// More.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<FailureData>,
}

/// More about a failure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct FailureData {
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// The exit status that `run` would have had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u8>,
}

/// Codes of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    /// Not JSON, or a line that is too long.
    Parse = -32700,
    /// Not a request.
    Request = -32600,
    /// Unknown method.
    Method = -32601,
    /// Wrong parameters.
    Parameters = -32602,
    /// Another version is wanted, or `initialize` was not first.
    Version = -32001,
    /// No such job, or it has ended.
    Job = -32002,
    /// The job could not be started.
    Start = -32003,
    /// The sandbox has ended.
    Ended = -32005,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as i32, message: message.into(), data: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.data.get_or_insert_default().hint = Some(hint.into());
        self
    }

    pub(crate) fn status(mut self, status: u8) -> Self {
        self.data.get_or_insert_default().status = Some(status);
        self
    }
}

/// Parameters of `initialize`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Initialize {
    /// The version that the client speaks.
    pub(crate) protocol: u32,
}

/// The answer to `initialize`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Initialized {
    pub(crate) protocol: u32,
    /// Of the program.
    pub(crate) version: String,
    /// The session's name.
    pub(crate) session: Option<String>,
    pub(crate) workspace: String,
    pub(crate) tier: String,
    /// Guarantees that are not given here.
    pub(crate) lost: Vec<String>,
}

/// Parameters of `start` and `exec`.
#[derive(Debug, Default, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Start {
    /// Program and arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) argv: Vec<Word>,
    /// Instead of `argv`: a command line whose directory and exported variables are those of the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shell: Option<Word>,
    /// Working directory inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<Word>,
    /// Variables to set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, Word>,
    /// The caller's variables: those that the policy lets in are the job's, instead of the session's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) caller: Option<BTreeMap<String, Word>>,
    /// Standard input.
    pub(crate) stdin: Input,
    /// A pseudo-terminal for all three streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pty: Option<Size>,
    /// Standard error goes into standard output.
    pub(crate) merge: bool,
    /// Seconds after which it is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
    /// Processes that it leaves behind live on.
    pub(crate) background: bool,
    /// It and what it left behind is killed when this client goes away.
    pub(crate) tied: bool,
    /// How much of each stream is kept.
    pub(crate) keep: Keep,
    /// Its output comes as notifications, too.
    pub(crate) stream: bool,
}

/// What the kernel takes as bytes: text, or `{"base64":...}` of what is no text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Word {
    Text(String),
    Encoded {
        #[serde(deserialize_with = "encoded")]
        base64: String,
    },
}

/// What a job reads.
#[derive(Debug, Default, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Input {
    /// Nothing.
    #[default]
    Null,
    /// What `write` brings.
    Pipe,
    /// This text.
    #[serde(untagged)]
    All(Bytes),
}

/// Bytes: text, or base64 of what is no text.
#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bytes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base64: Option<String>,
}

/// Size of a pseudo-terminal, in characters.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Size {
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

impl Size {
    /// That of our own terminal, or the usual one.
    pub(crate) fn ours() -> Self {
        outer_size().map_or(Self { rows: 24, columns: 80 }, |(rows, columns)| Self { rows, columns })
    }
}

/// How much of a stream is kept, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keep {
    /// Of its beginning.
    pub(crate) head: usize,
    /// Of its end.
    pub(crate) tail: usize,
}

impl Default for Keep {
    fn default() -> Self {
        Self { head: 20_000, tail: 30_000 }
    }
}

/// The answer to `start`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Started {
    pub(crate) job: u32,
}

/// Parameters that name a job.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Of {
    pub(crate) job: u32,
}

/// Parameters of `wait`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wait {
    pub(crate) job: u32,
    /// Seconds; the job goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
}

/// Parameters of `write`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Write {
    pub(crate) job: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base64: Option<String>,
    /// Close its standard input.
    #[serde(default)]
    pub(crate) eof: bool,
}

/// Parameters of `resize`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resize {
    pub(crate) job: u32,
    pub(crate) rows: u16,
    pub(crate) columns: u16,
}

/// Parameters of `signal`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Signal {
    pub(crate) job: u32,
    /// Its name, without SIG.
    pub(crate) signal: String,
    /// To its process group.
    #[serde(default = "yes")]
    pub(crate) group: bool,
}

fn yes() -> bool {
    true
}

/// Parameters of `output`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Output {
    pub(crate) job: u32,
    #[serde(default)]
    pub(crate) stream: Stream,
}

/// A stream of a job.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stream {
    #[default]
    Stdout,
    Stderr,
}

/// The answer to `output`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Kept {
    #[serde(flatten)]
    pub(crate) bytes: Bytes,
    /// Bytes that are missing in the middle.
    pub(crate) dropped: u64,
}

/// Parameters of `subscribe`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    pub(crate) jobs: bool,
}

/// Parameters of `explain`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Explain {
    pub(crate) what: Subject,
    pub(crate) subject: String,
}

/// The routes that hold, as profiles name them, each with its `origin`; also the parameter of `set-routes`, which takes no
/// `generation`.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Routes {
    /// How often they were replaced.
    #[serde(default)]
    pub(crate) generation: u64,
    pub(crate) routes: Vec<serde_json::Value>,
    /// Of `set-routes`: what becomes of other hosts (`refuse`, which is the default, `ask` or `audit`).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) unknown_hosts: String,
    /// Of `set-routes`: the profile that the routes are of. Only the sandbox's own may name secrets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) profile: String,
}

/// How often the routes were replaced.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Generation {
    pub(crate) generation: u64,
}

/// What can be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    Path,
    Host,
    Syscall,
    Env,
}

/// How a job ended.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub(crate) struct End {
    pub(crate) job: u32,
    #[serde(flatten)]
    pub(crate) exit: Exit,
    pub(crate) stdout: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stderr: Option<String>,
    /// Bytes that are missing.
    pub(crate) omitted: Omitted,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Where the next `shell` job begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
    /// Hints of the advisory layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) advice: Vec<Advice>,
}

/// Bytes that are missing in each stream.
#[derive(Debug, Default, Clone, Copy, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Omitted {
    pub(crate) stdout: u64,
    pub(crate) stderr: u64,
}

/// A hint. It never decides anything.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Advice {
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// The answer to `list`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct List {
    pub(crate) jobs: Vec<Listed>,
}

/// A job in `list`.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Listed {
    pub(crate) job: u32,
    pub(crate) argv: Vec<String>,
    pub(crate) state: State,
    pub(crate) pty: bool,
    pub(crate) background: bool,
    /// Milliseconds since 1970.
    pub(crate) started: u64,
    /// How it ended, when it has.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) exit: Option<Exit>,
}

/// How a job ended, in short.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Exit {
    /// 124 when its time was up, 128+n when signal n ended it.
    pub(crate) status: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<String>,
    pub(crate) timed_out: bool,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Started,
    Running,
    Ended,
}

/// What a server says by itself.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "method", content = "params", rename_all = "lowercase")]
pub(crate) enum Notification {
    /// Output of a job that is streamed.
    Output {
        job: u32,
        stream: Stream,
        #[serde(flatten)]
        bytes: Bytes,
    },
    /// A job started or ended.
    Job {
        job: u32,
        state: State,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u8>,
    },
    /// The last message.
    Closing { reason: Reason },
}

/// Why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reason {
    Stopped,
    Idle,
    Ttl,
    Failed,
}

/// Everything a client may meet, for the schema.
#[derive(Debug, JsonSchema)]
#[allow(dead_code, reason = "only its schema is of use")]
pub(crate) struct Messages {
    request: Request,
    failure: Failure,
    notification: Notification,
    initialize: (Initialize, Initialized),
    start: (Start, Started),
    exec: (Start, End),
    wait: (Wait, End),
    write: Write,
    resize: Resize,
    signal: Signal,
    kill: Of,
    attach: (Of, Kept),
    output: (Output, Kept),
    list: List,
    subscribe: Subscribe,
    explain: Explain,
    routes: Routes,
    set_routes: (Routes, Generation),
}

impl Bytes {
    /// Text where they are text, else base64.
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self { data: Some(text), base64: None },
            Err(e) => Self { data: None, base64: Some(encode(e.as_bytes())) },
        }
    }

    /// As base64 whatever they are.
    pub(crate) fn encoded(bytes: &[u8]) -> String {
        encode(bytes)
    }

    /// The bytes.
    ///
    /// # Errors
    /// Both forms, or what is no base64.
    pub(crate) fn bytes(self) -> Result<Vec<u8>, Failure> {
        match (self.data, self.base64) {
            (Some(text), None) => Ok(text.into_bytes()),
            (None, Some(text)) => decode(&text),
            (None, None) => Ok(Vec::new()),
            (Some(_), Some(_)) => Err(Failure::new(Code::Parameters, "`data` and `base64` exclude each other")),
        }
    }
}

impl Word {
    /// Text where it is text, else base64.
    pub(crate) fn of(word: &OsStr) -> Self {
        match word.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Encoded { base64: encode(word.as_bytes()) },
        }
    }

    /// What is meant. Base64 was seen to be some when it came.
    pub(crate) fn meant(&self) -> OsString {
        match self {
            Self::Text(text) => text.into(),
            Self::Encoded { base64 } => OsString::from_vec(decode(base64).unwrap_or_default()),
        }
    }
}

fn encoded<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    decode(&text).map_err(|failure| serde::de::Error::custom(failure.message))?;
    Ok(text)
}

fn encode(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn decode(text: &str) -> Result<Vec<u8>, Failure> {
    use base64::Engine;
    let decoded = base64::engine::general_purpose::STANDARD.decode(text);
    decoded.map_err(|e| Failure::new(Code::Parameters, format!("`base64` cannot be decoded: {e}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn input_has_three_forms() {
        let start =
            |text: &str| serde_json::from_str::<Start>(&format!("{{\"argv\":[\"x\"],\"stdin\":{text}}}")).map(|s| s.stdin);
        assert!(matches!(start("\"null\"").unwrap(), Input::Null));
        assert!(matches!(start("\"pipe\"").unwrap(), Input::Pipe));
        let Input::All(bytes) = start("{\"base64\":\"/w==\"}").unwrap() else { panic!() };
        assert_eq!(bytes.bytes().unwrap(), [0xff]);
        assert!(start("\"tty\"").is_err() && start("{\"x\":1}").is_err());
        assert!(serde_json::from_str::<Start>("{\"argvs\":[]}").is_err(), "unknown parameters are errors");
    }

    #[test]
    fn bytes_that_are_no_text_travel_as_base64() {
        assert_eq!(Bytes::of(b"h\xc3\xa9".to_vec()).data.as_deref(), Some("h\u{e9}"));
        let odd = Bytes::of(vec![0xff, 0]);
        assert_eq!(odd.base64.as_deref(), Some("/wA="));
        assert_eq!(odd.bytes().unwrap(), [0xff, 0]);
        let both = Bytes { data: Some("a".into()), base64: Some("YQ==".into()) };
        assert_eq!(both.bytes().unwrap_err().code, -32602);
    }

    #[test]
    fn words_that_are_no_text_come_through() {
        for bytes in [&b"plain"[..], b"", b"\xff\x00odd"] {
            let word = Word::of(OsStr::from_bytes(bytes));
            let text = serde_json::to_string(&word).unwrap();
            assert_eq!(serde_json::from_str::<Word>(&text).unwrap().meant().as_bytes(), bytes, "{text}");
        }
        assert!(serde_json::from_str::<Word>("{\"base64\":\"?\"}").is_err());
    }

    #[test]
    fn notifications_have_method_and_parameters() {
        let output = Notification::Output { job: 3, stream: Stream::Stderr, bytes: Bytes::of(b"x".to_vec()) };
        let text = serde_json::to_string(&output).unwrap();
        assert_eq!(text, "{\"method\":\"output\",\"params\":{\"job\":3,\"stream\":\"stderr\",\"data\":\"x\"}}");
    }
}
