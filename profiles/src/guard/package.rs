//! `package.json`: what runs or is obeyed without being called by name.

use super::judge::{Finding, list};
use super::tree::{Tree, changed, strict_json as json};
use crate::rule::{Keys, Text};

/// Scripts that package managers run by themselves (npm-scripts, "Life Cycle Scripts").
#[rustfmt::skip]
const LIFECYCLE: [&str; 16] = [
    "preinstall",
    "install",
    "postinstall",
    "preprepare",
    "prepare",
    "postprepare",
    "prepublish",
    "prepublishOnly",
    "prepack",
    "postpack",
    "preuninstall",
    "uninstall",
    "postuninstall",
    "preversion",
    "version",
    "dependencies",
];

/// Other keys that tools obey when a person installs, commits or builds.
#[rustfmt::skip]
const OBEYED: [&str; 17] = [
    "dependencies", "devDependencies", "optionalDependencies", "overrides", "resolutions",
    "packageManager",
    "devEngines",
    "bin",
    "husky",
    "lint-staged",
    "simple-git-hooks",
    "pre-commit",
    "config",
    "workspaces",
    "pnpm",
    "volta",
    "imports",
];

/// Compares with the baseline.
pub(super) fn judge(before: Option<&[u8]>, now: &[u8]) -> Finding {
    let now = match json(now) {
        Ok(now @ Tree::Map(_)) => now,
        Ok(_) => return Finding::Unclear("is not an object".into()),
        Err(why) => return Finding::Unclear(why),
    };
    let before = before.and_then(|before| json(before).ok());
    let scripts = |names: &[&str]| names.iter().map(|name| format!("scripts/{name}")).collect::<Vec<_>>();
    let lifecycle = changed(&keys(scripts(&LIFECYCLE)), before.as_ref(), &now);
    if !lifecycle.is_empty() {
        let names = lifecycle.iter().map(|name| name.trim_start_matches("scripts/"));
        return Finding::Counts(format!("changes scripts that run by themselves: {}", list(names)));
    }
    let mut rest: Vec<String> = OBEYED.iter().map(|key| (*key).to_owned()).collect();
    rest.push("scripts".into());
    let rest = changed(&keys(rest), before.as_ref(), &now);
    match rest.is_empty() {
        true => Finding::Harmless,
        false => Finding::Counts(format!("changes {}", list(rest.iter().map(String::as_str)))),
    }
}

fn keys(refuse: Vec<String>) -> Keys {
    Keys { allow: Vec::new(), refuse: refuse.into_iter().map(|key| Text(key.into())).collect() }
}
