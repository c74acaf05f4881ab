//! Files that tools of the host execute or obey later. Changes to them are applied only when that is asked for.
//!
//! The one seam to the workspace guard: what it would put aside after a run waits here.

use std::path::Path;

use hermes_profiles::GuardRules;

use super::order::in_git;
use crate::guard::rules::TreeRules;
use crate::guard::run::Readable;
use crate::guard::settle::{Decision, decide};
use crate::guard::snapshot::{Is, Seen};

/// Why `path` needs a decision of its own; `None` when it does not.
pub(crate) fn why(rules: &TreeRules<'_>, path: &Path, before: Option<Seen<'_>>, now: Seen<'_>) -> Option<String> {
    let git = git_directory(path);
    let rule = rules.rule_for(path, git, matches!(now.is, Is::Link(_)))?;
    let also = |key: &str, value: &[u8]| git.is_some_and(|git| rules.leads_well(git, key, value));
    match decide(rule, before, now, false, &also) {
        Decision::PutAside { why, .. } => Some(format!("{why}: {}", rule.runs)),
        Decision::Keep | Decision::Report(_) | Decision::Rewrite(_) => None,
    }
}

/// The innermost git directory that holds `path`.
fn git_directory(path: &Path) -> Option<&Path> {
    let inside = in_git(path).filter(|inside| !inside.as_os_str().is_empty())?;
    path.ancestors().nth(inside.components().count())
}

/// Does something with the rules that ship, as they hold for the workspace at `tree`.
pub(crate) fn with_shipped<T>(tree: &Path, what: impl FnOnce(&TreeRules<'_>) -> T) -> T {
    what(&TreeRules::new(&GuardRules::default(), tree, &[], &Readable::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(path: &str, before: Option<Is>, now: Is) -> Option<String> {
        let before = before.as_ref().map(|is| Seen { is, mode: 0o644 });
        with_shipped(Path::new("/w"), |rules| super::why(rules, Path::new(path), before, Seen { is: &now, mode: 0o644 }))
    }

    fn file(text: &str) -> Is {
        Is::File(text.as_bytes().to_vec())
    }

    #[test]
    fn what_tools_obey_is_guarded_and_nothing_else() {
        let guarded = |path: &str| why(path, None, file("x = 1")).is_some();
        for path in [
            ".envrc",
            "sub/.envrc",
            ".git/config",
            "sub/.git/hooks/pre-commit",
            ".husky/pre-commit",
            ".vscode/tasks.json",
            ".git",
        ] {
            assert!(guarded(path), "{path}");
        }
        for path in ["envrc", ".git/index", ".git/hooks/x.sample", "src/config", "hooks/pre-commit", ".git/refs/heads/config-x"] {
            assert!(!guarded(path), "{path}");
        }
    }

    #[test]
    fn harmless_configuration_is_not_guarded() {
        let why = |now: &str| why(".git/config", Some(file("[core]\n\tbare = false\n")), file(now));
        assert_eq!(why("[core]\n\tbare = false\n[user]\n\tname = A\n"), None);
        assert!(why("[core]\n\tbare = false\n\tfsmonitor = x\n").unwrap_or_default().contains("core.fsmonitor"));
    }

    #[test]
    fn a_symlink_in_the_place_of_what_tools_obey_is_guarded_whatever_its_target_is_called() {
        let link = |target: &str| Is::Link(target.as_bytes().to_vec());
        for (path, target) in [
            (".git/config", "[user]"),
            (".git/hooks", "../planted"),
            (".vscode", "planted"),
            ("sub/.git", "../x"),
            (".envrc", "y"),
        ] {
            assert!(why(path, None, link(target)).is_some(), "{path}");
        }
        assert_eq!(why("docs", None, link("planted")), None);
    }

    #[test]
    fn a_hook_that_becomes_executable_is_guarded() {
        let (is, path) = (file("#!/bin/sh\n"), Path::new(".git/hooks/pre-commit"));
        let why = |mode| {
            with_shipped(Path::new("/w"), |rules| {
                super::why(rules, path, Some(Seen { is: &is, mode: 0o644 }), Seen { is: &is, mode })
            })
        };
        assert!(why(0o755).is_some());
        assert_eq!(why(0o600), None);
    }
}
