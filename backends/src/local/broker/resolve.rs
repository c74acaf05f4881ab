//! Finds the file that a path means to a job, and pins it.
//!
//! A wrong result is not dangerous: what is checked and connected to is the pinned file, whatever name led to it.

use std::ffi::CString;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

use super::address::Start;
use crate::local::sys::notify::{FileId, identify};

/// A file held by an `O_PATH` descriptor, so that its inode number cannot pass to another file.
#[derive(Debug)]
pub(super) struct Pin {
    fd: OwnedFd,
    id: FileId,
}

impl Pin {
    fn new(fd: OwnedFd) -> Result<Self, Errno> {
        let id = identify(Some(fd.as_fd()), c"")?;
        Ok(Self { fd, id })
    }

    pub(super) fn id(&self) -> &FileId {
        &self.id
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn duplicate(&self) -> Result<OwnedFd, Errno> {
        self.fd.try_clone().map_err(|_| Errno::EMFILE)
    }

    /// The device of the file's superblock in the encoding of `st_dev`; btrfs and overlayfs show others in `st_dev`.
    pub(super) fn superblock(&self) -> Option<u64> {
        device_of_mount(&std::fs::read("/proc/self/mountinfo").ok()?, self.id.mount?)
    }
}

/// Resolves paths as a job would.
#[derive(Debug)]
pub(super) struct Resolver {
    root: FileId,
}

impl Resolver {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { root: identify(None, c"/")? })
    }

    /// Pins what `path` means to thread `tid`, following symlinks.
    pub(super) fn pin(&self, tid: libc::pid_t, path: &[u8]) -> Result<Pin, Errno> {
        let own_root = identify_link(tid, b"root")? == self.root;
        // Nothing but the links of the caller's own /proc directory may be followed as a magic link: those of `self`
        // would be ours.
        let below = if own_root { ResolveFlag::empty() } else { ResolveFlag::RESOLVE_BENEATH };
        let fd = match Start::of(path) {
            Start::Root(path) if own_root => open_below(AT_FDCWD, path, ResolveFlag::empty())?,
            Start::Root(path) => {
                let root = open_link(tid, b"root")?;
                open_below(root.as_fd(), path, ResolveFlag::RESOLVE_IN_ROOT)?
            }
            Start::WorkingDirectory(path) => open_below(open_link(tid, b"cwd")?.as_fd(), path, below)?,
            Start::Own { link, rest: [] } => open_link(tid, link)?,
            Start::Own { link, rest } => open_below(open_link(tid, link)?.as_fd(), rest, below)?,
        };
        Pin::new(fd)
    }
}

fn open_below(base: BorrowedFd<'_>, path: &[u8], resolve: ResolveFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(base, path, how) {
        // Out of the caller's root, or a rename was going on inside it.
        Err(Errno::EXDEV | Errno::EAGAIN) => Err(Errno::EACCES),
        result => result,
    }
}

fn open_link(tid: libc::pid_t, link: &[u8]) -> Result<OwnedFd, Errno> {
    open(proc_path(tid, link)?.as_c_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
}

/// The identity of what a link in the `/proc` directory of `task` leads to.
fn identify_link(task: impl Display, link: &[u8]) -> Result<FileId, Errno> {
    identify(None, &proc_path(task, link)?)
}

fn proc_path(task: impl Display, link: &[u8]) -> Result<CString, Errno> {
    let mut path = format!("/proc/{task}/").into_bytes();
    path.extend_from_slice(link);
    CString::new(path).map_err(|_| Errno::EINVAL)
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|b| *b == b'\n')
}

fn number<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.trim().parse().ok()
}

fn device_of_mount(mountinfo: &[u8], mount: u64) -> Option<u64> {
    lines(mountinfo).find_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        if number::<u64>(fields.next()?)? != mount {
            return None;
        }
        let device = fields.nth(1)?;
        let colon = device.iter().position(|b| *b == b':')?;
        let (major, minor) = device.split_at_checked(colon)?;
        Some(nix::sys::stat::makedev(number(major)?, number(minor.get(1..)?)?))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_superblock_is_found_by_the_mount() {
        let mountinfo = b"26 1 0:5 / / rw - ext4 /dev/x rw\n27 26 259:1048575 /@home /home rw - btrfs /dev/y rw\n";
        assert_eq!(device_of_mount(mountinfo, 27), Some(nix::sys::stat::makedev(259, 1_048_575)));
        assert_eq!(device_of_mount(mountinfo, 2), None);
        assert_eq!(device_of_mount(b"27\n27 26\n27 26 x\n27 26 1:\n", 27), None);
    }

    #[test]
    fn a_pins_superblock_is_told_by_this_machine() {
        let pin = Pin::new(open(c"/proc", OFlag::O_PATH, Mode::empty()).unwrap()).unwrap();
        assert_eq!(pin.superblock(), Some(pin.id().device));
    }
}
