//! `serve --mcp`: the tools of one sandbox, as an MCP client has them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use hermes_tests::{PYTHON, Rpc, Sandbox, assert_gone, mcp_packages, processes_with, run_to_end, skip, wait_until};
use serde_json::{Value, json};

/// Longest that anything may take that is no command of its own.
const SOON: Duration = Duration::from_secs(10);

/// A client.
struct Client {
    rpc: Rpc,
    greeting: Value,
}

impl std::ops::Deref for Client {
    type Target = Rpc;

    fn deref(&self) -> &Rpc {
        &self.rpc
    }
}

impl std::ops::DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Rpc {
        &mut self.rpc
    }
}

impl Client {
    fn new(sandbox: &Sandbox) -> Self {
        Self::with(sandbox, &[])
    }

    fn with(sandbox: &Sandbox, options: &[&str]) -> Self {
        let mut client = Self::silent(sandbox, options);
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        client.greeting = client.ask("initialize", hello);
        client.notify("notifications/initialized", json!({}));
        client
    }

    /// One that has said nothing yet.
    fn silent(sandbox: &Sandbox, options: &[&str]) -> Self {
        let mut command = sandbox.hermes();
        let rpc = Rpc::start(command.args(["serve", "--mcp"]).args(options).stderr(Stdio::piped()));
        Self { rpc, greeting: Value::Null }
    }

    fn notify(&mut self, method: &str, params: Value) {
        self.send(format!("{}\n", json!({"jsonrpc": "2.0", "method": method, "params": params})));
    }

