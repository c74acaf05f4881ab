//! What a program needs to run at all: itself, its interpreter, its virtual environment, and the installation behind
//! its symlinks. All of it read-only.
//!
//! Such a need is found by following pointers: symlinks, `#!` lines, `pyvenv.cfg`. A pointer in a tree that the sandbox
//! may write was perhaps put there by an earlier run, to be granted `~/.ssh` by the next one. Where it may lead is
//! decided by [`ground::landing`] alone.

mod editable;
mod git;
mod ground;
mod pointer;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

pub use git::{GitDir, GitKind, git_common_dir};
pub use ground::{Ground, Landing, landing};

use crate::survey::{Found, Kind, Link, Resolver};

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closure {
    /// The program as execvp(3) finds it: absolute, its symlinks not resolved.
    pub program: Result<PathBuf, Missing>,
    /// Paths to grant read-only that are not granted yet. They may contain symlinks, which must exist inside as well.
    pub grants: Vec<Grant>,
    /// Pointers that were not followed.
    pub refused: Vec<Refused>,
}

/// Why there is no program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// Nothing of that name (status 127).
    NotFound,
    /// There is something, but it is not an executable file (status 126).
    NotExecutable(PathBuf),
}

/// A path and what needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The path.
    pub path: PathBuf,
    /// What needs it.
    pub reason: Reason,
}

/// What a grant is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The program itself.
    Program,
    /// Named by a `#!` line.
    Interpreter,
    /// A Python virtual environment.
    Environment,
    /// The installation that a program belongs to.
    Installation,
}

/// A pointer that was not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The file or symlink that points.
    pub pointer: PathBuf,
    /// Where it points.
    pub target: PathBuf,
}

/// Where programs are looked for when there is no PATH.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The kernel follows this many interpreters, binfmt's `recursion` limit.
const DEEPEST: usize = 5;

/// Finds `command` as execvp(3) does and follows its needs. `path_var` is the search path *inside*.
pub fn closure(command: &OsStr, path_var: Option<&OsStr>, cwd: &Path, ground: &Ground<'_>) -> Closure {
    let mut walk =
        Walk { path_var, cwd, ground, resolver: Resolver::default(), seen: BTreeSet::new(), closure: Gathered::default() };
    let program = search(command, path_var, cwd);
    if let Ok(path) = &program {
        walk.program(Pointer { target: path, from: path, trusted: true, reason: Reason::Program }, 0);
    }
    Closure { program, grants: walk.closure.grants, refused: walk.closure.refused }
}

fn search(command: &OsStr, path_var: Option<&OsStr>, cwd: &Path) -> Result<PathBuf, Missing> {
    if command.is_empty() {
        return Err(Missing::NotFound);
    }
    if command.as_bytes().contains(&b'/') {
        let path = cwd.join(command);
        return match path.symlink_metadata() {
            Ok(_) if executable(&path) => Ok(path),
            Ok(_) if path.exists() => Err(Missing::NotExecutable(path)),
            _ => Err(Missing::NotFound),
        };
    }
    let mut denied = None;
    let path_var = path_var.unwrap_or(OsStr::new(DEFAULT_PATH));
    // An empty entry is the working directory: `join` with "" gives just that.
    for directory in std::env::split_paths(path_var) {
        let path = cwd.join(directory).join(command);
        if executable(&path) {
            return Ok(path);
        }
        if denied.is_none() && path.is_file() {
            denied = Some(path);
        }
    }
    Err(denied.map_or(Missing::NotFound, Missing::NotExecutable))
}

fn executable(path: &Path) -> bool {
    access(path, AccessFlags::X_OK).is_ok() && path.is_file()
}

#[derive(Default)]
struct Gathered {
    grants: Vec<Grant>,
    refused: Vec<Refused>,
}

/// Something that names a program.
#[derive(Clone, Copy)]
struct Pointer<'a> {
    target: &'a Path,
    /// The file that holds it.
    from: &'a Path,
    /// Did it come, all the way, from outside what the sandbox may write?
    trusted: bool,
    reason: Reason,
}

struct Walk<'a> {
    path_var: Option<&'a OsStr>,
    cwd: &'a Path,
    ground: &'a Ground<'a>,
    resolver: Resolver,
    /// Programs that were followed, with the trust they were followed with.
    seen: BTreeSet<(PathBuf, bool)>,
    closure: Gathered,
}

