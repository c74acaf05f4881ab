//! A sandbox on another host: a real `sshd`, started by the test for its own user.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use hermes_tests::{
    Internet, Live, Pty, Remote, Route, Rpc, Sandbox, Step, assert_gone, is_root, need, processes_with, run_to_end,
    run_to_end_with_input, wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// A caller here, and a host that its flags lead to.
fn far() -> Option<(Sandbox, Remote)> {
    let sandbox = Sandbox::new();
    let remote = Remote::new(&sandbox)?;
    let sandbox = sandbox.flags(remote.flags());
    Some((sandbox, remote))
}

/// The process of this number.
fn pid(line: &str) -> Pid {
    Pid::from_raw(line.split(' ').next().unwrap().parse().unwrap())
}

/// What is left of the host's half and of what it runs.
fn left(remote: &Remote) -> Vec<String> {
    processes_with(&remote.home.join(".cache/hermes-sandbox/bin").display().to_string())
}

#[test]
fn commands_run_there_and_end_as_here() {
    let Some((sandbox, remote)) = far() else { return };
    remote.write("f", "of the other host\n");
    sandbox.write("f", "of this host\n");
    let result = sandbox.sh("pwd; cat f; echo made > made; echo err >&2; exit 7");
    result.exits(7).says(&format!("{}\n", remote.workspace.display())).says("of the other host");
    assert_eq!(result.err(), "err\n", "{}", result.report());
    assert_eq!((remote.read("made"), sandbox.read("made")), ("made\n".into(), String::new()));
    // As files are made by the user there.
    sandbox.plain_sh("echo > by-me").ok();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&remote.workspace.join("made")), mode(&sandbox.workspace.join("by-me")));
    sandbox.sh("kill -9 $$").exits(137);
    sandbox.run(["no-such-program"]).exits(127);
    sandbox.run(["/etc/passwd"]).exits(126);
    let slow = sandbox.run_command().args(["--limit", "timeout=1s", "--", "sleep", "60"]).output().unwrap();
    assert_eq!(slow.status.code(), Some(124));
    assert!(wait_until(10, || left(&remote).is_empty()), "{:?}", left(&remote));
}