    fn begin(&mut self, tool: &str, arguments: Value) -> u64 {
        self.request("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// What a tool says, and whether that is an error.
    fn call(&mut self, tool: &str, arguments: Value) -> (String, bool) {
        let result = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        said(&result)
    }

    fn good(&mut self, tool: &str, arguments: Value) -> String {
        let (text, failed) = self.call(tool, arguments.clone());
        assert!(!failed, "{tool} {arguments}: {text}");
        text
    }

    fn bad(&mut self, tool: &str, arguments: Value) -> String {
        let (text, failed) = self.call(tool, arguments.clone());
        assert!(failed, "{tool} {arguments}: {text}");
        text
    }

    fn sh(&mut self, line: &str) -> String {
        self.good("exec", json!({"argv": ["/bin/sh", "-c", line]}))
    }

    fn tools(&mut self) -> Vec<String> {
        let listed = self.ask("tools/list", json!({}));
        listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Most memory that the server has had, in kB.
    fn peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Goes away; what the server says about its end, and its status.
    fn end(mut self) -> (String, i32) {
        drop(self.input.take());
        let mut words = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        (words, self.child.wait().unwrap().code().unwrap())
    }
}

fn said(result: &Value) -> (String, bool) {
    let blocks = result["content"].as_array().unwrap().iter();
    let text: Vec<_> = blocks.map(|block| block["text"].as_str().unwrap()).collect();
    (text.join("\n--\n"), result["isError"].as_bool().unwrap())
}

#[test]
fn a_client_is_told_what_the_sandbox_is() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    assert_eq!(client.greeting["protocolVersion"], "2025-06-18");
    assert_eq!(client.greeting["serverInfo"]["name"], "hermes-sandbox");
    let words = client.greeting["instructions"].as_str().unwrap();
    let workspace = sandbox.workspace.display().to_string();
    for part in [&workspace, "(can be changed)", "Network: none", "Confined by: ", ".envrc"] {
        assert!(words.contains(part), "{part} is not in {words}");
    }
    assert_eq!(client.tools(), ["exec", "read", "write", "patch"]);
    assert_eq!(client.ask("ping", json!({})), json!({}));
    assert_eq!(client.end(), (String::new(), 0));
}

#[test]
fn another_version_gets_one_that_is_spoken() {
    let sandbox = Sandbox::new();
    for (asked, answered) in [("2024-11-05", "2024-11-05"), ("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-11-25")] {
        let mut client = Client::silent(&sandbox, &[]);
        let hello = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        assert_eq!(client.ask("initialize", hello)["protocolVersion"], answered);
        assert_eq!(client.tools().len(), 4);
    }
    let mut early = Client::silent(&sandbox, &[]);
    assert_eq!(early.refused("tools/list", json!({}))["code"], -32602, "before initialize");
    assert_eq!(early.refused("initialize", json!({"protocolVersion": 3}))["code"], -32602);
}

#[test]
fn commands_have_status_streams_directory_and_input() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let mut line = |arguments: Value| client.good("exec", arguments);
    assert_eq!(line(json!({"command": "echo out; echo err >&2; exit 7"})), "out\n[standard error]\nerr\n[status 7]");
    assert_eq!(line(json!({"argv": ["printf", "%s", "a b"]})), "a b\n[status 0]");
    assert_eq!(line(json!({"command": "cat", "stdin": "in"})), "in\n[status 0]");
    assert_eq!(line(json!({"argv": ["cat"]})), "[status 0]", "nothing to read is an end");
    assert_eq!(line(json!({"argv": ["pwd"], "cwd": "/usr"})), "/usr\n[status 0]");
    assert_eq!(line(json!({"argv": ["sh", "-c", "kill -9 $$"]})), "[status 137: ended by signal KILL]");
    assert_eq!(line(json!({"command": "cd /usr/bin; export A=1"})), "[status 0]\n[the next command line begins in /usr/bin]");
    assert_eq!(line(json!({"command": "pwd; echo $A"})), "/usr/bin\n1\n[status 0]");
    let long = line(json!({"command": "yes | head -c 5000000"}));
    assert!(long.len() < 51_000 && long.contains("[... 4950000 bytes omitted ...]") && long.ends_with("[status 0]"));
    let late = client.bad("exec", json!({"command": "echo begun; sleep 100", "timeout": 0.5}));
    assert_eq!(late, "begun\n[Command timed out after 0.5s]\n[status 124]");
    for (arguments, says) in [
        (json!({"argv": ["no-such-program"]}), "no-such-program: command not found in the sandbox"),
        (json!({"argv": ["true"], "cwd": "/no/such/dir"}), "/no/such/dir"),
        (json!({}), "either `command` or `argv`"),
        (json!({"command": "true", "argv": ["true"]}), "either `command` or `argv`"),
        (json!({"argv": []}), "either `command` or `argv`"),
        (json!({"argv": "true"}), "expected a sequence"),
        (json!({"command": 3}), "expected a string"),
        (json!({"command": "true", "shell": true}), "unknown field `shell`"),
        (json!({"command": "true", "timeout": -1}), "`timeout`"),
    ] {
        let why = client.bad("exec", arguments.clone());
        assert!(why.contains(says), "{arguments}: {why}");
    }
    assert_eq!(client.sh("echo still here"), "still here\n[status 0]");
}

#[test]
fn a_policys_timeout_is_the_most_that_a_call_gets() {
    let sandbox = Sandbox::new();
    let mut client = Client::with(&sandbox, &["--limit", "timeout=500ms"]);
    let late = client.bad("exec", json!({"command": "sleep 100", "timeout": 60}));
    assert_eq!(late, "[Command timed out after 0.5s]\n[status 124]");
}

#[test]
fn files_are_written_read_and_changed() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    assert_eq!(client.good("write", json!({"path": "a/b/c.txt", "content": "one\ntwo\nthree\n"})), "wrote 14 bytes to a/b/c.txt");
    assert_eq!(sandbox.read("a/b/c.txt"), "one\ntwo\nthree\n");
    assert_eq!(client.good("read", json!({"path": "a/b/c.txt"})), "one\ntwo\nthree\n");
    assert_eq!(
        client.good("read", json!({"path": "a/b/c.txt", "offset": 2, "limit": 1})),
        "two\n\n--\n[lines 2 to 2; go on with offset 3]"
    );
    assert_eq!(client.good("read", json!({"path": "a/b/c.txt", "offset": 9})), "[there is no line 9: the file has fewer]");
    assert_eq!(client.good("patch", json!({"path": "a/b/c.txt", "old": "two\n", "new": "2\n"})), "changed line 2 of a/b/c.txt");
    assert_eq!(sandbox.read("a/b/c.txt"), "one\n2\nthree\n");
    sandbox.write("twice", "x = 1\nx = 1\n");
    let why = client.bad("patch", json!({"path": "twice", "old": "x = 1", "new": "y"}));
    assert!(why.contains("is in the file 2 times (lines 1, 2)"), "{why}");
    let why = client.bad("patch", json!({"path": "twice", "old": "  x = 1", "new": "y"}));
    assert!(why.contains("line 1 differs from its first line at most in white space"), "{why}");
    assert_eq!(sandbox.read("twice"), "x = 1\nx = 1\n");
    assert_eq!(client.good("patch", json!({"path": "twice", "old": "x", "new": "y", "all": true})), "changed 2 places in twice");
    assert_eq!(sandbox.read("twice"), "y = 1\ny = 1\n");
    // What is no text.
    sandbox.write("odd", b"\x00\xff\x01");
    assert!(client.bad("read", json!({"path": "odd"})).contains("no UTF-8 text"));
    assert!(client.bad("patch", json!({"path": "odd", "old": "a", "new": "b"})).contains("no UTF-8 text"));
    assert_eq!(client.good("read", json!({"path": "odd", "base64": true})), "AP8B");
    assert_eq!(
        client.good("read", json!({"path": "odd", "base64": true, "offset": 2, "limit": 1})),
        "/w==\n--\n[there is more; go on with offset 3]"
    );
    client.good("write", json!({"path": "odd", "content": "/wA=", "base64": true}));
    assert_eq!(fs::read(sandbox.workspace.join("odd")).unwrap(), b"\xff\x00");
    client.good("write", json!({"path": "empty", "content": ""}));
    assert_eq!(client.good("read", json!({"path": "empty"})), "[the file is empty]");
    for (tool, arguments, says) in [
        ("read", json!({"path": "none"}), "cannot read none: it is not there, or hidden"),
        ("read", json!({"path": "a"}), "cannot read a: it is a directory"),
        ("read", json!({"path": ""}), "`path` is empty"),
        ("read", json!({"path": "a\u{0}"}), "holds NUL"),
        ("read", json!({"path": "odd", "offset": 0}), "count from 1"),
        ("write", json!({"path": "a", "content": ""}), "it is a directory"),
        ("write", json!({"path": "odd/below", "content": ""}), "cannot write odd/below"),
        ("write", json!({"path": "x", "content": "?", "base64": true}), "`base64` cannot be decoded"),
        ("write", json!({"path": "/usr/x", "content": ""}), "cannot write /usr/x"),
        ("write", json!({"path": "x"}), "missing field `content`"),
        ("patch", json!({"path": "none", "old": "a", "new": "b"}), "it is not there"),
        ("patch", json!({"path": "twice", "old": "", "new": "b"}), "`old` is empty"),
    ] {
        let why = client.bad(tool, arguments.clone());
        assert!(why.contains(says), "{tool} {arguments}: {why}");
    }
    // Mode and other names stay.
    let script = sandbox.script("run.sh", "#!/bin/sh\necho old\n");
    fs::hard_link(&script, sandbox.workspace.join("alias")).unwrap();
    client.good("patch", json!({"path": "run.sh", "old": "old", "new": "new"}));
    assert_eq!(client.good("exec", json!({"argv": ["./alias"]})), "new\n[status 0]");
}

