//! The git directory behind a linked worktree or a submodule.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::read_start;
use crate::survey::{Found, Kind, Resolver};

/// A git directory outside the workspace that git needs to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitDir {
    /// The directory to grant for writing, free of symlinks: the common directory of a linked worktree, or the
    /// submodule's own.
    pub path: PathBuf,
    /// The worktree's own directory in it; the same as `path` for a submodule.
    pub own: PathBuf,
    /// Which of the two it is.
    pub kind: GitKind,
}

/// Why `.git` is a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitKind {
    /// Made by `git worktree add`.
    Worktree,
    /// A submodule whose git directory was absorbed.
    Submodule,
}

/// The git directory that `workspace/.git`, when it is a file, points to.
///
/// That file is hostile data. It is believed only when what it points to belongs to `uid`, points back to it, and has
/// the place in its repository that git gives it (gitrepository-layout(5)): then an earlier run cannot have made it up,
/// because it could not write there.
pub fn git_common_dir(workspace: &Path, uid: u32) -> Option<GitDir> {
    let mut resolver = Resolver::default();
    let workspace = real(&mut resolver, workspace, Kind::Directory, None)?;
    let file = workspace.join(".git");
    let text = read_start(&file, 4096)?;
    let target = workspace.join(path(text.strip_prefix(b"gitdir:")?)?);
    let own = real(&mut resolver, &target, Kind::Directory, Some(uid))?;
    worktree(&mut resolver, &own, &file, uid).or_else(|| submodule(&mut resolver, &own, &workspace))
}

/// `COMMON/worktrees/NAME` with a `gitdir` that names `file` and a `commondir` that names `COMMON`.
fn worktree(resolver: &mut Resolver, own: &Path, file: &Path, uid: u32) -> Option<GitDir> {
    let above = own.parent().filter(|above| above.ends_with("worktrees"))?;
    let common = above.parent()?;
    let back = own.join(path(&read_start(&own.join("gitdir"), 4096)?)?);
    let named = own.join(path(&read_start(&own.join("commondir"), 4096)?)?);
    let points_back = real(resolver, &back, Kind::File, None)? == *file;
    let is_common = real(resolver, &named, Kind::Directory, Some(uid))? == *common;
    (points_back && is_common && is_repository(common)).then(|| GitDir {
        path: common.to_owned(),
        own: own.to_owned(),
        kind: GitKind::Worktree,
    })
}

/// A repository below a `modules` directory of another one, whose `core.worktree` names the workspace.
fn submodule(resolver: &mut Resolver, own: &Path, workspace: &Path) -> Option<GitDir> {
    let holds_modules = |path: &Path| is_repository(path) || is_worktree(path);
    let in_modules = own.ancestors().skip(1).any(|above| above.ends_with("modules") && above.parent().is_some_and(holds_modules));
    let worktree = own.join(core_worktree(&read_start(&own.join("config"), 64 * 1024)?)?);
    let points_back = real(resolver, &worktree, Kind::Directory, None)? == *workspace;
    (in_modules && points_back && is_repository(own)).then(|| GitDir {
        path: own.to_owned(),
        own: own.to_owned(),
        kind: GitKind::Submodule,
    })
}

/// As git itself recognises one.
fn is_repository(path: &Path) -> bool {
    has(path, "HEAD", Kind::File) && has(path, "objects", Kind::Directory) && has(path, "refs", Kind::Directory)
}

/// A worktree's own directory.
fn is_worktree(path: &Path) -> bool {
    has(path, "HEAD", Kind::File) && has(path, "commondir", Kind::File)
}

fn has(path: &Path, name: &str, wanted: Kind) -> bool {
    path.join(name).symlink_metadata().is_ok_and(|found| match wanted {
        Kind::Directory => found.is_dir(),
        _ => found.is_file(),
    })
}

fn real(resolver: &mut Resolver, path: &Path, wanted: Kind, owner: Option<u32>) -> Option<PathBuf> {
    match resolver.find(path) {
        Found::Present { real, kind, uid, .. } if kind == wanted && owner.is_none_or(|owner| owner == uid) => Some(real),
        _ => None,
    }
}

fn path(bytes: &[u8]) -> Option<PathBuf> {
    let bytes = bytes.trim_ascii();
    (!bytes.is_empty() && !bytes.contains(&0)).then(|| PathBuf::from(OsStr::from_bytes(bytes)))
}

