//! Taking single paths out of a layer, so that it shows there what the host has, and what is left keeps its meaning.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, mkdirat, mknodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::fault;
use super::node::{self, Stamp};
use super::scan::{is_whiteout, mark};
use crate::beneath::{Root, by_descriptor};

const OPAQUE: &std::ffi::CStr = c"user.overlay.opaque";

/// Takes `paths` out of the upper directory of a layer. `open_deletions` are deletions that stay in it. Can be done again.
pub(crate) fn prune(upper: &Root, lower: &Root, paths: &[&Path], open_deletions: &[&Path]) -> Result<(), (PathBuf, Errno)> {
    let error = |path: &Path| {
        let path = path.to_owned();
        move |errno| (path, errno)
    };
    for directory in opaque_directories(upper, paths)? {
        // An opaque directory hides all that the host has there. From now on only what is named.
        for path in open_deletions.iter().filter(|path| path.starts_with(&directory)) {
            whiteout(upper, lower, path).map_err(error(path))?;
        }
        fault::point();
        let handle = upper.at(&directory, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()).map_err(error(&directory))?;
        let remove = || rustix::fs::removexattr(by_descriptor(&handle), OPAQUE);
        let removed = match remove() {
            Err(rustix::io::Errno::ACCESS) => node::with_rights(&handle, 0o700, remove).map_err(error(&directory))?,
            other => other,
        };
        match removed {
            Ok(()) | Err(rustix::io::Errno::NODATA) => {}
            Err(e) => return Err((directory, Errno::from_raw(e.raw_os_error()))),
        }
    }
    for path in paths.iter().rev() {
        fault::point();
        match take(upper, path) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENOTEMPTY) => {}
            Err(errno) => return Err((path.to_path_buf(), errno)),
        }
    }
    let parents: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    for parent in parents.into_iter().rev().filter(|parent| !parent.as_os_str().is_empty()) {
        // A directory that says nothing: the host has it, with this mode.
        let merged = |upper: Stamp, lower: Stamp| upper.mode == lower.mode;
        if let (Ok(Some(above)), Ok(Some(below))) = (Stamp::at(upper, parent), Stamp::at(lower, parent))
            && merged(above, below)
        {
            let _ = take(upper, parent);
        }
    }
    Ok(())
}

fn take(upper: &Root, path: &Path) -> Result<(), Errno> {
    let (parent, name) = upper.parent(path)?;
    let Some(stamp) = Stamp::of(&parent, name)? else { return Ok(()) };
    let how = if stamp.is_directory() { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
    match unlinkat(&parent, name, how) {
        Err(Errno::EACCES) => node::with_rights(&parent, 0o700, || unlinkat(&parent, name, how))?,
        other => other,
    }
}

/// Opaque directories of the layer on the way to, or at, one of `paths`.
fn opaque_directories(upper: &Root, paths: &[&Path]) -> Result<Vec<PathBuf>, (PathBuf, Errno)> {
    let places: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors()).collect();
    let mut opaque = Vec::new();
    for path in places {
        let directory = match upper.at(path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue,
            Err(errno) => return Err((path.to_owned(), errno)),
        };
        if mark(&directory, None, OPAQUE).is_some_and(|value| value == b"y") {
            opaque.push(path.to_owned());
        }
    }
    Ok(opaque)
}

/// Says of one path that it is deleted, unless something on the way to it says so already.
fn whiteout(upper: &Root, lower: &Root, path: &Path) -> Result<(), Errno> {
    let mut at: Option<OwnedFd> = None;
    let names: Vec<&OsStr> = path.iter().collect();
    let mut walked = PathBuf::new();
    for (index, name) in names.iter().enumerate() {
        walked.push(name);
        let parent = match at.take() {
            Some(parent) => parent,
            None => upper.at(Path::new(""), OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?,
        };
        if index + 1 == names.len() {
            return match mknodat(&parent, *name, SFlag::S_IFCHR, Mode::empty(), 0) {
                Err(Errno::EEXIST) => Ok(()),
                other => other,
            };
        }
        match Stamp::of(&parent, name)? {
            Some(stamp) if is_whiteout((&parent, name), &stamp) || !stamp.is_directory() => return Ok(()),
            Some(_) => {}
            None => {
                // It stands for the host's directory and is to look like it.
                let mode = Stamp::at(lower, &walked)?.map_or(0o755, |stamp| stamp.permissions());
                mkdirat(&parent, *name, Mode::S_IRWXU)?;
                fchmodat(&parent, *name, Mode::from_bits_truncate(mode), FchmodatFlags::FollowSymlink)?;
            }
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        at = Some(nix::fcntl::openat(&parent, *name, flags, Mode::empty())?);
    }
    Ok(())
}
