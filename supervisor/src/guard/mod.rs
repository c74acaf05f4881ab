//! The guard: what jobs left in writable trees of the host for its tools to run or obey is put aside.
//!
//! It owns the looks at a tree before and after a run, the private copies of version-control internals, the quarantine,
//! and the records by which the next command settles what a killed supervisor left. What the rules say is
//! [`hermes_profiles::guard`]'s business; how a sandbox is confined it does not know.

mod caller;
mod distrusted;
pub(crate) mod history;
mod leads;
mod live;
pub(crate) mod quarantine;
mod reach;
pub(crate) mod restore;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod settle;
pub(crate) mod shadow;
pub(crate) mod snapshot;
mod tell;
mod watch;

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use hermes_backends::compile::shadow::Shadow;
use hermes_backends::plan::{Plan, Source, Tier};
use hermes_backends::wire::Cover;
use hermes_profiles::{Guarantee, GuardRules, Policy, ospath};
use nix::sys::statfs::fstatfs;
use std::os::unix::fs::MetadataExt;

use crate::error::Error;
use crate::events::Log;
use crate::output;
use crate::state::{Tree, store};
pub(crate) use caller::for_caller;
use distrusted::Distrusted;
use hermes_profiles::Caller;
use quarantine::Quarantine;
pub(crate) use reach::{concerns, touch};
use reach::{readable, skips, writable_trees};
use rules::{TreeRules, is_in_dot_git};
use run::{Readable, Record, Repository, Run, TreeRecord};
use settle::{Outcome, settle_tree};
use snapshot::{Is, Snapshot};
pub(crate) use tell::tell;

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

/// What was begun; where that failed, nothing, and a word about it, if the policy accepts to do without.
pub(crate) fn unless_accepted(begun: Result<Option<Guards>, Error>, policy: &Policy) -> Result<Option<Guards>, Error> {
    match begun {
        Err(error) if policy.accepted.contains(&Guarantee::FilesGuarded) => {
            output::complain(&format!("without {}: {error}", Guarantee::FilesGuarded));
            Ok(None)
        }
        begun => begun.map_err(|error| error.hint(format!("to run without: --accept-loss {}", Guarantee::FilesGuarded))),
    }
}

