//! System calls of the connect broker: seccomp's user notification, pidfds of threads, statx, a `connect` that
//! takes the address as bytes, and a timer that interrupts this very thread.

use std::ffi::CStr;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

#[cfg(test)]
mod tests;

/// The kernel's `ERESTARTSYS`: it never leaves the kernel, but an answer may carry it. With a signal pending the kernel
/// turns it into a restart or `EINTR`, as the handler's `SA_RESTART` says; with none pending the caller would see 512.
pub(crate) const ERESTARTSYS: i32 = 512;

/// The real-time signal by which a [`WakeTimer`] interrupts its thread. Block it in every other thread of the process.
pub fn wake_signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The cookie that the answer names.
    pub(crate) id: u64,
    /// The calling thread as seen from this pid namespace; 0 when it is not visible here.
    pub(crate) tid: libc::pid_t,
    /// The number of the system call.
    pub(crate) number: i64,
    /// Its arguments.
    pub(crate) args: [u64; 6],
}

/// The listening end of a seccomp filter.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    /// Takes over a listener and asks for synchronous wake-ups (Linux 6.6; five times faster, and merely slower without).
    pub(crate) fn new(fd: OwnedFd) -> Self {
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        // SAFETY: the argument of this ioctl is a plain number.
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS as _, SYNC_WAKE_UP) };
        Self(fd)
    }

    /// Waits for the next call. `ENOENT`: the caller went away, or the last filtered task did ([`Self::hung_up`] tells).
    pub(crate) fn receive(&self) -> Result<Call, Errno> {
        // SAFETY: plain integers, for which zero is a value; the kernel insists on zeros.
        let mut raw: libc::seccomp_notif = unsafe { zeroed() };
        // SAFETY: the kernel writes one `seccomp_notif`, which outlives the call.
        Errno::result(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut raw) })?;
        Ok(Call { id: raw.id, tid: raw.pid.cast_signed(), number: raw.data.nr.into(), args: raw.data.args })
    }

    /// Answers a call with 0 or an errno, here a positive number. A caller that is gone is no error.
    pub(crate) fn answer(&self, id: u64, errno: i32) {
        let mut raw = libc::seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 };
        // SAFETY: the kernel reads one `seccomp_notif_resp`, which outlives the call.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut raw) };
    }

    /// Puts a copy of a descriptor into the caller's table, and answers the call with its number there (Linux 5.14).
    pub(crate) fn give(&self, id: u64, fd: BorrowedFd<'_>, close_on_exec: bool) -> Result<(), Errno> {
        let raw = libc::seccomp_notif_addfd {
            id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: fd.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: the kernel reads one `seccomp_notif_addfd`, which outlives the call.
        Errno::result(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD as _, &raw const raw) }).map(drop)
    }

    /// Whether the caller still waits for the answer.
    pub(crate) fn is_waiting(&self, id: u64) -> bool {
        // SAFETY: the kernel reads one `u64`, which outlives the call.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID as _, &raw const id) == 0 }
    }

    /// Whether no task is left under the filter.
    pub(crate) fn hung_up(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let [fd] = &mut fds;
        poll(std::slice::from_mut(fd), PollTimeout::ZERO).is_ok()
            && fd.revents().is_some_and(|r| r.intersects(PollFlags::POLLHUP | PollFlags::POLLNVAL))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A handle on the thread `id` (`PIDFD_THREAD`, Linux 6.9) or on the process whose leader has that id.
pub(crate) fn pidfd_open(id: libc::pid_t, thread: bool) -> Result<OwnedFd, Errno> {
    let flags = if thread { libc::PIDFD_THREAD } else { 0 };
    // SAFETY: takes numbers only.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A duplicate (close-on-exec) of descriptor `fd` of the task behind `pidfd`.
pub(crate) fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: takes numbers only.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `connect` with the address exactly as a program gave it.
pub(crate) fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(address.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel copies `length` bytes from the slice and asks for no alignment.
    Errno::result(unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length) }).map(drop)
}

/// Reads a fixed-size socket option.
fn socket_option<const N: usize>(socket: BorrowedFd<'_>, option: libc::c_int) -> Result<[u8; N], Errno> {
    let mut value = [0; N];
    let mut length = N as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of the array.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.as_mut_ptr().cast(), &raw mut length) };
    Errno::result(done)?;
    if length as usize == N { Ok(value) } else { Err(Errno::EINVAL) }
}

/// The address family that the socket was made for.
pub(crate) fn domain(socket: BorrowedFd<'_>) -> Result<libc::c_int, Errno> {
    socket_option(socket, libc::SO_DOMAIN).map(libc::c_int::from_ne_bytes)
}

/// The number that the kernel gives to one socket and no other (`SO_COOKIE`).
pub(crate) fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    socket_option(socket, libc::SO_COOKIE).map(u64::from_ne_bytes)
}

