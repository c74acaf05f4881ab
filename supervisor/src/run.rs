//! `run`: parse, resolve, plan, refuse or start.

use hermes_profiles::Access;

use crate::args::RunArgs;
use crate::changes::{self, Overlaid};
use crate::engine;
use crate::error::Error;
use crate::events::{Event, Log};
use crate::prepare;

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
    changes::settle(&prepared.caller, &prepared.trees[0])?;
    if args.policy.checkpoint {
        if prepared.policy.workspace_access == Access::Overlay {
            return Err(Error::usage("--checkpoint is for a workspace that is written; this one is copy-on-write")
                .hint("leave it out: `hermes-sandbox changes discard` takes every change back"));
        }
        changes::checkpoint(&prepared.caller, &prepared.trees)?;
    }
    let _scratch = prepared.make_scratch(&args.policy)?;
    let overlaid = prepared.take_layer(&args.policy)?;
    prepared.tell_losses(args.policy.verbose);
    let caller = prepared.caller.clone();
    let held: Vec<_> = overlaid.iter().map(Overlaid::lock).collect();
    let outcome = engine::run(prepared, args.command, &held, log);
    if let Some(overlaid) = overlaid {
        overlaid.finish(&caller);
    }
    outcome
}
