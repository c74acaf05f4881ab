//! Each system call of the set-up fails once: then nothing starts, or what starts is confined as ever.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use hermes_tests::{Outcome, PYTHON, Sandbox, need, run_to_end, run_to_end_within};

/// System calls that build a sandbox, with the error that a kernel could give.
const CALLS: &[(&str, &str)] = &[
    ("clone3", "EPERM"),
    ("clone", "EAGAIN"),
    ("unshare", "EPERM"),
    ("setns", "EPERM"),
    ("mount", "EPERM"),
    ("mount_setattr", "EINVAL"),
    ("open_tree", "EPERM"),
    ("move_mount", "EPERM"),
    ("fsopen", "EPERM"),
    ("fsconfig", "EINVAL"),
    ("fsmount", "EPERM"),
    ("pivot_root", "EINVAL"),
    ("umount2", "EBUSY"),
    ("chroot", "EPERM"),
    ("mkdirat", "ENOSPC"),
    ("symlinkat", "ENOSPC"),
    ("openat2", "EAGAIN"),
    ("prctl", "EINVAL"),
    ("capset", "EPERM"),
    ("setgroups", "EPERM"),
    ("setresuid", "EPERM"),
    ("setresgid", "EPERM"),
    ("setsid", "EPERM"),
    ("prlimit64", "EPERM"),
    ("seccomp", "EINVAL"),
    ("landlock_create_ruleset", "EOPNOTSUPP"),
    ("landlock_add_rule", "EINVAL"),
    ("landlock_restrict_self", "E2BIG"),
    ("socketpair", "EMFILE"),
    ("socket", "EAFNOSUPPORT"),
    ("sendmsg", "ENOBUFS"),
    ("recvmsg", "ECONNRESET"),
    ("sendto", "ENOBUFS"),
    ("recvfrom", "ECONNRESET"),
    ("close_range", "ENOSYS"),
    ("signalfd4", "EMFILE"),
    ("epoll_create1", "EMFILE"),
    ("pidfd_open", "ENOSYS"),
    ("pidfd_getfd", "EPERM"),
    ("memfd_create", "EMFILE"),
    ("dup3", "EMFILE"),
    ("fchdir", "EACCES"),
    ("chdir", "EACCES"),
    ("sethostname", "EPERM"),
];

/// How many runs the whole test may take; each is a start under strace.
const RUNS: usize = 200;

/// What a confined command prints: all of its escapes fail.
const PROBE: &str = "
import ctypes, os, socket, sys
outside, port = sys.argv[1], int(sys.argv[2])
found = []
try: found.append('read ' + open(outside + '/secret').read())
except OSError: pass
try: open(outside + '/made', 'w'); found.append('wrote outside')
except OSError: pass
try: os.close(os.open('/etc/passwd', os.O_WRONLY)); found.append('etc')
except OSError: pass
try: os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)); found.append('sysctl')
except OSError: pass
try: socket.create_connection(('127.0.0.1', port), 2); found.append('network')
except OSError: pass
for a in (outside + '/s', ):
    try: socket.socket(socket.AF_UNIX).connect(a); found.append('unix')
    except OSError: pass
status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
if status['NoNewPrivs'].strip() != '1': found.append('no_new_privs')
if status['Seccomp'].strip() != '2': found.append('no filter')
if any(int(status[s], 16) for s in ('CapEff', 'CapPrm', 'CapInh', 'CapAmb')): found.append('capabilities')
libc = ctypes.CDLL(None, use_errno=True)
for number in (425, 900):
    libc.syscall(number, -1, -1, -1)
    if ctypes.get_errno() != 38: found.append('call %d' % number)
try: os.kill(int(sys.argv[3]), 0); found.append('signal')
except OSError: pass
print('PROBED', found)";

struct Bench {
    sandbox: Sandbox,
    arguments: [String; 3],
    host: std::process::Child,
    _listeners: (hermes_tests::Listener, hermes_tests::Listener),
}

