//! What the `changes` commands print.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use super::apply::Applied;
use super::checkpoint::Manifest;
use super::journal::{Failed, Spot};
use super::layer::{About, Part};
use super::node::Time;
use super::scan::Scan;
use crate::output;
use crate::table;

/// How many paths of one kind are named.
const NAMED: usize = 20;

/// Added, changed, deleted.
pub(crate) fn counts(found: &Scan) -> (usize, usize, usize) {
    let added = found.changes.iter().filter(|change| change.is_addition()).count();
    let deleted = found.changes.iter().filter(|change| change.is_deletion()).count();
    (added, found.changes.len() - added - deleted, deleted)
}

/// A moment in UTC, to the second.
pub(crate) fn moment(time: Time) -> String {
    let seconds = time.div_euclid(1_000_000_000);
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a date of the Gregorian calendar, years counted from March: no leap day is in the way.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest / 60 % 60, rest % 60)
}

/// A layer in the list.
pub(crate) enum Row<'a> {
    Busy(u32),
    Free(u32, &'a About, &'a Scan),
}

/// The list for people.
pub(crate) fn list(workspace: &Path, rows: &[Row<'_>], checkpoints: &[(u32, Manifest)]) -> String {
    let mut text = String::new();
    if rows.is_empty() && checkpoints.is_empty() {
        _ = writeln!(text, "nothing waits for {}", output::path(workspace));
    }
    for row in rows {
        _ = match row {
            Row::Busy(number) => writeln!(text, "layer {number}       in use by a sandbox"),
            Row::Free(number, about, found) => {
                let (added, changed, deleted) = counts(found);
                let last = about.begun.last().copied().unwrap_or_default();
                writeln!(text, "layer {number}       {}  {added} added, {changed} changed, {deleted} deleted", moment(last))
            }
        };
    }
    for (number, manifest) in checkpoints {
        let (files, bytes) = manifest.size();
        _ = writeln!(text, "checkpoint {number}  {}  {files} files, {}", moment(manifest.taken), table::bytes(bytes));
    }
    text
}

/// The list for programs.
pub(crate) fn list_json(workspace: &Path, rows: &[Row<'_>], checkpoints: &[(u32, Manifest)]) -> serde_json::Value {
    let layers: Vec<_> = rows
        .iter()
        .map(|row| match row {
            Row::Busy(number) => json!({ "layer": number, "in_use": true }),
            Row::Free(number, about, found) => {
                let (added, changed, deleted) = counts(found);
                json!({
                    "layer": number,
                    "in_use": false,
                    "runs": about.begun.iter().map(|time| time / 1_000_000).collect::<Vec<_>>(),
                    "added": added,
                    "changed": changed,
                    "deleted": deleted,
                })
            }
        })
        .collect();
    let checkpoints: Vec<_> = checkpoints
        .iter()
        .map(|(number, manifest)| {
            let (files, bytes) = manifest.size();
            json!({ "checkpoint": number, "taken": manifest.taken / 1_000_000, "files": files, "bytes": bytes })
        })
        .collect();
    json!({ "workspace": output::path(workspace), "layers": layers, "checkpoints": checkpoints })
}

/// A path of a part as people name it: below the workspace, or absolute.
pub(crate) fn place(spot: &Spot, parts: &[Part]) -> String {
    match spot.part {
        0 => output::path(&spot.path),
        part => output::path(&parts.get(part).map_or_else(|| spot.path.clone(), |part| part.path.join(&spot.path))),
    }
}

/// Names each, those with the same reason in a row together.
fn name_each<W: std::fmt::Display + PartialEq>(parts: &[Part], spots: &[(Spot, W)]) {
    let rows: Vec<_> = spots.chunk_by(|a, b| a.1 == b.1).collect();
    for row in rows.iter().take(NAMED) {
        let names: Vec<_> = row.iter().take(5).map(|(spot, _)| place(spot, parts)).collect();
        let more = if row.len() > names.len() { format!(" and {} more", row.len() - names.len()) } else { String::new() };
        output::complain(&format!("{}{more}: {}", names.join(", "), row[0].1));
    }
    if rows.len() > NAMED {
        output::complain(&format!("... and {} more", rows[NAMED..].iter().map(|row| row.len()).sum::<usize>()));
    }
}

/// Tells what became of an attempt to apply.
pub(crate) fn applied(applied: &Applied, parts: &[Part]) {
    name_each(parts, &applied.refused);
    name_each(parts, &applied.never);
    if !applied.guarded.is_empty() && !applied.nothing {
        let names: Vec<_> = applied.guarded.iter().take(5).map(|(spot, _)| place(spot, parts)).collect();
        let more = if applied.guarded.len() > names.len() { ", ..." } else { "" };
        output::complain(&format!(
            "{} guarded, because tools on the host obey {}: {}{more}; look at them, then `changes apply --with-guarded`",
            files(applied.guarded.len()),
            if applied.guarded.len() == 1 { "it" } else { "them" },
            names.join(", ")
        ));
    }
}

/// Tells which steps of an interrupted command could not be done.
pub(crate) fn recovered(failed: &Failed, parts: &[Part]) {
    let failed: Vec<(Spot, &String)> = failed.iter().map(|(spot, why)| (spot.clone(), why)).collect();
    name_each(parts, &failed);
}

/// A number of files in words.
pub(crate) fn files(count: usize) -> String {
    format!("{count} {}", if count == 1 { "file" } else { "files" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let at = |seconds: i64| moment(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(at(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }
}
