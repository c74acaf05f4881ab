//! Which of several values is used next. Pure.

use std::time::{Duration, Instant};

/// How long a value rests that is refused, or whose account has nothing left.
pub(crate) const REFUSED: Duration = Duration::from_secs(60 * 60);
/// How long a value rests that was used too much, or could not be had.
pub(crate) const BUSY: Duration = Duration::from_secs(60);

/// Values in their order. One is used until it has to rest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    current: usize,
    rests: Vec<Option<Instant>>,
}

impl Pool {
    /// `count` values, none of which rests.
    pub(crate) fn new(count: usize) -> Self {
        Self { current: 0, rests: vec![None; count] }
    }

    /// The value to use; `None` when all of them rest.
    pub(crate) fn pick(&mut self, now: Instant) -> Option<usize> {
        let found = self.peek(now)?;
        self.current = found;
        Some(found)
    }

    /// The same, without going on to it.
    pub(crate) fn peek(&self, now: Instant) -> Option<usize> {
        let count = self.rests.len();
        let awake = |at: &usize| self.rests[*at].is_none_or(|until| until <= now);
        (self.current..self.current + count).map(|at| at % count).find(awake)
    }

    /// Lets a value rest from `now` on.
    pub(crate) fn rest(&mut self, member: usize, now: Instant, time: Duration) {
        if let Some(rest) = self.rests.get_mut(member) {
            // A late answer must not wake it earlier.
            *rest = (*rest).max(Some(now + time));
        }
    }

    /// What an answer of this status means for a value of a pool. A single value goes on being used: there is no other one, and
    /// the program inside understands its server's own answer best.
    pub(crate) fn answered(&mut self, member: usize, status: u16, now: Instant) {
        if self.rests.len() < 2 {
            return;
        }
        match status {
            401 | 402 => self.rest(member, now, REFUSED),
            429 => self.rest(member, now, BUSY),
            _ => {}
        }
    }

    /// When the first one wakes.
    pub(crate) fn wakes(&self, now: Instant) -> Duration {
        let first = self.rests.iter().map(|rest| rest.map_or(now, |until| until)).min();
        first.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_with_one_until_that_is_refused() {
        let (mut pool, now) = (Pool::new(3), Instant::now());
        for status in [200, 403, 404, 500, 503] {
            pool.answered(0, status, now);
            assert_eq!(pool.pick(now), Some(0));
        }
        pool.answered(0, 401, now);
        assert_eq!(pool.pick(now), Some(1));
        // A late answer to the first one changes nothing for the second.
        pool.answered(0, 429, now);
        assert_eq!(pool.pick(now), Some(1));
        pool.answered(1, 429, now);
        assert_eq!(pool.pick(now), Some(2));
        // The others come back, but it stays where it is.
        assert_eq!(pool.pick(now + BUSY), Some(2));
        pool.answered(2, 402, now + BUSY);
        assert_eq!(pool.pick(now + BUSY), Some(1));
        pool.answered(1, 402, now + BUSY);
        assert_eq!((pool.pick(now + BUSY), pool.wakes(now + BUSY)), (None, REFUSED - BUSY));
        assert_eq!(pool.pick(now + REFUSED), Some(0));
        pool.answered(7, 401, now);
    }

    #[test]
    fn a_single_value_never_rests_because_of_an_answer() {
        let (mut pool, now) = (Pool::new(1), Instant::now());
        pool.answered(0, 401, now);
        assert_eq!(pool.pick(now), Some(0));
        pool.rest(0, now, BUSY);
        assert_eq!((pool.pick(now), pool.pick(now + BUSY)), (None, Some(0)));
        assert_eq!(Pool::new(0).pick(now), None);
    }
}
