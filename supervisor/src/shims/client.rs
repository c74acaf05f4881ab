//! The process that calls a shim: whose session it is.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;

use hermes_profiles::environment;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process, and when it started: numbers of processes come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientProcess {
    pid: i32,
    /// In clock ticks since boot, proc(5).
    started: u64,
}

impl ClientProcess {
    /// The process that started this one. When it has ended already that is the one which took its place.
    pub(crate) fn parent() -> Option<Self> {
        let pid = nix::unistd::getppid().as_raw();
        Some(Self { pid, started: started(pid)? })
    }

    /// A descriptor that can be read when it has ended; `None` when it has.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let process = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // Looked at after it was opened: what is held is what was looked at.
        (started(self.pid) == Some(self.started)).then_some(process)
    }

    /// Its working directory.
    pub(crate) fn directory(self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/cwd", self.pid)).ok().filter(|dir| dir.is_dir())
    }

    /// The environment that it was started with. Unlike that of its calls it is the same each time.
    pub(crate) fn variables(self) -> Option<Vec<(OsString, OsString)>> {
        std::fs::read(format!("/proc/{}/environ", self.pid)).ok().filter(|bytes| !bytes.is_empty()).map(|bytes| parse(&bytes))
    }
}

impl fmt::Display for ClientProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.started)
    }
}

impl FromStr for ClientProcess {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pid, started) = text.split_once(':').ok_or("expected PID:TIME")?;
        let number = "a number is expected on both sides of the colon";
        Ok(Self { pid: pid.parse().map_err(|_| number)?, started: started.parse().map_err(|_| number)? })
    }
}

fn started(pid: i32) -> Option<u64> {
    start_field(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of proc(5) stat. The name in field 2 may hold anything, but behind its last parenthesis there are only numbers.
fn start_field(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn parse(environ: &[u8]) -> Vec<(OsString, OsString)> {
    environ.split(|byte| *byte == 0).filter_map(environment::variable).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_start_time_behind_any_name() {
        let rest = (3..=30).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        for name in ["(sh)", "(a b)", "(x) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23)"] {
            assert_eq!(start_field(&format!("1 {name} {rest}")), Some(22), "{name}");
        }
        assert_eq!(start_field("1 (sh) R"), None);
    }

    #[test]
    fn our_parent_is_alive_and_another_one_of_its_number_is_not() {
        let parent = ClientProcess::parent().unwrap();
        assert!(parent.open().is_some() && parent.directory().is_some());
        assert!(ClientProcess { started: parent.started + 1, ..parent }.open().is_none());
        assert_eq!(parent.to_string().parse(), Ok(parent));
        assert!(["", "1", "1:", "a:1"].iter().all(|text| text.parse::<ClientProcess>().is_err()));
    }

    #[test]
    fn an_environment_as_the_kernel_has_it() {
        assert_eq!(parse(b"A=1=2\0odd\0=x\0B=\0"), [("A".into(), "1=2".into()), ("B".into(), "".into())]);
    }
}
