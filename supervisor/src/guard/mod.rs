//! The guard: what jobs left in writable trees of the host for its tools to run or obey is put aside.
//!
//! It owns the looks at a tree before and after a run, the private copies of version-control internals, the quarantine,
//! and the records by which the next command settles what a killed supervisor left. What the rules say is
//! [`hermes_profiles::guard`]'s business; how a sandbox is confined it does not know.

#[allow(dead_code, unused_imports)]
pub(crate) mod history;
mod live;
pub(crate) mod quarantine;
pub(crate) mod restore;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod settle;
pub(crate) mod shadow;
pub(crate) mod snapshot;
mod store;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_backends::compile::shadow::Shadow;
use hermes_backends::plan::{MountStep, PathRights, Plan, Source, Tier};
use hermes_backends::wire::Cover;
use hermes_profiles::guard::Selector;
use hermes_profiles::guard::{Check, git_config};
use hermes_profiles::{GuardRules, ospath};
use nix::sys::statfs::fstatfs;
use std::os::unix::fs::MetadataExt;

use crate::error::Error;
use crate::events::{Event, Log};
use crate::output;
use crate::state::Tree;
use hermes_profiles::Caller;
use quarantine::{Quarantine, Stage};
use rules::TreeRules;
use run::{Believed, Readable, Record, Repository, Run, TreeRecord};
use settle::{About, Candidate, Decision, Outcome, Settler};
use shadow::Merge;
use snapshot::{Is, Snapshot};

/// The guard of one run.
#[derive(Debug)]
pub(crate) struct Guards {
    run: Run,
    record: Record,
    trees: Vec<(Tree, Snapshot)>,
    shadowing: bool,
    live: Option<live::Live>,
    /// What it will be watched from.
    pending: Option<live::Pending>,
    /// What was put aside already.
    outcome: Outcome,
}

/// Settles what killed supervisors have left. Every command that works with trees begins with it.
///
/// # Errors
/// Something cannot be settled: then nothing may start, because its plant would count as what was there before.
pub(crate) fn recover(state_dir: &Path, concerns: &dyn Fn(&Path) -> bool) -> Result<Vec<Outcome>, Error> {
    let (dead, _) = Run::others(state_dir).map_err(|e| cannot("look for runs that were killed in", state_dir, &e))?;
    let mut outcomes = Vec::with_capacity(dead.len());
    for run in dead {
        let record = Run::record(&run.dir).map_err(|e| {
            cannot("read the record of a killed run in", &run.dir, &e)
                .hint("look at what changed in its workspace, then remove that directory")
        });
        let trees: Vec<PathBuf> = match &record {
            Ok(Some(record)) => record.trees.iter().map(|tree| tree.path.clone()).collect(),
            _ => Vec::new(),
        };
        match record.and_then(|record| recover_one(state_dir, run, record)) {
            Ok(outcome) => outcomes.push(outcome),
            // The trees of another run need not stand in the way of this one.
            Err(error) if !trees.is_empty() && !trees.iter().any(|tree| concerns(tree)) => drop(error.report()),
            Err(error) => return Err(error),
        }
    }
    Ok(outcomes)
}

/// Does a live run know the tree of this state directory? What comes into the tree meanwhile counts as the run's.
pub(crate) fn in_use(state_dir: &Path, tree: &Path) -> Result<bool, Error> {
    let (_, live) = Run::others(state_dir).map_err(|e| cannot("look for live runs in", state_dir, &e))?;
    // One whose record cannot be read has only begun, or ends: it has not looked yet, or will not look again.
    let records = live.iter().filter_map(|dir| Run::record(dir).ok().flatten());
    Ok(records.into_iter().any(|record| record.trees.iter().any(|of_tree| of_tree.state == tree)))
}

