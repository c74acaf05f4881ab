//! Excused by version control: what changed in the workspace is fine when it is what version control had before.
//!
//! A command inside may check out any branch, and with it the editor settings and hooks' configurations that people
//! track. So a changed file is excused when its bytes are a blob that stands at its path in a tree reachable from a tip
//! of the history *recorded before the sandbox started*. What was committed inside is reachable from no such tip.
//!
//! Nothing else of the repository is trusted, for the command could write it all: objects, packs, indexes, grafts,
//! replacements, configuration. An id recorded before is the hash of everything that is reachable from it, so each object
//! on the way is hashed and compared. The objects are read by a `git` in a sandbox of its own ([`crate::confined`]), with
//! an empty repository around the real objects; it may lie, crash or hang, and then nothing is excused.
//!
//! Not excused, although git would call them unchanged: files that a filter changes on their way to disk (LFS, `ident`,
//! `working-tree-encoding`); older entries of the stash, which only a reflog names.

mod object;
mod reader;
mod tips;
mod walk;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::{Duration, Instant};

pub(crate) use object::Id;
pub(crate) use tips::{Tips, tips};

use crate::args::TierArg;
use crate::confined::{Confined, Tool};
use object::{Format, Kind, Mode};
use reader::{Pipe, Reader};
use walk::{Target, Walk};

/// What one look at history may cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// All of it, the start of git included.
    pub(crate) time: Duration,
    /// Commits and tags that are read.
    pub(crate) commits: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { time: Duration::from_secs(2), commits: 50_000 }
    }
}

/// A file of the working tree, as it is now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Relative to the top of the repository's working tree.
    pub(crate) path: &'a Path,
    /// Its bytes; of a symlink, what it points to.
    pub(crate) content: &'a [u8],
    pub(crate) symlink: bool,
    /// Every line may end in CR LF where the tracked one ends in LF (`core.autocrlf`). Only for what takes a CR for
    /// white space: to a shell it is part of the last word, so `PATH_add bin` would become another directory.
    pub(crate) crlf: bool,
}

/// What [`tracked`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tracked {
    /// For each wanted file: it was tracked as it is.
    pub(crate) excused: Vec<bool>,
    /// Why others may have been tracked too; `None` when all was seen.
    pub(crate) incomplete: Option<String>,
}

