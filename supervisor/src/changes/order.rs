//! The order in which changes to a repository reach the host: what is referred to before what refers to it.

use std::ffi::OsStr;
use std::path::Path;

/// The part of `path` below the innermost git directory; empty for a `.git` that is a file.
pub(crate) fn in_git(path: &Path) -> Option<&Path> {
    let mut rest = path.iter();
    let mut found = None;
    while let Some(name) = rest.next() {
        if name == ".git" {
            found = Some(rest.as_path());
        }
    }
    found
}

/// Ranks, lowest first: objects, ordinary files, refs, index and HEAD. `git_directory`: the whole part is one.
pub(crate) fn rank(path: &Path, git_directory: bool) -> u8 {
    let Some(inside) = (if git_directory { Some(path) } else { in_git(path) }) else { return 1 };
    let has = |name: &str| inside.iter().any(|part| part == OsStr::new(name));
    match () {
        () if has("objects") => 0,
        () if has("refs") || has("packed-refs") || has("logs") => 2,
        () => 3,
    }
}

/// A lock that git left behind: nothing that anybody wants.
pub(crate) fn is_lock(path: &Path, git_directory: bool) -> bool {
    (git_directory || in_git(path).is_some()) && path.extension() == Some(OsStr::new("lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_referred_to_comes_first() {
        let ranks = ["a/.git/objects/ab/cd", "src/objects", "a/.git/refs/heads/x", ".git/packed-refs", ".git/HEAD", ".git/index"];
        assert_eq!(ranks.map(|path| rank(Path::new(path), false)), [0, 1, 2, 2, 3, 3]);
        assert_eq!(["objects/ab", "refs/x", "HEAD"].map(|path| rank(Path::new(path), true)), [0, 2, 3]);
        assert!(is_lock(Path::new(".git/index.lock"), false) && is_lock(Path::new("HEAD.lock"), true));
        assert!(!is_lock(Path::new("Cargo.lock"), false));
    }
}
