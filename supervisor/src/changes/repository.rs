//! HEAD, index and refs of a git repository: they mean something together, so they reach the host together or not at all.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::layer::Ground;
use super::node::{self, Stamp};
use super::order;
use super::scan::Change;
use crate::beneath::Root;
use crate::clock::Time;
use crate::output;

/// How the refusal of a repository that both sides changed begins.
pub(crate) const BOTH: &str = "both sides changed HEAD, index or refs";
/// Longer indexes are not looked into.
pub(crate) const LONGEST_INDEX: u64 = 4 << 20;

/// The git directory of a linked worktree, by its name below `worktrees` of the repository (gitrepository-layout(5)).
/// `pointer` is what its `.git` holds.
pub(crate) fn linked(pointer: &[u8]) -> Option<PathBuf> {
    let text = std::str::from_utf8(pointer).ok()?.strip_prefix("gitdir: ")?;
    let place = Path::new(text.trim_end_matches(['\n', '\r']));
    let name = place.file_name()?;
    (place.parent()?.file_name()? == "worktrees").then(|| Path::new("worktrees").join(name))
}

/// Where the index of the workspace is in part `part`.
pub(crate) fn index_path(part: usize, workspace: &Root) -> Option<PathBuf> {
    match part {
        0 => Some(PathBuf::from(".git/index")),
        _ => {
            let pointer = node::content(workspace, Path::new(".git"), 4096).ok().flatten()?;
            Some(linked(&pointer).unwrap_or_default().join("index"))
        }
    }
}

/// What an index says, without what git measures anew whenever it differs: times, inode numbers, sizes. `None` for one that
/// is not understood (gitformat-index(5); a split one says only a part).
pub(crate) fn meaning(index: &[u8]) -> Option<Vec<u8>> {
    const STAT: usize = 40;
    const OID: usize = 20;
    let number = |at: usize| Some(u32::from_be_bytes(index.get(at..at + 4)?.try_into().ok()?));
    let version = number(4).filter(|version| (2..=4).contains(version))?;
    if index.get(..4)? != b"DIRC" {
        return None;
    }
    let (mut said, mut at) = (vec![version as u8], 12);
    for _ in 0..number(8)? {
        let flags = index.get(at + STAT + OID)?;
        let name = at + STAT + OID + 2 + if version > 2 && flags & 0x40 != 0 { 2 } else { 0 };
        // A name of version 4 begins with how much of the one before it goes; no byte but the last of that is 0 alone.
        let first = if version == 4 { 1 } else { 0 };
        let end = name + first + index.get(name + first..)?.iter().position(|byte| *byte == 0)?;
        // Its type and permissions, its content, its name.
        said.extend_from_slice(index.get(at + 24..at + 28)?);
        said.extend_from_slice(index.get(at + STAT..=end)?);
        at = if version == 4 { end + 1 } else { at + (end - at) / 8 * 8 + 8 };
    }
    while at + OID < index.len() {
        let name = index.get(at..at + 4)?;
        if name == b"link" || !name.iter().all(u8::is_ascii_alphabetic) {
            return None;
        }
        at = at.checked_add(8)?.checked_add(number(at + 4)? as usize)?;
    }
    (at + OID == index.len()).then_some(said)
}

fn index_meaning(root: &Root, path: &Path) -> Option<Vec<u8>> {
    meaning(&node::content(root, path, LONGEST_INDEX).ok().flatten()?)
}

/// Where in a repository a path belongs to its state: the repository, and the directory of the HEAD that it goes with.
fn piece(path: &Path, git_directory: bool) -> Option<(PathBuf, PathBuf)> {
    let inside = if git_directory { path } else { order::in_git(path)? };
    let outside: PathBuf = path.iter().take(path.iter().count() - inside.iter().count()).collect();
    let names: Vec<&OsStr> = inside.iter().collect();
    let named = |name: &str| names.iter().position(|part| *part == name);
    let last = names.last()?.to_str().unwrap_or_default();
    let depth = match (named("objects"), named("refs").into_iter().chain(named("logs")).min()) {
        (Some(objects), refs) if refs.is_none_or(|refs| objects < refs) => return None,
        (_, Some(refs)) => refs,
        _ if last == "index" || last == "packed-refs" || last == "COMMIT_EDITMSG" || last.ends_with("HEAD") => names.len() - 1,
        _ => return None,
    };
    let home: PathBuf = outside.iter().chain(names[..depth].iter().copied()).collect();
    let linked = home.parent().filter(|around| around.file_name() == Some(OsStr::new("worktrees")));
    let repository = linked.and_then(Path::parent).unwrap_or(&home).to_owned();
    Some((repository, home))
}

