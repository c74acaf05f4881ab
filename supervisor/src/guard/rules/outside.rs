//! Where the configuration of working trees leads whose repository is somewhere else: of linked worktrees, of submodules, and
//! of repositories that a tree is only a part of.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::guard::leads::{self, Lead, content};

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
        for lead in leads::leads(&content(directory, name).unwrap_or_default(), home) {
            match lead {
                Lead::Hooks(path) => leads.hooks.push(top.join(path)),
                Lead::Included(path) => leads.configuration.push(directory.join(path)),
            }
        }
    }
    leads
}

fn git_directory(top: &Path) -> Option<PathBuf> {
    let at = top.join(".git");
    if at.is_dir() {
        return Some(at);
    }
    Some(top.join(line(content(top, ".git")?.strip_prefix(b"gitdir: ")?)))
}

fn line(text: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(text.trim_ascii_end()))
}
