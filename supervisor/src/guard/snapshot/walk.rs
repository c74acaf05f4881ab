//! The walk over a tree, or over what changed in it since another walk.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, SFlag};

use super::super::rules::is_in_dot_git;
use super::{Dir, Held, Is, LONGEST, ROOT, Rules, Snapshot, Wanted, ctime, path_of};
use crate::beneath::{Root, TEMPORARY, kind};
use crate::clock::COARSE;

/// Bytes of all files together that are kept; the rest is only watched. A job must not fill our memory, nor that of the next
/// command, which would settle the same tree.
pub(crate) const MOST_KEPT: u64 = 128 << 20;
/// Bytes of a directory that are read at a time.
const BUFFER: usize = 32 * 1024;
/// What git keeps in a git directory that nobody executes. Only below a `.git`: elsewhere a job could give a directory the
/// looks of a git directory to keep people's files in these.
const GIT_DATA: &[&str] = &["objects", "refs", "logs", "lfs"];

/// What a walk found.
pub(super) struct Walked {
    pub(super) dirs: Arc<Vec<Dir>>,
    /// Files that a killed supervisor left before they were whole.
    pub(super) strays: Vec<PathBuf>,
    /// Was anything looked at closely?
    pub(super) renewed: bool,
}

/// Walks over the tree, with an `old` snapshot over what changed since.
pub(super) fn walk<R: Rules>(root: &Root, dev: u64, rules: &R, old: Option<&Snapshot>) -> Result<Walked, Errno> {
    let seen = old.map(|old| old.seen_again(root)).unwrap_or_default();
    if let Some(old) = old.filter(|old| old.is_unchanged(root, dev, &seen)) {
        return Ok(Walked { dirs: Arc::clone(&old.dirs), strays: Vec::new(), renewed: false });
    }
    let mut walk = Walk {
        root,
        dev,
        rules,
        dirs: Vec::with_capacity(old.map_or(0, |old| old.dirs.len())),
        names: Vec::new(),
        buffer: Vec::with_capacity(BUFFER),
        renewed: Cell::new(false),
        kept: Cell::new(0),
        strays: RefCell::default(),
    };
    match old {
        None => walk.enter(ROOT, b"", Path::new(""), None)?,
        Some(old) => walk.refresh(old, &seen)?,
    }
    Ok(Walked { dirs: Arc::new(walk.dirs), strays: walk.strays.take(), renewed: walk.renewed.get() })
}

/// A directory that was read.
struct Read {
    /// Its place in the new snapshot.
    index: u32,
    /// The git directory that it is or lies in.
    git: Option<u32>,
    /// Names of its own directories.
    below: Vec<Vec<u8>>,
}

/// One entry of a directory.
struct Name {
    start: usize,
    length: usize,
    kind: SFlag,
}

struct Walk<'a, R> {
    root: &'a Root,
    dev: u64,
    rules: &'a R,
    dirs: Vec<Dir>,
    /// The bytes of the names of the directory that is being read.
    names: Vec<u8>,
    buffer: Vec<u8>,
    renewed: Cell<bool>,
    /// Bytes of files.
    kept: Cell<u64>,
    strays: RefCell<Vec<PathBuf>>,
}

