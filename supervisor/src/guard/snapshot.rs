//! What a tree holds that matters to the guard, found by names and times alone.
//!
//! A directory whose inode and ctime are what they were has the entries that it had: adding, removing or renaming one
//! changes the ctime, and no unprivileged process can set it. So a later look only stats the known directories and
//! guarded files, lists the directories that changed, and reads the files that changed.

mod again;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::FileStat;
use serde::{Deserialize, Serialize};

use super::rules::Alias;
use crate::beneath::Root;
use crate::clock::{self, COARSE};

pub(crate) use walk::hold;
use walk::walk;

/// Bytes of a file that are kept. A longer one is watched but cannot be brought back.
pub(crate) const LONGEST: u64 = 16 << 20;

/// The tree at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The rules that it was taken by; another set of rules needs another walk.
    pub(crate) stamp: String,
    /// Nanoseconds since 1970.
    taken: i64,
    /// Parents before children. Shared by looks between which nothing changed.
    #[serde(with = "shared")]
    dirs: Arc<Vec<Dir>>,
    /// Other places of guarded files that it was taken with.
    pub(crate) aliases: Vec<Alias>,
    /// Files that a killed supervisor left before they were whole.
    #[serde(skip)]
    pub(crate) strays: Vec<PathBuf>,
    /// Was anything looked at closely since the snapshot before?
    #[serde(skip)]
    pub(crate) renewed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Dir {
    parent: u32,
    name: Vec<u8>,
    ino: u64,
    ctime: i64,
    /// The git directory that it is or lies in.
    git: Option<u32>,
    /// Does git take it for one? One that is only called so may become one.
    repository: bool,
    held: Vec<Held>,
    /// Symlinks that no rule names: (name, target).
    links: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A guarded entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    name: Vec<u8>,
    ino: u64,
    ctime: i64,
    size: i64,
    /// Permission bits.
    pub(crate) mode: u32,
    /// What it is.
    pub(crate) is: Is,
}

/// What a guarded entry is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Is {
    /// A file and its content.
    File(Vec<u8>),
    /// A file that is not read: only its times are known.
    Unread,
    /// A symlink and its target.
    Link(Vec<u8>),
    /// A FIFO, socket or device.
    Special,
}

/// What stands at a name, for a judgement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    /// What it is.
    pub(crate) is: &'a Is,
    /// Permission bits.
    pub(crate) mode: u32,
}

/// How the walk is told what to look for.
pub(crate) trait Rules {
    /// What holds for all entries of one directory.
    type Scope;
    /// Asked once for each directory, relative to the tree.
    fn scope(&self, directory: &Path) -> Self::Scope;
    /// Is this entry guarded? `git` is the path of a git directory that `directory` is or lies in.
    fn wants(&self, scope: &Self::Scope, directory: &Path, git: Option<&Path>, name: &OsStr, link: bool) -> Wanted;
    /// Does the tree itself lie in a `.git`?
    fn is_in_git_tree(&self) -> bool;
    /// Directories that the sandbox cannot change, relative to the tree.
    fn skips(&self, directory: &Path) -> bool;
}

/// What to do with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Nothing.
    No,
    /// Know when it changes.
    Watched,
    /// Know what it holds.
    Kept,
}

/// A difference between two snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Relative to the tree.
    pub(crate) path: PathBuf,
    /// The git directory that it lies in.
    pub(crate) git: Option<PathBuf>,
    /// As it was.
    pub(crate) before: Option<Held>,
    /// As it is.
    pub(crate) now: Option<Held>,
}

const ROOT: u32 = u32::MAX;

impl Snapshot {
    /// Looks at a tree. With an `old` snapshot by the same rules only what changed is looked at closely.
    ///
    /// # Errors
    /// The tree itself cannot be read. What cannot be read inside it is left out: its owner's tools cannot either.
    pub(crate) fn take<R: Rules + Sync>(
        root: &Root,
        dev: u64,
        rules: &R,
        stamp: &str,
        old: Option<&Snapshot>,
    ) -> Result<Self, Errno> {
        let old = old.filter(|old| old.stamp == stamp && !old.dirs.is_empty());
        let taken = clock::now();
        let walked = walk(root, dev, rules, old)?;
        Ok(Self {
            stamp: stamp.to_owned(),
            taken,
            dirs: walked.dirs,
            aliases: Vec::new(),
            strays: walked.strays,
            renewed: walked.renewed,
        })
    }

