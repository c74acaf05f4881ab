//! Changing a tree of the host so that being killed at any moment, and a full disk, leave nothing half done.
//!
//! First all new contents are put into a staging directory of the same file system. Then the journal says that the steps
//! begin. Each step can be done again; whoever finds a journal finishes it, or, before the steps began, takes the staging
//! away. A path that is no longer what the steps were made for is left alone and told.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hermes_profiles::ospath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, geteuid, unlinkat};
use serde::{Deserialize, Serialize};

use super::fault;
use super::layer::remove;
use super::node::{Kind, Stamp};
use super::stage;
use crate::beneath::{Root, TEMPORARY, by_descriptor};
use crate::clock::{self, Time};
use crate::error::Error;
use crate::output;
use crate::state::{Tree, store};

/// Where new content comes from.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    /// A file or symlink at the same path of another tree, which may share its inode with the host from now on.
    Layer(&'a Root),
    /// What a store that nobody else may write has from an offset on.
    Copy(&'a File, u64),
    /// A file of these bytes.
    Text(Vec<u8>),
    /// A symlink.
    Link(PathBuf),
}

/// A path that is to become something.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) part: usize,
    pub(crate) path: PathBuf,
    pub(crate) before: Option<Stamp>,
    pub(crate) after: Option<Stamp>,
    /// For files and symlinks.
    pub(crate) content: Option<Content<'a>>,
    /// Later ones build on earlier ones.
    pub(crate) rank: u8,
}

/// One thing to do. All are about a path of a part.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Step {
    /// Let the owner write in a directory.
    OpenUp,
    /// Take away a file or an empty directory; to make room for something of another kind?
    Remove(Stamp, bool),
    MakeDirectory,
    /// Move what is staged under this number to the path.
    Put(u32, Option<Stamp>),
    /// Give a directory its mode, and its time if that is known.
    SetMode(u32, Option<Time>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    part: usize,
    #[serde(with = "ospath")]
    path: PathBuf,
    step: Step,
}

/// Where content waits for its turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Place {
    /// In the state directory, which is on the same mount.
    State,
    /// In the tree itself, under this name.
    Tree(#[serde(with = "ospath")] PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// Nothing of the trees has changed.
    Staging,
    /// Some steps may be done.
    Steps,
    /// All is done but the tidying.
    Done,
}

/// What is to follow when the steps are done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Aftermath {
    /// The layer that the changes come from.
    pub(crate) layer: Option<u64>,
    /// Deletions of the layer that stay open.
    pub(crate) open_deletions: Vec<Spot>,
    /// Paths that are settled, to be taken out of the layer unless their step failed.
    pub(crate) settled: Vec<Spot>,
}

/// A path of a part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Spot {
    pub(crate) part: usize,
    #[serde(with = "ospath")]
    pub(crate) path: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Journal {
    phase: Phase,
    stages: Vec<Place>,
    steps: Vec<Entry>,
    pub(crate) parts: Vec<super::layer::Part>,
    pub(crate) aftermath: Aftermath,
}

/// Paths whose steps could not be done, and why.
pub(crate) type Failed = BTreeMap<Spot, String>;

fn journal(tree: &Tree) -> PathBuf {
    tree.state.join("journal")
}

/// Is there one?
pub(crate) fn pending(tree: &Tree) -> bool {
    journal(tree).exists()
}

