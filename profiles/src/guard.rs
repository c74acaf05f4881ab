//! Files that programs of the host execute or obey later: which they are, and what in them counts.
//!
//! A rule that ships names files by patterns. A pattern matches at any depth, from the root of the tree when it starts with
//! `/`, and inside any git directory when it starts with `{gitdir}/`. One that ends in `/**` is about a directory and
//! everything below; any other is about files and links of that name, not about directories. Of several rules for one path
//! the one that the table lists first decides.
//!
//! The policy's globs come on top. They are about what they match *and* everything below. `unguard` is stronger than `stage`,
//! that than `guard` and `prevent`, those than the rules that ship, except inside git directories, where the rules that ship
//! know better than a glob what may change.
//!
//! Rules that only report do not look into directories of installed packages ([`PACKAGES`]): what lies there was not
//! written for this project.
//!
//! What a rule is told to put aside by the policy (`rule:ID`, `class:build`) is still not looked for there.
//!
//! Names are compared byte by byte. On a file system that folds case the tools would find files that no rule is about.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::names;
use crate::pattern::{self, Base, Index, Pattern, fits, split};
pub use crate::rule::{Action, Check, Keys, Rule, Text, Trigger};
pub use crate::selector::{GuardRules, Selector};

pub mod git_config;
mod judge;
mod link;
mod package;
mod text;
mod tree;

pub use judge::{Verdict, judge, sets};
pub use link::link_leads_out;

include!(concat!(env!("OUT_DIR"), "/guard.rs"));

/// Names of directories that hold installed packages.
pub const PACKAGES: [&str; 6] = ["node_modules", "site-packages", "vendor", "bower_components", ".tox", ".nox"];

/// The rule for what the policy's `guard` and `prevent` name.
const POLICY: &str = "policy";
/// The rule for what the policy's `stage` names.
const STAGE: &str = "stage";

/// A glob that means this path alone; `None` when it is not called in UTF-8, as globs are.
pub fn literal(path: &Path) -> Option<String> {
    String::from_utf8(pattern::literal(path.as_os_str().as_bytes())).ok()
}

static RULES: [OnceLock<Rule>; BYTES.len()] = [const { OnceLock::new() }; BYTES.len()];

/// The rules that ship, in the order in which they decide.
pub fn builtin() -> impl ExactSizeIterator<Item = &'static Rule> {
    (0..BYTES.len()).map(ships)
}

/// Read one by one, when it is needed: most trees hold files of few rules.
fn ships(index: usize) -> &'static Rule {
    // The build wrote these bytes with the same types. Without them no sandbox may start, and there is nothing to fall back to.
    #[allow(clippy::expect_used)]
    RULES[index].get_or_init(|| postcard::from_bytes(BYTES[index]).expect("a rule that ships is damaged; install again"))
}

/// What a guard does with a rule that ships.
#[derive(Debug)]
enum Slot {
    Ships,
    Off,
    Changed(Box<Rule>),
}

/// Rules as one writable tree sees them.
#[derive(Debug)]
pub struct Guard<'p> {
    policy: &'p GuardRules,
    /// Paths of the tree, without a slash at the end.
    names: Vec<Vec<u8>>,
    /// Empty when no rule that ships is changed.
    slots: Vec<Slot>,
    /// Numbered by [`Kind`].
    globs: Index<'static>,
    /// The tree as a whole is below one of the policy's globs.
    whole: Option<Kind>,
}

/// What a glob of the policy means; the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Allow,
    Stage,
    Add,
}

/// What holds for all entries of a directory.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    policy: Option<Kind>,
    /// A rule that ships is about everything here.
    below: Option<u16>,
    packages: bool,
    /// Bytes of the directory's path up to and with the innermost `.git/`.
    git: Option<usize>,
}

impl<'p> Guard<'p> {
    /// `tree` is the absolute real path of the writable tree; absolute globs only concern it when they lie in it or cover it.
    pub fn new(rules: &'p GuardRules, tree: &Path) -> Self {
        Self::named(rules, &[tree])
    }

