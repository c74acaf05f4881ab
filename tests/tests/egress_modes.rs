//! The other ways to have a way out: a session, hosts that are asked about or only recorded, and ports of the loopback.
#![allow(clippy::unwrap_used)]

use std::process::Stdio;

use hermes_tests::{Internet, Live, PYTHON, Route, Sandbox, need, run_to_end, wait_until};
use serde_json::Value;

/// What leads to the inside of the host's network, by names and by addresses, on ports that other hosts are reached at.
const INWARD: &str = "
hosts = [name + '.rebind.test' for name in ('private', 'home', 'loopback', 'zero', 'metadata', 'nat', 'own', 'synthetic')]
hosts += ['45.33.32.1', '10.1.2.3', '192.168.7.7', '127.0.0.1', 'localhost', '0.0.0.0', '169.254.169.254', '100.64.1.1', '[::1]', '[::ffff:10.1.2.3]', '[64:ff9b::a01:203]', '[fd00:ec2::254]']
for host in hosts:
    name = host.encode()
    tell(f'absolute {host}', exchange(PROXY, get(b'http://' + name + b'/@', name), patience=25))
    tell(f'tunnel {host}', tunnel(name + b':80', get(b'/@', name)))
    tell(f'tunnel 8080 {host}', tunnel(name + b':8080', get(b'/@', name + b':8080')))
    tell(f'direct {host}', exchange((host.strip('[]'), 80), get(b'/@', name), patience=25))
print('END')";

#[test]
fn audit_records_every_host_and_leads_inward_never() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.sandbox();
    let events = sandbox.outside.join("events");
    let sandbox = sandbox.flags(["--net", "audit", "--json-events"]).flags([&events]);
    let result = sandbox.python(&sandbox.probe(INWARD));
    result.ok().says("END").never_says("REACHED");
    internet.never_saw(&sandbox.canary("path"), &result);
    let program = "
tell('direct', exchange(('other.test', 80), get(b'/@', b'other.test')))
tell('tls', exchange(('other.test', 443), get(b'/@', b'other.test'), 'other.test'))
tell('absolute', exchange(PROXY, get(b'http://other.test/@', b'other.test')))
tell('fronted', exchange(('plain.test', 443), get(b'/', b'shared.test'), 'shared.test'))
tell('mismatch', exchange(('plain.test', 80), get(b'/', b'shared.test')))";
    let result = sandbox.python(&sandbox.probe(program));
    result
        .ok()
        .says("REACHED direct")
        .says("REACHED tls")
        .says("REACHED absolute")
        .says("refused fronted")
        .says("refused mismatch");
    assert!(sandbox.read(&events).contains("other.test"), "nothing was recorded\n{}", result.report());
}

#[test]
fn explain_says_what_the_proxy_does() {
    let Some(internet) = Internet::here() else { return };
    let places = [
        "45.33.32.1:80",
        "10.1.2.3:80",
        "127.0.0.1:80",
        "localhost:80",
        "0.0.0.0:80",
        "169.254.169.254:80",
        "100.64.1.1:80",
        "[::1]:80",
        "[::ffff:10.1.2.3]:80",
        "[64:ff9b::a01:203]:80",
        "93.184.216.36:80",
        "other.test:80",
        "other.test:8080",
        "93.184.216.34:7001",
    ];
    let sandbox = internet.sandbox();
    let explain = |net: &str, place: &str| {
        let words = ["explain", "host", place, "--net", net, "--workspace", "."];
        run_to_end(sandbox.hermes().args(words)).ok().out()
    };
    let list = places.map(|place| format!("b'{place}'")).join(", ");
    let program = format!(
        "
for place in [{list}]:
    host, _, port = place.decode().rpartition(':')
    print(place.decode(), 'PROXY', b'GOT-IT' in tunnel(place, get(b'/@', place)), 'DIRECT', b'GOT-IT' in exchange((host.strip('[]'), int(port)), get(b'/@', place), patience=4))"
    );
    let result = internet.sandbox().flags(["--net", "audit"]).python(&sandbox.probe(&program));
    let mut reached = 0;
    for place in places {
        let line = result.ok().out().lines().find(|line| line.starts_with(&format!("{place} "))).unwrap().to_owned();
        let told = explain("audit", place);
        let (direct, proxied) =
            (told.contains("connect  allowed"), told.contains("connect  allowed") || told.contains("proxy    allowed"));
        let title = |is: bool| if is { "True" } else { "False" };
        let expected = format!("{place} PROXY {} DIRECT {}", title(proxied), title(direct));
        assert_eq!(line, expected, "{told}\n{}", result.report());
        reached += usize::from(proxied);
    }
    assert_eq!(reached, 4, "the control: some are reached\n{}", result.report());
    assert!(explain("ask", "10.1.2.3:80").contains("a person is asked"));
    assert!(explain("ask", "other.test:9999").contains("nothing listens on port 9999"));
    assert!(!explain("ask", "other.test:8080").contains("nothing listens"));
}

