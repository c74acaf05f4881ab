//! What `run` needs: a layer for its sandbox, a checkpoint before it, and a word about the changes after it.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hermes_backends::plan::Source;
use hermes_profiles::{Access, Caller, GuardRules};
use nix::unistd::{AccessFlags, access};

use super::apply::{Held, tidy};
use super::checkpoint as snapshots;
use super::command::open_others;
use super::journal::pending;
use super::layer::{self, Layer, Part};
use super::report;
use super::scan::scan;
use crate::beneath::Root;
use crate::error::Error;
use crate::guard as guards;
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

/// Takes a layer for `trees`, of which the first is the workspace. `guard` is what the policy says about guarded files.
pub(crate) fn overlay(caller: &Caller, trees: &[PathBuf], guard: &GuardRules) -> Result<Overlaid, Error> {
    let workspace = trees.first().ok_or_else(|| Error::setup("there is no workspace"))?;
    let held = hold(caller, workspace)?;
    let mut layer = Layer::take(&held.tree, trees)?;
    let others: Vec<String> = layer::numbers(&held.tree.state)
        .into_iter()
        .filter(|number| *number != layer.number)
        .map(|number| number.to_string())
        .collect();
    if !others.is_empty() && !layer.about.begun.is_empty() {
        let (layers, list) = (if others.len() == 1 { "layer" } else { "layers" }, others.join(", "));
        output::complain(&format!("goes on with layer {}, not with {layers} {list}", layer.number));
    }
    let trees: Vec<&Path> = trees.iter().map(PathBuf::as_path).collect();
    layer.begin(&held.tree, &guards::for_caller(guard, caller, &trees))?;
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
        let counts = report::Counts::of(&found);
        if found.changes.is_empty() && found.unreachable.is_empty() {
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
        let workspace = if here { String::new() } else { format!(" --workspace {}", report::word(&self.tree.path)) };
        let several = layer::numbers(&self.tree.state).len() > 1;
        let layer = if several { format!(" --layer {number}") } else { String::new() };
        output::complain(&format!("{} in layer {number}: hermes-sandbox changes diff{workspace}{layer}", counts.words()));
    }
}

/// Refuses a checkpoint of what cannot be changed.
pub(crate) fn needs_checkpoint(access: Access) -> Result<(), Error> {
    let nothing = "leave it out: nothing of it can be changed";
    let (what, hint) = match access {
        Access::Write => return Ok(()),
        Access::Overlay => ("copy-on-write", "leave it out: `hermes-sandbox changes discard` takes every change back"),
        Access::Hidden => ("hidden", nothing),
        _ => ("read-only", nothing),
    };
    Err(Error::usage(format!("--checkpoint is for a workspace that is written; this one is {what}")).hint(hint))
}

/// What is wrong with the state directory for a layer over `workspace`, and what to do.
pub(crate) fn obstacle(caller: &Caller, workspace: &Path) -> Option<(String, String)> {
    let state = match state::directory(caller) {
        Ok(state) => state,
        Err(error) => return Some((error.message, error.hints.join("; "))),
    };
    let named = output::path(state);
    let around = state.ancestors().find(|at| at.symlink_metadata().is_ok())?;
    if std::fs::canonicalize(around).is_ok_and(|real| real.starts_with(workspace)) {
        let why = format!("the state directory {named} lies in the workspace, whose changes it would hold");
        return Some((why, "point XDG_STATE_HOME to a directory outside of it".to_owned()));
    }
    let errno = access(around, AccessFlags::W_OK | AccessFlags::X_OK).err()?;
    let why = format!("the state directory {named} cannot be written: {}: {}", output::path(around), errno.desc());
    Some((why, "make it writable for you alone, or point XDG_STATE_HOME to a directory that is".to_owned()))
}

/// Names a command, shortly.
fn before(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| output::path(Path::new(word))).collect();
    let line = words.join(" ");
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("before {}...", &line[..end]),
        None => format!("before {line}"),
    }
}

/// Takes a checkpoint of `trees`, of which the first is the workspace.
pub(crate) fn checkpoint(caller: &Caller, trees: &[PathBuf], command: &[OsString]) -> Result<(), Error> {
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
    let taken = snapshots::take(&held, &parts, &roots, caller.state_dir.as_deref(), before(command))?;
    if let Some(cost) = taken.cost {
        output::complain(&cost);
    }
    Ok(())
}