    /// All guarded entries: path, the git directory around it, and the entry.
    pub(crate) fn held(&self) -> impl Iterator<Item = (PathBuf, Option<PathBuf>, &Held)> {
        self.dirs.iter().zip(0..).filter(|(dir, _)| !dir.held.is_empty()).flat_map(|(dir, index)| {
            let (path, git) = (self.path_of(index), dir.git.map(|git| self.path_of(git)));
            dir.held.iter().map(move |held| (path.join(held.name()), git.clone(), held))
        })
    }

    /// The git directories.
    pub(crate) fn git_dirs(&self) -> Vec<PathBuf> {
        let own = self.dirs.iter().zip(0..).filter(|(dir, index)| dir.git == Some(*index));
        own.map(|(_, index)| self.path_of(index)).collect()
    }

    /// The git directories that git works with.
    pub(crate) fn repositories(&self) -> Vec<PathBuf> {
        let own = self.dirs.iter().zip(0..).filter(|(dir, _)| dir.repository);
        own.map(|(_, index)| self.path_of(index)).collect()
    }

    /// Directories that hold guarded entries.
    pub(crate) fn holders(&self) -> Vec<PathBuf> {
        let holders = self.dirs.iter().zip(0..).filter(|(dir, _)| !dir.held.is_empty());
        holders.map(|(_, index)| self.path_of(index)).collect()
    }

    /// Symlinks that no rule names.
    pub(crate) fn links(&self) -> BTreeMap<PathBuf, &[u8]> {
        let holders = self.dirs.iter().zip(0..).filter(|(dir, _)| !dir.links.is_empty());
        let all = holders.flat_map(|(dir, index)| {
            let path = self.path_of(index);
            dir.links.iter().map(move |(name, target)| (path.join(OsStr::from_bytes(name)), target.as_slice()))
        });
        all.collect()
    }

    fn path_of(&self, index: u32) -> PathBuf {
        path_of(&self.dirs, index)
    }

    /// Holds something of which only the times are known, and these could still be those of another change.
    pub(crate) fn is_too_fresh(&self) -> bool {
        let held = self.dirs.iter().flat_map(|dir| &dir.held);
        held.filter(|held| held.is == Is::Unread).any(|held| held.ctime >= self.taken - COARSE)
    }

    /// Takes over what `truth`, a snapshot of the same tree that was taken before something hostile ran, says about every
    /// guarded entry: what differs from it is not to be believed.
    pub(crate) fn correct(&mut self, truth: &Snapshot) {
        let known: BTreeMap<PathBuf, &Held> = truth.held().map(|(path, _, held)| (path, held)).collect();
        let mut left: BTreeSet<&PathBuf> = known.keys().collect();
        for index in 0..self.dirs.len() {
            let at = self.path_of(index as u32);
            Arc::make_mut(&mut self.dirs)[index].held.retain_mut(|held| {
                let path = at.join(held.name());
                left.remove(&path);
                known.get(&path).is_some_and(|truth| {
                    held.clone_from(truth);
                    true
                })
            });
        }
        for path in left {
            let parent = path.parent();
            let holder = (0..self.dirs.len()).find(|index| Some(self.path_of(*index as u32).as_path()) == parent);
            if let Some(holder) = holder {
                Arc::make_mut(&mut self.dirs)[holder].held.push(known[path].clone());
            }
        }
    }

