//! What the job of each part does.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::socket::{self, AddressFamily as Family, Backlog, SockFlag, SockType, UnixAddr};

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

fn open(family: Family, kind: SockType) -> OwnedFd {
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
        "waiting" => waiting(&mut checks, stage, hand_over),
        "inet" => inet(&mut checks, hand_over),
        "host-network" => host_network(&mut checks, stage, port, hand_over),
        "race-socket" => race_socket(&mut checks, stage, hand_over),
        "race-address" => race_address(&mut checks, stage, hand_over),
        "end" => {
            hand_over();
            child(|| {
                std::thread::sleep(Duration::from_millis(100));
                0
            });
        }
        "costs-plain" => costs(stage, &mut || {}),
        "costs" => costs(stage, hand_over),
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
    let _long = bind(STREAM, &p("private/s"), 5);
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

    let part = format!("undumpable:{}", p("private/s").display());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "local::sys::notify::tests::part", "--ignored", "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .status()
        .unwrap();
    checks.holds("a job that is not dumpable reaches its own socket", status.success());
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

extern "C" fn heard(_: libc::c_int) {}

fn alarm_in(ms: i64, flags: SaFlags) {
    let action = SigAction::new(SigHandler::Handler(heard), flags, SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGALRM, &action) }.unwrap();
    let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let value = libc::itimerval { it_interval: zero, it_value: libc::timeval { tv_sec: 0, tv_usec: ms * 1000 } };
    // SAFETY: `value` outlives the call.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const value, ptr::null_mut()) };
}

fn ms(start: Instant) -> u128 {
    start.elapsed().as_millis()
}

fn waiting(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
    let p = |name: &str| stage.path(name);
    let _listener = bind(STREAM, &p("in.sock"), 100);
    let full = bind(STREAM, &p("full.sock"), 0);
    hand_over();
    let _fills = open(Family::Unix, STREAM);
    checks.is("the backlog takes one", to(&_fills, &p("full.sock")), OK);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket::socket(Family::Unix, STREAM, flags, None).unwrap();
    checks.is("full backlog, non-blocking", to(&fd, &p("full.sock")), Err(Errno::EAGAIN));

    let other = child(|| {
        std::thread::sleep(Duration::from_millis(60));
        let start = Instant::now();
        let meanwhile = dial(STREAM, p("in.sock"));
        println!("# a connect while another waits: {} us", start.elapsed().as_micros());
        std::thread::sleep(Duration::from_millis(60));
        drop(socket::accept(&full));
        report("another connect meanwhile", meanwhile == OK && start.elapsed() < Duration::from_millis(200))
    });
    let start = Instant::now();
    checks.is("full backlog, waits for accept", dial(STREAM, p("full.sock")), OK);
    println!("# waited {} ms for 120", ms(start));
    checks.failed += wait_for(other);

    let _fills = open(Family::Unix, STREAM);
    let _ = to(&_fills, &p("full.sock"));
    let start = Instant::now();
    alarm_in(50, SaFlags::empty());
    checks.is("a signal interrupts", dial(STREAM, p("full.sock")), Err(Errno::EINTR));
    checks.holds("  in time", (40..250).contains(&ms(start)));

    let other = child(|| {
        std::thread::sleep(Duration::from_millis(150));
        i32::from(socket::accept(&full).is_err())
    });
    let start = Instant::now();
    alarm_in(50, SaFlags::SA_RESTART);
    checks.is("a handler with SA_RESTART restarts", dial(STREAM, p("full.sock")), OK);
    checks.holds("  after the server accepted", (130..600).contains(&ms(start)));
    checks.failed += wait_for(other);

    let _fills = open(Family::Unix, STREAM);
    let _ = to(&_fills, &p("full.sock"));
    let fd = open(Family::Unix, STREAM);
    let limit = nix::sys::time::TimeVal::new(0, 80_000);
    socket::setsockopt(&fd, socket::sockopt::SendTimeout, &limit).unwrap();
    let start = Instant::now();
    checks.is("SO_SNDTIMEO ends the wait", to(&fd, &p("full.sock")), Err(Errno::EAGAIN));
    checks.holds("  in time", (75..250).contains(&ms(start)));

    let parked = child(|| i32::from(dial(STREAM, p("full.sock")).is_ok()));
    std::thread::sleep(Duration::from_millis(40));
    let start = Instant::now();
    kill(parked, Signal::SIGKILL).unwrap();
    let status = waitpid(parked, None).unwrap();
    println!("# SIGKILL of a waiting job: {} us", start.elapsed().as_micros());
    checks.holds("SIGKILL ends a waiting job at once", matches!(status, WaitStatus::Signaled(..)) && ms(start) < 50);
    let parked = child(|| i32::from(dial(STREAM, p("full.sock")).is_ok()));
    std::thread::sleep(Duration::from_millis(40));
    let start = Instant::now();
    kill(parked, Signal::SIGTERM).unwrap();
    let status = waitpid(parked, None).unwrap();
    checks.holds("and so does SIGTERM", matches!(status, WaitStatus::Signaled(..)) && ms(start) < 150);

    let crowd: Vec<Pid> = (0..80).map(|_| child(|| crowd_member(&p("full.sock")))).collect();
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    checks.is("a connect while 64 wait", dial(STREAM, p("in.sock")), OK);
    println!("# a connect while 64 wait: {} us", start.elapsed().as_micros());
    checks.holds("  is not held up", ms(start) < 100);
    let mut turned_away = 0;
    for member in crowd {
        let _ = kill(member, Signal::SIGKILL);
        turned_away += usize::from(waitpid(member, None) == Ok(WaitStatus::Exited(member, 11)));
    }
    checks.holds(&format!("16 too many are turned away ({turned_away})"), turned_away == 16);
    std::thread::sleep(Duration::from_millis(150));
    checks.is("and all is well after", dial(STREAM, p("in.sock")), OK);
    threads_and_signals(checks, &p("full.sock"));
}

