//! From path rules to grants, mounts and Landlock rules.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_profiles::paths::covers;
use hermes_profiles::{Access, FileRule, HomeMode, Origin, Policy};

use rustc_hash::FxHashSet;

use super::{CompileError, Crossing, rule};
use crate::host::Host;
use crate::plan::{MountStep, PathRights, PathRule, Redirect, Source, Tier};
use crate::survey::{Found, Kind, Link, Survey};

/// The sandbox's own file systems besides the home: (path, mode).
const OWN: &[(&str, u32)] = &[("/run", 0o755), ("/tmp", 0o1777), ("/var/tmp", 0o1777)];
/// Built by the sandbox itself; the host's are never granted.
const RESERVED: &[&str] = &["/proc", "/dev"];
/// Tells a nested hermes-sandbox where it is.
pub const MARKER: &str = "/run/hermes-sandbox";

/// A host tree that is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// How.
    pub access: Access,
    /// What.
    pub source: Source,
    /// What it is.
    pub kind: Kind,
}

/// A hidden path inside a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hide {
    /// The real path.
    pub path: PathBuf,
    /// What it is; `None` when it is not there.
    pub kind: Option<Kind>,
    /// Where the rule was written.
    pub origin: Origin,
}

/// What a policy's path rules come to on this machine.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// By real path.
    pub grants: BTreeMap<PathBuf, Grant>,
    /// Hidden paths that lie in a grant.
    pub hides: Vec<Hide>,
    /// Symlinks to be made where no grant holds them.
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// Where the command starts.
    pub cwd: PathBuf,
}

impl View {
    /// The innermost grant that covers `path`.
    pub fn covering(&self, path: &Path) -> Option<(&PathBuf, &Grant)> {
        self.grants.iter().filter(|(at, _)| covers(at, path)).max_by_key(|(at, _)| at.as_os_str().len())
    }
}

/// Answers which of many paths is the innermost one around another; asked for every rule of a policy at every start.
struct Index<'a>(FxHashSet<&'a [u8]>);

impl<'a> Index<'a> {
    fn new(paths: impl Iterator<Item = &'a Path>) -> Self {
        Self(paths.map(|path| path.as_os_str().as_bytes()).collect())
    }

    /// `path` is normalised.
    fn innermost<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        let mut rest = path.as_os_str().as_bytes();
        loop {
            if self.0.contains(rest) {
                return Some(Path::new(OsStr::from_bytes(rest)));
            }
            match rest.iter().rposition(|byte| *byte == b'/') {
                None => return None,
                Some(0) if rest.len() == 1 => return None,
                Some(0) => rest = &rest[..1],
                Some(at) => rest = &rest[..at],
            }
        }
    }
}

/// The real path of a surveyed path, or itself.
pub fn real(survey: &Survey, path: &Path) -> PathBuf {
    match survey.get(path) {
        Found::Present { real, .. } => real.clone(),
        _ => path.to_owned(),
    }
}

/// The paths that a survey must look at for [`super::compile`].
pub fn paths_of(policy: &Policy) -> Vec<&Path> {
    let mut paths: Vec<&Path> = policy.files.iter().map(|rule| rule.path.as_path()).collect();
    paths.push(&policy.workspace);
    paths.extend(policy.home.dir.as_deref());
    paths.extend(policy.unix.connect.iter().map(PathBuf::as_path));
    paths
}

