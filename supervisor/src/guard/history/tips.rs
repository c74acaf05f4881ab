//! What a repository's refs named before a sandbox started, and where its objects were.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_profiles::ospath;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use rustix::fs::{FileType, RawDir};
use serde::{Deserialize, Serialize};

use super::object::Id;
use crate::beneath::Root;

/// Refs that are recorded of one repository.
const MOST_REFS: usize = 20_000;
/// Directories below `refs` that are looked into, and how deep.
const MOST_DIRECTORIES: usize = 5_000;
const DEEPEST: usize = 16;
/// Bytes of `packed-refs` that are read: more than [`MOST_REFS`] lines of ordinary length.
const PACKED: u64 = 8 << 20;
/// A file that holds one path.
const POINTER: u64 = 4 << 10;
/// Object directories that a repository may borrow from, and how far that may lead: git's own bound, `link_alt_odb_entries`.
const MOST_ALTERNATES: usize = 8;
const ALTERNATES_DEEPEST: usize = 5;

/// Ids that were the tips of a repository's history at one time. Its objects may change under these ids as they like:
/// an id is the hash of all that is reachable from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tips {
    /// The object directory, then those that it borrows from.
    #[serde(with = "ospath::list")]
    pub(super) objects: Vec<PathBuf>,
    /// Without repetition, the likeliest first.
    pub(super) ids: Vec<Id>,
    /// Where the look at history ends, see [`Tips::distrust`].
    #[serde(default)]
    pub(super) distrusted: Vec<Id>,
    /// There were more refs, or borrowed objects, than are recorded: what only these hold is excused by nothing.
    pub(crate) truncated: bool,
    /// Why nothing is recorded.
    pub(crate) unsupported: Option<String>,
}

impl Tips {
    /// None are recorded, and why.
    pub(crate) fn unsupported(why: &str) -> Self {
        Self { unsupported: Some(why.to_owned()), ..Self::default() }
    }

    /// The ids that `before` did not have: made, or fetched, in between.
    pub(crate) fn since(&self, before: &Self) -> Vec<Id> {
        let known: HashSet<_> = before.ids.iter().collect();
        self.ids.iter().filter(|id| !known.contains(id)).copied().collect()
    }

    /// Excuses nothing by these commits and tags, nor by what is reachable only through them. For what an earlier sandbox
    /// left on a branch: without this its next run would only have to check it out.
    pub(crate) fn distrust(&mut self, ids: impl IntoIterator<Item = Id>) {
        self.distrusted.extend(ids);
    }
}

/// The tips of the repository whose git directory is `git_dir` (`.git`, a bare repository, `.git/worktrees/NAME` or
/// `.git/modules/NAME`): `HEAD`, the heads of linked worktrees, branches, remote-tracking branches, tags and the stash.
///
/// Opens nothing that blocks, and below `git_dir` no symlink. Other refs (`refs/replace`, `refs/notes`, a tool's own
/// snapshots) are no history that a person works with.
pub(crate) fn tips(git_dir: &Path) -> Tips {
    let unsupported = Tips::unsupported;
    let Ok(own) = Root::open(git_dir) else { return unsupported("its git directory cannot be opened") };
    let common_path = match pointer(&own, "commondir") {
        Some(common) => git_dir.join(common),
        None => git_dir.to_owned(),
    };
    let Ok(common) = Root::open(&common_path) else { return unsupported("its common git directory cannot be opened") };
    if common.stat(Path::new("reftable")).is_ok() {
        return unsupported("its refs are kept in the reftable format");
    }
    let Ok(objects) = std::fs::canonicalize(common_path.join("objects")) else {
        return unsupported("its objects cannot be found");
    };
    let mut found = Found::default();
    let head = found.head(&own, Path::new("HEAD"));
    found.head(&common, Path::new("HEAD"));
    found.worktrees(&common);
    found.loose(&common);
    found.packed(&common);
    let (objects, all) = with_alternates(objects);
    Tips { objects, truncated: found.truncated || !all, ids: found.ids(head.as_deref()), ..Tips::default() }
}

/// Refs by name. A detached head is there under a name that no ref has.
#[derive(Default)]
struct Found {
    refs: Vec<(Vec<u8>, Id)>,
    truncated: bool,
}

impl Found {
    fn push(&mut self, name: Vec<u8>, id: Id) {
        match self.refs.len() < MOST_REFS {
            true => self.refs.push((name, id)),
            false => self.truncated = true,
        }
    }

