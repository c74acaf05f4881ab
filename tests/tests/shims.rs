//! Shims of bash and python: what an agent may expect of them, and what it may not get.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use hermes_tests::{
    Live, PYTHON, Pty, Sandbox, Shims, Step, assert_gone, binary, copy_binary, need, processes_with, run_to_end,
    run_to_end_with_input, wait_until,
};

fn mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn install_writes_what_describes_itself_and_says_how_to_use_it() {
    let shims = Shims::new(&[]);
    let result = shims.install(&["--ro", "../outside", "--limit", "processes=64"]);
    let lines = result.ok().out();
    assert!(lines.lines().count() <= 5, "{lines}");
    for word in ["PATH=", "SHELL=", "VIRTUAL_ENV=", "HERMES_DOCKER_BINARY="] {
        assert!(lines.contains(word), "{lines}");
    }
    let text = shims.sandbox.read(shims.dir.join("bash"));
    assert!(text.starts_with(&format!("#!{} shim\n", fs::canonicalize(binary()).unwrap().display())), "{text}");
    let outside = shims.sandbox.home.join("outside").display().to_string();
    assert!(text.contains(&outside) && text.contains("processes=64"), "{text}");
    for shim in ["bash", "docker", "venv/bin/python", "venv/bin/python3"] {
        assert_eq!(fs::metadata(shims.dir.join(shim)).unwrap().permissions().mode() & 0o777, 0o755, "{shim}");
    }
    let other = shims.sandbox.outside.join("some");
    run_to_end(shims.sandbox.hermes().args(["shims", "install", "--only", "docker"]).arg(&other)).ok();
    assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
}

#[test]
fn install_refuses_what_would_not_hold() {
    let shims = Shims::new(&[]);
    let sandbox = &shims.sandbox;
    let install =
        |dir: &std::path::Path, options: &[&str]| run_to_end(sandbox.hermes().args(["shims", "install"]).arg(dir).args(options));
    // What is no shim is not written over.
    let foreign = sandbox.write(sandbox.outside.join("foreign/bash"), "#!/bin/sh\n");
    install(foreign.parent().unwrap(), &[]).refused(125);
    assert_eq!(sandbox.read(&foreign), "#!/bin/sh\n");
    // Nor does it lie where the sandbox could write.
    let granted = sandbox.outside.join("granted");
    fs::create_dir(&granted).unwrap();
    install(&granted.join("shims"), &["--rw", granted.to_str().unwrap()]).refused(125);
    install(&sandbox.workspace.join("shims"), &["--workspace", sandbox.workspace.to_str().unwrap()]).refused(125);
    install(&granted.join("shims"), &["--ro", granted.to_str().unwrap()]).ok();
    let open = sandbox.outside.join("open");
    fs::create_dir(&open).unwrap();
    mode(&open, 0o777);
    install(&open, &[]).refused(125);
    // The kernel ends a program's name at a space.
    let spaced = sandbox.outside.join("a b");
    fs::create_dir(&spaced).unwrap();
    copy_binary(&spaced.join("hermes-sandbox"));
    let result = run_to_end(
        sandbox.plain_command(spaced.join("hermes-sandbox")).args(["shims", "install"]).arg(sandbox.outside.join("x")),
    );
    assert!(result.refused(125).err().contains("space"));
    install(&sandbox.outside.join("y"), &["--net", "nonsense"]).refused(125);
    install(&sandbox.outside.join("z"), &["--profile", "no-such"]).refused(125);
}

