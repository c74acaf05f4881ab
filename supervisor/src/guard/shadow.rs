//! Private copies of hooks and configuration of a repository, which jobs see in the place of the host's.
//!
//! What is written there never reaches the host but for configuration keys that are known to be harmless. So host tools
//! that run at once, as `git status` runs `core.fsmonitor`, meet nothing, and neither does a supervisor's SIGKILL leave
//! anything to be undone.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use hermes_backends::compile::shadow::{FILES, LINKS};
use hermes_backends::wire::Cover;
use hermes_profiles::guard::git_config::{self, Also};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, mkdirat};

use super::run::{Run, start_time};
use super::snapshot::{Held, Is, LONGEST, Snapshot, Wanted, hold};
use crate::beneath::{Root, TEMPORARY, by_descriptor, kind};
use crate::fresh;
use crate::state::Tree;

/// Repositories that are shadowed; what changes in the rest is found afterwards.
pub(crate) const MOST: usize = 64;
/// Entries of a private directory that are looked at.
const MOST_ENTRIES: usize = 1000;
/// What our lock on a configuration holds: our process id and start time follow.
const LOCKED_BY: &str = "# locked by hermes-sandbox, process ";
/// Hundredths of a second that another git may hold its lock.
const LOCK_TRIES: u32 = 200;
/// Files of a git directory that are git configuration.
pub(crate) const CONFIGS: &[&str] = &["config", "config.worktree"];

/// Makes the private copies of one repository from what the baseline knows. Returns what is to be covered,
/// and whether the directory of hooks is to be made first, by [`make_hooks`], once that is on record.
///
/// What `prevented` names, relative to the tree, is made read-only instead.
pub(crate) fn make(
    run: &Run,
    tree: &Tree,
    baseline: &Snapshot,
    git: &Path,
    number: u32,
    prevented: &dyn Fn(&Path) -> bool,
) -> io::Result<(Vec<Cover>, bool)> {
    let files = Run::files(&run.dir, number);
    DirBuilder::new().mode(0o700).create(&files)?;
    DirBuilder::new().mode(0o755).create(files.join("hooks"))?;
    let inside = Path::new(FILES).join(number.to_string());
    let at = tree.path.join(git);
    let mut covers = Vec::new();
    if !git.as_os_str().is_empty() {
        covers.push(Cover::Pin { target: at.clone() });
    }
    let hooks = hooks(tree, git);
    if hooks == Hooks::There && prevented(&git.join("hooks/any")) {
        covers.push(Cover::ReadOnly { target: at.join("hooks") });
    } else if hooks != Hooks::Not {
        covers.push(Cover::Directory { target: at.join("hooks"), source: inside.join("hooks") });
    }
    for (path, held) in of(baseline, git) {
        let Ok(within) = path.strip_prefix(git) else { continue };
        if let Ok(hook) = within.strip_prefix("hooks") {
            // Deeper ones are no hooks; git does not look there.
            if hook.components().count() == 1 {
                copy(&files.join("hooks").join(hook), &held.is, held.mode)?;
            }
        } else if config_name(within).is_some() && prevented(&path) {
            covers.push(Cover::ReadOnly { target: tree.path.join(&path) });
        } else if let (Some(name), Is::File(content)) = (config_name(within), &held.is) {
            let private = files.join(&name);
            write(&private, content, held.mode)?;
            let Some(link) = link(number, within) else { continue };
            symlink(inside.join(&name), run.dir.join("links").join(&link))?;
            covers.push(Cover::Link { target: tree.path.join(&path), source: Path::new(LINKS).join(link) });
        }
    }
    Ok((covers, hooks == Hooks::Absent))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hooks {
    There,
    Absent,
    Not,
}

/// Removes a directory of hooks that [`make_hooks`] made, if it is as empty as it was.
pub(crate) fn unmake_hooks(tree: &Tree, git: &Path) {
    if let Ok((parent, name)) = tree.root.parent(&git.join("hooks")) {
        let _ = nix::unistd::unlinkat(&parent, name, nix::unistd::UnlinkatFlags::RemoveDir);
    }
}

/// The guarded entries of one git directory.
fn of<'s>(snapshot: &'s Snapshot, git: &Path) -> impl Iterator<Item = (PathBuf, &'s Held)> {
    let git = git.to_owned();
    snapshot.held().filter(move |(_, around, _)| around.as_deref() == Some(&git)).map(|(path, _, held)| (path, held))
}