#[test]
fn what_is_outside_stays_there() {
    stays_outside(&[]);
}

#[test]
fn what_is_outside_stays_there_with_landlock_alone() {
    let probe = Sandbox::new().flags(["--tier", "landlock"]).sh("true");
    if probe.code() == 125 {
        skip!("no Landlock tier here: {}", probe.err().lines().next().unwrap_or_default());
    }
    stays_outside(&["--tier", "landlock"]);
}

fn stays_outside(options: &[&str]) {
    let sandbox = Sandbox::new();
    let canary = sandbox.canary("outside");
    let secret = sandbox.write(sandbox.outside.join("secret"), &canary);
    let key = sandbox.write(sandbox.home.join(".ssh/id_ed25519"), &canary);
    symlink(&secret, sandbox.workspace.join("link")).unwrap();
    symlink(&sandbox.outside, sandbox.workspace.join("dir")).unwrap();
    symlink(sandbox.outside.join("new"), sandbox.workspace.join("dangling")).unwrap();
    let up = format!("../../outside/{}", secret.file_name().unwrap().to_str().unwrap());
    let ways = [secret.to_str().unwrap(), key.to_str().unwrap(), "link", "dir/secret", &up, "/proc/1/root/etc/../../secret"];
    // The control: the same paths lead there without the sandbox.
    for way in &ways[..5] {
        sandbox.plain_sh(&format!("cat '{way}'")).ok().says(&canary);
    }
    sandbox
        .plain_sh("echo more >> link && sed -i s/more// \"$(readlink link)\" && echo x > dangling && rm ../../outside/new")
        .ok();
    let before = fs::read(&secret).unwrap();
    let mut client = Client::with(&sandbox, options);
    for way in ways {
        assert!(!client.bad("read", json!({"path": way})).contains(&canary), "{way}");
        assert!(!client.bad("read", json!({"path": way, "base64": true})).contains(&canary), "{way}");
        assert!(!client.sh(&format!("cat '{way}' 2>&1")).contains(&canary), "{way}");
    }
    for way in ways {
        // Some of these can be made anew inside; that changes nothing there.
        client.call("write", json!({"path": way, "content": "PLANT"}));
        client.call("patch", json!({"path": way, "old": "CANARY", "new": "PLANT"}));
    }
    client.call("write", json!({"path": "dangling", "content": "PLANT"}));
    client.call("write", json!({"path": "dir/new", "content": "PLANT"}));
    client.sh("echo PLANT > link; echo PLANT > dangling; true");
    assert_eq!(fs::read(&secret).unwrap(), before);
    assert_eq!(sandbox.read(&key), canary);
    assert!(!sandbox.outside.join("new").exists());
    // And what is inside can be reached by all of them.
    sandbox.write("own", "mine");
    assert_eq!(client.good("read", json!({"path": "own"})), "mine");
}

