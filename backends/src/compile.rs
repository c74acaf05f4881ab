//! Policy + host + survey = plan. A pure function.

pub mod files;
pub mod losses;
pub mod mounts;
pub mod network;
pub mod shadow;

use std::path::{Path, PathBuf};

use hermes_profiles::{Access, Guarantee, Limits, Network, Origin, Policy, ospath};

use crate::host::{Host, Probe};
use crate::local::landlock::KNOWN_ABI;
use crate::plan::{
    Enforcer, Identity, LandlockPlan, Layer, LimitsPlan, NetworkPlan, PathRights, PathRule, Plan, SeccompPlan, Tier,
};
use crate::survey::Survey;

/// Ids on the host that stand for a root caller: below 2^31, above what systemd hands to containers and services.
pub const ROOT_STAND_IN: u32 = 2_147_418_112;

/// What else a plan depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choices<'a> {
    /// The tier that the caller insists on.
    pub tier: Option<Tier>,
    /// Where the caller stands; used when it lies in a grant, else the workspace is.
    pub cwd: Option<&'a Path>,
    /// Where to put the private directory of the Landlock tier (its /tmp); made by the backend.
    pub scratch: Option<&'a Path>,
    /// Copy-on-write trees whose changes outlive the sandbox; `None` where they cannot be kept at all.
    pub kept: Option<Kept<'a>>,
}

/// Copy-on-write trees whose changes outlive the sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    /// The trees, by real path, and their upper layers.
    pub trees: &'a [(PathBuf, Layer)],
    /// Can upper layers lie where these do?
    pub works: &'a Probe,
}

impl Choices<'_> {
    /// The upper layer of a tree whose changes are kept.
    fn layer(&self, path: &Path) -> Option<&Layer> {
        self.kept.and_then(|kept| kept.trees.iter().find(|(tree, _)| tree == path).map(|(_, layer)| layer))
    }

    /// The upper layer for a copy-on-write grant; without one it is read-only, and never the host's to write.
    fn upper(&self, policy: &Policy, survey: &Survey, host: &Host, path: &Path) -> Option<Layer> {
        match (self.layer(path), self.kept) {
            (Some(layer), Some(kept)) => kept.works.works().then(|| layer.clone()),
            // Changes to a workspace never end with the sandbox.
            _ if policy.workspace_access == Access::Overlay && path == survey.real(&policy.workspace) => None,
            _ => host.overlay.works().then_some(Layer::Private),
        }
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// A rule names a path that is not there.
    #[error(
        "{} does not exist ({origin}); create it, or write ?{} if it may be absent",
        ospath::escaped(path),
        ospath::escaped(path)
    )]
    Missing {
        /// The path.
        path: PathBuf,
        /// Where the rule was written.
        origin: Origin,
    },
    /// A rule names a path that cannot be looked at.
    #[error("cannot look at {} ({origin}): {}", ospath::escaped(path), nix::errno::Errno::from_raw(*errno).desc())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// Where the rule was written.
        origin: Origin,
        /// The kernel's answer.
        errno: i32,
    },
    /// A rule crosses a symlink that the sandbox could change.
    #[error("{0}")]
    CrossesWritable(Box<Crossing>),
    /// The workspace is hidden by a rule.
    #[error(
        "the workspace {} is hidden by {} ({origin}); choose another workspace or remove that rule",
        ospath::escaped(workspace),
        ospath::escaped(path)
    )]
    WorkspaceHidden {
        /// The workspace.
        workspace: PathBuf,
        /// The path of the rule.
        path: PathBuf,
        /// Where the rule was written.
        origin: Origin,
    },
    /// A writable grant leads to what is too much to be meant.
    #[error(
        "{} ({origin}) leads to {}, which would give away too much; name something narrower, or accept with --allow-broad",
        ospath::escaped(path),
        ospath::escaped(real)
    )]
    TooBroad {
        /// The path of the rule.
        path: PathBuf,
        /// Where the rule was written.
        origin: Origin,
        /// Where it leads.
        real: PathBuf,
    },
    /// Something of the policy's own has no place.
    #[error("{} cannot be made inside: {why}", ospath::escaped(path))]
    Unplaced {
        /// Where.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The workspace is not a directory.
    #[error("the workspace {} is not a directory; name one with --workspace", ospath::escaped(path))]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A path cannot be granted because the sandbox builds it itself.
    #[error("{} ({origin}) cannot be granted: the sandbox has a {} of its own", ospath::escaped(path), ospath::escaped(own))]
    Reserved {
        /// The path.
        path: PathBuf,
        /// Where the rule was written.
        origin: Origin,
        /// `/proc` or `/dev`.
        own: PathBuf,
    },
}

