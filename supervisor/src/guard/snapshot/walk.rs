//! The walk over a tree, or over what changed in it since another walk.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, SFlag};

use super::super::rules::is_in_dot_git;
use super::{Dir, Held, Is, LONGEST, ROOT, Rules, Snapshot, Wanted, ctime};
use crate::beneath::{Root, TEMPORARY, kind};

/// Bytes of all files together that are kept; the rest is only watched. A job must not fill our memory, nor that of the next
/// command, which would settle the same tree.
pub(crate) const MOST_KEPT: u64 = 128 << 20;
/// Bytes of a directory that are read at a time.
const BUFFER: usize = 32 * 1024;
/// Directories that one thread reads before another helps it, which costs some 0.1 ms.
const FEW: usize = 200;
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
pub(super) fn walk<R: Rules + Sync>(root: &Root, dev: u64, rules: &R, old: Option<&Snapshot>) -> Result<Walked, Errno> {
    let seen = old.map(|old| old.seen_again(root)).unwrap_or_default();
    if let Some(old) = old.filter(|old| old.is_unchanged(root, dev, &seen)) {
        return Ok(Walked { dirs: Arc::clone(&old.dirs), strays: Vec::new(), renewed: false });
    }
    let walk = Walk {
        root,
        dev,
        rules,
        renewed: AtomicBool::new(false),
        kept: AtomicU64::new(0),
        strays: Mutex::default(),
        failed: Mutex::default(),
    };
    let mut dirs = Vec::with_capacity(old.map_or(0, |old| old.dirs.len()));
    match old {
        None => {
            let top = Pending { parent: ROOT, name: Vec::new(), path: PathBuf::new(), git: None };
            if let Some((_, top, below)) = walk.read(&mut Scratch::new(), &top, || 0, None)? {
                dirs.push(top);
                walk.enter(&mut dirs, below)?;
            }
        }
        Some(old) => walk.refresh(old, &seen, &mut dirs)?,
    }
    let strays = walk.strays.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Walked { dirs: Arc::new(dirs), strays, renewed: walk.renewed.into_inner() })
}

/// A directory that is to be read.
pub(super) struct Pending {
    /// Where what holds it is in the snapshot.
    pub(super) parent: u32,
    pub(super) name: Vec<u8>,
    pub(super) path: PathBuf,
    pub(super) git: Option<Git>,
}

/// The git directory that something is or lies in.
#[derive(Clone)]
pub(super) struct Git {
    /// Where it is in the snapshot.
    pub(super) index: u32,
    pub(super) path: Arc<Path>,
}

/// Directories that wait for a thread, and how many a thread has.
struct Queue {
    state: Mutex<(Vec<Pending>, usize)>,
    more: Condvar,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, (Vec<Pending>, usize)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one, when there is one again; `None` when all are done.
    fn next(&self) -> Option<Pending> {
        let mut state = self.state();
        loop {
            if let Some(next) = state.0.pop() {
                state.1 += 1;
                return Some(next);
            }
            if state.1 == 0 {
                return None;
            }
            state = self.more.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One is done, and these were found in it.
    fn done(&self, found: Vec<Pending>) {
        let mut state = self.state();
        state.0.extend(found);
        state.1 -= 1;
        self.more.notify_all();
    }
}

/// One entry of a directory.
struct Name {
    start: usize,
    length: usize,
    kind: SFlag,
}

/// What a thread reads directories with.
pub(super) struct Scratch {
    /// The bytes of the names of the directory that is being read.
    names: Vec<u8>,
    buffer: Vec<u8>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { names: Vec::new(), buffer: Vec::with_capacity(BUFFER) }
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
}

pub(super) struct Walk<'a, R> {
    pub(super) root: &'a Root,
    pub(super) dev: u64,
    rules: &'a R,
    pub(super) renewed: AtomicBool,
    /// Bytes of files.
    kept: AtomicU64,
    strays: Mutex<Vec<PathBuf>>,
    /// Why not all was read that is there.
    failed: Mutex<Option<Errno>>,
}

/// Does an error say something about this process, and nothing about the directory?
pub(super) fn is_ours(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)
}

/// A directory's place in the snapshot, itself, and the directories in it.
type Found = (u32, Dir, Vec<Pending>);

