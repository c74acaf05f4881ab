//! Paths as they are written in rules.
//!
//! - A leading `?` means: fine if it does not exist, or if a variable in it is not set.
//! - `~` and `~/...` are the caller's home directory; `~name` is refused.
//! - `$NAME`, `${NAME}` and `${NAME:-default}` are variables of the caller; an empty one counts as not set. A variable
//!   at the beginning must hold an absolute path. `$$` is a dollar sign.
//! - A relative path starts at the directory of its file; in built-in profiles at the workspace.
//! - `.` and `..` are taken away lexically, without a look at the disk.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::pattern;
use crate::request::Caller;

/// How deep defaults may stand in defaults.
const MAX_DEPTH: usize = 4;

/// Why there is no path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unset {
    /// Written wrongly.
    Malformed(String),
    /// Something it is made of is not there on this machine or in this environment.
    Missing(String),
}

/// A path and how it came to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expanded {
    pub(crate) path: PathBuf,
    /// Its beginning came from a variable of the caller, so it may be anywhere.
    pub(crate) by_variable: bool,
}

/// The text after `?`, and whether there was one.
pub(crate) fn optional(text: &str) -> (&str, bool) {
    match text.strip_prefix('?') {
        Some(rest) => (rest, true),
        None => (text, false),
    }
}

/// Is `text` well-formed, whatever the environment?
pub(crate) fn check(text: &str) -> Result<(), String> {
    let anything = |_: &str| Some(b"/".to_vec());
    match render(optional(text).0, Some(Path::new("/")), &anything, 0) {
        Ok(_) => Ok(()),
        Err(Unset::Malformed(why) | Unset::Missing(why)) => Err(why),
    }
}

/// `text` (without its `?`) as an absolute, normalised path.
pub(crate) fn expand(text: &str, base: &Path, caller: &Caller) -> Result<Expanded, Unset> {
    let lookup = |name: &str| match name {
        "HOME" => caller.home.as_ref().map(|home| home.as_os_str().as_bytes().to_vec()),
        _ => caller.variable(name).map(|value| value.as_bytes().to_vec()),
    };
    let home = caller.home.as_deref().filter(|home| home.is_absolute());
    let bytes = render(text, home, &lookup, 0)?;
    let by_variable = text.starts_with('$') && !text.starts_with("$$");
    let path = PathBuf::from(OsString::from_vec(bytes));
    if by_variable && path.is_relative() {
        return Err(Unset::Missing("the variable at its beginning does not hold an absolute path".into()));
    }
    let path = if path.is_absolute() { path } else { base.join(path) };
    Ok(Expanded { path: if is_normal(&path) { path } else { normalise(&path) }, by_variable })
}

/// `text`, a glob (without its `?`) that starts at the root of the file system. What variables and the home directory hold
/// is taken literally.
pub(crate) fn expand_glob(text: &str, caller: &Caller) -> Result<String, Unset> {
    let literal = |value: &Path| value.is_absolute().then(|| pattern::literal(normalise(value).as_os_str().as_bytes()));
    let lookup = |name: &str| match name {
        "HOME" => caller.home.as_deref().and_then(literal),
        _ => caller
            .variable(name)
            .map(Path::new)
            .map(|value| literal(value).unwrap_or_else(|| pattern::literal(value.as_os_str().as_bytes()))),
    };
    let home = caller.home.as_deref().and_then(literal).map(|home| PathBuf::from(OsString::from_vec(home)));
    let bytes = render(text, home.as_deref(), &lookup, 0)?;
    match String::from_utf8(bytes) {
        Ok(glob) if glob.starts_with('/') => Ok(glob),
        Ok(_) => Err(Unset::Missing("the variable at its beginning does not hold an absolute path".into())),
        Err(_) => Err(Unset::Malformed("the directory that it starts with is not called in UTF-8".into())),
    }
}

fn render(text: &str, home: Option<&Path>, lookup: &dyn Fn(&str) -> Option<Vec<u8>>, depth: usize) -> Result<Vec<u8>, Unset> {
    let malformed = |why: &str| Err(Unset::Malformed(why.into()));
    if text.is_empty() {
        return malformed("an empty path");
    }
    if depth > MAX_DEPTH {
        return malformed("defaults are nested too deeply");
    }
    let mut out = Vec::with_capacity(text.len() + 32);
    let mut rest = text;
    if let Some(tail) = rest.strip_prefix('~') {
        if !tail.is_empty() && !tail.starts_with('/') {
            return malformed("\"~name\" is not supported; write the path");
        }
        let Some(home) = home else {
            return Err(Unset::Missing("\"~\" needs a home directory; HOME is not set to an absolute path".into()));
        };
        out.extend_from_slice(home.as_os_str().as_bytes());
        rest = tail;
    }
    while let Some(at) = rest.find('$') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        if let Some(tail) = rest.strip_prefix('$') {
            out.push(b'$');
            rest = tail;
            continue;
        }
        let (name, default, tail) = match rest.strip_prefix('{') {
            Some(inside) => {
                let Some(end) = closing(inside) else { return malformed("\"${\" without \"}\"") };
                let (name, default) = match inside[..end].split_once(":-") {
                    Some((name, default)) => (name, Some(default)),
                    None => (&inside[..end], None),
                };
                (name, default, &inside[end + 1..])
            }
            None => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                (&rest[..end], None, &rest[end..])
            }
        };
        let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts_well || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return malformed("\"$\" needs the name of a variable after it; a dollar sign is written \"$$\"");
        }
        // The default is looked at in any case, so that a mistake in it does not wait for the day it is needed.
        let default = default.map(|text| render(text, home, lookup, depth + 1));
        match (lookup(name), default) {
            (_, Some(Err(error @ Unset::Malformed(_)))) => return Err(error),
            (Some(value), _) => out.extend(value),
            (None, Some(default)) => out.extend(default?),
            (None, None) => return Err(Unset::Missing(format!("the variable {name} is not set"))),
        }
        rest = tail;
    }
    out.extend_from_slice(rest.as_bytes());
    match out.iter().any(|b| *b == 0 || *b == b'\n') {
        true => malformed("NUL and newline are not allowed in a path"),
        false => Ok(out),
    }
}

/// Where the brace that is already open is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, b) in text.bytes().enumerate() {
        match b {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(at),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// `path` without `.` and `..`, lexically. Absolute paths stay absolute.
pub fn normalise(path: &Path) -> PathBuf {
    if is_normal(path) {
        return path.to_path_buf();
    }
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

fn is_normal(path: &Path) -> bool {
    let mut parts = path.as_os_str().as_bytes().split(|b| *b == b'/');
    parts.next() == Some(b"") && parts.all(|part| !matches!(part, b"" | b"." | b".."))
}

/// Equality of normalised paths, by bytes.
pub(crate) fn same(a: &Path, b: &Path) -> bool {
    a.as_os_str() == b.as_os_str()
}

/// Is `path` equal to `parent` or below it? Both normalised. As `Path::starts_with`, by bytes.
pub fn covers(parent: &Path, path: &Path) -> bool {
    let (parent, path) = (parent.as_os_str().as_bytes(), path.as_os_str().as_bytes());
    match path.strip_prefix(parent) {
        Some(rest) => rest.is_empty() || rest[0] == b'/' || parent == b"/",
        None => false,
    }
}
