//! `serve` and `session start` with the sandbox on the other side: clients come here, and are led there.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedSender;

use super::{Errand, Near, Order, Said};
use crate::args::ServeArgs;
use crate::error::Error;
use crate::events::Log;
use crate::output;
use crate::remote::Backend;
use crate::remote::hello::{Bytes, ToFar, Wanted, milliseconds};
use crate::session::protocol::Reason;
use crate::session::{Found, has_ended, is_lost, is_same_user, leave, more_descriptors, standard_streams, tell_end};
use crate::shims::ClientProcess;

/// Serves a sandbox there until it is to end. Returns the exit status.
pub(in crate::remote) fn serve(backend: Box<dyn Backend>, args: &ServeArgs, found: Found, log: &mut Log) -> Result<u8, Error> {
    more_descriptors();
    let name = args.name.clone().unwrap_or_else(|| "serve".to_owned());
    let errand = Errand::Sandbox {
        program: args.program.iter().map(|program| Bytes::of(program.as_os_str())).collect(),
        command: vec![Bytes::of(&name)],
        name: args.name.clone(),
        mcp: args.mcp,
        ttl: args.ttl.map(milliseconds),
        idle: args.idle.map(milliseconds),
        events: log.wanted(),
        way_out: None,
    };
    let mut near = Near::start(backend, &args.policy, errand, log)?;
    near.ready()?;
    if let Some(place) = &found.place {
        place.ready()?;
    }
    let cannot = |e: io::Error| Error::setup(format!("cannot serve the sandbox: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (Found { listener, place, client }, detached) = (found, args.detached);
    let arrives = clients(near.orders.clone(), listener, args.mcp);
    let stops = stopped(detached, near.orders.clone());
    let served = runtime.block_on(async {
        tokio::select! {
            // Nothing else comes by itself.
            said = near.next() => if let Said::Over(outcome) = said? { return outcome },
            stopped = stops => stopped.map_err(cannot)?,
            () = gone(client) => {}
            ended = arrives => ended.map_err(cannot)?,
            () = is_lost(place.as_ref()) => {
                output::complain("the session ends, because its directory was taken away and nobody can reach it");
            }
        }
        near.say(ToFar::Stop);
        loop {
            if let Said::Over(outcome) = near.next().await? {
                return outcome;
            }
        }
    });
    runtime.shutdown_background();
    leave(place, args);
    let reason: Result<Reason, Error> = served;
    tell_end(reason?).map(|()| 0)
}

/// Waits for a signal that ends a session.
async fn stopped(detached: bool, orders: UnboundedSender<Order>) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangup = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            // Who has no terminal hears of its end no other way; who has none is told to read the policy again.
            _ = hangup.recv() => match detached {
                true => drop(orders.send(Order::Reload)),
                false => return Ok(()),
            },
        }
    }
}

async fn gone(client: Option<ClientProcess>) {
    match client {
        Some(client) => has_ended(client).await,
        None => std::future::pending().await,
    }
}

/// Leads clients there. Ends with the only one, where that is on our standard streams.
async fn clients(
    orders: UnboundedSender<Order>,
    listener: Option<std::os::unix::net::UnixListener>,
    mcp: bool,
) -> io::Result<()> {
    let lead = |client| drop(orders.send(Order::Lead(client, if mcp { Wanted::Mcp } else { Wanted::Session })));
    let Some(listener) = listener else {
        let (ours, theirs) = UnixStream::pair()?;
        lead(theirs);
        ours.set_nonblocking(true)?;
        let (input, output) = standard_streams();
        let mut standard = tokio::io::join(input, output);
        // That one side has gone is no error.
        let _ = copy_bidirectional(&mut standard, &mut tokio::net::UnixStream::from_std(ours)?).await;
        return Ok(());
    };
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    loop {
        match listener.accept().await {
            Ok((client, _)) if is_same_user(&client) => lead(client.into_std()?),
            Ok(_) => {}
            // Out of descriptors for a moment, accept(2).
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
