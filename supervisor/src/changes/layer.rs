//! Layers: where the changes of sandboxes with a copy-on-write workspace lie until somebody decides about them.
//!
//! `layers/<number>/about` and, for each tree of the layer, `layers/<number>/<n>/{upper,work}`. Whoever holds the lock on
//! the directory has the layer to himself; a sandbox holds it until its last process is gone.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hermes_backends::host::Probe;
use hermes_backends::plan::Source;
use hermes_backends::step::{Step, StepError};
use hermes_profiles::{GuardRules, ospath};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::node::{self, Stamp};
use super::repository;
use crate::beneath::{Root, TEMPORARY};
use crate::clock::{self, Time};
use crate::error::Error;
use crate::output;
use crate::scratch;
use crate::state::{Tree, store};

/// A tree whose changes a layer holds. The first one is the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    #[serde(with = "ospath")]
    pub(crate) path: PathBuf,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// What is known of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) parts: Vec<Part>,
    /// When each sandbox with this layer began: what the host changes from then on, it has not seen.
    pub(crate) begun: Vec<Time>,
    /// What the policies of these sandboxes said about guarded files.
    pub(crate) guard: Vec<GuardRules>,
    /// When changes of it were last applied; 0 for never. That changes directories of the host, too.
    pub(crate) applied: Time,
}

/// A layer that nobody else has.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) number: u64,
    pub(crate) dir: PathBuf,
    pub(crate) about: About,
    /// The directory, locked.
    lock: File,
}

/// A layer in the list.
#[derive(Debug)]
pub(crate) enum Found {
    /// It is ours now.
    Free(Layer),
    /// A sandbox has it.
    Busy(u64),
}

impl Found {
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Free(layer) => layer.number,
            Self::Busy(number) => *number,
        }
    }
}

fn layers(tree: &Tree) -> PathBuf {
    tree.state.join("layers")
}

fn refuse(tree: &Tree, error: &io::Error) -> Error {
    let hint = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => "free some space there, or point XDG_STATE_HOME to where there is more",
        _ => "make that directory writable for you alone, or point XDG_STATE_HOME to one that is",
    };
    Error::setup(format!("cannot keep the changes to {} in {}: {error}", output::path(&tree.path), output::path(&layers(tree))))
        .hint(hint)
}

/// The layers of a tree, oldest first. Those that are free are held until they are dropped. What a crash left of the
/// making or the removal of one is swept away.
pub(crate) fn find(tree: &Tree) -> Vec<Found> {
    find_in(&tree.state)
}

/// The same of what is kept in `state`.
pub(crate) fn find_in(state: &Path) -> Vec<Found> {
    let layers = state.join("layers");
    let open = |number: u64| {
        let dir = layers.join(number.to_string());
        let lock = File::open(&dir).ok()?;
        if lock.try_lock().is_err() {
            return Some(Found::Busy(number));
        }
        match store::read(&dir.join("about")) {
            Ok(about) => Some(Found::Free(Layer { number, dir, about, lock })),
            Err(_) => {
                remove(&dir);
                None
            }
        }
    };
    numbers(state).into_iter().filter_map(open).collect()
}

/// Numbers of the layers in `state`, lowest first.
pub(crate) fn numbers(state: &Path) -> Vec<u64> {
    store::numbers(&state.join("layers")).unwrap_or_default()
}

/// When the last sandbox with a layer began.
pub(crate) fn last_begun(state: &Path, number: u64) -> Option<Time> {
    let about: About = store::read(&state.join("layers").join(number.to_string()).join("about")).ok()?;
    about.begun.last().copied()
}

/// Removes a directory with all that is in it, whatever its modes and depth.
pub(crate) fn remove(dir: &Path) {
    let _ = scratch::remove(dir);
}

impl Layer {
    /// The newest layer that nobody has, or a new one, for these trees.
    pub(crate) fn take(tree: &Tree, parts: &[PathBuf]) -> Result<Self, Error> {
        let mut wanted = Vec::with_capacity(parts.len());
        for path in parts {
            let meta = std::fs::symlink_metadata(path)
                .map_err(|e| Error::setup(format!("cannot look at {}: {e}", output::path(path))))?;
            wanted.push((Part { path: path.clone(), dev: meta.dev(), ino: meta.ino() }, meta.mode() & 0o7777));
        }
        let same = |layer: &Layer| {
            let identity = |part: &Part| (part.dev, part.ino);
            layer.about.parts.iter().map(identity).eq(wanted.iter().map(|(part, _)| identity(part)))
        };
        let free = find(tree).into_iter().rev().find_map(|found| match found {
            Found::Free(layer) if same(&layer) => Some(layer),
            _ => None,
        });
        match free {
            Some(mut layer) => {
                layer.about.parts = wanted.into_iter().map(|(part, _)| part).collect();
                Ok(layer)
            }
            None => Self::make(tree, wanted).map_err(|e| refuse(tree, &e)),
        }
    }

