//! Memory of a tree of processes where no control group counts it.
//!
//! What is not mapped by any process is not seen: pages of a memfd or of a tmpfs that were only written to. So this
//! weakens the guarantee that a control group gives; the size of every tmpfs of the sandbox is limited by itself.

use std::path::Path;

use procfs::process::{Process, all_processes_with_root};

/// Bytes that the processes in `proc` (a mounted /proc) have for themselves: resident pages that are backed by no file
/// and not shared. Cheap; shared memory is not in it.
pub fn resident(proc: &Path) -> u64 {
    processes(proc).filter_map(|process| own(&process)).map(|own| own.private).sum()
}

/// The same of one process; 0 when it is gone.
pub fn resident_of(pid: i32) -> u64 {
    Process::new(pid).ok().and_then(|process| own(&process)).map_or(0, |own| own.private)
}

/// Bytes that the processes in `proc` use, as exactly as the question "more than `limit`?" needs: shared memory is only
/// looked at, which is slow, when the answer hangs on it. Each shared page counts once.
pub fn measure(proc: &Path, limit: u64) -> u64 {
    exactly(processes(proc), limit)
}

/// The same for the processes `pids` of the caller's own /proc.
pub fn measure_of(pids: impl IntoIterator<Item = i32>, limit: u64) -> u64 {
    exactly(pids.into_iter().filter_map(|pid| Process::new(pid).ok()), limit)
}

fn exactly(processes: impl Iterator<Item = Process>, limit: u64) -> u64 {
    let seen: Vec<(Process, Own)> = processes.filter_map(|process| own(&process).map(|own| (process, own))).collect();
    let private: u64 = seen.iter().map(|(_, own)| own.private).sum();
    let at_most: u64 = seen.iter().map(|(_, own)| own.resident).sum();
    if private > limit || at_most <= limit {
        return private;
    }
    seen.iter().map(|(process, own)| proportional(process).unwrap_or(own.private)).sum()
}

#[derive(Debug, Clone, Copy)]
struct Own {
    private: u64,
    resident: u64,
}

fn processes(proc: &Path) -> impl Iterator<Item = Process> {
    all_processes_with_root(proc).into_iter().flatten().flatten()
}

fn own(process: &Process) -> Option<Own> {
    let pages = process.statm().ok()?;
    let bytes = procfs::page_size();
    // The kernel reads its counters one after another: they may disagree for a moment.
    Some(Own { private: pages.resident.saturating_sub(pages.shared) * bytes, resident: pages.resident * bytes })
}

/// The process' share of the memory that it maps, files left out.
fn proportional(process: &Process) -> Option<u64> {
    let rollup = process.smaps_rollup().ok()?;
    let map = &rollup.memory_map_rollup.0.first()?.extension.map;
    match (map.get("Pss_Anon"), map.get("Pss_Shmem")) {
        (Some(anonymous), Some(shared)) => Some(anonymous + shared),
        // Before 5.3 the parts are not told apart; files are then counted too.
        _ => map.get("Pss").copied(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn counts_what_a_process_touches() {
        let before = resident_of(std::process::id() as i32);
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        let after = resident_of(std::process::id() as i32);
        assert!(after >= before + (30 << 20), "{before} {after}");
        assert!(resident(Path::new("/proc")) >= after);
        drop(block);
        assert_eq!(resident_of(i32::MAX), 0);
        assert_eq!(resident(Path::new("/nonexistent")), 0);
    }

    #[test]
    fn shared_memory_is_counted_when_it_matters() {
        const SIZE: u64 = 128 << 20;
        let me = std::process::id() as i32;
        crate::local::sys::probe::touch_shared_memory(SIZE as usize).unwrap();
        assert!(resident_of(me) < SIZE);
        assert!(measure_of([me], SIZE - 1) >= SIZE);
        assert!(measure_of([me], 1 << 40) < SIZE);
    }
}
