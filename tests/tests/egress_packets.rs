//! Ways out that are no TCP connection to a routed port: datagrams, raw packets, queries for names; and whose the listeners are.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Internet, Live, Outcome, Route, Sandbox, wait_until};

const ROUTES: [Route; 2] = [Route::to("plain.test", &[80, 443]), Route::to("*.wild.test", &[80])];

fn probe(sandbox: &Sandbox, program: &str) -> Outcome {
    sandbox.python(&sandbox.probe(program))
}

#[test]
fn datagrams_and_raw_packets() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let word = sandbox.canary("data");
    let hex: String = word.bytes().map(|byte| format!("{byte:02x}")).collect();
    let program = format!(
        "
data = b'{word}'
plain = socket.gethostbyname('plain.test') if inside else '93.184.216.34'
for address in (plain, '93.184.216.34', '8.8.8.8', '198.18.0.1', '198.18.255.255', '255.255.255.255', '224.0.0.251'):
    for port in (443, 80, 5353, 4500, 123, 7):
        for kind in (0, 136):
            try:
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, kind)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                sock.settimeout(0.05)
                sock.sendto(data, (address, port))
                tell(f'datagram {{address}} {{port}} {{kind}}', sock.recv(100))
            except OSError as error: pass
for protocol, kind in ((1, socket.SOCK_DGRAM), (1, socket.SOCK_RAW), (6, socket.SOCK_RAW), (17, socket.SOCK_RAW), (255, socket.SOCK_RAW), (47, socket.SOCK_RAW)):
    for address in (plain, '93.184.216.34', '8.8.8.8'):
        try:
            sock = socket.socket(socket.AF_INET, kind, protocol)
            sock.settimeout(0.2)
            echo = struct.pack('>BBHHH', 8, 0, 0, 1, 1) + data
            total = sum(struct.unpack('>%dH' % (len(echo + b'\\0') // 2), (echo + b'\\0')[:len(echo + b'\\0') // 2 * 2]))
            while total >> 16: total = (total & 0xffff) + (total >> 16)
            sock.sendto(struct.pack('>BBHHH', 8, 0, ~total & 0xffff, 1, 1) + data, (address, 0))
            print('sent', protocol, int(kind))
        except OSError as error: print('refused', protocol, int(kind), error)
for family in (socket.AF_PACKET, socket.AF_VSOCK, socket.AF_NETLINK, 9, 30, 37):
    try: socket.socket(family, socket.SOCK_DGRAM if family != 37 else socket.SOCK_SEQPACKET); print('socket', int(family))
    except OSError: pass
for protocol in (132, 33, 262):
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol); sock.settimeout(5)
        sock.connect(('93.184.216.36', 80)); sock.sendall(get(b'/@', b'other.test')); tell(f'protocol {{protocol}}', hear(sock))
    except OSError as error: print('refused protocol', protocol, error)
for port in (80, 443, 8080):
    try:
        sock = socket.socket(); sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 5, 0))
        sock.sendto(get(b'/@', b'other.test'), socket.MSG_FASTOPEN, ('93.184.216.36', port)); tell(f'fast open {{port}}', hear(sock))
    except OSError as error: print('refused fast open', port, error)
print('END')"
    );
    let result = probe(&sandbox, &format!("inside = True\n{program}"));
    result.ok().says("END").never_says("REACHED").never_says("socket 17\n").never_says("socket 40\n");
    internet.never_saw(&hex, &result);
    internet.never_saw(&sandbox.canary("path"), &result);
    let outside = sandbox.plain_python(&sandbox.probe(&format!("inside = False\n{program}")));
    outside.ok().says("REACHED datagram 93.184.216.34 443 0").says("REACHED fast open 80");
    assert!(!internet.seen(&hex).is_empty(), "positive control");
}

#[test]
fn other_ports_are_refused_at_once() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let program = "
import time
for address in (socket.gethostbyname('plain.test'), '93.184.216.34', '198.18.0.1', '8.8.8.8'):
    for port in (22, 25, 81, 631, 7006, 8080, 8443, 65535):
        begun = time.monotonic()
        tell(f'{address} {port}', exchange((address, port), get(b'/@', b'plain.test'), patience=20))
        if time.monotonic() - begun > 10: print('LATE', address, port)
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").never_says("REACHED").never_says("LATE");
    internet.never_saw(&sandbox.canary("path"), &result);
    let control = "tell('control', exchange(('plain.test', 8080), get(b'/', b'plain.test')))";
    sandbox.plain_python(&sandbox.probe(control)).ok().says("REACHED control");
}