#[test]
fn a_shim_that_others_or_the_sandbox_could_change_does_nothing() {
    let shims = Shims::new(&[]);
    let (bash, run) = (shims.dir.join("bash"), "\"$bash\" -c 'echo RAN'");
    shims.client(run).ok().says("RAN");
    for (path, bad) in [(&bash, 0o775), (&bash, 0o757), (&shims.dir, 0o777)] {
        mode(path, bad);
        shims.client(run).refused(125);
        mode(path, 0o755);
    }
    // Called where the directory of the shims is the workspace.
    let inside = run_to_end(Command::new("/bin/sh").args(["-c", "./bash -c 'echo RAN'; :"]).current_dir(&shims.dir));
    inside.never_says("RAN");
    assert!(inside.err().contains("could be changed from inside"), "{}", inside.report());
    shims.client(run).ok().says("RAN");
    let text = shims.sandbox.read(&bash);
    fs::write(&bash, text + "more = 1\n").unwrap();
    shims.client(run).refused(125);
}

#[test]
fn commands_run_as_they_would_but_inside() {
    let shims = Shims::new(&[]).with(|sandbox| {
        let canary = sandbox.canary("variable");
        sandbox.env("SERVICE_PASSPHRASE", canary).env("EDITOR", "some-editor")
    });
    let theft = "cat \"$0\"; env; cat /proc/*/environ | tr '\\0' '\\n'; echo END";
    // Positive control: without the shim the same command reads all of it.
    let control = shims.client(&format!("/bin/bash -c '{}' \"$key\"", theft.replace('\'', "'\\''")));
    assert!(control.says("CANARY-key").out().contains("CANARY-variable"));
    let result = shims.client(&format!("\"$bash\" -c '{}' \"$key\"", theft.replace('\'', "'\\''")));
    result.says("END").says("EDITOR=some-editor").never_says("CANARY");
    shims.client("\"$bash\" -c 'echo out; echo err >&2; exit 7'").exits(7);
    let result = shims.client("\"$bash\" -c 'echo $0 $1; pwd; command -v bash; cat' name one </dev/null");
    result.ok().says(&format!("name one\n{}\n", shims.sandbox.workspace.display())).never_says("shims/bash");
    for (script, status) in [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137), ("no-such-program", 127)] {
        shims.client(&format!("\"$bash\" -l -c '{script}'")).exits(status);
    }
    // Its own exports, not those of the first call.
    let result = shims.client("EDITOR=other \"$bash\" -c 'echo [$EDITOR]'; unset EDITOR; \"$bash\" -c 'echo [$EDITOR]'");
    result.ok().says("[other]\n[]\n");
    let mut command = shims.client_command("\"$bash\" -c 'tr a-z A-Z; echo err >&2'");
    let result = run_to_end_with_input(&mut command, b"text\n");
    assert_eq!((result.ok().out().as_str(), result.err().contains("err")), ("TEXT\n", true), "{}", result.report());
    let merged = shims.client("\"$bash\" -c 'for i in 1 2 3; do echo o$i; echo e$i >&2; done' 2>&1");
    merged.ok().says("o1\ne1\no2\ne2\no3\ne3\n");
    let big = shims.client("\"$bash\" -c 'head -c 3000000 /dev/zero' | wc -c");
    assert_eq!(big.ok().out().trim(), "3000000");
    shims.nothing_is_left();
}

#[test]
fn a_directory_that_is_not_inside_is_an_error() {
    let shims = Shims::new(&[]);
    let elsewhere = shims.sandbox.outside.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let result = shims.client(&format!("\"$bash\" -c pwd; (cd '{}'; exec \"$bash\" -c 'echo RAN')", elsewhere.display()));
    // The subshell is executed as the shim: its parent is the same client.
    result.exits(126).clear_message().never_says("RAN");
    assert!(result.err().contains("elsewhere"), "{}", result.report());
}

