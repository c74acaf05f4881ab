//! Routes, ready to decide. Pure: no clock, no socket, no name resolution.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hermes_profiles::{Rate, Route, RouteRules};

use crate::host::{Host, Pattern};
use crate::path::{self, Unreadable};
use crate::reason::Reason;

/// All rules of a sandbox at one time.
#[derive(Debug, Default)]
pub struct Ruleset {
    rules: Vec<Arc<Rule>>,
    /// Stands for all names where hosts that no rule is about are decided one by one.
    any_name: Option<Pattern>,
    generation: u64,
}

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// Which hosts it is about.
    pub pattern: Pattern,
    /// On which ports.
    pub ports: Vec<u16>,
    /// What requests it allows and what becomes of them.
    pub rules: RouteRules,
    /// Where it is written, for messages.
    pub origin: String,
    bucket: Option<Bucket>,
}

impl Rule {
    fn covers(&self, host: &Host, port: u16) -> bool {
        self.ports.contains(&port) && self.pattern.matches(host)
    }

    /// Counts one use; false when the rule's rate does not allow it now. `now` is since any fixed moment.
    pub fn take(&self, now: Duration) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| bucket.take(now))
    }

    /// Was it made from this route?
    pub fn is_of(&self, route: &Route) -> bool {
        let pattern = Pattern::parse(&route.host).is_ok_and(|pattern| pattern == self.pattern);
        pattern && self.ports == route.ports && self.rules == route.rules && self.origin == route.origin.to_string()
    }

    fn same(&self, other: &Self) -> bool {
        self.pattern == other.pattern && self.ports == other.ports && self.rules == other.rules && self.origin == other.origin
    }
}

/// A route that cannot be a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: \"{host}\": {why}")]
pub struct Invalid {
    /// Where it is written.
    pub origin: String,
    /// Its host.
    pub host: String,
    /// What is wrong.
    pub why: String,
}

/// What becomes of a connection.
#[derive(Debug, Clone)]
pub enum Admission {
    /// It is passed on unread.
    PassThrough(Arc<Rule>),
    /// Its requests are read and decided one by one.
    Inspect,
}

/// A request, as far as decisions go.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The host that the program means.
    pub host: &'a Host,
    /// Its port.
    pub port: u16,
    /// The method, as sent.
    pub method: &'a str,
    /// The path of the request target, without its query.
    pub path: &'a str,
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Decision {
    /// It may go, by this rule.
    Allow(Arc<Rule>),
    /// It may not.
    Refuse(Reason),
}

impl Ruleset {
    /// Rules from the routes of a policy. Rules of `before` that did not change keep what they have counted.
    ///
    /// # Errors
    /// A route whose host is none; the policy's own checks do not let one through.
    pub fn new(routes: &[Route], before: Option<&Ruleset>) -> Result<Self, Invalid> {
        let rule = |route: &Route| {
            let origin = route.origin.to_string();
            let pattern = Pattern::parse(&route.host).map_err(|why| Invalid {
                origin: origin.clone(),
                host: route.host.clone(),
                why: why.to_string(),
            })?;
            let bucket = route.rules.rate.map(Bucket::new);
            let rule = Rule { pattern, ports: route.ports.clone(), rules: route.rules.clone(), origin, bucket };
            let known = before.into_iter().flat_map(|before| &before.rules).find(|known| known.same(&rule));
            Ok(known.cloned().unwrap_or_else(|| Arc::new(rule)))
        };
        let mut rules = routes.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        // Of several rules that allow a request the one that says most decides where it goes and what it carries.
        let plain =
            |rule: &Arc<Rule>| (rule.rules.paths.is_empty(), rule.rules.methods.is_empty(), !rule.rules.needs_inspection());
        rules.sort_by_key(plain);
        Ok(Self { rules, any_name: None, generation: before.map_or(0, |before| before.generation + 1) })
    }

    /// The same, but every name gets an address, so that a connection to it can be decided.
    pub fn with_any_name(self) -> Self {
        Self { any_name: Some(Pattern::Below(String::new())), ..self }
    }

    /// Counted from 0.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The rules that count for a host and port: those with the narrowest pattern.
    fn rules_for(&self, host: &Host, port: u16) -> impl Iterator<Item = &Arc<Rule>> {
        let covering = move |rule: &&Arc<Rule>| rule.covers(host, port);
        let precision = self.rules.iter().filter(covering).map(|rule| rule.pattern.precision()).max();
        self.rules.iter().filter(move |rule| Some(rule.pattern.precision()) == precision && rule.covers(host, port))
    }

