//! Why user namespaces are refused.

use std::path::Path;

use nix::errno::Errno;

use crate::compile::mounts::MARKER;
use crate::host::{Probe, UsernsCause};
use crate::local::sys::probe as sys;
use crate::step::{Step, StepError};

/// What the machine says about itself once something has failed.
#[derive(Debug, Clone, Default)]
pub(super) struct Signs {
    /// We are inside one of our own sandboxes.
    nested: bool,
    /// A seccomp filter is on us.
    filtered: bool,
    /// `kernel.apparmor_restrict_unprivileged_userns` is 1.
    apparmor: bool,
    /// `kernel.unprivileged_userns_clone` is 0.
    switched_off: bool,
    /// `/proc/self/ns/user` exists.
    kernel_has_them: bool,
    /// A user namespace without any other namespace could be made.
    alone: bool,
}

impl Signs {
    pub(super) fn read(alone: Option<Probe>) -> Self {
        Self {
            nested: Path::new(MARKER).exists(),
            filtered: sys::seccomp_mode() == 2,
            apparmor: sysctl("kernel/apparmor_restrict_unprivileged_userns").is_some_and(|value| value != "0"),
            switched_off: sysctl("kernel/unprivileged_userns_clone").is_some_and(|value| value == "0"),
            kernel_has_them: Path::new("/proc/self/ns/user").exists(),
            alone: alone.is_some_and(|probe| probe.works()),
        }
    }
}

/// Switches that change what the probe finds without a new boot; for the cache.
pub(super) fn switches() -> Vec<String> {
    ["kernel/apparmor_restrict_unprivileged_userns", "kernel/unprivileged_userns_clone", "user/max_user_namespaces"]
        .iter()
        .map(|name| sysctl(name).unwrap_or_default())
        .collect()
}

fn sysctl(name: &str) -> Option<String> {
    std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok().map(|value| value.trim().to_owned())
}

/// Names the cause of `error`.
pub(super) fn name(error: &StepError, signs: &Signs) -> UsernsCause {
    let refused = matches!(error.errno(), Errno::EPERM | Errno::EACCES);
    match (error.step, error.errno()) {
        _ if signs.nested => UsernsCause::Nested,
        // EUSERS is what kernels before 4.9 say.
        (Step::Namespaces, Errno::ENOSPC | Errno::EUSERS) => UsernsCause::Limit,
        (Step::Namespaces, Errno::EINVAL) => UsernsCause::Kernel,
        (Step::Namespaces, Errno::ENOSYS) if signs.filtered => UsernsCause::Filter,
        (Step::Namespaces, Errno::ENOSYS) => UsernsCause::Kernel,
        // AppArmor lets the namespace be made and takes the rights in it away: what needs them fails, be it the other
        // namespaces of the same call, the id map, or the first mount.
        _ if refused && signs.apparmor && (signs.alone || error.step != Step::Namespaces) => UsernsCause::AppArmor,
        (Step::Namespaces, _) if refused && signs.switched_off => UsernsCause::Sysctl,
        (Step::Namespaces, _) if refused && signs.filtered => UsernsCause::Filter,
        (Step::Namespaces, _) if refused && signs.apparmor => UsernsCause::AppArmor,
        (Step::Namespaces, _) if refused && !signs.kernel_has_them => UsernsCause::Kernel,
        // EPIPE stands for a child that was killed in the middle: a filter may do that instead of refusing.
        (_, errno) if signs.filtered && (refused || errno == Errno::EPIPE) => UsernsCause::Filter,
        _ => UsernsCause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs() -> Signs {
        Signs { kernel_has_them: true, ..Signs::default() }
    }

    fn named(step: Step, errno: Errno, signs: &Signs) -> UsernsCause {
        name(&StepError::new(step, errno), signs)
    }

    #[test]
    fn ubuntu() {
        let ubuntu = Signs { apparmor: true, alone: true, ..signs() };
        assert_eq!(named(Step::IdMap, Errno::EACCES, &ubuntu), UsernsCause::AppArmor);
        assert_eq!(named(Step::Tmpfs, Errno::EPERM, &ubuntu), UsernsCause::AppArmor);
        assert_eq!(named(Step::Namespaces, Errno::EPERM, &ubuntu), UsernsCause::AppArmor);
        let profiled = Signs { alone: false, ..ubuntu };
        assert_eq!(named(Step::Namespaces, Errno::EACCES, &profiled), UsernsCause::AppArmor);
    }

    #[test]
    fn a_container_on_ubuntu_is_refused_by_its_filter() {
        let container = Signs { apparmor: true, filtered: true, ..signs() };
        assert_eq!(named(Step::Namespaces, Errno::EPERM, &container), UsernsCause::Filter);
    }

    #[test]
    fn switches_and_limits() {
        assert_eq!(named(Step::Namespaces, Errno::ENOSPC, &signs()), UsernsCause::Limit);
        assert_eq!(named(Step::Namespaces, Errno::EINVAL, &signs()), UsernsCause::Kernel);
        assert_eq!(named(Step::Namespaces, Errno::ENOSYS, &Signs { filtered: true, ..signs() }), UsernsCause::Filter);
        assert_eq!(named(Step::Namespaces, Errno::EPERM, &Signs { switched_off: true, ..signs() }), UsernsCause::Sysctl);
        assert_eq!(named(Step::Namespaces, Errno::EPERM, &Signs::default()), UsernsCause::Kernel);
        assert_eq!(named(Step::Namespaces, Errno::EPERM, &signs()), UsernsCause::Other);
        assert_eq!(named(Step::Namespaces, Errno::EPIPE, &Signs { filtered: true, ..signs() }), UsernsCause::Filter);
        assert_eq!(named(Step::Pivot, Errno::EINVAL, &signs()), UsernsCause::Other);
    }

    #[test]
    fn our_own_sandbox_is_named_first() {
        let inside = Signs { nested: true, filtered: true, apparmor: true, ..signs() };
        assert_eq!(named(Step::Namespaces, Errno::EPERM, &inside), UsernsCause::Nested);
    }
}
