//! What was put aside after runs can be looked at, brought back, approved and removed.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use hermes_tests::{Outcome, Pty, Sandbox, need, run_to_end, wait_until};
use serde_json::Value;

const PLANT: &str = "printf 'evil\\n' > .envrc";

fn command(sandbox: &Sandbox, words: &[&str]) -> Command {
    let mut command = sandbox.hermes();
    command.arg("quarantine").args(words);
    command
}

fn quarantine(sandbox: &Sandbox, words: &[&str]) -> Outcome {
    run_to_end(&mut command(sandbox, words))
}

fn list(sandbox: &Sandbox) -> Vec<Value> {
    let outcome = quarantine(sandbox, &["list", "--json"]);
    serde_json::from_slice(&outcome.ok().stdout).unwrap()
}

fn id(sandbox: &Sandbox, path: &str) -> String {
    let entry = list(sandbox).into_iter().rev().find(|entry| entry["path"] == path);
    entry.unwrap_or_else(|| panic!("{path} is not in quarantine"))["id"].to_string()
}

#[test]
fn what_one_run_planted_is_listed_shown_and_brought_back() {
    need!("git");
    let sandbox = Sandbox::new();
    sandbox.plain_sh("git init -q . && printf 'mine\\n' > .envrc").ok();
    sandbox
        .sh("git config core.fsmonitor ./x && git config user.name inside && printf 'evil\\n' > .envrc && \
             printf '#!/bin/sh\\necho hook\\n' > .git/hooks/pre-commit && chmod 755 .git/hooks/pre-commit")
        .ok();
    assert_eq!(sandbox.read(".envrc"), "mine\n");
    assert!(!sandbox.workspace.join(".git/hooks/pre-commit").exists() && !sandbox.read(".git/config").contains("fsmonitor"));

    let text = quarantine(&sandbox, &["list"]);
    text.ok().says(".envrc").says("core.fsmonitor").says("just now").says(&sandbox.workspace.display().to_string());
    assert_eq!(list(&sandbox).len(), 3);
    let (config, hook, envrc) = (id(&sandbox, ".git/config"), id(&sandbox, ".git/hooks/pre-commit"), id(&sandbox, ".envrc"));
    quarantine(&sandbox, &["show", &hook])
        .ok()
        .says("mode 0755")
        .says("nothing")
        .says("source      githooks(5)")
        .says("run by ")
        .says("  | echo hook");
    quarantine(&sandbox, &["show", &envrc]).ok().says("a file of 5 bytes, mode 06").says("direnv").says("  | evil");
    quarantine(&sandbox, &["diff", &envrc]).ok().says("--- a/.envrc\n+++ b/.envrc\n@@ -1 +1 @@\n-mine\n+evil\n");
    quarantine(&sandbox, &["diff", &config]).ok().says("+\tfsmonitor = ./x");

    quarantine(&sandbox, &["restore", &config, &hook, &envrc]).ok().says(".envrc: restored");
    assert_eq!(sandbox.read(".envrc"), "evil\n");
    let mode = fs::metadata(sandbox.workspace.join(".git/hooks/pre-commit")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    sandbox.plain_sh("git config core.fsmonitor && git config user.name").ok().says("./x\ninside");
    quarantine(&sandbox, &["list"]).ok().says("nothing is in quarantine");
    // It is the host's own now.
    sandbox.sh("true").ok();
    assert_eq!((sandbox.read(".envrc"), list(&sandbox).len()), ("evil\n".into(), 0));
}

#[test]
fn a_diff_is_a_patch_that_git_takes() {
    need!("git");
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "one\ntwo\nthree\n");
    sandbox.sh("printf 'one\\n2\\nthree' > .envrc").ok();
    let patch = sandbox.root().join("patch");
    fs::write(&patch, quarantine(&sandbox, &["diff", &id(&sandbox, ".envrc")]).ok().stdout.clone()).unwrap();
    run_to_end(sandbox.plain_command("git").arg("apply").arg(&patch)).ok();
    assert_eq!(sandbox.read(".envrc"), "one\n2\nthree");
}

