//! A resolved policy: every path absolute, every include merged, every default written out.
//!
//! This is the only thing that the rooms behind this one see of a profile.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::route::Route;
use crate::selector::GuardRules;

/// What is allowed, after includes, merging, flags and path expansion.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Policy {
    /// Name of the profile that was asked for, e.g. `agent`.
    pub profile: String,
    /// The directory the command works in: absolute, not yet resolved through symlinks.
    #[serde(with = "crate::ospath")]
    pub workspace: PathBuf,
    /// How the workspace may be used.
    pub workspace_access: Access,
    /// Writable grants may be as broad as [`crate::is_broad`] says, and so may the workspace (`--allow-broad`).
    pub allow_broad: bool,
    /// The caller's home directory and what stands in its place inside.
    pub home: Home,
    /// Path rules in no particular order; [`Policy::rule_for`] says which one decides.
    pub files: Vec<FileRule>,
    /// Which variables of the caller go in.
    pub environment: EnvironmentRules,
    /// Where the sandbox may connect to.
    pub network: Network,
    /// What becomes of hosts that no route names, where there are routes.
    pub unknown_hosts: UnknownHosts,
    /// What the host's loopback and the sandbox's share.
    pub loopback: LoopbackRules,
    /// Unix sockets of the host that may be reached.
    pub unix: UnixRules,
    /// What an MCP client may use.
    pub mcp: McpRules,
    /// The container, where one is the place of the sandbox.
    pub docker: DockerRules,
    /// Resource limits.
    pub limits: Limits,
    /// Kernel interfaces beyond the default filter.
    pub kernel: KernelRules,
    /// Guarantees that may be lost without refusing the start; all others are required.
    pub preferred: BTreeSet<Guarantee>,
    /// Losses that the caller accepted by name.
    pub accepted: BTreeSet<Guarantee>,
    /// Files that host tools obey later: what the policy changes in the rules that ship.
    pub guard: GuardRules,
    /// What is made inside besides, where nothing is granted.
    pub places: Vec<Place>,
}

/// Something that stands inside at a path of its own choice. It grants nothing: what an alias shows is granted at its own path, and is
/// the same at both, hidden parts and guarded files included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Another name of something that is granted.
    Alias {
        /// Where: absolute, normalised.
        #[serde(with = "crate::ospath")]
        at: PathBuf,
        /// What: absolute, normalised.
        #[serde(with = "crate::ospath")]
        of: PathBuf,
    },
    /// A writable directory that ends with the sandbox.
    Scratch {
        /// Where: absolute, normalised.
        #[serde(with = "crate::ospath")]
        at: PathBuf,
    },
}

impl Place {
    /// Where it is made.
    pub fn at(&self) -> &Path {
        match self {
            Self::Alias { at, .. } | Self::Scratch { at } => at,
        }
    }
}

/// How a path may be used. `Hidden` wins over everything; otherwise the longest path wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Not there, or there and empty.
    Hidden,
    /// Read and execute.
    Read,
    /// Read, execute and write; changes reach the host.
    Write,
    /// Read, execute and write; changes stay in a private upper layer.
    Overlay,
}

/// One rule about one path and everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileRule {
    /// Absolute, lexically normalised path.
    #[serde(with = "crate::ospath")]
    pub path: PathBuf,
    /// What may be done with it.
    pub access: Access,
    /// Fine if the path does not exist. Always true for [`Access::Hidden`].
    pub optional: bool,
    /// Where the rule was written.
    pub origin: Origin,
}

/// Where a rule came from, for messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// A profile that ships with the program.
    Builtin(Cow<'static, str>),
    /// A policy file of the user or the project.
    File {
        /// The file.
        #[serde(with = "crate::ospath")]
        path: PathBuf,
        /// Line, counted from 1; 0 when unknown.
        line: usize,
    },
    /// A command line flag, e.g. `--ro`.
    Flag(Cow<'static, str>),
    /// Something the program concluded, e.g. the real prefix of a virtualenv.
    Derived(Cow<'static, str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin(name) => write!(f, "profile {name}"),
            Self::File { path, line: 0 } => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Derived(why) => write!(f, "{why}"),
        }
    }
}

/// The caller's home directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Home {
    /// Absolute path; `None` when the caller has no usable home.
    #[serde(with = "crate::ospath::option")]
    pub dir: Option<PathBuf>,
    /// What stands there inside.
    pub mode: HomeMode,
}

