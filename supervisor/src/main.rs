//! The program: command line, run, and everything that people see.

mod approvals;
mod args;
mod beneath;
mod changes;
mod check;
mod clock;
mod confined;
mod diff;
mod doctor;
mod engine;
mod error;
mod events;
mod explain;
mod fresh;
mod guard;
mod guard_rules;
mod needs;
mod network;
mod output;
mod pages;
mod plan;
mod policy;
mod prepare;
mod profiles;
mod quarantine;
mod remote;
mod request;
mod run;
#[cfg(test)]
mod sample;
mod scratch;
mod secrets;
mod session;
mod shims;
mod start;
mod state;
mod stdio;
mod supervise;
mod table;
mod terminal;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use args::{Command, Parsed};
use error::Error;

/// musl's own allocator maps and unmaps a few pages at a time, which costs a page fault each: a third of a start.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    // Init is this same program; it must not pay for anything below.
    if std::env::args_os().nth(1).is_some_and(|name| engine::is_init(&name)) {
        return engine::init();
    }
    clock::note_begin();
    let argv: Vec<OsString> = std::env::args_os().collect();
    let refuse = if argv.get(1).is_some_and(|name| name == "check") { check::closed() } else { Error::report };
    let status = start::refuse_borrowed_rights().and_then(|()| dispatch(argv));
    ExitCode::from(status.unwrap_or_else(|error| refuse(&error)))
}

fn dispatch(argv: Vec<OsString>) -> Result<u8, Error> {
    if shims::is_call(&argv) {
        return shims::call(&argv);
    }
    match args::parse(argv)? {
        Parsed::Text(text) => output::print(&text).map(|()| 0),
        Parsed::Command(Command::Run(args)) => run::run(*args),
        Parsed::Command(Command::Remote) => remote::far::main(),
        Parsed::Command(Command::Plan(args)) => plan::plan(&args),
        Parsed::Command(Command::Explain { what }) => explain::explain(what),
        Parsed::Command(Command::Doctor { clean: true, .. }) => remote::clean(),
        Parsed::Command(Command::Doctor { json, verbose, place, .. }) => doctor::run(&place, json, verbose),
        Parsed::Command(Command::Profiles { action }) => profiles::profiles(action),
        Parsed::Command(Command::Quarantine { action }) => quarantine::quarantine(action),
        Parsed::Command(Command::Secrets { action }) => secrets::secrets(action),
        Parsed::Command(Command::Changes { action }) => changes::changes(action),
        Parsed::Command(Command::Serve(args)) => session::serve(&args),
        Parsed::Command(Command::Session { action }) => session::session(action),
        Parsed::Command(Command::Shims { action }) => shims::shims(action),
        Parsed::Command(Command::Approvals { action }) => approvals::approvals(action),
        Parsed::Command(Command::Check(args)) => check::check(args),
        Parsed::Command(Command::Completions { shell }) => pages::completions(shell).map(|()| 0),
        Parsed::Command(Command::Man { subcommand }) => pages::man(subcommand.as_deref()).map(|()| 0),
    }
}
