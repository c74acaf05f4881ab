//! Copy-on-write workspaces: their changes wait until they are applied or discarded.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use hermes_tests::{
    Outcome, PYTHON, Sandbox, TreeSnapshot, fixture, is_root, let_files_age, need, run_to_end, run_to_end_with_input, skip,
    wait_until,
};

fn git(sandbox: &Sandbox, args: &[&str]) -> Outcome {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"];
    run_to_end(sandbox.plain_command("git").args(identity).args(args))
}

#[test]
fn changes_wait_and_go_on_until_they_are_applied() {
    let sandbox = Sandbox::overlaid();
    sandbox.write("old", "old\n");
    sandbox.write("gone", "gone\n");
    let_files_age();
    let before = TreeSnapshot::of(&sandbox.workspace);
    let first = sandbox.sh("echo more >> old; rm gone; mkdir -p new/dir; echo x > new/dir/f; chmod 750 new/dir/f");
    assert!(first.ok().err().contains("3 files changed in layer 1: hermes-sandbox changes diff"), "{}", first.report());
    before.assert_unchanged(&sandbox.workspace);
    sandbox.sh("cat old new/dir/f; ls; echo y >> new/dir/f").ok().says("old\nmore\nx\n").never_says("gone");
    before.assert_unchanged(&sandbox.workspace);
    sandbox.changes(&["list"]).ok().says("layer 1 ").says("1 added, 1 changed, 1 deleted\n");
    sandbox.changes(&["diff", "--name-only"]).ok().says("gone\nnew/dir/f\nold\n");
    let applied = sandbox.changes(&["apply"]);
    assert!(applied.ok().err().contains("3 files applied"), "{}", applied.report());
    assert_eq!((sandbox.read("old"), sandbox.read("new/dir/f")), ("old\nmore\n".into(), "x\ny\n".into()));
    assert!(!sandbox.workspace.join("gone").exists());
    let meta = fs::metadata(sandbox.workspace.join("new/dir/f")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o750, fs::metadata(&sandbox.workspace).unwrap().uid()));
    sandbox.changes(&["list"]).ok().says("nothing waits");
    // Nothing changed: not a word, and no layer is left.
    let idle = sandbox.sh("cat old");
    assert_eq!(idle.ok().err(), "");
    sandbox.changes(&["list"]).ok().says("nothing waits");
}

#[test]
fn what_was_seen_inside_is_what_comes_to_the_host() {
    let session = fs::read_to_string(fixture("session.py")).unwrap();
    for seed in 0..24 {
        let sandbox = Sandbox::overlaid();
        for (number, path) in ["a", "b/a", "b/c/d", "e/f/g", "e/h", "c/a/b/c"].iter().enumerate() {
            sandbox.write(path, format!("host {number}\n"));
        }
        symlink("a", sandbox.workspace.join("link")).unwrap();
        let_files_age();
        // Two sandboxes in turn: the second one goes on with the layer of the first.
        sandbox.run([PYTHON, "-c", &session, &(seed * 2 + 1000).to_string()]).ok();
        let inside = sandbox.run([PYTHON, "-c", &session, &(seed * 2 + 1001).to_string()]);
        // Some of it first: that changes nothing of what is seen inside.
        let names = sandbox.changes(&["diff", "--name-only"]).out();
        for name in names.lines().filter(|name| !name.starts_with('"')).skip(seed as usize % 3).step_by(3) {
            sandbox.changes(&["apply", "--with-guarded", name]);
        }
        assert_eq!(inside.out(), sandbox.python(&session).ok().out(), "seed {seed}: after some of it was applied");
        let applied = sandbox.changes(&["apply", "--with-guarded"]);
        if !applied.err().contains("no changes wait") {
            applied.ok();
        }
        let outside = sandbox.plain_python(&session);
        assert_eq!(inside.ok().out(), outside.ok().out(), "seed {seed}: {}", applied.report());
        sandbox.changes(&["list"]).ok().says("nothing waits");
    }
}

