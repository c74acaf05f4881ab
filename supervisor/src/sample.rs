//! A machine that can do everything, for tests.

use hermes_backends::host::{CgroupAccess, Host, Probe};

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
        seccomp: Probe::Works,
        processes_per_userns: true,
        cgroup: CgroupAccess::None,
        uid: 1000,
        gid: 1000,
        powerful_groups: Vec::new(),
        memory: 8 << 30,
    }
}
