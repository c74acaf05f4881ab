//! Limits hold, and the host does not notice.
#![allow(clippy::unwrap_used)]

use hermes_tests::{PYTHON, Sandbox, need, run_to_end, shell_line, skip};

#[test]
fn a_fork_bomb_is_bounded() {
    need!(PYTHON);
    let sandbox = Sandbox::new().flags(["--limit", "processes=64"]);
    let program = "
import os, time
made = 0
for _ in range(300):
    try:
        if os.fork() == 0: time.sleep(20); os._exit(0)
        made += 1
    except OSError: break
print('MADE', made, flush=True)";
    let made: u32 = sandbox.python(program).ok().out().trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((16..=64).contains(&made), "{made} processes");
}

#[test]
fn there_is_a_process_limit_without_asking() {
    need!(PYTHON);
    if hermes_tests::is_root() {
        skip!("for a root caller the limit is a control group's");
    }
    let sandbox = Sandbox::new();
    sandbox
        .python("import resource,os\nn=resource.getrlimit(resource.RLIMIT_NPROC)[0]\nprint('LIMITED' if 0 < n <= 65536 else n)")
        .ok()
        .says("LIMITED");
}

#[test]
fn a_memory_limit_kills_the_command_and_only_it() {
    need!(PYTHON);
    let sandbox = Sandbox::new().flags(["--limit", "memory=128MiB"]);
    let result = sandbox.python(
        "import time\nheld=[]\nfor i in range(200):\n held.append(bytearray(b'x')*(8<<20)); time.sleep(0.02)\nprint('GOT ALL')",
    );
    assert_ne!(result.code(), 0, "{}", result.report());
    result.never_says("GOT ALL");
    sandbox.python("print(len(bytearray(16 << 20)))").ok();
}

#[test]
fn the_sandboxs_own_file_systems_are_bounded() {
    let sandbox = Sandbox::new().flags(["--limit", "scratch=16MiB", "--limit", "shm=8MiB"]);
    sandbox
        .sh("name=HSBX-$$; for d in /tmp ~ /dev/shm; do f=$d/$name; dd if=/dev/zero of=$f bs=1M count=40 2>/dev/null && echo UNBOUNDED $d; s=$(stat -c %s $f); [ $s -gt 1000000 ] || echo EMPTY $d; rm -f $f; done; echo END")
        .says("END")
        .never_says("UNBOUNDED")
        .never_says("EMPTY");
}

#[test]
fn own_file_systems_are_bounded_without_asking() {
    let sandbox = Sandbox::new();
    let total = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total: u64 = total.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let out = sandbox.sh("for d in /tmp /dev/shm; do df -k --output=size $d | tail -1; done").ok().out();
    for size in out.split_whitespace() {
        let size: u64 = size.parse().unwrap();
        assert!(size > 0 && size <= total, "{size} KiB of {total}");
    }
}

#[test]
fn open_files_and_file_sizes_are_bounded_on_request() {
    let sandbox = Sandbox::new().flags(["--limit", "open-files=64", "--limit", "file-size=1MiB"]);
    sandbox
        .sh("ulimit -n; dd if=/dev/zero of=big bs=1M count=4 2>/dev/null; [ $(stat -c %s big) -le 1048576 ] && echo BOUNDED")
        .says("64")
        .says("BOUNDED");
}

#[test]
fn nonsense_limits_are_refused() {
    for bad in [
        "memory=lots",
        "memory=-1",
        "processes=",
        "nonsense=1",
        "memory",
        "memory=99999999999999999999GiB",
        "timeout=1 fortnight",
    ] {
        let result = Sandbox::new().flags(["--limit", bad]).sh("echo RAN");
        assert!(result.code() != 0 && result.stdout.is_empty() && !result.stderr.is_empty(), "{bad}: {}", result.report());
        result.no_panic();
    }
}

#[test]
fn address_space_is_not_limited() {
    need!("java");
    let result = Sandbox::new().run(["java", "-version"]);
    if result.code() == 127 {
        skip!("java is not in a system directory");
    }
    result.ok();
}

#[test]
fn a_lower_limit_of_the_caller_is_kept() {
    need!("bash");
    let sandbox = Sandbox::new();
    // Machines with little memory, and many login managers, allow fewer processes than the profile does.
    for (limit, ask) in [("-u 2000", "-u"), ("-n 512", "-n"), ("-f 100000", "-f")] {
        let line = shell_line(&sandbox.inside(["/bin/bash", "-c", &format!("echo RAN; ulimit {ask}")]));
        let result = run_to_end(sandbox.plain_command("/bin/bash").args(["-c", &format!("ulimit {limit}; exec {line}")]));
        result.ok().says("RAN");
    }
}
