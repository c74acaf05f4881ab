//! Files that tools of the host execute or obey later: whatever is tried with them inside, they are as before when the
//! sandbox has ended. Each trick is shown to have its effect without the sandbox.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hermes_tests::{Live, Outcome, PYTHON, Sandbox, Seen, TreeSnapshot, is_root, need, skip, wait_until};

/// A trick in a directory of its own, `t/NAME`: its name, what the host prepares, what is done inside, and the guarded
/// paths that must not change by it.
type Trick = (&'static str, &'static str, &'static str, &'static [&'static [u8]]);

const MMAP: &str = "/usr/bin/python3 -c \"
import mmap, os, time
f = os.open('.envrc', os.O_RDWR); m = mmap.mmap(f, 0)
m[0:3] = b'OWN'; time.sleep(1); m[0:5] = b'PLANT'; os.kill(os.getpid(), 9)\" || true";

/// With Landlock alone there are no such sockets.
const SOCKET: &str =
    "mv .envrc x; /usr/bin/python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('.envrc')\" 2>/dev/null || mv x .envrc";

/// Writes on until it is killed, in vain where a sandbox has ended; without one for three seconds.
const WRITER: &str =
    "(i=0; while [ $i -lt 300 ]; do echo PLANT > .envrc; i=$((i+1)); sleep 0.01; done) >/dev/null 2>&1 & sleep 0.1";

const HELD_OPEN: &str =
    "(exec 3>> .envrc; i=0; while [ $i -lt 300 ]; do echo PLANT >&3; i=$((i+1)); sleep 0.01; done) >/dev/null 2>&1 & sleep 0.1";

const TRICKS: &[Trick] = &[
    ("new", "", "echo PLANT > .envrc", &[b".envrc"]),
    ("new_executable", "", "echo PLANT > .envrc; chmod 755 .envrc", &[b".envrc"]),
    ("changed", "echo OWN > .envrc", "echo PLANT > .envrc", &[b".envrc"]),
    ("appended", "echo OWN > .envrc", "echo PLANT >> .envrc", &[b".envrc"]),
    ("emptied", "echo OWN > .envrc", "truncate -s 0 .envrc", &[b".envrc"]),
    ("renamed_onto", "echo OWN > .envrc", "echo PLANT > x; mv -f x .envrc", &[b".envrc"]),
    ("renamed_new", "", "echo PLANT > x; mv x .envrc", &[b".envrc"]),
    ("made_anew", "echo OWN > .envrc", "rm .envrc; echo PLANT > .envrc", &[b".envrc"]),
    ("linked_to", "", "echo PLANT > x; ln x .envrc", &[b".envrc"]),
    ("linked_from", "echo OWN > .envrc", "ln .envrc alias; echo PLANT > alias", &[b".envrc"]),
    ("old_alias", "echo OWN > .envrc; ln .envrc alias", "echo PLANT > alias", &[b".envrc"]),
    ("symlink", "", "echo PLANT > x; ln -s x .envrc", &[b".envrc"]),
    ("symlink_instead", "echo OWN > .envrc", "echo PLANT > x; ln -sf x .envrc", &[b".envrc"]),
    ("symlink_to_absent", "", "ln -s later .envrc", &[b".envrc"]),
    (
        "symlink_of_the_host",
        "mkdir conf; echo OWN > conf/env.sh; ln -s conf/env.sh .envrc",
        "echo PLANT > conf/env.sh",
        &[b".envrc"],
    ),
    ("symlink_turned", "echo OWN > a; echo PLANT > b; ln -s a .envrc", "ln -sf b .envrc", &[b".envrc"]),
    ("symlinked_parent", "", "mkdir real; tasks > real/tasks.json; ln -s real .vscode", &[b".vscode/tasks.json"]),
    ("symlinked_parent_first", "", "mkdir real; ln -s real .vscode; tasks > .vscode/tasks.json", &[b".vscode/tasks.json"]),
    (
        "symlinked_parent_of_the_host",
        "mkdir real; ln -s real .vscode; echo OWN > real/tasks.json",
        "tasks > real/tasks.json",
        &[b".vscode/tasks.json"],
    ),
    (
        "tree_renamed_in",
        "",
        "mkdir -p stage/a/b/c; echo PLANT > stage/a/b/c/.envrc; mv stage place",
        &[b"place/a/b/c/.envrc", b"stage/a/b/c/.envrc"],
    ),
    ("tree_gets_its_name", "", "mkdir v; tasks > v/tasks.json; mv v .vscode", &[b".vscode/tasks.json"]),
    ("old_tree_gets_its_name", "mkdir v; tasks > v/tasks.json", "mv v .vscode", &[b".vscode/tasks.json"]),
    ("parent_renamed", "mkdir a; echo OWN > a/.envrc", "mv a b; echo PLANT > b/.envrc", &[b"b/.envrc"]),
    ("parent_there_and_back", "mkdir a; echo OWN > a/.envrc", "mv a b; echo PLANT > b/.envrc; mv b a", &[b"a/.envrc"]),
    ("parents_swapped", "mkdir a b; echo A > a/.envrc; echo B > b/.envrc", "mv a c; mv b a; mv c b", &[b"a/.envrc", b"b/.envrc"]),
    ("parent_made_anew", "mkdir a; echo OWN > a/.envrc", "rm -r a; mkdir a; echo PLANT > a/.envrc", &[b"a/.envrc"]),
    ("absent_directory", "", "mkdir .codex; echo 'x = 1' > .codex/config.toml", &[b".codex/config.toml"]),
    (
        "deep",
        "",
        "mkdir -p a/b/c/d/e/f/g/h/.vscode; tasks > a/b/c/d/e/f/g/h/.vscode/tasks.json",
        &[b"a/b/c/d/e/f/g/h/.vscode/tasks.json"],
    ),
    (
        "times_reset",
        "printf OWNER > .envrc",
        "touch -r .envrc x; printf PLANT > .envrc; touch -r x .envrc; touch -r x .",
        &[b".envrc"],
    ),
    (
        "times_and_inode_reset",
        "printf OWNER > .envrc",
        "touch -r .envrc x; rm .envrc; printf PLANT > .envrc; touch -r x .envrc .",
        &[b".envrc"],
    ),
    ("stored_twice_by_mmap", "printf OWNER > .envrc", MMAP, &[b".envrc"]),
    ("written_on", "echo OWN > .envrc", WRITER, &[b".envrc"]),
    ("new_and_written_on", "", WRITER, &[b".envrc"]),
    ("held_open", "echo OWN > .envrc", HELD_OPEN, &[b".envrc"]),
    ("directory_instead", "echo OWN > .envrc", "rm .envrc; mkdir .envrc; echo PLANT > .envrc/f", &[b".envrc"]),
    ("fifo_instead", "echo OWN > .envrc", "rm .envrc; mkfifo .envrc", &[b".envrc"]),
    ("socket_instead", "echo OWN > .envrc", SOCKET, &[b".envrc"]),
    ("fifo", "", "mkfifo .envrc", &[b".envrc"]),
    ("newline", "", "d=$(printf 'a\\nb'); mkdir \"$d\"; echo PLANT > \"$d/.envrc\"", &[b"a\nb/.envrc"]),
    ("invalid_utf8", "", "d=$(printf 'a\\377b'); mkdir \"$d\"; echo PLANT > \"$d/.envrc\"", &[b"a\xffb/.envrc"]),
    (
        "invalid_utf8_changed",
        "d=$(printf 'a\\377b'); mkdir \"$d\"; echo OWN > \"$d/.envrc\"",
        "echo PLANT > \"$(printf 'a\\377b')/.envrc\"",
        &[b"a\xffb/.envrc"],
    ),
    (
        "odd_names",
        "",
        "for d in -x ' ' '*' '$(id)' '\\'; do mkdir -- \"$d\"; echo PLANT > \"./$d/.envrc\"; done",
        &[b"-x/.envrc", b" /.envrc", b"*/.envrc", b"$(id)/.envrc", b"\\/.envrc"],
    ),
    ("large_new", "", "head -c 3000000 /dev/zero > .envrc", &[b".envrc"]),
    (
        "large_changed",
        "head -c 3000000 /dev/zero > .envrc",
        "printf P | dd of=.envrc bs=1 seek=2000000 conv=notrunc 2>/dev/null",
        &[b".envrc"],
    ),
    ("large_instead", "echo OWN > .envrc", "head -c 3000000 /dev/zero > .envrc", &[b".envrc"]),
    ("sparse_new", "", "truncate -s 20G .envrc", &[b".envrc"]),
    ("sparse_instead", "echo OWN > .envrc", "truncate -s 20G .envrc", &[b".envrc"]),
    ("leads_outside", "", "ln -s '@PRIVATE@/.envrc' .envrc", &[b".envrc"]),
    ("leads_outside_instead", "echo OWN > .envrc", "ln -sf '@PRIVATE@/.envrc' .envrc", &[b".envrc"]),
    (
        "parent_leads_outside",
        "mkdir d; echo OWN > d/.envrc",
        "echo PLANT > d/.envrc; mv d e; ln -s '@PRIVATE@' d",
        &[b"e/.envrc"],
    ),
    ("parent_leads_outside_anew", "", "ln -s '@PRIVATE@' .vscode", &[b".vscode/tasks.json"]),
    ("reported_name_leads_outside", "", "ln -s '@PRIVATE@/.envrc' Makefile", &[b"Makefile"]),
    (
        "leads_outside_behind_a_link",
        "",
        "mkdir -p a/b/c/d/e/f/g/h; ln -s /usr/share a/b/c/d/e/f/g/h/i; ln -s 'i/../..@PRIVATE@/.envrc' a/b/c/d/e/f/g/h/j",
        &[b"a/b/c/d/e/f/g/h/j"],
    ),
    ("unreadable", "echo OWN > .envrc", "echo PLANT > .envrc; chmod 000 .envrc", &[b".envrc"]),
    (
        "unreadable_parent",
        "",
        "mkdir -p d/.vscode; tasks > d/.vscode/tasks.json; chmod 000 d/.vscode d",
        &[b"d/.vscode/tasks.json"],
    ),
    ("unwritable_parent", "mkdir d; echo OWN > d/.envrc", "echo PLANT > d/.envrc; chmod 500 d", &[b"d/.envrc"]),
    ("looks_like_git", "", "touch HEAD; mkdir objects refs; echo PLANT > .envrc", &[b".envrc"]),
    (
        "below_what_looks_like_git",
        "",
        "touch HEAD; mkdir -p objects/a refs logs; echo PLANT > objects/a/.envrc; echo PLANT > logs/.envrc",
        &[b"objects/a/.envrc", b"logs/.envrc"],
    ),
    (
        "names_of_ours_taken",
        "",
        "r=$(grep -o 'runs/[0-9]*-[0-9]*' /proc/self/mountinfo | head -n 1 | cut -d / -f 2)
        for i in $(seq 900); do touch .hermes-sandbox-$r-$i; done; echo PLANT > .envrc",
        &[b".envrc"],
    ),
    ("many", "", "for i in $(seq 300); do mkdir $i; echo PLANT > $i/.envrc; done", &[b"1/.envrc", b"150/.envrc", b"300/.envrc"]),
];

/// A task that an editor runs when it opens the directory.
const TASKS: &str =
    r#"{"version":"2.0.0","tasks":[{"label":"x","type":"shell","command":"PLANT","runOptions":{"runOn":"folderOpen"}}]}"#;

/// Runs a step of every trick in its directory.
fn each(step: impl Fn(&Trick) -> &'static str, private: &Path) -> String {
    let lines = TRICKS.iter().map(|trick| {
        let name = trick.0;
        format!("( cd t/{name} && {{\n:; {}\n}} ) </dev/null || echo FAILED {name}\n", step(trick))
    });
    format!("umask 022; tasks() {{ echo '{TASKS}'; }}\n{}\ntrue", lines.collect::<String>())
        .replace("@PRIVATE@", &private.display().to_string())
}

/// A workspace in which every trick is prepared.
fn prepared() -> Sandbox {
    let sandbox = Sandbox::new();
    let private = sandbox.outside.join("private");
    for file in [".envrc", "tasks.json"] {
        sandbox.write(private.join(file), sandbox.canary("private"));
    }
    for trick in TRICKS {
        fs::create_dir_all(sandbox.workspace.join("t").join(trick.0)).unwrap();
    }
    sandbox.plain_sh(&each(|trick| trick.1, &private)).ok().never_says("FAILED");
    sandbox
}

/// What the host finds at every guarded path.
fn look(sandbox: &Sandbox) -> BTreeMap<PathBuf, Seen> {
    sandbox.plain_sh("chmod -R u+rwX t").ok();
    let paths =
        TRICKS.iter().flat_map(|trick| trick.3.iter().map(|path| Path::new("t").join(trick.0).join(OsStr::from_bytes(path))));
    paths.map(|path| (path.clone(), Seen::at(&sandbox.workspace.join(&path)))).collect()
}

/// Blocks of 512 bytes that a tree takes.
fn blocks(root: &Path) -> u64 {
    let Ok(meta) = fs::symlink_metadata(root) else { return 0 };
    let below = if meta.is_dir() { fs::read_dir(root).unwrap().map(|entry| blocks(&entry.unwrap().path())).sum() } else { 0 };
    meta.blocks() + below
}

fn assert_no_trick_works(flags: &[&str]) -> (Sandbox, Outcome) {
    let sandbox = prepared();
    let private = sandbox.outside.join("private");
    let (before, outside) = (look(&sandbox), TreeSnapshot::of(&sandbox.outside));
    let sandbox = sandbox.flags(flags);
    let run = sandbox.sh(&each(|trick| trick.2, &private));
    run.ok().never_says("FAILED").no_panic();
    let after = look(&sandbox);
    let changed: Vec<_> = before.iter().filter(|(path, seen)| after[*path] != **seen).map(|(path, _)| path).collect();
    assert!(changed.is_empty(), "these changed on the host: {changed:#?}\n{}", run.report());
    outside.assert_unchanged(&sandbox.outside);
    assert!(blocks(&sandbox.state_dir()) < 200_000, "sparse files were written out");
    (sandbox, run)
}

#[test]
fn tricks_have_their_effect_without_a_sandbox() {
    need!(PYTHON);
    let sandbox = prepared();
    let before = look(&sandbox);
    sandbox.plain_sh(&each(|trick| trick.2, &sandbox.outside.join("private"))).ok().never_says("FAILED");
    let after = look(&sandbox);
    let dull: Vec<_> = TRICKS
        .iter()
        .filter(|trick| !before.iter().any(|(path, seen)| path.starts_with(Path::new("t").join(trick.0)) && after[path] != *seen))
        .map(|trick| trick.0)
        .collect();
    assert!(dull.is_empty(), "these change nothing: {dull:?}");
}

#[test]
fn no_trick_gets_a_guarded_file_past_the_end() {
    need!(PYTHON);
    let (sandbox, run) = assert_no_trick_works(&[]);
    run.clear_message();
    let notices = run.err().lines().filter(|line| line.contains("quarantine list")).count();
    assert_eq!(notices, 1, "one line tells where to look\n{}", run.report());
    let all = sandbox.put_aside();
    let listed = |name: &str| all.iter().any(|one| one.concerns(&format!("t/{name}")));
    let silent: Vec<_> = TRICKS.iter().map(|trick| trick.0).filter(|name| !listed(name)).collect();
    assert!(silent.is_empty(), "nothing of these is in the quarantine: {silent:?}\n{all:#?}");
    assert!(!format!("{all:?}").contains(&sandbox.canary("private")));
    let leaked = hermes_tests::run_to_end(
        sandbox.plain_command("grep").arg("-rl").arg(sandbox.canary("private")).arg(sandbox.state_dir()),
    );
    assert_eq!(leaked.out(), "", "a private file was copied into the quarantine");
    // What is no longer new stays put aside once.
    let again = sandbox.sh("true");
    again.ok().never_says("quarantine list");
    assert_eq!(sandbox.put_aside().len(), all.len());
}

#[test]
fn no_trick_gets_a_guarded_file_past_the_end_with_landlock_alone() {
    need!(PYTHON);
    let probe = Sandbox::new().flags(["--tier", "landlock"]).sh("true");
    if probe.code() == 125 {
        skip!("{}", probe.err().lines().next().unwrap_or_default());
    }
    let (_, run) = assert_no_trick_works(&["--tier", "landlock"]);
    assert!(run.err().contains("quarantine list"), "{}", run.report());
}

#[test]
fn ordinary_files_that_tricks_touch_stay() {
    let sandbox = Sandbox::new();
    sandbox.write("alias-source", "OWN\n");
    sandbox
        .sh("echo new > x; ln x .envrc; echo more >> alias-source; mkdir real; echo y > real/tasks.json; ln -s real .vscode")
        .ok();
    assert_eq!((sandbox.read("x"), sandbox.read("alias-source")), ("new\n".into(), "OWN\nmore\n".into()));
    assert_eq!(sandbox.read("real/tasks.json"), "y\n");
}

#[test]
fn guarded_files_can_be_used_freely_inside() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "OWN\n");
    let script = "set -e; umask 022; echo NEW > .envrc; cat .envrc; mkdir -p .vscode .codex; echo {} > .vscode/settings.json; mv .vscode v; mv v .vscode; \
        echo x > .codex/config.toml; ln .codex/config.toml hard; rm -r .codex; sed -i s/NEW/AGAIN/ .envrc; cat .envrc; stat -c %a .vscode/settings.json";
    sandbox.sh(script).ok().says("NEW\nAGAIN\n644");
    assert_eq!(sandbox.read(".envrc"), "OWN\n");
}

