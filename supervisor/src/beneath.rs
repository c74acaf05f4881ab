//! Reaching files below a directory that somebody hostile may write: by descriptor, never above it, never through a symlink.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::geteuid;

/// How names begin that we give to what is not whole yet in a directory that is not ours alone.
pub(crate) const TEMPORARY: &str = ".hermes-sandbox-";

/// A directory, opened once.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    /// Are directories that lost their rights given them back for as long as this lives?
    insists: AtomicBool,
    /// Directories that were given rights, and the modes that they had.
    opened: Mutex<Vec<(OwnedFd, u32)>>,
}

impl Root {
    /// Opens `path`, which may itself be reached through symlinks.
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        openat(AT_FDCWD, path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).map(Self::from_fd)
    }

    /// Takes a descriptor of a directory.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, insists: AtomicBool::new(false), opened: Mutex::default() }
    }

    /// From now on reaches what lies in directories of ours that somebody has taken the rights from. They lose them again
    /// with [`Root::close_up`].
    pub(crate) fn insist(&self, insists: bool) {
        self.insists.store(insists, Ordering::Relaxed);
    }

    fn opened(&self) -> MutexGuard<'_, Vec<(OwnedFd, u32)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back the rights that were given.
    pub(crate) fn close_up(&self) {
        for (directory, mode) in self.opened().drain(..).rev() {
            let _ = set_mode(&directory, mode);
        }
    }

    /// Sees that entries of a directory of ours can be changed.
    ///
    /// # Errors
    /// EACCES when they cannot.
    pub(crate) fn make_writable(&self, directory: &Path) -> Result<(), Errno> {
        if self.open_up(directory)? { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Gives the first directory on the way to `relative` that cannot be read, searched or written all rights of its owner.
    ///
    /// # Errors
    /// EMFILE and ENFILE, which say nothing about the directory.
    fn open_up(&self, relative: &Path) -> Result<bool, Errno> {
        if !self.insists.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let step = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut at: Option<OwnedFd> = None;
        for name in relative.components() {
            let next = match openat(at.as_ref().unwrap_or(&self.fd), name.as_os_str(), step, Mode::empty()) {
                Ok(next) => next,
                Err(errno @ (Errno::EMFILE | Errno::ENFILE)) => return Err(errno),
                Err(_) => return Ok(false),
            };
            let Ok(stat) = fstat(&next) else { return Ok(false) };
            let mode = stat.st_mode & 0o7777;
            if mode & 0o700 != 0o700 && stat.st_uid == geteuid().as_raw() {
                let done = set_mode(&next, mode | 0o700).is_ok();
                let mut opened = self.opened();
                if opened.len() < MOST_OPENED {
                    opened.push((next, mode));
                }
                return Ok(done);
            }
            at = Some(next);
        }
        Ok(false)
    }

    /// Opens `relative`, of which no part may be a symlink. An empty path is the directory itself.
    ///
    /// # Errors
    /// ELOOP for a symlink, EXDEV for a path that leads above.
    pub(crate) fn at(&self, relative: &Path, flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        if relative.as_os_str().len() > LONGEST_PATH {
            return self.at_long(relative, flags, mode);
        }
        let flags = flags | OFlag::O_CLOEXEC;
        let how = OpenHow::new()
            .flags(flags)
            .mode(mode)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let mut again = true;
        loop {
            match openat2(&self.fd, relative, how) {
                // Another thread may have opened it up meanwhile.
                Err(Errno::EACCES) if self.open_up(relative)? || std::mem::take(&mut again) => {}
                // A rename outside met the look-up, openat2(2).
                Err(Errno::EAGAIN) => {}
                // Inside another sandbox, whose filter cannot see openat2's arguments, or before Linux 5.6.
                Err(Errno::ENOSYS | Errno::EPERM) => return self.at_by_name(relative, flags, mode),
                other => return other,
            }
        }
    }

    /// In parts that the kernel takes, PATH_MAX of limits.h.
    fn at_long(&self, relative: &Path, flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
        let (mut first, mut rest) = (PathBuf::new(), PathBuf::new());
        for name in relative.components() {
            let to = if rest.as_os_str().is_empty() && first.as_os_str().len() + name.as_os_str().len() < LONGEST_PATH {
                &mut first
            } else {
                &mut rest
            };
            to.push(name);
        }
        let step = self.at(&first, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
        let step = Self::from_fd(step);
        step.insist(self.insists.load(Ordering::Relaxed));
        let found = step.at(&rest, flags, mode);
        self.opened().append(&mut step.opened());
        found
    }

    fn at_by_name(&self, relative: &Path, flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
        let mut names: Vec<&OsStr> = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                _ => return Err(Errno::EXDEV),
            }
        }
        let Some(last) = names.pop() else { return openat(&self.fd, ".", flags, mode) };
        let step = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut at: Option<OwnedFd> = None;
        for name in names {
            at = Some(openat(at.as_ref().unwrap_or(&self.fd), name, step, Mode::empty())?);
        }
        let fd = openat(at.as_ref().unwrap_or(&self.fd), last, flags | OFlag::O_NOFOLLOW, mode)?;
        if kind(&fstat(&fd)?) == SFlag::S_IFLNK { Err(Errno::ELOOP) } else { Ok(fd) }
    }

    /// The directory that holds `relative`, and its name there.
    pub(crate) fn parent<'p>(&self, relative: &'p Path) -> Result<(OwnedFd, &'p OsStr), Errno> {
        let name = relative.file_name().ok_or(Errno::EINVAL)?;
        let parent = relative.parent().unwrap_or(Path::new(""));
        Ok((self.at(parent, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?, name))
    }

    /// What `relative` is; a symlink at its end is told, not followed.
    pub(crate) fn stat(&self, relative: &Path) -> Result<FileStat, Errno> {
        if relative.as_os_str().is_empty() {
            return fstat(&self.fd);
        }
        let (parent, name) = self.parent(relative)?;
        nix::sys::stat::fstatat(&parent, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    /// Opens a regular file for reading. Anything else, which could block or act, is EINVAL.
    pub(crate) fn open_file(&self, relative: &Path) -> Result<(File, FileStat), Errno> {
        // O_NONBLOCK: a FIFO would wait for a writer. O_NOATIME is the owner's right alone and not worth a failure.
        let fd = self.at(relative, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY, Mode::empty())?;
        let stat = fstat(&fd)?;
        if kind(&stat) != SFlag::S_IFREG {
            return Err(Errno::EINVAL);
        }
        Ok((File::from(fd), stat))
    }

    /// Reads a regular file of at most `limit` bytes.
    ///
    /// # Errors
    /// EFBIG for a longer one.
    pub(crate) fn read(&self, relative: &Path, limit: u64) -> Result<(Vec<u8>, FileStat), Errno> {
        let (file, stat) = self.open_file(relative)?;
        let mut content = Vec::new();
        file.take(limit + 1).read_to_end(&mut content).map_err(|e| errno(&e))?;
        if content.len() as u64 > limit { Err(Errno::EFBIG) } else { Ok((content, stat)) }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.close_up();
    }
}

/// Bytes of a path that one call takes, with a margin below PATH_MAX.
const LONGEST_PATH: usize = 3500;

/// Directories that are held open to take back the rights that they were given. More keep these: nobody is to hide one among
/// many.
const MOST_OPENED: usize = 256;

fn set_mode(directory: &OwnedFd, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(by_descriptor(directory), std::fs::Permissions::from_mode(mode))
}

/// The type bits of a mode.
pub(crate) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & libc_format())
}

