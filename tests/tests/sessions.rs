//! Sessions: one sandbox, many jobs.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hermes_tests::{Outcome, PYTHON, Rpc, Sandbox, assert_gone, processes_with, run_to_end, run_to_end_with_input, wait_until};
use serde_json::{Value, json};

/// `serve` on its standard streams.
struct Served {
    rpc: Rpc,
}

impl std::ops::Deref for Served {
    type Target = Rpc;

    fn deref(&self) -> &Rpc {
        &self.rpc
    }
}

impl std::ops::DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Rpc {
        &mut self.rpc
    }
}

impl Served {
    fn new(sandbox: &Sandbox) -> Self {
        Self::with(sandbox, &[])
    }

    fn with(sandbox: &Sandbox, options: &[&str]) -> Self {
        let mut command = sandbox.hermes();
        let mut served = Self { rpc: Rpc::start(command.arg("serve").args(options).stderr(Stdio::null())) };
        let answer = served.ask("initialize", json!({"protocol": 1}));
        assert_eq!(answer["protocol"], 1, "{answer}");
        served
    }

    fn sh(&mut self, line: &str) -> Value {
        self.ask("exec", json!({"argv": ["/bin/sh", "-c", line]}))
    }

    fn end(mut self) -> i32 {
        drop(self.input.take());
        self.child.wait().unwrap().code().unwrap()
    }
}

#[test]
fn jobs_have_status_streams_directory_variables_and_input() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let end = served.sh("echo out; echo err >&2; exit 7");
    assert_eq!((&end["status"], &end["stdout"], &end["stderr"]), (&json!(7), &json!("out\n"), &json!("err\n")));
    let merged = served.ask("exec", json!({"argv": ["sh", "-c", "echo a; echo b >&2; echo c"], "merge": true}));
    assert_eq!((&merged["stdout"], merged.get("stderr")), (&json!("a\nb\nc\n"), None));
    let end = served.ask(
        "exec",
        json!({"argv": ["sh", "-c", "pwd; echo $V; cat"], "cwd": "/usr", "env": {"V": "1 2"}, "stdin": {"data": "in\n"}}),
    );
    assert_eq!(end["stdout"], "/usr\n1 2\nin\n");
    assert_eq!(served.sh("cat").get("stdout").unwrap(), "", "nothing to read is an end");
    assert_eq!(served.sh("kill -9 $$")["signal"], "KILL");
    assert_eq!(served.sh("kill -9 $$")["status"], 137);
    let odd = served.ask("exec", json!({"argv": ["printf", "a\\377b"]}));
    assert_eq!(odd["stdout"], "a\u{fffd}b");
    for (argv, status) in [(json!(["no-such-program"]), 127), (json!(["/etc/passwd"]), 126)] {
        let error = served.refused("exec", json!({"argv": argv}));
        assert_eq!((&error["code"], &error["data"]["status"]), (&json!(-32003), &json!(status)), "{error}");
    }
    assert_eq!(served.end(), 0);
}

#[test]
fn command_lines_keep_directory_and_variables() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let mut line = |line: &str| served.ask("exec", json!({"shell": line}));
    assert_eq!(line("cd /usr/bin; export A='x y'; B=2; exit 4")["status"], 4);
    assert_eq!(line("pwd; echo \"$A$B\"")["stdout"], "/usr/bin\nx y\n");
    assert_eq!(line("export B=2")["status"], 0);
    assert_eq!(line("unset A; cd ..")["cwd"], "/usr");
    assert_eq!(line("echo ${A-unset}; exec sh -c 'cd /etc'")["stdout"], "unset\n");
    assert_eq!(line("pwd")["stdout"], "/usr\n", "what exec replaced says nothing");
    // More than a pipe holds.
    assert_eq!(line("export BIG=$(head -c 90000 /dev/zero | tr '\\0' x)")["status"], 0);
    assert_eq!(line("echo ${#BIG}")["stdout"], "90000\n");
    // More than an exec takes: no variable can be told, and none is lost.
    assert_eq!(line("cd /var; export BIG=$(head -c 200000 /dev/zero | tr '\\0' x); echo ${#BIG}")["stdout"], "200000\n");
    assert_eq!(line("pwd; echo $B ${#BIG} ${HOME:+home}")["stdout"], "/var\n2 90000 home\n");
    let other = served.ask("exec", json!({"argv": ["sh", "-c", "pwd; echo ${BIG-none}"]}));
    assert_eq!(other["stdout"], format!("{}\nnone\n", sandbox.workspace.display()));
}

