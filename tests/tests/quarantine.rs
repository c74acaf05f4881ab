//! `hermes-sandbox quarantine`: what was put aside can be looked at, brought back and approved; and the policy's say.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use hermes_tests::{Aside, Outcome, PYTHON, Pty, Sandbox, fixture, need, run_to_end, skip};

const OLD: &str = "export A=old\n";
const NEW: &str = "export A=new\n";

/// A sandbox whose last run changed `.envrc`, and what was put aside.
fn changed() -> (Sandbox, Aside) {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", OLD);
    sandbox.sh("printf 'export A=new\\n' > .envrc; chmod 755 .envrc").ok();
    assert_eq!(sandbox.read(".envrc"), OLD);
    let one = sandbox.put_aside_at(".envrc");
    (sandbox, one)
}

#[test]
fn an_empty_quarantine_is_listed_as_such() {
    let sandbox = Sandbox::new();
    sandbox.quarantine(["list"]).ok().no_panic();
    assert!(sandbox.put_aside().is_empty());
    assert_eq!(fs::read_dir(&sandbox.workspace).unwrap().count(), 0);
}

#[test]
fn the_list_tells_what_when_and_why() {
    let (sandbox, one) = changed();
    let fields = one.value.as_object().unwrap();
    assert!(fields.contains_key("path") && fields.contains_key("rule"), "{fields:?}");
    assert!(fields.len() >= 5, "identifier, path, time, rule and reason: {fields:?}");
    let list = sandbox.quarantine(["list"]);
    list.ok().says(".envrc").says(&one.id).says(fields["rule"].as_str().unwrap());
    // The workspace is the current directory unless named.
    run_to_end(sandbox.hermes().args(["quarantine", "list"])).ok().says(&one.id);
}

#[test]
fn quarantines_of_workspaces_are_apart() {
    let (sandbox, _) = changed();
    let other = sandbox.outside.join("other");
    fs::create_dir(&other).unwrap();
    run_to_end(sandbox.hermes().args(["quarantine", "list", "--workspace"]).arg(&other)).ok().never_says(".envrc");
}

#[test]
fn show_and_diff_tell_what_was_put_aside() {
    let (sandbox, one) = changed();
    sandbox.quarantine(["show", &one.id]).ok().says(".envrc");
    let diff = sandbox.quarantine(["diff", &one.id]);
    diff.no_panic().says("A=old").says("A=new");
    assert!(matches!(diff.code(), 0 | 1), "{}", diff.report());
    assert_eq!(sandbox.read(".envrc"), OLD, "looking changes nothing");
    // A file that is new, one that is not text, and what is no file at all.
    sandbox.sh("mkdir a b c; printf 'A\\0B\\377' > a/.envrc; ln -s /etc/passwd b/.envrc; mkfifo c/.envrc").ok();
    for path in ["a/.envrc", "b/.envrc", "c/.envrc"] {
        let one = sandbox.put_aside_at(path);
        sandbox.quarantine(["show", &one.id]).ok().never_says("root:");
        let diff = sandbox.quarantine(["diff", &one.id]);
        diff.no_panic().never_says("root:");
        assert!(matches!(diff.code(), 0 | 1), "{}", diff.report());
    }
}

#[test]
fn restore_brings_it_back_and_it_stays() {
    let (sandbox, one) = changed();
    sandbox.quarantine(["restore", &one.id]).ok();
    assert_eq!(sandbox.read(".envrc"), NEW);
    assert_eq!(fs::metadata(sandbox.workspace.join(".envrc")).unwrap().permissions().mode() & 0o111, 0o111, "with its mode");
    let run = sandbox.sh("cat .envrc");
    run.ok().says("A=new").never_says("quarantine list");
    assert_eq!(sandbox.read(".envrc"), NEW);
    sandbox.quarantine(["restore", &one.id]).no_panic();
    assert_eq!(sandbox.read(".envrc"), NEW);
    // Restored is not approved: the same plant elsewhere or anew is put aside again.
    fs::remove_file(sandbox.workspace.join(".envrc")).unwrap();
    sandbox.sh("printf 'export A=new\\n' > .envrc").ok();
    assert!(!sandbox.workspace.join(".envrc").exists());
}

#[test]
fn restore_makes_the_directories_that_it_needs() {
    let sandbox = Sandbox::new();
    sandbox.sh("mkdir -p a/b/.codex; echo 'x = 1' > a/b/.codex/config.toml").ok();
    let one = sandbox.put_aside_at("a/b/.codex/config.toml");
    let _ = fs::remove_dir_all(sandbox.workspace.join("a"));
    sandbox.quarantine(["restore", &one.id]).ok();
    assert_eq!(sandbox.read("a/b/.codex/config.toml"), "x = 1\n");
}