#[test]
fn symlinks_in_the_place_of_what_tools_obey_wait() {
    need!("git");
    let sandbox = Sandbox::overlaid();
    git(&sandbox, &["init", "-q", "."]).ok();
    let_files_age();
    // As text the target is harmless configuration; as a file it is not.
    let plant = "mkdir planted; echo x > planted/tasks.json; ln -s planted .vscode; rm -rf .git/hooks; ln -s ../planted .git/hooks; \
                 cp .git/config '.git/[user]'; git config -f '.git/[user]' core.fsmonitor ./x; ln -sfn '[user]' .git/config";
    sandbox.sh(plant).ok();
    sandbox.changes(&["apply"]);
    let is_link = |path: &str| fs::symlink_metadata(sandbox.workspace.join(path)).is_ok_and(|meta| meta.is_symlink());
    assert_eq!(sandbox.read("planted/tasks.json"), "x\n");
    assert_eq!([".vscode", ".git/hooks", ".git/config"].map(is_link), [false; 3]);
    sandbox.changes(&["apply", "--with-guarded"]).ok();
    assert_eq!([".vscode", ".git/hooks", ".git/config"].map(is_link), [true; 3]);
}

#[test]
fn what_the_policy_of_the_run_guards_waits_too() {
    need!("git");
    let sandbox = Sandbox::overlaid();
    git(&sandbox, &["init", "-q", "."]).ok();
    git(&sandbox, &["config", "core.hooksPath", "tools/hooks"]).ok();
    let profile = sandbox.outside.join("profile.toml");
    let text = "schema = 1\ndescription = \"t\"\nincludes = [\"agent\"]\n[filesystem]\nguard = [\"deploy.sh\"]\nunguard = [\"sub/.envrc\"]\n";
    sandbox.write(&profile, text);
    let sandbox = sandbox.flags([Path::new("--profile"), &profile]);
    let_files_age();
    let plant = "mkdir -p sub tools/hooks; for f in deploy.sh sub/.envrc .envrc tools/hooks/pre-push other; do echo x > $f; chmod +x $f; done";
    sandbox.sh(plant).ok();
    let applied = sandbox.changes(&["apply"]);
    let there = |path: &str| sandbox.workspace.join(path).exists();
    let all = ["deploy.sh", "sub/.envrc", ".envrc", "tools/hooks/pre-push", "other"];
    assert_eq!(all.map(there), [false, true, false, false, true], "{}", applied.report());
    sandbox.changes(&["apply", "--with-guarded"]).ok();
    assert_eq!(all.map(there), [true; 5]);
}

#[test]
fn a_diff_is_what_git_applies() {
    need!("git");
    let sandbox = Sandbox::overlaid();
    sandbox.write("text", "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n");
    sandbox.write("no newline", "end");
    sandbox.write("carriage", "a\rb\r\nc\n");
    sandbox.write("gone", "gone\n");
    sandbox.write("mode", "x\n");
    sandbox.write("becomes-link", "x\n");
    sandbox.write(OsStr::from_bytes(b"odd\n\"q\"\t\xff"), "odd\n");
    symlink("text", sandbox.workspace.join("link")).unwrap();
    let copy = sandbox.outside.join("copy");
    run_to_end(Command::new("cp").arg("-a").arg(&sandbox.workspace).arg(&copy)).ok();
    let_files_age();
    sandbox
        .sh("sed -i -e s/two/TWO/ -e s/ten/TEN/ text; printf more >> 'no newline'; printf 'a\\rB\\r\\nc\\n' > carriage; rm gone; \
             chmod +x mode; ln -sf mode link; rm becomes-link; ln -s text becomes-link; : > empty; mkdir -p d; echo n > 'd/new file'; \
             for f in odd*; do echo more >> \"$f\"; done; printf '#!/bin/sh\\n' > run; chmod 755 run")
        .ok();
    let diff = sandbox.changes(&["diff"]);
    diff.ok()
        .says("old mode 100644\nnew mode 100755\n")
        .says("\"a/odd\\n\\\"q\\\"\\t\\377\"")
        .says("\\ No newline at end of file");
    let mut apply = Command::new("git");
    apply.args(["-c", "core.symlinks=true", "apply", "--verbose", "-"]).current_dir(&copy).env("GIT_CEILING_DIRECTORIES", "/");
    run_to_end_with_input(&mut apply, &diff.stdout).ok();
    sandbox.changes(&["apply"]).ok();
    let different = run_to_end(Command::new("diff").args(["-r", "--no-dereference"]).arg(&sandbox.workspace).arg(&copy));
    assert_eq!(different.out(), "", "what git made of it is what apply made of it");
    let mode = |name: &str| fs::metadata(copy.join(name)).unwrap().mode() & 0o111 != 0;
    assert!(mode("mode") && mode("run") && !mode("empty"));
}