#[test]
fn a_line_that_cannot_begin_where_the_last_one_ended_is_not_the_end_of_all() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    served.ask("exec", json!({"shell": "mkdir /tmp/d; cd /tmp/d; export A=1"}));
    served.sh("rmdir /tmp/d");
    let error = served.refused("exec", json!({"shell": "pwd"}));
    assert!(error["data"]["hint"].as_str().unwrap().contains("as the first one did"), "{error}");
    let end = served.ask("exec", json!({"shell": "pwd; echo ${A-none}"}));
    assert_eq!(end["stdout"], format!("{}\nnone\n", sandbox.workspace.display()));
}

#[test]
fn what_a_job_leaves_dies_with_it_unless_it_is_to_stay() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    // Two forks and a session of its own, with every stream closed.
    let daemon = |mark: &str| format!("(setsid sh -c 'exec -a {mark} sleep 300 </dev/null >/dev/null 2>&1 &' &) ; sleep 0.2");
    let bash = |line: String| json!({"argv": ["bash", "-c", line]});
    let running = |served: &mut Served, mark: &str| {
        let count = served.sh(&format!("grep -la '^{mark}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"));
        count["stdout"].as_str().unwrap().trim().parse::<u32>().unwrap()
    };
    served.ask("exec", bash(daemon("gone").replace("sh -c 'exec", "bash -c 'exec")));
    assert_eq!(running(&mut served, "gone"), 0);
    let mut stays = bash(daemon("stays").replace("sh -c 'exec", "bash -c 'exec"));
    stays["background"] = json!(true);
    let job = served.ask("exec", stays)["job"].clone();
    assert_eq!(running(&mut served, "stays"), 1, "by request");
    served.ask("kill", json!({"job": job}));
    assert!(wait_until(10, || running(&mut served, "stays") == 0));
    let floods = served.ask("exec", json!({"argv": ["sh", "-c", "yes & echo begun"], "background": true}));
    assert_eq!(floods["status"], 0);
    served.ask("kill", json!({"job": floods["job"]}));
    // A server of one job is there for the next, which may signal it.
    let server = served.ask("exec", json!({"argv": ["sh", "-c", "sleep 300 & echo $!"], "background": true}));
    let pid = server["stdout"].as_str().unwrap().trim().to_owned();
    assert_eq!(served.sh(&format!("kill {pid} && echo signalled"))["stdout"], "signalled\n");
}

#[test]
fn a_job_cannot_take_itself_out_of_its_jobs_processes() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let python = "import resource as r, ctypes\n\
        print(r.getrlimit(r.RLIMIT_RTTIME)[1] > 0)\n\
        for limit in [(1, 1), (0, 0), r.getrlimit(r.RLIMIT_RTTIME)]:\n    \
            try: r.setrlimit(r.RLIMIT_RTTIME, limit); print('CHANGED')\n    \
            except (PermissionError, ValueError, OSError): pass\n\
        r.setrlimit(r.RLIMIT_NOFILE, r.getrlimit(r.RLIMIT_NOFILE)); print('END')";
    let end = served.ask("exec", json!({"argv": ["/usr/bin/python3", "-c", python]}));
    assert_eq!(end["stdout"], "True\nEND\n", "{end}");
    // The control: outside the same limit can be changed.
    let control = "import resource as r; r.setrlimit(r.RLIMIT_RTTIME, (1 << 40, 1 << 40)); print('CHANGED')";
    run_to_end(Command::new("/usr/bin/python3").args(["-c", control])).ok().says("CHANGED");
}

#[test]
fn time_is_up_in_time_for_whatever_ignores_it() {
    let sandbox = Sandbox::new().flags(["--limit", "grace=200ms"]);
    let mut served = Served::with(&sandbox, &["--limit", "grace=200ms"]);
    let begun = Instant::now();
    let ignores = "trap '' TERM; (trap '' TERM; setsid sleep 100 &) ; echo begun; sleep 100";
    let end = served.ask("exec", json!({"argv": ["bash", "-c", ignores], "timeout": 0.5}));
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!((&end["status"], &end["timed_out"], &end["stdout"]), (&json!(124), &json!(true), &json!("begun\n")));
    assert_eq!(end["note"], "[Command timed out after 0.5s]");
    assert_eq!(
        served.sh("ls -d /proc/[0-9]* | wc -l; grep -c sleep /proc/[0-9]*/comm | grep -c ':1'")["stdout"]
            .as_str()
            .unwrap()
            .lines()
            .last(),
        Some("0")
    );
}

