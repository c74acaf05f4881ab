//! A connection whose requests are looked at twice: here, and by the library.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::{Flaw, Framing};

/// What became of it, for whoever answers.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    flaw: OnceLock<Flaw>,
    told: AtomicBool,
    handed_on: AtomicBool,
}

impl Watch {
    /// What is wrong, for whoever tells of it.
    pub(crate) fn tell(&self) -> Option<&'static str> {
        let flaw = self.flaw.get()?;
        self.told.store(true, Ordering::Relaxed);
        Some(flaw.why)
    }

    /// What is wrong, unless somebody told of it.
    pub(crate) fn untold(&self) -> Option<&'static str> {
        if self.told.load(Ordering::Relaxed) { None } else { self.tell() }
    }

    /// From now on there are no requests on it.
    pub(crate) fn hand_on(&self) {
        self.handed_on.store(true, Ordering::Relaxed);
    }
}

/// The sandbox's side of a connection with HTTP/1 on it.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    framing: Framing,
    watch: Arc<Watch>,
}

impl<S> Watched<S> {
    /// From its first request on.
    pub(crate) fn new(stream: S, watch: Arc<Watch>) -> Self {
        Self { stream, framing: Framing::default(), watch }
    }

    /// The connection itself.
    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    fn look(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.watch.flaw.get().is_some() {
            return Ok(());
        }
        if self.watch.handed_on.load(Ordering::Relaxed) {
            self.framing.hand_on();
        }
        let Err(flaw) = self.framing.feed(bytes) else { return Ok(()) };
        let _ = self.watch.flaw.set(flaw);
        // A head goes on to the library, since only there it can be answered.
        if flaw.in_head { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, flaw.why)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        Poll::Ready(self.look(&buffer.filled()[start..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
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
