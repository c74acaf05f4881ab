//! Routes where there are no namespaces: what leads out, what does not, and the loopback that is shared with the host.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hermes_tests::{Listener, Outcome, PYTHON, Sandbox, binary, is_root, need, run_to_end, skip, wait_until};

const LANDLOCK: [&str; 2] = ["--tier", "landlock"];

/// Root stays root without namespaces, and then Landlock alone does not keep files from it: that has nothing to do with the network.
fn root_accepts() -> &'static [&'static str] {
    if is_root() { &["--accept-loss", "files-write-confined"] } else { &[] }
}

/// A web server of the host, on its loopback.
struct Web {
    port: u16,
    child: Child,
}

impl Web {
    fn start(root: &Path) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(PYTHON);
        command.args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1", "--directory"]).arg(root);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        assert!(wait_until(20, || TcpStream::connect(("127.0.0.1", port)).is_ok()), "the web server does not start");
        Self { port, child }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sandbox with routes to one web server: as `up.test` by an upstream, read, and as `localhost` on its port, unread.
struct Field {
    sandbox: Sandbox,
    web: Web,
}

impl Field {
    /// Or why this tier cannot be had here.
    fn new() -> Result<Self, String> {
        let sandbox = Sandbox::new();
        let root = sandbox.outside.join("www");
        sandbox.write(root.join("index.html"), "HELLO-WEB\n");
        let web = Web::start(&root);
        let profile = format!(
            "schema = 1\ndescription = 'test'\nincludes = ['base']\n[filesystem]\nworkspace = 'write'\n[network]\nmode = 'routes'\n\
             [[network.route]]\nhost = 'up.test'\nports = [80, 443]\nupstream = 'http://localhost:{port}'\n\
             [[network.route]]\nhost = 'localhost'\nports = [{port}]\naddresses = ['127.0.0.1']\n\
             [[network.route]]\nhost = 'plain.test'\nports = [9, 22, {port}]\n",
            port = web.port
        );
        let profile = sandbox.write(sandbox.outside.join("policy.toml"), profile);
        let sandbox = sandbox.flags(LANDLOCK).flags(root_accepts()).flags([Path::new("--profile"), &profile]);
        let tried = sandbox.sh("true");
        match tried.code() {
            0 => Ok(Self { sandbox, web }),
            _ => Err(tried.err().lines().next().unwrap_or_default().to_owned()),
        }
    }

    fn python(&self, program: &str) -> Outcome {
        self.sandbox.python(program)
    }