#[test]
fn calls_of_one_client_share_what_lives_on() {
    let shims = Shims::new(&[]);
    let result = shims.client(
        "\"$bash\" -c 'echo shared >/tmp/f; sleep 98.7 >/dev/null 2>&1 & echo $! >/tmp/pid'\n\
         \"$bash\" -c 'cat /tmp/f; kill -0 $(cat /tmp/pid) && echo LIVES'\n\
         \"$python\" -c 'print(open(\"/tmp/f\").read())'; test -e /tmp/f || echo PRIVATE",
    );
    assert_eq!(result.out(), "shared\nLIVES\nshared\n\nPRIVATE\n", "{}", result.report());
    // With the client everything has gone, and another one begins anew.
    assert_gone("sleep 98.7");
    shims.nothing_is_left();
    shims.client("\"$bash\" -c 'cat /tmp/f 2>/dev/null || echo NEW'").ok().says("NEW");
    assert!(wait_until(10, || fs::read_dir(shims.sandbox.root().join("run/hermes-sandbox"))
        .unwrap()
        .flatten()
        .all(|entry| !entry.file_name().to_string_lossy().starts_with("shim-"))));
}

#[test]
fn first_calls_at_once_start_one_session() {
    let shims = Shims::new(&[]);
    let listed = format!("'{}' session list --json", binary().display());
    let result = shims.client(&format!(
        "for i in 1 2 3 4 5 6 7 8; do \"$bash\" -c 'echo x >>/tmp/f' & done; wait; \"$bash\" -c 'wc -l </tmp/f'; {listed}"
    ));
    assert_eq!(result.out().lines().next(), Some("8"), "{}", result.report());
    assert_eq!(result.out().matches("\"lives\"").count(), 1, "{}", result.report());
    shims.nothing_is_left();
}

#[test]
fn a_changed_policy_is_another_session() {
    let shims = Shims::new(&[]);
    let profile = shims.sandbox.write(shims.sandbox.outside.join("p.toml"), "schema = 1\nincludes = [\"agent\"]\n");
    let secret = shims.sandbox.write("secret", shims.sandbox.canary("secret"));
    let (profile, secret) = (profile.display().to_string(), secret.display().to_string());
    shims.install(&["--profile", &profile]).ok();
    let install = format!("'{}' shims install '{}'", binary().display(), shims.dir.display());
    let result = shims.client(&format!(
        "\"$bash\" -c 'touch /tmp/f; cat secret'; echo\n\
         printf 'schema = 1\\nincludes = [\"agent\"]\\n[filesystem]\\nhide = [\"{secret}\"]\\n' >'{profile}'\n\
         \"$bash\" -c 'ls /tmp/f; cat secret; echo CHANGED'\n\
         {install} >/dev/null; \"$bash\" -c 'ls /tmp/f; echo AGAIN'; cd /; cd \"$OLDPWD\"; \"$bash\" -c 'touch /tmp/f'; {install} --set-env A=b >/dev/null\n\
         \"$bash\" -c 'ls /tmp/f; echo $A'"
    ));
    // The first one reads it; that is the positive control.
    assert_eq!(result.out().matches("CANARY-secret").count(), 1, "{}", result.report());
    let begin = result.out();
    assert!(begin.contains("CHANGED\nAGAIN\nb\n") && !begin.contains("/tmp/f\n"), "{}", result.report());
    shims.nothing_is_left();
}

#[test]
fn signals_go_to_the_command() {
    let shims = Shims::new(&[]);
    for (signal, status) in [("TERM", 9), ("INT", 9), ("HUP", 9)] {
        let script = format!(
            "\"$bash\" -c 'trap \"echo CAUGHT; exit 9\" {signal}; echo READY >ready; while :; do sleep 0.05; done' & shim=$!\n\
             while ! test -s ready; do sleep 0.02; done; kill -{signal} $shim; wait $shim; echo status $?; rm ready"
        );
        shims.client(&script).says("CAUGHT").says(&format!("status {status}"));
    }
    // One that does not listen is killed with the shim, and all that it has started.
    let mut client = Live::start(
        shims
            .client_command("\"$bash\" -c 'trap \"\" TERM; sleep 97.6 & echo $$ >ready; wait; sleep 97.6' & echo $! >shim; wait")
            .stdout(Stdio::null()),
    );
    assert!(wait_until(20, || !shims.sandbox.read("ready").is_empty() && !processes_with("sleep 97.6").is_empty()));
    let shim = shims.sandbox.read("shim").trim().to_owned();
    run_to_end(Command::new("/bin/sh").args(["-c", &format!("kill -KILL {shim}")])).ok();
    assert_gone("sleep 97.6");
    client.end();
    shims.nothing_is_left();
}

