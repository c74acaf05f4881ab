//! The project's own policy file. It comes from whoever wrote the project, so it counts only after the user trusted its
//! content, and even then it can only take away.
//!
//! - `filesystem.hide`, `guard`, `prevent` and `stage`, `environment.deny`, `guarantees.require` add.
//! - `filesystem.workspace` and `home` may be lowered: from `write` over `overlay` and `read` to `hidden`; from `read` over
//!   `private` to `hidden`.
//! - `filesystem.read`, `overlay` and `cache` lower grants that the policy already has at or below a path. They do not cut
//!   a new rule out of the middle of a grant: a symlink there would lead it elsewhere.
//! - `network.mode` may be lowered, and routes may be left out; `network.connect`, `network.publish` and `unix.connect` name those
//!   that remain.
//! - `mcp.tools` names those that remain.
//! - `limits` may be lowered, `kernel` switches turned to the stricter side.
//! - Anything that would add is an error with its line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::PolicyError;
use crate::layer::{Entry, KernelKey, Layer, Limit, NetworkMode, PathEntry, Place, RouteEntry};
use crate::paths::{self, Unset, covers};
use crate::policy::{Access, FileRule, HomeMode, Limits, LoopbackRules, Network, Policy, UnknownHosts};
use crate::profile;
use crate::request::{Caller, Files};
use crate::route::{Rate, Route, RouteRules};
use crate::selector;
use crate::trust::Trust;

/// Name of the file in the root of a workspace.
pub const PROJECT_FILE: &str = ".hermes-sandbox.toml";

/// Name of the trust list in the state directory.
pub const TRUST_FILE: &str = "trust";

/// Narrows `policy` by the project's file, if there is one and it is trusted; a notice when it is not.
pub(crate) fn apply(policy: &mut Policy, caller: &Caller, files: &dyn Files) -> Result<Option<String>, PolicyError> {
    let path = policy.workspace.join(PROJECT_FILE);
    let bytes = match profile::read(files, &path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        // Whoever can write the workspace must not be able to stop every start.
        Err(error) => return Ok(Some(format!("{error}; not applied"))),
    };
    let trust = match &caller.state_dir {
        Some(dir) => profile::read(files, &dir.join(TRUST_FILE))?.map(|text| Trust::parse(&text)).unwrap_or_default(),
        None => Trust::default(),
    };
    if !trust.contains(&bytes) {
        let why = if trust.knows(&path) { "has changed since it was trusted" } else { "is not trusted" };
        return Ok(Some(format!("{}: {why}, so it was not applied; read it, then trust it", path.display())));
    }
    let layer = profile::parse_file(&path, &bytes)?;
    narrow(policy, &layer, &path, caller)?;
    Ok(None)
}

/// Takes from `policy` what `layer`, the parsed project file at `path`, takes away.
///
/// # Errors
/// When the file would allow anything that the policy does not; `policy` is then in no useful state.
pub fn narrow(policy: &mut Policy, layer: &Layer, path: &Path, caller: &Caller) -> Result<(), PolicyError> {
    Narrowing { policy, place: Place::File(path.to_path_buf()), base: path.parent().unwrap_or(path), caller }.apply(layer)
}

struct Narrowing<'a> {
    policy: &'a mut Policy,
    place: Place,
    base: &'a Path,
    caller: &'a Caller,
}

/// How much an access gives away.
fn rank(access: Access) -> u8 {
    match access {
        Access::Hidden => 0,
        Access::Read => 1,
        Access::Overlay => 2,
        Access::Write => 3,
    }
}