/// A rule whose path leads through a symlink in a tree that the sandbox may write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} ({origin}) crosses the symlink {}, which lies in {}, a tree that the sandbox may write; name the real path {}",
    ospath::escaped(path),
    ospath::escaped(link),
    ospath::escaped(tree),
    ospath::escaped(real)
)]
pub struct Crossing {
    /// The path of the rule.
    pub path: PathBuf,
    /// Where the rule was written.
    pub origin: Origin,
    /// The symlink.
    pub link: PathBuf,
    /// The writable tree it lies in.
    pub tree: PathBuf,
    /// Where the path leads now.
    pub real: PathBuf,
}

/// Decides everything that will be done. Losses that forbid the start are in the plan, not an error.
///
/// When the caller does not insist on a tier it is namespaces, unless this host has none and Landlock alone loses
/// nothing that the policy requires.
///
/// # Errors
/// Rules that no plan can honour.
pub fn compile(policy: &Policy, host: &Host, survey: &Survey, choices: Choices<'_>) -> Result<Plan, CompileError> {
    let plan = |tier| plan(policy, host, survey, choices, tier);
    match choices.tier {
        Some(tier) => plan(tier),
        None if losses::why_no_namespaces(host).is_none() => plan(Tier::Namespaces),
        None => {
            let landlock = plan(Tier::Landlock)?;
            if landlock.fatal().next().is_none() {
                return Ok(landlock);
            }
            let mut namespaces = plan(Tier::Namespaces)?;
            losses::point_to(&landlock, &mut namespaces);
            Ok(namespaces)
        }
    }
}

fn plan(policy: &Policy, host: &Host, survey: &Survey, choices: Choices<'_>, tier: Tier) -> Result<Plan, CompileError> {
    let mut view = files::grants(policy, survey, choices, tier)?;
    if tier == Tier::Landlock {
        files::drop_caches_with_secrets(&mut view);
    }
    let abi = host.landlock_abi.min(KNOWN_ABI);
    let network = match (&policy.network, tier) {
        (Network::Host, _) => NetworkPlan::Host,
        (_, Tier::Namespaces) => NetworkPlan::Private,
        (_, Tier::Landlock) if network::is_mediated(policy) && losses::why_no_mediation(host).is_none() => NetworkPlan::Notified,
        (_, Tier::Landlock) => NetworkPlan::NoSockets,
    };
    let has_loopback = matches!(network, NetworkPlan::Private | NetworkPlan::Notified);
    let upper = |path: &Path| choices.upper(policy, survey, host, path);
    let gateway = network::gateway(policy, network, choices.scratch);
    let files = gateway.as_ref().map(|gateway| network::files(gateway, &view, survey)).unwrap_or_default();
    let mounts = match tier {
        Tier::Namespaces => mounts::mounts(policy, &view, &upper, files),
        Tier::Landlock => Vec::new(),
    };
    // In a container that was made for the sandbox its own places are the sandbox's.
    let own = host.enclosure.map(|_| files::own(policy, survey, &view));
    let paths = match tier {
        Tier::Namespaces => mounts::rules_inside(&mounts),
        Tier::Landlock => mounts::rules_outside(&view, choices.scratch, own.as_deref()),
    };
    let mut plan = Plan {
        profile: policy.profile.clone(),
        tier,
        identity: identity(host, tier),
        landlock: landlock(abi, tier, network, paths),
        scratch: policy.limits.scratch.filter(|_| tier == Tier::Namespaces),
        redirects: mounts::redirects(&view, &upper, tier, choices.scratch),
        seccomp: SeccompPlan {
            strict: policy.kernel.strict,
            nested_sandbox: policy.kernel.nested_sandbox,
            notify_connect: tier == Tier::Namespaces && host.notify.works(),
            unix_sockets: tier == Tier::Namespaces,
            unix_datagram: policy.kernel.unix_datagram && tier == Tier::Namespaces,
            inet_sockets: network != NetworkPlan::NoSockets,
            mediate_tcp: network == NetworkPlan::Notified,
            make_sockets: network == NetworkPlan::Notified && !host.borrowing.works(),
            deny_ipc: tier == Tier::Landlock,
        },
        network,
        gateway,
        connect: policy.loopback.connect.iter().copied().filter(|_| has_loopback).collect(),
        limits: limits(&policy.limits, host, tier),
        mounts,
        lost: Vec::new(),
        weakened: Vec::new(),
        unix_connect: Vec::new(),
        cwd: PathBuf::new(),
    };
    (plan.lost, plan.weakened) = losses::find(policy, host, &view, &plan, choices);
    (plan.unix_connect, plan.cwd) = (view.sockets, view.cwd);
    Ok(plan)
}

