//! The rules as they hold for one tree of a run.

mod outside;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use std::os::unix::fs::MetadataExt;

use hermes_profiles::GuardRules;
use hermes_profiles::guard::{Action, Check, Guard, Rule, Scope, link_leads_out};
use hermes_profiles::paths::{covers, normalise};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::leads::{Lead, leads};
use super::run::{Readable, Record};
use super::snapshot::{Held, Is, Rules, Snapshot, Wanted};

/// Another place of guarded files: what a guarded symlink leads to, or what `core.hooksPath` names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Alias {
    /// Where they are, relative to the tree.
    at: PathBuf,
    /// Where tools look for them, relative to the tree; `None` for hooks.
    seen: Option<PathBuf>,
}

/// Rules of a tree, and what its symlinks may lead to.
pub(crate) struct TreeRules<'p> {
    guard: Guard<'p>,
    tree: PathBuf,
    skips: BTreeSet<PathBuf>,
    readable: &'p Readable,
    aliases: Vec<Alias>,
    /// The tree's own name, when it is one of a directory that holds guarded files.
    own: Option<PathBuf>,
}

impl<'p> TreeRules<'p> {
    /// For the tree at `tree`; what `skips` name in it the sandbox cannot write.
    pub(crate) fn new(rules: &'p GuardRules, tree: &Path, skips: &[PathBuf], readable: &'p Readable) -> Self {
        let skips = skips.iter().cloned().collect();
        let guard = Guard::new(rules, tree);
        let name = tree.file_name().unwrap_or_default();
        let top = Path::new("");
        // What is guarded as a whole was granted as a whole.
        let part = guard.whole(&guard.scope(Path::new(name))).is_none();
        let own = part && guard.rule_for_link(&guard.scope(top), top, name).is_some();
        let own = own.then(|| PathBuf::from(name));
        Self { guard, tree: tree.to_owned(), skips, readable, aliases: Vec::new(), own }
    }

    /// As they held for a tree of a run at its baseline.
    pub(crate) fn of(record: &'p Record, index: usize, baseline: &Snapshot) -> Self {
        let tree = &record.trees[index];
        Self::new(&record.rules, &tree.path, &tree.skips, &record.readable).with_aliases(&baseline.aliases)
    }

    /// The same with other places of guarded files.
    pub(crate) fn with_aliases(mut self, aliases: &[Alias]) -> Self {
        self.aliases = aliases.to_vec();
        self
    }

    /// Other places of guarded files that these rules know.
    pub(crate) fn aliases(&self) -> &[Alias] {
        &self.aliases
    }

    /// Where else guarded files of this tree are.
    pub(crate) fn aliases_of(&self, now: &Snapshot) -> Vec<Alias> {
        let mut aliases = BTreeSet::new();
        let home = self.guard.home();
        let included = || Some(PathBuf::from(".git/config"));
        let mut lead = |top: &Path| {
            let leads = outside::leads(top, home);
            aliases.extend(leads.hooks.iter().filter_map(|at| Some(Alias { at: self.inside(at)?, seen: None })));
            aliases.extend(leads.configuration.iter().filter_map(|at| Some(Alias { at: self.inside(at)?, seen: included() })));
        };
        self.tree.ancestors().skip(1).for_each(&mut lead);
        for (path, ..) in now.held().filter(|(path, ..)| path.file_name() == Some(OsStr::new(".git"))) {
            lead(&self.tree.join(path.parent().unwrap_or(Path::new(""))));
        }
        for (path, git, held) in now.held() {
            let directory = path.parent().unwrap_or(Path::new(""));
            match &held.is {
                Is::Link(target) => {
                    let at = self.inside(&directory.join(OsStr::from_bytes(target)));
                    aliases.extend(at.filter(|at| *at != path).map(|at| Alias { at, seen: Some(path.clone()) }));
                }
                Is::File(content) if self.rule(&path, git.as_deref()).is_some_and(|rule| rule.check == Check::GitConfig) => {
                    let top = git.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
                    aliases.extend(leads(content, home).into_iter().filter_map(|lead| match lead {
                        Lead::Hooks(path) => Some(Alias { at: self.inside(&top.join(path))?, seen: None }),
                        Lead::Included(path) => Some(Alias { at: self.inside(&directory.join(path))?, seen: included() }),
                    }));
                }
                _ => {}
            }
        }
        let mut aliases: Vec<Alias> = aliases.into_iter().filter(|alias| !alias.at.as_os_str().is_empty()).collect();
        let through: Vec<Alias> = aliases.iter().flat_map(|alias| self.through_links(alias, &aliases)).collect();
        aliases.extend(through);
        aliases.sort();
        aliases.dedup();
        aliases
    }

