//! Checkpoints: a workspace as it was, to be brought back whatever a job does to it.
//!
//! `checkpoints/<number>/about` lists every path; `data/` holds the content of the files, which nothing but this program
//! can reach. A file that is unchanged since the checkpoint before shares its content with that by a hard link.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hermes_profiles::ospath;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use super::apply::Held;
use super::fault;
use super::journal::{self, Content, Wish};
use super::layer::{Part, load, next, now, numbers, remove, store};
use super::node::{self, Kind, Stamp, Time, same_content};
use super::order::rank;
use super::scan::{below, unreadable};
use super::stage;
use crate::beneath::Root;
use crate::error::Error;
use crate::output;
use crate::state::Tree;
use crate::table;

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
    /// Of a file: its number in `data`.
    data: Option<u32>,
}

/// What is known of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) taken: Time,
    pub(crate) parts: Vec<Part>,
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

fn data(number: u32) -> PathBuf {
    Path::new("data").join((number / 4096).to_string()).join(number.to_string())
}

/// The checkpoints of a tree, oldest first.
pub(crate) fn list(tree: &Tree) -> Vec<(u32, Manifest)> {
    let about = |number: u32| load(&checkpoints(tree).join(number.to_string()).join("about")).ok().map(|about| (number, about));
    numbers(&checkpoints(tree)).into_iter().filter_map(about).collect()
}

/// What a checkpoint cost.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) number: u32,
    /// To be told, when it was much.
    pub(crate) cost: Option<String>,
}

