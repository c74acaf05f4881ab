//! What the two halves say to each other. Both are the same program, of the same version (see [`super::GREETING`]).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hermes_backends::docker::mounts::Expected;
use hermes_backends::host::Enclosure;
use hermes_profiles::Overrides;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::files::Bundle;
use crate::args::{PolicyArgs, TierArg};
use crate::error::{Error, Kind};
use crate::session::protocol::Reason;

/// Bytes that one message may have: policy files travel in one.
const LONGEST: usize = 32 << 20;

/// The first message: what is wanted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) errand: Errand,
    pub(crate) asked: Asked,
    /// The container that near has made around far.
    pub(crate) enclosed: Option<Enclosed>,
}

/// A container on near's machine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Enclosed {
    /// What it holds already.
    pub(crate) enclosure: Enclosure,
    /// What must be found in it before anything runs.
    pub(crate) expected: Vec<Expected>,
    /// Directories that the image wants to write, and that end with the container.
    pub(crate) writable: Vec<PathBuf>,
}

/// What the far half is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// Make a sandbox, and serve its clients.
    Sandbox {
        /// The command, as far as it is known: what it needs is granted.
        program: Vec<Bytes>,
        /// What it is for, as told beside what was put aside.
        command: Vec<Bytes>,
        name: Option<String>,
        mcp: bool,
        /// Milliseconds.
        ttl: Option<u64>,
        idle: Option<u64>,
        /// Does somebody want events?
        events: bool,
        way_out: Option<WayOut>,
    },
    /// Say what would be done.
    Plan { command: Vec<Bytes>, json: bool },
    /// Say what the machine can enforce.
    Doctor { json: bool, verbose: bool },
}

/// What the way out needs there. No value of any secret is in it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WayOut {
    /// The certificate, in PEM, that must be trusted inside.
    pub(crate) authority: String,
    pub(crate) placeholders: Vec<(String, String)>,
}

/// From what the policy is made there.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) profile: Option<String>,
    pub(crate) source: Option<String>,
    /// Absolute, or below the home directory there.
    pub(crate) workspace: Bytes,
    pub(crate) overrides: Overrides,
    pub(crate) tier: Option<TierArg>,
    pub(crate) checkpoint: bool,
    pub(crate) verbose: bool,
    /// The caller's, which stand in the place of those of the other side: only what the options name. `None`: it has none.
    pub(crate) variables: Vec<(Bytes, Option<Bytes>)>,
    pub(crate) files: Bundle,
}

impl Asked {
    /// The wishes that are no part of the policy.
    pub(crate) fn wishes(&self) -> PolicyArgs {
        PolicyArgs { tier: self.tier, checkpoint: self.checkpoint, verbose: self.verbose, ..PolicyArgs::default() }
    }
}

/// What the kernel takes as bytes.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bytes(Vec<u8>);

impl Bytes {
    pub(crate) fn of(text: &(impl AsRef<std::ffi::OsStr> + ?Sized)) -> Self {
        Self(text.as_ref().as_bytes().to_vec())
    }

    pub(crate) fn words(words: &[OsString]) -> Vec<Self> {
        words.iter().map(Self::of).collect()
    }

    pub(crate) fn text(&self) -> OsString {
        OsString::from_vec(self.0.clone())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.text().into()
    }
}

/// What near says on the control stream after its [`Hello`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToFar {
    /// It lives.
    Beat,
    /// It stands still for a while, and lives.
    Pause,
    /// Listen on these ports, too.
    Listen(Vec<u16>),
    /// End.
    Stop,
}

/// What far says on the control stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToNear {
    /// It lives.
    Beat,
    /// A line for people.
    Said(Vec<u8>),
    /// A line of events.
    Event(Vec<u8>),
    /// The policy stands; with the project's own file, which can only take away.
    Resolved { project: Option<Vec<u8>> },
    /// The ports of the oldest [`ToFar::Listen`] are listened on, or why not.
    Listens(Result<(), String>),
    /// The sandbox stands, and serves.
    Ready,
    /// What was asked for, and the exit status.
    Answer { text: String, status: u8 },
    /// All is over, since something could not be done.
    Failed { kind: Kind, message: String, hints: Vec<String> },
    /// All is over.
    Ended(Reason),
}

impl ToNear {
    pub(crate) fn failed(error: &Error) -> Self {
        Self::Failed { kind: error.kind, message: error.message.clone(), hints: error.hints.clone() }
    }
}

/// How a stream begins that near opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wanted {
    /// A client of the session protocol.
    Session,
    /// A client of the Model Context Protocol.
    Mcp,
}

/// Writes one message: its length, then itself.
pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length as usize <= LONGEST);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "the policy files are too long"))?;
    to.write_all(&[&length.to_be_bytes()[..], &bytes].concat()).await?;
    to.flush().await
}

/// Reads one message.
pub(crate) async fn read<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = from.read_u32().await? as usize;
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    // Not reserved: nothing but its word says that so much will come.
    if from.take(length as u64).read_to_end(&mut bytes).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// A time as it travels.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// `path` below `home` when it begins with `~`, or is relative: as scp has it.
pub(crate) fn at_home(path: &Path, home: Option<&Path>) -> PathBuf {
    let below = path.strip_prefix("~").unwrap_or(path);
    match home {
        Some(home) if below.is_relative() => home.join(below),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::network::Way;

    #[test]
    fn messages_come_through_and_what_is_none_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let hello = Hello {
                errand: Errand::Plan { command: vec![Bytes::of("\u{e9}")], json: true },
                asked: Asked { tier: Some(TierArg::Landlock), ..Asked::default() },
                enclosed: Some(Enclosed { enclosure: Enclosure::default(), expected: Vec::new(), writable: Vec::new() }),
            };
            let mut bytes = Vec::new();
            write(&mut bytes, &hello).await.unwrap();
            let back: Hello = read(&mut &bytes[..]).await.unwrap();
            assert_eq!(format!("{back:?}"), format!("{hello:?}"));
            for length in 0..bytes.len() {
                assert!(read::<Hello>(&mut &bytes[..length]).await.is_err());
            }
            assert!(read::<Way>(&mut &[0xff; 64][..]).await.is_err());
            let way = Way::Transparent("[2001:db8::1]:443".parse().unwrap());
            let mut bytes = Vec::new();
            write(&mut bytes, &way).await.unwrap();
            assert_eq!(read::<Way>(&mut &bytes[..]).await.unwrap(), way);
        });
    }

    #[test]
    fn relative_paths_begin_at_home() {
        let at = |path: &str| at_home(Path::new(path), Some(Path::new("/home/u")));
        assert_eq!(at("ws"), Path::new("/home/u/ws"));
        assert_eq!(at("~/ws"), Path::new("/home/u/ws"));
        assert_eq!(at("~"), Path::new("/home/u/"));
        assert_eq!(at("/srv/ws"), Path::new("/srv/ws"));
        assert_eq!(at("~other/ws"), Path::new("/home/u/~other/ws"));
    }
}
