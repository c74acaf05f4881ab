//! Our standard streams as a channel, and what is put in their place.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, read, write};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

use crate::error::Error;
use crate::session::streams::watched;

/// The streams that this process was started with.
pub(super) struct Standard {
    input: OwnedFd,
    output: OwnedFd,
    /// What is written to standard error from now on.
    pub(super) said: PipeReader,
}

impl Standard {
    /// Takes them away from the rest of the program, whose standard input is empty, whose output is lost, and whose errors are
    /// read here.
    ///
    /// # Errors
    /// They are a person's terminal.
    pub(super) fn take() -> Result<Self, Error> {
        if io::stdin().is_terminal() || io::stdout().is_terminal() {
            return Err(Error::usage("`remote` is started by hermes-sandbox itself, on another machine"));
        }
        Self::exchange().map_err(|e| Error::setup(format!("cannot use the standard streams: {e}")))
    }

    fn exchange() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let (said, says) = io::pipe()?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        dup2_stderr(&says)?;
        Ok(Self { input, output, said })
    }

    /// The channel, within a runtime.
    pub(super) fn channel(input: OwnedFd, output: OwnedFd) -> io::Result<Duplex> {
        for fd in [&input, &output] {
            let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        let input = watched(input, Interest::READABLE)?;
        let output = watched(output, Interest::WRITABLE)?;
        Ok(Duplex { input, output: Some(output) })
    }

    pub(super) fn into_parts(self) -> (OwnedFd, OwnedFd, PipeReader) {
        (self.input, self.output, self.said)
    }
}

/// From now on nobody reads what is written to standard error.
pub(super) fn hush() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stderr(&null);
    }
}

/// Two descriptors as one stream.
pub(super) struct Duplex {
    input: AsyncFd<OwnedFd>,
    output: Option<AsyncFd<OwnedFd>>,
}

impl AsyncRead for Duplex {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.input.poll_read_ready(cx))?;
            match guard.try_io(|fd| Ok(read(fd, buffer.initialize_unfilled())?)) {
                Ok(length) => {
                    buffer.advance(length?);
                    return Poll::Ready(Ok(()));
                }
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(output) = &self.output else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        loop {
            let mut guard = ready!(output.poll_write_ready(cx))?;
            match guard.try_io(|fd| Ok(write(fd, bytes)?)) {
                Ok(written) => return Poll::Ready(written),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output = None;
        Poll::Ready(Ok(()))
    }
}