#[test]
fn what_is_approved_stays_and_another_content_does_not() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    quarantine(&sandbox, &["approve", &id(&sandbox, ".envrc")]).ok().says("approved");
    assert_eq!(sandbox.read(".envrc"), "evil\n");
    fs::remove_file(sandbox.workspace.join(".envrc")).unwrap();
    sandbox.sh(PLANT).ok();
    assert_eq!((sandbox.read(".envrc"), list(&sandbox).len()), ("evil\n".into(), 0));
    sandbox.sh("printf 'other\\n' > .envrc").ok();
    assert_eq!((sandbox.read(".envrc"), list(&sandbox).len()), ("evil\n".into(), 1));
}

#[test]
fn approvals_are_listed_and_revoked() {
    let sandbox = Sandbox::new();
    quarantine(&sandbox, &["approvals"]).ok().says("nothing is approved");
    quarantine(&sandbox, &["revoke", "--all"]).ok().says("nothing is approved");
    quarantine(&sandbox, &["revoke", "0123456789ab"]).refused(125);
    sandbox.sh(&format!("{PLANT}; mkdir sub; printf 'evil\\n' > sub/.envrc; chmod 755 sub/.envrc")).ok();
    quarantine(&sandbox, &["approve", "1", "2"]).ok();
    let approvals =
        || -> Vec<Value> { serde_json::from_slice(&quarantine(&sandbox, &["approvals", "--json"]).ok().stdout).unwrap() };
    let before = approvals();
    let own = before.iter().find(|one| one["path"] == ".envrc").unwrap();
    let program = before.iter().find(|one| one["path"] == "sub/.envrc").unwrap();
    assert_eq!((&own["rule"], &own["kind"], &program["kind"]), (&"direnv".into(), &"file".into(), &"program".into()));
    assert_eq!(own["tree"], sandbox.workspace.to_str().unwrap());
    let id = own["id"].as_str().unwrap();
    quarantine(&sandbox, &["approvals"]).ok().says("ID ").says(id).says("sub/.envrc").says("program");
    run_to_end(command(&sandbox, &["approvals", "--all"]).current_dir(&sandbox.outside)).ok().says(id);

    let unknown = quarantine(&sandbox, &["revoke", id, "0123456789ab"]);
    unknown.refused(125);
    assert!(unknown.err().contains("0123456789ab") && unknown.err().contains("quarantine approvals"), "{}", unknown.err());
    assert_eq!(approvals(), before, "one that is unknown keeps the others from being touched");
    let again =
        || sandbox.sh("rm -f .envrc sub/.envrc; printf 'evil\\n' > .envrc; printf 'evil\\n' > sub/.envrc; chmod 755 sub/.envrc");
    again().ok();
    assert_eq!(list(&sandbox).len(), 0, "positive control");

    quarantine(&sandbox, &["revoke", id]).ok().says(&format!("{id} .envrc: revoked"));
    assert_eq!(sandbox.read(".envrc"), "evil\n", "what lies there stays");
    assert_eq!(approvals(), std::slice::from_ref(program));
    for path in [".envrc", "sub/.envrc"] {
        fs::remove_file(sandbox.workspace.join(path)).unwrap();
    }
    again().ok();
    assert_eq!((sandbox.read(".envrc"), sandbox.read("sub/.envrc")), (String::new(), "evil\n".into()));
    quarantine(&sandbox, &["revoke", "--all", "--json"]).ok().says("sub/.envrc");
    assert_eq!(approvals(), [] as [Value; 0]);
}

#[test]
fn what_is_restored_once_is_put_aside_the_next_time() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    quarantine(&sandbox, &["restore", &id(&sandbox, ".envrc")]).ok();
    fs::remove_file(sandbox.workspace.join(".envrc")).unwrap();
    sandbox.sh(PLANT).ok();
    assert_eq!((sandbox.read(".envrc"), list(&sandbox).len()), (String::new(), 1));
}

