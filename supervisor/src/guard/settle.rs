//! Brings one tree back: what changed in guarded files is judged, and put aside or left.
//!
//! [`decide`] is pure. What it says is then done so that a killed supervisor can be followed by another one at any
//! point, and so that nothing that somebody else writes meanwhile is lost: a name is taken away before its content is
//! believed, and nothing is put back over something new.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::{self, Action, Check, Rule, Verdict, git_config};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use super::quarantine::{self, Approved, Before, Entry, Quarantine, Stage, What};
use super::rules::TreeRules;
use super::run::{Record, Run};
use super::shadow::{TEMPORARY, place};
use super::snapshot::{Change, Held, Is, LONGEST, Snapshot, Wanted, hold};
use crate::beneath::{Root, by_descriptor, errno, kind, rename_to_free};
use crate::state::Tree;

/// What is to be done about one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing.
    Keep,
    /// It stays; people are told.
    Report(String),
    /// It is put aside, and this comes in its place.
    PutAside {
        /// What about it.
        why: String,
        /// What lies there afterwards; `None` when nothing does.
        instead: Option<(Is, u32)>,
    },
    /// Only this of it stays.
    Rewrite(Vec<u8>),
}

/// Judges a change of a guarded entry, but for what version control knows about it.
///
/// `also` says what is harmless in git configuration besides what always is.
pub(crate) fn decide(
    rule: &Rule,
    before: Option<&Held>,
    now: &Held,
    approved: bool,
    also: &dyn Fn(&str, &[u8]) -> bool,
) -> Decision {
    if approved {
        return Decision::Keep;
    }
    let instead = before.filter(|before| !matches!(before.is, Is::Unread | Is::Special)).map(|b| (b.is.clone(), b.mode));
    let aside = |why: &str| Decision::PutAside { why: why.to_owned(), instead: instead.clone() };
    let old = before.and_then(|before| match &before.is {
        Is::File(content) => Some(content.as_slice()),
        _ => None,
    });
    let report_only = rule.action == Action::Report;
    match &now.is {
        Is::Unread if report_only => Decision::Report(if before.is_some() { "changed" } else { "new" }.to_owned()),
        Is::Unread => aside("too long to be judged"),
        Is::Special if report_only => Decision::Keep,
        Is::Special => aside("not a regular file"),
        Is::Link(_) if report_only => Decision::Report("now a symlink".to_owned()),
        Is::Link(_) => aside(if before.is_some() { "now a symlink" } else { "a new symlink" }),
        Is::File(content) => {
            if old == Some(content.as_slice()) {
                let bits = before.map_or(0, |before| before.mode);
                // Modes without the executable bits run nothing.
                let gained = now.mode & !bits & 0o111;
                return if gained == 0 || report_only { Decision::Keep } else { aside("made executable") };
            }
            if rule.check == Check::GitConfig {
                return config(
                    git_config::merge_with(old.unwrap_or_default(), content, old.unwrap_or_default(), also),
                    &aside,
                    before,
                    now,
                );
            }
            match guard::judge(rule, old, content) {
                Verdict::Keep => Decision::Keep,
                Verdict::Report { why } => Decision::Report(why),
                Verdict::PutAside { why } => aside(&why),
            }
        }
    }
}

fn config(
    merged: Result<git_config::Merged, git_config::Unreadable>,
    aside: &dyn Fn(&str) -> Decision,
    before: Option<&Held>,
    now: &Held,
) -> Decision {
    let Is::File(new) = &now.is else { return Decision::Keep };
    match merged {
        Err(unreadable) => aside(&unreadable.to_string()),
        Ok(merged) if merged.refused.is_empty() => {
            if merged.text == *new {
                Decision::Keep
            } else {
                Decision::Rewrite(merged.text)
            }
        }
        Ok(merged) => {
            let mode = before.map_or(now.mode & 0o666, |before| before.mode);
            Decision::PutAside { why: sets(&merged.refused), instead: Some((Is::File(merged.text), mode)) }
        }
    }
}

/// "sets core.fsmonitor, core.hooksPath and 2 more"
pub(crate) fn sets(keys: &[String]) -> String {
    let shown = keys.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    match keys.len().saturating_sub(3) {
        0 => format!("sets {shown}"),
        more => format!("sets {shown} and {more} more"),
    }
}