#[test]
fn no_path_makes_the_server_wait() {
    let sandbox = Sandbox::new();
    let fifo = sandbox.workspace.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("loop", sandbox.workspace.join("loop")).unwrap();
    let huge = fs::File::create(sandbox.workspace.join("huge")).unwrap();
    // Too large for some file systems.
    let _ = (30..42).rev().find(|power| huge.set_len(1 << power).is_ok());
    sandbox.write("line", vec![b'x'; 30 << 20]);
    let mut client = Client::new(&sandbox);
    let begun = Instant::now();
    for path in ["fifo", "/dev/zero", "/dev/tty", "/dev/stdin", "/proc/self/fd/0", "loop", "/proc", "/dev/full"] {
        client.bad("read", json!({"path": path}));
        client.bad("patch", json!({"path": path, "old": "a", "new": "b"}));
    }
    for path in ["fifo", "loop", "/proc", "/dev/full"] {
        client.bad("write", json!({"path": path, "content": "x"}));
    }
    assert!(!client.bad("patch", json!({"path": "/proc/1/environ", "old": "a", "new": "b"})).contains('='));
    let (environ, _) = client.call("read", json!({"path": "/proc/1/environ", "base64": true}));
    let nothing = environ.to_lowercase().contains("permission denied") || environ.is_empty();
    assert!(nothing, "{environ}");
    client.bad("read", json!({"path": "huge"}));
    assert!(client.bad("patch", json!({"path": "huge", "old": "a", "new": "b"})).contains("larger than 4 MiB"));
    let far = client.good("read", json!({"path": "huge", "base64": true, "offset": 1 << 29}));
    assert!(far.starts_with("AAAA") && far.contains("there is more"));
    let line = client.good("read", json!({"path": "line"}));
    assert!(line.len() < 51_000 && line.contains("[line 1 is longer than 50000 bytes and was cut"));
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(client.peak() < 100_000, "{} kB", client.peak());
    drop(fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap());
}

