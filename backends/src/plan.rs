//! What will be done: the output of [`crate::compile`], serialisable and printable.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use hermes_profiles::{Guarantee, ospath};
use serde::{Deserialize, Serialize};

/// The mechanism that carries the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// Namespaces, mounts, Landlock and seccomp.
    Namespaces,
    /// Landlock and seccomp alone.
    Landlock,
}

/// Everything that will be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The profile it came from.
    pub profile: String,
    /// The mechanism.
    pub tier: Tier,
    /// Who the command runs as.
    pub identity: Identity,
    /// Steps that build the file system, in order. Empty in the Landlock tier.
    pub mounts: Vec<MountStep>,
    /// Bytes for everything in memory that the sandbox may write but /dev/shm: one file system, one limit.
    pub scratch: Option<u64>,
    /// File and network rules of Landlock; `None` without Landlock.
    pub landlock: Option<LandlockPlan>,
    /// The system call filter.
    pub seccomp: SeccompPlan,
    /// The network.
    pub network: NetworkPlan,
    /// The mediated way out; `None` where there is none.
    pub gateway: Option<GatewayPlan>,
    /// Ports of the host's loopback that are open on the sandbox's own.
    pub connect: Vec<u16>,
    /// Host sockets that may be connected to, resolved.
    #[serde(with = "ospath::list")]
    pub unix_connect: Vec<PathBuf>,
    /// Limits and by what they are enforced.
    pub limits: LimitsPlan,
    /// Variables that lead tools to writable places where their caches are read-only.
    pub redirects: Vec<Redirect>,
    /// Where the command starts.
    #[serde(with = "ospath")]
    pub cwd: PathBuf,
    /// Guarantees that this host cannot give.
    pub lost: Vec<Lost>,
    /// Guarantees given by weaker means.
    pub weakened: Vec<Lost>,
}

/// A variable that names a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// The variable.
    pub name: String,
    /// Its value.
    #[serde(with = "ospath")]
    pub directory: PathBuf,
}

/// A guarantee that is lost or weakened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Which.
    pub guarantee: Guarantee,
    /// Does the policy insist on it?
    pub required: bool,
    /// Why, with the kernel's reason.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

/// Ids inside and on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// User id on the host; 0 only in the Landlock tier, where that loss is named.
    pub host_uid: u32,
    /// Group id on the host.
    pub host_gid: u32,
    /// Grants are id-mapped so that files of `uid` belong to `host_uid` (root callers).
    pub idmap: bool,
}

/// A host path that was checked, and the identity it must still have when it is mounted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// Absolute, free of symlinks.
    #[serde(with = "ospath")]
    pub path: PathBuf,
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// Where the changes to a copy-on-write tree go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// To the sandbox's own file system, and they end with it.
    Private,
    /// To a directory of the host that is made when the sandbox starts.
    Planned,
    /// To `upper` in this directory of the host, which has `work` beside it.
    Kept(Source),
}

/// What a [`MountStep::File`] holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// This.
    Text(String),
    /// The names of this machine and no others, hosts(5).
    Hosts,
    /// What stands there on the host, but names of hosts are looked up in [`Hosts`](Self::Hosts) and by DNS alone, nsswitch.conf(5).
    NameServices,
    /// The certificates that the sandbox trusts, PEM.
    Certificates,
    /// The same as Java reads them, a JKS store.
    JavaCertificates,
}

/// One step of building the file system. Targets are absolute paths as seen inside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MountStep {
    /// A directory of the sandbox's own file system.
    Private {
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// Its mode.
        mode: u32,
        /// May it be written after the set-up?
        writable: bool,
    },
    /// A directory of a writable host tree, mounted on itself: a mount point cannot be renamed or removed (EBUSY), so
    /// that what is mounted below stays where its path says.
    Pin {
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
    },
    /// A host tree or file.
    Bind {
        /// What.
        source: Source,
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// Directory or something else?
        directory: bool,
        /// May it be written?
        writable: bool,
        /// Is it a device node that must stay usable?
        device: bool,
    },
    /// A host tree, copy-on-write.
    Overlay {
        /// Lower layer.
        source: Source,
        /// Upper layer.
        layer: Layer,
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// Paths relative to the target that are hidden by whiteouts.
        #[serde(with = "ospath::list")]
        whiteouts: Vec<PathBuf>,
    },
    /// An empty read-only file or directory over a path that exists.
    Mask {
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// Directory or file?
        directory: bool,
    },
    /// A read-only file of the sandbox's own, over what is there.
    File {
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// What it holds.
        content: Content,
    },
    /// A directory in a file system of the sandbox's own.
    Directory {
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// Mode.
        mode: u32,
    },
    /// A symlink in a file system of the sandbox's own.
    Symlink {
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// What it holds.
        #[serde(with = "ospath")]
        to: PathBuf,
    },
    /// Another name of a mount with all that is mounted on it, then and later.
    Alias {
        /// Where.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// The mount's target.
        #[serde(with = "ospath")]
        of: PathBuf,
        /// Directory or file?
        directory: bool,
    },
    /// The sandbox's own /proc with its dangerous parts read-only or masked.
    Proc,
    /// The sandbox's own /dev: null, zero, full, random, urandom, tty, pts, shm.
    Dev {
        /// Bytes for /dev/shm.
        shm: Option<u64>,
    },
}

