//! The order in which one tree is brought back, by its own supervisor or by the next command.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use hermes_profiles::guard::{Check, git_config, sets};

use super::{About, Candidate, Decision, Outcome, Settler, decide};
use crate::error::Error;
use crate::guard::distrusted::Distrusted;
use crate::guard::quarantine::Stage;
use crate::guard::rules::{TreeRules, is_in_dot_git};
use crate::guard::run::{Believed, Record, Repository, Run, TreeRecord};
use crate::guard::shadow::{self, Merge};
use crate::guard::snapshot::{Held, Is, Snapshot};
use crate::guard::{cannot, history, look};
use crate::state::{Tree, store};

/// `again`: another supervisor was killed, perhaps while it settled.
pub(crate) fn settle_tree(
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
    let rules = TreeRules::of(record, index, baseline);
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
        settler.put_aside(excuse(of_tree, candidates))?;
        Distrusted::remember(of_tree, tree, &now)?;
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
    if !settler.outcome.put_aside.is_empty() {
        // All is settled: that an older entry stays, or goes by another hand just now, is no failure.
        let _ = settler.quarantine.forget_repeated();
    }
    *outcome = settler.outcome;
    if now.renewed {
        store::write_soon(&tree.state.join("index"), &now).map_err(failed)?;
    }
    Ok(())
}

/// Leaves out what version control knew before the run.
fn excuse<'r>(of_tree: &TreeRecord, candidates: Vec<Candidate<'r>>) -> Vec<Candidate<'r>> {
    let mut by_repository: BTreeMap<usize, Vec<Candidate<'r>>> = BTreeMap::new();
    let mut left = Vec::new();
    for candidate in candidates {
        let wanted = candidate.rule.tracked && candidate.change.git.as_deref().is_none_or(|git| !is_in_dot_git(git));
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
            let before_held = before.as_ref();
            let old = shadow::text(before_held);
            let also = |key: &str, value: &[u8]| self.rules.leads_well(git, key, value);
            let refused = match &now.is {
                Is::File(new) => {
                    let within = path.strip_prefix(git).unwrap_or(&path);
                    let (tree, before, private) = (self.tree, old, new.as_slice());
                    let merge = Merge { tree, run_dir, number, within, path: &path, before, private, also: &also };
                    match merge.by_rename() {
                        // The lock may be a job's, and then nobody gives it up.
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                            let why = "changes what is locked by another git".to_owned();
                            self.keep_private(&path, rule, why, &now, before_held)?;
                            continue;
                        }
                        merged => merged?.refused,
                    }
                }
                _ => vec!["what is not a file".to_owned()],
            };
            let approved = self.approved.has(&rule.id, &path, &now.is, now.mode);
            if let (true, Is::File(new)) = (approved, &now.is) {
                shadow::under_lock(self.tree, &path, |host| {
                    let carried = || git_config::carry(old, new, host.unwrap_or_default()).map(|carried| carried.text);
                    Ok(if host == Some(old) { Some(new.clone()) } else { carried() })
                })?;
            } else if !refused.is_empty() {
                self.keep_private(&path, rule, sets(&refused), &now, before_held)?;
            }
        }
        self.outcome.kept.extend(private.removed);
        for (path, before, now) in private.hooks {
            let Some(rule) = self.rules.rule(&path, Some(git)) else { continue };
            let approved = self.approved.has(&rule.id, &path, &now.is, now.mode);
            match decide(rule, before.as_ref().map(Held::seen), now.seen(), approved, &|_, _| false) {
                Decision::Keep if approved => self.install(&path, &now)?,
                Decision::PutAside { why, .. } => self.keep_private(&path, rule, why, &now, before.as_ref())?,
                _ => {}
            }
        }
        Ok(())
    }
}