#[test]
fn binary_files_differ_and_are_counted_as_such() {
    let sandbox = Sandbox::overlaid();
    sandbox.write("b", b"\0old");
    let_files_age();
    sandbox.sh("printf '\\000new' > b; printf 'x\\000' > n; printf 'l1\\nl2\\n' > t").ok();
    sandbox
        .changes(&["diff"])
        .ok()
        .says("Binary files a/b and b/b differ")
        .says("Binary files /dev/null and b/n differ")
        .never_says("\0");
    sandbox
        .changes(&["diff", "--stat"])
        .ok()
        .says(" b | Bin\n")
        .says(" t |   2 ++\n")
        .says(" 3 files changed, 2 insertions(+)\n");
    sandbox.changes(&["diff", "t", "--color", "always"]).ok().says("\x1b[32m+l1\x1b[m\n").never_says("a/b");
    sandbox.changes(&["diff", "t"]).ok().never_says("\x1b");
}

#[test]
fn text_from_inside_does_not_act_on_a_terminal() {
    let sandbox = Sandbox::overlaid();
    sandbox.sh("printf 'evil \\033]0;title\\007 \\033[2J\\n' > f").ok();
    let command = {
        let mut command = sandbox.hermes();
        command.args(["changes", "diff", "--color", "never"]);
        command
    };
    let shown = hermes_tests::Pty::play(&sandbox, &command, &[hermes_tests::Step::Expect("evil")]);
    assert!(shown.output.contains("\\x1b]0;title\\x07") && !shown.output.contains('\x1b'), "{:?}", shown.output);
    sandbox.changes(&["diff"]).ok().says("\x1b]0;title");
}

#[test]
fn two_at_once_are_independent() {
    let sandbox = Sandbox::overlaid();
    let ready = |name: &str| format!("echo {name} > mine; echo READY; sleep 60; cat mine");
    let mut first =
        sandbox.inside(["/bin/sh", "-c", &ready("first")]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = [0; 6];
    std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut line).unwrap();
    sandbox.sh("test ! -e mine && echo second > mine").ok();
    sandbox.changes(&["list"]).ok().says("layer 1       in use by a sandbox").says("layer 2 ");
    let several = sandbox.changes(&["diff"]);
    assert!(several.refused(125).err().contains("--layer 2"), "{}", several.report());
    for words in [&["apply", "--layer", "1"][..], &["discard", "--layer", "1"], &["diff", "--layer", "1"]] {
        assert!(sandbox.changes(words).refused(125).err().contains("a sandbox has layer 1"));
    }
    assert!(!sandbox.workspace.join("mine").exists());
    // A killed supervisor leaves the layer as its sandbox had it.
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(wait_until(10, || sandbox.changes(&["list"]).out().contains("layer 1       20")), "never free");
    sandbox.changes(&["diff", "--layer", "1"]).ok().says("+first\n");
    sandbox.changes(&["discard", "--layer", "2"]).ok();
    sandbox.sh("cat mine").ok().says("first");
    sandbox.changes(&["apply"]).ok();
    assert_eq!(sandbox.read("mine"), "first\n");
}

#[test]
fn the_layer_cannot_be_reached_from_inside() {
    let sandbox = Sandbox::overlaid();
    sandbox.sh("echo MINE > f").ok();
    let state = sandbox.home.join(".local/state/hermes-sandbox");
    assert!(fs::read_dir(&state).is_ok(), "there is something to reach");
    let look = format!(
        "find '{}' / -name upper 2>/dev/null; ls -A '{}' 2>&1; ls -l /proc/1/fd /proc/self/fd 2>/dev/null; echo END",
        state.display(),
        state.display()
    );
    sandbox.sh(&look).ok().says("END").never_says("upper").never_says("trees");
    // What a job says of overlays itself is not believed.
    sandbox.write("kept", "kept\n");
    let_files_age();
    sandbox
        .python("import os\nos.mkdir('d'); open('d/x','w').close()\nfor p in ['d', 'd/x']:\n  for n in ['opaque', 'whiteout', 'redirect', 'metacopy', 'overlay.opaque']:\n    try: os.setxattr(p, 'user.overlay.'+n, b'y')\n    except OSError: pass\ntry: os.mknod('kept2', 0o020000, 0)\nexcept OSError: print('NO')")
        .ok();
    sandbox.changes(&["apply"]).ok();
    assert!(sandbox.workspace.join("kept").exists() && sandbox.workspace.join("d/x").exists());
}

