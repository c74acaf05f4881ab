//! Connects that wait, and what ends the wait.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, kill, sigaction};

use super::*;

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

pub(super) fn waiting(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
    let p = |name: &str| stage.path(name);
    let _listener = bind(STREAM, &p("in.sock"), 100);
    let full = bind(STREAM, &p("full.sock"), 0);
    hand_over();
    let first = open(Family::Unix, STREAM);
    checks.is("the backlog takes one", to(&first, &p("full.sock")), OK);
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

pub(super) fn inet(checks: &mut Checks, hand_over: &mut dyn FnMut()) {
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
    drop(fd);
    let fd = open(Family::Inet, STREAM);
    socket::setsockopt(&fd, socket::sockopt::SendTimeout, &nix::sys::time::TimeVal::new(0, 80_000)).unwrap();
    let start = Instant::now();
    checks.is("full queue, SO_SNDTIMEO", connect(fd.as_fd(), &to_full), Err(Errno::EINPROGRESS));
    checks.holds("  in time", (75..250).contains(&ms(start)));
    drop(fd);

    let other = child(|| {
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        let meanwhile = std::net::TcpStream::connect(address).is_ok();
        let in_time = ms(start) < 50;
        println!("# a connect while another waits: {} us", start.elapsed().as_micros());
        let _taken = [full.accept(), full.accept()];
        report("another connect meanwhile", meanwhile && in_time)
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
