//! What the job of each part does.

mod races;
mod waits;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use nix::sys::socket::{self, Backlog, SockFlag, UnixAddr};

use super::*;

type Answer = Result<(), Errno>;

pub(super) fn report(what: &str, good: bool) -> i32 {
    println!("{}: {what}", if good { "ok" } else { "FAIL" });
    i32::from(!good)
}

pub(super) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub(super) fn listen_abstract(name: &[u8]) -> OwnedFd {
    let fd = open(Family::Unix, SockType::Stream);
    socket::bind(fd.as_raw_fd(), &UnixAddr::new_abstract(name.strip_prefix(b"\0").unwrap()).unwrap()).unwrap();
    socket::listen(&fd, Backlog::new(5).unwrap()).unwrap();
    fd
}

pub(super) fn open(family: Family, kind: SockType) -> OwnedFd {
    socket::socket(family, kind, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// A bound socket, listening if its kind can.
fn bind(kind: SockType, path: &Path, backlog: i32) -> OwnedFd {
    let fd = open(Family::Unix, kind);
    socket::bind(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    if kind != SockType::Datagram {
        socket::listen(&fd, Backlog::new(backlog).unwrap()).unwrap();
    }
    fd
}

fn address(path: &[u8]) -> Vec<u8> {
    let mut bytes = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes().to_vec();
    bytes.extend_from_slice(path);
    bytes
}

fn loopback(port: u16) -> Vec<u8> {
    let mut bytes = (libc::AF_INET as libc::sa_family_t).to_ne_bytes().to_vec();
    bytes.extend(port.to_be_bytes());
    bytes.extend([127, 0, 0, 1]);
    bytes.extend([0; 8]);
    bytes
}

fn to(fd: &OwnedFd, path: &Path) -> Answer {
    connect(fd.as_fd(), &address(path.as_os_str().as_bytes()))
}

fn dial(kind: SockType, path: impl AsRef<Path>) -> Answer {
    to(&open(Family::Unix, kind), path.as_ref())
}

/// The raw call, for arguments that no slice can have.
fn raw(fd: i32, address: usize, length: u32) -> Answer {
    // SAFETY: the kernel checks the address; it only reads.
    Errno::result(unsafe { libc::connect(fd, address as *const libc::sockaddr, length) }).map(drop)
}

struct Checks {
    failed: i32,
}

impl Checks {
    fn is(&mut self, what: &str, got: Answer, want: Answer) {
        let detail = if got == want { String::new() } else { format!(": {got:?} instead of {want:?}") };
        self.failed += report(&format!("{what}{detail}"), got == want);
    }

    fn holds(&mut self, what: &str, good: bool) {
        self.failed += report(what, good);
    }
}

pub(super) fn act(part: &str, stage: &Stage, port: u16, hand_over: &mut dyn FnMut()) -> i32 {
    let mut checks = Checks { failed: 0 };
    match part {
        "rules" => rules(&mut checks, stage, hand_over),
        "errors" => errors(&mut checks, stage, hand_over),
        "waiting" => waits::waiting(&mut checks, stage, hand_over),
        "inet" => waits::inet(&mut checks, hand_over),
        "host-network" => host_network(&mut checks, stage, port, hand_over),
        "race-socket" => races::race_socket(&mut checks, stage, hand_over),
        "race-address" => races::race_address(&mut checks, stage, hand_over),
        "end" => {
            hand_over();
            child(|| {
                std::thread::sleep(Duration::from_millis(100));
                0
            });
        }
        "costs-plain" => races::costs(stage, &mut || {}),
        "costs" => races::costs(stage, hand_over),
        _ => checks.holds("a known part", false),
    }
    checks.failed
}

const OK: Answer = Ok(());
const STREAM: SockType = SockType::Stream;

fn rules(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
    let p = |name: &str| stage.path(name);
    let listener = bind(STREAM, &p("in.sock"), 100);
    let _seqpacket = bind(SockType::SeqPacket, &p("in-seq.sock"), 5);
    let datagram = bind(SockType::Datagram, &p("in-dgram.sock"), 0);
    let _abstract = listen_abstract(b"\0own");
    drop(bind(STREAM, &p("stale.sock"), 1));
    std::os::unix::fs::symlink(p("host.sock"), p("to-host")).unwrap();
    std::os::unix::fs::symlink(p("in.sock"), p("to-in")).unwrap();
    std::fs::hard_link(p("host.sock"), p("linked-host")).unwrap();
    std::fs::hard_link(p("in.sock"), p("linked-in")).unwrap();
    let _long = bind(STREAM, &p("private/s"), 100);
    checks.is("control: the host's socket is reachable without the broker", dial(STREAM, p("host.sock")), OK);
    hand_over();

    let refused = Err(Errno::EACCES);
    checks.is("host stream", dial(STREAM, p("host.sock")), refused);
    checks.is("host datagram", dial(SockType::Datagram, p("host-dgram.sock")), refused);
    checks.is("host by symlink", dial(STREAM, p("to-host")), refused);
    checks.is("host by hard link", dial(STREAM, p("linked-host")), refused);
    checks.is("host abstract", connect(open(Family::Unix, STREAM).as_fd(), &address(&host_name())), Err(Errno::ECONNREFUSED));
    checks.is("stale host socket", dial(STREAM, p("host-stale.sock")), Err(Errno::ECONNREFUSED));
    checks.is("granted host socket", dial(STREAM, p("granted.sock")), OK);
    checks.is("granted host socket again", dial(STREAM, p("granted.sock")), OK);

    checks.is("own stream", dial(STREAM, p("in.sock")), OK);
    checks.is("own seqpacket", dial(SockType::SeqPacket, p("in-seq.sock")), OK);
    checks.is("own by symlink", dial(STREAM, p("to-in")), OK);
    checks.is("own by hard link", dial(STREAM, p("linked-in")), OK);
    checks.is("own abstract", connect(open(Family::Unix, STREAM).as_fd(), &address(b"\0own")), OK);
    checks.is("own on a tmpfs", dial(STREAM, p("private/s")), OK);
    checks.is("stale own socket", dial(STREAM, p("stale.sock")), Err(Errno::ECONNREFUSED));
    checks.is("own of another type", dial(STREAM, p("in-dgram.sock")), Err(Errno::EPROTOTYPE));
    checks.is("own from a thread", std::thread::scope(|s| s.spawn(|| dial(STREAM, p("in.sock"))).join().unwrap()), OK);

    let fd = open(Family::Unix, SockType::Datagram);
    checks.is("own datagram", to(&fd, &p("in-dgram.sock")), OK);
    let arrived = nix::unistd::write(&fd, b"x").is_ok() && nix::unistd::read(&datagram, &mut [0; 8]) == Ok(1);
    checks.holds("a datagram arrives", arrived);
    checks.is("dissolve a datagram association", connect(fd.as_fd(), &(libc::AF_UNSPEC as u16).to_ne_bytes()), OK);
    checks.is("it is dissolved", nix::unistd::write(&fd, b"x").map(drop), Err(Errno::ENOTCONN));

    std::env::set_current_dir(&stage.dir).unwrap();
    let up = Path::new("..").join(stage.dir.file_name().unwrap()).join("in.sock");
    checks.is("own, relative", dial(STREAM, "in.sock"), OK);
    checks.is("own, by ../", dial(STREAM, up), OK);
    checks.is("host, relative", dial(STREAM, "host.sock"), refused);
    let dir = std::fs::File::open(&stage.dir).unwrap();
    let socket = nix::fcntl::open(&p("in.sock"), nix::fcntl::OFlag::O_PATH, nix::sys::stat::Mode::empty()).unwrap();
    let n = dir.as_raw_fd();
    checks.is("own, by a directory's descriptor", dial(STREAM, format!("/proc/self/fd/{n}/in.sock")), OK);
    checks.is("own, by the thread's descriptor", dial(STREAM, format!("/proc/thread-self/fd/{n}/in.sock")), OK);
    checks.is("own, by its descriptor", dial(STREAM, format!("/proc/self/fd/{}", socket.as_raw_fd())), OK);
    checks.is("own, by the working directory", dial(STREAM, "/proc/self/cwd/in.sock"), OK);
    checks.is("host, by a directory's descriptor", dial(STREAM, format!("/proc/self/fd/{n}/host.sock")), refused);
    let cwd = std::thread::scope(|s| {
        let elsewhere = || {
            unshare(CloneFlags::CLONE_FS).unwrap();
            std::env::set_current_dir("/").unwrap();
            dial(STREAM, "in.sock")
        };
        s.spawn(elsewhere).join().unwrap()
    });
    checks.is("a thread's own working directory counts", cwd, Err(Errno::ENOENT));

    let fd = open(Family::Unix, STREAM);
    checks.is("own once more", to(&fd, &p("to-in")), OK);
    let name = socket::getpeername::<UnixAddr>(fd.as_raw_fd()).unwrap();
    checks.holds("the peer has the name that it was bound by", name.path() == Some(p("in.sock").as_path()));
    checks.is("connect a connected socket", to(&fd, &p("in.sock")), Err(Errno::EISCONN));
    drop(listener);
    checks.is("own after its server closed", dial(STREAM, p("in.sock")), Err(Errno::ECONNREFUSED));
    std::fs::remove_file(p("in.sock")).unwrap();
    let _again = bind(STREAM, &p("in.sock"), 5);
    checks.is("own, bound again", dial(STREAM, p("in.sock")), OK);
    std::fs::remove_file(p("in.sock")).unwrap();
    std::fs::rename(p("linked-host"), p("in.sock")).unwrap();
    checks.is("the host's socket under the name of an own one", dial(STREAM, p("in.sock")), refused);

    in_the_overlay(checks, stage);
    let [unix, udp] = &stage.foreign;
    checks.is("a unix socket of a network outside", to(unix, &p("private/s")), refused);
    checks.is("a UDP socket of a network outside", connect(udp.as_fd(), &loopback(9)), refused);
    checks.failed += wait_for(child(|| nested_network(stage)));
    checks.holds("a job that is not dumpable reaches its own socket", exec(&format!("undumpable:{}", p("private/s").display())));
    std::os::unix::fs::symlink("/private/s", p("rooted")).unwrap();
    checks.holds("a job in another root", exec(&format!("nested:{}", stage.dir.display())));
}

/// On an overlay st_dev is not the superblock's, and the sockets of its lower layer are other files than the host's.
fn in_the_overlay(checks: &mut Checks, stage: &Stage) {
    if !stage.path("overlay/host.sock").exists() {
        println!("# skipped: no overlay in a user namespace");
        return;
    }
    let _own = bind(STREAM, &stage.path("overlay/own.sock"), 5);
    checks.is("own on an overlay", dial(STREAM, stage.path("overlay/own.sock")), OK);
    checks.is("host on an overlay's lower layer", dial(STREAM, stage.path("overlay/host.sock")), Err(Errno::ECONNREFUSED));
    checks.is("host on the layer itself", dial(STREAM, stage.path("lower/host.sock")), Err(Errno::EACCES));
}

/// The refusals that the broker told.
pub(super) fn told(stage: &Stage, refusals: &[Refusal]) -> i32 {
    let host = stage.path("host.sock");
    let of_path = |r: &Refusal| r.reason == Reason::HostSocket && r.name == host.as_os_str().as_bytes() && r.tid > 0;
    let other = |r: &Refusal| matches!(r.reason, Reason::AbstractName | Reason::ForeignNetwork);
    report("refusals are told", refusals.iter().any(of_path) && refusals.iter().any(other))
}

/// Plays a part in a program of its own, still under the filter.
fn exec(part: &str) -> bool {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "local::sys::notify::tests::part", "--ignored", "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .status()
        .unwrap()
        .success()
}

/// A network inside the sandbox: what is made there is the job's own, what was handed in stays foreign.
fn nested_network(stage: &Stage) -> i32 {
    let mut checks = Checks { failed: 0 };
    let before = open(Family::Unix, STREAM);
    let spaces = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET;
    let (uid, gid) = (getuid(), getgid());
    for depth in ["one network down", "two networks down"] {
        let mut is = |what: &str, got, want| checks.is(&format!("{what}, {depth}"), got, want);
        is("namespaces inside", unshare(spaces), OK);
        let write = |name: &str, text: String| std::fs::write(format!("/proc/self/{name}"), text).is_ok();
        let named = write("setgroups", "deny".into())
            && write("uid_map", format!("{uid} {uid} 1"))
            && write("gid_map", format!("{gid} {gid} 1"));
        raise_loopback();
        let [unix, udp] = &stage.foreign;
        let refused = Err(Errno::EACCES);
        is("a unix socket of a network outside", to(unix, &stage.path("private/s")), refused);
        is("a UDP socket of a network outside", connect(udp.as_fd(), &loopback(9)), refused);
        is("dissolve a UDP socket of a network outside", connect(udp.as_fd(), &[0; 16]), refused);
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        is("own TCP", connect(open(Family::Inet, STREAM).as_fd(), &loopback(port)), OK);
        let _abstract = listen_abstract(b"\0nested");
        is("own abstract", connect(open(Family::Unix, STREAM).as_fd(), &address(b"\0nested")), OK);
        is("abstract of the sandbox", connect(open(Family::Unix, STREAM).as_fd(), &address(b"\0own")), Err(Errno::ECONNREFUSED));
        is("by path to the sandbox", dial(STREAM, stage.path("private/s")), OK);
        is("host by path", dial(STREAM, stage.path("host.sock")), refused);
        if !named {
            println!("# skipped: namespaces below {depth} (root without CAP_SETFCAP gets no name in the first ones)");
            break;
        }
    }
    checks.is("a socket of the sandbox's network, from a nested one", to(&before, &stage.path("private/s")), OK);
    checks.failed
}

/// A sandbox inside the sandbox, with the shared directory as its root.
pub(super) fn nested(dir: &Path) -> i32 {
    let mut checks = Checks { failed: 0 };
    checks.holds("namespaces inside", unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).is_ok());
    nix::unistd::chroot(dir).unwrap();
    std::env::set_current_dir("/private").unwrap();
    checks.is("own, absolute in another root", dial(STREAM, "/private/s"), OK);
    checks.is("own, by an absolute symlink in another root", dial(STREAM, "/rooted"), OK);
    checks.is("own, above another root", dial(STREAM, "/../../private/s"), OK);
    checks.is("own, relative in another root", dial(STREAM, "s"), OK);
    checks.is("host, absolute in another root", dial(STREAM, "/host.sock"), Err(Errno::EACCES));
    checks.is("outside of the working directory in another root", dial(STREAM, "../private/s"), Err(Errno::EACCES));
    checks.is("missing in another root", dial(STREAM, "/tmp"), Err(Errno::ENOENT));
    checks.failed
}

pub(super) fn undumpable(path: &str) -> i32 {
    nix::sys::prctl::set_dumpable(false).unwrap();
    report("connect while not dumpable", dial(STREAM, path) == OK)
}

fn errors(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
    // The same calls without and with the broker; the answers must be the same.
    let listener = bind(STREAM, &stage.path("in.sock"), 100);
    std::fs::write(stage.path("file"), b"").unwrap();
    std::os::unix::fs::symlink("loop", stage.path("loop")).unwrap();
    let native = probe_errors(stage);
    hand_over();
    for ((what, want), (_, got)) in native.into_iter().zip(probe_errors(stage)) {
        checks.is(&format!("{what} ({want:?})"), got, want);
    }
    drop(listener);
}

fn probe_errors(stage: &Stage) -> Vec<(&'static str, Answer)> {
    let p = |name: &str| stage.path(name);
    let unix = || open(Family::Unix, STREAM);
    let good = address(p("in.sock").as_os_str().as_bytes());
    let n = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
    let plain = std::fs::File::open(p("file")).unwrap();
    let o_path = nix::fcntl::open(&stage.dir, nix::fcntl::OFlag::O_PATH, nix::sys::stat::Mode::empty()).unwrap();
    let mut long = address(&[b'/'; 200]);
    long[2..2 + p("in.sock").as_os_str().len()].copy_from_slice(p("in.sock").as_os_str().as_bytes());
    let mut full = good.clone();
    full.resize(110, b'/');
    let mut followed = good.clone();
    followed.extend(b"\0and more");
    let unspecified = [0u8; 16];
    let at = |bytes: &[u8]| bytes.as_ptr() as usize;
    let ask = |fd: OwnedFd, bytes: &[u8]| connect(fd.as_fd(), bytes);
    vec![
        ("a path that ends with the address", ask(unix(), &good)),
        ("a path with a NUL and more", ask(unix(), &followed)),
        ("an address of 110 bytes", ask(unix(), &full)),
        ("an address of 111 bytes", ask(unix(), &long[..111])),
        ("an address of 128 bytes", ask(unix(), &long[..128])),
        ("an address of 129 bytes", ask(unix(), &long[..129])),
        ("an address of no bytes", ask(unix(), &[])),
        ("an address of one byte", ask(unix(), &[1])),
        ("a family alone", ask(unix(), &good[..2])),
        ("an empty abstract name", ask(unix(), &address(b"\0"))),
        ("an unknown abstract name", ask(unix(), &address(b"\0nobody"))),
        ("no address family", ask(unix(), &unspecified)),
        ("an inet address on a unix socket", ask(unix(), &loopback(9))),
        ("a negative length", raw(unix().as_raw_fd(), at(&good), u32::MAX)),
        ("a bad pointer", raw(unix().as_raw_fd(), 8, n(&good))),
        ("a pointer to nothing, no length", raw(unix().as_raw_fd(), 0, 0)),
        ("a bad descriptor", raw(9999, at(&good), n(&good))),
        ("a bad descriptor and a bad pointer", raw(9999, 8, 20)),
        ("descriptor -1", raw(-1, at(&good), n(&good))),
        ("a file as the socket", raw(plain.as_raw_fd(), at(&good), n(&good))),
        ("an O_PATH descriptor as the socket", raw(o_path.as_raw_fd(), at(&good), n(&good))),
        ("a missing file", dial(STREAM, p("nothing"))),
        ("a missing directory", dial(STREAM, p("nothing/x"))),
        ("a file as a directory", dial(STREAM, p("file/x"))),
        ("a socket as a directory", dial(STREAM, p("in.sock/"))),
        ("a regular file", dial(STREAM, p("file"))),
        ("a directory", dial(STREAM, &stage.dir)),
        ("the root", dial(STREAM, "/")),
        ("a symlink to itself", dial(STREAM, p("loop"))),
        ("a socket of no file", dial(STREAM, format!("/proc/self/fd/{}", unix().as_raw_fd()))),
        ("a closed descriptor's link", dial(STREAM, "/proc/self/fd/9999")),
        ("a unix address on a TCP socket", to(&open(Family::Inet, STREAM), &p("host.sock"))),
        ("a unix address on a TCP6 socket", to(&open(Family::Inet6, STREAM), &p("host.sock"))),
        ("a unix address on a UDP socket", to(&open(Family::Inet, SockType::Datagram), &p("host.sock"))),
        ("nobody listens on the port", ask(open(Family::Inet, STREAM), &loopback(9))),
        ("UDP to the port", ask(open(Family::Inet, SockType::Datagram), &loopback(9))),
        ("dissolve UDP", ask(open(Family::Inet, SockType::Datagram), &unspecified)),
        ("dissolve TCP", ask(open(Family::Inet, STREAM), &unspecified)),
        ("a short inet address", ask(open(Family::Inet, STREAM), &loopback(9)[..8])),
        ("no route", ask(open(Family::Inet, STREAM), &[2, 0, 0, 9, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("netlink", ask(open(Family::Netlink, SockType::Raw), &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("netlink, another process", ask(open(Family::Netlink, SockType::Raw), &[16, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0])),
        ("netlink, a group", ask(open(Family::Netlink, SockType::Raw), &[16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])),
    ]
}

fn host_network(checks: &mut Checks, stage: &Stage, port: u16, hand_over: &mut dyn FnMut()) {
    let p = |name: &str| stage.path(name);
    let _private = bind(STREAM, &p("private/in.sock"), 5);
    let _shared = bind(STREAM, &p("shared.sock"), 5);
    drop(bind(STREAM, &p("private/stale.sock"), 5));
    let host_abstract = || connect(open(Family::Unix, STREAM).as_fd(), &address(&host_name()));
    let host_inet = || connect(open(Family::Inet, STREAM).as_fd(), &loopback(port));
    checks.is("control: the host's path", dial(STREAM, p("host.sock")), OK);
    checks.is("control: the host's name", host_abstract(), OK);
    checks.is("control: the host's port", host_inet(), OK);
    hand_over();
    checks.is("host path", dial(STREAM, p("host.sock")), Err(Errno::EACCES));
    checks.is("host stale path", dial(STREAM, p("host-stale.sock")), Err(Errno::ECONNREFUSED));
    checks.is("host abstract", host_abstract(), Err(Errno::ECONNREFUSED));
    checks.is("granted", dial(STREAM, p("granted.sock")), OK);
    checks.is("own on a private file system", dial(STREAM, p("private/in.sock")), OK);
    checks.is("stale on a private file system", dial(STREAM, p("private/stale.sock")), Err(Errno::ECONNREFUSED));
    checks.is("own on a shared file system", dial(STREAM, p("shared.sock")), Err(Errno::EACCES));
    checks.is("host port", host_inet(), OK);
    in_the_overlay(checks, stage);
}
