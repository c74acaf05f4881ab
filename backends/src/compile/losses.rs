//! What a host cannot give, by guarantee, with the reason and the remedy.

use std::path::Path;

use hermes_profiles::{Access, Guarantee, Network, Policy, ospath};
use nix::errno::Errno;

use super::files::{Grant, View};
use super::network::{MOST_PORTS, is_mediated};
use super::{Choices, wanted};
use crate::host::{CgroupAccess, Host, Probe, UsernsCause};
use crate::plan::{Enforcer, Lost, NetworkPlan, Plan, Tier};

/// What the Landlock tier never gives, with the kernel's reason.
const LANDLOCK_LOSES: &[(Guarantee, &str)] = &[
    (Guarantee::MetadataConfined, "Landlock does not rule chmod, chown, utimes, setxattr, stat and access"),
    (Guarantee::ProcessesHidden, "without a pid namespace /proc lists the processes of the host"),
    (
        Guarantee::HomePrivate,
        "without a mount namespace there is no private home, /tmp, /dev/shm or /dev/pts: programs that open a terminal of their own fail",
    ),
    (Guarantee::LoopbackPrivate, "without a network namespace there is no own loopback; internet sockets are refused"),
    (Guarantee::WorkspaceOverlaid, "without a mount namespace nothing can be copy-on-write; the workspace would be read-only"),
    (Guarantee::CachesProtected, "without a mount namespace caches cannot be copy-on-write; they are read-only"),
];

/// Of these, what a container around the sandbox gives by its own namespaces and mounts.
const ENCLOSURE_GIVES: [Guarantee; 5] = [
    Guarantee::MetadataConfined,
    Guarantee::ProcessesHidden,
    Guarantee::HomePrivate,
    Guarantee::LoopbackPrivate,
    // The caller's caches are not mounted at all.
    Guarantee::CachesProtected,
];

/// What becomes of the loopback where the supervisor binds and connects.
const SHARED_LOOPBACK: &str = "without a network namespace the host's loopback is shared: from inside only servers of the sandbox's \
    own are reached, but the host's programs reach those, and a port that one of them has is taken";
const SECCOMP_REMEDY: &str = "use a kernel with CONFIG_SECCOMP_FILTER";
const NAMESPACES_REMEDY: &str = "allow unprivileged user namespaces on this host (`hermes-sandbox doctor` says how)";

struct Losses<'a> {
    policy: &'a Policy,
    lost: Vec<Lost>,
    weakened: Vec<Lost>,
}

impl Losses<'_> {
    fn make(&self, guarantee: Guarantee, reason: impl Into<String>, remedy: impl Into<String>) -> Lost {
        Lost { guarantee, required: self.policy.requires(guarantee), reason: reason.into(), remedy: remedy.into() }
    }

    fn lose(&mut self, guarantee: Guarantee, reason: impl Into<String>, remedy: impl Into<String>) {
        if wanted(self.policy, guarantee) && !self.lost.iter().any(|lost| lost.guarantee == guarantee) {
            let lost = self.make(guarantee, reason, remedy);
            self.lost.push(lost);
        }
    }

    fn weaken(&mut self, guarantee: Guarantee, reason: impl Into<String>, remedy: impl Into<String>) {
        if wanted(self.policy, guarantee) {
            let lost = self.make(guarantee, reason, remedy);
            self.weakened.push(lost);
        }
    }
}

