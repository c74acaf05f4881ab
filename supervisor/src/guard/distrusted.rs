//! Commits that sandboxes made: what only they hold is no excuse for the next run.

use std::io;
use std::path::{Path, PathBuf};

use super::history;
use super::run::TreeRecord;
use crate::state::{Tree, store};

/// Commits, by git directory.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Distrusted(Vec<(PathBuf, history::Id)>);

/// Commits that are remembered of one tree.
const MOST: usize = 4096;
/// Where they are kept, in the state directory of the tree.
const FILE: &str = "distrusted";

impl Distrusted {
    /// Those of a tree.
    pub(crate) fn of(tree: &Tree) -> io::Result<Self> {
        Ok(store::read_if_known(&tree.state.join(FILE))?.unwrap_or_default())
    }

    /// The refs of a repository of the tree, which excuse nothing by these commits.
    pub(crate) fn tips(&self, tree: &Tree, git: &Path) -> history::Tips {
        let mut tips = history::tips(&tree.path.join(git));
        tips.distrust(self.0.iter().filter(|(at, _)| at == git).map(|(_, id)| *id));
        tips
    }

    /// Remembers what came into history during a run.
    pub(crate) fn remember(of_tree: &TreeRecord, tree: &Tree) -> io::Result<()> {
        let new = of_tree.repositories.iter().flat_map(|repository| {
            // A worktree's own commits are in the repository's refs, too.
            let ids = if repository.tips.is_empty() {
                Vec::new()
            } else {
                history::tips(&tree.path.join(&repository.git)).since(&repository.tips)
            };
            ids.into_iter().map(|id| (repository.git.clone(), id))
        });
        let new: Vec<(PathBuf, history::Id)> = new.collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut known = Self::of(tree)?;
        known.0.extend(new);
        let excess = known.0.len().saturating_sub(MOST);
        known.0.drain(..excess);
        store::write(&tree.state.join(FILE), &known)
    }
}