/// The journal, if there is one whose steps began; what had only been staged is taken away.
pub(crate) fn recover(tree: &Tree) -> Result<Option<Journal>, Error> {
    let read = || -> io::Result<Option<Journal>> {
        match store::read::<Journal>(&journal(tree)) {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    };
    let found = read().map_err(|e| {
        Error::setup(format!("cannot read the journal {}: {e}", output::path(&journal(tree))))
            .hint("an earlier `changes` command did not finish; look at the workspace, then remove that file")
    })?;
    match found {
        Some(journal) if journal.phase != Phase::Steps => {
            journal.clear(tree)?;
            Ok(None)
        }
        other => Ok(other),
    }
}

/// Stages everything and writes the journal. On any failure nothing of the trees has changed.
pub(crate) fn begin(
    tree: &Tree,
    parts: &[super::layer::Part],
    roots: &[&Root],
    wishes: Vec<Wish<'_>>,
    aftermath: Aftermath,
) -> Result<Journal, Error> {
    let mut journal =
        Journal { phase: Phase::Staging, stages: Vec::new(), steps: steps(&wishes, roots), parts: parts.to_vec(), aftermath };
    for root in roots {
        journal.stages.push(place(tree, root));
    }
    let outcome = (|| -> io::Result<()> {
        // Before the first directory is made, so that it is known to whoever comes after a crash.
        store::write_through(&self::journal(tree), &journal)?;
        let stages = journal.open_stages(tree, roots, true)?;
        for (number, wish) in wishes.iter().enumerate() {
            let Some(content) = &wish.content else { continue };
            fault::point();
            stage::put(&stages[wish.part], number as u32, wish, content, roots[wish.part])
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", output::path(&wish.path))))?;
        }
        for stage in &stages {
            rustix::fs::syncfs(stage)?;
        }
        fault::point();
        journal.phase = Phase::Steps;
        store::write_through(&self::journal(tree), &journal)
    })();
    match outcome {
        Ok(()) => Ok(journal),
        Err(e) => {
            journal.clear(tree)?;
            let refused = Error::setup(format!("nothing was changed: cannot stage {e}"));
            Err(match e.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => refused.hint("free some space and do it again"),
                _ => refused,
            })
        }
    }
}

fn place(tree: &Tree, root: &Root) -> Place {
    let mount = |root: &Root| Stamp::of(root, OsStr::new("")).ok().flatten().map(|stamp| (stamp.dev, stamp.mount));
    match Root::open(&tree.state).ok().and_then(|state| mount(&state)) {
        Some((dev, id)) if id != 0 && mount(root) == Some((dev, id)) => Place::State,
        // A name that nobody could take beforehand, and that `git status` shows for a moment at most.
        _ => Place::Tree(format!("{TEMPORARY}{:x}-{:x}", std::process::id(), clock::now()).into()),
    }
}

