//! Connects that wait: how long, and what ends the wait.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::time::TimeValLike;

use super::resolve::Pin;
use crate::local::sys::notify::{ERESTARTSYS, Listener, WakeTimer, connect};

/// How many connects may wait at a time.
pub(super) const MOST: usize = 64;
/// How long a repeated attempt may hold up the others.
const PATIENCE_AGAIN: Duration = Duration::from_micros(50);
const SOONEST: Duration = Duration::from_millis(10);
const LATEST: Duration = Duration::from_millis(100);

/// A connect on its way: the job's own socket and the address that the kernel is given.
#[derive(Debug)]
pub(super) struct Connect {
    pub(super) id: u64,
    pub(super) tid: libc::pid_t,
    pub(super) socket: OwnedFd,
    pub(super) address: Vec<u8>,
    /// Keeps the descriptor that `address` names.
    pub(super) pin: Option<Pin>,
    /// Whether the socket becomes writable when the wait is over; a unix socket always is.
    pub(super) pollable: bool,
}

/// A connect that has to wait for its peer.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) connect: Connect,
    since: Instant,
    deadline: Option<Instant>,
    pub(super) due: Instant,
    /// Whether poll said that the socket is ready since it was last visited.
    pub(super) ready: bool,
    /// It was ready at the last visit, and still had to wait.
    stubborn: bool,
    /// Signals that were pending at the last visit and any thread of the job may take.
    pub(super) shared_before: u64,
}

impl Parked {
    pub(super) fn new(connect: Connect, now: Instant) -> Self {
        let timeout = getsockopt(&connect.socket.as_fd(), SendTimeout).map_or(0, |t| t.num_microseconds());
        let timeout = u64::try_from(timeout).ok().filter(|us| *us > 0).map(Duration::from_micros);
        Self {
            connect,
            since: now,
            deadline: timeout.and_then(|t| now.checked_add(t)),
            due: now + SOONEST,
            ready: false,
            stubborn: false,
            shared_before: 0,
        }
    }

    /// Whether poll can tell the end of the wait. One that was ready and yet had to wait would make the loop spin: it
    /// sits out one visit.
    pub(super) fn is_watched(&self) -> bool {
        self.connect.pollable && !self.stubborn
    }

    /// The errno of a socket whose `SO_SNDTIMEO` has passed.
    pub(super) fn expired(&self, now: Instant) -> Option<Errno> {
        let late = self.deadline.is_some_and(|deadline| now >= deadline);
        late.then_some(if self.connect.pollable { Errno::EINPROGRESS } else { Errno::EAGAIN })
    }

    /// The answer when the wait is over.
    pub(super) fn revisit(&mut self, listener: &Listener, timer: &WakeTimer, now: Instant) -> Option<i32> {
        if !listener.is_waiting(self.connect.id) {
            return Some(0);
        }
        if (self.ready || !self.connect.pollable)
            && let Some(result) = bounded(&self.connect, timer, PATIENCE_AGAIN)
        {
            return Some(result.map_or_else(|errno| errno as i32, |()| 0));
        }
        if let Some(errno) = self.expired(now) {
            return Some(errno as i32);
        }
        let status = std::fs::read(format!("/proc/{}/status", self.connect.tid)).unwrap_or_default();
        let signals = Signals::parse(&status);
        let interruption = signals.interruption(self.shared_before);
        self.shared_before = signals.shared;
        match interruption {
            Interruption::None => None,
            Interruption::Restart => Some(ERESTARTSYS),
            Interruption::Interrupt => Some(libc::EINTR),
        }
    }

    /// Sets the next visit: the longer the wait has lasted, the less often.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.stubborn = self.ready;
        self.ready = false;
        let pause = (now.saturating_duration_since(self.since) / 8).clamp(SOONEST, LATEST);
        self.due = now + pause;
        if let Some(deadline) = self.deadline.filter(|deadline| *deadline > now) {
            self.due = self.due.min(deadline);
        }
    }
}

