//! Mounts over names in host trees, after the root is built: so that what jobs write there stays in a private place.
//!
//! A regular file is covered by a *symlink*: a program that writes beside a file and renames over it, as git does with
//! its config, gets EBUSY from a file that is a mount point, but follows a symlink first. The kernel walks through a
//! mounted symlink like through any other.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};

use super::root::open_without_links;
use super::sys::mount::{Attributes, attach, clone_tree, set_attributes};
use crate::step::{At, Step, StepError};
use crate::wire::Cover;

/// Covers each name. Returns those that could not be covered, by index.
pub fn apply(covers: &[Cover]) -> Vec<(u32, StepError)> {
    (0..).zip(covers).filter_map(|(index, cover)| one(cover).err().map(|error| (index, error))).collect()
}

fn one(cover: &Cover) -> Result<(), StepError> {
    let target = cover.target();
    // The tree is hostile ground: what a symlink leads to is not what was meant.
    let at = open_without_links(target).at_path(Step::Open, target)?;
    let kind = SFlag::from_bits_truncate(fstat(&at).at_path(Step::Open, target)?.st_mode & libc::S_IFMT);
    let directory = kind == SFlag::S_IFDIR;
    let wanted = match cover {
        Cover::Pin { .. } | Cover::Directory { .. } => directory,
        Cover::Link { .. } => kind == SFlag::S_IFREG,
        Cover::ReadOnly { .. } => directory || kind == SFlag::S_IFREG,
    };
    if !wanted {
        return Err(StepError::on(Step::Changed, target, Errno::ESTALE));
    }
    let tree = match cover {
        Cover::Pin { .. } => clone_tree(at.as_fd(), true),
        Cover::ReadOnly { .. } => clone_tree(at.as_fd(), directory).and_then(|tree| {
            let read_only = Attributes { set: libc::MOUNT_ATTR_RDONLY, ..Attributes::default() };
            set_attributes(tree.as_fd(), c"", read_only, directory)?;
            Ok(tree)
        }),
        Cover::Directory { source, .. } => open_without_links(source)
            .and_then(|source| is_kind(source, SFlag::S_IFDIR))
            .and_then(|fd| clone_tree(fd.as_fd(), false)),
        Cover::Link { source, .. } => open_link(source).and_then(|fd| clone_tree(fd.as_fd(), false)),
    };
    let tree = tree.at_path(Step::Bind, target)?;
    attach(&tree, at.as_fd(), c"").at_path(Step::Attach, target)
}

fn open_link(path: &Path) -> Result<OwnedFd, Errno> {
    let parent = open_without_links(path.parent().ok_or(Errno::EINVAL)?)?;
    let name = path.file_name().ok_or(Errno::EINVAL)?;
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    is_kind(openat(&parent, name, flags, Mode::empty())?, SFlag::S_IFLNK)
}

fn is_kind(fd: OwnedFd, wanted: SFlag) -> Result<OwnedFd, Errno> {
    let kind = fstat(&fd)?.st_mode & libc::S_IFMT;
    if kind == wanted.bits() { Ok(fd) } else { Err(Errno::ESTALE) }
}
