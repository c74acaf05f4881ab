//! What this machine can enforce, as measured data.
//!
//! Filled by [`crate::probe`]; read by [`crate::compile`], which never asks the machine itself.

use hermes_profiles::ospath;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use crate::step::StepError;

/// Outcome of doing the real thing in a throw-away child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// It worked.
    Works,
    /// This step failed.
    Fails(StepError),
}

impl Probe {
    /// Did it work?
    pub fn works(&self) -> bool {
        matches!(self, Self::Works)
    }
}

/// Why user namespaces are refused; decides the remedy that is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsernsCause {
    /// `kernel.apparmor_restrict_unprivileged_userns`: made, but without rights.
    AppArmor,
    /// `user.max_user_namespaces` is used up or 0 (ENOSPC).
    Limit,
    /// `kernel.unprivileged_userns_clone` is 0 (EPERM).
    Sysctl,
    /// A seccomp filter or a nested sandbox refuses (EPERM).
    Filter,
    /// We run inside hermes-sandbox.
    Nested,
    /// The kernel has none.
    Kernel,
    /// Something else.
    Other,
}

/// Where limits on a whole tree can be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupAccess {
    /// Nowhere.
    None,
    /// A cgroup v2 directory in which we may make children.
    V2 {
        /// The directory.
        #[serde(with = "ospath")]
        directory: PathBuf,
        /// Controllers that a child gets: `memory`, `pids`, `cpu`.
        controllers: Vec<String>,
    },
    /// cgroup v1 directories in which we may make children.
    V1 {
        /// The memory controller's.
        #[serde(with = "ospath::option")]
        memory: Option<PathBuf>,
        /// The pids controller's.
        #[serde(with = "ospath::option")]
        pids: Option<PathBuf>,
        /// The cpu controller's.
        #[serde(with = "ospath::option")]
        cpu: Option<PathBuf>,
    },
    /// The user's systemd manager answers: `systemd-run --user --scope`.
    Systemd,
}

impl CgroupAccess {
    /// Can `controller` (`memory`, `pids` or `cpu`) hold a limit there?
    pub fn has(&self, controller: &str) -> bool {
        match self {
            Self::V2 { controllers, .. } => controllers.iter().any(|known| known == controller),
            Self::V1 { memory, pids, cpu } => {
                [("memory", memory), ("pids", pids), ("cpu", cpu)].iter().any(|(name, at)| *name == controller && at.is_some())
            }
            Self::None | Self::Systemd => false,
        }
    }
}

/// What a container around this process holds already. Nothing here is measured: it is what who made the container asked for
/// and checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enclosure {
    /// It limits memory.
    pub memory: bool,
    /// It limits the number of processes.
    pub processes: bool,
    /// It limits processor time.
    pub cpu: bool,
}

/// What this machine can enforce for this user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Kernel release, e.g. `6.1.0-57`.
    pub kernel: String,
    /// `x86_64` or `aarch64`.
    pub arch: String,
    /// Landlock ABI as the kernel reports it; 0 when there is none.
    pub landlock_abi: u32,
    /// User, mount, pid, ipc and uts namespaces with an own id map and a tmpfs mounted in them.
    pub userns: Probe,
    /// Why `userns` fails.
    pub userns_cause: Option<UsernsCause>,
    /// A network namespace with its loopback up.
    pub netns: Probe,
    /// A fresh /proc in own user and pid namespaces.
    pub proc_mount: Probe,
    /// An overlay with `userxattr` whose upper layer is a tmpfs, with a whiteout.
    pub overlay: Probe,
    /// `mount_setattr` with `AT_RECURSIVE` (5.12).
    pub recursive_attributes: Probe,
    /// Id-mapped mounts; only tried for a root caller.
    pub idmap: Probe,
    /// A seccomp filter with a listener, `pidfd_getfd` and `process_vm_readv` on a child.
    pub notify: Probe,
    /// A filter with a listener outside any namespace, memory and descriptors of a child, and whose a TCP connection is.
    pub mediation: Probe,
    /// `pidfd_getfd` on a child outside any namespace; the default filter of Docker refuses it.
    pub borrowing: Probe,
    /// A plain seccomp filter.
    pub seccomp: Probe,
    /// RLIMIT_NPROC counts per user namespace (5.14).
    pub processes_per_userns: bool,
    /// Limits on a whole tree.
    pub cgroup: CgroupAccess,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// The container that this is in, where our own other half made it.
    #[serde(default)]
    pub enclosure: Option<Enclosure>,
    /// Supplementary groups that give rights over the host (docker, disk, ...), by name.
    pub powerful_groups: Vec<String>,
    /// Bytes of memory of the machine (or of the own cgroup, when less).
    pub memory: u64,
}
