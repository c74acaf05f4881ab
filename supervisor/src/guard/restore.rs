//! Brings what was put aside back to its place.
//!
//! What lies there by now is somebody's own: it goes only when it is what was there before the run, or when that is
//! wanted. Whatever comes is a fresh inode, because other names may lead to the one that was put aside.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::git_config::{self, Carried};
use hermes_profiles::guard::{self, Check, Rule};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, mkdirat};
use tempfile::NamedTempFile;

use super::quarantine::{Before, Entry, Quarantine, What};
use super::shadow;
use super::snapshot::{Held, Is, Wanted, hold};
use crate::beneath::{Root, TEMPORARY, by_descriptor, kind};
use crate::error::Error;
use crate::fresh;
use crate::output;
use crate::state::Tree;

/// What lies where an entry was put aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Nothing.
    Nothing,
    /// What was there before the run, or what was put aside in another form.
    Known,
    /// What was put aside.
    AsPutAside,
    /// A directory.
    Directory,
    /// Something that came since.
    Else,
}

/// What came of bringing something back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restored {
    /// It is there now.
    Written,
    /// It was there already.
    WasThere,
}

/// The rule that an entry met, if it still ships.
pub(crate) fn rule(entry: &Entry) -> Option<&'static Rule> {
    guard::builtin().find(|rule| rule.id == entry.rule)
}

/// Is the entry git configuration, of which the host got what is harmless?
fn is_config(entry: &Entry) -> bool {
    entry.what == What::File && rule(entry).is_some_and(|rule| rule.check == Check::GitConfig)
}

/// Compares what lies there with what an entry knows. `content` is what was put aside, if it can be compared.
fn compare(entry: &Entry, content: Option<&Is>, before: &[u8], now: &Held) -> Found {
    if content == Some(&now.is) {
        // The mode of configuration is the host's own.
        let any_mode = entry.what == What::Symlink || is_config(entry);
        return if any_mode || now.mode & 0o777 == entry.mode & 0o777 { Found::AsPutAside } else { Found::Known };
    }
    let as_before = match (&now.is, entry.before) {
        (Is::File(text), _) if is_config(entry) => is_before_or_merged(entry, content, before, text),
        (Is::File(text), Before::File(_)) => text == before,
        (Is::Link(target), Before::Symlink) => target == before,
        _ => false,
    };
    if as_before { Found::Known } else { Found::Else }
}

fn is_before_or_merged(entry: &Entry, content: Option<&Is>, before: &[u8], text: &[u8]) -> bool {
    let before = baseline(entry, before);
    // Empty lines at the end mean nothing, and the guard fills up with them.
    let same = |other: &[u8]| {
        let end = |text: &[u8]| text.iter().rposition(|byte| *byte != b'\n').map_or(0, |at| at + 1);
        text[..end(text)] == other[..end(other)]
    };
    let merged = || match content {
        Some(Is::File(content)) => left(before, content),
        _ => None,
    };
    same(before) || merged().is_some_and(|merged| same(&merged))
}

/// The configuration from before the run.
fn baseline<'b>(entry: &Entry, before: &'b [u8]) -> &'b [u8] {
    if matches!(entry.before, Before::File(_)) { before } else { &[] }
}

/// The configuration that the guard left on the host: with what is harmless. What is harmless only because of where it leads
/// is not among it, and does not matter: the host has it as the entry has it.
fn left(before: &[u8], content: &[u8]) -> Option<Vec<u8>> {
    git_config::merge(before, content, before).ok().map(|merged| merged.text)
}

/// What the guard kept from the host, brought into what the host has by now.
fn carry(entry: &Entry, content: Option<&Is>, before: &[u8], now: Option<&Held>) -> Option<Carried> {
    let (Some(Is::File(content)), Some(Held { is: Is::File(host), .. }), true) = (content, now, is_config(entry)) else {
        return None;
    };
    git_config::carry(&left(baseline(entry, before), content)?, content, host)
}

