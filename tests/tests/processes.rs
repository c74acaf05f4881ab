//! The process tree: what is seen, what can be signalled, and that nothing outlives the sandbox.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hermes_tests::{PYTHON, Sandbox, TreeSnapshot, assert_gone, need, processes_with, run_to_end, shell_line, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// A script whose tree tries to live on: background, setsid, double fork, ignored signals.
fn stubborn(token: &str) -> String {
    format!(
        "trap '' HUP TERM INT; sleep 100 & setsid sh -c 'trap \"\" TERM HUP; : {token}; for i in $(seq 100); do sleep 1; done' & \
         (setsid setsid sh -c ': {token}; (sh -c \": {token}; for i in $(seq 100); do sleep 1; done\" &)' &) ; \
         python3 -c 'import os,time
if os.fork()==0:
  os.setsid()
  if os.fork()==0:
    time.sleep(100) # {token}' & "
    )
}

#[test]
fn processes_of_the_host_are_not_seen() {
    let sandbox = Sandbox::new();
    let token = sandbox.canary("cmdline");
    let mut host = Command::new("/bin/sh").args(["-c", "read _; :", &token]).stdin(Stdio::piped()).spawn().unwrap();
    let script = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'; ls -d /proc/[0-9]* | wc -l; ps -ef 2>/dev/null; echo END";
    let (inside, outside) = (sandbox.sh(script), sandbox.plain_sh(script));
    let killed = run_to_end(&mut sandbox.inside([
        "/bin/sh",
        "-c",
        &format!("kill -0 {0} && echo SIGNALLED; kill -TERM {0}; echo END", host.id()),
    ]));
    let alive = host.try_wait().unwrap().is_none();
    host.kill().unwrap();
    host.wait().unwrap();
    outside.says(&token);
    inside.ok().says("END").never_says(&token);
    killed.never_says("SIGNALLED");
    assert!(alive, "the host's process was killed from inside");
}

#[test]
fn own_children_can_be_traced_and_others_not() {
    need!(PYTHON, "strace");
    let sandbox = Sandbox::new();
    sandbox.run(["strace", "-f", "-o", "trace", "/bin/sh", "-c", "true; /bin/true"]).ok();
    assert!(sandbox.read("trace").contains("execve"));
    let mut host = Command::new("sleep").arg("60").spawn().unwrap();
    let result = sandbox.run(["strace", "-p", &host.id().to_string()]);
    host.kill().unwrap();
    host.wait().unwrap();
    assert_ne!(result.code(), 0, "{}", result.report());
}

#[test]
fn nothing_lives_on_after_the_command() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let token = sandbox.canary("end");
    sandbox.sh(&(stubborn(&token) + "sleep 0.5; exit 7")).exits(7);
    assert_gone(&token);
}

