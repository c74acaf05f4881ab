//! The program as a caller sees it: exit statuses, where its words go, and odd ways to start it.

#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hermes-sandbox");

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Starts the program by a shell, which can close descriptors.
fn shell(script: &str) -> Output {
    Command::new("sh").args(["-c", script, PROGRAM]).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_wrong_command_line_starts_nothing_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    for wrong in [
        &["run", "--no-such-flag", "--", "touch"][..],
        &["run", "--image", "i", "--", "touch"],
        &["run", "--net", "on", "--", "touch"],
        &["run", "--json-events", "-", "--", "touch"],
        &["rnu", "--", "touch"],
    ] {
        let output = Command::new(PROGRAM).args(wrong).arg(&ran).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{wrong:?}");
        assert!(output.stdout.is_empty());
        let stderr = text(&output.stderr);
        assert!(stderr.lines().all(|line| line.starts_with("hermes-sandbox: ")) && stderr.lines().count() <= 3, "{stderr}");
        assert!(!ran.exists());
    }
}

#[test]
fn what_is_asked_for_goes_to_stdout() {
    for (asked, part) in [
        (&["--version"][..], "hermes-sandbox 0."),
        (&["--help"], "doctor"),
        (&["run", "--help"], "128+n"),
        (&["completions", "bash"], "--allow-host"),
        (&["man", "run"], "COMMAND"),
    ] {
        let output = run(asked);
        assert_eq!(output.status.code(), Some(0), "{asked:?}");
        assert!(text(&output.stdout).contains(part) && output.stderr.is_empty(), "{asked:?}");
    }
}

#[test]
fn the_command_of_plan_is_not_parsed() {
    let stderr = text(&run(&["plan", "--", "echo", "--no-such-flag"]).stderr);
    assert!(!stderr.contains("--no-such-flag"), "{stderr}");
}

#[test]
fn closed_descriptors_are_no_trouble() {
    assert_eq!(shell(r#"exec "$0" --version <&- >&- 2>&-"#).status.code(), Some(0));
    assert_eq!(shell(r#"exec "$0" run --no-such <&- >&- 2>&-"#).status.code(), Some(125));
    // A file that is opened later must not land on descriptor 1 or 2.
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("events");
    let script = format!(r#""$0" run --json-events {} --limit no=1 -- true >&- 2>&-; true"#, events.display());
    shell(&script);
    let written = std::fs::read_to_string(&events).unwrap_or_default();
    assert!(written.lines().all(|line| line.starts_with('{')), "{written}");
}

#[test]
fn a_reader_that_went_away_is_no_error_and_a_full_disk_is_one() {
    let mut child =
        Command::new(PROGRAM).args(["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));

    let full = shell(r#"exec "$0" --help >/dev/full"#);
    assert_eq!(full.status.code(), Some(125));
    assert!(text(&full.stderr).contains("standard output"));
}

#[test]
fn a_set_uid_copy_refuses() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let copy = dir.path().join("copy");
    // By another process: a descriptor open for writing here could be inherited by a child of another test (ETXTBSY).
    assert!(Command::new("cp").arg(PROGRAM).arg(&copy).status().unwrap().success());
    std::os::unix::fs::chown(&copy, Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let output = Command::new(&copy).arg("--version").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("set-uid"));
}