fn identity(host: &Host, tier: Tier) -> Identity {
    let idmap = host.uid == 0 && tier == Tier::Namespaces;
    let (host_uid, host_gid) = if idmap { (ROOT_STAND_IN, ROOT_STAND_IN) } else { (host.uid, host.gid) };
    Identity { uid: host.uid, gid: host.gid, host_uid, host_gid, idmap }
}

fn landlock(abi: u32, tier: Tier, network: NetworkPlan, paths: Vec<PathRule>) -> Option<LandlockPlan> {
    if abi == 0 {
        return None;
    }
    // ABI 1 refuses every rename and link between directories (landlock(7), REFER); the mounts carry the rules alone.
    let handle_files = abi >= 2 || tier == Tier::Landlock;
    Some(LandlockPlan {
        abi,
        paths: if handle_files { paths } else { Vec::new() },
        handle_files,
        deny_tcp: abi >= 4 && matches!(network, NetworkPlan::NoSockets | NetworkPlan::Notified),
        scope_signals: abi >= 6,
        scope_abstract: abi >= 6,
    })
}

fn limits(limits: &Limits, host: &Host, tier: Tier) -> LimitsPlan {
    let share = limits.memory_percent.map(|percent| host.memory / 100 * u64::from(percent));
    let memory = limits.memory.into_iter().chain(share).min();
    let enclosure = host.enclosure.unwrap_or_default();
    let group = |controller| host.cgroup.has(controller).then_some(Enforcer::Cgroup);
    let container = |holds: bool| holds.then_some(Enforcer::Container);
    let processes_by = match limits.processes {
        None => Enforcer::Nothing,
        Some(_) => container(enclosure.processes)
            .or(group("pids"))
            .unwrap_or(if tier == Tier::Namespaces && host.processes_per_userns { Enforcer::Rlimit } else { Enforcer::Nothing }),
    };
    LimitsPlan {
        memory,
        memory_by: memory
            .map_or(Enforcer::Nothing, |_| container(enclosure.memory).or(group("memory")).unwrap_or(Enforcer::Watchdog)),
        processes: limits.processes,
        processes_by,
        // The container's needs no group of ours.
        cpu_percent: limits.cpu_percent.filter(|_| !enclosure.cpu && host.cgroup.has("cpu")),
        open_files: limits.open_files,
        file_size: limits.file_size,
        timeout: limits.timeout,
        grace: limits.grace,
    }
}

/// Is this guarantee asked for at all by the policy?
fn wanted(policy: &Policy, guarantee: Guarantee) -> bool {
    let limits = &policy.limits;
    match guarantee {
        Guarantee::MemoryLimited => limits.memory.is_some() || limits.memory_percent.is_some(),
        Guarantee::ProcessesLimited => limits.processes.is_some(),
        Guarantee::ScratchLimited => limits.scratch.is_some() || limits.shm.is_some(),
        Guarantee::CpuLimited => limits.cpu_percent.is_some(),
        Guarantee::WorkspaceOverlaid => policy.workspace_access == Access::Overlay,
        Guarantee::NetworkMediated | Guarantee::LoopbackPrivate => policy.network != Network::Host,
        _ => true,
    }
}

fn rule(path: impl Into<PathBuf>, rights: PathRights) -> PathRule {
    PathRule { path: path.into(), identity: None, rights }
}

#[cfg(test)]
mod tests;