    /// As [`Guard::new`], for a tree that has more than one absolute path: its real one, and the one that the policy grants,
    /// when that leads through symlinks. Absolute globs are compared with all of them.
    pub fn named(rules: &'p GuardRules, names: &[&Path]) -> Self {
        let names = names.iter().map(|name| relative(name).to_vec()).collect();
        let mut guard = Self { policy: rules, names, slots: Vec::new(), globs: Index::default(), whole: None };
        let mut patterns = Vec::new();
        let lists =
            [(&rules.allow, Kind::Allow), (&rules.stage, Kind::Stage), (&rules.add, Kind::Add), (&rules.prevent, Kind::Add)];
        for (list, kind) in lists {
            for selector in list {
                match selector {
                    Selector::Anywhere(glob) => patterns.extend(parsed(glob, kind)),
                    Selector::Absolute(glob) => {
                        for pattern in parsed(glob, kind) {
                            guard.inside(pattern, kind, &mut patterns);
                        }
                    }
                    _ => {}
                }
            }
        }
        guard.globs = Index::new(patterns);
        guard.change();
        guard
    }

    /// What `~` is in the configuration of the caller's tools.
    pub fn home(&self) -> Option<&Path> {
        self.policy.home.as_deref()
    }

    /// Tells these rules from others: what was found by them is of no use to others.
    pub fn stamp(&self) -> String {
        let GuardRules { add, allow, prevent, stage, home } = self.policy;
        let list = |list: &[Selector]| list.iter().map(|selector| format!("{selector}\n")).collect::<String>();
        format!("{RULE_STAMP:x} {}\0{}\0{}\0{}\0{home:?}", list(add), list(allow), list(prevent), list(stage))
    }

    /// Rules that ship and that the policy changes.
    fn change(&mut self) {
        let policy = self.policy;
        for (list, kind) in [(&policy.add, Kind::Add), (&policy.allow, Kind::Allow)] {
            for selector in list {
                let concerns = |rule: &Rule| match selector {
                    Selector::Rule(id) => *id == rule.id,
                    Selector::Class(trigger) => rule.trigger == *trigger && rule.action == Action::Report,
                    _ => false,
                };
                if !matches!(selector, Selector::Rule(_) | Selector::Class(_)) {
                    continue;
                }
                if self.slots.is_empty() {
                    self.slots.extend(builtin().map(|_| Slot::Ships));
                }
                for (slot, rule) in self.slots.iter_mut().zip(builtin()).filter(|(_, rule)| concerns(rule)) {
                    *slot = match kind {
                        Kind::Allow => Slot::Off,
                        _ => Slot::Changed(Box::new(Rule { action: Action::PutAside, ..rule.clone() })),
                    };
                }
            }
        }
    }

    /// An absolute pattern as one from the root of the tree, if it can match in it.
    fn inside(&mut self, pattern: Pattern<'static>, kind: Kind, patterns: &mut Vec<Pattern<'static>>) {
        let text = join(&pattern.parents, &pattern.name);
        let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
        for name in &self.names {
            let tree: Vec<&[u8]> = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
            let mut states = vec![(0, 0)];
            while let Some((part, depth)) = states.pop() {
                match parts.get(part) {
                    // All of the pattern stands for the tree or a directory above it.
                    None => self.whole = min(self.whole, Some(kind)),
                    Some(_) if depth == tree.len() => {
                        let (parents, name) = parts[part..].split_at(parts.len() - part - 1);
                        let (parents, name) = (parents.join("/").into(), name.concat().into());
                        patterns.push(Pattern { base: Base::Root, parents, name, ..pattern.clone() });
                    }
                    Some(&"**") => states.extend([(part + 1, depth), (part, depth + 1)]),
                    Some(text) if fits(text, tree[depth]) => states.push((part + 1, depth + 1)),
                    Some(_) => {}
                }
            }
        }
    }

    fn get(&self, index: u16) -> Option<&Rule> {
        let index = usize::from(index);
        match self.slots.get(index) {
            None | Some(Slot::Ships) => (index < BYTES.len()).then(|| ships(index)),
            Some(Slot::Off) => None,
            Some(Slot::Changed(rule)) => Some(rule),
        }
    }

    /// The rule, unless the name is one of its exceptions.
    fn unless_excepted(&self, index: u16, name: &[u8]) -> Option<&Rule> {
        self.get(index).filter(|rule| !rule.except.iter().any(|except| fits(except, name)))
    }

    fn on(&self, index: u16) -> bool {
        !matches!(self.slots.get(usize::from(index)), Some(Slot::Off))
    }

