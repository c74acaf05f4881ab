//! A connection of which something was read already, and whose bytes are counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::relay::Meter;

/// The sandbox's side of a connection.
#[derive(Debug)]
pub(crate) struct Counted<S> {
    before: Bytes,
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Counted<S> {
    /// `before` is read first.
    pub(crate) fn new(before: impl Into<Bytes>, stream: S, meter: Arc<Meter>) -> Self {
        Self { before: before.into(), stream, meter }
    }

    /// The stream, and what was not yet read again.
    pub(crate) fn into_parts(self) -> (S, Bytes) {
        (self.stream, self.before)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        if self.before.has_remaining() {
            let length = self.before.len().min(buffer.remaining());
            buffer.put_slice(&self.before.split_to(length));
        } else {
            std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        }
        self.meter.note_sent(buffer.filled().len() - start);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.meter.note_received(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts))?;
        self.meter.note_received(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
