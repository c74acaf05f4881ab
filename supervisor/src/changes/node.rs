//! What stands at a path: its identity, and its content where that is asked for.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag};
use rustix::fs::{AtFlags, SeekFrom, StatxAttributes, StatxFlags, StatxTimestamp, statx};
use serde::{Deserialize, Serialize};

use crate::beneath::{Root, by_descriptor, errno};
use crate::clock::Time;

/// What one path is, as far as it says whether it is still the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// Type and permissions.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// Bytes that it takes.
    pub(crate) space: u64,
    /// When its content was changed.
    pub(crate) modified: Time,
    /// When anything of it was changed.
    pub(crate) changed: Time,
    /// When it was made; 0 where the file system does not say.
    pub(crate) born: Time,
    pub(crate) mount: u64,
    /// How many names it has.
    pub(crate) names: u32,
    /// `chattr +i` or `+a`.
    pub(crate) immutable: bool,
    /// Device number, of a device.
    pub(crate) device: (u32, u32),
}

/// What kind of thing stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

impl Stamp {
    /// What `name` in `directory` is; the directory itself for an empty name.
    pub(crate) fn of(directory: impl AsFd, name: &OsStr) -> Result<Option<Self>, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let found = match statx(directory, name, flags, wanted) {
            Ok(found) => found,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
            Err(e) => return Err(Errno::from_raw(e.raw_os_error())),
        };
        let time = |at: StatxTimestamp| at.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(at.tv_nsec));
        let has = |flag: StatxFlags| found.stx_mask & flag.bits() != 0;
        Ok(Some(Self {
            dev: nix::sys::stat::makedev(found.stx_dev_major.into(), found.stx_dev_minor.into()),
            ino: found.stx_ino,
            mode: found.stx_mode.into(),
            uid: found.stx_uid,
            gid: found.stx_gid,
            size: found.stx_size,
            space: found.stx_blocks * 512,
            modified: time(found.stx_mtime),
            changed: time(found.stx_ctime),
            born: if has(StatxFlags::BTIME) { time(found.stx_btime) } else { 0 },
            mount: if has(StatxFlags::MNT_ID) { found.stx_mnt_id } else { 0 },
            names: found.stx_nlink,
            immutable: found.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
            device: (found.stx_rdev_major, found.stx_rdev_minor),
        }))
    }

    /// What `path` below `root` is. A symlink or a file on the way to it is nothing there.
    pub(crate) fn at(root: &Root, path: &Path) -> Result<Option<Self>, Errno> {
        if path.as_os_str().is_empty() {
            return Self::of(root, OsStr::new(""));
        }
        match root.parent(path) {
            Ok((parent, name)) => Self::of(&parent, name),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match SFlag::from_bits_truncate(self.mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFREG => Kind::File,
            SFlag::S_IFDIR => Kind::Directory,
            SFlag::S_IFLNK => Kind::Symlink,
            SFlag::S_IFIFO => Kind::Fifo,
            SFlag::S_IFSOCK => Kind::Socket,
            _ => Kind::Device,
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == Kind::Directory
    }

    /// The permission bits.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    /// As [`Stamp::same`], while names of the same file come and go: that changes its time.
    pub(crate) fn still(&self, before: &Self) -> bool {
        let untimed = Self { changed: before.changed, ..*self };
        self.same(before) || (before.names > 1 && self.modified == before.modified && untimed.same(before))
    }

    /// Has nobody touched it since `other` was taken? Of a directory only that it is the same one.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let identity = |stamp: &Self| (stamp.dev, stamp.ino, stamp.kind());
        identity(self) == identity(other)
            && (self.is_directory() || (self.mode, self.size, self.changed) == (other.mode, other.size, other.changed))
    }
}

/// The entries of a directory, by name. It is not opened again: its owner may have no right to that.
pub(crate) fn list(directory: &OwnedFd) -> Result<Vec<(OsString, Stamp)>, Errno> {
    let error = |e: rustix::io::Errno| Errno::from_raw(e.raw_os_error());
    rustix::fs::seek(directory, SeekFrom::Start(0)).map_err(error)?;
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut listing = rustix::fs::RawDir::new(directory, buffer.spare_capacity_mut());
    let mut entries = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry.map_err(error)?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if let Some(stamp) = Stamp::of(directory, name)? {
            entries.push((name.to_owned(), stamp));
        }
    }
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

