//! Sockets that the mediator makes for the jobs, where it cannot borrow theirs (`pidfd_getfd`).
//!
//! It keeps a copy of each until that is connected or listens, and finds the one that a job's descriptor means by the inode.
//! While there is a copy the socket outlives the job's last descriptor, so it must go as soon as it is of no use.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::sys::stat::fstat;

use super::local;
use crate::local::sys::notify::{Call, Listener};

/// Sockets that are kept. A job that makes more and connects none loses the oldest.
const MOST: usize = 256;

/// The copies, the newest first.
#[derive(Debug, Default)]
pub(super) struct Made(VecDeque<(u64, OwnedFd)>);

impl Made {
    /// Makes the socket that the call asks for; the filter lets no call come here but for TCP.
    pub(super) fn make(&mut self, call: &Call, listener: &Listener) -> Result<(), Errno> {
        let [family, kind, ..] = call.args.map(|arg| (arg as u32).cast_signed());
        let family = match family {
            libc::AF_INET => AddressFamily::Inet,
            libc::AF_INET6 => AddressFamily::Inet6,
            _ => return Err(Errno::EAFNOSUPPORT),
        };
        let flags = SockFlag::from_bits_truncate(kind);
        let made = socket(family, SockType::Stream, flags | SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)?;
        let inode = fstat(&made)?.st_ino;
        listener.give(call.id, made.as_fd(), flags.contains(SockFlag::SOCK_CLOEXEC))?;
        self.0.truncate(MOST - 1);
        self.0.push_front((inode, made));
        Ok(())
    }

    /// A duplicate of the job's socket; `None` for one of which there is no copy (any more).
    pub(super) fn find(&self, tid: libc::pid_t, fd: i32) -> Result<Option<OwnedFd>, Errno> {
        let link = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => Errno::EBADF,
            _ => Errno::EACCES,
        })?;
        let inode = inode_of(link.as_os_str().as_encoded_bytes()).ok_or(Errno::ENOTSOCK)?;
        let found = self.0.iter().find(|(known, _)| *known == inode);
        found.map(|(_, fd)| fd.try_clone().map_err(|_| Errno::EAGAIN)).transpose()
    }

    /// Gives up the copy of this socket.
    pub(super) fn release(&mut self, fd: &OwnedFd) {
        if let Ok(stat) = fstat(fd) {
            self.0.retain(|(inode, _)| *inode != stat.st_ino);
        }
    }

    /// Gives up the copies that are bound to this port, but for one: jobs may have closed them long ago.
    pub(super) fn release_port(&mut self, port: u16, but: &OwnedFd) {
        let Ok(stat) = fstat(but) else { return };
        self.0.retain(|(inode, fd)| *inode == stat.st_ino || local(fd).is_ok_and(|at| at.port() != port));
    }
}

fn inode_of(link: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn links_of_sockets_are_told_from_others() {
        assert_eq!(inode_of(b"socket:[42]"), Some(42));
        for other in [&b"socket:[]"[..], b"socket:[4", b"pipe:[42]", b"/socket:[42]", b"anon_inode:[eventfd]", b""] {
            assert_eq!(inode_of(other), None);
        }
    }

    #[test]
    fn a_copy_is_found_until_it_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, fd) = (listener.local_addr().unwrap().port(), listener.as_raw_fd());
        let copy = OwnedFd::from(listener.try_clone().unwrap());
        let mut made = Made::default();
        let tid = nix::unistd::gettid().as_raw();
        assert!(made.find(tid, fd).unwrap().is_none());
        made.0.push_front((fstat(&copy).unwrap().st_ino, copy));
        assert!(made.find(tid, fd).unwrap().is_some());
        assert_eq!(made.find(tid, 1 << 20).unwrap_err(), Errno::EBADF);
        made.release_port(port, &OwnedFd::from(listener.try_clone().unwrap()));
        assert!(made.find(tid, fd).unwrap().is_some());
        made.release_port(port, &OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()));
        assert!(made.find(tid, fd).unwrap().is_none());
    }
}
