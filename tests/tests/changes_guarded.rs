//! What a job in a copy-on-write workspace cannot bring to the host by a plain `changes apply`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::MetadataExt;

use hermes_tests::{Sandbox, let_files_age, need, run_to_end};

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