/// Takes one of `parts`, leaving out `hidden`, which is ours.
pub(crate) fn take(held: &Held, parts: &[Part], roots: &[&Root], hidden: Option<&Path>) -> Result<Taken, Error> {
    let begun = Instant::now();
    let tree = &held.tree;
    let refuse = |e: io::Error| {
        Error::setup(format!("cannot take a checkpoint of {}: {e}; nothing was started", output::path(&tree.path)))
    };
    for number in numbers(&checkpoints(tree)) {
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
    let (number, dir) = next(&checkpoints(tree)).map_err(refuse)?;
    let mut snapshot = Snapshot { tree, roots, dir: &dir, previous: previous.as_ref(), copied: 0 };
    let outcome = snapshot.fill(&mut items).and_then(|()| {
        let manifest = Manifest { taken: now(), parts: parts.to_vec(), items };
        fault::point();
        rustix::fs::syncfs(File::open(&dir)?)?;
        store(&dir.join("about"), &manifest)?;
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
    let all = numbers(&checkpoints(tree));
    for old in &all[..all.len().saturating_sub(KEPT)] {
        let _ = std::fs::remove_file(checkpoints(tree).join(old.to_string()).join("about"));
        remove(&checkpoints(tree).join(old.to_string()));
    }
    let (took, (files, _)) = (begun.elapsed(), manifest.size());
    let cost = (took >= SLOW || copied >= BIG)
        .then(|| format!("checkpoint {number} of {files} files took {:.1} s and {}", took.as_secs_f64(), table::bytes(copied)));
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
    previous: Option<&'a (u32, Manifest)>,
    copied: u64,
}

impl Snapshot<'_> {
    fn fill(&mut self, items: &mut [Item]) -> io::Result<()> {
        let mut known: HashMap<(u64, u64), (&Stamp, PathBuf)> = HashMap::new();
        if let Some((number, manifest)) = self.previous {
            let dir = checkpoints(self.tree).join(number.to_string());
            for item in &manifest.items {
                if let Some(at) = item.data {
                    known.insert((item.stamp.dev, item.stamp.ino), (&item.stamp, dir.join(data(at))));
                }
            }
        }
        let previous = self.previous;
        let shared = |stamp: &Stamp| {
            // Younger than the clock's grain: it may have changed again without a trace.
            let (old, at) = known.get(&(stamp.dev, stamp.ino))?;
            let settled = previous.is_some_and(|(_, manifest)| stamp.changed < manifest.taken - 20_000_000);
            (stamp.same(old) && settled).then_some(at)
        };
        let new: u64 = items
            .iter()
            .filter(|item| item.stamp.kind() == Kind::File && shared(&item.stamp).is_none())
            .map(|item| item.stamp.space)
            .sum();
        self.check_space(items, new)?;
        let files = items.iter_mut().filter(|item| item.stamp.kind() == Kind::File);
        for (number, item) in (0..).zip(files) {
            let at = self.dir.join(data(number));
            if number.is_multiple_of(4096) {
                std::fs::create_dir_all(at.parent().unwrap_or(self.dir))?;
            }
            item.data = Some(number);
            let linked = shared(&item.stamp).is_some_and(|from| std::fs::hard_link(from, &at).is_ok());
            if !linked {
                fault::point();
                self.copy(item, &at).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", output::path(&item.path))))?;
            }
        }
        Ok(())
    }

    /// A copy of a file as it was at one moment, if it has such a moment.
    fn copy(&mut self, item: &mut Item, at: &Path) -> io::Result<()> {
        let root = self.roots[item.part];
        for _ in 0..3 {
            let from = node::open_file(root, &item.path)?;
            let to = File::options().read(true).write(true).create(true).truncate(true).open(at)?;
            stage::copy(&from, &to)?;
            let after = Stamp::of(&from, std::ffi::OsStr::new(""))?;
            match after {
                Some(after) if after.same(&item.stamp) => break,
                Some(after) => item.stamp = after,
                None => break,
            }
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
    pub(crate) restored: Vec<PathBuf>,
    pub(crate) removed: Vec<PathBuf>,
    /// What cannot be brought back.
    pub(crate) left: Vec<(PathBuf, &'static str)>,
}

/// An opened checkpoint.
pub(crate) struct Checkpoint {
    pub(crate) number: u32,
    manifest: Manifest,
    store: Root,
}

impl Checkpoint {
    /// The newest one, or this one.
    pub(crate) fn open(tree: &Tree, number: Option<u32>) -> Result<Self, Error> {
        let found = list(tree).into_iter().rfind(|(found, _)| number.is_none_or(|number| number == *found));
        let (number, manifest) = found.ok_or_else(|| match number {
            Some(number) => Error::usage(format!("there is no checkpoint {number} of {}", output::path(&tree.path)))
                .hint("`hermes-sandbox changes list` shows them"),
            None => Error::usage(format!("there is no checkpoint of {}", output::path(&tree.path)))
                .hint("`hermes-sandbox run --checkpoint` takes one before it starts"),
        })?;
        let dir = checkpoints(tree).join(number.to_string());
        let store =
            Root::open(&dir).map_err(|errno| Error::setup(format!("cannot open {}: {}", output::path(&dir), errno.desc())))?;
        Ok(Self { number, manifest, store })
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
        for (part, root) in roots.iter().enumerate() {
            let now = walk(part, root, &parts[part].path, hidden)?;
            let mut sides: BTreeMap<&Path, (Option<Stamp>, Option<&Item>)> =
                now.iter().map(|item| (item.path.as_path(), (Some(item.stamp), None))).collect();
            for item in self.manifest.items.iter().filter(|item| item.part == part) {
                sides.entry(&item.path).or_default().1 = Some(item);
            }
            for (path, (before, item)) in sides {
                let Some(item) = item else {
                    way.removed.push(path.to_owned());
                    wishes.push(Wish { part, path: path.to_owned(), before, after: None, content: None, rank: 0 });
                    continue;
                };
                if before.is_some_and(|before| self.is_as_it_was(root, item, &before)) {
                    continue;
                }
                let content = match item.stamp.kind() {
                    Kind::File => item.data.map(|number| Content::Copy(&self.store, data(number))),
                    Kind::Symlink => item.target.clone().map(Content::Link),
                    Kind::Directory => None,
                    Kind::Fifo | Kind::Socket | Kind::Device => {
                        way.left.push((path.to_owned(), item.stamp.kind().word()));
                        continue;
                    }
                };
                way.restored.push(path.to_owned());
                let rank = rank(path, part > 0);
                wishes.push(Wish { part, path: path.to_owned(), before, after: Some(item.stamp), content, rank });
            }
        }
        Ok((wishes, way))
    }

    fn is_as_it_was(&self, root: &Root, item: &Item, before: &Stamp) -> bool {
        if before.kind() != item.stamp.kind() {
            return false;
        }
        let settled = item.stamp.changed < self.manifest.taken - 20_000_000;
        if !before.is_directory() && before.same(&item.stamp) && settled {
            return true;
        }
        before.mode == item.stamp.mode
            && match before.kind() {
                Kind::File => {
                    let kept = item.data.and_then(|number| {
                        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW;
                        self.store.at(&data(number), flags, Mode::empty()).ok().map(|fd: OwnedFd| File::from(fd))
                    });
                    matches!(
                        (kept, node::open_file(root, &item.path)),
                        (Some(kept), Ok(now)) if same_content(&kept, &now).unwrap_or(false)
                    )
                }
                Kind::Symlink => node::target(root, &item.path).ok() == item.target,
                _ => true,
            }
    }
}

/// Starts the way back; [`Held::finish`] does the rest.
pub(crate) fn begin(held: &Held, parts: &[Part], roots: &[&Root], wishes: Vec<Wish<'_>>) -> Result<journal::Journal, Error> {
    journal::begin(&held.tree, parts, roots, wishes, journal::Aftermath::default())
}
