//! Options of `shims`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::PolicyArgs;

const HELP: &str = "\
The options of the policy are written into the shims, with absolute paths; without --workspace it is the working directory of the
process that calls them. Nobody but their owner may be able to change them, and no sandbox that they start. See docs/hermes.md.";

/// What to do with shims.
#[derive(Debug, Subcommand)]
pub(crate) enum Shims {
    /// Write programs that run the commands of an agent in a sandbox: bash, python and docker
    #[command(after_help = HELP, override_usage = "hermes-sandbox shims install [OPTIONS] DIR")]
    Install(Box<InstallArgs>),
}

/// Options of `shims install`.
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// Where to write them
    pub(crate) dir: PathBuf,
    /// Only these: bash, python, docker
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_possible_values = true)]
    pub(crate) only: Vec<ShimName>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// What a shim stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShimName {
    /// The shell
    Bash,
    /// The interpreter
    Python,
    /// The command line of a container engine
    Docker,
}

impl ShimName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Python => "python",
            Self::Docker => "docker",
        }
    }
}
