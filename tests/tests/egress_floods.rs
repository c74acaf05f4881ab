//! What a program inside does as fast as it can, to fill the host's disk, terminal or memory.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Stdio;

use hermes_tests::{Internet, Live, PYTHON, Route, Sandbox, need, wait_until};
use serde_json::Value;

/// Refusals that are written one by one before they are only counted, and some that come back meanwhile.
const WRITTEN: usize = 1000 + 20;

/// Runs a program; the events of it, and how many bytes they are.
fn events_of(sandbox: Sandbox, program: &str) -> (Vec<Value>, u64, String) {
    let events = sandbox.outside.join("events");
    let sandbox = sandbox.flags([Path::new("--json-events"), &events]);
    let result = sandbox.python(&sandbox.probe(program));
    result.ok().says("END");
    let text = sandbox.read(&events);
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), text.len() as u64, result.err())
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["event"] == kind).count()
}

#[test]
fn a_flood_of_refusals_is_counted_not_written() {
    let Some(internet) = Internet::here() else { return };
    let program = |times: usize| {
        format!(
            "
import threading
def names():
    for n in range({times}): query(b'n%d.refused.test' % n)
def requests():
    sock = socket.create_connection(PROXY); sock.settimeout(20)
    for n in range({times}):
        sock.sendall(b'GET http://no.test/%d/' % n + b'x' * 3000 + b' HTTP/1.1\\r\\nHost: no.test\\r\\n\\r\\n')
        answer = b''
        while b'\\r\\n\\r\\n' not in answer: answer += sock.recv(65536)
        length = int(answer.lower().split(b'content-length: ')[1].split(b'\\r\\n')[0])
        body = answer.split(b'\\r\\n\\r\\n', 1)[1]
        while len(body) < length: body += sock.recv(65536)
        assert b' 403 ' in answer.split(b'\\r\\n')[0], answer
all = [threading.Thread(target=names), threading.Thread(target=requests)]
[one.start() for one in all]; [one.join() for one in all]
tell('meanwhile', exchange(('plain.test', 80), get(b'/', b'plain.test')))
print('END')"
        )
    };
    let routes = [Route::to("plain.test", &[80])];
    // The control: a few are all written.
    let (events, _, _) = events_of(internet.with(&routes), &program(20));
    assert_eq!((count(&events, "name-refused"), count(&events, "refused"), count(&events, "left-out")), (20, 20, 0));
    let (events, bytes, err) = events_of(internet.with(&routes), &program(4000));
    let written = count(&events, "name-refused") + count(&events, "refused");
    assert!((1000..=WRITTEN).contains(&written), "{written} refusals were written");
    let left_out: u64 = events.iter().filter_map(|event| event["refusals"].as_u64()).sum();
    assert_eq!(written as u64 + left_out, 8000, "none is forgotten");
    assert!(bytes < 2 << 20, "{bytes} bytes of events");
    // What was permitted is told all the same.
    assert!(events.iter().any(|event| event["event"] == "connected" || event["event"] == "requested"));
    assert!(err.lines().count() < 10 && err.len() < 4000, "{err}");
    assert!(err.contains("no way out to"), "{err}");
}

/// Opens connections of HTTP/2 with requests that never end. A header block of a kilobyte on the wire is about a thousand fields: one
/// in the dynamic table, and an index to it again and again (RFC 7541, 2.3.2).
const STREAMS: &str = "
import threading, time
def frame(kind, flags, stream, payload): return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload
def text(value): return bytes([len(value)]) + value
def block(n, fields):
    head = b'\\x83\\x87' + b'\\x04' + text(b'/ok/%d' % n) + b'\\x01' + text(b'blackhole.test')
    return head + (b'\\x40' + text(b'x') + text(b'') + b'\\xbe' * (fields - 1) if fields else b'')
def flood(connections, streams, fields):
    context_ = context(); context_.set_alpn_protocols(['h2'])
    socks, lock = [], threading.Lock()
    def some(count):
        for _ in range(count):
            sock = context_.wrap_socket(socket.create_connection(('blackhole.test', 443), 60), server_hostname='blackhole.test')
            assert sock.selected_alpn_protocol() == 'h2'
            sock.sendall(b'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' + frame(4, 0, 0, b''))
            sock.sendall(b''.join(frame(1, 4, 2 * n + 1, block(n, fields)) for n in range(streams)))
            with lock: socks.append(sock)
    threads = [threading.Thread(target=some, args=(connections // 4,)) for _ in range(4)]
    [one.start() for one in threads]; [one.join() for one in threads]
    assert len(socks) == connections, len(socks)
    return socks
def busy(socks):
    count = 0
    for sock in socks:
        sock.setblocking(False); data = b''
        try:
            while more := sock.recv(1 << 20): data += more
        except (OSError, ssl.SSLWantReadError): pass
        count += data.count(b'\"reason\":\"busy\"')
    return count
";

/// The most memory that the supervisor had while a program floods, in KiB, and what the program says.
fn flooded(internet: &Internet, connections: usize, streams: usize, fields: usize) -> (u64, String) {
    let routes =
        [Route::rule("blackhole.test", &[443], "paths = [\"/ok/**\"]"), Route::rule("read.test", &[443], "paths = [\"/**\"]")];
    let sandbox = internet.with(&routes);
    let program = format!(
        "{STREAMS}
socks = flood({connections}, {streams}, {fields})
time.sleep(1); open('there', 'w').close()
while not os.path.exists('seen'): time.sleep(0.05)
print('BUSY', busy(socks))
[sock.close() for sock in socks]
time.sleep(1)
tell('after', exchange(('read.test', 443), get(b'/', b'read.test'), 'read.test'))
print('END')"
    );
    let mut command = sandbox.inside([PYTHON, "-c", &sandbox.probe(&program)]);
    let live = Live::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    // The way to the host's place ends in `exec`, so the child is the supervisor.
    let there = wait_until(90, || sandbox.workspace.join("there").exists());
    let status = fs::read_to_string(format!("/proc/{}/status", live.id())).unwrap_or_default();
    sandbox.write("seen", "");
    let output = live.output();
    let (out, err) = (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned());
    assert!(there && out.contains("END") && out.contains("REACHED after"), "{out}\n{err}");
    assert!(status.contains("hermes-sandbox"), "{status}");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    (most.unwrap(), out)
}

#[test]
fn header_blocks_take_no_more_memory_than_the_sandbox_has_for_them() {
    need!("openssl");
    let Some(internet) = Internet::here() else { return };
    let (quiet, out) = flooded(internet, 200, 0, 0);
    assert!(out.contains("BUSY 0"), "{out}");
    // Small ones have all the room that they need: the control that it is the size, not the number, that is refused.
    let (small, out) = flooded(internet, 52, 32, 0);
    assert!(out.contains("BUSY 0"), "{out}");
    let (large, out) = flooded(internet, 200, 32, 950);
    let told = format!("quiet {quiet} KiB, small {small} KiB, large {large} KiB");
    eprintln!("most memory of the supervisor: {told}");
    let busy: u64 = out.lines().find_map(|line| line.strip_prefix("BUSY ")?.parse().ok()).unwrap();
    assert!(busy > 5000, "of 6400 requests {busy} were refused for want of room");
    assert!(large < quiet + 64 * 1024, "{told}");
}