#[test]
fn restore_loses_nothing_of_the_hosts() {
    let (sandbox, one) = changed();
    sandbox.write(".envrc", "export A=mine\n");
    let restored = sandbox.quarantine(["restore", &one.id]);
    restored.no_panic();
    if restored.code() == 0 {
        let kept = run_to_end(sandbox.plain_command("grep").args(["-rl", "A=mine"]).arg(sandbox.state_dir()));
        kept.ok();
    } else {
        restored.clear_message();
        assert_eq!(sandbox.read(".envrc"), "export A=mine\n");
    }
}

#[test]
fn restore_does_not_follow_links_out_of_the_workspace() {
    let sandbox = Sandbox::new();
    sandbox.sh("mkdir d; echo PLANT > d/.envrc").ok();
    let one = sandbox.put_aside_at("d/.envrc");
    sandbox.sh(&format!("rm -rf d; ln -s '{}' d", sandbox.outside.display())).ok();
    sandbox.quarantine(["restore", &one.id]).no_panic();
    sandbox.quarantine(["approve", &one.id]).no_panic();
    assert_eq!(fs::read_dir(&sandbox.outside).unwrap().count(), 0, "written outside");
}

#[test]
fn what_was_approved_is_not_put_aside_again() {
    let (sandbox, one) = changed();
    sandbox.quarantine(["approve", &one.id]).ok();
    assert_eq!(sandbox.read(".envrc"), NEW, "in place");
    let plant = |path: &str, text: &str| {
        fs::remove_file(sandbox.workspace.join(".envrc")).ok();
        sandbox.sh(&format!("mkdir -p $(dirname {path}); printf 'export A={text}\\n' > {path}")).ok();
        sandbox.workspace.join(path).exists()
    };
    let before = sandbox.put_aside().len();
    assert!(plant(".envrc", "new"), "the same again stays");
    assert_eq!(sandbox.put_aside().len(), before);
    assert!(!plant(".envrc", "newer"), "other content does not");
    assert!(!plant("sub/.envrc", "new"), "another path does not");
    assert!(plant(".envrc", "new"));
    // It may be changed back and forth, too.
    sandbox.write(".envrc", OLD);
    sandbox.sh("printf 'export A=new\\n' > .envrc").ok();
    assert_eq!(sandbox.read(".envrc"), NEW);
}

#[test]
fn git_configuration_and_hooks_make_the_round_too() {
    need!("git");
    let sandbox = Sandbox::new();
    sandbox.plain_sh("git init -q . && mkdir -p .git/hooks").ok();
    let plant = "printf '#!/bin/sh\\necho HOOK\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; git config alias.hi '!echo HI'";
    sandbox.sh(plant).ok();
    assert!(!sandbox.workspace.join(".git/hooks/pre-commit").exists() && !sandbox.read(".git/config").contains("alias"));
    let (hook, config) = (sandbox.put_aside_at(".git/hooks/pre-commit"), sandbox.put_aside_at(".git/config"));
    sandbox.quarantine(["diff", &config.id]).says("echo HI");
    sandbox.quarantine(["approve", &hook.id]).ok();
    sandbox.quarantine(["approve", &config.id]).ok();
    sandbox.plain_sh("git hi").ok().says("HI");
    sandbox.plain_sh(".git/hooks/pre-commit").ok().says("HOOK");
    sandbox.plain_sh("rm .git/hooks/pre-commit").ok();
    sandbox.sh(plant).ok();
    sandbox.plain_sh(".git/hooks/pre-commit").ok().says("HOOK");
}

#[test]
fn an_unknown_identifier_is_an_error_with_a_hint() {
    let (sandbox, one) = changed();
    for verb in ["show", "diff", "restore", "approve"] {
        sandbox.quarantine([verb, &one.id[..]]).no_panic();
        for id in ["nosuch", "0", "../../x", "", "/etc/passwd", "*", "\u{1b}[31mRED"] {
            let refused = sandbox.quarantine([verb, id]);
            assert_ne!(refused.code(), 0, "{}", refused.report());
            refused.clear_message().never_says("\u{1b}[31mRED").never_says("root:");
            assert!(refused.err().contains("quarantine list"), "no hint\n{}", refused.report());
        }
    }
    sandbox.quarantine(["nosuch"]).clear_message();
    assert_ne!(sandbox.quarantine(["show"]).code(), 0);
}

