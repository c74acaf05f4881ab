//! The wall clock, and how far times of files can be relied on.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970.
pub(crate) type Time = i64;

/// Clocks of file systems are coarse before Linux 6.13: what changed at most this long before a look may change again
/// without another time.
pub(crate) const COARSE: Time = 20_000_000;

/// Now.
pub(crate) fn now() -> Time {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as Time)
}

/// Now, in milliseconds.
pub(crate) fn milliseconds() -> u64 {
    (now() / 1_000_000) as u64
}

/// When this process began, as far as it has been noted.
static BEGAN: OnceLock<Time> = OnceLock::new();

/// Notes that the process has begun.
pub(crate) fn note_begin() {
    BEGAN.get_or_init(now);
}

/// When the sandbox begins to see the host's files: later than every change before this process began, and no later than
/// any change after [`await_tick`].
pub(crate) fn mark() -> Time {
    BEGAN.get().copied().unwrap_or_else(now) + 1
}

/// Waits until the kernel's clock for files has passed [`mark`], before the first process of a sandbox.
///
/// A change time is what the kernel's coarse clock says, which stands still for a tick: a change that comes next may bear an
/// earlier time than this process. It ticks every 10 ms at the latest (CONFIG_HZ), and a start has mostly taken longer.
pub(crate) fn await_tick() {
    await_tick_of(mark());
}

fn await_tick_of(mark: Time) {
    // A clock that is set back meanwhile is not waited for.
    for _ in 0..40 {
        let at = clock_gettime(ClockId::RealtimeCoarse);
        if at.tv_sec.saturating_mul(1_000_000_000).saturating_add(at.tv_nsec) >= mark {
            return;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_change_is_before_or_after_the_mark_and_never_both() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let changed = || {
            std::fs::write(&path, "x").unwrap();
            let meta = path.metadata().unwrap();
            meta.ctime() * 1_000_000_000 + meta.ctime_nsec()
        };
        for _ in 0..50 {
            let (before, mark) = (changed(), now() + 1);
            assert!(before < mark);
            await_tick_of(mark);
            assert!(mark <= changed());
        }
    }
}