#[test]
fn nothing_is_said_when_nothing_was_put_aside() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "OWN\n");
    sandbox.write(".vscode/tasks.json", "{}\n");
    let before = TreeSnapshot::of(&sandbox.workspace);
    let run = sandbox.sh("cat .envrc .vscode/tasks.json; cp .envrc /tmp/x; touch .envrc; echo OWN > .envrc; echo x > y; rm y");
    run.ok().never_says("quarantine");
    sandbox.assert_nothing_put_aside(&run);
    before.assert_unchanged(&sandbox.workspace);
}

#[test]
fn a_deleted_file_stays_deleted_and_is_not_put_aside() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "OWN\n");
    sandbox.sh("rm .envrc").ok();
    assert!(!sandbox.workspace.join(".envrc").exists());
}

#[test]
fn the_exit_status_is_the_commands_own() {
    let sandbox = Sandbox::new();
    let run = sandbox.sh("echo PLANT > .envrc; exit 7");
    run.exits(7).clear_message();
    assert!(run.stdout.is_empty() && !sandbox.workspace.join(".envrc").exists(), "{}", run.report());
    sandbox.sh("echo PLANT > .envrc; kill -9 $$").exits(137);
    assert!(!sandbox.workspace.join(".envrc").exists());
}

#[test]
fn what_lies_beyond_the_longest_path_is_found() {
    let sandbox = Sandbox::new();
    let name = "d".repeat(200);
    let script =
        format!("i=0; while [ $i -lt 25 ]; do mkdir {name} && cd -P {name} || exit 9; i=$((i+1)); done; echo PLANT > .envrc");
    let find = "find . -name .envrc | wc -l";
    let control = Sandbox::new();
    control.plain_sh(&script).ok();
    control.plain_sh(find).ok().says("1");
    let run = sandbox.sh(&script);
    run.ok();
    sandbox.plain_sh(find).ok().says("0");
}

