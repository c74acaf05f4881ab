//! Where the configuration of working trees leads whose repository is somewhere else: of linked worktrees, of submodules, and
//! of repositories that a tree is only a part of.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::git_config;

use crate::beneath::Root;
use crate::guard::caller::of_user;

/// Longer files are no configuration that git's own tools write.
const LONGEST: u64 = 1 << 20;

/// What the configuration for the working tree at `top` leads to: directories of hooks, and more configuration.
#[derive(Debug, Default)]
pub(super) struct Leads {
    pub(super) hooks: Vec<PathBuf>,
    pub(super) configuration: Vec<PathBuf>,
}

/// Where they lead, git-config(1): hooks from the top of the working tree, what is included from the file that includes it.
pub(super) fn leads(top: &Path, home: Option<&Path>) -> Leads {
    let mut leads = Leads::default();
    let Some(own) = git_directory(top) else { return leads };
    let common = match content(&own, "commondir") {
        Some(common) => own.join(line(&common)),
        None => own.clone(),
    };
    for (directory, name) in [(&common, "config"), (&own, "config.worktree")] {
        for (key, value) in git_config::entries(&content(directory, name).unwrap_or_default()) {
            let value = of_user(&value, home);
            if key == "core.hookspath" {
                leads.hooks.push(top.join(value));
            } else if is_include(&key) {
                leads.configuration.push(directory.join(value));
            }
        }
    }
    leads
}

/// Does this key name a file whose content git takes as if it stood there?
pub(in crate::guard) fn is_include(key: &str) -> bool {
    key == "include.path" || (key.starts_with("includeif.") && key.ends_with(".path"))
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
