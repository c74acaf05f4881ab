//! Where git's configuration leads: directories of hooks, and more configuration, git-config(1).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::git_config;

use crate::beneath::Root;

/// Longer files are no configuration that git's own tools write.
const LONGEST: u64 = 1 << 20;

/// A path as configuration names it, but with the home directory for `~/`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// From the top of the working tree: where hooks are.
    Hooks(PathBuf),
    /// From the directory of the file that names it: what git takes as if it stood there.
    Included(PathBuf),
}

/// All that a configuration with this content leads to.
pub(super) fn leads(content: &[u8], home: Option<&Path>) -> Vec<Lead> {
    let lead = |(key, value): (String, Vec<u8>)| match key.as_str() {
        "core.hookspath" => Some(Lead::Hooks(of_user(&value, home))),
        key if is_include(key) => Some(Lead::Included(of_user(&value, home))),
        _ => None,
    };
    git_config::entries(content).into_iter().filter_map(lead).collect()
}

fn is_include(key: &str) -> bool {
    key == "include.path" || (key.starts_with("includeif.") && key.ends_with(".path"))
}

fn of_user(value: &[u8], home: Option<&Path>) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(value));
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

/// What a regular file holds. Nothing that blocks is opened, and no symlink followed.
pub(super) fn content(directory: &Path, name: impl AsRef<Path>) -> Option<Vec<u8>> {
    Some(Root::open(directory).ok()?.read(name.as_ref(), LONGEST).ok()?.0)
}