#[test]
fn ten_megabytes_go_there_and_come_back() {
    let Some((sandbox, _remote)) = far() else { return };
    let bytes: Vec<u8> = (0..10_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let result = sandbox.run_with_input(["cat"], &bytes);
    result.ok();
    assert!(result.stdout == bytes, "{} bytes came back", result.stdout.len());
}

#[test]
fn the_environment_is_that_of_the_host_filtered_and_what_was_named_here() {
    let Some((sandbox, remote)) = far() else { return };
    let sandbox = sandbox
        .env("NAMED", "from here")
        .env("UNNAMED", "also here")
        .env("MY_TOKEN", "s3cr3t-of-here")
        .env("XDG_STATE_HOME", "/nonexistent/of-here");
    let result = run_to_end(
        sandbox
            .run_command()
            .args(["--env", "NAMED", "--set-env", "SET=1", "--env", "SSH_CONNECTION", "--env", "XDG_STATE_HOME"])
            .args(["--", "env"]),
    );
    result.ok().says("NAMED=from here\n").says("SET=1\n").says(&format!("HOME={}\n", remote.home.display()));
    for absent in ["UNNAMED", "s3cr3t", "SSH_CLIENT"] {
        result.never_says(absent);
    }
    assert!(!Path::new("/nonexistent").exists() && remote.home.join(".local/state/hermes-sandbox").exists());
    // What the caller does not have is not taken from the host instead.
    assert!(!result.out().contains("SSH_CONNECTION="), "{}", result.report());
}

#[test]
fn files_of_the_host_are_kept_as_here() {
    let Some((sandbox, remote)) = far() else { return };
    fs::create_dir(remote.home.join(".ssh")).unwrap();
    let canary = sandbox.canary("key");
    fs::write(remote.home.join(".ssh/id_ed25519"), &canary).unwrap();
    let outside = remote.home.join("outside");
    fs::write(&outside, &canary).unwrap();
    let result = sandbox.sh(&format!(
        "cat ~/.ssh/id_ed25519 '{}'; echo x > ~/new; echo 'source evil' > .envrc; ls ~/.cache/hermes-sandbox",
        outside.display()
    ));
    result.never_says(&canary);
    assert!(!remote.home.join("new").exists() && !remote.workspace.join(".envrc").exists(), "{}", result.report());
    assert!(result.err().contains("put aside"), "{}", result.report());
    assert_eq!(fs::read_to_string(&outside).unwrap(), canary);
}

#[test]
fn changes_wait_there() {
    let Some((sandbox, remote)) = far() else { return };
    remote.write("f", "before\n");
    let result = run_to_end(sandbox.run_command().args(["--overlay", "--", "sh", "-c", "echo after > f; cat f"]));
    assert_eq!((result.code(), result.out(), remote.read("f")), (0, "after\n".into(), "before\n".into()), "{}", result.report());
    assert!(result.err().contains("changed"), "{}", result.report());
    // It is the whole program that was brought.
    let program = remote.home.join(".cache/hermes-sandbox/bin/hermes-sandbox");
    let changes = |what: &str| {
        run_to_end(
            sandbox
                .plain_command(&program)
                .args(["changes", what, "--workspace"])
                .arg(&remote.workspace)
                .env("HOME", &remote.home),
        )
    };
    changes("diff").ok().says("+after");
    changes("apply").ok();
    assert_eq!(remote.read("f"), "after\n");
}

#[test]
fn signals_and_a_terminal_reach_the_job() {
    need!("/usr/bin/python3");
    let Some((sandbox, _remote)) = far() else { return };
    let word = sandbox.canary("job");
    let script = format!(": {word}; trap 'echo got; exit 3' TERM; echo ready > ready; sleep 300 & wait");
    let mut command = sandbox.inside(["/bin/sh", "-c", &script]);
    let child = Live::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(wait_until(60, || !_remote.read("ready").is_empty()));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let output = child.output();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"got\n"[..]), "{output:?}");
    let steps = [
        Step::Expect("ready"),
        Step::Resize(40, 100),
        Step::Send("size\r"),
        Step::Expect("40 100"),
        Step::Send("\u{3}"),
        Step::Expect("interrupted"),
    ];
    let script = "trap 'echo interrupted; exit 5' INT; test -t 0 && test -t 1 && echo ready; while read line; do stty size; done";
    let pty = Pty::play(&sandbox, &sandbox.inside(["/bin/sh", "-c", script]), &steps);
    assert_eq!((pty.code, pty.failed, pty.modes_restored), (Some(5), None, true), "{}", pty.output);
}

#[test]
fn limits_hold_there() {
    let Some((sandbox, _remote)) = far() else { return };
    let mut command = sandbox.run_command();
    command.args(["--limit", "processes=20", "--", "sh", "-c", "for i in $(seq 40); do sleep 5 & done; wait"]);
    let result = run_to_end(&mut command);
    assert!(result.code() != 0 && result.err().to_lowercase().contains("fork"), "{}", result.report());
    let mut command = sandbox.run_command();
    command.args(["--limit", "file-size=1MiB", "--", "sh", "-c", "head -c 5000000 /dev/zero > big; wc -c < big"]);
    run_to_end(&mut command).says("1048576");
}

#[test]
fn a_session_has_a_hundred_jobs_there() {
    let Some((sandbox, remote)) = far() else { return };
    let session = |words: &[&str]| {
        let mut command = sandbox.hermes();
        command.arg("session").args(words).env("XDG_RUNTIME_DIR", &sandbox.home);
        if words[0] == "start" {
            command.args(remote.flags());
        }
        run_to_end(&mut command)
    };
    session(&["start", "far"]).ok().says("far\n");
    session(&["exec", "far", "--", "sh", "-c", "echo here > /tmp/f; exit 3"]).exits(3);
    session(&["exec", "-c", "far", "cd /usr; export A=1"]).ok();
    session(&["exec", "-c", "far", "pwd; echo $A; cat /tmp/f"]).ok().says("/usr\n1\nhere\n");
    session(&["exec", "-d", "far", "--", "sleep", "300"]).ok();
    let place = sandbox.home.join("hermes-sandbox/far/socket");
    let mut command = sandbox.plain_command("/usr/bin/python3");
    let client = "import socket, sys, json
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile('rw')
def ask(i, method, **params):
    f.write(json.dumps({'jsonrpc': '2.0', 'id': i, 'method': method, 'params': params}) + '\\n'); f.flush()
ask(0, 'initialize', protocol=1); f.readline()
for i in range(1, 101): ask(i, 'exec', argv=['sh', '-c', 'echo %d; exit %d' % (i, i)])
ends = [json.loads(f.readline()) for i in range(100)]
assert sorted((e['id'], e['result']['status'], e['result']['stdout']) for e in ends) == [(i, i, '%d\\n' % i) for i in range(1, 101)]
print('HUNDRED')";
    run_to_end(command.args(["-c", client]).arg(place)).ok().says("HUNDRED");
    session(&["list", "far"]).ok().says("running");
    session(&["stop", "far"]).ok();
    assert!(wait_until(10, || left(&remote).is_empty()), "{:?}", left(&remote));
}

