//! One connect on behalf of a job.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::address::{LARGEST, UnixAddress, of_descriptor};
use super::caller::{Tasks, read_memory};
use super::owner::Owners;
use super::parked::{Connect, bounded};
use super::resolve::Resolver;
use super::{BrokerConfig, Reason, Refusal};
use crate::local::sys::notify::{Call, Listener, WakeTimer, administers_network, domain, network_cookie};

/// How long a first attempt may hold up the others before it is parked. One within a machine is done at once, so this
/// is for the clock: a timer that expires after the scheduler's next tick costs nothing, an earlier one programs the
/// hardware anew, which in a virtual machine takes longer than the whole connect.
pub(super) const PATIENCE: Duration = Duration::from_millis(5);
/// The same when waiting is likely: for hosts elsewhere, and while others wait already.
pub(super) const PATIENCE_SHORT: Duration = Duration::from_micros(200);

/// What became of an attempt that was not refused.
#[derive(Debug)]
pub(super) enum Progress {
    /// Connected, or on the way on a non-blocking socket (that is an errno).
    Done,
    /// The peer is not ready.
    Waiting(Connect),
    /// The caller has its answer.
    Answered,
}

/// Decides on calls, and carries them out.
pub(super) trait Attempts {
    /// Does what the call asks for, if it may be done. `crowd` says that other connects wait.
    fn attempt(&mut self, call: &Call, listener: &Listener, timer: &WakeTimer, crowd: bool) -> Result<Progress, Errno>;
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
    tasks: Tasks,
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
            tasks: Tasks::default(),
        })
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

    /// A socket of a network namespace outside must have been handed in by somebody there, and is none of our business,
    /// whichever namespaces the job made for itself meanwhile. Where the socket is of one that a job made, that belongs to
    /// a user namespace below ours: the kernel alone knows, and tells by what we may do with it.
    fn is_of_the_inside(&self, socket: BorrowedFd<'_>) -> bool {
        self.network.is_none_or(|own| network_cookie(socket) == Ok(own)) || administers_network(socket)
    }
}

impl Attempts for Worker {
    /// The order of the checks is the kernel's (`__sys_connect`).
    fn attempt(&mut self, call: &Call, listener: &Listener, timer: &WakeTimer, crowd: bool) -> Result<Progress, Errno> {
        if call.number != libc::SYS_connect {
            return Err(Errno::ENOSYS);
        }
        if call.tid <= 0 {
            return Err(Errno::EACCES);
        }
        let [fd, pointer, length, ..] = call.args;
        // The kernel takes the descriptor and the length as ints: the upper half of the registers does not count.
        let (fd, length) = (fd as u32, length as u32);
        let socket = self.tasks.take(call.tid, fd.cast_signed())?;
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
}
