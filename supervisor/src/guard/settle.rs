//! Brings one tree back: what changed in guarded files is judged, and put aside or left.
//!
//! [`decide()`] is pure. What it says is then done so that a killed supervisor can be followed by another one at any
//! point, and so that nothing that somebody else writes meanwhile is lost: a name is taken away before its content is
//! believed, and nothing is put back over something new.

mod aside;
mod decide;
mod tree;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::{Action, Check, Rule, git_config};
use nix::sys::stat::SFlag;

use super::quarantine::{Approved, Before, Entry, Quarantine, Stage, What};
use super::rules::TreeRules;
use super::run::{Record, Run};
use super::shadow::place;
use super::snapshot::{Change, Held, Is, Snapshot, Wanted, hold};
use crate::beneath::{TEMPORARY, kind};
use crate::clock;
use crate::state::Tree;

pub(crate) use decide::{Decision, decide};
pub(crate) use tree::settle_tree;

/// Why a symlink is put aside.
const LEADS_OUT: &str = "a symlink to what the sandbox could not read";

/// About the run, for the entries of the quarantine.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) run: String,
    secret: Vec<u8>,
    pub(crate) profile: String,
    pub(crate) command: String,
}

/// What came of settling.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Tree, number and entry.
    pub(crate) put_aside: Vec<(PathBuf, u64, Entry)>,
    /// Path, what about it, rule.
    pub(crate) reported: Vec<(PathBuf, String, String)>,
    /// Guarded files that are gone.
    pub(crate) deleted: Vec<PathBuf>,
    /// Guarded files that jobs removed and the host still has.
    pub(crate) kept: Vec<PathBuf>,
    /// What could not be settled, and why not.
    pub(crate) failed: Vec<(PathBuf, String)>,
}

/// Brings a tree back in steps.
pub(crate) struct Settler<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) rules: &'a TreeRules<'a>,
    pub(crate) about: &'a About,
    pub(crate) quarantine: Quarantine,
    pub(crate) approved: Approved,
    pub(crate) outcome: Outcome,
}

/// A change that is to be put aside unless version control excuses it.
pub(crate) struct Candidate<'r> {
    pub(crate) change: Change,
    pub(crate) rule: &'r Rule,
    why: String,
    instead: Option<(Is, u32)>,
}

impl About {
    /// That of a run.
    pub(crate) fn of(run: &Run, record: &Record) -> Self {
        Self { run: run.name(), secret: run.secret(), profile: record.profile.clone(), command: record.command.clone() }
    }

    /// What a file is called between its own name and the quarantine. Another supervisor finds it again, and no job can have
    /// it there before: what is there already counts as taken away.
    fn away(&self, id: u64) -> String {
        let name = hermes_profiles::trust::hash(&[&self.secret[..], &id.to_le_bytes()].concat());
        format!("{TEMPORARY}{}", &name[..32])
    }
}

impl<'a> Settler<'a> {
    pub(crate) fn new(tree: &'a Tree, rules: &'a TreeRules<'a>, about: &'a About) -> io::Result<Self> {
        let quarantine = Quarantine::new(&tree.state);
        let approved = quarantine.approved()?;
        Ok(Self { tree, rules, about, quarantine, approved, outcome: Outcome::default() })
    }