#[test]
fn hostile_names_and_contents_do_not_reach_the_terminal() {
    need!(PYTHON);
    if !fixture("terminal.py").exists() {
        skip!("tests/fixtures is not there");
    }
    let signs = ["\u{1b}]0;pwn", "\u{1b}[31mRED", "\u{7}", "\u{9b}31m", "\u{202e}"];
    let hostile = |text: &str| signs.iter().any(|sign| text.contains(sign));
    let sandbox = Sandbox::new();
    let plant = "import os\nd = '\\x1b]0;pwn\\x07\\x1b[31mRED\\n\\u009b31m\\u202ehermes-sandbox: fine'\nos.mkdir(d)\nopen(d + '/.envrc', 'w').write(d + '\\n')";
    let run = sandbox.python(plant);
    run.ok();
    assert!(!hostile(&run.err()), "{:?}", run.err());
    let all = sandbox.put_aside();
    assert_eq!(all.len(), 1, "{all:#?}");
    let id = all[0].id.as_str();
    let control = Pty::play(&sandbox, sandbox.plain_command(PYTHON).args(["-c", "print('\\x1b[31mRED')"]), &[]);
    assert!(hostile(&control.output), "positive control: {:?}", control.output);
    for argv in [&["list"][..], &["list", "--json"], &["show", id], &["diff", id]] {
        let piped = sandbox.quarantine(argv);
        piped.no_panic();
        assert!(argv.contains(&"--json") || !hostile(&piped.all()), "{argv:?}: {:?}", piped.all());
        assert!(!piped.all().contains('\u{1b}'), "{argv:?}: {:?}", piped.all());
        let shown = Pty::play(&sandbox, &sandbox.quarantine_command(argv), &[]);
        assert!(argv.contains(&"--json") || !hostile(&shown.output), "{argv:?}: {:?}", shown.output);
        assert!(!shown.output.lines().any(|line| line.starts_with("hermes-sandbox: fine")), "{argv:?}: {:?}", shown.output);
    }
    let shown = Pty::play(&sandbox, &sandbox.inside([PYTHON, "-c", &plant.replace("RED", "RED2")]), &[]);
    assert!(!hostile(&shown.output), "{:?}", shown.output);
    // Such a name comes back unharmed.
    sandbox.quarantine(["restore", id]).ok();
    let back =
        fs::read_dir(&sandbox.workspace).unwrap().filter(|entry| entry.as_ref().unwrap().path().join(".envrc").exists()).count();
    assert_eq!(back, 1);
}

#[test]
fn a_thousand_things_are_put_aside_and_listed() {
    let sandbox = Sandbox::new();
    let run = sandbox.sh("i=0; while [ $i -lt 1000 ]; do mkdir $i; echo $i > $i/.envrc; i=$((i+1)); done");
    run.ok();
    assert!(run.err().len() < 4000, "the notice stays short\n{}", run.report());
    let left = (0..1000).filter(|i| sandbox.workspace.join(format!("{i}/.envrc")).exists()).count();
    assert_eq!(left, 0);
    assert_eq!(sandbox.put_aside().len(), 1000);
    assert!(run.time < Duration::from_secs(20), "{}", run.report());
}

/// Runs a script under a profile that adds these lines to `[filesystem]`.
fn under(sandbox: Sandbox, filesystem: &str, script: &str) -> (Sandbox, Outcome) {
    let profile = sandbox.outside.join("profile.toml");
    sandbox.write(&profile, format!("schema = 1\ndescription = \"t\"\nincludes = [\"agent\"]\n[filesystem]\n{filesystem}\n"));
    let sandbox = sandbox.flags([Path::new("--profile"), &profile]);
    let run = sandbox.sh(script);
    (sandbox, run)
}

const TASK: &str =
    r#"{"version":"2.0.0","tasks":[{"label":"x","type":"shell","command":"x","runOptions":{"runOn":"folderOpen"}}]}"#;

fn plants() -> String {
    format!(
        "set -e; mkdir -p sub .vscode; echo x > .envrc; echo x > sub/.envrc; echo '{TASK}' > .vscode/tasks.json; echo x > deploy.cfg; echo x > sub/deploy.cfg"
    )
}

fn present(sandbox: &Sandbox) -> Vec<&'static str> {
    let all = [".envrc", "sub/.envrc", ".vscode/tasks.json", "deploy.cfg", "sub/deploy.cfg"];
    all.into_iter().filter(|path| sandbox.workspace.join(path).exists()).collect()
}

#[test]
fn a_policy_guards_more() {
    let (sandbox, run) = under(Sandbox::new(), "", &plants());
    run.ok();
    assert!(present(&sandbox).ends_with(&["deploy.cfg", "sub/deploy.cfg"]), "positive control");
    let (sandbox, run) = under(Sandbox::new(), "guard = [\"**/deploy.cfg\"]", &plants());
    run.ok();
    assert_eq!(present(&sandbox), [""; 0], "what is guarded anyway stays guarded");
}

