//! Layers on top of each other; the rules are in [`crate::profile`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::PolicyError;
use crate::layer::{DockerLayer, DockerMountEntry, Entry, KernelKey, Limit, NetworkMode, PathEntry, Place};
use crate::paths::{self, Unset};
use crate::policy::{
    Access, DockerMount, DockerRules, FileRule, Guarantee, HomeMode, KernelRules, Limits, LoopbackRules, McpRules, Network,
    Origin, UnknownHosts,
};
use crate::profile::Placed;
use crate::request::Caller;
use crate::route::Route;
use crate::selector::{self, GuardRules, Selector};

/// Milliseconds between SIGTERM and SIGKILL when nobody says otherwise.
const DEFAULT_GRACE: u64 = 2_000;

/// A rule, and which layer it is from.
#[derive(Debug, Clone)]
pub(crate) struct Ranked {
    pub(crate) rule: FileRule,
    pub(crate) layer: usize,
    /// Two accesses for one path in this layer are a mistake of its author.
    pub(crate) strict: bool,
}

/// What the layers so far amount to.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    caller: &'a Caller,
    workspace: &'a Path,
    count: usize,
    pub(crate) workspace_access: (Access, Origin),
    pub(crate) home: (HomeMode, Origin),
    pub(crate) files: Vec<Ranked>,
    pub(crate) allow: BTreeSet<String>,
    pub(crate) deny: BTreeSet<String>,
    pub(crate) set: BTreeMap<String, String>,
    pub(crate) network: Option<NetworkMode>,
    pub(crate) routes: Vec<Route>,
    pub(crate) loopback: LoopbackRules,
    pub(crate) connect: BTreeSet<PathBuf>,
    pub(crate) mcp: McpRules,
    pub(crate) docker: DockerRules,
    pub(crate) limits: Limits,
    pub(crate) kernel: KernelRules,
    prefer: BTreeSet<Guarantee>,
    require: BTreeSet<Guarantee>,
    guard: [BTreeSet<Selector>; 4],
    pub(crate) notices: Vec<String>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(caller: &'a Caller, workspace: &'a Path) -> Self {
        let default = || Origin::Derived("default".into());
        Self {
            caller,
            workspace,
            count: 0,
            workspace_access: (Access::Read, default()),
            home: (HomeMode::Private, default()),
            files: Vec::new(),
            allow: BTreeSet::new(),
            deny: BTreeSet::new(),
            set: BTreeMap::new(),
            network: None,
            routes: Vec::new(),
            loopback: LoopbackRules::default(),
            connect: BTreeSet::new(),
            mcp: McpRules::default(),
            docker: DockerRules::default(),
            limits: Limits { grace: DEFAULT_GRACE, ..Limits::default() },
            kernel: KernelRules::default(),
            prefer: BTreeSet::new(),
            require: BTreeSet::new(),
            guard: Default::default(),
            notices: Vec::new(),
        }
    }

    /// Puts a layer on top.
    pub(crate) fn apply(&mut self, placed: Placed) -> Result<(), PolicyError> {
        let Placed { place, base, layer } = placed;
        let base = base.as_deref().unwrap_or(self.workspace);
        self.count += 1;
        if let Some(workspace) = layer.workspace {
            self.workspace_access = (workspace.value, place.line(workspace.line));
        }
        if let Some(home) = layer.home {
            self.home = (home.value, place.line(home.line));
        }
        self.files.reserve(layer.paths.len());
        for entry in layer.paths {
            self.path(&place, base, entry)?;
        }
        self.allow.extend(layer.allow.into_iter().map(|entry| entry.value));
        self.deny.extend(layer.deny.into_iter().map(|entry| entry.value));
        self.set.extend(layer.set.into_iter().map(|entry| entry.value));
        if let Some(mode) = layer.network {
            self.network = Some(mode.value);
        } else if !layer.routes.is_empty() && !self.has_routes() {
            self.network = Some(NetworkMode::Routes);
        }
        for Entry { value, line } in layer.routes {
            self.route(Route { host: value.host, ports: value.ports, rules: value.rules, origin: place.line(line) });
        }
        self.loopback.connect.extend(layer.loopback_connect.into_iter().flatten().map(|entry| entry.value));
        self.loopback.publish.extend(layer.loopback_publish.into_iter().flatten().map(|entry| entry.value));
        for entry in layer.connect.into_iter().flatten() {
            let (text, optional) = paths::optional(&entry.value);
            if let Some(path) = self.expand(&place, base, text, optional, entry.line)? {
                self.connect.insert(path);
            }
        }
        if let Some(tools) = layer.mcp_tools {
            self.mcp.tools = tools.value.into_iter().map(|entry| entry.value).collect();
        }
        self.docker(&place, base, layer.docker)?;
        for limit in layer.limits {
            set_limit(&mut self.limits, limit.value);
        }
        for Entry { value: (key, value), .. } in layer.kernel {
            match key {
                KernelKey::NestedSandbox => self.kernel.nested_sandbox = value,
                KernelKey::Strict => self.kernel.strict = value,
                KernelKey::UnixDatagram => self.kernel.unix_datagram = value,
            }
        }
        self.prefer.extend(layer.prefer.into_iter().map(|entry| entry.value));
        self.require.extend(layer.require.into_iter().map(|entry| entry.value));
        for (at, list) in [layer.guard, layer.unguard, layer.prevent, layer.stage].into_iter().enumerate() {
            for entry in list {
                self.guard[at].extend(selector::resolve(&entry, &place, self.caller)?);
            }
        }
        Ok(())
    }

    fn docker(&mut self, place: &Place, base: &Path, layer: DockerLayer) -> Result<(), PolicyError> {
        let (image, pull, platform) = (layer.image, layer.pull, layer.platform);
        self.docker.image = image.or(self.docker.image.take());
        self.docker.platform = platform.or(self.docker.platform.take());
        self.docker.pull = pull.unwrap_or(self.docker.pull);
        self.docker.env.extend(layer.env.into_iter().map(|entry| entry.value));
        for Entry { value: DockerMountEntry { source, target, write }, line } in layer.mounts {
            let (text, optional) = paths::optional(&source);
            let Some(source) = self.expand(place, base, text, optional, line)? else { continue };
            let target = target.map_or_else(|| source.clone(), |target| paths::normalise(Path::new(&target)));
            self.docker.mounts.retain(|known| known.target != target);
            self.docker.mounts.push(DockerMount { source, target, write, origin: place.line(line) });
        }
        Ok(())
    }

    fn path(&mut self, place: &Place, base: &Path, entry: Entry<PathEntry>) -> Result<(), PolicyError> {
        let PathEntry { text, access, cache } = entry.value;
        let (text, marked) = paths::optional(&text);
        let optional = marked || cache;
        // A home that is not there holds nothing that could be seen.
        let skip = optional || (access == Access::Hidden && text.starts_with('~'));
        let Some(path) = self.expand(place, base, text, skip, entry.line)? else { return Ok(()) };
        let optional = optional || access == Access::Hidden;
        let rule = FileRule { path, access, optional, origin: place.line(entry.line) };
        let strict = matches!(place, Place::File(_));
        self.files.push(Ranked { rule, layer: self.count, strict });
        Ok(())
    }

    fn expand(
        &mut self,
        place: &Place,
        base: &Path,
        text: &str,
        optional: bool,
        line: u32,
    ) -> Result<Option<PathBuf>, PolicyError> {
        match paths::expand(text, base, self.caller) {
            Ok(expanded) if optional && expanded.by_variable && is_broad(&expanded.path, self.caller.home.as_deref()) => {
                let place = place.line(line);
                self.notices.push(format!("{place}: {text} is {} here, which is too much; left out", expanded.path.display()));
                Ok(None)
            }
            Ok(expanded) => Ok(Some(expanded.path)),
            Err(Unset::Missing(_)) if optional => Ok(None),
            Err(Unset::Missing(why)) => {
                Err(PolicyError::at(place.line(line), format!("{text}: {why}; a ? in front makes the rule optional")))
            }
            Err(Unset::Malformed(why)) => Err(PolicyError::at(place.line(line), format!("{text}: {why}"))),
        }
    }

    /// Starts a layer of rules that are not from a file; its number.
    pub(crate) fn next_layer(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    pub(crate) fn has_routes(&self) -> bool {
        matches!(self.network, Some(NetworkMode::Routes | NetworkMode::Ask | NetworkMode::Audit))
    }

    /// Adds a route, or ports to one that says the same.
    pub(crate) fn route(&mut self, route: Route) {
        match self.routes.iter_mut().find(|known| known.host == route.host && known.rules == route.rules) {
            Some(known) => {
                known.ports.extend(route.ports);
                known.ports.sort_unstable();
                known.ports.dedup();
            }
            None => {
                let mut route = route;
                route.ports.sort_unstable();
                route.ports.dedup();
                self.routes.push(route);
            }
        }
    }

    pub(crate) fn network(&mut self) -> (Network, UnknownHosts) {
        let unknown = match self.network {
            Some(NetworkMode::Host) => return (Network::Host, UnknownHosts::Refuse),
            Some(NetworkMode::Off) | None => return (Network::Off, UnknownHosts::Refuse),
            Some(NetworkMode::Routes) => UnknownHosts::Refuse,
            Some(NetworkMode::Ask) => UnknownHosts::Ask,
            Some(NetworkMode::Audit) => UnknownHosts::Audit,
        };
        self.routes.sort_by(|a, b| a.host.cmp(&b.host));
        (Network::Routes(std::mem::take(&mut self.routes)), unknown)
    }

    pub(crate) fn preferred(&self) -> BTreeSet<Guarantee> {
        self.prefer.difference(&self.require).copied().collect()
    }

    pub(crate) fn guard(&mut self) -> GuardRules {
        let [add, allow, prevent, stage] = std::mem::take(&mut self.guard).map(|list| list.into_iter().collect());
        GuardRules { add, allow, prevent, stage, home: None }
    }
}

