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
/// Above all marks. No limit that anybody sets is as high.
const MARKS: u64 = 1 << 62;
/// Marks of one init. Its number, of at most 22 bits (proc_pid_max(5)), tells them from another's that can be seen.
const MARKS_OF_ONE: u64 = 1 << 36;

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
    /// Who starts them and bears the mark of the last one, but belongs to none. 0 for the calling process.
    spawner: i32,
}

impl Jobs {
    /// Marks what the calling process starts first; later it may be confined.
    pub fn prepare() -> Self {
        let first = first_mark(getpid());
        Self { jobs: BTreeMap::new(), next: first, marks: set_mark(0, first).is_ok(), spawner: 0 }
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
            let (dead, left): (Vec<i32>, Vec<i32>) = self.of(job).into_iter().partition(|&pid| is_dead(pid));
            // First stop all, so that nothing forks while others are killed.
            for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
                for &pid in &left {
                    let _ = kill(Pid::from_raw(pid), signal);
                }
            }
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
        let mut own: Vec<i32> = match self.marks {
            true => pids().filter(|&pid| mark_of(pid) == Ok(job.mark)).collect(),
            false => self.of_by_parents(job, &parents()),
        };
        own.retain(|&pid| pid != self.spawner);
        own
    }

    fn of_by_parents(&self, job: &Job, parents: &[(i32, i32)]) -> Vec<i32> {
        if self.jobs.values().all(|other| std::ptr::eq(other, job)) {
            return descendants(getpid().as_raw(), parents);
        }
        // Without its first process nothing tells them, and another one may have its number.
        let leader = job.leads.then_some(job.pid.as_raw());
        leader.into_iter().flat_map(|pid| descendants(pid, parents).into_iter().chain([pid])).collect()
    }
}

fn first_mark(init: Pid) -> u64 {
    MARKS - u64::from(init.as_raw().unsigned_abs()) * MARKS_OF_ONE
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
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| is_of_dead(&stat))
}

/// Is this /proc/PID/stat of a process that has ended? One whose first thread has looks like a zombie while others go on.
fn is_of_dead(stat: &str) -> bool {
    // The name may hold anything, also ')'.
    let mut fields = stat.rsplit_once(") ").map_or("", |(_, after)| after).split(' ');
    let ended = fields.next().is_some_and(|state| matches!(state, "Z" | "X"));
    // num_threads of proc_pid_stat(5).
    ended && fields.nth(16).and_then(|threads| threads.parse().ok()).is_some_and(|threads: u32| threads <= 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;

    fn stat(pid: u32) -> String {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap()
    }

    fn becomes(pid: u32, wanted: impl Fn(&str) -> bool) -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            if wanted(&stat(pid)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn a_process_lives_as_long_as_a_thread_of_it() {
        let script = format!(
            "import threading, time, ctypes\n\
             threading.Thread(target=time.sleep, args=(60,)).start()\n\
             ctypes.CDLL(None).syscall({}, 0)",
            libc::SYS_exit
        );
        let mut child = Command::new("/usr/bin/python3").args(["-c", &script]).spawn().unwrap();
        assert!(becomes(child.id(), |stat| stat.contains(") Z ")), "its first thread has ended");
        assert!(!is_of_dead(&stat(child.id())));
        child.kill().unwrap();
        assert!(becomes(child.id(), is_of_dead));
        child.wait().unwrap();
        assert!(is_dead(child.id() as i32));
        assert!(!is_of_dead("1 (a) Z ) S 0 1 1"));
    }

    #[test]
    fn marks_of_two_inits_are_not_the_same() {
        let of = |pid| first_mark(Pid::from_raw(pid));
        assert_eq!(of(7) - of(8), MARKS_OF_ONE);
        assert!(of(1 << 22) > MARKS / 2, "above every limit that is meant");
    }

    #[test]
    fn who_starts_jobs_belongs_to_none_and_a_number_that_is_free_again_to_nobody() {
        let mut jobs = Jobs { jobs: BTreeMap::new(), next: first_mark(getpid()), marks: false, spawner: 0 };
        let child = Command::new("/bin/sleep").arg("60").spawn();
        let mut child = child.unwrap();
        let pid = child.id() as i32;
        jobs.started(1, Pid::from_raw(pid), Ends::Nothing);
        jobs.started(2, Pid::from_raw(pid), Ends::Nothing);
        assert_eq!(jobs.of(&jobs.jobs[&1]), [pid]);
        jobs.spawner = pid;
        assert!(jobs.of(&jobs.jobs[&1]).is_empty());
        jobs.spawner = 0;
        jobs.jobs.get_mut(&1).unwrap().leads = false;
        assert!(jobs.of(&jobs.jobs[&1]).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
