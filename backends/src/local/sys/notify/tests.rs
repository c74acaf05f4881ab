//! The broker at work: a helper process makes namespaces, an init with the broker in a thread, and a job under a filter.
//!
//! A test runs this very test binary again with a part to play, because namespaces and `fork` want a process with no
//! other threads. A part prints one line for each check and exits with 0, or with 77 when the machine cannot play it.
#![allow(clippy::unwrap_used)]

mod job;

use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use caps::{CapSet, Capability, CapsHashSet};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily as Family, SockType};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getgid, getuid, pipe};

use super::*;
use crate::local::broker::{Broker, BrokerConfig, Reason, Refusal};

const PART: &str = "BROKER_TEST_PART";
const NAME: &str = "BROKER_TEST_NAME";
const CANNOT: i32 = 77;
const LONGEST: Duration = Duration::from_secs(60);

/// Plays a part in a process of its own and asserts that every check of it passed.
fn play(part: &str) {
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "local::sys::notify::tests::part", "--ignored", "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .env(NAME, format!("{}-{part}", std::process::id()))
        .stdin(std::process::Stdio::null())
        .stdout(said.reopen().unwrap())
        .stderr(said.reopen().unwrap())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        match process.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if start.elapsed() > LONGEST => {
                // The rest of the play dies with its parent.
                process.kill().unwrap();
                break process.wait().unwrap().code();
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = std::fs::read_to_string(said.path()).unwrap();
    println!("{text}");
    match status {
        Some(0) => assert!(text.contains("\nend of part"), "{part}: ended early"),
        Some(CANNOT) => println!("skipped: {part}: no user namespaces, or no /proc in them, on this machine"),
        other => panic!("{part}: {other:?}"),
    }
}

#[test]
fn only_sockets_of_the_inside_are_reached() {
    play("rules");
}

#[test]
fn errors_are_those_of_the_kernel() {
    play("errors");
}

#[test]
fn waiting_connects_stall_nobody_and_can_be_interrupted() {
    play("waiting");
}

#[test]
fn inet_connects_work_as_without() {
    play("inet");
}

#[test]
fn without_an_own_network_only_private_file_systems_are_inside() {
    play("host-network");
}

#[test]
fn swapping_the_socket_reaches_nothing() {
    play("race-socket");
}

#[test]
fn swapping_the_address_reaches_nothing() {
    play("race-address");
}

#[test]
fn the_broker_ends_with_the_last_job() {
    play("end");
}

/// Not a test: prints what a connect costs. `cargo test --release -- --ignored --nocapture costs`
#[test]
#[ignore = "a measurement"]
fn costs() {
    play("costs-plain");
    play("costs");
}

#[test]
#[ignore = "played by the other tests"]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let code = match part.split_once(':') {
        Some(("undumpable", path)) => job::undumpable(path),
        Some(("nested", dir)) => wait_for(child(|| job::nested(Path::new(dir)))),
        _ => host(&part),
    };
    exit(code);
}

fn exit(code: i32) -> ! {
    std::io::stdout().flush().unwrap();
    // SAFETY: ends the process; the test harness's own exit handlers are not wanted in a forked child.
    unsafe { libc::_exit(code) }
}

fn child(act: impl FnOnce() -> i32) -> Pid {
    std::io::stdout().flush().unwrap();
    // SAFETY: no other thread of this process does anything but wait, so no lock is held by one.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => exit(act()),
    }
}

fn wait_for(child: Pid) -> i32 {
    match waitpid(child, None).unwrap() {
        WaitStatus::Exited(_, code) => code,
        status => {
            println!("FAIL: ended by {status:?}");
            1
        }
    }
}

/// What lies in the directory that host and sandbox share.
struct Stage {
    dir: PathBuf,
    /// A unix and a UDP socket made in the network namespace outside, as if handed in.
    foreign: [OwnedFd; 2],
}

impl Stage {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// The host's side: sockets in a directory that the sandbox sees, and the sandbox's outer process.
fn host(part: &str) -> i32 {
    let dir = tempfile::Builder::new().prefix("broker").tempdir_in("/tmp").unwrap();
    let foreign = [job::open(Family::Unix, SockType::Stream), job::open(Family::Inet, SockType::Datagram)];
    let stage = Stage { dir: dir.path().to_owned(), foreign };
    for name in ["private", "lower", "overlay"] {
        std::fs::create_dir(stage.path(name)).unwrap();
    }
    let _lower = UnixListener::bind(stage.path("lower/host.sock")).unwrap();
    let _listener = UnixListener::bind(stage.path("host.sock")).unwrap();
    let _datagram = UnixDatagram::bind(stage.path("host-dgram.sock")).unwrap();
    let _granted = UnixListener::bind(stage.path("granted.sock")).unwrap();
    let _abstract = job::listen_abstract(&host_name());
    let inet = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = inet.local_addr().unwrap().port();
    drop(UnixListener::bind(stage.path("host-stale.sock")).unwrap());
    wait_for(child(|| outer(part, &stage, port)))
}

/// The abstract name of the host's socket, the same in all processes of a part.
fn host_name() -> Vec<u8> {
    let name = format!("\0broker-{}", std::env::var(NAME).unwrap_or_default());
    name.into_bytes()
}

fn outer(part: &str, stage: &Stage, port: u16) -> i32 {
    die_with_parent();
    let (uid, gid) = (getuid(), getgid());
    let mut spaces = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
    if part != "host-network" {
        spaces |= CloneFlags::CLONE_NEWNET;
    }
    let write = |path: &str, text: String| std::fs::write(path, text).is_ok();
    let made = unshare(spaces).is_ok()
        && write("/proc/self/setgroups", "deny".into())
        && write("/proc/self/uid_map", format!("{uid} {uid} 1"))
        && write("/proc/self/gid_map", format!("{gid} {gid} 1"));
    if !made {
        return CANNOT;
    }
    wait_for(child(|| init(part, stage, port)))
}

fn mounted(stage: &Stage) -> nix::Result<()> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(&stage.dir), &stage.dir, none, MsFlags::MS_BIND, none)?;
    mount(Some("tmpfs"), &stage.path("private"), Some("tmpfs"), MsFlags::empty(), none)?;
    // Not every kernel lets a user namespace do this; the checks look for the socket of the lower layer.
    let _ = overlay(stage);
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none)
}

