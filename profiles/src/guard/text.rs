//! Checks of files that consist of lines, and of texts that are searched for words.
//!
//! They say "harmless" to what every reader takes the same way, and nothing else: plain lines of plain characters.

use super::judge::{Finding, list};
use super::tree::plain;
use crate::environment;
use crate::pattern::fits;
use crate::rule::{Keys, Text};

/// Lines as readers see them that disagree about what ends one: `\n`, `\r\n` and a lone `\r`.
fn split_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', '\r'])
}

/// Printable, on one line, and without what starts a quotation, an escape, an expansion or a continuation.
fn is_plain_value(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\'' | b'\\' | b'$' | b'`'))
}

fn is_comment(line: &str, marks: &[char]) -> bool {
    line.starts_with(marks) && !line.ends_with('\\') && line.chars().all(|c| c == '\t' || !c.is_control())
}

/// The lines that count, in order.
fn counting<'t>(keys: &Keys, text: &'t str) -> Vec<(&'t str, &'t str)> {
    let lines = split_lines(text).map(str::trim).filter(|line| !line.is_empty() && !is_comment(line, &['#', ';']));
    let counts = |line: &&str| {
        let Some((key, value)) = line.split_once('=') else { return true };
        let key = key.trim_end();
        let plain_key = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !plain_key || !is_plain_value(value) {
            return true;
        }
        if keys.allow.is_empty() {
            let key = key.to_ascii_lowercase();
            keys.refuse.iter().any(|pattern| fits(pattern, key.as_bytes()))
        } else {
            !keys.allow.iter().any(|pattern| is_line(pattern, key, value.trim()))
        }
    };
    lines.filter(counts).map(|line| (line.split('=').next().unwrap_or(line).trim_end(), line)).collect()
}

/// A pattern for the key, and maybe one for the value.
fn is_line(pattern: &str, key: &str, value: &str) -> bool {
    match pattern.split_once('=') {
        None => fits(pattern, key.as_bytes()),
        Some((name, glob)) => {
            let (start, end) = glob.split_once('*').unwrap_or((glob, ""));
            name == key
                && value.len() >= start.len() + end.len()
                && value.starts_with(start)
                && value.ends_with(end)
                && !value.contains("..")
        }
    }
}

/// `key = value` lines.
pub(super) fn lines(keys: &Keys, before: Option<&[u8]>, now: &[u8]) -> Finding {
    let now = match plain(now) {
        Ok(now) => counting(keys, now),
        Err(why) => return Finding::Unclear(why),
    };
    let before = before.and_then(|before| plain(before).ok()).map(|before| counting(keys, before)).unwrap_or_default();
    if now == before && !now.iter().any(|(_, line)| line.ends_with('\\')) {
        return Finding::Harmless;
    }
    // Lines that are all there still, in another order or number, have changed as well.
    let mut names: Vec<&str> = now.iter().filter(|line| !before.contains(line)).map(|(key, _)| *key).collect();
    let gone = before.iter().filter(|line| !now.contains(line)).map(|(key, _)| *key);
    names.extend(gone);
    names.dedup();
    match names.is_empty() {
        true => Finding::Counts("has other lines".into()),
        false => Finding::Counts(format!("sets {}", list(names.into_iter()))),
    }
}

/// Plain `NAME=value` lines with names that put no code before programs.
pub(super) fn environment(before: Option<&[u8]>, now: &[u8]) -> Finding {
    let now = match plain(now) {
        Ok(now) => odd_variables(now),
        Err(why) => return Finding::Unclear(why),
    };
    let before = before.and_then(|before| plain(before).ok()).map(odd_variables).unwrap_or_default();
    match now.first() {
        Some((_, why)) if now != before => Finding::Counts(why.clone()),
        None if before.is_empty() => Finding::Harmless,
        _ if now == before && !now.iter().any(|(line, _)| goes_on(line)) => Finding::Harmless,
        _ => Finding::Counts("has changed around lines that a shell would expand".into()),
    }
}

fn odd_variables(text: &str) -> Vec<(&str, String)> {
    split_lines(text).filter_map(|line| Some((line, variable(line).err()?))).collect()
}

/// Could the next line belong to this one?
fn goes_on(line: &str) -> bool {
    line.ends_with('\\') || line.contains("<<") || ['"', '\'', '`'].iter().any(|quote| line.matches(*quote).count() % 2 == 1)
}