/// Resolves all rules to grants and hides.
pub fn grants(policy: &Policy, survey: &Survey, cwd: Option<&Path>) -> Result<View, CompileError> {
    let workspace = FileRule {
        path: policy.workspace.clone(),
        access: policy.workspace_access,
        optional: false,
        origin: Origin::Flag("--workspace".into()),
    };
    let mut view = View::default();
    let home = home_rule(policy);
    let rules: Vec<&FileRule> = policy.files.iter().chain([&workspace]).chain(&home).collect();
    let hidden: Vec<(PathBuf, &FileRule)> =
        rules.iter().filter(|r| r.access == Access::Hidden).map(|r| (real(survey, &r.path), *r)).collect();
    let workspace_real = real(survey, &policy.workspace);
    if let Some((path, rule)) = hidden.iter().find(|(path, _)| covers(path, &workspace_real))
        && policy.workspace_access != Access::Hidden
    {
        return Err(CompileError::WorkspaceHidden {
            workspace: policy.workspace.clone(),
            path: path.clone(),
            origin: rule.origin.clone(),
        });
    }
    let hidden_index = Index::new(hidden.iter().map(|(path, _)| path.as_path()));
    let mut links: Vec<(&FileRule, PathBuf, Vec<Link>)> = Vec::new();
    for rule in rules.iter().copied().filter(|rule| rule.access != Access::Hidden) {
        let Some((grant, crossed)) = grant(rule, survey)? else { continue };
        if std::ptr::eq(rule, &workspace) && grant.kind != Kind::Directory {
            return Err(CompileError::NotADirectory { path: policy.workspace.clone() });
        }
        if hidden_index.innermost(&grant.source.path).is_some() {
            continue;
        }
        if !crossed.is_empty() {
            links.push((rule, grant.source.path.clone(), crossed));
        }
        let entry = view.grants.entry(grant.source.path.clone()).or_insert_with(|| grant.clone());
        entry.access = entry.access.max(grant.access);
    }
    check_links(&mut view, &links)?;
    drop_covered(&mut view.grants);
    let granted = Index::new(view.grants.keys().map(PathBuf::as_path));
    for (path, rule) in &hidden {
        if granted.innermost(path).is_none() {
            continue;
        }
        let kind = match survey.get(&rule.path) {
            Found::Present { kind, .. } => Some(*kind),
            _ => None,
        };
        view.hides.push(Hide { path: path.clone(), kind, origin: rule.origin.clone() });
    }
    view.hides.sort_by(|a, b| a.path.cmp(&b.path));
    view.hides.dedup_by(|a, b| a.path.starts_with(&b.path));
    let start = cwd.filter(|cwd| view.covering(cwd).is_some() && !view.hides.iter().any(|hide| cwd.starts_with(&hide.path)));
    view.cwd = match start {
        Some(cwd) => cwd.to_owned(),
        None if policy.workspace_access == Access::Hidden => PathBuf::from("/"),
        None => real(survey, &policy.workspace),
    };
    Ok(view)
}

fn home_rule(policy: &Policy) -> Option<FileRule> {
    let dir = policy.home.dir.clone().filter(|_| policy.home.mode == HomeMode::Read)?;
    Some(FileRule { path: dir, access: Access::Read, optional: true, origin: Origin::Derived("home = \"read\"".into()) })
}

fn grant(rule: &FileRule, survey: &Survey) -> Result<Option<(Grant, Vec<Link>)>, CompileError> {
    match survey.get(&rule.path) {
        Found::Present { real, kind, dev, ino, links, .. } => {
            if let Some(own) = RESERVED.iter().find(|own| real.starts_with(own)) {
                return if rule.optional {
                    Ok(None)
                } else {
                    Err(CompileError::Reserved { path: rule.path.clone(), origin: rule.origin.clone(), own: own.into() })
                };
            }
            // Copy-on-write of a single file would need a layer over its directory: give the file read-only.
            let access = match (rule.access, kind) {
                (Access::Overlay, kind) if *kind != Kind::Directory => Access::Read,
                (access, _) => access,
            };
            let source = Source { path: real.clone(), dev: *dev, ino: *ino };
            Ok(Some((Grant { access, source, kind: *kind }, links.clone())))
        }
        _ if rule.optional => Ok(None),
        Found::Absent => Err(CompileError::Missing { path: rule.path.clone(), origin: rule.origin.clone() }),
        Found::Unreadable(errno) => {
            Err(CompileError::Unreadable { path: rule.path.clone(), origin: rule.origin.clone(), errno: *errno })
        }
    }
}

