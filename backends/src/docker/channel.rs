//! Standard input and output of the program in a container, as one duplex stream.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error as Failure;
use bytes::Bytes;
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::engine::one_line;

/// Bytes of standard error that are kept: its end says why a program ended.
const LAST_WORDS: usize = 4096;

/// What a program said last on its standard error.
#[derive(Debug, Clone, Default)]
pub struct LastWords(Arc<Mutex<VecDeque<u8>>>);

impl LastWords {
    fn add(&self, bytes: &[u8]) {
        let Ok(mut kept) = self.0.lock() else { return };
        kept.extend(bytes);
        let more = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..more);
    }

    /// The last line that is not empty; `None` when nothing was said.
    pub fn line(&self) -> Option<String> {
        let kept: Vec<u8> = self.0.lock().ok()?.iter().copied().collect();
        let text = String::from_utf8_lossy(&kept);
        text.lines().rev().map(one_line).find(|line| !line.is_empty())
    }
}

/// The stream. Its reading half ends when the program has ended or the engine is gone.
pub struct Channel {
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, Failure>> + Send>>,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    unread: Bytes,
    last_words: LastWords,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("unread", &self.unread.len()).finish_non_exhaustive()
    }
}

impl Channel {
    pub(super) fn new(attached: AttachContainerResults, last_words: LastWords) -> Self {
        Self { output: attached.output, input: attached.input, unread: Bytes::new(), last_words }
    }
}

impl AsyncRead for Channel {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_empty() {
            match ready!(self.output.as_mut().poll_next(context)) {
                Some(Ok(LogOutput::StdErr { message })) => self.last_words.add(&message),
                Some(Ok(frame)) => self.unread = frame.into_bytes(),
                Some(Err(failure)) => return Poll::Ready(Err(io::Error::other(failure))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = self.unread.len().min(buffer.remaining());
        buffer.put_slice(&self.unread.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(context)
    }
}
