//! Where `core.hooksPath` leads from working trees whose repository is somewhere else: linked worktrees, submodules, and
//! repositories that a tree is only a part of. A relative one starts at the top of the working tree, git-config(1).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::git_config;

use crate::beneath::Root;

/// Longer files are no configuration that git's own tools write.
const LONGEST: u64 = 1 << 20;

/// The directories that hooks are taken from in the working tree at `top`.
pub(super) fn directories(top: &Path) -> Vec<PathBuf> {
    let Some(own) = git_directory(top) else { return Vec::new() };
    let common = match content(&own, "commondir") {
        Some(common) => own.join(line(&common)),
        None => own.clone(),
    };
    let texts = [content(&common, "config"), content(&own, "config.worktree")];
    let entries = texts.into_iter().flatten().flat_map(|text| git_config::entries(&text));
    entries.filter(|(key, _)| key == "core.hookspath").map(|(_, value)| top.join(OsStr::from_bytes(&value))).collect()
}

fn git_directory(top: &Path) -> Option<PathBuf> {
    let at = top.join(".git");
    if at.is_dir() {
        return Some(at);
    }
    Some(top.join(line(content(top, ".git")?.strip_prefix(b"gitdir: ")?)))
}

/// What a regular file holds. Nothing that blocks is opened, and no symlink followed.
fn content(directory: &Path, name: &str) -> Option<Vec<u8>> {
    Some(Root::open(directory).ok()?.read(Path::new(name), LONGEST).ok()?.0)
}

fn line(text: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(text.trim_ascii_end()))
}
