//! Options that make a policy.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::backend::{Backend, BackendArgs};
use crate::error::Error;

/// How the network is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Net {
    /// Nothing but a loopback interface of its own
    #[value(alias = "none")]
    Off,
    /// Only the hosts that are named
    #[value(alias = "proxy")]
    Routes,
    /// The same, and a person is asked about others
    Ask,
    /// All hosts, recorded: to find out which ones are needed
    Audit,
    /// The host's network, unmediated
    Host,
}

/// The mechanism that carries the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum TierArg {
    /// Namespaces, mounts, Landlock and seccomp
    Namespaces,
    /// Landlock and seccomp alone
    Landlock,
}

/// What the advisory layer does with what it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Advise {
    /// Nothing
    Off,
    /// Print it
    Note,
    /// Ask before the command runs
    Ask,
}

/// Options that make a policy.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct PolicyArgs {
    /// Profile to start from: a name (see `profiles list`) or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) profile: Option<String>,
    /// What the command acts for (cli, webhook, cron, ...); chooses a profile when none is named
    #[arg(long, value_name = "NAME")]
    pub(crate) source: Option<String>,
    /// Directory to work in [default: the current one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Allow reading and executing below PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) ro: Vec<PathBuf>,
    /// Allow writing below PATH too
    #[arg(long, value_name = "PATH")]
    pub(crate) rw: Vec<PathBuf>,
    /// Hide PATH, also inside a granted directory
    #[arg(long, value_name = "PATH")]
    pub(crate) deny: Vec<PathBuf>,
    /// Let a variable of the caller in, whatever it holds
    #[arg(long, value_name = "NAME")]
    pub(crate) env: Vec<String>,
    /// Set a variable inside
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set_env: Vec<String>,
    /// Network: off (none), routes (proxy), ask, audit or host
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub(crate) net: Option<Net>,
    /// Allow connections to HOST (`*.` wildcard allowed), port 443 and 80 unless named
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
    /// Open PORT of the host's loopback on the sandbox's own
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) connect: Vec<u16>,
    /// Show PORT of the sandbox's loopback on the host's 127.0.0.1
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) publish: Vec<u16>,
    /// Set a limit, e.g. memory=4GiB, processes=512, timeout=10m, memory=none
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) limit: Vec<String>,
    /// Start although this guarantee (see `plan`) cannot be given here
    #[arg(long, value_name = "NAME")]
    pub(crate) accept_loss: Vec<String>,
    /// Use this mechanism and no other: namespaces or landlock
    #[arg(long, value_name = "TIER", hide_possible_values = true)]
    pub(crate) tier: Option<TierArg>,
    /// Become this user first; only root can ask for it
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Keep changes to the workspace apart until they are applied or discarded (see `changes`)
    #[arg(long)]
    pub(crate) overlay: bool,
    /// Take a checkpoint of the workspace first, which `changes rollback` brings back
    #[arg(long)]
    pub(crate) checkpoint: bool,
    /// Allow a grant as broad as / or the whole home directory
    #[arg(long)]
    pub(crate) allow_broad: bool,
    /// Say more
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// Show what is granted at PATH at another place inside, too
    #[arg(long, value_name = "INSIDE=PATH", hide = true)]
    pub(crate) alias: Vec<String>,
    /// Make a directory inside that ends with the sandbox
    #[arg(long, value_name = "INSIDE", hide = true)]
    pub(crate) scratch_at: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) place: BackendArgs,

    // Known so that it can be refused by name instead of as a typing error.
    #[arg(long, value_name = "HOW", hide = true)]
    pub(crate) advise: Option<Advise>,
}

impl PolicyArgs {
    /// Where the sandbox is. Refuses what this version cannot do: an option that is ignored would be a wall that is not there.
    pub(crate) fn backend(&self) -> Result<Backend, Error> {
        let chosen = self.place.chosen()?;
        let refused = match self.advise {
            Some(Advise::Note) => "--advise note",
            Some(Advise::Ask) => "--advise ask",
            _ => return Ok(chosen),
        };
        Err(Error::usage(format!("{refused} is not supported by version {}; nothing was started", env!("CARGO_PKG_VERSION"))))
    }

    /// The same for what is done on this machine alone.
    pub(crate) fn only_local(&self) -> Result<(), Error> {
        match self.backend()? {
            Backend::Local => Ok(()),
            _ => Err(Error::usage("--backend cannot be used here")
                .hint("`run`, `serve`, `session start`, `plan` and `doctor` take it")),
        }
    }
}
