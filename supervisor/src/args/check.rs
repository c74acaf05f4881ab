//! Options of `check`.

use std::ffi::OsString;

use clap::{Args, Subcommand};

const STATUS: &str = "\
Exit status: 0 nothing found; 2 a warning; 1 somebody should look at it first, or nobody means it. What cannot be judged is 1
too, a wrong command line included; no other status is used.";

const TOOL: &str = "\
Answers on standard output: {} or {\"action\": \"block\", \"message\": WHY}. Of the tools only `terminal` is judged, by its command.
What cannot be read is blocked.

Exit status: 0 when the call was answered, 1 when the command line is wrong.";

/// Options of `check`.
#[derive(Debug, Args)]
#[command(after_help = STATUS, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct CheckArgs {
    #[command(subcommand)]
    pub(crate) what: Option<Check>,
    #[command(flatten)]
    pub(crate) command: CheckCommand,
}

/// What to judge.
#[derive(Debug, Subcommand)]
pub(crate) enum Check {
    /// A command line of a shell; the word `command` may be left out, which is how a scanner is called
    #[command(after_help = STATUS)]
    Command {
        #[command(flatten)]
        command: CheckCommand,
    },
    /// A tool call, described on standard input as `pre_tool_call` hooks get it
    #[command(after_help = TOOL)]
    Tool,
}

/// A command to judge.
#[derive(Debug, Args)]
pub(crate) struct CheckCommand {
    /// Print one JSON value
    #[arg(long)]
    pub(crate) json: bool,
    /// Accepted: nothing is ever asked
    #[arg(long)]
    pub(crate) non_interactive: bool,
    /// The language of the command
    #[arg(long, value_name = "NAME", default_value = "posix", value_parser = ["posix"])]
    pub(crate) shell: String,
    /// The command line, as one argument
    #[arg(last = true, required = true, value_name = "COMMAND LINE")]
    pub(crate) line: Vec<OsString>,
}
