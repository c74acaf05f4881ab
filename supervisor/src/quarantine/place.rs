//! Whose quarantine a command is about: trees that runs could write, and the directories that are kept about them.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::guard::quarantine::Quarantine;
use crate::output;
use crate::state::Tree;

/// A tree that a run could write once.
#[derive(Debug)]
pub(crate) struct Place {
    /// Where it is, or was when it was last seen.
    pub(crate) path: PathBuf,
    /// The directory that is kept about it.
    pub(crate) state: PathBuf,
    /// The tree, if it is still there.
    pub(crate) tree: Option<Tree>,
}

impl Place {
    /// The line above what is listed of it.
    pub(crate) fn title(&self) -> String {
        let gone = if self.tree.is_none() { " (gone or moved)" } else { "" };
        format!("{}{gone}\n", output::path(&self.path))
    }

    /// What was put aside in it.
    pub(crate) fn quarantine(&self) -> Quarantine {
        Quarantine::new(&self.state)
    }
}

impl From<Tree> for Place {
    fn from(tree: Tree) -> Self {
        Self { path: tree.path.clone(), state: tree.state.clone(), tree: Some(tree) }
    }
}

/// The trees that `dir` is or lies in, the innermost first. A directory that has gone is known by where it was.
pub(crate) fn around(state_dir: &Path, dir: &Path) -> Result<Vec<Place>, Error> {
    let Ok(real) = dir.canonicalize() else {
        let gone = hermes_profiles::paths::normalise(dir);
        let places: Vec<Place> = all(state_dir)?.into_iter().filter(|place| place.tree.is_none() && place.path == gone).collect();
        return match places.is_empty() {
            true => Err(Error::usage(format!("there is no directory {}", output::path(dir)))
                .hint("`hermes-sandbox quarantine list --all` shows all that have a quarantine")),
            false => Ok(places),
        };
    };
    let mut places = Vec::new();
    for ancestor in real.ancestors() {
        if let Some(tree) = Tree::open(state_dir, ancestor, false)? {
            // Once more, to note where it is now if it was renamed. Who only looks does without.
            let noted = Tree::open(state_dir, ancestor, true).ok().flatten();
            places.push(noted.unwrap_or(tree).into());
        }
    }
    Ok(places)
}

/// All trees of this user, by path.
pub(crate) fn all(state_dir: &Path) -> Result<Vec<Place>, Error> {
    let trees = state_dir.join("trees");
    let cannot = |e: io::Error| Error::setup(format!("cannot look into {}: {e}", output::path(&trees)));
    let entries = match std::fs::read_dir(&trees) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(cannot)?,
    };
    let mut places = Vec::new();
    for entry in entries {
        let state = entry.map_err(cannot)?.path();
        // One that is only being made has none yet.
        let Ok(path) = std::fs::read(state.join("path")) else { continue };
        let path = PathBuf::from(OsString::from_vec(path));
        let tree = Tree::open(state_dir, &path, false).ok().flatten().filter(|tree| tree.state == state);
        places.push(Place { path, state, tree });
    }
    places.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(places)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_found_from_inside_and_after_they_were_renamed_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (state, outer) = (base.join("state"), base.join("outer"));
        std::fs::create_dir_all(outer.join("inner/sub")).unwrap();
        let paths = |dir: &Path| around(&state, dir).unwrap().into_iter().map(|place| place.path).collect::<Vec<_>>();
        assert_eq!(paths(&outer), [] as [PathBuf; 0]);
        assert!(all(&state).unwrap().is_empty());
        let tree = Tree::open(&state, &outer, true).unwrap().unwrap();
        assert_eq!(paths(&outer.join("inner/sub")), [&*outer]);
        Tree::open(&state, &outer.join("inner"), true).unwrap().unwrap();
        assert_eq!(paths(&outer.join("inner/sub")), [outer.join("inner"), outer.clone()]);
        assert_eq!(paths(&base), [] as [PathBuf; 0], "not one further in");
        let moved = base.join("moved");
        std::fs::rename(&outer, &moved).unwrap();
        let gone = around(&state, &outer).unwrap();
        assert!(gone.len() == 1 && gone[0].tree.is_none() && gone[0].state == tree.state);
        let found = around(&state, &moved).unwrap();
        assert!(found[0].tree.is_some() && found[0].state == tree.state);
        let all = all(&state).unwrap();
        assert_eq!(all.iter().map(|place| &*place.path).collect::<Vec<_>>(), [&moved, &outer.join("inner")].map(|p| &**p));
        assert!(all[0].tree.is_some() && all[1].tree.is_none(), "the inner one was not looked at since");
        assert_eq!(around(&state, &base.join("never")).unwrap_err().kind.status(), 125);
    }
}