#[test]
fn what_was_asked_about_is_reached_once_it_is_allowed() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.sandbox().flags(["--net", "ask"]);
    let program = "
import threading
def ask(name, *words): threads.append(threading.Thread(target=lambda: tell(name, exchange(*words, patience=80)))); threads[-1].start()
threads = []
ask('allowed direct', ('other.test', 80), get(b'/@', b'other.test'))
ask('allowed proxy', PROXY, get(b'http://other.test/@', b'other.test'))
ask('denied', ('xplain.test', 80), get(b'/@', b'xplain.test'))
ask('inward', ('private.rebind.test', 80), get(b'/@', b'private.rebind.test'))
for thread in threads: thread.join()
tell('other port', exchange(('other.test', 631), get(b'/@', b'other.test')))
print('END')";
    let mut command = sandbox.inside([PYTHON, "-c", &sandbox.probe(program)]);
    let live = Live::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let approvals = |words: &[&str]| run_to_end(sandbox.hermes().arg("approvals").args(words));
    let waiting = || -> Vec<Value> { serde_json::from_slice(&approvals(&["list", "--json"]).stdout).unwrap_or_default() };
    assert!(wait_until(30, || waiting().len() == 3), "three places are asked about: {}", approvals(&["list"]).report());
    // Nothing goes out before.
    internet.never_saw(&sandbox.canary("path"), &approvals(&["list"]));
    for question in waiting() {
        let id = question["id"].to_string();
        let answer = if question["host"] == "xplain.test" { "deny" } else { "allow" };
        approvals(&[answer, &id]).ok();
    }
    let output = live.output();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("REACHED allowed direct") && out.contains("REACHED allowed proxy") && out.contains("END"), "{out}");
    assert!(out.contains("refused denied") && out.contains("refused inward") && out.contains("refused other port"), "{out}");
    let seen = internet.seen(&sandbox.canary("path"));
    assert!(seen.iter().all(|line| line["at"] == "93.184.216.36:80"), "{seen:?}");
}

#[test]
fn ports_of_the_loopback_are_shared_one_by_one() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    // The host serves on 631, 80 and 443 there.
    let sandbox = internet.sandbox().flags(["--connect", "631"]);
    let program = "
tell('connected', exchange(('127.0.0.1', 631), get(b'/', b'localhost:631')))
for place in (('127.0.0.1', 80), ('127.0.0.1', 443), ('45.33.32.1', 631), ('45.33.32.2', 631), ('93.184.216.36', 631), ('198.18.0.1', 631), ('127.0.0.2', 631)):
    tell(f'other {place}', exchange(place, get(b'/@', b'x'), patience=3))
print(query(b'other.test', to='9.9.9.9'), query(b'other.test'))
print('END')";
    let result = sandbox.python(&sandbox.probe(program));
    result.ok().says("REACHED connected").says("END").never_says("REACHED other").never_says("answers 1");
    internet.never_saw(&sandbox.canary("path"), &result);
    // With routes as well.
    let both = internet.with(&[Route::to("plain.test", &[80])]).flags(["--connect", "631", "--publish", "8091"]);
    let program = "
