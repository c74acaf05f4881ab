//! Files that tools of the host execute or obey later. Changes to them are applied only when that is asked for.
//!
//! The one seam to the workspace guard: what it would put aside after a run waits here.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hermes_profiles::GuardRules;
use hermes_profiles::guard::Rule;

use super::order::in_git;
use crate::guard;
use crate::guard::quarantine::{Approved, Quarantine};
use crate::guard::rules::TreeRules;
use crate::guard::run::Readable;
use crate::guard::settle::{Decision, decide};
use crate::guard::snapshot::{Is, Seen};
use crate::state::Tree;

/// What the guard says to a change that is to reach the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may.
    Free,
    /// This of it may: no text of a sandbox is taken for configuration as it is.
    Rewritten(Vec<u8>),
    /// It waits, and why.
    Guarded(String),
}

/// The rules of every run that wrote to a layer, as they hold for the workspace now.
pub(crate) struct Guard<'p> {
    of_runs: Vec<TreeRules<'p>>,
    approved: Approved,
}

impl<'p> Guard<'p> {
    pub(crate) fn new(rules: &'p [GuardRules], tree: &Tree, readable: &'p Readable) -> io::Result<Self> {
        let of_runs = rules.iter().map(|rules| guard::rules_of(tree, rules, readable)).collect::<io::Result<_>>()?;
        Ok(Self { of_runs, approved: Quarantine::new(&tree.state).approved()? })
    }

    /// Judges a change by the strictest of them. `named` is the place whose rule holds, `path` where it really is in the workspace.
    pub(crate) fn judge(&self, path: Option<&Path>, named: &Path, before: Option<Seen<'_>>, now: Seen<'_>) -> Verdict {
        let approved = |rule: &Rule| path.is_some_and(|path| self.approved.has(&rule.id, path, now.is, now.mode));
        let mut all = Verdict::Free;
        for rules in &self.of_runs {
            match judge(rules, named, before, now, &approved) {
                Verdict::Free => {}
                guarded @ Verdict::Guarded(_) => return guarded,
                rewritten => all = rewritten,
            }
        }
        all
    }
}

fn judge(
    rules: &TreeRules<'_>,
    path: &Path,
    before: Option<Seen<'_>>,
    now: Seen<'_>,
    approved: &dyn Fn(&Rule) -> bool,
) -> Verdict {
    let guarded = |rule: Option<&Rule>, why: &str| match rule {
        Some(rule) if !approved(rule) => Verdict::Guarded(format!("{why}: {}", rule.runs)),
        _ => Verdict::Free,
    };
    let git = git_directory(path);
    // Of one that is too long to be looked into git reads the beginning only.
    let unread = *now.is == Is::Unread && path.file_name() == Some(OsStr::new("HEAD"));
    if git.is_none() && (unread || is_head(path, now.is)) && !before.is_some_and(|before| is_head(path, before.is)) {
        return guarded(rules.by_id("git-buried"), "is new");
    }
    if let Is::Link(target) = now.is
        && let Some(rule) = rules.leads_out(path, Path::new(OsStr::from_bytes(target)))
    {
        return guarded(Some(rule), "a symlink");
    }
    let Some(rule) = rules.rule_for(path, git, matches!(now.is, Is::Link(_))) else { return Verdict::Free };
    let also = |key: &str, value: &[u8]| git.is_some_and(|git| rules.leads_well(git, key, value));
    match decide(rule, before, now, approved(rule), &also) {
        Decision::PutAside { why, .. } => guarded(Some(rule), &why),
        Decision::Rewrite(text) => Verdict::Rewritten(text),
        Decision::Keep | Decision::Report(_) => Verdict::Free,
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

/// What any sandbox may read: a symlink to it gives nothing away.
pub(crate) fn readable() -> Readable {
    Readable { granted: SYSTEM.map(Into::into).to_vec(), hidden: Vec::new() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hermes_profiles::guard::Selector;

    fn why_of(path: &str, before: Option<Seen<'_>>, now: Seen<'_>) -> Option<String> {
        let (policy, readable) = (GuardRules::default(), readable());
        let rules = TreeRules::new(&policy, Path::new("/w"), &[], &readable);
        match judge(&rules, Path::new(path), before, now, &|_| false) {
            Verdict::Guarded(why) => Some(why),
            _ => None,
        }
    }

    fn why(path: &str, before: Option<Is>, now: Is) -> Option<String> {
        let before = before.as_ref().map(|is| Seen { is, mode: 0o644 });
        why_of(path, before, Seen { is: &now, mode: 0o644 })
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
        assert!(why("plain/HEAD", None, Is::Unread).is_some() && why("plain/HEAD.txt", None, Is::Unread).is_none());
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
        let is = file("#!/bin/sh\n");
        let why = |mode| why_of(".git/hooks/pre-commit", Some(Seen { is: &is, mode: 0o644 }), Seen { is: &is, mode });
        assert!(why(0o755).is_some());
        assert_eq!(why(0o600), None);
    }

    #[test]
    fn the_strictest_policy_holds_and_what_was_approved_goes() {
        let dir = tempfile::tempdir().unwrap();
        let workspace = dir.path().join("ws");
        std::fs::create_dir_all(workspace.join(".git/refs")).unwrap();
        std::fs::create_dir_all(workspace.join(".git/objects")).unwrap();
        std::fs::create_dir_all(workspace.join("tools/hooks")).unwrap();
        std::fs::write(workspace.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(workspace.join(".git/config"), "[core]\n\thooksPath = tools/hooks\n").unwrap();
        let tree = Tree::open(&dir.path().join("state"), &workspace, true).unwrap().unwrap();
        let free = |text: &str| GuardRules { allow: vec![Selector::Anywhere(text.to_owned())], ..GuardRules::default() };
        let add = |text: &str| GuardRules { add: vec![Selector::Anywhere(text.to_owned())], ..GuardRules::default() };
        let readable = readable();
        let is = file("#!/bin/sh\n");
        let now = Seen { is: &is, mode: 0o755 };
        let judge = |policies: &[GuardRules], path: &str| {
            let path = Path::new(path);
            Guard::new(policies, &tree, &readable).unwrap().judge(Some(path), path, None, now) != Verdict::Free
        };
        assert!(judge(&[GuardRules::default()], "tools/hooks/pre-commit"), "where the host's git looks for hooks");
        assert!(!judge(&[GuardRules::default()], "deploy.sh") && judge(&[GuardRules::default(), add("deploy.sh")], "deploy.sh"));
        assert!(!judge(&[free(".envrc")], ".envrc") && judge(&[free(".envrc"), GuardRules::default()], ".envrc"));
        Quarantine::new(&tree.state).approve("direnv", Path::new(".envrc"), &is, 0o755).unwrap();
        assert!(!judge(&[GuardRules::default()], ".envrc") && judge(&[GuardRules::default()], "sub/.envrc"));
    }
}
