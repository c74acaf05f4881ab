//! The part of docker's command line that the shim takes. Nothing is decided here; see [`crate::shims`].
//!
//! What would weaken a container is named here so that it is refused with a reason; every other option is refused as unknown, by its
//! name.

use clap::{Args, FromArgMatches, Subcommand};

use crate::error::Error;
use crate::usage;

/// A command of docker.
#[derive(Debug, Subcommand)]
pub(crate) enum Docker {
    /// Version of this program
    Version(Formatted),
    /// What stands in the place of a container engine
    Info(Formatted),
    /// Containers
    #[command(alias = "container-ls")]
    Ps(Ps),
    /// Fields of containers
    Inspect(Inspect),
    /// Images are not used
    Image {
        #[command(subcommand)]
        what: Image,
    },
    /// Make a container and start it
    Run(Box<Run>),
    /// Make a container
    Create(Box<Create>),
    /// Start containers that have ended
    Start {
        /// Their names or ids
        #[arg(required = true)]
        containers: Vec<String>,
    },
    /// Run a command in a container
    Exec(Box<Exec>),
    /// End containers
    Stop {
        /// Accepted: what runs is killed at once
        #[arg(short = 't', long = "timeout", alias = "time")]
        time: Option<i64>,
        /// Their names or ids
        #[arg(required = true)]
        containers: Vec<String>,
    },
    /// Forget containers
    Rm {
        /// End them first
        #[arg(short, long)]
        force: bool,
        /// Accepted: there are no volumes to be removed
        #[arg(short, long)]
        volumes: bool,
        /// Their names or ids
        #[arg(required = true)]
        containers: Vec<String>,
    },
}

/// How to print.
#[derive(Debug, Default, Args)]
pub(crate) struct Formatted {
    /// A template
    #[arg(short, long)]
    pub(crate) format: Option<String>,
}

/// Options of `ps`.
#[derive(Debug, Default, Args)]
pub(crate) struct Ps {
    /// Also those that have ended
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only ids
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Accepted: ids are never cut
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// Only those
    #[arg(short, long)]
    pub(crate) filter: Vec<String>,
    /// A template
    #[arg(long)]
    pub(crate) format: Option<String>,
}

/// Options of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// A template
    #[arg(short, long)]
    pub(crate) format: Option<String>,
    /// Their names or ids
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
}

/// `image`.
#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// Fields of images
    Inspect(Inspect),
}

/// Options of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Do not wait for it
    #[arg(short, long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) create: Create,
}

/// Options of `run` and `create`.
#[derive(Debug, Default, Args)]
pub(crate) struct Create {
    /// Forget it when it has ended
    #[arg(long)]
    pub(crate) rm: bool,
    #[arg(short, long)]
    pub(crate) interactive: bool,
    #[arg(short, long)]
    pub(crate) tty: bool,
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[arg(short, long)]
    pub(crate) label: Vec<String>,
    #[arg(short, long)]
    pub(crate) workdir: Option<String>,
    #[arg(short, long)]
    pub(crate) volume: Vec<String>,
    #[arg(short, long)]
    pub(crate) env: Vec<String>,
    #[arg(long)]
    pub(crate) tmpfs: Vec<String>,
    #[arg(long, alias = "net")]
    pub(crate) network: Option<String>,
    #[arg(short, long)]
    pub(crate) memory: Option<String>,
    #[arg(long)]
    pub(crate) memory_swap: Option<String>,
    #[arg(long)]
    pub(crate) cpus: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) pids_limit: Option<String>,
    #[arg(long)]
    pub(crate) shm_size: Option<String>,
    #[arg(long)]
    pub(crate) cap_drop: Vec<String>,
    #[arg(long)]
    pub(crate) cap_add: Vec<String>,
    #[arg(long)]
    pub(crate) security_opt: Vec<String>,
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[arg(long)]
    pub(crate) init: bool,
    #[arg(long)]
    pub(crate) read_only: bool,
    #[arg(long)]
    pub(crate) storage_opt: Vec<String>,
    #[arg(long)]
    pub(crate) pull: Option<String>,
    #[command(flatten)]
    pub(crate) refused: Refused,
    /// Not used
    pub(crate) image: String,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

/// Options that would open a container.
#[derive(Debug, Default, Args)]
pub(crate) struct Refused {
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) privileged: Option<String>,
    #[arg(long)]
    pub(crate) device: Vec<String>,
    #[arg(long)]
    pub(crate) gpus: Option<String>,
    #[arg(long)]
    pub(crate) pid: Option<String>,
    #[arg(long)]
    pub(crate) ipc: Option<String>,
    #[arg(long)]
    pub(crate) uts: Option<String>,
    #[arg(long)]
    pub(crate) userns: Option<String>,
    #[arg(long)]
    pub(crate) cgroupns: Option<String>,
    #[arg(long)]
    pub(crate) mount: Vec<String>,
    #[arg(long)]
    pub(crate) volumes_from: Vec<String>,
    #[arg(long)]
    pub(crate) group_add: Vec<String>,
    #[arg(short, long)]
    pub(crate) publish: Vec<String>,
    #[arg(long)]
    pub(crate) entrypoint: Option<String>,
    #[arg(long)]
    pub(crate) env_file: Vec<String>,
}

/// Options of `exec`.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[arg(short, long)]
    pub(crate) detach: bool,
    #[arg(short, long)]
    pub(crate) interactive: bool,
    #[arg(short, long)]
    pub(crate) tty: bool,
    #[arg(short, long)]
    pub(crate) env: Vec<String>,
    #[arg(short, long)]
    pub(crate) workdir: Option<String>,
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    #[arg(long)]
    pub(crate) privileged: bool,
    pub(crate) container: String,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

/// Parses what follows `docker`. Of an option that is given twice the last one counts, as docker has it.
pub(crate) fn parse(args: &[String]) -> Result<Docker, Error> {
    let command = clap::Command::new("docker")
        .bin_name("docker")
        .no_binary_name(true)
        .args_override_self(true)
        .subcommand_required(true)
        .disable_help_subcommand(true);
    Docker::augment_subcommands(command)
        .try_get_matches_from(args)
        .and_then(|matches| Docker::from_arg_matches(&matches))
        .map_err(|e| usage::condense(&e))
}
