//! Git's configuration: what a sandbox changed in its private copy, and which of it the host may have.
//!
//! Names of filters, drivers, remotes and hooks are free, so a list of bad keys can never be complete: this is a list of the
//! good ones, with what their values may be. No text of the sandbox is copied. It is read into keys and values with git's
//! own grammar (config.c), and those that are good are written anew, so that a reader that takes a text differently finds
//! nothing that was not written here.

mod allowed;
mod edit;
mod grammar;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use grammar::Unreadable;
use grammar::{File, Name};

/// What the host gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The host's file with the good changes. Its comments and layout stay.
    pub text: Vec<u8>,
    /// Keys that were changed and that the host does not get, e.g. `core.fsmonitor`. They hold text of the sandbox: escape
    /// them.
    pub refused: Vec<String>,
}

/// All values of every key.
type Values<'f> = BTreeMap<&'f Name, Vec<Option<&'f [u8]>>>;

/// Brings the good ones of the changes from `before` to `now` into `host`.
///
/// `before` must be what lay there at the baseline, also when merges happened since: what a remote is called is only new
/// compared with that. Keys that `host` does not have as the baseline had them, because the host changed them too, are left
/// to the host when `now` does not change them.
///
/// # Errors
/// When one of the texts is not configuration. Git is lenient nowhere, so this is not either.
pub fn merge(before: &[u8], now: &[u8], host: &[u8]) -> Result<Merged, Unreadable> {
    merge_with(before, now, host, &|_, _| false)
}

/// As [`merge`], and what `also` says of a key (`core.worktree`) and a value is good too.
///
/// # Errors
/// As [`merge`].
pub fn merge_with(before: &[u8], now: &[u8], host: &[u8], also: &dyn Fn(&str, &[u8]) -> bool) -> Result<Merged, Unreadable> {
    let (before, now) = (grammar::parse(before)?, grammar::parse(now)?);
    let mut host = grammar::parse(host)?;
    let mut refused = Vec::new();
    let (old, new) = (values(&before), values(&now));
    let keys: BTreeSet<&Name> = old.keys().chain(new.keys()).copied().collect();
    let mut changes = Vec::new();
    {
        let known = values(&host);
        for key in keys {
            let (old_values, new_values) = (of(&old, key), of(&new, key));
            if old_values == new_values || of(&known, key) == new_values {
                continue;
            }
            let change = allowed::Change { key, new: new_values, before: &old, now: &new, host: &known };
            let is_also = || new_values.iter().all(|value| value.is_some_and(|value| also(&key.to_string(), value)));
            match change.is_allowed() || is_also() {
                true => changes.push((key.clone(), new_values.iter().map(|value| value.map(<[u8]>::to_vec)).collect::<Vec<_>>())),
                false => refused.push(key.to_string()),
            }
        }
    }
    for (key, values) in changes {
        let text = edit::set(&host, &key, &values);
        host = grammar::parse(&text)?;
    }
    Ok(Merged { text: host.text, refused })
}

/// The last value of a key without subsection, e.g. `core.hookspath`.
pub fn value(text: &[u8], wanted: &str) -> Option<Vec<u8>> {
    let file = grammar::parse(text).ok()?;
    let entry = file.entries.iter().rev().find(|entry| entry.name.to_string() == wanted)?;
    entry.value.clone()
}

fn values(file: &File) -> Values<'_> {
    let mut values = Values::new();
    for entry in &file.entries {
        values.entry(&entry.name).or_default().push(entry.value.as_deref());
    }
    values
}

fn of<'v, 'f>(values: &'v Values<'f>, key: &Name) -> &'v [Option<&'f [u8]>] {
    values.get(key).map(Vec::as_slice).unwrap_or_default()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.section)?;
        if let Some(subsection) = &self.subsection {
            write!(f, ".{}", String::from_utf8_lossy(subsection))?;
        }
        write!(f, ".{}", self.key)
    }
}
