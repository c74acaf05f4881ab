//! The private directory of a sandbox without a mount namespace.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use tempfile::TempDir;

/// A directory that only its owner can enter. Dropping it removes it, whatever a job has made of its modes and depth.
#[derive(Debug)]
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> io::Result<Self> {
        let mode = std::fs::Permissions::from_mode(0o700);
        tempfile::Builder::new().prefix("hermes-sandbox-").permissions(mode).tempdir().map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left after this, the drop of the directory itself tries once more.
        let _ = empty(self.path());
    }
}

/// Removes everything in `path`. A directory in it is opened up, its own directories are moved to the top, and it is
/// removed: the depth is never walked, and no symlink is followed.
fn empty(path: &Path) -> io::Result<()> {
    let top = open_up(AT_FDCWD, path)?;
    // A name that no job could take beforehand.
    let stamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let mut moved = 0u64;
    let mut open = remove_files(&top)?;
    while let Some(name) = open.pop() {
        let Ok(directory) = open_up(top.as_fd(), &name) else { continue };
        for inner in remove_files(&directory)? {
            let outer = OsString::from(format!("{stamp}-{moved}"));
            moved += 1;
            // To change its parent, a directory must be writable itself.
            if open_up(directory.as_fd(), &inner).is_ok()
                && renameat(&directory, inner.as_os_str(), &top, outer.as_os_str()).is_ok()
            {
                open.push(outer);
            }
        }
        let _ = unlinkat(&top, name.as_os_str(), UnlinkatFlags::RemoveDir);
    }
    Ok(())
}

/// Opens a directory that may have lost every right, and gives its owner all of them.
fn open_up(parent: impl AsFd, name: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(parent, name.as_ref(), flags, Mode::empty())?;
    std::fs::set_permissions(by_descriptor(&directory), std::fs::Permissions::from_mode(0o700))?;
    Ok(directory)
}

/// Removes what is not a directory; returns the names of the directories.
fn remove_files(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut directories = Vec::new();
    for entry in std::fs::read_dir(by_descriptor(directory))? {
        let name = entry?.file_name();
        match unlinkat(directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => directories.push(name),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(directories)
}

fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_the_owner_enters() {
        let scratch = Scratch::new().unwrap();
        assert_eq!(std::fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn nothing_is_left_and_nothing_else_is_touched() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("kept"), "").unwrap();
        std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        let mut deep = path.clone();
        for _ in 0..300 {
            deep.push("d");
            std::fs::create_dir(&deep).unwrap();
            std::fs::write(deep.join("f"), "").unwrap();
            symlink(outside.path(), deep.join("link")).unwrap();
        }
        for at in deep.ancestors().take_while(|at| *at != path) {
            std::fs::set_permissions(at, std::fs::Permissions::from_mode(0)).unwrap();
        }
        drop(scratch);
        assert!(!path.exists());
        assert!(outside.path().join("kept").exists());
        assert_eq!(std::fs::metadata(outside.path()).unwrap().permissions().mode() & 0o7777, 0o750);
    }
}
