//! Taking ownership of descriptors that arrived in a message.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Owns a descriptor that `recvmsg` has just put into our table.
pub fn received(fd: RawFd) -> OwnedFd {
    // SAFETY: SCM_RIGHTS made this descriptor for this process, and each is passed here once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
