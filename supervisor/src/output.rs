//! Everything that is printed goes through here: text from outside is made harmless for a terminal, a reader that went
//! away is no error, and nothing panics when stdout or stderr are closed.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use hermes_profiles::ospath;
use serde::Serialize;

use crate::error::Error;

/// Characters that reorder or hide text: bidirectional controls, zero-width characters, the byte order mark.
fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// `text` with control and deceptive characters written as `\xNN` and `\u{NNNN}`.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(|c: char| c.is_control() || is_deceptive(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_deceptive(c) || (c.is_control() && !c.is_ascii()) {
            _ = write!(safe, "\\u{{{:x}}}", c as u32);
        } else if c.is_control() {
            _ = write!(safe, "\\x{:02x}", c as u32);
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// A path for people.
pub(crate) fn path(path: &Path) -> String {
    clean(&ospath::escaped(path)).into_owned()
}

/// A path as a word of a shell's command line.
pub(crate) fn quoted(path: &Path) -> String {
    let text = self::path(path);
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Writes to stdout in one go. That nobody reads any more is not worth a word.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::setup(format!("cannot write to standard output: {e}"))),
        _ => Ok(()),
    }
}

/// Writes one JSON value and a newline to stdout.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Error> {
    print(&json(value)?)
}

/// One JSON value and a newline.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Error> {
    let mut text =
        serde_json::to_string_pretty(value).map_err(|e| Error::setup(format!("cannot express the answer as JSON: {e}")))?;
    text.push('\n');
    Ok(text)
}

/// Writes a line to stderr that another process of ours has made for it.
pub(crate) fn pass_on(line: &str) {
    complain(line.strip_prefix("hermes-sandbox: ").unwrap_or(line));
}

/// Writes one prefixed line to stderr; there is nobody to tell when that fails.
pub(crate) fn complain(message: &str) {
    _ = io::stderr().lock().write_all(format!("hermes-sandbox: {}\n", clean(message)).as_bytes());
}

/// Writes a question to stderr, without the end of the line.
pub(crate) fn ask(question: &str) {
    _ = io::stderr().lock().write_all(format!("{}: ", clean(question)).as_bytes());
}

/// Ends the line of a question whose answer was not shown.
pub(crate) fn ask_ended() {
    _ = io::stderr().lock().write_all(b"\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_text_is_not_copied() {
        assert!(matches!(clean("plain \u{e9} \u{4e16} text"), Cow::Borrowed(_)));
    }

    #[test]
    fn nothing_that_moves_the_cursor_or_reorders_text_passes() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}d\u{9b}e\u{200b}"), "a\\x1b[2Jb\\x0ac\\u{202e}d\\u{9b}e\\u{200b}");
    }
}