#[test]
fn it_is_served_to_programs() {
    let Some((sandbox, remote)) = far() else { return };
    let mut rpc = Rpc::start(sandbox.hermes().arg("serve").args(remote.flags()).stderr(Stdio::null()));
    let answer = rpc.ask("initialize", json!({"protocol": 1}));
    assert_eq!(answer["workspace"], remote.workspace.display().to_string());
    let end = rpc.ask("exec", json!({"argv": ["sh", "-c", "echo out; exit 4"]}));
    assert_eq!((&end["status"], &end["stdout"]), (&json!(4), &json!("out\n")));
    drop(rpc.input.take());
    assert_eq!(rpc.child.wait().unwrap().code(), Some(0));
    assert!(wait_until(10, || left(&remote).is_empty()), "{:?}", left(&remote));
}

#[test]
fn whichever_end_dies_nothing_is_left_there() {
    let Some((sandbox, remote)) = far() else { return };
    for victim in ["near", "far", "link"] {
        let word = sandbox.canary(victim);
        let script = format!(": {word}; (setsid sleep 300 &); echo {victim} > ready; sleep 300; :");
        let mut command = sandbox.inside(["/bin/sh", "-c", &script]);
        let near = Live::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        assert!(wait_until(60, || remote.read("ready").contains(victim)));
        assert!(!left(&remote).is_empty());
        let begun = Instant::now();
        match victim {
            "near" => kill(Pid::from_raw(near.id() as i32), Signal::SIGKILL).unwrap(),
            "far" => left(&remote)
                .iter()
                .filter(|line| line.trim_end().ends_with(" remote"))
                .for_each(|line| kill(pid(line), Signal::SIGKILL).unwrap()),
            _ => {
                let config = remote.config.display().to_string();
                let client = processes_with(&config)
                    .into_iter()
                    .find(|line| line.contains(" ssh -F ") || line.contains("/ssh -F "))
                    .unwrap();
                kill(pid(&client), Signal::SIGKILL).unwrap();
            }
        }
        assert_gone(&word);
        assert!(wait_until(10, || left(&remote).is_empty()), "{victim}: {:?}", left(&remote));
        assert!(begun.elapsed() < Duration::from_secs(8), "{victim}: {:?}", begun.elapsed());
        let output = near.output();
        if victim != "near" {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{victim}: {said}");
            assert!(said.contains("the connection to far.test was lost; what ran there has been killed"), "{victim}: {said}");
        }
    }
}