impl<R: Rules + Sync> Walk<'_, R> {
    /// Reads directories and everything below them.
    pub(super) fn enter(&self, dirs: &mut Vec<Dir>, pending: Vec<Pending>) -> Result<(), Errno> {
        let number = AtomicU32::new(dirs.len() as u32);
        let queue = Queue { state: Mutex::new((pending, 0)), more: Condvar::new() };
        let mut read = self.work(&queue, &number, FEW);
        if !queue.state().0.is_empty() {
            std::thread::scope(|scope| {
                let all = || self.work(&queue, &number, usize::MAX);
                // Where no thread is to be had one does it all.
                let second = std::thread::Builder::new().spawn_scoped(scope, all);
                read.extend(all());
                read.extend(second.ok().and_then(|second| second.join().ok()).unwrap_or_default());
            });
        }
        read.sort_unstable_by_key(|(index, _)| *index);
        dirs.extend(read.into_iter().map(|(_, dir)| dir));
        match self.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }

    /// Reads what waits, up to so many.
    fn work(&self, queue: &Queue, number: &AtomicU32, most: usize) -> Vec<(u32, Dir)> {
        let (mut scratch, mut read) = (Scratch::new(), Vec::new());
        while read.len() < most
            && let Some(next) = queue.next()
        {
            let found = self.read(&mut scratch, &next, || number.fetch_add(1, Ordering::Relaxed), None);
            let (dir, below) = match found {
                Ok(Some((index, dir, below))) => (Some((index, dir)), below),
                Err(errno) if is_ours(errno) => {
                    *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(errno);
                    (None, Vec::new())
                }
                // What cannot be read here the owner's tools cannot read either.
                Ok(None) | Err(_) => (None, Vec::new()),
            };
            read.extend(dir);
            queue.done(below);
        }
        read
    }

    /// Reads one directory, which `index` gives its place in the snapshot, before those in it get theirs; `None` for one
    /// that is passed by.
    pub(super) fn read(
        &self,
        scratch: &mut Scratch,
        pending: &Pending,
        index: impl FnOnce() -> u32,
        old: Option<(&Dir, i64)>,
    ) -> Result<Option<Found>, Errno> {
        let Pending { parent, name, path, git } = pending;
        self.renewed.store(true, Ordering::Relaxed);
        if self.rules.skips(path) {
            return Ok(None);
        }
        let fd = self.root.at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK, Mode::empty())?;
        let stat = nix::sys::stat::fstat(&fd)?;
        if stat.st_dev != self.dev {
            return Ok(None);
        }
        let entries = scratch.list(&fd)?;
        let has = |wanted: &str| entries.iter().any(|entry| scratch.name(entry) == wanted.as_bytes());
        // Git takes objects and refs from where `commondir` leads, is_git_directory in its setup.c. Below a `.git` that
        // is a linked worktree's, which its own rules are about.
        let apart = !is_in_dot_git(path) && has("HEAD") && has("commondir");
        // All in `hooks` is guarded as that: a repository there would make it somebody else's.
        let in_hooks =
            git.as_ref().is_some_and(|git| path.strip_prefix(&git.path).is_ok_and(|inside| inside.starts_with("hooks")));
        let repository = !in_hooks && (has("HEAD") && has("objects") && has("refs") || apart);
        let is_git = name == b".git" || repository;
        let is_data = is_git && (is_in_dot_git(path) || self.rules.is_in_git_tree());
        let index = index();
        let git = if is_git { Some(Git { index, path: path.as_path().into() }) } else { git.clone() };
        let git_path = git.as_ref().map(|git| &*git.path);
        let scope = self.rules.scope(path);
        let (mut held, mut links, mut below) = (Vec::new(), Vec::new(), Vec::new());
        for entry in &entries {
            let name = scratch.name(entry);
            match entry.kind {
                SFlag::S_IFDIR if is_data && GIT_DATA.iter().any(|data| data.as_bytes() == name) => {}
                SFlag::S_IFDIR => {
                    let path = path.join(OsStr::from_bytes(name));
                    below.push(Pending { parent: index, name: name.to_vec(), path, git: git.clone() });
                }
                kind => {
                    if name.starts_with(TEMPORARY.as_bytes()) {
                        let stray = path.join(OsStr::from_bytes(name));
                        self.strays.lock().unwrap_or_else(PoisonError::into_inner).push(stray);
                    }
                    let name = OsStr::from_bytes(name);
                    let is_link = kind == SFlag::S_IFLNK;
                    let wanted = self.rules.wants(&scope, path, git_path, name, is_link);
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
        let (name, git) = (name.clone(), git.map(|git| git.index));
        let dir = Dir { parent: *parent, name, ino: stat.st_ino, ctime: ctime(&stat), git, repository, held, links };
        Ok(Some((index, dir, below)))
    }

    pub(super) fn look(&self, directory: &Path, known: &Held, taken: i64) -> Option<Held> {
        let wanted = if known.is == Is::Unread { Wanted::Watched } else { Wanted::Kept };
        self.look_as(directory, known.name(), Some((known, taken)), wanted)
    }

    fn look_as(&self, directory: &Path, name: &OsStr, known: Option<(&Held, i64)>, wanted: Wanted) -> Option<Held> {
        let path = directory.join(name);
        let Ok(stat) = self.root.stat(&path) else {
            self.renewed.store(true, Ordering::Relaxed);
            return None;
        };
        if let Some((held, taken)) = known
            && held.untouched(stat.st_ino, ctime(&stat), stat.st_size, taken)
        {
            self.kept.fetch_add(held.length(), Ordering::Relaxed);
            return Some(held.clone());
        }
        self.renewed.store(true, Ordering::Relaxed);
        let room = kind(&stat) != SFlag::S_IFREG || self.kept.load(Ordering::Relaxed) + stat.st_size as u64 <= MOST_KEPT;
        let held = hold(self.root, &path, &stat, if room { wanted } else { Wanted::Watched });
        self.kept.fetch_add(held.length(), Ordering::Relaxed);
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