impl Walk<'_> {
    fn program(&mut self, pointer: Pointer<'_>, depth: usize) {
        if depth > DEEPEST || !self.seen.insert((pointer.target.to_owned(), pointer.trusted)) {
            return;
        }
        let Found::Present { real, kind, links, .. } = self.resolver.find(pointer.target) else { return };
        let hostile_link = links.iter().find(|link| !(self.ground.trusted)(&link.at));
        let trusted = pointer.trusted && hostile_link.is_none();
        let from = hostile_link.map_or(pointer.from, |link| &link.at);
        // A key or a password file is not executable: a hostile pointer to one gets nothing whatever directory it is in.
        let usable = kind == Kind::File && executable(&real);
        if !usable || !self.land(&real, &links, trusted) {
            if !trusted {
                self.refuse(from, &real);
            }
            return;
        }
        // The environment belongs to the name under which the program is called, not to the file behind its symlinks.
        for name in links.iter().map(|link| link.at.as_path()).chain([pointer.target, &real]) {
            self.environment(name, trusted, depth);
        }
        let holds_truth = trusted && (self.ground.trusted)(&real);
        self.installation(&real, holds_truth);
        self.grant(pointer.target, &real, &links, pointer.reason);
        self.script(&real, holds_truth, depth);
    }

    /// May a pointer lead to `real`, over `links`?
    fn land(&self, real: &Path, links: &[Link], trusted: bool) -> bool {
        let allowed = |path: &Path| landing(trusted, path, (self.ground.granted)(path), self.ground.home) != Landing::Refused;
        allowed(real) && links.iter().all(|link| allowed(&link.at))
    }

    fn grant(&mut self, path: &Path, real: &Path, links: &[Link], reason: Reason) {
        let granted =
            |path: &Path| (self.ground.granted)(path) || self.closure.grants.iter().any(|grant| path.starts_with(&grant.path));
        if !(granted(real) && links.iter().all(|link| granted(&link.at))) {
            self.closure.grants.push(Grant { path: path.to_owned(), reason });
        }
    }

    /// A program that the sandbox may write says nothing about the directories around it.
    fn installation(&mut self, real: &Path, trusted: bool) {
        for path in self.ground.installation(real) {
            if path.exists() && !self.ground.is_broad(&path) && self.land(&path, &[], trusted) {
                self.grant(&path, &path, &[], Reason::Installation);
            }
        }
    }

    /// The virtual environment that `name`, a program in its `bin`, belongs to.
    fn environment(&mut self, name: &Path, trusted: bool, depth: usize) {
        let Some(root) = name.parent().filter(|bin| bin.ends_with("bin")).and_then(Path::parent) else { return };
        let Found::Present { real, kind: Kind::Directory, links, .. } = self.resolver.find(root) else { return };
        let config = real.join("pyvenv.cfg");
        let Some(text) = read_start(&config, 16 * 1024) else { return };
        let trusted = trusted && (self.ground.trusted)(&config) && links.iter().all(|link| (self.ground.trusted)(&link.at));
        if !self.land(&real, &links, trusted) {
            self.refuse(name, &real);
            return;
        }
        if !self.ground.is_broad(&real) {
            self.grant(root, &real, &links, Reason::Environment);
        }
        for project in editable::projects(&real) {
            self.project(&project, &config, trusted);
        }
        let Some(home) = pointer::pyvenv_home(&text) else { return };
        let python = ["python3", "python"].iter().map(|name| home.join(name)).find(|path| path.exists());
        if let Some(python) = python.filter(|python| python.is_absolute()) {
            self.program(Pointer { target: &python, from: &config, trusted, reason: Reason::Interpreter }, depth + 1);
        } else if !trusted {
            self.refuse(&config, &home);
        }
    }

    /// A project that an environment imports from its own place.
    fn project(&mut self, project: &Path, from: &Path, trusted: bool) {
        let Found::Present { real, kind: Kind::Directory, links, .. } = self.resolver.find(project) else { return };
        let trusted = trusted && links.iter().all(|link| (self.ground.trusted)(&link.at));
        if self.ground.is_broad(&real) || !self.land(&real, &links, trusted) {
            self.refuse(from, &real);
        } else {
            self.grant(project, &real, &links, Reason::Environment);
        }
    }

    fn script(&mut self, real: &Path, trusted: bool, depth: usize) {
        let Some(head) = read_start(real, 1024) else { return };
        let Some(shebang) = pointer::shebang(&head) else { return };
        let follow = |walk: &mut Self, target: &Path, trusted: bool| {
            walk.program(Pointer { target, from: real, trusted, reason: Reason::Interpreter }, depth + 1);
        };
        follow(self, &self.cwd.join(&shebang.interpreter), trusted);
        if let Some(name) = shebang.by_name {
            // The search path is the caller's. What a name finds in a directory of it that the sandbox cannot write is
            // the caller's choice of program, whoever wrote the name.
            if let Ok(found) = search(&name, self.path_var, self.cwd) {
                let plain_name = !name.as_bytes().contains(&b'/');
                let trusted = trusted || plain_name && found.parent().is_some_and(|directory| (self.ground.trusted)(directory));
                follow(self, &found, trusted);
            }
        }
        if let Some(program) = shebang.then {
            follow(self, &program, trusted);
        }
    }

    fn refuse(&mut self, pointer: &Path, target: &Path) {
        let refused = Refused { pointer: pointer.to_owned(), target: target.to_owned() };
        if !self.closure.refused.contains(&refused) {
            self.closure.refused.push(refused);
        }
    }
}

/// The first bytes of a regular file; never waits for a FIFO or a device.
fn read_start(path: &Path, most: usize) -> Option<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::with_capacity(most);
    file.take(most as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests;