#[test]
fn sigkill_of_the_supervisor_takes_everything_along() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let token = sandbox.canary("killed");
    let mut child = sandbox
        .inside(["/bin/sh", "-c", &(stubborn(&token) + "touch ready; wait")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    assert!(!processes_with(&token).is_empty(), "positive control");
    let before = TreeSnapshot::of(&sandbox.outside);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_gone(&token);
    before.assert_unchanged(&sandbox.outside);
}

#[test]
fn sigkill_of_init_ends_the_run() {
    let sandbox = Sandbox::new();
    let token = sandbox.canary("init");
    let mut child = sandbox
        .inside(["/bin/sh", "-c", &format!(": {token}; touch ready; for i in $(seq 100); do sleep 1; done")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    let children = |pid: u32| -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let init = children(child.id());
    assert!(!init.is_empty(), "the supervisor has no child");
    for pid in init {
        let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL);
    }
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert_gone(&token);
}

#[test]
fn sigterm_and_sigint_reach_the_commands_handler() {
    for (signal_name, number) in
        [(Signal::SIGTERM, "TERM"), (Signal::SIGINT, "INT"), (Signal::SIGHUP, "HUP"), (Signal::SIGUSR1, "USR1")]
    {
        let sandbox = Sandbox::new();
        let script = format!("trap 'echo GOT {number} > got; exit 42' {number}; touch ready; while :; do sleep 0.05; done");
        let mut child = sandbox.inside(["/bin/sh", "-c", &script]).spawn().unwrap();
        assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
        signal(&child, signal_name);
        assert!(wait_until(20, || child.try_wait().unwrap().is_some()), "{number} did not end the run");
        assert_eq!(child.wait().unwrap().code(), Some(42), "{number}");
        assert_eq!(sandbox.read("got").trim(), format!("GOT {number}"));
    }
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_the_grace() {
    let sandbox = Sandbox::new();
    let token = sandbox.canary("grace");
    let mut child = sandbox
        .inside(["/bin/sh", "-c", &format!("trap '' TERM; : {token}; touch ready; for i in $(seq 1000); do sleep 0.1; done")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    signal(&child, Signal::SIGTERM);
    assert!(wait_until(40, || child.try_wait().unwrap().is_some()), "still there");
    assert_gone(&token);
}

#[test]
fn a_signal_during_the_start_is_not_forgotten() {
    let sandbox = Sandbox::new().flags(["--limit", "grace=100ms"]);
    for delay in 0..15 {
        let mut child = sandbox.inside(["/bin/sh", "-c", "trap '' TERM; sleep 100"]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        signal(&child, Signal::SIGTERM);
        assert!(wait_until(20, || child.try_wait().unwrap().is_some()), "after {delay} ms: still there");
    }
}

#[test]
fn no_zombies_pile_up() {
    let sandbox = Sandbox::new();
    sandbox
        .sh("for i in $(seq 100); do (sh -c 'true &' &); done; sleep 0.5; n=$(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l); [ $n -lt 5 ] && echo REAPED || echo $n zombies")
        .ok()
        .says("REAPED");
}

#[test]
fn privileges_cannot_be_gained() {
    let sandbox = Sandbox::new();
    let out = sandbox.sh("grep -E '^(NoNewPrivs|Cap(Inh|Prm|Eff|Bnd|Amb)|Seccomp):' /proc/self/status; id -u").ok().out();
    let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(out.contains("NoNewPrivs: 1") && out.contains("Seccomp: 2"), "{out}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(out.contains(&format!("{set}: 0000000000000000")), "{set} in {out}");
    }
    if !nix::unistd::geteuid().is_root() {
        assert!(out.ends_with(&nix::unistd::geteuid().to_string()), "{out}");
    }
}

#[test]
fn root_on_the_host_is_not_root_inside_for_the_kernel() {
    if !hermes_tests::is_root() {
        hermes_tests::skip!("needs a root caller");
    }
    let sandbox = Sandbox::new();
    let token = sandbox.canary("root");
    // The owner of a process as the host sees it.
    let mut child = sandbox
        .inside(["/bin/sh", "-c", &format!(": {token}; touch ready; while [ ! -e go ]; do sleep 0.05; done")])
        .spawn()
        .unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    let word = sandbox.workspace.display().to_string();
    let uids: Vec<u32> = processes_with(&token)
        .iter()
        .filter(|line| !line.contains(&word))
        .filter_map(|line| fs::read_to_string(format!("/proc/{}/status", line.split(' ').next().unwrap())).ok())
        .filter_map(|text| {
            text.lines().find(|line| line.starts_with("Uid:")).and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        })
        .collect();
    sandbox.write("go", "");
    child.wait().unwrap();
    assert!(!uids.is_empty(), "the command was not found");
    assert!(uids.iter().all(|uid| *uid != 0), "{uids:?}");
}

#[test]
fn refused_system_calls_fail_and_do_not_kill() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let program = "
import ctypes, errno, platform, threading
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
numbers = dict(io_uring_setup=425, open_tree=428, move_mount=429, fsopen=430, clone3=435, mount_setattr=442, bpf=321 if x86 else 280,
               perf_event_open=298 if x86 else 241, userfaultfd=323 if x86 else 282, keyctl=250 if x86 else 219, add_key=248 if x86 else 217, unshare=272 if x86 else 97,
               mount=165 if x86 else 40, kexec_load=246 if x86 else 104, open_by_handle_at=304 if x86 else 265, setns=308 if x86 else 268, future=900)
for name, number in numbers.items():
    # Arguments that every kernel refuses: what counts is who refuses first.
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(-1)] * 6)
    error = errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno())
    print(name, result, error)
    if error not in ('EPERM', 'ENOSYS', 'EACCES'): print('REACHED THE KERNEL', name)
t = [threading.Thread(target=lambda: None) for _ in range(20)]; [x.start() for x in t]; [x.join() for x in t]
print('ALIVE')";
    let result = sandbox.python(program);
    result.ok().says("ALIVE").never_says("REACHED THE KERNEL").says("clone3 -1 ENOSYS").says("future -1 ENOSYS");
}

#[test]
fn keystrokes_cannot_be_pushed_into_the_terminal() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let program = "
import fcntl, os
master, slave = os.openpty()
for request in (0x5412, 0x541c, 0x100005412, 0xffffffff00005412):
    try: fcntl.ioctl(slave, request & 0xffffffffffffffff if request < 2**63 else request - 2**64, b'x'); print('PUSHED')
    except (OSError, OverflowError): pass
print('END')";
    sandbox.python(program).says("END").never_says("PUSHED");
}

#[test]
fn inherited_descriptors_stay_outside() {
    need!("bash");
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.outside.join("s"), sandbox.canary("fd"));
    let run = sandbox.inside(["/bin/bash", "-c", "{ cat <&7; cat <&200; cat /proc/self/fd/7; cat /proc/self/fd/9/s; } 2>/dev/null; ls /proc/self/fd | tr '\\n' ' '; echo END"]);
    let line = shell_line(&run);
    let script = format!("exec 7<'{0}' 200<'{0}' 9<'{1}'; {line}", secret.display(), sandbox.outside.display());
    run_to_end(sandbox.plain_command("/bin/bash").args(["-c", &script]))
        .ok()
        .says("END")
        .never_says("CANARY")
        .never_says(" 7 ")
        .never_says(" 200");
}