#[test]
fn every_writable_tree_is_guarded() {
    let sandbox = Sandbox::new();
    let other = sandbox.outside.join("other");
    sandbox.write(other.join("sub/.envrc"), "OWN\n");
    sandbox.write(other.join("plain"), "x\n");
    let sandbox = sandbox.flags([Path::new("--rw"), &other]);
    let run = sandbox.sh(&format!(
        "cd '{}' && echo PLANT > sub/.envrc && mkdir .vscode && echo '{TASKS}' > .vscode/tasks.json && echo y > plain",
        other.display()
    ));
    run.ok();
    assert_eq!((sandbox.read(other.join("sub/.envrc")), sandbox.read(other.join("plain"))), ("OWN\n".into(), "y\n".into()));
    assert!(!other.join(".vscode/tasks.json").exists());
    assert!(run.err().contains("quarantine list"), "{}", run.report());
}

#[test]
fn a_granted_directory_with_a_guarded_name_is_guarded() {
    let sandbox = Sandbox::new();
    let other = sandbox.outside.join("proj/.vscode");
    sandbox.write(other.join("tasks.json"), "OWN\n");
    let sandbox = sandbox.flags([Path::new("--rw"), &other]);
    sandbox.sh(&format!("echo '{TASKS}' > '{}/tasks.json'", other.display())).ok();
    assert_eq!(sandbox.read(other.join("tasks.json")), "OWN\n");
}

