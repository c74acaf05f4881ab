//! The program: command line, run, and everything that people see.

mod args;
mod doctor;
mod error;
mod events;
mod output;
mod pages;
#[cfg(test)]
mod sample;
mod start;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Command, Parsed};
use error::Error;

fn main() -> ExitCode {
    // Init is this same program; it must not pay for anything below.
    if std::env::args_os().nth(1).is_some_and(|name| name == "init") {
        return init();
    }
    let status = start::refuse_borrowed_rights().and_then(|()| dispatch(std::env::args_os().collect()));
    ExitCode::from(status.unwrap_or_else(|error| error.report()))
}

/// The first process of a sandbox.
fn init() -> ExitCode {
    Error::setup("init is not built in yet").report().into()
}

fn dispatch(argv: Vec<OsString>) -> Result<u8, Error> {
    match args::parse(argv)? {
        Parsed::Text(text) => output::print(&text).map(|()| 0),
        Parsed::Command(command) => run(command),
    }
}

fn run(command: Command) -> Result<u8, Error> {
    match command {
        Command::Completions { shell } => pages::completions(shell).map(|()| 0),
        Command::Man { subcommand } => pages::man(subcommand.as_deref()).map(|()| 0),
        _ => Err(Error::setup("not built in yet")),
    }
}
