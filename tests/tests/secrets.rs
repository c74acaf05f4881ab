//! Secrets are added, listed and removed, and their values come out nowhere.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use hermes_tests::{Outcome, Pty, Sandbox, Step, is_root, need, run_to_end, run_to_end_with_input, wait_until};
use serde_json::{Value, json};

fn command(sandbox: &Sandbox, words: &[&str]) -> Command {
    let mut command = sandbox.hermes();
    command.arg("secrets").args(words);
    command
}

fn secrets(sandbox: &Sandbox, words: &[&str]) -> Outcome {
    run_to_end(&mut command(sandbox, words))
}

/// Adds a secret of the profile `agent` by its value.
fn add(sandbox: &Sandbox, name: &str, value: impl AsRef<[u8]>, more: &[&str]) -> Outcome {
    let words = [&["add", name, "--profile", "agent"], more].concat();
    run_to_end_with_input(&mut command(sandbox, &words), value.as_ref())
}

fn list(sandbox: &Sandbox) -> Vec<Value> {
    serde_json::from_slice(&secrets(sandbox, &["list", "--json"]).ok().stdout).unwrap()
}

fn names(sandbox: &Sandbox) -> Vec<String> {
    list(sandbox).iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn file(sandbox: &Sandbox) -> PathBuf {
    sandbox.home.join(".local/state/hermes-sandbox/secrets")
}

fn holds(sandbox: &Sandbox, value: &str) -> bool {
    fs::read(file(sandbox)).unwrap_or_default().windows(value.len()).any(|part| part == value.as_bytes())
}

#[test]
fn a_secret_is_added_listed_and_removed() {
    let sandbox = Sandbox::new();
    let value = sandbox.canary("value");
    secrets(&sandbox, &["list"]).ok().says("there are no secrets");
    secrets(&sandbox, &["remove", "model", "--profile", "agent"]).refused(125);
    add(&sandbox, "model", &value, &["--env", "MODEL_KEY"]).ok().says("1 value").never_says(&value);
    assert!(holds(&sandbox, &value), "the control: it is kept");
    let meta = fs::symlink_metadata(file(&sandbox)).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.nlink()), (0o600, 1));
    assert_eq!(fs::metadata(file(&sandbox).parent().unwrap()).unwrap().mode() & 0o7777, 0o700);
    secrets(&sandbox, &["list"]).ok().says("model").says("MODEL_KEY").says("stored").never_says(&value);
    let listed = json!({"name": "model", "profile": "agent", "values": 1, "sources": ["stored"], "variable": "MODEL_KEY", "suppressed": false});
    assert_eq!(list(&sandbox), [listed]);
    secrets(&sandbox, &["remove", "model", "--profile", "other"]).refused(125);
    secrets(&sandbox, &["remove", "model", "--profile", "agent"]).ok();
    assert!(list(&sandbox).is_empty() && !holds(&sandbox, &value));
}

#[test]
fn a_secret_belongs_to_one_profile() {
    let sandbox = Sandbox::new();
    add(&sandbox, "model", "value-1", &[]).ok();
    for bad in ["*", "", "a*"] {
        run_to_end_with_input(&mut command(&sandbox, &["add", "model", "--profile", bad]), b"value-2").refused(125);
    }
    secrets(&sandbox, &["add", "model"]).refused(125);
    run_to_end_with_input(&mut command(&sandbox, &["add", "model", "--profile", "other"]), b"value-2").ok();
    run_to_end_with_input(&mut command(&sandbox, &["add", "model", "--profile", "./own.toml"]), b"value-3").ok();
    let own = sandbox.workspace.join("own.toml").display().to_string();
    let of = |profile: &str| secrets(&sandbox, &["list", "--profile", profile, "--json"]).ok().out();
    assert!(of("agent").contains("agent") && !of("agent").contains("other"));
    assert!(of(&own).contains(&own) && of("own.toml").contains(&own) && of("third").trim() == "[]");
}

