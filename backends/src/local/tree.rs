//! The tree of processes below init, where no pid namespace holds it (Landlock tier).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

use crate::limits::watchdog;

/// How long a kill may take: what forks without end can outrun it.
const PATIENCE: Duration = Duration::from_secs(5);

pub fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name may hold anything, also ')'.
            let after = stat.rsplit_once(") ")?.1;
            let parent = after.split(' ').nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}

/// Pids below `root`, from (pid, parent) pairs.
pub fn descendants(root: i32, parents: &[(i32, i32)]) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for &(pid, parent) in parents {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for &child in children.get(&pid).into_iter().flatten() {
            if child != root && !found.contains(&child) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

/// Kills and reaps everything below the calling process, also what left its session; it must be a subreaper. For hosts
/// where Landlock does not scope signals: elsewhere the kernel finds the processes, and better.
pub fn kill_descendants() {
    let own = getpid().as_raw();
    let until = Instant::now() + PATIENCE;
    // Once is not enough: what is forked behind the reader of /proc is missed, and its parent has gone.
    let mut empty = 0;
    while empty < 2 && Instant::now() < until {
        let below = descendants(own, &parents());
        // First stop all, so that nothing forks while others are killed.
        for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
            for &pid in &below {
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
        empty = if reap() && below.is_empty() { empty + 1 } else { 0 };
    }
}

/// Takes in what has died; true when there are no children left.
fn reap() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return true,
            Ok(WaitStatus::StillAlive) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// Bytes of memory of everything below the calling process, as exactly as the question "more than `limit`?" needs.
pub fn memory_of_descendants(limit: u64) -> u64 {
    watchdog::measure_of(descendants(getpid().as_raw(), &parents()), limit)
}