    fn make(tree: &Tree, parts: Vec<(Part, u32)>) -> io::Result<Self> {
        let (number, dir) = store::next(&layers(tree), 0)?;
        let lock = File::open(&dir)?;
        lock.lock()?;
        for (index, (_, mode)) in parts.iter().enumerate() {
            let part = dir.join(index.to_string());
            for name in ["upper", "work"] {
                DirBuilder::new().mode(0o700).recursive(true).create(part.join(name))?;
            }
            // What the merged root shows.
            std::fs::set_permissions(part.join("upper"), Permissions::from_mode(*mode))?;
        }
        let about =
            About { parts: parts.into_iter().map(|(part, _)| part).collect(), begun: Vec::new(), guard: Vec::new(), applied: 0 };
        Ok(Self { number, dir, about, lock })
    }

    /// Notes that changes of it were applied.
    pub(crate) fn note_applied(&mut self, tree: &Tree) -> Result<(), Error> {
        self.about.applied = clock::now();
        store::write_through(&self.dir.join("about"), &self.about).map_err(|e| refuse(tree, &e))
    }

    /// Notes that a sandbox begins with it.
    pub(crate) fn begin(&mut self, tree: &Tree, guard: &GuardRules) -> Result<(), Error> {
        for ground in self.grounds(tree)? {
            let Some(path) = &ground.index_of else { continue };
            // One that the layer has its own version of was kept when that began.
            if Stamp::at(&ground.upper, path).ok().flatten().is_none() {
                let content = node::content(&ground.lower, path, repository::LONGEST_INDEX).ok().flatten();
                // What cannot be kept counts as changed later: that asks, and loses nothing.
                let _ = match content {
                    Some(content) => std::fs::write(&ground.index, content),
                    None => std::fs::remove_file(&ground.index),
                };
            }
        }
        if !self.about.guard.contains(guard) {
            self.about.guard.push(guard.clone());
        }
        self.about.begun.push(clock::mark());
        store::write_through(&self.dir.join("about"), &self.about).map_err(|e| refuse(tree, &e))
    }

    /// What the sandbox mounts, for each part.
    pub(crate) fn sources(&self) -> Result<Vec<(PathBuf, Source)>, Error> {
        let source = |(index, part): (usize, &Part)| {
            let path = self.dir.join(index.to_string());
            let path =
                std::fs::canonicalize(&path).map_err(|e| Error::setup(format!("cannot look at {}: {e}", output::path(&path))))?;
            let meta = std::fs::symlink_metadata(&path)
                .map_err(|e| Error::setup(format!("cannot look at {}: {e}", output::path(&path))))?;
            Ok((part.path.clone(), Source { path, dev: meta.dev(), ino: meta.ino() }))
        };
        self.about.parts.iter().enumerate().map(source).collect()
    }

    /// The trees and their upper layers, opened. The workspace may have been renamed since; another tree must still be
    /// where it was.
    pub(crate) fn grounds(&self, tree: &Tree) -> Result<Vec<Ground>, Error> {
        let ground = |(index, part): (usize, &Part)| {
            let upper = self.dir.join(index.to_string()).join("upper");
            let path = if index == 0 { &tree.path } else { &part.path };
            let error = |at: &Path, why: &str| Error::setup(format!("cannot open {}: {why}", output::path(at)));
            let lower = Root::open(path).map_err(|errno| error(path, errno.desc()))?;
            let stamp = Stamp::of(&lower, OsStr::new("")).ok().flatten();
            if stamp.is_none_or(|stamp| (stamp.dev, stamp.ino) != (part.dev, part.ino)) {
                return Err(error(path, "it is not the directory that the changes were made to"));
            }
            let upper = Root::open(&upper).map_err(|errno| error(&upper, errno.desc()))?;
            let copy = self.dir.join(index.to_string()).join("index");
            Ok(Ground { lower, upper, index: copy, index_of: repository::index_path(index, &tree.root) })
        };
        self.about.parts.iter().enumerate().map(ground).collect()
    }

