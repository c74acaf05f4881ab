//! Many streams over one channel, by yamux, and the notice when nothing comes over it any more.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use yamux::{Config, Connection, ConnectionError, Mode};

use super::Channel;

/// A channel over which nothing has come for this time is dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(15);
/// How often each side says something when it has nothing to say.
pub(crate) const BEAT: Duration = Duration::from_secs(4);
/// Streams that each side may have opened; more wait. yamux gives the whole connection up at its own limit, which counts those of
/// both sides and for a moment those that have ended.
const MOST: usize = 400;
/// As large as a stream's window is at first.
const WINDOW: usize = 256 * 1024;

/// Opens streams.
#[derive(Clone)]
pub(crate) struct Mux {
    asked: UnboundedSender<oneshot::Sender<yamux::Stream>>,
    places: Arc<Semaphore>,
    signs: Arc<Signs>,
}

/// One stream. Reset for the other side when it is dropped before it was shut down.
pub(crate) struct Stream {
    inner: Compat<yamux::Stream>,
    /// We have said all.
    shut: bool,
    _place: Option<OwnedSemaphorePermit>,
}

/// Why nothing comes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The channel ended.
    Ended,
    /// It is silent.
    Silent,
    /// What came made no sense.
    Broken,
}

/// What moves the bytes; to be [run](Self::run).
pub(crate) struct Driver {
    connection: Connection<Compat<Heard>>,
    asked: UnboundedReceiver<oneshot::Sender<yamux::Stream>>,
    waiting: Option<oneshot::Sender<yamux::Stream>>,
    opened: UnboundedSender<Stream>,
    signs: Arc<Signs>,
    look: Interval,
    /// Seconds without a sign of life.
    silent: u32,
}

/// Which half this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Near,
    Far,
}

/// Multiplexes `channel`. Returns what opens streams, the streams that the other side opens, and what must run for it all.
pub(crate) fn over(channel: Box<dyn Channel>, side: Side) -> (Mux, UnboundedReceiver<Stream>, Driver) {
    let mode = match side {
        Side::Near => Mode::Client,
        Side::Far => Mode::Server,
    };
    let mut config = Config::default();
    let streams = 1024;
    config.set_max_num_streams(streams).set_max_connection_receive_window(Some(streams * WINDOW));
    let signs = Arc::new(Signs::default());
    let (asked, to_open) = unbounded_channel();
    let (opened, streams) = unbounded_channel();
    let connection = Connection::new(Heard { channel, signs: Arc::clone(&signs) }.compat(), config, mode);
    let mut look = interval(Duration::from_secs(1));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let driver = Driver { connection, asked: to_open, waiting: None, opened, signs: Arc::clone(&signs), look, silent: 0 };
    (Mux { asked, places: Arc::new(Semaphore::new(MOST)), signs }, streams, driver)
}

impl Mux {
    /// A new stream. The other side hears of it with its first bytes.
    pub(crate) async fn open(&self) -> io::Result<Stream> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(io::Error::other)?;
        let (give, given) = oneshot::channel();
        let gone = || io::Error::from(io::ErrorKind::ConnectionReset);
        self.asked.send(give).map_err(|_| gone())?;
        let stream = given.await.map_err(|_| gone())?;
        Ok(Stream { inner: stream.compat(), shut: false, _place: Some(place) })
    }

    /// Until something comes again, silence is no sign of death.
    pub(crate) fn pause(&self) {
        self.signs.paused.store(true, Ordering::Relaxed);
    }
}

impl Driver {
    /// Moves bytes until the channel is of no use any more.
    pub(crate) async fn run(mut self) -> Lost {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        if let Poll::Ready(lost) = self.poll_connection(cx) {
            return Poll::Ready(lost);
        }
        // Seconds in which we looked are counted, and no others: we may have stood still ourselves.
        while self.look.poll_tick(cx).is_ready() {
            self.silent = if self.signs.take() { 0 } else { self.silent + 1 };
            if u64::from(self.silent) > SILENCE.as_secs() {
                return Poll::Ready(Lost::Silent);
            }
        }
        Poll::Pending
    }

