//! The secrets of one sandbox: what its policy's routes name, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hermes_egress::secret::{Secret, Secrets};
use hermes_profiles::{Caller, Policy};
use serde::Serialize;

use super::pool::{BUSY, Pool};
use super::store::Store;
use super::value::Value;
use super::vault::{Entry, Source, Vault, scope};
use crate::error::Error;
use crate::fresh;

/// With this every placeholder begins.
const PREFIX: &str = "hsx-secret-";
/// Hexadecimal digits of one: 128 bits, so that none can be guessed or made up.
const DIGITS: usize = 32;

/// What happened to a secret while a sandbox lives. Never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Notice {
    /// A value could not be had. Said once for each secret.
    SecretUnavailable {
        /// The name of the secret.
        secret: String,
        /// Why.
        why: String,
    },
    /// All values of a secret rest. Said again only after one of them was used.
    SecretExhausted {
        /// The name of the secret.
        secret: String,
        /// Seconds until the first one is used again.
        seconds: u64,
    },
}

/// A secret that a route names and that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Its name.
    pub(crate) name: String,
    /// Why, without any value.
    pub(crate) why: String,
}

/// Knows the secrets of one sandbox. What the policy names later, when it is replaced, is not among them.
pub(crate) struct SandboxSecrets {
    scope: String,
    secrets: BTreeMap<String, Known>,
    missing: Vec<Missing>,
    caller: Caller,
    tell: Box<dyn Fn(&Notice) + Send + Sync>,
}

struct Known {
    placeholder: String,
    variable: Option<String>,
    pool: Mutex<Pool>,
    members: Vec<Member>,
    exhausted: AtomicBool,
    unavailable: AtomicBool,
}

struct Member {
    source: Source,
    /// Locked while it is looked up.
    value: Mutex<Option<Value>>,
}

impl SandboxSecrets {
    /// Those that the routes of `policy` name. Without any, nothing is read. `tell` is called on the way of requests: it must
    /// not wait.
    ///
    /// # Errors
    /// The file of secrets cannot be read, or the kernel gives no random numbers.
    pub(crate) fn open(caller: &Caller, policy: &Policy, tell: impl Fn(&Notice) + Send + Sync + 'static) -> Result<Self, Error> {
        let names = names(policy);
        let (vault, scope) = match names.is_empty() {
            true => (Vault::default(), String::new()),
            false => (Store::of(caller)?.read()?, scope(&policy.profile, &caller.cwd)?),
        };
        let cannot = |e| Error::setup(format!("cannot make the placeholder of a secret: {e}"));
        Self::new(&vault, &scope, &names, caller, Box::new(tell)).map_err(cannot)
    }

    fn new(
        vault: &Vault,
        scope: &str,
        names: &BTreeSet<&str>,
        caller: &Caller,
        tell: Box<dyn Fn(&Notice) + Send + Sync>,
    ) -> io::Result<Self> {
        let (mut secrets, mut missing) = (BTreeMap::new(), Vec::new());
        for name in names {
            match usable(vault, scope, name, caller) {
                Ok(entry) => _ = secrets.insert((*name).to_owned(), Known::new(entry)?),
                Err(why) => missing.push(Missing { name: (*name).to_owned(), why }),
            }
        }
        Ok(Self { scope: scope.to_owned(), secrets, missing, caller: caller.clone(), tell })
    }

    /// The variables that hold placeholders inside, and these.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let variable = |known: &Known| Some((known.variable.clone()?, known.placeholder.clone()));
        self.secrets.values().filter_map(variable).collect()
    }

    /// Refuses to start without what the policy's routes need.
    ///
    /// # Errors
    /// Names each secret that cannot be had.
    pub(crate) fn require(&self) -> Result<(), Error> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let all: Vec<_> = self.missing.iter().map(|missing| format!("{} ({})", missing.name, missing.why)).collect();
        let word = if all.len() == 1 { "secret" } else { "secrets" };
        let message = format!("routes of profile {} need the {word} {}", self.scope, all.join(", "));
        let command = format!("hermes-sandbox secrets add {} --profile {}", self.missing[0].name, self.scope);
        Err(Error::setup(message).hint(format!("`{command}` adds it, `hermes-sandbox secrets list` shows those that there are")))
    }

    /// The value of a member, looked up once.
    fn value_of(&self, member: &Member) -> Result<Value, String> {
        let mut kept = member.value.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none() {
            *kept = Some(member.source.value(&self.caller)?);
        }
        kept.clone().ok_or_else(String::new)
    }
}