#[test]
fn the_policy_bounds_the_time_of_every_job() {
    let sandbox = Sandbox::new();
    let mut served = Served::with(&sandbox, &["--limit", "timeout=300ms"]);
    let begun = Instant::now();
    for asked in [json!({}), json!({"timeout": 60}), json!({"background": true})] {
        let mut start = json!({"argv": ["sleep", "60"]});
        start.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        assert_eq!(served.ask("exec", start)["status"], 124);
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(served.sh("sleep 0.1; echo in time")["stdout"], "in time\n");
}

#[test]
fn several_are_answered_at_once_and_a_slow_reader_stops_only_its_own_job() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let slow = served.request("exec", json!({"argv": ["sleep", "1"]}));
    let quick = served.request("exec", json!({"argv": ["true"]}));
    assert_eq!(served.line()["id"], quick);
    assert_eq!(served.line()["id"], slow);
    // 200 MB that nobody reads: kept are the ends, and the server stays small.
    let end = served.ask("exec", json!({"argv": ["sh", "-c", "yes | head -c 200000000"]}));
    assert_eq!(end["omitted"]["stdout"].as_u64().unwrap(), 200_000_000 - 50_000);
    let status = std::fs::read_to_string(format!("/proc/{}/status", served.child.id())).unwrap();
    let peak: u64 =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 100_000, "{peak} kB");
}

#[test]
fn output_streams_and_input_is_taken_as_it_comes() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let job = served.ask("start", json!({"argv": ["sed", "-u", "s/^/got /"], "stdin": "pipe", "stream": true}))["job"].clone();
    for word in ["one", "two"] {
        served.request("write", json!({"job": job, "data": format!("{word}\n")}));
        let said = loop {
            let line = served.line();
            if line["method"] == "output" {
                break line["params"]["data"].clone();
            }
        };
        assert_eq!(said, format!("got {word}\n"));
    }
    served.ask("write", json!({"job": job, "eof": true}));
    assert_eq!(served.ask("wait", json!({"job": job}))["stdout"], "got one\ngot two\n");
    assert_eq!(served.refused("write", json!({"job": job, "data": "x"}))["code"], -32002);
}

#[test]
fn a_terminal_is_one_and_changes_its_size() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let start =
        json!({"argv": ["sh", "-c", "tty; stty size; read x; stty size; echo got $x"], "pty": {"rows": 30, "columns": 120}});
    let job = served.ask("start", start)["job"].clone();
    assert!(wait_until(10, || served.ask("output", json!({"job": job}))["data"].as_str().unwrap().contains("30 120")));
    served.ask("resize", json!({"job": job, "rows": 10, "columns": 20}));
    served.ask("write", json!({"job": job, "data": "typed\n"}));
    let end = served.ask("wait", json!({"job": job}));
    let said = end["stdout"].as_str().unwrap();
    assert!(said.starts_with("/dev/pts/") && said.contains("10 20") && said.contains("got typed"), "{said}");
    assert_eq!(end.get("stderr"), None);
}

#[test]
fn bad_input_is_answered_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    for (line, code) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":1}\n", -32600),
        ("[1]\n", -32600),
        ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"list\"}\n", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"list\"}\n", -32600),
    ] {
        served.send(line);
        assert_eq!(served.line()["error"]["code"], code, "{line}");
    }
    served.send("\n\n");
    for (method, params, code) in [
        ("nothing", json!({}), -32601),
        ("exec", json!({}), -32602),
        ("exec", json!({"argv": ["true"], "shell": "true"}), -32602),
        ("exec", json!({"argv": ["true"], "unknown": 1}), -32602),
        ("exec", json!({"argv": "true"}), -32602),
        ("exec", json!({"argv": ["true"], "timeout": -1}), -32602),
        ("exec", json!({"argv": ["true"], "timeout": 0}), -32602),
        ("exec", json!({"argv": ["true"], "env": {"A=B": "x"}}), -32602),
        ("exec", json!({"argv": ["true"], "stdin": {"base64": "?"}}), -32602),
        ("exec", json!({"argv": ["true"], "keep": {"head": 99_999_999_999u64, "tail": 0}}), -32602),
        ("exec", json!({"argv": ["tr\u{0}ue"]}), -32003),
        ("exec", json!({"argv": ["true"], "cwd": "/no/such/dir"}), -32003),
        ("wait", json!({"job": 99}), -32002),
        ("signal", json!({"job": 99, "signal": "TERM"}), -32002),
        ("signal", json!({"job": 1, "signal": "NOTHING"}), -32602),
        ("resize", json!({"job": 1, "rows": 1}), -32602),
    ] {
        let error = served.refused(method, params.clone());
        assert_eq!(error["code"], code, "{method} {params}: {error}");
    }
    assert_eq!(served.sh("echo still here")["stdout"], "still here\n");
    served.send("{\"jsonrpc\":\"2.0\",");
    drop(served.input.take());
    assert_eq!(served.line()["error"]["code"], -32700, "half a line");
}

