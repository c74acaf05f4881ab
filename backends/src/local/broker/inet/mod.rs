//! The mediator: connects, binds and listens on behalf of jobs that share the host's network (Landlock tier).
//!
//! Landlock denies the jobs every TCP connect and bind, and their filter every socket that is not TCP; so nothing leaves by
//! itself. The three calls come here. A connection is made on the caller's own socket, never by an answer "go on", to a listener
//! of the supervisor's proxy on the host's loopback; what it is meant for is promised to the proxy beforehand ([`Promises`]),
//! which drops a connection that nobody promised. A server is bound to the loopback whatever it asks for, and only such
//! servers of the sandbox's own can be connected to there: the rest of the host's loopback refuses.
//!
//! What it runs in must be outside the jobs' Landlock domain, and may attach to them as a tracer.
//!
//! Visible differences: `getpeername` tells the proxy's address. A server on all addresses shows the loopback as its own.
//!
//! Between the look at who listens on a port of the loopback and the connect a job can close its server there: whoever of the host's
//! takes that very port in these microseconds is reached. Memory that a server which does not answer backs can hold up the loop, and
//! with it the calls of the same sandbox.

mod address;
mod decide;
mod diag;
mod ends;
mod made;
mod promise;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use caps::CapSet;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv6V6Only, ReusePort};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, getsockname, getsockopt, listen, socket,
};

use self::address::{Asked, Family, anywhere, bytes, to_bind, to_connect};
use self::decide::{Kind, Rules, Target, end, loopback};
use self::diag::Diag;
use self::made::Made;
use super::Loop;
use super::address::LARGEST;
use super::attempt::{Attempts, PATIENCE, PATIENCE_SHORT, Progress};
use super::caller::{Tasks, read_memory};
use super::parked::{Connect, bounded};
use crate::local::sys::notify::{Call, Listener, WakeTimer, connect, cookie, domain, is_tcp, network_cookie};
use crate::plan::Plan;
use crate::step::{At, Step, StepError};

pub use decide::Ports;
pub use ends::{Ends, Listening, listeners};
pub use promise::Promises;

/// Servers that are remembered as the sandbox's own: those that began to listen last.
const MOST_SERVERS: usize = 4096;

/// The loop and its state. It belongs to the thread that made it.
///
/// When it ends while jobs live, their calls fail with `ENOSYS`.
#[derive(Debug)]
pub struct Mediator(Loop<Worker>);

impl Mediator {
    /// Makes ready, and gives up the calling thread's capabilities: what it does for a job is not to go beyond the user's own
    /// rights.
    ///
    /// # Errors
    /// [`Step::Broker`] with the kernel's answer.
    pub fn new(
        listener: OwnedFd,
        plan: &Plan,
        ports: Arc<Ports>,
        ends: Ends,
        promises: Arc<Promises>,
    ) -> Result<Self, StepError> {
        caps::clear(None, CapSet::Effective).map_err(|_| StepError::new(Step::Capabilities, Errno::EPERM))?;
        let proxy = plan.gateway.as_ref().map_or(0, |gateway| gateway.proxy);
        let rules = Rules { ports, proxy, host: plan.connect.clone() };
        let sockets =
            if plan.seccomp.make_sockets { Sockets::Made(Made::default()) } else { Sockets::Borrowed(Tasks::default()) };
        Loop::new(listener, Worker::new(rules, ends, promises, sockets)).map(Self).at(Step::Broker)
    }

    /// Serves until no task is left under the filter, or the listener fails.
    pub fn serve(self) {
        self.0.serve();
    }
}

#[derive(Debug)]
struct Worker {
    rules: Rules,
    ends: Ends,
    promises: Arc<Promises>,
    diag: Diag,
    sockets: Sockets,
    /// Cookie of the host's network namespace.
    network: u64,
    /// Cookies of the sandbox's own servers.
    servers: VecDeque<u64>,
}

/// How the mediator comes by the sockets of jobs.
#[derive(Debug)]
enum Sockets {
    Borrowed(Tasks),
    Made(Made),
}

/// A TCP socket of a job.
struct Stream {
    fd: OwnedFd,
    family: Family,
    cookie: u64,
}

