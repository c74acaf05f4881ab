//! The guard while its sandbox lives: does what the [`watch`](super::watch) asks for.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hermes_backends::compile::shadow::LINKS;
use hermes_backends::local::sys::fd::has_no_writer;
use hermes_backends::step::StepError;
use hermes_backends::wire::Cover;
use nix::errno::Errno;
use nix::sys::stat::SFlag;

use super::history::Tips;
use super::run::{Believed, Record, Repository, Run};
use super::settle::{About, Decision, Outcome, Settler, decide};
use super::shadow::{self, Merge};
use super::snapshot::{Change, Is, LONGEST, Snapshot, Wanted, hold};
use super::watch::{Watch, Work};
use super::{Guards, TreeRules, cannot, look};
use crate::beneath::kind;
use crate::error::Error;
use crate::output;
use crate::state::{Tree, store};

/// Why names are being covered, in the order in which it was asked for.
#[derive(Debug)]
enum Asked {
    /// For the first time or again.
    Cover(Vec<Cover>),
    /// A repository that came into being: the host's files are cleaned once jobs cannot reach them any more.
    New { covers: Vec<Cover>, tree: usize, git: PathBuf },
}

/// What a live sandbox's guard keeps.
#[derive(Debug)]
pub(crate) struct Live {
    watch: Watch,
    asked: VecDeque<Asked>,
    /// The last look at each tree, after the baseline's.
    looks: Vec<Option<Snapshot>>,
    /// What init is to be asked for.
    wanted: Vec<Vec<Cover>>,
    /// Does the record of the run survive a loss of power?
    durable: bool,
    /// What the host wrote itself, for each tree.
    believed: Vec<Believed>,
    /// Configuration that we wrote for jobs, by tree and path: it is not the host's own word.
    merged: BTreeMap<(usize, PathBuf), Vec<u8>>,
}

/// What a run is watched from.
#[derive(Debug)]
pub(crate) struct Pending {
    at: Instant,
    covers: Vec<Cover>,
    /// Init's answer, by index of the covers that failed.
    failed: Option<Vec<u32>>,
}

/// A run that is over sooner is not watched: to give a watch back takes the kernel up to 20 ms, in which it waits for every
/// processor to have seen that it is gone (fsnotify_destroy_group).
const SHORT: Duration = Duration::from_millis(250);

impl Guards {
    /// Watches from a little later on. `covers` were asked for already.
    pub(super) fn watch_later(&mut self, covers: Vec<Cover>) {
        let failed = covers.is_empty().then(Vec::new);
        self.pending = Some(Pending { at: Instant::now() + SHORT, covers, failed });
    }

    fn watch(&mut self, Pending { covers, failed, .. }: Pending) {
        // Without a watch everything is found at the end.
        let Ok(mut watch) = Watch::new() else { return };
        for (index, ((tree, baseline), record)) in self.trees.iter().zip(&self.record.trees).enumerate() {
            watch.add_directory(&tree.path);
            for repository in &record.repositories {
                watch.add_git(index, &tree.path, &repository.git);
                if let Some(number) = repository.shadow {
                    watch.add_private(&Run::files(&self.run.dir, number), number);
                    watch.changed(number);
                }
            }
            for holder in baseline.holders() {
                watch.add_directory(&tree.path.join(holder));
            }
        }
        let looks = self.trees.iter().map(|_| None).collect();
        self.live = Some(Live {
            watch,
            asked: VecDeque::new(),
            looks,
            wanted: Vec::new(),
            durable: false,
            believed: vec![Vec::new(); self.trees.len()],
            merged: BTreeMap::new(),
        });
        match failed {
            Some(failed) => self.take_over(&covers, &failed),
            None => self.live.iter_mut().for_each(|live| live.asked.push_back(Asked::Cover(covers.clone()))),
        }
    }

    /// What init covered before the watch began. Where the host has replaced a file since, the cover has come off.
    fn take_over(&mut self, covers: &[Cover], failed: &[u32]) {
        for (_, cover) in (0..).zip(covers).filter(|(index, _)| !failed.contains(index)) {
            let Cover::Link { target, .. } = cover else { continue };
            let Some((index, path)) = self.place(target) else { continue };
            let (tree, baseline) = &self.trees[index];
            let is_same = tree.root.stat(&path).is_ok_and(|stat| baseline.is_untouched(&path, &stat));
            let Some(live) = &mut self.live else { return };
            if is_same {
                live.watch.covered(index, path);
            } else {
                live.watch.replaced(index, path.clone());
                self.cover_again(index, &path);
            }
        }
    }