#[test]
fn what_cannot_be_reached_is_said_and_nothing_runs_here() {
    let Some((sandbox, remote)) = far() else { return };
    let refused = |flags: &[&str], part: &str| {
        let mut command = sandbox.hermes();
        command.arg("run").args(flags).args([
            "--",
            "sh",
            "-c",
            "touch ran; touch \"$0\"",
            &sandbox.outside.join("ran").display().to_string(),
        ]);
        let result = run_to_end(&mut command);
        assert!(result.refused(125).err().contains(part), "{}", result.report());
        assert!(
            !sandbox.outside.join("ran").exists()
                && !sandbox.workspace.join("ran").exists()
                && !remote.workspace.join("ran").exists()
        );
    };
    let (config, workspace) = (remote.config.display().to_string(), remote.workspace.display().to_string());
    let common = ["--backend", "ssh", "--ssh-config", &config];
    let to = |host: &str, workspace: &str| -> Vec<String> {
        let host = format!("--ssh-host={host}");
        common.iter().copied().chain([host.as_str(), "--workspace", workspace]).map(str::to_owned).collect()
    };
    let with = |flags: Vec<String>, part: &str| refused(&flags.iter().map(String::as_str).collect::<Vec<_>>(), part);
    with(to("-oProxyCommand=touch ran", &workspace), "cannot be the host");
    with(to("-oProxyCommand=true", &workspace), "as an option");
    with(to("u@-oProxyCommand=true", &workspace), "as an option");
    with(to("far.test", "no-such-directory"), "cannot enter the workspace");
    with(to("ssh://127.0.0.1:1", &workspace), "cannot be reached");
    with([to("far.test", &workspace), vec!["--publish".into(), "8080".into()]].concat(), "cannot be shared");
    with([to("far.test", &workspace), vec!["--user".into(), "nobody".into()]].concat(), "--user");
    refused(&["--backend", "ssh", "--workspace", "x"], "--ssh-host");
    refused(&["--ssh-host", "far.test", "--workspace", "."], "needs --backend ssh");
    refused(&[&common[..], &["--ssh-host", "far.test"]].concat(), "--workspace");
    // Another key than the one that is known, and none that is known.
    remote.know("other");
    with(to("far.test", &workspace), "host key");
    fs::write(remote.dir.join("known"), "").unwrap();
    with(to("far.test", &workspace), "host key");
    assert_eq!(fs::read_to_string(remote.dir.join("known")).unwrap(), "");
    remote.know("host");
    fs::rename(remote.dir.join("user.pub"), remote.dir.join("away")).unwrap();
    with(to("far.test", &workspace), "does not let you in");
    fs::rename(remote.dir.join("away"), remote.dir.join("user.pub")).unwrap();
    let mut command = sandbox.inside(["true"]);
    command.env("PATH", sandbox.outside.as_os_str());
    let result = run_to_end(&mut command);
    assert!(result.refused(125).err().contains("no program `ssh`"), "{}", result.report());
    // The positive control.
    sandbox.run(["true"]).ok();
}

#[test]
fn a_required_guarantee_is_asked_of_the_kernel_there() {
    let Some((sandbox, remote)) = far() else { return };
    let plan = run_to_end(sandbox.hermes().arg("plan").args(remote.flags()).args(["--set-env", "A=b"]));
    plan.ok().says(&remote.workspace.display().to_string()).says("made of");
    let json = run_to_end(sandbox.hermes().args(["plan", "--json"]).args(remote.flags()));
    let json: serde_json::Value = serde_json::from_slice(&json.ok().stdout).unwrap();
    assert_eq!(json["policy"]["workspace"], remote.workspace.display().to_string());
    run_to_end(sandbox.hermes().arg("doctor").args(remote.way())).ok().says("Landlock");
    // What is lost there without namespaces, and whether it must not be, depends on the machine and the user; both say the same.
    let plan = run_to_end(sandbox.hermes().args(["plan", "--tier", "landlock"]).args(remote.flags()));
    plan.says("lost: not given here");
    let mut command = sandbox.run_command();
    let result = run_to_end(command.args(["--tier", "landlock", "--", "true"]));
    match plan.code() {
        0 => assert!(result.ok().err().contains("without "), "{}", result.report()),
        _ => assert!(result.refused(125).err().contains("cannot be given here"), "{}", result.report()),
    }
}

#[test]
fn profiles_and_trust_are_those_of_here() {
    let Some((sandbox, remote)) = far() else { return };
    let profile = sandbox.write(sandbox.outside.join("p.toml"), "schema = 1\nincludes = [\"agent\", \"./q.toml\"]\n");
    sandbox
        .write(sandbox.outside.join("q.toml"), "schema = 1\nincludes = []\n[environment]\nset = { OF = \"the profile here\" }\n");
    let theirs = remote.home.join(".config/hermes-sandbox");
    fs::create_dir_all(&theirs).unwrap();
    fs::write(theirs.join("config.toml"), "nonsense").unwrap();
    let mut command = sandbox.run_command();
    run_to_end(command.arg("--profile").arg(&profile).args(["--", "sh", "-c", "echo $OF"])).ok().says("the profile here");
    remote.write(".hermes-sandbox.toml", "schema = 1\n[environment]\ndeny = [\"TERM\"]\n");
    let untrusted = sandbox.sh("echo ${TERM-none}");
    assert!(untrusted.ok().err().contains("is not trusted"), "{}", untrusted.report());
    let copy = sandbox.write("copy.toml", remote.read(".hermes-sandbox.toml"));
    run_to_end(sandbox.hermes().args(["profiles", "trust"]).arg(copy)).ok();
    sandbox.sh("echo ${TERM-none}").ok().says("none");
}