/// All losses of a plan: (lost, weakened).
pub fn find(policy: &Policy, host: &Host, view: &View, plan: &Plan, choices: Choices<'_>) -> (Vec<Lost>, Vec<Lost>) {
    let mut losses = Losses { policy, lost: Vec::new(), weakened: Vec::new() };
    match plan.tier {
        Tier::Namespaces => namespaces(&mut losses, host, view, choices),
        Tier::Landlock => landlock(&mut losses, host, view, plan),
    }
    if plan.tier == Tier::Landlock {
        losses.weaken(
            Guarantee::FilesGuarded,
            "without a mount namespace hooks and configuration of git cannot be shadowed: they are put aside when the run ends",
            NAMESPACES_REMEDY,
        );
    }
    if !host.seccomp.works() {
        losses.lose(
            Guarantee::SyscallsFiltered,
            format!("this kernel loads no seccomp filter: {}", failure(&host.seccomp)),
            SECCOMP_REMEDY,
        );
    }
    unkept(&mut losses, view);
    network(&mut losses, host, plan);
    limits(&mut losses, host, plan);
    (losses.lost, losses.weakened)
}

fn namespaces(losses: &mut Losses<'_>, host: &Host, view: &View, choices: Choices<'_>) {
    if let Some((reason, remedy)) = why_no_namespaces(host) {
        for guarantee in [
            Guarantee::FilesReadConfined,
            Guarantee::FilesWriteConfined,
            Guarantee::NetworkMediated,
            Guarantee::ProcessesHidden,
            Guarantee::UnixSocketsConfined,
        ] {
            losses.lose(guarantee, reason.clone(), remedy.clone());
        }
    }
    if host.uid == 0 && !host.idmap.works() {
        losses.lose(
            Guarantee::FilesWriteConfined,
            format!("real root never enters, and id-mapped mounts for its stand-in fail: {}", failure(&host.idmap)),
            "run as an ordinary user, or add --user NAME",
        );
    }
    if !host.notify.works() {
        losses.lose(
            Guarantee::UnixSocketsConfined,
            format!("seccomp notifications do not work here: {}", failure(&host.notify)),
            "run where no other seccomp listener is in force (not inside another sandbox), on Linux 5.9 or later",
        );
    }
    workspace_layer(losses, choices);
    let private = |path: &Path, grant: &Grant| grant.access == Access::Overlay && choices.layer(path).is_none();
    if view.grants.iter().any(|(path, grant)| private(path, grant)) && !host.overlay.works() {
        losses.weaken(
            Guarantee::CachesProtected,
            format!("copy-on-write mounts fail ({}); caches are read-only", failure(&host.overlay)),
            "use Linux 5.11 or later",
        );
    }
    if host.landlock_abi == 0 {
        for guarantee in [Guarantee::FilesReadConfined, Guarantee::FilesWriteConfined] {
            losses.weaken(
                guarantee,
                "this kernel has no Landlock; the mounts alone carry the file rules",
                "use Linux 5.13 or later with Landlock in the lsm= list",
            );
        }
    } else if host.landlock_abi == 1 {
        for guarantee in [Guarantee::FilesReadConfined, Guarantee::FilesWriteConfined] {
            losses.weaken(
                guarantee,
                "Landlock ABI 1 refuses renames between directories; the mounts alone carry the file rules",
                "use Linux 5.19 or later",
            );
        }
    }
    for hide in &view.hides {
        let overlaid = view.covering(&hide.path).filter(|(_, grant)| grant.access == Access::Overlay);
        let held = |path: &Path| match choices.kept {
            // A mask on an overlay: the host's changes below do not reach the entry that it is mounted on.
            Some(kept) if choices.layer(path).is_some() => kept.works.works(),
            _ => host.overlay.works(),
        };
        if overlaid.is_some_and(|(path, _)| held(path)) && hide.kind.is_some() {
            continue;
        }
        let what = if hide.kind.is_some() { "is replaced by the host" } else { "is created by the host" };
        losses.weaken(
            Guarantee::HiddenSurvivesReplacement,
            format!("{} becomes visible when it {what} while the sandbox runs", ospath::escaped(&hide.path)),
            "keep secrets outside granted trees, or grant the tree copy-on-write (--overlay)",
        );
        break;
    }
}

