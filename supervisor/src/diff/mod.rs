//! The difference between two versions of one path, as `git diff --no-index` shows it: text that `git apply` takes.

pub(crate) mod quote;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::SFlag;
use similar::{ChangeTag, DiffTag, TextDiff};

/// Where git looks for a NUL byte to tell binary from text.
const FIRST: usize = 8000;
/// How long the shortest difference is looked for.
const PATIENCE: Duration = Duration::from_secs(5);

/// One version: a file or a symlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Side<'a> {
    /// Type and permissions.
    pub(crate) mode: u32,
    /// The content, or where the symlink leads. `None` when it is too long to be looked into.
    pub(crate) content: Option<&'a [u8]>,
}

/// A line without its end, and its colour (`m` of ECMA-48).
pub(crate) type Line = (&'static str, Vec<u8>);

impl<'a> Side<'a> {
    /// A file with these permissions.
    pub(crate) fn file(permissions: u32, content: Option<&'a [u8]>) -> Self {
        Self { mode: SFlag::S_IFREG.bits() | permissions, content }
    }

    /// A symlink.
    pub(crate) fn symlink(target: Option<&'a [u8]>) -> Self {
        Self { mode: SFlag::S_IFLNK.bits() | 0o777, content: target }
    }

    fn is_symlink(&self) -> bool {
        self.mode & SFlag::S_IFMT.bits() == SFlag::S_IFLNK.bits()
    }

    fn git_mode(&self) -> u32 {
        match self.mode & 0o100 {
            _ if self.is_symlink() => 0o120_000,
            0 => 0o100_644,
            _ => 0o100_755,
        }
    }
}

/// The text of a version, which may not be there; `None` when it is none.
fn text<'a>(side: Option<Side<'a>>) -> Option<&'a [u8]> {
    side.map_or(Some(b""), |side| side.content.filter(|content| !is_binary(content)))
}

/// Does git take it for binary?
pub(crate) fn is_binary(content: &[u8]) -> bool {
    content[..content.len().min(FIRST)].contains(&0)
}

fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// How many lines came and went; `None` for binary files.
pub(crate) fn count(old: Option<Side<'_>>, new: Option<Side<'_>>) -> Option<(usize, usize)> {
    let (old, new) = (split(text(old)?), split(text(new)?));
    let diff = TextDiff::configure().timeout(PATIENCE).diff_slices(&old, &new);
    let of = |tag: DiffTag| diff.ops().iter().filter(move |op| op.tag() == tag || op.tag() == DiffTag::Replace);
    let came = of(DiffTag::Insert).map(|op| op.new_range().len()).sum();
    Some((came, of(DiffTag::Delete).map(|op| op.old_range().len()).sum()))
}

/// The difference. `differ` is asked about two versions of which one is too long.
pub(crate) fn lines(path: &Path, old: Option<Side<'_>>, new: Option<Side<'_>>, differ: &dyn Fn() -> bool) -> Vec<Line> {
    let (a, b) = (quote::name("a/", path), quote::name("b/", path));
    let mut header = vec![format!("diff --git {a} {b}")];
    match (&old, &new) {
        // git knows no change of type: one goes, the other comes.
        (Some(old), Some(new)) if old.is_symlink() != new.is_symlink() => {
            return [lines(path, Some(*old), None, &|| true), lines(path, None, Some(*new), &|| true)].concat();
        }
        (None, Some(new)) => header.push(format!("new file mode {:o}", new.git_mode())),
        (Some(old), None) => header.push(format!("deleted file mode {:o}", old.git_mode())),
        (Some(old), Some(new)) if old.mode != new.mode => {
            // git has two modes; where they are alike the real ones are told.
            let told = |side: &Side<'_>| if old.git_mode() == new.git_mode() { side.mode } else { side.git_mode() };
            header.push(format!("old mode {:o}", told(old)));
            header.push(format!("new mode {:o}", told(new)));
        }
        _ => {}
    }
    let name = |side: &Option<Side<'_>>, name: &str| match side {
        None => "/dev/null".to_owned(),
        // What follows a blank could be a time, so git marks the end of such a name.
        Some(_) => format!("{name}{}", if name.contains(' ') && !name.starts_with('"') { "\t" } else { "" }),
    };
    let bold = |header: Vec<String>| header.into_iter().map(|line| ("1", line.into_bytes())).collect::<Vec<Line>>();
    let (Some(old_text), Some(new_text)) = (text(old), text(new)) else {
        let alike = match (&old, &new) {
            (Some(Side { content: Some(old), .. }), Some(Side { content: Some(new), .. })) => old == new,
            (Some(_), Some(_)) => !differ(),
            _ => false,
        };
        if !alike {
            header.push(format!("Binary files {} and {} differ", name(&old, &a).trim_end(), name(&new, &b).trim_end()));
        }
        return bold(header);
    };
    let (old_lines, new_lines) = (split(old_text), split(new_text));
    let diff = TextDiff::configure().timeout(PATIENCE).diff_slices(&old_lines, &new_lines);
    if old_text != new_text {
        header.push(format!("--- {}", name(&old, &a)));
        header.push(format!("+++ {}", name(&new, &b)));
    }
    let mut lines = bold(header);
    for hunk in diff.unified_diff().iter_hunks() {
        lines.push(("36", hunk.header().to_string().into_bytes()));
        for change in hunk.iter_changes() {
            let (sign, colour) = match change.tag() {
                ChangeTag::Equal => (b" ", ""),
                ChangeTag::Delete => (b"-", "31"),
                ChangeTag::Insert => (b"+", "32"),
            };
            let line = change.value();
            lines.push((colour, [sign, line.strip_suffix(b"\n").unwrap_or(line)].concat()));
            if !line.ends_with(b"\n") {
                lines.push(("", b"\\ No newline at end of file".to_vec()));
            }
        }
    }
    lines
}

