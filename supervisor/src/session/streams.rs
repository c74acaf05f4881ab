//! A job's streams: pipes, or the pseudo-terminal in their place.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use hermes_backends::wire::Stdio;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use super::protocol::{Input, Start, Stream};

/// How long output of a terminal may take from one end to the other.
const TERMINAL_DELAY: std::time::Duration = std::time::Duration::from_millis(50);

/// The ends of a job's pipes.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Those of the job.
    pub(crate) theirs: Vec<OwnedFd>,
    pub(crate) input: Option<pipe::Sender>,
    pub(crate) output: Vec<(Stream, Source)>,
    /// What a shell says of itself at its end.
    pub(crate) report: Option<Source>,
}

impl Streams {
    /// Makes those that a job needs. Returns what it gets as descriptor 0 and so on.
    pub(crate) fn make(&mut self, start: &Start) -> io::Result<Vec<Stdio>> {
        let mut stdio = vec![Stdio::Terminal; 3];
        if start.pty.is_none() {
            stdio = vec![Stdio::Handed; 3];
            match start.stdin {
                Input::Null => stdio[0] = Stdio::Null,
                Input::Pipe | Input::All(_) => {
                    let (theirs, ours) = pair()?;
                    self.theirs.push(theirs);
                    self.input = Some(pipe::Sender::from_owned_fd(ours)?);
                }
            }
            let (ours, theirs) = pair()?;
            if start.merge {
                self.theirs.push(theirs.try_clone()?);
                self.theirs.push(theirs);
            } else {
                let (errors, their_errors) = pair()?;
                self.theirs.extend([theirs, their_errors]);
                self.output.push((Stream::Stderr, Source::Pipe(pipe::Receiver::from_owned_fd(errors)?)));
            }
            self.output.push((Stream::Stdout, Source::Pipe(pipe::Receiver::from_owned_fd(ours)?)));
        }
        if start.shell.is_some() {
            let (ours, theirs) = pair()?;
            self.theirs.push(theirs);
            self.report = Some(Source::Pipe(pipe::Receiver::from_owned_fd(ours)?));
            stdio.push(Stdio::Handed);
        }
        Ok(stdio)
    }
}

/// A pipe: the end to read from, the end to write to.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?)
}

/// Where a job's input goes.
#[derive(Debug)]
pub(crate) enum Sink {
    Pipe(pipe::Sender),
    Terminal(Rc<AsyncFd<OwnedFd>>),
}

/// What a job's output comes from.
#[derive(Debug)]
pub(crate) enum Source {
    Pipe(pipe::Receiver),
    Terminal(Rc<AsyncFd<OwnedFd>>),
}

impl Source {
    pub(crate) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => loop {
                pipe.readable().await?;
                match pipe.try_read(buffer) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    other => return other,
                }
            },
            Self::Terminal(master) => master.async_io(Interest::READABLE, |fd| Ok(nix::unistd::read(fd, buffer)?)).await,
        }
    }

    /// Reads what is there now that nobody is to write any more: asks the kernel, not the runtime, which may not know of it yet.
    pub(crate) async fn read_rest(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => Ok(nix::unistd::read(pipe, buffer)?),
            // What was written to a terminal arrives a moment later, tty_flip_buffer_push().
            Self::Terminal(_) => match tokio::time::timeout(TERMINAL_DELAY, self.read(buffer)).await {
                Ok(piece) => piece,
                Err(_) => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }
}

pub(crate) async fn write_terminal(master: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = master.async_io(Interest::WRITABLE, |fd| Ok(nix::unistd::write(fd, bytes)?)).await?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// The pseudo-terminal's master, to be waited for.
pub(crate) fn terminal(master: OwnedFd) -> io::Result<Rc<AsyncFd<OwnedFd>>> {
    let flags = OFlag::from_bits_truncate(fcntl(&master, FcntlArg::F_GETFL)?);
    fcntl(master.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    watched(master, Interest::READABLE | Interest::WRITABLE).map(Rc::new)
}

/// A descriptor to be waited for.
#[allow(
    deprecated,
    reason = "what replaces it is unsafe; an OwnedFd names one open file as long as it lives, which is all it asks for"
)]
pub(crate) fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}