/// Which of the `wanted` files were tracked, with these bytes and at this path, in history reachable from `tips`.
///
/// Starts a sandbox, so: from the main thread, while there is no other. A path inside another repository (a submodule, a
/// nested one) is asked of that repository.
pub(crate) fn tracked(tips: &Tips, wanted: &[Wanted<'_>], tier: Option<TierArg>, budget: Budget) -> Tracked {
    let deadline = Instant::now() + budget.time;
    look(tips, wanted, budget, |format| {
        let git = start(tips, format, tier, deadline).map_err(|error| error.to_string())?;
        Ok((git, why))
    })
}

/// The same over any `git`, which `start` starts together with a way to ask why it ended.
fn look<P: Pipe>(
    tips: &Tips,
    wanted: &[Wanted<'_>],
    budget: Budget,
    start: impl FnOnce(Format) -> Result<(P, fn(&mut P) -> String), String>,
) -> Tracked {
    let mut tracked = Tracked { excused: vec![false; wanted.len()], incomplete: tips.unsupported.clone() };
    let Some(format) = tips.ids.first().map(Id::format) else { return tracked };
    let (indexes, targets): (Vec<usize>, Vec<Target<'_>>) =
        wanted.iter().enumerate().filter_map(|(index, wanted)| Some((index, target(wanted, format)?))).unzip();
    if targets.is_empty() {
        return tracked;
    }
    let (pipe, why) = match start(format) {
        Ok(started) => started,
        Err(why) => {
            tracked.incomplete = Some(why);
            return tracked;
        }
    };
    let mut walk = Walk::new(Reader::new(pipe), &targets, &tips.distrusted, budget.commits);
    let outcome = walk.run(&tips.ids);
    for (index, found) in indexes.into_iter().zip(&walk.found) {
        tracked.excused[index] = *found;
    }
    tracked.incomplete = match outcome {
        Ok(true) => tips.truncated.then(|| "there are more refs or borrowed objects than were recorded".into()),
        Ok(false) => Some(format!("the history is longer than {} commits", budget.commits)),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => Some(format!("reading history took longer than {:?}", budget.time)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Some(why(walk.pipe())),
        Err(e) => Some(e.to_string()),
    };
    tracked
}

/// `None` for what is never tracked.
fn target<'a>(wanted: &Wanted<'a>, format: Format) -> Option<Target<'a>> {
    let mut path = Vec::new();
    for component in wanted.path.components() {
        let Component::Normal(name) = component else { return None };
        // Git checks nothing out into a git directory; a tree made by hand could name one.
        if name.eq_ignore_ascii_case(".git") {
            return None;
        }
        path.push(name.as_bytes());
    }
    let (mode, crlf) = if wanted.symlink { (Mode::Symlink, false) } else { (Mode::File, wanted.crlf) };
    let contents = [Some(wanted.content.to_vec()), crlf.then(|| without_cr(wanted.content)).flatten()];
    let ids: Vec<Id> = contents.iter().flatten().filter_map(|content| format.id(Kind::Blob, content)).collect();
    (!path.is_empty() && !ids.is_empty()).then_some(Target { path, mode, ids })
}

/// The text with LF for CR LF, when all of its lines end in CR LF and it has no other CR.
fn without_cr(content: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = content.iter().copied().filter(|byte| *byte != b'\r').collect();
    let ends = content.windows(2).filter(|pair| pair == b"\r\n").count();
    let all = |byte: u8| content.iter().filter(|b| **b == byte).count();
    (ends > 0 && ends == all(b'\n') && ends == all(b'\r')).then_some(text)
}

/// Makes a repository without history, refs and configuration, and reads objects with it. `$1` is its configuration.
const SCRIPT: &str = r#"d=$TMPDIR/repository
mkdir "$d" "$d/objects" "$d/refs" && printf 'ref: refs/heads/none\n' >"$d/HEAD" && printf '%s' "$1" >"$d/config" || exit
export GIT_DIR="$d" && exec git cat-file --batch"#;

/// The command, its environment.
fn git(tips: &Tips, format: Format) -> (Vec<OsString>, Vec<(&'static str, OsString)>) {
    let config = match format {
        Format::Sha1 => "[core]\nrepositoryformatversion = 0\nbare = true\n",
        Format::Sha256 => "[core]\nrepositoryformatversion = 1\nbare = true\n[extensions]\nobjectFormat = sha256\n",
    };
    let command = ["sh", "-c", SCRIPT, "sh", config].map(OsString::from).into();
    let (own, alternates) = tips.objects.split_first().map_or((OsString::new(), OsString::new()), |(own, others)| {
        (own.clone().into(), others.iter().map(|path| path.as_os_str()).collect::<Vec<_>>().join(OsStr::new(":")))
    });
    let environment = vec![
        ("GIT_OBJECT_DIRECTORY", own),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES", alternates),
        ("GIT_CONFIG_NOSYSTEM", "1".into()),
        ("GIT_CONFIG_GLOBAL", "/dev/null".into()),
        ("GIT_ATTR_NOSYSTEM", "1".into()),
        ("GIT_NO_REPLACE_OBJECTS", "1".into()),
        ("GIT_NO_LAZY_FETCH", "1".into()),
        ("GIT_OPTIONAL_LOCKS", "0".into()),
        ("LC_ALL", "C".into()),
    ];
    (command, environment)
}

fn start(tips: &Tips, format: Format, tier: Option<TierArg>, deadline: Instant) -> Result<Confined, crate::error::Error> {
    let (command, environment) = git(tips, format);
    let command: Vec<&OsStr> = command.iter().map(OsString::as_os_str).collect();
    let environment: Vec<(&str, &OsStr)> = environment.iter().map(|(name, value)| (*name, value.as_os_str())).collect();
    let (directory, read) = tips.objects.split_first().map_or((Path::new(""), &[][..]), |(own, others)| (own.as_path(), others));
    Confined::start(&Tool { command: &command, environment: &environment, directory, read, tier, deadline })
}

fn why(git: &mut Confined) -> String {
    match git.status() {
        Ok(127) => "git is not to be had in a sandbox".into(),
        Ok(status) => format!("git ended with status {status} while it read history"),
        Err(error) => format!("git could not be run in a sandbox: {error}"),
    }
}

impl Pipe for Confined {
    fn feed(&mut self, bytes: &[u8]) {
        Self::feed(self, bytes);
    }
}

#[cfg(test)]
mod tests;
