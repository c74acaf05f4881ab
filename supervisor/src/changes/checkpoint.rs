//! Checkpoints: a workspace as it was, to be brought back whatever a job does to it.
//!
//! `checkpoints/<number>/about` lists every path, `pack-<number>` holds the content of the files one after another: making
//! a file for each would take far longer than reading them. What is unchanged since the checkpoint before is not stored
//! again; its pack gets a hard link in the new checkpoint and is gone with the last that needs it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hermes_profiles::ospath;
use serde::{Deserialize, Serialize};

use super::apply::Held;
use super::fault;
use super::journal::{self, Content, Spot, Wish};
use super::layer::{Part, remove};
use super::node::{self, Kind, Stamp, same_range};
use super::order::rank;
use super::report;
use super::repository;
use super::scan::{below, unreadable};
use super::stage;
use crate::beneath::Root;
use crate::clock::{self, COARSE, Time};
use crate::error::Error;
use crate::output;
use crate::state::{Tree, store};
use crate::table;

/// Files up to this size are read, longer ones copied by the kernel.
const SMALL: u64 = 256 << 10;
/// How much is collected before it is written.
const BUFFER: usize = 2 << 20;
/// How many are kept.
const KEPT: usize = 8;
/// What a checkpoint leaves free, besides a twentieth of the file system.
const SPARE: u64 = 128 << 20;
/// From here on the cost is told.
const SLOW: Duration = Duration::from_secs(2);
const BIG: u64 = 256 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Item {
    part: usize,
    #[serde(with = "ospath")]
    path: PathBuf,
    stamp: Stamp,
    /// Of a symlink.
    #[serde(with = "ospath::option")]
    target: Option<PathBuf>,
    /// Of a file: where its content is.
    data: Option<Place>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Place {
    pack: u64,
    at: u64,
}

/// What is known of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) taken: Time,
    pub(crate) parts: Vec<Part>,
    /// What came after it, for people.
    pub(crate) why: String,
    items: Vec<Item>,
}

impl Manifest {
    /// How many files and how many bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        let files = self.items.iter().filter(|item| item.data.is_some());
        (files.clone().count(), files.map(|item| item.stamp.size).sum())
    }
}

fn checkpoints(tree: &Tree) -> PathBuf {
    tree.state.join("checkpoints")
}

fn pack_name(number: u64) -> String {
    format!("pack-{number}")
}

/// The checkpoints of a tree, oldest first.
pub(crate) fn list(tree: &Tree) -> Vec<(u64, Manifest)> {
    list_in(&tree.state)
}

/// The same of what is kept in `state`.
pub(crate) fn list_in(state: &Path) -> Vec<(u64, Manifest)> {
    let about = |number: u64| {
        store::read(&state.join("checkpoints").join(number.to_string()).join("about")).ok().map(|about| (number, about))
    };
    numbers(state).into_iter().filter_map(about).collect()
}

/// Numbers of the checkpoints in `state`, lowest first.
pub(crate) fn numbers(state: &Path) -> Vec<u64> {
    store::numbers(&state.join("checkpoints")).unwrap_or_default()
}

/// What a checkpoint cost.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) number: u64,
    /// To be told, when it was much.
    pub(crate) cost: Option<String>,
}