/// The errno for a connect that would have to wait while too many do: the program may try again, or wait for an inet
/// socket, whose connect goes on, as after any interrupted connect.
pub(super) fn crowded(pollable: bool) -> Errno {
    if pollable { Errno::EINTR } else { Errno::EAGAIN }
}

/// Connects; `None` when it was interrupted since the peer was not ready. The timer always runs: whether the socket
/// blocks is for another thread of the job to change.
pub(super) fn bounded(it: &Connect, timer: &WakeTimer, patience: Duration) -> Option<Result<(), Errno>> {
    match timer.interrupting(patience, || connect(it.socket.as_fd(), &it.address)) {
        Err(Errno::EINTR) => None,
        result => Some(result),
    }
}

/// Signals that would end a wait of a thread natively, from its `/proc/TID/status`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signals {
    /// Sent to the thread itself.
    pub(super) thread: u64,
    /// Sent to the process.
    pub(super) shared: u64,
    /// Whether the process has one thread.
    pub(super) single: bool,
}

/// What pending signals mean for a waiting connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interruption {
    /// Wait on.
    None,
    /// The thread certainly takes the signal: the kernel decides between a restart and `EINTR`.
    Restart,
    /// Another thread of the process could take it first, then nothing would be left to restart for.
    Interrupt,
}

impl Signals {
    pub(super) fn parse(status: &[u8]) -> Self {
        let field = |name: &[u8]| {
            let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(name));
            line.and_then(|value| std::str::from_utf8(value).ok()).map(str::trim)
        };
        let mask = |name| field(name).and_then(|value| u64::from_str_radix(value, 16).ok());
        let deaf = mask(b"SigBlk:").unwrap_or(0) | mask(b"SigIgn:").unwrap_or(0);
        Self {
            thread: mask(b"SigPnd:").unwrap_or(0) & !deaf,
            shared: mask(b"ShdPnd:").unwrap_or(0) & !deaf,
            single: field(b"Threads:") == Some("1"),
        }
    }

    /// A signal to a process of several threads counts from the second visit on: mostly another thread takes it at once.
    pub(super) fn interruption(self, shared_before: u64) -> Interruption {
        if self.thread != 0 || self.single && self.shared != 0 {
            Interruption::Restart
        } else if self.shared & shared_before != 0 {
            Interruption::Interrupt
        } else {
            Interruption::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(thread: u64, shared: u64, blocked: u64, ignored: u64, threads: u32) -> Signals {
        Signals::parse(
            format!(
                "Name:\tSigPnd:\nThreads:\t{threads}\nSigQ:\t0/1\nSigPnd:\t{thread:016x}\nShdPnd:\t{shared:016x}\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t0000000000000000\n"
            )
            .as_bytes(),
        )
    }

    #[test]
    fn blocked_and_ignored_signals_do_not_interrupt() {
        assert_eq!(status(0b1, 0b10, 0b1, 0b10, 1).interruption(0), Interruption::None);
        assert_eq!(status(0b1, 0, 0, 0, 5).interruption(0), Interruption::Restart);
        assert_eq!(status(0, 0b10, 0b1, 0, 1).interruption(0), Interruption::Restart);
    }

    #[test]
    fn a_shared_signal_must_persist_when_there_are_threads() {
        assert_eq!(status(0, 0b10, 0, 0, 2).interruption(0), Interruption::None);
        assert_eq!(status(0, 0b10, 0, 0, 2).interruption(0b100), Interruption::None);
        assert_eq!(status(0, 0b110, 0, 0, 2).interruption(0b100), Interruption::Interrupt);
    }

    #[test]
    fn a_status_that_cannot_be_read_interrupts_nothing() {
        assert_eq!(Signals::parse(b"").interruption(u64::MAX), Interruption::None);
        assert_eq!(Signals::parse(b"SigPnd:\tzz\nShdPnd:").interruption(u64::MAX), Interruption::None);
    }
}
