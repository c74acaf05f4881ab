//! Lines to and from an MCP client. The SDK's own reader is silent about what it cannot read, and a client would wait for its
//! answer for ever; and it reads on however many answers wait.

use std::io;
use std::sync::Arc;

use rmcp::model::ErrorCode;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::{mpsc, watch};

use crate::session::protocol::LONGEST;

/// Answers that wait for a client that does not read; then it is not read from either.
const UNSENT: usize = 64;

/// A client's lines.
pub(super) struct Lines<R> {
    reader: BufReader<R>,
    /// What has come of a line. Kept between calls: the SDK drops `receive` whenever something else happens first.
    line: Vec<u8>,
    /// The rest of a line that is too long is thrown away.
    skips: bool,
    ended: bool,
    refusal: Option<String>,
    answers: mpsc::Sender<String>,
    unsent: Arc<watch::Sender<usize>>,
    gone: watch::Sender<bool>,
}

/// What a piece of input completes.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    Line,
    TooLong,
    End,
}

impl<R: AsyncRead + Unpin + Send> Lines<R> {
    /// Also tells when the client has gone.
    pub(super) fn new(reader: R, answers: mpsc::Sender<String>) -> (Self, watch::Receiver<bool>) {
        let (gone, is_gone) = watch::channel(false);
        let lines = Self {
            reader: BufReader::new(reader),
            line: Vec::new(),
            skips: false,
            ended: false,
            refusal: None,
            answers,
            unsent: Arc::new(watch::Sender::new(0)),
            gone,
        };
        (lines, is_gone)
    }

    async fn next_line(&mut self) -> io::Result<Read> {
        while !self.ended {
            let available = self.reader.fill_buf().await?;
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |at| at + 1);
            self.ended = available.is_empty();
            let fits = self.line.len() + taken <= LONGEST + 1;
            if !self.skips && fits {
                self.line.extend_from_slice(&available[..taken]);
            }
            self.reader.consume(taken);
            let too_long = !self.skips && !fits;
            if too_long {
                self.line = Vec::new();
            }
            self.skips = (self.skips || too_long) && end.is_none() && !self.ended;
            if too_long {
                return Ok(Read::TooLong);
            }
            if end.is_some() && !self.line.is_empty() || self.ended && !self.line.is_empty() {
                return Ok(Read::Line);
            }
        }
        Ok(Read::End)
    }

    async fn next(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if self.refusal.is_some() {
                let place = self.answers.reserve().await.ok()?;
                place.send(self.refusal.take()?);
            }
            let mut unsent = self.unsent.subscribe();
            unsent.wait_for(|unsent| *unsent < UNSENT).await.ok()?;
            let answers = self.answers.clone();
            let read = tokio::select! {
                read = self.next_line() => read.ok()?,
                // Nobody would hear an answer.
                () = answers.closed() => return None,
            };
            match read {
                Read::End => return None,
                Read::TooLong => {
                    let error = ErrorData::invalid_request(format!("a message is longer than {LONGEST} bytes"), None);
                    self.refusal = Some(refusal(&Value::Null, &error));
                }
                Read::Line => match parse(&std::mem::take(&mut self.line)) {
                    Ok(None) => {}
                    Ok(Some(message)) => return Some(message),
                    Err((id, error)) => self.refusal = Some(refusal(&id, &error)),
                },
            }
        }
    }
}

impl<R: AsyncRead + Unpin + Send> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(&mut self, item: TxJsonRpcMessage<RoleServer>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let waits = Unsent::new(Arc::clone(&self.unsent));
        let answers = self.answers.clone();
        async move {
            let line = serde_json::to_string(&item).map_err(io::Error::other)?;
            let sent = answers.send(format!("{line}\n")).await;
            drop(waits);
            sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message = self.next().await;
        if message.is_none() {
            self.gone.send_replace(true);
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        self.gone.send_replace(true);
        Ok(())
    }
}

/// An answer that has not been sent, counted as long as it lives.
struct Unsent(Arc<watch::Sender<usize>>);

impl Unsent {
    fn new(count: Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A message; nothing for an empty line. An error comes with the id that it answers, as far as that can be read.
fn parse(line: &[u8]) -> Result<Option<RxJsonRpcMessage<RoleServer>>, (Value, ErrorData)> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let value: Value = serde_json::from_slice(line)
        .map_err(|e| (Value::Null, ErrorData::new(ErrorCode::PARSE_ERROR, format!("not JSON: {e}"), None)))?;
    let id = Some(&value["id"]).filter(|id| id.is_string() || id.is_number()).cloned().unwrap_or_default();
    let why = match &value {
        Value::Array(_) => "batches are not supported; send one message a line",
        Value::Object(_) if value["jsonrpc"] != "2.0" => "`jsonrpc` must be \"2.0\"",
        _ => "not a request, notification or response",
    };
    serde_json::from_value(value).map(Some).map_err(|_| (id, ErrorData::invalid_request(why, None)))
}

fn refusal(id: &Value, error: &ErrorData) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_answered_by_its_id() {
        for (line, id, code) in [
            (&b"{"[..], json!(null), -32700),
            (b"\xff", json!(null), -32700),
            (b"[]", json!(null), -32600),
            (b"{\"jsonrpc\":\"1.0\",\"id\":\"a\",\"method\":\"ping\"}", json!("a"), -32600),
            (b"{\"jsonrpc\":\"2.0\",\"id\":7}", json!(7), -32600),
            (b"3", json!(null), -32600),
        ] {
            let (answered, error) = parse(line).unwrap_err();
            assert_eq!((&answered, error.code.0), (&id, code), "{}", String::from_utf8_lossy(line));
        }
        assert!(parse(b" \r\n").unwrap().is_none());
        assert!(parse(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n").unwrap().is_some());
        let deep = [b"[".repeat(1_000_000), b"]".repeat(1_000_000)].concat();
        assert_eq!(parse(&deep).unwrap_err().1.code.0, -32700);
    }

    #[test]
    fn lines_come_whole_and_long_ones_not_at_all() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut input = b"one\n\ntwo\n".to_vec();
        input.extend(vec![b'x'; LONGEST + 2]);
        input.extend(b"rest\nthree");
        let (answers, _waiting) = mpsc::channel(1);
        let (mut lines, _) = Lines::new(&input[..], answers);
        let mut next = || {
            runtime.block_on(async {
                let read = lines.next_line().await.unwrap();
                (read, String::from_utf8(std::mem::take(&mut lines.line)).unwrap())
            })
        };
        for (read, text) in [
            (Read::Line, "one\n"),
            (Read::Line, "\n"),
            (Read::Line, "two\n"),
            (Read::TooLong, ""),
            (Read::Line, "three"),
            (Read::End, ""),
            (Read::End, ""),
        ] {
            assert_eq!(next(), (read, text.to_owned()));
        }
    }
}
