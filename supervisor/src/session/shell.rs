//! Command lines: working directory and exported variables go from one to the next.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use hermes_profiles::environment;

use crate::output;
use crate::supervise::candidates;

/// What a shell says of itself at its end, on a descriptor that its commands do not have: directory and variables, each with a
/// NUL behind it. The trap runs wherever the line ends, but for exec and a deadly signal.
const WRAPPER: &str = r#"trap '{ printf "%s\0" "$(pwd -P)"; env -0; } 2>/dev/null >&3' EXIT; eval "$1" 3>&-"#;
/// What every shell sets for itself.
const OWN: &[&str] = &["_", "SHLVL", "PWD", "OLDPWD"];

/// What the next command line begins with.
#[derive(Debug)]
pub(crate) struct Shell {
    pub(crate) cwd: PathBuf,
    /// `None` for the sandbox's.
    pub(crate) environment: Option<Vec<(OsString, OsString)>>,
}

impl Shell {
    /// Takes over what a shell has said. It comes from inside and is only used inside. Returns where the next one begins, for people.
    pub(crate) fn take(&mut self, report: &[u8]) -> String {
        if let Some((cwd, variables)) = parse(report) {
            self.cwd = cwd;
            self.environment = variables.or(self.environment.take());
        }
        output::path(&self.cwd)
    }
}

/// Variables with their values.
type Variables = Vec<(OsString, OsString)>;

/// Directory, and variables where they could be told: with more than an exec takes, or without a PATH, no `env` runs.
fn parse(report: &[u8]) -> Option<(PathBuf, Option<Variables>)> {
    let mut parts = report.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let cwd = PathBuf::from(OsStr::from_bytes(parts.next()?));
    // Each shell exports some of its own at least.
    let told: Variables = parts.filter_map(environment::variable).collect();
    let variables = (!told.is_empty()).then(|| told.into_iter().filter(|(name, _)| !OWN.iter().any(|own| name == own)).collect());
    cwd.is_absolute().then_some((cwd, variables))
}

/// Where to look for a shell, and its arguments.
pub(crate) fn command(line: &OsStr, path: &OsStr) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let shells = ["bash", "sh"].iter().flat_map(|shell| candidates(OsStr::new(shell), path));
    let args = ["bash", "-c", WRAPPER, "bash"].map(OsStr::new).into_iter().chain([line]).map(|arg| arg.as_bytes().to_vec());
    (shells.collect(), args.collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_says_where_it_is_and_what_it_exports() {
        let (cwd, variables) = parse(b"/a\nb\0A=1=2\0_=x\0PWD=/\0B=\0odd\0").unwrap();
        assert_eq!(cwd, PathBuf::from("/a\nb"));
        assert_eq!(variables.unwrap(), [("A".into(), "1=2".into()), ("B".into(), "".into())]);
        assert_eq!(parse(b"/a\0"), Some((PathBuf::from("/a"), None)), "no `env` has run");
        assert_eq!(parse(b"/a\0_=x\0").unwrap().1, Some(Vec::new()));
        for bad in [&b""[..], b"/a\0A=", b"relative\0A=1\0"] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_said_survives_every_way_to_end() {
        for (line, cwd, status) in
            [("cd /usr; export A=1", "/usr", 0), ("cd /var; exit 3", "/var", 3), ("cd /etc; false", "/etc", 1)]
        {
            for shell in ["/bin/bash", "/bin/sh"] {
                let script = format!("{shell} -c '{}' bash \"$1\" 3>\"$2\"", WRAPPER.replace('\'', "'\\''"));
                let file = tempfile::NamedTempFile::new().unwrap();
                let run =
                    std::process::Command::new("/bin/sh").arg("-c").arg(script).arg("sh").arg(line).arg(file.path()).status();
                assert_eq!(run.unwrap().code(), Some(status), "{shell} {line}");
                assert_eq!(parse(&std::fs::read(file.path()).unwrap()).unwrap().0, PathBuf::from(cwd), "{shell} {line}");
            }
        }
    }
}
