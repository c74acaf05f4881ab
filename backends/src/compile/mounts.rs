//! From what is granted to mount steps and Landlock rules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hermes_profiles::paths::covers;
use hermes_profiles::{Access, Policy};

use super::files::View;
use super::rule;
use crate::plan::{Content, Layer, MountStep, PathRights, PathRule, Redirect, Tier};
use crate::survey::Kind;

/// Tells a nested hermes-sandbox where it is.
pub const MARKER: &str = "/run/hermes-sandbox";

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

/// The upper layer for a copy-on-write grant, by its path; `None` where there can be none.
pub type Upper<'a> = &'a dyn Fn(&Path) -> Option<Layer>;

/// Where tools find writable caches when their own are read-only.
pub fn redirects(view: &View, upper: Upper<'_>, tier: Tier, scratch: Option<&Path>) -> Vec<Redirect> {
    let caches_lost = match tier {
        Tier::Landlock => true,
        Tier::Namespaces => view.grants.iter().any(|(path, grant)| grant.access == Access::Overlay && upper(path).is_none()),
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
pub fn mounts(policy: &Policy, view: &View, upper: Upper<'_>, files: Vec<(PathBuf, Content)>) -> Vec<MountStep> {
    let mut steps: BTreeMap<PathBuf, MountStep> = BTreeMap::new();
    for (target, mode, writable) in view.own.iter().cloned() {
        steps.insert(target.clone(), MountStep::Private { target, mode, writable });
    }
    if view.covering(Path::new(MARKER)).is_none() {
        steps.insert(MARKER.into(), MountStep::Directory { target: MARKER.into(), mode: 0o555 });
    }
    for (at, to) in &view.links {
        steps.entry(at.clone()).or_insert_with(|| MountStep::Symlink { target: at.clone(), to: to.clone() });
    }
    for (path, grant) in &view.grants {
        let directory = grant.kind == Kind::Directory;
        let (source, target) = (grant.source.clone(), path.clone());
        let step = match (grant.access, upper(path)) {
            (Access::Overlay, Some(layer)) => {
                let whiteouts = match layer {
                    // A whiteout in a layer that is kept would be a deletion of the command's.
                    Layer::Planned | Layer::Kept(_) => Vec::new(),
                    Layer::Private => view
                        .hides
                        .iter()
                        .filter(|hide| hide.kind.is_some() && covers(path, &hide.path))
                        .filter(|hide| view.covering(&hide.path).is_some_and(|(at, _)| at == path))
                        .filter_map(|hide| hide.path.strip_prefix(path).ok().map(Path::to_owned))
                        .collect(),
                };
                MountStep::Overlay { source, layer, target, whiteouts }
            }
            (access, _) => MountStep::Bind {
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
        let whited_out = view
            .covering(&hide.path)
            .is_some_and(|(at, grant)| grant.access == Access::Overlay && upper(at) == Some(Layer::Private));
        if let Some(kind) = hide.kind
            && !whited_out
        {
            let target = hide.path.clone();
            steps.insert(target.clone(), MountStep::Mask { target, directory: kind == Kind::Directory });
        }
    }
    for (target, content) in files {
        steps.insert(target.clone(), MountStep::File { target, content });
    }
    for target in pins(&steps) {
        steps.insert(target.clone(), MountStep::Pin { target });
    }
    let mut steps: Vec<MountStep> = steps.into_values().collect();
    steps.push(MountStep::Proc);
    steps.push(MountStep::Dev { shm: policy.limits.shm });
    steps.sort_by_key(|step| step.target().components().count());
    // When all is there that they show again.
    let mut aliases: Vec<MountStep> = view
        .aliases
        .iter()
        .map(|alias| MountStep::Alias { target: alias.at.clone(), of: alias.of.clone(), directory: alias.directory })
        .collect();
    aliases.sort_by_key(|step| step.target().components().count());
    steps.append(&mut aliases);
    steps
}

/// Directories of writable host trees that lead to something with less rights: were they renamed, what is mounted below
/// would go with them and leave its name to whatever is made there.
fn pins(steps: &BTreeMap<PathBuf, MountStep>) -> Vec<PathBuf> {
    let lessens = |step: &MountStep| {
        matches!(
            step,
            MountStep::Mask { .. } | MountStep::File { .. } | MountStep::Overlay { .. } | MountStep::Bind { writable: false, .. }
        )
    };
    let mut pins = Vec::new();
    for (target, _) in steps.iter().filter(|(_, step)| lessens(step)) {
        let around = target.ancestors().skip(1).find_map(|at| steps.get_key_value(at));
        if let Some((tree, MountStep::Bind { writable: true, .. })) = around {
            pins.extend(target.ancestors().skip(1).take_while(|at| at != tree).map(Path::to_owned));
        }
    }
    pins
}

/// Landlock rules as seen inside the new root: everything may be listed, only what was put there may be used.
pub fn rules_inside(mounts: &[MountStep]) -> Vec<PathRule> {
    let mut rules = vec![rule("/", PathRights::List), rule("/dev", PathRights::Device), rule("/dev/shm", PathRights::Write)];
    rules.push(rule("/proc", PathRights::Device));
    for step in mounts {
        let rights = match step {
            MountStep::Private { writable: true, .. } | MountStep::Overlay { .. } | MountStep::Bind { writable: true, .. } => {
                PathRights::Write
            }
            MountStep::Bind { device: true, .. } => PathRights::Device,
            MountStep::Bind { .. } | MountStep::File { .. } => PathRights::Read,
            _ => continue,
        };
        rules.push(rule(step.target(), rights));
    }
    rules
}

/// What a container has of its own besides the places of the policy.
const OF_CONTAINER: [(&str, PathRights); 3] =
    [("/dev/shm", PathRights::Write), ("/dev/pts", PathRights::Device), ("/dev/ptmx", PathRights::Device)];

/// Landlock rules on the host's own paths. Hidden paths inside a grant cannot be expressed; that loss is named.
/// `own` are places that a container has of its own: path, mode, and whether they may be written.
pub fn rules_outside(view: &View, scratch: Option<&Path>, own: Option<&[(PathBuf, u32, bool)]>) -> Vec<PathRule> {
    let mut rules: Vec<PathRule> = ["null", "zero", "full", "random", "urandom", "tty"]
        .iter()
        .map(|device| rule(Path::new("/dev").join(device), PathRights::Device))
        .collect();
    // Other processes' entries are guarded by the domain's ptrace rule; /proc/sys by the owner of its files.
    rules.push(rule("/proc", PathRights::Read));
    rules.extend(scratch.map(|path| rule(path, PathRights::Write)));
    if let Some(own) = own {
        rules.extend(OF_CONTAINER.map(|(path, rights)| rule(path, rights)));
        let rights = |writable| if writable { PathRights::Write } else { PathRights::Read };
        rules.extend(own.iter().map(|(path, _, writable)| rule(path, rights(*writable))));
    }
    rules.extend(view.grants.iter().map(|(path, grant)| {
        let rights = match (grant.access, grant.kind) {
            (Access::Write, _) => PathRights::Write,
            (_, Kind::Device) => PathRights::Device,
            _ => PathRights::Read,
        };
        PathRule { identity: Some((grant.source.dev, grant.source.ino)), ..rule(path, rights) }
    }));
    rules
}
