//! The command line as it was written. Nothing is decided here; see [`crate::request`].

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::check_args::CheckArgs;
use crate::error::Error;
use crate::usage;

const EXIT_STATUS: &str = "\
Exit status: the command's own; 128+n when signal n ended it; 124 when its time was up; 125 when the sandbox could not be
set up or the command line is wrong (not 2, which could be the command's own); 126 when the command cannot be executed;
127 when it was not found.";

const QUARANTINE: &str = "\
What a sandbox left in files that programs of the host run or obey (hooks, .envrc, editor settings, ...) is put aside when
the run ends. `approve` brings it back for good: the same content at the same place is kept from then on. `restore` brings
it back once.

Of several entries each that can be done is done; what fails is named, and the status is 125. A number that is not known keeps
all from being done.";

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
    },
    /// Look at profiles
    Profiles {
        #[command(subcommand)]
        action: Profiles,
    },
    /// Look at what was put aside after runs, bring it back or remove it
    #[command(after_help = QUARANTINE)]
    Quarantine {
        #[command(subcommand)]
        action: Quarantine,
    },
    /// Look at changes that wait for a decision, apply or discard them; go back to a checkpoint
    Changes {
        #[command(subcommand)]
        action: Changes,
    },
    /// Judge a command or a tool call by its text: advice that prevents accidents, never the boundary
    Check(CheckArgs),
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

/// How the network is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Net {
    /// Nothing but a loopback interface of its own
    #[value(alias = "none")]
    Off,
    /// Only the hosts that are named
    #[value(alias = "proxy")]
    Routes,
    /// The host's network, unmediated
    Host,
}

/// The mechanism that carries the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TierArg {
    /// Namespaces, mounts, Landlock and seccomp
    Namespaces,
    /// Landlock and seccomp alone
    Landlock,
}

/// Where the sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// On this machine
    Local,
    /// In a container
    Docker,
    /// On a remote host
    Ssh,
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
#[derive(Debug, Default, Args)]
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
    /// Network: off (none), routes (proxy) or host
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub(crate) net: Option<Net>,
    /// Allow connections to HOST (`*.` wildcard allowed), port 443 and 80 unless named
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow_host: Vec<String>,
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

    // Known so that they can be refused by name instead of as typing errors.
    #[arg(long, value_name = "WHERE", hide = true)]
    pub(crate) backend: Option<Backend>,
    #[arg(long, value_name = "IMAGE", hide = true)]
    pub(crate) image: Option<OsString>,
    #[arg(long, value_name = "DEST", hide = true)]
    pub(crate) ssh_host: Option<OsString>,
    #[arg(long, value_name = "HOW", hide = true)]
    pub(crate) advise: Option<Advise>,
}

impl PolicyArgs {
    /// Refuses what this version cannot do: an option that is ignored would be a wall that is not there.
    pub(crate) fn refuse_unsupported(&self) -> Result<(), Error> {
        let refused = match (self.backend, self.advise) {
            (Some(Backend::Docker), _) => "--backend docker",
            (Some(Backend::Ssh), _) => "--backend ssh",
            _ if self.image.is_some() => "--image",
            _ if self.ssh_host.is_some() => "--ssh-host",
            (_, Some(Advise::Note)) => "--advise note",
            (_, Some(Advise::Ask)) => "--advise ask",
            _ => return Ok(()),
        };
        Err(Error::usage(format!("{refused} is not supported by version {}; nothing was started", env!("CARGO_PKG_VERSION"))))
    }
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
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn parsed(argv: &[&str]) -> Result<Parsed, Error> {
        parse(argv.iter().map(OsString::from).collect())
    }

    fn run(argv: &[&str]) -> RunArgs {
        let argv = [&["hermes-sandbox", "run"], argv].concat();
        match parsed(&argv).unwrap() {
            Parsed::Command(Command::Run(run)) => *run,
            _ => panic!("not a run"),
        }
    }

