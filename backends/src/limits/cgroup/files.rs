//! Which file says what in the two versions. Pure.

use std::path::Path;

use super::super::TreeLimits;
use crate::host::CgroupAccess;

/// A directory in which a leaf is made, and what its leaf controls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy<'a> {
    pub(super) kind: Kind,
    pub(super) directory: &'a Path,
    pub(super) memory: bool,
    pub(super) pids: bool,
    pub(super) cpu: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    V1,
    V2,
}

/// A file of a leaf and what is written to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) file: &'static str,
    pub(super) value: String,
    /// Absent on kernels without swap accounting, where there is nothing to limit.
    pub(super) optional: bool,
}

/// Microseconds in which a processor quota is spent; the kernel's default.
const PERIOD: u64 = 100_000;

/// The directories of `access`; those of v1 that are one and the same (as `cpu,memory` mounted together) only once.
pub(super) fn hierarchies(access: &CgroupAccess) -> Vec<Hierarchy<'_>> {
    match access {
        CgroupAccess::V2 { directory, controllers } => {
            let has = |name: &str| controllers.iter().any(|controller| controller == name);
            vec![Hierarchy { kind: Kind::V2, directory, memory: has("memory"), pids: has("pids"), cpu: has("cpu") }]
        }
        CgroupAccess::V1 { memory, pids, cpu } => {
            let mut found: Vec<Hierarchy<'_>> = Vec::with_capacity(3);
            for (index, directory) in [memory, pids, cpu].into_iter().enumerate() {
                let Some(directory) = directory else { continue };
                let known = found.iter().position(|hierarchy| hierarchy.directory == directory);
                let at = known.unwrap_or_else(|| {
                    found.push(Hierarchy { kind: Kind::V1, directory, memory: false, pids: false, cpu: false });
                    found.len() - 1
                });
                let hierarchy = &mut found[at];
                *[&mut hierarchy.memory, &mut hierarchy.pids, &mut hierarchy.cpu][index] = true;
            }
            found
        }
        CgroupAccess::None | CgroupAccess::Systemd => Vec::new(),
    }
}

