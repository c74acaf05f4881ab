//! Supervisor, init or job are killed at random moments under load, while the user edits the same workspace outside.
//! The next command settles: no plant survives, no edit of the user is lost, nothing else appears.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hermes_tests::{Live, PYTHON, Sandbox, need, run_to_end, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Plants and works until it is killed, or for so many milliseconds.
const LOAD: &str = r##"
import itertools, os, sys, time
end = time.time() + float(sys.argv[1]) / 1000
def write(path, text, mode="w"):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, mode) as f: f.write(text)
def tree(n):
    write("load/stage/sub/.envrc", "PLANT %d" % n); os.rename("load/stage", "load/t%d" % (n % 3))
def relink(n):
    os.path.lexists("load/l/.envrc") and os.unlink("load/l/.envrc")
    write("load/l/x", "work"); os.symlink("x", "load/l/.envrc")
def moved(n):
    write("own/x", "PLANT %d" % n); os.rename("own/x", "own/.envrc")
steps = [
    lambda n: write("load/d%d/.envrc" % (n % 5), "PLANT %d" % n),
    lambda n: write("load/.vscode/tasks.json", '{"tasks":[{"command":"PLANT","runOptions":{"runOn":"folderOpen"}}]}'),
    lambda n: write("own/.envrc", "PLANT", "a"),
    lambda n: write("repo/.git/hooks/pre-commit", "#!/bin/sh\necho PLANT\n"),
    lambda n: write("repo/.git/config", '[core]\n\tfsmonitor = "PLANT"\n', "a"),
    lambda n: write("repo/.git/commondir", "../PLANT\n"),
    lambda n: write("load/work-%d" % (n % 7), "work %d" % n),
    tree, relink, moved,
]
for n in itertools.count():
    if time.time() > end: break
    for step in steps:
        try: step(n)
        except OSError: pass
"##;

/// Names that the load makes below `load`.
const LOAD_NAMES: &[&str] = &[".envrc", ".vscode", "tasks.json", "l", "x", "stage", "sub"];

struct Random(u64);

impl Random {
    fn new(what: &str) -> Self {
        let given = std::env::var("HERMES_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed: u64 = given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into());
        println!("{what}: HERMES_TEST_SEED={seed}");
        Self(seed | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Supervisor,
    Init,
    Job,
}

/// Everything below a directory, as paths relative to it.
fn names(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            found.insert(entry.path().strip_prefix(root).unwrap().to_owned());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    found
}

fn workspace() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("load.py", LOAD);
    sandbox.write("own/.envrc", "OWN");
    sandbox.write("mine/.envrc", "USER-0");
    sandbox.write("mine/notes", "USER-0");
    sandbox.plain_sh("set -e; umask 022; mkdir load; git init -q repo; rm -rf repo/.git/hooks repo/.git/info; git -C repo config user.name USER-0").ok();
    sandbox
}

/// Guarded paths that hold something of the load.
fn plants(workspace: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in names(workspace) {
        let text = path.to_string_lossy().into_owned();
        let guarded = text.ends_with("/.envrc") || text.ends_with(".vscode/tasks.json") || text.starts_with("repo/.git/");
        let full = workspace.join(&path);
        let link = fs::symlink_metadata(&full).is_ok_and(|meta| meta.is_symlink());
        if guarded && (link || fs::read(&full).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("PLANT"))) {
            found.push(text);
        }
    }
    found
}

/// What the user wrote last, by path.
type Edits = BTreeMap<String, String>;

/// The user at work, as an editor saves: a new file renamed over the old one.
fn edit(sandbox: &Sandbox, round: u64, stop: &AtomicBool) -> Edits {
    let mut edits = Edits::new();
    let mut count = 0;
    while !stop.load(Ordering::SeqCst) {
        let new = format!("mine/new-{round}-{}/.envrc", count % 3);
        for path in ["mine/.envrc", "mine/notes", &new] {
            count += 1;
            let text = format!("USER-{round}-{count}-");
            let temporary = sandbox.write("mine/unsaved", &text);
            let target = sandbox.workspace.join(path);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            // An empty directory may be gone again in between.
            if fs::rename(temporary, target).is_ok() {
                edits.insert(path.to_owned(), text);
            }
        }
        if count == 3 {
            let text = format!("USER-{round}-config-");
            let set = format!("git config -f repo/.git/config user.name {text}");
            // Another may hold the lock.
            if run_to_end(sandbox.plain_command("/bin/sh").args(["-c", &set])).code() == 0 {
                edits.insert("repo/.git/config".into(), text);
            }
        }
        thread::sleep(Duration::from_millis(3));
    }
    edits
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let text: String = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok()).collect();
    // One that is just being reaped shows as 0, which to kill() means our own process group.
    text.split_whitespace().filter_map(|word| word.parse().ok()).filter(|pid| *pid > 1).collect()
}

fn descendants(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

fn strike(child: &Live, victim: Victim) {
    let is_load =
        |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).starts_with(PYTHON));
    let pid = match victim {
        Victim::Supervisor => Some(child.id()),
        Victim::Init => children(child.id()).first().copied(),
        Victim::Job => descendants(child.id()).into_iter().find(is_load),
    };
    if let Some(pid) = pid {
        let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL);
    }
}