fn crowd_member(path: &Path) -> i32 {
    match dial(STREAM, path) {
        Err(Errno::EAGAIN) => 11,
        Ok(()) => 1,
        Err(errno) => errno as i32,
    }
}

/// A signal to a process of two threads, while the one that could take it waits in connect.
fn threads_and_signals(checks: &mut Checks, full: &Path) {
    let mut set = SigSet::empty();
    set.add(Signal::SIGALRM);
    let start = Instant::now();
    let answer = std::thread::scope(|s| {
        let waiting = s.spawn(|| dial(STREAM, full));
        std::thread::sleep(Duration::from_millis(20));
        set.thread_block().unwrap();
        alarm_in(30, SaFlags::empty());
        waiting.join().unwrap()
    });
    checks.is("a signal interrupts a thread of several", answer, Err(Errno::EINTR));
    checks.holds("  in time", (40..300).contains(&ms(start)));
}

fn inet(checks: &mut Checks, hand_over: &mut dyn FnMut()) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let six = std::net::TcpListener::bind("[::1]:0").unwrap();
    hand_over();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let (mut peer, from) = listener.accept().unwrap();
    checks.holds("the two ends know each other", stream.local_addr().unwrap() == from && stream.peer_addr().unwrap() == address);
    let mut back = [0; 2];
    let echoed = stream.write_all(b"hi").is_ok() && peer.read_exact(&mut back).is_ok() && &back == b"hi";
    checks.holds("data goes through", echoed);
    checks.holds("inet6", std::net::TcpStream::connect(six.local_addr().unwrap()).is_ok());
    checks.holds("non-blocking", std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok());
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    checks.holds("UDP", udp.connect(address).is_ok() && udp.peer_addr().unwrap() == address);

    // A full accept queue drops the SYN; it is sent again after one second.
    let fd = open(Family::Inet, STREAM);
    socket::bind(fd.as_raw_fd(), &"127.0.0.1:0".parse::<socket::SockaddrIn>().unwrap()).unwrap();
    socket::listen(&fd, Backlog::new(0).unwrap()).unwrap();
    let full = std::net::TcpListener::from(fd);
    let to_full = loopback(full.local_addr().unwrap().port());
    let _first = open(Family::Inet, STREAM);
    checks.is("the accept queue takes one", connect(_first.as_fd(), &to_full), OK);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket::socket(Family::Inet, STREAM, flags, None).unwrap();
    checks.is("full queue, non-blocking", connect(fd.as_fd(), &to_full), Err(Errno::EINPROGRESS));
    checks.is("  and again", connect(fd.as_fd(), &to_full), Err(Errno::EALREADY));
    drop(fd);

    let fd = open(Family::Inet, STREAM);
    let start = Instant::now();
    alarm_in(50, SaFlags::empty());
    checks.is("full queue, a signal interrupts", connect(fd.as_fd(), &to_full), Err(Errno::EINTR));
    checks.holds("  in time", (40..250).contains(&ms(start)));
    let fd = open(Family::Inet, STREAM);
    socket::setsockopt(&fd, socket::sockopt::SendTimeout, &nix::sys::time::TimeVal::new(0, 80_000)).unwrap();
    let start = Instant::now();
    checks.is("full queue, SO_SNDTIMEO", connect(fd.as_fd(), &to_full), Err(Errno::EINPROGRESS));
    checks.holds("  in time", (75..250).contains(&ms(start)));

    let other = child(|| {
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        let meanwhile = std::net::TcpStream::connect(address).is_ok();
        println!("# a connect while another waits: {} us", start.elapsed().as_micros());
        let _first = full.accept();
        report("another connect meanwhile", meanwhile && ms(start) < 50)
    });
    let fd = open(Family::Inet, STREAM);
    let start = Instant::now();
    alarm_in(300, SaFlags::SA_RESTART);
    checks.is("full queue, waits, a signal with SA_RESTART in between", connect(fd.as_fd(), &to_full), OK);
    println!("# waited {} ms", ms(start));
    checks.holds("  as long as it took", (500..5000).contains(&ms(start)));
    checks.is("  and is connected", connect(fd.as_fd(), &to_full), Err(Errno::EISCONN));
    checks.failed += wait_for(other);
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
}

