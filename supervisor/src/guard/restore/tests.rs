use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::super::quarantine::Stage;
use super::*;

struct Case {
    _dir: tempfile::TempDir,
    tree: Tree,
    quarantine: Quarantine,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("ws")).unwrap();
        let tree = Tree::open(&dir.path().join("state"), &dir.path().join("ws"), true).unwrap().unwrap();
        let quarantine = Quarantine::new(&tree.state);
        quarantine.make().unwrap();
        Self { _dir: dir, tree, quarantine }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.tree.path.join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    fn restore(&self, entry: &Entry, content: &str, before: &str, force: bool) -> Result<Restored, Error> {
        let id = self.quarantine.add(entry, content.as_bytes(), before.as_bytes()).unwrap();
        restore(&self.tree, &self.quarantine, id, entry, force)
    }
}

fn entry(path: &str, before: Before) -> Entry {
    Entry {
        time: 0,
        path: path.into(),
        rule: "direnv".into(),
        runs: String::new(),
        why: String::new(),
        profile: String::new(),
        command: String::new(),
        run: String::new(),
        what: What::File,
        mode: 0o755,
        before,
        staged: false,
        stage: Stage::Done,
    }
}

fn config(before: Before) -> Entry {
    Entry { rule: "git-config".into(), mode: 0o600, ..entry(".git/config", before) }
}

#[test]
fn a_file_comes_back_with_its_mode_where_nothing_or_the_old_lies() {
    let case = Case::new();
    let new = entry("a/b/.envrc", Before::Absent);
    assert_eq!(case.restore(&new, "evil", "", false).unwrap(), Restored::Written);
    assert_eq!(case.read("a/b/.envrc"), "evil");
    assert_eq!(fs::metadata(case.at("a/b/.envrc")).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(case.restore(&new, "evil", "", false).unwrap(), Restored::WasThere);

    case.write(".envrc", "old");
    fs::hard_link(case.at(".envrc"), case.at("other-name")).unwrap();
    assert_eq!(case.restore(&entry(".envrc", Before::File(0o644)), "new", "old", false).unwrap(), Restored::Written);
    assert_eq!((case.read(".envrc"), case.read("other-name")), ("new".into(), "old".into()), "an inode of its own");
    let names = fs::read_dir(&case.tree.path).unwrap().count();
    assert_eq!(names, 3, "nothing temporary is left");
}

#[test]
fn the_same_text_with_another_mode_is_not_there_already() {
    let case = Case::new();
    case.write("hook", "same");
    assert_eq!(case.restore(&entry("hook", Before::File(0o644)), "same", "same", false).unwrap(), Restored::Written);
    assert_eq!(fs::metadata(case.at("hook")).unwrap().mode() & 0o777, 0o755);
    case.write("new", "same");
    assert_eq!(case.restore(&entry("new", Before::Absent), "same", "", false).unwrap(), Restored::Written);
    assert_eq!(fs::metadata(case.at("new")).unwrap().mode() & 0o777, 0o755);
    fs::hard_link(case.at("new"), case.at("other")).unwrap();
    assert_eq!(
        case.restore(&entry("new", Before::Absent), "same", "", false).unwrap(),
        Restored::Written,
        "other names lead to it"
    );
    assert_eq!(fs::metadata(case.at("new")).unwrap().nlink(), 1);
}

#[test]
fn what_came_since_stays_unless_forced() {
    let case = Case::new();
    case.write(".envrc", "mine");
    let old = entry(".envrc", Before::File(0o644));
    let refused = case.restore(&old, "new", "old", false).unwrap_err();
    assert!(refused.message.contains("something else") && refused.hints[0].contains("quarantine diff 1"), "{refused:?}");
    assert_eq!(case.read(".envrc"), "mine");
    assert_eq!(case.restore(&old, "new", "old", true).unwrap(), Restored::Written);
    assert_eq!(case.read(".envrc"), "new");

    fs::create_dir(case.at("dir")).unwrap();
    let refused = case.restore(&entry("dir", Before::Absent), "new", "", true).unwrap_err();
    assert!(refused.message.contains("a directory lies there"), "{refused:?}");
}

#[test]
fn nothing_is_written_through_a_symlink() {
    let case = Case::new();
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), case.at("dir")).unwrap();
    let refused = case.restore(&entry("dir/.envrc", Before::Absent), "evil", "", true).unwrap_err();
    assert!(refused.message.contains("a symlink or a file stands"), "{refused:?}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);

    fs::write(outside.path().join("target"), "old").unwrap();
    symlink(outside.path().join("target"), case.at(".envrc")).unwrap();
    case.restore(&entry(".envrc", Before::File(0o644)), "evil", "old", false).unwrap_err();
    case.restore(&entry(".envrc", Before::File(0o644)), "evil", "old", true).unwrap();
    assert_eq!(case.read(".envrc"), "evil");
    assert_eq!(fs::read_to_string(outside.path().join("target")).unwrap(), "old");
}

