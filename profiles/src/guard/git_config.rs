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

/// What the caller knows to be good, by key and value.
pub type Also<'a> = &'a dyn Fn(&str, &[u8]) -> bool;

/// All values of every key.
type Values<'f> = BTreeMap<&'f Name, Vec<Option<&'f [u8]>>>;

/// Longest text of the sandbox that is looked at, and most keys that one merge changes: each change reads the text again.
const MAX_TEXT: usize = 512 << 10;
const MAX_CHANGES: usize = 256;

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

/// As [`merge`], and what `also` says of a key and a value is good too: `core.worktree`, or a directory as the address of a
/// remote that is new.
///
/// # Errors
/// As [`merge`].
pub fn merge_with(before: &[u8], now: &[u8], host: &[u8], also: Also<'_>) -> Result<Merged, Unreadable> {
    let mut host = grammar::parse(host)?;
    let Changes { mut good, mut refused } = changes(&parse(before)?, &parse(now)?, &host, also);
    let too_many = good.split_off(good.len().min(MAX_CHANGES));
    refused.extend(too_many.iter().map(|(key, _)| key.to_string()));
    for (key, values) in good {
        host = grammar::parse(&edit::set(&host, &key, &values))?;
    }
    Ok(Merged { text: host.text, refused })
}

/// All keys that have a value, in the order of the text. Nothing of a text that is not configuration.
pub fn entries(text: &[u8]) -> Vec<(String, Vec<u8>)> {
    let entries = parse(text).map(|file| file.entries).unwrap_or_default();
    entries.into_iter().filter_map(|entry| Some((entry.name.to_string(), entry.value?))).collect()
}

/// Keys that `now` changes and that no host should have. A baseline that is no configuration counts as empty.
pub(super) fn refused(before: &[u8], now: &[u8]) -> Result<Vec<String>, Unreadable> {
    let now = parse(now)?;
    let before = parse(before).or_else(|_| parse(&[]))?;
    Ok(changes(&before, &now, &before, &|_, _| false).refused)
}

fn parse(text: &[u8]) -> Result<File, Unreadable> {
    match text.len() > MAX_TEXT {
        true => Err(Unreadable { line: 0 }),
        false => grammar::parse(text),
    }
}

/// Keys with the values that they get, and those that are not good.
struct Changes {
    good: Vec<(Name, Vec<Option<Vec<u8>>>)>,
    refused: Vec<String>,
}

fn changes(before: &File, now: &File, host: &File, also: Also<'_>) -> Changes {
    let (before, now, host) = (values(before), values(now), values(host));
    let keys: BTreeSet<&Name> = before.keys().chain(now.keys()).copied().collect();
    let mut changes = Changes { good: Vec::new(), refused: Vec::new() };
    let mut bad: BTreeSet<&str> = BTreeSet::new();
    for key in keys {
        let new = of(&now, key);
        if of(&before, key) == new || of(&host, key) == new {
            continue;
        }
        let change = allowed::Change { key, new, before: &before, now: &now, host: &host, also };
        match change.is_allowed() {
            true => changes.good.push((key.clone(), new.iter().map(|value| value.map(<[u8]>::to_vec)).collect())),
            false => {
                bad.insert(&key.section);
                changes.refused.push(key.to_string());
            }
        }
    }
    // Half of a remote is worse than none: renamed or moved, it would be gone where it was and not come where it went, or be
    // gone for a branch that still names it.
    let removes = |(key, values): &(Name, Vec<Option<Vec<u8>>>)| key.section == "remote" && values.is_empty();
    if bad.contains("branch") && changes.good.iter().any(removes) {
        bad.insert("remote");
    }
    let (good, back) = changes.good.into_iter().partition(|(key, _)| {
        let section = key.section.as_str();
        !(WHOLE.contains(&section) && bad.contains(section))
    });
    changes.good = good;
    changes.refused.extend(Vec::into_iter(back).map(|(key, _)| key.to_string()));
    changes
}

/// Sections of which all changes are taken over, or none.
const WHOLE: [&str; 2] = ["remote", "submodule"];

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