#[test]
fn another_version_and_a_line_without_end_are_refused() {
    let sandbox = Sandbox::new();
    let open = |lines: Vec<u8>| {
        let mut command = sandbox.hermes();
        command.arg("serve");
        run_to_end_with_input(&mut command, &lines)
    };
    let refused = open(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocol\":9}}\n".to_vec());
    assert!(refused.out().contains("-32001") && refused.out().contains("use version 1"), "{}", refused.report());
    let early = open(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"list\"}\n".to_vec());
    assert!(early.out().contains("-32001"), "{}", early.report());
    let long = open(vec![b'x'; 100 << 20]);
    assert!(long.out().contains("-32700") && long.out().contains("longer than"), "{}", long.report());
}

#[test]
fn a_fork_bomb_ends_with_its_job_and_the_session_goes_on() {
    let sandbox = Sandbox::new();
    let mut served = Served::with(&sandbox, &["--limit", "processes=200", "--limit", "grace=100ms"]);
    let bomb = "bomb() { bomb | bomb & }; bomb; sleep 100";
    let end = served.ask("exec", json!({"argv": ["bash", "-c", bomb], "timeout": 1}));
    assert_eq!(end["status"], 124);
    assert!(wait_until(20, || served.ask("exec", json!({"argv": ["echo", "alive"]}))["stdout"] == "alive\n"));
}

#[test]
fn a_job_that_closes_its_streams_lives_on() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let line = "echo said; exec >&- 2>&- <&-; sleep 1; touch /tmp/done; exit 5";
    let end = served.sh(line);
    assert_eq!((&end["status"], &end["stdout"]), (&json!(5), &json!("said\n")));
    assert_eq!(served.sh("ls /tmp/done")["status"], 0);
}

#[test]
fn jobs_cannot_reach_what_holds_them() {
    let sandbox = Sandbox::new();
    // In a directory that jobs can write, where nobody should put it.
    let socket = sandbox.workspace.join("s");
    let mut server = sandbox.hermes();
    let mut server = server.args(["serve", "--socket"]).arg(&socket).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(wait_until(10, || socket.exists()));
    let connect = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                   s.sendall(b'{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocol\":1}}\\n')\n\
                   print(s.recv(999).decode()); s.close()";
    let control = run_to_end(Command::new(PYTHON).args(["-c", connect]).arg(&socket));
    control.ok().says("\"protocol\":1");
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap());
    let mut ask = |method: &str, params: Value| {
        client
            .write_all(format!("{}\n", json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).as_bytes())
            .unwrap();
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["result"].clone()
    };
    ask("initialize", json!({"protocol": 1}));
    let inside = ask("exec", json!({"argv": [PYTHON, "-c", connect, socket]}));
    assert_ne!(inside["status"], 0, "{inside}");
    let stderr = inside["stderr"].as_str().unwrap();
    assert!(stderr.contains("Permission denied") || stderr.contains("refused"), "{inside}");
    let touch = "for s in KILL STOP TERM; do kill -$s 1; done; \
        for f in mem environ maps fd/0 ns/mnt root cwd exe; do cat /proc/1/$f || ls /proc/1/$f/; done; \
        echo x > /proc/1/comm; exit 0";
    let touched = ask("exec", json!({"argv": ["sh", "-c", touch]}));
    assert_eq!((&touched["status"], &touched["stdout"]), (&json!(0), &json!("")), "{touched}");
    let control = run_to_end(
        Command::new("/bin/sh").args(["-c", "sleep 10 & for f in environ maps; do cat /proc/$!/$f; done; kill -KILL $!"]),
    );
    assert!(control.ok().out().contains("[stack]"), "its own processes can be looked at so: {}", control.report());
    assert_eq!(ask("exec", json!({"argv": ["echo", "alive"]}))["stdout"], "alive\n");
    ask("stop", json!({}));
    assert!(server.wait().unwrap().success());
    assert!(!socket.exists(), "it takes its socket along");
}