impl Narrowing<'_> {
    fn apply(mut self, layer: &Layer) -> Result<(), PolicyError> {
        if let Some(first) = layer.includes.iter().flatten().next() {
            return Err(
                self.widens(first.line, "includes: a project file stands on top of the user's policy and includes nothing")
            );
        }
        if let Some(entry) = layer.allow.first() {
            return Err(self.widens(entry.line, "environment.allow: would let more variables in"));
        }
        if let Some(entry) = layer.set.first() {
            return Err(self.widens(entry.line, "environment.set: a project file sets no variables"));
        }
        if let Some(entry) = layer.prefer.first() {
            return Err(self.widens(entry.line, "guarantees.prefer: would make guarantees optional"));
        }
        self.places(layer)?;
        for entry in &layer.paths {
            self.path(entry)?;
        }
        if let Some(entry) = layer.unguard.first() {
            return Err(self.widens(entry.line, "filesystem.unguard: would let guarded files change"));
        }
        let guard = &mut self.policy.guard;
        for (to, from) in [(&mut guard.add, &layer.guard), (&mut guard.prevent, &layer.prevent), (&mut guard.stage, &layer.stage)]
        {
            for entry in from {
                to.extend(selector::resolve(entry, &self.place, self.caller)?);
            }
        }
        self.policy.environment.deny.extend(layer.deny.iter().map(|entry| entry.value.clone()));
        self.network(layer)?;
        self.loopback(layer)?;
        self.unix(layer)?;
        self.mcp(layer)?;
        if layer.docker.line > 0 {
            return Err(self.widens(layer.docker.line, "docker: the container is the policy's to choose"));
        }
        for limit in &layer.limits {
            self.limit(limit)?;
        }
        for Entry { value: (key, value), line } in &layer.kernel {
            let kernel = &mut self.policy.kernel;
            let (switch, widest) = match key {
                KernelKey::NestedSandbox => (&mut kernel.nested_sandbox, true),
                KernelKey::Strict => (&mut kernel.strict, false),
                KernelKey::UnixDatagram => (&mut kernel.unix_datagram, true),
            };
            if *value == widest && *switch != widest {
                return Err(self.widens(*line, "kernel: the policy is stricter"));
            }
            *switch = *value;
        }
        for required in &layer.require {
            self.policy.preferred.remove(&required.value);
        }
        Ok(())
    }

    fn widens(&self, line: u32, what: &str) -> PolicyError {
        PolicyError::at(self.place.line(line), format!("{what}; a project file may only take away"))
    }

    fn places(&mut self, layer: &Layer) -> Result<(), PolicyError> {
        if let Some(Entry { value, line }) = layer.workspace {
            if rank(value) > rank(self.policy.workspace_access) {
                return Err(self.widens(line, "filesystem.workspace: the policy gives less"));
            }
            let (origin, workspace) = (self.place.line(line), self.policy.workspace.clone());
            for rule in self.policy.files.iter_mut().filter(|rule| rule.path == workspace) {
                (rule.access, rule.origin) = (value, origin.clone());
            }
            self.policy.workspace_access = value;
        }
        if let Some(Entry { value, line }) = layer.home {
            let rank = |mode| match mode {
                HomeMode::Hidden => 0,
                HomeMode::Private => 1,
                HomeMode::Read => 2,
            };
            let old = self.policy.home.mode;
            if rank(value) > rank(old) {
                return Err(self.widens(line, "filesystem.home: the policy gives less"));
            }
            self.policy.home.mode = value;
            if let (HomeMode::Read, Some(home)) = (old, self.policy.home.dir.clone())
                && value != HomeMode::Read
            {
                self.close_home(&home);
            }
        }
        Ok(())
    }

    /// Takes the grant of the home directory away, unless it stands in front of a wider one that covers the home too, or
    /// is the workspace's.
    fn close_home(&mut self, home: &Path) {
        let files = &mut self.policy.files;
        let wider = files.iter().any(|rule| rule.path != home && covers(&rule.path, home));
        if !wider && home != self.policy.workspace {
            files.retain(|rule| rule.path != home || rule.access == Access::Hidden);
        }
    }

    fn path(&mut self, entry: &Entry<PathEntry>) -> Result<(), PolicyError> {
        let Entry { value: PathEntry { text, access, cache }, line } = entry;
        let (written, marked) = paths::optional(text);
        let skip = marked || *cache || *access == Access::Hidden && written.starts_with('~');
        let Some(path) = self.expand(written, skip, *line)? else { return Ok(()) };
        let origin = self.place.line(*line);
        if *access == Access::Hidden {
            self.policy.files.retain(|rule| rule.path != path);
            if covers(&path, &self.policy.workspace) {
                return Err(PolicyError::at(origin, format!("{text}: hides the workspace")));
            }
            self.policy.files.push(FileRule { path, access: Access::Hidden, optional: true, origin });
            return Ok(());
        }
        let current = self.policy.rule_for(&path).map_or(0, |rule| rank(rule.access));
        if rank(*access) > current {
            return Err(self.widens(*line, &format!("filesystem: the policy does not allow this for {text}")));
        }
        let mut found = false;
        for rule in self.policy.files.iter_mut().filter(|rule| covers(&path, &rule.path)) {
            found |= rule.path == path;
            if rank(rule.access) > rank(*access) {
                (rule.access, rule.origin) = (*access, origin.clone());
            }
        }
        if !found && current != rank(*access) {
            let message = format!("{text}: only part of a grant; a project file can lower whole grants and hide parts of them");
            return Err(PolicyError::at(origin, message));
        }
        if let Some(rule) = self.policy.files.iter().find(|rule| rule.path == self.policy.workspace) {
            self.policy.workspace_access = rule.access;
        }
        Ok(())
    }

    fn expand(&self, text: &str, optional: bool, line: u32) -> Result<Option<PathBuf>, PolicyError> {
        match paths::expand(text, self.base, self.caller) {
            Ok(expanded) => Ok(Some(expanded.path)),
            Err(Unset::Missing(_)) if optional => Ok(None),
            Err(Unset::Missing(why) | Unset::Malformed(why)) => {
                Err(PolicyError::at(self.place.line(line), format!("{text}: {why}")))
            }
        }
    }

    fn network(&mut self, layer: &Layer) -> Result<(), PolicyError> {
        let mode = match (&layer.network, layer.routes.first()) {
            (Some(mode), _) => mode.clone(),
            (None, Some(route)) => Entry { value: NetworkMode::Routes, line: route.line },
            (None, None) => return Ok(()),
        };
        let unknown = match mode.value {
            NetworkMode::Ask => UnknownHosts::Ask,
            NetworkMode::Audit => UnknownHosts::Audit,
            NetworkMode::Off | NetworkMode::Routes | NetworkMode::Host => UnknownHosts::Refuse,
        };
        if matches!(self.policy.network, Network::Routes(_)) && unknown > self.policy.unknown_hosts {
            return Err(self.widens(mode.line, "network.mode: the policy gives less"));
        }
        self.policy.unknown_hosts = unknown;
        self.policy.network = match (&self.policy.network, mode.value) {
            (_, NetworkMode::Off) => Network::Off,
            (Network::Host, NetworkMode::Host) => Network::Host,
            (Network::Host, NetworkMode::Routes | NetworkMode::Ask | NetworkMode::Audit) => {
                Network::Routes(layer.routes.iter().map(|entry| self.route(entry)).collect::<Result<_, _>>()?)
            }
            (Network::Routes(known), NetworkMode::Routes | NetworkMode::Ask | NetworkMode::Audit) => {
                let mut kept = Vec::new();
                for entry in &layer.routes {
                    let wanted = self.route(entry)?;
                    let before = kept.len();
                    kept.extend(known.iter().filter_map(|known| narrowed(known, &wanted)));
                    if kept.len() == before {
                        let what = format!("network.route: the policy does not lead to {} on these ports", wanted.host);
                        return Err(self.widens(entry.line, &what));
                    }
                }
                // Of two routes for a host the narrower pattern decides. Left out, it would leave its hosts to a wider
                // one that says less.
                // So would a policy under which hosts that no route names are reached.
                let shadowed = |route: &&Route| {
                    let within = |wide: &Route| {
                        wide.host.strip_prefix('*').is_some_and(|suffix| route.host.ends_with(suffix)) && wide.host != route.host
                    };
                    let open = unknown != UnknownHosts::Refuse;
                    !kept.iter().any(|kept| kept.host == route.host) && (open || kept.iter().any(within))
                };
                let more: Vec<Route> = known.iter().filter(shadowed).cloned().collect();
                kept.extend(more);
                Network::Routes(kept)
            }
            _ => return Err(self.widens(mode.line, "network.mode: the policy gives less")),
        };
        Ok(())
    }

    fn loopback(&mut self, layer: &Layer) -> Result<(), PolicyError> {
        let remaining = |known: &BTreeSet<u16>, named: &Option<Vec<Entry<u16>>>, key| {
            let Some(named) = named else { return Ok(known.clone()) };
            let one = |entry: &Entry<u16>| match known.contains(&entry.value) {
                true => Ok(entry.value),
                false => Err(self.widens(entry.line, &format!("network.{key}: the policy does not name {}", entry.value))),
            };
            named.iter().map(one).collect()
        };
        let connect = remaining(&self.policy.loopback.connect, &layer.loopback_connect, "connect")?;
        let publish = remaining(&self.policy.loopback.publish, &layer.loopback_publish, "publish")?;
        self.policy.loopback = LoopbackRules { connect, publish };
        Ok(())
    }

    fn route(&self, entry: &Entry<RouteEntry>) -> Result<Route, PolicyError> {
        let RouteEntry { host, ports, rules } = entry.value.clone();
        if rules.secret.is_some() || rules.upstream.is_some() || !rules.addresses.is_empty() {
            return Err(self.widens(entry.line, "network.route: secret, upstream and addresses are the policy's to say"));
        }
        Ok(Route { host, ports, rules, origin: self.place.line(entry.line) })
    }

    fn unix(&mut self, layer: &Layer) -> Result<(), PolicyError> {
        let Some(entries) = &layer.connect else { return Ok(()) };
        let mut kept = Vec::new();
        for Entry { value, line } in entries {
            let (text, optional) = paths::optional(value);
            let Some(path) = self.expand(text, optional, *line)? else { continue };
            if !self.policy.unix.connect.contains(&path) {
                return Err(self.widens(*line, &format!("unix.connect: the policy does not allow {value}")));
            }
            kept.push(path);
        }
        self.policy.unix.connect = kept;
        Ok(())
    }

    fn mcp(&mut self, layer: &Layer) -> Result<(), PolicyError> {
        let Some(tools) = &layer.mcp_tools else { return Ok(()) };
        let offered = &mut self.policy.mcp.tools;
        if let Some(more) = tools.value.iter().find(|tool| !offered.contains(&tool.value)) {
            let what = format!("mcp.tools: the policy does not offer {}", more.value.name());
            return Err(self.widens(more.line, &what));
        }
        *offered = tools.value.iter().map(|tool| tool.value).collect();
        Ok(())
    }

    fn limit(&mut self, entry: &Entry<Limit>) -> Result<(), PolicyError> {
        fn lower<T: PartialOrd + Copy>(current: &mut Option<T>, wanted: Option<T>) -> bool {
            let fits = match (*current, wanted) {
                (None, _) => true,
                (Some(current), Some(wanted)) => wanted <= current,
                (Some(_), None) => false,
            };
            if fits {
                *current = wanted;
            }
            fits
        }
        let limits: &mut Limits = &mut self.policy.limits;
        let fits = match entry.value {
            // A share and a number of bytes stand beside each other: the smaller one counts.
            Limit::Memory(wanted) => lower(&mut limits.memory, wanted) && (wanted.is_some() || limits.memory_percent.is_none()),
            Limit::MemoryPercent(wanted) => lower(&mut limits.memory_percent, Some(wanted)),
            Limit::Processes(wanted) => lower(&mut limits.processes, wanted),
            Limit::Scratch(wanted) => lower(&mut limits.scratch, wanted),
            Limit::Shm(wanted) => lower(&mut limits.shm, wanted),
            Limit::OpenFiles(wanted) => lower(&mut limits.open_files, wanted),
            Limit::FileSize(wanted) => lower(&mut limits.file_size, wanted),
            Limit::Cpu(wanted) => lower(&mut limits.cpu_percent, wanted),
            Limit::Timeout(wanted) => lower(&mut limits.timeout, wanted),
            Limit::Grace(wanted) => {
                let fits = wanted <= limits.grace;
                limits.grace = limits.grace.min(wanted);
                fits
            }
        };
        if fits { Ok(()) } else { Err(self.widens(entry.line, "limits: the policy's limit is lower")) }
    }
}

