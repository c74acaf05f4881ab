//! `run` on the other side: one command, with our own streams.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use hermes_profiles::ospath;

use super::{Errand, Near};
use crate::args::RunArgs;
use crate::error::{Error, Kind};
use crate::events::Log;
use crate::remote::Backend;
use crate::remote::hello::{Bytes, ToFar, Wanted};
use crate::session::client::Client;
use crate::session::command::{hold_more_signals, relay_and};
use crate::session::protocol::{Input, Size, Start, Started, Word};

/// Runs a command there. Returns the exit status.
pub(in crate::remote) fn run(backend: Box<dyn Backend>, args: RunArgs, log: &mut Log) -> Result<u8, Error> {
    // Threads that are made now take no signals.
    let held = hold_more_signals()?;
    let errand = Errand::Sandbox {
        program: Bytes::words(&args.command),
        command: Bytes::words(&args.command),
        name: None,
        mcp: false,
        ttl: None,
        idle: None,
        events: log.wanted(),
        way_out: None,
    };
    let near = Near::start(backend, &args.policy, errand, log);
    // Until there is a command they are for us.
    let _ = held.thread_unblock();
    let mut near = near?;
    near.ready()?;
    let outcome = follow(&near, &args);
    match outcome {
        Ok(status) => near.end().map(|_| status),
        // Why the client was cut off is known better there.
        Err(error) if error.kind == Kind::Setup => match near.end() {
            Ok(_) => Err(error),
            Err(better) => Err(better),
        },
        Err(error) => near.end().and(Err(error)),
    }
}

fn follow(near: &Near, args: &RunArgs) -> Result<u8, Error> {
    let cannot = |e: std::io::Error| Error::setup(format!("cannot speak with {}: {e}", near.name()));
    let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
    near.lead(theirs, Wanted::Session);
    let (mut client, _) = Client::over(ours)?;
    let held = hold_more_signals()?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let pty = terminal.then(Size::ours);
    let start = Start {
        argv: args.command.iter().map(|word| Word::of(word)).collect(),
        env: BTreeMap::new(),
        stdin: Input::Pipe,
        pty,
        tied: true,
        stream: true,
        ..Start::default()
    };
    let started: Result<Started, Error> = client.ask("start", &start);
    let job = started.map_err(|error| said_as_here(error, args))?.job;
    let suspend = || {
        near.say(ToFar::Pause);
        // It must be there before we stand still.
        std::thread::sleep(Duration::from_millis(100));
    };
    let end = relay_and(&mut client, job, (pty.is_some(), true), Some(&suspend));
    let _ = held.thread_unblock();
    end.map(|end| end.exit.status)
}

/// With the hint that a command here would get.
fn said_as_here(error: Error, args: &RunArgs) -> Error {
    let program = args.command.first().map(|program| ospath::escaped_bytes(program.as_encoded_bytes())).unwrap_or_default();
    match error.kind {
        Kind::NotFound => error
            .hint(format!("{program} is looked for in PATH there and in what the policy grants; `--ro DIR` grants a directory")),
        _ => error,
    }
}