impl Worker {
    fn new(rules: Rules, ends: Ends, promises: Arc<Promises>, sockets: Sockets) -> Result<Self, Errno> {
        let own = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        Ok(Self {
            rules,
            ends,
            promises,
            diag: Diag::open()?,
            sockets,
            network: network_cookie(own.as_fd())?,
            servers: VecDeque::new(),
        })
    }

    /// The socket that the job's descriptor means. Of one that the mediator made there is no copy once it is connected or listens.
    fn take(&mut self, call: &Call, fd: i32) -> Result<OwnedFd, Errno> {
        match &mut self.sockets {
            Sockets::Borrowed(tasks) => tasks.take(call.tid, fd),
            Sockets::Made(made) => {
                let in_use = if call.number == libc::SYS_connect { Errno::EISCONN } else { Errno::EINVAL };
                made.find(call.tid, fd)?.ok_or(in_use)
            }
        }
    }

    /// There is nothing more to do on this socket.
    fn release(&mut self, fd: &OwnedFd) {
        if let Sockets::Made(made) = &mut self.sockets {
            made.release(fd);
        }
    }

    /// What the job's descriptor is. Anything but TCP of this network was handed in, or is of a namespace that a job made.
    fn examine(&self, fd: OwnedFd) -> Result<Stream, Errno> {
        let family = match domain(fd.as_fd())? {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6 { only: getsockopt(&fd, Ipv6V6Only)? },
            _ => return Err(Errno::EACCES),
        };
        if !is_tcp(fd.as_fd())? || network_cookie(fd.as_fd())? != self.network {
            return Err(Errno::EACCES);
        }
        let cookie = cookie(fd.as_fd())?;
        Ok(Stream { fd, family, cookie })
    }

    fn connect(&mut self, stream: Stream, given: &[u8], call: &Call, timer: &WakeTimer, crowd: bool) -> Result<Progress, Errno> {
        let asked = match to_connect(stream.family, given)? {
            Asked::Address(asked) => asked,
            Asked::Nothing => {
                self.promises.withdraw(stream.cookie, None);
                return connect(stream.fd.as_fd(), given).map(|()| Progress::Done);
            }
        };
        let (to, promised) = match self.rules.target(asked) {
            Target::Refused => return Err(Errno::ECONNREFUSED),
            Target::Host => (loopback(asked), false),
            Target::Own => (self.own_server(stream.family, loopback(asked))?, false),
            Target::Proxy(kind) => (self.listener(&stream, kind)?, true),
        };
        let address = bytes(stream.family, to).ok_or(Errno::ENETUNREACH)?;
        let before = if promised { self.promises.make(stream.cookie, asked) } else { None };
        let it = Connect { id: call.id, tid: call.tid, socket: stream.fd, address, pin: None, pollable: true };
        let result = bounded(&it, timer, if crowd { PATIENCE_SHORT } else { PATIENCE });
        if matches!(result, None | Some(Ok(()) | Err(Errno::EINPROGRESS | Errno::EISCONN))) {
            self.release(&it.socket);
        }
        match result {
            None => return Ok(Progress::Waiting(it)),
            Some(Ok(()) | Err(Errno::EINPROGRESS)) => {}
            // Nothing new was begun.
            Some(Err(Errno::EISCONN | Errno::EALREADY)) if promised => self.promises.withdraw(stream.cookie, before),
            Some(Err(_)) => self.promises.withdraw(stream.cookie, None),
        }
        result.map_or(Ok(()), |result| result).map(|()| Progress::Done)
    }

    /// The address of the supervisor's listener that this socket can reach.
    fn listener(&self, stream: &Stream, kind: Kind) -> Result<SocketAddr, Errno> {
        let listening = match kind {
            Kind::Dns => &self.ends.dns,
            Kind::Explicit => &self.ends.explicit,
            Kind::Transparent => &self.ends.transparent,
        };
        end(listening, stream.family, local(&stream.fd)?.ip()).ok_or(Errno::ENETUNREACH)
    }

    /// The address of the sandbox's own server on a port of the loopback.
    fn own_server(&mut self, family: Family, asked: SocketAddr) -> Result<SocketAddr, Errno> {
        // A server on all addresses of both families is on the IPv4 one here.
        let mapped = asked.is_ipv6() && family == Family::V6 { only: false };
        let also = mapped.then(|| SocketAddr::new(anywhere(Family::V4), asked.port()));
        for candidate in [asked].into_iter().chain(also) {
            if self.is_own(candidate)? == Some(true) {
                return Ok(candidate);
            }
        }
        Err(Errno::ECONNREFUSED)
    }

