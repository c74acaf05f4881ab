//! Files that tools of the host execute or obey later. Changes to them are applied only when that is asked for.
//!
//! The one seam to the workspace guard: what it would put aside after a run waits here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
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
    if git.is_none() && is_head(path, now.is) && !before.is_some_and(|before| is_head(path, before.is)) {
        return rules.by_id("git-buried").map(|rule| format!("is new: {}", rule.runs));
    }
    if let Is::Link(target) = now.is
        && let Some(rule) = rules.leads_out(path, Path::new(OsStr::from_bytes(target)))
    {
        return Some(format!("a symlink: {}", rule.runs));
    }
    let rule = rules.rule_for(path, git, matches!(now.is, Is::Link(_)))?;
    let also = |key: &str, value: &[u8]| git.is_some_and(|git| rules.leads_well(git, key, value));
    match decide(rule, before, now, false, &also) {
        Decision::PutAside { why, .. } => Some(format!("{why}: {}", rule.runs)),
        Decision::Keep | Decision::Report(_) | Decision::Rewrite(_) => None,
    }
}

/// What makes a directory a repository to git: a `HEAD` that names a ref or a commit, validate_headref in its refs.c. Without
/// it hooks and configuration beside it are nothing.
fn is_head(path: &Path, is: &Is) -> bool {
    let is_ref = |text: &[u8]| text.starts_with(b"ref:") || (text.len() >= 40 && text[..40].iter().all(u8::is_ascii_hexdigit));
    let names = match is {
        Is::File(text) => is_ref(text),
        Is::Link(_) => true,
        Is::Unread | Is::Special => false,
    };
    names && path.file_name() == Some(OsStr::new("HEAD"))
}

/// Where symlinks may lead besides the workspace: what belongs to the system.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix/store"];

/// The innermost git directory that holds `path`.
fn git_directory(path: &Path) -> Option<&Path> {
    let inside = in_git(path).filter(|inside| !inside.as_os_str().is_empty())?;
    path.ancestors().nth(inside.components().count())
}

/// Does something with the rules that ship, as they hold for the workspace at `tree`.
pub(crate) fn with_shipped<T>(tree: &Path, what: impl FnOnce(&TreeRules<'_>) -> T) -> T {
    let readable = Readable { granted: SYSTEM.map(Into::into).to_vec(), hidden: Vec::new() };
    what(&TreeRules::new(&GuardRules::default(), tree, &[], &readable))
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
    fn a_head_is_guarded_where_it_makes_a_repository_and_a_link_where_it_leads_out() {
        let commit = "0123456789012345678901234567890123456789\n";
        assert!(why("plain/HEAD", None, file("ref: refs/heads/main\n")).is_some());
        assert!(why("plain/HEAD", Some(file("not yet")), file(commit)).is_some());
        assert!(why("plain/HEAD", None, file("a heading\n")).is_none());
        assert!(why("plain/HEAD", Some(file(commit)), file("ref: refs/heads/main\n")).is_none());
        let leads = |path: &str, to: &str| why(path, None, Is::Link(to.as_bytes().to_vec())).is_some();
        assert!(leads("key", "/home/somebody/.ssh/id") && leads("a/key", "../../x") && leads("repo/HEAD", "refs/heads/main"));
        assert!(!leads("a/b", "../c") && !leads(".x/bin/python", "/usr/bin/python3"));
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