pub(crate) fn set_limit(limits: &mut Limits, limit: Limit) {
    match limit {
        Limit::Memory(bytes) => (limits.memory, limits.memory_percent) = (bytes, None),
        Limit::MemoryPercent(percent) => (limits.memory, limits.memory_percent) = (None, Some(percent)),
        Limit::Processes(number) => limits.processes = number,
        Limit::Scratch(bytes) => limits.scratch = bytes,
        Limit::Shm(bytes) => limits.shm = bytes,
        Limit::OpenFiles(number) => limits.open_files = number,
        Limit::FileSize(bytes) => limits.file_size = bytes,
        Limit::Cpu(share) => limits.cpu_percent = share,
        Limit::Timeout(ms) => limits.timeout = ms,
        Limit::Grace(ms) => limits.grace = ms,
    }
}

/// One rule for each path, sorted by path.
pub(crate) fn settle(mut files: Vec<Ranked>) -> Result<Vec<FileRule>, PolicyError> {
    // Stable: what was added later stays behind what was added before.
    files.sort_by(|a, b| a.rule.path.as_os_str().as_bytes().cmp(b.rule.path.as_os_str().as_bytes()));
    let mut settled: Vec<Ranked> = Vec::with_capacity(files.len());
    for next in files {
        let Some(last) = settled.last_mut().filter(|last| paths::same(&last.rule.path, &next.rule.path)) else {
            settled.push(next);
            continue;
        };
        match (last.rule.access, next.rule.access) {
            (Access::Hidden, _) => {}
            (_, Access::Hidden) => *last = next,
            (a, b) if a == b => {
                let optional = last.rule.optional && next.rule.optional;
                *last = next;
                last.rule.optional = optional;
            }
            _ if last.layer == next.layer && next.strict => {
                let (path, first, second) = (next.rule.path.display(), &last.rule, &next.rule);
                let (a, b) = (describe(first), describe(second));
                return Err(PolicyError::at(second.origin.clone(), format!("{path} cannot be both {a} and {b}")));
            }
            _ => *last = next,
        }
    }
    Ok(settled.into_iter().map(|ranked| ranked.rule).collect())
}

fn describe(rule: &FileRule) -> String {
    let access = match rule.access {
        Access::Hidden => "hidden",
        Access::Read => "read-only",
        Access::Write => "writable",
        Access::Overlay => "copy-on-write",
    };
    format!("{access} ({})", rule.origin)
}

/// Directories of the system: who may write one of them, or a parent, owns the machine.
const SYSTEM: [&str; 15] = [
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var",
];

/// Is this below a directory that belongs to the system alone, and so for profiles to grant?
pub(crate) fn is_of_system(path: &Path) -> bool {
    // /run and /var hold directories of users too.
    SYSTEM.iter().filter(|system| !matches!(**system, "/run" | "/var")).any(|system| paths::covers(Path::new(system), path))
}

/// Is this so much that it cannot be meant: the root, the home directory, a system directory, or a parent of one?
///
/// Judges the text alone: `path` and `home` absolute and normalised. Where a path led through symlinks, ask again for
/// what it led to, with the home's real path too.
pub fn is_broad(path: &Path, home: Option<&Path>) -> bool {
    path == Path::new("/")
        || home.is_some_and(|home| home != Path::new("/") && paths::covers(path, home))
        || SYSTEM.iter().any(|system| paths::covers(path, Path::new(system)))
}
