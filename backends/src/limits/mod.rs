//! Limits on a whole tree of processes: control groups where they are to be had, a watchdog where not.

pub mod cgroup;
pub mod watchdog;

/// Limits that only something around the whole tree can hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeLimits {
    /// Bytes of memory, swap included.
    pub memory: Option<u64>,
    /// Number of processes and threads.
    pub processes: Option<u64>,
    /// Hundredths of one processor.
    pub cpu_percent: Option<u32>,
}

impl TreeLimits {
    /// Is there none?
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