fn recover_one(state_dir: &Path, run: Run, record: Option<Record>) -> Result<Outcome, Error> {
    let dir = run.dir.clone();
    let Some(record) = record else {
        run.end().map_err(|e| cannot("remove", &dir, &e))?;
        return Ok(Outcome::default());
    };
    if record.init.is_some_and(|init| !run::wait_for_death(init)) {
        return Err(
            Error::setup("a sandbox whose supervisor was killed has not ended yet").hint("try again, or end its processes")
        );
    }
    let mut outcome = Outcome::default();
    for (index, of_tree) in record.trees.iter().enumerate() {
        let Ok(Some(tree)) = Tree::open(state_dir, &of_tree.path, false) else { continue };
        if tree.state != of_tree.state {
            continue;
        }
        let baseline: Snapshot = store::read(&Run::baseline_path(&dir, index))
            .map_err(|e| cannot("read what is known from before a killed run in", &dir, &e))?;
        settle_tree(&run, &record, index, &tree, &baseline, true, &mut outcome)?;
    }
    if let Some((path, why)) = outcome.failed.first() {
        return Err(Error::setup(format!("cannot put aside {}, which a killed run left: {why}", output::path(path)))
            .hint("remove it, or make it removable; nothing may start before, because it would count as what was there"));
    }
    run.end().map_err(|e| cannot("remove", &dir, &e))?;
    Ok(outcome)
}

impl Guards {
    /// Begins a run: makes its directory. `None` when it can write no tree of the host.
    ///
    /// # Errors
    /// The state directory or a quarantine cannot be written, or a killed run cannot be settled.
    pub(crate) fn begin(plan: &Plan, rules: &GuardRules, caller: &Caller, command: &[OsString]) -> Result<Option<Self>, Error> {
        let paths = writable_trees(plan);
        if paths.is_empty() {
            return Ok(None);
        }
        let state_dir = crate::state::directory(caller)?;
        let readable = readable(plan);
        let mut trees = Vec::with_capacity(paths.len());
        let mut records = Vec::with_capacity(paths.len());
        for path in paths {
            let Some(tree) = Tree::open(state_dir, &path, true)? else { continue };
            Quarantine::new(&tree.state).make().map_err(|e| {
                cannot("put files aside in", &tree.state.join("quarantine"), &e)
                    .hint("make that directory writable for you alone, or point XDG_STATE_HOME to one that is")
            })?;
            let skips = skips(plan, &tree.path);
            records.push(TreeRecord { path: tree.path.clone(), state: tree.state.clone(), skips, repositories: Vec::new() });
            trees.push((tree, Snapshot::default()));
        }
        let shadowing = plan.tier == Tier::Namespaces;
        let run = Run::begin(state_dir).map_err(|e| cannot("make the directory of this run in", state_dir, &e))?;
        if shadowing {
            for name in ["files", "links"] {
                let path = run.dir.join(name);
                std::fs::create_dir(&path).map_err(|e| cannot("make", &path, &e))?;
            }
        }
        let words: Vec<String> = command.iter().map(|word| ospath::escaped_bytes(word.as_bytes())).collect();
        let record = Record {
            init: None,
            profile: plan.profile.clone(),
            command: words.join(" "),
            rules: with_path(rules, caller, &trees),
            trees: records,
            readable,
        };
        Ok(Some(Self { run, record, trees, shadowing, live: None, pending: None, outcome: Outcome::default() }))
    }

    /// The two directories that jobs see instead of what is shadowed.
    pub(crate) fn shadow(&self) -> Result<Option<Shadow>, Error> {
        if !self.shadowing {
            return Ok(None);
        }
        let source = |name: &str| {
            let path = self.run.dir.join(name);
            let meta = path.metadata().map_err(|e| cannot("look at", &path, &e))?;
            let path = path.canonicalize().map_err(|e| cannot("look at", &path, &e))?;
            Ok::<_, Error>(Source { path, dev: meta.dev(), ino: meta.ino() })
        };
        Ok(Some(Shadow { files: source("files")?, links: source("links")? }))
    }

