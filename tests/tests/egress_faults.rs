//! What fails outside, or in the proxy itself, closes the way; what comes back opens it again.
#![allow(clippy::unwrap_used)]

use std::fs;

use hermes_tests::{Internet, Live, PYTHON, Route, Sandbox, assert_gone, need, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PORTS: &[u16] = &[80, 443, 7001, 7002, 7003, 7004, 7005, 7006, 7007, 7008];
const ROUTES: [Route; 2] = [Route::to("plain.test", PORTS), Route::rule("read.test", PORTS, "methods = [\"GET\"]")];

/// A shell function that fetches and tells `NAME status: what came`.
const FETCH: &str = "fetch() { name=$1 patience=$2; shift 2; out=$(curl -sS --max-time $patience \"$@\" 2>&1 | tr '\\0\\n' '  '; ) ; echo \"$name: $out.\"; }\n";

#[test]
fn servers_that_behave_badly() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let mut script = FETCH.to_owned();
    for host in ["plain", "read"] {
        for (with, way) in [("proxy", ""), ("direct", "--noproxy '*'"), ("tunnel", "--proxytunnel")] {
            for (port, patience) in [(7001, 30), (7002, 30), (7003, 2), (7004, 30), (7005, 30), (7007, 30)] {
                script += &format!("fetch '{host} {with} {port}' {patience} {way} http://{host}.test:{port}/ &\n");
            }
        }
    }
    script += "wait; fetch after 20 https://plain.test/; fetch after 20 https://read.test/";
    let result = sandbox.sh(&script);
    let lines =
        |word: &str| -> Vec<String> { result.ok().out().lines().filter(|line| line.contains(word)).map(str::to_owned).collect() };
    // Slow is no fault.
    for line in lines(" 7001: ").iter().chain(&lines("after: ")) {
        assert!(line.contains("GOT-IT"), "{line}\n{}", result.report());
    }
    assert_eq!((lines(" 7001: ").len(), lines("after: ").len()), (6, 2), "{}", result.report());
    // Reset, silent, broken off, no HTTP, not there.
    for port in [7002, 7003, 7004, 7005, 7007] {
        let lines = lines(&format!(" {port}: "));
        assert_eq!(lines.len(), 6, "{}", result.report());
        for line in lines {
            assert!(!line.contains("GOT-IT") && (line.contains("curl: (") || line.contains("could not be reached")), "{line}");
            // Only who never answers is waited for until the client has enough.
            assert_eq!(line.contains("(28)"), port == 7003, "{line}\n{}", result.report());
        }
    }
}

#[test]
fn a_server_that_speaks_first_and_a_client_that_ends_first() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let program = "
tell('first', exchange(('plain.test', 7006), b''))
for host in ('plain.test', 'read.test'):
    for place in ((host, 80), PROXY):
        sock = socket.create_connection(place); sock.settimeout(20)
        sock.sendall(get((b'http://' + host.encode() if place == PROXY else b'') + b'/', host.encode())); sock.shutdown(socket.SHUT_WR)
        tell(f'half {host} {place}', hear(sock))
tell('read', exchange(('read.test', 7006), b'\\0\\1\\2'))";
    let result = sandbox.python(&sandbox.probe(program));
    assert_eq!(result.ok().out().matches("REACHED").count(), 5, "{}", result.report());
    result.says("REACHED first").says("refused read");
}

#[test]
fn what_is_sent_arrives_in_whole() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let word = sandbox.canary("sent");
    // The server ends when it has heard the end.
    let program = format!(
        "
for place in (('plain.test', 7008), None):
    sock = socket.create_connection(place or PROXY); sock.settimeout(60)
    if not place:
        sock.sendall(b'CONNECT plain.test:7008 HTTP/1.1\\r\\nHost: plain.test:7008\\r\\n\\r\\n')
        while not sock.recv(1000).endswith(b'\\r\\n\\r\\n'): pass
    sock.sendall(b'\\0{word}' + b'x' * 3000000); sock.shutdown(socket.SHUT_WR)
    print('ENDED', sock.recv(1))"
    );
    let result = sandbox.python(&sandbox.probe(&program));
    assert_eq!(result.ok().out().matches("ENDED b''").count(), 2, "{}", result.report());
    let seen = internet.seen(&word);
    assert_eq!(seen.iter().filter(|line| line["length"] == 3_000_001 + word.len()).count(), 2, "{seen:?}");
}