/// Takes one of `parts`, leaving out `hidden`, which is ours.
pub(crate) fn take(held: &Held, parts: &[Part], roots: &[&Root], hidden: Option<&Path>, why: String) -> Result<Taken, Error> {
    let begun = Instant::now();
    let tree = &held.tree;
    let refuse = |e: io::Error| {
        Error::setup(format!("cannot take a checkpoint of {}: {e}; nothing was started", output::path(&tree.path)))
    };
    for number in store::numbers(&checkpoints(tree)).map_err(refuse)? {
        let dir = checkpoints(tree).join(number.to_string());
        if !dir.join("about").exists() {
            remove(&dir);
        }
    }
    let mut items = Vec::new();
    for (part, root) in roots.iter().enumerate() {
        items.extend(walk(part, root, &parts[part].path, hidden)?);
    }
    let previous = list(tree).pop();
    let (number, dir) = store::next(&checkpoints(tree), 0).map_err(refuse)?;
    let previous = previous.as_ref();
    let pack = File::options().read(true).write(true).create_new(true).open(dir.join(pack_name(number))).map_err(refuse)?;
    let mut snapshot = Snapshot { tree, roots, dir: &dir, previous, number, pack, end: 0, buffer: Vec::new(), copied: 0 };
    let outcome = snapshot.fill(&mut items).and_then(|()| {
        let manifest = Manifest { taken: clock::now(), parts: parts.to_vec(), why, items };
        fault::point();
        rustix::fs::syncfs(File::open(&dir)?)?;
        store::write_through(&dir.join("about"), &manifest)?;
        Ok(manifest)
    });
    let copied = snapshot.copied;
    let manifest = match outcome {
        Ok(manifest) => manifest,
        Err(e) => {
            remove(&dir);
            let refused = refuse(e);
            return Err(refused.hint("free some space in the state directory, or run with --overlay, which copies what changes"));
        }
    };
    let all = store::numbers(&checkpoints(tree)).map_err(refuse)?;
    for old in &all[..all.len().saturating_sub(KEPT)] {
        let _ = std::fs::remove_file(checkpoints(tree).join(old.to_string()).join("about"));
        remove(&checkpoints(tree).join(old.to_string()));
    }
    let (took, (files, _)) = (begun.elapsed(), manifest.size());
    let cost = (took >= SLOW || copied >= BIG).then(|| {
        format!("checkpoint {number} of {} took {:.1} s and {}", report::files(files), took.as_secs_f64(), table::bytes(copied))
    });
    Ok(Taken { number, cost })
}

fn walk(part: usize, root: &Root, path: &Path, hidden: Option<&Path>) -> Result<Vec<Item>, Error> {
    let own = Stamp::at(root, Path::new("")).ok().flatten().map(|stamp| stamp.mount);
    let hidden = hidden.and_then(|hidden| hidden.strip_prefix(path).ok());
    let found = below(root, Path::new("")).map_err(unreadable)?;
    let inside =
        |(path, stamp): &(PathBuf, Stamp)| own == Some(stamp.mount) && !hidden.is_some_and(|hidden| path.starts_with(hidden));
    let item = |(path, stamp): (PathBuf, Stamp)| {
        let target = match stamp.kind() {
            Kind::Symlink => Some(node::target(root, &path).map_err(|errno| unreadable((path.clone(), errno)))?),
            _ => None,
        };
        Ok(Item { part, path, stamp, target, data: None })
    };
    let mut items: Vec<Item> = found.into_iter().filter(inside).map(item).collect::<Result<_, Error>>()?;
    items.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(items)
}

struct Snapshot<'a> {
    tree: &'a Tree,
    roots: &'a [&'a Root],
    dir: &'a Path,
    previous: Option<&'a (u64, Manifest)>,
    number: u64,
    pack: File,
    /// How much of the pack is written, and what is to be written next.
    end: u64,
    buffer: Vec<u8>,
    copied: u64,
}