fn libc_format() -> u32 {
    SFlag::S_IFMT.bits()
}

/// The errno of an I/O error; EIO for one that has none.
pub(crate) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Renames; EEXIST when the new name is taken.
pub(crate) fn rename_to_free(from: impl AsFd, old: &OsStr, to: impl AsFd, new: &OsStr) -> Result<(), Errno> {
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    rustix::fs::renameat_with(from, old, to, new, flags).map_err(|e| Errno::from_raw(e.raw_os_error()))
}

/// A path that names an open file, for calls that take paths only.
pub(crate) fn by_descriptor(fd: impl AsFd) -> OsString {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn symlinks_and_what_is_above_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("in/deep")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(dir.path().join("in/deep/f"), "content").unwrap();
        symlink("../secret", dir.path().join("in/out")).unwrap();
        symlink("deep", dir.path().join("in/short")).unwrap();
        let root = Root::open(&dir.path().join("in")).unwrap();
        assert_eq!(root.read(Path::new("deep/f"), 7).unwrap().0, b"content");
        assert_eq!(root.read(Path::new("deep/f"), 6).unwrap_err(), Errno::EFBIG);
        assert_eq!(root.read(Path::new("out"), 9).unwrap_err(), Errno::ELOOP);
        assert_eq!(root.read(Path::new("short/f"), 9).unwrap_err(), Errno::ELOOP);
        assert_eq!(root.read(Path::new("../secret"), 9).unwrap_err(), Errno::EXDEV);
        assert_eq!(kind(&root.stat(Path::new("out")).unwrap()), SFlag::S_IFLNK);
        for bad in ["out", "short/f", "../secret"] {
            assert!(root.at_by_name(Path::new(bad), OFlag::O_RDONLY, Mode::empty()).is_err(), "{bad}");
        }
        assert!(root.at_by_name(Path::new("./deep/f"), OFlag::O_RDONLY, Mode::empty()).is_ok());
    }

    #[test]
    fn rights_are_given_and_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/f"), "f").unwrap();
        let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o7777;
        let set = |path: &str, mode| {
            std::fs::set_permissions(dir.path().join(path), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set("a/b", 0o000);
        set("a", 0o400);
        let root = Root::open(dir.path()).unwrap();
        assert!(geteuid().is_root() || root.read(Path::new("a/b/f"), 1).is_err());
        root.insist(true);
        let open_up = || root.open_up(Path::new("a/b")).unwrap();
        assert!(open_up() && open_up() && !open_up());
        assert_eq!(root.read(Path::new("a/b/f"), 1).unwrap().0, b"f");
        assert_eq!(mode("a/b"), 0o700);
        drop(root);
        assert_eq!(mode("a"), 0o400);
        set("a", 0o700);
        assert_eq!(mode("a/b"), 0o000);
        set("a/b", 0o700);
    }

    #[test]
    fn what_is_not_a_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("fifo"), Mode::S_IRWXU).unwrap();
        let root = Root::open(dir.path()).unwrap();
        assert_eq!(root.read(Path::new("fifo"), 1).unwrap_err(), Errno::EINVAL);
        assert_eq!(root.read(Path::new(""), 1).unwrap_err(), Errno::EINVAL);
    }
}
