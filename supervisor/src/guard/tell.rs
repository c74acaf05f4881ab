//! What people are told about what was put aside.

use std::path::Path;

use super::settle::Outcome;
use crate::error::Error;
use crate::events::{Event, Log};
use crate::output;

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