#[test]
fn what_is_hidden_is_no_change() {
    let sandbox = Sandbox::overlaid();
    let secret = sandbox.write("sub/secret", sandbox.canary("hidden"));
    let deny = secret.to_str().unwrap().to_owned();
    let sandbox = sandbox.flags(["--deny", &deny]);
    let_files_age();
    sandbox
        .sh("cat sub/secret; rm -f sub/secret; echo x > sub/secret; mv sub away; echo n > sub/other; ls sub")
        .never_says("CANARY");
    assert!(!sandbox.changes(&["diff", "--name-only"]).out().contains("sub/secret"));
    sandbox.changes(&["apply"]).ok();
    assert_eq!(sandbox.read("sub/secret"), sandbox.canary("hidden"));
    assert_eq!(sandbox.read("sub/other"), "n\n");
}

#[test]
fn a_host_that_changed_the_same_is_asked() {
    let sandbox = Sandbox::overlaid();
    for name in ["both", "mine", "gone"] {
        sandbox.write(name, "base\n");
    }
    let_files_age();
    sandbox.sh("echo job > both; echo job > mine; echo job >> gone").ok();
    sandbox.write("both", "host\n");
    fs::remove_file(sandbox.workspace.join("gone")).unwrap();
    let before = TreeSnapshot::of(&sandbox.workspace);
    let refused = sandbox.changes(&["apply"]);
    refused.exits(1).clear_message();
    let err = refused.err();
    assert!(
        err.contains("both: host: changed since the sandbox began") && err.contains("in the layer: a file of 4 bytes"),
        "{err}"
    );
    assert!(err.contains("gone: host: deleted"), "{err}");
    assert!(err.contains("nothing was applied: 2 files refused"), "{err}");
    before.assert_unchanged(&sandbox.workspace);
    assert!(sandbox.changes(&["apply", "--take-layer", "both", "--take-layer", "gone"]).ok().err().contains("3 files applied"));
    assert_eq!((sandbox.read("both"), sandbox.read("gone")), ("job\n".into(), "base\njob\n".into()));
    // A layer that goes on after the host's change has seen it.
    sandbox.write("mine", "host\n");
    let_files_age();
    sandbox.sh("echo job >> mine").ok();
    sandbox.changes(&["apply"]).ok();
    assert_eq!(sandbox.read("mine"), "host\njob\n");
}

#[test]
fn what_the_host_changed_a_moment_before_is_no_conflict() {
    for round in 0..8 {
        let sandbox = Sandbox::overlaid();
        sandbox.write("made", "host\n");
        sandbox.write("gone", "host\n");
        sandbox.sh("echo job >> made; rm gone").ok();
        let applied = sandbox.changes(&["apply"]);
        assert_eq!(applied.code(), 0, "round {round}: {}", applied.report());
        // And a moment after is one: the same files, the same commands.
        sandbox.write("made", "host\n");
        sandbox.sh("echo job >> made").ok();
        sandbox.write("made", "again\n");
        assert!(sandbox.changes(&["apply"]).exits(1).err().contains("made: host: changed"), "round {round}");
    }
}

/// A repository with one commit of `f`.
fn repository(sandbox: &Sandbox) {
    git(sandbox, &["init", "-q", "."]).ok();
    for name in ["user.name", "user.email"] {
        git(sandbox, &["config", name, "t@example.com"]).ok();
    }
    sandbox.write("f", "1\n");
    git(sandbox, &["add", "f"]).ok();
    git(sandbox, &["commit", "-qm", "first"]).ok();
}

