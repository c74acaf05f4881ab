//! Limits on a whole tree of processes: control groups where they are to be had, a watchdog where not.

pub mod cgroup;
pub mod watchdog;
