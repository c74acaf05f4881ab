#![allow(clippy::unwrap_used)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::*;

const MEBIBYTE: u64 = 1 << 20;

/// Control groups of this machine, or `None` with a word about it.
fn access() -> Option<CgroupAccess> {
    match detect(nix::unistd::geteuid().as_raw()) {
        access @ (CgroupAccess::V1 { memory: Some(_), pids: Some(_), .. } | CgroupAccess::V2 { .. }) => Some(access),
        other => {
            eprintln!("skipped: no control group to be had here ({other:?})");
            None
        }
    }
}

fn directories(group: &Cgroup) -> Vec<PathBuf> {
    group.leaves.iter().map(|leaf| leaf.directory.clone()).collect()
}

/// Joins before it does anything else, as init does.
fn shell(group: &Cgroup, script: &str) -> Command {
    let procs: Vec<String> = group.leaves.iter().map(|leaf| leaf.directory.join("cgroup.procs").display().to_string()).collect();
    let mut command = Command::new("/usr/bin/bash");
    command.args(["-c", &format!("for f in \"$@\"; do echo 0 > $f || exit 99; done; {script}"), "bash"]).args(procs);
    command.stderr(Stdio::null());
    command
}

#[test]
fn memory_is_limited_and_the_kill_is_seen() {
    let Some(access) = access() else { return };
    let limits = TreeLimits { memory: Some(48 * MEBIBYTE), processes: Some(64), cpu_percent: None };
    let group = Cgroup::create(&access, &limits).unwrap();
    let made = directories(&group);
    let hungry = shell(&group, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}").output().unwrap();
    assert!(!hungry.stdout.starts_with(b"200000000"), "{hungry:?}");
    assert!(group.events().oom_kills > 0, "{:?}", group.events());
    drop(group);
    assert!(made.iter().all(|directory| !directory.exists()));
}