#[test]
fn a_newer_measurement_of_the_index_is_no_change() {
    need!("git");
    let sandbox = Sandbox::overlaid();
    repository(&sandbox);
    let refresh = || {
        fs::remove_file(sandbox.workspace.join("f")).unwrap();
        git(&sandbox, &["checkout", "-q", "f"]).ok();
        let index = fs::metadata(sandbox.workspace.join(".git/index")).unwrap().ino();
        sandbox.write("f", "1\n");
        git(&sandbox, &["status"]).ok();
        assert_ne!(fs::metadata(sandbox.workspace.join(".git/index")).unwrap().ino(), index, "it was written");
    };
    sandbox.sh("echo 1 > new; git add new; git commit -qm second").ok();
    refresh();
    sandbox.changes(&["apply"]).ok();
    assert!(git(&sandbox, &["log", "--oneline"]).ok().out().contains("second"));
    assert_eq!(git(&sandbox, &["status", "--short"]).ok().out(), "");
    git(&sandbox, &["fsck", "--strict"]).ok();
    // What the host staged is a change.
    sandbox.sh("echo 2 > new; git commit -qam third").ok();
    sandbox.write("staged", "x\n");
    git(&sandbox, &["add", "staged"]).ok();
    assert!(sandbox.changes(&["apply"]).exits(1).err().contains("both sides changed HEAD, index or refs"));
    sandbox.changes(&["discard"]).ok();
    // Both sides only looked.
    sandbox.sh("touch f; git status; echo y > y").ok();
    refresh();
    sandbox.write("staged2", "x\n");
    git(&sandbox, &["add", "staged2"]).ok();
    assert!(sandbox.changes(&["apply", "y"]).ok().err().contains("1 file applied"));
}

#[test]
fn a_repository_that_both_sides_changed_is_not_mixed() {
    need!("git");
    let sandbox = Sandbox::overlaid();
    repository(&sandbox);
    sandbox.sh("echo job > job; git add job; git commit -qm job").ok();
    git(&sandbox, &["checkout", "-qb", "host"]).ok();
    sandbox.write("host", "host\n");
    git(&sandbox, &["add", "host"]).ok();
    git(&sandbox, &["commit", "-qm", "host"]).ok();
    let before = TreeSnapshot::of(&sandbox.workspace);
    let refused = sandbox.changes(&["apply"]);
    let err = refused.exits(1).err();
    assert!(err.contains("both sides changed HEAD, index or refs") && err.contains("git merge"), "{err}");
    // The layer has no HEAD, so its index and refs cannot be taken either, nor pieces of them.
    sandbox.changes(&["apply", "--take-layer", ".git"]).exits(1);
    for piece in [".git/index", ".git/refs"] {
        assert!(sandbox.changes(&["apply", piece, "--take-layer", piece]).exits(1).err().contains("go together"), "{piece}");
    }
    before.assert_unchanged(&sandbox.workspace);
    // The way that the hint shows.
    let id = err.split("the layer's main is ").nth(1).unwrap()[..40].to_owned();
    sandbox.changes(&["apply", ".git/objects"]).ok();
    git(&sandbox, &["merge", "-q", "--no-edit", &id]).ok();
    assert_eq!((sandbox.read("job"), sandbox.read("host")), ("job\n".into(), "host\n".into()));
    git(&sandbox, &["fsck", "--strict"]).ok();
    sandbox.changes(&["discard"]).ok();
    // Both on the same branch: all of the layer's can be taken.
    sandbox.sh("echo 2 > job; git commit -qam two").ok();
    sandbox.write("host", "2\n");
    git(&sandbox, &["commit", "-qam", "host two"]).ok();
    sandbox.changes(&["apply"]).exits(1);
    sandbox.changes(&["apply", "--take-layer", ".git"]).ok();
    assert!(git(&sandbox, &["log", "-1", "--format=%s"]).ok().out().contains("two"));
    git(&sandbox, &["fsck", "--strict"]).ok();
}

#[test]
fn what_the_host_made_or_replaced_is_told_in_these_words() {
    let sandbox = Sandbox::overlaid();
    for name in ["replaced", "changed"] {
        sandbox.write(name, "base\n");
    }
    sandbox.sh("echo job > replaced; echo job > changed; echo job > made; echo job > same").ok();
    let other = sandbox.write("other", "host\n");
    fs::rename(other, sandbox.workspace.join("replaced")).unwrap();
    sandbox.write("changed", "host\n");
    sandbox.write("made", "host\n");
    // The same on both sides is no conflict.
    sandbox.write("same", "job\n");
    let refused = sandbox.changes(&["apply"]);
    let err = refused.exits(1).err();
    for word in ["replaced", "changed", "made"] {
        assert!(err.contains(&format!("{word}: host: {word} since")), "{err}");
    }
    assert!(!err.contains("same:") && err.contains("changes diff PATH") && err.contains("3 files refused"), "{err}");
}