#[test]
fn two_clients_share_one_session_and_one_may_go() {
    let sandbox = Sandbox::new();
    session(&sandbox, &["start", "two"]).ok();
    let exec = |line: &str| {
        let mut command = sandbox.hermes();
        command.args(["session", "exec", "two", "--", "sh", "-c", line]).env("XDG_RUNTIME_DIR", &sandbox.home);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut waits = exec("mkfifo /tmp/f; read x < /tmp/f; echo got $x");
    let mut gone = exec("sleep 300");
    assert!(wait_until(10, || session(&sandbox, &["exec", "two", "test", "-p", "/tmp/f"]).code() == 0));
    gone.kill().unwrap();
    gone.wait().unwrap();
    session(&sandbox, &["exec", "two", "--", "sh", "-c", "echo it > /tmp/f"]).ok();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut waits.stdout.take().unwrap(), &mut said).unwrap();
    assert_eq!((said.as_str(), waits.wait().unwrap().code()), ("got it\n", Some(0)));
    session(&sandbox, &["stop", "two"]).ok();
}

#[test]
fn a_session_whose_directory_is_gone_ends_and_another_can_begin() {
    let sandbox = Sandbox::new();
    let canary = sandbox.canary("job");
    session(&sandbox, &["start", "lost"]).ok();
    session(&sandbox, &["exec", "-d", "lost", "--", "sh", "-c", &format!(": {canary}; sleep 300; :")]).ok();
    std::fs::remove_dir_all(sandbox.home.join("hermes-sandbox/lost")).unwrap();
    let gone = session(&sandbox, &["exec", "lost", "true"]);
    assert!(gone.refused(125).err().contains("there is no session `lost`"), "{}", gone.report());
    session(&sandbox, &["start", "lost"]).ok();
    session(&sandbox, &["exec", "lost", "true"]).ok();
    // Nobody can reach it any more, so it ends.
    assert!(wait_until(20, || processes_with(&canary).is_empty()));
    session(&sandbox, &["exec", "lost", "true"]).ok();
    session(&sandbox, &["stop", "lost"]).ok();
}

#[test]
fn many_jobs_at_once_all_end() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    let ids: Vec<u64> = (0..1000).map(|n| served.request("exec", json!({"argv": ["echo", n.to_string()]}))).collect();
    let mut left: std::collections::BTreeSet<u64> = ids.into_iter().collect();
    while !left.is_empty() {
        let line = served.line();
        assert_eq!(line["result"]["status"], 0, "{line}");
        assert!(left.remove(&line["id"].as_u64().unwrap()));
    }
}

#[test]
fn many_deaths_and_many_questions_at_once_are_all_told() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    for _ in 0..700 {
        served.request("start", json!({"argv": ["sleep", "300"]}));
    }
    let jobs: Vec<Value> = (0..700).map(|_| served.line()["result"]["job"].clone()).collect();
    // While init takes them in, and has more to tell than fits into its socket, it is asked more than fits.
    let killer = "import os, signal; os.kill(-1, signal.SIGKILL)";
    served.request("exec", json!({"argv": [PYTHON, "-c", killer]}));
    std::thread::sleep(Duration::from_millis(200));
    for job in jobs.iter().cycle().take(1400) {
        served.request("signal", json!({"job": job, "signal": "WINCH"}));
    }
    let pid = served.child.id();
    let (answered, all) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if all.recv_timeout(Duration::from_secs(60)).is_err() {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
    });
    for _ in 0..1401 {
        served.line();
    }
    answered.send(()).unwrap();
    watchdog.join().unwrap();
    let runs = |job: &Value| job["state"] == "running";
    assert!(wait_until(20, || !served.ask("list", json!({}))["jobs"].as_array().unwrap().iter().any(runs)));
    assert_eq!(served.ask("exec", json!({"argv": ["echo", "alive"]}))["stdout"], "alive\n");
}

