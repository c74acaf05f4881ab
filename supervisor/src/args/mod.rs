//! The command line as it was written. Nothing is decided here; see [`crate::request`].

mod approvals;
mod backend;
mod changes;
mod check;
pub(crate) mod docker;
mod policy;
mod quarantine;
mod secrets;
mod session;
mod shims;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::error::Error;
use crate::usage;
pub(crate) use approvals::Approvals;
pub(crate) use backend::{Backend, BackendArgs};
pub(crate) use changes::{Changes, ChangesOf, Colour};
pub(crate) use check::{Check, CheckArgs, CheckCommand};
pub(crate) use policy::{Net, PolicyArgs, TierArg};
pub(crate) use quarantine::{BringArgs, Quarantine, QuarantineArgs};
pub(crate) use secrets::{AddArgs, Secrets};
pub(crate) use session::{ExecArgs, ServeArgs, Session, SessionPolicy};
pub(crate) use shims::{InstallArgs, ShimName, Shims};

const EXIT_STATUS: &str = "\
Exit status: the command's own; 128+n when signal n ended it; 124 when its time was up; 125 when the sandbox could not be
set up or the command line is wrong (not 2, which could be the command's own); 126 when the command cannot be executed;
127 when it was not found.";

/// Run agents and their commands behind the operating system's own walls.
#[derive(Debug, Parser)]
#[command(name = "hermes-sandbox", version, subcommand_required = true, after_help = EXIT_STATUS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands of this version.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command in a sandbox
    Run(Box<RunArgs>),
    /// Show what `run` with the same options would do on this machine, and what would be lost
    Plan(Box<PlanArgs>),
    /// Say which rule decides about something, what enforces it and what would change it
    Explain {
        #[command(subcommand)]
        what: Explain,
    },
    /// Measure what this machine can enforce
    Doctor {
        /// Print one JSON value
        #[arg(long)]
        json: bool,
        /// Say more
        #[arg(short, long)]
        verbose: bool,
        /// Instead, remove containers that killed runs of yours have left in the container engine
        #[arg(long, conflicts_with_all = ["json", "verbose", "backend"])]
        clean: bool,
        #[command(flatten)]
        place: Box<BackendArgs>,
    },
    /// Look at profiles
    Profiles {
        #[command(subcommand)]
        action: Profiles,
    },
    /// Look at what was put aside after runs, bring it back or remove it
    #[command(after_help = quarantine::HELP)]
    Quarantine {
        #[command(subcommand)]
        action: Quarantine,
    },
    /// Serve one sandbox to programs: JSON-RPC on standard input and output, or on a Unix socket (see docs/serve.md)
    Serve(Box<ServeArgs>),
    /// Keep a sandbox and run commands in it one after the other
    Session {
        #[command(subcommand)]
        action: Session,
    },
    /// Programs in the place of bash, python and docker that run an agent's commands in a sandbox (see docs/hermes.md)
    Shims {
        #[command(subcommand)]
        action: Shims,
    },
    /// Look at changes that wait for a decision, apply or discard them; go back to a checkpoint
    Changes {
        #[command(subcommand)]
        action: Changes,
    },
    /// Connections that wait for a person's answer (`--net ask`)
    #[command(after_help = approvals::HELP)]
    Approvals {
        #[command(subcommand)]
        action: Approvals,
    },
    /// Keep credentials that a sandbox may use and never sees
    #[command(after_help = secrets::HELP)]
    Secrets {
        #[command(subcommand)]
        action: Secrets,
    },
    /// Judge a command or a tool call by its text: advice that prevents accidents, never the boundary
    Check(CheckArgs),
    /// The other half of `--backend`: started by hermes-sandbox itself on another machine, served on its standard streams
    #[command(hide = true)]
    Remote,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (of a subcommand)
    Man {
        /// The subcommand
        subcommand: Option<String>,
    },
}

/// What to explain.
#[derive(Debug, Subcommand)]
pub(crate) enum Explain {
    /// A path of this machine: can it be read and written?
    Path {
        /// The path
        path: PathBuf,
        #[command(flatten)]
        explain: Box<ExplainArgs>,
    },
    /// A host: can it be reached?
    Host {
        /// HOST or HOST:PORT
        host: String,
        #[command(flatten)]
        explain: Box<ExplainArgs>,
    },
    /// A system call: what does the filter answer?
    Syscall {
        /// Its name, e.g. `mount`
        name: String,
        #[command(flatten)]
        explain: Box<ExplainArgs>,
    },
    /// An environment variable: does it go in?
    Env {
        /// Its name
        name: String,
        #[command(flatten)]
        explain: Box<ExplainArgs>,
    },
    /// Files that tools of the host run or obey later: which rule holds for a path, or all rules
    Guard {
        /// The path
        path: Option<PathBuf>,
        #[command(flatten)]
        explain: Box<ExplainArgs>,
    },
    /// The whole policy after includes, files and options
    Policy {
        #[command(flatten)]
        explain: Box<ExplainArgs>,
    },
}

/// Options of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Print one JSON value
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub(crate) enum Profiles {
    /// Names, descriptions and where they come from
    List {
        /// Print one JSON value
        #[arg(long)]
        json: bool,
    },
    /// The text of a profile
    Show {
        /// A name or a file
        name: String,
        /// Also the text of every profile that it includes
        #[arg(long)]
        includes: bool,
    },
    /// Report errors of a policy file with file and line; status 1 when there is one
    Check {
        /// The file
        file: PathBuf,
    },
    /// Allow a policy file found in a workspace, as it is now, to narrow the policy
    Trust {
        /// The file
        file: PathBuf,
    },
}

/// Options of `run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_STATUS, override_usage = "hermes-sandbox run [OPTIONS] -- COMMAND [ARGUMENT]...")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Append what happens to FILE as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) json_events: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Options of `plan`.
#[derive(Debug, Args)]
#[command(
    override_usage = "hermes-sandbox plan [OPTIONS] [-- COMMAND [ARGUMENT]...]",
    after_help = "Exit status: 0 when `run` would start, 125 when it would not."
)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// As for `run`; nothing is written
    #[arg(long, value_name = "FILE")]
    pub(crate) json_events: Option<PathBuf>,
    /// Print one JSON value: the plan and the policy it came from
    #[arg(long)]
    pub(crate) json: bool,
    /// The command that would be run
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What the command line asks for.
pub(crate) enum Parsed {
    /// A subcommand.
    Command(Command),
    /// Help or version, for stdout.
    Text(String),
}

/// Parses `argv`. A start of a sandbox does not pay for the description of the other subcommands.
pub(crate) fn parse(argv: Vec<OsString>) -> Result<Parsed, Error> {
    let run = argv.get(1).is_some_and(|name| name == "run");
    let parsed = if run {
        run_command()
            .try_get_matches_from(&argv[1..])
            .and_then(|matches| RunArgs::from_arg_matches(&matches))
            .map(|run| Command::Run(Box::new(run)))
    } else {
        let argv = if argv.is_empty() { vec!["hermes-sandbox".into()] } else { argv };
        Cli::try_parse_from(argv).map(|cli| cli.command)
    };
    match parsed {
        Ok(command) => Ok(Parsed::Command(command)),
        Err(e) if !e.use_stderr() => Ok(Parsed::Text(e.to_string())),
        Err(e) => Err(usage::condense(&e)),
    }
}

fn run_command() -> clap::Command {
    RunArgs::augment_args(clap::Command::new("run").bin_name("hermes-sandbox run")).about("Run a command in a sandbox")
}

/// The description of the whole command line.
pub(crate) fn tree() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