#[test]
fn guarded_files_are_put_aside_at_the_end() {
    let sandbox = Sandbox::new();
    sandbox.write("plain", "old");
    let mut client = Client::new(&sandbox);
    client.good("write", json!({"path": ".envrc", "content": "PLANT"}));
    client.good("patch", json!({"path": "plain", "old": "old", "new": "new"}));
    assert_eq!(client.good("read", json!({"path": ".envrc"})), "PLANT", "inside it works");
    let (words, status) = client.end();
    assert_eq!(status, 0);
    assert!(words.contains("put aside .envrc"), "{words}");
    assert!(!sandbox.workspace.join(".envrc").exists());
    assert_eq!(sandbox.read("plain"), "new", "what nobody obeys stays");
}

#[test]
fn the_policy_says_which_tools_there_are() {
    let sandbox = Sandbox::new();
    sandbox.write("file", "content");
    let mut client = Client::with(&sandbox, &["--source", "webhook"]);
    assert_eq!(client.tools(), ["read"]);
    assert_eq!(client.good("read", json!({"path": "file"})), "content");
    for tool in ["exec", "write", "patch"] {
        let error = client.refused("tools/call", json!({"name": tool, "arguments": {"argv": ["touch", "made"]}}));
        assert_eq!(error["code"], -32602);
        assert_eq!(error["message"], format!("the policy does not offer the tool `{tool}`; it offers read"));
    }
    let error = client.refused("tools/call", json!({"name": "Exec", "arguments": {}}));
    assert_eq!(error["message"], "there is no tool `Exec`; there are read");
    assert_eq!(client.end().1, 0);
    assert!(!sandbox.workspace.join("made").exists());
    let mut control = Client::new(&sandbox);
    control.good("exec", json!({"argv": ["touch", "made"]}));
    assert!(sandbox.workspace.join("made").exists());

    let mine = sandbox.write(sandbox.home.join("mine.toml"), "schema = 1\nincludes = [\"agent\"]\n[mcp]\ntools = []\n");
    let mut command = sandbox.hermes();
    let refused = run_to_end(command.args(["serve", "--mcp", "--profile"]).arg(mine));
    assert!(refused.refused(125).clear_message().err().contains("offers MCP clients no tools"), "{}", refused.report());
}

#[test]
fn a_projects_own_file_may_only_take_tools_away() {
    let sandbox = Sandbox::new();
    let file = sandbox.write(".hermes-sandbox.toml", "schema = 1\n[mcp]\ntools = [\"read\"]\n");
    // Ended in order: what a killed one leaves would be settled over the host's next change of this file.
    let tools = |options: &[&str]| {
        let mut client = Client::with(&sandbox, options);
        let tools = client.tools();
        assert_eq!(client.end().1, 0);
        tools
    };
    assert_eq!(tools(&[]).len(), 4, "not trusted");
    run_to_end(sandbox.hermes().args(["profiles", "trust"]).arg(&file)).ok();
    assert_eq!(tools(&[]), ["read"]);
    sandbox.write(&file, "schema = 1\n[mcp]\ntools = [\"read\", \"exec\"]\n");
    run_to_end(sandbox.hermes().args(["profiles", "trust"]).arg(&file)).ok();
    assert_eq!(tools(&[]), ["exec", "read"]);
    let refused = run_to_end(sandbox.hermes().args(["serve", "--mcp", "--source", "webhook"]));
    assert!(refused.refused(125).err().contains("the policy does not offer exec"), "{}", refused.report());
}

#[test]
fn a_cancelled_call_is_killed_and_not_answered() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let canary = sandbox.canary("cancelled");
    let line = format!(": {canary}; trap '' TERM; (setsid sleep 300 &); sleep 300");
    let id = client.begin("exec", json!({"argv": ["/bin/sh", "-c", line]}));
    assert!(wait_until(10, || !processes_with(&canary).is_empty()), "the control: it runs");
    client.notify("notifications/cancelled", json!({"requestId": id, "reason": "changed my mind"}));
    assert_gone(&canary);
    client.notify("notifications/cancelled", json!({"requestId": 12345}));
    client.notify("notifications/cancelled", json!({"requestId": id}));
    let next = client.begin("exec", json!({"argv": ["echo", "next"]}));
    let answer = client.line();
    assert_eq!(answer["id"], next, "{answer}");
}

