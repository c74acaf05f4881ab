//! How often something that a sandbox can cause at will is told one by one.

use std::time::Duration;

/// What may be told at once.
const BURST: u32 = 1000;
/// After that, one in this time.
const INTERVAL: Duration = Duration::from_secs(10);

/// A rate, by the generic cell rate algorithm, and what it kept back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pace {
    /// When as much as at the beginning may be told again.
    full_at: Duration,
    left_out: u64,
}

impl Pace {
    /// May one more be told? Else it is counted. `now` is since any fixed moment.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        let next = self.full_at.max(now) + INTERVAL;
        let told = next - now <= INTERVAL * BURST;
        if told {
            self.full_at = next;
        } else {
            self.left_out += 1;
        }
        told
    }

    /// How many were left out since the last call.
    pub(super) fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_quiet_gives_room_again() {
        let (mut pace, start) = (Pace::default(), Duration::from_secs(5));
        assert_eq!((0..5000).filter(|_| pace.take(start)).count(), BURST as usize);
        assert_eq!((pace.take_left_out(), pace.take_left_out()), (5000 - u64::from(BURST), 0));
        assert!(!pace.take(start + INTERVAL / 2));
        assert!(pace.take(start + INTERVAL) && !pace.take(start + INTERVAL));
        assert_eq!((0..5000).filter(|_| pace.take(start + INTERVAL * 5000)).count(), BURST as usize);
    }
}