tell('connected', exchange(('127.0.0.1', 631), get(b'/', b'localhost:631')))
tell('routed', exchange(('plain.test', 80), get(b'/', b'plain.test')))
tell('not routed', exchange(('plain.test', 631), get(b'/@', b'plain.test'), patience=3))
tell('by the proxy', exchange(PROXY, get(b'http://127.0.0.1:631/@', b'127.0.0.1:631')))
tell('by the proxy', exchange(PROXY, get(b'http://localhost:631/@', b'localhost:631')))
listener = socket.create_server(('127.0.0.1', 8091)); hidden = socket.create_server(('127.0.0.1', 8092)); wide = socket.create_server(('0.0.0.0', 8093))
print('READY', flush=True); open('ready', 'w').close()
sock = listener.accept()[0]; sock.recv(100); sock.sendall(b'GOT-IT'); sock.recv(1)";
    let mut command = both.inside([PYTHON, "-c", &both.probe(program)]);
    let live = Live::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(wait_until(40, || both.workspace.join("ready").exists()));
    let other = internet.with(&[Route::to("plain.test", &[80, 8091])]);
    let attempt = "for port in (8091, 8092, 8093): tell(f'port {port}', exchange(('127.0.0.1', port), b'x', patience=3))
tell('by the own address', exchange(('45.33.32.1', 8091), b'x', patience=3))
if os.environ.get('https_proxy'): tell('by the proxy', exchange(PROXY, get(b'http://127.0.0.1:8091/', b'127.0.0.1:8091')))";
    // Another sandbox has none of it; the host has the port that is shown and no other.
    other.python(&other.probe(attempt)).ok().never_says("REACHED");
    let host = sandbox.plain_python(&sandbox.probe(attempt));
    host.ok().says("REACHED port 8091").says("refused port 8092").says("refused port 8093").says("refused by the own address");
    let out = String::from_utf8(live.output().stdout).unwrap();
    assert!(out.contains("REACHED connected") && out.contains("REACHED routed"), "{out}");
    assert!(!out.contains("REACHED not routed") && !out.contains("REACHED by the proxy"), "{out}");
    internet.never_saw(&both.canary("path"), &host);
}

#[test]
fn a_session_has_one_way_out_until_it_ends() {
    let Some(internet) = Internet::here() else { return };
    let sandbox: Sandbox = internet.sandbox();
    let name = format!("net-{}", sandbox.canary("x").to_lowercase());
    let session = |words: &[&str]| run_to_end(sandbox.hermes().arg("session").args(words));
    let workspace = sandbox.workspace.display().to_string();
    session(&["start", "--workspace", &workspace, "--allow-host", "plain.test:80", &name]).ok();
    let program = sandbox.probe(
        "
tell('direct', exchange(('plain.test', 80), get(b'/@', b'plain.test')))
tell('proxy', exchange(PROXY, get(b'http://plain.test/@', b'plain.test')))
tell('elsewhere', exchange(PROXY, get(b'http://other.test/@', b'other.test')))
tell('elsewhere', exchange(('93.184.216.36', 80), get(b'/@', b'other.test')))
print(socket.gethostbyname('plain.test'))",
    );
    let results = [0, 1].map(|_| session(&["exec", &name, "--", PYTHON, "-c", &program]));
    for result in &results {
        result.ok().says("REACHED direct").says("REACHED proxy").never_says("REACHED elsewhere");
    }
    let address = |index: usize| results[index].out().lines().last().unwrap_or_default().to_owned();
    assert_eq!(address(0), address(1), "a name keeps its address");
    // What a job leaves behind reaches nothing once the session has ended.
    let left =
        sandbox.probe("import time\nwhile True: exchange(('plain.test', 80), get(b'/@/left', b'plain.test')); time.sleep(0.05)");
    session(&["exec", "-d", &name, "--", PYTHON, "-c", &left]).ok();
    assert!(wait_until(30, || internet
        .seen(&sandbox.canary("path"))
        .iter()
        .any(|line| line["target"].to_string().contains("/left"))));
    session(&["stop", &name]).ok();
    let count = internet.seen(&sandbox.canary("path")).len();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(internet.seen(&sandbox.canary("path")).len(), count);
}