/// A copy-on-write workspace needs an upper layer that outlives the sandbox.
fn workspace_layer(losses: &mut Losses<'_>, choices: Choices<'_>) {
    match choices.kept.map(|kept| kept.works) {
        Some(Probe::Works) => {}
        None => losses.lose(
            Guarantee::WorkspaceOverlaid,
            "there is no directory to keep the changes in",
            "set HOME or XDG_STATE_HOME to a directory of yours, or use a workspace that is written (without --overlay)",
        ),
        Some(Probe::Fails(error)) => losses.lose(
            Guarantee::WorkspaceOverlaid,
            format!("the changes cannot be kept in the state directory: {error}"),
            "point XDG_STATE_HOME to a file system that holds upper layers (ext4, xfs, btrfs, tmpfs; not an overlay, NFS or \
             the workspace itself) on Linux 5.11 or later, or use a workspace that is written (without --overlay)",
        ),
    }
}

fn landlock(losses: &mut Losses<'_>, host: &Host, view: &View, plan: &Plan) {
    let old = |abi: u32| format!("Landlock ABI {} of this kernel does not have it (needs {abi})", host.landlock_abi);
    if host.landlock_abi == 0 {
        for guarantee in [Guarantee::FilesReadConfined, Guarantee::FilesWriteConfined, Guarantee::FilesHidden] {
            losses.lose(guarantee, "this kernel has no Landlock", NAMESPACES_REMEDY);
        }
    } else if host.landlock_abi < 3 {
        losses.lose(
            Guarantee::FilesWriteConfined,
            format!("truncating files: {}", old(3)),
            format!("use Linux 6.2 or later, or {NAMESPACES_REMEDY}"),
        );
    }
    for &(guarantee, reason) in LANDLOCK_LOSES {
        if host.enclosure.is_some() && ENCLOSURE_GIVES.contains(&guarantee) {
            continue;
        }
        let shared = guarantee == Guarantee::LoopbackPrivate && plan.network == NetworkPlan::Notified;
        losses.lose(guarantee, if shared { SHARED_LOOPBACK } else { reason }, NAMESPACES_REMEDY);
    }
    if host.landlock_abi < 6 {
        losses.lose(Guarantee::SignalsConfined, format!("scoping of signals: {}", old(6)), "use Linux 6.12 or later");
    }
    // In a container root has no capabilities, and what it may not write is mounted read-only.
    if host.uid == 0 && host.enclosure.is_none() {
        losses.lose(
            Guarantee::FilesWriteConfined,
            "real root would enter: Landlock does not keep the owner of a file from changing its mode",
            "run as an ordinary user, or add --user NAME",
        );
    }
    if let Some(path) = view.kept_from_writing() {
        losses.lose(
            Guarantee::FilesWriteConfined,
            format!("Landlock cannot take {} out of a writable tree", ospath::escaped(path)),
            format!("do not make the tree around it writable, or {NAMESPACES_REMEDY}"),
        );
    }
    if !host.seccomp.works() {
        for guarantee in [Guarantee::NetworkMediated, Guarantee::UnixSocketsConfined, Guarantee::IpcPrivate] {
            losses.lose(
                guarantee,
                "without namespaces only a seccomp filter gives it, and this kernel loads none",
                SECCOMP_REMEDY,
            );
        }
    }
    if let Some(hide) = view.hides.iter().find(|hide| hide.kind.is_some()) {
        losses.lose(
            Guarantee::FilesHidden,
            format!("Landlock cannot take {} out of a granted tree", ospath::escaped(&hide.path)),
            format!("do not grant the tree around it, or {NAMESPACES_REMEDY}"),
        );
    }
    losses.lose(Guarantee::HiddenSurvivesReplacement, "Landlock rules follow files, not names", NAMESPACES_REMEDY);
    let outrun = match host.landlock_abi {
        ..6 => ", and one that forks without end can outrun its kill",
        _ => "",
    };
    if host.enclosure.is_some() {
        return;
    }
    losses.weaken(
        Guarantee::TreeKilled,
        format!("without a pid namespace processes survive when the supervisor and init are both killed at once{outrun}"),
        NAMESPACES_REMEDY,
    );
    losses.lose(Guarantee::ScratchLimited, "without a mount namespace there is no tmpfs of a set size", NAMESPACES_REMEDY);
}

