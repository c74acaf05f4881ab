//! Excused by version control: with the git of this machine, and with repositories that lie.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Case;
use crate::args::TierArg;
use crate::guard::history::{Budget, Tips, Tracked, Wanted, tips, tracked};

pub(crate) const CASES: &[Case] = &[
    ("what a ref named before is excused", every_ref),
    ("so it is in a packed repository", packed),
    ("so it is with borrowed objects", borrowed),
    ("so it is in a SHA-256 repository", sha256),
    ("so it is in a linked worktree, a submodule and a shallow clone", other_git_directories),
    ("the path, the kind and every byte count", path_and_kind),
    ("what was committed since is not excused", committed_since),
    ("replacements and grafts change nothing", replaced),
    ("an object that is not what its name says is nothing", forged),
    ("a FIFO in the place of an object or an index costs the budget and no more", fifos),
    ("an object directory that is none any more excuses nothing", objects_replaced),
    ("objects of any size do no harm", giants),
    ("a long history is looked through, as far as the budget goes", long_history),
    ("a thousand refs are read", many_refs),
    ("without git nothing is excused", without_git),
];

const FILE: &str = ".vscode/settings.json";
/// Contents of [`FILE`] that [`populate`] leaves reachable.
const KNOWN: [&str; 6] = ["main", "old", "branch", "tagged", "remote", "stashed"];

struct Repository(tempfile::TempDir);

impl Repository {
    fn new(options: &[&str]) -> Self {
        let new = Self(tempfile::tempdir().unwrap());
        new.git(&[&["init", "-q", "-b", "main"], options].concat());
        new
    }