    /// The rule that decides first about a host and port.
    pub fn rule_for(&self, host: &Host, port: u16) -> Option<&Rule> {
        self.rules_for(host, port).next().map(AsRef::as_ref)
    }

    /// Does any rule lead to `name`? The pattern of the narrowest that does.
    pub fn permits_name(&self, name: &Host) -> Option<&Pattern> {
        self.rules
            .iter()
            .map(|rule| &rule.pattern)
            .filter(|pattern| pattern.matches(name))
            .max_by_key(|pattern| pattern.precision())
            .or(self.any_name.as_ref())
    }

    /// What becomes of a connection to `host` on `port`?
    ///
    /// # Errors
    /// No rule leads there.
    pub fn admit(&self, host: &Host, port: u16) -> Result<Admission, Reason> {
        let rules: Vec<_> = self.rules_for(host, port).collect();
        match rules.first() {
            None => Err(self.no_way(host)),
            Some(_) if rules.iter().any(|rule| rule.rules.needs_inspection()) => Ok(Admission::Inspect),
            Some(rule) => Ok(Admission::PassThrough(Arc::clone(rule))),
        }
    }

    /// What becomes of a request?
    pub fn decide(&self, request: &Request<'_>) -> Decision {
        let mut reason = None;
        let mut readings = None;
        for rule in self.rules_for(request.host, request.port) {
            if !rule.rules.methods.is_empty() && !rule.rules.methods.iter().any(|method| method == request.method) {
                // Of several reasons the path's says most: some rule allows the method.
                if !matches!(reason, Some(Reason::Path | Reason::AmbiguousPath { .. })) {
                    reason = Some(Reason::Method);
                }
                continue;
            }
            if !rule.rules.paths.is_empty() {
                let readings = readings.get_or_insert_with(|| path::readings(request.path));
                if let Some(why) = outside(readings, &rule.rules.paths) {
                    if !matches!(reason, Some(Reason::AmbiguousPath { .. })) {
                        reason = Some(why);
                    }
                    continue;
                }
            }
            return Decision::Allow(Arc::clone(rule));
        }
        Decision::Refuse(reason.unwrap_or_else(|| self.no_way(request.host)))
    }

    fn no_way(&self, host: &Host) -> Reason {
        let mut ports: Vec<u16> =
            self.rules.iter().filter(|rule| rule.pattern.matches(host)).flat_map(|rule| rule.ports.iter().copied()).collect();
        ports.sort_unstable();
        ports.dedup();
        match (ports.is_empty(), host) {
            (false, _) => Reason::Port { ports },
            (true, Host::Name(_)) => Reason::NoRoute,
            (true, Host::Address(_)) => Reason::UnknownAddress,
        }
    }
}

/// Why a path is not one of `globs`; nothing if it is, in each of its readings.
fn outside(readings: &Result<Vec<std::borrow::Cow<'_, str>>, Unreadable>, globs: &[String]) -> Option<Reason> {
    let readings = match readings {
        Ok(readings) => readings,
        Err(why) => return Some(Reason::AmbiguousPath { detail: why.to_string() }),
    };
    let within = |reading: &str| globs.iter().any(|glob| fast_glob::glob_match(glob, reading));
    let strange = readings.iter().find(|reading| !within(reading))?;
    let nowhere = !readings.iter().any(|reading| within(reading));
    Some(if nowhere { Reason::Path } else { Reason::AmbiguousPath { detail: strange.to_string() } })
}

/// A rate, by the generic cell rate algorithm: one number, the time at which the bucket would be empty again.
#[derive(Debug)]
struct Bucket {
    step: u64,
    burst: u64,
    empty_at: AtomicU64,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        let span = rate.milliseconds.saturating_mul(1_000);
        Self { step: (span / u64::from(rate.count.max(1))).max(1), burst: span, empty_at: AtomicU64::new(0) }
    }

    fn take(&self, now: Duration) -> bool {
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let next = |empty_at: u64| {
            let filled = empty_at.max(now).saturating_add(self.step);
            (filled - now <= self.burst).then_some(filled)
        };
        self.empty_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