#[test]
fn the_executable_bit_alone_is_told_as_such() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "mine\n");
    sandbox.sh("chmod 755 .envrc").ok();
    quarantine(&sandbox, &["list"]).ok().says("is executable now").never_says("changed");
    quarantine(&sandbox, &["discard", "--all"]).ok();
    sandbox.sh("chmod 755 .envrc; echo more >> .envrc").ok();
    quarantine(&sandbox, &["list"]).ok().says("has changed");
}

#[test]
fn the_list_of_rules_needs_no_workspace() {
    let sandbox = Sandbox::new();
    let explain = |words: &[&str], at: &Path| run_to_end(sandbox.hermes().args(["explain", "guard"]).args(words).current_dir(at));
    for at in [&sandbox.home, &sandbox.workspace, Path::new("/")] {
        explain(&[], at).ok().says("husky ");
        explain(&["--json"], at).ok().says("\"direnv\"");
    }
    explain(&[".envrc"], &sandbox.workspace).ok().says("direnv");
    explain(&[".envrc"], &sandbox.home).refused(125);
}

#[test]
fn the_same_again_is_one_entry() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    sandbox.sh("printf 'other\\n' > .envrc").ok();
    sandbox.sh(&format!("{PLANT}; : again")).ok();
    let entries = list(&sandbox);
    let numbers: Vec<u64> = entries.iter().map(|entry| entry["id"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [2, 3]);
    assert!(entries[1]["command"].as_str().unwrap().ends_with(": again"), "{entries:?}");
    quarantine(&sandbox, &["show", "3"]).ok().says("| evil");
    quarantine(&sandbox, &["approve", "3"]).ok();
    assert_eq!((sandbox.read(".envrc"), list(&sandbox).len()), ("evil\n".into(), 1));
}

#[test]
fn staged_files_take_effect_when_approved() {
    let sandbox = Sandbox::new();
    let profile = sandbox
        .write(sandbox.outside.join("p.toml"), "schema = 1\nincludes = [\"agent\"]\n[filesystem]\nstage = [\"deploy/**\"]\n");
    fs::create_dir(sandbox.workspace.join("deploy")).unwrap();
    let sandbox = sandbox.flags([OsStr::new("--profile"), profile.as_os_str()]);
    sandbox.sh("echo run > deploy/x; echo free > free").ok();
    assert_eq!((sandbox.read("deploy/x"), sandbox.read("free")), (String::new(), "free\n".into()));
    quarantine(&sandbox, &["list"]).ok().says("waits");
    assert_eq!(list(&sandbox)[0]["state"], "waits");
    fs::remove_dir(sandbox.workspace.join("deploy")).unwrap();
    quarantine(&sandbox, &["approve", &id(&sandbox, "deploy/x")]).ok();
    assert_eq!(sandbox.read("deploy/x"), "run\n", "its directory was made again");
}

#[test]
fn what_lies_there_by_now_stays_unless_forced() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    sandbox.write(".envrc", "mine");
    let id = id(&sandbox, ".envrc");
    for verb in ["restore", "approve"] {
        let refused = quarantine(&sandbox, &[verb, &id]);
        refused.refused(125);
        assert!(refused.err().contains("something else") && refused.err().contains("quarantine diff"), "{}", refused.err());
        assert_eq!(sandbox.read(".envrc"), "mine");
    }
    quarantine(&sandbox, &["restore", "--force", &id]).ok();
    assert_eq!(sandbox.read(".envrc"), "evil\n");
}

#[test]
fn git_configuration_comes_back_beside_the_hosts_own() {
    need!("git");
    for words in [&["restore"][..], &["restore", "--force"], &["approve"]] {
        let sandbox = Sandbox::new();
        sandbox.plain_sh("git init -q .").ok();
        sandbox.sh("git config core.fsmonitor ./x; git config user.name inside; git config submodule.s.url ./s").ok();
        sandbox.plain_sh("git config user.name HOST; git config alias.own '!x'").ok();
        quarantine(&sandbox, &[words, &[&id(&sandbox, ".git/config")]].concat()).ok();
        let get = "for key in core.fsmonitor user.name alias.own submodule.s.url; do git config --get-all $key; done";
        assert_eq!(sandbox.plain_sh(get).out(), "./x\nHOST\n!x\n./s\n", "{words:?}");
    }
    let sandbox = Sandbox::new();
    sandbox.plain_sh("git init -q .").ok();
    sandbox.sh("git config core.fsmonitor ./x").ok();
    sandbox.plain_sh("git config core.fsmonitor ./own; git config user.name HOST").ok();
    let id = id(&sandbox, ".git/config");
    let refused = quarantine(&sandbox, &["restore", &id]);
    refused.refused(125);
    assert!(refused.err().contains("core.fsmonitor is something else"), "{}", refused.err());
    quarantine(&sandbox, &["restore", "--force", &id]).ok();
    assert_eq!(sandbox.plain_sh("git config core.fsmonitor; git config user.name").out(), "./x\nHOST\n");
}