#[test]
fn a_policy_lets_files_change() {
    let (sandbox, run) = under(Sandbox::new(), "unguard = [\"**/.envrc\"]", &plants());
    run.ok();
    assert_eq!(present(&sandbox), [".envrc", "sub/.envrc", "deploy.cfg", "sub/deploy.cfg"]);
    let rule = {
        let sandbox = Sandbox::new();
        sandbox.sh(&plants()).ok();
        sandbox.put_aside_at(".vscode/tasks.json").value["rule"].as_str().unwrap().to_owned()
    };
    let (sandbox, run) = under(Sandbox::new(), &format!("unguard = [\"rule:{rule}\"]"), &plants());
    run.ok();
    assert_eq!(present(&sandbox), [".vscode/tasks.json", "deploy.cfg", "sub/deploy.cfg"]);
    assert!(sandbox.put_aside().iter().all(|one| one.concerns(".envrc") || one.concerns("sub/.envrc")));
}

#[test]
fn a_policy_prevents_changes_at_once() {
    let make = || {
        let sandbox = Sandbox::new();
        sandbox.write("deploy.cfg", "OWN\n");
        sandbox.write("sub/.envrc", "OWN\n");
        sandbox.write("free", "OWN\n");
        sandbox
    };
    let script = "for f in deploy.cfg sub/.envrc free; do (echo x >> $f) 2>/dev/null && echo WROTE $f; cat $f; done; true";
    let (_, run) = under(make(), "", script);
    run.ok().says("WROTE deploy.cfg").says("WROTE sub/.envrc").says("WROTE free");
    let (sandbox, run) = under(make(), "prevent = [\"**/deploy.cfg\", \"**/.envrc\"]", script);
    run.ok().never_says("WROTE deploy.cfg").never_says("WROTE sub/.envrc").says("WROTE free").says("OWN");
    assert_eq!((sandbox.read("deploy.cfg"), sandbox.read("sub/.envrc")), ("OWN\n".into(), "OWN\n".into()));
    sandbox.assert_nothing_put_aside(&run);
}

#[test]
fn a_policy_stages_changes_until_they_are_approved() {
    let make = || {
        let sandbox = Sandbox::new();
        sandbox.write(sandbox.home.join(".hermes/memories/MEMORY.md"), "old memory\n");
        sandbox.write(sandbox.home.join(".hermes/log"), "");
        sandbox
    };
    let script = "cd ~/.hermes; echo 'new memory' >> memories/MEMORY.md; echo more > memories/USER.md; echo x >> log; cat memories/MEMORY.md";
    let (sandbox, run) = under(make(), "write = [\"~/.hermes\"]", script);
    run.ok();
    assert!(sandbox.read(sandbox.home.join(".hermes/memories/MEMORY.md")).contains("new memory"), "positive control");
    let (sandbox, run) = under(make(), "write = [\"~/.hermes\"]\nstage = [\"~/.hermes/memories/**\"]", script);
    run.ok().says("new memory");
    let memories = sandbox.home.join(".hermes/memories");
    assert_eq!(sandbox.read(memories.join("MEMORY.md")), "old memory\n");
    assert!(!memories.join("USER.md").exists());
    assert_eq!(sandbox.read(sandbox.home.join(".hermes/log")), "x\n");
    assert!(run.err().contains("quarantine list"), "{}", run.report());
    // They are listed with the workspace of the run, or with the tree that they lie in.
    let tree = sandbox.home.join(".hermes");
    for place in [&sandbox.workspace, &tree] {
        let command = |argv: &[&str]| run_to_end(sandbox.hermes().arg("quarantine").args(argv).arg("--workspace").arg(place));
        let listed = command(&["list", "--json"]);
        if !listed.out().contains("MEMORY.md") {
            continue;
        }
        let value: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        let entries =
            value.as_array().cloned().or_else(|| value.as_object()?.values().find_map(|v| v.as_array().cloned())).unwrap();
        for entry in entries.iter().filter(|entry| entry.to_string().contains("memories")) {
            let id = entry["id"].as_str().map_or_else(|| entry["id"].to_string(), str::to_owned);
            command(&["approve", &id]).ok();
        }
        assert_eq!(sandbox.read(memories.join("MEMORY.md")), "old memory\nnew memory\n");
        assert_eq!(sandbox.read(memories.join("USER.md")), "more\n");
        return;
    }
    panic!("what was staged is not listed");
}