/// How a difference is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    pub(crate) colour: bool,
    /// What is in the files cannot act on a terminal.
    pub(crate) harmless: bool,
}

/// Does stdout want colours, as far as nobody said otherwise?
pub(crate) fn wants_colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes lines with their ends.
pub(crate) fn write(out: &mut impl Write, lines: &[Line], style: Style) -> io::Result<()> {
    for (colour, line) in lines {
        let safe = style.harmless.then(|| quote::harmless_text(line));
        let line = safe.as_ref().map_or(line.as_slice(), String::as_bytes);
        let (on, off) =
            if style.colour && !colour.is_empty() { (format!("\x1b[{colour}m"), "\x1b[m") } else { Default::default() };
        out.write_all(&[on.as_bytes(), line, off.as_bytes(), b"\n"].concat())?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::Command;

    fn side(content: &[u8]) -> Option<Side<'_>> {
        Some(Side::file(0o644, Some(content)))
    }

    fn shown(old: Option<Side<'_>>, new: Option<Side<'_>>) -> String {
        let lines = lines(Path::new("d/f"), old, new, &|| true);
        lines.into_iter().map(|(_, line)| String::from_utf8(line).unwrap() + "\n").collect()
    }

    #[test]
    fn the_same_as_git_shows() {
        let dir = tempfile::tempdir().unwrap();
        let long: String = (0..40).map(|line| format!("line {line}\n")).collect();
        let changed = long.replace("line 3\n", "line three\nand more\n").replace("line 30\n", "");
        for (old, new) in [(&*long, &*changed), ("a\nb", "a\nb\n"), ("", "x\ry\r"), ("x\n", ""), ("\0", "a"), ("a\n", "a\n")] {
            for (name, content) in [("a", old), ("b", new)] {
                std::fs::create_dir_all(dir.path().join(name).join("d")).unwrap();
                std::fs::write(dir.path().join(name).join("d/f"), content).unwrap();
            }
            let mut git = Command::new("git");
            git.args(["diff", "--no-index", "--no-color", "--no-prefix", "a/d/f", "b/d/f"]).current_dir(dir.path());
            git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
            // Not everybody who builds this has git.
            let Ok(output) = git.output() else { return };
            let git = String::from_utf8(output.stdout).unwrap();
            let mut kept = git.split_terminator('\n').filter(|line| !line.starts_with("index ")).map(|line| {
                // git adds the line before a hunk to its head.
                let end = line.find(" @@").filter(|_| line.starts_with("@@")).map_or(line.len(), |at| at + 3);
                line[..end].to_owned()
            });
            let ours = shown(side(old.as_bytes()), side(new.as_bytes()));
            match old == new {
                true => assert_eq!((kept.next(), &*ours), (None, "diff --git a/d/f b/d/f\n")),
                false => assert_eq!(ours, kept.map(|line| line + "\n").collect::<String>()),
            }
        }
    }

    #[test]
    fn modes_kinds_and_what_cannot_be_shown() {
        let program = |side| Side { mode: 0o100_755, ..side };
        assert_eq!(
            shown(None, side(b"x\n").map(program)),
            "diff --git a/d/f b/d/f\nnew file mode 100755\n--- /dev/null\n+++ b/d/f\n@@ -0,0 +1 @@\n+x\n"
        );
        assert_eq!(shown(side(b"x"), side(b"x").map(program)), "diff --git a/d/f b/d/f\nold mode 100644\nnew mode 100755\n");
        let link = shown(side(b"x\n"), Some(Side::symlink(Some(b"/etc"))));
        assert!(link.contains("deleted file mode 100644\n--- a/d/f\n+++ /dev/null\n"), "{link}");
        assert!(
            link.ends_with(
                "new file mode 120000\n--- /dev/null\n+++ b/d/f\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n"
            )
        );
        let long = shown(side(b"x\n"), Some(Side::file(0o644, None)));
        assert!(long.ends_with("Binary files a/d/f and b/d/f differ\n"), "{long}");
    }
}