impl<R: Rules> Walk<'_, R> {
    /// Reads a directory and everything below it.
    fn enter(&mut self, parent: u32, name: &[u8], path: &Path, git: Option<u32>) -> Result<(), Errno> {
        let mut pending = vec![(parent, name.to_vec(), path.to_owned(), git)];
        while let Some((parent, name, path, git)) = pending.pop() {
            match self.read(parent, &name, &path, git, None) {
                Ok(Some(Read { index, git, below })) => {
                    pending.extend(below.into_iter().map(|name| {
                        let path = path.join(OsStr::from_bytes(&name));
                        (index, name, path, git)
                    }));
                }
                Ok(None) => {}
                Err(errno) if parent == ROOT => return Err(errno),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Looks at every directory of `old` again, and closely at those that changed.
    fn refresh(&mut self, old: &Snapshot, seen: &[Result<Seen, Errno>]) -> Result<(), Errno> {
        let mut children: Option<BTreeMap<u32, Vec<u32>>> = None;
        // Where a directory of the old snapshot is in the new one.
        let mut moved: Vec<Option<u32>> = vec![None; old.dirs.len()];
        let mut path = Trail::default();
        for (index, dir) in old.dirs.iter().enumerate() {
            let parent = match dir.parent {
                ROOT => ROOT,
                parent => match moved[parent as usize] {
                    Some(parent) => parent,
                    None => continue,
                },
            };
            let path = path.to(&old.dirs, index);
            let stat = match seen[index] {
                Err(Errno::ENAMETOOLONG | Errno::EACCES) => self.root.stat(path).map(|stat| Seen::of(&stat)),
                seen => seen,
            };
            let stat = match stat {
                Ok(stat) if stat.directory && stat.dev == self.dev => stat,
                Ok(_) | Err(_) if parent != ROOT => {
                    self.renewed.set(true);
                    continue;
                }
                Ok(_) => return Err(Errno::ENOTDIR),
                Err(errno) => return Err(errno),
            };
            let git = dir.git.and_then(|git| if git as usize == index { None } else { moved[git as usize] });
            let settled = dir.ctime < old.taken - COARSE;
            if (stat.ino, stat.ctime) == (dir.ino, dir.ctime) && settled {
                let new = self.dirs.len() as u32;
                moved[index] = Some(new);
                let git = if dir.git == Some(index as u32) { Some(new) } else { git };
                let mut held = Vec::with_capacity(dir.held.len());
                for known in &dir.held {
                    held.extend(self.look(path, known, old.taken));
                }
                let (name, links) = (dir.name.clone(), dir.links.clone());
                let &Dir { ino, ctime, repository, .. } = dir;
                self.dirs.push(Dir { parent, name, ino, ctime, git, repository, held, links });
                continue;
            }
            let known = Some((dir, old.taken));
            let Ok(Some(Read { index: new, git, below })) = self.read(parent, &dir.name, path, git, known) else { continue };
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
            let path = path.to_owned();
            for name in below.into_iter().filter(|name| !known.contains(name.as_slice())) {
                self.enter(new, &name, &path.join(OsStr::from_bytes(&name)), git)?;
            }
        }
        Ok(())
    }

    /// Reads one directory; `None` for one that is passed by.
    fn read(
        &mut self,
        parent: u32,
        name: &[u8],
        path: &Path,
        git: Option<u32>,
        old: Option<(&Dir, i64)>,
    ) -> Result<Option<Read>, Errno> {
        self.renewed.set(true);
        if self.rules.skips(path) {
            return Ok(None);
        }
        let fd = self.root.at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK, Mode::empty())?;
        let stat = nix::sys::stat::fstat(&fd)?;
        if stat.st_dev != self.dev {
            return Ok(None);
        }
        let entries = self.list(&fd)?;
        let index = self.dirs.len() as u32;
        let has = |wanted: &str| entries.iter().any(|entry| self.name(entry) == wanted.as_bytes());
        // Git takes objects and refs from where `commondir` leads, is_git_directory in its setup.c. Below a `.git` that
        // is a linked worktree's, which its own rules are about.
        let apart = !is_in_dot_git(path) && has("HEAD") && has("commondir");
        let repository = has("HEAD") && has("objects") && has("refs") || apart;
        let is_git = name == b".git" || repository;
        let is_data = is_git && (is_in_dot_git(path) || self.rules.is_in_git_tree());
        let git = if is_git { Some(index) } else { git };
        self.dirs.push(Dir {
            parent,
            name: name.to_vec(),
            ino: stat.st_ino,
            ctime: ctime(&stat),
            git,
            repository,
            held: Vec::new(),
            links: Vec::new(),
        });
        let git_path = git.map(|git| path_of(&self.dirs, git));
        let scope = self.rules.scope(path);
        let (mut held, mut links, mut below) = (Vec::new(), Vec::new(), Vec::new());
        for entry in &entries {
            let name = self.name(entry);
            match entry.kind {
                SFlag::S_IFDIR if is_data && GIT_DATA.iter().any(|data| data.as_bytes() == name) => {}
                SFlag::S_IFDIR => below.push(name.to_vec()),
                kind => {
                    if name.starts_with(TEMPORARY.as_bytes()) {
                        self.strays.borrow_mut().push(path.join(OsStr::from_bytes(name)));
                    }
                    let name = OsStr::from_bytes(name);
                    let is_link = kind == SFlag::S_IFLNK;
                    let wanted = self.rules.wants(&scope, path, git_path.as_deref(), name, is_link);
                    if wanted != Wanted::No {
                        let known = old
                            .and_then(|(dir, taken)| dir.held.iter().find(|held| held.name() == name).map(|held| (held, taken)));
                        held.extend(self.look_as(path, name, known, wanted));
                    } else if is_link
                        && git.is_none()
                        && let Ok(target) = nix::fcntl::readlinkat(&fd, name)
                    {
                        links.push((name.as_bytes().to_vec(), target.into_encoded_bytes()));
                    }
                }
            }
        }
        let dir = &mut self.dirs[index as usize];
        (dir.held, dir.links) = (held, links);
        Ok(Some(Read { index, git, below }))
    }

    fn name(&self, entry: &Name) -> &[u8] {
        &self.names[entry.start..entry.start + entry.length]
    }

    fn list(&mut self, fd: &OwnedFd) -> Result<Vec<Name>, Errno> {
        use rustix::fs::{FileType, RawDir};
        self.names.clear();
        let mut entries = Vec::new();
        let mut listing = RawDir::new(fd, self.buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = entry.map_err(|e| Errno::from_raw(e.raw_os_error()))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => SFlag::S_IFREG,
                FileType::Directory => SFlag::S_IFDIR,
                FileType::Symlink => SFlag::S_IFLNK,
                // Some file systems do not tell, getdents(2).
                FileType::Unknown => {
                    let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
                    nix::sys::stat::fstatat(fd, OsStr::from_bytes(name), flags).map_or(SFlag::S_IFIFO, |stat| kind(&stat))
                }
                _ => SFlag::S_IFIFO,
            };
            entries.push(Name { start: self.names.len(), length: name.len(), kind });
            self.names.extend_from_slice(name);
        }
        Ok(entries)
    }

    fn look(&self, directory: &Path, known: &Held, taken: i64) -> Option<Held> {
        let wanted = if known.is == Is::Unread { Wanted::Watched } else { Wanted::Kept };
        self.look_as(directory, known.name(), Some((known, taken)), wanted)
    }

    fn look_as(&self, directory: &Path, name: &OsStr, known: Option<(&Held, i64)>, wanted: Wanted) -> Option<Held> {
        let path = directory.join(name);
        let Ok(stat) = self.root.stat(&path) else {
            self.renewed.set(true);
            return None;
        };
        if let Some((held, taken)) = known
            && held.untouched(stat.st_ino, ctime(&stat), stat.st_size, taken)
        {
            self.kept.set(self.kept.get() + held.length());
            return Some(held.clone());
        }
        self.renewed.set(true);
        let room = kind(&stat) != SFlag::S_IFREG || self.kept.get() + stat.st_size as u64 <= MOST_KEPT;
        let held = hold(self.root, &path, &stat, if room { wanted } else { Wanted::Watched });
        self.kept.set(self.kept.get() + held.length());
        Some(held)
    }
}