#[test]
fn a_pool_has_one_name_and_several_values() {
    let sandbox = Sandbox::new();
    add(&sandbox, "model", "value-1", &["--env", "KEY"]).ok();
    add(&sandbox, "model", "value-2", &[]).refused(125);
    assert!(!holds(&sandbox, "value-2"));
    add(&sandbox, "model", "value-2", &["--pool"]).ok().says("2 values");
    add(&sandbox, "model", "value-2", &["--pool"]).refused(125);
    secrets(&sandbox, &["add", "model", "--profile", "agent", "--pool", "--from-env", "OTHER_KEY"]).ok().says("3 values");
    assert_eq!(list(&sandbox)[0]["sources"], json!(["stored", "stored", "environment"]));
    assert_eq!(list(&sandbox)[0]["variable"], "KEY");
    add(&sandbox, "model", "value-4", &["--replace"]).ok().says("1 value");
    assert!(holds(&sandbox, "value-4") && !holds(&sandbox, "value-1") && !holds(&sandbox, "value-2"));
}

#[test]
fn what_was_suppressed_comes_back_only_when_that_is_said() {
    let sandbox = Sandbox::new();
    let add =
        |more: &[&str]| secrets(&sandbox, &[&["add", "model", "--profile", "agent", "--from-env", "MODEL_KEY"], more].concat());
    add(&[]).ok();
    secrets(&sandbox, &["remove", "model", "--profile", "agent", "--suppress"]).ok().says("suppressed");
    assert_eq!((&list(&sandbox)[0]["suppressed"], &list(&sandbox)[0]["sources"]), (&json!(true), &json!([])));
    for more in [&[][..], &["--pool"], &["--replace"]] {
        let refused = add(more);
        refused.refused(125);
        assert!(refused.err().contains("suppressed") && refused.err().contains("--lift-suppression"), "{}", refused.err());
    }
    add(&["--lift-suppression"]).ok();
    assert_eq!(list(&sandbox)[0]["suppressed"], false);
}

#[test]
fn a_value_is_never_taken_from_the_command_line_nor_repeated() {
    let sandbox = Sandbox::new();
    let value = sandbox.canary("value");
    let option = format!("--value={value}");
    for words in [
        &["model", value.as_str(), "--profile", "agent"][..],
        &["model", "--profile", "agent", &option],
        &["model", "--profile", "agent", "--", &value],
        &[&format!("model={value}"), "--profile", "agent"],
        &["model", "--profile", "agent", "--env", &format!("KEY={value}")],
        &["model", "--profile", "agent", "--from-env", &format!("{value}=")],
        &["model", "--profile", &format!("*{value}")],
    ] {
        secrets(&sandbox, &[&["add"], words].concat()).refused(125).never_says(&value);
    }
    assert!(list(&sandbox).is_empty());
}

#[test]
fn values_that_no_header_carries_are_refused() {
    let sandbox = Sandbox::new();
    let canary = sandbox.canary("value");
    for (value, why) in [
        (format!("{canary}\0"), "NUL"),
        (format!("{canary}\nX-Other: y"), "more than one line"),
        (format!("{canary}\n\n"), "more than one line"),
        (format!("{canary}\u{e9}"), "ASCII"),
        (format!("{canary}\x1b[2J"), "ASCII"),
        (canary.repeat(1 << 16), "64 KiB"),
        (String::new(), "empty"),
        ("\n".to_owned(), "empty"),
    ] {
        let refused = add(&sandbox, "model", &value, &[]);
        refused.refused(125).never_says(&canary);
        assert!(refused.err().contains(why), "{}", refused.err());
    }
    assert!(list(&sandbox).is_empty());
    add(&sandbox, "model", format!("{canary}\n"), &[]).ok();
    assert!(holds(&sandbox, &canary) && !holds(&sandbox, &format!("{canary}\n")), "the control");
}

