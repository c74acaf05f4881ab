//! The jobs of a sandbox, and which process belongs to which.
//!
//! Sessions, groups and parents say nothing: a job leaves them all with two forks and setsid(2). So every job's processes bear
//! a [mark](super::sys::thread::set_mark) that they inherit and cannot change. Where it cannot be set (in the sandbox of
//! another one like this, whose filter keeps it), the children of a job are found by their parents, and what was left to init
//! dies with any job while no other one lives.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, getpid};

use super::sys::thread::{mark_of, set_mark};
use super::tree::{descendants, parents};
use crate::wire::{Ends, JobId};

/// How long the kill of one job may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first mark; later ones are less. No limit that anybody sets is as high.
const FIRST: u64 = 1 << 62;

/// A job that runs, or one that has left something.
#[derive(Debug)]
pub struct Job {
    pid: Pid,
    /// Does its first process live?
    leads: bool,
    ends: Ends,
    mark: u64,
}

/// What has ended with a process.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    /// The job that it led.
    pub job: JobId,
    /// What ends with it.
    pub ends: Ends,
}

/// The table.
#[derive(Debug)]
pub struct Jobs {
    jobs: BTreeMap<JobId, Job>,
    /// The mark of the next job.
    next: u64,
    /// Can marks be set?
    marks: bool,
    /// The process that starts jobs, 0 when that is init itself. It bears the mark of the latest one, and is none of its processes.
    spawner: i32,
}

impl Jobs {
    /// Marks what the calling process starts first; later it may be confined.
    pub fn prepare() -> Self {
        Self { jobs: BTreeMap::new(), next: FIRST, marks: set_mark(0, FIRST).is_ok(), spawner: 0 }
    }

    /// Marks what `process` (0: the calling one) starts next.
    pub fn mark_next(&mut self, process: i32) {
        self.spawner = process;
        self.marks = self.marks && set_mark(process, self.next).is_ok();
    }

    /// A job was started with the mark of the moment.
    pub fn started(&mut self, job: JobId, pid: Pid, ends: Ends) {
        self.jobs.insert(job, Job { pid, leads: true, ends, mark: self.next });
        self.next -= 1;
    }

    /// The first process of a job, while it lives.
    pub fn leader(&self, job: JobId) -> Option<Pid> {
        self.jobs.get(&job).filter(|job| job.leads).map(|job| job.pid)
    }

    /// The job that a process leads.
    pub fn led_by(&self, pid: Pid) -> Option<JobId> {
        self.jobs.iter().find(|(_, job)| job.leads && job.pid == pid).map(|(id, _)| *id)
    }

    /// The first process of a job has ended: kills what was to end with it.
    pub fn ended(&mut self, id: JobId) -> Option<Ended> {
        let job = self.jobs.get_mut(&id)?;
        job.leads = false;
        let ended = Ended { job: id, ends: job.ends };
        match job.ends {
            Ends::Tree => {
                self.kill_left(id);
                self.jobs.remove(&id);
            }
            Ends::Sandbox => drop(self.jobs.remove(&id)),
            Ends::Nothing => {}
        }
        if nobody_is_left() {
            self.jobs.retain(|_, job| job.leads);
        }
        Some(ended)
    }

    /// Kills a job and what it has left. `None` when the sandbox ends with it, which kills more.
    pub fn kill(&mut self, id: JobId) -> Option<()> {
        let job = self.jobs.get(&id)?;
        if job.ends == Ends::Sandbox && job.leads {
            return None;
        }
        self.kill_left(id);
        self.jobs.retain(|known, job| *known != id || job.leads);
        Some(())
    }

    /// Kills all processes of a job until there are none. Its first one is left for the reaper.
    fn kill_left(&self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        if !job.leads && nobody_is_left() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        // Once is not enough: what is forked behind the reader of /proc is missed, and its parent has gone.
        let mut empty = 0;
        while empty < 2 && Instant::now() < until {
            let own = self.of(job);
            // First stop all, so that nothing forks while others are killed.
            for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
                for &pid in &own {
                    let _ = kill(Pid::from_raw(pid), signal);
                }
            }
            let (dead, left): (Vec<i32>, Vec<i32>) = own.into_iter().partition(|&pid| is_dead(pid));
            for pid in dead.into_iter().filter(|&pid| !job.leads || pid != job.pid.as_raw()) {
                let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
            }
            empty = if left.is_empty() { empty + 1 } else { 0 };
            if empty == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// The processes of a job.
    fn of(&self, job: &Job) -> Vec<i32> {
        if self.marks {
            return pids().filter(|&pid| pid != self.spawner && mark_of(pid) == Ok(job.mark)).collect();
        }
        let parents = parents();
        let mut own = descendants(job.pid.as_raw(), &parents);
        own.push(job.pid.as_raw());
        if self.jobs.values().all(|other| std::ptr::eq(other, job)) {
            own = descendants(getpid().as_raw(), &parents);
        }
        own.retain(|&pid| pid != self.spawner);
        own
    }
}

/// Has init no children any more?
fn nobody_is_left() -> bool {
    waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) == Err(Errno::ECHILD)
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = getpid().as_raw();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(move |&pid| pid != own)
}

/// Is it a zombie, or gone?
fn is_dead(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The name may hold anything, also ')'.
    stat.rsplit_once(") ").is_some_and(|(_, after)| after.starts_with(['Z', 'X']))
}
