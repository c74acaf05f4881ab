//! What the proxy tells: everything to the event file, and to people what was refused, in one line. What a program inside can
//! cause as fast as it likes is written one by one at a bounded rate, and beyond it counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hermes_egress::event::{Event, Events};
use hermes_egress::host::Host;
use serde::Serialize;

use super::pace::Pace;
use crate::events::{self, Log};
use crate::output;

/// Places that are remembered for people; the rest is counted.
const MOST: usize = 64;
/// Characters of a place that are kept.
const LONGEST: usize = 200;
/// Places that are named in the line.
const NAMED: usize = 3;

/// Takes the proxy's events.
pub(super) struct Told {
    log: Mutex<Log>,
    refused: Mutex<Refused>,
    paces: Mutex<Paces>,
    began: Instant,
}

/// One does not keep the other from being told.
#[derive(Debug, Default)]
struct Paces {
    refusals: Pace,
    questions: Pace,
}

/// What was refused.
#[derive(Debug, Default, PartialEq, Eq)]
struct Refused {
    /// Place, how often, and the flag that would allow it.
    places: BTreeMap<String, (u64, Option<String>)>,
    /// Refusals of places beyond [`MOST`].
    more: u64,
}

impl Told {
    pub(super) fn new(log: Log) -> Self {
        Self { log: Mutex::new(log), refused: Mutex::default(), paces: Mutex::default(), began: Instant::now() }
    }

    /// Tells at the end what else is to be told.
    pub(super) fn tell(&self) {
        self.note_left_out();
        if let Some(line) = lock(&self.refused).line() {
            output::complain(&line);
        }
    }

    /// May people be told of one more question?
    pub(super) fn may_ask(&self) -> bool {
        lock(&self.paces).questions.take(self.began.elapsed())
    }

    fn note_left_out(&self) {
        let (refusals, questions) = {
            let mut paces = lock(&self.paces);
            (paces.refusals.take_left_out(), paces.questions.take_left_out())
        };
        if refusals + questions > 0 {
            self.note(&events::Event::LeftOut { refusals, questions });
        }
    }

    /// Writes an event. That it cannot is told once, and ends nothing.
    pub(super) fn note(&self, event: &impl Serialize) {
        let mut log = lock(&self.log);
        if log.wanted()
            && let Err(error) = log.write(event)
        {
            error.report();
            *log = Log::default();
        }
    }
}

impl Events for Told {
    fn emit(&self, event: Event) {
        lock(&self.refused).count(&event);
        if matches!(event, Event::Refused(_) | Event::NameRefused { .. } | Event::LimitReached { .. }) {
            if !lock(&self.paces).refusals.take(self.began.elapsed()) {
                return;
            }
            self.note_left_out();
        }
        self.note(&event);
    }
}

impl Refused {
    fn count(&mut self, event: &Event) {
        let (place, allow) = match event {
            // One look-up asks for several kinds of records.
            Event::NameRefused { name, kind } if kind == "A" => {
                let name = name.trim_end_matches('.').to_owned();
                let allow = Host::parse(&name).is_ok().then(|| format!("--allow-host {name}"));
                (name, allow)
            }
            // A server that cannot be reached was not refused.
            Event::Refused(refusal) if !refusal.reason.is_failure() => {
                let host = refusal.host.as_ref().map_or_else(|| "an unknown host".to_owned(), ToString::to_string);
                let what = match (&refusal.method, &refusal.path) {
                    (Some(method), Some(path)) => format!("{method} {host}:{}{path}", refusal.port),
                    _ => format!("{host}:{}", refusal.port),
                };
                (format!("{what} ({})", refusal.message), refusal.allow.clone())
            }
            _ => return,
        };
        let place: String = place.chars().take(LONGEST).collect();
        let room = self.places.len() < MOST;
        match self.places.get_mut(&place) {
            Some((times, _)) => *times += 1,
            None if room => drop(self.places.insert(place, (1, allow))),
            None => self.more += 1,
        }
    }

    /// In one line.
    fn line(&self) -> Option<String> {
        if self.places.is_empty() {
            return None;
        }
        let mut all: Vec<_> = self.places.iter().collect();
        all.sort_by_key(|(_, (times, _))| std::cmp::Reverse(*times));
        let mut words: Vec<String> = all
            .iter()
            .take(NAMED)
            .map(|(place, (times, _))| match times {
                1 => output::clean(place).into_owned(),
                _ => format!("{} ({times} times)", output::clean(place)),
            })
            .collect();
        let others = all.len().saturating_sub(NAMED) as u64 + self.more;
        if others > 0 {
            words.push(format!("{others} more"));
        }
        // A line of a profile is no flag that could stand beside others; the refusal itself tells it.
        let flags = all.iter().take(NAMED).filter_map(|(_, (_, allow))| allow.as_deref());
        let allow: Vec<&str> = flags.filter(|allow| allow.starts_with("--")).collect();
        let remedy = if allow.is_empty() { String::new() } else { format!("; to allow: {}", output::clean(&allow.join(" "))) };
        Some(format!("no way out to {}{remedy}", words.join(", ")))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Event {
        Event::NameRefused { name: name.into(), kind: "A".into() }
    }

    #[test]
    fn refusals_take_one_line() {
        let mut refused = Refused::default();
        assert_eq!(refused.line(), None);
        refused.count(&name("a.test."));
        assert_eq!(refused.line().as_deref(), Some("no way out to a.test; to allow: --allow-host a.test"));
        for other in ["a.test.", "b.test.", "c.test.", "d.test."] {
            refused.count(&name(other));
        }
        let line = refused.line().unwrap_or_default();
        assert!(line.starts_with("no way out to a.test (2 times), b.test, c.test, 1 more; to allow: "), "{line}");
        (0..1000).for_each(|n| refused.count(&name(&format!("x{n}.test."))));
        assert_eq!((refused.places.len(), refused.more), (MOST, 1000 - (MOST as u64 - 4)));
    }
}
