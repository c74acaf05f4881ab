//! The exit status is the command's own, or tells who failed.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use hermes_tests::{Sandbox, run_to_end, shell_line};

#[test]
fn the_commands_own_status_is_returned() {
    let sandbox = Sandbox::new();
    for code in [0, 1, 2, 42, 124, 125, 126, 127, 128, 200, 255] {
        let result = sandbox.sh(&format!("exit {code}"));
        result.exits(code);
        assert!(result.stderr.is_empty(), "a successful start says nothing\n{}", result.report());
    }
}

#[test]
fn a_signal_is_reported_as_128_plus_its_number() {
    let sandbox = Sandbox::new();
    for (name, number) in
        [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("ABRT", 6), ("HUP", 1), ("INT", 2), ("USR1", 10), ("PIPE", 13)]
    {
        sandbox.sh(&format!("kill -{name} $$; sleep 5")).exits(128 + number);
    }
}

#[test]
fn a_missing_command_is_127() {
    let sandbox = Sandbox::new();
    sandbox.run(["no-such-command-here"]).refused(127);
    sandbox.run(["/no/such/file"]).refused(127);
    sandbox.run(["./absent"]).refused(127);
    sandbox.run([""]).clear_message();
}

#[test]
fn what_cannot_be_executed_is_126() {
    let sandbox = Sandbox::new();
    sandbox.write("plain", "#!/bin/sh\necho RAN\n");
    sandbox.run(["./plain"]).refused(126);
    sandbox.run(["."]).refused(126);
    sandbox.run(["/etc"]).refused(126);
    // What no kernel loads is given to the shell, as execvp() does; the status is the shell's.
    sandbox.script("garbage", "\u{1}\u{2}\u{3}");
    let status = sandbox.run(["./garbage"]).code();
    assert!(matches!(status, 126 | 127), "{status}");
}

#[test]
fn a_script_whose_interpreter_is_missing_names_the_interpreter() {
    let sandbox = Sandbox::new();
    sandbox.script("broken", "#!/no/such/interpreter\n");
    let result = sandbox.run(["./broken"]);
    assert!(matches!(result.code(), 126 | 127), "{}", result.report());
    result.clear_message();
    assert!(result.err().contains("/no/such/interpreter"), "{}", result.report());
}

#[test]
fn a_time_limit_is_124_and_stops_the_tree() {
    let sandbox = Sandbox::new().flags(["--limit", "timeout=1s"]);
    let result = sandbox.sh("(setsid sh -c 'sleep 4; echo survived > survived' &) ; trap '' TERM; sleep 30");
    result.exits(124);
    assert!(result.time < Duration::from_secs(20), "{}", result.report());
    std::thread::sleep(Duration::from_secs(5));
    assert!(!sandbox.workspace.join("survived").exists());
}

#[test]
fn arguments_reach_the_program_exactly() {
    let sandbox = Sandbox::new();
    let argv = ["", " a b ", "'\"", "$(id)", "`id`", ";", "a\nb", "-x", "--", "--net", "*", "~", "\\"];
    let expected: String = argv.iter().map(|word| format!("[{word}]")).collect();
    let result = sandbox.run(["/bin/sh", "-c", "for a in \"$@\"; do printf '[%s]' \"$a\"; done", "sh"].into_iter().chain(argv));
    assert_eq!(result.ok().out(), expected);
}

#[test]
fn standard_streams_pass_bytes_unchanged() {
    let sandbox = Sandbox::new();
    let input: Vec<u8> = (0..4_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let result = sandbox.run_with_input(["cat"], &input);
    result.exits(0);
    assert!(result.stdout == input, "{} bytes came back of {}", result.stdout.len(), input.len());
    let result = sandbox.sh("echo out; echo err >&2");
    assert_eq!((result.out().as_str(), result.err().as_str()), ("out\n", "err\n"));
}

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.plain_command("/bin/sh");
    let inner = sandbox.inside(["yes"]);
    let line = shell_line(&inner);
    let result = run_to_end(command.arg("-c").arg(format!("{line} | head -1")));
    result.ok().says("y").no_panic();
    assert!(result.time < Duration::from_secs(10) && !result.err().contains("rror"), "{}", result.report());
}

#[test]
fn the_command_starts_in_the_callers_directory() {
    let sandbox = Sandbox::new();
    sandbox.write("deep/er/f", "HERE");
    let mut command = sandbox.inside(["/bin/sh", "-c", "pwd; cat f"]);
    let expected = sandbox.workspace.join("deep/er");
    run_to_end(command.current_dir(&expected)).ok().says(&expected.display().to_string()).says("HERE");
}

#[test]
fn options_after_the_separator_belong_to_the_command() {
    let sandbox = Sandbox::new();
    sandbox.run(["echo", "--help", "--net", "host"]).ok().says("--help --net host");
    let unknown = run_to_end(sandbox.run_command().args(["--no-such-option", "--", "touch", "made"]));
    assert!(unknown.code() != 0 && !sandbox.workspace.join("made").exists(), "{}", unknown.report());
    run_to_end(sandbox.hermes().arg("--help")).ok().says("run");
    run_to_end(sandbox.hermes().arg("--version")).ok().says("hermes-sandbox");
}