/// The steps for some wishes, in an order that never needs what is not there yet.
fn steps(wishes: &[Wish<'_>], roots: &[&Root]) -> Vec<Entry> {
    let mut opened: BTreeMap<(usize, PathBuf), Stamp> = BTreeMap::new();
    for wish in wishes {
        let Some(parent) = wish.path.parent() else { continue };
        let closed = |stamp: &Stamp| stamp.is_directory() && stamp.mode & 0o300 != 0o300 && !geteuid().is_root();
        if let Ok(Some(stamp)) = Stamp::at(roots[wish.part], parent)
            && closed(&stamp)
        {
            opened.insert((wish.part, parent.to_owned()), stamp);
        }
    }
    let entry = |wish: &Wish<'_>, step| Entry { part: wish.part, path: wish.path.clone(), step };
    let directory = |stamp: &Option<Stamp>| stamp.is_some_and(|stamp| stamp.is_directory());
    // What makes room for something of another kind goes first, and all that is in it.
    let replaced =
        |wish: &Wish<'_>| wish.before.is_some() && wish.after.is_some() && directory(&wish.before) != directory(&wish.after);
    let making_room: Vec<(usize, &Path)> =
        wishes.iter().filter(|wish| replaced(wish)).map(|wish| (wish.part, wish.path.as_path())).collect();
    let first = |wish: &Wish<'_>| making_room.iter().any(|(part, path)| *part == wish.part && wish.path.starts_with(path));

    let mut steps: Vec<Entry> =
        opened.keys().map(|(part, path)| Entry { part: *part, path: path.clone(), step: Step::OpenUp }).collect();
    let deepest_first = || wishes.iter().rev();
    let removal = |wish: &Wish<'_>| match (wish.before, wish.after) {
        (Some(before), None) => Some(entry(wish, Step::Remove(before, false))),
        (Some(before), Some(_)) if replaced(wish) => Some(entry(wish, Step::Remove(before, true))),
        _ => None,
    };
    steps.extend(deepest_first().filter(|wish| first(wish)).filter_map(removal));
    let made = |wish: &&Wish<'_>| directory(&wish.after) && !directory(&wish.before);
    steps.extend(wishes.iter().filter(made).map(|wish| entry(wish, Step::MakeDirectory)));
    let mut puts: Vec<(usize, &Wish<'_>)> = wishes.iter().enumerate().filter(|(_, wish)| wish.content.is_some()).collect();
    puts.sort_by_key(|(_, wish)| wish.rank);
    steps.extend(puts.into_iter().map(|(number, wish)| {
        let before = wish.before.filter(|_| !replaced(wish));
        entry(wish, Step::Put(number as u32, before))
    }));
    steps.extend(deepest_first().filter(|wish| !first(wish)).filter_map(removal));
    let mut modes: BTreeMap<(usize, &Path), (u32, Option<Time>)> = BTreeMap::new();
    for ((part, path), stamp) in &opened {
        modes.insert((*part, path), (stamp.permissions(), None));
    }
    for wish in wishes.iter().filter(|wish| directory(&wish.after)) {
        if let Some(after) = wish.after {
            modes.insert((wish.part, &wish.path), (after.permissions(), Some(after.modified)));
        }
    }
    let modes = modes.into_iter().rev();
    steps.extend(modes.map(|((part, path), (mode, time))| Entry {
        part,
        path: path.to_owned(),
        step: Step::SetMode(mode, time),
    }));
    steps
}

impl Journal {
    /// Directories for staged content, one for each part; made when `make`.
    fn open_stages(&self, tree: &Tree, roots: &[&Root], make: bool) -> io::Result<Vec<OwnedFd>> {
        let open = |(part, place): (usize, &Place)| {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            match place {
                Place::State => {
                    let path = tree.state.join(format!("stage-{part}"));
                    if make {
                        remove(&path);
                        std::fs::create_dir(&path)?;
                    }
                    File::open(&path).map(OwnedFd::from)
                }
                Place::Tree(name) => {
                    if make {
                        mkdirat(roots[part], name.as_path(), Mode::S_IRWXU)?;
                    }
                    Ok(roots[part].at(name, flags, Mode::empty())?)
                }
            }
        };
        self.stages.iter().enumerate().map(open).collect()
    }

    /// Does all steps. `Err` when it cannot go on now; the journal stays.
    pub(crate) fn execute(&self, tree: &Tree, roots: &[&Root]) -> Result<Failed, Error> {
        let stages = self
            .open_stages(tree, roots, false)
            .map_err(|e| Error::setup(format!("cannot open what was staged for {}: {e}", output::path(&tree.path))))?;
        let mut failed = Failed::new();
        for entry in &self.steps {
            fault::point();
            match self.step(entry, roots[entry.part], &stages[entry.part]) {
                Ok(()) => {}
                Err(Refused::Errno(errno @ (Errno::ENOSPC | Errno::EDQUOT | Errno::EIO))) => {
                    return Err(Error::setup(format!(
                        "stopped at {}: {}; what is missing is staged and will be finished",
                        output::path(&entry.path),
                        errno.desc()
                    ))
                    .hint("free some space, then run `hermes-sandbox changes list` or any other `changes` command"));
                }
                Err(why) => {
                    failed.entry(Spot { part: entry.part, path: entry.path.clone() }).or_insert(why.to_string());
                }
            }
        }
        for root in roots {
            if let Ok(directory) = root.at(Path::new(""), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()) {
                let _ = rustix::fs::syncfs(&directory);
            }
        }
        Ok(failed)
    }

    /// All steps and what follows from them are done.
    pub(crate) fn finish(mut self, tree: &Tree) -> Result<(), Error> {
        // From here on what is still staged is rubbish, and not what is left to do.
        self.phase = Phase::Done;
        store::write_through(&journal(tree), &self)
            .map_err(|e| Error::setup(format!("cannot write {}: {e}", output::path(&journal(tree)))))?;
        fault::point();
        self.clear(tree)
    }

    /// Takes staging and journal away: all is done, or nothing has begun.
    fn clear(&self, tree: &Tree) -> Result<(), Error> {
        for (part, place) in self.stages.iter().enumerate() {
            match place {
                Place::State => remove(&tree.state.join(format!("stage-{part}"))),
                Place::Tree(name) => {
                    let base = if part == 0 { &tree.path } else { &self.parts[part].path };
                    remove(&base.join(name));
                }
            }
        }
        fault::point();
        match std::fs::remove_file(journal(tree)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::setup(format!("cannot remove {}: {e}", output::path(&journal(tree)))))
            }
            _ => Ok(()),
        }
    }

    fn step(&self, entry: &Entry, root: &Root, stage: &OwnedFd) -> Result<(), Refused> {
        let now = Stamp::at(root, &entry.path)?;
        let directory = now.filter(Stamp::is_directory);
        match &entry.step {
            Step::OpenUp => match directory {
                Some(stamp) => set_mode(root, &entry.path, stamp.permissions() | 0o700, None),
                None => Ok(()),
            },
            Step::Remove(before, replaced) => {
                let Some(now) = now else { return Ok(()) };
                // Done already: this is what was put in its place.
                if *replaced && now.kind() != before.kind() {
                    return Ok(());
                }
                if !now.still(before) {
                    return Err(Refused::Changed);
                }
                let (parent, name) = root.parent(&entry.path)?;
                let how = if now.is_directory() { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
                match unlinkat(&parent, name, how) {
                    Err(Errno::ENOENT) => Ok(()),
                    Err(Errno::ENOTEMPTY) => Err(Refused::NotEmpty),
                    other => Ok(other?),
                }
            }
            Step::MakeDirectory => match now {
                Some(now) if now.is_directory() => Ok(()),
                Some(_) => Err(Refused::Changed),
                None => {
                    let (parent, name) = root.parent(&entry.path)?;
                    mkdirat(&parent, name, Mode::S_IRWXU)?;
                    own(&parent, name)?;
                    Ok(())
                }
            },
            Step::Put(number, before) => {
                let staged = number.to_string();
                let Some(waiting) = Stamp::of(stage, OsStr::new(&staged))? else { return Ok(()) };
                match (before, &now) {
                    (None, None) => {}
                    (Some(before), Some(now)) if now.still(before) => {}
                    _ => return Err(Refused::Changed),
                }
                let (parent, name) = root.parent(&entry.path)?;
                nix::fcntl::renameat(stage, staged.as_str(), &parent, name)?;
                // Both were links to one file: rename(2) leaves them as they are.
                let _ = unlinkat(stage, staged.as_str(), UnlinkatFlags::NoRemoveDir);
                if waiting.kind() == Kind::File {
                    stage::strip(&parent, name);
                }
                Ok(())
            }
            Step::SetMode(mode, time) => match directory {
                Some(_) => set_mode(root, &entry.path, *mode, *time),
                None => Ok(()),
            },
        }
    }
}

fn set_mode(root: &Root, path: &Path, mode: u32, time: Option<Time>) -> Result<(), Refused> {
    let handle = root.at(path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
    std::fs::set_permissions(by_descriptor(&handle), Permissions::from_mode(mode))
        .map_err(|e| Refused::Errno(crate::beneath::errno(&e)))?;
    if let Some(time) = time {
        let _ = stage::set_time(&handle, time);
    }
    Ok(())
}

/// What root makes belongs to the owner of the directory that it is made in.
fn own(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    if geteuid().is_root()
        && let Some(around) = Stamp::of(parent, OsStr::new(""))?
    {
        fchownat(parent, name, Some(Uid::from_raw(around.uid)), Some(Gid::from_raw(around.gid)), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// Why a step was not done.
#[derive(Debug)]
enum Refused {
    Errno(Errno),
    Changed,
    NotEmpty,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Errno(errno) => f.write_str(errno.desc()),
            Self::Changed => f.write_str("it changed meanwhile"),
            Self::NotEmpty => f.write_str("something was made in it meanwhile"),
        }
    }
}