/// Keeps the symlinks that have to be made, and refuses those that the sandbox could turn somewhere else.
fn check_links(view: &mut View, links: &[(&FileRule, PathBuf, Vec<Link>)]) -> Result<(), CompileError> {
    let mut hostile = Vec::new();
    for (rule, target, crossed) in links {
        for link in crossed {
            match view.covering(&link.at) {
                Some((tree, grant)) if grant.access == Access::Write && *target != *tree => {
                    if rule.optional {
                        hostile.push(target.clone());
                        continue;
                    }
                    return Err(CompileError::CrossesWritable(Box::new(Crossing {
                        path: rule.path.clone(),
                        origin: rule.origin.clone(),
                        link: link.at.clone(),
                        tree: tree.clone(),
                        real: target.clone(),
                    })));
                }
                Some(_) => {}
                None => {
                    view.links.insert(link.at.clone(), link.to.clone());
                }
            }
        }
    }
    // An optional rule is dropped, unless another rule grants the same place by its real name.
    for target in hostile {
        let named = links.iter().filter(|(_, t, _)| *t == target).count();
        let by_name = view.grants.contains_key(&target) && named == 0;
        if !by_name {
            view.grants.remove(&target);
        }
    }
    Ok(())
}

/// A grant inside another one of the same kind says nothing new.
fn drop_covered(grants: &mut BTreeMap<PathBuf, Grant>) {
    let redundant: Vec<PathBuf> = grants
        .iter()
        .filter(|(path, grant)| {
            let outer = path.ancestors().skip(1).find_map(|at| grants.get(at));
            outer.is_some_and(|outer| outer.access == grant.access)
        })
        .map(|(path, _)| path.clone())
        .collect();
    for path in redundant {
        grants.remove(&path);
    }
}

/// Without copy-on-write a cache that holds a credential cannot be granted at all: Landlock cannot hide one file of a tree.
pub fn drop_caches_with_secrets(view: &mut View) {
    let secret: Vec<PathBuf> = view
        .hides
        .iter()
        .filter(|hide| hide.kind.is_some())
        .filter_map(|hide| view.covering(&hide.path))
        .filter(|(_, grant)| grant.access == Access::Overlay)
        .map(|(path, _)| path.clone())
        .collect();
    view.grants.retain(|path, _| !secret.contains(path));
    let grants = &view.grants;
    view.hides.retain(|hide| hide.path.ancestors().any(|at| grants.contains_key(at)));
}

/// Variables of the tools whose caches would be copy-on-write, for hosts that cannot do that: (name, directory below
/// the scratch directory).
const CACHE_VARIABLES: &[(&str, &str)] = &[
    ("XDG_CACHE_HOME", "cache"),
    ("npm_config_cache", "cache/npm"),
    ("PIP_CACHE_DIR", "cache/pip"),
    ("UV_CACHE_DIR", "cache/uv"),
    ("GOCACHE", "cache/go-build"),
    ("YARN_CACHE_FOLDER", "cache/yarn"),
];

/// Where tools find writable caches when their own are read-only.
pub fn redirects(view: &View, host: &Host, tier: Tier, scratch: Option<&Path>) -> Vec<Redirect> {
    let caches_lost = match tier {
        Tier::Landlock => true,
        Tier::Namespaces => !host.overlay.works() && view.grants.values().any(|grant| grant.access == Access::Overlay),
    };
    if !caches_lost {
        return Vec::new();
    }
    let scratch = scratch.unwrap_or(Path::new("/tmp"));
    let caches =
        CACHE_VARIABLES.iter().map(|(name, below)| Redirect { name: (*name).to_owned(), directory: scratch.join(below) });
    let own_tmp = (tier == Tier::Landlock).then(|| Redirect { name: "TMPDIR".to_owned(), directory: scratch.to_owned() });
    own_tmp.into_iter().chain(caches).collect()
}

