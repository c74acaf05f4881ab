//! What is kept about every workspace of the caller, also about those that are gone.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::checkpoint;
use super::layer::{self, Found};
use super::report;
use crate::error::Error;
use crate::output;
use crate::state::Tree;

/// A workspace that something is kept about.
struct Place {
    /// Where it was when something was kept last.
    path: PathBuf,
    state: PathBuf,
    /// Deleted, or renamed, or another one by now.
    gone: bool,
}

fn places(state_dir: &Path) -> Vec<Place> {
    let entries = std::fs::read_dir(state_dir.join("trees")).into_iter().flatten().flatten();
    let place = |state: PathBuf| {
        let path = PathBuf::from(OsString::from_vec(std::fs::read(state.join("path")).ok()?));
        let some = !(layer::numbers(&state).is_empty() && checkpoint::numbers(&state).is_empty());
        let here = Tree::open(state_dir, &path, false).ok().flatten().is_some_and(|tree| tree.state == state);
        some.then_some(Place { path, state, gone: !here })
    };
    let mut places: Vec<Place> = entries.filter_map(|entry| place(entry.path())).collect();
    places.sort_by(|a, b| (&a.path, &a.state).cmp(&(&b.path, &b.state)));
    places
}

/// All that waits, by workspace. Only looks.
pub(crate) fn list(state_dir: &Path, json: bool) -> Result<(), Error> {
    let places = places(state_dir);
    if json {
        let place = |place: &Place| {
            json!({
                "workspace": output::path(&place.path),
                "gone": place.gone,
                "layers": layer::numbers(&place.state),
                "checkpoints": checkpoint::numbers(&place.state),
            })
        };
        return output::print_json(&places.iter().map(place).collect::<Vec<_>>());
    }
    let mut text = String::new();
    if places.is_empty() {
        text.push_str("nothing waits for any workspace\n");
    }
    for place in &places {
        let gone = if place.gone { "  (deleted or renamed)" } else { "" };
        _ = writeln!(text, "{}{gone}", output::path(&place.path));
        for number in layer::numbers(&place.state) {
            _ = writeln!(
                text,
                "  layer {number}       {}",
                layer::last_begun(&place.state, number).map_or_else(String::new, report::moment)
            );
        }
        for (number, manifest) in checkpoint::list_in(&place.state) {
            _ = writeln!(text, "  checkpoint {number}  {}  {}", report::moment(manifest.taken), output::clean(&manifest.why));
        }
    }
    output::print(&text)
}

/// Throws away what is kept about a workspace that is gone: one layer, or all layers and checkpoints. `None` when it is
/// there, or when nothing is known about it.
pub(crate) fn discard(state_dir: &Path, workspace: &Path, number: Option<u64>) -> Result<Option<(usize, usize)>, Error> {
    let places = places(state_dir);
    let gone: Vec<&Place> = places.iter().filter(|place| place.gone && place.path == workspace).collect();
    if gone.is_empty() || workspace.exists() {
        return Ok(None);
    }
    let (mut layers, mut checkpoints) = (0, 0);
    for place in gone {
        for found in layer::find_in(&place.state).into_iter().filter(|found| number.is_none_or(|number| number == found.number()))
        {
            match found {
                Found::Busy(number) => {
                    return Err(Error::setup(format!("a sandbox has layer {number} of {}", output::path(workspace)))
                        .hint("wait for it to end, or end it; then do it again"));
                }
                Found::Free(layer) => {
                    layer.discard();
                    layers += 1;
                }
            }
        }
        if number.is_none() {
            for number in checkpoint::numbers(&place.state) {
                layer::remove(&place.state.join("checkpoints").join(number.to_string()));
                checkpoints += 1;
            }
        }
    }
    Ok(Some((layers, checkpoints)))
}
