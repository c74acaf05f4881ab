//! Bytes from one connection to another, and back, until both ends are done.
//!
//! Each direction ends by itself: the end of one is passed on as the end of writing (half-close), and the other goes on.
//! Nothing is read that cannot be written, so a slow reader slows its writer and costs no memory. Where much flows between two
//! sockets the kernel moves it (splice(2)).

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until};

/// Bytes of one copy.
const CHUNK: usize = 16 * 1024;

/// After so many bytes in one direction a pipe is worth its two descriptors.
const WORTH_A_PIPE: u64 = 256 * 1024;

/// Pages of a pipe, in bytes. More would soon exceed what an unprivileged user may have in all pipes together (pipe(7)).
const PIPE: i32 = 256 * 1024;

/// Bytes that are asked for at a time. More than pages: what comes from a socket lies in larger pieces, of which each takes one page's place.
const MOST: usize = 1024 * 1024;

/// What flowed, and when last.
#[derive(Debug)]
pub struct Meter {
    began: Instant,
    last: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Self { began: Instant::now(), last: AtomicU64::new(0), sent: AtomicU64::new(0), received: AtomicU64::new(0) }
    }
}

impl Meter {
    /// Bytes from the sandbox.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes to the sandbox.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Notes that something flowed from the sandbox.
    pub fn note_sent(&self, bytes: usize) {
        self.note(&self.sent, bytes);
    }

    /// Notes that something flowed to the sandbox.
    pub fn note_received(&self, bytes: usize) {
        self.note(&self.received, bytes);
    }

    fn note(&self, count: &AtomicU64, bytes: usize) {
        count.fetch_add(bytes as u64, Ordering::Relaxed);
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Comes back when nothing has flowed for `limit`.
    pub async fn idle(&self, limit: Duration) {
        loop {
            let last = self.began + Duration::from_millis(self.last.load(Ordering::Relaxed));
            let end = last + limit;
            if Instant::now() >= end {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// How a relay ended.
#[derive(Debug)]
pub enum End {
    /// Both directions came to their end.
    Done,
    /// Nothing flowed for too long.
    Idle,
    /// One of the two failed.
    Failed(io::Error),
}

/// Relays between the sandbox's connection and the one outside, both plain sockets.
///
/// `to_outside` and `to_inside` were read before and are sent first. `pipes` limits the descriptors that this may cost.
pub async fn sockets(
    inside: &TcpStream,
    outside: &TcpStream,
    begun: Begun<'_>,
    meter: &Meter,
    pipes: &Semaphore,
    idle: Duration,
) -> End {
    let up = pump(inside, outside, begun.to_outside, |bytes| meter.note_sent(bytes), pipes);
    let down = pump(outside, inside, begun.to_inside, |bytes| meter.note_received(bytes), pipes);
    let end = tokio::select! {
        result = async { tokio::try_join!(up, down) } => result.map_or_else(End::Failed, |_| End::Done),
        () = meter.idle(idle) => End::Idle,
    };
    if !matches!(end, End::Done) {
        abort(inside);
        abort(outside);
    }
    end
}

/// What was read from either side before the relay began.
#[derive(Debug, Clone, Copy, Default)]
pub struct Begun<'a> {
    /// From the sandbox.
    pub to_outside: &'a [u8],
    /// From outside.
    pub to_inside: &'a [u8],
}

/// Makes the end of a connection a reset: cut off must not look like complete.
pub fn abort(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

async fn pump(from: &TcpStream, to: &TcpStream, first: &[u8], note: impl Fn(usize), pipes: &Semaphore) -> io::Result<()> {
    write_all(to, first).await?;
    note(first.len());
    let mut total = 0;
    loop {
        from.readable().await?;
        match copy_once(from, to) {
            Ok(Copied { read: 0, .. }) => break,
            Ok(Copied { read, rest }) => {
                write_all(to, &rest).await?;
                note(read);
                total += read as u64;
                if read < CHUNK {
                    drained(from);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if total >= WORTH_A_PIPE {
            if let Some(pipe) = Pipe::new(pipes) {
                pump_by_pipe(from, to, &pipe, &note).await?;
                break;
            }
            total = 0;
        }
    }
    end_of_writing(to)
}

fn end_of_writing(to: &TcpStream) -> io::Result<()> {
    match SockRef::from(to).shutdown(Shutdown::Write) {
        // The other side has gone already.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

struct Copied {
    read: usize,
    rest: Vec<u8>,
}

/// The buffer lives on the stack for the length of a call: a connection that waits has none.
fn copy_once(from: &TcpStream, to: &TcpStream) -> io::Result<Copied> {
    let mut space = [MaybeUninit::uninit(); CHUNK];
    let mut buffer = ReadBuf::uninit(&mut space);
    from.try_read_buf(&mut buffer)?;
    let read = buffer.filled();
    let written = match to.try_write(read) {
        Ok(written) => written,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    Ok(Copied { read: read.len(), rest: read[written..].to_vec() })
}

/// Waits for more before it is asked for: a read that was not filled has taken all there was, and what comes after it is told of
/// (epoll(7), edge-triggered).
fn drained(from: &TcpStream) {
    let _ = from.try_io(Interest::READABLE, || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
}

/// Writes all of `bytes`.
pub(crate) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Pipe<'a> {
    read: OwnedFd,
    write: OwnedFd,
    _permit: SemaphorePermit<'a>,
}

impl<'a> Pipe<'a> {
    fn new(pipes: &'a Semaphore) -> Option<Self> {
        let permit = pipes.try_acquire().ok()?;
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
        // Refused where the user has many; what there is does.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE));
        Some(Self { read, write, _permit: permit })
    }
}

/// The pipe is emptied after every filling, so that a full one never looks like a socket with nothing to read.
async fn pump_by_pipe(from: &TcpStream, to: &TcpStream, pipe: &Pipe<'_>, note: &impl Fn(usize)) -> io::Result<()> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    let moved = |result: Result<usize, Errno>| result.map_err(io::Error::from);
    loop {
        from.readable().await?;
        let filled = from.try_io(Interest::READABLE, || moved(splice(from, None, &pipe.write, None, MOST, flags)));
        let mut left = match filled {
            Ok(0) => return Ok(()),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        note(left);
        while left > 0 {
            to.writable().await?;
            match to.try_io(Interest::WRITABLE, || moved(splice(&pipe.read, None, to, None, left, flags))) {
                Ok(written) => left -= written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Relays between any two streams, for upgraded connections.
pub async fn streams<I, O>(inside: I, outside: O, meter: &Meter, idle: Duration) -> End
where
    I: AsyncRead + AsyncWrite,
    O: AsyncRead + AsyncWrite,
{
    let (inside_read, inside_write) = tokio::io::split(inside);
    let (outside_read, outside_write) = tokio::io::split(outside);
    let up = copy(inside_read, outside_write, |bytes| meter.note_sent(bytes));
    let down = copy(outside_read, inside_write, |bytes| meter.note_received(bytes));
    tokio::select! {
        result = async { tokio::try_join!(up, down) } => result.map_or_else(End::Failed, |_| End::Done),
        () = meter.idle(idle) => End::Idle,
    }
}

async fn copy<R, W>(mut from: R, mut to: W, note: impl Fn(usize)) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
        note(read);
    }
}
