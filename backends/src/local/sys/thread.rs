//! Attributes of the calling thread and process.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

/// Closes every descriptor from `first` up.
pub fn close_from(first: u32) -> Result<(), Errno> {
    // SAFETY: closes descriptors by number; callers own none of them as objects at this point.
    Errno::result(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Loads a seccomp filter for the calling thread; with `listener` its notifications go to the returned descriptor.
pub fn load_filter(program: &[libc::sock_filter], listener: bool) -> Result<Option<OwnedFd>, Errno> {
    let prog =
        libc::sock_fprog { len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?, filter: program.as_ptr().cast_mut() };
    let load = |flags: libc::c_ulong| {
        // SAFETY: `prog` points at `program`, which outlives the call; the kernel only reads it.
        Errno::result(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const prog) })
    };
    if !listener {
        return load(0).map(|_| None);
    }
    // WAIT_KILLABLE_RECV is of 5.19; without it a signal can cancel a call that the broker has already made.
    let fd = match load(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) {
        Err(Errno::EINVAL) => load(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?,
        other => other?,
    };
    // SAFETY: the kernel returned a new descriptor.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
}

/// Locks the calling thread to "uid 0 has no privileges" and no way back (needs CAP_SETPCAP).
pub fn lock_securebits() -> Result<(), Errno> {
    const NOROOT: libc::c_ulong = 1 << 0;
    const NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
    const NO_CAP_AMBIENT_RAISE: libc::c_ulong = 1 << 6;
    let bits = NOROOT | NO_SETUID_FIXUP | NO_CAP_AMBIENT_RAISE;
    // Each bit's lock is the next bit (linux/securebits.h).
    // SAFETY: plain integers.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, bits | bits << 1, 0, 0, 0) }).map(drop)
}

/// Brings the loopback interface of the current network namespace up.
pub fn loopback_up(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: `request` is a valid ifreq for the whole call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }).map(drop)
}

/// Sets the size of a terminal.
pub fn set_window_size(terminal: BorrowedFd<'_>, size: &nix::pty::Winsize) -> Result<(), Errno> {
    // SAFETY: `size` is valid for the call and only read.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ as _, std::ptr::from_ref(size)) }).map(drop)
}

/// Reads the size of a terminal.
pub fn window_size(terminal: BorrowedFd<'_>) -> Result<nix::pty::Winsize, Errno> {
    let mut size = nix::pty::Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes one winsize.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ as _, &raw mut size) })?;
    Ok(size)
}

/// The slave of the pseudo-terminal `master`, opened without a path (4.13).
pub fn terminal_peer(master: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes open flags by value and returns a new descriptor.
    let fd = Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER as _, flags) })?;
    // SAFETY: see above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Unlocks the slave of the pseudo-terminal `master`.
pub fn unlock_terminal(master: BorrowedFd<'_>) -> Result<(), Errno> {
    let zero: libc::c_int = 0;
    // SAFETY: the kernel reads one int.
    Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK as _, &raw const zero) }).map(drop)
}

/// Removes every capability that the kernel knows from the calling thread's bounding set.
pub fn empty_bounding_set() -> Result<(), Errno> {
    for capability in 0..64 as libc::c_ulong {
        // EINVAL is the kernel's word for a capability that it does not know (capabilities(7)); asked apart from the drop,
        // so that no refused drop is taken for it.
        // SAFETY: integers.
        if Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_READ, capability, 0, 0, 0) }) == Err(Errno::EINVAL) {
            break;
        }
        // SAFETY: integers.
        Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })?;
    }
    Ok(())
}

/// Orphans below the calling process become its children.
pub fn become_subreaper() -> Result<(), Errno> {
    // SAFETY: integers.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Marks what `process` (0: the caller's) starts from now on. Without privileges a mark can only become less.
///
/// It is a limit that nobody reaches, inherited by every child, and that the filter keeps jobs from changing: RLIMIT_RTTIME is about
/// realtime scheduling, which no job has a right to. It tells which job a process belongs to, whatever session, group or parent
/// it has by now.
pub fn set_mark(process: i32, mark: u64) -> Result<(), Errno> {
    let limit = libc::rlimit { rlim_cur: mark, rlim_max: mark };
    // SAFETY: the kernel reads one rlimit.
    Errno::result(unsafe { libc::prlimit(process, libc::RLIMIT_RTTIME, &raw const limit, std::ptr::null_mut()) }).map(drop)
}

/// The mark of a process of the same user.
pub fn mark_of(process: i32) -> Result<u64, Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    Errno::result(unsafe { libc::prlimit(process, libc::RLIMIT_RTTIME, std::ptr::null(), &raw mut limit) })?;
    Ok(limit.rlim_max)
}