    /// Looks at every tree and records what is there, before the first process runs. Returns what is to be covered.
    pub(crate) fn take_baseline(&mut self, init: i32) -> Result<Vec<Cover>, Error> {
        self.record.init = run::start_time(init).map(|start| (init, start));
        let siblings = self.siblings()?;
        let mut covers = Vec::new();
        let mut shadows = 0;
        let Record { rules, readable, trees: records, .. } = &mut self.record;
        for (index, ((tree, baseline), record)) in self.trees.iter_mut().zip(records).enumerate() {
            let failed = |e: io::Error| cannot("keep what is known about files in", &tree.path, &e);
            let known = tree.state.join("index");
            let old: Option<Snapshot> = store::read_if_known(&known).map_err(failed)?;
            let aliases = old.as_ref().map(|old| old.aliases.clone()).unwrap_or_default();
            let mut tree_rules = TreeRules::new(rules, &tree.path, &record.skips, readable).with_aliases(&aliases);
            tree.root.insist(true);
            let mut now = look(tree, &tree_rules, old.as_ref()).map_err(failed)?;
            for _ in 0..MOST_STEPS {
                let aliases = tree_rules.aliases_of(&now);
                if aliases == now.aliases {
                    break;
                }
                // What they lead to may have been passed by, and may lead on.
                tree_rules = tree_rules.with_aliases(&aliases);
                now = look(tree, &tree_rules, None).map_err(failed)?;
            }
            if now.renewed {
                store::write(&known, &now).map_err(failed)?;
            }
            if now.is_too_fresh() {
                std::thread::sleep(std::time::Duration::from_nanos(snapshot::COARSE as u64));
                now = look(tree, &tree_rules, Some(&now)).map_err(failed)?;
            }
            tree.root.insist(false);
            tree.root.close_up();
            let mut corrected = false;
            for sibling in siblings.iter().filter(|(state, _)| *state == tree.state) {
                now.correct(&sibling.1);
                corrected = true;
            }
            let own = Run::baseline_path(&self.run.dir, index);
            // The index is never changed in place, only replaced.
            if corrected || std::fs::hard_link(&known, &own).is_err() {
                store::write(&own, &now).map_err(failed)?;
            }
            if self.shadowing {
                let tree_rules = TreeRules::new(rules, &tree.path, &record.skips, readable).with_aliases(&now.aliases);
                covers.extend(read_only(&tree_rules, &tree.path, &now));
            }
            let distrusted: Distrusted =
                store::read_if_known(&tree.state.join("distrusted")).map_err(failed)?.unwrap_or_default();
            let tips = |git: &Path| {
                let mut tips = history::tips(&tree.path.join(git));
                tips.distrust(distrusted.iter().filter(|(at, _)| at == git).map(|(_, id)| *id));
                tips
            };
            for (git, target) in pointers(&now) {
                let tips = tips(&target);
                record.repositories.push(Repository { git, tips, shadow: None, made_hooks: false });
            }
            for git in now.repositories() {
                let tips = tips(&git);
                let mut repository = Repository { git, tips, shadow: None, made_hooks: false };
                if self.shadowing && (shadows as usize) < shadow::MOST {
                    let (more, made) = shadow::make(&self.run, tree, &now, &repository.git, shadows).map_err(failed)?;
                    covers.extend(more);
                    (repository.shadow, repository.made_hooks) = (Some(shadows), made);
                    shadows += 1;
                }
                record.repositories.push(repository);
            }
            *baseline = now;
        }
        store::write(&self.run.record_path(), &self.record).map_err(|e| cannot("record this run in", &self.run.dir, &e))?;
        for ((tree, _), record) in self.trees.iter().zip(&self.record.trees) {
            let absent = record.repositories.iter().filter(|repository| repository.made_hooks);
            absent.for_each(|repository| shadow::make_hooks(tree, &repository.git));
        }
        self.watch_later(covers.clone());
        Ok(covers)
    }

    /// What other live runs know about trees from before they began, by state directory: what lies there now may be
    /// theirs.
    fn siblings(&self) -> Result<Vec<(PathBuf, Snapshot)>, Error> {
        let runs = self.run.dir.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let (dead, mut live) = Run::others(runs).map_err(|e| cannot("look for other runs in", runs, &e))?;
        // One that died since we settled: as alive as any, until the next command.
        live.extend(dead.iter().map(|run| run.dir.clone()));
        let mut known = Vec::new();
        for dir in live.iter().filter(|dir| **dir != self.run.dir) {
            let Ok(Some(record)) = Run::record(dir) else { continue };
            for (index, tree) in record.trees.iter().enumerate() {
                if self.trees.iter().any(|(own, _)| own.state == tree.state)
                    && let Ok(baseline) = store::read(&Run::baseline_path(dir, index))
                {
                    known.push((tree.state.clone(), baseline));
                }
            }
        }
        Ok(known)
    }

    /// Brings every tree back. The sandbox has ended.
    pub(crate) fn settle(self) -> Result<Outcome, Error> {
        let mut outcome = self.outcome;
        // Before there is a record, nothing has run.
        if self.run.record_path().exists() {
            for (index, (tree, baseline)) in self.trees.iter().enumerate() {
                settle_tree(&self.run, &self.record, index, tree, baseline, false, &mut outcome)?;
            }
        }
        // What could not be settled is left to the next command.
        if outcome.failed.is_empty() {
            let dir = self.run.dir.clone();
            self.run.end().map_err(|e| cannot("remove", &dir, &e))?;
        }
        Ok(outcome)
    }
}

