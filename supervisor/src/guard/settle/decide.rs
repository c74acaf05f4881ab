//! What is to be done about one change: pure.

use hermes_profiles::guard::{self, Action, Check, Rule, Verdict, git_config};

use crate::guard::snapshot::{Is, Seen};

/// What is to be done about one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing.
    Keep,
    /// It stays; people are told.
    Report(String),
    /// It is put aside, and this comes in its place.
    PutAside {
        /// What about it.
        why: String,
        /// What lies there afterwards; `None` when nothing does.
        instead: Option<(Is, u32)>,
    },
    /// Only this of it stays.
    Rewrite(Vec<u8>),
}

/// Judges a change of a guarded entry, but for what version control knows about it.
///
/// `also` says what is harmless in git configuration besides what always is.
pub(crate) fn decide(
    rule: &Rule,
    before: Option<Seen<'_>>,
    now: Seen<'_>,
    approved: bool,
    also: &dyn Fn(&str, &[u8]) -> bool,
) -> Decision {
    if approved {
        return Decision::Keep;
    }
    let instead = before.filter(|before| !matches!(before.is, Is::Unread | Is::Special)).map(|b| (b.is.clone(), b.mode));
    let aside = |why: &str| Decision::PutAside { why: why.to_owned(), instead: instead.clone() };
    let old = before.and_then(|before| match before.is {
        Is::File(content) => Some(content.as_slice()),
        _ => None,
    });
    let report_only = rule.action == Action::Report;
    match now.is {
        Is::Unread if report_only => Decision::Report(if before.is_some() { "changed" } else { "new" }.to_owned()),
        Is::Unread => aside("too long to be judged"),
        Is::Special if report_only => Decision::Keep,
        Is::Special => aside("not a regular file"),
        Is::Link(_) if report_only => Decision::Report("now a symlink".to_owned()),
        Is::Link(_) => aside(if before.is_some() { "now a symlink" } else { "a new symlink" }),
        Is::File(content) => {
            if old == Some(content.as_slice()) {
                let bits = before.map_or(0, |before| before.mode);
                // Modes without the executable bits run nothing.
                let gained = now.mode & !bits & 0o111;
                return if gained == 0 || report_only { Decision::Keep } else { aside("is executable now") };
            }
            if rule.check == Check::GitConfig {
                return config(
                    git_config::merge_with(old.unwrap_or_default(), content, old.unwrap_or_default(), also),
                    &aside,
                    before,
                    now,
                );
            }
            match guard::judge(rule, old, content) {
                Verdict::Keep => Decision::Keep,
                Verdict::Report { why } => Decision::Report(why),
                Verdict::PutAside { why } => aside(&why),
            }
        }
    }
}

fn config(
    merged: Result<git_config::Merged, git_config::Unreadable>,
    aside: &dyn Fn(&str) -> Decision,
    before: Option<Seen<'_>>,
    now: Seen<'_>,
) -> Decision {
    let Is::File(new) = now.is else { return Decision::Keep };
    match merged {
        Err(unreadable) => aside(&unreadable.to_string()),
        Ok(merged) if merged.refused.is_empty() => {
            if merged.text == *new {
                Decision::Keep
            } else {
                Decision::Rewrite(merged.text)
            }
        }
        Ok(merged) => {
            let mode = before.map_or(now.mode & 0o666, |before| before.mode);
            Decision::PutAside { why: guard::sets(&merged.refused), instead: Some((Is::File(merged.text), mode)) }
        }
    }
}