#[test]
fn two_sandboxes_at_once_do_not_undo_each_other() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "OWN\n");
    let mut first = Live::start(&mut sandbox.inside([
        "/bin/sh",
        "-c",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; echo PLANT1 > .envrc",
    ]));
    assert!(wait_until(20, || sandbox.workspace.join("up").exists()));
    sandbox.sh("echo PLANT2 > .envrc; mkdir -p d; echo PLANT2 > d/.envrc; echo work > work").ok();
    assert!(first.try_wait().unwrap().is_none(), "the second run ended the first");
    sandbox.write("go", "");
    assert!(first.end().success());
    assert_eq!((sandbox.read(".envrc"), sandbox.read("work")), ("OWN\n".into(), "work\n".into()));
    assert!(!sandbox.workspace.join("d/.envrc").exists());
}

#[test]
fn the_state_cannot_be_reached_from_inside() {
    let sandbox = Sandbox::new();
    sandbox.sh("echo PLANT > .envrc").ok();
    assert!(sandbox.state_dir().exists(), "positive control");
    let script = format!(
        "find '{0}' -type f 2>/dev/null; echo x > '{0}/x' && echo WROTE; mkdir -p '{0}'; true",
        sandbox.state_dir().display()
    );
    sandbox.sh(&script).ok();
    assert!(!sandbox.state_dir().join("x").exists());
    assert_eq!(sandbox.put_aside().len(), 1);
}

