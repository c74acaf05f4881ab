//! On a terminal: size, resize, keys, job control, and the state in which the terminal is left.
#![allow(clippy::unwrap_used)]

use std::fs::File;

use hermes_tests::{PYTHON, Pty, Sandbox, Step, fixture, need, run_to_end, shell_line, skip};

use Step::{Expect, HangUp, Resize, Send};

/// Prints its size at the start and at every change, and echoes lines.
const SIZES: &str = "
import os, signal, sys
def say(word):
    z = os.get_terminal_size(0); os.write(1, b'%s %d %d\\n' % (word, z.lines, z.columns))
signal.signal(signal.SIGWINCH, lambda *_: say(b'SIZE'))
say(b'READY')
for line in sys.stdin: os.write(1, b'LINE ' + line.strip().encode() + b'\\n')";

macro_rules! terminal {
    () => {
        need!(PYTHON);
        if !fixture("terminal.py").exists() {
            skip!("tests/fixtures is not there");
        }
    };
}

#[test]
fn the_size_is_seen_and_changes_are_told() {
    terminal!();
    let sandbox = Sandbox::new();
    let steps = [
        Expect("READY 24 80"),
        Resize(40, 100),
        Expect("SIZE 40 100"),
        Resize(10, 20),
        Expect("SIZE 10 20"),
        Send("hello\n"),
        Expect("LINE hello"),
        Send("\u{4}"),
    ];
    let result = Pty::play(&sandbox, &sandbox.inside([PYTHON, "-c", SIZES]), &steps);
    result.complete().exits(0);
    assert!(result.modes_restored, "{}", result.output);
}

#[test]
fn all_three_streams_are_a_terminal_and_the_controlling_one() {
    terminal!();
    let sandbox = Sandbox::new();
    let program = "import os,sys\nprint('TTY', *(os.isatty(n) for n in range(3)))\nopen('/dev/tty','w').write('OPENED\\n')\nprint(os.tcgetpgrp(0) == os.getpgrp(), os.ttyname(0))";
    let result = Pty::play(
        &sandbox,
        &sandbox.inside([PYTHON, "-c", program]),
        &[Expect("TTY True True True"), Expect("OPENED"), Expect("True /dev/")],
    );
    result.complete().exits(0);
}

#[test]
fn ctrl_c_reaches_the_commands_handler() {
    terminal!();
    let sandbox = Sandbox::new();
    let program = "import time\ntry: print('READY',flush=True); time.sleep(20)\nexcept KeyboardInterrupt: print('GOT-INT',flush=True); time.sleep(0.3); print('DONE',flush=True); raise SystemExit(9)";
    let result = Pty::play(
        &sandbox,
        &sandbox.inside([PYTHON, "-c", program]),
        &[Expect("READY"), Send("\u{3}"), Expect("GOT-INT"), Expect("DONE")],
    );
    result.complete().exits(9);
    assert!(result.modes_restored);
}

#[test]
fn ctrl_c_ends_a_command_without_a_handler() {
    terminal!();
    let sandbox = Sandbox::new();
    // exec: dash loses an interrupt that comes while it makes a child, without a sandbox as well.
    let result =
        Pty::play(&sandbox, &sandbox.inside(["/bin/sh", "-c", "echo READY; exec sleep 30"]), &[Expect("READY"), Send("\u{3}")]);
    result.complete().exits(130);
    assert!(result.modes_restored);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_goes_on() {
    terminal!();
    need!("bash");
    let sandbox = Sandbox::new();
    let run = sandbox.inside([PYTHON, "-c", SIZES]);
    let line = shell_line(&run);
    sandbox.script(sandbox.outside.join("go"), &format!("#!/bin/sh\nexec {line}\n"));
    let mut shell = sandbox.plain_command("/bin/bash");
    shell.args(["--norc", "--noprofile", "-i"]);
    let go = format!("{}\n", sandbox.outside.join("go").display());
    let steps = [
        Send("PS1='%% '\n"),
        Expect("%% "),
        Send(&go),
        Expect("READY 24 80"),
        Send("\u{1a}"),
        Expect("Stopped"),
        Expect("%% "),
        Send("echo in-$((40+2))-between\n"),
        Expect("in-42-between"),
        Send("fg\n"),
        Send("again\n"),
        Expect("LINE again"),
        Send("\u{4}"),
        Expect("%% "),
        Send("exit 3\n"),
    ];
    Pty::play(&sandbox, &shell, &steps).complete().exits(3);
}

#[test]
fn a_full_screen_program_leaves_the_terminal_as_it_was() {
    terminal!();
    let sandbox = Sandbox::new();
    // Raw mode set inside and never taken back.
    let program = "import termios,tty,sys\ntty.setraw(0)\nsys.stdout.write('RAW\\r\\n'); sys.stdout.flush()\nc=sys.stdin.read(1)\nprint('KEY',ord(c),end='\\r\\n')";
    let result = Pty::play(&sandbox, &sandbox.inside([PYTHON, "-c", program]), &[Expect("RAW"), Send("\u{3}"), Expect("KEY 3")]);
    result.complete().exits(0);
    assert!(result.modes_restored, "raw mode leaked out");
}

#[test]
fn the_modes_are_restored_after_sigterm_too() {
    terminal!();
    let sandbox = Sandbox::new();
    let program = "import tty,sys,os,time\ntty.setraw(0)\nprint('RAW',flush=True)\ntime.sleep(0.3)\nos.kill(os.getpid(),9)";
    let result = Pty::play(&sandbox, &sandbox.inside([PYTHON, "-c", program]), &[Expect("RAW")]);
    result.complete().exits(137);
    assert!(result.modes_restored, "raw mode leaked out");
}

#[test]
fn a_hang_up_ends_the_tree() {
    terminal!();
    let sandbox = Sandbox::new();
    let result = Pty::play(
        &sandbox,
        &sandbox.inside(["/bin/sh", "-c", "echo READY; sleep 2; echo survived > survived; sleep 60"]),
        &[Expect("READY"), HangUp],
    );
    result.complete();
    assert!(result.code.is_some(), "still running after the hang-up");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!sandbox.workspace.join("survived").exists());
}

