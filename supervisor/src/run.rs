//! `run`: parse, resolve, plan, refuse or start.

use std::ffi::OsString;

use crate::args::RunArgs;
use crate::engine;
use crate::error::Error;
use crate::events::{Event, Log};
use crate::guard::{self, Guards};
use crate::prepare::{self, Prepared};

/// Runs a command in a sandbox and returns the exit status.
pub(crate) fn run(args: RunArgs) -> Result<u8, Error> {
    args.policy.refuse_unsupported()?;
    let mut log = Log::open(args.json_events.as_deref())?;
    let outcome = start(args, &mut log);
    let (status, error) = match &outcome {
        Ok(status) => (*status, None),
        Err(error) => (error.kind.status(), Some(error.message.as_str())),
    };
    let told = log.write(&Event::End { status, error });
    outcome.inspect(|_| {
        // The command has run; its status matters more than the last line of the log.
        if let Err(error) = told {
            error.report();
        }
    })
}

fn start(args: RunArgs, log: &mut Log) -> Result<u8, Error> {
    let mut prepared = prepare::prepare(&args.policy, &args.command)?;
    log.announce(&prepared.plan)?;
    prepared.refuse_lost()?;
    let _scratch = prepared.make_scratch(&args.policy)?;
    let guards = guard_trees(&mut prepared, &args.command, log)?;
    prepared.tell_losses(args.policy.verbose);
    engine::run(prepared, args.command, guards, log)
}

/// Settles what killed runs have left, and begins to guard what this one can write.
fn guard_trees(prepared: &mut Prepared, command: &[OsString], log: &mut Log) -> Result<Option<Guards>, Error> {
    let state_dir = prepared.caller.state_dir.as_deref();
    if let Some(state_dir) = state_dir {
        for outcome in guard::recover(state_dir, &|tree| guard::concerns(&prepared.plan, tree))? {
            guard::tell(&outcome, log)?;
        }
    }
    let guards = Guards::begin(&prepared.plan, &prepared.policy.guard, &prepared.caller, command)?;
    if let Some(shadow) = guards.as_ref().map(Guards::shadow).transpose()?.flatten() {
        engine::show_shadow(&mut prepared.plan, shadow);
    }
    Ok(guards)
}