/// About the run, for the entries of the quarantine.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) run: String,
    pub(crate) profile: String,
    pub(crate) command: String,
}

/// What came of settling.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Number and entry.
    pub(crate) put_aside: Vec<(u64, Entry)>,
    /// Path, what about it, rule.
    pub(crate) reported: Vec<(PathBuf, String, String)>,
    /// Guarded files that are gone.
    pub(crate) deleted: Vec<PathBuf>,
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
        Self { run: run.name(), profile: record.profile.clone(), command: record.command.clone() }
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
        let mut candidates = self.judge_all(changes, now)?;
        let known = before.links();
        for (path, target) in links {
            candidates.extend(self.judge_link(path, &target, &known));
        }
        Ok(candidates)
    }

    /// Judges changes of guarded entries.
    pub(crate) fn judge_all(&mut self, changes: Vec<Change>, now: &Snapshot) -> io::Result<Vec<Candidate<'a>>> {
        let mut candidates = Vec::new();
        for change in changes {
            let Some(held) = &change.now else {
                let path = change.path.clone();
                let replaced = self.tree.root.stat(&path).is_ok_and(|stat| kind(&stat) == SFlag::S_IFDIR);
                match (replaced, self.rules.rule(&path, change.git.as_deref())) {
                    (true, Some(rule)) => {
                        let done = self.put_directory_aside(&change, rule);
                        self.note(&path, done);
                    }
                    _ => self.outcome.deleted.push(path),
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
            match decide(rule, change.before.as_ref(), held, approved, &also) {
                Decision::Keep => {
                    let kept = self.keep(&change);
                    self.note(&change.path, kept);
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
        let why = "a symlink to what the sandbox could not read".to_owned();
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
        self.outcome.put_aside.push((id, entry));
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
            time: quarantine::now(),
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

    /// Puts a directory aside that stands where a guarded file was.
    fn put_directory_aside(&mut self, change: &Change, rule: &Rule) -> io::Result<()> {
        let Some(old) = &change.before else { return Ok(()) };
        let now = old.with(Is::Special, 0o700);
        let (entry, _, before) = self.entry(&change.path, rule, "now a directory".to_owned(), &now, Some(old));
        let entry = Entry { what: What::Directory, ..entry };
        let id = self.quarantine.add(&entry, &[], &before)?;
        self.finish(id, entry, Some((old.is.clone(), old.mode)))
    }

    /// Puts aside what nothing excuses.
    pub(crate) fn put_aside(&mut self, candidate: Candidate<'_>) {
        let path = candidate.change.path.clone();
        let done = self.try_put_aside(candidate);
        self.note(&path, done);
    }

    fn try_put_aside(&mut self, candidate: Candidate<'_>) -> io::Result<()> {
        let Candidate { change, rule, why, instead } = candidate;
        let Some(now) = change.now else { return Ok(()) };
        let (entry, content, old) = self.entry(&change.path, rule, why, &now, change.before.as_ref());
        let id = self.quarantine.add(&entry, &content, &old)?;
        self.finish(id, entry, instead)
    }

    /// Takes the name away and puts the right thing in its place: the second half of putting aside, which another
    /// supervisor can do again.
    pub(crate) fn finish(&mut self, id: u64, entry: Entry, instead: Option<(Is, u32)>) -> io::Result<()> {
        let taken = match self.tree.root.parent(&entry.path) {
            Ok((parent, name)) => Some((parent, name.to_owned())),
            // Its directory has gone meanwhile, and it with it.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => None,
            Err(errno) => return Err(errno.into()),
        };
        if let Some((parent, name)) = taken {
            self.take_away(&parent, &name, id, &entry)?;
            if let Some((is, mode)) = instead {
                put_back(&parent, &name, &is, mode)?;
            }
        }
        let entry = Entry { stage: Stage::Done, ..entry };
        self.quarantine.update(id, &entry)?;
        self.outcome.put_aside.push((id, entry));
        Ok(())
    }

    fn take_away(&self, parent: &OwnedFd, name: &std::ffi::OsStr, id: u64, entry: &Entry) -> io::Result<()> {
        let away = format!("{TEMPORARY}{}-{id}", self.about.run);
        let take = || rename_to_free(parent, name, parent, away.as_ref());
        let taken = take().or_else(|errno| match errno {
            Errno::EACCES => {
                self.tree.root.make_writable(entry.path.parent().unwrap_or(Path::new("")))?;
                take()
            }
            errno => Err(errno),
        });
        match taken {
            Ok(()) | Err(Errno::EEXIST | Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let moved = Root::from_fd(parent.try_clone()?);
        let Ok(stat) = moved.stat(Path::new(&away)) else { return Ok(()) };
        match kind(&stat) {
            SFlag::S_IFDIR if entry.what == What::Directory => {
                let kept = self.quarantine.content_path(id);
                let holder = Root::open(kept.parent().unwrap_or(Path::new("/")))?;
                return match rename_to_free(parent, away.as_ref(), &holder, "directory".as_ref()) {
                    // It stays on its file system, under a name that nothing looks for.
                    Err(Errno::EXDEV) => {
                        let mut beside = name.to_owned();
                        beside.push(format!(".put-aside-{id}"));
                        rename_to_free(parent, away.as_ref(), parent, &beside)
                    }
                    other => other,
                }
                .map_err(Into::into);
            }
            SFlag::S_IFDIR => {
                // Somebody made a directory of that name since: it is not what was judged.
                return rename_to_free(parent, away.as_ref(), parent, name).map_err(Into::into);
            }
            SFlag::S_IFREG if entry.what == What::LongFile => self.keep_long(parent, &away, id)?,
            SFlag::S_IFREG => {
                // What was written between the look and now comes along.
                if let Ok((content, _)) = moved.read(Path::new(&away), LONGEST)
                    && self.quarantine.content(id).is_ok_and(|known| known != content)
                {
                    std::fs::write(self.quarantine.content_path(id), content)?;
                }
            }
            _ => {}
        }
        match unlinkat(parent, away.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn keep_long(&self, parent: &OwnedFd, away: &str, id: u64) -> io::Result<()> {
        let kept = self.quarantine.content_path(id);
        let holder = Root::open(kept.parent().unwrap_or(Path::new("/")))?;
        let root = Root::from_fd(parent.try_clone()?);
        // What has other names can be changed by them.
        let alone = root.stat(Path::new(away))?.st_nlink == 1;
        let moved = if alone { renameat(parent, away, holder.as_fd(), "content") } else { Err(Errno::EXDEV) };
        match moved {
            Ok(()) => std::fs::set_permissions(&kept, Permissions::from_mode(0o600)),
            Err(Errno::EXDEV) => {
                let from = root.open_file(Path::new(away))?.0;
                let mut to = std::fs::File::create(&kept)?;
                io::copy(&mut &from, &mut to).map(drop)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Puts a fresh file or symlink at a free name. Something that is there by now is somebody's own and stays.
pub(crate) fn put_back(parent: &OwnedFd, name: &std::ffi::OsStr, is: &Is, mode: u32) -> io::Result<()> {
    let done = match is {
        Is::Link(target) => symlinkat(std::ffi::OsStr::from_bytes(target), parent, name),
        Is::File(content) => put_file(parent, name, content, mode)?,
        Is::Unread | Is::Special => Ok(()),
    };
    match done {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn put_file(parent: &OwnedFd, name: &std::ffi::OsStr, content: &[u8], mode: u32) -> io::Result<Result<(), Errno>> {
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    match nix::fcntl::openat(parent, ".", flags, Mode::from_bits_truncate(0o600)) {
        Ok(fd) => {
            let mut file = std::fs::File::from(fd);
            file.write_all(content)?;
            file.set_permissions(Permissions::from_mode(mode & 0o777))?;
            let cwd = nix::fcntl::AT_FDCWD;
            Ok(linkat(cwd, by_descriptor(&file).as_os_str(), parent, name, AtFlags::AT_SYMLINK_FOLLOW))
        }
        Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT) => {
            let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(by_descriptor(parent))?;
            file.write_all(content)?;
            file.as_file().set_permissions(Permissions::from_mode(mode & 0o777))?;
            let target = PathBuf::from(by_descriptor(parent)).join(name);
            Ok(file.persist_noclobber(target).map(drop).map_err(|e| errno(&e.error)))
        }
        Err(errno) => Ok(Err(errno)),
    }
}