impl MountStep {
    /// The path that this step makes.
    pub fn target(&self) -> &std::path::Path {
        match self {
            Self::Private { target, .. }
            | Self::Pin { target }
            | Self::Bind { target, .. }
            | Self::Overlay { target, .. }
            | Self::Mask { target, .. }
            | Self::File { target, .. }
            | Self::Directory { target, .. }
            | Self::Symlink { target, .. }
            | Self::Alias { target, .. } => target,
            Self::Proc => std::path::Path::new("/proc"),
            Self::Dev { .. } => std::path::Path::new("/dev"),
        }
    }
}

/// Rights on a path in Landlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathRights {
    /// List directories.
    List,
    /// Read and execute.
    Read,
    /// All.
    Write,
    /// Read and write existing files, with ioctl; for devices.
    Device,
}

/// One path rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PathRule {
    /// As seen by the process that opens it (inside the new root in the namespaces tier).
    #[serde(with = "ospath")]
    pub path: PathBuf,
    /// Device and inode that it must still have, free of symlinks; `None` where only the sandbox and root can change it.
    pub identity: Option<(u64, u64)>,
    /// Rights.
    pub rights: PathRights,
}

/// A Landlock domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandlockPlan {
    /// The ABI that is used: the smaller of the kernel's and the crate's.
    pub abi: u32,
    /// Path rules; on ABI 1 of the namespaces tier there are none and file rules are left to the mounts.
    pub paths: Vec<PathRule>,
    /// Handle file access at all?
    pub handle_files: bool,
    /// Refuse all TCP bind and connect?
    pub deny_tcp: bool,
    /// Scope signals (ABI 6)?
    pub scope_signals: bool,
    /// Scope abstract unix sockets (ABI 6)?
    pub scope_abstract: bool,
}

/// The system call filter; [`crate::local::seccomp`] turns it into a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompPlan {
    /// Kill on a foreign architecture instead of ENOSYS.
    pub strict: bool,
    /// Allow `unshare`, `setns`, `clone` with namespace flags, and what a nested sandbox needs besides mounts.
    pub nested_sandbox: bool,
    /// Send `connect` to the broker.
    pub notify_connect: bool,
    /// `socket()` for AF_UNIX is allowed (`socketpair` of streams always is).
    pub unix_sockets: bool,
    /// Named datagram unix sockets are allowed.
    pub unix_datagram: bool,
    /// `socket()` for AF_INET and AF_INET6 is allowed.
    pub inet_sockets: bool,
    /// Of these, only those of TCP, and `connect`, `bind` and `listen` go to the mediator.
    pub mediate_tcp: bool,
    /// The mediator makes those, too, since it cannot borrow those of the jobs.
    pub make_sockets: bool,
    /// Refuse System V IPC and POSIX message queues (no IPC namespace).
    pub deny_ipc: bool,
}

impl SeccompPlan {
    /// Does the filter ask somebody?
    pub fn notifies(&self) -> bool {
        self.notify_connect || self.mediate_tcp
    }
}

/// The network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPlan {
    /// A network namespace with nothing but loopback.
    Private,
    /// No sockets of internet families at all (Landlock tier).
    NoSockets,
    /// The host's, but TCP alone, and the supervisor connects, binds and listens on behalf of the jobs (Landlock tier).
    Notified,
    /// The host's.
    Host,
}

/// The sandbox's own address, where it has a gateway.
pub const SANDBOX_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The gateway's, where the proxy listens and names are resolved. Both are of a block that nobody routes (RFC 2544).
pub const GATEWAY_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// A mediated way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayPlan {
    /// Ports that routes lead to, ascending. All others are refused at once.
    pub ports: Vec<u16>,
    /// Where the explicit proxy listens.
    pub proxy: u16,
    /// The file of trusted certificates; `None` where the plan has no place for it yet.
    #[serde(with = "ospath::option")]
    pub certificates: Option<PathBuf>,
}

/// Limits and by what they are enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsPlan {
    /// Bytes of memory for the tree.
    pub memory: Option<u64>,
    /// By what.
    pub memory_by: Enforcer,
    /// Number of processes of the tree.
    pub processes: Option<u64>,
    /// By what.
    pub processes_by: Enforcer,
    /// Hundredths of a processor, by a control group; `None` where that is lost.
    pub cpu_percent: Option<u32>,
    /// RLIMIT_NOFILE.
    pub open_files: Option<u64>,
    /// RLIMIT_FSIZE.
    pub file_size: Option<u64>,
    /// Milliseconds until status 124.
    pub timeout: Option<u64>,
    /// Milliseconds between SIGTERM and SIGKILL.
    pub grace: u64,
}

/// What enforces a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcer {
    /// Nothing; there is no such limit or it is lost.
    Nothing,
    /// A control group.
    Cgroup,
    /// RLIMIT_NPROC in the own user namespace.
    Rlimit,
    /// The container around the sandbox.
    Container,
    /// Init adds up what /proc says and kills.
    Watchdog,
}

impl Plan {
    /// Losses that forbid the start.
    pub fn fatal(&self) -> impl Iterator<Item = &Lost> {
        self.lost.iter().filter(|lost| lost.required)
    }

    /// Guarantees that hold fully.
    pub fn held(&self) -> BTreeSet<Guarantee> {
        let gone: BTreeSet<Guarantee> = self.lost.iter().chain(&self.weakened).map(|lost| lost.guarantee).collect();
        Guarantee::ALL.iter().copied().filter(|g| !gone.contains(g)).collect()
    }
}