/// `core.worktree` of a git config as git writes it: one key a line, quoted when it must be.
fn core_worktree(text: &[u8]) -> Option<PathBuf> {
    let mut in_core = false;
    let mut found = None;
    for line in text.split(|&b| b == b'\n').map(<[u8]>::trim_ascii) {
        if line.starts_with(b"[") {
            in_core = line.eq_ignore_ascii_case(b"[core]");
        } else if in_core && let Some(split) = line.iter().position(|&b| b == b'=') {
            let (key, value) = (line[..split].trim_ascii(), line[split + 1..].trim_ascii());
            if key.eq_ignore_ascii_case(b"worktree") {
                let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
                found = path(value);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use super::*;

    fn git(directory: &Path, args: &[&str]) {
        let output = Command::new("git")
            .args(["-c", "user.name=t", "-c", "user.email=t@example.test", "-c", "protocol.file.allow=always"])
            .args(args)
            .current_dir(directory)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn me() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    /// A repository `main` with one commit.
    fn repository() -> (tempfile::TempDir, PathBuf) {
        let keep = tempfile::tempdir().unwrap();
        let top = keep.path().canonicalize().unwrap();
        let main = top.join("main");
        std::fs::create_dir(&main).unwrap();
        git(&main, &["init", "-q", "."]);
        git(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
        (keep, top)
    }

    #[test]
    fn linked_worktree() {
        let (_keep, top) = repository();
        git(&top.join("main"), &["worktree", "add", "-q", "../wt", "-b", "side"]);
        let found = git_common_dir(&top.join("wt"), me()).unwrap();
        assert_eq!(found.kind, GitKind::Worktree);
        assert_eq!((found.path, found.own), (top.join("main/.git"), top.join("main/.git/worktrees/wt")));
        assert_eq!(git_common_dir(&top.join("main"), me()), None, "an ordinary repository needs nothing");
        assert_eq!(git_common_dir(&top.join("wt"), me() + 1), None, "somebody else's");
    }

    #[test]
    fn absorbed_submodule() {
        let (_keep, top) = repository();
        let outer = top.join("outer");
        std::fs::create_dir(&outer).unwrap();
        git(&outer, &["init", "-q", "."]);
        git(&outer, &["submodule", "--quiet", "add", "../main", "sub"]);
        let found = git_common_dir(&outer.join("sub"), me()).unwrap();
        assert_eq!((found.kind, found.path), (GitKind::Submodule, outer.join(".git/modules/sub")));
    }

    #[test]
    fn a_pointer_to_another_worktree_gives_nothing() {
        let (_keep, top) = repository();
        git(&top.join("main"), &["worktree", "add", "-q", "../wt", "-b", "side"]);
        let evil = top.join("evil");
        std::fs::create_dir(&evil).unwrap();
        for target in ["main/.git/worktrees/wt", "main/.git", "main"] {
            std::fs::write(evil.join(".git"), format!("gitdir: {}\n", top.join(target).display())).unwrap();
            assert_eq!(git_common_dir(&evil, me()), None, "{target}");
        }
    }

    /// All that can be written in the workspace: a git directory that points back, and out.
    #[test]
    fn a_forged_git_directory_gives_nothing() {
        let (_keep, top) = repository();
        let evil = top.join("evil");
        let forged = evil.join("x/worktrees/y");
        std::fs::create_dir_all(&forged).unwrap();
        std::fs::write(evil.join(".git"), "gitdir: x/worktrees/y\n").unwrap();
        std::fs::write(forged.join("gitdir"), format!("{}\n", evil.join(".git").display())).unwrap();
        std::fs::write(forged.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        std::fs::write(forged.join("commondir"), format!("{}\n", top.join("main/.git").display())).unwrap();
        assert_eq!(git_common_dir(&evil, me()), None);
        // A symlink to the real one in the place of the forged parent.
        std::os::unix::fs::symlink(top.join("main/.git"), evil.join("z")).unwrap();
        std::fs::write(evil.join(".git"), "gitdir: z\n").unwrap();
        assert_eq!(git_common_dir(&evil, me()), None);
    }

    #[test]
    fn rubbish_gives_nothing() {
        let keep = tempfile::tempdir().unwrap();
        for text in ["", "gitdir:", "gitdir: \n", "gitdir: /\n", "gitdir: .git\n", "gitdir: /dev/null\n", "nonsense"] {
            std::fs::write(keep.path().join(".git"), text).unwrap();
            assert_eq!(git_common_dir(keep.path(), me()), None, "{text:?}");
        }
    }

    #[test]
    fn config() {
        let of = |text: &str| core_worktree(text.as_bytes());
        assert_eq!(of("[core]\n\tbare = false\n\tworktree = ../../../sub\n"), Some("../../../sub".into()));
        assert_eq!(of("[Core]\nWorkTree=\"../a b\"\n[x]\nworktree = /y\n"), Some("../a b".into()));
        assert_eq!(of("[remote \"core\"]\nworktree = /x\n"), None);
    }
}
