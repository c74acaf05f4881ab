//! Carrying changes of a layer to the host, or taking them back.

use std::fs::File;
use std::path::Path;

use super::decide::{Decision, Wanted, covered, decide};
use super::guarded::{Guard, readable};
use super::journal::{self, Aftermath, Content, Failed, Journal, Spot, Wish};
use super::layer::{self, Found, Layer};
use super::node::{Kind, Stamp};
use super::order::rank;
use super::prune::prune;
use super::scan::{Change, Scan, scan};
use crate::beneath::Root;
use crate::error::Error;
use crate::output;
use crate::state::{self, Tree};

/// A tree that no other command works on.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) tree: Tree,
    _lock: Option<File>,
}

impl Held {
    /// Only to be looked at: others may work on it.
    pub(crate) fn unlocked(tree: Tree) -> Self {
        Self { tree, _lock: None }
    }

    /// Waits for other commands on the tree, and finishes what a killed one left.
    pub(crate) fn new(tree: Tree) -> Result<(Self, Failed), Error> {
        let lock = state::lock(&tree.state)?;
        let held = Self { tree, _lock: Some(lock) };
        let failed = match journal::recover(&held.tree)? {
            Some(journal) => complete(&held.tree, journal)?,
            None => Failed::new(),
        };
        Ok((held, failed))
    }
}

/// Does what a journal says, and what follows from it.
pub(crate) fn complete(tree: &Tree, journal: Journal) -> Result<Failed, Error> {
    let mut others = Vec::new();
    for part in journal.parts.iter().skip(1) {
        let root = Root::open(&part.path).ok().filter(|root| {
            let stamp = Stamp::at(root, Path::new("")).ok().flatten();
            stamp.is_some_and(|stamp| (stamp.dev, stamp.ino) == (part.dev, part.ino))
        });
        others.push(root.ok_or_else(|| {
            Error::setup(format!("{} is no longer the directory that the changes are for", output::path(&part.path)))
        })?);
    }
    let roots: Vec<&Root> = std::iter::once(&tree.root).chain(&others).collect();
    let failed = journal.execute(tree, &roots)?;
    if let Some(number) = journal.aftermath.layer
        && let Some(mut layer) = free(tree, number)
    {
        let settled = |spot: &&Spot| !failed.contains_key(spot);
        let settled: Vec<&Spot> = journal.aftermath.settled.iter().filter(settled).collect();
        let unsettled = failed.keys().chain(&journal.aftermath.open_deletions);
        let open: Vec<&Spot> = unsettled.collect();
        take_out(&layer, tree, &settled, &open)?;
        layer.note_applied(tree)?;
        tidy(layer, tree)?;
    }
    journal.finish(tree)?;
    Ok(failed)
}

fn free(tree: &Tree, number: u64) -> Option<Layer> {
    layer::find(tree).into_iter().find_map(|found| match found {
        Found::Free(layer) if layer.number == number => Some(layer),
        _ => None,
    })
}

/// Takes paths out of a layer, of which these deletions stay.
fn take_out(layer: &Layer, tree: &Tree, paths: &[&Spot], open_deletions: &[&Spot]) -> Result<(), Error> {
    for (part, ground) in layer.grounds(tree)?.iter().enumerate() {
        fn of_part<'a>(spots: &[&'a Spot], part: usize) -> Vec<&'a Path> {
            let mut paths: Vec<&Path> = spots.iter().filter(|spot| spot.part == part).map(|spot| spot.path.as_path()).collect();
            paths.sort();
            paths
        }
        let (paths, open) = (of_part(paths, part), of_part(open_deletions, part));
        if paths.is_empty() {
            continue;
        }
        prune(&ground.upper, &ground.lower, &paths, &open).map_err(|(path, errno)| {
            Error::setup(format!("cannot take {} out of the layer: {}", output::path(&path), errno.desc()))
        })?;
    }
    Ok(())
}

fn spot(change: &Change) -> Spot {
    Spot { part: change.part, path: change.path.clone() }
}

/// What became of an attempt to apply.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// How many files went to the host.
    pub(crate) done: usize,
    pub(crate) refused: Vec<(Spot, String)>,
    pub(crate) guarded: Vec<(Spot, String)>,
    pub(crate) never: Vec<(Spot, &'static str)>,
    pub(crate) locks: Vec<Spot>,
    /// Something was refused, and so nothing was done.
    pub(crate) nothing: bool,
    /// Something still waits in the layer.
    pub(crate) left: bool,
}