    /// Does a server of the sandbox's own listen there? `None` when nobody does.
    fn is_own(&mut self, address: SocketAddr) -> Result<Option<bool>, Errno> {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        Ok(self.diag.listener(address)?.map(|cookie| self.servers.contains(&cookie)))
    }

    fn bind(&mut self, stream: &Stream, given: &[u8]) -> Result<(), Errno> {
        let at = to_bind(stream.family, given)?;
        // Sockets of one user may share a port if they agree to (SO_REUSEPORT); a job would get connections of the host's server.
        if at.port() != 0 && getsockopt(&stream.fd, ReusePort)? && self.is_own(at)? == Some(false) {
            return Err(Errno::EADDRINUSE);
        }
        let bind = || bind(stream.fd.as_raw_fd(), &SockaddrStorage::from(at));
        match (bind(), &mut self.sockets) {
            (Err(Errno::EADDRINUSE), Sockets::Made(made)) => {
                made.release_port(at.port(), &stream.fd);
                bind()
            }
            (result, _) => result,
        }
    }

    fn listen(&mut self, stream: &Stream, backlog: u64) -> Result<(), Errno> {
        match local(&stream.fd)? {
            // The kernel would choose a port on all addresses (`inet_csk_listen_start`).
            unbound if unbound.port() == 0 => {
                bind(stream.fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(anywhere(stream.family), 0)))?;
            }
            bound if bound.ip().to_canonical().is_loopback() => {}
            _ => return Err(Errno::EACCES),
        }
        // As `__sys_listen` takes it.
        let backlog = i32::try_from(backlog as u32).unwrap_or(i32::MAX).min(Backlog::MAXCONN.into());
        listen(&stream.fd, Backlog::new(backlog)?)?;
        self.release(&stream.fd);
        if !self.servers.contains(&stream.cookie) {
            self.servers.truncate(MOST_SERVERS - 1);
            self.servers.push_front(stream.cookie);
        }
        Ok(())
    }
}

impl Attempts for Worker {
    fn attempt(&mut self, call: &Call, listener: &Listener, timer: &WakeTimer, crowd: bool) -> Result<Progress, Errno> {
        if call.tid <= 0 {
            return Err(Errno::EACCES);
        }
        let [fd, second, third, ..] = call.args;
        // The kernel takes descriptor, length and backlog as ints: the upper half of the registers does not count.
        if let (libc::SYS_socket, Sockets::Made(made)) = (call.number, &mut self.sockets) {
            return made.make(call, listener).map(|()| Progress::Answered);
        }
        let fd = self.take(call, (fd as u32).cast_signed())?;
        let mut buffer = [0; LARGEST];
        let given = if call.number == libc::SYS_listen {
            &[]
        } else {
            let given = usize::try_from(third as u32).ok().and_then(|n| buffer.get_mut(..n)).ok_or(Errno::EINVAL)?;
            read_memory(call.tid, second, given)?;
            &*given
        };
        // Socket and address are the caller's only if its thread id was not given to another one meanwhile.
        if !listener.is_waiting(call.id) {
            return Err(Errno::EINTR);
        }
        let stream = self.examine(fd)?;
        match call.number {
            libc::SYS_connect => self.connect(stream, given, call, timer, crowd),
            libc::SYS_bind => self.bind(&stream, given).map(|()| Progress::Done),
            libc::SYS_listen => self.listen(&stream, second).map(|()| Progress::Done),
            _ => Err(Errno::ENOSYS),
        }
    }
}

/// Where a socket is bound.
fn local(fd: &OwnedFd) -> Result<SocketAddr, Errno> {
    let address = getsockname::<SockaddrStorage>(fd.as_raw_fd())?;
    let v4 = address.as_sockaddr_in().map(|it| SocketAddr::new(it.ip().into(), it.port()));
    v4.or_else(|| address.as_sockaddr_in6().map(|it| SocketAddr::new(it.ip().into(), it.port()))).ok_or(Errno::EAFNOSUPPORT)
}