impl Snapshot<'_> {
    fn fill(&mut self, items: &mut [Item]) -> io::Result<()> {
        let mut known: HashMap<(u64, u64), (&Stamp, Place)> = HashMap::new();
        if let Some((_, manifest)) = self.previous {
            let stored = manifest.items.iter().filter_map(|item| Some((&item.stamp, item.data?)));
            known.extend(stored.map(|(stamp, data)| ((stamp.dev, stamp.ino), (stamp, data))));
        }
        let previous = self.previous;
        let shared = |stamp: &Stamp| {
            // Younger than the clock's grain: it may have changed again without a trace.
            let (old, data) = known.get(&(stamp.dev, stamp.ino))?;
            let settled = previous.is_some_and(|(_, manifest)| stamp.changed < manifest.taken - COARSE);
            (stamp.same(old) && settled).then_some(*data)
        };
        let unshared = items.iter().filter(|item| item.stamp.kind() == Kind::File && shared(&item.stamp).is_none());
        self.check_space(items, unshared.map(|item| item.stamp.space).sum())?;
        let mut packs = BTreeSet::new();
        for item in items.iter_mut().filter(|item| item.stamp.kind() == Kind::File) {
            item.data = shared(&item.stamp);
            match item.data {
                Some(data) => drop(packs.insert(data.pack)),
                None => {
                    fault::point();
                    self.copy(item).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", output::path(&item.path))))?;
                }
            }
        }
        self.flush()?;
        for pack in packs {
            let from = previous.map(|(number, _)| checkpoints(self.tree).join(number.to_string()).join(pack_name(pack)));
            std::fs::hard_link(from.unwrap_or_default(), self.dir.join(pack_name(pack)))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pack.write_all_at(&self.buffer, self.end)?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// A copy of a file as it was at one moment, if it has such a moment.
    fn copy(&mut self, item: &mut Item) -> io::Result<()> {
        let root = self.roots[item.part];
        let mut stored = 0;
        let mut settled = false;
        for _ in 0..3 {
            let from = node::open_file(root, &item.path)?;
            if item.stamp.size <= SMALL {
                let start = self.buffer.len();
                stored = (&from).take(SMALL + 1).read_to_end(&mut self.buffer)? as u64;
                item.data = Some(Place { pack: self.number, at: self.end + start as u64 });
                if self.buffer.len() > BUFFER {
                    self.flush()?;
                }
            } else {
                self.flush()?;
                // Where blocks can be shared, whole ones can.
                self.end = self.end.next_multiple_of(4096);
                stage::copy_part((&from, 0), (&self.pack, self.end), item.stamp.size)?;
                item.data = Some(Place { pack: self.number, at: self.end });
                stored = item.stamp.size;
                self.end += stored;
                self.pack.set_len(self.end)?;
            }
            match Stamp::of(&from, OsStr::new(""))? {
                Some(after) if !after.same(&item.stamp) => item.stamp = after,
                _ => {
                    settled = true;
                    break;
                }
            }
        }
        if !settled {
            item.stamp.size = stored;
        }
        self.copied += item.stamp.space;
        Ok(())
    }

    fn check_space(&self, items: &[Item], new: u64) -> io::Result<()> {
        let here = File::open(self.dir)?;
        let sample = items.iter().find(|item| item.stamp.kind() == Kind::File && item.stamp.size > 0);
        if let Some(sample) = sample
            && let Ok(from) = node::open_file(self.roots[sample.part], &sample.path)
            && rustix::fs::ioctl_ficlone(tempfile::tempfile_in(self.dir)?, from).is_ok()
        {
            return Ok(());
        }
        let space = rustix::fs::fstatvfs(&here)?;
        let free = space.f_bavail * space.f_frsize;
        let spare = SPARE.max(space.f_blocks * space.f_frsize / 20).min(4 << 30);
        if new.saturating_add(spare) > free {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("it needs {} and {} are free", table::bytes(new), table::bytes(free)),
            ));
        }
        Ok(())
    }
}

/// What a way back does, for people.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// Paths that come back as they were, and paths that go.
    pub(crate) restored: Vec<Spot>,
    pub(crate) removed: Vec<Spot>,
    /// What cannot be brought back.
    pub(crate) left: Vec<(Spot, &'static str)>,
    /// Something of a repository that other worktrees share has changed, and stays so.
    pub(crate) shared: bool,
}

/// An opened checkpoint.
pub(crate) struct Checkpoint {
    pub(crate) number: u64,
    manifest: Manifest,
    packs: BTreeMap<u64, File>,
}

impl Checkpoint {
    /// The newest one, or this one.
    pub(crate) fn open(tree: &Tree, number: Option<u64>) -> Result<Self, Error> {
        let found = list(tree).into_iter().rfind(|(found, _)| number.is_none_or(|number| number == *found));
        let (number, manifest) = found.ok_or_else(|| match number {
            Some(number) => Error::usage(format!("there is no checkpoint {number} of {}", output::path(&tree.path)))
                .hint("`hermes-sandbox changes list` shows them"),
            None => Error::usage(format!("there is no checkpoint of {}", output::path(&tree.path)))
                .hint("`hermes-sandbox run --checkpoint` takes one before it starts"),
        })?;
        let dir = checkpoints(tree).join(number.to_string());
        let packs: BTreeSet<u64> = manifest.items.iter().filter_map(|item| item.data.map(|data| data.pack)).collect();
        let open = |pack: u64| {
            let path = dir.join(pack_name(pack));
            let file = File::open(&path).map_err(|e| Error::setup(format!("cannot open {}: {e}", output::path(&path))))?;
            Ok((pack, file))
        };
        let packs = packs.into_iter().map(open).collect::<Result<_, Error>>()?;
        Ok(Self { number, manifest, packs })
    }

