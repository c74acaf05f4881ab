//! The broker of `connect`: init performs every connect of the jobs itself, on the job's own socket.
//!
//! A socket that a host process bound inside a granted tree must not be reachable, one bound inside the sandbox must
//! be. The seccomp filter of the jobs hands `connect` to this loop. The answer is never "go on": another thread of the
//! job could put another socket or another address in place between the check and the kernel's own look. For the same
//! reason inet connects are made here too: a descriptor number that was a TCP socket when looked at can be a unix socket
//! when the kernel looks again.
//!
//! Visible differences: `SO_PEERCRED` at the server shows init's pid, with the job's uid and gid. A path of the form
//! `/proc/NUMBER/fd/...` is refused (`ELOOP`), `/proc/self/fd/...` works.
//!
//! A file system whose server does not answer can hold up the loop while a path on it is resolved, and so can memory
//! mapped from it that holds an address. That hurts the connects of the same sandbox, nothing else.

mod address;
mod attempt;
mod caller;
mod diag;
pub mod inet;
mod owner;
mod parked;
mod resolve;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::attempt::{Attempts, Progress, Worker};
use self::parked::{MOST, Parked, crowded};
use super::sys::notify::{Call, Listener, WakeTimer};
use crate::step::{At, Step, StepError};

/// How many waiting unix connects are tried again in one round, since each holds up the others for a moment.
const TRIES_PER_ROUND: usize = 8;
/// The longest time for which parked connects are left alone.
const ROUND: Duration = Duration::from_millis(100);

/// What the broker may let through.
#[derive(Debug, Default)]
pub struct BrokerConfig {
    /// The sandbox has its own network namespace, the one that the broker runs in. It tells the sandbox's own sockets
    /// from the host's. Without it a path is inside only on [`Self::private_devices`], and abstract names are refused.
    pub own_network: bool,
    /// Sockets of the host that may be reached, as seen from inside. They are looked up at each connect, so that a
    /// service may start again; hence jobs must not be able to write the directories they lie in.
    pub granted: Vec<PathBuf>,
    /// Sockets of the host that may be reached, opened O_PATH at the start: those in directories that jobs may write,
    /// where another socket could be put in their place.
    pub pinned: Vec<OwnedFd>,
    /// `st_dev` of the file systems that the sandbox itself mounted and in which no process outside can bind a socket:
    /// its tmpfs and overlay mounts. Take each number from the mount itself when it is made: a path can be covered by a later
    /// mount, and a number of a host file system here would open every socket on it.
    pub private_devices: Vec<u64>,
}

/// Why the broker, and not the kernel, refused a connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A live socket that was bound outside and is not granted: `EACCES`.
    HostSocket,
    /// An abstract name where the sandbox shares the host's network namespace: `ECONNREFUSED`.
    AbstractName,
    /// A socket made in a network namespace outside and handed in: `EACCES`.
    ForeignNetwork,
}

/// A connect that was refused. What it holds comes from inside: escape it before it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The thread that called, as seen from inside.
    pub tid: i32,
    /// Why.
    pub reason: Reason,
    /// The path as the job gave it (at most 108 bytes); for the other reasons the whole address.
    pub name: Vec<u8>,
}

/// The broker of the jobs' unix sockets. It belongs to the thread that made it.
///
/// When it ends while jobs live, their connects fail with `ENOSYS`.
#[derive(Debug)]
pub struct Broker(Loop<Worker>);

impl Broker {
    /// Makes ready: the wake-up handler and timer of the calling thread (see [`super::sys::notify::wake_signal`], which
    /// every other thread must block) and the view of the sandbox's sockets. Call it in the namespaces and the root of
    /// the jobs, outside their seccomp filter and Landlock domain, with `CAP_SYS_PTRACE`.
    ///
    /// # Errors
    /// [`Step::Broker`] with the kernel's answer when one of them is not to be had.
    pub fn new(listener: OwnedFd, config: &BrokerConfig) -> Result<Self, StepError> {
        Loop::new(listener, Worker::new(config)).map(Self).at(Step::Broker)
    }