#[test]
fn a_symlink_planted_since_leads_nowhere() {
    let sandbox = Sandbox::new();
    sandbox.sh("mkdir sub && printf evil > sub/.envrc").ok();
    fs::remove_dir(sandbox.workspace.join("sub")).unwrap();
    std::os::unix::fs::symlink(&sandbox.outside, sandbox.workspace.join("sub")).unwrap();
    let id = id(&sandbox, "sub/.envrc");
    quarantine(&sandbox, &["restore", "--force", &id]).refused(125);
    assert!(!sandbox.outside.join(".envrc").exists());
    fs::remove_file(sandbox.workspace.join("sub")).unwrap();
    quarantine(&sandbox, &["restore", &id]).ok();
    assert_eq!(sandbox.read("sub/.envrc"), "evil", "positive control");
}

#[test]
fn entries_are_discarded_one_by_one_or_all() {
    let sandbox = Sandbox::new();
    sandbox.sh("for d in a b c; do mkdir $d; printf evil > $d/.envrc; done").ok();
    let state = sandbox.home.join(".local/state/hermes-sandbox/trees");
    let kept =
        || run_to_end(Command::new("grep").args(["-r", "-l", "evil", "--include=content"]).arg(&state)).out().lines().count();
    assert_eq!(kept(), 3);
    quarantine(&sandbox, &["discard", &id(&sandbox, "b/.envrc")]).ok().says("b/.envrc: discarded");
    assert_eq!(list(&sandbox).len(), 2);
    quarantine(&sandbox, &["discard", "--all"]).ok();
    assert_eq!(list(&sandbox).len(), 0);
    quarantine(&sandbox, &["discard", "--all"]).ok().says("nothing is in quarantine");
    assert_eq!(kept(), 0, "nothing of the content is left");
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    let sandbox = Sandbox::new();
    sandbox.sh(&format!("{PLANT}; mkfifo .mcp.json")).ok();
    for words in [
        &["show", "99"][..],
        &["diff", "99"],
        &["restore", "99"],
        &["approve", "1", "99"],
        &["discard", "99"],
        &["discard"],
        &["discard", "--all", "1"],
        &["restore"],
        &["show", "x"],
        &["lits"],
        &["list", "--workspace", "/nowhere/at/all"],
    ] {
        quarantine(&sandbox, words).refused(125);
    }
    assert!(quarantine(&sandbox, &["show", "99"]).err().contains("quarantine list"));
    assert_eq!(list(&sandbox).len(), 2, "one that is unknown keeps the others from being touched");
    let pipe = id(&sandbox, ".mcp.json");
    let envrc = id(&sandbox, ".envrc");
    let refused = quarantine(&sandbox, &["restore", &pipe, &envrc, &envrc]);
    refused.exits(125).says(".envrc: restored");
    assert_eq!(refused.err().lines().count(), 2, "one error and its hint: {}", refused.err());
    assert!(refused.err().contains("pipe") && refused.err().contains(&format!("entry {pipe}: ")), "{}", refused.err());
    quarantine(&sandbox, &["diff", &pipe]).ok().says("a pipe, socket or device");
}

