//! Options of `quarantine`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const HELP: &str = "\
What a sandbox left in files that programs of the host run or obey (hooks, .envrc, editor settings, ...) is put aside when
the run ends. `approve` brings it back for good: the same content at the same place is kept from then on. `restore` brings
it back once.

Of several entries each that can be done is done; what fails is named, and the status is 125. A number that is not known keeps
all from being done.";

/// What to do with what was put aside.
#[derive(Debug, Subcommand)]
pub(crate) enum Quarantine {
    /// What was put aside, the newest last
    List {
        /// Of all directories, not only of those around the workspace
        #[arg(long, conflicts_with = "workspace")]
        all: bool,
        #[command(flatten)]
        of: QuarantineArgs,
    },
    /// All that is known about an entry, and its content
    Show {
        /// Its number, see `list`
        #[arg(value_parser = number)]
        id: u64,
        #[command(flatten)]
        of: QuarantineArgs,
    },
    /// The difference between what was there before and what was put aside
    Diff {
        /// Its number, see `list`
        #[arg(value_parser = number)]
        id: u64,
        #[command(flatten)]
        of: QuarantineArgs,
    },
    /// Bring entries back to their places, this once
    Restore {
        #[command(flatten)]
        which: BringArgs,
    },
    /// Bring entries back to their places, and keep the same content there from now on
    Approve {
        #[command(flatten)]
        which: BringArgs,
    },
    /// What is kept at its place because it was approved
    Approvals {
        /// Of all directories, not only of those around the workspace
        #[arg(long, conflicts_with = "workspace")]
        all: bool,
        #[command(flatten)]
        of: QuarantineArgs,
    },
    /// Take approvals back: what lies there stays, the same again is put aside
    Revoke {
        /// As `approvals` shows them
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID")]
        ids: Vec<String>,
        /// All approvals of the workspace
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        of: QuarantineArgs,
    },
    /// Remove entries for good
    Discard {
        /// Their numbers, see `list`
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID", value_parser = number)]
        ids: Vec<u64>,
        /// All entries of the workspace
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        of: QuarantineArgs,
    },
}

/// The number of an entry.
fn number(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "not a number; `hermes-sandbox quarantine list` shows them")
}

/// Entries to bring back.
#[derive(Debug, Args)]
pub(crate) struct BringArgs {
    /// Their numbers, see `list`
    #[arg(required = true, value_name = "ID", value_parser = number)]
    pub(crate) ids: Vec<u64>,
    /// Replace what lies there by now
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) of: QuarantineArgs,
}

/// Whose quarantine, and how the answer is given.
#[derive(Debug, Args)]
pub(crate) struct QuarantineArgs {
    /// A directory that runs could write, or one in it [default: the current one]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Print one JSON value
    #[arg(long)]
    pub(crate) json: bool,
    /// Become this user first; only root can ask for it
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
}