/// A flat name for a configuration file: `worktrees/x/config.worktree` is a file of its own.
fn config_name(within: &Path) -> Option<OsString> {
    let name = within.file_name()?;
    if !CONFIGS.iter().any(|config| name == *config) {
        return None;
    }
    Some(OsString::from(within.to_str()?.replace('%', "%25").replace('/', "%2F")))
}

/// The name of the symlink that covers a configuration file.
pub(crate) fn link(number: u32, within: &Path) -> Option<OsString> {
    let mut link = OsString::from(format!("{number}."));
    link.push(config_name(within)?);
    Some(link)
}

/// Leaves only harmless keys in the host's configuration of a repository that came into being.
pub(crate) fn clean(tree: &Tree, path: &Path, host: &[u8], also: &dyn Fn(&str, &[u8]) -> bool) -> io::Result<()> {
    let mut text = git_config::merge_with(b"", host, b"", also).map(|merged| merged.text).unwrap_or_default();
    pad(&mut text, host.len());
    let fd = tree.root.at(path, OFlag::O_WRONLY | OFlag::O_NOFOLLOW, Mode::empty())?;
    File::from(fd).write_all_at(&text, 0)
}

/// The file that a flat name stands for; `None` for what jobs made beside it.
fn of_config_name(name: &OsStr) -> Option<PathBuf> {
    let within = PathBuf::from(name.to_str()?.replace("%2F", "/").replace("%25", "%"));
    (config_name(&within).as_deref() == Some(name)).then_some(within)
}

/// Is there a directory of hooks?
fn hooks(tree: &Tree, git: &Path) -> Hooks {
    match tree.root.stat(&git.join("hooks")) {
        Ok(stat) if kind(&stat) == SFlag::S_IFDIR => Hooks::There,
        Err(Errno::ENOENT) => Hooks::Absent,
        Ok(_) | Err(_) => Hooks::Not,
    }
}

/// Makes an absent directory of hooks: nothing can be mounted over a name that is not there, and git itself makes an empty one.
/// Where it cannot be made, no job makes it either.
pub(crate) fn make_hooks(tree: &Tree, git: &Path) {
    if let Ok((parent, name)) = tree.root.parent(&git.join("hooks")) {
        let _ = mkdirat(&parent, name, Mode::from_bits_truncate(0o755));
    }
}

fn copy(path: &Path, is: &Is, mode: u32) -> io::Result<()> {
    match is {
        Is::File(content) => write(path, content, mode),
        Is::Link(target) => symlink(OsStr::from_bytes(target), path),
        Is::Unread | Is::Special => Ok(()),
    }
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode & 0o777 | 0o600).open(path)?;
    file.write_all(content)
}

/// What jobs made of one repository's private copies.
#[derive(Debug, Default)]
pub(crate) struct Private {
    /// Hooks that jobs removed.
    pub(crate) removed: Vec<PathBuf>,
    /// Path relative to the tree, as it was, as it is.
    pub(crate) hooks: Vec<(PathBuf, Option<Held>, Held)>,
    /// The same for configuration.
    pub(crate) configs: Vec<(PathBuf, Option<Held>, Held)>,
}

