//! Options of `secrets`.

use clap::{Args, Subcommand};

pub(super) const HELP: &str = "\
A route of a profile names a secret: `secret = { name = \"...\", header = \"Authorization\", format = \"Bearer {}\" }`.
A program inside gets a placeholder; the value is put into that header outside, on that route only. See docs/secrets.md.

A secret belongs to one profile, and no other one gets it.";

/// What to do with secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum Secrets {
    /// Add a secret; without a source its value is read from standard input, or asked for on a terminal
    #[command(override_usage = "hermes-sandbox secrets add NAME --profile PROFILE [OPTIONS] [-- COMMAND [ARGUMENT]...]")]
    Add(Box<AddArgs>),
    /// Names, sources and variables; never values
    List {
        /// Only those of this profile
        #[arg(long, value_name = "PROFILE")]
        profile: Option<String>,
        /// Print one JSON value
        #[arg(long)]
        json: bool,
        /// Become this user first; only root can ask for it
        #[arg(long, value_name = "USER")]
        user: Option<String>,
    },
    /// Remove a secret with all its values
    Remove {
        /// Its name
        name: String,
        /// The profile that it belongs to
        #[arg(long, value_name = "PROFILE")]
        profile: String,
        /// Also keep it from being added again by accident
        #[arg(long)]
        suppress: bool,
        /// Become this user first; only root can ask for it
        #[arg(long, value_name = "USER")]
        user: Option<String>,
    },
}

/// Options of `secrets add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The name that routes know it by
    pub(crate) name: String,
    /// The profile whose sandboxes may use it, by name or by file as for `run --profile`
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: String,
    /// The variable that holds the placeholder inside, e.g. OPENAI_API_KEY
    #[arg(long, value_name = "VARIABLE")]
    pub(crate) env: Option<String>,
    /// Keep no value: take that of this variable when a sandbox starts
    #[arg(long, value_name = "VARIABLE", group = "source")]
    pub(crate) from_env: Option<String>,
    /// Keep no value: take what the command after `--` prints, when it is first needed
    #[arg(long, group = "source")]
    pub(crate) from_command: bool,
    /// Keep no value: ask the desktop's keyring (by secret-tool) when it is first needed
    #[arg(long, value_name = "SERVICE/ACCOUNT", group = "source")]
    pub(crate) from_keyring: Option<String>,
    /// Add one more value to a secret: when one is refused or has no more quota, the next one is used
    #[arg(long, conflicts_with = "replace")]
    pub(crate) pool: bool,
    /// Replace the secret with all its values
    #[arg(long)]
    pub(crate) replace: bool,
    /// Add it although `remove --suppress` was said
    #[arg(long)]
    pub(crate) lift_suppression: bool,
    /// Become this user first; only root can ask for it
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Taken only to be refused without being repeated: it may be a value.
    #[arg(hide = true)]
    pub(crate) surplus: Vec<String>,
    /// The command and its arguments; it runs outside, without a shell, for at most 10 seconds
    #[arg(last = true, requires = "from_command", value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
