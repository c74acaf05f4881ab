//! Changes as `git diff --no-index` shows them: text that `git apply` takes.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use super::layer::Ground;
use super::node::{self, Kind, Stamp};
use super::quote;
use super::scan::Change;
use crate::beneath::Root;

/// Longer files are not looked into.
const LONGEST: u64 = 32 << 20;
/// Where git looks for a NUL byte to tell binary from text.
const FIRST: usize = 8000;
/// How long the shortest diff of one file is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
const CONTEXT: usize = 3;

/// How it is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    pub(crate) colour: bool,
    /// For a terminal: what is in the files cannot act on it.
    pub(crate) harmless: bool,
}

/// What one side has at a path.
enum Side {
    Nothing,
    Text(Vec<u8>),
    Binary,
}

/// How many lines of one file came and went; `None` for binary files.
pub(crate) type Count = Option<(usize, usize)>;

/// Writes the difference of one change.
pub(crate) fn write(out: &mut impl Write, change: &Change, ground: &Ground, style: Style) -> io::Result<()> {
    let (before, after) = (shown(change.before), shown(change.after));
    match (before, after) {
        (None, None) => Ok(()),
        // git knows no change of type: one goes, the other comes.
        (Some(old), Some(new)) if old.kind() != new.kind() => {
            one(out, change, ground, (Some(old), None), style)?;
            one(out, change, ground, (None, Some(new)), style)
        }
        sides => one(out, change, ground, sides, style),
    }
}

/// Counts the lines of one change.
pub(crate) fn count(change: &Change, ground: &Ground) -> io::Result<Count> {
    let (old, new) = sides(change, ground, (shown(change.before), shown(change.after)))?;
    Ok(match (&old, &new) {
        (Side::Binary, _) | (_, Side::Binary) => None,
        (old, new) => {
            let (a, b) = (lines(old), lines(new));
            let ops = ops(&a, &b);
            let of = |tag: DiffTag| move |op: &&DiffOp| op.tag() == tag || op.tag() == DiffTag::Replace;
            let came = ops.iter().filter(of(DiffTag::Insert)).map(|op| op.new_range().len()).sum();
            let went = ops.iter().filter(of(DiffTag::Delete)).map(|op| op.old_range().len()).sum();
            Some((came, went))
        }
    })
}

/// What a diff shows: files and symlinks.
pub(crate) fn shown(stamp: Option<Stamp>) -> Option<Stamp> {
    stamp.filter(|stamp| matches!(stamp.kind(), Kind::File | Kind::Symlink))
}

fn sides(change: &Change, ground: &Ground, (old, new): (Option<Stamp>, Option<Stamp>)) -> io::Result<(Side, Side)> {
    Ok((side(&ground.lower, &change.path, old)?, side(&ground.upper, &change.path, new)?))
}

fn side(root: &Root, path: &Path, stamp: Option<Stamp>) -> io::Result<Side> {
    let refused = |errno: Errno| io::Error::from_raw_os_error(errno as i32);
    Ok(match stamp.map(|stamp| stamp.kind()) {
        None => Side::Nothing,
        Some(Kind::Symlink) => Side::Text(node::target(root, path).map_err(refused)?.as_os_str().as_bytes().to_vec()),
        Some(_) => match node::content(root, path, LONGEST).map_err(refused)? {
            Some(content) if !content[..content.len().min(FIRST)].contains(&0) => Side::Text(content),
            _ => Side::Binary,
        },
    })
}

fn lines(side: &Side) -> Vec<&[u8]> {
    match side {
        Side::Text(text) => text.split_inclusive(|byte| *byte == b'\n').collect(),
        _ => Vec::new(),
    }
}

fn ops(a: &[&[u8]], b: &[&[u8]]) -> Vec<DiffOp> {
    capture_diff_slices_deadline(Algorithm::Myers, a, b, Some(Instant::now() + PATIENCE))
}

fn git_mode(stamp: &Stamp) -> u32 {
    match stamp.kind() {
        Kind::Symlink => 0o120_000,
        _ if stamp.mode & 0o100 != 0 => 0o100_755,
        _ => 0o100_644,
    }
}

