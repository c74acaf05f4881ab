//! What the paths of a policy are on this machine, as data for [`crate::compile`].
//!
//! Nothing is opened for reading, so neither a FIFO nor a device reacts; and what a path is comes from one descriptor
//! that no symlink led to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use hermes_profiles::ospath;
use hermes_profiles::paths::normalise;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, readlink};
use nix::sys::stat::{FileStat, SFlag, fstat, lstat};
use serde::Serialize;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A unix socket.
    Socket,
    /// A character or block device.
    Device,
    /// A FIFO or something else.
    Other,
}

/// A symlink that was crossed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Where it lies; free of symlinks itself.
    #[serde(with = "ospath")]
    pub at: PathBuf,
    /// What it holds.
    #[serde(with = "ospath")]
    pub to: PathBuf,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// Nothing there.
    Absent,
    /// It could not be looked at: the raw errno.
    Unreadable(i32),
    /// It is there.
    Present {
        /// The path free of symlinks.
        #[serde(with = "ospath")]
        real: PathBuf,
        /// What it is.
        kind: Kind,
        /// Device number.
        dev: u64,
        /// Inode number.
        ino: u64,
        /// Owner.
        uid: u32,
        /// Symlinks crossed on the way, in order.
        links: Vec<Link>,
    },
}

/// Facts about paths.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// By the bytes of the path: comparing paths by component costs more than the look-ups.
    #[serde(serialize_with = "readable_keys")]
    facts: BTreeMap<OsString, Found>,
}

impl Survey {
    /// What is known of `path`; `Absent` when it was not asked for.
    pub fn get(&self, path: &Path) -> &Found {
        self.facts.get(path.as_os_str()).unwrap_or(&Found::Absent)
    }

    /// `path` free of symlinks, as far as it is known.
    pub fn real<'a>(&'a self, path: &'a Path) -> &'a Path {
        match self.get(path) {
            Found::Present { real, .. } => real,
            _ => path,
        }
    }

    /// Records a fact.
    pub fn insert(&mut self, path: impl Into<PathBuf>, found: Found) {
        self.facts.insert(path.into().into_os_string(), found);
    }
}

fn readable_keys<S: serde::Serializer>(facts: &BTreeMap<OsString, Found>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(facts.iter().map(|(path, found)| (ospath::escaped(Path::new(path)), found)))
}

/// Looks at every path. Absolute ones only; a relative one is `Unreadable(EINVAL)`.
///
/// `hubs` are directories below which many of the paths lie: each is listed once, and what is not in the list is known
/// to be absent without another look.
pub fn survey<'a>(paths: impl IntoIterator<Item = &'a Path>, hubs: &[PathBuf]) -> Survey {
    let hubs: Vec<(&Path, BTreeSet<OsString>)> =
        hubs.iter().filter_map(|hub| names_in(hub).map(|names| (hub.as_path(), names))).collect();
    let mut resolver = Resolver::default();
    let mut survey = Survey::default();
    for path in paths {
        if survey.facts.contains_key(path.as_os_str()) {
            continue;
        }
        let absent = hubs.iter().any(|(hub, names)| below(hub, path).is_some_and(|name| !names.contains(name)));
        if !absent {
            match resolver.find(path) {
                // Most of what a policy names is absent, and that is what a missing fact means.
                Found::Absent => {}
                found => survey.insert(path, found),
            }
        }
    }
    survey
}

/// Entries of a hub beyond which a look at each path is cheaper than the list.
const LONGEST_LIST: usize = 1000;

fn names_in(hub: &Path) -> Option<BTreeSet<OsString>> {
    let mut names = BTreeSet::new();
    let entries = match std::fs::read_dir(hub) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(names),
        entries => entries.ok()?,
    };
    for entry in entries {
        names.insert(entry.ok()?.file_name());
        if names.len() > LONGEST_LIST {
            return None;
        }
    }
    Some(names)
}

/// The name in `hub` on the way to `path`.
fn below<'a>(hub: &Path, path: &'a Path) -> Option<&'a OsStr> {
    let rest = path.as_os_str().as_bytes().strip_prefix(hub.as_os_str().as_bytes())?.strip_prefix(b"/")?;
    let name = rest.split(|byte| *byte == b'/').next()?;
    (!matches!(name, b"" | b"." | b"..")).then(|| OsStr::from_bytes(name))
}

/// As many symlinks as the kernel follows in one path, path_resolution(7).
const MOST_LINKS: usize = 40;