/// Opens a directory for listing. Its owner may have taken that right from himself: it is lent for the moment of opening.
pub(crate) fn open_directory(root: &Root, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    lend(root, path, flags, 0o500)
}

/// Opens a regular file for reading, as [`open_directory`].
pub(crate) fn open_file(root: &Root, path: &Path) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::from(lend(root, path, flags, 0o400)?);
    if file.metadata().is_ok_and(|meta| meta.is_file()) { Ok(file) } else { Err(Errno::EINVAL) }
}

fn lend(root: &Root, path: &Path, flags: OFlag, rights: u32) -> Result<OwnedFd, Errno> {
    match root.at(path, flags, Mode::empty()) {
        Err(Errno::EACCES) => {}
        other => return other,
    }
    let handle = root.at(path, OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty())?;
    let again = (flags - OFlag::O_NOFOLLOW) | OFlag::O_CLOEXEC;
    with_rights(&handle, rights, || nix::fcntl::open(Path::new(&by_descriptor(&handle)), again, Mode::empty()))?
}

/// Does something while the owner of a file or directory has `rights` to it, which he may have taken from himself.
pub(crate) fn with_rights<T>(handle: &OwnedFd, rights: u32, what: impl FnOnce() -> T) -> Result<T, Errno> {
    let meta = std::fs::metadata(by_descriptor(handle)).map_err(|e| errno(&e))?;
    if meta.uid() != nix::unistd::geteuid().as_raw() || !(meta.is_file() || meta.is_dir()) {
        return Err(Errno::EACCES);
    }
    let set = |mode| std::fs::set_permissions(by_descriptor(handle), Permissions::from_mode(mode)).map_err(|e| errno(&e));
    let mode = meta.mode() & 0o7777;
    set(mode | rights)?;
    let done = what();
    set(mode)?;
    Ok(done)
}

/// The whole content of a regular file of at most `limit` bytes; `None` for a longer one.
pub(crate) fn content(root: &Root, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Errno> {
    let mut content = Vec::new();
    open_file(root, path)?.take(limit + 1).read_to_end(&mut content).map_err(|e| errno(&e))?;
    Ok((content.len() as u64 <= limit).then_some(content))
}

/// What a symlink holds.
pub(crate) fn target(root: &Root, path: &Path) -> Result<PathBuf, Errno> {
    let (parent, name) = root.parent(path)?;
    nix::fcntl::readlinkat(&parent, name).map(PathBuf::from)
}

/// Do two regular files hold the same?
pub(crate) fn same_content(a: &File, b: &File) -> io::Result<bool> {
    let length = a.metadata()?.len();
    Ok(length == b.metadata()?.len() && same_range(a, (b, 0), length)?)
}

/// Does `a` begin with `length` bytes that `b` has from an offset on? What is a hole in both is not read.
pub(crate) fn same_range(a: &File, (b, from): (&File, u64), length: u64) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut at = 0;
    let other = |at: u64| next_data(b, from + at, from + length).map(|next| next - from);
    while let Some(next) = next_data(a, at, length).min_some(other(at)) {
        at = next;
        let n = ((length - at) as usize).min(left.len());
        a.read_exact_at(&mut left[..n], at)?;
        b.read_exact_at(&mut right[..n], from + at)?;
        if left[..n] != right[..n] {
            return Ok(false);
        }
        at += n as u64;
    }
    Ok(true)
}

trait MinSome {
    fn min_some(self, other: Self) -> Self;
}

impl MinSome for Option<u64> {
    fn min_some(self, other: Self) -> Self {
        self.into_iter().chain(other).min()
    }
}

/// Where the next bytes from `at` on are that are no hole; `None` when there are none.
pub(crate) fn next_data(file: &File, at: u64, length: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(next) => Some(next).filter(|next| *next < length),
        Err(rustix::io::Errno::NXIO) => None,
        // A file system that does not know where its holes are.
        Err(_) => Some(at).filter(|at| *at < length),
    }
}