/// Settles what killed supervisors have left, and tells it. Every command that works with trees begins with it.
///
/// # Errors
/// Something cannot be settled: then nothing may start, because its plant would count as what was there before.
pub(crate) fn recover(state_dir: &Path, concerns: &dyn Fn(&Path) -> bool, log: &mut Log) -> Result<(), Error> {
    let (dead, _) = Run::others(state_dir).map_err(|e| cannot("look for runs that were killed in", state_dir, &e))?;
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
            Ok(outcome) => tell(&outcome, log)?,
            // The trees of another run need not stand in the way of this one.
            Err(error) if !trees.is_empty() && !trees.iter().any(|tree| concerns(tree)) => drop(error.report()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    let found: Vec<Option<Tree>> = record.trees.iter().map(|of_tree| find_tree(state_dir, of_tree)).collect();
    if found.iter().all(Option::is_none) && run.is_recent() {
        // Renamed, or on a disk that is not there: the next command that works in it finds it again.
        return Ok(outcome);
    }
    for (index, tree) in found.into_iter().enumerate() {
        let Some(tree) = tree else { continue };
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

/// The tree of a run, where it was or where a command has found it since.
fn find_tree(state_dir: &Path, of_tree: &TreeRecord) -> Option<Tree> {
    let named = std::fs::read(of_tree.state.join("path")).ok().map(|path| PathBuf::from(OsString::from_vec(path)));
    let mut trees = [Some(of_tree.path.clone()), named].into_iter().flatten();
    trees.find_map(|path| Tree::open(state_dir, &path, false).ok().flatten().filter(|tree| tree.state == of_tree.state))
}

impl Guards {
    /// Begins a run: makes its directory. `None` when it can write no tree of the host.
    ///
    /// # Errors
    /// The state directory or a quarantine cannot be written, or a killed run cannot be settled.
    pub(crate) fn begin(
        plan: &Plan,
        rules: &GuardRules,
        caller: &Caller,
        command: &[OsString],
        log: &mut Log,
    ) -> Result<Option<Self>, Error> {
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
        // Trees that have another name than at a killed run are known by it now.
        recover(state_dir, &|tree| trees.iter().any(|(own, _)| touch(&own.path, tree)), log)?;
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
            rules: for_caller(rules, caller, &trees.iter().map(|(tree, _)| tree.path.as_path()).collect::<Vec<_>>()),
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
            let tree_rules = TreeRules::new(rules, &tree.path, &record.skips, readable).with_aliases(&aliases);
            tree.root.insist(true);
            let (tree_rules, mut now) = survey(tree, tree_rules, old.as_ref()).map_err(failed)?;
            if now.renewed {
                store::write_soon(&known, &now).map_err(failed)?;
            }
            if now.is_too_fresh() {
                std::thread::sleep(std::time::Duration::from_nanos(crate::clock::COARSE as u64));
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
                store::write_soon(&own, &now).map_err(failed)?;
            }
            if self.shadowing {
                let tree_rules = TreeRules::new(rules, &tree.path, &record.skips, readable).with_aliases(&now.aliases);
                covers.extend(read_only(&tree_rules, &tree.path, &now));
            }
            let distrusted = Distrusted::of(tree).map_err(failed)?;
            for (git, target) in pointers(&now) {
                let tips = distrusted.tips(tree, &target);
                record.repositories.push(Repository { git, tips, shadow: None, made_hooks: false });
            }
            for git in now.repositories() {
                let tips = distrusted.tips(tree, &git);
                let mut repository = Repository { git, tips, shadow: None, made_hooks: false };
                if self.shadowing && (shadows as usize) < shadow::MOST {
                    let tree_rules = TreeRules::new(rules, &tree.path, &record.skips, readable).with_aliases(&now.aliases);
                    let prevented = |path: &Path| tree_rules.prevents_in_git(path, &repository.git);
                    let (more, made) =
                        shadow::make(&self.run, tree, &now, &repository.git, shadows, &prevented).map_err(failed)?;
                    covers.extend(more);
                    (repository.shadow, repository.made_hooks) = (Some(shadows), made);
                    shadows += 1;
                }
                record.repositories.push(repository);
            }
            *baseline = now;
        }
        store::write_soon(&self.run.record_path(), &self.record).map_err(|e| cannot("record this run in", &self.run.dir, &e))?;
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

/// How far symlinks and includes are followed from one to the next.
const MOST_STEPS: usize = 5;

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
    let named = now.held().filter(|(path, git, _)| {
        git.as_deref().is_none_or(|git| !is_in_dot_git(git)) && path.file_name().is_some_and(|name| name == ".git")
    });
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

fn look(tree: &Tree, rules: &TreeRules<'_>, old: Option<&Snapshot>) -> io::Result<Snapshot> {
    let old = old.filter(|_| has_dependable_times(tree));
    let mut now = Snapshot::take(&tree.root, tree.dev, rules, &rules.stamp(), old)?;
    now.aliases = rules.aliases().to_vec();
    Ok(now)
}

/// The names of a tree, and its rules with every other place of guarded files that they lead to.
fn survey<'p>(tree: &Tree, mut rules: TreeRules<'p>, old: Option<&Snapshot>) -> io::Result<(TreeRules<'p>, Snapshot)> {
    let mut now = look(tree, &rules, old)?;
    for _ in 0..MOST_STEPS {
        let aliases = rules.aliases_of(&now);
        if aliases == now.aliases {
            break;
        }
        // What they lead to may have been passed by, and may lead on.
        rules = rules.with_aliases(&aliases);
        now = look(tree, &rules, None)?;
    }
    Ok((rules, now))
}

/// What the guard would say to changes of a tree that is not being written.
pub(crate) fn rules_of<'p>(tree: &Tree, rules: &'p GuardRules, readable: &'p Readable) -> io::Result<TreeRules<'p>> {
    survey(tree, TreeRules::new(rules, &tree.path, &[], readable), None).map(|(rules, _)| rules)
}

/// Network file systems keep times of other machines, or none.
fn has_dependable_times(tree: &Tree) -> bool {
    // linux/magic.h: NFS, SMB2, CIFS, 9p, FUSE (virtiofs, sshfs), Ceph, AFS.
    const NETWORK: &[i128] = &[0x6969, 0xfe53_4d42, 0xff53_4d42, 0x0102_1997, 0x6573_5546, 0x00c3_6400, 0x5346_414f];
    fstatfs(&tree.root).is_ok_and(|stat| !NETWORK.contains(&i128::from(stat.filesystem_type().0)))
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> Error {
    Error::setup(format!("cannot {what} {}: {why}", output::path(path)))
}