    /// Was there this guarded entry?
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.held().any(|(known, ..)| known == path)
    }

    /// Was there this directory?
    pub(crate) fn has_directory(&self, path: &Path) -> bool {
        (0..self.dirs.len()).any(|index| self.path_of(index as u32) == path)
    }

    /// Is this guarded entry the very inode that it was, without a change? Numbers of inodes are given again.
    pub(crate) fn is_untouched(&self, path: &Path, stat: &FileStat) -> bool {
        let same = |held: &Held| (held.ino, held.ctime, held.size) == (stat.st_ino, ctime(stat), stat.st_size);
        self.held().any(|(known, _, held)| known == path && same(held))
    }

    /// Takes an entry as it is now for what was there at the look.
    pub(crate) fn believe(&mut self, path: &Path, now: Held) {
        let parent = path.parent().unwrap_or(Path::new(""));
        let Some(index) = (0..self.dirs.len()).find(|index| self.path_of(*index as u32) == parent) else { return };
        let held = &mut Arc::make_mut(&mut self.dirs)[index].held;
        match held.iter_mut().find(|held| held.name == now.name) {
            Some(known) => *known = now,
            None => held.push(now),
        }
    }

    /// What differs: guarded entries, then symlinks that no rule names and that are new or lead somewhere else.
    pub(crate) fn changes(&self, now: &Snapshot) -> (Vec<Change>, Vec<(PathBuf, PathBuf)>) {
        if Arc::ptr_eq(&self.dirs, &now.dirs) {
            return (Vec::new(), Vec::new());
        }
        let mut before: BTreeMap<PathBuf, (Option<PathBuf>, &Held)> =
            self.held().map(|(path, git, held)| (path, (git, held))).collect();
        let mut changes = Vec::new();
        for (path, git, held) in now.held() {
            let old = before.remove(&path);
            if old.as_ref().is_none_or(|(_, old)| !old.same(held)) {
                changes.push(Change { path, git, before: old.map(|(_, old)| old.clone()), now: Some(held.clone()) });
            }
        }
        let gone = before.into_iter().map(|(path, (git, old))| Change { path, git, before: Some(old.clone()), now: None });
        changes.extend(gone);
        let known = self.links();
        let new = now.links().into_iter().filter(|(path, target)| known.get(path) != Some(target));
        (changes, new.map(|(path, target)| (path, PathBuf::from(OsStr::from_bytes(target)))).collect())
    }
}

/// A list that is shared is written like one that is not.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(shared: &Arc<Vec<T>>, serializer: S) -> Result<S::Ok, S::Error> {
        shared.as_slice().serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Vec<T>>, D::Error> {
        Vec::deserialize(deserializer).map(Arc::new)
    }
}

fn path_of(dirs: &[Dir], index: u32) -> PathBuf {
    let mut names = Vec::new();
    let mut at = index;
    while at != ROOT {
        let dir = &dirs[at as usize];
        names.push(OsStr::from_bytes(&dir.name));
        at = dir.parent;
    }
    names.iter().rev().filter(|name| !name.is_empty()).collect()
}

impl Held {
    pub(crate) fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
    }

    /// What is judged of it.
    pub(crate) fn seen(&self) -> Seen<'_> {
        Seen { is: &self.is, mode: self.mode }
    }

    /// Bytes that are kept of it.
    fn length(&self) -> u64 {
        if let Is::File(content) = &self.is { content.len() as u64 } else { 0 }
    }

    /// The same name with this in its place.
    pub(crate) fn with(&self, is: Is, mode: u32) -> Self {
        Self { is, mode, ..self.clone() }
    }

    /// Is this still what it was? Contents decide, where they are known.
    fn same(&self, now: &Held) -> bool {
        match (&self.is, &now.is) {
            // See [`Snapshot::is_too_fresh`].
            (Is::Unread, Is::Unread) => (self.ino, self.ctime, self.size) == (now.ino, now.ctime, now.size),
            (was, is) => was == is && self.mode == now.mode,
        }
    }

    fn untouched(&self, ino: u64, ctime: i64, size: i64, taken: i64) -> bool {
        (self.ino, self.ctime, self.size) == (ino, ctime, size) && ctime < taken - COARSE
    }
}

fn ctime(stat: &FileStat) -> i64 {
    stat.st_ctime * 1_000_000_000 + stat.st_ctime_nsec
}

#[cfg(test)]
mod tests;