/// Commits that sandboxes made, by git directory: what only they hold is no excuse for the next one.
type Distrusted = Vec<(PathBuf, history::Id)>;

/// How far symlinks and includes are followed from one to the next.
const MOST_STEPS: usize = 5;

/// Commits that are remembered of one tree.
const MOST_DISTRUSTED: usize = 4096;
/// Names that are made read-only at once.
const MOST_READ_ONLY: usize = 256;

/// What is read-only at once: what the policy says, and the file that makes a linked worktree of the tree.
fn read_only(rules: &TreeRules<'_>, tree: &Path, now: &Snapshot) -> Vec<Cover> {
    let held = now.held().filter(|(.., held)| matches!(held.is, Is::File(_) | Is::Unread));
    let wanted = held.filter(|(path, git, _)| path == Path::new(".git") || rules.prevents(path, git.as_deref()));
    wanted.take(MOST_READ_ONLY).map(|(path, ..)| Cover::ReadOnly { target: tree.join(path) }).collect()
}

/// The `.git` files of worktrees and submodules, and the git directories that they lead to.
fn pointers(now: &Snapshot) -> Vec<(PathBuf, PathBuf)> {
    let named = now.held().filter(|(path, git, _)| git.is_none() && path.file_name().is_some_and(|name| name == ".git"));
    let leads = named.filter_map(|(path, _, held)| match &held.is {
        Is::File(content) => {
            let target = std::ffi::OsStr::from_bytes(content.strip_prefix(b"gitdir: ")?.trim_ascii_end());
            let target = path.parent().unwrap_or(Path::new("")).join(target);
            Some((path, target))
        }
        _ => None,
    });
    leads.collect()
}

/// The rules with what they mean on this machine. Programs in a directory of the caller's `PATH` are run by name, whatever they
/// are called; and what a rule names may be reached through symlinks, while trees are known by their real paths.
fn with_path(rules: &GuardRules, caller: &Caller, trees: &[(Tree, Snapshot)]) -> GuardRules {
    let mut rules = rules.clone();
    for list in [&mut rules.add, &mut rules.allow, &mut rules.prevent, &mut rules.stage] {
        let real: Vec<Selector> = list.iter().filter_map(real_selector).collect();
        list.extend(real);
    }
    for directory in caller.variable("PATH").into_iter().flat_map(std::env::split_paths) {
        let real = std::fs::canonicalize(&directory).unwrap_or(directory);
        if let Some(text) = real.to_str().filter(|_| trees.iter().any(|(tree, _)| real.starts_with(&tree.path))) {
            rules.add.push(Selector::Absolute(escape_glob(text)));
        }
    }
    rules
}

/// A selector whose directories, as far as they are plain names, are replaced by their real path; `None` when they are real.
fn real_selector(selector: &Selector) -> Option<Selector> {
    let Selector::Absolute(glob) = selector else { return None };
    let plain = glob.find(['*', '?', '[', '{', '\\']).map_or(glob.as_str(), |at| &glob[..at]);
    let (plain, _) = plain.rsplit_once('/').filter(|(plain, _)| !plain.is_empty())?;
    let there = Path::new(plain).ancestors().find_map(|at| Some((at, std::fs::canonicalize(at).ok()?)));
    let (at, real) = there.filter(|(at, real)| at != real)?;
    Some(Selector::Absolute(format!("{}{}", escape_glob(real.to_str()?), &glob[at.as_os_str().len()..])))
}

