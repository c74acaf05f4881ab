//! The other end of the protocol, for this program's own commands: one thread, one request at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::place::Place;
use super::protocol::{Failure, Initialize, Initialized, LONGEST, Notification, VERSION};
use crate::error::{Error, Kind};
use crate::output;

/// How long an answer may take that waits for nothing: longer than the end of a job that resists.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a session.
#[derive(Debug)]
pub(crate) struct Client {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
    last: u64,
}

/// What a session says.
#[derive(Debug)]
pub(crate) enum Said {
    /// The result is JSON.
    Answer(u64, Result<String, Failure>),
    Notification(Notification),
}

/// A line, as far as it says what it is.
#[derive(Deserialize)]
struct Heard<'l> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'l RawValue>,
    error: Option<Failure>,
}

impl Client {
    /// Connects to a session and agrees on the version.
    pub(crate) fn connect(socket: &Path) -> Result<(Self, Initialized), Error> {
        let cannot = |e: io::Error| Error::setup(format!("cannot reach the session at {}: {e}", output::path(socket)));
        Self::over(UnixStream::connect(socket).map_err(cannot)?)
    }

    /// The same over a connection that is there already.
    pub(crate) fn over(writer: UnixStream) -> Result<(Self, Initialized), Error> {
        let cannot = |e: io::Error| Error::setup(format!("cannot speak with the session: {e}"));
        let reader = BufReader::new(writer.try_clone().map_err(cannot)?);
        let mut client = Self { reader, writer, last: 0 };
        let initialized = client.ask_soon("initialize", &Initialize { protocol: VERSION })?;
        Ok((client, initialized))
    }

    /// A connection, if the session lives. Its lock is not looked at: that would be in the way of one that starts.
    pub(crate) fn reach(place: &Place) -> Option<Self> {
        if place.is_ready() { Self::connect(&place.socket()).ok().map(|(client, _)| client) } else { None }
    }

    /// Asks for what is answered at once; a session that hangs is an error.
    pub(crate) fn ask_soon<T: DeserializeOwned>(&mut self, method: &str, params: &impl Serialize) -> Result<T, Error> {
        self.writer.set_read_timeout(Some(PATIENCE)).map_err(|e| lost(&e))?;
        let answer = self.ask(method, params);
        self.writer.set_read_timeout(None).map_err(|e| lost(&e))?;
        answer
    }

    /// Sends a request; its number names the answer.
    pub(crate) fn send(&mut self, method: &str, params: &impl Serialize) -> Result<u64, Error> {
        self.last += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params});
        self.writer.write_all(format!("{request}\n").as_bytes()).map_err(|e| lost(&e))?;
        Ok(self.last)
    }

    /// Waits for what comes next; `None` when the session has ended.
    pub(crate) fn receive(&mut self) -> Result<Option<Said>, Error> {
        let mut line = Vec::new();
        // Text grows by its escapes.
        let most = 8 * LONGEST as u64;
        if (&mut self.reader).take(most).read_until(b'\n', &mut line).map_err(|e| lost(&e))? == 0 {
            return Ok(None);
        }
        let odd = |e: serde_json::Error| Error::setup(format!("the session says what is not understood: {e}"));
        let heard: Heard<'_> = serde_json::from_slice(&line).map_err(odd)?;
        Ok(Some(match (heard.id, heard.error) {
            (None, _) => Said::Notification(serde_json::from_slice(&line).map_err(odd)?),
            (Some(id), Some(error)) => Said::Answer(id, Err(error)),
            (Some(id), None) => Said::Answer(id, Ok(heard.result.map_or("null", RawValue::get).to_owned())),
        }))
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, method: &str, params: &impl Serialize) -> Result<T, Error> {
        let id = self.send(method, params)?;
        loop {
            match self.receive()? {
                None => return Err(lost(&io::ErrorKind::UnexpectedEof.into())),
                Some(Said::Answer(answered, outcome)) if answered == id => return understood(outcome),
                Some(_) => {}
            }
        }
    }

    /// The socket, to be waited for. What is [buffered](Self::has_more) is not seen there.
    pub(crate) fn socket(&self) -> &UnixStream {
        &self.writer
    }

    /// Takes what has come; false when nothing comes any more. What [`Self::receive`] then waits for is on its way.
    pub(crate) fn fill(&mut self) -> bool {
        self.reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Is there something to be received already?
    pub(crate) fn has_more(&self) -> bool {
        !self.reader.buffer().is_empty()
    }
}

/// The answer as a value, or as the error that ends the command.
pub(crate) fn understood<T: DeserializeOwned>(outcome: Result<String, Failure>) -> Result<T, Error> {
    let text = outcome.map_err(|failure| failed(&failure))?;
    serde_json::from_str(&text).map_err(|e| Error::setup(format!("the session's answer is not understood: {e}")))
}

fn failed(failure: &Failure) -> Error {
    let data = failure.data.clone().unwrap_or_default();
    let kind = match data.status {
        Some(126) => Kind::NotExecutable,
        Some(127) => Kind::NotFound,
        _ => Kind::Setup,
    };
    let error = Error::new(kind, failure.message.clone());
    data.hint.into_iter().fold(error, Error::hint)
}

fn lost(why: &io::Error) -> Error {
    if why.kind() == io::ErrorKind::WouldBlock {
        return Error::setup(format!("the session does not answer within {} s", PATIENCE.as_secs()))
            .hint("when its process (`hermes-sandbox serve`) is killed, its sandbox ends, too");
    }
    Error::setup(format!("the session has ended: {why}")).hint("`hermes-sandbox session logs NAME` says why")
}