    /// Judges what differs between two snapshots. Does what needs no excuse; returns the rest.
    pub(crate) fn judge(&mut self, before: &Snapshot, now: &Snapshot) -> io::Result<Vec<Candidate<'a>>> {
        let (changes, links) = before.changes(now);
        let mut candidates = self.judge_all(changes, before, now)?;
        let known = before.links();
        for (path, target) in links {
            candidates.extend(self.judge_link(path, &target, &known));
        }
        Ok(candidates)
    }

    /// Judges changes of guarded entries.
    pub(crate) fn judge_all(
        &mut self,
        changes: Vec<Change>,
        before: &Snapshot,
        now: &Snapshot,
    ) -> io::Result<Vec<Candidate<'a>>> {
        let mut candidates = Vec::new();
        let is_young = |rule: &Rule, change: &Change| {
            // An environment that was there before is not made new by a directory in it.
            let of_old = || change.path.ancestors().skip(1).any(|at| before.has(&at.join("pyvenv.cfg")));
            let in_new = || change.path.parent().is_some_and(|at| !before.has_directory(at));
            rule.new_directory_excuses && change.before.is_none() && in_new() && !of_old()
        };
        for change in changes {
            let Some(held) = &change.now else {
                let path = change.path.clone();
                let replaced = self.tree.root.stat(&path).is_ok_and(|stat| kind(&stat) == SFlag::S_IFDIR);
                match (replaced, self.rules.rule(&path, change.git.as_deref())) {
                    (true, Some(rule)) => {
                        let done = self.put_directory_aside(&change, rule);
                        self.note(&path, done);
                    }
                    (_, Some(rule)) if rule.action != Action::Report => self.outcome.deleted.push(path),
                    _ => {}
                }
                continue;
            };
            let Some(rule) = self.rules.rule(&change.path, change.git.as_deref()) else { continue };
            if self.rules.harmless_pointer(now, &change.path, held) {
                continue;
            }
            let approved = self.approved.has(&rule.id, &change.path, &held.is, held.mode);
            let git = change.git.clone().unwrap_or_default();
            let also = |key: &str, value: &[u8]| self.rules.leads_well(&git, key, value);
            match decide(rule, change.before.as_ref().map(Held::seen), held.seen(), approved, &also) {
                Decision::Keep => {
                    let kept = self.keep(&change);
                    self.note(&change.path, kept);
                }
                Decision::Report(_) if is_young(rule, &change) => {}
                Decision::PutAside { why, .. } if is_young(rule, &change) => {
                    self.outcome.reported.push((change.path, why, rule.id.to_string()));
                }
                // A rule that only reports says nothing about where it leads.
                Decision::Report(_) if let Some(rule) = self.link_out(&change.path, held) => {
                    let why = LEADS_OUT.to_owned();
                    let old = change.before.as_ref().filter(|before| !matches!(before.is, Is::Unread | Is::Special));
                    let instead = old.map(|before| (before.is.clone(), before.mode));
                    candidates.push(Candidate { change, rule, why, instead });
                }
                Decision::Report(why) => self.outcome.reported.push((change.path, why, rule.id.to_string())),
                Decision::Rewrite(text) => {
                    let rewritten = self.rewrite(&change, text);
                    self.note(&change.path, rewritten);
                }
                Decision::PutAside { why, instead } => candidates.push(Candidate { change, rule, why, instead }),
            }
        }
        Ok(candidates)
    }

    /// The rule for a guarded symlink that leads to what the sandbox could not read, unless that was approved.
    fn link_out(&self, path: &Path, held: &Held) -> Option<&'a Rule> {
        let Is::Link(target) = &held.is else { return None };
        let rule = self.rules.leads_out(path, Path::new(std::ffi::OsStr::from_bytes(target)))?;
        (!self.approved.has(&rule.id, path, &held.is, 0)).then_some(rule)
    }

    fn judge_link(&self, path: PathBuf, target: &Path, known: &BTreeMap<PathBuf, &[u8]>) -> Option<Candidate<'a>> {
        let rule = self.rules.leads_out(&path, target)?;
        let is = Is::Link(target.as_os_str().as_bytes().to_vec());
        if self.approved.has(&rule.id, &path, &is, 0) {
            return None;
        }
        let stat = self.tree.root.stat(&path).ok()?;
        let held = hold(&self.tree.root, &path, &stat, Wanted::Kept);
        let instead = known.get(&path).map(|old| (Is::Link(old.to_vec()), 0o777));
        let before = instead.as_ref().map(|(is, mode)| held.with(is.clone(), *mode));
        let why = LEADS_OUT.to_owned();
        let change = Change { path, git: None, before, now: Some(held) };
        Some(Candidate { change, rule, why, instead })
    }

    /// One file that cannot be settled must not keep others from it.
    pub(crate) fn note(&mut self, path: &Path, outcome: io::Result<()>) {
        if let Err(e) = outcome {
            self.outcome.failed.push((path.to_owned(), e.to_string()));
        }
    }

    /// A kept file gets an inode of its own when other names lead to it: they may be anywhere, and writable.
    fn keep(&self, change: &Change) -> io::Result<()> {
        let Some(Held { is: Is::File(content), mode, .. }) = &change.now else { return Ok(()) };
        match self.tree.root.stat(&change.path) {
            Ok(stat) if stat.st_nlink > 1 && kind(&stat) == SFlag::S_IFREG => self.replace(&change.path, content, *mode),
            _ => Ok(()),
        }
    }

    fn rewrite(&self, change: &Change, text: Vec<u8>) -> io::Result<()> {
        let mode = change.now.as_ref().map_or(0o644, |now| now.mode & 0o777);
        self.replace(&change.path, &text, mode)
    }

    /// A fresh inode with this content in the place of what is there.
    fn replace(&self, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = self.tree.root.parent(path)?;
        place(&parent, name, content, mode)
    }

    /// What lay where an entry was put aside, or what of it is harmless.
    pub(crate) fn instead(&self, id: u64, entry: &Entry) -> io::Result<Option<(Is, u32)>> {
        let before = self.quarantine.before(id)?;
        let config = self.rules.by_id(&entry.rule).is_some_and(|rule| rule.check == Check::GitConfig);
        if config && entry.what == What::File {
            let old = if matches!(entry.before, Before::File(_)) { before.as_slice() } else { &[] };
            let git = entry.path.parent().unwrap_or(Path::new(""));
            let also = |key: &str, value: &[u8]| self.rules.leads_well(git, key, value);
            if let Ok(merged) = git_config::merge_with(old, &self.quarantine.content(id)?, old, &also) {
                return Ok(Some((Is::File(merged.text), entry.mode & 0o666)));
            }
        }
        Ok(match entry.before {
            Before::File(mode) => Some((Is::File(before), mode)),
            Before::Symlink => Some((Is::Link(before), 0o777)),
            Before::Absent | Before::Unknown => None,
        })
    }

    /// Puts a private copy aside: the tree has nothing of it.
    pub(crate) fn keep_private(
        &mut self,
        path: &Path,
        rule: &Rule,
        why: String,
        now: &Held,
        old: Option<&Held>,
    ) -> io::Result<()> {
        let (entry, content, before) = self.entry(path, rule, why, now, old);
        let entry = Entry { stage: Stage::Done, ..entry };
        let id = self.quarantine.add(&entry, &content, &before)?;
        self.quarantine.sync(&[id])?;
        self.outcome.put_aside.push((self.tree.path.clone(), id, entry));
        Ok(())
    }

    /// Brings an approved private copy to the tree.
    pub(crate) fn install(&self, path: &Path, now: &Held) -> io::Result<()> {
        match &now.is {
            Is::File(content) => self.replace(path, content, now.mode),
            _ => Ok(()),
        }
    }

    fn entry(&self, path: &Path, rule: &Rule, why: String, now: &Held, old: Option<&Held>) -> (Entry, Vec<u8>, Vec<u8>) {
        let (before, old) = match old {
            None => (Before::Absent, Vec::new()),
            Some(Held { is: Is::File(content), mode, .. }) => (Before::File(*mode), content.clone()),
            Some(Held { is: Is::Link(target), .. }) => (Before::Symlink, target.clone()),
            Some(_) => (Before::Unknown, Vec::new()),
        };
        let (what, content) = match &now.is {
            Is::File(content) => (What::File, content.clone()),
            Is::Link(target) => (What::Symlink, target.clone()),
            Is::Unread => (What::LongFile, Vec::new()),
            Is::Special => (What::Special, Vec::new()),
        };
        let entry = Entry {
            time: clock::milliseconds(),
            path: path.to_owned(),
            rule: rule.id.to_string(),
            runs: rule.runs.to_string(),
            why,
            profile: self.about.profile.clone(),
            command: self.about.command.clone(),
            run: self.about.run.clone(),
            what,
            mode: now.mode,
            before,
            staged: rule.action == Action::Stage,
            stage: Stage::Copied,
        };
        (entry, content, old)
    }
}