#[test]
fn a_file_that_others_could_have_touched_is_refused() {
    let sandbox = Sandbox::new();
    add(&sandbox, "model", "value-1", &[]).ok();
    let (path, good) = (file(&sandbox), fs::read(file(&sandbox)).unwrap());
    let refused = |why: &str| {
        for outcome in [secrets(&sandbox, &["list"]), add(&sandbox, "other", "value-2", &[])] {
            outcome.refused(125).never_says("value-1");
            assert!(outcome.err().contains(why) && outcome.err().contains("hint: "), "{why}: {}", outcome.err());
        }
    };
    let with = |content: &[u8]| {
        let _ = fs::remove_file(&path);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    };
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    refused("others than its owner");
    with(&good);
    let other = sandbox.outside.join("other");
    fs::hard_link(&path, &other).unwrap();
    refused("more than one name");
    fs::remove_file(&path).unwrap();
    symlink(&other, &path).unwrap();
    refused("symlink");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused("not a regular file");
    fs::remove_dir(&path).unwrap();
    with(b"{}");
    refused("no file of secrets");
    with(&good[..good.len() - 3]);
    refused("damaged");
    if is_root() {
        with(&good);
        std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
        refused("somebody else");
    }
    with(&good);
    assert_eq!(names(&sandbox), ["model"], "the control");
    let dir = path.parent().unwrap();
    fs::set_permissions(dir, Permissions::from_mode(0o750)).unwrap();
    refused("0700");
    fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
    add(&sandbox, "other", "value-2", &[]).ok();
}

#[test]
fn of_many_at_once_none_is_lost() {
    let sandbox = Sandbox::new();
    let added: Vec<String> = (0..8).map(|n| format!("model-{n}")).collect();
    let sandbox = &sandbox;
    thread::scope(|scope| {
        for name in &added {
            scope.spawn(move || add(sandbox, name, format!("value-of-{name}"), &[]).ok().code());
        }
    });
    assert_eq!(names(sandbox), added);
    assert!(added.iter().all(|name| holds(sandbox, &format!("value-of-{name}"))));
}

