//! What was put aside, and what was approved for good: in the state directory of the tree, for its owner alone.
//!
//! `quarantine/<number>/entry` says what it is, `content` is what was put aside, `before` what was there before the run.
//! `approved` lists what need not be put aside again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hermes_profiles::{ospath, trust};
use serde::{Deserialize, Serialize};

use super::snapshot::Is;
use crate::state::store;

/// Something that was put aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Milliseconds since 1970.
    pub(crate) time: u64,
    /// Where it was, relative to the tree.
    #[serde(with = "ospath")]
    pub(crate) path: PathBuf,
    /// The rule that it met.
    pub(crate) rule: String,
    /// Who would have run or obeyed it.
    pub(crate) runs: String,
    /// What about it.
    pub(crate) why: String,
    /// The profile of the run.
    pub(crate) profile: String,
    /// The command of the run.
    pub(crate) command: String,
    /// Which run it was: what a killed supervisor has put aside already is not put aside twice.
    pub(crate) run: String,
    /// What it is.
    pub(crate) what: What,
    /// Permission bits.
    pub(crate) mode: u32,
    /// What was there before.
    pub(crate) before: Before,
    /// Is it kept by its directory for the host to see, only not yet in effect?
    pub(crate) staged: bool,
    /// How far it has come.
    pub(crate) stage: Stage,
}

/// What was put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum What {
    /// A regular file; `content` has its bytes.
    File,
    /// A symlink; `content` has its target.
    Symlink,
    /// A file too long to be copied; `content` is the file itself where the file system allows that.
    LongFile,
    /// A FIFO, socket or device: nothing is kept of it.
    Special,
    /// A directory in the place of a file; `directory` is it.
    Directory,
}

/// What was there before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Before {
    /// Nothing.
    Absent,
    /// A file with the bytes in `before` and these permission bits.
    File(u32),
    /// A symlink with the target in `before`.
    Symlink,
    /// Something of which no copy could be kept.
    Unknown,
}

/// How far it has come: a supervisor can be killed in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stage {
    /// The copy is made; the tree may not be as before yet.
    Copied,
    /// The tree is as before.
    Done,
}

/// Up to so many entries are synced one by one. A sync of the whole file system waits for what others write there, but once.
const FEW: usize = 8;

/// The quarantine of one tree.
#[derive(Debug, Clone)]
pub(crate) struct Quarantine {
    state: PathBuf,
}

/// A content that was approved at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Approval {
    /// Short, and the same whatever else is approved.
    pub(crate) id: String,
    pub(crate) rule: String,
    /// Relative to the tree.
    pub(crate) path: PathBuf,
    /// `file`, `program` or `symlink`.
    pub(crate) kind: String,
}

/// Contents that were approved: (rule, path, kind and hash).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Approved(BTreeSet<(String, Vec<u8>, String)>);

impl Quarantine {
    /// That of the tree whose state directory this is.
    pub(crate) fn new(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    /// Makes the directory and sees that it can be written.
    pub(crate) fn make(&self) -> io::Result<()> {
        crate::state::private_directory(&self.dir(), true)
    }

    fn dir(&self) -> PathBuf {
        self.state.join("quarantine")
    }

    fn at(&self, id: u64, name: &str) -> PathBuf {
        self.dir().join(id.to_string()).join(name)
    }

    /// Puts a copy aside. `content` and `before` are what the entry says they are. Nothing may rely on it before
    /// [`Quarantine::sync`].
    pub(crate) fn add(&self, entry: &Entry, content: &[u8], before: &[u8]) -> io::Result<u64> {
        // A number is never given twice: somebody may have written it down.
        let last = self.dir().join("last");
        let given = std::fs::read_to_string(&last).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let (id, _) = store::next(&self.dir(), given)?;
        std::fs::write(last, id.to_string())?;
        for (name, bytes) in [("content", content), ("before", before)] {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.at(id, name))?;
            file.write_all(bytes)?;
        }
        // Last: an entry that can be read is whole.
        self.update(id, entry)?;
        Ok(id)
    }