    /// Lets it run once it has made `file`. What it prints goes to `out`.
    #[track_caller]
    fn python_until(&self, program: &str, file: &str) -> Child {
        let out = fs::File::create(self.sandbox.workspace.join("out")).unwrap();
        let child = self.sandbox.inside([PYTHON, "-c", program]).stdout(out).stderr(Stdio::null()).spawn().unwrap();
        assert!(wait_until(20, || self.sandbox.workspace.join(file).exists()));
        child
    }
}

macro_rules! field {
    () => {
        match Field::new() {
            Ok(field) => field,
            Err(why) => skip!("routes cannot be had here without namespaces: {why}"),
        }
    };
}

#[test]
fn curl_reaches_what_a_route_names() {
    need!("curl", PYTHON);
    let field = field!();
    for url in ["http://up.test/", "https://up.test/"] {
        field.sandbox.run(["curl", "-sS", url]).ok().says("HELLO-WEB");
        field.sandbox.run(["curl", "-sS", "--noproxy", "*", url]).ok().says("HELLO-WEB");
        field.sandbox.run(["curl", "-sS", "-4", "--noproxy", "*", url]).ok().says("HELLO-WEB");
    }
    let other = field.sandbox.run(["curl", "-sS", "--noproxy", "*", "http://other.test/"]);
    other.exits(6).never_says("HELLO-WEB");
    let port = field.sandbox.run(["curl", "-sS", "--noproxy", "*", "http://up.test:81/"]);
    port.exits(7).never_says("HELLO-WEB");
    let read = field.sandbox.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://other.test/"]);
    assert_ne!(read.code(), 0, "{}", read.report());
}

#[test]
fn a_port_cannot_be_published_where_the_loopback_is_the_hosts() {
    let field = field!();
    let publish = ["--publish", "8091"];
    for sandbox in [field.sandbox.flags(publish), Sandbox::new().flags(LANDLOCK).flags(root_accepts()).flags(publish)] {
        let told = sandbox.sh("echo RAN").refused(125).never_says("RAN").err();
        assert!(told.contains("without a network namespace") && told.contains("--publish"), "{told}");
        let plan = run_to_end(sandbox.hermes().args(["plan", "--workspace", "."]).args(LANDLOCK).args(publish));
        plan.says("own ports 8091 CANNOT be shown");
    }
    // The control: the same is to be had with namespaces, where there are any.
    let plan = run_to_end(Sandbox::new().hermes().args(["plan", "--workspace", ".", "--tier", "namespaces"]).args(publish));
    plan.says("own ports 8091 are shown on the host");
}

#[test]
fn what_a_route_leads_to_is_explained_as_it_happens() {
    need!("curl", PYTHON);
    let field = field!();
    let port = field.web.port;
    let profile = field.sandbox.outside.join("policy.toml");
    let explain = |place: &str| {
        let mut command = field.sandbox.hermes();
        command.args(["explain", "host", place, "--workspace", "."]).args(LANDLOCK).arg("--profile").arg(&profile);
        run_to_end(&mut command)
    };
    explain("up.test:80").ok().says("connect  allowed").says("requests are read");
    explain("other.test:80").ok().says("denied by").says("no route leads to this host");
    // By the proxy alone: the address itself is the loopback's, which the host has.
    explain(&format!("localhost:{port}")).ok().says("connect  denied by").says("proxy    allowed");
    let direct = ["curl", "-sS", "--noproxy", "*", &format!("http://127.0.0.1:{port}/")].map(str::to_owned);
    field.sandbox.run(direct).exits(7).never_says("HELLO-WEB");
    let proxied = ["curl", "-sS", "--noproxy", "", &format!("http://localhost:{port}/")].map(str::to_owned);
    field.sandbox.run(proxied).ok().says("HELLO-WEB");
}

#[test]
fn other_programs_reach_it_too() {
    need!(PYTHON);
    let field = field!();
    let program = "
import asyncio, socket, urllib.request
assert b'HELLO-WEB' in urllib.request.urlopen('https://up.test/').read()
assert b'HELLO-WEB' in urllib.request.build_opener(urllib.request.ProxyHandler({})).open('http://up.test/').read()
def ask(s):
    s.sendall(b'GET / HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n')
    data = b''
    while part := s.recv(4096): data += part
    assert b'HELLO-WEB' in data, data
for timeout in (None, 5, 0.5):
    s = socket.create_connection(('up.test', 80), timeout); ask(s)
mapped = '::ffff:' + socket.gethostbyname('up.test')
s = socket.socket(socket.AF_INET6); s.connect((mapped, 80)); ask(s)
s = socket.socket(); s.bind(('', 0)); s.connect(('up.test', 80)); ask(s)
async def main():
    reader, writer = await asyncio.open_connection('up.test', 80)
    writer.write(b'GET / HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n')
    assert b'HELLO-WEB' in await reader.read()
asyncio.run(main())
print('END')";
    field.python(program).ok().says("END");
    if hermes_tests::program("wget").is_some() {
        field.sandbox.run(["wget", "-qO-", "--no-proxy", "http://up.test/"]).ok().says("HELLO-WEB");
    }
    if hermes_tests::program("node").is_some() {
        let program = "fetch('http://up.test/').then(r => r.text()).then(t => { console.log(t); process.exit(0) })";
        field.sandbox.run(["node", "-e", program]).ok().says("HELLO-WEB");
        let program = "require('net').connect(80, 'up.test', function () { this.write('GET / HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n') })\
                       .on('data', d => console.log(String(d)))";
        field.sandbox.run(["node", "-e", program]).ok().says("HELLO-WEB");
    }
}

#[test]
fn git_clones_over_http() {
    need!("git", PYTHON);
    let field = field!();
    let script = "git init -q w && cd w && git -c user.name=t -c user.email=t@t.test commit -q --allow-empty -m one && cd .. && \
                  git clone -q --bare w '{}' && git -C '{}' update-server-info";
    let bare = field.sandbox.outside.join("www/r.git").display().to_string();
    field.sandbox.plain_sh(&script.replace("{}", &bare)).ok();
    field.sandbox.sh("git clone -q https://up.test/r.git a && git -C a log --oneline && echo CLONED").ok().says("CLONED");
    let without = "unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY; git clone -q http://up.test/r.git b && echo CLONED";
    field.sandbox.sh(without).ok().says("CLONED");
}

/// Ways past the mediator. Prints `MADE` or `REACHED` with a name for each that is open.
const WAYS: &str = "
import socket
target = ('127.0.0.1', SERVER)
def way(name, action):
    try: action(); print('REACHED', name)
    except (OSError, AssertionError, ValueError) as e: print('refused', name, e)
def hello(s):
    s.settimeout(3)
    assert s.recv(16).startswith(b'HELLO')
def connect(family=socket.AF_INET, kind=socket.SOCK_STREAM, proto=0, to=target):
    s = socket.socket(family, kind, proto); s.settimeout(3); s.connect(to); hello(s)
way('tcp', connect)
way('literal', lambda: connect(to=('ADDRESS', OTHER)))
way('mapped', lambda: connect(socket.AF_INET6, to=('::ffff:127.0.0.1', SERVER)))
way('any', lambda: connect(to=('0.0.0.0', SERVER)))
way('mptcp', lambda: connect(proto=262))
def udp(): s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', DATAGRAMS)); hello(s)
way('udp', udp)
def fast(): s = socket.socket(); s.sendto(b'x', 0x20000000, target); hello(s)
way('fast open', fast)
def faster(): s = socket.socket(); s.sendmsg([b'x'], [], 0x20000000, target); hello(s)
way('fast open by sendmsg', faster)
def fastest(): s = socket.socket(); s.setsockopt(socket.IPPROTO_TCP, 30, 1); s.connect(target); s.send(b'x'); hello(s)
way('fast open by option', fastest)
def unix(): s = socket.socket(socket.AF_UNIX); s.connect('SOCKET'); hello(s)
way('unix', unix)
print('END')";

/// Sockets and options that ordinary users have, but no job. Prints `MADE` for each.
const SOCKETS: &str = "
import socket
def way(name, action):
    try: action(); print('MADE', name)
    except OSError as e: print('refused', name, e)
s = socket.socket()
way('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
way('udp6', lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
way('unix', lambda: socket.socket(socket.AF_UNIX))
way('options of packets', lambda: s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([1, 1, 1, 1])))
way('fast open', lambda: s.setsockopt(socket.IPPROTO_TCP, 30, 1))
print('END')";

#[test]
fn nothing_leads_past_the_mediator() {
    need!(PYTHON);
    let field = field!();
    let path = field.sandbox.workspace.join("host.sock");
    let (tcp, udp, unix) = (Listener::tcp("127.0.0.1:0").unwrap(), Listener::udp("127.0.0.1:0").unwrap(), Listener::unix(&path));
    // An address of this machine that is not loopback, on a port that a route names.
    let address = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = address.connect("192.0.2.1:9").and_then(|()| address.local_addr()).map(|at| at.ip().to_string());
    let own = own.unwrap_or_else(|_| "127.0.0.1".to_owned());
    let elsewhere = Listener::tcp(&format!("{own}:0")).unwrap();
    let program = WAYS
        .replace("SERVER", &tcp.port.to_string())
        .replace("DATAGRAMS", &udp.port.to_string())
        .replace("ADDRESS", &own)
        .replace("OTHER", &elsewhere.port.to_string())
        .replace("SOCKET", &path.display().to_string());
    field.python(&program).ok().says("END").never_says("REACHED");
    field.python(SOCKETS).ok().says("END").never_says("MADE");
    let raw = "import ctypes, socket\nif ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) >= 0: print('MADE ring')\nfor a in ((2, 3, 1), (17, 3, 3), (40, 1, 0), (2, 1, 132), (43, 1, 0), (2, 1, 262), (2, 5, 132)):\n try: socket.socket(*a); print('MADE', a)\n except OSError: pass\nprint('END')";
    field.python(raw).ok().says("END").never_says("MADE");
    assert_eq!((tcp.hits(), udp.hits(), unix.hits(), elsewhere.hits()), (0, 0, 0, 0));
    let control = field.sandbox.plain_python(&program);
    for name in ["tcp", "literal", "mapped", "any", "udp", "unix"] {
        control.says(&format!("REACHED {name}\n"));
    }
    let control = field.sandbox.plain_python(SOCKETS);
    assert_eq!(control.ok().out().matches("MADE").count(), 5, "{}", control.report());
}

#[test]
fn no_race_exchanges_what_is_connected() {
    need!(PYTHON);
    let field = field!();
    let host = Listener::tcp("127.0.0.1:0").unwrap();
    let program = "
import ctypes, os, socket, struct, sys, threading, time
sys.setswitchinterval(1e-6)
libc = ctypes.CDLL(None, use_errno=True)
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(4096)
def address(port): return struct.pack('=HH4s8x', 2, socket.htons(port), socket.inet_aton('127.0.0.1'))
mine, theirs = address(server.getsockname()[1]), address(HOST)
shared = ctypes.create_string_buffer(mine, 16)
other = socket.socketpair()[0]
stop = False
def swap():
    while not stop:
        ctypes.memmove(shared, theirs, 16); ctypes.memmove(shared, mine, 16)
def exchange(fd, spare):
    while not stop:
        os.dup2(other.fileno(), fd); os.dup2(spare, fd)
def accept():
    while not stop:
        c, _ = server.accept(); c.close()
threading.Thread(target=swap, daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
own = tried = 0
end = time.time() + 4
while time.time() < end:
    s = socket.socket()
    tried += 1
    if libc.connect(s.fileno(), shared, 16) == 0: own += 1
    s.close()
fd = os.dup(other.fileno()); spare = socket.socket()
threading.Thread(target=exchange, args=(fd, spare.fileno()), daemon=True).start()
end = time.time() + 2
while time.time() < end: libc.connect(fd, shared, 16)
stop = True
print('OWN' if own else 'NONE', tried, flush=True)
os._exit(0)";
    let program = program.replace("HOST", &host.port.to_string());
    field.python(&program).ok().says("OWN");
    assert_eq!(host.hits(), 0);
    field.sandbox.plain_python(&program).ok();
    assert_ne!(host.hits(), 0, "positive control");
}

#[test]
fn servers_of_its_own_work_on_the_loopback() {
    need!(PYTHON);
    let field = field!();
    let program = "
import os, socket, threading
def talk(s, family, to):
    c = socket.socket(family); c.connect(to); a, _ = s.accept(); a.sendall(b'x'); assert c.recv(1) == b'x'
four, six = socket.AF_INET, socket.AF_INET6
for family, address, names in (
    (four, '127.0.0.1', ['127.0.0.1', '0.0.0.0']), (four, '127.3.2.1', ['127.3.2.1']), (four, '0.0.0.0', ['127.0.0.1']),
    (six, '::1', ['::1', '::']), (six, '::', ['::1', '::ffff:127.0.0.1']), (six, 'only', ['::1'])):
    s = socket.socket(family)
    if address == 'only': s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1); address = '::'; family = None
    s.bind((address, 0)); s.listen(4)
    for name in names: talk(s, family or six, (name, s.getsockname()[1]))
    if address == '::' and family: talk(s, four, ('127.0.0.1', s.getsockname()[1]))
s = socket.socket(); s.listen(); assert s.getsockname()[0] == '127.0.0.1', s.getsockname(); talk(s, four, s.getsockname())
again = socket.socket()
try: again.bind(s.getsockname()); print('TWICE')
except OSError as e: assert e.errno == 98, e
# A server of a child, and one whose workers share a port.
port = s.getsockname()[1]; s.close()
try: socket.create_connection(('127.0.0.1', port)); print('CLOSED')
except ConnectionRefusedError: pass
shared = [socket.socket() for _ in range(2)]
for w in shared: w.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); w.bind(('127.0.0.1', port)); w.listen()
socket.create_connection(('127.0.0.1', port))
try: socket.socket().bind(('192.0.2.1', 0)); print('ELSEWHERE')
except OSError as e: assert e.errno == 99, e
print('LOOPBACK')";
    field.python(program).ok().says("LOOPBACK").never_says("TWICE").never_says("CLOSED").never_says("ELSEWHERE");
    let web = "python3 -m http.server 0 > log 2>&1 & for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3; port=$(sed -n 's/.*port \\([0-9]*\\).*/\\1/p' log); \
               [ -n \"$port\" ] && break; done; echo OWN-WEB > index.html; curl -sS http://127.0.0.1:$port/; kill $!";
    need!("curl");
    field.sandbox.run(["/bin/sh", "-c", &web.replace("python3 ", &format!("{PYTHON} -u "))]).says("OWN-WEB");
}

#[test]
fn a_port_that_the_host_takes_over_is_closed_again() {
    need!(PYTHON);
    let field = field!();
    let program = "
import os, socket, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', 0)); s.listen()
port = s.getsockname()[1]
c = socket.create_connection(('127.0.0.1', port)); print('OWN'); del c
s.close()
open('port.new', 'w').write(str(port)); os.rename('port.new', 'port')
while not os.path.exists('go'): time.sleep(0.02)
try: socket.create_connection(('127.0.0.1', port)); print('REACHED')
except ConnectionRefusedError: print('refused')";
    let mut child = field.python_until(program, "port");
    let host = Listener::tcp(&format!("127.0.0.1:{}", field.sandbox.read("port"))).unwrap();
    field.sandbox.write("go", "");
    assert!(child.wait().unwrap().success());
    assert_eq!((field.sandbox.read("out").as_str(), host.hits()), ("OWN\nrefused\n", 0));
}

/// Listening sockets of a process on the loopback.
fn listeners_of(pid: u32) -> Vec<SocketAddr> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: Vec<String> = links
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (at, state, inode) = (*fields.get(1)?, *fields.get(3)?, *fields.get(9)?);
        let port = u16::from_str_radix(at.split_once(':')?.1, 16).ok()?;
        (state == "0A" && sockets.iter().any(|it| it == inode)).then(|| SocketAddr::from(([127, 0, 0, 1], port)))
    };
    table.lines().filter_map(of).collect()
}