#[test]
fn events_of_there_are_written_here() {
    let Some((sandbox, _remote)) = far() else { return };
    let events = sandbox.outside.join("events");
    run_to_end(sandbox.run_command().arg("--json-events").arg(&events).args(["--", "sh", "-c", "exit 3"])).exits(3);
    let text = fs::read_to_string(&events).unwrap();
    let kinds: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].as_str().unwrap().to_owned())
        .filter(|kind| !["lost", "weakened"].contains(&kind.as_str()))
        .collect();
    assert_eq!(kinds, ["plan", "job-start", "job-exit", "end"], "{text}");
}

/// The host has no network at all: what its sandboxes reach is reached from here.
fn without_network(sandbox: &Sandbox) -> Option<Remote> {
    let up = sandbox.root().join("ssh/up");
    // Its own loopback is up, as on every host. Without root that takes capabilities in a user namespace, which end there.
    let (own, last) = match is_root() {
        true => ("", ""),
        false => ("-U --map-current-user --keep-caps", "setpriv --ambient-caps -all --inh-caps -all"),
    };
    let remote = Remote::by_way_of(sandbox, &format!("/usr/bin/unshare {own} -n /bin/sh {}", up.display()))?;
    fs::write(up, format!("PATH=/usr/sbin:/sbin:/usr/bin:/bin ip link set lo up; exec {last} \"$@\"\n")).unwrap();
    Some(remote)
}

#[test]
fn hosts_are_reached_from_here_by_the_rules_of_here() {
    need!("curl", "unshare", "ip");
    let Some(internet) = Internet::here() else { return };
    let routes = [Route::rule("read.test", &[443], "paths = [\"/v1/**\"]"), Route::to("plain.test", &[80, 443])];
    let sandbox = internet.with(&routes);
    let Some(remote) = without_network(&sandbox) else { return };
    let sandbox = sandbox.flags(remote.flags());
    let word = sandbox.canary("path");
    let script = format!(
        "curl -sS --max-time 20 https://read.test/v1/{word}/a; echo \" $?\"
         curl -sS --max-time 20 --noproxy '*' https://read.test/v1/{word}/b; echo \" $?\"
         curl -sS --max-time 20 --noproxy '*' http://plain.test/{word}/c; echo \" $?\"
         curl -sS --max-time 20 --noproxy '*' https://read.test/v2/{word}/no; echo \" $?\"
         curl -sS --max-time 20 --noproxy '*' https://other.test/{word}/no; echo \" $?\"
         curl -sS --max-time 20 --noproxy '*' https://93.184.216.34/{word}/no; echo \" $?\"; echo END"
    );
    let result = sandbox.sh(&script);
    result.ok().says("END");
    let targets: Vec<String> =
        internet.seen(&word).iter().filter_map(|line| line["target"].as_str().map(str::to_owned)).collect();
    for (part, reached) in [("/a", true), ("/b", true), ("/c", true), ("/no", false)] {
        let got = targets.iter().any(|target| target.ends_with(part));
        assert_eq!(got, reached, "{part}: {targets:?}\n{}", result.report());
    }
    assert!(result.err().contains("no way out to") && result.err().contains("other.test"), "{}", result.report());
    // Off is off, and the positive control shows that the host itself reaches nobody.
    let mut off = sandbox.hermes();
    off.arg("run").args(remote.flags()).args(["--", "curl", "-sS", "--max-time", "5", "http://plain.test/"]);
    assert_ne!(run_to_end(&mut off).code(), 0);
}

