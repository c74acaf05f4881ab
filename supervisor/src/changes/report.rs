//! What the `changes` commands print.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use super::apply::Applied;
use super::checkpoint::Manifest;
use super::journal::{Failed, Spot};
use super::layer::{About, Part};
use super::scan::Scan;
use crate::clock::Time;
use crate::output;
use crate::table;

/// How many paths of one kind are named.
const NAMED: usize = 20;

/// Files outside of git directories, and all that is not counted there.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) added: usize,
    pub(crate) changed: usize,
    pub(crate) deleted: usize,
    pub(crate) in_git: usize,
    pub(crate) directories: usize,
}

impl Counts {
    pub(crate) fn of(found: &Scan) -> Self {
        let mut counts = Self::default();
        for change in &found.changes {
            let place = match () {
                () if !change.is_file() => &mut counts.directories,
                () if change.is_in_git() => &mut counts.in_git,
                () if change.is_addition() => &mut counts.added,
                () if change.is_deletion() => &mut counts.deleted,
                () => &mut counts.changed,
            };
            *place += 1;
        }
        counts.changed += found.unreachable.len();
        counts
    }

    fn git_words(self) -> String {
        if self.in_git == 0 { String::new() } else { format!(" (and {} in .git)", self.in_git) }
    }

    /// `5 files changed (and 11 in .git)`.
    pub(crate) fn words(self) -> String {
        match (self.added + self.changed + self.deleted, self.in_git, self.directories) {
            (0, 0, 1) => "1 directory changed".to_owned(),
            (0, 0, n) => format!("{n} directories changed"),
            (0, n, _) => format!("{} in .git changed", files(n)),
            (n, ..) => format!("{} changed{}", files(n), self.git_words()),
        }
    }
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
    Busy(u64),
    Free(u64, &'a About, &'a Scan),
}

/// The list for people.
pub(crate) fn list(workspace: &Path, rows: &[Row<'_>], checkpoints: &[(u64, Manifest)]) -> String {
    let mut text = String::new();
    if rows.is_empty() && checkpoints.is_empty() {
        _ = writeln!(text, "nothing waits for {}", output::path(workspace));
    }
    for row in rows {
        _ = match row {
            Row::Busy(number) => writeln!(text, "layer {number}       in use by a sandbox"),
            Row::Free(number, about, found) => {
                let counts @ Counts { added, changed, deleted, .. } = Counts::of(found);
                let last = about.begun.last().copied().unwrap_or_default();
                let (when, git) = (moment(last), counts.git_words());
                writeln!(text, "layer {number}       {when}  {added} added, {changed} changed, {deleted} deleted{git}")
            }
        };
    }
    for (number, manifest) in checkpoints {
        let (files, bytes) = manifest.size();
        _ = writeln!(
            text,
            "checkpoint {number}  {}  {}, {}  {}",
            moment(manifest.taken),
            self::files(files),
            table::bytes(bytes),
            output::clean(&manifest.why)
        );
    }
    text
}

/// The list for programs.
pub(crate) fn list_json(workspace: &Path, rows: &[Row<'_>], checkpoints: &[(u64, Manifest)]) -> serde_json::Value {
    let layers: Vec<_> = rows
        .iter()
        .map(|row| match row {
            Row::Busy(number) => json!({ "layer": number, "in_use": true }),
            Row::Free(number, about, found) => {
                let Counts { added, changed, deleted, in_git, directories } = Counts::of(found);
                json!({
                    "layer": number,
                    "in_use": false,
                    "runs": about.begun.iter().map(|time| time / 1_000_000).collect::<Vec<_>>(),
                    "added": added,
                    "changed": changed,
                    "deleted": deleted,
                    "in_git": in_git,
                    "directories": directories,
                })
            }
        })
        .collect();
    let checkpoints: Vec<_> = checkpoints
        .iter()
        .map(|(number, manifest)| {
            let (files, bytes) = manifest.size();
            json!({ "checkpoint": number, "taken": manifest.taken / 1_000_000, "files": files, "bytes": bytes, "why": manifest.why })
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
            "{} guarded, because tools on the host obey {}: {}{more}; look at {1}, then `changes apply --with-guarded`",
            files(applied.guarded.len()),
            if applied.guarded.len() == 1 { "it" } else { "them" },
            names.join(", ")
        ));
    }
    if !applied.locks.is_empty() && !applied.nothing {
        let names: Vec<_> = applied.locks.iter().take(5).map(|spot| place(spot, parts)).collect();
        let more = if applied.locks.len() > names.len() { ", ..." } else { "" };
        output::complain(&format!("left out, locks of a git that did not end: {}{more}", names.join(", ")));
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

/// A path as a word of a shell.
pub(crate) fn word(path: &Path) -> String {
    let text = output::path(path);
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell() {
        let words = ["/a/b-c.d", "/a b", "/it's", "/$x"].map(|path| word(Path::new(path)));
        assert_eq!(words, ["/a/b-c.d", "'/a b'", "'/it'\\''s'", "'/$x'"]);
    }

    #[test]
    fn moments() {
        let at = |seconds: i64| moment(seconds * 1_000_000_000);
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(at(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }
}
