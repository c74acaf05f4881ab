//! The rules as they hold for one tree of a run.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use hermes_profiles::GuardRules;
use hermes_profiles::guard::{Action, Check, Guard, Rule, Scope, link_leads_out};
use hermes_profiles::paths::{covers, normalise};

use super::run::Readable;
use super::snapshot::{Held, Is, Rules, Snapshot, Wanted};

/// Rules of a tree, and what its symlinks may lead to.
pub(crate) struct TreeRules<'p> {
    guard: Guard<'p>,
    tree: PathBuf,
    skips: BTreeSet<PathBuf>,
    readable: &'p Readable,
}

impl<'p> TreeRules<'p> {
    /// For the tree at `tree`; what `skips` name in it the sandbox cannot write.
    pub(crate) fn new(rules: &'p GuardRules, tree: &Path, skips: &[PathBuf], readable: &'p Readable) -> Self {
        let skips = skips.iter().cloned().collect();
        Self { guard: Guard::new(rules, tree), tree: tree.to_owned(), skips, readable }
    }

    /// The rule with this name.
    pub(crate) fn by_id(&self, id: &str) -> Option<&Rule> {
        self.guard.by_id(id)
    }

    /// What a snapshot by these rules is good for.
    pub(crate) fn stamp(&self) -> String {
        self.guard.stamp()
    }

    /// The rule for a guarded entry.
    pub(crate) fn rule(&self, path: &Path, git: Option<&Path>) -> Option<&Rule> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().unwrap_or_default();
        // Whether it is a link is known to who asks: a rule for links only is no rule for files.
        self.find(&self.guard.scope(directory), directory, git, name, true)
    }

    fn find(&self, scope: &Scope, directory: &Path, git: Option<&Path>, name: &OsStr, link: bool) -> Option<&Rule> {
        match git.and_then(|git| directory.strip_prefix(git).ok()) {
            // Git makes no symlinks in its own directory.
            Some(inside) => {
                self.guard.in_git_dir(&inside.join(name)).or_else(|| if link { self.guard.by_id("git-pointer") } else { None })
            }
            // Through a symlink in the place of a directory a guarded file can be somewhere else.
            None if link => self.guard.rule_for_link(scope, directory, name),
            None => self.guard.rule(scope, directory, name),
        }
    }

    /// The rule for a symlink at `path` when it leads to what the sandbox could not read.
    pub(crate) fn leads_out(&self, path: &Path, target: &Path) -> Option<&Rule> {
        let leads = link_leads_out(&self.tree, path, target)?;
        let any = |paths: &[PathBuf]| paths.iter().any(|at| covers(at, &leads));
        let open = leads == Path::new("/dev/null") || (any(&self.readable.granted) && !any(&self.readable.hidden));
        if open { None } else { self.guard.by_id("symlink-out") }
    }

    /// Is this how git itself ties a worktree or submodule to a git directory whose hooks and configuration are guarded?
    pub(crate) fn harmless_pointer(&self, now: &Snapshot, path: &Path, held: &Held) -> bool {
        let Is::File(content) = &held.is else { return false };
        let name = path.file_name().and_then(OsStr::to_str);
        let text = match name {
            Some(".git") => content.strip_prefix(b"gitdir: "),
            Some("commondir" | "gitdir") => Some(content.as_slice()),
            _ => None,
        };
        let Some(text) = text.and_then(|text| std::str::from_utf8(text.trim_ascii_end()).ok()) else { return false };
        let directory = path.parent().unwrap_or(Path::new(""));
        let leads = normalise(&self.tree.join(directory).join(text));
        let Ok(leads) = leads.strip_prefix(&self.tree) else { return false };
        now.git_dirs().iter().any(|git| match leads.strip_prefix(git) {
            Ok(inside) if name == Some(".git") => {
                let mut names = inside.components();
                inside.as_os_str().is_empty()
                    || (names.next().is_some_and(|n| n.as_os_str() == "worktrees") && names.count() == 1)
            }
            Ok(inside) => {
                let own = directory.strip_prefix(git).ok();
                inside.as_os_str().is_empty()
                    && own.is_some_and(|own| own.starts_with("worktrees") && own.components().count() == 2)
            }
            Err(_) => false,
        })
    }
}

impl Rules for TreeRules<'_> {
    type Scope = Scope;

    fn scope(&self, directory: &Path) -> Scope {
        self.guard.scope(directory)
    }

    fn wants(&self, scope: &Scope, directory: &Path, git: Option<&Path>, name: &OsStr, link: bool) -> Wanted {
        match self.find(scope, directory, git, name, link) {
            None => Wanted::No,
            Some(rule) if rule.action == Action::Report && rule.check == Check::Whole => Wanted::Watched,
            Some(_) => Wanted::Kept,
        }
    }

    fn skips(&self, directory: &Path) -> bool {
        !self.skips.is_empty() && self.skips.contains(directory)
    }
}
