//! What a command would see: mount steps and Landlock rules, carried out on a map.

use std::path::{Path, PathBuf};

use super::world::{Node, World};
use crate::plan::{MountStep, PathRights, Plan, Tier};
use crate::survey::Kind;

/// What a host path is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shown {
    /// Hidden, or never there.
    Nothing,
    /// The host's, read-only.
    Read,
    /// A copy; the host's file stays as it is.
    Copy,
    /// The host's, writable.
    Write,
}

/// What stands at `path`, which is free of symlinks, in the namespaces tier.
pub(super) fn shown(plan: &Plan, path: &Path) -> Shown {
    let innermost = plan.mounts.iter().rfind(|step| match step {
        MountStep::Bind { directory: false, target, .. } => path == target,
        MountStep::Symlink { .. } | MountStep::Directory { .. } | MountStep::Pin { .. } | MountStep::Alias { .. } => false,
        MountStep::File { .. } => true,
        _ => path.starts_with(step.target()),
    });
    match innermost {
        Some(MountStep::Bind { writable: true, .. }) => Shown::Write,
        Some(MountStep::Bind { .. }) => Shown::Read,
        Some(MountStep::Overlay { target, whiteouts, .. }) => {
            if whiteouts.iter().any(|hidden| path.starts_with(target.join(hidden))) { Shown::Nothing } else { Shown::Copy }
        }
        _ => Shown::Nothing,
    }
}

/// The most that Landlock lets through at `path`: rights add up along the way, landlock(7).
pub(super) fn rights(plan: &Plan, path: &Path) -> Option<PathRights> {
    let rules = &plan.landlock.as_ref()?.paths;
    rules.iter().filter(|rule| path.starts_with(&rule.path)).map(|rule| rule.rights).max()
}

/// What `path` is in either tier.
pub(super) fn given(plan: &Plan, path: &Path) -> Shown {
    match plan.tier {
        Tier::Namespaces => shown(plan, path),
        Tier::Landlock => match rights(plan, path) {
            Some(PathRights::Write | PathRights::Device) => Shown::Write,
            Some(PathRights::Read) => Shown::Read,
            Some(PathRights::List) | None => Shown::Nothing,
        },
    }
}

/// Follows `path` inside: symlinks that steps make, and those of the host in trees that are shown.
pub(super) fn follow(plan: &Plan, world: &World, path: &Path) -> Option<PathBuf> {
    let mut real = PathBuf::from("/");
    let mut pending: Vec<PathBuf> = path.components().rev().map(|c| PathBuf::from(c.as_os_str())).collect();
    let mut followed = 0;
    while let Some(name) = pending.pop() {
        match name.to_str() {
            Some("/") => real = "/".into(),
            Some("..") => drop(real.pop()),
            _ => {
                let next = real.join(name);
                let made = plan.mounts.iter().find_map(|step| match step {
                    MountStep::Symlink { target, to } if *target == next => Some(to),
                    _ => None,
                });
                let to = match made {
                    Some(to) => Some(to),
                    None if shown(plan, &next) == Shown::Nothing => None,
                    None => match world.0.get(&next) {
                        Some(Node::Link(to)) => Some(to),
                        Some(Node::Is(_)) => None,
                        _ => return None,
                    },
                };
                match to {
                    Some(_) if followed == 40 => return None,
                    Some(to) => {
                        followed += 1;
                        pending.extend(to.components().rev().map(|c| PathBuf::from(c.as_os_str())));
                    }
                    None => real = next,
                }
            }
        }
    }
    Some(real)
}

/// Is every step possible when it comes? Nothing is made in host trees, and nothing is covered by a later step.
pub(super) fn check_steps(plan: &Plan, world: &World) -> Result<(), String> {
    for (index, step) in plan.mounts.iter().enumerate() {
        let target = step.target();
        let (before, after) = (&plan.mounts[..index], &plan.mounts[index + 1..]);
        if let Some(later) = after.iter().find(|later| target.starts_with(later.target())) {
            return Err(format!("{later:?} covers {step:?}, which comes first"));
        }
        if !matches!(step, MountStep::Proc | MountStep::Dev { .. }) && ["/proc", "/dev"].iter().any(|own| target.starts_with(own))
        {
            return Err(format!("{step:?} lies in a file system that the sandbox makes itself"));
        }
        if target.parent().is_none() {
            return Err(format!("{step:?}: the root is made before all steps"));
        }
        let around = |path: &Path| {
            let outer = |outer: &&MountStep| path.starts_with(outer.target()) && !matches!(outer, MountStep::Pin { .. });
            before.iter().rfind(outer)
        };
        // A directory that can be renamed takes along what is mounted below it.
        let lessens =
            matches!(step, MountStep::Mask { .. } | MountStep::Overlay { .. } | MountStep::Bind { writable: false, .. });
        for parent in target.ancestors().skip(1) {
            if let Some(MountStep::Bind { writable: true, target: tree, .. }) = around(parent)
                && lessens
                && parent != tree
                && !before.iter().any(|pin| pin.target() == parent)
            {
                return Err(format!("{} can be renamed, and with it {step:?}", parent.display()));
            }
        }
        let around = around(target);
        match around {
            Some(MountStep::Symlink { .. }) => return Err(format!("{step:?} lies behind the symlink {around:?}")),
            Some(MountStep::Mask { .. }) => return Err(format!("{step:?} lies under the mask {around:?}")),
            Some(MountStep::Bind { .. } | MountStep::Overlay { .. } | MountStep::Pin { .. }) => {
                let there = world.0.get(target);
                let fits = match step {
                    MountStep::Bind { directory, .. } | MountStep::Mask { directory, .. } => {
                        there.is_some_and(|node| (*node == Node::Is(Kind::Directory)) == *directory)
                    }
                    MountStep::Symlink { .. } => false,
                    MountStep::Pin { .. } => matches!(around, Some(MountStep::Bind { writable: true, .. })),
                    _ => there == Some(&Node::Is(Kind::Directory)),
                };
                if !fits {
                    return Err(format!("{step:?} has no place in {around:?}: {there:?}"));
                }
            }
            _ => {}
        }
        if let MountStep::Bind { source, .. } | MountStep::Overlay { source, .. } = step
            && source.path != target
        {
            return Err(format!("{step:?} shows a path under another name"));
        }
    }
    Ok(())
}
