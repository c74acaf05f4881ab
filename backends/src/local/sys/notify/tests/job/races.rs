//! Races against the check, and what a connect costs.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::*;

const TRIES: usize = 5000;
const ENOUGH: Duration = Duration::from_secs(20);

/// A thread swaps the descriptor between a TCP and a unix socket while connects to the host's path are on their way.
pub(super) fn race_socket(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
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
        while tries < TRIES && start.elapsed() < ENOUGH {
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
pub(super) fn race_address(checks: &mut Checks, stage: &Stage, hand_over: &mut dyn FnMut()) {
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
        while tries < TRIES && start.elapsed() < ENOUGH {
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

pub(super) fn costs(stage: &Stage, hand_over: &mut dyn FnMut()) {
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