impl Bench {
    fn new() -> Self {
        let sandbox = Sandbox::new().env("HERMES_SANDBOX_PROBE_CACHE", "off");
        sandbox.write(sandbox.outside.join("secret"), sandbox.canary("fault"));
        sandbox.write("probe.py", PROBE);
        let unix = hermes_tests::Listener::unix(&sandbox.outside.join("s"));
        let tcp = hermes_tests::Listener::tcp("127.0.0.1:0").unwrap();
        let host = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let arguments = [sandbox.outside.display().to_string(), tcp.port.to_string(), host.id().to_string()];
        Self { sandbox, arguments, host, _listeners: (unix, tcp) }
    }

    fn argv(&self) -> Vec<String> {
        [PYTHON, "probe.py"].map(str::to_owned).into_iter().chain(self.arguments.clone()).collect()
    }

    fn under_strace(&self, options: &[&str]) -> Outcome {
        let run = self.sandbox.inside(self.argv());
        let mut command = self.sandbox.plain_command("strace");
        command.args(["-f", "-qq"]).args(options).arg(run.get_program()).args(run.get_args());
        run_to_end_within(&mut command, Duration::from_secs(15))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.host.kill();
        let _ = self.host.wait();
    }
}

/// How often the set-up makes each call, counted in one undisturbed run up to the exec of the probe.
fn calls_of_a_start(bench: &Bench) -> BTreeMap<String, usize> {
    let log = bench.sandbox.outside.join("log");
    let names: Vec<&str> = CALLS.iter().map(|(name, _)| *name).collect();
    let path = log.display().to_string();
    let result = bench.under_strace(&["-o", &path, "-e", &format!("trace=?{},execve", names.join(",?"))]);
    result.ok().says("PROBED []");
    let text = std::fs::read_to_string(&log).unwrap();
    let setup = text.split(&format!("execve(\"{PYTHON}\"")).next().unwrap_or_default();
    let mut counts = BTreeMap::new();
    for line in setup.lines() {
        let call = line.split_whitespace().nth(1).and_then(|word| word.split('(').next()).unwrap_or_default();
        if names.contains(&call) {
            *counts.entry(call.to_owned()).or_insert(0) += 1;
        }
    }
    counts
}

#[test]
fn a_failed_step_never_means_a_weaker_sandbox() {
    need!("strace", PYTHON);
    let bench = Bench::new();
    // Positive control: without the sandbox the probe finds the way to everything.
    let plain = run_to_end(bench.sandbox.plain_command(PYTHON).args(&bench.argv()[1..]));
    for sign in ["read CANARY", "wrote outside", "network", "unix", "no_new_privs", "no filter", "signal"] {
        plain.says(sign);
    }
    let made = bench.sandbox.outside.join("made");
    std::fs::remove_file(&made).unwrap();

    let counts = calls_of_a_start(&bench);
    assert!(counts.contains_key("seccomp") || counts.contains_key("prctl"), "the log shows no set-up: {counts:?}");
    // Every call that the set-up makes, first its first use, then its later ones, as many as the budget allows.
    let mut turns: Vec<(usize, &str, &str)> = Vec::new();
    for (name, error) in CALLS {
        turns.extend((1..=counts.get(*name).copied().unwrap_or(0)).map(|turn| (turn, *name, *error)));
    }
    turns.sort_by_key(|(turn, name, _)| (*turn, *name));
    let total = turns.len();
    turns.truncate(RUNS);
    let (mut refused, mut started, mut stuck) = (0, 0, 0);
    for (turn, name, error) in &turns {
        let injection = format!("inject={name}:error={error}:when={turn}");
        let result = bench.under_strace(&["-o", "/dev/null", "-e", &format!("trace={name}"), "-e", &injection]);
        assert!(!made.exists(), "{injection}: wrote outside\n{}", result.report());
        result.never_says("CANARY");
        if result.out().contains("PROBED") {
            result.says("PROBED []");
            started += 1;
        } else if result.code() == -1 && *name == "prctl" {
            // A crash of the first process of a namespace: the kernel would end it, a tracer's copy of the signal does not.
            stuck += 1;
        } else {
            assert!(result.stdout.is_empty() && !matches!(result.code(), 0 | -1), "{injection}\n{}", result.report());
            result.no_panic();
            if matches!(result.code(), 125..=127) {
                result.clear_message();
            }
            refused += 1;
        }
    }
    println!(
        "{} of {total} injections: {refused} refused, {started} started and confined, {stuck} stuck under the tracer",
        turns.len()
    );
    assert!(refused > 0 && stuck <= 2);
}
