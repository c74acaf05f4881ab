//! What a diff shows of the changes of a layer.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::layer::Ground;
use super::node::{self, Kind, Stamp};
use super::scan::{Change, same_things};
use crate::beneath::Root;
use crate::diff::{self, Line, Side};

/// Longer files are not looked into.
const LONGEST: u64 = 32 << 20;

/// The difference of one change.
pub(crate) fn lines(change: &Change, ground: &Ground) -> io::Result<Vec<Line>> {
    let differ = || match (change.before, change.after) {
        (Some(before), Some(after)) => !same_things(&ground.lower, &before, &ground.upper, &after, &change.path),
        _ => true,
    };
    with_sides(change, ground, |old, new| match (old, new) {
        (None, None) => Vec::new(),
        (old, new) => diff::lines(&change.path, old, new, &differ),
    })
}

/// How many lines of one change came and went; `None` for binary files.
pub(crate) fn count(change: &Change, ground: &Ground) -> io::Result<Option<(usize, usize)>> {
    with_sides(change, ground, diff::count)
}

/// What a diff shows: files and symlinks.
pub(crate) fn shown(stamp: Option<Stamp>) -> Option<Stamp> {
    stamp.filter(|stamp| matches!(stamp.kind(), Kind::File | Kind::Symlink))
}

fn with_sides<T>(change: &Change, ground: &Ground, what: impl FnOnce(Option<Side<'_>>, Option<Side<'_>>) -> T) -> io::Result<T> {
    let read = |root, stamp| shown(stamp).map(|stamp| Ok::<_, io::Error>((stamp.mode, content(root, &change.path, &stamp)?)));
    let (old, new) = (read(&ground.lower, change.before).transpose()?, read(&ground.upper, change.after).transpose()?);
    Ok(what(side(&old), side(&new)))
}

fn side(read: &Option<(u32, Option<Vec<u8>>)>) -> Option<Side<'_>> {
    read.as_ref().map(|(mode, content)| Side { mode: *mode, content: content.as_deref() })
}

fn content(root: &Root, path: &Path, stamp: &Stamp) -> io::Result<Option<Vec<u8>>> {
    match stamp.kind() {
        Kind::Symlink => Ok(Some(node::target(root, path)?.as_os_str().as_bytes().to_vec())),
        _ => Ok(node::content(root, path, LONGEST)?),
    }
}
