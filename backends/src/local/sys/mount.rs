//! The mount system calls of Linux 5.2 and 5.12.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

/// Clones the mount that `tree` (any descriptor, O_PATH included) lies on, rooted at it; detached.
pub fn clone_tree(tree: BorrowedFd<'_>, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as u32;
    if recursive {
        flags |= libc::AT_RECURSIVE as u32;
    }
    // SAFETY: the path is a NUL-terminated literal and the kernel reads nothing else.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, tree.as_raw_fd(), c"".as_ptr(), flags) };
    let fd = Errno::result(fd)?;
    // SAFETY: open_tree returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Attributes to set on a mount.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attributes<'a> {
    /// `MOUNT_ATTR_*` to set.
    pub set: u64,
    /// User namespace of an id-mapped mount.
    pub userns: Option<BorrowedFd<'a>>,
}

/// `mount_setattr` on the mount at `path` below `tree` (empty path: on `tree` itself).
pub fn set_attributes(tree: BorrowedFd<'_>, path: &CStr, attributes: Attributes<'_>, recursive: bool) -> Result<(), Errno> {
    let mut attr = libc::mount_attr { attr_set: attributes.set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    if let Some(userns) = attributes.userns {
        attr.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = userns.as_raw_fd() as u64;
    }
    set(tree, path, attr, recursive)
}

/// Makes the mount at `tree`, and all that is mounted on it, shared: its clones are peers of it from now on.
pub fn share(tree: BorrowedFd<'_>) -> Result<(), Errno> {
    let attr = libc::mount_attr { attr_set: 0, attr_clr: 0, propagation: libc::MS_SHARED, userns_fd: 0 };
    set(tree, c"", attr, true)
}

fn set(tree: BorrowedFd<'_>, path: &CStr, mut attr: libc::mount_attr, recursive: bool) -> Result<(), Errno> {
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: `attr` outlives the call and its size is passed; the path is NUL-terminated.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            path.as_ptr(),
            flags,
            &raw mut attr,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(result).map(drop)
}

/// Attaches the detached `tree` at `target` below `directory`; the last component of `target` is not followed.
pub fn attach(tree: impl AsFd, directory: BorrowedFd<'_>, target: &CStr) -> Result<(), Errno> {
    let mut flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
    if target.is_empty() {
        flags |= libc::MOVE_MOUNT_T_EMPTY_PATH;
    }
    // SAFETY: both paths are NUL-terminated and both descriptors are open for the call.
    let result = unsafe {
        libc::syscall(libc::SYS_move_mount, tree.as_fd().as_raw_fd(), c"".as_ptr(), directory.as_raw_fd(), target.as_ptr(), flags)
    };
    Errno::result(result).map(drop)
}