#[test]
fn nobody_else_gets_through_the_proxy() {
    need!(PYTHON);
    let field = field!();
    let program = "
import os, socket, time
open('ready', 'w').close()
while not os.path.exists('ports'): time.sleep(0.02)
for port in open('ports').read().split():
    try: socket.create_connection(('127.0.0.1', int(port))); print('REACHED')
    except ConnectionRefusedError: print('refused')
s = socket.create_connection(('198.18.0.1', 3128)); s.sendall(b'GET http://up.test/ HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n')
data = b''
while part := s.recv(4096): data += part
print(data.decode())";
    let mut child = field.python_until(program, "ready");
    let listeners = listeners_of(child.id());
    assert_eq!(listeners.len(), 3, "{listeners:?}");
    for at in &listeners {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(b"GET http://up.test/ HTTP/1.0\r\nHost: up.test\r\n\r\n");
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{at}: {}", String::from_utf8_lossy(&answer));
        assert!(!matches!(&ended, Err(e) if e.kind() == std::io::ErrorKind::WouldBlock), "{at} is not dropped");
    }
    let ports: Vec<String> = listeners.iter().map(|at| at.port().to_string()).collect();
    field.sandbox.write("ports.new", ports.join(" "));
    fs::rename(field.sandbox.workspace.join("ports.new"), field.sandbox.workspace.join("ports")).unwrap();
    assert!(child.wait().unwrap().success());
    let said = field.sandbox.read("out");
    assert!(said.contains("HELLO-WEB") && !said.contains("REACHED"), "positive control: {said}");
}

