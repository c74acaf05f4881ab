//! Commits that sandboxes made: what only they hold is no excuse for the next run.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use hermes_profiles::paths::normalise;

use super::history;
use super::run::TreeRecord;
use super::snapshot::Snapshot;
use crate::state::{Tree, store};

/// Commits, by git directory.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Distrusted(Vec<(PathBuf, history::Id)>);

/// Commits that are remembered of one tree. When these are not enough nothing is excused any more: a job could make as many as it
/// takes to have one of them forgotten.
const MOST: usize = 1 << 16;
/// Where they are kept, in the state directory of the tree.
const FILE: &str = "distrusted";

impl Distrusted {
    /// Those of a tree.
    pub(crate) fn of(tree: &Tree) -> io::Result<Self> {
        Ok(store::read_if_known(&tree.state.join(FILE))?.unwrap_or_default())
    }

    /// The refs of a repository of the tree, which excuse nothing by these commits.
    pub(crate) fn tips(&self, tree: &Tree, git: &Path) -> history::Tips {
        if self.0.len() >= MOST {
            return history::Tips::unsupported("sandboxes made more commits than can be remembered");
        }
        // A linked worktree's directory lies in the repository's.
        let whole = normalise(&tree.path.join(git));
        let mut tips = history::tips(&whole);
        tips.distrust(self.0.iter().filter(|(at, _)| whole.starts_with(tree.path.join(at))).map(|(_, id)| *id));
        tips
    }

    /// Remembers what came into history during a run.
    pub(crate) fn remember(of_tree: &TreeRecord, tree: &Tree, now: &Snapshot) -> io::Result<()> {
        let known = |git: &Path| of_tree.repositories.iter().find(|repository| repository.git == git);
        // A worktree's own commits are in the repository's refs, too. One without history may have got some, and so has one
        // that came into being.
        let new = now.repositories().into_iter().flat_map(|git| {
            let before = known(&git).map(|repository| repository.tips.clone()).unwrap_or_default();
            let ids = history::tips(&tree.path.join(&git)).since(&before);
            ids.into_iter().map(move |id| (git.clone(), id))
        });
        let new: Vec<(PathBuf, history::Id)> = new.collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut known = Self::of(tree)?;
        let remembered: BTreeSet<(PathBuf, history::Id)> = known.0.iter().cloned().collect();
        known.0.extend(new.into_iter().filter(|one| !remembered.contains(one)));
        known.0.truncate(MOST);
        store::write(&tree.state.join(FILE), &known)
    }
}
