//! All that is known about one entry.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

use hermes_profiles::ospath;
use serde::Serialize;

use super::{Found, Listed, cannot, octal};
use crate::clock;
use crate::diff::{self, quote};
use crate::error::Error;
use crate::guard::quarantine::{Before, Entry, What};
use crate::guard::restore;
use crate::guard_rules;
use crate::output;
use crate::table::{self, field};

/// What is no file.
pub(super) const SPECIAL: &str = "a pipe, socket or device, of which nothing is kept";
/// Lines of a content that are shown.
const LINES: usize = 200;
/// Characters of a command line that are shown.
const COMMAND: usize = 200;
/// Bytes of a content that are shown: a line can be long.
const BYTES: usize = 64 * 1024;

/// What was there before, and what was put aside if it is short.
pub(super) fn both(found: &Found<'_>) -> Result<(Vec<u8>, Option<Vec<u8>>), Error> {
    let quarantine = found.place.quarantine();
    let read = || {
        let content = match found.entry.what {
            What::File | What::Symlink => Some(quarantine.content(found.id)?),
            What::LongFile | What::Special | What::Directory => None,
        };
        Ok((quarantine.before(found.id)?, content))
    };
    read().map_err(|e: io::Error| cannot("read what was put aside of", &found.entry.path, &e))
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    listed: Listed<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    size: u64,
    /// Bytes that are not UTF-8 are written as `\xNN`.
    content: Option<String>,
    content_before: Option<String>,
}

/// Prints it and returns the exit status.
pub(super) fn show(found: &Found<'_>, json: bool) -> Result<u8, Error> {
    let Found { place, id, entry } = found;
    let (before, content) = both(found)?;
    let source = restore::rule(entry).map(guard_rules::source);
    let size = place.quarantine().content_path(*id).metadata().map_or(0, |meta| meta.len());
    if json {
        let listed = Listed::new(place, *id, entry);
        let kept = matches!(entry.before, Before::File(_) | Before::Symlink);
        output::print_json(&Shown {
            listed,
            source,
            size,
            content: content.as_deref().map(quote::harmless_text),
            content_before: kept.then(|| quote::harmless_text(&before)),
        })?;
        return Ok(0);
    }
    let mut text = String::new();
    field(&mut text, "entry", &id.to_string());
    field(&mut text, "path", &output::path(&place.path.join(&entry.path)));
    facts(&mut text, entry, source, size, &before);
    match &content {
        Some(content) if entry.what == What::Symlink => field(&mut text, "leads to", &ospath::escaped_bytes(content)),
        Some(content) => body(&mut text, content),
        None => {}
    }
    output::print(&text)?;
    Ok(0)
}

fn facts(text: &mut String, entry: &Entry, source: Option<&str>, size: u64, before: &[u8]) {
    let what = match entry.what {
        What::File => format!("a file of {}, mode {}", table::bytes(size), octal(entry.mode)),
        What::LongFile => format!("a file of {}, mode {}, too long to be shown", table::bytes(size), octal(entry.mode)),
        What::Symlink => "a symlink".to_owned(),
        What::Special => SPECIAL.to_owned(),
        What::Directory => "a directory in the place of a file".to_owned(),
    };
    let was = match entry.before {
        Before::Absent => "nothing".to_owned(),
        Before::File(mode) => format!("a file of {}, mode {}", table::bytes(before.len() as u64), octal(mode)),
        Before::Symlink => format!("a symlink to {}", ospath::escaped_bytes(before)),
        Before::Unknown => "something of which no copy could be kept".to_owned(),
    };
    field(text, "what", &what);
    field(text, "before", &was);
    field(text, "rule", &entry.rule);
    field(text, "run by", &entry.runs);
    if let Some(source) = source {
        field(text, "source", source);
    }
    field(text, "why", &entry.why);
    if entry.staged {
        field(text, "waits", "until it is approved or restored");
    }
    field(text, "when", &table::age(clock::milliseconds(), entry.time));
    field(text, "profile", &entry.profile);
    field(text, "command", &cut(&entry.command));
}

/// The beginning of a long command line; a script can be an argument.
fn cut(command: &str) -> Cow<'_, str> {
    match command.char_indices().nth(COMMAND) {
        None => Cow::Borrowed(command),
        Some((at, _)) => Cow::Owned(format!("{}...", &command[..at])),
    }
}

/// The content, set off so that no line of it can be taken for one of ours.
fn body(text: &mut String, content: &[u8]) {
    if diff::is_binary(content) {
        field(text, "content", "binary");
        return;
    }
    text.push('\n');
    let cut = &content[..content.len().min(BYTES)];
    let mut shown = 0;
    for line in cut.split_inclusive(|byte| *byte == b'\n').take(LINES) {
        shown += line.len();
        let line = quote::harmless(line.strip_suffix(b"\n").unwrap_or(line));
        _ = writeln!(text, "  | {}", line);
    }
    match content.len() - shown {
        0 => {}
        left => _ = writeln!(text, "  ... and {} more; `show --json` has all of it", table::bytes(left as u64)),
    }
}
