//! Git's grammar of configuration files, as `git_parse_source` in git's config.c has it. Stricter in two places: NUL, which
//! git stops reading at, and keys before any section.

use std::ops::Range;

/// A text that is not configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not git configuration (line {line})")]
pub struct Unreadable {
    /// Counted from 1; 0 when it is too long to be looked at.
    pub line: usize,
}

/// A key, as git compares it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name {
    /// Lower case.
    pub(super) section: String,
    /// As written. `[a.b]`, the old way to write it, is lower case.
    pub(super) subsection: Option<Vec<u8>>,
    /// Lower case.
    pub(super) key: String,
}

/// A key and its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: Name,
    /// `None` is a key without `=`, which means true.
    pub(super) value: Option<Vec<u8>>,
    /// The bytes from the key's first to the end of what follows on its lines, without the last newline.
    pub(super) span: Range<usize>,
    /// The section that it stands in.
    pub(super) section: usize,
}

/// The head of a section.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) section: String,
    pub(super) subsection: Option<Vec<u8>>,
    /// From `[` to behind `]`.
    pub(super) span: Range<usize>,
}

/// A text and what is in it.
#[derive(Debug, Clone)]
pub(super) struct File {
    pub(super) text: Vec<u8>,
    pub(super) sections: Vec<Section>,
    pub(super) entries: Vec<Entry>,
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    line: usize,
}

impl Reader<'_> {
    /// The next byte; CR LF is one newline. The end is a newline too, as in git.
    fn next(&mut self) -> u8 {
        let byte = match self.text.get(self.at) {
            Some(b'\r') if self.text.get(self.at + 1) == Some(&b'\n') => {
                self.at += 1;
                b'\n'
            }
            Some(byte) => *byte,
            None => {
                self.at = self.text.len() + 1;
                return b'\n';
            }
        };
        self.at += 1;
        self.line += usize::from(byte == b'\n');
        byte
    }

    fn ended(&self) -> bool {
        self.at >= self.text.len()
    }

    fn error<T>(&self) -> Result<T, Unreadable> {
        Err(Unreadable { line: self.line })
    }

    /// Where the last byte that was read begins; for a newline, where the line ends.
    fn before(&self) -> usize {
        let at = self.at.saturating_sub(1);
        match at > 0 && self.text.get(at) == Some(&b'\n') && self.text[at - 1] == b'\r' {
            true => at - 1,
            false => at.min(self.text.len()),
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

pub(super) fn parse(text: &[u8]) -> Result<File, Unreadable> {
    if let Some(at) = text.iter().position(|byte| *byte == 0) {
        return Err(Unreadable { line: 1 + text[..at].iter().filter(|byte| **byte == b'\n').count() });
    }
    let start = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut reader = Reader { text, at: start, line: 1 };
    let mut file = File { text: text.to_vec(), sections: Vec::new(), entries: Vec::new() };
    let mut comment = false;
    while !reader.ended() {
        let byte = reader.next();
        match byte {
            b'\n' => comment = false,
            _ if comment || is_space(byte) => {}
            b'#' | b';' => comment = true,
            b'[' => {
                let from = reader.before();
                let (section, subsection) = head(&mut reader)?;
                file.sections.push(Section { section, subsection, span: from..reader.at });
            }
            _ if byte.is_ascii_alphabetic() => {
                let from = reader.before();
                let Some(section) = file.sections.last() else { return reader.error() };
                let (section_name, subsection) = (section.section.clone(), section.subsection.clone());
                let (key, value) = key(&mut reader, byte)?;
                let name = Name { section: section_name, subsection, key };
                let span = from..reader.before();
                file.entries.push(Entry { name, value, span, section: file.sections.len() - 1 });
            }
            _ => return reader.error(),
        }
    }
    Ok(file)
}

/// What follows `[`.
fn head(reader: &mut Reader<'_>) -> Result<(String, Option<Vec<u8>>), Unreadable> {
    let mut base = Vec::new();
    let quoted = loop {
        if reader.ended() {
            return reader.error();
        }
        match reader.next() {
            b']' => break None,
            byte if is_space(byte) => break Some(quoted_head(reader, byte)?),
            byte if is_key(byte) || byte == b'.' => base.push(byte.to_ascii_lowercase()),
            _ => return reader.error(),
        }
    };
    // Git joins all parts with dots and takes the name apart again, at the first dot and at the last.
    let base = String::from_utf8(base).unwrap_or_default();
    let (section, old) = match base.split_once('.') {
        Some((section, old)) => (section.to_owned(), Some(old.as_bytes().to_vec())),
        None => (base, None),
    };
    let subsection = match (old, quoted) {
        (Some(old), Some(quoted)) => Some([old, quoted].join(&b'.')),
        (old, quoted) => old.or(quoted),
    };
    match section.is_empty() {
        true => reader.error(),
        false => Ok((section, subsection)),
    }
}

fn quoted_head(reader: &mut Reader<'_>, first: u8) -> Result<Vec<u8>, Unreadable> {
    let mut byte = first;
    while is_space(byte) {
        if byte == b'\n' {
            return reader.error();
        }
        byte = reader.next();
    }
    if byte != b'"' {
        return reader.error();
    }
    let mut subsection = Vec::new();
    loop {
        let mut byte = reader.next();
        match byte {
            b'\n' => return reader.error(),
            b'"' => break,
            b'\\' => {
                byte = reader.next();
                if byte == b'\n' {
                    return reader.error();
                }
            }
            _ => {}
        }
        subsection.push(byte);
    }
    match reader.next() {
        b']' => Ok(subsection),
        _ => reader.error(),
    }
}

/// A key that starts with `first`, and its value.
fn key(reader: &mut Reader<'_>, first: u8) -> Result<(String, Option<Vec<u8>>), Unreadable> {
    let mut key = String::from(first.to_ascii_lowercase() as char);
    let mut byte = loop {
        match reader.next() {
            byte if is_key(byte) => key.push(byte.to_ascii_lowercase() as char),
            byte => break byte,
        }
    };
    while matches!(byte, b' ' | b'\t') {
        byte = reader.next();
    }
    match byte {
        b'\n' => Ok((key, None)),
        b'=' => Ok((key, Some(value(reader)?))),
        _ => reader.error(),
    }
}

fn value(reader: &mut Reader<'_>) -> Result<Vec<u8>, Unreadable> {
    let (mut value, mut trim) = (Vec::new(), None);
    let (mut quoted, mut comment) = (false, false);
    loop {
        let byte = reader.next();
        match byte {
            b'\n' if quoted => return reader.error(),
            b'\n' => {
                value.truncate(trim.unwrap_or(value.len()));
                return Ok(value);
            }
            _ if comment => continue,
            _ if is_space(byte) && !quoted => {
                if !value.is_empty() {
                    trim.get_or_insert(value.len());
                    value.push(byte);
                }
                continue;
            }
            b';' | b'#' if !quoted => {
                comment = true;
                continue;
            }
            _ => {}
        }
        trim = None;
        match byte {
            b'\\' => match reader.next() {
                b'\n' => {}
                b't' => value.push(b'\t'),
                b'b' => value.push(8),
                b'n' => value.push(b'\n'),
                byte @ (b'\\' | b'"') => value.push(byte),
                _ => return reader.error(),
            },
            b'"' => quoted = !quoted,
            _ => value.push(byte),
        }
    }
}