    fn refusal(argv: &[&str]) -> Error {
        match parsed(&[&["hermes-sandbox"], argv].concat()) {
            Err(e) => e,
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn the_description_is_consistent() {
        tree().debug_assert();
        run_command().debug_assert();
    }

    #[test]
    fn what_follows_the_command_is_the_commands() {
        assert_eq!(run(&["--", "echo", "--no-such-flag", "--help", "-v"]).command, ["echo", "--no-such-flag", "--help", "-v"]);
        assert_eq!(run(&["echo", "--ro", "x", "--", "-v"]).command, ["echo", "--ro", "x", "--", "-v"]);
        assert_eq!(run(&["--", "-x"]).command, ["-x"]);
        assert_eq!(run(&["--", "a", "--", "b"]).command, ["a", "--", "b"]);
        assert!(!run(&["--", "echo", "-v"]).policy.verbose);
    }

    #[test]
    fn arguments_need_not_be_utf8() {
        let odd = OsString::from_vec(vec![b'a', 0xff]);
        let argv = vec!["hermes-sandbox".into(), "run".into(), "--ro".into(), odd.clone(), "--".into(), odd.clone()];
        let Ok(Parsed::Command(Command::Run(run))) = parse(argv) else { panic!("refused") };
        assert_eq!((run.policy.ro, run.command), (vec![PathBuf::from(&odd)], vec![odd]));
    }

    #[test]
    fn other_spellings_of_the_network_modes() {
        let net = |name| run(&["--net", name, "true"]).policy.net.unwrap();
        assert_eq!([net("none"), net("off"), net("proxy"), net("host")], [Net::Off, Net::Off, Net::Routes, Net::Host]);
    }

    #[test]
    fn what_does_not_exist_yet_is_refused_by_name() {
        for flags in
            [&["--backend", "docker"][..], &["--backend=ssh"], &["--image", "i"], &["--ssh-host", "h"], &["--advise", "ask"]]
        {
            let error = run(&[flags, &["true"]].concat()).policy.refuse_unsupported().unwrap_err();
            assert!(error.message.starts_with(flags[0].split("=").next().unwrap()), "{error}");
            assert_eq!(error.kind.status(), 125);
        }
        run(&["--backend", "local", "--advise", "off", "true"]).policy.refuse_unsupported().unwrap();
    }

    #[test]
    fn errors_say_what_and_what_to_do() {
        let unknown = refusal(&["run", "--worksapce", "x", "--", "touch", "ran"]);
        assert_eq!(unknown.message, "unknown option `--worksapce`");
        assert_eq!(unknown.hints, ["did you mean `--workspace`?"]);
        assert_eq!(refusal(&["run"]).message, "no command given");
        assert_eq!(refusal(&["rum"]).hints, ["did you mean `run`?"]);
        assert_eq!(refusal(&["run", "--net", "on", "true"]).message, "bad value `on` for `--net`: not one of off, routes, host");
        assert_eq!(refusal(&["run", "--net"]).message, "`--net` needs a value");
        assert_eq!(refusal(&["run", "--tier", "landlock", "--tier", "landlock", "true"]).message, "`--tier` is given twice");
        assert_eq!(refusal(&["run", "--overlay=yes", "true"]).message, "`--overlay` takes no value, but `yes` was given");
        assert_eq!(refusal(&[]).message, "no subcommand given");
        assert_eq!(refusal(&[]).hints, ["`hermes-sandbox --help` lists them"]);
        assert_eq!(refusal(&["quarantine"]).message, "no subcommand given");
        assert_eq!(refusal(&["quarantine"]).hints, ["`hermes-sandbox quarantine --help` lists them"]);
        for verb in ["show", "diff", "restore", "approve", "discard"] {
            let missing = refusal(&["quarantine", verb, "--json"]);
            assert!(missing.message.starts_with("missing <ID"), "{verb}: {missing}");
            assert_eq!(missing.hints, ["`hermes-sandbox quarantine list` shows those that there are"], "{verb}");
        }
        assert_eq!(refusal(&["quarantine", "revoke"]).hints, [crate::usage::APPROVALS]);
        assert_eq!(refusal(&["changes"]).hints, ["`hermes-sandbox changes --help` lists them"]);
        let number = refusal(&["changes", "rollback", "x"]);
        assert!(number.message.ends_with("not a number; `hermes-sandbox changes list` shows them"), "{number}");
        assert_eq!(refusal(&["doctor", "x"]).message, "unexpected argument `x`");
        assert_eq!(refusal(&["explain", "path"]).message, "missing <PATH>");
        assert_eq!(refusal(&["check", "--json"]).hints, [crate::usage::ONE_ARGUMENT]);
        assert!(parse(Vec::new()).is_err());
    }
}
