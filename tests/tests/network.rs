//! What the network modes let through.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use hermes_tests::{Listener, Live, PYTHON, Sandbox, need, skip, wait_until};

/// Tries each target and prints `REACHED` or `refused` with its name.
fn client(targets: &[(&str, &str, u16)]) -> String {
    let list: Vec<String> = targets.iter().map(|(kind, address, port)| format!("('{kind}','{address}',{port})")).collect();
    format!(
        "
import socket
for kind, address, port in [{}]:
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    try:
        s = socket.socket(family, socket.SOCK_DGRAM if kind == 'udp' else socket.SOCK_STREAM)
        s.settimeout(2)
        s.connect((address, port))
        if kind == 'udp': s.send(b'x')
        assert s.recv(16).startswith(b'HELLO')
        print('REACHED', kind, address)
    except (OSError, AssertionError) as e: print('refused', kind, address, type(e).__name__)
print('END')",
        list.join(",")
    )
}

/// An address of this machine that is not loopback.
fn own_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: connect() of a datagram socket only chooses a route.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| ip.to_string())
}

struct Servers {
    listeners: Vec<(&'static str, String, Listener)>,
}

impl Servers {
    fn start() -> Self {
        let mut listeners = Vec::new();
        let mut addresses = vec!["127.0.0.1".to_owned(), "::1".to_owned()];
        addresses.extend(own_address());
        for address in addresses {
            let bind = if address.contains(':') { format!("[{address}]:0") } else { format!("{address}:0") };
            listeners.extend(Listener::tcp(&bind).map(|listener| ("tcp", address.clone(), listener)));
            listeners.extend(Listener::udp(&bind).map(|listener| ("udp", address.clone(), listener)));
        }
        Self { listeners }
    }

    fn program(&self) -> String {
        client(
            &self.listeners.iter().map(|(kind, address, listener)| (*kind, address.as_str(), listener.port)).collect::<Vec<_>>(),
        )
    }

    fn hits(&self) -> usize {
        self.listeners.iter().map(|(_, _, listener)| listener.hits()).sum()
    }
}

#[test]
fn off_reaches_no_listener_of_the_host() {
    need!(PYTHON);
    let servers = Servers::start();
    let program = servers.program();
    for mode in ["off", "none"] {
        let sandbox = Sandbox::new().flags(["--net", mode]);
        sandbox.python(&program).ok().says("END").never_says("REACHED");
    }
    Sandbox::new().python(&program).ok().says("END").never_says("REACHED");
    assert_eq!(servers.hits(), 0);
    let control = Sandbox::new().plain_python(&program);
    assert_eq!(control.ok().out().matches("REACHED").count(), servers.listeners.len(), "{}", control.report());
}

#[test]
fn host_reaches_what_the_host_reaches() {
    need!(PYTHON);
    let servers = Servers::start();
    let result = Sandbox::new().flags(["--net", "host"]).python(&servers.program());
    assert_eq!(result.ok().out().matches("REACHED").count(), servers.listeners.len(), "{}", result.report());
}

#[test]
fn with_the_hosts_network_its_unix_sockets_stay_closed() {
    need!(PYTHON);
    let sandbox = Sandbox::new().flags(["--net", "host"]);
    let name = sandbox.canary("abstract");
    let path = sandbox.workspace.join("host.sock");
    let (abstract_one, named) = (Listener::abstract_unix(&name), Listener::unix(&path));
    let program = format!(
        "import socket\nfor a in ('\\0{name}', '{}'):\n s=socket.socket(socket.AF_UNIX)\n try: s.connect(a); print('REACHED', a.encode())\n except OSError: print('refused')\nprint('END')",
        path.display()
    );
    sandbox.python(&program).ok().says("END").never_says("REACHED");
    assert_eq!((abstract_one.hits(), named.hits()), (0, 0));
    assert_eq!(sandbox.plain_python(&program).out().matches("REACHED").count(), 2, "positive control");
}

#[test]
fn loopback_inside_works_and_is_private() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let program = "
import socket, threading
for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET, '127.3.2.1'), (socket.AF_INET6, '::1')):
    s = socket.socket(family); s.bind((address, 0)); s.listen(4)
    c = socket.create_connection(s.getsockname()[:2]); a, _ = s.accept(); a.sendall(b'x'); assert c.recv(1) == b'x'
    u = socket.socket(family, socket.SOCK_DGRAM); u.bind((address, 0))
    v = socket.socket(family, socket.SOCK_DGRAM); v.sendto(b'y', u.getsockname()); assert u.recv(1) == b'y'
s = socket.socket(); s.bind(('localhost', 0)); print('LOOPBACK')";
    sandbox.python(program).ok().says("LOOPBACK");
}

