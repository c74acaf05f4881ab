//! Options of `changes`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// The number of a layer or a checkpoint.
fn kept_number(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "not a number; `hermes-sandbox changes list` shows them")
}

/// What to do with changes that wait.
#[derive(Debug, Subcommand)]
pub(crate) enum Changes {
    /// Layers and checkpoints of a workspace
    List {
        #[command(flatten)]
        of: ChangesOf,
        /// Of every workspace, also of those that are gone
        #[arg(long, conflicts_with_all = ["workspace", "layer"])]
        all: bool,
        /// Print one JSON value
        #[arg(long)]
        json: bool,
    },
    /// Show the changes of a layer as `git diff --no-index` would; `git apply` takes it
    Diff {
        #[command(flatten)]
        of: ChangesOf,
        /// Only these files and directories
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Only how many lines of each file changed
        #[arg(long, conflicts_with = "name_only")]
        stat: bool,
        /// Only the names of changed files
        #[arg(long)]
        name_only: bool,
        /// Colours: auto, always or never
        #[arg(long, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
        color: Colour,
        /// Also what is inside git directories
        #[arg(long)]
        all: bool,
    },
    /// Carry the changes of a layer to the workspace: all or none, or those that are named
    Apply {
        #[command(flatten)]
        of: ChangesOf,
        /// Only these files and directories
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Take the layer's version, which the sandbox made, of PATH although the workspace changed there too; the workspace's
        /// version is lost (`discard PATH` keeps that one)
        #[arg(long, value_name = "PATH")]
        take_layer: Vec<PathBuf>,
        /// Also files that tools of the host execute or obey: git hooks and configuration, .envrc, editor tasks, ...
        #[arg(long)]
        with_guarded: bool,
    },
    /// Throw changes of a layer away: all, or those that are named; of a workspace that is gone checkpoints, too
    Discard {
        #[command(flatten)]
        of: ChangesOf,
        /// Only these files and directories
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Bring the workspace back to what it was when a checkpoint was taken
    Rollback {
        #[command(flatten)]
        of: ChangesOf,
        /// Number of the checkpoint [default: the newest one]
        #[arg(value_parser = kept_number)]
        checkpoint: Option<u64>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// Whose changes.
#[derive(Debug, Default, Args)]
pub(crate) struct ChangesOf {
    /// The workspace [default: the current directory]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Number of the layer; needed when there are several
    #[arg(long, value_name = "NUMBER", value_parser = kept_number)]
    pub(crate) layer: Option<u64>,
    /// Become this user first, as for `run`; only root can ask for it
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}