/// Resolves paths, remembering what it met on the way.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    nodes: BTreeMap<OsString, Node>,
}

/// What one name without symlinks before it is.
#[derive(Debug, Clone)]
enum Node {
    Directory,
    Other,
    Link(PathBuf),
    Error(Errno),
}

impl Resolver {
    /// What `path` is.
    pub(crate) fn find(&mut self, path: &Path) -> Found {
        if !path.is_absolute() {
            return Found::Unreadable(Errno::EINVAL as i32);
        }
        match look(path) {
            // No symlink is crossed, so the text alone tells.
            Ok(stat) => present(normalise(path), &stat, Vec::new()),
            Err(Errno::ELOOP | Errno::ENOSYS | Errno::EPERM) => self.walk(path),
            Err(errno) => missing(errno),
        }
    }

    fn walk(&mut self, path: &Path) -> Found {
        let (real, links) = match self.follow(path) {
            Ok(found) => found,
            Err(errno) => return missing(errno),
        };
        match look(&real) {
            Ok(stat) => present(real, &stat, links),
            // A container's filter that is older than openat2 (5.6).
            Err(Errno::ENOSYS | Errno::EPERM) => match lstat(&real) {
                Ok(stat) if stat.st_mode & libc::S_IFMT != libc::S_IFLNK => present(real, &stat, links),
                Ok(_) => Found::Unreadable(Errno::ELOOP as i32),
                Err(errno) => missing(errno),
            },
            Err(errno) => missing(errno),
        }
    }

    /// The path free of symlinks, and the symlinks.
    fn follow(&mut self, path: &Path) -> Result<(PathBuf, Vec<Link>), Errno> {
        let mut real = PathBuf::from("/");
        let mut links = Vec::new();
        let mut pending = reversed(path);
        while let Some(name) = pending.pop() {
            if name == ".." {
                real.pop();
                continue;
            }
            let next = real.join(&name);
            match self.node(&next) {
                Node::Directory => real = next,
                Node::Other if pending.is_empty() => real = next,
                Node::Other => return Err(Errno::ENOTDIR),
                Node::Error(errno) => return Err(*errno),
                Node::Link(to) => {
                    if links.len() == MOST_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    if to.is_absolute() {
                        real = PathBuf::from("/");
                    }
                    pending.append(&mut reversed(to));
                    links.push(Link { at: next, to: to.clone() });
                }
            }
        }
        Ok((real, links))
    }

    fn node(&mut self, path: &Path) -> &Node {
        self.nodes.entry(path.as_os_str().to_owned()).or_insert_with(|| match lstat(path) {
            Err(errno) => Node::Error(errno),
            Ok(stat) => match stat.st_mode & libc::S_IFMT {
                libc::S_IFDIR => Node::Directory,
                libc::S_IFLNK => readlink(path).map_or_else(Node::Error, |to| Node::Link(to.into())),
                _ => Node::Other,
            },
        })
    }
}

/// The names of a path, last first; without `.`.
fn reversed(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

/// ELOOP when there is a symlink anywhere in `path`, its end included.
fn look(path: &Path) -> Result<FileStat, Errno> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let fd: OwnedFd = openat2(AT_FDCWD, path, how)?;
    fstat(&fd)
}

fn present(real: PathBuf, stat: &FileStat, links: Vec<Link>) -> Found {
    let kind = match SFlag::from_bits_truncate(stat.st_mode & libc::S_IFMT) {
        SFlag::S_IFDIR => Kind::Directory,
        SFlag::S_IFREG => Kind::File,
        SFlag::S_IFSOCK => Kind::Socket,
        SFlag::S_IFCHR | SFlag::S_IFBLK => Kind::Device,
        _ => Kind::Other,
    };
    Found::Present { real, kind, dev: stat.st_dev, ino: stat.st_ino, uid: stat.st_uid, links }
}

