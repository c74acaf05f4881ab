//! Is a change one that counts?

use super::git_config;
use super::package;
use super::text;
use super::tree::{self, Tree};
use crate::rule::{Action, Check, Keys, Rule};

/// What becomes of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may stay.
    Keep,
    /// It is taken away.
    PutAside {
        /// A short clause for people, e.g. `sets core.fsmonitor`. Holds text of the file: escape it.
        why: String,
    },
    /// It stays and is told of.
    Report {
        /// As above.
        why: String,
    },
}

/// What a check finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing that counts.
    Harmless,
    /// Something that counts.
    Counts(String),
    /// It cannot be told.
    Unclear(String),
}

/// Longest name of a key in a message.
const MAX_NAME: usize = 60;

/// Judges the content `now`. `before` is the content at the baseline, `None` when the file was absent.
///
/// What a rule only reports is never put aside, with one exception: content that is judged by its meaning, and has none that
/// is understood, while the baseline's was. Nobody can say what a tool would make of it.
pub fn judge(rule: &Rule, before: Option<&[u8]>, now: &[u8]) -> Verdict {
    if before == Some(now) {
        return Verdict::Keep;
    }
    if rule.action == Action::Stage {
        return Verdict::PutAside { why: if before.is_some() { "has changed" } else { "is new" }.into() };
    }
    match (find(&rule.check, before, now), rule.action) {
        (Finding::Harmless, _) => Verdict::Keep,
        (Finding::Unclear(why), Action::Report) if before.is_none_or(|before| is_unclear(&rule.check, before)) => {
            Verdict::Report { why }
        }
        (Finding::Counts(why), Action::Report) => Verdict::Report { why },
        (Finding::Unclear(why) | Finding::Counts(why), _) => Verdict::PutAside { why },
    }
}

fn is_unclear(check: &Check, content: &[u8]) -> bool {
    matches!(find(check, None, content), Finding::Unclear(_))
}

fn find(check: &Check, before: Option<&[u8]>, now: &[u8]) -> Finding {
    match check {
        Check::Whole => Finding::Counts(if before.is_some() { "has changed" } else { "is new" }.into()),
        Check::GitConfig => match git_config::refused(before.unwrap_or_default(), now) {
            Ok(refused) if refused.is_empty() => Finding::Harmless,
            Ok(refused) => Finding::Counts(sets(&refused)),
            Err(unreadable) => Finding::Unclear(unreadable.to_string()),
        },
        Check::Todo => text::todo(now),
        Check::Json(keys) => by_keys(tree::json, keys, before, now),
        Check::Toml(keys) => by_keys(tree::toml, keys, before, now),
        Check::Lines(keys) => text::lines(keys, before, now),
        Check::Environment => text::environment(before, now),
        Check::Tokens(words) => text::tokens(words, now),
        Check::Version => text::version(now),
        Check::Pth => text::pth(before, now),
        Check::Package => package::judge(before, now),
    }
}

fn by_keys(parse: fn(&[u8]) -> Result<Tree, String>, keys: &Keys, before: Option<&[u8]>, now: &[u8]) -> Finding {
    let now = match parse(now) {
        Ok(now) => now,
        Err(why) => return Finding::Unclear(why),
    };
    // A baseline that nobody understands holds nothing that would excuse a key.
    let before = before.and_then(|before| parse(before).ok());
    let changed = tree::changed(keys, before.as_ref(), &now);
    match changed.is_empty() {
        true => Finding::Harmless,
        false => Finding::Counts(sets(&changed)),
    }
}

/// A short clause about keys, e.g. `sets core.fsmonitor, core.hooksPath, core.pager and 2 more`.
pub fn sets(keys: &[String]) -> String {
    format!("sets {}", list(keys.iter().map(String::as_str)))
}

/// The first few names.
pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(short).collect();
    match names.len() {
        0..=3 => names.join(", "),
        more => format!("{} and {} more", names[..3].join(", "), more - 3),
    }
}

fn short(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME) {
        Some((at, _)) => format!("{}...", &name[..at]),
        None => name.to_owned(),
    }
}
