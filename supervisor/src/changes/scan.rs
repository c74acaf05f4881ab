//! What a layer changes: a walk over its upper directory, so the cost is that of the changes and not of the tree.
//!
//! How overlayfs writes changes down: Documentation/filesystems/overlayfs.rst. What a job itself sets as
//! `user.overlay.*` is stored under another name, so none of the marks here can be a job's.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::journal::Spot;
use super::layer::{Ground, Layer};
use super::node::{self, Kind, Stamp};
use crate::beneath::{Root, by_descriptor};
use crate::clock::Time;
use crate::error::Error;
use crate::output;
use crate::state::Tree;

/// The mark of what began as a copy.
const ORIGIN: &CStr = c"user.overlay.origin";

/// One path that is to be something else than it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// The tree, by number.
    pub(crate) part: usize,
    pub(crate) path: PathBuf,
    /// What the host has there now.
    pub(crate) before: Option<Stamp>,
    /// What the layer has there.
    pub(crate) after: Option<Stamp>,
    /// From when on a change by the host collides with this one.
    pub(crate) since: Time,
    /// The layer's file began as a copy of one that the host seems to have deleted or replaced since.
    pub(crate) orphaned: bool,
}

impl Change {
    /// Does it count as a file for people?
    pub(crate) fn is_file(&self) -> bool {
        self.after.or(self.before).is_some_and(|stamp| !stamp.is_directory())
    }

    /// Is it inside a git directory?
    pub(crate) fn is_in_git(&self) -> bool {
        self.part > 0 || super::order::in_git(&self.path).is_some_and(|inside| !inside.as_os_str().is_empty())
    }

    pub(crate) fn is_addition(&self) -> bool {
        self.before.is_none()
    }

    pub(crate) fn is_deletion(&self) -> bool {
        self.after.is_none()
    }
}

/// All that a layer changes, by tree and path.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) changes: Vec<Change>,
    /// What cannot be looked at, and why.
    pub(crate) unreachable: Vec<(usize, PathBuf, String)>,
}

/// Walks a layer.
pub(crate) fn scan(layer: &Layer, tree: &Tree) -> Result<(Scan, Vec<Ground>), Error> {
    let grounds = layer.grounds(tree)?;
    let mut scan = Scan::default();
    for (part, ground) in grounds.iter().enumerate() {
        let mut walk = Walk { part, ground, layer, scan: &mut scan };
        walk.all().map_err(|(path, errno)| {
            Error::setup(format!("cannot look at {} of the changes: {}", output::path(&path), errno.desc()))
        })?;
    }
    scan.changes.sort_by(|a, b| (a.part, &a.path).cmp(&(b.part, &b.path)));
    Ok((scan, grounds))
}

struct Walk<'a> {
    part: usize,
    ground: &'a Ground,
    layer: &'a Layer,
    scan: &'a mut Scan,
}

/// A directory to look at, and since when one around it hides what the host has there.
type Open = (PathBuf, Option<Time>);
type Walked = Result<(), (PathBuf, Errno)>;

impl Scan {
    /// Refuses names that match nothing.
    pub(crate) fn must_have(&self, parts: &[super::layer::Part], named: &[Spot]) -> Result<(), Error> {
        let paths = || {
            let changes = self.changes.iter().map(|change| (change.part, change.path.as_path()));
            changes.chain(self.unreachable.iter().map(|(part, path, _)| (*part, path.as_path())))
        };
        match named.iter().find(|spot| !paths().any(|(part, path)| part == spot.part && path.starts_with(&spot.path))) {
            None => Ok(()),
            Some(spot) => Err(Error::usage(format!("no changes lie at {}", super::report::place(spot, parts)))
                .hint("`hermes-sandbox changes diff --name-only --all` names those that wait")),
        }
    }
}