#[test]
fn several_calls_at_once_do_not_wait_for_each_other() {
    let sandbox = Sandbox::new();
    sandbox.write("list", (0..20).map(|n| format!("item {n};\n")).collect::<String>());
    let mut client = Client::new(&sandbox);
    let slow = client.begin("exec", json!({"argv": ["sleep", "2"]}));
    let ids: Vec<_> = (0..20)
        .map(|n| client.begin("patch", json!({"path": "list", "old": format!("item {n};"), "new": format!("done {n}.")})))
        .collect();
    let mut left: std::collections::BTreeSet<u64> = ids.into_iter().collect();
    while !left.is_empty() {
        let answer = client.line();
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        assert!(left.remove(&answer["id"].as_u64().unwrap()), "{answer}");
    }
    assert_eq!(client.answer(slow)["result"]["isError"], false);
    assert_eq!(sandbox.read("list"), (0..20).map(|n| format!("done {n}.\n")).collect::<String>(), "none is lost");
    // More than there may be: some are refused, none is lost.
    let ids: Vec<_> = (0..200).map(|_| client.begin("exec", json!({"argv": ["sleep", "0.3"]}))).collect();
    let answers: Vec<_> = ids.iter().map(|_| client.line()).collect();
    let refused = answers.iter().filter(|answer| said(&answer["result"]).0.contains("calls at a time")).count();
    assert!((1..=136).contains(&refused), "{refused}");
    assert_eq!(client.sh("echo on"), "on\n[status 0]");
}