/// Carries changes to the host: all of them or none, or with named paths those that can be; what tools of the host obey
/// only `with_guarded`.
pub(crate) fn apply(held: &Held, layer: Layer, wanted: &Wanted, with_guarded: bool) -> Result<Applied, Error> {
    let tree = &held.tree;
    let (found, grounds) = scan(&layer, tree)?;
    found.must_have(&layer.about.parts, &wanted.paths)?;
    found.must_have(&layer.about.parts, &wanted.take)?;
    let readable = readable();
    let guard = || {
        Guard::new(&layer.about.guard, tree, &readable)
            .map_err(|e| Error::setup(format!("cannot look for guarded files in {}: {e}", output::path(&tree.path))))
    };
    let guard = if with_guarded { None } else { Some(guard()?) };
    let mut decision = decide(&found, &grounds, wanted, guard.as_ref());
    drop(guard);
    let mut applied = told(&decision, &found);
    applied.nothing = !decision.refused.is_empty() && wanted.paths.is_empty();
    if applied.nothing {
        applied.left = true;
        return Ok(applied);
    }
    let settled: Vec<Spot> = decision.go.iter().chain(&decision.moot).chain(&decision.locks).map(|change| spot(change)).collect();
    if !settled.is_empty() {
        let staying = decision.rest.iter().copied();
        let staying = staying.chain(decision.refused.iter().map(|(change, _)| *change));
        let staying = staying.chain(decision.guarded.iter().map(|(change, _)| *change));
        let open_deletions = staying.filter(|change| change.is_deletion()).map(spot).collect();
        let aftermath = Aftermath { layer: Some(layer.number), open_deletions, settled };
        let wishes = decision.go.iter().map(|change| Wish {
            part: change.part,
            path: change.path.clone(),
            before: change.before,
            after: change.after,
            content: change.after.filter(|after| matches!(after.kind(), Kind::File | Kind::Symlink)).map(|_| {
                match decision.rewritten.remove(&spot(change)) {
                    Some(text) => Content::Text(text),
                    None => Content::Layer(&grounds[change.part].upper),
                }
            }),
            rank: rank(&change.path, change.part > 0),
        });
        let roots: Vec<&Root> = grounds.iter().map(|ground| &ground.lower).collect();
        let journal = journal::begin(tree, &layer.about.parts, &roots, wishes.collect(), aftermath)?;
        let going: Vec<Spot> = decision.go.iter().filter(|change| change.is_file()).map(|change| spot(change)).collect();
        let number = layer.number;
        // The same way as after a crash, which takes the layer itself.
        drop(layer);
        let failed = complete(tree, journal)?;
        applied.done = going.iter().filter(|spot| !failed.contains_key(spot)).count();
        applied.refused.extend(failed);
        applied.left = free(tree, number).is_some();
        return Ok(applied);
    }
    applied.left = tidy(layer, tree)?;
    Ok(applied)
}

fn told(decision: &Decision<'_>, found: &Scan) -> Applied {
    let unreachable = found.unreachable.iter().map(|(part, path, why)| (Spot { part: *part, path: path.clone() }, why.clone()));
    Applied {
        refused: decision.refused.iter().map(|(change, why)| (spot(change), why.clone())).chain(unreachable).collect(),
        guarded: decision.guarded.iter().map(|(change, why)| (spot(change), why.clone())).collect(),
        never: decision.never.iter().map(|(change, why)| (spot(change), *why)).collect(),
        locks: decision.locks.iter().map(|change| spot(change)).collect(),
        ..Applied::default()
    }
}

/// Removes a layer in which nothing waits any more; true when something does.
pub(crate) fn tidy(layer: Layer, tree: &Tree) -> Result<bool, Error> {
    let (found, grounds) = scan(&layer, tree)?;
    let decision = decide(&found, &grounds, &Wanted::default(), None);
    let left = !(decision.go.is_empty() && decision.refused.is_empty() && found.unreachable.is_empty());
    if !left {
        layer.discard();
    }
    Ok(left)
}

/// Takes changes back: all, with the layer, or those below `paths`. Returns how many.
pub(crate) fn discard(held: &Held, layer: Layer, paths: &[Spot]) -> Result<usize, Error> {
    let tree = &held.tree;
    if paths.is_empty() {
        let number = scan(&layer, tree).map_or(0, |(found, _)| found.changes.iter().filter(|change| change.is_file()).count());
        layer.discard();
        return Ok(number);
    }
    let (found, grounds) = scan(&layer, tree)?;
    found.must_have(&layer.about.parts, paths)?;
    let (gone, stay): (Vec<&Change>, Vec<&Change>) =
        found.changes.iter().partition(|change| covered(paths, change.part, &change.path));
    for change in gone.iter().filter(|change| change.is_deletion()) {
        // What was deleted together with its directory comes back with it.
        let upper = &grounds[change.part].upper;
        let around = change.path.ancestors().skip(1).find(|at| {
            let hidden = Stamp::at(upper, at).ok().flatten().is_some_and(|stamp| !stamp.is_directory());
            hidden && !covered(paths, change.part, at)
        });
        if let Some(around) = around {
            return Err(Error::usage(format!(
                "{} is gone because {} is: name that",
                output::path(&change.path),
                output::path(around)
            )));
        }
    }
    let spots: Vec<Spot> = gone.iter().map(|change| spot(change)).collect();
    let files = gone.iter().filter(|change| change.is_file()).count();
    let open: Vec<Spot> = stay.iter().filter(|change| change.is_deletion()).map(|change| spot(change)).collect();
    take_out(&layer, tree, &spots.iter().collect::<Vec<_>>(), &open.iter().collect::<Vec<_>>())?;
    tidy(layer, tree)?;
    Ok(files)
}