/// What can be done with the state of one repository.
#[derive(Debug, Default)]
struct State<'a> {
    changes: Vec<&'a Change>,
    /// Directories whose HEAD and index go with it.
    homes: Vec<PathBuf>,
}

/// Why a part of a repository's state stays.
#[derive(Debug, Default)]
pub(crate) struct Repositories {
    stay: BTreeMap<(usize, PathBuf), String>,
}

/// What decides about a repository, for each of its changes: is it asked for, may it replace what the host has, and has the
/// host changed it.
pub(crate) struct Asked<'a> {
    pub(crate) wanted: &'a dyn Fn(&Change) -> bool,
    pub(crate) taken: &'a dyn Fn(&Change) -> bool,
    pub(crate) collides: &'a dyn Fn(&Change) -> bool,
}

impl Repositories {
    /// Looks at the state of every repository that changes.
    pub(crate) fn look(changes: &[Change], grounds: &[Ground], asked: &Asked<'_>) -> Self {
        let mut states: BTreeMap<(usize, PathBuf), State<'_>> = BTreeMap::new();
        for change in changes.iter().filter(|change| !order::is_lock(&change.path, change.part > 0)) {
            if let Some((repository, home)) = of(change) {
                let state = states.entry((change.part, repository)).or_default();
                let leads = change.path.strip_prefix(&home).is_ok_and(|inside| !inside.starts_with("refs"));
                if leads && !state.homes.contains(&home) {
                    state.homes.push(home);
                }
                state.changes.push(change);
            }
        }
        let why = |((part, repository), state): ((usize, PathBuf), State<'_>)| {
            Some(((part, repository), state.stays(&grounds[part], asked)?))
        };
        Self { stay: states.into_iter().filter_map(why).collect() }
    }

    /// Why this change stays with the rest of its repository.
    pub(crate) fn stays(&self, change: &Change) -> Option<&str> {
        self.stay.get(&(change.part, of(change)?.0)).map(String::as_str)
    }

    /// Is it decided about together with others?
    pub(crate) fn decide(change: &Change) -> bool {
        of(change).is_some()
    }
}

fn of(change: &Change) -> Option<(PathBuf, PathBuf)> {
    let directory = change.after.or(change.before).is_some_and(|stamp| stamp.is_directory());
    if directory { None } else { piece(&change.path, change.part > 0) }
}

impl State<'_> {
    fn stays(&self, ground: &Ground, asked: &Asked<'_>) -> Option<String> {
        let wanted = self.changes.iter().filter(|change| (asked.wanted)(change)).count();
        if wanted == 0 {
            return None;
        }
        if wanted < self.changes.len() {
            return Some("HEAD, index and refs of a repository go together: name its git directory".to_owned());
        }
        let since = self.changes.iter().map(|change| change.since).min().unwrap_or_default();
        let alone = self.homes.iter().any(|home| self.moved_alone(ground, home, since));
        let collides = self.changes.iter().any(|change| (asked.collides)(change));
        if !alone && (!collides || self.changes.iter().all(|change| (asked.taken)(change))) {
            return None;
        }
        let heads = self.changes.iter().filter(|change| change.path.iter().any(|name| name == "heads"));
        let head = heads.filter(|change| !change.path.iter().any(|name| name == "logs")).find_map(|change| {
            let content = node::content(&ground.upper, &change.path, 256).ok().flatten()?;
            let id = String::from_utf8(content).ok()?.trim_end().to_owned();
            let plain = id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then(|| {
                format!("; the layer's {} is {id}", output::path(Path::new(change.path.file_name().unwrap_or_default())))
            })
        });
        Some(format!("{BOTH} since the sandbox began{}", head.unwrap_or_default()))
    }

    /// Has the host changed a HEAD or an index that the layer has no version of?
    fn moved_alone(&self, ground: &Ground, home: &Path, since: Time) -> bool {
        ["HEAD", "index"].iter().map(|name| home.join(name)).any(|path| {
            let moved = Stamp::at(&ground.lower, &path).ok().flatten().is_some_and(|stamp| stamp.changed >= since);
            moved && !self.changes.iter().any(|change| change.path == path) && !refreshed(ground, &path)
        })
    }
}