fn variable(line: &str) -> Result<(), String> {
    let line = line.trim();
    if line.is_empty() || is_comment(line, &['#']) {
        return Ok(());
    }
    let line = line.strip_prefix("export ").unwrap_or(line);
    let Some((name, value)) = line.split_once('=') else { return Err("has a line that is no NAME=value".into()) };
    let plain_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !plain_name {
        return Err("has a line that is no NAME=value".into());
    }
    if environment::steers_tools(name) {
        return Err(format!("sets {name}"));
    }
    let quoted = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    let unquoted = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@%+,=".contains(&byte);
    let fine = match quoted {
        Some(inner) => is_plain_value(inner),
        None => value.bytes().all(unquoted),
    };
    if fine { Ok(()) } else { Err(format!("sets {name} to something that a shell would expand")) }
}

/// Steps of git's todo lists that run commands.
pub(super) fn todo(now: &[u8]) -> Finding {
    // Each as a whole word: what starts otherwise is an error to git. The last is one of `git revert` and `git cherry-pick`.
    #[rustfmt::skip]
    const STEPS: [&[u8]; 24] = [
        b"pick", b"p", b"reword", b"r", b"edit", b"e", b"squash", b"s", b"fixup", b"f", b"break", b"b", b"drop", b"d", b"label",
        b"l", b"reset", b"t", b"merge", b"m", b"update-ref", b"u", b"noop", b"revert",
    ];
    if now.contains(&0) {
        return Finding::Unclear("holds NUL".into());
    }
    for line in now.split(|byte| matches!(byte, b'\n' | b'\r')) {
        let line = line.trim_ascii();
        let word = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
        if word.is_empty() || word.starts_with(b"#") || STEPS.contains(&word) {
            continue;
        }
        return match word {
            b"exec" | b"x" => Finding::Counts("has a step that runs a command".into()),
            _ => Finding::Counts("has a step that is not known".into()),
        };
    }
    Finding::Harmless
}

/// A text with any of these words, or one in which words can be hidden.
pub(super) fn tokens(words: &[Text], now: &[u8]) -> Finding {
    let text = match plain(now) {
        Ok(text) => text.to_lowercase(),
        Err(why) => return Finding::Unclear(why),
    };
    // Character references, entities and other encodings write a word so that it is not seen.
    if ["&#", "<!doctype", "<!entity", "<![cdata["].iter().any(|hidden| text.contains(hidden)) {
        return Finding::Unclear("writes text in a way that hides words".into());
    }
    if text.trim_start().starts_with("<?xml") {
        let declaration = text.split("?>").next().unwrap_or_default();
        if declaration.contains("encoding") && !declaration.contains("utf-8") {
            return Finding::Unclear("has another encoding than UTF-8".into());
        }
    }
    match words.iter().find(|word| text.contains(&word.to_lowercase())) {
        Some(word) => Finding::Counts(format!("names {}", word.0)),
        None => Finding::Harmless,
    }
}

/// Names and versions, and nothing that leads to another place.
pub(super) fn version(now: &[u8]) -> Finding {
    let text = match plain(now) {
        Ok(text) => text,
        Err(why) => return Finding::Unclear(why),
    };
    let plain_word = |word: &str| {
        let word = word.strip_prefix("lts/").unwrap_or(word);
        word == "*"
            || word.starts_with(|c: char| c.is_ascii_alphanumeric())
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'+'))
                && !word.contains("..")
    };
    let lines = split_lines(text).map(|line| line.split('#').next().unwrap_or_default());
    match lines
        .flat_map(|line| line.split(|c: char| c.is_whitespace() || c == '='))
        .filter(|word| !word.is_empty())
        .find(|word| !plain_word(word))
    {
        Some(word) => Finding::Counts(format!("names {}, which is no plain version", list([word].into_iter()))),
        None => Finding::Harmless,
    }
}

/// Lines of a `.pth` file that Python executes: those that start with `import` and a blank.
pub(super) fn pth(before: Option<&[u8]>, now: &[u8]) -> Finding {
    let text = match plain(now) {
        Ok(text) => text,
        Err(why) => return Finding::Unclear(why),
    };
    let before: Vec<&str> =
        before.and_then(|before| plain(before).ok()).map(|text| split_lines(text).collect()).unwrap_or_default();
    // site.py asks for "import " and "import\t" at the start of a line. With a blank in front it takes the line for a path.
    let runs = |line: &&str| line.trim_start().strip_prefix("import").is_some_and(|rest| rest.starts_with([' ', '\t']));
    match split_lines(text).filter(runs).any(|line| !before.contains(&line)) {
        true => Finding::Counts("has a line that Python executes".into()),
        false => Finding::Harmless,
    }
}
