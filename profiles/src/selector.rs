//! Entries of the lists `guard`, `unguard`, `prevent` and `stage`.

use std::fmt;
use std::path::PathBuf;

use serde::de::{Deserialize, Deserializer};
use serde::{Serialize, Serializer};

use crate::error::{PolicyError, suggestion};
use crate::layer::{Entry, Place};
use crate::paths::{self, Unset};
use crate::pattern;
use crate::request::Caller;
use crate::rule::Trigger;

/// Files, or rules about files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// `rule:ID`: the files of a rule that ships.
    Rule(String),
    /// `class:build` or `class:push`: the rules with this trigger that only report.
    Class(Trigger),
    /// `*`: the files of every rule that does not only report.
    Everything,
    /// A glob that matches at any depth, and all below.
    Anywhere(String),
    /// A glob from the root of the file system, and all below.
    Absolute(String),
}

/// The four lists of a resolved policy. The rules that ship always hold, but for what `allow` names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct GuardRules {
    /// Put aside, too (`guard`).
    pub add: Vec<Selector>,
    /// May change (`unguard`).
    pub allow: Vec<Selector>,
    /// Read-only at once where it exists, and put aside where it does not.
    pub prevent: Vec<Selector>,
    /// Takes effect only after approval.
    pub stage: Vec<Selector>,
    /// What `~` is in the configuration of the caller's tools.
    pub home: Option<PathBuf>,
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(id) => write!(f, "rule:{id}"),
            Self::Class(Trigger::OnPush) => f.write_str("class:push"),
            Self::Class(_) => f.write_str("class:build"),
            Self::Everything => f.write_str("*"),
            Self::Anywhere(glob) | Self::Absolute(glob) => f.write_str(glob),
        }
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    /// Reads what [`fmt::Display`] writes.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match text.as_str() {
            "*" => Self::Everything,
            "class:push" => Self::Class(Trigger::OnPush),
            "class:build" => Self::Class(Trigger::OnBuild),
            _ => match text.strip_prefix("rule:") {
                Some(id) => Self::Rule(id.to_owned()),
                None if text.starts_with('/') => Self::Absolute(text),
                None => Self::Anywhere(text),
            },
        })
    }
}

/// Does this start at the root of the file system once it is expanded?
pub(crate) fn is_absolute(text: &str) -> bool {
    text.strip_prefix('?').unwrap_or(text).starts_with(['~', '/', '$'])
}

/// Something that is no path; `None` when it is one.
pub(crate) fn word(text: &str) -> Option<Selector> {
    match text.split_once(':') {
        Some(("rule", id)) => Some(Selector::Rule(id.to_owned())),
        Some(("class", "push")) => Some(Selector::Class(Trigger::OnPush)),
        Some(("class", _)) => Some(Selector::Class(Trigger::OnBuild)),
        _ => (text == "*").then_some(Selector::Everything),
    }
}

/// What an entry of a list means for this caller; nothing when it is optional and has no place here.
pub(crate) fn resolve(entry: &Entry<String>, place: &Place, caller: &Caller) -> Result<Option<Selector>, PolicyError> {
    let text = entry.value.as_str();
    if let Some(selector) = word(text) {
        return Ok(Some(selector));
    }
    if !is_absolute(text) {
        return Ok(Some(Selector::Anywhere(text.to_owned())));
    }
    let (glob, optional) = paths::optional(text);
    let error = |why: String| PolicyError::at(place.line(entry.line), format!("{text}: {why}"));
    match paths::expand_glob(glob, caller) {
        Ok(glob) => pattern::parse(&glob, 0).map(|_| Some(Selector::Absolute(glob))).map_err(error),
        Err(Unset::Missing(_)) if optional => Ok(None),
        Err(Unset::Missing(why)) => Err(error(format!("{why}; a ? in front makes the rule optional"))),
        Err(Unset::Malformed(why)) => Err(error(why)),
    }
}

/// Is `text` well-formed in the list `list`, whatever the environment?
pub(crate) fn check(list: &str, text: &str, ids: &[&str]) -> Result<(), String> {
    match word(text) {
        Some(Selector::Rule(_)) if list == "stage" => Err("\"stage\" takes paths and globs only".into()),
        Some(Selector::Rule(id)) if ids.contains(&id.as_str()) => Ok(()),
        Some(Selector::Rule(id)) => {
            let hint = match suggestion(&id, ids.iter().copied()) {
                hint if hint.is_empty() => "; \"explain guard\" prints them".to_owned(),
                hint => hint,
            };
            Err(format!("no rule \"{id}\"{hint}"))
        }
        Some(Selector::Class(_)) if list != "guard" => Err("a class can only be added to \"guard\"".into()),
        Some(Selector::Class(_)) if matches!(text, "class:build" | "class:push") => Ok(()),
        Some(Selector::Class(_)) => Err("the classes are \"class:build\" and \"class:push\"".into()),
        Some(Selector::Everything) if list == "prevent" => Ok(()),
        Some(_) => Err("this is everything; name what is meant".into()),
        None if is_absolute(text) => {
            crate::paths::check(text)?;
            pattern::parse(text.strip_prefix('?').unwrap_or(text), 0).map(drop)
        }
        None => pattern::parse(text, 0).map(drop),
    }
}
