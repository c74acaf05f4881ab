//! `run`: parse, resolve, plan, refuse or start.

use std::ffi::OsString;

use crate::args::{Backend, PolicyArgs, RunArgs};
use crate::changes::{self, Overlaid};
use crate::engine;
use crate::error::Error;
use crate::events::{Event, Log};
use crate::guard::{self, Guards};
use crate::prepare::{self, Prepared};
use crate::remote;
use crate::scratch::Scratch;

/// Runs a command in a sandbox and returns the exit status.
pub(crate) fn run(args: RunArgs) -> Result<u8, Error> {
    let backend = args.policy.backend()?;
    let mut log = Log::open(args.json_events.as_deref())?;
    let outcome = match backend {
        Backend::Local => start(args, &mut log),
        _ => remote::run(args, &mut log),
    };
    told_end(outcome, &mut log)
}

/// Writes the last event.
pub(crate) fn told_end(outcome: Result<u8, Error>, log: &mut Log) -> Result<u8, Error> {
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

/// All that a sandbox needs on the machine.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) prepared: Prepared,
    pub(crate) overlaid: Option<Overlaid>,
    pub(crate) guards: Option<Guards>,
    /// Removed when the sandbox has ended.
    pub(crate) scratch: Option<Scratch>,
}

/// Makes what a sandbox for `program` needs. What it is for is told as `command`, for a session its name.
pub(crate) fn get_ready(args: &PolicyArgs, program: &[OsString], command: &[OsString], log: &mut Log) -> Result<Ready, Error> {
    make_ready(prepare::prepare(args, program)?, args, command, log)
}

/// The same, with a plan that is there already.
pub(crate) fn make_ready(mut prepared: Prepared, args: &PolicyArgs, command: &[OsString], log: &mut Log) -> Result<Ready, Error> {
    log.announce(&prepared.plan)?;
    prepared.refuse_lost()?;
    // In a container the trees are its machine's, and guarded from there.
    let guarded_here = prepared.host.enclosure.is_none();
    if guarded_here {
        settle(&prepared, log)?;
    }
    if args.checkpoint {
        changes::needs_checkpoint(prepared.policy.workspace_access)?;
        changes::checkpoint(&prepared.caller, &prepared.trees, command)?;
    }
    let scratch = prepared.make_scratch(args)?;
    let overlaid = prepared.take_layer(args)?;
    let guards = if guarded_here { begin_guards(&mut prepared, command, log)? } else { None };
    prepared.tell_losses(args.verbose);
    Ok(Ready { prepared, overlaid, guards, scratch })
}

fn start(args: RunArgs, log: &mut Log) -> Result<u8, Error> {
    let Ready { prepared, overlaid, guards, scratch: _scratch } = get_ready(&args.policy, &args.command, &args.command, log)?;
    let caller = prepared.caller.clone();
    let held: Vec<_> = overlaid.iter().map(Overlaid::lock).collect();
    let outcome = engine::run(prepared, args.command, &held, guards, log);
    if let Some(overlaid) = overlaid {
        overlaid.finish(&caller);
    }
    outcome
}

/// Settles what killed runs have left.
fn settle(prepared: &Prepared, log: &mut Log) -> Result<(), Error> {
    if let Some(state_dir) = &prepared.caller.state_dir {
        guard::recover(state_dir, &|tree| guard::concerns(&prepared.plan, tree), log)?;
    }
    changes::settle(&prepared.caller, &prepared.trees[0])
}

/// Begins to guard what the run can write.
fn begin_guards(prepared: &mut Prepared, command: &[OsString], log: &mut Log) -> Result<Option<Guards>, Error> {
    let begun = Guards::begin(&prepared.plan, &prepared.policy.guard, &prepared.caller, command, log);
    let guards = guard::unless_accepted(begun, &prepared.policy)?;
    if let Some(shadow) = guards.as_ref().map(Guards::shadow).transpose()?.flatten() {
        engine::show_shadow(&mut prepared.plan, shadow);
    }
    Ok(guards)
}