/// Reads the private copies. They are hostile ground: nothing is followed, and sizes and numbers are bounded.
pub(crate) fn read(run_dir: &Path, baseline: &Snapshot, git: &Path, number: u32) -> io::Result<Private> {
    let mut private = Private::default();
    let Ok(root) = Root::open(&Run::files(run_dir, number)) else { return Ok(private) };
    let before: Vec<(PathBuf, &Held)> = of(baseline, git).collect();
    let known = |path: &Path| before.iter().find(|(at, _)| at == path).map(|(_, held)| (*held).clone());
    for entry in std::fs::read_dir(Run::files(run_dir, number))?.take(MOST_ENTRIES) {
        let name = entry?.file_name();
        let (Some(within), Ok(stat)) = (of_config_name(&name), root.stat(Path::new(&name))) else { continue };
        let path = git.join(within);
        let (old, now) = (known(&path), hold(&root, Path::new(&name), &stat, Wanted::Kept));
        if old.as_ref().is_none_or(|old| old.is != now.is) {
            private.configs.push((path, old, now));
        }
    }
    let is_hook = |path: &Path| path.strip_prefix(git).is_ok_and(|within| within.starts_with("hooks"));
    let gone = |path: &Path| path.strip_prefix(git).is_ok_and(|within| root.stat(within) == Err(Errno::ENOENT));
    let removed = before.iter().filter(|(path, _)| is_hook(path) && gone(path));
    private.removed = removed.map(|(path, _)| path.clone()).collect();
    let Ok(hooks) = root.at(Path::new("hooks"), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()) else { return Ok(private) };
    for entry in std::fs::read_dir(by_descriptor(&hooks))?.take(MOST_ENTRIES) {
        let name = entry?.file_name();
        let within = Path::new("hooks").join(&name);
        let Ok(stat) = root.stat(&within) else { continue };
        if kind(&stat) == SFlag::S_IFDIR {
            continue;
        }
        let now = hold(&root, &within, &stat, Wanted::Kept);
        let path = git.join(&within);
        let old = known(&path);
        if old.as_ref().is_none_or(|old| old.is != now.is || old.mode & 0o777 | 0o600 != now.mode & 0o777) {
            private.hooks.push((path, old, now));
        }
    }
    Ok(private)
}

/// The text of a configuration that may not have been there.
pub(crate) fn text(held: Option<&Held>) -> &[u8] {
    match held.map(|held| &held.is) {
        Some(Is::File(content)) => content,
        _ => &[],
    }
}

/// Brings harmless keys that jobs changed to the host's configuration.
pub(crate) struct Merge<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) run_dir: &'a Path,
    /// The shadow, and the file in it: relative to the git directory.
    pub(crate) number: u32,
    pub(crate) within: &'a Path,
    /// Relative to the tree.
    pub(crate) path: &'a Path,
    /// As it was, and as jobs have it.
    pub(crate) before: &'a [u8],
    pub(crate) private: &'a [u8],
    pub(crate) also: Also<'a>,
}

/// What came of a merge.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Keys that stay behind.
    pub(crate) refused: Vec<String>,
    /// What the host has now.
    pub(crate) text: Vec<u8>,
}

impl Merge<'_> {
    /// While the sandbox lives: in place, because a new file would take the cover off. What the host puts in its place
    /// meanwhile is another file and keeps what it says.
    pub(crate) fn in_place(&self) -> io::Result<Merged> {
        let fd = match self.tree.root.at(self.path, OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK, Mode::empty()) {
            Ok(fd) => fd,
            Err(errno) if is_replaced(errno) => return Ok(Merged::default()),
            Err(errno) => return Err(errno.into()),
        };
        let mut file = File::from(fd);
        if !file.metadata()?.is_file() {
            return Ok(Merged::default());
        }
        let mut host = Vec::new();
        (&mut file).take(LONGEST).read_to_end(&mut host)?;
        let own = self.own(&host);
        let mut merged = self.text(&own);
        if merged.text != host {
            pad(&mut merged.text, host.len());
            // One write, so that a reader sees the old text or the new one.
            file.write_all_at(&merged.text, 0)?;
            let written = postcard::to_stdvec(&(&own, &merged.text)).map_err(io::Error::other)?;
            std::fs::write(self.written(), written)?;
        }
        Ok(merged)
    }

    /// When the sandbox has ended: as git does.
    pub(crate) fn by_rename(&self) -> io::Result<Merged> {
        let mut outcome = Merged::default();
        let written = under_lock(self.tree, self.path, |host| {
            let Some(host) = host else { return Ok(None) };
            outcome = self.text(&self.own(host));
            Ok((outcome.text != host).then(|| outcome.text.clone()))
        });
        match written {
            Err(e) if e.raw_os_error().is_some_and(|raw| is_replaced(Errno::from_raw(raw))) => Ok(Merged::default()),
            written => written.map(|()| outcome),
        }
    }

    /// The host's own text: what we wrote is made anew from what was there before.
    fn own(&self, host: &[u8]) -> Vec<u8> {
        let written = std::fs::read(self.written()).unwrap_or_default();
        match postcard::from_bytes::<(Vec<u8>, Vec<u8>)>(&written) {
            Ok((own, text)) if text == host => own,
            _ => host.to_vec(),
        }
    }

    /// What the host is to have.
    fn text(&self, own: &[u8]) -> Merged {
        match git_config::merge_with(self.before, self.private, own, self.also) {
            Ok(merged) => Merged { refused: merged.refused, text: merged.text },
            Err(unreadable) => Merged { refused: vec![unreadable.to_string()], text: own.to_vec() },
        }
    }

    /// Where the last text that we wrote is kept, with the host's own.
    fn written(&self) -> PathBuf {
        let name = link(self.number, self.within).unwrap_or_default();
        let mut file = OsString::from("merged-");
        file.push(name);
        self.run_dir.join(file)
    }
}