    /// What holds for all entries of `directory` (relative to the tree; empty is the tree itself). Ask once a directory.
    pub fn scope(&self, directory: &Path) -> Scope {
        let directory = relative(directory);
        let mut scope = Scope { policy: self.whole, ..Scope::default() };
        let mut start = 0;
        while start < directory.len() {
            let end = directory[start..].iter().position(|byte| *byte == b'/').map_or(directory.len(), |at| start + at);
            let (above, name) = (&directory[..start.saturating_sub(1)], &directory[start..end]);
            scope.policy = min(scope.policy, self.glob(above, name));
            if name == b".git" {
                scope.git = Some((end + 1).min(directory.len()));
            }
            if PACKAGES.iter().any(|packages| packages.as_bytes() == name) {
                scope.packages = true;
            }
            if scope.git.is_none() {
                scope.below = min(scope.below, self.ships(above, name, true, scope.packages));
            }
            start = end + 1;
        }
        scope
    }

    /// The rule for the entry `name` of `directory`, if it is a file or a symlink. For a directory ask [`Guard::whole`].
    pub fn rule(&self, scope: &Scope, directory: &Path, name: &OsStr) -> Option<&Rule> {
        let (directory, name) = (relative(directory), name.as_bytes());
        let policy = if self.globs.patterns.is_empty() { scope.policy } else { min(scope.policy, self.glob(directory, name)) };
        match policy {
            Some(Kind::Allow) => return None,
            Some(Kind::Stage) => return self.by_id(STAGE),
            Some(Kind::Add) if scope.git.is_none() => return self.by_id(POLICY),
            _ => {}
        }
        if let Some(start) = scope.git {
            let inside = join_bytes(&directory[start..], name);
            let ships = self.git(&inside).and_then(|index| self.unless_excepted(index, name));
            return ships.or_else(|| policy.and_then(|_| self.by_id(POLICY)));
        }
        let own = self.ships(directory, name, false, scope.packages);
        min(scope.below, own).and_then(|index| self.unless_excepted(index, name))
    }

    /// The rule that is about all of a directory, whatever lies in it; `scope` is the directory's own.
    pub fn whole(&self, scope: &Scope) -> Option<&Rule> {
        match scope.policy {
            Some(Kind::Allow) => None,
            Some(Kind::Stage) => self.by_id(STAGE),
            Some(Kind::Add) => self.by_id(POLICY),
            None => scope.below.and_then(|index| self.get(index)),
        }
    }