/// Compares the workspace with what must and may be there.
fn check(sandbox: &Sandbox, repository: &BTreeSet<PathBuf>, edits: &Edits, what: &str) {
    let left = plants(&sandbox.workspace);
    assert!(left.is_empty(), "{what}: planted and still there: {left:?}");
    assert_eq!(sandbox.read("own/.envrc"), "OWN", "{what}: the content from before the start");
    let aside: String = names(&sandbox.state_dir()).iter().map(|path| sandbox.read(sandbox.state_dir().join(path))).collect();
    for (path, text) in edits {
        let in_place = sandbox.read(path).contains(text.as_str());
        let guarded = path != "mine/notes";
        assert!(in_place || (guarded && aside.contains(text.as_str())), "{what}: the user's edit {text} of {path} is lost");
    }
    assert_eq!(&names(&sandbox.workspace.join("repo")), repository, "{what}: files in the repository");
    let known = |path: &PathBuf| {
        let text = path.to_string_lossy();
        let name = path.file_name().unwrap().to_string_lossy();
        let made = |prefix: &str, rest: usize| name.strip_prefix(prefix).is_some_and(|tail| tail.len() == rest);
        match text.split('/').next().unwrap() {
            "load" => text == "load" || LOAD_NAMES.contains(&&*name) || made("d", 1) || made("t", 1) || made("work-", 1),
            "mine" => ["mine", ".envrc", "notes", "unsaved"].contains(&&*name) || name.starts_with("new-"),
            "own" => ["own", ".envrc", "x"].contains(&&*name),
            "repo" => true,
            _ => text == "load.py",
        }
    };
    let extra: Vec<_> = names(&sandbox.workspace).into_iter().filter(|path| !known(path)).collect();
    assert!(extra.is_empty(), "{what}: left in the workspace: {extra:?}");
}

fn strikes(victim: Victim, rounds: u64) {
    let mut random = Random::new(&format!("{victim:?}"));
    let mut sandbox = workspace();
    let mut repository = names(&sandbox.workspace.join("repo"));
    for round in 1..=rounds {
        if round % 8 == 0 {
            sandbox = workspace();
            repository = names(&sandbox.workspace.join("repo"));
        }
        // Half of the loads end by themselves about when the blow falls, so that it also meets the settling.
        let lasts = if random.below(2) == 0 { 60_000 } else { random.below(100) };
        let (blow, second) = (random.below(200), random.below(12));
        let what = format!("{victim:?} round {round}: load {lasts} ms, blow after {blow} ms");
        let mut child =
            Live::start(sandbox.inside([PYTHON, "load.py", &lasts.to_string()]).stdout(Stdio::null()).stderr(Stdio::null()));
        let stop = AtomicBool::new(false);
        let edits = thread::scope(|scope| {
            let user = scope.spawn(|| edit(&sandbox, round, &stop));
            let began = Instant::now();
            thread::sleep(Duration::from_millis(blow));
            let mut ended = false;
            while !ended {
                strike(&child, victim);
                // Init or the job may not have been there yet.
                ended = wait_until(1, || child.try_wait().unwrap().is_some());
                assert!(began.elapsed() < Duration::from_secs(60), "{what}: does not end");
            }
            if victim == Victim::Supervisor && round % 3 == 0 {
                // The one that settles is killed as well.
                let mut next = Live::start(sandbox.quarantine_command(["list"]).stdout(Stdio::null()).stderr(Stdio::null()));
                thread::sleep(Duration::from_millis(second));
                let _ = next.kill();
                next.end();
            }
            stop.store(true, Ordering::SeqCst);
            user.join().unwrap()
        });
        if round % 2 == 0 {
            sandbox.sh("true").ok();
        } else {
            sandbox.quarantine(["list"]).ok();
        }
        check(&sandbox, &repository, &edits, &what);
    }
}

#[test]
fn the_load_plants_without_a_sandbox() {
    need!(PYTHON, "git");
    let sandbox = workspace();
    let repository = names(&sandbox.workspace.join("repo"));
    let mut child = Live::start(sandbox.plain_command(PYTHON).args(["load.py", "60000"]).stderr(Stdio::null()));
    let all = |found: &[String]| {
        [
            "own/.envrc",
            "load/.vscode/tasks.json",
            "load/l/.envrc",
            "repo/.git/config",
            "repo/.git/hooks/pre-commit",
            "load/d4/.envrc",
            "load/t2/sub/.envrc",
        ]
        .iter()
        .all(|path| found.iter().any(|one| one == path))
    };
    let planted = wait_until(20, || all(&plants(&sandbox.workspace)));
    child.kill().unwrap();
    child.end();
    assert!(planted, "{:?}", plants(&sandbox.workspace));
    assert_ne!(names(&sandbox.workspace.join("repo")), repository);
}

#[test]
fn nothing_planted_survives_when_the_supervisor_is_killed() {
    need!(PYTHON, "git");
    strikes(Victim::Supervisor, 26);
}