/// What stands in the place of the home directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HomeMode {
    /// An empty writable directory that ends with the sandbox.
    Private,
    /// An empty read-only directory.
    Hidden,
    /// The real one, read-only; credentials hidden by the profile's `hide` list.
    Read,
}

/// Rules about environment variables; see [`crate::environment`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct EnvironmentRules {
    /// Names or globs (`LC_*`) allowed in addition to the well-known harmless ones, subject to the scrub.
    pub allow: Vec<String>,
    /// Names or globs that never go in.
    pub deny: Vec<String>,
    /// Exact names that go in whatever they hold (`--env NAME`).
    pub explicit: BTreeSet<String>,
    /// Values set inside.
    pub set: BTreeMap<String, String>,
}

/// Where the sandbox may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Its own loopback only.
    Off,
    /// The hosts of these routes, through the mediated way out.
    Routes(Vec<Route>),
    /// The host's network, unmediated.
    Host,
}

/// What becomes of a host that no route names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownHosts {
    /// It cannot be reached.
    #[default]
    Refuse,
    /// A person is asked, and the connection waits.
    Ask,
    /// It is reached, and recorded: for finding out which routes are needed.
    Audit,
}

/// TCP ports that the host's loopback and the sandbox's share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LoopbackRules {
    /// Of the host, open inside on 127.0.0.1 and ::1.
    pub connect: BTreeSet<u16>,
    /// Of the sandbox, shown on the host's 127.0.0.1.
    pub publish: BTreeSet<u16>,
}

/// Unix sockets that host processes bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UnixRules {
    /// Sockets that may be connected to.
    #[serde(with = "crate::ospath::list")]
    pub connect: Vec<PathBuf>,
}

/// The container of `--backend docker`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DockerRules {
    /// The image, where `--image` names none.
    pub image: Option<String>,
    /// May the engine fetch it?
    pub pull: Pull,
    /// `os/architecture[/variant]` of the image.
    pub platform: Option<String>,
    /// What the container sees of the host besides the workspace and the policy's grants.
    pub mounts: Vec<DockerMount>,
    /// Variables of jobs in a container.
    pub env: BTreeMap<String, String>,
}

/// May an image be fetched from a registry?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pull {
    /// No: a registry is outside of every policy here, and what it sends is run.
    #[default]
    Never,
    /// Where the engine does not have it.
    Missing,
}

/// A path of the host at a path of its own in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DockerMount {
    /// On the host: absolute, normalised.
    #[serde(with = "crate::ospath")]
    pub source: PathBuf,
    /// Inside: absolute, normalised.
    #[serde(with = "crate::ospath")]
    pub target: PathBuf,
    /// May it be written?
    pub write: bool,
    /// Where it was written.
    pub origin: Origin,
}

/// What `serve --mcp` offers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct McpRules {
    /// Tools; all others are refused.
    pub tools: BTreeSet<McpTool>,
}

/// A tool for MCP clients. Whatever it does, it does inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum McpTool {
    /// Runs a command.
    Exec,
    /// Reads a file.
    Read,
    /// Writes a whole file.
    Write,
    /// Replaces text in a file.
    Patch,
}

impl McpTool {
    /// All tools.
    pub const ALL: [Self; 4] = [Self::Exec, Self::Read, Self::Write, Self::Patch];

    /// As profiles and clients write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Read => "read",
            Self::Write => "write",
            Self::Patch => "patch",
        }
    }

    /// The tool with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }
}

/// Resource limits; `None` means not limited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes of memory for the whole tree.
    pub memory: Option<u64>,
    /// `memory` as percent of the machine. When both are there the smaller one counts.
    pub memory_percent: Option<u8>,
    /// Processes and threads of the whole tree.
    pub processes: Option<u64>,
    /// Bytes for everything in memory that the sandbox may write (/tmp, private home, copy-on-write layers) but /dev/shm.
    pub scratch: Option<u64>,
    /// Bytes for /dev/shm.
    pub shm: Option<u64>,
    /// Open descriptors per process.
    pub open_files: Option<u64>,
    /// Bytes of the largest file that can be written.
    pub file_size: Option<u64>,
    /// Hundredths of a processor.
    pub cpu_percent: Option<u32>,
    /// Milliseconds until the command is stopped with status 124.
    pub timeout: Option<u64>,
    /// Milliseconds between a forwarded SIGTERM or SIGHUP and SIGKILL of the tree.
    pub grace: u64,
}

