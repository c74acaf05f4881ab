//! Another look at a tree of which there is a snapshot: what its directories are now, and a walk over those that changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};

use super::walk::{Git, Pending, Scratch, Walk, is_ours};
use super::{Dir, Held, ROOT, Rules, Snapshot, ctime, path_of};
use crate::beneath::{Root, kind};
use crate::clock::COARSE;

impl<R: Rules + Sync> Walk<'_, R> {
    /// Looks at every directory of `old` again, and closely at those that changed.
    pub(super) fn refresh(&self, old: &Snapshot, seen: &[Result<Seen, Errno>], dirs: &mut Vec<Dir>) -> Result<(), Errno> {
        let mut children: Option<BTreeMap<u32, Vec<u32>>> = None;
        // Where a directory of the old snapshot is in the new one.
        let mut moved: Vec<Option<u32>> = vec![None; old.dirs.len()];
        let mut trail = Trail::default();
        let mut scratch = Scratch::new();
        for (index, dir) in old.dirs.iter().enumerate() {
            let parent = match dir.parent {
                ROOT => ROOT,
                parent => match moved[parent as usize] {
                    Some(parent) => parent,
                    None => continue,
                },
            };
            let path = trail.to(&old.dirs, index);
            let stat = match seen[index] {
                Err(Errno::ENAMETOOLONG | Errno::EACCES) => self.root.stat(path).map(|stat| Seen::of(&stat)),
                seen => seen,
            };
            let stat = match stat {
                Ok(stat) if stat.directory && stat.dev == self.dev => stat,
                Ok(_) | Err(_) if parent != ROOT => {
                    self.renewed.store(true, Ordering::Relaxed);
                    continue;
                }
                Ok(_) => return Err(Errno::ENOTDIR),
                Err(errno) => return Err(errno),
            };
            let around = if parent == ROOT { None } else { dirs[parent as usize].git };
            let is_git = dir.git == Some(index as u32);
            // A directory above may have become a git directory, or have ceased to be one.
            let was_around = match (is_git, dir.parent) {
                (false, _) => dir.git,
                (true, ROOT) => None,
                (true, parent) => old.dirs[parent as usize].git,
            };
            let same_git = was_around.and_then(|git| moved[git as usize]) == around;
            let settled = dir.ctime < old.taken - COARSE;
            if (stat.ino, stat.ctime) == (dir.ino, dir.ctime) && settled && same_git {
                let new = dirs.len() as u32;
                moved[index] = Some(new);
                let git = if is_git { Some(new) } else { around };
                let mut held = Vec::with_capacity(dir.held.len());
                for known in &dir.held {
                    held.extend(self.look(path, known, old.taken));
                }
                let (name, links) = (dir.name.clone(), dir.links.clone());
                let &Dir { ino, ctime, repository, .. } = dir;
                dirs.push(Dir { parent, name, ino, ctime, git, repository, held, links });
                continue;
            }
            let git = around.map(|git| Git { index: git, path: path_of(dirs, git).into() });
            let pending = Pending { parent, name: dir.name.clone(), path: path.to_owned(), git };
            let found = self.read(&mut scratch, &pending, || dirs.len() as u32, Some((dir, old.taken)));
            let (new, dir, below) = match found {
                Ok(Some(found)) => found,
                Err(errno) if is_ours(errno) => return Err(errno),
                Ok(None) | Err(_) => continue,
            };
            dirs.push(dir);
            moved[index] = Some(new);
            let children = children.get_or_insert_with(|| {
                let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
                for (index, dir) in old.dirs.iter().enumerate() {
                    children.entry(dir.parent).or_default().push(index as u32);
                }
                children
            });
            let known: BTreeSet<&[u8]> = children
                .get(&(index as u32))
                .into_iter()
                .flatten()
                .map(|&child| old.dirs[child as usize].name.as_slice())
                .collect();
            self.enter(dirs, below.into_iter().filter(|pending| !known.contains(pending.name.as_slice())).collect())?;
        }
        Ok(())
    }
}

/// What tells whether a directory is what it was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    directory: bool,
    dev: u64,
    ino: u64,
    ctime: i64,
}

impl Seen {
    fn of(stat: &FileStat) -> Self {
        Self { directory: kind(stat) == SFlag::S_IFDIR, dev: stat.st_dev, ino: stat.st_ino, ctime: ctime(stat) }
    }
}

/// Directories from which on a second thread is worth its start.
const MANY: usize = 4000;

impl Snapshot {
    /// Is every directory, and every guarded entry, what it was? `seen` is what the directories are now.
    pub(super) fn is_unchanged(&self, root: &Root, dev: u64, seen: &[Result<Seen, Errno>]) -> bool {
        let mut trail = Trail::default();
        self.dirs.iter().zip(seen).enumerate().all(|(index, (dir, seen))| {
            let settled = dir.ctime < self.taken - COARSE;
            let same = |seen: &Seen| seen.directory && (seen.dev, seen.ino, seen.ctime) == (dev, dir.ino, dir.ctime);
            let path = trail.to(&self.dirs, index);
            let untouched = |held: &Held| {
                let stat = root.stat(&path.join(held.name()));
                stat.is_ok_and(|stat| held.untouched(stat.st_ino, ctime(&stat), stat.st_size, self.taken))
            };
            settled && seen.as_ref().is_ok_and(same) && dir.held.iter().all(untouched)
        })
    }

    /// Stats every directory again: one call each. A parent that is no directory any more is told by its own.
    pub(super) fn seen_again(&self, root: &Root) -> Vec<Result<Seen, Errno>> {
        let root = root.as_fd();
        let look = |from: usize, to: usize| {
            let mut trail = Trail::default();
            let mut seen = Vec::with_capacity(to - from);
            for index in from..to {
                let path = trail.to(&self.dirs, index);
                let at = if path.as_os_str().is_empty() { Path::new(".") } else { path };
                let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
                seen.push(nix::sys::stat::fstatat(root, at, flags).map(|stat| Seen::of(&stat)));
            }
            seen
        };
        let (all, half) = (self.dirs.len(), self.dirs.len() / 2);
        if all < MANY {
            return look(0, all);
        }
        std::thread::scope(|scope| {
            let second = std::thread::Builder::new().spawn_scoped(scope, || look(half, all));
            let mut seen = look(0, half);
            match second.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(rest)) => seen.extend(rest),
                // No thread is to be had.
                _ => seen.extend(look(half, all)),
            }
            seen
        })
    }
}

/// The path of one directory after the other, without building each from its parents.
#[derive(Default)]
struct Trail {
    path: PathBuf,
    at: Vec<u32>,
}

impl Trail {
    fn to(&mut self, dirs: &[Dir], index: usize) -> &Path {
        let dir = &dirs[index];
        while self.at.last().is_some_and(|&last| last != dir.parent) {
            self.at.pop();
            self.path.pop();
        }
        if self.at.is_empty() && dir.parent != ROOT {
            // Not a child of the directory before it: new directories are appended where they were found.
            let mut parents = Vec::new();
            let mut at = dir.parent;
            while at != ROOT {
                parents.push(at);
                at = dirs[at as usize].parent;
            }
            for &at in parents.iter().rev() {
                self.path.push(OsStr::from_bytes(&dirs[at as usize].name));
                self.at.push(at);
            }
        }
        if !dir.name.is_empty() {
            self.path.push(OsStr::from_bytes(&dir.name));
        }
        self.at.push(index as u32);
        &self.path
    }
}
