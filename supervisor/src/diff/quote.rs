//! Names and text of a diff, as git writes them.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hermes_profiles::ospath;

use crate::output;

/// `prefix` and `path`, in quotes with C escapes where a byte is not printable ASCII (`core.quotePath` of git-config(1)).
pub(crate) fn name(prefix: &str, path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    if bytes.iter().all(|byte| (0x20..0x7f).contains(byte) && !b"\"\\".contains(byte)) {
        return format!("{prefix}{}", path.display());
    }
    let mut text = format!("\"{prefix}");
    for &byte in bytes {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            0x07 => text.push_str("\\a"),
            0x08 => text.push_str("\\b"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            0x0b => text.push_str("\\v"),
            0x0c => text.push_str("\\f"),
            b'\r' => text.push_str("\\r"),
            0x20..0x7f => text.push(byte as char),
            _ => _ = write!(text, "\\{byte:03o}"),
        }
    }
    text.push('"');
    text
}

/// A line of a file for a terminal: nothing in it moves the cursor or reorders text. Tabs stay.
pub(crate) fn harmless(line: &[u8]) -> String {
    let safe = |part: &[u8]| output::clean(&ospath::escaped_bytes(part)).into_owned();
    line.split(|byte| *byte == b'\t').map(safe).collect::<Vec<_>>().join("\t")
}

/// A text whose lines and tabs stay, and nothing else of what acts on a terminal.
pub(crate) fn harmless_text(text: &[u8]) -> String {
    let lines: Vec<String> = text.split(|byte| *byte == b'\n').map(harmless).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn names_as_git_quotes_them() {
        let quoted = |bytes: &[u8]| name("a/", Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(quoted(b"src/with space"), "a/src/with space");
        assert_eq!(quoted(b"n\nq\"b\\t\t\xff\xc3\xa9"), r#""a/n\nq\"b\\t\t\377\303\251""#);
    }

    #[test]
    fn no_line_acts_on_a_terminal() {
        assert_eq!(harmless(b"\tx\x1b[2J\xff\r"), "\tx\\x1b[2J\\xff\\x0d");
        assert_eq!(harmless("\u{e9}\u{202e}".as_bytes()), "\u{e9}\\u{202e}");
    }
}