/// Paths inside grants that are to have less than what is around them, and cannot be looked at or are not there.
fn unkept(losses: &mut Losses<'_>, view: &View) {
    let hidden = view.hides.iter().find(|hide| hide.errno != 0).map(|hide| (Guarantee::FilesHidden, &hide.path, hide.errno));
    let kept = view.unkept.iter().find(|kept| kept.errno != 0);
    let kept = kept.map(|kept| (Guarantee::FilesWriteConfined, &kept.path, kept.errno));
    for (guarantee, path, errno) in hidden.into_iter().chain(kept) {
        losses.lose(
            guarantee,
            format!("cannot look at {}: {}", ospath::escaped(path), Errno::from_raw(errno).desc()),
            "make the directories on the way to it accessible, or do not grant the tree around it",
        );
    }
    if let Some(absent) = view.unkept.iter().find(|kept| kept.errno == 0) {
        losses.weaken(
            Guarantee::FilesWriteConfined,
            format!("{} is to be read-only, but is not there, so that it can be made", ospath::escaped(&absent.path)),
            "make it before the start",
        );
    }
}

fn network(losses: &mut Losses<'_>, host: &Host, plan: &Plan) {
    if is_mediated(losses.policy)
        && plan.gateway.is_none()
        && let Some((reason, remedy)) = why_no_mediation(host)
    {
        losses.lose(Guarantee::NetworkMediated, reason, remedy);
    }
    // Each port of the loopback has a listener for either family.
    let routed = plan.gateway.as_ref().map_or(0, |gateway| gateway.ports.len());
    if plan.network == NetworkPlan::Private && routed + 2 * plan.connect.len() > MOST_PORTS {
        losses.lose(
            Guarantee::NetworkMediated,
            format!("{routed} ports of routes and {} of the loopback are too many: at most {MOST_PORTS}, where one of the loopback counts twice", plan.connect.len()),
            "name fewer ports",
        );
    }
    if plan.network == NetworkPlan::Host && losses.policy.network != Network::Host {
        losses.lose(Guarantee::NetworkMediated, "the host's network is used", NAMESPACES_REMEDY);
    }
}

fn limits(losses: &mut Losses<'_>, host: &Host, plan: &Plan) {
    let remedy = cgroup_remedy(&host.cgroup);
    if plan.limits.memory_by == Enforcer::Watchdog {
        losses.weaken(Guarantee::MemoryLimited, "no control group is to be had; init adds up resident memory and kills", remedy);
    }
    if plan.limits.processes_by == Enforcer::Nothing {
        losses.lose(
            Guarantee::ProcessesLimited,
            "neither a control group nor RLIMIT_NPROC of an own user namespace (Linux 5.14) is to be had",
            remedy,
        );
    }
    if !host.cgroup.has("cpu") && !host.enclosure.is_some_and(|enclosure| enclosure.cpu) {
        losses.lose(Guarantee::CpuLimited, "no control group with the cpu controller is to be had", remedy);
    }
}

/// Says in `plan`, which cannot start on this host, what the other tier would lose.
pub fn point_to(landlock: &Plan, plan: &mut Plan) {
    let names: Vec<&str> = landlock.fatal().map(|lost| lost.guarantee.name()).collect();
    if let Some(lost) = plan.lost.iter_mut().find(|lost| lost.required) {
        lost.remedy += &format!("; or see what `--tier landlock` needs, which loses {}", names.join(", "));
    }
}

fn failure(probe: &Probe) -> String {
    match probe {
        Probe::Works => "works".to_owned(),
        Probe::Fails(error) => error.to_string(),
    }
}