/// The first controller that a limit needs and no hierarchy has.
pub(super) fn missing(hierarchies: &[Hierarchy<'_>], limits: &TreeLimits) -> Option<&'static str> {
    let any = |has: fn(&Hierarchy<'_>) -> bool| hierarchies.iter().any(has);
    if limits.memory.is_some() && !any(|h| h.memory) {
        Some("memory controller")
    } else if limits.processes.is_some() && !any(|h| h.pids) {
        Some("pids controller")
    } else if limits.cpu_percent.is_some() && !any(|h| h.cpu) {
        Some("cpu controller")
    } else {
        None
    }
}

/// What to write into a leaf of `hierarchy`, in order.
pub(super) fn settings(hierarchy: &Hierarchy<'_>, limits: &TreeLimits) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut set = |file, value: String, optional| settings.push(Setting { file, value, optional });
    if let Some(bytes) = limits.memory.filter(|_| hierarchy.memory) {
        match hierarchy.kind {
            Kind::V2 => {
                set("memory.max", bytes.to_string(), false);
                set("memory.swap.max", "0".into(), true);
            }
            Kind::V1 => {
                // memory.txt: the sum with swap must not be below the limit, so it comes second.
                set("memory.limit_in_bytes", bytes.to_string(), false);
                set("memory.memsw.limit_in_bytes", bytes.to_string(), true);
            }
        }
    }
    if let Some(processes) = limits.processes.filter(|_| hierarchy.pids) {
        set("pids.max", processes.to_string(), false);
    }
    if let Some(percent) = limits.cpu_percent.filter(|_| hierarchy.cpu) {
        // The kernel refuses less than a millisecond.
        let quota = (u64::from(percent) * PERIOD / 100).max(1000);
        match hierarchy.kind {
            Kind::V2 => set("cpu.max", format!("{quota} {PERIOD}"), false),
            Kind::V1 => {
                set("cpu.cfs_period_us", PERIOD.to_string(), false);
                set("cpu.cfs_quota_us", quota.to_string(), false);
            }
        }
    }
    settings
}

/// What happened in a control group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// Processes killed because the memory limit was reached.
    pub oom_kills: u64,
    /// Forks refused because the limit on processes was reached.
    pub forks_refused: u64,
}

impl Events {
    /// Adds what the files of one leaf say; `read` gives an empty text for a file that is not there.
    pub(super) fn with(self, kind: Kind, read: impl Fn(&str) -> String) -> Self {
        let memory = match kind {
            Kind::V2 => "memory.events",
            Kind::V1 => "memory.oom_control",
        };
        Self {
            oom_kills: self.oom_kills + value(&read(memory), "oom_kill"),
            forks_refused: self.forks_refused + value(&read("pids.events"), "max"),
        }
    }
}

/// The number after `key` in a flat keyed file.
fn value(text: &str, key: &str) -> u64 {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    values.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TreeLimits = TreeLimits { memory: Some(1 << 20), processes: Some(7), cpu_percent: Some(50) };

    fn written(access: &CgroupAccess) -> Vec<(String, String)> {
        let leaves = hierarchies(access);
        assert_eq!(missing(&leaves, &LIMITS), None);
        let of = |h: &Hierarchy<'_>| {
            let at = |setting: Setting| (h.directory.join(setting.file).display().to_string(), setting.value);
            settings(h, &LIMITS).into_iter().map(at).collect::<Vec<_>>()
        };
        leaves.iter().flat_map(of).collect()
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(file, value)| (file.to_string(), value.to_string())).collect()
    }

    #[test]
    fn version_two() {
        let access = CgroupAccess::V2 { directory: "/g".into(), controllers: vec!["cpu".into(), "memory".into(), "pids".into()] };
        assert_eq!(
            written(&access),
            pairs(&[
                ("/g/memory.max", "1048576"),
                ("/g/memory.swap.max", "0"),
                ("/g/pids.max", "7"),
                ("/g/cpu.max", "50000 100000")
            ])
        );
    }

    #[test]
    fn version_one_with_two_controllers_in_one_place() {
        let access = CgroupAccess::V1 { memory: Some("/m".into()), pids: Some("/p".into()), cpu: Some("/m".into()) };
        assert_eq!(
            written(&access),
            pairs(&[
                ("/m/memory.limit_in_bytes", "1048576"),
                ("/m/memory.memsw.limit_in_bytes", "1048576"),
                ("/m/cpu.cfs_period_us", "100000"),
                ("/m/cpu.cfs_quota_us", "50000"),
                ("/p/pids.max", "7")
            ])
        );
    }

    #[test]
    fn a_limit_without_its_controller_is_named() {
        let access = CgroupAccess::V2 { directory: "/g".into(), controllers: vec!["pids".into()] };
        assert_eq!(missing(&hierarchies(&access), &LIMITS), Some("memory controller"));
        assert_eq!(missing(&hierarchies(&access), &TreeLimits { memory: None, ..LIMITS }), Some("cpu controller"));
        assert_eq!(missing(&hierarchies(&CgroupAccess::None), &TreeLimits::default()), None);
    }

    #[test]
    fn events() {
        let v2 = Events::default().with(Kind::V2, |file| match file {
            "memory.events" => "low 0\noom 2\noom_kill 3\noom_group_kill 9\n".into(),
            _ => "max 4\n".into(),
        });
        assert_eq!(v2, Events { oom_kills: 3, forks_refused: 4 });
        let v1 = v2.with(Kind::V1, |file| match file {
            "memory.oom_control" => "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n".into(),
            _ => String::new(),
        });
        assert_eq!(v1, Events { oom_kills: 4, forks_refused: 4 });
    }
}
