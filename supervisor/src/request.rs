//! From the command line and the process's environment to what policy resolution asks for.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hermes_profiles::{Caller, Files, MAX_FILE, Overrides, PolicyError, Request};
use nix::fcntl::OFlag;
use nix::unistd::{Uid, User};

use crate::args::{Net, PolicyArgs};
use crate::error::{Error, Kind};

/// What the caller asks for.
pub(crate) fn request(args: &PolicyArgs, caller: Caller) -> Request {
    Request {
        profile: args.profile.clone(),
        source: args.source.clone(),
        workspace: args.workspace.clone(),
        overrides: Overrides {
            ro: args.ro.clone(),
            rw: args.rw.clone(),
            deny: args.deny.clone(),
            overlay: args.overlay,
            env: args.env.clone(),
            set_env: args.set_env.clone(),
            net: args.net.map(|net| mode(net).to_owned()),
            allow_hosts: args.allow_host.clone(),
            connect: args.connect.clone(),
            publish: args.publish.clone(),
            limits: args.limit.clone(),
            accept_loss: args.accept_loss.clone(),
            allow_broad: args.allow_broad,
            aliases: args.alias.clone(),
            scratch_at: args.scratch_at.clone(),
        },
        caller,
    }
}

fn mode(net: Net) -> &'static str {
    match net {
        Net::Off => "off",
        Net::Routes => "routes",
        Net::Ask => "ask",
        Net::Audit => "audit",
        Net::Host => "host",
    }
}

/// Who asks: from the process's environment, and the password database when `HOME` says nothing usable.
pub(crate) fn caller(user: Option<User>) -> Result<Caller, Error> {
    let cwd = std::env::current_dir()
        .map_err(|e| Error::setup(format!("cannot tell the current directory: {e}")).hint("change to one that exists"))?;
    let mut variables: Vec<_> = std::env::vars_os().collect();
    if let Some(user) = user {
        let own = [("HOME", user.dir.into_os_string()), ("USER", user.name.clone().into()), ("LOGNAME", user.name.into())];
        variables.retain(|(name, _)| !own.iter().any(|(own, _)| name == own) && !name.as_encoded_bytes().starts_with(b"XDG_"));
        variables.extend(own.map(|(name, value)| (name.into(), value)));
    }
    Ok(caller_of(cwd, variables))
}

/// Who asks, from a process's directory and environment.
pub(crate) fn caller_of(cwd: PathBuf, mut variables: Vec<(OsString, OsString)>) -> Caller {
    if !variables.iter().any(|(name, value)| name == "HOME" && Path::new(value).is_absolute()) {
        variables.retain(|(name, _)| name != "HOME");
        if let Some(home) = User::from_uid(Uid::current()).ok().flatten().map(|user| user.dir).filter(|dir| dir.is_absolute()) {
            variables.push(("HOME".into(), home.into_os_string()));
        }
    }
    Caller::from_variables(cwd, variables)
}

/// Where measurements of the machine are kept: `$XDG_CACHE_HOME` or `~/.cache`, `/hermes-sandbox`.
pub(crate) fn cache_dir(caller: &Caller) -> Option<PathBuf> {
    caller
        .variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| caller.home.as_ref().map(|home| home.join(".cache")))
        .map(|dir| dir.join("hermes-sandbox"))
}

impl From<PolicyError> for Error {
    fn from(error: PolicyError) -> Self {
        Error::new(Kind::Policy, error.to_string())
    }
}

/// Policy files on this machine.
pub(crate) struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        // O_NONBLOCK: opening a FIFO would wait for a writer.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut content = Vec::new();
        file.take(MAX_FILE as u64 + 1).read_to_end(&mut content)?;
        if content.len() > MAX_FILE {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "longer than 1 MiB"));
        }
        Ok(content)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_short_regular_files_are_policy_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("good"), "schema = 1").unwrap();
        std::fs::write(at("long"), vec![b'#'; MAX_FILE + 1]).unwrap();
        std::fs::write(at("limit"), vec![b'#'; MAX_FILE]).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(Disk.read(&at("good")).unwrap(), b"schema = 1");
        assert_eq!(Disk.read(&at("limit")).unwrap().len(), MAX_FILE);
        for bad in [at("long"), at("fifo"), at("none"), dir.path().into(), "/dev/zero".into()] {
            assert!(Disk.read(&bad).is_err(), "{}", bad.display());
        }
    }

    #[test]
    fn the_cache_is_below_home_unless_named() {
        let cache = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            cache_dir(&Caller::from_variables("/".into(), variables))
        };
        assert_eq!(cache(&[("HOME", "/h")]), Some("/h/.cache/hermes-sandbox".into()));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]), Some("/c/hermes-sandbox".into()));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "relative")]), None);
    }
}