#[test]
fn files_that_tools_obey_need_to_be_asked_for() {
    need!("git");
    let sandbox = Sandbox::overlaid();
    git(&sandbox, &["init", "-q", "."]).ok();
    let_files_age();
    sandbox.sh("echo 'echo hi' > .envrc; printf '#!/bin/sh\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; git config core.pager evil; echo x > f").ok();
    let applied = sandbox.changes(&["apply"]);
    assert!(applied.ok().err().contains("3 files guarded"), "{}", applied.report());
    assert_eq!(sandbox.read("f"), "x\n");
    assert!(!sandbox.workspace.join(".envrc").exists() && !sandbox.read(".git/config").contains("evil"));
    sandbox.changes(&["apply", "--with-guarded"]).ok();
    assert!(sandbox.workspace.join(".git/hooks/pre-commit").exists() && sandbox.read(".git/config").contains("evil"));
}

#[test]
fn commits_reach_the_repository_also_from_a_linked_worktree() {
    need!("git");
    let sandbox = Sandbox::new();
    git(&sandbox, &["init", "-q", "."]).ok();
    sandbox.write("f", "1\n");
    git(&sandbox, &["add", "f"]).ok();
    git(&sandbox, &["commit", "-qm", "first"]).ok();
    let linked = sandbox.home.join("linked");
    git(&sandbox, &["worktree", "add", "-q", linked.to_str().unwrap()]).ok();
    let_files_age();
    let before = TreeSnapshot::of(&sandbox.workspace);
    let commit =
        "echo 2 >> f; git -c user.name=t -c user.email=t@example.com commit -qam second && git fsck && git log --oneline";
    for workspace in [&linked, &sandbox.workspace] {
        let run = |script: &str| {
            let mut command = sandbox.hermes();
            command.current_dir(workspace).args(["run", "--overlay", "--", "/bin/sh", "-c", script]);
            run_to_end(&mut command)
        };
        run(commit).ok().says("second");
        if workspace == &linked {
            before.assert_unchanged(&sandbox.workspace);
        }
        let log = |message: &str| {
            run_to_end(sandbox.plain_command("git").current_dir(workspace).args(["log", "--oneline"])).out().contains(message)
        };
        assert!(!log("second"));
        run_to_end(sandbox.hermes().current_dir(workspace).args(["changes", "apply"])).ok();
        assert!(log("second"));
        let status = run_to_end(sandbox.plain_command("git").current_dir(workspace).args(["status", "--short"]));
        assert_eq!(status.ok().out(), "");
        run_to_end(sandbox.plain_command("git").current_dir(workspace).args(["fsck", "--strict"])).ok();
    }
}

#[test]
fn single_paths_are_applied_and_discarded() {
    let sandbox = Sandbox::overlaid();
    sandbox.write("a", "old\n");
    let_files_age();
    sandbox.sh("echo new > a; mkdir d; echo 1 > d/x; echo 2 > d/y").ok();
    sandbox.changes(&["apply", "d/x"]).ok();
    assert_eq!((sandbox.read("a"), sandbox.read("d/x")), ("old\n".into(), "1\n".into()));
    sandbox.changes(&["discard", "a"]).ok();
    assert!(sandbox.changes(&["discard", "a"]).refused(125).err().contains("no changes lie at a"));
    assert!(sandbox.changes(&["apply", "/etc/passwd"]).refused(125).err().contains("is not in"));
    sandbox.sh("cat a d/x d/y").ok().says("old\n1\n2\n");
    sandbox.changes(&["discard"]).ok();
    assert!(!sandbox.workspace.join("d/y").exists());
    assert!(sandbox.changes(&["apply"]).refused(125).err().contains("no changes wait"));
}

#[test]
fn names_that_match_nothing_are_errors() {
    let sandbox = Sandbox::overlaid();
    sandbox.sh("echo x > f; echo x > .envrc").ok();
    let before = TreeSnapshot::of(&sandbox.workspace);
    for words in [
        &["apply", "none"][..],
        &["apply", "f", "none"],
        &["diff", "none"],
        &["apply", "--take-layer", "none"],
        &["discard", "none"],
    ] {
        assert!(sandbox.changes(words).refused(125).err().contains("no changes lie at none"), "{words:?}");
    }
    assert!(sandbox.changes(&["list", "--layer", "9"]).refused(125).err().contains("there is no layer 9"));
    assert!(sandbox.changes(&["list", "--layer", "x"]).refused(125).err().contains("not a number"));
    let guarded = sandbox.changes(&["apply", ".envrc"]);
    assert!(guarded.exits(1).err().contains("nothing was applied: what waits in layer 1 is guarded"), "{}", guarded.report());
    assert!(guarded.err().contains("1 file guarded, because tools on the host obey it: .envrc; look at it"));
    before.assert_unchanged(&sandbox.workspace);
    assert!(sandbox.changes(&["apply", "f"]).ok().err().contains("1 file applied"));
    sandbox.changes(&["list", "--layer", "1"]).ok().says("layer 1 ");
}