#[test]
fn a_server_is_published_whichever_loopback_it_listens_on() {
    need!(PYTHON);
    for (family, address, v6only) in
        [("AF_INET", "127.0.0.1", 0), ("AF_INET6", "::1", 1), ("AF_INET6", "::", 1), ("AF_INET6", "::", 0)]
    {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let sandbox = Sandbox::new().flags(["--publish", &port.to_string()]);
        let program = format!(
            "import socket\ns = socket.socket(socket.{family})
if {v6only}: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
s.bind(('{address}', {port})); s.listen(); s.settimeout(20); open('ready', 'w').close()
c, _ = s.accept(); c.sendall(b'HELLO' + c.recv(9))"
        );
        let live = Live::start(sandbox.inside([PYTHON, "-c", &program]).stdout(Stdio::null()).stderr(Stdio::null()));
        assert!(wait_until(20, || sandbox.workspace.join("ready").exists()), "{address}");
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answer = String::new();
        let asked = client.write_all(b"-YOU").and_then(|()| client.read_to_string(&mut answer));
        assert!(asked.is_ok() && answer == "HELLO-YOU", "{address} v6only {v6only}: {asked:?} {answer:?}");
        drop(live);
        // The control: nobody inside listens.
        let sandbox = Sandbox::new().flags(["--publish", &port.to_string()]);
        let live = Live::start(sandbox.inside(["sh", "-c", "touch ready; sleep 20"]).stdout(Stdio::null()).stderr(Stdio::null()));
        assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert!(!matches!(client.read(&mut [0; 9]), Ok(1..)), "somebody answers");
        drop(live);
    }
}

#[test]
fn a_port_that_is_taken_on_the_host_is_free_inside() {
    need!(PYTHON);
    let listener = Listener::tcp("127.0.0.1:0").unwrap();
    let program = format!("import socket\ns=socket.socket(); s.bind(('127.0.0.1',{})); print('BOUND')", listener.port);
    let sandbox = Sandbox::new();
    assert_ne!(sandbox.plain_python(&program).code(), 0, "positive control");
    sandbox.python(&program).ok().says("BOUND");
}

#[test]
fn no_interface_and_no_route_leads_out() {
    need!(PYTHON);
    let program = "
import socket, errno
print('INTERFACES', sorted(name for _, name in socket.if_nameindex()))
for address in ('192.0.2.1', '169.254.169.254', '10.0.0.1', '255.255.255.255', '224.0.0.1'):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(socket.AF_INET, kind); s.settimeout(1)
        try: s.connect((address, 80)); print('ROUTED', address)
        except OSError as e: pass
for family, kind, proto in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_PACKET, socket.SOCK_RAW, 3), (socket.AF_VSOCK, socket.SOCK_STREAM, 0), (socket.AF_ALG, socket.SOCK_SEQPACKET, 0)):
    try: socket.socket(family, kind, proto); print('RAW', family)
    except OSError: pass
print('END')";
    let sandbox = Sandbox::new();
    sandbox.python(program).ok().says("INTERFACES ['lo']").says("END").never_says("ROUTED").never_says("RAW");
}

#[test]
fn name_lookups_fail_quickly() {
    need!(PYTHON);
    let result = Sandbox::new().python(
        "import socket\ntry: socket.getaddrinfo('www.example.test', 80); print('RESOLVED')\nexcept OSError: print('refused')\nprint(socket.getaddrinfo('localhost', 80)[0][4][0])",
    );
    result.ok().says("refused");
    assert!(result.time.as_secs() < 15, "{}", result.report());
}

#[test]
fn contradictory_network_flags_are_refused() {
    let result = Sandbox::new().flags(["--net", "off", "--allow-host", "example.test"]).sh("echo RAN");
    assert!(result.code() != 0, "{}", result.report());
    result.never_says("RAN\n").no_panic();
    let result = Sandbox::new().flags(["--net", "sideways"]).sh("echo RAN");
    assert!(result.code() != 0, "{}", result.report());
    result.never_says("RAN\n").no_panic();
}

#[test]
fn routes_never_fall_back_to_an_open_network() {
    need!(PYTHON);
    let servers = Servers::start();
    let result = Sandbox::new().flags(["--allow-host", "example.test:443"]).python(&servers.program());
    // Either the way out exists and lets nothing else through, or the start is refused; never open.
    if result.code() == 125 {
        result.refused(125);
    } else {
        result.ok().says("END").never_says("REACHED");
    }
    assert_eq!(servers.hits(), 0);
}

#[test]
fn proxy_variables_of_the_caller_are_not_handed_in() {
    let sandbox = Sandbox::new()
        .env("https_proxy", "http://user:pw@proxy.example.test:3128")
        .env("HTTPS_PROXY", "http://proxy.example.test:3128");
    sandbox.run(["/usr/bin/env"]).ok().never_says("proxy.example.test");
}

#[test]
fn the_hosts_abstract_sockets_are_unreachable_without_its_network() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let name = sandbox.canary("abs");
    let listener = Listener::abstract_unix(&name);
    let program = format!(
        "import socket\ns=socket.socket(socket.AF_UNIX)\ntry: s.connect('\\0{name}'); print('REACHED')\nexcept OSError: print('refused')"
    );
    sandbox.python(&program).ok().says("refused");
    assert_eq!(listener.hits(), 0);
    sandbox.plain_python(&program).ok().says("REACHED");
}

#[test]
fn a_kernel_without_ipv6_is_no_reason_to_fail() {
    if std::path::Path::new("/proc/net/if_inet6").exists() {
        skip!("this machine has IPv6");
    }
    Sandbox::new().sh("true").ok();
}
