//! Id-mapped trees for root callers.
//!
//! Real root never enters: the sandbox's user 0 is an unprivileged id of the host. The trees that it is granted show
//! root's files as that id's, and files it makes come out as root's (mount_setattr(2), MOUNT_ATTR_IDMAP).

use std::os::fd::{AsFd, OwnedFd};

use super::root::open_source;
use super::source_of;
use super::sys::mount::{Attributes, clone_tree, set_attributes};
use super::sys::process::{OneUser, user_namespace};
use crate::plan::{Layer, MountStep, Plan, Source};
use crate::step::{At, Step, StepError};

/// Detached trees by index of their mount step; of an overlay the lower layer, then the upper one if it is kept.
pub fn trees(plan: &Plan) -> Result<Vec<(u32, OwnedFd)>, StepError> {
    let identity = plan.identity;
    let user = OneUser { uid: identity.uid, gid: identity.gid, host_uid: identity.host_uid, host_gid: identity.host_gid };
    let namespace = user_namespace(user).at(Step::IdMap)?;
    let mut trees = Vec::new();
    for (index, step) in (0..).zip(&plan.mounts) {
        let Some((source, directory)) = source_of(step) else { continue };
        if !needs_map(step, source) {
            continue;
        }
        let mut map = |source: &Source, directory| -> Result<(), StepError> {
            let tree = clone_tree(open_source(source)?.as_fd(), directory).at_path(Step::Bind, &source.path)?;
            let attributes = Attributes { userns: Some(namespace.as_fd()), ..Attributes::default() };
            set_attributes(tree.as_fd(), c"", attributes, directory).at_path(Step::Attributes, &source.path)?;
            trees.push((index, tree));
            Ok(())
        };
        map(source, directory)?;
        if let MountStep::Overlay { layer: Layer::Kept(layer), .. } = step {
            map(layer, true)?;
        }
    }
    Ok(trees)
}

/// What everybody may read needs no map, and system trees may hold file systems that cannot have one.
fn needs_map(step: &MountStep, source: &Source) -> bool {
    const OPEN_TO_ALL: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix"];
    let writable = matches!(step, MountStep::Bind { writable: true, .. } | MountStep::Overlay { .. });
    writable || !OPEN_TO_ALL.iter().any(|tree| source.path.starts_with(tree))
}
