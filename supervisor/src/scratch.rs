//! The private directory of a sandbox without a mount namespace.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use tempfile::TempDir;

use crate::beneath::by_descriptor;
use crate::clock;

/// A directory that only its owner can enter. Dropping it removes it, whatever a job has made of its modes and depth.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
    /// Held as long as we live: who can take it knows that the directory was left behind.
    _lock: File,
}

const PREFIX: &str = "hermes-sandbox-";
/// A younger directory may belong to a start that has not locked it yet.
const SETTLED: Duration = Duration::from_secs(60);

impl Scratch {
    pub(crate) fn new() -> io::Result<Self> {
        sweep(&std::env::temp_dir(), SETTLED);
        let mode = std::fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix(PREFIX).permissions(mode).tempdir()?;
        let lock = File::open(dir.path())?;
        lock.try_lock()?;
        Ok(Self { dir, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes what supervisors that were killed have left behind. Whatever cannot be looked at is somebody else's.
fn sweep(temporary: &Path, settled: Duration) {
    for entry in std::fs::read_dir(temporary).into_iter().flatten().flatten() {
        let named = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        let Ok(meta) = entry.metadata() else { continue };
        let old = meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= settled));
        if named && old && meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.permissions().mode() & 0o7777 == 0o700 {
            let left = File::open(entry.path()).is_ok_and(|lock| lock.try_lock().is_ok());
            if left && empty(&entry.path()).is_ok() {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left after this, the drop of the directory itself tries once more.
        let _ = empty(self.path());
    }
}

/// Removes a directory of ours, whatever a job has made of what is in it.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    empty(path)?;
    std::fs::remove_dir(path)
}

/// Removes everything in `path`. A directory in it is opened up, its own directories are moved to the top, and it is
/// removed: the depth is never walked, and no symlink is followed.
pub(crate) fn empty(path: &Path) -> io::Result<()> {
    let top = open_up(AT_FDCWD, path)?;
    // A name that no job could take beforehand.
    let stamp = clock::now();
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
        if unlinkat(directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir) == Err(Errno::EISDIR) {
            directories.push(name);
        }
    }
    Ok(directories)
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
    fn what_a_killed_supervisor_left_is_swept_and_nothing_else() {
        let temporary = tempfile::tempdir().unwrap();
        let make = |name: &str, mode| {
            let path = temporary.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("f"), "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (left, live) = (make("hermes-sandbox-left", 0o700), make("hermes-sandbox-live", 0o700));
        let (other, open) = (make("something-else", 0o700), make("hermes-sandbox-open", 0o755));
        let lock = File::open(&live).unwrap();
        lock.try_lock().unwrap();
        sweep(temporary.path(), Duration::from_secs(3600));
        assert!(left.exists(), "too young");
        sweep(temporary.path(), Duration::ZERO);
        assert_eq!([&left, &live, &other, &open].map(|path| path.exists()), [false, true, true, true]);
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
            std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        drop(scratch);
        assert!(!path.exists());
        assert!(outside.path().join("kept").exists());
        assert_eq!(std::fs::metadata(outside.path()).unwrap().permissions().mode() & 0o7777, 0o750);
    }
}