/// Describes a guarded entry as it is now.
pub(crate) fn hold(root: &Root, path: &Path, stat: &FileStat, wanted: Wanted) -> Held {
    let is = match kind(stat) {
        SFlag::S_IFREG if wanted == Wanted::Watched || stat.st_size as u64 > LONGEST => Is::Unread,
        SFlag::S_IFREG => root.read(path, LONGEST).map_or(Is::Unread, |(content, _)| Is::File(content)),
        SFlag::S_IFLNK => {
            let target = root.parent(path).and_then(|(parent, name)| nix::fcntl::readlinkat(&parent, name));
            target.map_or(Is::Special, |target| Is::Link(target.into_encoded_bytes()))
        }
        _ => Is::Special,
    };
    Held {
        name: path.file_name().unwrap_or_default().as_bytes().to_vec(),
        ino: stat.st_ino,
        ctime: ctime(stat),
        size: stat.st_size,
        mode: stat.st_mode & 0o7777,
        is,
    }
}

/// What tells whether a directory is what it was.
#[derive(Debug, Clone, Copy)]
struct Seen {
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
    fn is_unchanged(&self, root: &Root, dev: u64, seen: &[Result<Seen, Errno>]) -> bool {
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
    fn seen_again(&self, root: &Root) -> Vec<Result<Seen, Errno>> {
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