#[test]
fn no_name_and_no_content_acts_on_a_terminal() {
    let sandbox = Sandbox::new();
    let odd = OsStr::from_bytes(b"a\n\xff\x1b[2Jb");
    sandbox
        .python(
            "import os; d = b'a\\n\\xff\\x1b[2Jb'; os.mkdir(d); \
             open(d + b'/.envrc', 'wb').write(b'\\x1b]0;title\\x07 \\x9b2J \\xe2\\x80\\xae\\xff\\ttab\\n')",
        )
        .ok();
    let entry = list(&sandbox).pop().unwrap();
    assert_eq!(entry["path"], "a\\x0a\\xff\\x1b[2Jb/.envrc");
    let id = entry["id"].to_string();
    let control = Pty::play(&sandbox, sandbox.plain_command("printf").arg("\\033[2J"), &[]);
    assert!(control.output.contains("\x1b[2J"), "positive control");
    for words in [&["list"][..], &["show", &id], &["diff", &id], &["show", "--json", &id], &["diff", "--json", &id]] {
        let mut command = command(&sandbox, words);
        let shown = Pty::play(&sandbox, command.env("NO_COLOR", "1"), &[]);
        shown.exits(0);
        assert!(!shown.output.is_empty(), "{words:?}");
        let acts = |c: char| (c.is_control() && !"\r\n\t".contains(c)) || c == '\u{202e}' || c == '\u{fffd}';
        // The colours are ours.
        let plain = shown.output.replace("\x1b[1m", "").replace("\x1b[32m", "").replace("\x1b[36m", "").replace("\x1b[m", "");
        assert!(!plain.contains(acts), "{words:?}: {:?}", shown.output);
    }
    quarantine(&sandbox, &["diff", &id]).ok().says("+\\x1b]0;title\\x07 \\x9b2J \\u{202e}\\xff\ttab\n");
    quarantine(&sandbox, &["restore", &id]).ok();
    assert!(sandbox.workspace.join(odd).join(".envrc").exists());
}

#[test]
fn the_answers_for_programs_are_json() {
    let sandbox = Sandbox::new();
    sandbox.write(".envrc", "old");
    sandbox.sh(PLANT).ok();
    let json = |words: &[&str]| -> Value { serde_json::from_slice(&quarantine(&sandbox, words).ok().stdout).unwrap() };
    let id = id(&sandbox, ".envrc");
    let shown = json(&["show", &id, "--json"]);
    assert_eq!(
        (&shown["content"], &shown["content_before"], &shown["rule"], &shown["size"]),
        (&"evil\n".into(), &"old".into(), &"direnv".into(), &5.into())
    );
    assert_eq!(shown["tree"], sandbox.workspace.to_str().unwrap());
    // Permission bits as people write them, and one word for what it is.
    fs::set_permissions(sandbox.workspace.join(".envrc"), fs::Permissions::from_mode(0o640)).unwrap();
    sandbox.sh("printf 'evil2\\n' > .envrc; mkdir sub; printf x > sub/.envrc; chmod 600 sub/.envrc").ok();
    let listed = list(&sandbox);
    let one = |path: &str| listed.iter().rfind(|entry| entry["path"] == path).unwrap();
    assert_eq!(one(".envrc")["before"], serde_json::json!({"kind": "file", "mode": "0640"}));
    assert_eq!(one("sub/.envrc")["before"], serde_json::json!({"kind": "absent"}));
    assert_eq!((&one("sub/.envrc")["mode"], &one("sub/.envrc")["state"]), (&"0600".into(), &"put-aside".into()));
    assert!(listed.iter().all(|entry| entry.get("stage").is_none() && entry.get("staged").is_none()), "{listed:?}");
    quarantine(&sandbox, &["discard", &self::id(&sandbox, ".envrc"), &self::id(&sandbox, "sub/.envrc")]).ok();
    assert!(json(&["diff", &id, "--json"])["diff"].as_str().unwrap().contains("-old\n"));
    assert_eq!(json(&["restore", &id, "--json"])[0]["became"], "restored");
    assert_eq!(json(&["list", "--json"]), Value::Array(Vec::new()));
    assert_eq!(json(&["discard", "--all", "--json"]), Value::Array(Vec::new()));
}