/// The names that the routes of a policy use.
fn names(policy: &Policy) -> BTreeSet<&str> {
    policy.routes().iter().filter_map(|route| Some(route.rules.secret.as_ref()?.name.as_str())).collect()
}

/// The secret of exactly this profile, if at least one of its values may be there.
fn usable<'a>(vault: &'a Vault, scope: &str, name: &str, caller: &Caller) -> Result<&'a Entry, String> {
    let Some(entry) = vault.find(scope, name) else {
        return Err(match vault.scopes_of(name).as_slice() {
            [] => "it was not added".to_owned(),
            others => format!("it was not added for this profile, only for {}", others.join(", ")),
        });
    };
    if entry.suppressed {
        return Err("it is suppressed".to_owned());
    }
    let mut why = "it has no value".to_owned();
    for source in &entry.members {
        match source.check(caller) {
            Ok(()) => return Ok(entry),
            Err(reason) => why = reason,
        }
    }
    Err(why)
}

impl Known {
    fn new(entry: &Entry) -> io::Result<Self> {
        Ok(Self {
            placeholder: placeholder()?,
            variable: entry.variable.clone(),
            pool: Mutex::new(Pool::new(entry.members.len())),
            members: entry.members.iter().map(|source| Member { source: source.clone(), value: Mutex::new(None) }).collect(),
            exhausted: AtomicBool::new(false),
            unavailable: AtomicBool::new(false),
        })
    }

    fn pool<T>(&self, with: impl FnOnce(&mut Pool) -> T) -> T {
        with(&mut self.pool.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn placeholder() -> io::Result<String> {
    let bytes: [u8; DIGITS / 2] = fresh::random()?;
    let mut text = PREFIX.to_owned();
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    Ok(text)
}

impl Secrets for SandboxSecrets {
    fn placeholder_in(&self, text: &[u8]) -> Option<String> {
        let length = PREFIX.len() + DIGITS;
        let candidates = text.windows(length).filter(|window| window.starts_with(PREFIX.as_bytes()));
        let name = |window: &[u8]| self.secrets.iter().find(|(_, known)| known.placeholder.as_bytes() == window);
        candidates.filter_map(name).map(|(name, _)| name.clone()).next()
    }

    fn placeholder(&self, name: &str) -> Option<String> {
        self.secrets.get(name).map(|known| known.placeholder.clone())
    }

    fn value(&self, name: &str) -> Option<Secret> {
        let known = self.secrets.get(name)?;
        while let Some(at) = known.pool(|pool| pool.pick(Instant::now())) {
            match self.value_of(&known.members[at]) {
                Ok(value) => {
                    known.exhausted.store(false, Ordering::Relaxed);
                    return Some(Secret { value: value.reveal().clone(), member: at });
                }
                Err(why) => {
                    known.pool(|pool| pool.rest(at, Instant::now(), BUSY));
                    if !known.unavailable.swap(true, Ordering::Relaxed) {
                        (self.tell)(&Notice::SecretUnavailable { secret: name.to_owned(), why });
                    }
                }
            }
        }
        if !known.exhausted.swap(true, Ordering::Relaxed) {
            let left: Duration = known.pool(|pool| pool.wakes(Instant::now()));
            (self.tell)(&Notice::SecretExhausted { secret: name.to_owned(), seconds: left.as_secs() });
        }
        None
    }

    fn waits(&self, name: &str) -> bool {
        let Some(known) = self.secrets.get(name) else { return false };
        let Some(at) = known.pool(|pool| pool.peek(Instant::now())) else { return false };
        let member = &known.members[at];
        member.source.waits() && member.value.try_lock().map_or(true, |value| value.is_none())
    }

    fn answered(&self, name: &str, member: usize, status: u16) {
        if let Some(known) = self.secrets.get(name) {
            known.pool(|pool| pool.answered(member, status, Instant::now()));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
