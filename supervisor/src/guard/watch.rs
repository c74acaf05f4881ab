//! What is seen while a sandbox lives: harmless configuration is brought to the host, what the host replaced is covered
//! again, and repositories that come into being are covered before host tools trip over them.
//!
//! A few directories are watched (inotify); from time to time the whole tree is looked at again. None of this is a
//! boundary: what counts is the look at the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// A program that writes its configuration does so more than once.
const CALM: Duration = Duration::from_millis(50);
/// Between two looks at all trees, and how much rarer than their own cost they are.
const OFTEN: Duration = Duration::from_secs(2);
const SHARE: u32 = 150;
/// After something new in a watched directory.
const SOON: Duration = Duration::from_millis(100);
/// Directories that are watched, of all trees: the limit of inotify(7) is the user's, and shared with the editor.
const MOST: usize = 512;

/// A watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A git directory: tree, path.
    Git(usize, PathBuf),
    /// Private copies: number of the shadow.
    Private(u32),
    /// A directory of a tree where something guarded is or comes.
    Directory,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    /// Bring harmless configuration of this shadow to the host.
    Merge(u32),
    /// The host replaced this file (tree, path): cover it again.
    Cover(usize, PathBuf),
    /// The host itself, and nobody else, wrote this file: it counts as what was there before.
    Believe(usize, PathBuf),
    /// Look at all trees.
    Sweep,
}

/// Whose is what lies in a shadowed repository's configuration?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Covered: only the host can reach it.
    Covered,
    /// Covered again, after jobs could reach it: one may have it open, mapped, or by another name.
    Again,
    /// Covered, but jobs can write to it, or have.
    Tainted,
    /// The cover fell off, and nothing has touched the file since the host replaced it.
    Bare,
    /// The cover fell off, and somebody has.
    Touched,
}

/// The watch of one run.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: Inotify,
    places: BTreeMap<WatchDescriptor, Place>,
    /// Configuration files that are covered: (tree, path).
    configs: BTreeMap<(usize, PathBuf), Hold>,
    dirty: BTreeSet<u32>,
    merge_at: Option<Instant>,
    sweep_at: Instant,
    last_sweep: Instant,
    /// Not before.
    rested: Instant,
    ready: VecDeque<Work>,
}

impl Watch {
    pub(crate) fn new() -> Result<Self, Errno> {
        let now = Instant::now();
        Ok(Self {
            inotify: Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?,
            places: BTreeMap::new(),
            configs: BTreeMap::new(),
            dirty: BTreeSet::new(),
            merge_at: None,
            // What came into being before the watch.
            sweep_at: now,
            last_sweep: now,
            rested: now,
            ready: VecDeque::new(),
        })
    }

    fn add(&mut self, path: &Path, place: Place) {
        if self.places.len() >= MOST {
            return;
        }
        let mask = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_DONT_FOLLOW;
        // A directory that cannot be watched is looked at by the sweep.
        if let Ok(watch) = self.inotify.add_watch(path, mask) {
            // The same directory again: what it was added for first asks for more.
            self.places.entry(watch).or_insert(place);
        }
    }

    /// Watches a git directory.
    pub(crate) fn add_git(&mut self, tree: usize, root: &Path, git: &Path) {
        self.add(&root.join(git), Place::Git(tree, git.to_owned()));
    }

    /// Watches private copies.
    pub(crate) fn add_private(&mut self, path: &Path, shadow: u32) {
        self.add(path, Place::Private(shadow));
    }

    /// Watches a directory where something guarded may appear.
    pub(crate) fn add_directory(&mut self, path: &Path) {
        self.add(path, Place::Directory);
    }

    /// A configuration file is covered.
    pub(crate) fn covered(&mut self, tree: usize, path: PathBuf) {
        let _ = self.drain();
        let hold = self.configs.entry((tree, path.clone())).or_insert(Hold::Covered);
        match hold {
            Hold::Bare => {
                *hold = Hold::Again;
                self.ready.push_back(Work::Believe(tree, path));
            }
            Hold::Touched => *hold = Hold::Tainted,
            Hold::Covered | Hold::Again | Hold::Tainted => {}
        }
    }

    /// The host replaced a configuration file unseen: jobs could reach it.
    pub(crate) fn replaced(&mut self, tree: usize, path: PathBuf) {
        self.configs.insert((tree, path), Hold::Touched);
    }

