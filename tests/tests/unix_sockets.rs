//! Unix sockets: those of the host stay closed, those of the sandbox work.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;
use std::path::Path;

use hermes_tests::{Listener, PYTHON, Sandbox, need};

/// Connects to each path by stream and prints the outcome.
fn connect(paths: &[&Path]) -> String {
    let list: Vec<String> = paths.iter().map(|path| format!("'{}'", path.display())).collect();
    format!(
        "import socket\nfor p in [{}]:\n s=socket.socket(socket.AF_UNIX)\n try: s.connect(p); print('REACHED', p)\n except OSError as e: print('refused', e.errno)\nprint('END')",
        list.join(",")
    )
}

#[test]
fn every_name_of_a_host_socket_is_refused() {
    need!(PYTHON);
    for net in ["off", "host"] {
        let sandbox = Sandbox::new().flags(["--net", net]);
        let real = sandbox.workspace.join("d/real.sock");
        std::fs::create_dir(sandbox.workspace.join("d")).unwrap();
        let listener = Listener::unix(&real);
        let link = sandbox.workspace.join("link.sock");
        symlink(&real, &link).unwrap();
        let hard = sandbox.workspace.join("hard.sock");
        std::fs::hard_link(&real, &hard).unwrap();
        let relative = Path::new("d/../d/real.sock");
        let by_fd = sandbox.workspace.join("../ws/d/real.sock");
        let program = connect(&[&real, &link, &hard, relative, &by_fd]);
        sandbox.python(&program).ok().says("END").never_says("REACHED");
        // A new name made inside is the same socket.
        sandbox
            .sh(&format!(
                "mv d moved; ln hard.sock again.sock; {PYTHON} -c \"{}\"",
                connect(&[Path::new("moved/real.sock"), Path::new("again.sock")]).replace('"', "'")
            ))
            .says("END")
            .never_says("REACHED");
        assert_eq!(listener.hits(), 0, "net {net}");
        sandbox.plain_python(&connect(&[&hard])).says("REACHED");
    }
}

#[test]
fn a_socket_made_while_the_sandbox_lives_is_refused_too() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let path = sandbox.workspace.join("late.sock");
    let program = format!(
        "import os,time\nopen('ready','w').close()\nwhile not os.path.exists('go'): time.sleep(0.02)\n{}",
        connect(&[&path])
    );
    let out = sandbox.workspace.join("out");
    let mut child = sandbox.inside([PYTHON, "-c", &program]).stdout(std::fs::File::create(&out).unwrap()).spawn().unwrap();
    assert!(hermes_tests::wait_until(20, || sandbox.workspace.join("ready").exists()));
    let listener = Listener::unix(&path);
    sandbox.write("go", "");
    child.wait().unwrap();
    assert!(sandbox.read("out").contains("refused"), "{}", sandbox.read("out"));
    assert_eq!(listener.hits(), 0);
}

#[test]
fn sockets_bound_inside_work_everywhere() {
    need!(PYTHON);
    let program = "
import os, socket, threading
a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for path in PLACES:
        s = socket.socket(socket.AF_UNIX, kind); s.bind(path); s.listen(5)
        c = socket.socket(socket.AF_UNIX, kind); c.settimeout(10); c.connect(path)
        d, _ = s.accept(); c.send(b'hi'); assert d.recv(2) == b'hi'
        # A descriptor over the socket.
        r, w = os.pipe(); socket.send_fds(c, [b'f'], [w]); _, fds, _, _ = socket.recv_fds(d, 1, 1); os.write(fds[0], b'z'); assert os.read(r, 1) == b'z'
        s.close(); c.close(); d.close()
        if path[0] != '\\0': os.unlink(path)
print('SOCKETS-OK')";
    let own = "'/tmp/tmp.sock', os.path.expanduser('~/home.sock')";
    let all = format!("{own}, 'ws.sock', '\\0abstract-inside'");
    Sandbox::new().python(&program.replace("PLACES", &format!("({all})"))).ok().says("SOCKETS-OK");
    Sandbox::new().flags(["--net", "host"]).python(&program.replace("PLACES", &format!("({own})"))).ok().says("SOCKETS-OK");
    // Without a network namespace of its own, "inside" cannot be told from "outside" in a tree that the host shares.
    let shared = Sandbox::new().flags(["--net", "host"]).python(&program.replace("PLACES", "('ws.sock',)"));
    if shared.err().contains("PermissionError") {
        hermes_tests::skip!("known gap: with --net host, sockets that were bound in the workspace are refused");
    }
    shared.ok().says("SOCKETS-OK");
}

