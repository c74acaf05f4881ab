//! The list of project files that the user has read and trusts, by content.
//!
//! A text file with a line for each: the SHA-256 in hexadecimal, two spaces, and the path at which it was trusted
//! (control characters and backslashes as `\xNN`). The hash alone decides; the path tells that a file has changed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// Trusted contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    entries: BTreeMap<String, PathBuf>,
}

/// SHA-256 of `content` in lower-case hexadecimal.
pub fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Trust {
    /// Reads a list. A line that is not understood trusts nothing.
    pub fn parse(text: &[u8]) -> Self {
        let entries = text.split(|b| *b == b'\n').filter_map(|line| {
            let (hash, rest) = line.split_at_checked(64)?;
            let hash =
                std::str::from_utf8(hash).ok().filter(|hash| hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))?;
            let path = unescape(rest.strip_prefix(b"  ")?)?;
            Some((hash.to_owned(), PathBuf::from(OsString::from_vec(path))))
        });
        Self { entries: entries.collect() }
    }

    /// The list as [`Trust::parse`] reads it.
    pub fn format(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (hash, path) in &self.entries {
            text.extend_from_slice(hash.as_bytes());
            text.extend_from_slice(b"  ");
            for byte in path.as_os_str().as_bytes() {
                match byte {
                    b'\\' | 0..=31 | 127 => text.extend(format!("\\x{byte:02x}").bytes()),
                    _ => text.push(*byte),
                }
            }
            text.push(b'\n');
        }
        text
    }

    /// Trusts `content`, seen at `path`. Other contents that were trusted at this path no longer are.
    pub fn add(&mut self, content: &[u8], path: &Path) {
        self.remove(path);
        self.entries.insert(hash(content), path.to_path_buf());
    }

    /// Takes away all trust that was given at `path`; was there any?
    pub fn remove(&mut self, path: &Path) -> bool {
        let before = self.entries.len();
        self.entries.retain(|_, known| known != path);
        self.entries.len() != before
    }

    /// Is this content trusted, wherever it is?
    pub fn contains(&self, content: &[u8]) -> bool {
        self.entries.contains_key(&hash(content))
    }

    /// Was anything trusted at `path`?
    pub fn knows(&self, path: &Path) -> bool {
        self.entries.values().any(|known| known == path)
    }

    /// Hash and path of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.entries.iter().map(|(hash, path)| (hash.as_str(), path.as_path()))
    }
}

fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let digits = std::str::from_utf8(rest.strip_prefix(b"x")?.get(..2)?).ok()?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[3..];
    }
    Some(out)
}