#[test]
fn connects_behave_as_ever() {
    need!(PYTHON);
    let field = field!();
    let program = "
import ctypes, errno, os, select, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(64); at = server.getsockname()
# Non-blocking.
s = socket.socket(); s.setblocking(False); assert s.connect_ex(at) == errno.EINPROGRESS
assert select.select([], [s], [], 5)[1] and s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
assert s.connect_ex(at) in (0, errno.EISCONN); assert s.connect_ex(at) == errno.EISCONN
e = select.epoll(); s = socket.socket(); s.setblocking(False); e.register(s, select.EPOLLOUT); s.connect_ex(('up.test', 80)); assert e.poll(5)
# Wrong arguments.
def raw(fd, data, length=16):
    return ctypes.get_errno() if libc.connect(fd, data, length) else 0
good = struct.pack('=HH4s8x', 2, socket.htons(at[1]), socket.inet_aton('127.0.0.1'))
assert raw(999, good) == errno.EBADF and raw(0, good) == errno.ENOTSOCK
s = socket.socket(); fd = s.fileno()
assert raw(fd, good, 3) == errno.EINVAL and raw(fd, good, 200) == errno.EINVAL and raw(fd, None, 16) == errno.EFAULT
assert raw(fd, b'\\n\\0' + good[2:]) == errno.EAFNOSUPPORT
assert raw(fd, good) == 0 and raw(fd, good) == errno.EISCONN
# AF_UNSPEC dissolves, and the socket can be used again, for another place.
assert raw(fd, b'\\0\\0' + bytes(14)) == 0 and raw(fd, good) == 0
assert raw(fd, b'\\0\\0' + bytes(14)) == 0; s.connect(('up.test', 80)); s.sendall(b'GET / HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n'); assert s.recv(4)
# dup, fork and vfork share it.
s = socket.socket(); d = s.dup(); d.connect(at); assert s.getpeername() == at
s = socket.socket(); pid = os.fork()
if not pid: s.connect(at); os._exit(0)
assert os.waitpid(pid, 0)[1] == 0 and s.getpeername() == at
subprocess.run([sys.executable, '-c', 'import socket; socket.create_connection((%r, %d))' % at], check=True)
# A queue that is full: others go on, a signal ends the wait, so does a time limit, and so does the end of the process.
full = socket.socket(); full.bind(('127.0.0.1', 0)); full.listen(0); crowd = []
while True:
    c = socket.socket(); c.setblocking(False); c.connect_ex(full.getsockname()); crowd.append(c)
    if not select.select([], [c], [], 0.3)[1]: break
start = time.time()
s = socket.socket(); s.settimeout(0.5)
try: s.connect(full.getsockname()); print('NOT FULL')
except TimeoutError: pass
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', 0, 300000)); code = s.connect_ex(full.getsockname()); assert code == errno.EINPROGRESS, code
class Woken(Exception): pass
def wake(*_): raise Woken
signal.signal(signal.SIGALRM, wake); signal.setitimer(signal.ITIMER_REAL, 0.4)
try: socket.socket().connect(full.getsockname()); print('NOT FULL')
except Woken: pass
assert time.time() - start < 6, time.time() - start
pid = os.fork()
if not pid: socket.socket().connect(full.getsockname()); os._exit(0)
time.sleep(0.3); socket.create_connection(at); os.kill(pid, 9); assert os.waitpid(pid, 0)[1] == 9
# Many at once.
done = []
def one(): s = socket.create_connection(('up.test', 80), 50); s.sendall(b'GET / HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n'); done.append(s.recv(8))
threads = [threading.Thread(target=one) for _ in range(40)]
for t in threads: t.start()
for t in threads: t.join()
assert len(done) == 40, len(done)
for _ in range(3000):
    s = socket.socket(); s.setblocking(False); s.connect_ex(('192.0.2.1', 80)); s.close()
s = socket.create_connection(('up.test', 80), 50); s.sendall(b'GET / HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n'); assert s.recv(8)
print('END')";
    field.python(program).ok().says("END").never_says("NOT FULL");
}

