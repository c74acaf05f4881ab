//! System calls of the host probe.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::NixPath;
use nix::errno::Errno;
use nix::unistd::Pid;

/// The kernel's Landlock ABI, also when it is above what any crate knows; 0 when there is none or it is switched off.
pub fn landlock_abi() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with LANDLOCK_CREATE_RULESET_VERSION the kernel wants a null attribute of size 0 and makes no descriptor.
    let abi = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    u32::try_from(abi).unwrap_or(0)
}

/// The seccomp mode of the calling thread: 0 none, 2 filter. (In mode 1 this call is fatal, but so was everything before.)
pub fn seccomp_mode() -> i32 {
    // SAFETY: takes no pointer.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) }
}

/// The calling thread's effective and permitted capabilities, as the kernel's bit masks.
pub fn capabilities() -> [u64; 2] {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let mut header = Header { version: 0x2008_0522, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 of capget(2) fills two data words.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    if result != 0 {
        return [0; 2];
    }
    let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    [wide(data[0].effective, data[1].effective), wide(data[0].permitted, data[1].permitted)]
}

/// Runs `child` in a forked process that ends with the status that it returns.
///
/// The child is single-threaded and its memory allocator usable, whatever the parent's threads were doing.
pub fn fork(child: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    // SAFETY: the C library's fork leaves its own locks usable in the child; `child` touches no other.
    match Errno::result(unsafe { libc::fork() })? {
        0 => finish(child),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// As [`fork`], with `CLONE_NEW*` flags. Only for a process with a single thread: a raw clone knows no locks.
pub fn clone(namespaces: libc::c_int, child: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is fork; the remaining arguments are unused without their flags.
    match Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) })? {
        0 => finish(child),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

fn finish(child: impl FnOnce() -> i32) -> ! {
    let status = child();
    // SAFETY: ends this process only, without the exit handlers and buffers that it shares with its parent.
    unsafe { libc::_exit(status) }
}

/// Leaves root for `id`, without supplementary groups, and stays able to write its own id maps.
pub fn become_user(id: u32) -> Result<(), Errno> {
    nix::unistd::setgroups(&[])?;
    nix::unistd::setresgid(id.into(), id.into(), id.into())?;
    nix::unistd::setresuid(id.into(), id.into(), id.into())?;
    // A change of user makes the process undumpable and its /proc files root's.
    nix::sys::prctl::set_dumpable(true)
}

/// Clones the mount below `path`, detached, with everything mounted in it when `recursive`.
pub fn clone_tree(path: &Path, recursive: bool) -> Result<OwnedFd, Errno> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | if recursive { libc::AT_RECURSIVE as u32 } else { 0 };
    let fd = path.with_nix_path(|path| {
        // SAFETY: a NUL-terminated path.
        unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) }
    })?;
    let fd = Errno::result(fd)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// `mount_setattr` on a detached tree.
pub fn set_attributes(tree: &OwnedFd, set: u64, userns: Option<BorrowedFd<'_>>, recursive: bool) -> Result<(), Errno> {
    let attributes =
        libc::mount_attr { attr_set: set, attr_clr: 0, propagation: 0, userns_fd: userns.map_or(0, |fd| fd.as_raw_fd() as u64) };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the structure outlives the call, and its size is passed.
    Errno::result(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Attaches a detached tree at `target`.
pub fn attach(tree: &OwnedFd, target: &Path) -> Result<(), Errno> {
    let result = target.with_nix_path(|target| {
        // SAFETY: two NUL-terminated paths.
        unsafe {
            libc::syscall(
                libc::SYS_move_mount,
                tree.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_FDCWD,
                target.as_ptr(),
                libc::MOVE_MOUNT_F_EMPTY_PATH,
            )
        }
    })?;
    Errno::result(result).map(drop)
}

/// Sets IFF_UP on `lo` of the caller's network namespace.
pub fn loopback_up() -> Result<(), Errno> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }).map(drop)
}

fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> Result<i32, Errno> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which outlives the call and is not written.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    Errno::result(result).map(|fd| fd as i32)
}

const fn bpf(code: u32, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf, k }
}

/// Loads a filter that allows everything.
pub fn allow_all() -> Result<(), Errno> {
    install(&[bpf(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW)], 0).map(drop)
}

/// Loads a filter that sends `connect` to a listener, and returns the listener.
pub fn listen_for_connect() -> Result<OwnedFd, Errno> {
    let program = [
        bpf(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, std::mem::offset_of!(libc::seccomp_data, nr) as u32),
        bpf(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_connect as u32),
        bpf(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF),
        bpf(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let fd = install(&program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `connect` on no descriptor with `address`: never succeeds, but a listener sees where the bytes are.
pub fn connect_nowhere(address: &[u8]) -> Errno {
    // SAFETY: the buffer is valid for its length.
    let result = unsafe { libc::connect(-1, address.as_ptr().cast(), address.len() as libc::socklen_t) };
    Errno::result(result).err().unwrap_or(Errno::UnknownErrno)
}

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub struct Notification {
    /// To be given back with the answer.
    pub id: u64,
    /// The call's second argument.
    pub second: u64,
}

/// Takes a notification; call when the listener is readable.
pub fn receive(listener: &OwnedFd) -> Result<Notification, Errno> {
    // SAFETY: the kernel insists on a zeroed structure; all zeros is valid.
    let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: SECCOMP_IOCTL_NOTIF_RECV writes one seccomp_notif.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut notification) };
    Errno::result(result)?;
    Ok(Notification { id: notification.id, second: notification.data.args[1] })
}

/// Answers a notification with an error.
pub fn refuse(listener: &OwnedFd, id: u64, errno: Errno) -> Result<(), Errno> {
    let response = libc::seccomp_notif_resp { id, val: 0, error: -(errno as i32), flags: 0 };
    // SAFETY: SECCOMP_IOCTL_NOTIF_SEND reads one seccomp_notif_resp.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw const response) };
    Errno::result(result).map(drop)
}

/// Takes descriptor `fd` of process `pid`.
pub fn take_descriptor(pid: Pid, fd: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: takes no pointer.
    let pidfd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    // SAFETY: a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) };
    // SAFETY: takes no pointer.
    let taken = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_fd().as_raw_fd(), fd, 0) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(taken as RawFd) })
}