fn missing(errno: Errno) -> Found {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => Found::Absent,
        errno => Found::Unreadable(errno as i32),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_hub_is_listed_once_and_says_what_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let hub = dir.path().canonicalize().unwrap();
        std::fs::create_dir(hub.join("there")).unwrap();
        std::fs::write(hub.join("there/file"), "").unwrap();
        let paths: Vec<PathBuf> =
            ["there", "there/file", "there/none", "none", "none/deeper"].iter().map(|p| hub.join(p)).collect();
        let with = survey(paths.iter().map(PathBuf::as_path), &[hub.clone(), hub.join("none")]);
        let without = survey(paths.iter().map(PathBuf::as_path), &[]);
        assert_eq!(with, without);
        assert_eq!(below(&hub, &hub.join("none/deeper")), Some(OsStr::new("none")));
        assert_eq!(below(&hub, &hub), None);
        assert!(names_in(&hub.join("none")).unwrap().is_empty());
    }

    fn real_and_links(found: &Found) -> (PathBuf, Vec<(PathBuf, PathBuf)>) {
        match found {
            Found::Present { real, links, .. } => {
                (real.clone(), links.iter().map(|link| (link.at.clone(), link.to.clone())).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    fn temporary() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        (directory, path)
    }

    #[test]
    fn every_symlink_on_the_way_is_told() {
        let (_keep, t) = temporary();
        std::fs::create_dir_all(t.join("real/sub")).unwrap();
        std::fs::write(t.join("real/sub/file"), "").unwrap();
        symlink("real", t.join("a")).unwrap();
        symlink(t.join("a/sub/../sub"), t.join("b")).unwrap();
        let path = t.join("b/./file");
        let survey = survey([path.as_path()], &[]);
        let (real, links) = real_and_links(survey.get(&path));
        assert_eq!(real, t.join("real/sub/file"));
        assert_eq!(links, [(t.join("b"), t.join("a/sub/../sub")), (t.join("a"), "real".into())]);
    }

    #[test]
    fn without_symlinks_the_path_is_only_cleaned() {
        let (_keep, t) = temporary();
        std::fs::create_dir_all(t.join("x/y")).unwrap();
        let path = t.join("x//y/../y/.");
        let (real, links) = real_and_links(&Resolver::default().find(&path));
        assert_eq!((real, links.len()), (t.join("x/y"), 0));
        assert_eq!(real_and_links(&Resolver::default().find(Path::new("/../.."))).0, Path::new("/"));
    }

    #[test]
    fn parent_of_a_symlinked_directory_is_the_real_one() {
        let (_keep, t) = temporary();
        std::fs::create_dir_all(t.join("far/deep")).unwrap();
        std::fs::write(t.join("far/file"), "").unwrap();
        symlink("far/deep", t.join("l")).unwrap();
        assert_eq!(real_and_links(&Resolver::default().find(&t.join("l/../file"))).0, t.join("far/file"));
    }

    #[test]
    fn loops_end() {
        let (_keep, t) = temporary();
        symlink("b", t.join("a")).unwrap();
        symlink("a", t.join("b")).unwrap();
        assert_eq!(Resolver::default().find(&t.join("a")), Found::Unreadable(Errno::ELOOP as i32));
        for i in 0..45 {
            symlink(format!("c{}", i + 1), t.join(format!("c{i}"))).unwrap();
        }
        std::fs::write(t.join("c45"), "").unwrap();
        assert_eq!(Resolver::default().find(&t.join("c0")), Found::Unreadable(Errno::ELOOP as i32));
        assert_eq!(real_and_links(&Resolver::default().find(&t.join("c5"))).1.len(), 40);
    }

    #[test]
    fn what_is_not_there() {
        let (_keep, t) = temporary();
        std::fs::write(t.join("file"), "").unwrap();
        symlink("nowhere", t.join("dangling")).unwrap();
        let mut resolver = Resolver::default();
        for name in ["none", "none/below", "dangling", "file/below", "dangling/below"] {
            assert_eq!(resolver.find(&t.join(name)), Found::Absent, "{name}");
        }
        assert_eq!(resolver.find(Path::new("relative")), Found::Unreadable(Errno::EINVAL as i32));
    }

    #[test]
    fn kinds_are_told_and_a_fifo_does_not_hang() {
        let (_keep, t) = temporary();
        nix::unistd::mkfifo(&t.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(t.join("socket")).unwrap();
        symlink("fifo", t.join("link")).unwrap();
        let kind = |path: &Path| match Resolver::default().find(path) {
            Found::Present { kind, .. } => kind,
            other => panic!("{other:?}"),
        };
        assert_eq!(kind(&t.join("fifo")), Kind::Other);
        assert_eq!(kind(&t.join("link")), Kind::Other);
        assert_eq!(kind(&t.join("socket")), Kind::Socket);
        assert_eq!(kind(Path::new("/dev/null")), Kind::Device);
        assert_eq!(kind(&t), Kind::Directory);
    }
}