#[test]
fn processes_are_limited() {
    let Some(access) = access() else { return };
    let group = Cgroup::create(&access, &TreeLimits { processes: Some(5), ..TreeLimits::default() }).unwrap();
    // A fork that is refused is tried again for a while by bash: one attempt is enough.
    let script = "for i in 1 2 3 4 5 6 7 8; do sleep 0.3 & done; wait; echo all";
    let mut child = shell(&group, script).stdout(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while group.events().forks_refused == 0 && started.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(group.events().forks_refused > 0);
    group.kill();
    child.wait().unwrap();
}

#[test]
fn dropping_kills_and_removes() {
    let Some(access) = access() else { return };
    let group = Cgroup::create(&access, &TreeLimits { processes: Some(32), ..TreeLimits::default() }).unwrap();
    let made = directories(&group);
    let mut child = shell(&group, "setsid sleep 1000 & setsid sleep 1000 & wait").spawn().unwrap();
    while members(&made[0]).len() < 3 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let reaper = std::thread::spawn(move || child.wait().unwrap());
    drop(group);
    assert_eq!(reaper.join().unwrap().signal(), Some(libc::SIGKILL));
    assert!(made.iter().all(|directory| !directory.exists()));
}

/// On hybrid machines version 2 has no controllers, but groups, `cgroup.kill` and removal are there.
#[test]
fn version_two_kills_at_once() {
    let directory = PathBuf::from("/sys/fs/cgroup/unified");
    if access_v2(&directory).is_err() {
        eprintln!("skipped: no writable {}", directory.display());
        return;
    }
    let group = Cgroup::create(&CgroupAccess::V2 { directory, controllers: Vec::new() }, &TreeLimits::default()).unwrap();
    let made = directories(&group);
    let mut child = shell(&group, "setsid sleep 1000 & wait").spawn().unwrap();
    while members(&made[0]).len() < 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    group.kill();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(members(&made[0]).is_empty());
    drop(group);
    assert!(!made[0].exists());
}

fn access_v2(directory: &Path) -> nix::Result<()> {
    nix::unistd::access(&directory.join("cgroup.procs"), nix::unistd::AccessFlags::W_OK)
}

#[test]
fn a_process_can_be_added() {
    let Some(access) = access() else { return };
    let group = Cgroup::create(&access, &TreeLimits::default()).unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    group.add(Pid::from_raw(child.id() as i32)).unwrap();
    assert_eq!(members(&group.leaves[0].directory), [Pid::from_raw(child.id() as i32)]);
    group.kill();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
}

/// A process whose number names groups; everybody leaves them alone while it lives.
fn owner_of_groups() -> (std::process::Child, String) {
    let child = Command::new("sleep").arg("1000").spawn().unwrap();
    let name = format!("{PREFIX}{}-00000000", child.id());
    (child, name)
}

#[test]
fn stale_groups_are_swept_and_live_ones_are_not() {
    let Some(access) = access() else { return };
    let live = Cgroup::create(&access, &TreeLimits::default()).unwrap();
    let (mut owner, name) = owner_of_groups();
    let stale: Vec<PathBuf> = files::hierarchies(&access).iter().map(|h| h.directory.join(&name)).collect();
    for directory in &stale {
        std::fs::create_dir(directory).unwrap();
    }
    let mut orphan = Command::new("sleep").arg("1000").spawn().unwrap();
    write(&stale[0].join("cgroup.procs"), &orphan.id().to_string()).unwrap();
    let reaper = std::thread::spawn(move || orphan.wait().unwrap());
    sweep(&access);
    assert!(stale.iter().all(|directory| directory.exists()));
    owner.kill().unwrap();
    owner.wait().unwrap();
    sweep(&access);
    assert_eq!(reaper.join().unwrap().signal(), Some(libc::SIGKILL));
    // Somebody else's sweep may be at it at the same time.
    let started = Instant::now();
    while stale.iter().any(|directory| directory.exists()) {
        assert!(started.elapsed() < REMOVAL);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(directories(&live).iter().all(|directory| directory.exists()));
}

/// The number of its owner means nothing in our pid namespace, but the lock does.
#[test]
fn a_group_of_another_pid_namespace_is_not_swept() {
    let Some(access) = access() else { return };
    let (mut owner, name) = owner_of_groups();
    let held = files::hierarchies(&access)[0].directory.join(&name);
    std::fs::create_dir(&held).unwrap();
    let lock = lock(&held).unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    sweep(&access);
    assert!(held.exists());
    drop(lock);
    sweep(&access);
    assert!(!held.exists());
}

#[test]
fn nothing_is_left_of_a_group_that_could_not_be_made() {
    let Some(access) = access() else { return };
    let impossible = TreeLimits { processes: Some(u64::MAX), ..TreeLimits::default() };
    let error = Cgroup::create(&access, &impossible).unwrap_err();
    assert_eq!(error.step, Step::Cgroup);
    for hierarchy in files::hierarchies(&access) {
        let ours = format!("{PREFIX}{}-", std::process::id());
        let names = std::fs::read_dir(hierarchy.directory).unwrap().flatten().map(|entry| entry.path().join("pids.max"));
        let left = names.filter(|path| path.to_string_lossy().contains(&ours));
        // Other tests of this process have theirs at the same time; an impossible one has no limit.
        for path in left {
            assert_ne!(std::fs::read_to_string(&path).unwrap_or_default().trim(), "18446744073709551615");
        }
    }
    let none = Cgroup::create(&CgroupAccess::None, &TreeLimits { memory: Some(1), ..TreeLimits::default() }).unwrap_err();
    assert_eq!(none.errno(), Errno::EOPNOTSUPP);
}

#[test]
fn names() {
    assert_eq!(owner("hermes-sandbox-12-0a0b0c0d"), Some(Pid::from_raw(12)));
    for name in
        ["hermes-sandbox-", "hermes-sandbox-12", "hermes-sandbox-x-1", "hermes-sandbox-0-1", "hermes-sandbox--1-1", "other-1-1"]
    {
        assert_eq!(owner(name), None, "{name}");
    }
}