#[test]
fn a_killed_command_leaves_the_old_or_the_new() {
    let sandbox = Sandbox::new();
    let long = "x".repeat(60_000);
    add(&sandbox, "first", &long, &[]).ok();
    let mut seen = [0, 0];
    for n in 0..40_u64 {
        let name = format!("n{n}");
        let mut child = command(&sandbox, &["add", &name, "--profile", "agent"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"value-of-n").unwrap();
        thread::sleep(Duration::from_micros(500 * n));
        child.kill().unwrap();
        child.wait().unwrap();
        let names = names(&sandbox);
        assert!(names.contains(&"first".to_owned()));
        seen[usize::from(names.contains(&name))] += 1;
    }
    assert!(seen[0] > 0, "none was killed in time: {seen:?}");
    add(&sandbox, "last", "value-1", &[]).ok();
    let left = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut left: Vec<_> = fs::read_dir(file(&sandbox).parent().unwrap()).unwrap().map(|entry| left(entry.unwrap())).collect();
    left.retain(|name| name.contains("secrets"));
    left.sort();
    assert_eq!(left, ["secrets", "secrets.lock"], "what was half written is gone");
}

#[test]
fn a_value_is_in_no_command_line_while_it_is_added() {
    let sandbox = Sandbox::new();
    let value = sandbox.canary("value");
    let mut child = command(&sandbox, &["add", "model", "--profile", "agent"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(value.as_bytes()).unwrap();
    let line = || fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
    assert!(wait_until(20, || String::from_utf8_lossy(&line()).contains("secrets\0add\0model")), "the control");
    assert!(!String::from_utf8_lossy(&line()).contains(&value));
    drop(stdin);
    assert!(child.wait().unwrap().success() && holds(&sandbox, &value));
}

#[test]
fn on_a_terminal_it_is_asked_for_without_being_shown() {
    need!("python3");
    let sandbox = Sandbox::new();
    let value = sandbox.canary("value");
    let words = ["add", "model", "--profile", "agent"];
    let typed = format!("wrong\x15{value}x\x7f\r");
    let question = [Step::Expect("value of model"), Step::Send(&typed)];
    let pty = Pty::play(&sandbox, &command(&sandbox, &words), &question);
    pty.complete().exits(0);
    assert!(!pty.output.contains(&value) && !pty.output.contains("wrong") && pty.modes_restored, "{}", pty.output);
    assert!(holds(&sandbox, &value) && !holds(&sandbox, &format!("{value}x")));
    // Taken names are told before anything is asked.
    let again = Pty::play(&sandbox, &command(&sandbox, &words), &[Step::Expect("already")]);
    again.complete().exits(125);
    let cancelled = [Step::Expect("value of model"), Step::Send("half\x03")];
    let pty = Pty::play(&sandbox, &command(&sandbox, &[&words[..], &["--replace"]].concat()), &cancelled);
    pty.complete().exits(125);
    assert!(pty.modes_restored && pty.output.contains("cancelled") && holds(&sandbox, &value), "{}", pty.output);
}

#[test]
fn sources_that_keep_no_value() {
    let sandbox = Sandbox::new();
    let value = sandbox.canary("value");
    let sandbox = sandbox.env("MODEL_KEY", &value);
    let tool = sandbox.script(sandbox.home.join(".local/bin/some-tool"), "#!/bin/sh\ntouch \"$HOME/ran\"; echo \"$MODEL_KEY\"\n");
    let add = |name: &str, more: &[&str]| secrets(&sandbox, &[&["add", name, "--profile", "agent"], more].concat());
    add("env", &["--from-env", "MODEL_KEY"]).ok();
    add("command", &["--from-command", "--", "some-tool", "show", "--", "model"]).ok();
    assert!(!sandbox.home.join("ran").exists(), "only when it is needed");
    assert!(holds(&sandbox, tool.to_str().unwrap()) && !holds(&sandbox, &value));
    assert_eq!(list(&sandbox).iter().map(|one| one["sources"][0].clone()).collect::<Vec<_>>(), ["command", "environment"]);
    for more in [
        &["--from-command"][..],
        &["--from-command", "some-tool"],
        &["--from-command", "--", "no-such-tool"],
        &["--from-command", "--", "./some-tool"],
        &["--from-env", "A B"],
        &["--from-keyring", "service"],
        &["--from-env", "A", "--from-keyring", "s/a"],
        &["--", "some-tool"],
    ] {
        add("bad", more).refused(125);
    }
    // With a PATH of our own, whatever the machine has.
    let bare = |path: &str| {
        let mut command = command(&sandbox, &["add", "keyring", "--profile", "agent", "--from-keyring", "gh:github.com/me"]);
        run_to_end(command.env("PATH", path))
    };
    let missing = bare("/nonexistent");
    missing.refused(125);
    assert!(missing.err().contains("secret-tool") && missing.err().contains("libsecret-tools"), "{}", missing.err());
    let tools = sandbox.home.join("tools");
    sandbox.script(tools.join("secret-tool"), "#!/bin/sh\necho x\n");
    bare(tools.to_str().unwrap()).ok();
    assert_eq!(names(&sandbox), ["command", "env", "keyring"]);
}

#[test]
fn a_command_inside_cannot_read_them() {
    let sandbox = Sandbox::new();
    let value = sandbox.canary("value");
    add(&sandbox, "model", &value, &[]).ok();
    let script = format!("cat '{}'; ls -a '{}'", file(&sandbox).display(), file(&sandbox).parent().unwrap().display());
    assert!(sandbox.plain_sh(&script).out().contains(&value), "the control");
    sandbox.sh(&script).never_says(&value);
}
