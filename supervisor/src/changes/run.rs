//! What `run` needs: a layer for its sandbox, a checkpoint before it, and a word about the changes after it.

use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hermes_backends::plan::Source;
use hermes_profiles::Caller;

use super::apply::{Held, tidy};
use super::checkpoint as snapshots;
use super::command::open_others;
use super::journal::pending;
use super::layer::{self, Layer, Part};
use super::report;
use super::scan::scan;
use crate::beneath::Root;
use crate::error::Error;
use crate::output;
use crate::state::{self, Tree};

/// Finishes what a killed `changes` command left in this workspace.
pub(crate) fn settle(caller: &Caller, workspace: &Path) -> Result<(), Error> {
    let Some(state) = &caller.state_dir else { return Ok(()) };
    if !state.join("trees").is_dir() {
        return Ok(());
    }
    match Tree::open(state, workspace, false) {
        Ok(Some(tree)) if pending(&tree) => {
            let (_, failed) = Held::new(tree)?;
            report::recovered(&failed, &[]);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn hold(caller: &Caller, workspace: &Path) -> Result<Held, Error> {
    let state = state::directory(caller)?;
    let none = || Error::setup(format!("nothing can be kept about {}", output::path(workspace)));
    let tree = Tree::open(state, workspace, true)?.ok_or_else(none)?;
    let (held, failed) = Held::new(tree)?;
    report::recovered(&failed, &[]);
    Ok(held)
}

/// The layer of a run.
#[derive(Debug)]
pub(crate) struct Overlaid {
    tree: Tree,
    layer: Layer,
}

/// Takes a layer for `trees`, of which the first is the workspace.
pub(crate) fn overlay(caller: &Caller, trees: &[PathBuf]) -> Result<Overlaid, Error> {
    let workspace = trees.first().ok_or_else(|| Error::setup("there is no workspace"))?;
    let held = hold(caller, workspace)?;
    let mut layer = Layer::take(&held.tree, trees)?;
    layer.begin(&held.tree)?;
    Ok(Overlaid { tree: held.tree, layer })
}

impl Overlaid {
    /// What is mounted over which tree.
    pub(crate) fn sources(&self) -> Result<Vec<(PathBuf, Source)>, Error> {
        self.layer.sources()
    }

    /// What the sandbox holds as long as anything of it lives.
    pub(crate) fn lock(&self) -> BorrowedFd<'_> {
        self.layer.lock()
    }

    /// The sandbox has ended: says how much waits, or takes an empty layer away.
    pub(crate) fn finish(self, caller: &Caller) {
        let (found, _) = match scan(&self.layer, &self.tree) {
            Ok(found) => found,
            Err(error) => {
                error.report();
                return;
            }
        };
        let count = found.changes.len() + found.unreachable.len();
        if count == 0 {
            return self.layer.discard();
        }
        let number = self.layer.number;
        match tidy(self.layer, &self.tree) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                error.report();
                return;
            }
        }
        let here = std::fs::canonicalize(&caller.cwd).is_ok_and(|cwd| cwd == self.tree.path);
        let workspace = if here { String::new() } else { format!(" --workspace {}", output::path(&self.tree.path)) };
        let several = layer::count(&self.tree) > 1;
        let layer = if several { format!(" --layer {number}") } else { String::new() };
        output::complain(&format!("{} changed: hermes-sandbox changes diff{workspace}{layer}", report::files(count)));
    }
}

/// Takes a checkpoint of `trees`, of which the first is the workspace.
pub(crate) fn checkpoint(caller: &Caller, trees: &[PathBuf]) -> Result<(), Error> {
    let workspace = trees.first().ok_or_else(|| Error::setup("there is no workspace"))?;
    let held = hold(caller, workspace)?;
    let part = |path: &PathBuf| {
        let meta =
            std::fs::symlink_metadata(path).map_err(|e| Error::setup(format!("cannot look at {}: {e}", output::path(path))))?;
        Ok(Part { path: path.clone(), dev: meta.dev(), ino: meta.ino() })
    };
    let parts: Vec<Part> = trees.iter().map(part).collect::<Result<_, Error>>()?;
    let others = open_others(&parts)?;
    let roots: Vec<&Root> = std::iter::once(&held.tree.root).chain(&others).collect();
    let taken = snapshots::take(&held, &parts, &roots, caller.state_dir.as_deref())?;
    if let Some(cost) = taken.cost {
        output::complain(&cost);
    }
    Ok(())
}