#[test]
fn a_secret_of_here_is_put_in_here_and_never_there() {
    need!("curl", "unshare", "ip");
    let Some(internet) = Internet::here() else { return };
    let more = "paths = [\"/v1/**\"]\nsecret = { name = \"key\", header = \"Authorization\", format = \"Bearer {}\" }";
    let sandbox = internet.with(&[Route::rule("read.test", &[443], more)]);
    let Some(remote) = without_network(&sandbox) else { return };
    let value = format!("{}-0123456789", sandbox.canary("value"));
    let mut add = sandbox.hermes();
    add.args(["secrets", "add", "key", "--env", "API_KEY", "--profile"]).arg(sandbox.outside.join("profile.toml"));
    run_to_end_with_input(&mut add, value.as_bytes()).ok();
    let sandbox = sandbox.flags(remote.flags()).env("API_KEY", &value);
    let word = sandbox.canary("path");
    let script = format!(
        "echo \"key=$API_KEY\"
         curl -sS --max-time 20 --noproxy '*' -H \"Authorization: Bearer $API_KEY\" https://read.test/v1/{word}/x
         env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'; echo END"
    );
    let mut command = sandbox.run_command();
    // Named, which lets a variable in whatever it holds; but a placeholder stands in its place.
    command.args(["--env", "API_KEY", "--", "/bin/sh", "-c", &script]);
    let result = run_to_end(&mut command);
    result.ok().says("END").says("key=hsx-secret-").never_says(&value);
    let seen = internet.seen(&value);
    assert!(
        !seen.is_empty() && seen.iter().all(|line| line["target"].as_str().is_some_and(|t| t.contains("/v1/"))),
        "{seen:?}\n{}",
        result.report()
    );
}

#[test]
fn the_program_is_brought_once_and_from_chatty_hosts() {
    let Some((sandbox, remote)) = far() else { return };
    // What every bash reads, also when it is no login shell but started by sshd.
    fs::write(remote.home.join(".bashrc"), "echo welcome; echo more on error >&2\n").unwrap();
    sandbox.sh("echo hello").ok().says("hello\n").never_says("welcome");
    let bin = remote.home.join(".cache/hermes-sandbox/bin");
    let programs = || -> Vec<_> {
        fs::read_dir(&bin)
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| name.len() == 64)
            .collect()
    };
    let names = programs();
    assert_eq!(names.len(), 1);
    let made = fs::metadata(bin.join(&names[0])).unwrap().modified().unwrap();
    // A change is found by the hash.
    fs::write(bin.join(&names[0]), "#!/bin/sh\necho another >&2\n").unwrap();
    sandbox.sh("echo again").ok().says("again\n").never_says("another");
    assert_eq!(programs(), names);
    assert!(fs::metadata(bin.join(&names[0])).unwrap().len() > 1_000_000 && made.elapsed().is_ok());
    // It is the whole program: what was put aside there is looked at there.
    run_to_end(sandbox.plain_command(bin.join("hermes-sandbox")).args(["quarantine", "list"]).env("HOME", &remote.home)).ok();
}

#[test]
fn a_silent_connection_is_given_up_on_both_sides() {
    let Some((sandbox, remote)) = far() else { return };
    let word = sandbox.canary("silent");
    let mut command = sandbox.inside(["/bin/sh", "-c", &format!(": {word}; echo ready > ready; sleep 300; :")]);
    let mut near = Live::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(wait_until(60, || !remote.read("ready").is_empty()));
    // Alive while nothing happens.
    std::thread::sleep(Duration::from_secs(17));
    assert!(near.try_wait().unwrap().is_none() && !left(&remote).is_empty());
    // As when the network between them is cut: nobody hears of it.
    let config = remote.config.display().to_string();
    let client = processes_with(&config).into_iter().find(|line| line.contains("ssh -F ")).unwrap();
    let begun = Instant::now();
    kill(pid(&client), Signal::SIGSTOP).unwrap();
    assert!(wait_until(25, || left(&remote).is_empty()), "{:?}", left(&remote));
    assert_gone(&word);
    let output = near.output();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("was lost") && said.contains("nothing came from there for 15 s"), "{said}");
    assert!(processes_with(&config).is_empty(), "{:?}", processes_with(&config));
}

#[test]
fn one_that_stands_still_is_not_given_up() {
    let Some((sandbox, remote)) = far() else { return };
    let mut command = sandbox.inside(["/bin/sh", "-c", "echo ready > ready; until [ -e go ]; do sleep 0.1; done; echo went"]);
    let near = Live::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(wait_until(60, || !remote.read("ready").is_empty()));
    let pid = Pid::from_raw(near.id() as i32);
    // What Ctrl-Z sends.
    kill(pid, Signal::SIGTSTP).unwrap();
    std::thread::sleep(Duration::from_secs(20));
    remote.write("go", "");
    std::thread::sleep(Duration::from_secs(1));
    kill(pid, Signal::SIGCONT).unwrap();
    let output = near.output();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"went\n"[..]), "{output:?}");
}