#[test]
fn long_contents_are_cut_and_binary_ones_named() {
    let sandbox = Sandbox::new();
    sandbox.sh(&format!("mkdir c; : {}; echo x > c/.envrc; : THE END", "x".repeat(300))).ok();
    quarantine(&sandbox, &["show", &id(&sandbox, "c/.envrc")]).ok().says("xxx...\n").never_says("THE END");
    quarantine(&sandbox, &["show", "--json", &id(&sandbox, "c/.envrc")]).ok().says("THE END");
    sandbox.sh("mkdir a b; seq -f 'line %.0f' 1000 > a/.envrc; printf 'a\\0b' > b/.envrc").ok();
    quarantine(&sandbox, &["show", &id(&sandbox, "a/.envrc")]).ok().says("| line 200\n").says("more").never_says("line 201");
    quarantine(&sandbox, &["show", &id(&sandbox, "b/.envrc")]).ok().says("binary");
    quarantine(&sandbox, &["diff", &id(&sandbox, "b/.envrc")]).ok().says("Binary files /dev/null and b/b/.envrc differ");
}

#[test]
fn long_paths_are_cut_on_a_terminal_only() {
    let sandbox = Sandbox::new();
    let long = format!("{}/.envrc", "directory/".repeat(9).trim_end_matches('/'));
    sandbox.sh(&format!("mkdir -p {0}; echo x > {0}/.envrc; echo x > .envrc", long.trim_end_matches("/.envrc"))).ok();
    quarantine(&sandbox, &["list"]).ok().says(&long);
    let shown = Pty::play(&sandbox, &command(&sandbox, &["list"]), &[]);
    shown.exits(0);
    let columns: Vec<Option<usize>> =
        shown.output.lines().filter(|line| line.contains(".envrc")).map(|line| line.find("direnv")).collect();
    assert!(columns.len() == 2 && columns[0].is_some() && columns[0] == columns[1], "{}", shown.output);
    assert!(shown.output.contains("directory/direc...") && !shown.output.contains(&long), "{}", shown.output);
}

#[test]
fn it_is_found_from_inside_from_elsewhere_and_after_a_renaming() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    let sub = sandbox.workspace.join("sub/deep");
    fs::create_dir_all(&sub).unwrap();
    run_to_end(command(&sandbox, &["list"]).current_dir(&sub)).ok().says(".envrc");
    let elsewhere = format!("nothing is in the quarantine of {}; 1 entry elsewhere: --all\n", sandbox.outside.display());
    run_to_end(command(&sandbox, &["list"]).current_dir(&sandbox.outside)).ok().says(&elsewhere);
    let slash = format!("{}/", sandbox.outside.display());
    run_to_end(&mut command(&sandbox, &["list", "--workspace", &slash])).ok().says(&elsewhere);
    run_to_end(command(&sandbox, &["list", "--all"]).current_dir(&sandbox.outside)).ok().says(".envrc");
    let moved = sandbox.home.join("moved");
    fs::rename(&sandbox.workspace, &moved).unwrap();
    let there = |words: &[&str]| run_to_end(command(&sandbox, words).current_dir(&moved));
    there(&["list", "--all"]).ok().says("gone or moved").says("/ws");
    there(&["list"]).ok().says("/moved\n");
    there(&["list", "--all"]).ok().says("/moved\n").never_says("gone");
    there(&["restore", "1"]).ok();
    assert_eq!(fs::read_to_string(moved.join(".envrc")).unwrap(), "evil\n");
}

#[test]
fn a_tree_that_is_gone_leaves_entries_to_look_at_and_discard() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    fs::remove_dir_all(&sandbox.workspace).unwrap();
    let workspace = sandbox.workspace.display().to_string();
    let there = |words: &[&str]| {
        run_to_end(command(&sandbox, &[words, &["--workspace", &workspace]].concat()).current_dir(&sandbox.home))
    };
    there(&["list"]).ok().says("gone or moved").says(".envrc");
    there(&["show", "1"]).ok().says("| evil");
    there(&["restore", "1"]).refused(125);
    there(&["discard", "1"]).ok();
}