    /// Private copies are to be brought to the host again.
    pub(crate) fn changed(&mut self, shadow: u32) {
        self.dirty.insert(shadow);
        self.merge_at.get_or_insert(Instant::now() + CALM);
    }

    /// A configuration file could not be covered.
    pub(crate) fn uncovered(&mut self, tree: usize, path: &Path) {
        self.configs.remove(&(tree, path.to_owned()));
    }

    /// Has nobody but the host written a configuration file that is covered? `alone` says that nobody could write to it when
    /// it was looked at but by its own name.
    pub(crate) fn is_hosts(&mut self, tree: usize, path: &Path, alone: bool) -> bool {
        let _ = self.drain();
        let Some(hold) = self.configs.get_mut(&(tree, path.to_owned())) else { return false };
        if *hold == Hold::Again {
            *hold = if alone { Hold::Covered } else { Hold::Tainted };
        }
        *hold == Hold::Covered
    }

    /// When [`Watch::work`] wants to be asked, if nothing happens before.
    pub(crate) fn deadline(&self) -> Instant {
        self.merge_at.into_iter().chain([self.sweep_at]).min().unwrap_or(self.sweep_at)
    }

    /// A sweep took this long.
    pub(crate) fn swept(&mut self, took: Duration) {
        let now = Instant::now();
        self.last_sweep = now;
        self.rested = now + took * SHARE;
        self.sweep_at = now + OFTEN.max(took * SHARE);
    }

    /// What is to be done, oldest first.
    pub(crate) fn work(&mut self) -> Option<Work> {
        if !self.drain() {
            // Events were lost: everything may have changed.
            self.dirty.extend(self.places.values().filter_map(|place| match place {
                Place::Private(shadow) => Some(*shadow),
                _ => None,
            }));
            self.merge_at = Some(Instant::now());
            self.sweep_at = self.rested;
        }
        if let Some(work) = self.ready.pop_front() {
            return Some(work);
        }
        let now = Instant::now();
        if self.merge_at.is_some_and(|at| at <= now) {
            if let Some(shadow) = self.dirty.pop_first() {
                return Some(Work::Merge(shadow));
            }
            self.merge_at = None;
        }
        (self.sweep_at <= now).then_some(Work::Sweep)
    }

    /// Reads all events. `false` when some were lost.
    fn drain(&mut self) -> bool {
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EINTR) => continue,
                Err(_) => return true,
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    return false;
                }
                let Some(place) = self.places.get(&event.wd).cloned() else { continue };
                let name = event.name.unwrap_or_default();
                self.take(&place, event.mask, &name);
            }
        }
    }

    fn take(&mut self, place: &Place, mask: AddWatchFlags, name: &OsStr) {
        let appeared = mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO);
        match place {
            Place::Private(shadow) => {
                if name.as_encoded_bytes().starts_with(b"config") && !name.as_encoded_bytes().ends_with(b".lock") {
                    self.changed(*shadow);
                }
            }
            Place::Git(tree, git) => {
                let key = (*tree, git.join(name));
                if let Some(hold) = self.configs.get_mut(&key) {
                    match *hold {
                        Hold::Covered if appeared => {
                            *hold = Hold::Bare;
                            self.ready.push_back(Work::Cover(key.0, key.1));
                        }
                        // The host read what a job may have written before it wrote this.
                        Hold::Again | Hold::Tainted if appeared => {
                            *hold = Hold::Touched;
                            self.ready.push_back(Work::Cover(key.0, key.1));
                        }
                        Hold::Covered | Hold::Again | Hold::Tainted if mask.contains(AddWatchFlags::IN_DELETE) => {
                            *hold = Hold::Touched;
                        }
                        Hold::Covered if mask.contains(AddWatchFlags::IN_MODIFY) => {
                            self.ready.push_back(Work::Believe(key.0, key.1));
                        }
                        // What is stored through a mapping is only seen when it is closed, inotify(7).
                        Hold::Again => *hold = Hold::Tainted,
                        Hold::Touched if appeared => self.ready.push_back(Work::Cover(key.0, key.1)),
                        Hold::Bare => *hold = Hold::Touched,
                        Hold::Covered | Hold::Tainted | Hold::Touched => {}
                    }
                } else if appeared && (name == "commondir" || name == "hooks") || name == "config.worktree" {
                    self.sweep_at = self.sweep_at.min(Instant::now());
                }
            }
            Place::Directory if appeared => {
                self.sweep_at = self.sweep_at.min(self.rested.max(Instant::now() + SOON));
            }
            Place::Directory => {}
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
