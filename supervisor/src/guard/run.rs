//! A run as the next command finds it when its supervisor was killed: `$XDG_STATE_HOME/hermes-sandbox/runs/<run>/`.
//!
//! `record` says which trees the run could write and what held before its first process; `baseline-<n>` is the look at
//! the n-th tree from before; `files` and `links` are its shadow. The supervisor holds a lock on the directory while it
//! lives. Who can take the lock has a dead run before him, and settles it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hermes_profiles::{GuardRules, ospath};
use serde::{Deserialize, Serialize};

use super::history::Tips;
use super::snapshot::Held;
use crate::fresh;
use crate::state::{private_directory, store};

/// How long the kernel may take to end a sandbox whose supervisor died.
const DYING: Duration = Duration::from_secs(10);

/// What a run is known by.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Init: process id and start time in clock ticks since boot, proc_pid_stat(5).
    pub(crate) init: Option<(i32, u64)>,
    /// Name of the profile.
    pub(crate) profile: String,
    /// The command, for people.
    pub(crate) command: String,
    /// What the policy says about guarded files.
    pub(crate) rules: GuardRules,
    /// Trees of the host that were writable.
    pub(crate) trees: Vec<TreeRecord>,
    /// What the sandbox could read, and what of it was hidden: where symlinks may lead.
    pub(crate) readable: Readable,
}

/// One writable tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TreeRecord {
    /// Where it was.
    #[serde(with = "ospath")]
    pub(crate) path: PathBuf,
    /// Its state directory: a tree with another one is another tree.
    #[serde(with = "ospath")]
    pub(crate) state: PathBuf,
    /// What in it the sandbox could not write, relative to it.
    #[serde(with = "ospath::list")]
    pub(crate) skips: Vec<PathBuf>,
    /// Its repositories: git directory relative to the tree, refs, number of its shadow.
    pub(crate) repositories: Vec<Repository>,
}

impl TreeRecord {
    /// The innermost git directory that holds `path`.
    pub(crate) fn repository_around(&self, path: &Path) -> Option<&Repository> {
        let around = self.repositories.iter().filter(|repository| path.starts_with(&repository.git));
        around.max_by_key(|repository| repository.git.components().count())
    }
}

/// One repository.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Repository {
    /// The git directory, relative to the tree.
    #[serde(with = "ospath")]
    pub(crate) git: PathBuf,
    /// What its refs pointed to.
    pub(crate) tips: Tips,
    /// Its directory below the run's `files`, when jobs see private copies of its hooks and configuration.
    pub(crate) shadow: Option<u32>,
    /// Did we make the directory of hooks?
    pub(crate) made_hooks: bool,
}

/// What the host itself wrote while the sandbox lived: it counts as what was there before, but jobs never saw it.
pub(crate) type Believed = Vec<(PathBuf, Held)>;

/// Absolute paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Readable {
    /// Granted.
    #[serde(with = "ospath::list")]
    pub(crate) granted: Vec<PathBuf>,
    /// Hidden in what is granted.
    #[serde(with = "ospath::list")]
    pub(crate) hidden: Vec<PathBuf>,
}

/// The directory of one run, locked.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) dir: PathBuf,
    _lock: File,
}

