//! What people are told about what was put aside.

use std::path::{Path, PathBuf};

use super::quarantine::Entry;
use super::settle::Outcome;
use crate::error::Error;
use crate::events::{Event, Log};
use crate::output;

/// Tells what was put aside and what should be looked at: one line for each kind.
pub(crate) fn tell(outcome: &Outcome, log: &mut Log) -> Result<(), Error> {
    for (_, id, entry) in &outcome.put_aside {
        let (path, rule, why) = (output::path(&entry.path), entry.rule.as_str(), entry.why.as_str());
        log.write(&Event::PutAside { id: *id, path, rule, why, staged: entry.staged })?;
    }
    for (path, why, rule) in &outcome.reported {
        log.write(&Event::Reported { path: output::path(path), rule, why })?;
    }
    let mut put: Vec<&(PathBuf, u64, Entry)> = outcome.put_aside.iter().collect();
    put.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    for of_tree in put.chunk_by(|(a, ..), (b, ..)| a == b) {
        put_aside(of_tree);
    }
    for (path, why) in &outcome.failed {
        output::complain(&format!(
            "cannot put aside {}: {why}; the next command in this workspace tries again",
            output::path(path)
        ));
    }
    if !outcome.kept.is_empty() {
        output::complain(&format!(
            "kept {}, which the command removed; remove it yourself if that is what you want",
            some(outcome.kept.iter().map(PathBuf::as_path))
        ));
    }
    if !outcome.deleted.is_empty() {
        output::complain(&format!("note: the command removed {}", some(outcome.deleted.iter().map(PathBuf::as_path))));
    }
    let reported: Vec<&Path> = outcome.reported.iter().map(|(path, ..)| path.as_path()).collect();
    if !reported.is_empty() {
        output::complain(&format!(
            "note: changed {}, which {} when the project is built or pushed",
            some(reported.iter().copied()),
            if reported.len() == 1 { "runs" } else { "run" }
        ));
    }
    Ok(())
}

fn is_here(tree: &Path) -> bool {
    std::env::current_dir().and_then(std::fs::canonicalize).is_ok_and(|here| here.starts_with(tree))
}

/// One line for what was put aside in a tree, and one for what waits there. What lies elsewhere is named in full.
fn put_aside(of_tree: &[&(PathBuf, u64, Entry)]) {
    let Some((tree, ..)) = of_tree.first() else { return };
    let (list, place) = match is_here(tree) {
        true => (String::new(), PathBuf::new()),
        false => (format!(" --workspace {}", output::quoted(tree)), tree.clone()),
    };
    let list = format!("`hermes-sandbox quarantine list{list}` says more");
    let names = |staged: bool| -> Vec<PathBuf> {
        of_tree.iter().filter(|(.., entry)| entry.staged == staged).map(|(.., entry)| place.join(&entry.path)).collect()
    };
    let (aside, staged) = (names(false), names(true));
    if !aside.is_empty() {
        let paths = some(aside.iter().map(PathBuf::as_path));
        output::complain(&format!("put aside {paths}, which the host would run or obey; {list}"));
    }
    if !staged.is_empty() {
        let wait = if staged.len() == 1 { "waits" } else { "wait" };
        output::complain(&format!("{} {wait} for approval; {list}", some(staged.iter().map(PathBuf::as_path))));
    }
}

/// "a, b, c and 4 more"
fn some<'p>(paths: impl ExactSizeIterator<Item = &'p Path>) -> String {
    let more = paths.len().saturating_sub(3);
    let shown: Vec<String> = paths.take(3).map(output::path).collect();
    let shown = shown.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}