#[test]
fn nothing_starts_when_the_quarantine_cannot_be_kept() {
    let sandbox = Sandbox::new();
    let file = sandbox.write(sandbox.outside.join("file"), "");
    sandbox.sh("echo x > ran; rm ran").ok();
    let sandbox = sandbox.env("XDG_STATE_HOME", &file);
    let refused = sandbox.sh("touch ran");
    refused.refused(125);
    assert!(refused.err().contains(&file.display().to_string()), "{}", refused.report());
    assert!(!sandbox.workspace.join("ran").exists());
    if !is_root() {
        let sealed = sandbox.outside.join("sealed");
        fs::create_dir(&sealed).unwrap();
        sandbox.plain_sh(&format!("chmod 555 '{}'", sealed.display())).ok();
        let sandbox = sandbox.env("XDG_STATE_HOME", &sealed);
        sandbox.sh("touch ran").refused(125);
        assert!(!sandbox.workspace.join("ran").exists());
    }
}

#[test]
fn a_workspace_that_holds_its_own_state_is_refused_or_safe() {
    let sandbox = Sandbox::new();
    let state = sandbox.workspace.join("state");
    let sandbox = sandbox.env("XDG_STATE_HOME", &state);
    let run = sandbox
        .sh("mkdir -p state/hermes-sandbox; find state -type f -exec sh -c 'echo FORGED > \"$1\"' _ {} ';'; echo PLANT > .envrc");
    assert!(!sandbox.workspace.join(".envrc").exists(), "{}", run.report());
    if run.code() != 125 {
        let forged = hermes_tests::run_to_end(sandbox.plain_command("grep").args(["-rlxa", "FORGED"]).arg(&state));
        assert_eq!(forged.out(), "", "the state was written from inside");
    }
}