#[test]
fn input_that_nobody_takes_keeps_no_job_from_its_end() {
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    // Another job takes the other end of its input, and does not read. (Where the pipe is root's it cannot.)
    let holder = "import glob, os, time\nfound = None\nwhile not found:\n    \
        for path in glob.glob('/proc/[0-9]*'):\n        \
            try:\n            \
                if 'HOLD' + 'ME' in open(path + '/cmdline').read(): found = path; os.open(path + '/fd/0', os.O_RDONLY)\n        \
            except OSError: pass\n\
        open('/tmp/held', 'w').close(); time.sleep(300)";
    let holder = served.ask("start", json!({"argv": [PYTHON, "-c", holder], "background": true}));
    let line = "while [ ! -e /tmp/held ]; do sleep 0.05; done; exit 3 # HOLDME";
    let id = served.request("exec", json!({"argv": ["sh", "-c", line], "stdin": {"data": "x".repeat(300_000)}, "timeout": 20}));
    served.request("wait", json!({"job": 2, "timeout": 30}));
    loop {
        let answer = served.line();
        assert_ne!(answer["error"]["code"], -32002, "it has not ended: {answer}");
        if answer["id"] == id {
            assert_eq!(answer["result"]["status"], 3, "{answer}");
            break;
        }
    }
    served.ask("kill", holder);
}

