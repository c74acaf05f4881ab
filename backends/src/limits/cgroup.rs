//! Control groups: where we may make one, and the one that a sandbox lives in.

mod files;
mod find;

use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub use files::Events;
pub use find::{detect, memory_limit};

use super::TreeLimits;
use crate::host::CgroupAccess;
use crate::step::{At, Step, StepError, errno_of};
use files::{Hierarchy, Kind};

/// Start of the name of every control group of ours: `hermes-sandbox-PID-RANDOM`.
pub const PREFIX: &str = "hermes-sandbox-";

/// How long the removal of an emptied group is tried: killed processes take a moment to leave it.
const REMOVAL: Duration = Duration::from_secs(2);

/// The control group of one sandbox; with v1, one directory in each hierarchy. Dropping it kills what is inside and
/// removes it.
#[derive(Debug)]
pub struct Cgroup {
    leaves: Vec<Leaf>,
}

#[derive(Debug)]
struct Leaf {
    kind: Kind,
    directory: PathBuf,
    procs: File,
    /// Held as long as we live: who can take it knows that we are gone.
    _lock: Flock<File>,
}

impl Cgroup {
    /// Makes a control group with `limits`, and removes what killed supervisors left beside it.
    ///
    /// # Errors
    /// The file that could not be written; `EOPNOTSUPP` when a limit has no controller here. Nothing is left behind.
    pub fn create(access: &CgroupAccess, limits: &TreeLimits) -> Result<Self, StepError> {
        let hierarchies = files::hierarchies(access);
        if let Some(missing) = files::missing(&hierarchies, limits) {
            return Err(StepError::on(Step::Cgroup, missing, Errno::EOPNOTSUPP));
        }
        sweep(access);
        let name = format!("{PREFIX}{}-{:08x}", std::process::id(), std::hash::RandomState::new().build_hasher().finish() as u32);
        let mut group = Self { leaves: Vec::with_capacity(hierarchies.len()) };
        for hierarchy in hierarchies {
            group.leaves.push(Leaf::make(&hierarchy, &name)?);
            for setting in files::settings(&hierarchy, limits) {
                let path = hierarchy.directory.join(&name).join(setting.file);
                match write(&path, &setting.value) {
                    Err(Errno::ENOENT) if setting.optional => {}
                    result => result.at_path(Step::Cgroup, path)?,
                }
            }
        }
        Ok(group)
    }

    /// `cgroup.procs` files. A process that writes `0` to each is in the group; the rights are those of who opened them.
    pub fn procs(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.leaves.iter().map(|leaf| leaf.procs.as_fd())
    }

    /// Moves a process into the group.
    pub fn add(&self, pid: Pid) -> Result<(), StepError> {
        for leaf in &self.leaves {
            nix::unistd::write(&leaf.procs, pid.to_string().as_bytes()).at_path(Step::Cgroup, &leaf.directory)?;
        }
        Ok(())
    }

    /// What happened in the group so far.
    pub fn events(&self) -> Events {
        let read = |leaf: &Leaf, file: &str| std::fs::read_to_string(leaf.directory.join(file)).unwrap_or_default();
        self.leaves.iter().fold(Events::default(), |events, leaf| events.with(leaf.kind, |file| read(leaf, file)))
    }

    /// Kills everything in the group, and what it forks meanwhile. Nothing can be started in it afterwards where
    /// processes are counted.
    pub fn kill(&self) {
        for leaf in &self.leaves {
            let _ = write(&leaf.directory.join("pids.max"), "0");
        }
        for leaf in &self.leaves {
            kill_all(&leaf.directory);
            let deadline = Instant::now() + REMOVAL;
            while !members(&leaf.directory).is_empty() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
                kill_all(&leaf.directory);
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for leaf in &self.leaves {
            remove(&leaf.directory);
        }
    }
}

impl Leaf {
    fn make(hierarchy: &Hierarchy<'_>, name: &str) -> Result<Self, StepError> {
        let directory = hierarchy.directory.join(name);
        std::fs::create_dir(&directory).at_path(Step::Cgroup, &directory)?;
        Self::open(hierarchy.kind, &directory).inspect_err(|_| remove(&directory))
    }

    fn open(kind: Kind, directory: &Path) -> Result<Self, StepError> {
        let lock = lock(directory).at_path(Step::Cgroup, directory)?;
        let procs = File::options().write(true).open(directory.join("cgroup.procs")).at_path(Step::Cgroup, directory)?;
        Ok(Self { kind, directory: directory.to_owned(), procs, _lock: lock })
    }
}

fn lock(directory: &Path) -> Result<Flock<File>, Errno> {
    let open = File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(directory);
    let file = open.map_err(errno_of)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)
}

fn write(path: &Path, value: &str) -> Result<(), Errno> {
    let file = nix::fcntl::open(path, nix::fcntl::OFlag::O_WRONLY | nix::fcntl::OFlag::O_CLOEXEC, nix::sys::stat::Mode::empty())?;
    nix::unistd::write(file, value.as_bytes()).map(drop)
}

/// Kills what is in `directory` at this moment.
fn kill_all(directory: &Path) {
    // One write from 5.14 on; before, and in v1, one by one.
    if write(&directory.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let _ = write(&directory.join("cgroup.freeze"), "1");
    for pid in members(directory) {
        let _ = kill(pid, Signal::SIGKILL);
    }
    let _ = write(&directory.join("cgroup.freeze"), "0");
}

fn members(directory: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    // A process outside our pid namespace reads as 0, which kill(2) would take for our own group.
    text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid > 0).map(Pid::from_raw).collect()
}

fn remove(directory: &Path) {
    let deadline = Instant::now() + REMOVAL;
    let mut pause = Duration::from_micros(200);
    let _ = write(&directory.join("pids.max"), "0");
    while let Err(error) = std::fs::remove_dir(directory) {
        if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() > deadline {
            return;
        }
        kill_all(directory);
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Removes the groups of sandboxes whose supervisor is gone, with what is still in them.
pub fn sweep(access: &CgroupAccess) {
    for hierarchy in files::hierarchies(access) {
        for entry in std::fs::read_dir(hierarchy.directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let stale = owner(&name.to_string_lossy()).is_some_and(is_gone);
            // The number may mean somebody else in our pid namespace; the lock does not.
            if stale && let Ok(_lock) = lock(&entry.path()) {
                remove(&entry.path());
            }
        }
    }
}

/// The process that made the group called `name`, if it is one of ours.
fn owner(name: &str) -> Option<Pid> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok().filter(|&pid: &i32| pid > 0).map(Pid::from_raw)
}

fn is_gone(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests;
