//! What the jobs of a plan reach of the host: pure functions of the plan.

use std::path::{Path, PathBuf};

use hermes_backends::plan::{MountStep, PathRights, Plan, Tier};

use super::run::Readable;

/// Would a run by this plan write there?
pub(crate) fn concerns(plan: &Plan, tree: &Path) -> bool {
    writable_trees(plan).iter().any(|own| touch(own, tree))
}

/// Does one of two trees hold the other?
pub(crate) fn touch(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Trees of the host that the sandbox can write, outermost only: absolute, free of symlinks.
pub(super) fn writable_trees(plan: &Plan) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = match plan.tier {
        Tier::Namespaces => plan
            .mounts
            .iter()
            .filter_map(|step| match step {
                MountStep::Bind { source, writable: true, directory: true, device: false, .. } => Some(source.path.clone()),
                _ => None,
            })
            .collect(),
        Tier::Landlock => {
            let rules = plan.landlock.iter().flat_map(|landlock| &landlock.paths);
            let trees = rules.filter(|rule| rule.rights == PathRights::Write && rule.identity.is_some());
            trees.map(|rule| rule.path.clone()).filter(|path| path.is_dir()).collect()
        }
    };
    paths.sort();
    paths.dedup();
    let all = paths.clone();
    paths.retain(|path| !all.iter().any(|other| other != path && path.starts_with(other)));
    paths
}

/// What lies in a writable tree and cannot be written, relative to it.
pub(super) fn skips(plan: &Plan, tree: &Path) -> Vec<PathBuf> {
    let inside = |step: &MountStep| {
        let less = matches!(step, MountStep::Mask { .. } | MountStep::Overlay { .. } | MountStep::Private { .. })
            || matches!(step, MountStep::Bind { writable: false, .. });
        if less {
            step.target().strip_prefix(tree).ok().filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned)
        } else {
            None
        }
    };
    plan.mounts.iter().filter_map(inside).collect()
}

/// Where a symlink may lead: to what the sandbox could read itself.
pub(super) fn readable(plan: &Plan) -> Readable {
    match plan.tier {
        Tier::Namespaces => {
            let mut readable = Readable::default();
            for step in &plan.mounts {
                match step {
                    MountStep::Bind { source, .. } | MountStep::Overlay { source, .. } => {
                        readable.granted.push(step.target().to_owned());
                        readable.granted.push(source.path.clone());
                    }
                    MountStep::Symlink { target, .. } => readable.granted.push(target.clone()),
                    MountStep::Mask { target, .. } => readable.hidden.push(target.clone()),
                    _ => {}
                }
            }
            readable
        }
        Tier::Landlock => {
            let rules = plan.landlock.iter().flat_map(|landlock| &landlock.paths);
            let granted = rules.filter(|rule| rule.rights != PathRights::List).map(|rule| rule.path.clone());
            Readable { granted: granted.collect(), hidden: Vec::new() }
        }
    }
}
