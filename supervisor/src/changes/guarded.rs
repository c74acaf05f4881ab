//! Files that tools of the host execute or obey later. Changes to them are applied only when that is asked for.
//!
//! The one seam to the rules of the workspace guard.

use std::path::{Path, PathBuf};

use hermes_profiles::GuardRules;
use hermes_profiles::guard::{Action, Guard, Verdict, judge};

/// Says why a change is guarded.
pub(crate) trait Guarded {
    /// Why `path` needs a decision of its own; `None` when it does not. `now` is its new content, if it is a short file.
    fn why(&self, path: &Path, before: Option<&[u8]>, now: Option<&[u8]>) -> Option<String>;
}

/// The rules that ship.
#[derive(Debug, Default)]
pub(crate) struct Shipped {
    rules: GuardRules,
    tree: PathBuf,
}

impl Guarded for Shipped {
    fn why(&self, path: &Path, before: Option<&[u8]>, now: Option<&[u8]>) -> Option<String> {
        let guard = Guard::new(&self.rules, &self.tree);
        let rule = match super::order::in_git(path) {
            Some(inside) if inside.as_os_str().is_empty() => guard.by_id("git-pointer"),
            Some(inside) => guard.in_git_dir(inside),
            None => guard.rule_for(path),
        }?;
        match now.map(|now| judge(rule, before, now)) {
            Some(Verdict::PutAside { why }) => Some(format!("{why}: {}", rule.runs)),
            Some(Verdict::Keep | Verdict::Report { .. }) => None,
            None => (rule.action != Action::Report).then(|| rule.runs.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_obey_is_guarded_and_nothing_else() {
        let guarded = |path: &str| Shipped::default().why(Path::new(path), None, Some(b"x = 1")).is_some();
        for path in
            [".envrc", "sub/.envrc", ".git/config", "sub/.git/hooks/pre-commit", ".husky/pre-commit", ".vscode/tasks.json"]
        {
            assert!(guarded(path), "{path}");
        }
        for path in ["envrc", ".git/index", ".git/hooks/x.sample", "src/config", "hooks/pre-commit", ".git/refs/heads/config-x"] {
            assert!(!guarded(path), "{path}");
        }
    }

    #[test]
    fn harmless_configuration_is_not_guarded() {
        let why = |now: &[u8]| Shipped::default().why(Path::new(".git/config"), Some(b"[core]\n\tbare = false\n"), Some(now));
        assert_eq!(why(b"[core]\n\tbare = false\n[user]\n\tname = A\n"), None);
        assert!(why(b"[core]\n\tbare = false\n\tfsmonitor = x\n").unwrap_or_default().contains("core.fsmonitor"));
    }
}