#[test]
fn within_another_one_it_is_lost_by_name() {
    let field = field!();
    let program = binary();
    let sandbox = field.sandbox.flags([Path::new("--ro"), program.parent().unwrap()]);
    let workspace = sandbox.workspace.display().to_string();
    let inner = |more: &[&str]| {
        let fixed = [program.to_str().unwrap(), "run", "--tier", "landlock", "--workspace", &workspace];
        run_to_end(&mut sandbox.inside([&fixed[..], more, &["--", "/bin/echo", "RAN"]].concat()))
    };
    let with_routes = inner(&["--allow-host", "other.test"]);
    with_routes.exits(125).never_says("RAN\n");
    assert!(with_routes.err().contains("network-mediated"), "{}", with_routes.report());
    drop(field.web);
}

#[test]
fn a_port_of_the_host_is_reached_when_it_is_opened_by_name() {
    need!("curl", PYTHON);
    let field = field!();
    let url = format!("http://127.0.0.1:{}/", field.web.port);
    field.sandbox.run(["curl", "-sS", &url]).exits(7);
    let sandbox = field.sandbox.flags(["--connect", &field.web.port.to_string()]);
    sandbox.run(["curl", "-sS", &url]).ok().says("HELLO-WEB");
    drop(field.web);
}

#[test]
fn commands_of_a_session_reach_it_too() {
    need!("curl", PYTHON);
    let field = field!();
    let run = field.sandbox.root().join("run");
    fs::create_dir(&run).unwrap();
    let session = |arguments: &[&str], flags: bool| {
        let mut command = field.sandbox.hermes();
        command.env("XDG_RUNTIME_DIR", &run).arg("session").args(arguments);
        if flags {
            command.args(LANDLOCK).args(root_accepts()).arg("--profile").arg(field.sandbox.outside.join("policy.toml"));
            command.arg("--workspace").arg(&field.sandbox.workspace);
        }
        run_to_end(&mut command)
    };
    session(&["start", "s"], true).ok();
    for _ in 0..2 {
        session(&["exec", "s", "--", "curl", "-sS", "--noproxy", "*", "https://up.test/"], false).ok().says("HELLO-WEB");
    }
    // Other routes, on a port that none led to.
    let curl = ["exec", "s", "--", "curl", "-sS", "--noproxy", "*", "http://up.test:8080/"];
    session(&curl, false).exits(7);
    let more = field.sandbox.read(field.sandbox.outside.join("policy.toml")).replace("[80, 443]", "[80, 443, 8080]");
    let more = field.sandbox.write(field.sandbox.outside.join("more.toml"), more);
    let workspace = field.sandbox.workspace.display().to_string();
    session(&["policy", "set", "s", "--profile", more.to_str().unwrap(), "--workspace", &workspace], false).ok();
    session(&curl, false).ok().says("HELLO-WEB");
    session(&["stop", "s"], false).ok();
}

