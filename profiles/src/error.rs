//! What is wrong with a policy, in one line.

use std::fmt;

use crate::ospath::escaped_bytes;
use crate::policy::Origin;

/// A policy that cannot be used: where, what, and what to do. One line, safe to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PolicyError {
    /// Where the offending rule was written, when it was written somewhere.
    pub origin: Option<Origin>,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl PolicyError {
    /// An error about no place in particular.
    pub fn new(message: impl Into<String>) -> Self {
        Self { origin: None, message: message.into() }
    }

    /// An error about something written at `origin`.
    pub fn at(origin: Origin, message: impl Into<String>) -> Self {
        Self { origin: Some(origin), message: message.into() }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match &self.origin {
            Some(origin) => format!("{origin}: {}", self.message),
            None => self.message.clone(),
        };
        f.write_str(&escaped_bytes(line.as_bytes()))
    }
}

/// `; did you mean "X"?` when one of `known` is close to `word`, else nothing.
pub(crate) fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let lower = word.to_ascii_lowercase().replace('_', "-");
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4 || (lower.len() > 2 && name.starts_with(&lower)))
        .min()
        .map(|(_, name)| format!("; did you mean \"{name}\"?"))
        .unwrap_or_default()
}
