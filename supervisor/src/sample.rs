//! A machine that can do everything and a plan for it, for tests.

use hermes_backends::host::{CgroupAccess, Host, Probe};
use hermes_backends::plan::{Enforcer, Identity, LimitsPlan, Lost, MountStep, NetworkPlan, Plan, SeccompPlan, Source, Tier};
use hermes_profiles::Guarantee;

/// An ordinary user on a recent kernel.
pub(crate) fn host() -> Host {
    Host {
        kernel: "6.18.0".into(),
        arch: "x86_64".into(),
        landlock_abi: 7,
        userns: Probe::Works,
        userns_cause: None,
        netns: Probe::Works,
        proc_mount: Probe::Works,
        overlay: Probe::Works,
        recursive_attributes: Probe::Works,
        idmap: Probe::Works,
        notify: Probe::Works,
        mediation: Probe::Works,
        borrowing: Probe::Works,
        seccomp: Probe::Works,
        processes_per_userns: true,
        cgroup: CgroupAccess::None,
        enclosure: None,
        uid: 1000,
        gid: 1000,
        powerful_groups: Vec::new(),
        memory: 8 << 30,
    }
}

/// A small plan on that machine.
pub(crate) fn plan() -> Plan {
    let source = |path: &str| Source { path: path.into(), dev: 1, ino: 1 };
    let bind = |path: &str, writable| MountStep::Bind {
        source: source(path),
        target: path.into(),
        directory: true,
        writable,
        device: false,
    };
    Plan {
        profile: "agent".into(),
        tier: Tier::Namespaces,
        identity: Identity { uid: 1000, gid: 1000, host_uid: 1000, host_gid: 1000, idmap: false },
        mounts: vec![
            bind("/usr", false),
            MountStep::Symlink { target: "/lib".into(), to: "usr/lib".into() },
            MountStep::Private { target: "/tmp".into(), mode: 0o1777, writable: true },
            bind("/home/u/ws\x1b", true),
            MountStep::Mask { target: "/home/u/ws/s.env".into(), directory: false },
            MountStep::Proc,
        ],
        scratch: Some(1 << 30),
        landlock: None,
        seccomp: SeccompPlan {
            strict: false,
            nested_sandbox: false,
            notify_connect: true,
            unix_sockets: true,
            unix_datagram: false,
            inet_sockets: true,
            mediate_tcp: false,
            make_sockets: false,
            deny_ipc: false,
        },
        network: NetworkPlan::Private,
        gateway: None,
        connect: Vec::new(),
        unix_connect: Vec::new(),
        limits: LimitsPlan {
            memory: Some(3 << 29),
            memory_by: Enforcer::Watchdog,
            processes: Some(4096),
            processes_by: Enforcer::Rlimit,
            cpu_percent: None,
            open_files: None,
            file_size: None,
            timeout: Some(1500),
            grace: 2000,
        },
        redirects: Vec::new(),
        cwd: "/home/u/ws".into(),
        lost: vec![Lost {
            guarantee: Guarantee::CpuLimited,
            required: true,
            reason: "no control group".into(),
            remedy: "log in".into(),
        }],
        weakened: Vec::new(),
    }
}