    /// Where an alias really is when a directory on the way to it is a symlink.
    fn through_links(&self, alias: &Alias, all: &[Alias]) -> Vec<Alias> {
        let link = |link: &Alias| {
            let rest = alias.at.strip_prefix(link.seen.as_ref()?).ok()?;
            Some(Alias { at: link.at.join(rest), seen: alias.seen.clone() })
        };
        all.iter().filter_map(link).filter(|real| real.at != alias.at).collect()
    }

    /// A path relative to the tree, or absolute, as one without `..` relative to the tree; `None` when it leads out.
    fn inside(&self, path: &Path) -> Option<PathBuf> {
        let whole = normalise(&self.tree.join(path));
        whole.strip_prefix(&self.tree).ok().map(Path::to_owned)
    }

    /// The rule with this name.
    pub(crate) fn by_id(&self, id: &str) -> Option<&Rule> {
        self.guard.by_id(id)
    }

    /// What a snapshot by these rules is good for.
    pub(crate) fn stamp(&self) -> String {
        let alias = |alias: &Alias| format!("{:?}>{:?}\0", alias.at, alias.seen);
        format!("{}\0{}", self.guard.stamp(), self.aliases.iter().map(alias).collect::<String>())
    }

    /// Is a guarded entry to be read-only at once?
    pub(crate) fn prevents(&self, path: &Path, git: Option<&Path>) -> bool {
        git.is_none_or(|git| !is_in_dot_git(git)) && self.rule(path, git).is_some_and(|rule| self.guard.prevents(path, rule))
    }

    /// The same for an entry of a git directory.
    pub(crate) fn prevents_in_git(&self, path: &Path, git: &Path) -> bool {
        self.rule(path, Some(git)).is_some_and(|rule| self.guard.prevents(path, rule))
    }

    /// The rule for a guarded entry.
    pub(crate) fn rule(&self, path: &Path, git: Option<&Path>) -> Option<&Rule> {
        // Whether it is a link is known to who asks: a rule for links only is no rule for files.
        self.rule_for(path, git, true)
    }

