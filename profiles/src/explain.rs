//! Answers for people: which rule decides, and what it means. The texts are stable.

use std::ffi::OsStr;
use std::path::Path;

use crate::environment::{self, Grant};
use crate::ospath::escaped;
use crate::policy::{Access, EnvironmentRules, FileRule, Policy};

/// What an access allows, in one or two words.
pub fn access(access: Access) -> &'static str {
    match access {
        Access::Hidden => "hidden",
        Access::Read => "read-only",
        Access::Write => "writable",
        Access::Overlay => "copy-on-write",
    }
}

/// A rule in one line: `/usr: read-only (profile base)`.
pub fn rule(rule: &FileRule) -> String {
    let optional = if rule.optional && rule.access != Access::Hidden { ", if it exists" } else { "" };
    format!("{}: {}{optional} ({})", escaped(&rule.path), access(rule.access), rule.origin)
}

/// What the policy says about a path (absolute, normalised), in one line.
pub fn path(policy: &Policy, path: &Path) -> String {
    match policy.rule_for(path) {
        Some(deciding) if deciding.path == path => rule(deciding),
        Some(deciding) => format!("{}: {} by the rule {}", escaped(path), access(deciding.access), rule(deciding)),
        None => format!("{}: not granted by any rule", escaped(path)),
    }
}

/// What the rules say about a variable, in one line that does not show the value.
pub fn env(rules: &EnvironmentRules, name: &OsStr, value: &OsStr) -> String {
    let shown = escaped(Path::new(name));
    match environment::decide(rules, name, value) {
        Ok(Grant::Explicit) => format!("{shown}: passed (named by --env)"),
        Ok(Grant::Known) => format!("{shown}: passed (well known and harmless)"),
        Ok(Grant::Allowed) => format!("{shown}: passed (allowed by the policy)"),
        Err(environment::Reason::Denied) => format!("{shown}: stays out, denied by the policy"),
        Err(reason) => format!("{shown}: stays out, {}; --env {shown} would pass it", reason.describe()),
    }
}
