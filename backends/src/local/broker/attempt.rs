//! One connect on behalf of a job.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::address::{LARGEST, UnixAddress, of_descriptor};
use super::owner::Owners;
use super::parked::{Connect, Interruption, Parked, Signals};
use super::resolve::Resolver;
use super::{BrokerConfig, Reason, Refusal};
use crate::local::sys::notify::{
    Call, ERESTARTSYS, Listener, WakeTimer, administers_network, connect, domain, network_cookie, pidfd_getfd, pidfd_open,
};

/// How long a first attempt may hold up the others before it is parked. One within a machine is done at once, so this
/// is for the clock: a timer that expires after the scheduler's next tick costs nothing, an earlier one programs the
/// hardware anew, which in a virtual machine takes longer than the whole connect.
const PATIENCE: Duration = Duration::from_millis(5);
/// The same when waiting is likely: for hosts elsewhere, and while others wait already.
const PATIENCE_SHORT: Duration = Duration::from_micros(200);
/// The same when it is tried again.
const PATIENCE_AGAIN: Duration = Duration::from_micros(50);
const TASKS: usize = 16;

/// What became of an attempt that was not refused.
#[derive(Debug)]
pub(super) enum Progress {
    /// Connected, or on the way on a non-blocking socket (that is an errno).
    Done,
    /// The peer is not ready.
    Waiting(Connect),
}

/// Everything that an attempt needs beside listener and timer.
#[derive(Debug)]
pub(super) struct Worker {
    resolver: Resolver,
    owners: Owners,
    own_network: bool,
    /// Cookie of the sandbox's network namespace.
    network: Option<u64>,
    /// Where refusals are told.
    pub(super) notes: Option<SyncSender<Refusal>>,
    /// Handles on the threads that called last.
    tasks: [Option<(libc::pid_t, OwnedFd)>; TASKS],
}

impl Worker {
    pub(super) fn new(config: &BrokerConfig) -> Result<Self, Errno> {
        let network = || {
            let own = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()?;
            network_cookie(own.as_fd()).ok()
        };
        Ok(Self {
            resolver: Resolver::new()?,
            owners: Owners::new(config)?,
            own_network: config.own_network,
            network: config.own_network.then(network).flatten(),
            notes: None,
            tasks: [const { None }; TASKS],
        })
    }

    /// Does what the call asks for, if it may be done. The order of the checks is the kernel's (`__sys_connect`).
    /// `crowd` says that other connects wait.
    pub(super) fn attempt(
        &mut self,
        call: &Call,
        listener: &Listener,
        timer: &WakeTimer,
        crowd: bool,
    ) -> Result<Progress, Errno> {
        if call.number != libc::SYS_connect {
            return Err(Errno::ENOSYS);
        }
        if call.tid <= 0 {
            return Err(Errno::EACCES);
        }
        let [fd, pointer, length, ..] = call.args;
        // The kernel takes the descriptor and the length as ints: the upper half of the registers does not count.
        let (fd, length) = (fd as u32, length as u32);
        let socket = self.take(call.tid, fd.cast_signed())?;
        let mut buffer = [0; LARGEST];
        let address = usize::try_from(length).ok().and_then(|n| buffer.get_mut(..n)).ok_or(Errno::EINVAL)?;
        read_memory(call.tid, pointer, address)?;
        // Socket and address are the caller's only if its thread id was not given to another one meanwhile.
        if !listener.is_waiting(call.id) {
            return Err(Errno::EINTR);
        }
        let family = domain(socket.as_fd())?;
        if !self.is_of_the_inside(socket.as_fd()) {
            self.note(call.tid, Reason::ForeignNetwork, address);
            return Err(Errno::EACCES);
        }
        let mut connect = Connect {
            id: call.id,
            tid: call.tid,
            socket,
            address: address.to_vec(),
            pin: None,
            pollable: family != libc::AF_UNIX,
        };
        match family {
            libc::AF_UNIX => match UnixAddress::parse(address) {
                UnixAddress::Path(path) => {
                    let pin = self.resolver.pin(call.tid, path)?;
                    if let Err(errno) = self.owners.permit(&pin) {
                        if errno == Errno::EACCES {
                            self.note(call.tid, Reason::HostSocket, path);
                        }
                        return Err(errno);
                    }
                    connect.address = of_descriptor(pin.fd().as_raw_fd());
                    connect.pin = Some(pin);
                }
                // The names are those of the socket's network namespace. The answer is "nobody there": programs that
                // try an abstract name first go on to the path then.
                UnixAddress::Abstract if !self.own_network => {
                    self.note(call.tid, Reason::AbstractName, address);
                    return Err(Errno::ECONNREFUSED);
                }
                UnixAddress::Abstract | UnixAddress::Other => {}
            },
            // For netlink a connect is a default destination; init has no capability that the kernel asks for there.
            libc::AF_INET | libc::AF_INET6 | libc::AF_NETLINK => {}
            _ => return Err(Errno::EACCES),
        }
        match bounded(&connect, timer, self.patience(&connect, crowd)) {
            None => Ok(Progress::Waiting(connect)),
            Some(result) => result.map(|()| Progress::Done),
        }
    }

