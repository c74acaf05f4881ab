//! System calls of the host probe.

use nix::errno::Errno;
use nix::unistd::{Pid, getpid, getppid};

use super::process::{CapabilityData, CapabilityHeader, die_with};

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
    let (mut header, mut data) = (CapabilityHeader::VERSION_3, [CapabilityData::default(); 2]);
    // SAFETY: version 3 of capget(2) fills two data words.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    if result != 0 {
        return [0; 2];
    }
    let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    [wide(data[0].effective, data[1].effective), wide(data[0].permitted, data[1].permitted)]
}

/// Runs `child` in a forked process that ends with the status that it returns, or with the calling thread.
///
/// The child is single-threaded and its memory allocator usable, whatever the parent's threads were doing.
pub fn fork(child: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    let parent = getpid();
    // SAFETY: the C library's fork leaves its own locks usable in the child; `child` touches no other.
    match Errno::result(unsafe { libc::fork() })? {
        0 => finish(parent, child),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// As [`fork`], with `CLONE_NEW*` flags. Only for a process with a single thread: a raw clone knows no locks.
pub fn clone(namespaces: libc::c_int, child: impl FnOnce() -> i32) -> Result<Pid, Errno> {
    let parent = getpid();
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is fork; the remaining arguments are unused without their flags.
    match Errno::result(unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) })? {
        0 => finish(parent, child),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

fn finish(parent: Pid, child: impl FnOnce() -> i32) -> ! {
    die_with(parent);
    let status = child();
    // SAFETY: ends this process only, without the exit handlers and buffers that it shares with its parent.
    unsafe { libc::_exit(status) }
}

/// Leaves root for `id`, without supplementary groups, stays able to write its own id maps and still dies with its parent.
pub fn become_user(id: u32) -> Result<(), Errno> {
    let parent = getppid();
    nix::unistd::setgroups(&[])?;
    nix::unistd::setresgid(id.into(), id.into(), id.into())?;
    nix::unistd::setresuid(id.into(), id.into(), id.into())?;
    die_with(parent);
    // A change of user makes the process undumpable and its /proc files root's.
    nix::sys::prctl::set_dumpable(true)
}

/// `connect` on no descriptor with `address`: never succeeds, but a listener sees where the bytes are.
pub fn connect_nowhere(address: &[u8]) -> Errno {
    // SAFETY: the buffer is valid for its length.
    let result = unsafe { libc::connect(-1, address.as_ptr().cast(), address.len() as libc::socklen_t) };
    Errno::result(result).err().unwrap_or(Errno::UnknownErrno)
}

/// Touches `bytes` of memory in pages that are shared and backed by no file, and keeps them until the process ends.
#[cfg(test)]
pub fn touch_shared_memory(bytes: usize) -> Result<(), Errno> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let pages = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if pages == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    // SAFETY: the mapping is `bytes` long and writable.
    unsafe { pages.cast::<u8>().write_bytes(1, bytes) };
    Ok(())
}