#[test]
fn a_client_that_is_killed_takes_everything_with_it() {
    let shims = Shims::new(&[]);
    let mut client = Live::start(shims.client_command("\"$bash\" -c 'echo >ready; sleep 96.5; :' & wait").stdout(Stdio::null()));
    assert!(
        wait_until(20, || shims.sandbox.workspace.join("ready").exists() && !shims.sessions().is_empty()),
        "positive control"
    );
    client.kill().unwrap();
    client.end();
    shims.nothing_is_left();
    assert_gone("sleep 96.5");
}

#[test]
fn a_terminal_is_a_terminal() {
    need!(PYTHON);
    let shims = Shims::new(&[]);
    let bash = shims.dir.join("bash").display().to_string();
    let script = format!("'{bash}' -c 'tty; stty size; read x; echo got-$x; exit 5'; exit $?");
    let pty = Pty::play(
        &shims.sandbox,
        Command::new("/bin/sh").args(["-c", &script]),
        &[Step::Expect("/dev/pts/[0-9]+"), Step::Expect("24 80"), Step::Send("word\r"), Step::Expect("got-word")],
    );
    pty.complete().exits(5);
    assert!(pty.modes_restored);
}

#[test]
fn python_is_the_real_one() {
    need!(PYTHON);
    let shims = Shims::new(&[]);
    shims.sandbox.write("script.py", "import sys; print(sys.argv[1:], open(sys.argv[1]).read())");
    shims.sandbox.write("data", "read\n");
    shims.client("\"$python\" script.py data two").ok().says("['data', 'two'] read");
    let theft = "\"$python\" -c 'import sys; print(open(sys.argv[1]).read())' \"$key\"";
    shims.client(theft).exits(1).never_says("CANARY");
    shims.client(&theft.replace("\"$python\"", PYTHON)).ok().says("CANARY-key");
}

#[test]
fn inside_a_sandbox_the_one_around_is_used_and_that_is_said_once() {
    let shims = Shims::new(&[]);
    let program = binary();
    let paths = [program.parent().unwrap(), &shims.dir].map(|path| path.display().to_string());
    let key = shims.sandbox.write(shims.sandbox.home.join(".ssh/id"), shims.sandbox.canary("key"));
    let bash = shims.dir.join("bash").display().to_string();
    let script = format!(
        "'{bash}' -c 'echo ONE; exit 4'; echo $?; '{bash}' -c 'cat {}; echo TWO'; '{}' run -d image",
        key.display(),
        shims.dir.join("docker").display()
    );
    let result =
        run_to_end(shims.sandbox.run_command().args(["--ro", &paths[0], "--ro", &paths[1], "--", "/bin/sh", "-c", &script]));
    result.says("ONE\n4\nTWO").never_says("CANARY").clear_message();
    assert_eq!(result.err().matches("already in a sandbox: bash").count(), 1, "{}", result.report());
    assert!(result.err().contains("docker run: already in a sandbox"), "{}", result.report());
}

#[test]
fn a_directory_like_the_mark_of_a_sandbox_is_none() {
    // Whoever can make the sessions' directory there must not have commands run unconfined.
    let sandbox = Sandbox::new();
    let marker = std::path::Path::new("/run/hermes-sandbox");
    if !hermes_tests::is_root() || marker.exists() {
        hermes_tests::skip!("needs root, to make a directory in /run");
    }
    drop(sandbox);
    let shims = Shims::new(&[]);
    fs::create_dir(marker).unwrap();
    mode(marker, 0o555);
    let result = shims.client("\"$bash\" -c 'cat \"$0\"; echo RAN' \"$key\"");
    fs::remove_dir(marker).unwrap();
    result.says("RAN").never_says("CANARY");
}