impl Walk<'_> {
    fn all(&mut self) -> Walked {
        let mut open = vec![(PathBuf::new(), None)];
        while let Some((path, hides)) = open.pop() {
            match node::open_directory(&self.ground.upper, &path) {
                Ok(directory) => self.directory(&path, &directory, hides, &mut open)?,
                // Made step by step, deeper than any path reaches; or in a directory that a job took every right to.
                Err(errno @ (Errno::ENAMETOOLONG | Errno::EACCES)) => {
                    self.scan.unreachable.push((self.part, path, errno.desc().to_owned()));
                }
                Err(errno) => return Err((path, errno)),
            }
        }
        Ok(())
    }

    /// `hides` is told where a directory around this one hides all that the host has below: since when.
    fn directory(&mut self, path: &Path, directory: &OwnedFd, hides: Option<Time>, open: &mut Vec<Open>) -> Walked {
        let entries = match node::list(directory) {
            Ok(entries) => entries,
            // A job took the right to search it; nothing of it can be carried anywhere.
            Err(errno @ Errno::EACCES) => {
                self.scan.unreachable.push((self.part, path.to_owned(), errno.desc().to_owned()));
                return Ok(());
            }
            Err(errno) => return Err((path.to_owned(), errno)),
        };
        let opaque = mark(directory, None, c"user.overlay.opaque").is_some_and(|value| value == b"y");
        let hides = match Stamp::of(directory, OsStr::new("")) {
            Ok(Some(stamp)) if opaque => Some(self.layer.begun(stamp.born)),
            _ => hides,
        };
        let first = open.len();
        for (name, stamp) in &entries {
            let path = path.join(name);
            match self.entry(&path, (directory, name), *stamp, open) {
                // A job took every right to the directory, or the host did.
                Err((path, errno @ (Errno::EACCES | Errno::ENAMETOOLONG))) => {
                    self.scan.unreachable.push((self.part, path, errno.desc().to_owned()));
                }
                other => other?,
            }
        }
        open[first..].iter_mut().for_each(|(_, inner)| *inner = hides);
        if let Some(since) = hides {
            let kept: BTreeSet<&OsStr> = entries.iter().map(|(name, _)| name.as_os_str()).collect();
            self.deletions(path, &kept, since)?;
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, at: (&OwnedFd, &OsStr), stamp: Stamp, open: &mut Vec<Open>) -> Walked {
        let error = |errno| (path.to_owned(), errno);
        let before = Stamp::at(&self.ground.lower, path).map_err(error)?;
        let since = self.layer.begun(stamp.born);
        let lower_directory = before.is_some_and(|before| before.is_directory());
        if is_whiteout(at, &stamp) {
            if lower_directory {
                self.deletions(path, &BTreeSet::new(), since)?;
            }
            if before.is_some() {
                self.push(path, before, None, since, false);
            }
            return Ok(());
        }
        if stamp.is_directory() {
            open.push((path.to_owned(), None));
            if before.is_none_or(|before| before.mode != stamp.mode) {
                self.push(path, before, Some(stamp), self.by_the_host(since), false);
            }
            return Ok(());
        }
        if lower_directory {
            self.deletions(path, &BTreeSet::new(), since)?;
        }
        if before.is_none_or(|before| !self.same(path, &before, &stamp)) {
            let lost = match before {
                None => self.lost_its_origin(path, at, since),
                Some(before) => before.born >= since && mark(at.0, Some(at.1), ORIGIN).is_some(),
            };
            self.push(path, before, Some(stamp), since, lost);
        }
        Ok(())
    }

    /// A copy, in a directory that the host has or had too and in which it has changed something: the copy's origin was
    /// deleted there, if it was not renamed by the job.
    fn lost_its_origin(&self, path: &Path, (directory, name): (&OwnedFd, &OsStr), since: Time) -> bool {
        let parent = path.parent().unwrap_or(Path::new(""));
        let merged = parent.as_os_str().is_empty() || mark(directory, None, ORIGIN).is_some();
        let touched = match Stamp::at(&self.ground.lower, parent) {
            Ok(Some(around)) => around.changed >= self.by_the_host(since),
            _ => true,
        };
        merged && touched && mark(directory, Some(name), ORIGIN).is_some()
    }

    /// From when on it was the host that changed a directory, and not an `apply`.
    fn by_the_host(&self, since: Time) -> Time {
        match self.layer.about.applied {
            0 => since,
            applied => since.max(applied + 1),
        }
    }

    fn push(&mut self, path: &Path, before: Option<Stamp>, after: Option<Stamp>, since: Time, orphaned: bool) {
        self.scan.changes.push(Change { part: self.part, path: path.to_owned(), before, after, since, orphaned });
    }

    /// Is what the host has there what the layer has there? Times are not compared.
    fn same(&self, path: &Path, before: &Stamp, after: &Stamp) -> bool {
        before.mode == after.mode && same_things(&self.ground.lower, before, &self.ground.upper, after, path)
    }

    /// Everything that the host has below the directory `path`, but the entries `kept` of it, is to go.
    fn deletions(&mut self, path: &Path, kept: &BTreeSet<&OsStr>, since: Time) -> Walked {
        let top = path;
        for (below, stamp) in below(&self.ground.lower, path)? {
            let first = below.strip_prefix(top).ok().and_then(|rest| rest.iter().next());
            if !first.is_some_and(|first| kept.contains(first)) {
                self.push(&below, Some(stamp), None, since, false);
            }
        }
        Ok(())
    }
}