#[test]
fn what_a_command_sends_last_arrives() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[Route::to("plain.test", &[7008])]);
    for n in 0..20 {
        let word = format!("{}-{n}x", sandbox.canary("last"));
        let send = format!("import socket\ns = socket.create_connection(('plain.test', 7008)); s.sendall(b'{word}'); s.close()");
        sandbox.python(&send).ok();
        assert!(wait_until(5, || !internet.seen(&word).is_empty()), "{word}");
    }
}

#[test]
fn a_place_that_never_answers_is_given_up() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[
        Route::to("blackhole.test", &[443]),
        Route::rule("blackhole.test", &[80], "methods = [\"GET\"]"),
        ROUTES[0],
    ]);
    let script = format!(
        "{FETCH}fetch gone 80 http://blackhole.test/ & fetch gone 80 https://blackhole.test/ & fetch gone 80 --noproxy '*' http://blackhole.test/ &
         fetch gone 80 --noproxy '*' https://blackhole.test/ & fetch meanwhile 10 https://plain.test/; wait"
    );
    let result = sandbox.sh(&script);
    let out = result.ok().says("GOT-IT").out();
    let gone: Vec<&str> = out.lines().filter(|line| line.starts_with("gone")).collect();
    assert_eq!(gone.len(), 4, "{}", result.report());
    // By the proxy's patience, not by the client's.
    assert!(gone.iter().all(|line| !line.contains("(28)") && !line.contains("GOT-IT")), "{}", result.report());
}

#[test]
fn a_resolver_that_does_not_answer_and_then_does() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[
        Route::to("*.silent.test", &[443]),
        Route::rule("*.silent.test", &[80], "methods = [\"GET\"]"),
        ROUTES[0],
    ]);
    let flag = internet.dir.join("silent");
    fs::write(&flag, "").unwrap();
    let all = |word: &str| -> String {
        [("http", ""), ("https", ""), ("http", "--noproxy '*'"), ("https", "--noproxy '*'")]
            .iter()
            .map(|(scheme, way)| format!("fetch {word} 60 {way} {scheme}://a.silent.test/ &\n"))
            .collect()
    };
    let script = format!(
        "{FETCH}{}fetch meanwhile 30 https://plain.test/; wait; touch waiting; until [ -e go ]; do sleep 0.1; done\n{}wait",
        all("before"),
        all("after")
    );
    let mut child = sandbox.inside(["/bin/sh", "-c", &script]);
    let live = Live::start(child.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()));
    let waited = wait_until(80, || sandbox.workspace.join("waiting").exists());
    fs::remove_file(&flag).unwrap();
    sandbox.write("go", "");
    assert!(waited, "look-ups without an answer do not end");
    let out = String::from_utf8(live.output().stdout).unwrap();
    let lines = |word: &str| out.lines().filter(|line| line.starts_with(word)).collect::<Vec<_>>();
    assert!(lines("before").iter().all(|line| !line.contains("GOT-IT") && !line.contains("(28)")), "{out}");
    assert!(lines("after").iter().chain(&lines("meanwhile")).all(|line| line.contains("GOT-IT")), "{out}");
    assert_eq!((lines("before").len(), lines("after").len(), lines("meanwhile").len()), (4, 4, 1), "{out}");
}

#[test]
fn servers_whose_certificate_is_no_good_get_no_request() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    // The name is another; or the authority is one that the caller does not trust.
    let routes = [Route::rule("misnamed.test", &[443], "methods = [\"GET\"]"), ROUTES[1]];
    let sandbox = internet.with(&routes);
    let word = sandbox.canary("path");
    let result = sandbox.sh(&format!("curl -sS --max-time 20 https://misnamed.test/{word}"));
    internet.never_saw(&word, result.never_says("GOT-IT"));
    let foreign = internet.with(&routes);
    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout k.pem -out other.pem -days 2 -subj /CN=other 2>/dev/null";
    foreign.plain_sh(make).ok();
    let authority = foreign.workspace.join("other.pem");
    let foreign = foreign.env("SSL_CERT_FILE", &authority);
    let result = foreign.sh(&format!("curl -sS --max-time 20 https://read.test/{word}"));
    internet.never_saw(&word, result.never_says("GOT-IT"));
    sandbox.sh(&format!("curl -sS --max-time 20 https://read.test/{word}")).ok().says("GOT-IT");
    sandbox.plain_sh(&format!("curl -k -sS --max-time 20 https://misnamed.test/{word}")).ok().says("GOT-IT");
}