    /// Readable when there is something to do.
    pub(crate) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.live.as_ref().map(|live| live.watch.as_fd())
    }

    /// When there is something to do, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let begins = self.pending.as_ref().map(|pending| pending.at);
        self.live.as_ref().map(|live| live.watch.deadline()).or(begins)
    }

    /// Does what is to be done now. Returns what init is to cover.
    pub(crate) fn tick(&mut self) -> Result<Vec<Vec<Cover>>, Error> {
        if let Some(pending) = self.pending.take_if(|pending| pending.at <= Instant::now()) {
            self.watch(pending);
        }
        while let Some(work) = self.live.as_mut().and_then(|live| live.watch.work()) {
            let done = match work {
                Work::Merge(number) => self.merge(number),
                Work::Cover(tree, path) => {
                    self.cover_again(tree, &path);
                    Ok(())
                }
                Work::Believe(tree, path) => self.believe(tree, &path),
                Work::Sweep => self.sweep(),
            };
            if let Err(e) = done {
                // What is missed now is found at the end.
                output::complain(&format!("cannot look after guarded files while the command runs: {e}"));
                self.live = None;
            }
        }
        Ok(self.live.as_mut().map(|live| std::mem::take(&mut live.wanted)).unwrap_or_default())
    }

    /// Init's answer to what it was asked to cover.
    pub(crate) fn covered(&mut self, failed: &[(u32, StepError)]) -> Result<(), Error> {
        let asked = match &self.pending {
            Some(pending) => Some(Asked::Cover(pending.covers.clone())),
            None => self.live.as_mut().and_then(|live| live.asked.pop_front()),
        };
        let failed: Vec<&(u32, StepError)> = failed
            .iter()
            .filter(|(at, error)| !asked.as_ref().is_some_and(|asked| self.is_covered_already(asked, *at, error)))
            .collect();
        if let Some((_, error)) = failed.first() {
            output::complain(&format!("some of the repositories' hooks and configurations are watched, not shadowed: {error}"));
        }
        if let Some(pending) = &mut self.pending {
            pending.failed = Some(failed.iter().map(|(index, _)| *index).collect());
            return Ok(());
        }
        let Some(asked) = asked else { return Ok(()) };
        let (Asked::Cover(covers) | Asked::New { covers, .. }) = &asked;
        for (index, cover) in (0..).zip(covers) {
            let Cover::Link { target, .. } = cover else { continue };
            let Some((tree, path)) = self.place(target) else { continue };
            let Some(live) = &mut self.live else { break };
            match failed.iter().any(|(at, _)| *at == index) {
                true => live.watch.uncovered(tree, &path),
                false => {
                    live.watch.covered(tree, path.clone());
                    let shadow = self.record.trees[tree].repository_around(&path).and_then(|repository| repository.shadow);
                    // What the host put there does not have what jobs changed.
                    shadow.inspect(|shadow| live.watch.changed(*shadow));
                }
            }
        }
        match asked {
            Asked::New { tree, git, .. } if failed.is_empty() => {
                self.clean(tree, &git).map_err(|e| cannot("clean the new repository", &git, &e))
            }
            _ => Ok(()),
        }
    }

    /// Covers of what the host replaces quickly are asked for more than once: init then meets the symlink of the first, where
    /// the host has a file.
    fn is_covered_already(&self, asked: &Asked, at: u32, error: &StepError) -> bool {
        let (Asked::Cover(covers) | Asked::New { covers, .. }) = asked;
        let Some(Cover::Link { target, .. }) = covers.get(at as usize) else { return false };
        let place = self.place(target).filter(|_| error.errno() == Errno::ELOOP);
        place.is_some_and(|(tree, path)| self.trees[tree].0.root.stat(&path).is_ok_and(|stat| kind(&stat) == SFlag::S_IFREG))
    }

    fn place(&self, target: &Path) -> Option<(usize, PathBuf)> {
        let trees = self.trees.iter().enumerate();
        trees.into_iter().find_map(|(index, (tree, _))| Some((index, target.strip_prefix(&tree.path).ok()?.to_owned())))
    }

    fn ask(&mut self, covers: Vec<Cover>, asked: impl FnOnce(Vec<Cover>) -> Asked) {
        if let Some(live) = &mut self.live {
            live.wanted.push(covers.clone());
            live.asked.push_back(asked(covers));
        }
    }

    /// Brings harmless configuration to the host.
    fn merge(&mut self, number: u32) -> io::Result<()> {
        for (index, ((tree, baseline), record)) in self.trees.iter().zip(&self.record.trees).enumerate() {
            let Some(repository) = record.repositories.iter().find(|repository| repository.shadow == Some(number)) else {
                continue;
            };
            let rules = TreeRules::of(&self.record, index, baseline);
            let private = shadow::read(&self.run.dir, baseline, &repository.git, number)?;
            for (path, before, now) in &private.configs {
                if let Is::File(new) = &now.is {
                    let old = shadow::text(before.as_ref());
                    let also = |key: &str, value: &[u8]| rules.leads_well(&repository.git, key, value);
                    let merge = Merge {
                        tree,
                        run_dir: &self.run.dir,
                        number,
                        within: path.strip_prefix(&repository.git).unwrap_or(path),
                        path,
                        before: old,
                        private: new,
                        also: &also,
                    };
                    let text = merge.in_place()?.text;
                    if let Some(live) = &mut self.live {
                        live.merged.insert((index, path.clone()), text);
                    }
                }
            }
        }
        Ok(())
    }

    fn cover_again(&mut self, tree: usize, path: &Path) {
        let Some(repository) = self.record.trees[tree].repository_around(path) else { return };
        let Some(link) = repository.shadow.and_then(|number| shadow::link(number, path.strip_prefix(&repository.git).ok()?))
        else {
            return;
        };
        let target = self.trees[tree].0.path.join(path);
        self.ask(vec![Cover::Link { target, source: Path::new(LINKS).join(link) }], Asked::Cover);
    }

    /// Takes what the host itself wrote for what was there before. The record of the run says so too: the next command
    /// must not take it for the sandbox's.
    fn believe(&mut self, index: usize, path: &Path) -> io::Result<()> {
        let (tree, _) = &self.trees[index];
        let Ok((file, stat)) = tree.root.open_file(path) else { return Ok(()) };
        let alone = stat.st_nlink == 1 && has_no_writer(file.as_fd()).unwrap_or(false);
        let held = hold(&tree.root, path, &stat, Wanted::Kept);
        // By name it may be another one than the one that was looked at.
        let same = tree.root.stat(path).is_ok_and(|now| now.st_ino == stat.st_ino);
        let is_hosts = self.live.as_mut().is_some_and(|live| {
            let ours = live.merged.get(&(index, path.to_owned()));
            live.watch.is_hosts(index, path, alone && same) && ours.is_none_or(|ours| held.is != Is::File(ours.clone()))
        });
        if let Some(live) = self.live.as_mut().filter(|_| is_hosts) {
            let believed = &mut live.believed[index];
            believed.retain(|(known, _)| known != path);
            believed.push((path.to_owned(), held));
            store::write_soon(&Run::believed_path(&self.run.dir, index), believed)?;
        }
        Ok(())
    }

    /// Looks at all trees. A new repository whose hooks or configuration would run something is covered.
    fn sweep(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        if let Some(live) = self.live.as_mut().filter(|live| !live.durable) {
            // A run that is over by now would only have waited for it.
            live.durable = true;
            for index in 0..self.trees.len() {
                store::sync(&Run::baseline_path(&self.run.dir, index))?;
            }
            store::sync(&self.run.record_path())?;
        }
        for index in 0..self.trees.len() {
            let Some(old) = self.live.as_mut().map(|live| live.looks[index].take()) else { return Ok(()) };
            let (tree, baseline) = &self.trees[index];
            let of_tree = &self.record.trees[index];
            let rules = TreeRules::of(&self.record, index, baseline);
            let now = look(tree, &rules, Some(old.as_ref().unwrap_or(baseline)))?;
            let known = |git: &PathBuf| of_tree.repositories.iter().any(|repository| repository.git == *git);
            let new: Vec<PathBuf> = now.repositories().into_iter().filter(|git| !known(git)).collect();
            let bad: Vec<PathBuf> = new.iter().filter(|git| runs_something(&rules, &now, git)).cloned().collect();
            let path = tree.path.clone();
            let begun = take_away(&self.run, &self.record, tree, &rules, baseline, &now)?;
            self.outcome.put_aside.extend(begun.put_aside);
            self.outcome.failed.extend(begun.failed);
            for git in bad {
                self.shadow_new(index, &now, git)?;
            }
            if let Some(live) = &mut self.live {
                new.iter().for_each(|git| live.watch.add_git(index, &path, git));
                live.looks[index] = if now.renewed { Some(now) } else { old };
            }
        }
        if let Some(live) = &mut self.live {
            live.watch.swept(begin.elapsed());
        }
        Ok(())
    }

    fn shadow_new(&mut self, index: usize, now: &Snapshot, git: PathBuf) -> io::Result<()> {
        let used = self.record.trees.iter().flat_map(|tree| &tree.repositories).filter_map(|repository| repository.shadow);
        let number = used.max().map_or(0, |last| last + 1);
        if !self.shadowing || number as usize >= shadow::MOST {
            return Ok(());
        }
        let (tree, _) = &self.trees[index];
        let (covers, made_hooks) = shadow::make(&self.run, tree, now, &git, number, &|_| false)?;
        if let Some(live) = &mut self.live {
            live.watch.add_private(&Run::files(&self.run.dir, number), number);
        }
        let repository = Repository { git: git.clone(), tips: Tips::default(), shadow: Some(number), made_hooks };
        self.record.trees[index].repositories.push(repository);
        store::write_soon(&self.run.record_path(), &self.record)?;
        if made_hooks {
            shadow::make_hooks(&self.trees[index].0, &git);
        }
        self.ask(covers, |covers| Asked::New { covers, tree: index, git });
        Ok(())
    }

    /// Takes from the host's side of a covered new repository what would run there. Jobs see their own copies.
    fn clean(&self, index: usize, git: &Path) -> io::Result<()> {
        let (tree, baseline) = &self.trees[index];
        let rules = TreeRules::of(&self.record, index, baseline);
        let now = look(tree, &rules, None)?;
        for (path, around, held) in now.held().filter(|(_, around, _)| around.as_deref() == Some(git)) {
            let Some(rule) = rules.rule(&path, around.as_deref()) else { continue };
            let also = |key: &str, value: &[u8]| rules.leads_well(git, key, value);
            let is_config = path.file_name().is_some_and(|name| shadow::CONFIGS.iter().any(|config| name == *config));
            match (decide(rule, None, held.seen(), false, &also), &held.is) {
                (Decision::PutAside { .. }, Is::File(content)) if is_config => {
                    let clean = tree.root.read(&path, LONGEST).map(|(host, _)| host).unwrap_or_else(|_| content.clone());
                    shadow::clean(tree, &path, &clean, &also)?;
                }
                (Decision::PutAside { .. }, _) if path.strip_prefix(git).is_ok_and(|inside| inside.starts_with("hooks")) => {
                    let (parent, name) = tree.root.parent(&path)?;
                    let _ = nix::unistd::unlinkat(&parent, name, nix::unistd::UnlinkatFlags::NoRemoveDir);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Puts aside at once what is, or leads git to, hooks and configuration somewhere else: nothing can be covered that is not
/// there before.
fn take_away(
    run: &Run,
    record: &Record,
    tree: &Tree,
    rules: &TreeRules<'_>,
    baseline: &Snapshot,
    now: &Snapshot,
) -> io::Result<Outcome> {
    let planted = |change: &Change| {
        let inside = change.git.as_deref().and_then(|git| change.path.strip_prefix(git).ok());
        let name = inside.and_then(Path::file_name);
        let elsewhere = inside == Some(Path::new("commondir")) || name.is_some_and(|name| name == "config.worktree");
        elsewhere && change.now.is_some()
    };
    let (changes, _) = baseline.changes(now);
    let changes: Vec<Change> = changes.into_iter().filter(planted).collect();
    if changes.is_empty() {
        return Ok(Outcome::default());
    }
    let about = About::of(run, record);
    let mut settler = Settler::new(tree, rules, &about)?;
    let candidates = settler.judge_all(changes, baseline, now)?;
    settler.put_aside(candidates)?;
    Ok(settler.outcome)
}

/// Would a host tool that looks into this repository run something?
fn runs_something(rules: &TreeRules<'_>, now: &Snapshot, git: &Path) -> bool {
    let also = |key: &str, value: &[u8]| rules.leads_well(git, key, value);
    now.held().filter(|(_, around, _)| around.as_deref() == Some(git)).any(|(path, around, held)| {
        let inside = path.strip_prefix(git).unwrap_or(&path);
        let shadowed = inside.starts_with("hooks") || shadow::CONFIGS.iter().any(|config| inside == Path::new(config));
        let rule = rules.rule(&path, around.as_deref()).filter(|_| shadowed);
        rule.is_some_and(|rule| matches!(decide(rule, None, held.seen(), false, &also), Decision::PutAside { .. }))
    })
}