    /// Changes what is known about an entry.
    pub(crate) fn update(&self, id: u64, entry: &Entry) -> io::Result<()> {
        store::write_soon(&self.at(id, "entry"), entry)
    }

    /// Sees that these entries survive a loss of power.
    pub(crate) fn sync(&self, ids: &[u64]) -> io::Result<()> {
        if ids.len() > FEW {
            return Ok(rustix::fs::syncfs(File::open(self.dir())?)?);
        }
        let files = ids.iter().flat_map(|id| ["content", "before", "entry"].map(|name| self.at(*id, name)));
        files.filter(|path| path.exists()).try_for_each(|path| store::sync(&path))
    }

    /// All entries, oldest first.
    pub(crate) fn list(&self) -> io::Result<Vec<(u64, Entry)>> {
        let mut entries = Vec::new();
        for id in store::numbers(&self.dir())? {
            if let Some(entry) = store::read_if_known(&self.at(id, "entry"))? {
                entries.push((id, entry));
            }
        }
        Ok(entries)
    }

    /// What was put aside.
    pub(crate) fn content(&self, id: u64) -> io::Result<Vec<u8>> {
        std::fs::read(self.at(id, "content"))
    }

    /// What was there before.
    pub(crate) fn before(&self, id: u64) -> io::Result<Vec<u8>> {
        std::fs::read(self.at(id, "before"))
    }

    /// Where the content is.
    pub(crate) fn content_path(&self, id: u64) -> PathBuf {
        self.at(id, "content")
    }

    /// Forgets an entry.
    pub(crate) fn remove(&self, id: u64) -> io::Result<()> {
        // First what makes it an entry.
        std::fs::remove_file(self.at(id, "entry"))?;
        // A directory that was put aside is as the job made it, without rights for anybody maybe.
        crate::scratch::remove(&self.dir().join(id.to_string()))
    }

    /// Of entries of one content at one place only the newest stays: a decision about it is one about all.
    pub(crate) fn forget_repeated(&self) -> io::Result<()> {
        let mut alike: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for (id, entry) in self.list()?.into_iter().rev() {
            // Of the others the content is not known, or not here yet.
            if entry.stage == Stage::Done && matches!(entry.what, What::File | What::Symlink | What::Special) {
                alike.entry((entry.path, entry.rule, entry.what, entry.mode, entry.staged)).or_default().push(id);
            }
        }
        for ids in alike.into_values().filter(|ids| ids.len() > 1) {
            let mut known = BTreeSet::new();
            for id in ids {
                if !known.insert(trust::hash(&self.content(id)?)) {
                    self.remove(id)?;
                }
            }
        }
        Ok(())
    }

    /// What was approved.
    pub(crate) fn approved(&self) -> io::Result<Approved> {
        Ok(store::read_if_known(&self.state.join("approved"))?.unwrap_or_default())
    }

    /// Remembers that this content may be at this place.
    pub(crate) fn approve(&self, rule: &str, path: &Path, is: &Is, mode: u32) -> io::Result<()> {
        let mut approved = self.approved()?;
        if let Some(key) = key(rule, path, is, mode) {
            approved.0.insert(key);
        }
        store::write(&self.state.join("approved"), &approved)
    }

    /// Forgets the approvals with these identifiers.
    pub(crate) fn revoke(&self, ids: &BTreeSet<String>) -> io::Result<()> {
        let mut approved = self.approved()?;
        approved.0.retain(|key| !ids.contains(&approval(key).id));
        store::write(&self.state.join("approved"), &approved)
    }
}

/// Hexadecimal digits that tell approvals of one tree apart.
const DIGITS: usize = 12;

