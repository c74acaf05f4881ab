//! The tree of processes below init, where no pid namespace holds it (Landlock tier).

use std::collections::BTreeMap;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

use crate::limits::watchdog;

/// Passes over /proc before giving up; each pass stops what it sees, so that forks cannot outrun it.
const PASSES: usize = 200;

fn parents() -> Vec<(i32, i32)> {
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

/// Kills everything below the calling process, also what left its session; it must be a subreaper.
pub fn kill_descendants() {
    let own = getpid().as_raw();
    for pass in 0..PASSES {
        let below = descendants(own, &parents());
        if below.is_empty() {
            return;
        }
        // First stop all, so that nothing forks while others are killed.
        let signal = if pass == 0 { Signal::SIGSTOP } else { Signal::SIGKILL };
        for pid in below {
            let _ = kill(Pid::from_raw(pid), signal);
        }
        if pass > 0 {
            while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {}
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}

/// Bytes of memory of everything below the calling process, as exactly as the question "more than `limit`?" needs.
pub fn memory_of_descendants(limit: u64) -> u64 {
    watchdog::measure_of(descendants(getpid().as_raw(), &parents()), limit)
}
