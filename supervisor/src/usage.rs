//! Condenses a clap error to one line that says what is wrong, and hints that say what to do.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::error::Error;

/// The one-line form of a parse error.
pub(crate) fn condense(error: &clap::Error) -> Error {
    let first = |kind| texts(error, kind).into_iter().next().unwrap_or_default();
    let argument = name_of(&first(ContextKind::InvalidArg));
    let value = first(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let what = if argument.starts_with('-') { "unknown option" } else { "unexpected argument" };
            let plain = Error::usage(format!("{what} `{argument}`"));
            match texts(error, ContextKind::SuggestedArg).first() {
                Some(close) => plain.hint(format!("did you mean `{}`?", name_of(close))),
                None if argument.starts_with('-') => {
                    plain.hint("options of the command itself go after `--`; `--help` lists the known ones")
                }
                None => plain.hint(format!("`{} --help` says what it takes", program(error))),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let plain = Error::usage(format!("no such subcommand: `{}`", first(ContextKind::InvalidSubcommand)));
            match texts(error, ContextKind::SuggestedSubcommand).first() {
                Some(close) => plain.hint(format!("did you mean `{close}`?")),
                None => plain.hint("`hermes-sandbox --help` lists them"),
            }
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Error::usage("no subcommand given").hint(format!("`{} --help` lists them", program(error)))
        }
        ErrorKind::InvalidValue if value.is_empty() => Error::usage(format!("`{argument}` needs a value")),
        ErrorKind::InvalidValue => {
            let valid = texts(error, ContextKind::ValidValue).join(", ");
            Error::usage(format!("bad value `{value}` for `{argument}`: not one of {valid}"))
        }
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            Error::usage(format!("bad value `{value}` for `{argument}`: {why}"))
        }
        ErrorKind::TooManyValues => Error::usage(format!("`{argument}` takes no value, but `{value}` was given")),
        ErrorKind::ArgumentConflict => match texts(error, ContextKind::PriorArg).first().map(|prior| name_of(prior)) {
            Some(prior) if prior != argument => Error::usage(format!("`{argument}` cannot be used together with `{prior}`")),
            _ => Error::usage(format!("`{argument}` is given twice")),
        },
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<_> = texts(error, ContextKind::InvalidArg);
            if missing.iter().any(|name| name.contains("<COMMAND>")) {
                let named = missing.iter().any(|name| name.contains("<NAME>"));
                let what = if named { "no session and no command given" } else { "no command given" };
                let usage = match program(error).as_str() {
                    "hermes-sandbox session exec" => "hermes-sandbox session exec [OPTIONS] NAME -- COMMAND [ARGUMENT]...",
                    _ => "hermes-sandbox run [OPTIONS] -- COMMAND [ARGUMENT]...",
                };
                Error::usage(what).hint(format!("put it after `--`: {usage}"))
            } else if missing.iter().any(|name| name.contains("<COMMAND LINE>")) {
                Error::usage("no command line given").hint(ONE_ARGUMENT)
            } else {
                let plain = Error::usage(format!("missing {}", missing.join(", ")));
                match program(error).split_once(" quarantine ") {
                    Some((_, "revoke")) => plain.hint(APPROVALS),
                    Some(_) => plain.hint(LIST),
                    None => plain,
                }
            }
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            Error::usage(line.strip_prefix("error: ").unwrap_or(line))
        }
    }
}

/// What tells entries of the quarantine.
const LIST: &str = "`hermes-sandbox quarantine list` shows those that there are";
/// What tells approvals.
pub(crate) const APPROVALS: &str = "`hermes-sandbox quarantine approvals` shows those that there are";

/// How a command line to judge is given.
pub(crate) const ONE_ARGUMENT: &str = "put it after `--`, as one argument: hermes-sandbox check command -- 'ls -l'";

/// The program and the subcommands that were understood.
fn program(error: &clap::Error) -> String {
    let text = error.to_string();
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or("hermes-sandbox");
    let words: Vec<&str> = usage.split(' ').take_while(|word| !word.starts_with(['<', '[', '-'])).collect();
    words.join(" ")
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        Some(ContextValue::StyledStr(text)) => vec![text.to_string()],
        _ => Vec::new(),
    }
}

/// `--net <MODE>` is `--net` to people.
fn name_of(argument: &str) -> String {
    argument.split_once(" <").map_or(argument, |(name, _)| name).to_owned()
}
