//! Content on its way to a tree of the host: linked where that is possible, else cloned, else copied with its holes.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags, fchownat, geteuid, linkat, unlinkat};
use rustix::fs::{AtFlags as At, SeekFrom, Timespec, Timestamps, utimensat};

use super::journal::{Content, Wish};
use super::node::{self, Kind, Stamp, next_data};
use crate::beneath::{Root, by_descriptor};
use crate::clock::Time;

/// What copy_file_range(2) answers where it cannot do it at all.
const CANNOT: &[Errno] = &[Errno::EXDEV, Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EINVAL];

/// Marks of overlayfs that mean nothing outside of a layer.
const MARKS: &[&std::ffi::CStr] =
    &[c"user.overlay.origin", c"user.overlay.impure", c"user.overlay.nlink", c"user.overlay.protattr", c"user.overlay.upper"];

/// Puts the content of a wish into `stage` as `number`, with mode, owner and time as they are to be.
pub(crate) fn put(stage: &OwnedFd, number: u32, wish: &Wish<'_>, content: &Content<'_>, root: &Root) -> io::Result<()> {
    let name = number.to_string();
    let Some(after) = wish.after else { return Ok(()) };
    match content {
        Content::Text(text) => new_file(stage, &name)?.write_all(text)?,
        Content::Link(to) => nix::unistd::symlinkat(to.as_path(), stage, name.as_str())?,
        Content::Layer(layer) if after.kind() == Kind::Symlink => {
            nix::unistd::symlinkat(node::target(layer, &wish.path)?.as_path(), stage, name.as_str())?;
        }
        Content::Layer(layer) => {
            if !link(layer, &wish.path, &after, stage, &name)? {
                copy_into(&node::open_file(layer, &wish.path)?, stage, &name)?;
            }
        }
        Content::Copy(pack, at) => {
            let to = new_file(stage, &name)?;
            copy_part((pack, *at), (&to, 0), after.size)?;
            to.set_len(after.size)?;
        }
    }
    let (uid, gid) = owner(wish, root)?;
    if uid.is_some() || gid.is_some() {
        let set = fchownat(stage, name.as_str(), uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW);
        // A group that is not ours to give.
        if geteuid().is_root() {
            set?;
        }
    }
    if after.kind() == Kind::File {
        let handle =
            nix::fcntl::openat(stage, name.as_str(), OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        std::fs::set_permissions(by_descriptor(&handle), Permissions::from_mode(after.permissions()))?;
        set_time(&handle, after.modified)?;
    } else {
        let times = times(after.modified);
        utimensat(stage, name.as_str(), &times, At::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// The owner that a file is to have: of what it replaces; else, where it is not the caller, of the directory.
fn owner(wish: &Wish<'_>, root: &Root) -> io::Result<(Option<Uid>, Option<Gid>)> {
    if let Some(before) = wish.before {
        let uid = geteuid().is_root().then(|| Uid::from_raw(before.uid));
        return Ok((uid, Some(Gid::from_raw(before.gid))));
    }
    let around = wish.path.ancestors().skip(1).find_map(|at| Stamp::at(root, at).ok().flatten());
    let Some(around) = around else { return Ok((None, None)) };
    let root = geteuid().is_root();
    // A directory with the bit hands its group on, mkdir(2).
    let gid = root || around.mode & 0o2000 != 0;
    Ok((root.then(|| Uid::from_raw(around.uid)), gid.then(|| Gid::from_raw(around.gid))))
}

/// Gives a file of the layer a second name in the staging directory; false where that cannot be, or where the file has other
/// names in the layer: by one that stays there the next sandbox would write to the host's file.
fn link(layer: &Root, path: &Path, expected: &Stamp, stage: &OwnedFd, name: &str) -> io::Result<bool> {
    let (parent, from) = layer.parent(path)?;
    if linkat(&parent, from, stage, name, LinkatFlags::empty()).is_err() {
        return Ok(false);
    }
    let expected = (expected.dev, expected.ino, 2);
    if Stamp::of(stage, OsStr::new(name))?.is_some_and(|linked| (linked.dev, linked.ino, linked.names) == expected) {
        return Ok(true);
    }
    unlinkat(stage, name, UnlinkatFlags::NoRemoveDir)?;
    Ok(false)
}

/// Makes `name` in `directory` with the content of `from`.
fn copy_into(from: &File, directory: &OwnedFd, name: &str) -> io::Result<()> {
    copy(from, &new_file(directory, name)?)
}

fn new_file(directory: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(File::from(nix::fcntl::openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
}

/// Copies a file: shares its blocks where the file system can, else keeps its holes.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let length = from.metadata()?.len();
    copy_part((from, 0), (to, 0), length)?;
    to.set_len(length)
}

/// Copies `length` bytes from an offset to another, but no holes.
pub(crate) fn copy_part((from, start): (&File, u64), (to, target): (&File, u64), length: u64) -> io::Result<()> {
    let limit = start + length;
    let mut at = start;
    while let Some(data) = next_data(from, at, limit) {
        let end = match rustix::fs::seek(from, SeekFrom::Hole(data)) {
            Ok(end) => end.clamp(data + 1, limit),
            Err(_) => limit,
        };
        copy_range((from, data), (to, target + (data - start)), end - data)?;
        at = end;
    }
    Ok(())
}

fn copy_range((from, mut source): (&File, u64), (to, mut target): (&File, u64), length: u64) -> io::Result<()> {
    let end = source + length;
    while source < end {
        let want = (end - source).min(1 << 30) as usize;
        // It moves both offsets on.
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), want) {
            // It became shorter meanwhile.
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // Between file systems before Linux 5.19, and where it is not implemented.
            Err(e) if CANNOT.contains(&Errno::from_raw(e.raw_os_error())) => {
                let mut buffer = vec![0; 1 << 18];
                while source < end {
                    let want = ((end - source) as usize).min(buffer.len());
                    let n = from.read_at(&mut buffer[..want], source)?;
                    if n == 0 {
                        return Ok(());
                    }
                    to.write_all_at(&buffer[..n], target)?;
                    source += n as u64;
                    target += n as u64;
                }
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn times(modified: Time) -> Timestamps {
    let time = Timespec { tv_sec: modified.div_euclid(1_000_000_000), tv_nsec: modified.rem_euclid(1_000_000_000) as _ };
    Timestamps { last_access: time, last_modification: time }
}

/// Sets the times of an open file, which may be open as a path only.
pub(crate) fn set_time(handle: &impl AsFd, modified: Time) -> io::Result<()> {
    utimensat(rustix::fs::CWD, by_descriptor(handle), &times(modified), At::empty())?;
    Ok(())
}

/// Takes the marks of overlayfs off a file that has left its layer. They do no harm where that fails.
pub(crate) fn strip(parent: &OwnedFd, name: &OsStr) {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let Ok(handle) = nix::fcntl::openat(parent, name, flags, Mode::empty()) else { return };
    for mark in MARKS {
        if rustix::fs::removexattr(by_descriptor(&handle), *mark) == Err(rustix::io::Errno::ACCESS) {
            let _ = node::with_rights(&handle, 0o200, || rustix::fs::removexattr(by_descriptor(&handle), *mark));
        }
    }
}