/// Runs what follows with `pidfd_getfd` refused, as in a container with Docker's default filter.
const WITHOUT_BORROWING: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {'x86_64': 438, 'aarch64': 438}[os.uname().machine]
code = b''.join(struct.pack('=HBBI', *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)))
class Program(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_char_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code))) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])";

#[test]
fn where_descriptors_cannot_be_borrowed_sockets_are_made() {
    need!(PYTHON);
    let field = field!();
    let host = Listener::tcp("127.0.0.1:0").unwrap();
    let program = "
import asyncio, errno, os, select, socket, subprocess, sys, urllib.request
assert b'HELLO-WEB' in urllib.request.urlopen('https://up.test/').read()
assert b'HELLO-WEB' in urllib.request.build_opener(urllib.request.ProxyHandler({})).open('http://up.test/').read()
async def main():
    reader, writer = await asyncio.open_connection('up.test', 80)
    writer.write(b'GET / HTTP/1.0\\r\\nHost: up.test\\r\\n\\r\\n')
    assert b'HELLO-WEB' in await reader.read()
asyncio.run(main())
# A free port is looked for, and taken again.
s = socket.socket(); s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]; s.close()
s = socket.socket(); s.bind(('127.0.0.1', port)); s.listen()
c = socket.create_connection(('127.0.0.1', port)); a, _ = s.accept(); a.sendall(b'x'); a.close(); assert c.recv(9) == b'x' and c.recv(9) == b''
assert s.get_inheritable() is False
assert socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK).getblocking() is False
s.close()
try: socket.create_connection(('127.0.0.1', port)); print('CLOSED')
except ConnectionRefusedError: pass
for _ in range(3000): socket.socket().close()
s = socket.socket(); s.setblocking(False); assert s.connect_ex(('up.test', 80)) == errno.EINPROGRESS
assert select.select([], [s], [], 5)[1] and s.connect_ex(('up.test', 80)) == errno.EISCONN
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    try: socket.socket(socket.AF_INET, kind); print('MADE')
    except OSError: pass
try: socket.create_connection(('127.0.0.1', HOST)); print('REACHED')
except ConnectionRefusedError: pass
print('END')";
    let program = program.replace("HOST", &host.port.to_string());
    let inside = field.sandbox.inside([PYTHON, "-c", &program]);
    // Another cache: the machine is another one under the filter.
    let mut command = field.sandbox.plain_command(PYTHON);
    command.env("XDG_CACHE_HOME", field.sandbox.outside.join("cache"));
    command.args(["-c", WITHOUT_BORROWING]).arg(inside.get_program()).args(inside.get_args());
    run_to_end(&mut command).ok().says("END").never_says("CLOSED").never_says("MADE").never_says("REACHED");
    assert_eq!(host.hits(), 0);
    let plan = ["plan", "--json", "--tier", "landlock", "--allow-host", "other.test", "--workspace", "."];
    let mut command = field.sandbox.plain_command(PYTHON);
    command.env("XDG_CACHE_HOME", field.sandbox.outside.join("cache"));
    command.args(["-c", WITHOUT_BORROWING]).arg(binary()).args(plan);
    let plan = run_to_end(&mut command).out();
    assert!(plan.split_whitespace().collect::<String>().contains("\"make_sockets\":true"), "{plan}");
}