#[test]
fn sessions_of_one_user_keep_apart_with_landlock_alone() {
    let sandbox = Sandbox::new();
    let landlock = &["--tier", "landlock"];
    if sandbox.hermes().args(["run", "--tier", "landlock", "--", "true"]).output().unwrap().status.code() == Some(125) {
        return;
    }
    let (mut one, mut other) = (Served::with(&sandbox, landlock), Served::with(&sandbox, landlock));
    // Jobs of both have the same numbers.
    let stays = json!({"argv": ["sleep", "300"], "background": true});
    let jobs = [one.ask("start", stays.clone()), other.ask("start", stays)];
    let begun = Instant::now();
    for _ in 0..3 {
        for served in [&mut one, &mut other] {
            let end = served.sh("setsid sleep 77 & echo said");
            assert_eq!((&end["status"], &end["stdout"]), (&json!(0), &json!("said\n")), "{end}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "no job waits for the end of another session's");
    one.ask("kill", jobs[0].clone());
    assert_eq!(one.ask("wait", jobs[0].clone())["signal"], "KILL");
    assert_eq!(other.refused("wait", json!({"job": jobs[1]["job"], "timeout": 0.2}))["code"], -32002, "it runs");
    assert_eq!([one.end(), other.end()], [0, 0]);
}

#[test]
fn events_tell_of_every_job() {
    let sandbox = Sandbox::new();
    let file = sandbox.outside.join("events");
    let mut served = Served::with(&sandbox, &["--json-events", file.to_str().unwrap()]);
    served.sh("exit 3");
    served.ask("exec", json!({"shell": "kill -9 $$", "cwd": "/usr"}));
    served.refused("exec", json!({"argv": ["no-such-program"]}));
    assert_eq!(served.end(), 0);
    let events: Vec<Value> = std::fs::read_to_string(file).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    assert_eq!((of("plan").len(), of("end").len()), (1, 1));
    let (starts, exits) = (of("job-start"), of("job-exit"));
    assert_eq!((starts.len(), exits.len()), (2, 2), "{events:?}");
    assert_eq!(starts[0]["argv"], json!(["/bin/sh", "-c", "exit 3"]));
    assert_eq!((&starts[1]["argv"], &starts[1]["cwd"]), (&json!(["kill -9 $$"]), &json!("/usr")));
    assert_eq!((&exits[0]["status"], &exits[1]["signal"]), (&json!(3), &json!(9)));
}

#[test]
fn the_conversation_in_the_documentation_goes_like_that() {
    let text = include_str!("../../docs/serve.md");
    let conversation = text.split("```").find(|block| block.contains("\n< {")).unwrap();
    let sandbox = Sandbox::new();
    let mut served = Served::new(&sandbox);
    // What is said without being asked comes when it comes.
    let mut notified = Vec::new();
    for line in conversation.lines().filter(|line| !line.is_empty()) {
        let Some(expected) = line.strip_prefix("< ") else {
            served.send(format!("{line}\n"));
            continue;
        };
        let expected: Value = serde_json::from_str(expected).unwrap();
        let said = match notified.iter().position(|said| *said == expected) {
            Some(at) => notified.remove(at),
            None => loop {
                let said = served.line();
                if said.get("method").is_none() || said == expected {
                    break said;
                }
                notified.push(said);
            },
        };
        assert_eq!(said, expected);
    }
}

fn session(sandbox: &Sandbox, words: &[&str]) -> Outcome {
    run_to_end(sandbox.hermes().arg("session").args(words).env("XDG_RUNTIME_DIR", &sandbox.home))
}

#[test]
fn a_session_outlives_the_command_that_made_it() {
    let sandbox = Sandbox::new();
    let session = |words: &[&str]| session(&sandbox, words);
    session(&["start", "work"]).ok().says("work\n");
    assert!(session(&["start", "work"]).refused(125).err().contains("there is a session `work` already"));
    session(&["exec", "work", "--", "sh", "-c", "echo here > /tmp/f; exit 3"]).exits(3);
    session(&["exec", "work", "cat", "/tmp/f"]).ok().says("here\n");
    session(&["exec", "-c", "work", "cd /usr; export A=1"]).ok();
    session(&["exec", "-c", "work", "pwd; echo $A"]).ok().says("/usr\n1\n");
    session(&["exec", "--timeout", "300ms", "work", "sleep", "60"]).exits(124);
    session(&["exec", "work", "no-such-program"]).exits(127);
    session(&["list"]).ok().says("work").says("lives");
    session(&["exec", "work", "--", "sh", "-c", "echo x > .envrc"]).ok();
    let stopped = session(&["stop", "work"]);
    assert!(stopped.ok().err().contains("put aside .envrc"), "{}", stopped.report());
    assert!(session(&["exec", "work", "true"]).refused(125).err().contains("there is no session `work`"));
}

#[test]
fn a_killed_session_takes_its_jobs_along_and_is_named() {
    let sandbox = Sandbox::new();
    let session = |words: &[&str]| session(&sandbox, words);
    session(&["start", "s"]).ok();
    let canary = sandbox.canary("job");
    session(&["exec", "-d", "s", "--", "sh", "-c", &format!(": {canary}; sleep 300")]).ok().says("1\n");
    let ready = std::fs::read_to_string(sandbox.home.join("hermes-sandbox/s/ready")).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(ready.parse().unwrap()), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_gone(&canary);
    assert!(wait_until(10, || session(&["list"]).out().contains("ended")));
    let gone = session(&["exec", "s", "true"]);
    assert!(gone.refused(125).err().contains("the session `s` has ended"), "{}", gone.report());
    session(&["start", "s"]).ok();
    session(&["stop", "--all"]).ok();
}

#[test]
fn a_session_is_of_the_user_who_starts_it() {
    let refused = session(&Sandbox::new(), &["start", "--user", "nobody", "of-nobody"]);
    assert!(refused.refused(125).err().contains("a session is of the user who starts it"), "{}", refused.report());
}

#[test]
fn who_only_follows_a_job_goes_without_it() {
    let sandbox = Sandbox::new();
    session(&sandbox, &["start", "s"]).ok();
    session(&sandbox, &["exec", "-d", "s", "--", "sh", "-c", "echo begun; cat; sleep 300"]).ok().says("1\n");
    for signal in [nix::sys::signal::Signal::SIGINT, nix::sys::signal::Signal::SIGHUP] {
        let mut attach = sandbox.hermes();
        attach.args(["session", "attach", "s", "1"]).env("XDG_RUNTIME_DIR", &sandbox.home);
        let mut attach = attach.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(attach.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "begun\n");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(attach.id().try_into().unwrap()), signal).unwrap();
        assert!(attach.wait().unwrap().success());
    }
    session(&sandbox, &["list", "s"]).ok().says("1  running  sh -c");
    session(&sandbox, &["stop", "s"]).ok();
}

#[test]
fn a_command_dies_with_the_client_that_waits_for_it() {
    let sandbox = Sandbox::new();
    session(&sandbox, &["start", "s"]).ok();
    let canary = sandbox.canary("job");
    for (options, lives) in [(&["exec", "s"][..], false), (&["exec", "-d", "s"], true)] {
        let line = format!(": {canary}; (setsid sleep 301 &); echo begun; sleep 300");
        let mut client = sandbox.hermes();
        client.arg("session").args(options).args(["--", "sh", "-c", &line]).env("XDG_RUNTIME_DIR", &sandbox.home);
        let mut client = client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut begun = String::new();
        BufReader::new(client.stdout.take().unwrap()).read_line(&mut begun).unwrap();
        client.kill().unwrap();
        client.wait().unwrap();
        match lives {
            true => {
                // Its arguments are shown a moment after it was started, and it is to be there still when its client is missed.
                assert!(wait_until(10, || !hermes_tests::processes_with(&canary).is_empty()));
                std::thread::sleep(Duration::from_millis(300));
                assert!(!hermes_tests::processes_with(&canary).is_empty());
            }
            false => assert_gone(&canary),
        }
    }
    session(&sandbox, &["exec", "s", "true"]).ok();
    session(&sandbox, &["stop", "s"]).ok();
    assert_gone(&canary);
}

#[test]
fn of_several_starts_at_once_one_succeeds() {
    let sandbox = Sandbox::new();
    // A name that is also the value of an option is one.
    std::fs::create_dir(sandbox.workspace.join("default")).unwrap();
    for _ in 0..5 {
        let starts: Vec<Child> = (0..4)
            .map(|_| {
                let mut start = sandbox.hermes();
                start.args(["session", "start", "--workspace", "default"]).env("XDG_RUNTIME_DIR", &sandbox.home);
                start.current_dir(&sandbox.workspace).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let outcomes: Vec<_> = starts.into_iter().map(|start| start.wait_with_output().unwrap()).collect();
        let (begun, refused): (Vec<_>, Vec<_>) = outcomes.iter().partition(|outcome| outcome.status.success());
        assert_eq!(begun.len(), 1, "{outcomes:?}");
        assert!(refused.iter().all(|refused| String::from_utf8_lossy(&refused.stderr).contains("there is a session `default`")));
        session(&sandbox, &["exec", "default", "true"]).ok();
        session(&sandbox, &["stop", "default"]).ok();
    }
}

#[test]
fn a_session_that_hangs_is_named_and_holds_nobody_up() {
    let sandbox = Sandbox::new();
    session(&sandbox, &["start", "h"]).ok();
    let ready = std::fs::read_to_string(sandbox.home.join("hermes-sandbox/h/ready")).unwrap();
    let pid = nix::unistd::Pid::from_raw(ready.parse().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    session(&sandbox, &["list"]).ok().says("h  hangs");
    assert!(session(&sandbox, &["stop", "h"]).refused(125).err().contains("does not answer"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    session(&sandbox, &["stop", "h"]).ok();
}

#[test]
fn jobs_do_not_reach_where_sessions_are_kept() {
    let sandbox = Sandbox::new();
    let runtime = sandbox.outside.join("run");
    std::fs::create_dir(&runtime).unwrap();
    let grant = ["--rw", runtime.to_str().unwrap()];
    let session = |words: &[&str]| run_to_end(sandbox.hermes().arg("session").args(words).env("XDG_RUNTIME_DIR", &runtime));
    session(&["start", grant[0], grant[1], "s"]).ok();
    let line = "cd \"$1\" && echo granted > file && cat file; ls hermes-sandbox; echo x > hermes-sandbox/s/log; \
                mv hermes-sandbox away; ln -s /etc/passwd hermes-sandbox/s/ready; exit 0";
    let said = session(&["exec", "s", "--", "sh", "-c", line, "sh", grant[1]]);
    assert_eq!(said.ok().out(), "granted\n", "{}", said.report());
    session(&["exec", "s", "true"]).ok();
    assert_eq!(std::fs::read_to_string(runtime.join("hermes-sandbox/s/log")).unwrap(), "");
    session(&["stop", "s"]).ok();
}

#[test]
fn sessions_end_by_themselves() {
    let sandbox = Sandbox::new();
    let session = |words: &[&str]| session(&sandbox, words);
    for (option, name) in [("--ttl", "t"), ("--idle", "i")] {
        session(&["start", option, "500ms", name]).ok();
        session(&["exec", name, "true"]).ok();
        assert!(wait_until(10, || session(&["list"]).out().contains(&format!("{name}  ended"))), "{option}");
        session(&["stop", name]).ok();
    }
}
