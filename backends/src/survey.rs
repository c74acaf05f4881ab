//! What the paths of a policy are on this machine, as data for [`crate::compile`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hermes_profiles::ospath;
use serde::Serialize;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A unix socket.
    Socket,
    /// A character or block device.
    Device,
    /// A FIFO or something else.
    Other,
}

/// A symlink that was crossed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Where it lies; free of symlinks itself.
    #[serde(with = "ospath")]
    pub at: PathBuf,
    /// What it holds.
    #[serde(with = "ospath")]
    pub to: PathBuf,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// Nothing there.
    Absent,
    /// It could not be looked at: the raw errno.
    Unreadable(i32),
    /// It is there.
    Present {
        /// The path free of symlinks.
        #[serde(with = "ospath")]
        real: PathBuf,
        /// What it is.
        kind: Kind,
        /// Device number.
        dev: u64,
        /// Inode number.
        ino: u64,
        /// Owner.
        uid: u32,
        /// Symlinks crossed on the way, in order.
        links: Vec<Link>,
    },
}

/// Facts about paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    facts: BTreeMap<PathBuf, Found>,
}

impl Survey {
    /// What is known of `path`; `Absent` when it was not asked for.
    pub fn get(&self, path: &Path) -> &Found {
        self.facts.get(path).unwrap_or(&Found::Absent)
    }

    /// Records a fact.
    pub fn insert(&mut self, path: impl Into<PathBuf>, found: Found) {
        self.facts.insert(path.into(), found);
    }
}