    /// The ref that a `HEAD` names; a detached one is recorded.
    fn head(&mut self, dir: &Root, path: &Path) -> Option<Vec<u8>> {
        let mut buffer = [0; 1024];
        let content = start_of(dir, path, &mut buffer)?;
        if let Some(name) = content.strip_prefix(b"ref:") {
            return Some(name.trim_ascii().to_vec());
        }
        self.push(b"HEAD".to_vec(), Id::parse(content.trim_ascii_end())?);
        None
    }

    fn worktrees(&mut self, common: &Root) {
        let Ok(fd) = directory(common, Path::new("worktrees")) else { return };
        let mut names = Vec::new();
        self.truncated |= !list(&fd, |name, kind| {
            if kind != FileType::RegularFile && names.len() < MOST_REFS {
                names.push(name.to_owned());
            }
        });
        let dir = Root::from_fd(fd);
        for name in names {
            self.head(&dir, &Path::new(OsStr::from_bytes(name.to_bytes())).join("HEAD"));
        }
    }

    fn loose(&mut self, common: &Root) {
        let mut open: Vec<PathBuf> = ["refs/tags", "refs/remotes", "refs/heads"].map(PathBuf::from).into();
        let mut looked = 0;
        if let Ok(refs) = directory(common, Path::new("refs")) {
            self.loose_ref(&Root::from_fd(refs), Path::new("refs"), OsStr::new("stash"));
        }
        while let Some(path) = open.pop() {
            looked += 1;
            if looked > MOST_DIRECTORIES || self.refs.len() >= MOST_REFS || path.components().count() > DEEPEST {
                self.truncated = true;
                continue;
            }
            let fd = match directory(common, &path) {
                Ok(fd) => fd,
                Err(errno) => {
                    // Some file systems do not tell what an entry is, getdents(2): it was a file.
                    let file = errno == Errno::ENOTDIR && path.components().count() > 2;
                    self.truncated |= errno != Errno::ENOENT && !file;
                    continue;
                }
            };
            let mut names = Vec::new();
            self.truncated |= !list(&fd, |name, kind| {
                let name = OsStr::from_bytes(name.to_bytes());
                if matches!(kind, FileType::Directory | FileType::Unknown) {
                    open.push(path.join(name));
                }
                match kind {
                    FileType::Directory => {}
                    _ if names.len() < MOST_REFS => names.push(name.to_owned()),
                    _ => {}
                }
            });
            let dir = Root::from_fd(fd);
            for name in names {
                self.loose_ref(&dir, &path, &name);
            }
        }
    }

    fn loose_ref(&mut self, dir: &Root, path: &Path, name: &OsStr) {
        let mut buffer = [0; 128];
        // A symbolic ref (refs/remotes/origin/HEAD) names one that is found by itself.
        let content = start_of(dir, Path::new(name), &mut buffer);
        if let Some(id) = content.and_then(|content| Id::parse(content.trim_ascii_end())) {
            self.push(path.join(name).into_os_string().into_encoded_bytes(), id);
        }
    }

    /// A loose ref stands before the packed one of its name.
    fn packed(&mut self, common: &Root) {
        let Ok((file, stat)) = common.open_file(Path::new("packed-refs")) else { return };
        let mut content = Vec::new();
        if file.take(PACKED).read_to_end(&mut content).is_err() || stat.st_size as u64 > PACKED {
            self.truncated = true;
        }
        let loose: HashSet<Vec<u8>> = self.refs.iter().map(|(name, _)| name.clone()).collect();
        for (id, name) in packed_refs(&content) {
            if rank(name, None).is_some() && !loose.contains(name) {
                self.push(name.to_vec(), id);
            }
        }
    }

    fn ids(mut self, head: Option<&[u8]>) -> Vec<Id> {
        self.refs.sort_by_cached_key(|(name, _)| rank(name, head));
        // A repository has one format; an id of another is none.
        let format = self.refs.first().map(|(_, id)| id.format());
        let mut seen = HashSet::new();
        self.refs.iter().map(|(_, id)| *id).filter(|id| Some(id.format()) == format && seen.insert(*id)).collect()
    }
}

/// In what order refs are looked at; `None` for those that are not.
fn rank(name: &[u8], head: Option<&[u8]>) -> Option<u8> {
    let below = |prefix: &str| name.starts_with(prefix.as_bytes());
    match name {
        b"HEAD" => Some(0),
        _ if Some(name) == head => Some(0),
        b"refs/stash" => Some(2),
        _ if below("refs/heads/") => Some(1),
        _ if below("refs/remotes/") => Some(3),
        _ if below("refs/tags/") => Some(4),
        _ => None,
    }
}