/// A path as a glob that means it alone.
fn escape_glob(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\' | '!');
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

fn look(tree: &Tree, rules: &TreeRules<'_>, old: Option<&Snapshot>) -> io::Result<Snapshot> {
    let old = old.filter(|_| has_dependable_times(tree));
    let mut now = Snapshot::take(&tree.root, tree.dev, rules, &rules.stamp(), old)?;
    now.aliases = rules.aliases().to_vec();
    Ok(now)
}

/// Network file systems keep times of other machines, or none.
fn has_dependable_times(tree: &Tree) -> bool {
    // linux/magic.h: NFS, SMB2, CIFS, 9p, FUSE (virtiofs, sshfs), Ceph, AFS.
    const NETWORK: &[i64] = &[0x6969, 0xfe53_4d42, 0xff53_4d42, 0x0102_1997, 0x6573_5546, 0x00c3_6400, 0x5346_414f];
    fstatfs(&tree.root).is_ok_and(|stat| !NETWORK.contains(&(stat.filesystem_type().0 as i64)))
}

/// `again`: another supervisor was killed, perhaps while it settled.
fn settle_tree(
    run: &Run,
    record: &Record,
    index: usize,
    tree: &Tree,
    baseline: &Snapshot,
    again: bool,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let of_tree = &record.trees[index];
    let failed =
        |e: io::Error| cannot("put back guarded files in", &tree.path, &e).hint("the next command in this workspace tries again");
    let rules = TreeRules::new(&record.rules, &tree.path, &of_tree.skips, &record.readable).with_aliases(&baseline.aliases);
    let about = About::of(run, record);
    let mut settler = Settler::new(tree, &rules, &about).map_err(failed)?;
    settler.outcome = std::mem::take(outcome);
    tree.root.insist(true);
    let mut work = || -> io::Result<Snapshot> {
        settler.resume()?;
        for repository in &of_tree.repositories {
            if let Some(number) = repository.shadow {
                let settled = settler.settle_shadow(&run.dir, baseline, &repository.git, number);
                settler.note(&repository.git, settled);
            }
        }
        let now = look(tree, &rules, Some(baseline))?;
        for stray in now.strays.iter().filter(|_| again) {
            if let Ok((parent, name)) = tree.root.parent(stray) {
                let _ = nix::unistd::unlinkat(&parent, name, nix::unistd::UnlinkatFlags::NoRemoveDir);
            }
        }
        let believed: Believed = store::read_if_known(&Run::believed_path(&run.dir, index))?.unwrap_or_default();
        let candidates = if believed.is_empty() {
            settler.judge(baseline, &now)?
        } else {
            let mut before = baseline.clone();
            believed.into_iter().for_each(|(path, held)| before.believe(&path, held));
            settler.judge(&before, &now)?
        };
        let changed = !candidates.is_empty();
        for candidate in excuse(of_tree, candidates) {
            settler.put_aside(candidate);
        }
        distrust(of_tree, tree)?;
        for repository in of_tree.repositories.iter().filter(|repository| repository.made_hooks) {
            shadow::unmake_hooks(tree, &repository.git);
        }
        if !changed {
            return Ok(now);
        }
        let mut settled = look(tree, &rules, Some(&now))?;
        settled.renewed = true;
        Ok(settled)
    };
    let now = work();
    tree.root.close_up();
    let now = now.map_err(failed)?;
    *outcome = settler.outcome;
    if now.renewed {
        store::write(&tree.state.join("index"), &now).map_err(failed)?;
    }
    Ok(())
}

/// Remembers what came into history during the run.
fn distrust(of_tree: &TreeRecord, tree: &Tree) -> io::Result<()> {
    let new = of_tree.repositories.iter().flat_map(|repository| {
        // A worktree's own commits are in the repository's refs, too.
        let ids = if repository.tips.is_empty() {
            Vec::new()
        } else {
            history::tips(&tree.path.join(&repository.git)).since(&repository.tips)
        };
        ids.into_iter().map(|id| (repository.git.clone(), id))
    });
    let new: Distrusted = new.collect();
    if new.is_empty() {
        return Ok(());
    }
    let path = tree.state.join("distrusted");
    let mut known: Distrusted = store::read_if_known(&path)?.unwrap_or_default();
    known.extend(new);
    let excess = known.len().saturating_sub(MOST_DISTRUSTED);
    known.drain(..excess);
    store::write_durably(&path, &known)
}

/// Leaves out what version control knew before the run.
fn excuse<'r>(of_tree: &TreeRecord, candidates: Vec<Candidate<'r>>) -> Vec<Candidate<'r>> {
    let mut by_repository: BTreeMap<usize, Vec<Candidate<'r>>> = BTreeMap::new();
    let mut left = Vec::new();
    for candidate in candidates {
        let wanted = candidate.rule.tracked && candidate.change.git.is_none();
        match wanted.then(|| repository_of(of_tree, &candidate.change.path)).flatten() {
            Some(index) => by_repository.entry(index).or_default().push(candidate),
            None => left.push(candidate),
        }
    }
    for (index, candidates) in by_repository {
        let repository = &of_tree.repositories[index];
        let top = repository.git.parent().unwrap_or(Path::new(""));
        let wanted: Vec<history::Wanted<'_>> = candidates
            .iter()
            .map(|candidate| {
                let (content, symlink): (&[u8], bool) = match candidate.change.now.as_ref().map(|now| &now.is) {
                    Some(Is::File(content)) => (content, false),
                    Some(Is::Link(target)) => (target, true),
                    _ => (&[], false),
                };
                let path = candidate.change.path.strip_prefix(top).unwrap_or(&candidate.change.path);
                history::Wanted { path, content, symlink, crlf: ends_lines_freely(&candidate.rule.check) }
            })
            .collect();
        let known = history::tracked(&repository.tips, &wanted, None, history::Budget::default());
        let excused = known.excused;
        left.extend(candidates.into_iter().zip(excused).filter(|(_, excused)| !excused).map(|(candidate, _)| candidate));
    }
    left
}