#[test]
fn much_output_on_a_terminal_is_complete() {
    terminal!();
    let sandbox = Sandbox::new();
    let result = Pty::play(
        &sandbox,
        &sandbox.inside(["/bin/sh", "-c", "seq 1 20000; echo LAST"]),
        &[Expect("\r?\n20000\r?\n"), Expect("LAST")],
    );
    result.complete().exits(0);
    assert!(result.output.contains("\n12345\r\n"));
}

#[test]
fn keystrokes_cannot_be_pushed_into_the_callers_terminal() {
    terminal!();
    let sandbox = Sandbox::new();
    let program = "import fcntl\nfor n in (0,1,2):\n try: fcntl.ioctl(n,0x5412,b'x'); print('PUSHED')\n except OSError: print('refused')\nprint('END')";
    let result = Pty::play(&sandbox, &sandbox.inside([PYTHON, "-c", program]), &[Expect("END")]);
    result.complete().exits(0);
    assert!(!result.output.contains("PUSHED"), "{}", result.output);
}

#[test]
fn some_streams_may_be_files() {
    terminal!();
    let sandbox = Sandbox::new();
    let mut shell = sandbox.plain_command("/bin/sh");
    let run =
        sandbox.inside(["/bin/sh", "-c", "[ -t 0 ] && echo IN; [ -t 1 ] && echo OUT; [ -t 2 ] && echo ERR >&2; cat /dev/null"]);
    let line = shell_line(&run);
    shell.args(["-c", &format!("{line} > out.txt; echo STATUS $?")]);
    let result = Pty::play(&sandbox, &shell, &[Expect("ERR"), Expect("STATUS 0")]);
    result.complete();
    assert_eq!(sandbox.read("out.txt"), "IN\n");
}

#[test]
fn closed_streams_are_no_reason_to_fail() {
    let sandbox = Sandbox::new();
    let run = sandbox.inside(["/bin/sh", "-c", "echo x > made; ls -l /proc/self/fd > fds"]);
    let line = shell_line(&run);
    for closing in ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"] {
        let _ = std::fs::remove_file(sandbox.workspace.join("made"));
        let result = run_to_end(sandbox.plain_command("/bin/sh").args(["-c", &format!("{line} {closing}")]));
        result.no_panic();
        assert!(matches!(result.code(), 0 | 125), "{closing}: {}", result.report());
        assert_eq!(result.code() == 0, sandbox.workspace.join("made").exists(), "{closing}");
    }
}

#[test]
fn a_directory_or_a_device_on_a_stream_is_no_way_in() {
    need!("bash");
    let sandbox = Sandbox::new();
    sandbox.write(sandbox.outside.join("secret"), sandbox.canary("stdin"));
    let mut command = sandbox.inside(["/bin/sh", "-c", "cat /proc/self/fd/0/secret; cd /proc/self/fd/0 && cat secret; echo END"]);
    command.stdin(File::open(&sandbox.outside).unwrap());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("CANARY"), "{text}");
    assert!(output.status.code() == Some(125) || text.contains("END"), "{text}");
}

#[test]
fn a_program_with_a_terminal_of_its_own_works() {
    terminal!();
    need!("script");
    let sandbox = Sandbox::new();
    sandbox.run(["script", "-qec", "tty; stty size; echo INNER", "/dev/null"]).ok().says("INNER").says("/dev/pts/");
}
