//! Options of `approvals`.

use clap::Subcommand;

pub(super) const HELP: &str = "\
With `--net ask` a connection to a host that no route names waits, for a minute at most, until it is allowed here. An answer
holds as long as the sandbox lives; with --always it holds for every sandbox of the same profile and workspace.";

/// What to do with what waits.
#[derive(Debug, Subcommand)]
pub(crate) enum Approvals {
    /// What waits for an answer
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Let connections go on
    Allow {
        /// Their numbers, see `list`
        #[arg(required = true, value_name = "ID")]
        ids: Vec<u64>,
        /// For the same profile and workspace from now on
        #[arg(long)]
        always: bool,
    },
    /// Refuse connections
    Deny {
        /// Their numbers, see `list`
        #[arg(required = true, value_name = "ID")]
        ids: Vec<u64>,
        /// For the same profile and workspace from now on
        #[arg(long)]
        always: bool,
    },
    /// What was decided for good
    Rules {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Take decisions for good back
    Forget {
        /// Their numbers, see `rules`
        #[arg(required = true, value_name = "NUMBER")]
        numbers: Vec<usize>,
    },
}