#[test]
fn a_hundred_thousandth_start_is_like_the_first() {
    // 200 starts, 16 at a time: none fails, none leaves anything.
    let sandbox = Sandbox::new();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while next.fetch_add(1, Ordering::SeqCst) < 200 {
                    let result = sandbox.run(["/bin/true"]);
                    if result.code() != 0 || !result.stderr.is_empty() {
                        failures.lock().unwrap().push(result.report());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of 200 failed, the first: {}", failures.len(), failures[0]);
    let word = sandbox.workspace.display().to_string();
    assert!(wait_until(10, || processes_with(&word).is_empty()), "{:?}", processes_with(&word));
}

#[test]
fn an_idle_supervisor_is_small() {
    let sandbox = Sandbox::new();
    let mut child = sandbox.inside(["/bin/sh", "-c", "touch ready; while [ ! -e go ]; do sleep 0.2; done"]).spawn().unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    std::thread::sleep(Duration::from_secs(1));
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let ticks = |text: &str| -> u64 {
        text.rsplit(") ").next().unwrap().split(' ').skip(11).take(2).map(|word| word.parse::<u64>().unwrap()).sum()
    };
    let before = ticks(&stat(child.id()));
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(&stat(child.id())) - before;
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let resident: u64 =
        status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    sandbox.write("go", "");
    child.wait().unwrap();
    assert!(resident < 30_000, "{resident} KiB resident");
    assert!(used <= 4, "{used} ticks in 2 s");
}

/// What measures the machine is killed at many moments: the sandbox is the same, or there is none.
#[test]
fn a_measurement_that_is_killed_makes_no_weaker_sandbox() {
    let sandbox = Sandbox::new().env("HERMES_SANDBOX_PROBE_CACHE", "off");
    // 0 stands for one that is just being reaped.
    let first_child = |pid: i32| -> Option<i32> {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok().filter(|pid| *pid > 1)
    };
    let mut killed = 0;
    for round in 0..1000 {
        if killed == 8 {
            return;
        }
        let mut command = sandbox.inside(["/bin/sh", "-c", "test -e /run/hermes-sandbox && echo namespaces; true"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let own = child.id() as i32;
        std::thread::sleep(Duration::from_micros(50 * (round / 2 % 40)));
        let launcher = first_child(own);
        let victim = if round % 2 == 0 { launcher } else { launcher.and_then(first_child) };
        killed += victim.map_or(0, |pid| usize::from(kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()));
        let output = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() || out == "namespaces\n", "round {round}: {out}{err}");
    }
    assert!(killed > 0, "nothing was ever killed");
}