fn approval(key: &(String, Vec<u8>, String)) -> Approval {
    let (rule, path, content) = key;
    // No rule has a NUL in its name, and no path has one.
    let whole = [rule.as_bytes(), path, content.as_bytes()].join(&0);
    Approval {
        id: trust::hash(&whole)[..DIGITS].to_owned(),
        rule: rule.clone(),
        path: OsString::from_vec(path.clone()).into(),
        kind: content.split(' ').next().unwrap_or_default().to_owned(),
    }
}

impl Approved {
    /// All, by path.
    pub(crate) fn list(&self) -> Vec<Approval> {
        let mut all: Vec<Approval> = self.0.iter().map(approval).collect();
        all.sort_by(|a, b| (&a.path, &a.id).cmp(&(&b.path, &b.id)));
        all
    }

    pub(crate) fn has(&self, rule: &str, path: &Path, is: &Is, mode: u32) -> bool {
        // What may be executed may as well only be read.
        let known = |mode| key(rule, path, is, mode).is_some_and(|key| self.0.contains(&key));
        !self.0.is_empty() && (known(mode) || known(mode | 0o111))
    }
}

/// A file that is executable is another one than the same text that is not.
fn key(rule: &str, path: &Path, is: &Is, mode: u32) -> Option<(String, Vec<u8>, String)> {
    let (word, content) = match is {
        Is::File(content) if mode & 0o111 != 0 => ("program", content),
        Is::File(content) => ("file", content),
        Is::Link(target) => ("symlink", target),
        Is::Unread | Is::Special => return None,
    };
    let path = path.as_os_str().as_encoded_bytes().to_vec();
    Some((rule.to_owned(), path, format!("{word} {}", trust::hash(content))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    fn entry(path: &[u8]) -> Entry {
        Entry {
            time: 7,
            path: OsStr::from_bytes(path).into(),
            rule: "direnv".into(),
            runs: "direnv".into(),
            why: "new".into(),
            profile: "agent".into(),
            command: "sh".into(),
            run: "r".into(),
            what: What::File,
            mode: 0o755,
            before: Before::Absent,
            staged: false,
            stage: Stage::Copied,
        }
    }

    #[test]
    fn what_is_put_aside_can_be_had_again_and_is_not_executable() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path());
        quarantine.make().unwrap();
        let odd = entry(b"a\n\xff");
        assert_eq!(quarantine.add(&odd, b"evil", b"").unwrap(), 1);
        assert_eq!(quarantine.add(&entry(b"b"), b"2", b"1").unwrap(), 2);
        std::fs::create_dir(dir.path().join("quarantine/9")).unwrap();
        assert_eq!(quarantine.list().unwrap(), [(1, odd.clone()), (2, entry(b"b"))], "a half-made entry is none");
        assert_eq!((quarantine.content(1).unwrap(), quarantine.before(2).unwrap()), (b"evil".to_vec(), b"1".to_vec()));
        assert_eq!(quarantine.content_path(1).metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        quarantine.update(1, &Entry { stage: Stage::Done, ..odd }).unwrap();
        assert_eq!(quarantine.list().unwrap()[0].1.stage, Stage::Done);
        quarantine.remove(2).unwrap();
        assert_eq!(quarantine.list().unwrap().len(), 1);
        assert_eq!(quarantine.add(&entry(b"c"), b"", b"").unwrap(), 10);
    }

    #[test]
    fn a_directory_without_rights_can_be_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path());
        quarantine.make().unwrap();
        let id = quarantine.add(&entry(b"a"), b"", b"").unwrap();
        let kept = quarantine.content_path(id).with_file_name("directory");
        std::fs::create_dir_all(kept.join("in")).unwrap();
        std::fs::write(kept.join("in/f"), "").unwrap();
        for closed in [kept.join("in"), kept] {
            std::fs::set_permissions(closed, std::fs::Permissions::from_mode(0o000)).unwrap();
        }
        quarantine.remove(id).unwrap();
        assert!(!dir.path().join("quarantine").join(id.to_string()).exists());
    }

    #[test]
    fn of_entries_that_are_alike_the_newest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path());
        quarantine.make().unwrap();
        let done = Entry { stage: Stage::Done, ..entry(b"a") };
        let add =
            |entry: &Entry, content: &str, before: &str| quarantine.add(entry, content.as_bytes(), before.as_bytes()).unwrap();
        let others = [
            add(&Entry { rule: "x".into(), ..done.clone() }, "evil", ""),
            add(&Entry { mode: 0o644, ..done.clone() }, "evil", ""),
            add(&Entry { what: What::Symlink, ..done.clone() }, "evil", ""),
            add(&Entry { stage: Stage::Copied, ..done.clone() }, "evil", ""),
            add(&Entry { path: "b".into(), ..done.clone() }, "evil", ""),
            add(&done, "other", ""),
        ];
        add(&done, "evil", "1");
        add(&Entry { time: 8, ..done.clone() }, "evil", "2");
        let newest = add(&Entry { time: 9, run: "s".into(), ..done.clone() }, "evil", "3");
        quarantine.forget_repeated().unwrap();
        let left: Vec<u64> = quarantine.list().unwrap().into_iter().map(|(id, _)| id).collect();
        assert_eq!(left, [&others[..], &[newest]].concat());
        assert_eq!(quarantine.before(newest).unwrap(), b"3");
    }

    #[test]
    fn approvals_are_known_by_themselves_and_revoked_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path());
        let (file, other) = (Is::File(b"a".to_vec()), Is::Link(b"a".to_vec()));
        let odd = Path::new(OsStr::from_bytes(b"z\xff"));
        quarantine.approve("r", odd, &file, 0o755).unwrap();
        let first = quarantine.approved().unwrap().list();
        quarantine.approve("r", Path::new("a"), &file, 0o644).unwrap();
        quarantine.approve("r", Path::new("a"), &other, 0o777).unwrap();
        quarantine.approve("r2", Path::new("a"), &other, 0o777).unwrap();
        let all = quarantine.approved().unwrap().list();
        let ids: BTreeSet<&str> = all.iter().map(|approval| &*approval.id).collect();
        assert!(ids.len() == 4 && ids.iter().all(|id| id.len() == DIGITS), "{all:?}");
        assert!(all[3] == first[0] && first[0].path == odd && first[0].kind == "program", "{all:?}");
        quarantine.revoke(&[first[0].id.clone()].into()).unwrap();
        let approved = quarantine.approved().unwrap();
        assert!(!approved.has("r", odd, &file, 0o755) && approved.has("r", Path::new("a"), &file, 0o644));
        assert_eq!(approved.list(), all[..3]);
    }

    #[test]
    fn approval_is_of_one_content_at_one_place() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path());
        let file = Is::File(b"use flake".to_vec());
        quarantine.approve("direnv", Path::new(".envrc"), &file, 0o644).unwrap();
        let approved = quarantine.approved().unwrap();
        assert!(approved.has("direnv", Path::new(".envrc"), &file, 0o600));
        let program = Is::File(b"#!/bin/sh".to_vec());
        quarantine.approve("direnv", Path::new(".envrc"), &program, 0o755).unwrap();
        assert!(quarantine.approved().unwrap().has("direnv", Path::new(".envrc"), &program, 0o644), "less than was approved");
        for (rule, path, is, mode) in [
            ("other", ".envrc", &file, 0o644),
            ("direnv", "sub/.envrc", &file, 0o644),
            ("direnv", ".envrc", &Is::File(b"rm".to_vec()), 0o644),
            ("direnv", ".envrc", &Is::Link(b"use flake".to_vec()), 0o644),
            ("direnv", ".envrc", &file, 0o755),
            ("direnv", ".envrc", &Is::Unread, 0o644),
        ] {
            assert!(!approved.has(rule, Path::new(path), is, mode), "{rule} {path} {is:?} {mode:o}");
        }
    }
}