/// What to do where no control group can be made.
pub fn cgroup_remedy(cgroup: &CgroupAccess) -> &'static str {
    match cgroup {
        CgroupAccess::Systemd => "start it by `systemd-run --user --scope -p Delegate=yes hermes-sandbox ...`",
        _ => "run in a delegated cgroup v2 (for example `systemd-run --user --scope -p Delegate=yes`)",
    }
}

/// What to do where user namespaces are refused for this cause.
pub fn userns_remedy(cause: Option<UsernsCause>) -> &'static str {
    match cause {
        Some(UsernsCause::AppArmor) => "load the AppArmor profile that comes with the program: sudo scripts/install --apparmor",
        Some(UsernsCause::Limit) => "as root: sysctl user.max_user_namespaces=10000",
        Some(UsernsCause::Sysctl) => "as root: sysctl kernel.unprivileged_userns_clone=1",
        Some(UsernsCause::Nested) => "run the command directly: the outer sandbox confines it already",
        Some(UsernsCause::Filter) => "run it outside that container, or give the container a profile that allows user namespaces",
        Some(UsernsCause::Kernel | UsernsCause::Other) | None => {
            "use a kernel with user namespaces, or `--tier landlock` with the losses it names"
        }
    }
}

/// Reason and remedy when routes cannot be had without namespaces on this host.
pub fn why_no_mediation(host: &Host) -> Option<(String, String)> {
    const WITHOUT: &str = "without a network namespace routes need";
    if host.landlock_abi < 4 {
        let reason = format!("{WITHOUT} Landlock's rules for TCP (ABI 4), and this kernel has ABI {}", host.landlock_abi);
        return Some((reason, format!("use --net off, Linux 6.7 or later, or {NAMESPACES_REMEDY}")));
    }
    if !host.mediation.works() {
        let reason = format!("{WITHOUT} seccomp notifications, which do not work here: {}", failure(&host.mediation));
        let remedy = format!("use --net off, run where no other seccomp listener is in force, or {NAMESPACES_REMEDY}");
        return Some((reason, remedy));
    }
    None
}

/// Reason and remedy when the namespaces tier cannot start on this host.
pub fn why_no_namespaces(host: &Host) -> Option<(String, String)> {
    let nested = host.userns_cause == Some(UsernsCause::Nested);
    if let Probe::Fails(error) = &host.userns {
        let cause = match host.userns_cause {
            Some(UsernsCause::AppArmor) => "AppArmor restricts unprivileged user namespaces",
            Some(UsernsCause::Limit) => "user.max_user_namespaces is used up or 0",
            Some(UsernsCause::Sysctl) => "kernel.unprivileged_userns_clone is 0",
            Some(UsernsCause::Filter) => "a seccomp filter or container runtime refuses user namespaces",
            Some(UsernsCause::Nested) => "this is already inside hermes-sandbox, which refuses nested user namespaces",
            Some(UsernsCause::Kernel) => "this kernel has no user namespaces",
            _ => "user namespaces fail",
        };
        return Some((format!("{cause}: {error}"), userns_remedy(host.userns_cause).to_owned()));
    }
    if let Probe::Fails(error) = &host.proc_mount {
        let reason = format!("{error}: parts of the host's /proc are covered (a container runtime does that)");
        let remedy = if nested {
            userns_remedy(host.userns_cause)
        } else {
            "start the container with `--security-opt systempaths=unconfined` (Podman: unmask=ALL)"
        };
        return Some((reason, remedy.to_owned()));
    }
    if let Probe::Fails(error) = &host.recursive_attributes {
        let reason = format!("read-only mounts of whole trees need Linux 5.12: {error}");
        return Some((reason, "use Linux 5.12 or later, or `--tier landlock` with the losses it names".to_owned()));
    }
    match &host.netns {
        Probe::Fails(error) => {
            Some((format!("network namespaces fail: {error}"), "use a kernel with network namespaces".to_owned()))
        }
        Probe::Works => None,
    }
}