/// Sets or clears the attribute that keeps even root from writing; only where the file system has it.
fn immutable(path: &Path, on: bool) -> bool {
    Command::new("chattr").arg(if on { "+i" } else { "-i" }).arg(path).status().is_ok_and(|status| status.success())
}

#[test]
fn an_immutable_file_hinders_neither_the_run_nor_the_settling_of_others() {
    if !is_root() {
        skip!("only root makes files immutable");
    }
    need!("chattr");
    let sandbox = Sandbox::new();
    let (file, dir) = (sandbox.write("a/.envrc", "OWN\n"), sandbox.workspace.join("d"));
    sandbox.write("d/.vscode/tasks.json", "OWN\n");
    if !immutable(&file, true) {
        skip!("this file system has no immutable files");
    }
    immutable(&dir.join(".vscode"), true);
    let script = "echo PLANT > a/.envrc; mv a/.envrc a/x; echo 'PLANT' > d/.vscode/mcp.json; echo PLANT > .envrc; true";
    let run = sandbox.sh(script);
    // The host locks a place after something was planted there.
    let script = "mkdir -p l; echo PLANT > l/.envrc; echo PLANT > .envrc; touch up; while [ ! -e go ]; do sleep 0.02; done";
    let child = Live::start(sandbox.inside(["/bin/sh", "-c", script]).stderr(std::process::Stdio::piped()));
    let up = wait_until(20, || sandbox.workspace.join("up").exists());
    immutable(&sandbox.workspace.join("l"), true);
    sandbox.write("go", "");
    let output = child.output();
    for path in [file.clone(), dir.join(".vscode"), sandbox.workspace.join("l")] {
        immutable(&path, false);
    }
    assert!(up);
    run.ok();
    assert_eq!(sandbox.read("a/.envrc"), "OWN\n");
    assert!(!sandbox.workspace.join("d/.vscode/mcp.json").exists() && !sandbox.workspace.join(".envrc").exists());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("l/.envrc"), "what could not be taken away is named: {said}");
    sandbox.put_aside();
    assert!(!sandbox.workspace.join("l/.envrc").exists(), "the next command settles what could not be settled before");
}

#[test]
fn a_huge_file_of_the_host_costs_nothing() {
    let sandbox = Sandbox::new();
    let plain = sandbox.sh("true").ok().time;
    let file = fs::File::create(sandbox.workspace.join(".envrc")).unwrap();
    file.set_len(20 << 30).unwrap();
    let run = sandbox.sh("true");
    assert!(run.time < plain + Duration::from_secs(8), "{:?} against {plain:?}", run.time);
    run.ok();
    assert_eq!(fs::metadata(sandbox.workspace.join(".envrc")).unwrap().len(), 20 << 30);
    assert!(blocks(&sandbox.state_dir()) < 20_000);
}

#[test]
fn a_plant_of_one_run_is_no_baseline_of_the_next() {
    let sandbox = Sandbox::new();
    for _ in 0..3 {
        sandbox.sh("echo PLANT > .envrc").ok();
        assert!(!sandbox.workspace.join(".envrc").exists());
    }
    // The host's own change is one.
    sandbox.write(".envrc", "OWN\n");
    let run = sandbox.sh("true");
    run.ok().never_says("quarantine list");
    assert_eq!(sandbox.read(".envrc"), "OWN\n");
}