#[test]
fn symlinks_and_long_files_come_back_and_pipes_do_not() {
    let case = Case::new();
    case.write("link", "old");
    let link = Entry { what: What::Symlink, ..entry("link", Before::File(0o644)) };
    assert_eq!(case.restore(&link, "../x", "old", false).unwrap(), Restored::Written);
    assert_eq!(fs::read_link(case.at("link")).unwrap(), Path::new("../x"));
    assert_eq!(case.restore(&link, "../x", "old", false).unwrap(), Restored::WasThere);

    let long = Entry { what: What::LongFile, ..entry("long", Before::Absent) };
    assert_eq!(case.restore(&long, "as if long", "", false).unwrap(), Restored::Written);
    assert_eq!(case.read("long"), "as if long");
    assert!(case.quarantine.content_path(3).exists(), "a copy: the inode may have other names");

    let pipe = Entry { what: What::Special, ..entry("pipe", Before::Absent) };
    let refused = case.restore(&pipe, "", "", true).unwrap_err();
    assert!(refused.message.contains("pipe") && refused.hints[0].contains("discard 4"), "{refused:?}");
}

#[test]
fn git_configuration_goes_where_the_host_has_what_the_guard_left() {
    const BEFORE: &str = "[core]\n\tbare = false\n";
    const PLANTED: &str = "[core]\n\tbare = false\n\tfsmonitor = ./x\n[branch \"m\"]\n\tremote = origin\n";
    let case = Case::new();
    fs::create_dir(case.at(".git")).unwrap();
    let merged = git_config::merge(BEFORE.as_bytes(), PLANTED.as_bytes(), BEFORE.as_bytes()).unwrap();
    assert!(!merged.refused.is_empty());
    let merged = String::from_utf8(merged.text).unwrap();
    for host in [BEFORE.to_owned(), merged.clone(), merged + "\n\n\n"] {
        case.write(".git/config", &host);
        fs::set_permissions(case.at(".git/config"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(case.restore(&config(Before::File(0o644)), PLANTED, BEFORE, false).unwrap(), Restored::Written, "{host}");
        assert_eq!(case.read(".git/config"), PLANTED);
        assert_eq!(fs::metadata(case.at(".git/config")).unwrap().mode() & 0o777, 0o640, "the host's own mode");
        assert!(!case.at(".git/config.lock").exists());
        assert_eq!(case.restore(&config(Before::File(0o644)), PLANTED, BEFORE, false).unwrap(), Restored::WasThere);
    }
}

#[test]
fn git_configuration_comes_back_beside_what_the_host_changed_since() {
    const BEFORE: &str = "[core]\n\tbare = false\n\tsshcommand = ssh\n";
    const PLANTED: &str = "[core]\n\tbare = false\n\tfsmonitor = ./x\n\thookspath\n[user]\n\tname = inside\n\
                           [submodule \"s\"]\n\turl = ./s\n";
    let case = Case::new();
    fs::create_dir(case.at(".git")).unwrap();
    let restore = |host: &str, force| {
        case.write(".git/config", host);
        let restored = case.restore(&config(Before::File(0o644)), PLANTED, BEFORE, force);
        (restored, case.read(".git/config"))
    };
    // What the guard left, with the address that it knew to lead into the tree, and what the host did to it.
    let left = BEFORE.to_owned() + "[submodule \"s\"]\n\turl = ./s\n[user]\n\tname = HOST\n# mine\n[alias]\n\tx = !own\n";
    for force in [false, true] {
        let (restored, text) = restore(&left, force);
        assert_eq!(restored.unwrap(), Restored::Written);
        for kept in ["name = HOST", "# mine", "x = !own", "url = ./s", "fsmonitor = ./x", "hookspath"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        assert!(!text.contains("sshcommand") && !text.contains("inside") && text.matches("url").count() == 1, "{text}");
    }
    // The same key.
    let contested = left + "[core]\n\tfsmonitor = own\n";
    let (refused, text) = restore(&contested, false);
    let refused = refused.unwrap_err();
    assert!(refused.message.contains("core.fsmonitor is something else") && refused.hints[0].contains("--force"), "{refused:?}");
    assert_eq!(text, contested);
    let (restored, text) = restore(&contested, true);
    assert_eq!(restored.unwrap(), Restored::Written);
    assert!(text.contains("fsmonitor = ./x") && !text.contains("= own") && text.contains("name = HOST"), "{text}");
    // What is no configuration cannot be taken apart.
    assert!(restore("[core\n", false).0.unwrap_err().message.contains("something else lies there"));
    assert_eq!(restore("[core\n", true).1, PLANTED);
}

#[test]
fn git_configuration_that_git_writes_just_now_stays() {
    let case = Case::new();
    fs::create_dir(case.at(".git")).unwrap();
    case.write(".git/config", "");
    case.write(".git/config.lock", "git's");
    let refused = case.restore(&config(Before::File(0o644)), "[core]\n\tfsmonitor = x\n", "", false).unwrap_err();
    assert!(refused.message.contains("lock") && refused.hints[0].contains(".git/config.lock"), "{refused:?}");
    assert_eq!((case.read(".git/config"), case.read(".git/config.lock")), (String::new(), "git's".into()));

    fs::remove_file(case.at(".git/config.lock")).unwrap();
    let refused =
        shadow::under_lock(&case.tree, Path::new(".git/config"), |_| Err(io::ErrorKind::Interrupted.into())).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Interrupted);
    assert!(!case.at(".git/config.lock").exists() && case.read(".git/config").is_empty());
}
