//! Getting a value from where it comes from, outside of any sandbox.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hermes_profiles::Caller;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access, read};
use std::os::fd::AsFd;
use zeroize::Zeroizing;

use super::value::{LONGEST, Value, room};
use super::vault::Source;
use crate::output;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The program that asks a keyring.
const SECRET_TOOL: &str = "secret-tool";

/// Why there is no value, in words that hold none.
type Why = String;

impl Source {
    /// Does it take time to get the value?
    pub(crate) fn waits(&self) -> bool {
        matches!(self, Self::Command(_) | Self::Keyring { .. })
    }

    /// Can there be a value? Runs nothing.
    ///
    /// # Errors
    /// Why there cannot.
    pub(crate) fn check(&self, caller: &Caller) -> Result<(), Why> {
        match self {
            Self::Stored(_) => Ok(()),
            Self::Variable(_) => self.value(caller).map(drop),
            Self::Command(argv) => program(argv.first().map_or("", String::as_str), caller).map(drop),
            Self::Keyring { .. } => secret_tool(caller).map(drop),
        }
    }

    /// The value. What [`Source::waits`] may take 10 s.
    ///
    /// # Errors
    /// There is none, or it is none that a header can carry.
    pub(crate) fn value(&self, caller: &Caller) -> Result<Value, Why> {
        match self {
            Self::Stored(value) => Ok(value.clone()),
            Self::Variable(name) => {
                let value = caller.variable(name).ok_or_else(|| format!("the variable {name} is not set"))?;
                parse(Zeroizing::new(value.as_bytes().to_vec()), &format!("the variable {name}"))
            }
            Self::Command(argv) => {
                let (first, rest) = argv.split_first().ok_or("there is no command")?;
                run(&program(first, caller)?, rest, caller)
            }
            Self::Keyring { service, account } => {
                // As python-keyring, go-keyring and the keyring crate call them.
                let words = ["lookup", "service", service, "username", account].map(str::to_owned);
                run(&secret_tool(caller)?, &words, caller)
            }
        }
    }
}

fn parse(bytes: Zeroizing<Vec<u8>>, from: &str) -> Result<Value, Why> {
    Value::parse(bytes).map_err(|why| format!("{from} gives no value: {why}"))
}

fn secret_tool(caller: &Caller) -> Result<PathBuf, Why> {
    program(SECRET_TOOL, caller).map_err(|_| {
        format!("keyrings are asked by {SECRET_TOOL}, which is not installed (Debian: libsecret-tools, Fedora: libsecret)")
    })
}

/// An executable by absolute path or in `PATH`. Relative directories do not count: a sandbox may write there.
///
/// # Errors
/// There is none.
pub(crate) fn program(name: &str, caller: &Caller) -> Result<PathBuf, Why> {
    let usable = |path: &Path| path.is_absolute() && path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    let shown = || output::path(Path::new(name));
    if name.contains('/') {
        return match usable(Path::new(name)) {
            true => Ok(name.into()),
            false => Err(format!("{} is no absolute path of an executable", shown())),
        };
    }
    let path = caller.variable("PATH").unwrap_or(OsStr::new("/usr/bin:/bin"));
    let found = std::env::split_paths(path).map(|dir| dir.join(name)).find(|path| usable(path));
    found.ok_or_else(|| format!("there is no program {} in PATH", shown()))
}

/// Runs a program without a shell and without input, and takes what it prints.
fn run(program: &Path, arguments: &[String], caller: &Caller) -> Result<Value, Why> {
    let shown = output::path(program);
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(caller.variables.iter().map(|(name, value)| (name, value)));
    // Its messages could hold anything, and the terminal is the agent's.
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let until = Instant::now() + PATIENCE;
    let mut child = Running(command.spawn().map_err(|e| format!("cannot start {shown}: {e}"))?);
    let mut pipe = child.0.stdout.take().ok_or("it has no output")?;
    let bytes = read_until(&mut pipe, until).map_err(|why| format!("{shown} {why}"))?;
    let status = child.end(until).ok_or_else(|| format!("{shown} {TOO_LONG}"))?;
    if !status.success() {
        return Err(format!("{shown} failed ({status}); run it yourself to see why"));
    }
    parse(bytes, &shown)
}

const TOO_LONG: &str = "took longer than 10 s";

/// Killed with its group when it is no longer waited for.
struct Running(Child);

impl Running {
    fn end(&mut self, until: Instant) -> Option<ExitStatus> {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                _ => return None,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // Not yet waited for, so its number is still its own.
            if let Ok(pid) = i32::try_from(self.0.id()) {
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            }
            let _ = self.0.wait();
        }
    }
}