/// Is the host's index but a newer measurement of what the sandbox began with?
pub(crate) fn refreshed(ground: &Ground, path: &Path) -> bool {
    let began = || meaning(&std::fs::read(&ground.index).ok()?);
    path.ends_with("index")
        && ground.index_of.as_deref() == Some(path)
        && began().is_some_and(|began| index_meaning(&ground.lower, path) == Some(began))
}

/// Do both indexes say the same?
pub(crate) fn same_index(change: &Change, ground: &Ground) -> bool {
    let index = change.path.file_name() == Some(OsStr::new("index")) && Repositories::decide(change);
    index
        && index_meaning(&ground.upper, &change.path)
            .is_some_and(|layer| index_meaning(&ground.lower, &change.path) == Some(layer))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn index(stat: u8, content: u8, name: &str) -> Vec<u8> {
        let mut index = [b"DIRC".as_slice(), &2u32.to_be_bytes(), &1u32.to_be_bytes()].concat();
        index.extend([stat; 24]);
        index.extend(0o100_644u32.to_be_bytes());
        index.extend([stat; 12]);
        index.extend([content; 20]);
        index.extend((name.len() as u16).to_be_bytes());
        index.extend(name.as_bytes());
        let length = (index.len() - 12) / 8 * 8 + 8 + 12;
        index.resize(length, 0);
        index.extend([b"TREE".as_slice(), &3u32.to_be_bytes(), b"xyz"].concat());
        index.extend([stat; 20]);
        index
    }

    #[test]
    fn an_index_means_what_it_names_and_not_when_that_was_measured() {
        assert!(meaning(&index(1, 2, "file")).is_some());
        assert_eq!(meaning(&index(1, 2, "file")), meaning(&index(9, 2, "file")));
        assert_ne!(meaning(&index(1, 2, "file")), meaning(&index(1, 3, "file")));
        assert_ne!(meaning(&index(1, 2, "file")), meaning(&index(1, 2, "fill")));
        let mut cut = index(1, 2, "file");
        cut.truncate(60);
        assert_eq!(meaning(&cut), None);
        assert_eq!(meaning(b""), None);
    }

    #[test]
    fn what_goes_together() {
        let at = |path: &str, git| piece(Path::new(path), git).map(|(r, h)| (r.display().to_string(), h.display().to_string()));
        let both = |r: &str, h: &str| Some((r.to_owned(), h.to_owned()));
        assert_eq!(at(".git/HEAD", false), both(".git", ".git"));
        assert_eq!(at("a/.git/refs/heads/objects", false), both("a/.git", "a/.git"));
        assert_eq!(at("worktrees/w/index", true), both("", "worktrees/w"));
        assert_eq!(at(".git/modules/m/logs/HEAD", false), both(".git/modules/m", ".git/modules/m"));
        for other in [".git/objects/ab/cd", ".git/config", "src/HEAD", ".git"] {
            assert_eq!(at(other, false), None, "{other}");
        }
    }

    #[test]
    fn the_pointer_of_a_linked_worktree() {
        assert_eq!(linked(b"gitdir: /r/.git/worktrees/w\n"), Some("worktrees/w".into()));
        assert_eq!(linked(b"gitdir: ../.git/modules/m\n"), None);
        assert_eq!(linked(b"nonsense"), None);
    }
}