/// Kernel interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KernelRules {
    /// Allow nested user namespaces (programs that bring their own sandbox).
    pub nested_sandbox: bool,
    /// Kill instead of answering ENOSYS for foreign architectures.
    pub strict: bool,
    /// Allow named datagram unix sockets (syslog, sd_notify), unmediated.
    pub unix_datagram: bool,
}

macro_rules! guarantees {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $meaning:literal;)*) => {
        /// One thing that a sandbox promises. The text forms are used by `--accept-loss` and `plan`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Guarantee {
            $(#[doc = $meaning] #[serde(rename = $name)] $variant,)*
        }

        impl Guarantee {
            /// All guarantees, in the order of the text forms in the documentation.
            pub const ALL: &'static [Guarantee] = &[$(Guarantee::$variant),*];

            /// The stable text form.
            pub fn name(self) -> &'static str {
                match self { $(Guarantee::$variant => $name),* }
            }

            /// One sentence for people.
            pub fn meaning(self) -> &'static str {
                match self { $(Guarantee::$variant => $meaning),* }
            }

            /// The guarantee with this text form.
            pub fn from_name(name: &str) -> Option<Guarantee> {
                match name { $($name => Some(Guarantee::$variant),)* _ => None }
            }
        }
    };
}

guarantees! {
    FilesReadConfined = "files-read-confined", "Only granted files can be read.";
    FilesWriteConfined = "files-write-confined", "Only granted files can be written, made or removed.";
    FilesHidden = "files-hidden", "Hidden paths cannot be read even inside a granted tree.";
    HiddenSurvivesReplacement = "hidden-survives-replacement", "A hidden path stays hidden when the host replaces or creates it while the sandbox runs.";
    MetadataConfined = "metadata-confined", "Modes, owners, times and attributes of files outside the grants cannot be changed or read.";
    CachesProtected = "caches-protected", "Tool caches can be used copy-on-write; the host's copies cannot be changed.";
    FilesGuarded = "files-guarded", "What host tools run or obey later comes back from writable trees as it was.";
    WorkspaceOverlaid = "workspace-overlaid", "Changes to a copy-on-write workspace are kept apart until they are applied or discarded.";
    HomePrivate = "home-private", "The sandbox has a home, /tmp and /dev/shm of its own.";
    NetworkMediated = "network-mediated", "Nothing outside can be reached but through the policy's routes.";
    LoopbackPrivate = "loopback-private", "The sandbox has a loopback interface of its own.";
    UnixSocketsConfined = "unix-sockets-confined", "Unix sockets of host processes cannot be reached.";
    ProcessesHidden = "processes-hidden", "Processes outside the sandbox cannot be seen.";
    SignalsConfined = "signals-confined", "Processes outside the sandbox cannot be signalled or traced.";
    IpcPrivate = "ipc-private", "System V and POSIX message queues, semaphores and shared memory of the host cannot be reached.";
    NoNewPrivileges = "no-new-privileges", "No program can gain privileges.";
    SyscallsFiltered = "syscalls-filtered", "System calls that no build, test or agent needs are refused.";
    EnvironmentScrubbed = "environment-scrubbed", "Only allowed variables go in.";
    TreeKilled = "tree-killed", "No process outlives the sandbox, in any order of deaths.";
    MemoryLimited = "memory-limited", "The memory of the whole tree is limited by the kernel.";
    ProcessesLimited = "processes-limited", "The number of processes is limited by the kernel.";
    ScratchLimited = "scratch-limited", "The sandbox's own file systems are limited in size.";
    CpuLimited = "cpu-limited", "Processor time is limited by the kernel.";
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Policy {
    /// The routes; none where there is no mediated network.
    pub fn routes(&self) -> &[Route] {
        match &self.network {
            Network::Routes(routes) => routes,
            Network::Off | Network::Host => &[],
        }
    }

    /// Is a loss of this guarantee a reason not to start?
    pub fn requires(&self, guarantee: Guarantee) -> bool {
        !self.preferred.contains(&guarantee) && !self.accepted.contains(&guarantee)
    }

    /// The rule that decides about `path` (absolute, normalised): a hiding rule on it or a parent, else the longest.
    pub fn rule_for(&self, path: &Path) -> Option<&FileRule> {
        let covering = || self.files.iter().filter(|rule| crate::paths::covers(&rule.path, path));
        // Of two normalised prefixes of one path the longer one has more components.
        let length = |rule: &FileRule| rule.path.as_os_str().len();
        covering()
            .filter(|rule| rule.access == Access::Hidden)
            .max_by_key(|rule| length(rule))
            .or_else(|| covering().max_by_key(|rule| (length(rule), rule.access)))
    }
}