    /// The rule for any file, or `link`.
    pub(crate) fn rule_for(&self, path: &Path, git: Option<&Path>, link: bool) -> Option<&Rule> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().unwrap_or_default();
        self.find(&self.guard.scope(directory), directory, git, name, link)
    }

    fn find(&self, scope: &Scope, directory: &Path, git: Option<&Path>, name: &OsStr, link: bool) -> Option<&Rule> {
        let by_place = || match link {
            // Through a symlink in the place of a directory a guarded file can be somewhere else.
            true => self.guard.rule_for_link(scope, directory, name),
            false => self.guard.rule(scope, directory, name),
        };
        let rule = match git.and_then(|git| directory.strip_prefix(git).ok()) {
            Some(inside) => {
                let in_git = self.guard.in_git_dir(&inside.join(name));
                let by_place = || if is_in_dot_git(directory) { None } else { by_place() };
                let in_outer = || self.in_outer_git(git?, &directory.join(name));
                // Git makes no symlinks in its own directory.
                in_git.or_else(in_outer).or_else(by_place).or_else(|| if link { self.guard.by_id("git-pointer") } else { None })
            }
            None => by_place(),
        };
        let by_own_name = || self.own.as_ref().and_then(|own| self.guard.rule_for(&own.join(directory).join(name)));
        match rule.or_else(by_own_name) {
            Some(rule) if rule.action != Action::Report => Some(rule),
            // What one only hears of by its name may still be a hook.
            rule => self.aliases.iter().find_map(|alias| self.by_alias(alias, directory, name, link)).or(rule),
        }
    }

    /// What git obeys in a directory of a git directory stays that when a job gives this one the looks of a git directory.
    fn in_outer_git(&self, git: &Path, path: &Path) -> Option<&Rule> {
        let not_below = |rule: &&Rule| rule.id != "git-hooks" && rule.check != Check::GitConfig;
        git.ancestors().skip(1).find_map(|outer| self.guard.in_git_dir(path.strip_prefix(outer).ok()?).filter(not_below))
    }

    fn by_alias(&self, alias: &Alias, directory: &Path, name: &OsStr, link: bool) -> Option<&Rule> {
        let path = directory.join(name);
        // In the place of a directory above it leads everything elsewhere.
        let above = link && alias.at != path && alias.at.starts_with(&path);
        let rest = if above { Path::new("") } else { path.strip_prefix(&alias.at).ok()? };
        match &alias.seen {
            None => self.guard.by_id("git-hookspath").filter(|_| above || rest.components().count() == 1),
            Some(seen) if rest.as_os_str().is_empty() => self.guard.rule_for(seen),
            Some(seen) => self.guard.rule_for(&seen.join(rest)),
        }
    }

    /// The rule for a symlink at `path` when it leads to what the sandbox could not read.
    ///
    /// So does any that goes up behind a name, which may be a symlink by then: where that ends its text does not say.
    pub(crate) fn leads_out(&self, path: &Path, target: &Path) -> Option<&Rule> {
        let ups = target.components().skip_while(|part| !matches!(part, Component::Normal(_)));
        if ups.into_iter().any(|part| part == Component::ParentDir) {
            return self.guard.by_id("symlink-out");
        }
        let leads = link_leads_out(&self.tree, path, target)?;
        let any = |paths: &[PathBuf]| paths.iter().any(|at| covers(at, &leads));
        let open = leads == Path::new("/dev/null") || (any(&self.readable.granted) && !any(&self.readable.hidden));
        if open { None } else { self.guard.by_id("symlink-out") }
    }

    /// Is this how git itself ties a worktree or submodule to a git directory whose hooks and configuration are guarded?
    pub(crate) fn harmless_pointer(&self, now: &Snapshot, path: &Path, held: &Held) -> bool {
        let Is::File(content) = &held.is else { return false };
        let name = path.file_name().and_then(OsStr::to_str);
        let directory = path.parent().unwrap_or(Path::new(""));
        match name {
            Some(".git") => self.leads_to_git_dir(now, directory, content),
            // It only tells where the worktree is.
            Some("gitdir") => content.ends_with(b"/.git\n") && content.iter().filter(|byte| **byte == b'\n').count() == 1,
            Some("commondir") => now.git_dirs().iter().any(|git| {
                let own = directory.strip_prefix(git).ok();
                own.is_some_and(|own| own.starts_with("worktrees") && own.components().count() == 2)
                    && self.inside(&directory.join(text(content))).as_deref() == Some(git)
            }),
            _ => false,
        }
    }

    /// Does the `.git` file of a worktree or submodule lead to a git directory of this tree?
    fn leads_to_git_dir(&self, now: &Snapshot, directory: &Path, content: &[u8]) -> bool {
        let Some(target) = content.strip_prefix(b"gitdir: ") else { return false };
        let Some(leads) = self.inside(&directory.join(text(target))) else { return false };
        now.git_dirs().iter().any(|git| {
            leads.strip_prefix(git).is_ok_and(|inside| {
                let mut names = inside.components();
                inside.as_os_str().is_empty()
                    || (names.next() == Some(Component::Normal(OsStr::new("worktrees"))) && names.count() == 1)
            })
        })
    }

    /// What the configuration of the git directory `git` may say because of where it leads: to a working tree, as that of a
    /// submodule does, or to a remote in this tree, whose hooks are guarded as well.
    pub(crate) fn leads_well(&self, git: &Path, key: &str, value: &[u8]) -> bool {
        let key = key.to_ascii_lowercase();
        let is_address = key.ends_with(".url") || key.ends_with(".pushurl");
        if is_address {
            let plain = !value.starts_with(b"-") && !value.contains(&b':') && !value.iter().any(u8::is_ascii_control);
            let top = git.parent().unwrap_or(Path::new(""));
            let named = top.join(OsStr::from_bytes(value));
            return plain && (self.inside(&named).is_some() || is_own_repository(&self.tree.join(named)));
        }

        let names = || git.components().map(Component::as_os_str);
        let module = names().zip(names().skip(1)).any(|(above, name)| above == ".git" && name == "modules");
        let leads = self.inside(&git.join(OsStr::from_bytes(value)));
        let relative = value.starts_with(b"../") && !value.contains(&b'\n');
        let tree = |leads: PathBuf| !leads.components().any(|name| name.as_os_str() == ".git");
        key == "core.worktree" && module && relative && leads.is_some_and(tree)
    }
}

/// A repository that no sandbox of this user has made: it lies where sandboxes cannot write, or in a tree that is guarded.
/// What others own may run something when it is fetched from or pushed to.
fn is_own_repository(path: &Path) -> bool {
    let owned = |path: &Path| path.metadata().is_ok_and(|meta| [0, geteuid().as_raw()].contains(&meta.uid()));
    [path.join(".git/HEAD"), path.join("HEAD")].iter().any(|head| owned(head)) && owned(path)
}

/// Is this certainly git's own? What only looks like a git directory, by `HEAD`, `objects` and `refs`, which any job can make
/// beside people's files, is one as well.
pub(crate) fn is_in_dot_git(directory: &Path) -> bool {
    directory.components().any(|name| name.as_os_str() == ".git")
}

/// A line as a path.
fn text(content: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(content.trim_ascii_end()))
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

    fn is_in_git_tree(&self) -> bool {
        is_in_dot_git(&self.tree)
    }

    fn skips(&self, directory: &Path) -> bool {
        !self.skips.is_empty() && self.skips.contains(directory)
    }
}