fn one(
    out: &mut impl Write,
    change: &Change,
    ground: &Ground,
    stamps: (Option<Stamp>, Option<Stamp>),
    style: Style,
) -> io::Result<()> {
    let (a, b) = (quote::name("a/", &change.path), quote::name("b/", &change.path));
    let mut header = vec![format!("diff --git {a} {b}")];
    match stamps {
        (None, Some(new)) => header.push(format!("new file mode {:o}", git_mode(&new))),
        (Some(old), None) => header.push(format!("deleted file mode {:o}", git_mode(&old))),
        (Some(old), Some(new)) if old.mode != new.mode => {
            // git has two modes; where they are alike the real ones are told.
            let all = |stamp: &Stamp| if git_mode(&old) == git_mode(&new) { stamp.mode } else { git_mode(stamp) };
            header.push(format!("old mode {:o}", all(&old)));
            header.push(format!("new mode {:o}", all(&new)));
        }
        _ => {}
    }
    let (old, new) = sides(change, ground, stamps)?;
    let name = |side: &Side, name: &str| match side {
        Side::Nothing => "/dev/null".to_owned(),
        // What follows a blank could be a time, so git marks the end of such a name.
        _ => format!("{name}{}", if name.contains(' ') && !name.starts_with('"') { "\t" } else { "" }),
    };
    let (old_lines, new_lines) = (lines(&old), lines(&new));
    let binary = matches!(old, Side::Binary) || matches!(new, Side::Binary);
    let ops = if binary { Vec::new() } else { ops(&old_lines, &new_lines) };
    let groups = group_diff_ops(ops, CONTEXT);
    if binary {
        let differ = match (&old, &new) {
            (Side::Binary, Side::Binary) => match stamps {
                (Some(_), Some(_)) => content_differs(change, ground),
                _ => true,
            },
            _ => true,
        };
        if differ {
            header.push(format!("Binary files {} and {} differ", name(&old, &a).trim_end(), name(&new, &b).trim_end()));
        }
    } else if !groups.is_empty() {
        header.push(format!("--- {}", name(&old, &a)));
        header.push(format!("+++ {}", name(&new, &b)));
    }
    for line in header {
        paint(out, style, "1", line.as_bytes())?;
    }
    for group in groups {
        hunk(out, &group, &old_lines, &new_lines, style)?;
    }
    Ok(())
}

fn content_differs(change: &Change, ground: &Ground) -> bool {
    match (change.before, change.after) {
        (Some(before), Some(after)) => !super::scan::same_things(&ground.lower, &before, &ground.upper, &after, &change.path),
        _ => true,
    }
}

fn hunk(out: &mut impl Write, group: &[DiffOp], old: &[&[u8]], new: &[&[u8]], style: Style) -> io::Result<()> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
    let range = |start: usize, end: usize| match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    };
    let head = format!(
        "@@ -{} +{} @@",
        range(first.old_range().start, last.old_range().end),
        range(first.new_range().start, last.new_range().end)
    );
    paint(out, style, "36", head.as_bytes())?;
    for op in group {
        let mut put = |sign: &str, colour: &str, lines: &[&[u8]]| -> io::Result<()> {
            for line in lines {
                let text = line.strip_suffix(b"\n");
                let shown = text.unwrap_or(line);
                let shown = if style.harmless { quote::harmless(shown) } else { shown.to_vec() };
                paint(out, style, colour, &[sign.as_bytes(), &shown].concat())?;
                if text.is_none() {
                    paint(out, style, "", b"\\ No newline at end of file")?;
                }
            }
            Ok(())
        };
        match op.tag() {
            DiffTag::Equal => put(" ", "", &old[op.old_range()])?,
            DiffTag::Delete => put("-", "31", &old[op.old_range()])?,
            DiffTag::Insert => put("+", "32", &new[op.new_range()])?,
            DiffTag::Replace => {
                put("-", "31", &old[op.old_range()])?;
                put("+", "32", &new[op.new_range()])?;
            }
        }
    }
    Ok(())
}

fn paint(out: &mut impl Write, style: Style, colour: &str, line: &[u8]) -> io::Result<()> {
    if style.colour && !colour.is_empty() {
        write!(out, "\x1b[{colour}m")?;
        out.write_all(line)?;
        out.write_all(b"\x1b[m\n")
    } else {
        out.write_all(line)?;
        out.write_all(b"\n")
    }
}
