//! What a tree holds that matters to the guard, found by names and times alone.
//!
//! A directory whose inode and ctime are what they were has the entries that it had: adding, removing or renaming one
//! changes the ctime, and no unprivileged process can set it. So a later look only stats the known directories and
//! guarded files, lists the directories that changed, and reads the files that changed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, SFlag};
use serde::{Deserialize, Serialize};

use super::rules::Alias;
use super::shadow::TEMPORARY;
use crate::beneath::{Root, kind};

/// Clocks of file systems are coarse before Linux 6.13: what changed at most this long before a look, in nanoseconds, may
/// change again without another time.
pub(crate) const COARSE: i64 = 20_000_000;
/// Bytes of a file that are kept. A longer one is watched but cannot be brought back.
pub(crate) const LONGEST: u64 = 16 << 20;
/// Bytes of a directory that are read at a time.
const BUFFER: usize = 32 * 1024;
/// What git keeps in a git directory that nobody executes.
const GIT_DATA: &[&str] = &["objects", "refs", "logs", "lfs"];

/// The tree at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The rules that it was taken by; another set of rules needs another walk.
    pub(crate) stamp: String,
    /// Nanoseconds since 1970.
    taken: i64,
    /// Parents before children.
    dirs: Vec<Dir>,
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

/// How the walk is told what to look for.
pub(crate) trait Rules {
    /// What holds for all entries of one directory.
    type Scope;
    /// Asked once for each directory, relative to the tree.
    fn scope(&self, directory: &Path) -> Self::Scope;
    /// Is this entry guarded? `git` is the path of a git directory that `directory` is or lies in.
    fn wants(&self, scope: &Self::Scope, directory: &Path, git: Option<&Path>, name: &OsStr, link: bool) -> Wanted;
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
    pub(crate) fn take<R: Rules>(root: &Root, dev: u64, rules: &R, stamp: &str, old: Option<&Snapshot>) -> Result<Self, Errno> {
        let old = old.filter(|old| old.stamp == stamp && !old.dirs.is_empty());
        let taken = now();
        let mut walk = Walk {
            root,
            dev,
            rules,
            dirs: Vec::new(),
            names: Vec::new(),
            buffer: Vec::with_capacity(BUFFER),
            renewed: Cell::new(false),
            strays: RefCell::default(),
        };
        match old {
            None => walk.enter(ROOT, b"", Path::new(""), None)?,
            Some(old) => walk.refresh(old)?,
        }
        Ok(Self {
            stamp: stamp.to_owned(),
            taken,
            dirs: walk.dirs,
            aliases: Vec::new(),
            strays: walk.strays.take(),
            renewed: walk.renewed.get(),
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
            self.dirs[index].held.retain_mut(|held| {
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
                self.dirs[holder].held.push(known[path].clone());
            }
        }
    }

    /// Was this guarded entry this inode?
    pub(crate) fn is_inode(&self, path: &Path, ino: u64) -> bool {
        let parent = path.parent().unwrap_or(Path::new(""));
        let known = (0..self.dirs.len()).find(|index| self.path_of(*index as u32) == parent);
        known.is_some_and(|index| {
            self.dirs[index].held.iter().any(|held| Some(held.name()) == path.file_name() && held.ino == ino)
        })
    }

    /// Takes an entry as it is now for what was there at the look.
    pub(crate) fn believe(&mut self, path: &Path, now: Held) {
        let parent = path.parent().unwrap_or(Path::new(""));
        let Some(index) = (0..self.dirs.len()).find(|index| self.path_of(*index as u32) == parent) else { return };
        let held = &mut self.dirs[index].held;
        match held.iter_mut().find(|held| held.name == now.name) {
            Some(known) => *known = now,
            None => held.push(now),
        }
    }

    /// What differs: guarded entries, then symlinks that no rule names and that are new or lead somewhere else.
    pub(crate) fn changes(&self, now: &Snapshot) -> (Vec<Change>, Vec<(PathBuf, PathBuf)>) {
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

impl Held {
    pub(crate) fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.name)
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

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as i64
}

fn ctime(stat: &FileStat) -> i64 {
    stat.st_ctime * 1_000_000_000 + stat.st_ctime_nsec
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
    strays: RefCell<Vec<PathBuf>>,
}

impl<R: Rules> Walk<'_, R> {
    /// Reads a directory and everything below it.
    fn enter(&mut self, parent: u32, name: &[u8], path: &Path, git: Option<u32>) -> Result<(), Errno> {
        let mut pending = vec![(parent, name.to_vec(), path.to_owned(), git)];
        while let Some((parent, name, path, git)) = pending.pop() {
            match self.read(parent, &name, &path, git, None) {
                Ok(Some((index, git, below))) => {
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
    fn refresh(&mut self, old: &Snapshot) -> Result<(), Errno> {
        let mut children: Option<BTreeMap<u32, Vec<u32>>> = None;
        // Where a directory of the old snapshot is in the new one.
        let mut moved: Vec<Option<u32>> = vec![None; old.dirs.len()];
        let mut path = Trail::default();
        let seen = old.seen_again(self.root);
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
            let Ok(Some((new, git, below))) = self.read(parent, &dir.name, path, git, Some((dir, old.taken))) else { continue };
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

    /// Reads one directory: its place in the new snapshot, the git directory that it is in, and its own directories.
    fn read(
        &mut self,
        parent: u32,
        name: &[u8],
        path: &Path,
        git: Option<u32>,
        old: Option<(&Dir, i64)>,
    ) -> Result<Option<(u32, Option<u32>, Vec<Vec<u8>>)>, Errno> {
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
        let repository = has("HEAD") && has("objects") && has("refs");
        let is_git = name == b".git" || repository;
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
                SFlag::S_IFDIR if is_git && GIT_DATA.iter().any(|data| data.as_bytes() == name) => {}
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
        Ok(Some((index, git, below)))
    }

    fn name(&self, entry: &Name) -> &[u8] {
        &self.names[entry.start..entry.start + entry.length]
    }

    fn list(&mut self, fd: &std::os::fd::OwnedFd) -> Result<Vec<Name>, Errno> {
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
            return Some(held.clone());
        }
        self.renewed.set(true);
        Some(hold(self.root, &path, &stat, wanted))
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

#[cfg(test)]
mod tests;
