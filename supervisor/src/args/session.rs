//! Options of `serve` and `session`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::PolicyArgs;

/// Options of `serve` and `session start`.
#[derive(Debug, Args)]
#[command(override_usage = "hermes-sandbox serve [OPTIONS] [NAME]")]
pub(crate) struct ServeArgs {
    /// Name of the session, for `session exec` and others; `session start` takes `default` when there is none
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Listen on a Unix socket at PATH instead of serving standard input and output
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    pub(crate) socket: Option<PathBuf>,
    /// Be an MCP server on standard input and output: tools of one sandbox for any MCP host
    #[arg(long, conflicts_with_all = ["name", "socket", "schema"])]
    pub(crate) mcp: bool,
    /// End after this time, e.g. 8h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// End when nothing has run and nobody has asked for this time, e.g. 30m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) idle: Option<Duration>,
    /// Append what happens to FILE as JSON lines
    #[arg(long, value_name = "FILE")]
    pub(crate) json_events: Option<PathBuf>,
    /// Print the JSON Schema of every message and end
    #[arg(long)]
    pub(crate) schema: bool,
    /// Leave the terminal's session
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// End with this process: PID:TIME, when it started as proc(5) counts
    #[arg(long, hide = true, value_name = "PID:TIME")]
    pub(crate) client: Option<String>,
    /// Grant what this program needs
    #[arg(long, hide = true, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
}

/// What to do with sessions.
#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// Start one; prints its name
    #[command(override_usage = "hermes-sandbox session start [OPTIONS] [NAME]")]
    Start {
        #[command(flatten)]
        args: Box<ServeArgs>,
    },
    /// Run a command in one, with the same exit status
    Exec(Box<ExecArgs>),
    /// Follow a job that runs: its output comes, what is typed goes to it. Ctrl-] detaches, on a pipe Ctrl-C does; the job runs on
    Attach {
        /// The session
        name: String,
        /// The job's number
        job: u32,
    },
    /// Sessions of this user, or the jobs of one
    List {
        /// The session whose jobs are wanted
        name: Option<String>,
        /// Print one JSON value
        #[arg(long)]
        json: bool,
    },
    /// End sessions and everything in them
    Stop {
        /// Their names
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "NAME")]
        names: Vec<String>,
        /// All sessions of this user
        #[arg(long)]
        all: bool,
    },
    /// The routes of a session: look at them, or have others hold from now on
    Policy {
        #[command(subcommand)]
        action: SessionPolicy,
    },
    /// What a session has said, or what is kept of a job's output
    Logs {
        /// The session
        name: String,
        /// The job's number
        job: Option<u32>,
    },
}

/// What to do with the routes of a session.
#[derive(Debug, Subcommand)]
pub(crate) enum SessionPolicy {
    /// The routes that hold
    Show {
        /// The session
        name: String,
        /// Print one JSON value
        #[arg(long)]
        json: bool,
    },
    /// Take the routes of another policy, in one step; connections that it does not allow are cut off. The rest of a policy
    /// cannot be changed while its sandbox lives
    Set {
        /// The session
        name: String,
        #[command(flatten)]
        policy: Box<PolicyArgs>,
    },
}

/// Options of `session exec`.
#[derive(Debug, Args)]
#[command(override_usage = "hermes-sandbox session exec [OPTIONS] NAME [--] COMMAND [ARGUMENT]...")]
pub(crate) struct ExecArgs {
    /// Give it a pseudo-terminal, also where we have none
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Let it run on, and what it starts; prints the job's number
    #[arg(short = 'd', long, conflicts_with = "tty")]
    pub(crate) background: bool,
    /// The command is a line for a shell: its directory and exported variables are those of the next such line
    #[arg(short = 'c', long)]
    pub(crate) shell: bool,
    /// Do not read standard input
    #[arg(short, long)]
    pub(crate) no_stdin: bool,
    /// Working directory inside
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set a variable for this command
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Stop it after this time, e.g. 10s; the status is 124 then
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// The session
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// A time such as `500ms`, `10s`, `5m` or `8h`.
fn duration(text: &str) -> Result<Duration, String> {
    hermes_profiles::duration(text).map(Duration::from_millis)
}