#[test]
fn queries_for_names_carry_nothing_out() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let word = sandbox.canary("label").to_lowercase();
    let program = format!(
        "
word = b'{word}'
names = [word + b'.plain.test', word + b'.other.test', word + b'.evil.test', b'.'.join([word] + [b'x' * 60] * 3) + b'.evil.test', word + b'.wild.test', word,
    word + b'.in-addr.arpa', word + b'.localhost', b'.'.join([word, b'8.8.8.8'])]
for name in names:
    for kind in (1, 28, 16, 10, 5, 15, 33, 65, 255, 252, 12, 6, 2, 257, 65535):
        for to in ('198.18.0.1', '8.8.8.8', '9.9.9.9'):
            print(kind, to, query(name, kind, to), name[:40].decode())
    print('tcp', query(name, 16, '9.9.9.9', tcp=True), query(name, 1, tcp=True))
print('plain', query(b'plain.test', 1, '8.8.8.8'), query(b'plain.test', 1, '9.9.9.9'), query(b'PLAIN.test', 1, tcp=True))
print('other', query(b'other.test', 1, '8.8.8.8'), query(b'other.test', 1, '9.9.9.9', tcp=True), query(b'other.test'))
print('text', query(b'plain.test', 16), query(b'plain.test', 28), query(b'plain.test', 65))
for host in ('8.8.8.8', '9.9.9.9', '198.18.0.1'):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.settimeout(0.3); sock.connect((host, 53))
    for junk in (word, b'', b'\\0' * 12, b'\\xff' * 600, b'\\0' * 5 + word):
        try: sock.send(junk); sock.recv(600)
        except OSError: pass
print('END')"
    );
    let result = probe(&sandbox, &program);
    result.ok().says("END");
    internet.never_saw(&word, &result);
    let line = |name: &str| result.out().lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert_eq!(line("plain").matches("status 0 answers 1 198.18.").count(), 3, "{}", result.report());
    assert_eq!(line("other").matches("status 3 answers 0").count(), 3, "{}", result.report());
    assert_eq!(line("text").matches("status 0 answers 0").count(), 3, "{}", result.report());
    let control = format!("print(query(b'{word}.wild.test', 1, '9.9.9.9'))");
    sandbox.plain_python(&sandbox.probe(&control)).ok().says("93.184.216.37");
    assert!(!internet.seen(&word).is_empty(), "positive control");
}

#[test]
fn the_listeners_are_one_sandboxs_own() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&ROUTES);
    let program = sandbox.probe("print(os.path.exists('end')); open('ready', 'w').close()\nimport time\nwhile not os.path.exists('end'): time.sleep(0.05)");
    let mut live = Live::start(&mut sandbox.inside([hermes_tests::PYTHON, "-c", &program]));
    assert!(wait_until(30, || sandbox.workspace.join("ready").exists()));
    let attempt = "
for port in (3128, 80, 443, 53):
    tell(f'198.18.0.1 {port}', exchange(('198.18.0.1', port), get(b'http://plain.test/@', b'plain.test'), patience=1))
print(query(b'plain.test'))
print('listening', [line.split()[1] for line in open('/proc/net/tcp') if line.split()[3] == '0A'])
print('END')";
    // Who is on the host finds none of them there.
    let outside = sandbox.plain_python(&sandbox.probe(attempt));
    outside.ok().says("END").never_says("REACHED").never_says("198.18.1.").never_says(":0C38");
    // A sandbox without a network neither; one with other routes finds its own.
    let none = internet.sandbox();
    none.python(&none.probe(attempt)).ok().says("END").never_says("REACHED").never_says("198.18.1.");
    let other = internet.with(&[Route::to("read.test", &[80])]);
    let result = other.python(&other.probe(attempt));
    result.ok().says("END").never_says("REACHED").says("status 3");
    for one in [&none, &other, &sandbox] {
        internet.never_saw(&one.canary("path"), &result);
    }
    sandbox.write("end", "");
    assert!(live.end().success());
    probe(&sandbox, "tell('control', exchange(PROXY, get(b'http://plain.test/', b'plain.test')))").ok().says("REACHED control");
}

#[test]
fn routed_ports_are_free_for_own_servers() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&[Route::to("plain.test", &[8080, 80])]);
    let program = "
import threading
def serve(listener):
    sock = listener.accept()[0]; sock.recv(100); sock.sendall(b'OWN'); sock.close()
for address in ('0.0.0.0', '127.0.0.1', '::'):
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    for port in (8080, 3128):
        listener = socket.socket(family); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port)); listener.listen(); threading.Thread(target=serve, args=(listener,), daemon=True).start()
        to = '::1' if ':' in address else '127.0.0.1'
        print('own', address, port, exchange((to, port), b'x'))
        if address == '0.0.0.0':
            tell('route', exchange(('plain.test', 8080), get(b'/', b'plain.test:8080')))
            tell('proxy', exchange(PROXY, get(b'http://plain.test/', b'plain.test')))
        listener.close()
# A route leads to the host's loopback by no name of it.
for port in (80, 8080): tell(f'loopback {port}', exchange(('127.0.0.1', port), get(b'/@', b'plain.test'), patience=3))
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").never_says("REACHED loopback");
    assert_eq!(result.out().matches("b'OWN'").count(), 6, "{}", result.report());
    assert_eq!(result.out().matches("REACHED").count(), 4, "{}", result.report());
    let outside = sandbox.plain_python(&sandbox.probe("tell('control', exchange(('127.0.0.1', 80), get(b'/', b'plain.test')))"));
    outside.ok().says("REACHED control");
}

#[test]
fn version_6_leads_nowhere_else() {
    let Some(internet) = Internet::here() else { return };
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        hermes_tests::skip!("this machine has no IPv6");
    }
    let sandbox = internet.with(&ROUTES);
    let program = "
for address in ('::ffff:93.184.216.36', '64:ff9b::5db8:d824', '2606:4700::1111', 'fd00:ec2::254', 'fe80::1', 'ff02::1', '2002:5db8:d824::1', '::93.184.216.36'):
    for port in (80, 443, 53, 8080):
        tell(f'{address} {port}', exchange((address, port), get(b'/@', b'plain.test'), patience=3))
    try:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); sock.settimeout(0.2); sock.sendto(b'/@', (address, 443)); tell(f'datagram {address}', sock.recv(100))
    except OSError: pass
print('END')";
    let result = probe(&sandbox, program);
    result.ok().says("END").never_says("REACHED");
    internet.never_saw(&sandbox.canary("path"), &result);
    let hosts =
        sandbox.plain_python(&sandbox.probe("tell('control', exchange(('::ffff:93.184.216.36', 80), get(b'/', b'plain.test')))"));
    hosts.ok().says("REACHED control");
}
