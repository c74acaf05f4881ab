//! Descriptors: taking ownership of those that arrived in a message, and who else has one of a file.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

/// Owns a descriptor that `recvmsg` has just put into our table.
pub fn received(fd: RawFd) -> OwnedFd {
    // SAFETY: SCM_RIGHTS made this descriptor for this process, and each is passed here once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// asm-generic/fcntl.h; `libc` does not have it.
const F_SETSIG: libc::c_int = 10;

/// Can nobody write to this regular file by what they opened before, a mapping included? `file` is open for reading.
///
/// The kernel grants a read lease only then, fcntl(2). It ends at once; who opens the file for writing meanwhile waits for it.
///
/// # Errors
/// The file system knows no leases, or the file is somebody else's.
pub fn has_no_writer(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let set = |command, value: libc::c_int| {
        // SAFETY: these commands take an integer and touch no memory of ours.
        Errno::result(unsafe { libc::fcntl(file.as_raw_fd(), command, value) })
    };
    // Who breaks a lease has a signal sent to its holder. SIGIO would end us, SIGURG is ignored, signal(7).
    set(F_SETSIG, libc::SIGURG)?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(_) => set(libc::F_SETLEASE, libc::F_UNLCK).map(|_| true),
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_writer_is_seen_however_it_holds_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "content").unwrap();
        let file = File::open(&path).unwrap();
        assert!(has_no_writer(file.as_fd()).unwrap());
        let writer = File::options().write(true).open(&path).unwrap();
        assert!(!has_no_writer(file.as_fd()).unwrap());
        drop(writer);
        assert!(has_no_writer(file.as_fd()).unwrap(), "nothing of the lease stays");
    }
}