#[test]
fn routes_are_replaced_from_here() {
    need!("curl", "unshare", "ip");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[Route::to("plain.test", &[80])]);
    let Some(remote) = without_network(&sandbox) else { return };
    let mut start = sandbox.hermes();
    let profile = sandbox.outside.join("profile.toml");
    start.args(["serve", "--profile"]).arg(&profile).args(remote.flags()).stderr(Stdio::null());
    let mut rpc = Rpc::start(&mut start);
    rpc.ask("initialize", json!({"protocol": 1}));
    let word = sandbox.canary("path");
    let get = |rpc: &mut Rpc, url: &str| {
        let end =
            rpc.ask("exec", json!({"argv": ["curl", "-sSk", "--noproxy", "*", "--max-time", "10", format!("{url}/{word}")]}));
        end["status"] == 0
    };
    assert!(get(&mut rpc, "http://plain.test") && !get(&mut rpc, "https://other.test"));
    let held = rpc.ask("routes", json!({}));
    assert_eq!((&held["generation"], held["routes"].as_array().map(Vec::len)), (&json!(0), Some(1)), "{held}");
    let mut route = held["routes"][0].clone();
    (route["host"], route["ports"]) = (json!("other.test"), json!([443]));
    let set = rpc.ask("set-routes", json!({"routes": [&route]}));
    assert_eq!(set["generation"], 1);
    // Another port than before.
    assert!(get(&mut rpc, "https://other.test") && !get(&mut rpc, "http://plain.test"));
    let mut secret = route.clone();
    secret["secret"] = json!({"name": "key", "header": "A", "format": "{}"});
    assert!(rpc.refused("set-routes", json!({"routes": [secret]}))["message"].as_str().unwrap().contains("profile"));
}

#[test]
fn without_namespaces_the_rules_are_those_of_here_too() {
    need!("curl", "unshare", "ip");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[Route::to("plain.test", &[80])]);
    let Some(remote) = without_network(&sandbox) else { return };
    let losses = run_to_end(
        sandbox
            .hermes()
            .args(["plan", "--json", "--tier", "landlock", "--profile"])
            .arg(sandbox.outside.join("profile.toml"))
            .args(remote.flags()),
    );
    let plan: serde_json::Value = serde_json::from_slice(&losses.stdout).unwrap_or_else(|_| panic!("{}", losses.report()));
    let lost = plan["plan"]["lost"].as_array().unwrap();
    let accepted = lost.iter().flat_map(|lost| ["--accept-loss".to_owned(), lost["guarantee"].as_str().unwrap().to_owned()]);
    let sandbox = sandbox.flags(remote.flags()).flags(["--tier", "landlock"]).flags(accepted);
    let word = sandbox.canary("path");
    let script = format!(
        "curl -sS --noproxy '*' --max-time 10 http://plain.test/{word}/yes; echo \" $?\"
         curl -sS --noproxy '*' --max-time 10 http://other.test/{word}/no; echo \" $?\"; curl -sS --noproxy '*' --max-time 5 http://93.184.216.34/{word}/no; echo END"
    );
    let result = sandbox.sh(&script);
    if plan["plan"]["network"] == "no-sockets" {
        hermes_tests::skip!("this kernel does not mediate the network without namespaces");
    }
    result.ok().says("END");
    let targets: Vec<String> =
        internet.seen(&word).iter().filter_map(|line| line["target"].as_str().map(str::to_owned)).collect();
    assert!(
        targets.iter().any(|t| t.ends_with("/yes")) && !targets.iter().any(|t| t.ends_with("/no")),
        "{targets:?}\n{}",
        result.report()
    );
}

#[test]
fn mcp_hosts_are_served_too() {
    let Some((sandbox, remote)) = far() else { return };
    remote.write("f", "of the other host\n");
    let mut rpc = Rpc::start(sandbox.hermes().args(["serve", "--mcp"]).args(remote.flags()).stderr(Stdio::null()));
    let info = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    rpc.ask("initialize", info);
    rpc.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n");
    let answer = rpc.ask("tools/call", json!({"name": "exec", "arguments": {"command": "cat f"}}));
    assert!(answer.to_string().contains("of the other host"), "{answer}");
}
