//! The container's system call filter, in the engine's JSON.
//!
//! Docker's default refuses what our own init does (namespaces, mounts in them, `pidfd_getfd`), so
//! a sandbox in it would be a weaker one. This profile refuses what nothing in the container needs; jobs have our whole
//! filter on top, loaded inside, so that for them it is the stricter of both.

use serde::Serialize;

use crate::local::seccomp::{Arch, never};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    default_action: &'static str,
    architectures: &'static [&'static str],
    syscalls: Vec<Rule>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    names: Vec<&'static str>,
    action: &'static str,
    errno_ret: i32,
}

/// The profile for `arch`.
pub fn profile(arch: Arch) -> String {
    let mut rules: Vec<Rule> = Vec::new();
    for (name, errno) in never(arch) {
        match rules.iter_mut().find(|rule| rule.errno_ret == errno as i32) {
            Some(rule) => rule.names.push(name),
            None => rules.push(Rule { names: vec![name], action: "SCMP_ACT_ERRNO", errno_ret: errno as i32 }),
        }
    }
    // A foreign call kills where its architecture is not named; our filter answers it with ENOSYS.
    let architectures: &[&str] = match arch {
        Arch::X86_64 => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        Arch::Aarch64 => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
    };
    let profile = Profile { default_action: "SCMP_ACT_ALLOW", architectures, syscalls: rules };
    serde_json::to_string(&profile).expect("plain data")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn it_refuses_what_nothing_needs_and_nothing_else() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let profile: serde_json::Value = serde_json::from_str(&profile(arch)).unwrap();
            let answer = |name: &str| {
                let rules = profile["syscalls"].as_array().unwrap();
                let rule = rules.iter().find(|rule| rule["names"].as_array().unwrap().iter().any(|known| known == name));
                rule.map(|rule| rule["errnoRet"].as_i64().unwrap())
            };
            for refused in [
                "bpf",
                "kexec_load",
                "init_module",
                "keyctl",
                "perf_event_open",
                "open_by_handle_at",
                "userfaultfd",
                "settimeofday",
            ] {
                assert_eq!(answer(refused), Some(1), "{refused}");
            }
            assert_eq!(answer("io_uring_setup"), Some(38));
            for needed in [
                "unshare",
                "clone",
                "mount",
                "pivot_root",
                "openat2",
                "move_mount",
                "seccomp",
                "landlock_restrict_self",
                "pidfd_getfd",
                "setns",
            ] {
                assert_eq!(answer(needed), None, "{needed}");
            }
        }
    }
}
