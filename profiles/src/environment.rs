//! Which variables of the caller go in.

use std::ffi::OsString;

use crate::policy::EnvironmentRules;

/// The variables of a sandbox, and what was left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// What goes in, in the caller's order; what the policy sets comes last.
    pub passed: Vec<(OsString, OsString)>,
    /// Names that stay out, each with the reason, in the caller's order.
    pub dropped: Vec<(OsString, Reason)>,
}

/// Why a variable stays out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Neither well known nor allowed by the policy.
    NotAllowed,
}

/// What of the caller's variables goes in.
pub fn filter(rules: &EnvironmentRules, variables: impl Iterator<Item = (OsString, OsString)>) -> Environment {
    let mut environment = Environment::default();
    for (name, value) in variables {
        let known = ["PATH", "HOME", "USER", "LANG", "TERM", "SHELL", "LOGNAME", "TZ", "CI"].iter().any(|n| name == *n)
            || name.to_str().is_some_and(|n| rules.explicit.contains(n));
        if known {
            environment.passed.push((name, value));
        } else {
            environment.dropped.push((name, Reason::NotAllowed));
        }
    }
    let set = rules.set.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    environment.passed.extend(set);
    environment
}