#[test]
fn nothing_planted_survives_when_init_is_killed() {
    need!(PYTHON, "git");
    strikes(Victim::Init, 12);
}

#[test]
fn nothing_planted_survives_when_the_job_is_killed() {
    need!(PYTHON, "git");
    strikes(Victim::Job, 12);
}

#[test]
fn a_run_whose_init_was_killed_settles_by_itself() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "OWN");
    for victim in [Victim::Init, Victim::Job] {
        let script =
            format!("{PYTHON} -c 'import time; open(\".envrc\", \"w\").write(\"PLANT\"); open(\"up\", \"w\"); time.sleep(60)'");
        let child = Live::start(sandbox.inside(["/bin/sh", "-c", &format!("exec {script}")]).stderr(Stdio::piped()));
        assert!(wait_until(20, || sandbox.workspace.join("up").exists()));
        assert_eq!(sandbox.read(".envrc"), "PLANT", "positive control");
        strike(&child, victim);
        let output = child.output();
        assert!(!output.status.success());
        assert_eq!(sandbox.read(".envrc"), "OWN", "{victim:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("quarantine list"), "{victim:?}: {output:?}");
        fs::remove_file(sandbox.workspace.join("up")).unwrap();
    }
}

#[test]
fn after_a_killed_supervisor_the_next_command_tells_what_was_put_aside() {
    for next in ["run", "quarantine", "changes"] {
        let sandbox = Sandbox::new();
        sandbox.write(".envrc", "OWN");
        let script = "echo PLANT > .envrc; mkdir .vscode; echo x > .vscode/mcp.json; touch up; sleep 60";
        let mut child = Live::start(sandbox.inside(["/bin/sh", "-c", script]).stderr(Stdio::null()));
        assert!(wait_until(20, || sandbox.workspace.join("up").exists()));
        child.kill().unwrap();
        child.end();
        assert_eq!(sandbox.read(".envrc"), "PLANT\n", "positive control");
        match next {
            "run" => sandbox.sh("true").ok().no_panic(),
            "quarantine" => sandbox.quarantine(["list"]).ok().no_panic(),
            _ => run_to_end(sandbox.hermes().args(["changes", "list", "--workspace"]).arg(&sandbox.workspace)).no_panic(),
        };
        assert_eq!(sandbox.read(".envrc"), "OWN", "after {next}");
        assert!(!sandbox.workspace.join(".vscode/mcp.json").exists());
        let all = sandbox.put_aside();
        assert!(
            all.iter().any(|one| one.concerns(".envrc")) && all.iter().any(|one| one.concerns(".vscode/mcp.json")),
            "{all:#?}"
        );
    }
}

#[test]
fn a_run_beside_a_living_one_does_not_settle_it() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "OWN");
    let script = "echo PLANT > .envrc; touch up; while [ ! -e go ]; do sleep 0.02; done; cat .envrc";
    let child = Live::start(sandbox.inside(["/bin/sh", "-c", script]).stdout(Stdio::piped()));
    assert!(wait_until(20, || sandbox.workspace.join("up").exists()));
    sandbox.quarantine(["list"]).ok();
    sandbox.write("go", "");
    let output = child.output();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "PLANT\n", "inside the file can be used until the end");
    assert_eq!(sandbox.read(".envrc"), "OWN");
}

#[test]
fn a_workspace_that_was_renamed_after_the_kill_is_settled_when_it_is_seen_again() {
    let sandbox = Sandbox::new();
    let script = "echo PLANT > .envrc; touch up; while [ ! -e go ]; do sleep 0.02; done";
    for by_its_name in [true, false] {
        let mut child = Live::start(&mut sandbox.inside(["/bin/sh", "-c", script]));
        assert!(wait_until(20, || sandbox.workspace.join("up").exists()));
        strike(&child, Victim::Supervisor);
        let _ = child.end();
        fs::remove_file(sandbox.workspace.join("up")).unwrap();
        let moved = sandbox.workspace.with_file_name("moved");
        fs::rename(&sandbox.workspace, &moved).unwrap();
        fs::create_dir(&sandbox.workspace).unwrap();
        sandbox.sh("true").ok();
        assert!(moved.join(".envrc").exists(), "nothing has found it yet");
        if by_its_name {
            fs::remove_dir_all(&sandbox.workspace).unwrap();
            fs::rename(&moved, &sandbox.workspace).unwrap();
            sandbox.sh("true").ok();
        } else {
            let mut there = sandbox.inside(["/bin/sh", "-c", "test ! -e .envrc"]);
            there.current_dir(&moved);
            let flags: Vec<_> = there
                .get_args()
                .map(|arg| if arg == sandbox.workspace { moved.clone().into() } else { arg.to_owned() })
                .collect();
            let mut again = std::process::Command::new(there.get_program());
            again.args(flags).current_dir(&moved).env_clear();
            again.envs(there.get_envs().filter_map(|(name, value)| Some((name, value?))));
            assert!(again.status().unwrap().success());
            fs::remove_dir_all(&sandbox.workspace).unwrap();
            fs::rename(&moved, &sandbox.workspace).unwrap();
        }
        assert!(!sandbox.workspace.join(".envrc").exists(), "{by_its_name}");
    }
}