    /// Tells refusals to `notes`. They are dropped, never waited for, when the channel is full.
    #[must_use]
    pub fn tell(mut self, notes: SyncSender<Refusal>) -> Self {
        self.0.worker.notes = Some(notes);
        self
    }

    /// Serves until no task is left under the filter, or the listener fails.
    pub fn serve(self) {
        self.0.serve();
    }
}

/// Takes calls, has them decided, and looks after those that wait.
#[derive(Debug)]
struct Loop<W> {
    listener: Listener,
    timer: WakeTimer,
    worker: W,
    parked: Vec<Parked>,
}

impl<W: Attempts> Loop<W> {
    fn new(listener: OwnedFd, worker: Result<W, Errno>) -> Result<Self, Errno> {
        Ok(Self {
            listener: Listener::new(listener),
            timer: WakeTimer::new()?,
            worker: worker?,
            parked: Vec::with_capacity(MOST),
        })
    }

    /// Serves until no task is left under the filter, or the listener fails.
    fn serve(mut self) {
        loop {
            if !self.parked.is_empty() {
                let called = self.wait();
                self.visit();
                if !called {
                    continue;
                }
            }
            match self.receive() {
                Ok(call) => self.handle(&call),
                Err(Errno::EINTR) => {}
                // The caller went away, or (Linux 6.11) the last task did: then the next call would not wait either.
                Err(Errno::ENOENT) if !self.listener.hung_up() => {}
                Err(_) => return,
            }
        }
    }

    fn receive(&self) -> Result<Call, Errno> {
        if self.parked.is_empty() {
            return self.listener.receive();
        }
        // The call that poll saw may be gone by now, and the parked ones must not wait for the next.
        self.timer.interrupting(ROUND, || self.listener.receive())
    }

    /// Waits until there is a call (true), a parked connect is ready or due.
    fn wait(&mut self) -> bool {
        let now = Instant::now();
        let pause = self.parked.iter().map(|p| p.due.saturating_duration_since(now)).min().unwrap_or_default();
        let pause = PollTimeout::try_from(pause.min(ROUND) + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
        let mut fds = Vec::with_capacity(MOST + 1);
        fds.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        let watched = self.parked.iter().filter(|p| p.is_watched());
        fds.extend(watched.map(|p| PollFd::new(p.connect.socket.as_fd(), PollFlags::POLLOUT)));
        if poll(&mut fds, pause).is_err() {
            return false;
        }
        let mut happened = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect::<Vec<_>>().into_iter();
        let called = happened.next().unwrap_or(false);
        for (parked, ready) in self.parked.iter_mut().filter(|p| p.is_watched()).zip(happened) {
            parked.ready = ready;
        }
        called
    }

    /// Looks after the parked connects that are due or ready.
    fn visit(&mut self) {
        let mut tries = TRIES_PER_ROUND;
        let mut index = 0;
        while let Some(parked) = self.parked.get_mut(index) {
            let now = Instant::now();
            if !parked.ready && (now < parked.due || tries == 0) {
                index += 1;
                continue;
            }
            tries -= usize::from(!parked.ready);
            match parked.revisit(&self.listener, &self.timer, now) {
                Some(answer) => {
                    self.listener.answer(parked.connect.id, answer);
                    self.parked.swap_remove(index);
                }
                None => {
                    parked.postpone(now);
                    index += 1;
                }
            }
        }
    }

    fn handle(&mut self, call: &Call) {
        let answer = match self.worker.attempt(call, &self.listener, &self.timer, !self.parked.is_empty()) {
            Ok(Progress::Done) => 0,
            Ok(Progress::Answered) => return,
            Ok(Progress::Waiting(connect)) if self.parked.len() < MOST => {
                self.parked.push(Parked::new(connect, Instant::now()));
                return;
            }
            Ok(Progress::Waiting(connect)) => crowded(connect.pollable) as i32,
            Err(errno) => errno as i32,
        };
        self.listener.answer(call.id, answer);
    }
}
