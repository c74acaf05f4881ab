//! From what the caller asks for to a policy.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::policy::Policy;

/// The only way in which this crate sees the machine.
pub trait Files {
    /// The content of a regular file. An implementation should give up with an error beyond [`MAX_FILE`] bytes and must
    /// not block on FIFOs or devices.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// Bytes that a policy file may have.
pub const MAX_FILE: usize = 1 << 20;

/// What the caller asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// A profile by name, or by file when it holds a `/` or ends in `.toml` (relative to the current directory).
    pub profile: Option<String>,
    /// What the command acts for (`cli`, `webhook`, `cron`, ...); chooses a profile when none is named.
    pub source: Option<String>,
    /// The directory to work in; the current one when not given. Relative paths start at the current directory.
    pub workspace: Option<PathBuf>,
    /// Changes by flags.
    pub overrides: Overrides,
    /// Who asks.
    pub caller: Caller,
}

/// Changes to the profile by command line flags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrides {
    /// `--ro PATH`
    pub ro: Vec<PathBuf>,
    /// `--rw PATH`
    pub rw: Vec<PathBuf>,
    /// `--deny PATH`
    pub deny: Vec<PathBuf>,
    /// `--overlay`
    pub overlay: bool,
    /// `--env NAME`
    pub env: Vec<String>,
    /// `--set-env NAME=VALUE`
    pub set_env: Vec<String>,
    /// `--connect PORT`
    pub connect: Vec<u16>,
    /// `--publish PORT`
    pub publish: Vec<u16>,
    /// `--net MODE`: off, none, routes, proxy, ask, audit or host
    pub net: Option<String>,
    /// `--allow-host HOST[:PORT]`
    pub allow_hosts: Vec<String>,
    /// `--limit NAME=VALUE`
    pub limits: Vec<String>,
    /// `--accept-loss NAME`
    pub accept_loss: Vec<String>,
    /// `--allow-broad`
    pub allow_broad: bool,
    /// `--alias INSIDE=PATH`
    pub aliases: Vec<String>,
    /// `--scratch-at INSIDE`
    pub scratch_at: Vec<PathBuf>,
}

/// Who asks, and from where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// The home directory; `None` when there is none.
    pub home: Option<PathBuf>,
    /// The current directory, absolute.
    pub cwd: PathBuf,
    /// Where `config.toml` and `profiles/` are.
    pub config_dir: Option<PathBuf>,
    /// Where the trust list is.
    pub state_dir: Option<PathBuf>,
    /// All variables of the caller; `PATH` and those that path rules name are looked up here.
    pub variables: Vec<(OsString, OsString)>,
}

impl Caller {
    /// A caller as its environment describes it: home from `HOME`, the configuration in `XDG_CONFIG_HOME` or
    /// `~/.config`, the state in `XDG_STATE_HOME` or `~/.local/state` (each `/hermes-sandbox`). As XDG wants it, relative
    /// values are ignored.
    pub fn from_variables(cwd: PathBuf, variables: Vec<(OsString, OsString)>) -> Self {
        let mut caller = Self { cwd, variables, ..Self::default() };
        caller.home = caller.absolute("HOME");
        let below = |xdg: Option<PathBuf>, default: &str| {
            xdg.or_else(|| caller.home.as_ref().map(|home| home.join(default))).map(|dir| dir.join("hermes-sandbox"))
        };
        let config_dir = below(caller.absolute("XDG_CONFIG_HOME"), ".config");
        let state_dir = below(caller.absolute("XDG_STATE_HOME"), ".local/state");
        Self { config_dir, state_dir, ..caller }
    }

    /// The value of a variable; the first one when it is there twice. Empty values count as absent.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .iter()
            .find(|(key, _)| key.as_os_str() == OsStr::new(name))
            .map(|(_, value)| value.as_os_str())
            .filter(|value| !value.is_empty())
    }

    fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

/// A policy, and what the caller should be told about how it came to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// What is allowed.
    pub policy: Policy,
    /// One line each, safe to print.
    pub notices: Vec<String>,
}