    /// The trees that it is of.
    pub(crate) fn parts(&self, tree: &Tree) -> Vec<Part> {
        let mut parts = self.manifest.parts.clone();
        if let Some(first) = parts.first_mut() {
            first.path.clone_from(&tree.path);
        }
        parts
    }

    /// What is to be done so that the trees are as they were.
    pub(crate) fn way(&self, parts: &[Part], roots: &[&Root], hidden: Option<&Path>) -> Result<(Vec<Wish<'_>>, Way), Error> {
        let (mut wishes, mut way) = (Vec::new(), Way::default());
        let linked = self.linked();
        for (part, root) in roots.iter().enumerate() {
            let now = walk(part, root, &parts[part].path, hidden)?;
            let mut sides: BTreeMap<&Path, (Option<Stamp>, Option<&Item>)> =
                now.iter().map(|item| (item.path.as_path(), (Some(item.stamp), None))).collect();
            for item in self.manifest.items.iter().filter(|item| item.part == part) {
                sides.entry(&item.path).or_default().1 = Some(item);
            }
            for (path, (before, item)) in sides {
                let spot = || Spot { part, path: path.to_owned() };
                if let Some(own) = linked.as_ref().filter(|own| part > 0 && !path.starts_with(own)) {
                    // Other worktrees and their user have gone on with it. Objects that are gone harm nobody by coming back.
                    let lost = before.is_none() && path.starts_with("objects");
                    if !lost && !own.starts_with(path) {
                        let same = match (before, item) {
                            (Some(before), Some(item)) => self.is_as_it_was(root, item, &before),
                            _ => false,
                        };
                        way.shared |= !same && !path.starts_with("objects");
                        continue;
                    }
                }
                let Some(item) = item else {
                    way.removed.push(spot());
                    wishes.push(Wish { part, path: path.to_owned(), before, after: None, content: None, rank: 0 });
                    continue;
                };
                if before.is_some_and(|before| self.is_as_it_was(root, item, &before)) {
                    continue;
                }
                let content = match item.stamp.kind() {
                    Kind::File => self.content(item).map(|(pack, at)| Content::Copy(pack, at)),
                    Kind::Symlink => item.target.clone().map(Content::Link),
                    Kind::Directory => None,
                    Kind::Fifo | Kind::Socket | Kind::Device => {
                        way.left.push((spot(), item.stamp.kind().word()));
                        continue;
                    }
                };
                way.restored.push(spot());
                let rank = rank(path, part > 0);
                wishes.push(Wish { part, path: path.to_owned(), before, after: Some(item.stamp), content, rank });
            }
        }
        Ok((wishes, way))
    }

    /// Where in the other part what belongs to a linked worktree alone is, if the workspace was one.
    fn linked(&self) -> Option<PathBuf> {
        let pointer = self.manifest.items.iter().find(|item| item.part == 0 && item.path == Path::new(".git"))?;
        let (pack, at) = self.content(pointer)?;
        let mut text = vec![0; usize::try_from(pointer.stamp.size.min(4096)).ok()?];
        pack.read_exact_at(&mut text, at).ok()?;
        repository::linked(&text)
    }

    fn content(&self, item: &Item) -> Option<(&File, u64)> {
        let data = item.data?;
        Some((self.packs.get(&data.pack)?, data.at))
    }

    fn is_as_it_was(&self, root: &Root, item: &Item, before: &Stamp) -> bool {
        if before.kind() != item.stamp.kind() {
            return false;
        }
        let settled = item.stamp.changed < self.manifest.taken - COARSE;
        if !before.is_directory() && before.same(&item.stamp) && settled {
            return true;
        }
        before.mode == item.stamp.mode
            && match before.kind() {
                Kind::File => {
                    before.size == item.stamp.size
                        && matches!(
                            (self.content(item), node::open_file(root, &item.path)),
                            (Some(kept), Ok(now)) if same_range(&now, kept, before.size).unwrap_or(false)
                        )
                }
                Kind::Symlink => node::target(root, &item.path).ok() == item.target,
                _ => true,
            }
    }
}

/// Starts the way back; [`super::apply::complete`] does the rest.
pub(crate) fn begin(held: &Held, parts: &[Part], roots: &[&Root], wishes: Vec<Wish<'_>>) -> Result<journal::Journal, Error> {
    journal::begin(&held.tree, parts, roots, wishes, journal::Aftermath::default())
}
