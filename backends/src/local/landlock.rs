//! Enforces a [`LandlockPlan`] on the calling thread.
//!
//! The `landlock` crate negotiates; what the plan asks for is required, never best effort.

use std::os::fd::{AsFd, OwnedFd};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, Scope,
};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};

use super::root::open_source;
use crate::plan::{LandlockPlan, PathRights, PathRule, Source};
use crate::step::{At, Step, StepError};
use crate::wire::Opened;

/// The highest ABI that the crate and this program know.
pub const KNOWN_ABI: u32 = 10;

/// A descriptor that goes in and may be opened again by `/proc/self/fd/N`, with the rights it was opened with.
#[derive(Debug)]
pub struct Handed {
    /// The file or terminal.
    pub fd: OwnedFd,
    /// How it was opened.
    pub opened: Opened,
}

/// Puts the calling thread, and what it starts from now on, into a new domain.
///
/// # Errors
/// [`Step::Landlock`] with the path whose rule failed, or [`Step::Open`].
pub fn restrict(plan: &LandlockPlan, handed: &[Handed]) -> Result<(), StepError> {
    let abi = ABI::from(plan.abi as i32);
    let mut ruleset = create(plan, abi)?;
    for rule in &plan.paths {
        let fd = match open_rule(rule) {
            // Gone since it was looked at: a rule that is not made allows nothing.
            Err(error) if error.errno() == Errno::ENOENT => continue,
            other => other?,
        };
        ruleset =
            add(ruleset, &fd, rights(rule.rights, abi)).map_err(|errno| StepError::on(Step::Landlock, &rule.path, errno))?;
    }
    if plan.handle_files {
        for file in handed {
            ruleset =
                add(ruleset, &file.fd, reopening(file.opened, abi)).map_err(|errno| StepError::new(Step::Landlock, errno))?;
        }
    }
    ruleset.restrict_self().map(drop).map_err(|_| StepError::new(Step::Landlock, Errno::last()))
}

fn open_rule(rule: &PathRule) -> Result<OwnedFd, StepError> {
    match rule.identity {
        Some((dev, ino)) => open_source(&Source { path: rule.path.clone(), dev, ino }),
        None => open(&rule.path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).at_path(Step::Open, &rule.path),
    }
}

/// Puts the calling thread into a domain that only keeps its signals in: `kill(-1)` then reaches what it starts from now
/// on, all at once, and nothing else. The kernel signals under the lock that a fork needs, so no fork outruns it.
///
/// # Errors
/// [`Step::Landlock`].
pub fn keep_signals_in() -> Result<(), StepError> {
    let error = |_| StepError::new(Step::Landlock, Errno::last());
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement).scope(Scope::Signal).map_err(error)?;
    ruleset.create().map_err(error)?.restrict_self().map(drop).map_err(error)
}

fn create(plan: &LandlockPlan, abi: ABI) -> Result<RulesetCreated, StepError> {
    let error = |_| StepError::new(Step::Landlock, Errno::last());
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    if plan.handle_files {
        ruleset = ruleset.handle_access(files(abi)).map_err(error)?;
    }
    if plan.deny_tcp {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4)).map_err(error)?;
    }
    if plan.scope_signals {
        ruleset = ruleset.scope(Scope::Signal).map_err(error)?;
    }
    if plan.scope_abstract {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket).map_err(error)?;
    }
    ruleset.create().map_err(error)
}

/// Rights that are handled. Connecting to unix sockets is judged by the broker, which also knows who bound them.
fn files(abi: ABI) -> BitFlags<AccessFs> {
    AccessFs::from_all(abi) & !AccessFs::ResolveUnix
}

fn rights(rights: PathRights, abi: ABI) -> BitFlags<AccessFs> {
    match rights {
        PathRights::List => AccessFs::ReadDir.into(),
        PathRights::Read => AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir,
        PathRights::Write => files(abi),
        PathRights::Device => {
            (AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::ReadDir | AccessFs::Truncate | AccessFs::IoctlDev) & files(abi)
        }
    }
}

/// Rights for opening a handed descriptor again: no more than it was opened for.
fn reopening(opened: Opened, abi: ABI) -> BitFlags<AccessFs> {
    let mut rights = BitFlags::empty();
    if opened.readable {
        rights |= AccessFs::ReadFile;
    }
    if opened.writable {
        rights |= AccessFs::WriteFile | AccessFs::Truncate;
    }
    (rights | AccessFs::IoctlDev) & files(abi)
}

fn add(ruleset: RulesetCreated, fd: &OwnedFd, mut rights: BitFlags<AccessFs>) -> Result<RulesetCreated, Errno> {
    // The kernel refuses directory rights on anything else (landlock_add_rule(2), EINVAL).
    if fstat(fd)?.st_mode & libc::S_IFMT != libc::S_IFDIR {
        rights &= AccessFs::from_file(ABI::V5);
    }
    // Nor a rule that allows nothing (ENOMSG).
    if rights.is_empty() {
        return Ok(ruleset);
    }
    ruleset.add_rule(PathBeneath::new(fd.as_fd(), rights)).map_err(|_| Errno::last())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn a_rule_is_made_for_the_file_that_was_checked() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let (path, other) = (dir.join("granted"), dir.join("other"));
        std::fs::create_dir(&path).unwrap();
        std::fs::create_dir(&other).unwrap();
        let stat = std::fs::metadata(&path).unwrap();
        let rule = PathRule { path: path.clone(), identity: Some((stat.dev(), stat.ino())), rights: PathRights::Read };
        assert!(open_rule(&rule).is_ok());
        std::fs::rename(&path, dir.join("away")).unwrap();
        assert_eq!(open_rule(&rule).unwrap_err().errno(), Errno::ENOENT);
        symlink(&other, &path).unwrap();
        assert_eq!(open_rule(&rule).unwrap_err().step, Step::Changed);
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(open_rule(&rule).unwrap_err().step, Step::Changed);
    }

    #[test]
    fn a_descriptor_is_reopened_for_what_it_was_opened_for() {
        let rights = |readable, writable| reopening(Opened { readable, writable }, ABI::V5);
        assert!(!rights(false, true).contains(AccessFs::ReadFile));
        assert!(!rights(true, false).intersects(AccessFs::WriteFile | AccessFs::Truncate));
        assert!(rights(true, true).contains(AccessFs::ReadFile | AccessFs::WriteFile));
        assert!(!rights(true, true).contains(AccessFs::Execute));
        assert!(
            !reopening(Opened { readable: true, writable: true }, ABI::V2).intersects(AccessFs::Truncate | AccessFs::IoctlDev)
        );
    }
}