    /// What keeps the layer ours; a copy of it in another process does the same.
    pub(crate) fn lock(&self) -> std::os::fd::BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// When the sandbox began that made an entry of the layer at `time`; 0 stands for: the file system does not say.
    pub(crate) fn begun(&self, time: Time) -> Time {
        let begun = &self.about.begun;
        let first = begun.first().copied().unwrap_or(0);
        if time == 0 { first } else { begun.iter().copied().rfind(|begun| *begun <= time).unwrap_or(first) }
    }

    /// Takes the layer away with all that is in it.
    pub(crate) fn discard(self) {
        // Without this file it is rubbish, and the next one who looks sweeps what a crash left of it.
        let _ = std::fs::remove_file(self.dir.join("about"));
        remove(&self.dir);
    }
}

/// A tree and the upper layer over it.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) lower: Root,
    pub(crate) upper: Root,
    /// A copy of the workspace's git index as a sandbox found it, and where that index is.
    pub(crate) index: PathBuf,
    pub(crate) index_of: Option<PathBuf>,
}

/// Can upper layers over `workspace` lie in the state directory? Leaves nothing behind but the answer.
pub(crate) fn probe(state_dir: &Path, workspace: &Path) -> Probe {
    let failed = |at: &Path, errno: Errno| Probe::Fails(StepError::on(Step::Overlay, at, errno));
    let real = state_dir.ancestors().find_map(|at| std::fs::canonicalize(at).ok());
    if real.is_some_and(|real| real.starts_with(workspace)) {
        // An upper layer below its own lower one; the kernel's own answer to it.
        return failed(state_dir, Errno::ELOOP);
    }
    // What was found holds for this boot and this file system.
    let (known, key) = (state_dir.join("layers-work"), boot_and_device(state_dir));
    if key.is_some() && std::fs::read(&known).ok() == key {
        return Probe::Works;
    }
    // The directory itself is only made for a start.
    let place = state_dir.ancestors().find(|at| at.is_dir()).unwrap_or(Path::new("/"));
    let made = tempfile::Builder::new().prefix(TEMPORARY).permissions(Permissions::from_mode(0o700)).tempdir_in(place);
    match made {
        Ok(made) => {
            let answer = hermes_backends::probe::overlay_in(made.path(), workspace);
            let _ = scratch::empty(made.path());
            if let (Probe::Works, Some(key)) = (&answer, key) {
                // A measurement that cannot be kept costs time, nothing else.
                let _ = std::fs::write(known, key);
            }
            answer
        }
        Err(e) => failed(place, Errno::from_raw(e.raw_os_error().unwrap_or(0))),
    }
}

fn boot_and_device(state_dir: &Path) -> Option<Vec<u8>> {
    let meta = std::fs::symlink_metadata(state_dir).ok().filter(std::fs::Metadata::is_dir)?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(format!("{} {:x}", boot.trim(), meta.dev()).into_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tree(dir: &Path) -> Tree {
        let at = dir.join("ws");
        std::fs::create_dir_all(&at).unwrap();
        Tree::open(&dir.join("state"), &at, true).unwrap().unwrap()
    }

    #[test]
    fn a_free_layer_is_continued_and_a_held_one_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let parts = [tree.path.clone()];
        let take = || {
            let mut layer = Layer::take(&tree, &parts).unwrap();
            layer.begin(&tree, &GuardRules::default()).unwrap();
            layer
        };
        let first = take();
        let second = take();
        assert_eq!((first.number, second.number), (1, 2));
        assert!(find(&tree).iter().all(|found| matches!(found, Found::Busy(_))));
        // A process that another test starts holds copies of all locks until it executes its program.
        let await_free = |free| while find(&tree).iter().filter(|found| matches!(found, Found::Free(_))).count() < free {};
        drop(first);
        await_free(1);
        let again = take();
        assert_eq!((again.number, again.about.begun.len()), (1, 2));
        drop((again, second));
        await_free(2);
        assert_eq!(take().number, 2, "the newest");
    }

    #[test]
    fn what_a_crash_left_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let half = Layer::take(&tree, std::slice::from_ref(&tree.path)).unwrap();
        let at = half.dir.clone();
        assert!(at.exists());
        drop(half);
        while !find(&tree).is_empty() {}
        assert!(!at.exists());
    }

    #[test]
    fn the_run_that_made_an_entry_is_known_by_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let mut layer = Layer::take(&tree, std::slice::from_ref(&tree.path)).unwrap();
        layer.about.begun = vec![100, 200];
        assert_eq!([0, 50, 100, 199, 200, 900].map(|at| layer.begun(at)), [100, 100, 100, 100, 200, 200]);
    }
}