#[test]
fn what_is_no_message_is_answered_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    for (line, id, code) in [
        ("{\"jsonrpc\":\"2.0\",\n", json!(null), -32700),
        ("\u{feff}x\n", json!(null), -32700),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]\n", json!(null), -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":\"a\"}\n", json!("a"), -32600),
        ("{\"jsonrpc\":\"1.0\",\"id\":5,\"method\":\"ping\"}\n", json!(5), -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"tools/call\",\"params\":{\"name\":7}}\n", json!(6), -32602),
        ("{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\"}\n", json!(7), -32602),
        ("{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"no/such\"}\n", json!(8), -32601),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"resources/read\",\"params\":{\"uri\":\"file:///etc/passwd\"}}\n",
            json!(9),
            -32601,
        ),
    ] {
        client.send(line);
        let answer = client.line();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(code)), "{line}{answer}");
    }
    client.send("\n\r\n");
    client.notify("notifications/unheard/of", json!({"a": [1]}));
    client.send("{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n");
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        client.send(&chunk);
    }
    client.send("\n");
    let answer = client.line();
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert!(client.peak() < 100_000, "{} kB", client.peak());
    assert_eq!(client.sh("echo still here"), "still here\n[status 0]");
    // A large message that is none too large.
    client.good("write", json!({"path": "large", "content": "y".repeat(8 << 20)}));
    assert_eq!(fs::metadata(sandbox.workspace.join("large")).unwrap().len(), 8 << 20);
    client.send("{\"jsonrpc\":");
    assert_eq!(client.end().1, 0, "half a line");
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let sandbox = Sandbox::new();
    let mut client = Client::new(&sandbox);
    let mut input = client.input.take().unwrap();
    let count = 20_000;
    let writer = std::thread::spawn(move || {
        for id in 0..count {
            let line = json!({"jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {}});
            input.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        input
    });
    std::thread::sleep(Duration::from_secs(2));
    assert!(!writer.is_finished(), "the control: all answers would not fit into the pipe");
    assert!(client.peak() < 60_000, "{} kB", client.peak());
    for _ in 0..count {
        assert!(client.line()["result"]["tools"].is_array());
    }
    client.input = Some(writer.join().unwrap());
    assert_eq!(client.sh("echo on"), "on\n[status 0]");
}

#[test]
fn a_client_that_goes_takes_everything_along() {
    for way in ["input", "output", "both", "killed"] {
        let sandbox = Sandbox::new();
        let mut client = Client::new(&sandbox);
        let canary = sandbox.canary("gone");
        let line = format!(": {canary}; echo PLANT > .envrc; trap '' TERM; (setsid sleep 300 &); sleep 300");
        client.begin("exec", json!({"argv": ["/bin/sh", "-c", line]}));
        let large = "z".repeat(1 << 20);
        client.begin("write", json!({"path": "z", "content": large}));
        assert!(wait_until(10, || !processes_with(&canary).is_empty() && sandbox.workspace.join(".envrc").exists()));
        let begun = Instant::now();
        let mut child = std::mem::replace(&mut client.child, std::process::Command::new("true").spawn().unwrap());
        match way {
            "input" => drop(client.input.take()),
            "output" => {
                // It is noticed by the next answer.
                drop(std::mem::replace(&mut client.output, BufReader::new(other_output())));
                client.request("ping", json!({}));
            }
            "both" => {
                drop(client.input.take());
                drop(std::mem::replace(&mut client.output, BufReader::new(other_output())));
            }
            _ => child.kill().unwrap(),
        }
        let ended = wait_until(10, || child.try_wait().unwrap().is_some());
        if !ended {
            child.kill().unwrap();
        }
        assert!(ended, "{way}");
        // A client of the official SDK waits two seconds for the end before it uses force.
        assert!(begun.elapsed() < Duration::from_millis(1900), "{way}: {:?}", begun.elapsed());
        assert_gone(&canary);
        if way == "killed" {
            run_to_end(sandbox.hermes().args(["quarantine", "list"]));
            sandbox.sh("true");
        }
        assert!(!Path::new(&sandbox.workspace.join(".envrc")).exists(), "{way}: guarded files are settled");
    }
}

/// An output in the place of one that is closed.
fn other_output() -> ChildStdout {
    let mut child = std::process::Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    let output = child.stdout.take().unwrap();
    child.wait().unwrap();
    output
}

#[test]
fn options_that_contradict_are_refused() {
    let sandbox = Sandbox::new();
    for options in [&["--mcp", "name"][..], &["--mcp", "--socket", "s"], &["--mcp", "--schema"]] {
        let refused = run_to_end(sandbox.hermes().arg("serve").args(options));
        refused.refused(125).clear_message();
    }
    let session = run_to_end(sandbox.hermes().args(["session", "start", "--mcp", "s"]).env("XDG_RUNTIME_DIR", &sandbox.home));
    session.refused(125);
}

#[test]
fn the_official_client_in_python_is_served() {
    let packages = match mcp_packages() {
        Ok(packages) => packages,
        Err(why) => skip!("{why}"),
    };
    let sandbox = Sandbox::new();
    sandbox.write("file", "content\n");
    let program = r#"
import sys, anyio
from mcp import Client, ClientSession, StdioServerParameters, stdio_client
server = StdioServerParameters(command=sys.argv[1], args=["serve", "--mcp", "--workspace", sys.argv[2]])
async def main():
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        print((await session.initialize()).protocol_version)
        print([tool.name for tool in (await session.list_tools()).tools])
        result = await session.call_tool("exec", {"command": "echo hello; exit 4"})
        print(result.is_error, repr(result.content[0].text))
        result = await session.call_tool("patch", {"path": "file", "old": "nothing", "new": ""})
        print(result.is_error)
        with anyio.move_on_after(0.5):
            await session.call_tool("exec", {"argv": ["sleep", "300"]})
        for _ in range(50):
            await anyio.sleep(0.1)
            left = await session.call_tool("exec", {"command": "cat /proc/[0-9]*/comm | grep -c sleep"})
            if left.content[0].text.startswith("0"): break
        print(repr(left.content[0].text))
    async with Client(stdio_client(server)) as client:
        print(client.protocol_version)
        print(repr((await client.call_tool("read", {"path": "file"})).content[0].text))
anyio.run(main)
"#;
    let mut python = sandbox.plain_command(PYTHON);
    python.args(["-c", program]).arg(hermes_tests::binary()).arg(&sandbox.workspace).env("PYTHONPATH", packages);
    let outcome = run_to_end(&mut python);
    outcome.ok();
    let said = outcome.out();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "2025-11-25",
            "['exec', 'read', 'write', 'patch']",
            "False 'hello\\n[status 4]'",
            "True",
            "'0\\n[status 1]'",
            "2026-07-28",
            "'content\\n'"
        ],
        "{}",
        outcome.report()
    );
}