#[test]
fn many_connections_at_a_time() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let program = "
import threading
answers = []
def one(n):
    host, tls = ('plain.test', 'read.test')[n % 2], n % 4 > 1
    answers.append(exchange((host, 443 if tls else 80), get(b'/', host.encode()), host if tls else None, patience=60))
threads = [threading.Thread(target=one, args=(n,)) for n in range(200)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('ALL' if all(b'GOT-IT' in answer for answer in answers) else [answer for answer in answers if b'GOT-IT' not in answer][:3], len(answers))";
    sandbox.python(&sandbox.probe(program)).ok().says("ALL 200");
}

#[test]
fn without_descriptors_connections_wait_and_none_gets_around() {
    need!("prlimit");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES).by_way_of(["prlimit", "--nofile=96:96"]);
    let program = "
import time
held = []
for n in range(80):
    sock, name = socket.socket(), 'plain.test' if n % 2 else 'read.test'; sock.settimeout(2)
    try:
        sock.connect((name, 80)); sock.sendall(f'GET /@ HTTP/1.1\\r\\nHost: {name}\\r\\nX: '.encode())
        held.append(sock)
    except OSError as error: break
print('held', len(held))
one_more = exchange(('plain.test', 80), get(b'/', b'plain.test'), patience=2)
def lost(sock):
    try: return sock.recv(1, socket.MSG_DONTWAIT) == b''
    except BlockingIOError: return False
    except OSError: return True
print('starved' if b'GOT-IT' not in one_more or any(map(lost, held)) else 'enough')
tell('elsewhere', exchange(('93.184.216.36', 80), get(b'/@', b'other.test'), patience=2))
tell('elsewhere', exchange(PROXY, get(b'http://other.test/@', b'other.test'), patience=2))
for sock in held: sock.close()
end = time.monotonic() + 60
while b'GOT-IT' not in (answer := exchange(('plain.test', 80), get(b'/', b'plain.test'), patience=20)) and time.monotonic() < end: time.sleep(0.2)
tell('again', answer)
tell('again', exchange(('read.test', 443), get(b'/', b'read.test'), 'read.test', patience=20))";
    let result = sandbox.python(&sandbox.probe(program));
    // Without one a connection waits to be accepted, or is reset when none is left for its server.
    result.ok().no_panic().says("starved").says("refused elsewhere").never_says("REACHED elsewhere");
    assert_eq!(result.out().matches("REACHED again").count(), 2, "{}", result.report());
    internet.never_saw(&sandbox.canary("path"), &result);
}

#[test]
fn when_the_supervisor_dies_nothing_reaches_anything() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let (word, marker) = (sandbox.canary("path"), sandbox.canary("marker"));
    let program = format!(
        "marker = '{marker}'
import time
while True:
    tell('x', exchange(('plain.test', 80), get(b'/@', b'plain.test'), patience=2)); tell('y', exchange(PROXY, get(b'http://read.test/@', b'read.test'), patience=2))
    time.sleep(0.02)"
    );
    let mut command = sandbox.inside([PYTHON, "-c", &sandbox.probe(&program)]);
    let mut live = Live::start(command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()));
    assert!(wait_until(30, || internet.seen(&word).len() > 4), "positive control");
    kill(Pid::from_raw(i32::try_from(live.id()).unwrap()), Signal::SIGKILL).unwrap();
    live.end();
    assert_gone(&marker);
    let count = internet.seen(&word).len();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(internet.seen(&word).len(), count);
    another_works(internet);
}

fn another_works(internet: &Internet) {
    let sandbox: Sandbox = internet.with(&ROUTES);
    sandbox
        .python(&sandbox.probe("tell('new', exchange(('plain.test', 80), get(b'/', b'plain.test')))"))
        .ok()
        .says("REACHED new");
}