#[test]
fn files_are_counted_apart_from_git_and_directories() {
    need!("git");
    let sandbox = Sandbox::overlaid();
    repository(&sandbox);
    let run = sandbox.sh("mkdir -p d/e; echo x > d/e/f; git add .; git commit -qm two; touch .git/index.lock");
    assert!(run.ok().err().contains("1 file changed (and "), "{}", run.report());
    sandbox.changes(&["list"]).ok().says("1 added, 0 changed, 0 deleted (and ");
    sandbox.changes(&["diff", "--stat"]).ok().says(" 1 file changed, 1 insertion(+)\n");
    let applied = sandbox.changes(&["apply"]);
    assert!(applied.ok().err().contains("locks of a git that did not end: .git/index.lock"), "{}", applied.report());
    assert!(!sandbox.workspace.join(".git/index.lock").exists());
    assert_eq!(sandbox.sh("ls -R . > /dev/null; cat f; git status > /dev/null").ok().err(), "");
}

#[test]
fn the_layer_that_is_continued_is_told_when_there_are_several() {
    let sandbox = Sandbox::overlaid();
    let mut first = sandbox
        .inside(["/bin/sh", "-c", "echo 1 > one; echo; sleep 60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    assert!(!sandbox.sh("echo 2 > two").ok().err().contains("goes on"));
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(wait_until(10, || !sandbox.changes(&["list"]).out().contains("in use")));
    let run = sandbox.sh("cat two");
    assert!(run.ok().err().contains("goes on with layer 2, not with layer 1"), "{}", run.report());
    sandbox.changes(&["discard", "--layer", "1"]).ok();
    assert!(!sandbox.sh("cat two").ok().err().contains("goes on with"));
}

#[test]
fn commands_in_hints_can_be_pasted() {
    let sandbox = Sandbox::overlaid();
    let spaced = sandbox.home.join("with space");
    fs::create_dir(&spaced).unwrap();
    let run = run_to_end(sandbox.hermes().args(["run", "--overlay", "--workspace"]).arg(&spaced).args(["--", "touch", "f"]));
    let hint = run.ok().err().split("hermes-sandbox changes ").nth(1).unwrap().trim().to_owned();
    assert!(hint.contains("--workspace '"), "{hint}");
    let mut shell = sandbox.plain_command("sh");
    shell.args(["-c", &format!("\"$0\" changes {hint} --name-only")]).arg(sandbox.hermes().get_program());
    run_to_end(&mut shell).ok().says("f\n");
}

#[test]
fn what_is_kept_about_other_and_lost_workspaces_is_found_and_removed() {
    let sandbox = Sandbox::overlaid();
    let lost = sandbox.home.join("lost");
    fs::create_dir(&lost).unwrap();
    let inside = |flag: &str| run_to_end(sandbox.hermes().current_dir(&lost).args(["run", flag, "--", "touch", "f"]));
    inside("--overlay").ok();
    inside("--checkpoint").ok();
    sandbox.sh("touch g").ok();
    sandbox.changes(&["list", "--all"]).ok().says(lost.to_str().unwrap()).never_says("deleted or renamed");
    // What is there is not taken for lost.
    fs::remove_dir_all(&lost).unwrap();
    sandbox.changes(&["list", "--all"]).ok().says("lost  (deleted or renamed)\n  layer 1 ").says("before touch f\n");
    let discard = || sandbox.changes(&["discard", "--workspace", lost.to_str().unwrap()]);
    assert!(discard().ok().err().contains("1 layer and 1 checkpoint discarded"));
    sandbox.changes(&["list", "--all"]).ok().never_says("lost").says("layer 1 ");
    discard().refused(125);
    sandbox.changes(&["diff", "--name-only"]).ok().says("g\n");
}

#[test]
fn a_plan_says_where_changes_would_wait() {
    let sandbox = Sandbox::new();
    let plan = |flags: &[&str]| run_to_end(sandbox.hermes().arg("plan").args(flags));
    plan(&["--overlay"]).ok().says("would wait in a layer below");
    plan(&["--checkpoint"]).ok().says("a checkpoint of ").says("would be taken first");
    plan(&[]).ok().never_says("would wait").never_says("checkpoint");
    plan(&["--profile", "review", "--checkpoint"]).refused(125);
}

#[test]
fn a_list_for_programs() {
    let sandbox = Sandbox::overlaid();
    sandbox.sh("echo x > f").ok();
    let list: serde_json::Value = serde_json::from_slice(&sandbox.changes(&["list", "--json"]).ok().stdout).unwrap();
    assert_eq!((&list["layers"][0]["added"], &list["layers"][0]["in_use"]), (&1.into(), &false.into()));
}

#[test]
fn the_layer_of_another_user_is_that_users() {
    if !is_root() {
        skip!("needs root to become somebody else");
    }
    need!("getent");
    let sandbox = Sandbox::new();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    for path in [&sandbox.home, &sandbox.workspace] {
        nix::unistd::chown(path, Some(nobody.uid), Some(nobody.gid)).unwrap();
    }
    fs::set_permissions(sandbox.root(), fs::Permissions::from_mode(0o755)).unwrap();
    // Root itself, in a directory of somebody else: new files are its owner's.
    let open = |mode| fs::set_permissions(&sandbox.workspace, fs::Permissions::from_mode(mode)).unwrap();
    open(0o777);
    let run = |script: &str| run_to_end(sandbox.hermes().args(["run", "--overlay", "--", "/bin/sh", "-c", script]));
    run("mkdir d && echo x > d/f && echo y > g").ok();
    sandbox.changes(&["apply"]).ok();
    open(0o755);
    for path in ["d", "d/f", "g"] {
        assert_eq!(fs::metadata(sandbox.workspace.join(path)).unwrap().uid(), nobody.uid.as_raw(), "{path}");
    }
}

#[test]
fn what_is_hidden_stays_so_when_the_host_replaces_it() {
    let sandbox = Sandbox::overlaid();
    let secret = sandbox.write("sub/secret", "first");
    let deny = secret.to_str().unwrap().to_owned();
    let sandbox = sandbox.flags(["--deny", &deny]);
    let mut child = sandbox
        .inside(["/bin/sh", "-c", "cat sub/secret; echo READY; read go; cat sub/secret; ls sub; echo END"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"READY\n");
    let new = sandbox.write("sub/new", sandbox.canary("replaced"));
    fs::rename(new, &secret).unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("END") && !text.contains("CANARY"), "{text}");
    assert!(sandbox.read("sub/secret").contains("CANARY"), "the host has it");
}

#[test]
fn a_user_that_root_becomes_keeps_the_layer() {
    if !is_root() {
        skip!("needs root to become somebody else");
    }
    let sandbox = Sandbox::new();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let state = sandbox.root().join("state");
    fs::create_dir(&state).unwrap();
    for path in [&sandbox.home, &sandbox.workspace, &state] {
        nix::unistd::chown(path, Some(nobody.uid), Some(nobody.gid)).unwrap();
    }
    fs::set_permissions(sandbox.root(), fs::Permissions::from_mode(0o755)).unwrap();
    // The state of a user that root becomes is found by that user's home, which `nobody` does not have.
    let refused = run_to_end(sandbox.hermes().args(["run", "--user", "nobody", "--overlay", "--", "touch", "f"]));
    assert!(refused.refused(125).err().contains("workspace-overlaid"), "{}", refused.report());
    assert!(!sandbox.workspace.join("f").exists());
    // As that user itself.
    need!("setpriv");
    let words = |words: &[&str]| {
        let mut command = sandbox.plain_command("setpriv");
        command.args(["--reuid", "nobody", "--regid", &nobody.gid.to_string(), "--clear-groups"]);
        run_to_end(command.arg(sandbox.hermes().get_program()).args(words).env("XDG_STATE_HOME", &state))
    };
    words(&["run", "--overlay", "--", "touch", "f"]).ok();
    words(&["changes", "apply"]).ok();
    assert_eq!(fs::metadata(sandbox.workspace.join("f")).unwrap().uid(), nobody.uid.as_raw());
}