/// What is left of the policy's route `known` when a project wants `wanted`; nothing if that is not a part of it.
fn narrowed(known: &Route, wanted: &Route) -> Option<Route> {
    fn part(known: &[String], wanted: &[String]) -> Option<Vec<String>> {
        match (known, wanted) {
            (_, []) => Some(known.to_vec()),
            ([], _) => Some(wanted.to_vec()),
            _ => wanted.iter().all(|one| known.contains(one)).then(|| wanted.to_vec()),
        }
    }
    if known.host != wanted.host || !wanted.ports.iter().all(|port| known.ports.contains(port)) {
        return None;
    }
    let lower = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    let per_hour = |rate: &Rate| u64::from(rate.count) * 3_600_000 / rate.milliseconds.max(1);
    let rules = RouteRules {
        methods: part(&known.rules.methods, &wanted.rules.methods)?,
        paths: part(&known.rules.paths, &wanted.rules.paths)?,
        max_body: lower(known.rules.max_body, wanted.rules.max_body),
        rate: known.rules.rate.into_iter().chain(wanted.rules.rate).min_by_key(per_hour),
        ..known.rules.clone()
    };
    Some(Route { host: wanted.host.clone(), ports: wanted.ports.clone(), rules, origin: wanted.origin.clone() })
}