    /// Looks after a parked connect; the answer when its wait is over.
    pub(super) fn revisit(&self, parked: &mut Parked, listener: &Listener, timer: &WakeTimer, now: Instant) -> Option<i32> {
        if !listener.is_waiting(parked.connect.id) {
            return Some(0);
        }
        if (parked.ready || !parked.connect.pollable)
            && let Some(result) = bounded(&parked.connect, timer, PATIENCE_AGAIN)
        {
            return Some(result.map_or_else(|errno| errno as i32, |()| 0));
        }
        if let Some(errno) = parked.expired(now) {
            return Some(errno as i32);
        }
        let status = std::fs::read(format!("/proc/{}/status", parked.connect.tid)).unwrap_or_default();
        let signals = Signals::parse(&status);
        let interruption = signals.interruption(parked.shared_before);
        parked.shared_before = signals.shared;
        match interruption {
            Interruption::None => None,
            Interruption::Restart => Some(ERESTARTSYS),
            Interruption::Interrupt => Some(libc::EINTR),
        }
    }

    fn patience(&self, connect: &Connect, crowd: bool) -> Duration {
        let blocks = || fcntl(&connect.socket, FcntlArg::F_GETFL).is_ok_and(|flags| flags & OFlag::O_NONBLOCK.bits() == 0);
        if crowd || !self.own_network && connect.pollable && blocks() { PATIENCE_SHORT } else { PATIENCE }
    }

    fn note(&self, tid: libc::pid_t, reason: Reason, name: &[u8]) {
        if let Some(notes) = &self.notes {
            // Nobody may hold up the loop: what the reader has no room for is lost.
            let _ = notes.try_send(Refusal { tid, reason, name: name.to_vec() });
        }
    }

    /// A duplicate of the job's descriptor.
    fn take(&mut self, tid: libc::pid_t, fd: i32) -> Result<OwnedFd, Errno> {
        let slot = self.tasks.get_mut(tid.unsigned_abs() as usize % TASKS).ok_or(Errno::EACCES)?;
        if let Some((_, task)) = slot.as_ref().filter(|(known, _)| *known == tid) {
            match pidfd_getfd(task.as_fd(), fd) {
                // Another thread has that id now.
                Err(Errno::ESRCH) => {}
                result => return result.map_err(refusal),
            }
        }
        match pidfd_open(tid, true) {
            Ok(task) => {
                let (_, task) = slot.insert((tid, task));
                pidfd_getfd(task.as_fd(), fd).map_err(refusal)
            }
            // Not kept: the process may outlive the thread, whose id then means another one.
            Err(Errno::EINVAL) => open_process_of(tid).and_then(|it| pidfd_getfd(it.as_fd(), fd)).map_err(refusal),
            Err(errno) => Err(refusal(errno)),
        }
    }

    /// A socket of a network namespace outside must have been handed in by somebody there, and is none of our business,
    /// whichever namespaces the job made for itself meanwhile. Where the socket is of one that a job made, that belongs to
    /// a user namespace below ours: the kernel alone knows, and tells by what we may do with it.
    fn is_of_the_inside(&self, socket: BorrowedFd<'_>) -> bool {
        self.network.is_none_or(|own| network_cookie(socket) == Ok(own)) || administers_network(socket)
    }
}

/// The kernel's errno for a descriptor that is not there, and ours for the rest.
fn refusal(errno: Errno) -> Errno {
    match errno {
        Errno::EBADF => Errno::EBADF,
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => Errno::EAGAIN,
        _ => Errno::EACCES,
    }
}

/// A handle on the process of a thread, for kernels before 6.9, which have none for threads. It differs only for a thread
/// that left its process's descriptor table.
fn open_process_of(tid: libc::pid_t) -> Result<OwnedFd, Errno> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).map_err(|_| Errno::ESRCH)?;
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    pidfd_open(leader.ok_or(Errno::ESRCH)?, false)
}

fn read_memory(tid: libc::pid_t, pointer: u64, into: &mut [u8]) -> Result<(), Errno> {
    let len = into.len();
    if len == 0 {
        return Ok(());
    }
    let base = usize::try_from(pointer).map_err(|_| Errno::EFAULT)?;
    match process_vm_readv(Pid::from_raw(tid), &mut [IoSliceMut::new(into)], &[RemoteIoVec { base, len }]) {
        Ok(read) if read == len => Ok(()),
        Err(Errno::EPERM) => Err(Errno::EACCES),
        _ => Err(Errno::EFAULT),
    }
}

/// Connects; `None` when it was interrupted since the peer was not ready. The timer always runs: whether the socket
/// blocks is for another thread of the job to change.
fn bounded(it: &Connect, timer: &WakeTimer, patience: Duration) -> Option<Result<(), Errno>> {
    match timer.interrupting(patience, || connect(it.socket.as_fd(), &it.address)) {
        Err(Errno::EINTR) => None,
        result => Some(result),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn without_handles_on_threads_the_process_will_do() {
        let (mut read, write) = std::io::pipe().unwrap();
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw());
        let task = open_process_of(nix::unistd::gettid().as_raw()).unwrap();
        let copy = pidfd_getfd(task.as_fd(), write.as_raw_fd()).unwrap();
        drop(write);
        std::fs::File::from(copy).write_all(b"x").unwrap();
        read.read_exact(&mut [0]).unwrap();
        let gone = tid.join().unwrap();
        assert!(open_process_of(gone).is_err());
        assert!(open_process_of(0).is_err());
    }

    #[test]
    fn memory_that_is_not_there_is_a_bad_address() {
        let tid = nix::unistd::gettid().as_raw();
        assert_eq!(read_memory(tid, 8, &mut [0; 4]), Err(Errno::EFAULT));
        assert_eq!(read_memory(tid, u64::MAX, &mut [0; 4]), Err(Errno::EFAULT));
        assert_eq!(read_memory(tid, 0, &mut []), Ok(()));
        let mut into = [0; 3];
        assert_eq!(read_memory(tid, b"abc".as_ptr() as u64, &mut into), Ok(()));
        assert_eq!(&into, b"abc");
    }
}