/// The host has removed a file or put something else in its place: nothing of the sandbox's comes back.
fn is_replaced(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EINVAL | Errno::ENXIO)
}

/// Takes git's lock. It says whose it is from the moment that it is there, so that one that was left by a killed supervisor is
/// told from one that git holds.
fn lock_config(parent: &OwnedFd, lock: &OsStr) -> io::Result<()> {
    let own = std::process::id() as i32;
    let text = format!("{LOCKED_BY}{own} {}\n", start_time(own).unwrap_or(0));
    for _ in 0..LOCK_TRIES {
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(by_descriptor(parent))?;
        file.write_all(text.as_bytes())?;
        let locked = nix::unistd::linkat(nix::fcntl::AT_FDCWD, file.path(), parent, lock, nix::fcntl::AtFlags::empty());
        match locked {
            Err(Errno::EEXIST) if is_left_behind(parent, lock) => {
                let _ = nix::unistd::unlinkat(parent, lock, nix::unistd::UnlinkatFlags::NoRemoveDir);
            }
            // git on the host is at it.
            Err(Errno::EEXIST) => std::thread::sleep(std::time::Duration::from_millis(10)),
            other => return other.map_err(Into::into),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "config.lock is held by another git"))
}

/// Was this lock taken by a supervisor that is gone?
fn is_left_behind(parent: &OwnedFd, lock: &OsStr) -> bool {
    let Ok(parent) = parent.try_clone() else { return false };
    let Ok((text, _)) = Root::from_fd(parent).read(Path::new(lock), 100) else { return false };
    let owner = std::str::from_utf8(&text).ok().and_then(|text| {
        let (pid, start) = text.strip_prefix(LOCKED_BY)?.trim_end().split_once(' ')?;
        Some((pid.parse::<i32>().ok()?, start.parse::<u64>().ok()?))
    });
    owner.is_some_and(|(pid, start)| start_time(pid) != Some(start))
}

/// Empty lines at the end mean nothing, and a reader never sees a file that was cut.
fn pad(text: &mut Vec<u8>, length: usize) {
    text.resize(text.len().max(length), b'\n');
}

/// Replaces a configuration as git does: under git's lock, by rename. `change` is given what lies there, `None` for what is no
/// file, and says what shall.
///
/// # Errors
/// `AlreadyExists` when git does not give its lock back.
pub(crate) fn under_lock(
    tree: &Tree,
    path: &Path,
    change: impl FnOnce(Option<&[u8]>) -> io::Result<Option<Vec<u8>>>,
) -> io::Result<()> {
    let (parent, name) = tree.root.parent(path)?;
    // A job may have taken the right to write from it; while one runs it is left to it.
    let _ = tree.root.make_writable(path.parent().unwrap_or(Path::new("")));
    let mode = tree.root.stat(path).map_or(0o644, |stat| stat.st_mode & 0o777);
    let mut lock = name.to_owned();
    lock.push(".lock");
    lock_config(&parent, &lock)?;
    let replace = || -> io::Result<()> {
        let host = tree.root.read(path, LONGEST).ok().map(|(host, _)| host);
        match change(host.as_deref())? {
            Some(text) => place(&parent, name, &text, mode),
            None => Ok(()),
        }
    };
    let done = replace();
    let _ = nix::unistd::unlinkat(&parent, lock.as_os_str(), nix::unistd::UnlinkatFlags::NoRemoveDir);
    done
}

/// A fresh inode with this content at a name, whatever lies there.
pub(crate) fn place(parent: &OwnedFd, name: &OsStr, content: &[u8], mode: u32) -> io::Result<()> {
    fresh::put(fresh::file(parent, mode, |file| file.write_all(content))?, parent, name, true)
}
