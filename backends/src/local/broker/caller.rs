//! What is taken from the thread that called: its descriptors and its memory.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::local::sys::notify::{pidfd_getfd, pidfd_open};

const TASKS: usize = 16;

/// Handles on the threads that called last.
#[derive(Debug, Default)]
pub(super) struct Tasks([Option<(libc::pid_t, OwnedFd)>; TASKS]);

impl Tasks {
    /// A duplicate of the job's descriptor.
    pub(super) fn take(&mut self, tid: libc::pid_t, fd: i32) -> Result<OwnedFd, Errno> {
        let slot = self.0.get_mut(tid.unsigned_abs() as usize % TASKS).ok_or(Errno::EACCES)?;
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

/// Reads from the caller's memory.
pub(super) fn read_memory(tid: libc::pid_t, pointer: u64, into: &mut [u8]) -> Result<(), Errno> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

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