/// Puts the content of an entry at its place in the tree. Something that came there since goes with `force` only; of git
/// configuration only keys that the entry has otherwise.
///
/// # Errors
/// It cannot be brought back: why, and what to do.
pub(crate) fn restore(tree: &Tree, quarantine: &Quarantine, id: u64, entry: &Entry, force: bool) -> Result<Restored, Error> {
    let path = output::path(&entry.path);
    let cannot = |why: &str| Error::setup(format!("cannot restore {path}: {why}"));
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::AlreadyExists if is_config(entry) => {
            cannot("git does not give up its lock on it").hint(format!("if no git is at work, remove {path}.lock"))
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::Interrupted => cannot("it changed just now").hint("try again"),
        _ => cannot(&e.to_string()),
    };
    if entry.what == What::Special {
        return Err(cannot("it was a pipe, socket or device, of which nothing is kept")
            .hint(format!("make it anew, then `hermes-sandbox quarantine discard {id}`")));
    }
    if entry.what == What::Directory {
        let kept = output::path(&quarantine.content_path(id).with_file_name("directory"));
        return Err(cannot("it is a directory, which stood in the place of a file").hint(format!("it is at {kept}")));
    }
    let (parent, name) = parent(&tree.root, &entry.path).map_err(|errno| match errno {
        Errno::ELOOP | Errno::ENOTDIR => {
            cannot("a symlink or a file stands where its directory was").hint("move that away, then try again")
        }
        errno => cannot(&format!("its directory cannot be made: {}", errno.desc())),
    })?;
    let before = quarantine.before(id).map_err(failed)?;
    let content = content(quarantine, id, entry).map_err(failed)?;
    let look = || find(&tree.root, entry, content.as_ref(), &before);
    let (found, now) = look().map_err(|errno| failed(errno.into()))?;
    let carried = if found == Found::Else { carry(entry, content.as_ref(), &before, now.as_ref()) } else { None };
    match (found, &carried) {
        (Found::AsPutAside, _) => return Ok(Restored::WasThere),
        (Found::Else, Some(carried)) if !force && !carried.contested.is_empty() => {
            return Err(cannot(&format!("{} is something else there by now", carried.contested.join(", "))).hint(format!(
                "`hermes-sandbox quarantine diff {id}` shows what was put aside; `--force` sets it and leaves other keys"
            )));
        }
        (Found::Else, Some(_)) => {}
        (Found::Directory, _) => return Err(cannot("a directory lies there by now").hint("move it away, then try again")),
        (Found::Else, None) if !force => {
            return Err(cannot("something else lies there by now").hint(format!(
                "`hermes-sandbox quarantine diff {id}` shows what was put aside; `--force` replaces what is there"
            )));
        }
        _ => {}
    }
    let unchanged = || look().is_ok_and(|(_, again)| again == now);
    let written = match &content {
        Some(Is::File(text)) if is_config(entry) => shadow::under_lock(tree, &entry.path, |_| match unchanged() {
            true => Ok(Some(carried.as_ref().map_or(text, |carried| &carried.text).clone())),
            false => Err(io::ErrorKind::Interrupted.into()),
        }),
        Some(Is::Link(target)) => tempfile::Builder::new()
            .prefix(TEMPORARY)
            .make_in(by_descriptor(&parent), |at| symlink(OsStr::from_bytes(target), at))
            .and_then(|link| put(link, &parent, name, now.is_some(), unchanged)),
        _ => copy(&quarantine.content_path(id), &parent, entry.mode)
            .and_then(|file| put(file, &parent, name, now.is_some(), unchanged)),
    };
    written.map(|()| Restored::Written).map_err(failed)
}

/// What was put aside, if it is short.
pub(crate) fn content(quarantine: &Quarantine, id: u64, entry: &Entry) -> io::Result<Option<Is>> {
    Ok(match entry.what {
        What::File => Some(Is::File(quarantine.content(id)?)),
        What::Symlink => Some(Is::Link(quarantine.content(id)?)),
        What::LongFile | What::Special | What::Directory => None,
    })
}

fn find(root: &Root, entry: &Entry, content: Option<&Is>, before: &[u8]) -> Result<(Found, Option<Held>), Errno> {
    let stat = match root.stat(&entry.path) {
        Err(Errno::ENOENT) => return Ok((Found::Nothing, None)),
        stat => stat?,
    };
    let now = hold(root, &entry.path, &stat, Wanted::Kept);
    let found = match compare(entry, content, before, &now) {
        _ if kind(&stat) == SFlag::S_IFDIR => Found::Directory,
        // Its other names may be anywhere, and writable.
        Found::AsPutAside if stat.st_nlink > 1 => Found::Known,
        found => found,
    };
    Ok((found, Some(now)))
}

/// The directory of an entry, made again where it has gone, and the name in it.
fn parent<'p>(root: &Root, path: &'p Path) -> Result<(OwnedFd, &'p OsStr), Errno> {
    let mut at = PathBuf::new();
    for name in path.parent().into_iter().flat_map(Path::components) {
        at.push(name);
        if root.at(&at, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()).is_err_and(|errno| errno == Errno::ENOENT) {
            let (above, name) = root.parent(&at)?;
            match mkdirat(&above, name, Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    root.parent(path)
}

fn copy(content: &Path, parent: &OwnedFd, mode: u32) -> io::Result<NamedTempFile> {
    let file = fresh::file(parent, mode, |file| io::copy(&mut File::open(content)?, file).map(drop))?;
    file.as_file().sync_data()?;
    Ok(file)
}

/// Gives what was made beside it its name, in the place of what `may` go.
fn put<T>(made: NamedTempFile<T>, parent: &OwnedFd, name: &OsStr, replace: bool, may: impl FnOnce() -> bool) -> io::Result<()> {
    if may() { fresh::put(made, parent, name, replace) } else { Err(io::ErrorKind::Interrupted.into()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