/// The lines of a `packed-refs` file that are refs (git-pack-refs(1)); peeled tags and what makes no sense are left out.
fn packed_refs(content: &[u8]) -> impl Iterator<Item = (Id, &[u8])> {
    content.split(|byte| *byte == b'\n').filter_map(|line| {
        let (id, name) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
        Some((Id::parse(id)?, &name[1..]))
    })
}

/// Object directories, each with what its `info/alternates` names (gitrepository-layout(5)), and whether these are all.
/// Taken down before a start, because a command could name others later.
fn with_alternates(objects: PathBuf) -> (Vec<PathBuf>, bool) {
    let (mut known, mut all) = (vec![objects], true);
    let mut open = vec![(0, 0)];
    while let Some((at, depth)) = open.pop() {
        let base = known[at].clone();
        let Ok((content, _)) = Root::open(&base).and_then(|dir| dir.read(Path::new("info/alternates"), 16 * POINTER)) else {
            continue;
        };
        for line in content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#') {
            // Both have a meaning in GIT_ALTERNATE_OBJECT_DIRECTORIES, git(1).
            let speakable = !line.contains(&b':') && line[0] != b'"';
            let real = std::fs::canonicalize(base.join(OsStr::from_bytes(line)));
            match real {
                Ok(real) if known.contains(&real) => {}
                Ok(real) if speakable && known.len() <= MOST_ALTERNATES && depth < ALTERNATES_DEEPEST => {
                    open.push((known.len(), depth + 1));
                    known.push(real);
                }
                _ => all = false,
            }
        }
    }
    (known, all)
}

/// The path that a one-line file holds.
fn pointer(dir: &Root, name: &str) -> Option<PathBuf> {
    let (content, _) = dir.read(Path::new(name), POINTER).ok()?;
    let path = content.strip_suffix(b"\n").unwrap_or(&content);
    (!path.is_empty()).then(|| OsStr::from_bytes(path).into())
}

fn directory(root: &Root, path: &Path) -> Result<OwnedFd, Errno> {
    root.at(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())
}

/// Calls `each` for every entry; false when the directory could not be read to its end.
fn list(fd: &OwnedFd, mut each: impl FnMut(&CStr, FileType)) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 16 << 10];
    let mut entries = RawDir::new(fd, &mut buffer);
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { return false };
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            each(entry.file_name(), entry.file_type());
        }
    }
    true
}