    /// One with a commit for each of [`KNOWN`], each reachable from another kind of ref.
    fn populated(options: &[&str]) -> Self {
        let new = Self::new(options);
        new.commit("old");
        new.commit("main");
        for (name, keep) in [("branch", None), ("tagged", Some(["tag", "-am", "t"])), ("remote", None)] {
            new.git(&["checkout", "-qb", name, "main"]);
            new.commit(name);
            if let Some([tag, flags, text]) = keep {
                new.git(&[tag, flags, text, "inner"]);
                new.git(&[tag, flags, text, "outer", "inner"]);
            }
        }
        new.git(&["update-ref", "refs/remotes/origin/x", "remote"]);
        new.git(&["checkout", "-q", "main"]);
        new.git(&["branch", "-qD", "tagged", "remote"]);
        new.git(&["tag", "-d", "inner"]);
        new.put(FILE, "stashed");
        new.git(&["stash", "-q"]);
        new
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn git_dir(&self) -> PathBuf {
        self.path().join(".git")
    }

    fn git(&self, args: &[&str]) -> String {
        git_in(self.path(), args, b"")
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Commits [`FILE`]; the commit's id.
    fn commit(&self, content: &str) -> String {
        self.put(FILE, content);
        self.git(&["add", "-A"]);
        self.git(&["commit", "-qm", content]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn object(&self, id: &str) -> PathBuf {
        self.git_dir().join("objects").join(&id[..2]).join(&id[2..])
    }

    /// Puts the loose object `other` under the name `id`.
    fn forge(&self, id: &str, other: &str) {
        fs::remove_file(self.object(id)).unwrap();
        fs::copy(self.object(other), self.object(id)).unwrap();
    }
}

fn git_in(dir: &Path, args: &[&str], input: &[u8]) -> String {
    let mut command = Command::new("git");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(name);
    }
    let settings = ["user.name=t", "user.email=t@t", "gc.auto=0", "core.autocrlf=false", "protocol.file.allow=always"];
    let from = tempfile::tempfile().unwrap();
    fs::write(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&from)), input).unwrap();
    let output = command
        .args(settings.iter().flat_map(|setting| ["-c", setting]))
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_DATE", "2020-01-01T00:00:00Z")
        .env("GIT_COMMITTER_DATE", "2020-01-01T00:00:00Z")
        .stdin(Stdio::from(from))
        .output()
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Long enough for a busy machine.
const PATIENT: Budget = Budget { time: Duration::from_secs(30), commits: 50_000 };
const HASTY: Budget = Budget { time: Duration::from_millis(1500), commits: 50_000 };

fn file<'a>(path: &'a str, content: &'a str) -> Wanted<'a> {
    Wanted { path: Path::new(path), content: content.as_bytes(), symlink: false, crlf: false }
}

fn ask(tips: &Tips, contents: &[&str], tier: TierArg, budget: Budget) -> Tracked {
    let wanted: Vec<_> = contents.iter().map(|content| file(FILE, content)).collect();
    tracked(tips, &wanted, Some(tier), budget)
}

/// All that is known is excused, and something else is not.
fn assert_known(tips: &Tips, known: &[&str], tier: TierArg) {
    let contents = [known, &["never"]].concat();
    let mut excused = vec![true; known.len()];
    excused.push(false);
    assert_eq!(ask(tips, &contents, tier, PATIENT), Tracked { excused, incomplete: None }, "{contents:?}");
}

fn every_ref(tier: TierArg) {
    let repository = Repository::populated(&[]);
    assert_known(&tips(&repository.git_dir()), &KNOWN, tier);
    repository.git(&["checkout", "-q", "--detach"]);
    repository.commit("detached");
    assert_known(&tips(&repository.git_dir()), &["detached"], tier);
}

fn packed(tier: TierArg) {
    let repository = Repository::populated(&[]);
    let before = tips(&repository.git_dir());
    repository.git(&["gc", "-q", "--prune=now"]);
    assert!(!repository.git_dir().join("refs/heads/main").exists());
    assert_known(&tips(&repository.git_dir()), &KNOWN, tier);
    assert_known(&before, &KNOWN, tier);
}

fn borrowed(tier: TierArg) {
    let repository = Repository::populated(&[]);
    let clone = Repository(tempfile::tempdir().unwrap());
    clone.git(&["clone", "-q", "--shared", repository.path().to_str().unwrap(), "."]);
    clone.commit("own");
    let before = tips(&clone.git_dir());
    assert_known(&before, &["own", "main", "old", "branch", "tagged"], tier);
    // What it borrowed from then is remembered.
    let other = Repository::new(&[]);
    other.commit("other");
    let alternates = clone.git_dir().join("objects/info/alternates");
    fs::write(&alternates, format!("{}/objects\n", other.git_dir().display())).unwrap();
    assert_known(&before, &["own", "main"], tier);
}

fn sha256(tier: TierArg) {
    let repository = Repository::populated(&["--object-format=sha256"]);
    assert_known(&tips(&repository.git_dir()), &KNOWN, tier);
}

fn other_git_directories(tier: TierArg) {
    let repository = Repository::populated(&[]);
    let place = tempfile::tempdir().unwrap();
    let at = place.path().join("worktree");
    repository.git(&["worktree", "add", "-q", "--detach", at.to_str().unwrap()]);
    fs::create_dir_all(at.join(".vscode")).unwrap();
    fs::write(at.join(FILE), "worktree").unwrap();
    git_in(&at, &["commit", "-qam", "w"], b"");
    for git_dir in [repository.git_dir().join("worktrees/worktree"), repository.git_dir()] {
        assert_known(&tips(&git_dir), &["worktree", "main", "old", "branch"], tier);
    }

    let outer = Repository::new(&[]);
    outer.git(&["submodule", "--quiet", "add", repository.path().to_str().unwrap(), "module"]);
    assert_known(&tips(&outer.git_dir().join("modules/module")), &["main", "old", "branch"], tier);

    let shallow = Repository(tempfile::tempdir().unwrap());
    let url = format!("file://{}", repository.path().display());
    shallow.git(&["clone", "-q", "--depth=1", "--single-branch", "--branch=main", &url, "."]);
    let asked = ask(&tips(&shallow.git_dir()), &["main", "old"], tier, PATIENT);
    assert_eq!(asked, Tracked { excused: vec![true, false], incomplete: None });
}

fn path_and_kind(tier: TierArg) {
    let repository = Repository::new(&[]);
    repository.put("deep/er/run", "script");
    repository.put("lines", "a\nb\n");
    symlink("deep/er", repository.path().join("link")).unwrap();
    symlink("x", repository.path().join("deep/link")).unwrap();
    repository.git(&["add", "-A"]);
    repository.git(&["update-index", "--chmod=+x", "deep/er/run"]);
    repository.git(&["commit", "-qm", "x"]);
    let tips = tips(&repository.git_dir());
    let link = |path, content| Wanted { symlink: true, ..file(path, content) };
    let crlf = |path, content| Wanted { crlf: true, ..file(path, content) };
    let cases = [
        (file("deep/er/run", "script"), true),
        (file("deep/er/run", "Script"), false),
        (file("deep/er/walk", "script"), false),
        (file("run", "script"), false),
        (file("deep/er/run/run", "script"), false),
        (file("deep", "script"), false),
        (link("link", "deep/er"), true),
        (link("deep/link", "x"), true),
        (file("link", "deep/er"), false),
        (link("deep/er/run", "script"), false),
        (file("link/run", "script"), false),
        (file("lines", "a\nb\n"), true),
        (crlf("lines", "a\r\nb\r\n"), true),
        (file("lines", "a\r\nb\r\n"), false),
        (crlf("lines", "a\r\nb\n"), false),
    ];
    let wanted: Vec<_> = cases.iter().map(|(wanted, _)| *wanted).collect();
    let expected: Vec<_> = cases.iter().map(|(_, excused)| *excused).collect();
    assert_eq!(tracked(&tips, &wanted, Some(tier), PATIENT), Tracked { excused: expected, incomplete: None });
}

fn committed_since(tier: TierArg) {
    let repository = Repository::populated(&[]);
    let before = tips(&repository.git_dir());
    repository.commit("committed");
    repository.git(&["tag", "-am", "t", "new"]);
    let after = tips(&repository.git_dir());
    assert_eq!(ask(&before, &["committed", "main"], tier, PATIENT).excused, [false, true]);
    assert_eq!(ask(&after, &["committed", "main"], tier, PATIENT).excused, [true, true]);
    // The next sandbox starts with what the last one left.
    let mut next = after.clone();
    next.distrust(after.since(&before));
    assert_eq!(ask(&next, &["committed", "main"], tier, PATIENT).excused, [false, true]);
    // So does a commit on top of it.
    repository.commit("on top");
    let mut top = tips(&repository.git_dir());
    top.distrust(after.since(&before));
    assert_eq!(ask(&top, &["committed", "on top", "main"], tier, PATIENT).excused, [false, true, true]);
}

fn replaced(tier: TierArg) {
    let repository = Repository::populated(&[]);
    let tracked = repository.git(&["rev-parse", "main"]);
    let before = tips(&repository.git_dir());
    let hostile = repository.commit("hostile");
    repository.git(&["replace", &tracked, &hostile]);
    fs::create_dir_all(repository.git_dir().join("info")).unwrap();
    fs::write(repository.git_dir().join("info/grafts"), format!("{tracked} {hostile}\n")).unwrap();
    fs::write(repository.git_dir().join("shallow"), format!("{tracked}\n")).unwrap();
    assert_eq!(repository.git(&["show", &format!("{tracked}:{FILE}")]), "hostile", "git itself is deceived");
    assert_eq!(ask(&before, &["hostile", "main", "old"], tier, PATIENT).excused, [false, true, true]);
}

fn forged(tier: TierArg) {
    // A commit, a tree at the top, a tree below it; and a parent that leads in a circle.
    for (victim, liar) in [("HEAD", "evil"), ("HEAD^{tree}", "evil^{tree}"), ("HEAD:.vscode", "evil:.vscode"), ("HEAD", "HEAD~2")]
    {
        let repository = Repository::new(&[]);
        for content in ["oldest", "old", "main"] {
            repository.commit(content);
        }
        repository.git(&["checkout", "-q", "-b", "evil"]);
        repository.commit("hostile");
        repository.git(&["checkout", "-q", "main"]);
        let [victim, liar] = [victim, liar].map(|name| repository.git(&["rev-parse", name]));
        let before = {
            repository.git(&["branch", "-m", "evil", "hidden"]);
            let evil = repository.git(&["rev-parse", "hidden"]);
            repository.git(&["branch", "-qD", "hidden"]);
            let before = tips(&repository.git_dir());
            repository.git(&["branch", "hidden", &evil]);
            before
        };
        assert_eq!(ask(&before, &["hostile", "main"], tier, PATIENT).excused, [false, true]);
        repository.forge(&victim, &liar);
        assert_eq!(ask(&before, &["hostile", "main"], tier, PATIENT).excused, [false, false], "{victim}");
    }
    // Bytes that are no object at all.
    let repository = Repository::new(&[]);
    let main = repository.object(&repository.commit("main"));
    let before = tips(&repository.git_dir());
    assert_eq!(ask(&before, &["main"], tier, PATIENT).excused, [true]);
    fs::remove_file(&main).unwrap();
    fs::write(&main, b"no zlib stream").unwrap();
    assert_eq!(ask(&before, &["main"], tier, PATIENT).excused, [false]);
}

fn fifos(tier: TierArg) {
    let make = |path: &Path| {
        fs::remove_file(path).unwrap();
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    };
    let check = |repository: &Repository, contents: &[&str], excused: &[bool]| {
        let began = Instant::now();
        let asked = ask(&tips(&repository.git_dir()), contents, tier, HASTY);
        assert_eq!(asked.excused, excused);
        assert!(asked.incomplete.unwrap().contains("longer than"));
        assert!(began.elapsed() < HASTY.time + Duration::from_secs(2), "{:?}", began.elapsed());
    };
    let repository = Repository::populated(&[]);
    make(&repository.object(&repository.git(&["rev-parse", "main~1"])));
    check(&repository, &["main", "old"], &[true, false]);

    let repository = Repository::populated(&[]);
    let alternates = repository.git_dir().join("objects/info/alternates");
    fs::write(&alternates, "").unwrap();
    make(&alternates);
    check(&repository, &["main"], &[false]);

    let repository = Repository::populated(&[]);
    repository.git(&["gc", "-q", "--prune=now"]);
    let pack = repository.git_dir().join("objects/pack");
    let index =
        fs::read_dir(&pack).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.extension() == Some("idx".as_ref()));
    make(&index.unwrap());
    check(&repository, &["main"], &[false]);
}

fn objects_replaced(tier: TierArg) {
    let repository = Repository::populated(&[]);
    let (before, objects) = (tips(&repository.git_dir()), repository.git_dir().join("objects"));
    assert_eq!(ask(&before, &["main"], tier, PATIENT).excused, [true]);
    fs::rename(&objects, repository.path().join("moved")).unwrap();
    let refused = |what: &str| {
        let asked = ask(&before, &["main"], tier, HASTY);
        assert!(!asked.excused[0] && asked.incomplete.is_some(), "{what}: {asked:?}");
    };
    refused("nothing");
    symlink("objects", &objects).unwrap();
    refused("a symlink to itself");
    fs::remove_file(&objects).unwrap();
    symlink("/", &objects).unwrap();
    refused("a symlink to everything");
    fs::remove_file(&objects).unwrap();
    nix::unistd::mkfifo(&objects, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused("a FIFO");
}

fn giants(tier: TierArg) {
    let repository = Repository::populated(&[]);
    // A blob where a tree was: 200 MB.
    repository.put("zeros", vec![0; 200 << 20]);
    let giant = repository.git(&["hash-object", "-w", "zeros"]);
    fs::remove_file(repository.path().join("zeros")).unwrap();
    let before = tips(&repository.git_dir());
    repository.forge(&repository.git(&["rev-parse", "branch:.vscode"]), &giant);
    let asked = ask(&before, &["branch", "main"], tier, PATIENT);
    assert_eq!((asked.excused, asked.incomplete), (vec![false, true], None));

    // A tree of a million entries, all in order.
    let blob = repository.git(&["rev-parse", &format!("main:{FILE}")]);
    let raw: Vec<u8> = (0..40).step_by(2).map(|at| u8::from_str_radix(&blob[at..at + 2], 16).unwrap()).collect();
    let mut tree = Vec::new();
    for n in 0..1_000_000 {
        tree.extend_from_slice(format!("100644 {n:07}\0").as_bytes());
        tree.extend_from_slice(&raw);
    }
    let tree = git_in(repository.path(), &["hash-object", "-t", "tree", "-w", "--stdin", "--literally"], &tree);
    let commit = repository.git(&["commit-tree", "-m", "wide", "-p", "main", &tree]);
    repository.git(&["update-ref", "refs/heads/main", &commit]);
    let wanted = [file("0000007", "main"), file(FILE, "old")];
    let asked = tracked(&tips(&repository.git_dir()), &wanted, Some(tier), PATIENT);
    assert_eq!((asked.excused, asked.incomplete), (vec![false, true], None));

    // A header that promises a terabyte.
    let victim = repository.object(&repository.git(&["rev-parse", "branch"]));
    fs::remove_file(&victim).unwrap();
    fs::write(&victim, stored(format!("tree {}\0", 1u64 << 40).as_bytes())).unwrap();
    let began = Instant::now();
    assert!(!ask(&tips(&repository.git_dir()), &["branch"], tier, PATIENT).excused[0]);
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// A zlib stream (RFC 1950) of one stored block.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let (mut a, mut b) = (1u32, 0u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    let length = bytes.len() as u16;
    [&[0x78, 0x01, 1], &length.to_le_bytes()[..], &(!length).to_le_bytes(), bytes, &(b << 16 | a).to_be_bytes()].concat()
}

fn many_refs(tier: TierArg) {
    let repository = Repository::new(&[]);
    let main = repository.commit("main");
    let measure = |what: &str| {
        let began = Instant::now();
        let found: Vec<Tips> = (0..20).map(|_| tips(&repository.git_dir())).collect();
        println!("tips, {what}: {:?}", began.elapsed() / 20);
        found.into_iter().next().unwrap()
    };
    measure("one branch");
    for n in 0..1000 {
        fs::write(repository.git_dir().join(format!("refs/heads/b{n}")), format!("{main}\n")).unwrap();
    }
    let found = measure("1000 loose refs");
    assert_known(&found, &["main"], tier);
    repository.git(&["pack-refs", "--all"]);
    assert_eq!(measure("1001 packed refs"), found);
}

fn long_history(tier: TierArg) {
    let repository = Repository::new(&[]);
    let mut stream = String::new();
    for n in 0..1000 {
        let settings = if n < 10 { "first" } else { "later" };
        stream += &format!("commit refs/heads/main\ncommitter T <t@t> {n} +0000\ndata 1\nx\n");
        stream += &format!("M 644 inline {FILE}\ndata {}\n{settings}\nM 644 inline other\ndata <<E\n{n}\nE\n\n", settings.len());
    }
    git_in(repository.path(), &["fast-import", "--quiet"], stream.as_bytes());
    let tips = tips(&repository.git_dir());
    let began = Instant::now();
    let asked = ask(&tips, &["first", "later", "never"], tier, PATIENT);
    println!("1000 commits to the end: {:?}", began.elapsed());
    assert_eq!(asked, Tracked { excused: vec![true, true, false], incomplete: None });
    let short = ask(&tips, &["first", "later"], tier, Budget { commits: 500, ..PATIENT });
    assert_eq!(short.excused, [false, true]);
    assert!(short.incomplete.unwrap().contains("500 commits"));
}

/// This process cannot change its `PATH` safely; another one of it can.
fn without_git(tier: TierArg) {
    let repository = Repository::populated(&[]);
    let before = tips(&repository.git_dir());
    assert_eq!(ask(&before, &["main"], tier, PATIENT).excused, [true]);
    let tools = repository.git_dir().join("objects/tools");
    fs::create_dir(&tools).unwrap();
    for name in ["sh", "mkdir"] {
        symlink(Path::new("/bin").join(name), tools.join(name)).unwrap();
    }
    for (path, why) in [(tools.as_path(), "git is not to be had"), (Path::new("/nowhere"), "could not be run")] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ask", &format!("{tier:?}")])
            .arg(repository.git_dir())
            .env("PATH", path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("[false]") && said.contains(why), "{said} {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The other process.
pub(crate) fn ask_for_main(tier: &str, git_dir: &Path) {
    let tier = if tier == "Landlock" { TierArg::Landlock } else { TierArg::Namespaces };
    println!("{:?}", ask(&tips(git_dir), &["main"], tier, PATIENT));
}