/// To a shell a carriage return is part of a word; to these formats it is white space.
fn ends_lines_freely(check: &Check) -> bool {
    matches!(check, Check::Json(_) | Check::Toml(_) | Check::Tokens(_) | Check::Package)
}

/// The innermost repository whose working tree holds `path`.
fn repository_of(of_tree: &TreeRecord, path: &Path) -> Option<usize> {
    let holds = |(_, repository): &(usize, &Repository)| {
        repository.git.file_name().is_some_and(|name| name == ".git")
            && repository.git.parent().is_some_and(|top| path.starts_with(top))
    };
    let all = of_tree.repositories.iter().enumerate().filter(holds);
    all.max_by_key(|(_, repository)| repository.git.components().count()).map(|(index, _)| index)
}

impl Settler<'_> {
    /// Finishes what this run's first settler had begun.
    fn resume(&mut self) -> io::Result<()> {
        for (id, entry) in self.quarantine.list()? {
            if entry.run == self.about.run && entry.stage == Stage::Copied {
                let instead = self.instead(id, &entry)?;
                let path = entry.path.clone();
                let done = self.finish(id, entry, instead);
                self.note(&path, done);
            }
        }
        Ok(())
    }

    /// Takes over what is harmless in private copies, and puts the rest aside. The host's files were never touched.
    fn settle_shadow(&mut self, run_dir: &Path, baseline: &Snapshot, git: &Path, number: u32) -> io::Result<()> {
        let private = shadow::read(run_dir, baseline, git, number)?;
        for (path, before, now) in private.configs {
            let Some(rule) = self.rules.rule(&path, Some(git)) else { continue };
            let old = shadow::text(before.as_ref());
            let also = |key: &str, value: &[u8]| self.rules.leads_well(git, key, value);
            let refused = match &now.is {
                Is::File(new) => {
                    let within = path.strip_prefix(git).unwrap_or(&path);
                    let (tree, before, private) = (self.tree, old, new.as_slice());
                    Merge { tree, run_dir, number, within, path: &path, before, private, also: &also }.by_rename()?.refused
                }
                _ => vec!["what is not a file".to_owned()],
            };
            let approved = self.approved.has(&rule.id, &path, &now.is, now.mode);
            if let (true, Is::File(new)) = (approved, &now.is) {
                shadow::under_lock(self.tree, &path, |host| {
                    let merged = git_config::merge_with(old, new, host.unwrap_or_default(), &|_, _| true);
                    Ok(if host == Some(old) { Some(new.clone()) } else { merged.ok().map(|merged| merged.text) })
                })?;
            } else if !refused.is_empty() {
                self.keep_private(&path, rule, settle::sets(&refused), &now, before.as_ref())?;
            }
        }
        for (path, before, now) in private.hooks {
            let Some(rule) = self.rules.rule(&path, Some(git)) else { continue };
            let approved = self.approved.has(&rule.id, &path, &now.is, now.mode);
            match settle::decide(rule, before.as_ref(), &now, approved, &|_, _| false) {
                Decision::Keep if approved => self.install(&path, &now)?,
                Decision::PutAside { why, .. } => self.keep_private(&path, rule, why, &now, before.as_ref())?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Would a run by this plan write there?
pub(crate) fn concerns(plan: &Plan, tree: &Path) -> bool {
    writable_trees(plan).iter().any(|own| own.starts_with(tree) || tree.starts_with(own))
}

/// Trees of the host that the sandbox can write, outermost only: absolute, free of symlinks.
fn writable_trees(plan: &Plan) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = match plan.tier {
        Tier::Namespaces => plan
            .mounts
            .iter()
            .filter_map(|step| match step {
                MountStep::Bind { source, writable: true, directory: true, device: false, .. } => Some(source.path.clone()),
                _ => None,
            })
            .collect(),
        Tier::Landlock => {
            let rules = plan.landlock.iter().flat_map(|landlock| &landlock.paths);
            let trees = rules.filter(|rule| rule.rights == PathRights::Write && rule.identity.is_some());
            trees.map(|rule| rule.path.clone()).filter(|path| path.is_dir()).collect()
        }
    };
    paths.sort();
    paths.dedup();
    let all = paths.clone();
    paths.retain(|path| !all.iter().any(|other| other != path && path.starts_with(other)));
    paths
}

/// What lies in a writable tree and cannot be written, relative to it.
fn skips(plan: &Plan, tree: &Path) -> Vec<PathBuf> {
    let inside = |step: &MountStep| {
        let less = matches!(step, MountStep::Mask { .. } | MountStep::Overlay { .. } | MountStep::Private { .. })
            || matches!(step, MountStep::Bind { writable: false, .. });
        if less {
            step.target().strip_prefix(tree).ok().filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned)
        } else {
            None
        }
    };
    plan.mounts.iter().filter_map(inside).collect()
}

/// Where a symlink may lead: to what the sandbox could read itself.
fn readable(plan: &Plan) -> Readable {
    match plan.tier {
        Tier::Namespaces => {
            let mut readable = Readable::default();
            for step in &plan.mounts {
                match step {
                    MountStep::Bind { source, .. } | MountStep::Overlay { source, .. } => {
                        readable.granted.push(step.target().to_owned());
                        readable.granted.push(source.path.clone());
                    }
                    MountStep::Symlink { target, .. } => readable.granted.push(target.clone()),
                    MountStep::Mask { target, .. } => readable.hidden.push(target.clone()),
                    _ => {}
                }
            }
            readable
        }
        Tier::Landlock => {
            let rules = plan.landlock.iter().flat_map(|landlock| &landlock.paths);
            let granted = rules.filter(|rule| rule.rights != PathRights::List).map(|rule| rule.path.clone());
            Readable { granted: granted.collect(), hidden: Vec::new() }
        }
    }
}

/// Tells what was put aside and what should be looked at: one line for each kind.
pub(crate) fn tell(outcome: &Outcome, log: &mut Log) -> Result<(), Error> {
    for (id, entry) in &outcome.put_aside {
        let (path, rule, why) = (output::path(&entry.path), entry.rule.as_str(), entry.why.as_str());
        log.write(&Event::PutAside { id: *id, path, rule, why, staged: entry.staged })?;
    }
    for (path, why, rule) in &outcome.reported {
        log.write(&Event::Reported { path: output::path(path), rule, why })?;
    }
    let (staged, aside): (Vec<_>, Vec<_>) = outcome.put_aside.iter().map(|(_, entry)| entry).partition(|entry| entry.staged);
    if !aside.is_empty() {
        output::complain(&format!(
            "put aside {}, which the host would run or obey; `hermes-sandbox quarantine list` says more",
            some(aside.iter().map(|entry| entry.path.as_path()))
        ));
    }
    if !staged.is_empty() {
        output::complain(&format!(
            "{} wait for approval; `hermes-sandbox quarantine list` says more",
            some(staged.iter().map(|entry| entry.path.as_path()))
        ));
    }
    for (path, why) in &outcome.failed {
        output::complain(&format!(
            "cannot put aside {}: {why}; the next command in this workspace tries again",
            output::path(path)
        ));
    }
    if !outcome.reported.is_empty() {
        output::complain(&format!(
            "note: changed {}, which run when the project is built or pushed",
            some(outcome.reported.iter().map(|(path, ..)| path.as_path()))
        ));
    }
    Ok(())
}

/// "a, b, c and 4 more"
fn some<'p>(paths: impl ExactSizeIterator<Item = &'p Path>) -> String {
    let more = paths.len().saturating_sub(3);
    let shown: Vec<String> = paths.take(3).map(output::path).collect();
    let shown = shown.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> Error {
    Error::setup(format!("cannot {what} {}: {why}", output::path(path)))
}
