#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

use super::walk::MOST_KEPT;
use super::*;

/// `.envrc` everywhere, `config` and `hooks/*` in git directories.
struct Few;

impl Rules for Few {
    type Scope = ();

    fn scope(&self, _: &Path) {}

    fn wants(&self, (): &(), directory: &Path, git: Option<&Path>, name: &OsStr, _: bool) -> Wanted {
        let inside = git.map(|git| directory.strip_prefix(git).unwrap().join(name));
        match inside {
            None if name == ".envrc" => Wanted::Kept,
            None if name == "watched" => Wanted::Watched,
            Some(inside) if inside == Path::new("config") || inside.starts_with("hooks") => Wanted::Kept,
            _ => Wanted::No,
        }
    }

    fn is_in_git_tree(&self) -> bool {
        false
    }

    fn skips(&self, directory: &Path) -> bool {
        directory == Path::new("skipped")
    }
}

struct Tree {
    dir: tempfile::TempDir,
    root: Root,
    dev: u64,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let dev = fs::metadata(dir.path()).unwrap().dev();
        Self { dir, root, dev }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn look(&self, old: Option<&Snapshot>) -> Snapshot {
        Snapshot::take(&self.root, self.dev, &Few, "1", old).unwrap()
    }

    /// What changed since `before`, found the quick way; the slow way must agree.
    fn changes(&self, before: &Snapshot) -> Vec<String> {
        let quick = self.look(Some(before));
        let slow = self.look(None);
        let words = |now: &Snapshot| {
            let (changes, links) = before.changes(now);
            let word = |change: &Change| match (&change.before, &change.now) {
                (None, Some(_)) => '+',
                (Some(_), None) => '-',
                _ => '*',
            };
            let mut words: Vec<String> =
                changes.iter().map(|change| format!("{}{}", word(change), change.path.display())).collect();
            words.extend(links.iter().map(|(path, target)| format!("@{}>{}", path.display(), target.display())));
            words.sort();
            words
        };
        assert_eq!(words(&quick), words(&slow));
        words(&quick)
    }

    /// Times of the file system are coarse: what a test does next must be later than what was there.
    fn settle(&self) -> Snapshot {
        std::thread::sleep(Duration::from_millis(30));
        let first = self.look(None);
        let again = self.look(Some(&first));
        assert!(!again.renewed, "nothing changed, so nothing is read");
        again
    }
}