#[test]
fn a_workspace_in_a_larger_tree_has_its_entries_there() {
    let sandbox = Sandbox::new();
    let outer = sandbox.home.join("outer");
    let inner = outer.join("inner");
    fs::create_dir_all(&inner).unwrap();
    let run = |flags: &[&Path]| {
        let mut command = sandbox.hermes();
        command.arg("run").arg("--workspace").arg(&inner);
        command.args(flags.iter().flat_map(|flag| [Path::new("--rw"), flag]));
        run_to_end(command.args(["--", "sh", "-c", PLANT])).ok().code()
    };
    let there = |words: &[&str]| run_to_end(command(&sandbox, words).current_dir(&inner));
    run(&[&outer]);
    there(&["list"]).ok().says("inner/.envrc");
    there(&["restore", "1"]).ok();
    assert!(inner.join(".envrc").exists());
    fs::remove_file(inner.join(".envrc")).unwrap();
    // Known by itself too: a number means the entry of the innermost tree.
    run(&[]);
    run(&[&outer]);
    there(&["list"]).ok().says("/outer\n").says("/inner\n");
    there(&["discard", "1"]).ok();
    // No number is given twice: that of the outer tree is its second.
    let unknown = there(&["restore", "2"]);
    unknown.refused(125);
    assert!(unknown.err().contains(&format!("--workspace {}", outer.display())), "{}", unknown.err());
}

#[test]
fn what_a_killed_run_planted_is_put_aside_first() {
    let sandbox = Sandbox::new();
    let mut run = sandbox
        .inside(["sh", "-c", "printf 'evil\\n' > .envrc; touch ready; sleep 60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    run.kill().unwrap();
    run.wait().unwrap();
    let listed = quarantine(&sandbox, &["list"]);
    listed.ok().says(".envrc");
    assert!(listed.err().contains("put aside .envrc"), "{}", listed.err());
    assert_eq!(sandbox.read(".envrc"), "");
}

#[test]
fn beside_a_live_run_only_what_is_approved_comes_back() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    let mut run = sandbox
        .inside(["sh", "-c", "touch ready; while ! [ -e done ]; do sleep 0.05; done"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    let refused = quarantine(&sandbox, &["restore", "1"]);
    let approved = quarantine(&sandbox, &["approve", "1"]);
    sandbox.write("done", "");
    assert!(run.wait().unwrap().success());
    refused.refused(125);
    approved.ok();
    assert_eq!((sandbox.read(".envrc"), list(&sandbox).len()), ("evil\n".into(), 0));
}

#[test]
fn looking_needs_no_writing() {
    let sandbox = Sandbox::new();
    sandbox.sh(PLANT).ok();
    let root = run_to_end(sandbox.plain_command("id").arg("-u")).out().trim() == "0";
    if root {
        need!("setpriv");
    }
    let without_privileges = |words: &[&str]| {
        let own = command(&sandbox, words);
        let mut command = sandbox.plain_command(if root { "setpriv" } else { "env" });
        command.args(if root { &["--bounding-set=-all"][..] } else { &[] });
        run_to_end(command.arg(own.get_program()).args(own.get_args()).current_dir(&sandbox.workspace))
    };
    let state = sandbox.home.join(".local/state/hermes-sandbox");
    sandbox.plain_sh(&format!("chmod -R a-w '{}'", state.display())).ok();
    without_privileges(&["discard", "1"]).refused(125);
    without_privileges(&["list"]).ok().says(".envrc");
    without_privileges(&["list", "--all"]).ok().says(".envrc");
    without_privileges(&["show", "1"]).ok().says("| evil");
    without_privileges(&["diff", "1"]).ok().says("+evil");
    sandbox.plain_sh(&format!("chmod -R u+w '{}'", state.display())).ok();
    without_privileges(&["discard", "1"]).ok();
}

#[test]
fn who_keeps_no_state_is_told() {
    let sandbox = Sandbox::new();
    quarantine(&sandbox, &["list"]).ok().says("nothing is in quarantine");
    quarantine(&sandbox, &["show", "1"]).refused(125);
    assert!(!sandbox.home.join(".local").exists(), "looking makes nothing");
}