/// The mount steps of the namespaces tier, outer paths first.
pub fn mounts(policy: &Policy, host: &Host, view: &View) -> Vec<MountStep> {
    let mut steps: BTreeMap<PathBuf, MountStep> = BTreeMap::new();
    let scratch = policy.limits.scratch;
    for (path, mode) in OWN {
        let target = PathBuf::from(path);
        steps.insert(target.clone(), MountStep::Tmpfs { target, size: scratch, mode: *mode, writable: true });
    }
    if let Some(target) = policy.home.dir.clone().filter(|dir| policy.home.mode != HomeMode::Read && dir.parent().is_some()) {
        let writable = policy.home.mode == HomeMode::Private;
        steps.insert(target.clone(), MountStep::Tmpfs { target, size: scratch, mode: 0o700, writable });
    }
    steps.insert(MARKER.into(), MountStep::Directory { target: MARKER.into(), mode: 0o555 });
    for (at, to) in &view.links {
        steps.entry(at.clone()).or_insert_with(|| MountStep::Symlink { target: at.clone(), to: to.clone() });
    }
    for (path, grant) in &view.grants {
        let directory = grant.kind == Kind::Directory;
        let (source, target) = (grant.source.clone(), path.clone());
        let step = match grant.access {
            Access::Overlay if host.overlay.works() => {
                let whiteouts = view
                    .hides
                    .iter()
                    .filter(|hide| hide.kind.is_some() && covers(path, &hide.path))
                    .filter(|hide| view.covering(&hide.path).is_some_and(|(at, _)| at == path))
                    .filter_map(|hide| hide.path.strip_prefix(path).ok().map(Path::to_owned))
                    .collect();
                MountStep::Overlay { source, target, size: scratch, whiteouts }
            }
            access => MountStep::Bind {
                source,
                target,
                directory,
                writable: access == Access::Write,
                device: grant.kind == Kind::Device,
            },
        };
        steps.insert(path.clone(), step);
    }
    for hide in &view.hides {
        let overlaid = view.covering(&hide.path).is_some_and(|(_, grant)| grant.access == Access::Overlay);
        if let Some(kind) = hide.kind
            && !(overlaid && host.overlay.works())
        {
            let target = hide.path.clone();
            steps.insert(target.clone(), MountStep::Mask { target, directory: kind == Kind::Directory });
        }
    }
    let mut steps: Vec<MountStep> = steps.into_values().collect();
    steps.push(MountStep::Proc);
    steps.push(MountStep::Dev { shm: policy.limits.shm });
    steps.sort_by_key(|step| step.target().components().count());
    steps
}

/// Landlock rules as seen inside the new root: everything may be listed, only what was put there may be used.
pub fn rules_inside(mounts: &[MountStep]) -> Vec<PathRule> {
    let mut rules = vec![rule("/", PathRights::List), rule("/dev", PathRights::Device), rule("/dev/shm", PathRights::Write)];
    rules.push(rule("/proc", PathRights::Device));
    for step in mounts {
        let rights = match step {
            MountStep::Tmpfs { writable: true, .. } | MountStep::Overlay { .. } | MountStep::Bind { writable: true, .. } => {
                PathRights::Write
            }
            MountStep::Bind { device: true, .. } => PathRights::Device,
            MountStep::Bind { .. } => PathRights::Read,
            _ => continue,
        };
        rules.push(rule(step.target(), rights));
    }
    rules
}

/// Landlock rules on the host's own paths. Hidden paths inside a grant cannot be expressed; that loss is named.
pub fn rules_outside(view: &View, scratch: Option<&Path>) -> Vec<PathRule> {
    let mut rules: Vec<PathRule> = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"]
        .iter()
        .map(|device| rule(Path::new("/dev").join(device), PathRights::Device))
        .collect();
    // Other processes' entries are guarded by the domain's ptrace rule; /proc/sys by the owner of its files.
    rules.push(rule("/proc", PathRights::Read));
    rules.extend(scratch.map(|path| rule(path, PathRights::Write)));
    rules.extend(view.grants.iter().map(|(path, grant)| {
        let rights = match (grant.access, grant.kind) {
            (Access::Write, _) => PathRights::Write,
            (_, Kind::Device) => PathRights::Device,
            _ => PathRights::Read,
        };
        rule(path, rights)
    }));
    rules
}
