//! The caller's terminal while a job has a pseudo-terminal of its own: raw mode, size, and the copying of bytes.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hermes_backends::local::sys::thread::{set_window_size, window_size};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, SpecialCharacterIndices, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, read, tcgetpgrp, write};

/// Bytes that may wait for a job that does not read its terminal.
const PENDING: usize = 64 * 1024;

/// What came from the caller's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Typed {
    /// Text.
    Text,
    /// Text with the key that suspends in it.
    Suspend,
    /// The end: the terminal has hung up.
    HungUp,
}

/// The relay between the caller's terminal and a job's.
#[derive(Debug)]
pub(crate) struct Relay {
    master: OwnedFd,
    /// The modes to restore; `None` when the input is no terminal.
    modes: Option<Termios>,
    raw: bool,
    pending: VecDeque<u8>,
    input_open: bool,
    output_open: bool,
}

impl Relay {
    /// Takes over the master of a job's pseudo-terminal and gives it the modes and the size of the caller's.
    pub(crate) fn new(master: OwnedFd) -> Result<Self, Errno> {
        let flags = OFlag::from_bits_truncate(fcntl(&master, FcntlArg::F_GETFL)?);
        fcntl(&master, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        let input = std::io::stdin();
        let modes = if input.is_terminal() { tcgetattr(&input).ok() } else { None };
        let relay = Self { master, raw: false, pending: VecDeque::new(), input_open: modes.is_some(), output_open: true, modes };
        if let Some(mut inner) = with_outer(|outer| tcgetattr(outer).ok()) {
            if relay.modes.is_none() {
                // Nobody makes the outer terminal raw then, and it translates newlines already.
                inner.output_flags.remove(OutputFlags::OPOST);
                inner.local_flags.remove(LocalFlags::ECHO);
            }
            tcsetattr(&relay.master, SetArg::TCSANOW, &inner)?;
        }
        relay.resize();
        Ok(relay)
    }

    /// Gives the job's terminal the size of the caller's; the kernel tells the job by SIGWINCH.
    pub(crate) fn resize(&self) {
        if let Some(size) = with_outer(|outer| window_size(outer).ok()) {
            let _ = set_window_size(self.master.as_fd(), &size);
        }
    }

    /// Makes the caller's terminal raw while this process is in its foreground.
    pub(crate) fn enter(&mut self) {
        let Some(modes) = &self.modes else { return };
        if !self.raw && in_foreground() {
            let mut raw = modes.clone();
            cfmakeraw(&mut raw);
            self.raw = tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &raw).is_ok();
        }
    }

    /// Gives the caller's terminal its modes back.
    pub(crate) fn leave(&mut self) {
        if let (true, Some(modes)) = (self.raw, &self.modes) {
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, modes);
        }
        self.raw = false;
    }

    /// The descriptor to wait on for the job's output, and for room when input is pending; `None` once it is closed.
    pub(crate) fn master(&self) -> Option<BorrowedFd<'_>> {
        self.output_open.then(|| self.master.as_fd())
    }

    /// Is there anything to write to the job?
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Should the caller's input be read now? A background process must not: it would be stopped.
    pub(crate) fn wants_input(&self) -> bool {
        self.input_open && self.raw && self.pending.len() < PENDING
    }

    /// Takes what was typed.
    pub(crate) fn take_input(&mut self) -> Typed {
        let mut buffer = [0; 4096];
        let mut typed = Typed::Text;
        // Not through std's buffered stdin: what it holds back, poll does not see.
        match read(std::io::stdin(), &mut buffer) {
            Ok(0) => self.input_open = false,
            Ok(n) => {
                if buffer[..n].iter().any(|byte| Some(*byte) == self.suspend_key()) {
                    typed = Typed::Suspend;
                }
                self.pending.extend(&buffer[..n]);
            }
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(_) => self.input_open = false,
        }
        self.flush();
        if self.input_open { typed } else { Typed::HungUp }
    }

    /// The key that suspends, when the job's terminal has one in force.
    fn suspend_key(&self) -> Option<u8> {
        let modes = tcgetattr(&self.master).ok()?;
        let key = modes.control_chars[SpecialCharacterIndices::VSUSP as usize];
        (modes.local_flags.contains(LocalFlags::ISIG) && key != 0).then_some(key)
    }

    /// The process group in the foreground of the job's terminal, as this process sees it.
    pub(crate) fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(&self.master).ok()
    }

    /// Writes pending input as far as the job's terminal takes it.
    pub(crate) fn flush(&mut self) {
        while !self.pending.is_empty() {
            let (front, _) = self.pending.as_slices();
            match write(&self.master, front) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                Err(_) => self.pending.clear(),
            }
        }
    }

    /// Copies what the job wrote.
    pub(crate) fn copy_output(&mut self) {
        let mut buffer = [0; 16 * 1024];
        self.output_open = match read(&self.master, &mut buffer) {
            Ok(n @ 1..) => with_outer(|outer| write_all(outer, &buffer[..n]).ok()).is_some(),
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            // EIO: the last slave was closed.
            Ok(_) | Err(_) => false,
        };
    }

    /// Copies what is left after the job's end.
    pub(crate) fn drain(&self) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(n @ 1..) = read(&self.master, &mut buffer) {
            if with_outer(|outer| write_all(outer, &buffer[..n]).ok()).is_none() {
                return;
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The caller's terminal in raw mode, as long as this lives.
#[derive(Debug)]
pub(crate) struct RawMode(Option<Termios>);

impl RawMode {
    /// Makes the terminal at standard input raw, if there is one.
    pub(crate) fn enter() -> Self {
        let modes = tcgetattr(std::io::stdin()).ok().filter(|_| in_foreground());
        if let Some(modes) = &modes {
            let mut raw = modes.clone();
            cfmakeraw(&mut raw);
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &raw);
        }
        Self(modes)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Some(modes) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, modes);
        }
    }
}

/// Rows and columns of the caller's terminal.
pub(crate) fn outer_size() -> Option<(u16, u16)> {
    with_outer(|outer| window_size(outer).ok())
        .map(|size| (size.ws_row, size.ws_col))
        .filter(|(rows, columns)| *rows > 0 && *columns > 0)
}

fn in_foreground() -> bool {
    tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// Runs `f` on the caller's terminal: the first of stdout, stderr and stdin that is one.
fn with_outer<T>(f: impl FnOnce(BorrowedFd<'_>) -> Option<T>) -> Option<T> {
    let (output, error, input) = (std::io::stdout(), std::io::stderr(), std::io::stdin());
    if output.is_terminal() {
        f(output.as_fd())
    } else if error.is_terminal() {
        f(error.as_fd())
    } else if input.is_terminal() {
        f(input.as_fd())
    } else {
        None
    }
}

fn write_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::File::from(fd.try_clone_to_owned()?);
    file.write_all(bytes)
}