    /// The rule for a symlink `name` in `directory`: as [`Guard::rule`], and also when it stands where a guarded file's
    /// directory would, as in `.vscode -> planted`.
    pub fn rule_for_link(&self, scope: &Scope, directory: &Path, name: &OsStr) -> Option<&Rule> {
        if let Some(rule) = self.rule(scope, directory, name) {
            return Some(rule);
        }
        let (directory, name) = (relative(directory), name.as_bytes());
        if scope.git.is_some() || min(scope.policy, self.glob(directory, name)) == Some(Kind::Allow) {
            return None;
        }
        let leads = |pattern: &&Pattern<'_>| {
            let parts: Vec<&str> = pattern.parents.split('/').collect();
            (0..parts.len()).any(|at| {
                parts[at] != "**"
                    && fits(parts[at], name)
                    && pattern::tail(&parts[..at].join("/"), directory, pattern.base != Base::Anywhere)
            })
        };
        let globs = self.globs.patterns.iter().filter(leads).map(|pattern| pattern.rule).min();
        match globs {
            Some(rule) if rule == Kind::Stage as u16 => return self.by_id(STAGE),
            Some(rule) if rule == Kind::Add as u16 => return self.by_id(POLICY),
            _ => {}
        }
        let reports = |index: u16| self.get(index).is_some_and(|rule| rule.action == Action::Report);
        let ships = TREE.patterns.iter().filter(|pattern| self.on(pattern.rule) && !reports(pattern.rule)).filter(leads);
        ships.map(|pattern| pattern.rule).min().and_then(|index| self.get(index))
    }

    /// The rule for a file or symlink, by its path relative to the tree.
    pub fn rule_for(&self, path: &Path) -> Option<&Rule> {
        let (directory, name) = split(relative(path));
        let directory = Path::new(OsStr::from_bytes(directory));
        self.rule(&self.scope(directory), directory, OsStr::from_bytes(name))
    }

    /// The rule for a file by its path relative to the git directory that it belongs to.
    pub fn in_git_dir(&self, path: &Path) -> Option<&Rule> {
        let path = relative(path);
        self.git(path).and_then(|index| self.unless_excepted(index, split(path).1))
    }

    /// A rule by its name; `None` when there is none, or when the policy lets it change.
    pub fn by_id(&self, id: &str) -> Option<&Rule> {
        names::rules().iter().position(|known| *known == id).and_then(|index| self.get(index as u16))
    }

    /// Is what `rule` found at `path` (relative to the tree) to be read-only at once, where it exists?
    pub fn prevents(&self, path: &Path, rule: &Rule) -> bool {
        let path = relative(path);
        let below = |pattern: &Pattern<'_>, path: &[u8], whole: bool| {
            let text = join(&pattern.parents, &pattern.name);
            let ends = (0..=path.len()).filter(|at| *at == path.len() || path[*at] == b'/');
            ends.into_iter().any(|at| pattern::tail(&text, &path[..at], whole))
        };
        self.policy.prevent.iter().any(|selector| match selector {
            // Git itself writes its configuration, and stops when it cannot.
            Selector::Everything => rule.action != Action::Report && rule.check != Check::GitConfig,
            Selector::Rule(id) => *id == rule.id,
            Selector::Class(_) => false,
            Selector::Anywhere(glob) => parsed(glob, Kind::Add).any(|pattern| below(&pattern, path, false)),
            Selector::Absolute(glob) => {
                let absolute = |name: &Vec<u8>| [&name[usize::from(name.starts_with(b"/"))..], b"/", path].concat();
                parsed(glob, Kind::Add).any(|pattern| self.names.iter().any(|name| below(&pattern, &absolute(name), true)))
            }
        })
    }

    /// What the policy's globs say about one entry, not about those above it.
    fn glob(&self, directory: &[u8], name: &[u8]) -> Option<Kind> {
        match self.globs.find(directory, name, |_| true)? {
            0 => Some(Kind::Allow),
            1 => Some(Kind::Stage),
            _ => Some(Kind::Add),
        }
    }

    fn ships(&self, directory: &[u8], name: &[u8], below: bool, packages: bool) -> Option<u16> {
        let accept = |pattern: &Pattern<'_>| {
            (pattern.below || !below) && self.on(pattern.rule) && !(packages && OUTSIDE[usize::from(pattern.rule)])
        };
        TREE.find(directory, name, accept)
    }

    fn git(&self, path: &[u8]) -> Option<u16> {
        let find = |path: &[u8]| {
            let (directory, name) = split(path);
            let here = GIT.find(directory, name, |pattern| self.on(pattern.rule));
            here.or_else(|| {
                let slashes = (0..directory.len()).filter(|at| directory[*at] == b'/').chain([directory.len()]);
                slashes.into_iter().find_map(|end| {
                    let (above, name) = split(&directory[..end]);
                    GIT.find(above, name, |pattern| pattern.below && self.on(pattern.rule))
                })
            })
        };
        // Those of a linked worktree lie in its own directory.
        let own =
            path.strip_prefix(b"worktrees/").and_then(|rest| Some(&rest[rest.iter().position(|byte| *byte == b'/')? + 1..]));
        let Some(modules) = own.unwrap_or(path).strip_prefix(b"modules/") else { return find(path) };
        // The name of a submodule can have slashes. What lies in its refs and logs has free names, too.
        let slashes = (0..modules.len()).filter(|at| modules[*at] == b'/');
        slashes
            .take_while(|at| {
                !modules[..*at]
                    .split(|byte| *byte == b'/')
                    .any(|part| matches!(part, b"refs" | b"logs" | b"objects" | b"rr-cache"))
            })
            .find_map(|at| find(&modules[at + 1..]))
    }
}

/// The patterns of a glob that the policy was checked for.
fn parsed(glob: &str, kind: Kind) -> impl Iterator<Item = Pattern<'static>> {
    let patterns = pattern::parse(glob, kind as u16).unwrap_or_default();
    patterns.into_iter().map(|pattern| Pattern { below: true, ..pattern })
}

fn min<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn relative(path: &Path) -> &[u8] {
    let path = path.as_os_str().as_bytes();
    path.strip_suffix(b"/").unwrap_or(path)
}

fn join(parents: &str, name: &str) -> String {
    if parents.is_empty() { name.to_owned() } else { format!("{parents}/{name}") }
}

fn join_bytes<'a>(directory: &[u8], name: &'a [u8]) -> Cow<'a, [u8]> {
    if directory.is_empty() { Cow::Borrowed(name) } else { Cow::Owned([directory, b"/", name].concat()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
