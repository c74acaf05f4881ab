//! What the program put aside, read from `quarantine list --json`, and what a path of the host holds.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::outcome::{Outcome, run_to_end};
use crate::sandbox::Sandbox;

/// Files up to this size are compared by content.
const COMPARED: u64 = 8 << 20;

/// One thing that was put aside.
#[derive(Debug, Clone)]
pub struct Aside {
    /// What `show`, `diff`, `restore` and `approve` take.
    pub id: String,
    /// Where it was, relative to its tree.
    pub path: String,
    /// Everything that the list tells about it.
    pub value: Value,
}

impl Aside {
    fn new(value: Value) -> Self {
        let path = value["path"].as_str().expect("an entry has a path").to_owned();
        Self { id: value["id"].to_string(), path, value }
    }

    /// Is this about a path, or about a directory that holds it or lies below it?
    pub fn concerns(&self, path: &str) -> bool {
        let (own, other) = (Path::new(&self.path), Path::new(path));
        own.starts_with(other) || other.starts_with(own)
    }
}

impl Sandbox {
    /// `hermes-sandbox quarantine ARGV --workspace DIR`.
    pub fn quarantine_command<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.hermes();
        command.arg("quarantine").args(argv).arg("--workspace").arg(&self.workspace);
        command
    }

    /// Runs it.
    pub fn quarantine<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Outcome {
        run_to_end(&mut self.quarantine_command(argv))
    }

    /// What lies in the quarantine of the workspace.
    #[track_caller]
    pub fn put_aside(&self) -> Vec<Aside> {
        let listed = self.quarantine(["list", "--json"]);
        listed.ok();
        let values: Vec<Value> = serde_json::from_slice(&listed.stdout)
            .unwrap_or_else(|error| panic!("not a list in JSON: {error}\n{}", listed.report()));
        values.into_iter().map(Aside::new).collect()
    }

    /// The one thing in the quarantine that concerns this path.
    #[track_caller]
    pub fn put_aside_at(&self, path: &str) -> Aside {
        let all = self.put_aside();
        let found: Vec<_> = all.iter().filter(|one| one.concerns(path)).collect();
        assert_eq!(found.len(), 1, "entries that concern {path} among {all:#?}");
        found[0].clone()
    }

    /// Insists that nothing was put aside, by what the run said and by the list.
    #[track_caller]
    pub fn assert_nothing_put_aside(&self, run: &Outcome) {
        run.never_says("quarantine list");
        let all = self.put_aside();
        assert!(all.is_empty(), "put aside: {all:#?}\n{}", run.report());
    }

    /// Where the program keeps what it put aside, among other state.
    pub fn state_dir(&self) -> PathBuf {
        self.home.join(".local/state/hermes-sandbox")
    }
}

/// What stands at a path, as a tool of the host would find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Nothing.
    Absent,
    /// A file with this content.
    File(Vec<u8>),
    /// A file too big to read: its size.
    Big(u64),
    /// A symbolic link, and what reading through it gives.
    Link(PathBuf, Option<Vec<u8>>),
    /// A directory.
    Directory,
    /// Anything else, with its mode.
    Other(u32),
}

impl Seen {
    /// Looks there. Links in the parents are followed.
    pub fn at(path: &Path) -> Self {
        let Ok(meta) = fs::symlink_metadata(path) else { return Self::Absent };
        if meta.is_symlink() {
            let target = fs::read_link(path).unwrap_or_default();
            let regular = fs::metadata(path).is_ok_and(|meta| meta.is_file());
            return Self::Link(target, regular.then(|| fs::read(path).unwrap_or_default()));
        }
        match meta {
            meta if meta.is_dir() => Self::Directory,
            meta if meta.is_file() && meta.len() > COMPARED => Self::Big(meta.len()),
            meta if meta.is_file() => Self::File(fs::read(path).unwrap_or_default()),
            meta => Self::Other(meta.mode()),
        }
    }
}