impl Run {
    /// Makes the directory of a new run.
    pub(crate) fn begin(state_dir: &Path) -> io::Result<Self> {
        let runs = state_dir.join("runs");
        private_directory(&runs, true)?;
        let mut number = 0u32;
        let pid = std::process::id();
        loop {
            let dir = runs.join(format!("{pid}-{number}"));
            match DirBuilder::new().mode(0o700).create(&dir) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(e),
                Ok(()) => {
                    let lock = File::open(&dir)?;
                    // Another one may be looking whether we live.
                    lock.lock()?;
                    std::fs::write(dir.join("secret"), fresh::random::<32>()?)?;
                    return Ok(Self { dir, _lock: lock });
                }
            }
        }
    }

    /// The runs of others, dead ones locked by us.
    pub(crate) fn others(state_dir: &Path) -> io::Result<(Vec<Run>, Vec<PathBuf>)> {
        let (mut dead, mut live) = (Vec::new(), Vec::new());
        let entries = match std::fs::read_dir(state_dir.join("runs")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((dead, live)),
            entries => entries?,
        };
        for entry in entries {
            let dir = entry?.path();
            // It may end while we look.
            let Ok(lock) = File::open(&dir) else { continue };
            match lock.try_lock() {
                // One without a record has run nothing, and may be about to begin.
                Ok(()) if dir.join("record").exists() || is_old(&lock) => dead.push(Run { dir, _lock: lock }),
                Ok(()) => {}
                Err(_) => live.push(dir),
            }
        }
        Ok((dead, live))
    }

    pub(crate) fn name(&self) -> String {
        self.dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Was it begun not so long ago that its tree will not be seen again?
    pub(crate) fn is_recent(&self) -> bool {
        let began = self.record_path().metadata().and_then(|meta| meta.modified());
        began.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < LOST))
    }

    /// What no job knows. The run's name is no secret: it stands in what jobs read of their own mounts, proc_pid_mountinfo(5).
    pub(crate) fn secret(&self) -> Vec<u8> {
        std::fs::read(self.dir.join("secret")).unwrap_or_default()
    }

    pub(crate) fn record_path(&self) -> PathBuf {
        self.dir.join("record")
    }

    pub(crate) fn baseline_path(dir: &Path, tree: usize) -> PathBuf {
        dir.join(format!("baseline-{tree}"))
    }

    pub(crate) fn believed_path(dir: &Path, tree: usize) -> PathBuf {
        dir.join(format!("believed-{tree}"))
    }

    /// Private copies of the n-th shadow.
    pub(crate) fn files(dir: &Path, shadow: u32) -> PathBuf {
        dir.join("files").join(shadow.to_string())
    }

    /// The record of a run, when it came so far that a process of it can have run.
    pub(crate) fn record(dir: &Path) -> io::Result<Option<Record>> {
        match store::read(&dir.join("record")) {
            Ok(record) => Ok(Some(record)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Ends the run: its directory goes.
    pub(crate) fn end(self) -> io::Result<()> {
        // First what makes it a run to be settled.
        match std::fs::remove_file(self.record_path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        crate::scratch::remove(&self.dir)
    }
}

/// A tree that was not seen for so long was removed.
const LOST: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// What was begun this long ago and has no record was given up.
const FORSAKEN: Duration = Duration::from_secs(60);

fn is_old(dir: &File) -> bool {
    dir.metadata().and_then(|meta| meta.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|age| age > FORSAKEN))
}

/// Waits until a process is gone. Returns whether it is.
pub(crate) fn wait_for_death(init: (i32, u64)) -> bool {
    let end = Instant::now() + DYING;
    while start_time(init.0) == Some(init.1) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// When a process was started: field 22 of proc_pid_stat(5). `None` when it is gone, or only waits to be reaped.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, a closing bracket too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_dead_when_its_lock_can_be_taken() {
        let state = tempfile::tempdir().unwrap();
        let run = Run::begin(state.path()).unwrap();
        let second = Run::begin(state.path()).unwrap();
        assert_ne!(run.dir, second.dir);
        let (dead, live) = Run::others(state.path()).unwrap();
        assert_eq!((dead.len(), live.len()), (0, 2));
        let Run { dir, _lock } = run;
        drop(_lock);
        assert!(Run::others(state.path()).unwrap().0.is_empty(), "it may be about to begin");
        std::fs::write(dir.join("record"), "").unwrap();
        let (mut dead, live) = Run::others(state.path()).unwrap();
        assert_eq!((dead.len(), live), (1, vec![second.dir.clone()]));
        assert_eq!(dead[0].dir, dir);
        dead.pop().unwrap().end().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn the_start_time_tells_a_process_from_another_with_its_number() {
        let own = std::process::id() as i32;
        assert!(start_time(own).unwrap() > 0);
        assert!(wait_for_death((own, start_time(own).unwrap() + 1)));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(start_time(child.id() as i32), None);
    }
}
