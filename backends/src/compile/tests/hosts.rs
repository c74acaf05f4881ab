//! Machines that can do this and not that.

use nix::errno::Errno;

use crate::host::{CgroupAccess, Host, Probe, UsernsCause};
use crate::local::landlock::KNOWN_ABI;
use crate::step::{Step, StepError};

/// An ordinary user on a recent kernel, with a control group.
pub(super) fn baseline() -> Host {
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
        idmap: fails(Step::Attributes, Errno::EPERM),
        notify: Probe::Works,
        mediation: Probe::Works,
        borrowing: Probe::Works,
        seccomp: Probe::Works,
        processes_per_userns: true,
        cgroup: CgroupAccess::V2 {
            directory: "/sys/fs/cgroup/u".into(),
            controllers: ["memory", "pids", "cpu"].map(str::to_owned).into(),
        },
        enclosure: None,
        uid: 1000,
        gid: 1000,
        powerful_groups: Vec::new(),
        memory: 16 << 30,
    }
}

pub(super) fn fails(step: Step, errno: Errno) -> Probe {
    Probe::Fails(StepError::new(step, errno))
}

pub(super) fn without_userns(cause: UsernsCause, errno: Errno) -> Host {
    let no = fails(Step::Namespaces, errno);
    Host {
        userns: no.clone(),
        userns_cause: Some(cause),
        netns: no.clone(),
        proc_mount: no.clone(),
        overlay: no.clone(),
        recursive_attributes: no,
        ..baseline()
    }
}

/// Hosts whose Landlock is varied, by name.
pub(super) fn families() -> Vec<(&'static str, Host)> {
    let covered = || fails(Step::Proc, Errno::EPERM);
    vec![
        ("namespaces work", baseline()),
        ("/proc is covered", Host { proc_mount: covered(), ..baseline() }),
        ("userns refused by sysctl", without_userns(UsernsCause::Sysctl, Errno::EPERM)),
        ("userns refused by AppArmor", without_userns(UsernsCause::AppArmor, Errno::EACCES)),
    ]
}

/// Hosts that lack one thing each, by name.
pub(super) fn single() -> Vec<(&'static str, Host)> {
    let v2 = |controllers: &[&str]| CgroupAccess::V2 {
        directory: "/sys/fs/cgroup/u".into(),
        controllers: controllers.iter().map(|c| (*c).to_owned()).collect(),
    };
    vec![
        ("no overlay", Host { overlay: fails(Step::Overlay, Errno::EINVAL), ..baseline() }),
        ("no notify", Host { notify: fails(Step::Broker, Errno::EBUSY), ..baseline() }),
        (
            "no seccomp",
            Host { seccomp: fails(Step::Seccomp, Errno::EINVAL), notify: fails(Step::Broker, Errno::EINVAL), ..baseline() },
        ),
        ("no seccomp, no userns", {
            let (seccomp, notify) = (fails(Step::Seccomp, Errno::EINVAL), fails(Step::Broker, Errno::EINVAL));
            Host { seccomp, notify, ..without_userns(UsernsCause::Sysctl, Errno::EPERM) }
        }),
        ("no netns", Host { netns: fails(Step::Namespaces, Errno::EINVAL), ..baseline() }),
        ("no recursive attributes", Host { recursive_attributes: fails(Step::Attributes, Errno::ENOSYS), ..baseline() }),
        ("root, id maps", Host { uid: 0, gid: 0, idmap: Probe::Works, ..baseline() }),
        ("root, no id maps", Host { uid: 0, gid: 0, ..baseline() }),
        ("root in a container", Host { uid: 0, gid: 0, ..without_userns(UsernsCause::Filter, Errno::EPERM) }),
        ("nested", without_userns(UsernsCause::Nested, Errno::EPERM)),
        ("no cgroup", Host { cgroup: CgroupAccess::None, ..baseline() }),
        ("no cgroup, Linux 5.13", Host { cgroup: CgroupAccess::None, processes_per_userns: false, ..baseline() }),
        ("cgroup v2, pids alone", Host { cgroup: v2(&["pids"]), ..baseline() }),
        ("cgroup v1", {
            let cgroup = CgroupAccess::V1 { memory: Some("/cg/memory/u".into()), pids: Some("/cg/pids/u".into()), cpu: None };
            Host { cgroup, ..baseline() }
        }),
        ("cgroup by systemd", Host { cgroup: CgroupAccess::Systemd, ..baseline() }),
    ]
}

/// One Landlock ABI more than is known.
pub(super) const NEWEST_ABI: u32 = KNOWN_ABI + 1;

/// All of them.
pub(super) fn all() -> Vec<(String, Host)> {
    let families = families();
    let varied = families.iter().flat_map(|(name, host)| {
        (0..=NEWEST_ABI).map(move |abi| (format!("{name}, abi {abi}"), Host { landlock_abi: abi, ..host.clone() }))
    });
    varied.chain(single().into_iter().map(|(name, host)| (name.to_owned(), host))).collect()
}
