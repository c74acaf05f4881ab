//! One policy file as it was written: nothing expanded, nothing merged, every entry with its line.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::policy::{Access, Guarantee, HomeMode, McpTool, Origin, Pull};
use crate::route::RouteRules;

/// The file that entries are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A profile that ships with the program.
    Builtin(&'static str),
    /// A file of the user or the project.
    File(PathBuf),
}

impl Place {
    pub(crate) fn line(&self, line: u32) -> Origin {
        match self {
            Self::Builtin(name) => Origin::Builtin((*name).into()),
            Self::File(path) => Origin::File { path: path.clone(), line: line as usize },
        }
    }
}

/// A value and the line that it stands on, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<T> {
    /// What is written.
    pub value: T,
    /// Where.
    pub line: u32,
}

/// A policy file. `None` is a key that is not there; what that means is said at [`crate::profile`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
pub struct Layer {
    /// One sentence for `profiles list`.
    pub description: Option<String>,
    /// Profiles that come before this one.
    pub includes: Option<Vec<Entry<String>>>,
    /// How the workspace may be used.
    pub workspace: Option<Entry<Access>>,
    /// What stands in place of the home directory.
    pub home: Option<Entry<HomeMode>>,
    /// Path rules: the lists `read`, `write`, `overlay`, `cache` and `hide`.
    pub paths: Vec<Entry<PathEntry>>,
    /// Files that host tools obey later: globs, `rule:ID` and classes that are put aside, too.
    pub guard: Vec<Entry<String>>,
    /// Globs and `rule:ID` that may change.
    pub unguard: Vec<Entry<String>>,
    /// Globs, `rule:ID` and `*` that are read-only where they exist.
    pub prevent: Vec<Entry<String>>,
    /// Globs that take effect only after approval.
    pub stage: Vec<Entry<String>>,
    /// Patterns of variables that go in after the scrub.
    pub allow: Vec<Entry<String>>,
    /// Patterns of variables that never go in.
    pub deny: Vec<Entry<String>>,
    /// Variables set inside.
    pub set: Vec<Entry<(String, String)>>,
    /// The kind of network.
    pub network: Option<Entry<NetworkMode>>,
    /// Destinations.
    pub routes: Vec<Entry<RouteEntry>>,
    /// `network.connect`
    pub loopback_connect: Option<Vec<Entry<u16>>>,
    /// `network.publish`
    pub loopback_publish: Option<Vec<Entry<u16>>>,
    /// Unix sockets of the host.
    pub connect: Option<Vec<Entry<String>>>,
    /// Tools for MCP clients: the key's line, and all that it names.
    pub mcp_tools: Option<Entry<Vec<Entry<McpTool>>>>,
    /// The container.
    pub docker: DockerLayer,
    /// Limits, in the order in which they are applied.
    pub limits: Vec<Entry<Limit>>,
    /// Kernel interfaces.
    pub kernel: Vec<Entry<(KernelKey, bool)>>,
    /// Guarantees that may be lost.
    pub prefer: Vec<Entry<Guarantee>>,
    /// Guarantees that may not be lost, whatever other profiles say.
    pub require: Vec<Entry<Guarantee>>,
}

/// The table `docker`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DockerLayer {
    /// The line of the table; 0 when there is none.
    pub line: u32,
    /// `docker.image`
    pub image: Option<String>,
    /// `docker.pull`
    pub pull: Option<Pull>,
    /// `docker.platform`
    pub platform: Option<String>,
    /// `docker.mounts`
    pub mounts: Vec<Entry<DockerMountEntry>>,
    /// `docker.env`
    pub env: Vec<Entry<(String, String)>>,
}

/// An entry of `docker.mounts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DockerMountEntry {
    /// As written, see [`crate::paths`].
    pub source: String,
    /// Absolute; the source's path when missing.
    pub target: Option<String>,
    /// May it be written?
    pub write: bool,
}

/// An entry of a path list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathEntry {
    /// As written, see [`crate::paths`]. Borrowed from the program in profiles that ship: there are hundreds, at every start.
    #[serde(borrow)]
    pub text: Cow<'static, str>,
    /// By the list.
    pub access: Access,
    /// From the list `cache`: fine if it does not exist.
    pub cache: bool,
}

/// `network.mode`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkMode {
    /// Own loopback only.
    Off,
    /// Named destinations.
    Routes,
    /// Named destinations, and a person is asked about others.
    Ask,
    /// All destinations, recorded.
    Audit,
    /// The host's network.
    Host,
}

/// An entry of `network.route`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteEntry {
    /// Checked and in its canonical form.
    pub host: String,
    /// At least one.
    pub ports: Vec<u16>,
    /// What else the route says.
    pub rules: RouteRules,
}

/// A key of `[kernel]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelKey {
    /// `nested-sandbox`
    NestedSandbox,
    /// `strict`
    Strict,
    /// `unix-datagram`
    UnixDatagram,
}

/// One limit; `None` lifts it. Units as in [`crate::Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Bytes.
    Memory(Option<u64>),
    /// Percent of the machine.
    MemoryPercent(u8),
    /// Number.
    Processes(Option<u64>),
    /// Bytes.
    Scratch(Option<u64>),
    /// Bytes.
    Shm(Option<u64>),
    /// Number.
    OpenFiles(Option<u64>),
    /// Bytes.
    FileSize(Option<u64>),
    /// Hundredths of a processor.
    Cpu(Option<u32>),
    /// Milliseconds.
    Timeout(Option<u64>),
    /// Milliseconds.
    Grace(u64),
}