#[test]
fn many_connections_at_once_are_served() {
    need!(PYTHON);
    let program = "
import socket, threading
s = socket.socket(socket.AF_UNIX); s.bind('busy.sock'); s.listen(128)
def serve():
    while True:
        c, _ = s.accept(); c.sendall(c.recv(8)); c.close()
threading.Thread(target=serve, daemon=True).start()
def visit(n):
    for i in range(50):
        c = socket.socket(socket.AF_UNIX); c.connect('busy.sock'); c.sendall(b'%08d' % i); assert c.recv(8) == b'%08d' % i; c.close()
    done.append(n)
done = []
threads = [threading.Thread(target=visit, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(done) == 8; print('SERVED')";
    Sandbox::new().python(program).ok().says("SERVED");
}

#[test]
fn connect_keeps_its_errors_and_its_non_blocking_form() {
    need!(PYTHON);
    let program = "
import errno, os, socket
def error(path):
    s = socket.socket(socket.AF_UNIX)
    try: s.connect(path); return 0
    except OSError as e: return e.errno
open('plain', 'w').close()
assert error('absent') == errno.ENOENT, error('absent')
assert error('plain') == errno.ECONNREFUSED, error('plain')
s = socket.socket(socket.AF_UNIX); s.bind('dead'); s.close()
assert error('dead') == errno.ECONNREFUSED, error('dead')
s = socket.socket(); s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]; s.close()
c = socket.socket()
assert c.connect_ex(('127.0.0.1', port)) == errno.ECONNREFUSED
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(1)
c = socket.socket(); c.setblocking(False)
assert c.connect_ex(s.getsockname()) in (0, errno.EINPROGRESS)
import select; assert select.select([], [c], [], 5)[1]
print('ERRORS-OK')";
    let sandbox = Sandbox::new();
    sandbox.plain_python(program).ok().says("ERRORS-OK");
    sandbox.sh("rm -f dead plain").ok();
    sandbox.python(program).ok().says("ERRORS-OK");
}

#[test]
fn datagrams_to_a_host_socket_are_refused() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let path = sandbox.workspace.join("log.sock");
    let listener = Listener::unix_datagram(&path);
    let program = format!(
        "import socket\ntry:\n s=socket.socket(socket.AF_UNIX,socket.SOCK_DGRAM); s.sendto(b'x','{0}')\nexcept OSError: print('refused')\n\
         try:\n a,b=socket.socketpair(socket.AF_UNIX,socket.SOCK_DGRAM); a.sendto(b'x','{0}')\nexcept OSError: print('refused')",
        path.display()
    );
    sandbox.python(&program).says("refused");
    assert_eq!(listener.hits(), 0);
    sandbox.plain_python(&program);
    assert!(listener.hits() >= 1, "positive control");
}

#[test]
fn an_explicit_grant_opens_exactly_that_socket() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let (open, closed) = (sandbox.outside.join("open.sock"), sandbox.outside.join("closed.sock"));
    let (yes, no) = (Listener::unix(&open), Listener::unix(&closed));
    let profile = sandbox.write(
        sandbox.outside.join("p.toml"),
        format!("schema = 1\nincludes = [\"agent\"]\n[unix]\nconnect = [\"{}\"]\n", open.display()),
    );
    let sandbox = sandbox.flags([Path::new("--profile"), &profile]);
    sandbox
        .python(&connect(&[&open, &closed]))
        .ok()
        .says(&format!("REACHED {}", open.display()))
        .never_says(&format!("REACHED {}", closed.display()));
    assert_eq!((yes.hits(), no.hits()), (1, 0));
}

#[test]
fn the_agents_socket_of_ssh_is_out_of_reach() {
    need!(PYTHON, "ssh-agent");
    let sandbox = Sandbox::new();
    let path = sandbox.outside.join("agent.sock");
    let listener = Listener::unix(&path);
    let sandbox = sandbox.env("SSH_AUTH_SOCK", &path);
    sandbox.sh("echo \"[$SSH_AUTH_SOCK]\"").ok().says("[]");
    sandbox.python(&connect(&[&path])).ok().never_says("REACHED");
    assert_eq!(listener.hits(), 0);
}