#[test]
fn every_way_to_plant_is_found() {
    let tree = Tree::new();
    for path in ["a/x", "a/deep/.envrc", "b/x", "b/.envrc", "c/d/e/f", "skipped/.envrc", ".envrc"] {
        tree.write(path, path);
    }
    fs::write(tree.at("ordinary"), "1").unwrap();
    fs::hard_link(tree.at(".envrc"), tree.at("alias")).unwrap();
    let ready = tempfile::tempdir_in(tree.dir.path().parent().unwrap()).unwrap();
    fs::create_dir_all(ready.path().join("t/u")).unwrap();
    fs::write(ready.path().join("t/u/.envrc"), "ready").unwrap();
    let before = tree.settle();

    assert!(tree.changes(&before).is_empty());
    tree.write("c/d/e/.envrc", "deep");
    fs::rename(ready.path().join("t"), tree.at("c/t")).unwrap();
    assert_eq!(tree.changes(&before), ["+c/d/e/.envrc", "+c/t/u/.envrc"]);
    fs::remove_file(tree.at("c/d/e/.envrc")).unwrap();
    fs::remove_dir_all(tree.at("c/t")).unwrap();

    fs::rename(tree.at("a"), tree.at("z")).unwrap();
    assert_eq!(tree.changes(&before), ["+z/deep/.envrc", "-a/deep/.envrc"]);
    fs::rename(tree.at("b"), tree.at("a")).unwrap();
    fs::rename(tree.at("z"), tree.at("b")).unwrap();
    assert_eq!(tree.changes(&before), ["+a/.envrc", "+b/deep/.envrc", "-a/deep/.envrc", "-b/.envrc"]);
    fs::rename(tree.at("a"), tree.at("z")).unwrap();
    fs::rename(tree.at("b"), tree.at("a")).unwrap();
    fs::rename(tree.at("z"), tree.at("b")).unwrap();
    assert!(tree.changes(&before).is_empty(), "back again, only the times differ");

    fs::write(tree.at("alias"), "through another name").unwrap();
    assert_eq!(tree.changes(&before), ["*.envrc"]);
    fs::write(tree.at("alias"), ".envrc").unwrap();
    assert!(tree.changes(&before).is_empty());

    fs::remove_file(tree.at("b/.envrc")).unwrap();
    fs::hard_link(tree.at("ordinary"), tree.at("b/.envrc")).unwrap();
    symlink("../ordinary", tree.at("c/.envrc")).unwrap();
    symlink("/etc/passwd", tree.at("c/out")).unwrap();
    tree.write("skipped/.envrc", "as you like");
    assert_eq!(tree.changes(&before), ["*b/.envrc", "+c/.envrc", "@c/out>/etc/passwd"]);
    fs::remove_file(tree.at("c/.envrc")).unwrap();
    fs::create_dir(tree.at("c/.envrc")).unwrap();
    fs::remove_file(tree.at(".envrc")).unwrap();
    nix::unistd::mkfifo(&tree.at(".envrc"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(tree.changes(&before), ["**.envrc".replace("**", "*"), "*b/.envrc".into(), "@c/out>/etc/passwd".into()]);
}

#[test]
fn git_directories_are_known_by_what_they_hold() {
    let tree = Tree::new();
    tree.write(".git/config", "c");
    tree.write(".git/HEAD", "h");
    tree.write(".git/objects/config", "not read");
    tree.write(".git/modules/sub/config", "m");
    for name in ["HEAD", "objects/x", "refs/x"] {
        tree.write(&format!(".git/modules/sub/{name}"), "");
    }
    tree.write("plain/config", "none of ours");
    let before = tree.settle();
    let held: Vec<PathBuf> = before.held().map(|(path, ..)| path).collect();
    assert_eq!(held, [Path::new(".git/config"), Path::new(".git/modules/sub/config")]);
    assert_eq!(before.git_dirs(), [Path::new(".git"), Path::new(".git/modules/sub")]);

    for name in ["HEAD", "objects/x", "refs/x", "hooks/post-checkout"] {
        tree.write(&format!("plain/{name}"), "");
    }
    assert_eq!(tree.changes(&before), ["+plain/config", "+plain/hooks/post-checkout"]);
    assert_eq!(tree.look(Some(&before)).git_dirs().len(), 3);
}

#[test]
fn a_git_directory_with_objects_and_refs_elsewhere_is_one() {
    let tree = Tree::new();
    tree.write("apart/config", "c");
    tree.write("apart/commondir", "../other");
    let before = tree.settle();
    assert_eq!(before.held().count(), 0);
    tree.write("apart/HEAD", "ref: refs/heads/main");
    tree.write(".git/worktrees/w/HEAD", "ref: refs/heads/w");
    tree.write(".git/worktrees/w/commondir", "../..");
    assert_eq!(tree.changes(&before), ["+apart/config"]);
    assert_eq!(tree.look(None).git_dirs(), [Path::new(".git"), Path::new("apart")], "a linked worktree's is none of its own");
}

#[test]
fn only_git_keeps_its_data_to_itself() {
    let tree = Tree::new();
    let before = tree.settle();
    for git in ["looks", ".git"] {
        for name in ["HEAD", "objects/a/config", "refs/config"] {
            tree.write(&format!("{git}/{name}"), "x");
        }
    }
    tree.write("looks/objects/a/HEAD", "");
    tree.write("looks/objects/a/commondir", "");
    assert_eq!(tree.changes(&before), ["+looks/objects/a/config"]);
}

#[test]
fn a_second_look_reads_only_what_changed() {
    let tree = Tree::new();
    for n in 0..20 {
        tree.write(&format!("d{n}/f"), "x");
    }
    tree.write("d0/.envrc", "1");
    tree.write("watched", "1");
    let before = tree.settle();
    for n in 0..500 {
        fs::write(tree.at(&format!("d{}/f", n % 20)), "rewritten in place").unwrap();
    }
    assert!(!tree.look(Some(&before)).renewed);
    tree.write("watched", "2");
    assert_eq!(tree.changes(&before), ["*watched"]);
    tree.write("d0/.envrc", "2");
    assert_eq!(tree.changes(&before), ["*d0/.envrc", "*watched"]);
    let other = Snapshot::take(&tree.root, tree.dev, &Few, "2", Some(&before)).unwrap();
    assert!(other.renewed, "by other rules all is looked at again");
}

#[test]
fn a_corrected_look_believes_the_earlier_one() {
    let tree = Tree::new();
    tree.write("a/.envrc", "mine");
    tree.write("b/.envrc", "gone");
    let truth = tree.settle();
    tree.write("a/.envrc", "planted");
    tree.write("c/.envrc", "planted");
    fs::remove_file(tree.at("b/.envrc")).unwrap();
    let mut later = tree.look(Some(&truth));
    later.correct(&truth);
    assert_eq!(tree.changes(&later), ["*a/.envrc", "+c/.envrc", "-b/.envrc"]);
}

#[test]
fn a_tree_that_is_gone_is_an_error_and_what_cannot_be_read_is_left_out() {
    let tree = Tree::new();
    tree.write("locked/.envrc", "1");
    let before = tree.settle();
    fs::remove_dir_all(tree.at("locked")).unwrap();
    assert_eq!(tree.changes(&before), ["-locked/.envrc"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(Root::open(file.path()).is_err());
}

#[test]
fn many_large_files_are_watched_and_not_kept() {
    let tree = Tree::new();
    tree.write("own/.envrc", "kept");
    let before = tree.settle();
    for index in 0..20 {
        tree.write(&format!("{index}/.envrc"), "");
        fs::File::options().write(true).open(tree.at(&format!("{index}/.envrc"))).unwrap().set_len(LONGEST).unwrap();
    }
    for now in [tree.look(Some(&before)), tree.look(None)] {
        let kept: u64 = now.held().map(|(.., held)| held.length()).sum();
        assert_eq!(now.held().count(), 21);
        assert!((LONGEST..=MOST_KEPT + 4).contains(&kept), "{kept}");
    }
    let now = tree.look(Some(&before));
    let own = now.held().find(|(path, ..)| path == Path::new("own/.envrc")).unwrap();
    assert_eq!(own.2.is, Is::File(b"kept".to_vec()), "what is known already is not read again");
}

#[test]
fn what_lies_in_hooks_is_no_repository_and_what_lies_around_may_become_one() {
    let tree = Tree::new();
    for path in [
        "a/HEAD",
        "a/objects/x",
        "a/refs/x",
        "a/hooks/post-commit",
        "b/hooks/post-commit",
        "c/hooks/HEAD",
        "c/hooks/objects/x",
        "c/hooks/refs/x",
        "c/hooks/post-commit",
    ] {
        tree.write(path, path);
    }
    let before = tree.settle();
    fs::write(tree.at("a/hooks/post-commit"), "evil").unwrap();
    fs::write(tree.at("b/hooks/post-commit"), "evil").unwrap();
    for path in [
        "a/hooks/HEAD",
        "a/hooks/objects/x",
        "a/hooks/refs/x",
        "b/HEAD",
        "b/objects/x",
        "b/refs/x",
        "c/HEAD",
        "c/objects/x",
        "c/refs/x",
    ] {
        tree.write(path, path);
    }
    let changes = tree.changes(&before);
    for change in ["*a/hooks/post-commit", "+a/hooks/HEAD", "+b/hooks/post-commit", "+c/hooks/post-commit"] {
        assert!(changes.contains(&change.to_owned()), "{change}: {changes:?}");
    }
}
