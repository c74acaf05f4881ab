//! What a job in a copy-on-write workspace cannot bring to the host by a plain `changes apply`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hermes_tests::{Sandbox, is_root, let_files_age, need, run_to_end, skip};

const CONFIG: &str =
    r#"printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch %s/fired"\n' "$PWD""#;

#[test]
fn a_name_that_stays_in_the_layer_is_none_of_the_hosts_file() {
    let sandbox = Sandbox::overlaid();
    let_files_age();
    sandbox.sh("echo read > tool.sh; ln tool.sh .envrc; ln tool.sh other; test $(stat -c %h other) = 3").ok();
    sandbox.changes(&["apply", "tool.sh"]).ok();
    sandbox.changes(&["apply"]).ok();
    assert!(!sandbox.workspace.join(".envrc").exists());
    for path in ["tool.sh", "other"] {
        assert_eq!(fs::metadata(sandbox.workspace.join(path)).unwrap().nlink(), 1, "{path}");
    }
    sandbox.sh("echo unread > .envrc; cat tool.sh").ok().says("read");
    assert_eq!((sandbox.read("tool.sh"), sandbox.read("other")), ("read\n".into(), "read\n".into()));
}

#[test]
fn no_plain_directory_becomes_a_repository_that_runs_something() {
    need!("git");
    let long_head = "mkdir -p new/objects new/refs; { echo 'ref: refs/heads/main'; yes '' | head -c 2000000; } > new/HEAD";
    for (prepare, plant) in [
        // Git reads the beginning of a HEAD only.
        ("mkdir new", format!("{long_head}; {CONFIG} > new/config")),
        // Version control keeps no empty directories, so this is none yet.
        ("mkdir -p new/objects; echo 'ref: refs/heads/main' > new/HEAD", format!("mkdir new/refs; {CONFIG} > new/config")),
    ] {
        for inside in [false, true] {
            let sandbox = Sandbox::overlaid();
            sandbox.plain_sh(prepare).ok();
            let_files_age();
            if inside {
                sandbox.sh(&plant).ok();
                sandbox.changes(&["apply"]).ok();
            } else {
                sandbox.plain_sh(&plant).ok();
            }
            run_to_end(sandbox.plain_command("git").args(["-C", "new", "status"]));
            assert_eq!(sandbox.workspace.join("fired").exists(), !inside, "{plant}");
        }
    }
}

#[test]
fn submodules_of_a_linked_worktree_are_repositories_too() {
    need!("git");
    let prepare = "export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com; \
                   git init -q from; git -C from commit -q --allow-empty -m a; git init -q main; cd main; \
                   git -c protocol.file.allow=always submodule -q add ../from sub; git commit -qm b; git worktree add -q ../linked; \
                   cd ../linked; git -c protocol.file.allow=always submodule -q update --init";
    for inside in [false, true] {
        let sandbox = Sandbox::overlaid();
        sandbox.plain_sh(prepare).ok();
        let_files_age();
        let fired = sandbox.workspace.join("linked/fired");
        let linked = sandbox.workspace.join("linked");
        let plant = format!("git -C {}/sub config core.fsmonitor 'touch {} #'", linked.display(), fired.display());
        let sandbox = sandbox.flags([Path::new("--workspace"), &linked]);
        if inside {
            sandbox.sh(&plant).ok();
            sandbox.changes(&["apply", "--workspace", linked.to_str().unwrap()]).ok();
        } else {
            sandbox.plain_sh(&plant).ok();
        }
        sandbox.plain_sh("git -C linked/sub status").ok();
        assert_eq!(fired.exists(), !inside);
    }
}

#[test]
fn a_directory_that_nobody_may_read_keeps_nothing_else_from_the_host() {
    if is_root() {
        skip!("root may read all");
    }
    let sandbox = Sandbox::overlaid();
    let_files_age();
    sandbox
        .sh("mkdir closed unlisted; echo a > closed/a; echo b > unlisted/b; echo c > c; chmod 0 closed; chmod 300 unlisted")
        .ok();
    sandbox.changes(&["list"]).ok().says("layer 1 ");
    let applied = sandbox.changes(&["apply"]);
    assert!(applied.code() == 1 && applied.err().contains("closed: Permission denied"), "{}", applied.report());
    assert_eq!((sandbox.read("unlisted/b"), sandbox.read("c")), ("b\n".into(), "c\n".into()));
    sandbox.plain_sh("chmod 700 closed").ok();
}

#[test]
fn what_a_waiting_file_replaces_waits_with_it() {
    let sandbox = Sandbox::overlaid();
    for path in [".vscode/tasks.json", ".vscode/deep/file", "gone/file", "pipe/file"] {
        sandbox.write(path, "host");
    }
    let_files_age();
    sandbox.sh("rm -rf .vscode gone pipe; mkdir planted; ln -s planted .vscode; mkfifo pipe; echo x > gone").ok();
    let applied = sandbox.changes(&["apply"]);
    let read = |path: &str| fs::read_to_string(sandbox.workspace.join(path)).unwrap_or_default();
    let now = [".vscode/tasks.json", ".vscode/deep/file", "gone", "pipe/file"].map(read);
    assert_eq!(now, ["host", "host", "x\n", "host"], "{}", applied.report());
    sandbox.changes(&["apply", "--with-guarded"]).ok();
    assert!(fs::symlink_metadata(sandbox.workspace.join(".vscode")).unwrap().is_symlink());
}