fn read_until(pipe: &mut ChildStdout, until: Instant) -> Result<Zeroizing<Vec<u8>>, Why> {
    // One more for the newline, and one to see that there is more.
    let most = LONGEST + 2;
    let (mut all, mut buffer) = (room(most), Zeroizing::new([0; 4096]));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) => return Err(TOO_LONG.to_owned()),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(format!("cannot be read: {}", errno.desc())),
        }
        match read(&*pipe, &mut *buffer) {
            Ok(0) => return Ok(all),
            Ok(count) if all.len() + count <= most => all.extend_from_slice(&buffer[..count]),
            Ok(_) => return Err("printed more than 64 KiB".to_owned()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(format!("cannot be read: {}", errno.desc())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn caller(variables: &[(&str, &str)]) -> Caller {
        Caller::from_variables("/".into(), variables.iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    fn sh(script: &str) -> Result<String, Why> {
        let source = Source::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
        source.value(&caller(&[("GIVEN", "from-outside")])).map(|value| value.reveal().to_string())
    }

    #[test]
    fn a_command_gives_what_it_prints() {
        assert_eq!(sh("echo $GIVEN; pwd >&2").unwrap(), "from-outside");
        assert_eq!(sh("cat; printf value; exec >&-; sleep 0.1").unwrap(), "value");
        let long = sh(&format!("head -c {LONGEST} /dev/zero | tr '\\0' x; echo")).unwrap();
        assert_eq!(long.len(), LONGEST);
    }

    #[test]
    fn a_command_that_gives_none_says_why_and_not_what() {
        for (script, why) in [
            ("echo hidden-text; exit 3", "exit status: 3"),
            ("echo hidden-text; echo hidden-text", "more than one line"),
            ("true", "it is empty"),
            ("head -c 70000 /dev/zero | tr '\\0' x", "64 KiB"),
            ("kill -9 $$", "signal: 9"),
        ] {
            let error = sh(script).unwrap_err();
            assert!(error.contains(why) && !error.contains("hidden-text"), "{error}");
        }
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_all_that_it_started() {
        let mark = format!("31.{}", std::process::id());
        let began = Instant::now();
        assert!(sh(&format!("sleep {mark} & sleep {mark}")).unwrap_err().contains(TOO_LONG));
        assert!(began.elapsed() >= PATIENCE && began.elapsed() < 3 * PATIENCE);
        let alive = |_: &()| {
            std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                line.starts_with(b"sleep\0") && line.ends_with(format!("{mark}\0").as_bytes())
            })
        };
        assert!((0..100).any(|_| !alive(&std::thread::sleep(Duration::from_millis(20)))));
    }

    #[test]
    fn variables_of_the_caller() {
        let source = Source::Variable("KEY".into());
        assert_eq!(source.value(&caller(&[("KEY", "v")])).unwrap().reveal().as_str(), "v");
        for (variables, why) in
            [(&[][..], "is not set"), (&[("KEY", "")], "is not set"), (&[("KEY", "a\nb")], "more than one line")]
        {
            assert!(source.check(&caller(variables)).unwrap_err().contains(why));
        }
    }

    #[test]
    fn programs_are_not_looked_for_where_a_sandbox_may_write() {
        let dir = tempfile::tempdir().unwrap();
        let tool = dir.path().join("some-tool");
        std::fs::write(&tool, "#!/bin/sh\necho value\n").unwrap();
        let path = caller(&[("PATH", dir.path().to_str().unwrap())]);
        assert!(program("some-tool", &path).is_err(), "not executable");
        std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(program("some-tool", &path).unwrap(), tool);
        assert!(program("sh", &caller(&[("PATH", "bin:./bin:")])).is_err());
        assert!(program("./sh", &path).is_err() && program("bin/sh", &path).is_err());
        assert_eq!(program("sh", &caller(&[("PATH", "bin:/bin")])).unwrap(), Path::new("/bin/sh"));
    }

    #[test]
    fn a_keyring_is_asked_by_secret_tool() {
        let dir = tempfile::tempdir().unwrap();
        let path = caller(&[("PATH", dir.path().to_str().unwrap())]);
        let source = Source::keyring("gh:github.com/me").unwrap();
        assert!(source.check(&path).unwrap_err().contains("libsecret-tools"));
        let tool = dir.path().join(SECRET_TOOL);
        std::fs::write(&tool, "#!/bin/sh\necho \"$*\"\n").unwrap();
        std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(source.value(&path).unwrap().reveal().as_str(), "lookup service gh:github.com username me");
    }
}