/// Is it a stream of TCP, and not of what looks like it (MPTCP, SMC)?
pub(crate) fn is_tcp(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    let number = |option| socket_option(socket, option).map(libc::c_int::from_ne_bytes);
    Ok((number(libc::SO_TYPE)?, number(libc::SO_PROTOCOL)?) == (libc::SOCK_STREAM, libc::IPPROTO_TCP))
}

/// A number for the network namespace that the socket was made in (Linux 5.14).
pub(crate) fn network_cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    socket_option(socket, libc::SO_NETNS_COOKIE).map(u64::from_ne_bytes)
}

/// May the caller administer the network namespace that the socket was made in? (`SIOCGSKNS`, Linux 4.10.)
///
/// The kernel wants `CAP_NET_ADMIN` in the user namespace that owns it. Whoever holds none has it nevertheless in every
/// user namespace that its own uid made below its own one (user_namespaces(7)), and nowhere else.
pub(crate) fn administers_network(socket: BorrowedFd<'_>) -> bool {
    const SIOCGSKNS: libc::c_ulong = 0x894c;
    // SAFETY: takes no argument.
    match Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS as _) }) {
        // SAFETY: a new descriptor that nobody else owns.
        Ok(fd) => drop(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(_) => return false,
    }
    true
}

/// What `statx` tells about a file; `mount` and `born` are absent where kernel or file system do not know them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Device number in the encoding of `st_dev`.
    pub(crate) device: u64,
    /// Inode number.
    pub(crate) inode: u64,
    /// Mount id as in `/proc/self/mountinfo` (Linux 5.8).
    pub(crate) mount: Option<u64>,
    /// Time of birth, seconds and nanoseconds since the epoch.
    pub(crate) born: Option<(i64, u32)>,
}

/// Identifies `path` below `base`, or `base` itself when `path` is empty. Follows symlinks, does not ask a server.
pub(crate) fn identify(base: Option<BorrowedFd<'_>>, path: &CStr) -> Result<FileId, Errno> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | libc::AT_STATX_DONT_SYNC;
    let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_BTIME | libc::STATX_MNT_ID;
    let mut raw = MaybeUninit::<libc::statx>::zeroed();
    let base = base.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: `path` ends in NUL; the kernel writes one `statx`, which outlives the call.
    Errno::result(unsafe { libc::statx(base, path.as_ptr(), flags, mask, raw.as_mut_ptr()) })?;
    // SAFETY: plain integers, zeroed before.
    let raw = unsafe { raw.assume_init() };
    let has = |bit: libc::c_uint| raw.stx_mask & bit != 0;
    Ok(FileId {
        device: nix::sys::stat::makedev(raw.stx_dev_major.into(), raw.stx_dev_minor.into()),
        inode: raw.stx_ino,
        mount: has(libc::STATX_MNT_ID).then_some(raw.stx_mnt_id),
        born: has(libc::STATX_BTIME).then_some((raw.stx_btime.tv_sec, raw.stx_btime.tv_nsec)),
    })
}

extern "C" fn wake(_: libc::c_int) {}

/// Interrupts system calls of the thread that made it, with [`wake_signal`].
#[derive(Debug)]
pub(crate) struct WakeTimer {
    timer: libc::timer_t,
}

impl WakeTimer {
    /// Installs the handler (process-wide, no `SA_RESTART`), unblocks the signal in this thread and makes the timer.
    pub(crate) fn new() -> Result<Self, Errno> {
        let signal = wake_signal();
        // SAFETY: zero is a valid `sigaction` (default action, empty mask, no flags).
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = wake as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler does nothing, hence it is async-signal-safe.
        Errno::result(unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) })?;
        // SAFETY: `set` is initialised by sigemptyset before it is read.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            match libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) {
                0 => {}
                errno => return Err(Errno::from_raw(errno)),
            }
        }
        // SAFETY: zero is a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_notify_thread_id = nix::unistd::gettid().as_raw();
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are to live values of the right type.
        Errno::result(unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) })?;
        Ok(Self { timer })
    }

    /// Runs `call` with a signal every `interval`. Repeated, because one that came before the call began to wait is lost.
    pub(crate) fn interrupting<T>(&self, interval: Duration, call: impl FnOnce() -> T) -> T {
        self.set(interval);
        let result = call();
        self.set(Duration::ZERO);
        result
    }

    fn set(&self, interval: Duration) {
        let every = libc::timespec { tv_sec: 0, tv_nsec: interval.subsec_nanos().into() };
        let value = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer lives as long as `self`; `value` outlives the call.
        unsafe { libc::timer_settime(self.timer, 0, &raw const value, ptr::null_mut()) };
    }
}

impl Drop for WakeTimer {
    fn drop(&mut self) {
        // SAFETY: made by `new`, deleted once.
        unsafe { libc::timer_delete(self.timer) };
    }
}

const _: () = assert!(size_of::<libc::seccomp_notif>() == 80 && size_of::<libc::seccomp_notif_resp>() == 24);