fn overlay(stage: &Stage) -> nix::Result<()> {
    for name in ["private/upper", "private/work"] {
        std::fs::create_dir(stage.path(name)).map_err(|_| Errno::EIO)?;
    }
    let dir = stage.dir.display();
    let layers = format!("userxattr,lowerdir={dir}/lower,upperdir={dir}/private/upper,workdir={dir}/private/work");
    mount(Some("overlay"), &stage.path("overlay"), Some("overlay"), MsFlags::empty(), Some(layers.as_str()))
}

fn raise_loopback() {
    // SAFETY: zero is a valid `ifreq`; the name is copied in with its NUL.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: the kernel reads one `ifreq`, which outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    assert_eq!(done, 0, "cannot bring up loopback");
}

/// Pid 1 of the sandbox.
fn init(part: &str, stage: &Stage, port: u16) -> i32 {
    die_with_parent();
    if mounted(stage).is_err() {
        return CANNOT;
    }
    let own_network = part != "host-network";
    if own_network {
        raise_loopback();
    }
    keep_capabilities(&[Capability::CAP_SYS_PTRACE]);
    block_wake_signal();
    let (from_job, to_init) = pipe().unwrap();
    let (from_init, to_job) = pipe().unwrap();
    let job = child(|| {
        keep_capabilities(&[]);
        let mut hand_over = || hand_over(&to_init, &from_init);
        let code = job::act(part, stage, port, &mut hand_over);
        println!("\nend of part");
        code
    });
    // As the real one; not before the fork, since a job of this mm would stay out of reach (see `CAP_SYS_PTRACE`).
    nix::sys::prctl::set_dumpable(false).unwrap();
    drop(to_init);
    let mut number = [0; 4];
    if std::fs::File::from(from_job).read_exact(&mut number).is_ok() {
        let task = pidfd_open(job.as_raw(), false).unwrap();
        let listener = pidfd_getfd(task.as_fd(), i32::from_ne_bytes(number)).unwrap();
        let device = |name| identify(None, job::c_path(&stage.path(name)).as_c_str()).unwrap().device;
        let private_devices = if part == "rules" { vec![] } else { vec![device("private"), device("overlay")] };
        let config =
            BrokerConfig { own_network, granted: vec![stage.path("granted.sock")], private_devices, ..Default::default() };
        std::fs::File::from(to_job).write_all(b"k").unwrap();
        let (notes, refusals) = sync_channel(100);
        let broker = std::thread::spawn(move || Broker::new(listener, &config).map(|it| it.tell(notes).serve()));
        let mut code = wait_for(job);
        if let "rules" | "host-network" = part {
            code += job::told(stage, &refusals.try_iter().collect::<Vec<_>>());
        }
        if part == "end" {
            // Orphans of the job are ours.
            while waitpid(None, None).is_ok() {}
            let start = Instant::now();
            while !broker.is_finished() && start.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            return job::report("the broker returned", broker.is_finished()) + code;
        }
        return code;
    }
    wait_for(job)
}

fn keep_capabilities(kept: &[Capability]) {
    let kept: CapsHashSet = kept.iter().copied().collect();
    caps::clear(None, CapSet::Ambient).unwrap();
    caps::set(None, CapSet::Inheritable, &CapsHashSet::new()).unwrap();
    caps::set(None, CapSet::Effective, &kept).unwrap();
    caps::set(None, CapSet::Permitted, &kept).unwrap();
}

fn block_wake_signal() {
    // SAFETY: `set` is initialised by sigemptyset before it is read.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, wake_signal());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
}

/// Puts the job under a filter that hands every `connect` to the broker.
fn hand_over(to_init: &OwnedFd, from_init: &OwnedFd) {
    let listener = filter_connect();
    std::fs::File::from(to_init.try_clone().unwrap()).write_all(&listener.as_raw_fd().to_ne_bytes()).unwrap();
    std::fs::File::from(from_init.try_clone().unwrap()).read_exact(&mut [0]).unwrap();
}

fn filter_connect() -> OwnedFd {
    let code = |op: u32| u16::try_from(op).unwrap();
    let statement = |op: u32, k: u32| libc::sock_filter { code: code(op), jt: 0, jf: 0, k };
    let number = u32::try_from(libc::SYS_connect).unwrap();
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { code: code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), jt: 0, jf: 1, k: number },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    nix::sys::prctl::set_no_new_privs().unwrap();
    // SAFETY: the kernel copies the program, which outlives the call; the result is a new descriptor.
    unsafe {
        let fd = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        OwnedFd::from_raw_fd(i32::try_from(Errno::result(fd).unwrap()).unwrap())
    }
}

/// Pid 1's end is the end of all that is inside.
fn die_with_parent() {
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).unwrap();
}
