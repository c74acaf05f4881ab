//! A private place of one run, for copies of what jobs may write but the host must not see.

use std::path::Path;

use super::rule;
use crate::plan::{MountStep, PathRights, Plan, Source};

/// Where private copies are inside: not below a directory that a job could rename.
pub const FILES: &str = "/.hermes-sandbox/files";
/// Where symlinks to them are inside.
pub const LINKS: &str = "/.hermes-sandbox/links";

/// Two directories of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shadow {
    /// Private copies, which jobs write.
    pub files: Source,
    /// Symlinks to them, which jobs only follow.
    pub links: Source,
}

/// Shows the two directories inside, for [`crate::wire::Cover`] to mount from.
pub fn add(plan: &mut Plan, shadow: Shadow) {
    for (target, source, writable) in [(FILES, shadow.files, true), (LINKS, shadow.links, false)] {
        plan.mounts.push(MountStep::Bind { source, target: target.into(), directory: true, writable, device: false });
        if let Some(landlock) = plan.landlock.as_mut().filter(|landlock| landlock.handle_files) {
            let rights = if writable { PathRights::Write } else { PathRights::Read };
            landlock.paths.push(rule(Path::new(target), rights));
        }
    }
}
