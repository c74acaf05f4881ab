//! A scope of the systemd manager, for callers whose own control group is not theirs to divide.

use std::ffi::{OsStr, OsString};

use super::TreeLimits;

/// The command line that runs `command` in a scope with `limits`.
///
/// The scope is the control group; the command stays the caller's child, keeps its environment, terminal and
/// descriptors, and its exit status is passed on. systemd removes the scope when its last process is gone.
/// Users other than root ask their own manager.
pub fn scope(uid: u32, limits: &TreeLimits, command: &[OsString]) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["systemd-run".into()];
    if uid != 0 {
        line.push("--user".into());
    }
    line.extend(["--scope", "--quiet", "--collect"].map(OsString::from));
    let mut property = |name: &str, value: String| line.extend([OsStr::new("-p").into(), format!("{name}={value}").into()]);
    if let Some(bytes) = limits.memory {
        property("MemoryMax", bytes.to_string());
        property("MemorySwapMax", "0".into());
    }
    if let Some(processes) = limits.processes {
        property("TasksMax", processes.to_string());
    }
    if let Some(percent) = limits.cpu_percent {
        property("CPUQuota", format!("{percent}%"));
    }
    line.push("--".into());
    line.extend_from_slice(command);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &[OsString]) -> String {
        line.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn command_lines() {
        let command = ["program".into(), "--user".into()];
        let limits = TreeLimits { memory: Some(1 << 30), processes: Some(64), cpu_percent: Some(150) };
        assert_eq!(
            text(&scope(1000, &limits, &command)),
            "systemd-run --user --scope --quiet --collect -p MemoryMax=1073741824 -p MemorySwapMax=0 -p TasksMax=64 \
             -p CPUQuota=150% -- program --user"
        );
        assert_eq!(text(&scope(0, &TreeLimits::default(), &command)), "systemd-run --scope --quiet --collect -- program --user");
    }
}