/// Do two things of one kind hold the same?
pub(crate) fn same_things(a: &Root, a_stamp: &Stamp, b: &Root, b_stamp: &Stamp, path: &Path) -> bool {
    if a_stamp.kind() != b_stamp.kind() {
        return false;
    }
    match a_stamp.kind() {
        Kind::File => {
            a_stamp.size == b_stamp.size
                && matches!(
                    (node::open_file(a, path), node::open_file(b, path)),
                    (Ok(a), Ok(b)) if node::same_content(&a, &b).unwrap_or(false)
                )
        }
        Kind::Symlink => matches!((node::target(a, path), node::target(b, path)), (Ok(a), Ok(b)) if a == b),
        Kind::Device => a_stamp.device == b_stamp.device,
        Kind::Directory | Kind::Fifo | Kind::Socket => true,
    }
}

/// Everything below a directory of the host, but other file systems that are mounted there: an overlay does not see them.
pub(crate) fn below(root: &Root, path: &Path) -> Result<Vec<(PathBuf, Stamp)>, (PathBuf, Errno)> {
    let mut found = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let entries = node::open_directory(root, &path).and_then(|directory| {
            let own = Stamp::of(&directory, OsStr::new(""))?.map(|own| own.mount);
            Ok(node::list(&directory)?.into_iter().map(move |entry| (own, entry)))
        });
        let entries = match entries {
            Ok(entries) => entries,
            Err(Errno::ENOENT | Errno::ENOTDIR) => continue,
            Err(errno) => return Err((path, errno)),
        };
        for (own, (name, stamp)) in entries {
            let path = path.join(name);
            if stamp.is_directory() && own == Some(stamp.mount) {
                open.push(path.clone());
            }
            found.push((path, stamp));
        }
    }
    Ok(found)
}

/// A character device 0:0, or an empty file with the mark (as tools make them that have no right to make devices).
pub(crate) fn is_whiteout((directory, name): (&OwnedFd, &OsStr), stamp: &Stamp) -> bool {
    match stamp.kind() {
        Kind::Device => stamp.device == (0, 0),
        Kind::File if stamp.size == 0 => mark(directory, Some(name), c"user.overlay.whiteout").is_some(),
        _ => false,
    }
}

/// A mark of overlayfs on a directory, or on `name` in it. Symlinks have none.
pub(crate) fn mark(directory: &OwnedFd, name: Option<&OsStr>, attribute: &CStr) -> Option<Vec<u8>> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let handle = nix::fcntl::openat(directory, name.unwrap_or(OsStr::new(".")), flags, Mode::empty()).ok()?;
    let read = || {
        let mut value = Vec::with_capacity(256);
        rustix::fs::getxattr(by_descriptor(&handle), attribute, rustix::buffer::spare_capacity(&mut value))?;
        Ok::<_, rustix::io::Errno>(value)
    };
    match read() {
        // A job took that right from its own file; what it hides so is not to be missed.
        Err(rustix::io::Errno::ACCESS) => node::with_rights(&handle, 0o400, || read().ok()).ok().flatten(),
        other => other.ok(),
    }
}

/// The error of a walk over a tree of the host.
pub(crate) fn unreadable((path, errno): (PathBuf, Errno)) -> Error {
    Error::setup(format!("cannot look at {}: {}", output::path(&path), errno.desc()))
        .hint("give yourself the right to read it, or move it out of the workspace")
}
