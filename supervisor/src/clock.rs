//! The wall clock, and how far times of files can be relied on.

use std::time::{SystemTime, UNIX_EPOCH};

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