    fn poll_connection(&mut self, cx: &mut Context<'_>) -> Poll<Lost> {
        loop {
            if self.waiting.is_none()
                && let Poll::Ready(Some(waits)) = self.asked.poll_recv(cx)
            {
                self.waiting = Some(waits);
            }
            if self.waiting.is_some() {
                match self.connection.poll_new_outbound(cx) {
                    Poll::Ready(Ok(stream)) => {
                        let _ = self.waiting.take().map(|waits| waits.send(stream));
                        continue;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(lost(&error)),
                    Poll::Pending => {}
                }
            }
            match ready!(self.connection.poll_next_inbound(cx)) {
                Some(Ok(stream)) => {
                    let _ = self.opened.send(Stream { inner: stream.compat(), shut: false, _place: None });
                }
                Some(Err(error)) => return Poll::Ready(lost(&error)),
                None => return Poll::Ready(Lost::Ended),
            }
        }
    }
}

fn lost(error: &ConnectionError) -> Lost {
    match error {
        ConnectionError::Io(_) | ConnectionError::Closed => Lost::Ended,
        _ => Lost::Broken,
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let ended = buffer.filled().len() == before && buffer.remaining() > 0;
        // yamux reads a reset as an end. Both sides have then ended, and ours has not said so.
        if ended && !self.shut && self.inner.get_ref().is_closed() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut = true;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Signs of life of the other side.
#[derive(Default)]
struct Signs {
    /// Something came since the last look.
    heard: AtomicBool,
    /// It stands still, and has said so.
    paused: AtomicBool,
}

impl Signs {
    /// Was there one since the last look?
    fn take(&self) -> bool {
        self.heard.swap(false, Ordering::Relaxed) || self.paused.load(Ordering::Relaxed)
    }
}

/// A channel that is listened to: any byte shows that the other side lives, also where beats wait behind much else.
struct Heard {
    channel: Box<dyn Channel>,
    signs: Arc<Signs>,
}

impl AsyncRead for Heard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.channel).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.signs.heard.store(true, Ordering::Relaxed);
            self.signs.paused.store(false, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Heard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.channel).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.channel).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
    }

    #[test]
    fn streams_carry_bytes_ends_and_resets() {
        runtime().block_on(async {
            let (a, b) = tokio::io::duplex(1 << 16);
            let (near, _, driver) = over(Box::new(a), Side::Near);
            tokio::spawn(driver.run());
            let (_far, mut arrived, driver) = over(Box::new(b), Side::Far);
            tokio::spawn(driver.run());
            tokio::spawn(async move {
                while let Some(mut stream) = arrived.recv().await {
                    tokio::spawn(async move {
                        let mut first = [0];
                        stream.read_exact(&mut first).await.unwrap();
                        if first == *b"e" {
                            let (mut reader, mut writer) = tokio::io::split(stream);
                            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                            writer.shutdown().await.unwrap();
                        }
                    });
                }
            });
            // Larger than any window.
            let bytes: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
            let (mut reader, mut writer) = tokio::io::split(near.open().await.unwrap());
            let sent = bytes.clone();
            tokio::spawn(async move {
                writer.write_all(b"e").await.unwrap();
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let mut back = Vec::new();
            reader.read_to_end(&mut back).await.unwrap();
            assert!(back == bytes);
            // Dropped without a word.
            let mut reset = near.open().await.unwrap();
            reset.write_all(b"r").await.unwrap();
            let error = reset.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            // Many more than may be open at a time.
            for _ in 0..2 * MOST {
                let (mut ours, mut theirs) = (near.open().await.unwrap(), tokio::io::duplex(16));
                ours.write_all(b"e").await.unwrap();
                drop(theirs.1);
                copy_bidirectional(&mut ours, &mut theirs.0).await.unwrap();
            }
        });
    }

    #[test]
    fn silence_is_noticed_unless_it_was_said() {
        runtime().block_on(async {
            let (a, _b) = tokio::io::duplex(1 << 16);
            let (_near, _, driver) = over(Box::new(a), Side::Near);
            let begun = tokio::time::Instant::now();
            assert_eq!(driver.run().await, Lost::Silent);
            assert_eq!(begun.elapsed().as_secs(), SILENCE.as_secs());
            let (a, _b) = tokio::io::duplex(1 << 16);
            let (near, _, driver) = over(Box::new(a), Side::Near);
            near.pause();
            assert!(tokio::time::timeout(100 * SILENCE, driver.run()).await.is_err());
        });
    }

    #[test]
    fn the_end_of_a_channel_is_noticed() {
        runtime().block_on(async {
            let (a, b) = tokio::io::duplex(1 << 16);
            let (_near, _, driver) = over(Box::new(a), Side::Near);
            drop(b);
            assert_eq!(driver.run().await, Lost::Ended);
        });
    }
}