const TRIES: usize = 5000;
const LONGEST: Duration = Duration::from_secs(20);

/// A thread swaps the descriptor between a TCP and a unix socket while connects to the host's path are on their way.
fn race_socket(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
    let target = address(stage.path("host.sock").as_os_str().as_bytes());
    hand_over();
    let inet = open(Family::Inet, STREAM);
    let unix = open(Family::Unix, STREAM);
    let mut slot = unix.try_clone().unwrap();
    let number = slot.as_raw_fd();
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let (mut tries, mut reached, mut looked_inet) = (0, 0, 0);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for fd in [&inet, &unix] {
                    nix::unistd::dup2(fd, &mut slot).unwrap();
                    pause(300);
                }
            }
        });
        while tries < TRIES && start.elapsed() < LONGEST {
            tries += 1;
            looked_inet += usize::from(raw(number, target.as_ptr() as usize, target.len() as u32) == Err(Errno::EAFNOSUPPORT));
            reached += usize::from(socket::getpeername::<UnixAddr>(unix.as_raw_fd()).is_ok());
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("# {tries} tries, {looked_inet} on the TCP socket");
    checks.holds(&format!("the host's socket was never reached ({reached})"), reached == 0 && tries > 0);
    checks.holds("both sockets were seen", looked_inet > 0 && looked_inet < tries);
}

/// A thread swaps the path between an own socket and the host's.
fn race_address(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
    let own = stage.path("self.sock");
    let listener = bind(STREAM, &own, 5);
    nix::fcntl::fcntl(&listener, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    hand_over();
    // The two names are equally long and differ in their last directory entry.
    let bytes = address(own.as_os_str().as_bytes());
    let shared: Vec<AtomicU8> = bytes.iter().map(|b| AtomicU8::new(*b)).collect();
    let at = bytes.len() - "self.sock".len();
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let (mut tries, mut reached, mut own_reached) = (0, 0, 0);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for name in [b"host", b"self"] {
                    for (to, from) in shared.iter().skip(at).zip(name) {
                        to.store(*from, Ordering::Relaxed);
                    }
                    pause(200);
                }
            }
        });
        while tries < TRIES && start.elapsed() < LONGEST {
            tries += 1;
            let fd = open(Family::Unix, STREAM);
            let _ = raw(fd.as_raw_fd(), shared.as_ptr() as usize, shared.len() as u32);
            if let Ok(name) = socket::getpeername::<UnixAddr>(fd.as_raw_fd()) {
                if name.path() == Some(&own) { own_reached += 1 } else { reached += 1 }
            }
            drop(fd);
            while let Ok(fd) = socket::accept(&listener) {
                drop(fd);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("# {tries} tries, {own_reached} to the own socket");
    checks.holds(&format!("the host's socket was never reached ({reached})"), reached == 0);
    checks.holds("the own socket was, sometimes", own_reached > 0 && own_reached < tries);
}

fn pause(rounds: u32) {
    for _ in 0..rounds {
        std::hint::spin_loop();
    }
}

fn costs(stage: &Stage, hand_over: &mut dyn FnMut()) {
    let shared = bind(STREAM, &stage.path("bench.sock"), 64);
    let private = bind(STREAM, &stage.path("private/bench.sock"), 64);
    let inet = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = inet.local_addr().unwrap().port();
    hand_over();
    let path = |name: &str| address(stage.path(name).as_os_str().as_bytes());
    let measure = |what: &str, family, target: Vec<u8>, listener: BorrowedFd<'_>| {
        let mut times: Vec<Duration> = (0..3000)
            .map(|_| {
                let fd = open(family, STREAM);
                let start = Instant::now();
                connect(fd.as_fd(), &target).unwrap();
                let time = start.elapsed();
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                socket::setsockopt(&fd, socket::sockopt::Linger, &linger).unwrap();
                drop(fd);
                drop(socket::accept(listener).unwrap());
                time
            })
            .collect();
        times.sort();
        let at = |n: usize| times[n].as_nanos() as f64 / 1000.0;
        println!("# {what}: p50 {:.1} us, p10 {:.1}, p99 {:.1}", at(1500), at(300), at(2970));
    };
    measure("unix, shared tree (cached)", Family::Unix, path("bench.sock"), shared.as_fd());
    measure("unix, private tmpfs", Family::Unix, path("private/bench.sock"), private.as_fd());
    measure("inet", Family::Inet, loopback(port), inet.as_fd());
}