/// The first bytes of a regular file.
fn start_of<'b>(dir: &Root, path: &Path, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let (mut file, _) = dir.open_file(path).ok()?;
    let length = file.read(buffer).ok()?;
    buffer.get(..length)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    struct Repository(tempfile::TempDir);

    impl Repository {
        fn new() -> Self {
            let new = Self(tempfile::tempdir().unwrap());
            fs::create_dir(new.0.path().join("objects")).unwrap();
            new.put("HEAD", "ref: refs/heads/main\n");
            new
        }

        fn put(&self, path: &str, content: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn tips(&self) -> Tips {
            tips(self.0.path())
        }

        fn ids(&self) -> Vec<u8> {
            self.tips().ids.iter().map(|id| u8::from_str_radix(&id.to_string()[..2], 16).unwrap()).collect()
        }
    }

    fn id(n: u8) -> String {
        format!("{n:02x}").repeat(20)
    }

    #[test]
    fn every_ref_of_people_is_found_the_head_first() {
        let repository = Repository::new();
        repository.put("refs/tags/v1", &id(7));
        repository.put("refs/remotes/origin/HEAD", "ref: refs/remotes/origin/main\n");
        repository.put("refs/remotes/origin/main", &id(6));
        repository.put("refs/stash", &id(5));
        repository.put("refs/heads/deep/er", &format!("{}\n", id(2)));
        repository.put("refs/heads/main", &id(1));
        repository.put("refs/replace/x", &id(90));
        repository.put("worktrees/w/HEAD", &id(0));
        let packed = [(9, "refs/heads/main"), (3, "refs/heads/packed"), (8, "refs/tags/packed"), (91, "refs/replace/y")];
        let packed: String = packed.iter().map(|(n, name)| format!("{} {name}\n^{}\n", id(*n), id(92))).collect();
        repository.put("packed-refs", &format!("# pack-refs with: peeled fully-peeled sorted\n{packed}"));
        let found = repository.ids();
        assert!(found[..2] == [0, 1] || found[..2] == [1, 0], "{found:?}");
        assert_eq!(found[2..], [2, 3, 5, 6, 7, 8]);
        assert!(!repository.tips().truncated);
        repository.put("HEAD", &id(4));
        assert!(repository.ids()[..2].contains(&4));
    }

    #[test]
    fn a_worktree_has_its_own_head_and_the_refs_of_all() {
        let repository = Repository::new();
        repository.put("refs/heads/main", &id(1));
        repository.put("worktrees/w/HEAD", &id(2));
        repository.put("worktrees/w/commondir", "../..\n");
        repository.put("worktrees/other/HEAD", &id(3));
        let mut found = tips(&repository.0.path().join("worktrees/w"));
        assert_eq!(found.objects, [fs::canonicalize(repository.0.path().join("objects")).unwrap()]);
        found.ids.sort();
        assert_eq!(found.ids, [1, 2, 3].map(|n| Id::parse(id(n).as_bytes()).unwrap()));
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Tips>(&json).unwrap(), found);
    }

    #[test]
    fn symlinks_and_fifos_are_no_refs() {
        let repository = Repository::new();
        let at = |path: &str| repository.0.path().join(path);
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("x"), id(9)).unwrap();
        repository.put("refs/heads/good", &id(1));
        symlink(outside.path().join("x"), at("refs/heads/link")).unwrap();
        symlink(outside.path(), at("refs/tags")).unwrap();
        symlink(outside.path().join("x"), at("packed-refs")).unwrap();
        nix::unistd::mkfifo(&at("refs/heads/fifo"), Mode::S_IRWXU).unwrap();
        fs::remove_file(at("HEAD")).unwrap();
        nix::unistd::mkfifo(&at("HEAD"), Mode::S_IRWXU).unwrap();
        assert_eq!(repository.ids(), [1]);
        assert!(repository.tips().truncated, "refs/tags could not be read");
    }

    #[test]
    fn what_is_too_much_is_told() {
        let repository = Repository::new();
        let packed = |n: usize| (0..n).map(|n| format!("{n:040x} refs/tags/{n}\n")).collect::<String>();
        repository.put("packed-refs", &packed(MOST_REFS));
        assert_eq!((repository.tips().ids.len(), repository.tips().truncated), (MOST_REFS, false));
        repository.put("packed-refs", &packed(MOST_REFS + 1));
        assert_eq!((repository.tips().ids.len(), repository.tips().truncated), (MOST_REFS, true));
        repository.put("packed-refs", "");
        repository.put(&format!("refs/heads/{}x", "d/".repeat(DEEPEST)), &id(1));
        assert!(repository.tips().truncated);
    }

    #[test]
    fn borrowed_objects_are_recorded_as_far_as_they_go() {
        let (first, second, third) = (Repository::new(), Repository::new(), Repository::new());
        let objects = |of: &Repository| fs::canonicalize(of.0.path().join("objects")).unwrap();
        first.put("objects/info/alternates", &format!("# lent\n{}\n", objects(&second).display()));
        second.put("objects/info/alternates", &format!("{}\n{}\n", objects(&third).display(), objects(&first).display()));
        assert_eq!((first.tips().objects, first.tips().truncated), ([&first, &second, &third].map(objects).into(), false));
        third.put("objects/info/alternates", "/nowhere/at all\n");
        assert!(first.tips().truncated);
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let repository = Repository::new();
        assert_eq!(repository.tips().unsupported, None);
        repository.put("reftable/tables.list", "");
        assert!(repository.tips().unsupported.unwrap().contains("reftable"));
        assert!(tips(Path::new("/nowhere")).unsupported.is_some());
        fs::remove_dir(repository.0.path().join("objects")).unwrap();
        assert!(repository.tips().unsupported.is_some());
    }

    #[test]
    fn new_tips_are_told_from_old_ones() {
        let repository = Repository::new();
        repository.put("refs/heads/main", &id(1));
        let before = repository.tips();
        repository.put("refs/heads/made", &id(2));
        assert_eq!(repository.tips().since(&before), [Id::parse(id(2).as_bytes()).unwrap()]);
        assert_eq!(before.since(&before), []);
    }

    proptest! {
        #[test]
        fn arbitrary_packed_refs_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "([0-9a-f]{40}|#|\\^| |\n|refs/heads/x){0,12}") {
            prop_assert!(packed_refs(&bytes).chain(packed_refs(text.as_bytes())).all(|(_, name)| !name.contains(&b'\n')));
        }
    }
}