#[test]
fn the_routes_of_a_session_are_replaced_in_one_step() {
    let Some(internet) = Internet::here() else { return };
    let sandbox: Sandbox = internet.sandbox();
    let name = format!("set-{}", sandbox.canary("x").to_lowercase());
    let session = |words: &[&str]| run_to_end(sandbox.hermes().arg("session").args(words));
    let workspace = sandbox.workspace.display().to_string();
    let set = |words: &[&str]| session(&[&["policy", "set", &name, "--workspace", &workspace], words].concat());
    let try_both = sandbox.probe(
        "
tell('old', exchange(('plain.test', 80), get(b'/@', b'plain.test'), patience=5))
tell('new', exchange(PROXY, get(b'http://other.test:8080/@', b'other.test:8080'), patience=5))",
    );
    let tried = || session(&["exec", &name, "--", PYTHON, "-c", &try_both]);
    session(&["start", "--workspace", &workspace, "--allow-host", "plain.test:80", &name]).ok();
    // A port that was not named before, and no job has run yet.
    set(&["--allow-host", "other.test:8080"]).ok().says("generation 1");
    tried().ok().says("REACHED new").never_says("REACHED old");
    set(&["--allow-host", "plain.test:80"]).ok();
    tried().ok().says("REACHED old").never_says("REACHED new");
    // What cannot be had leaves all as it is.
    set(&["--net", "host"]).refused(125);
    set(&["--net", "audit"]).refused(125);
    let many: Vec<String> = (1000..1101).map(|port| format!("--allow-host=plain.test:{port}")).collect();
    set(&many.iter().map(String::as_str).collect::<Vec<_>>()).refused(125);
    tried().ok().says("REACHED old");
    set(&["--net", "off"]).ok();
    tried().ok().never_says("REACHED");
    session(&["stop", &name]).ok();
    // A session that reaches all is closed for good, with what it was let reach meanwhile.
    session(&["start", "--workspace", &workspace, "--net", "audit", &name]).ok();
    tried().ok().says("REACHED old").says("REACHED new");
    set(&["--net", "off"]).ok();
    tried().ok().never_says("REACHED");
    session(&["stop", &name]).ok();
}

#[test]
fn a_decision_is_about_the_host_that_was_shown() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.sandbox().flags(["--net", "ask"]);
    let approvals = |words: &[&str]| run_to_end(sandbox.hermes().arg("approvals").args(words));
    let ask = |host: &str| {
        let program = sandbox.probe(&format!("tell('asked', exchange(('{host}', 80), get(b'/@', b'{host}'), patience=40))"));
        Live::start(sandbox.inside([PYTHON, "-c", &program]).stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let waiting = || -> Vec<Value> { serde_json::from_str(&approvals(&["list", "--json"]).out()).unwrap() };
    let mut numbers = Vec::new();
    for (host, word, reached) in [("plain.test", "deny", false), ("other.test", "allow", true)] {
        let child = ask(host);
        assert!(wait_until(20, || waiting().len() == 1), "{host} is asked about");
        let question = waiting().remove(0);
        assert_eq!(question["host"], host);
        let id = question["id"].to_string();
        approvals(&[word, &id, "--always"]).ok().says(&format!("{host}:80"));
        approvals(&["allow", &id]).refused(125);
        let output = String::from_utf8(child.output().stdout).unwrap();
        assert_eq!(output.contains("REACHED asked"), reached, "{host}: {output}");
        numbers.push(id);
    }
    assert_ne!(numbers[0], numbers[1], "a number is never given twice");
    // For good: nobody is asked again.
    let output = String::from_utf8(ask("other.test").output().stdout).unwrap();
    assert!(output.contains("REACHED asked"), "{output}");
    approvals(&["rules"]).ok().says("other.test:80").says("plain.test:80");
    approvals(&["forget", "1", "2"]).ok();
    approvals(&["rules"]).ok().never_says("other.test");
}
