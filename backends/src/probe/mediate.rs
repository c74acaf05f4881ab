//! Can calls of a child outside any namespace be carried out on its behalf?

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Item;
use super::child::{ADDRESS, ANSWER, LISTEN_FOR_CONNECT, check_address, readable, tell};
use crate::local::broker::inet::Promises;
use crate::local::sys::notify::{Listener, pidfd_getfd, pidfd_open};
use crate::local::sys::probe as sys;
use crate::local::sys::thread::load_filter;
use crate::step::{At, Step};
use crate::wire::Channel;

/// What a child found: whether it works at all, and whether its descriptors can be borrowed.
type Found = (Result<(), Errno>, Result<(), Errno>);

pub(super) fn tell_all(out: &OwnedFd) {
    let (mediation, borrowing) = measure().unwrap_or_else(|errno| (Err(errno), Err(errno)));
    let known = Promises::new().and_then(|promises| promises.probe());
    tell(out, Item::Mediation, mediation.and(known).at(Step::Broker));
    tell(out, Item::Borrowing, borrowing.at(Step::Broker));
}

fn measure() -> Result<Found, Errno> {
    let (ours, theirs) = Channel::pair()?;
    let caller = sys::clone(0, || {
        let listener = prctl::set_no_new_privs().and_then(|()| load_filter(&LISTEN_FOR_CONNECT, true));
        let sent = match &listener {
            Ok(Some(listener)) => theirs.send(&0, &[listener.as_fd()]),
            Ok(None) => theirs.send(&(Errno::EBADF as i32), &[]),
            Err(errno) => theirs.send(&(*errno as i32), &[]),
        };
        // An answer that is a descriptor is no error.
        let expected = [ANSWER, Errno::UnknownErrno];
        i32::from(listener.is_err() || sent.is_err() || !expected.contains(&sys::connect_nowhere(ADDRESS)))
    })?;
    let found = answer(caller, &ours);
    if found.is_err() {
        let _ = kill(caller, Signal::SIGKILL);
    }
    let got_it = matches!(waitpid(caller, None), Ok(WaitStatus::Exited(_, 0)));
    found.map(|(works, borrowing)| (if got_it { works } else { works.and(Err(Errno::EBADE)) }, borrowing))
}

fn answer(caller: Pid, channel: &Channel) -> Result<Found, Errno> {
    readable(channel)?;
    let (errno, mut fds) = channel.receive::<i32>()?.ok_or(Errno::EPIPE)?;
    let Some(listener) = fds.pop() else { return Err(Errno::from_raw(errno)) };
    let listener = Listener::new(listener);
    readable(&listener)?;
    let call = listener.receive()?;
    check_address(caller, call.args[1])?;
    let borrowing = pidfd_open(caller.as_raw(), false).and_then(|it| pidfd_getfd(it.as_fd(), channel.as_fd().as_raw_fd()));
    if borrowing.is_ok() {
        listener.answer(call.id, ANSWER as i32);
        return Ok((Ok(()), borrowing.map(drop)));
    }
    // All that is needed where sockets are made for the jobs.
    let link = std::fs::read_link(format!("/proc/{caller}/fd/{}", channel.as_fd().as_raw_fd()));
    let made = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    listener.give(call.id, made.as_fd(), true)?;
    let seen = link.map(drop).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)));
    Ok((seen, borrowing.map(drop)))
}
