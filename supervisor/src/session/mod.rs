//! One sandbox, many jobs: `serve`, and `session`, whose sandbox outlives the command that made it.
//!
//! A session is a process of its own that serves the [protocol] on a Unix socket; `session exec` and the others are clients.
//! There is no daemon, and nothing is shared between users.

pub(crate) mod client;
pub(crate) mod command;
pub(crate) mod job;
mod keep;
pub(crate) mod live;
pub(crate) mod mcp;
pub(crate) mod place;
pub(crate) mod protocol;
pub(crate) mod routes;
pub(crate) mod server;
mod shell;
pub(crate) mod streams;

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use hermes_backends::local::sys::process::reset_ignored_signals;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::unix::pipe;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{LocalSet, spawn_local};

use crate::args::{Backend, ServeArgs};
use crate::engine::{self, Opened};
use crate::error::Error;
use crate::events::Log;
use crate::network::WayOut;
use crate::output;
use crate::remote;
use crate::run::{self, Ready};
use crate::shims::ClientProcess;
use live::Live;
use protocol::Reason;

pub(crate) use command::session;

/// How often a session sees whether it can still be found.
const LOOK: Duration = Duration::from_secs(5);

/// Opens a sandbox and serves its clients until it is to end. Returns the exit status.
pub(crate) fn serve(args: &ServeArgs) -> Result<u8, Error> {
    if args.schema {
        return output::print_json(&schemars::schema_for!(protocol::Messages)).map(|()| 0);
    }
    let backend = args.policy.backend()?;
    if let (Some(_), Some(user)) = (&args.name, &args.policy.user) {
        return Err(Error::usage("`--user` cannot be used here: a session is of the user who starts it")
            .hint(format!("start it as {}, e.g. by runuser(1)", output::clean(user))));
    }
    let client = args.client.as_deref().map(str::parse).transpose();
    let client = client.map_err(|why| Error::usage(format!("bad value for `--client`: {why}")))?;
    if args.detached {
        let _ = nix::unistd::setsid();
        // What whoever started it ignores, as a shell does for its background, is not what jobs of others are to ignore.
        reset_ignored_signals();
    }
    // Bound before anything is started: who cannot be reached need not start.
    let place = args.name.as_deref().map(place::Place::claim).transpose()?;
    let listener = match (&place, &args.socket) {
        (Some(place), _) => Some(bind(&place.socket())?),
        (None, Some(path)) => Some(bind(path)?),
        (None, None) => None,
    };
    let _named = args.socket.as_deref().map(Named);
    let mut log = Log::open(args.json_events.as_deref())?;
    let found = Found { listener, place, client };
    let outcome = match backend {
        Backend::Local => open_and_attend(args, found, &mut log),
        _ => remote::serve(args, found, &mut log),
    };
    run::told_end(outcome, &mut log)
}

/// How a session is found, and by whom.
pub(crate) struct Found {
    pub(crate) listener: Option<std::os::unix::net::UnixListener>,
    pub(crate) place: Option<place::Place>,
    /// It ends with this process.
    pub(crate) client: Option<ClientProcess>,
}

fn open_and_attend(args: &ServeArgs, found: Found, log: &mut Log) -> Result<u8, Error> {
    let Found { listener, place, client } = found;
    let name: Vec<OsString> = vec![args.name.clone().unwrap_or_else(|| "serve".to_owned()).into()];
    let program: Vec<OsString> = args.program.iter().map(|program| program.clone().into_os_string()).collect();
    let ready = run::get_ready(&args.policy, &program, &name, log)?;
    if args.mcp {
        mcp::needs_tools(&ready.prepared.policy.mcp.tools, &ready.prepared.policy.profile)?;
    }
    let way_out = engine::way_out(&ready.prepared, log)?;
    let attended = async |live| {
        if let Some(place) = &place {
            place.ready()?;
        }
        attend(live, listener, place.as_ref(), args, client).await.map_err(cannot_serve)
    };
    let served = live_through(ready, way_out, args.name.clone(), log, attended, || {})?;
    leave(place, args);
    tell_end(served?).map(|()| 0)
}

fn cannot_serve(e: io::Error) -> Error {
    Error::setup(format!("cannot serve the sandbox: {e}"))
}

/// The life of a session, wherever its clients come from: has a sandbox for as long as `attend` runs what the session does,
/// and returns what that returns. `quiet` is called when nothing runs any more, and tidying is all that is left.
pub(crate) fn live_through<T>(
    Ready { prepared, overlaid, mut guards, scratch }: Ready,
    way_out: Option<WayOut>,
    name: Option<String>,
    log: &mut Log,
    attend: impl AsyncFnOnce(Rc<Live>) -> T,
    quiet: impl FnOnce(),
) -> Result<T, Error> {
    let caller = prepared.caller.clone();
    let held: Vec<_> = overlaid.iter().map(crate::changes::Overlaid::lock).collect();
    // From the first thread, before the runtime: init dies with the thread that made it, prctl(2).
    let Opened { sandbox, environment, way_out, group } = engine::open(&prepared, &held, guards.as_mut(), way_out)?;
    more_descriptors();
    let live = Live::new(sandbox, prepared, environment, (guards, way_out), name, std::mem::take(log));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot_serve)?;
    let local = LocalSet::new();
    let outcome = local.block_on(&runtime, attend(Rc::clone(&live)));
    // Tasks hold the sandbox, too.
    drop(local);
    runtime.shutdown_background();
    let (guards, way_out) = (live.guards.take(), live.way_out.take());
    *log = live.log.take();
    drop(live);
    quiet();
    engine::close(group, guards, way_out, log)?;
    if let Some(overlaid) = overlaid {
        overlaid.finish(&caller);
    }
    drop(scratch);
    Ok(outcome)
}

/// Begins what every session does, wherever its clients come from.
pub(crate) fn begin(live: &Rc<Live>, ttl: Option<Duration>, idle: Option<Duration>) {
    report(live, "init", Rc::clone(live).listen());
    report(live, "guarded files", Rc::clone(live).guard());
    if let Some(ttl) = ttl {
        let live = Rc::clone(live);
        spawn_local(async move {
            tokio::time::sleep(ttl).await;
            live.stop(Reason::Ttl);
        });
    }
    if let Some(idle) = idle {
        spawn_local(end_when_idle(Rc::clone(live), idle));
    }
}

/// Takes away what a session was found by.
pub(crate) fn leave(place: Option<place::Place>, args: &ServeArgs) {
    match place {
        // Nobody asks for it any more.
        Some(place) if args.client.is_some() && place.is_of_shim() => place.forget(),
        place => drop(place),
    }
}

/// Says why a session has ended.
pub(crate) fn tell_end(reason: Reason) -> Result<(), Error> {
    match reason {
        Reason::Idle => output::complain("ended: nobody wanted anything for the time of --idle"),
        Reason::Ttl => output::complain("ended: the time of --ttl was over"),
        Reason::Stopped => {}
        Reason::Failed => return Err(Error::setup("the sandbox has ended before its session")),
    }
    Ok(())
}

/// Runs everything that a session does, and returns why it ends.
async fn attend(
    live: Rc<Live>,
    listener: Option<std::os::unix::net::UnixListener>,
    place: Option<&place::Place>,
    args: &ServeArgs,
    client: Option<ClientProcess>,
) -> io::Result<Reason> {
    begin(&live, args.ttl, args.idle);
    let mut signals = vec![SignalKind::terminate(), SignalKind::interrupt()];
    // Who has no terminal hears of its end no other way, and of nothing else by it.
    signals.extend((!args.detached).then(SignalKind::hangup));
    for kind in signals {
        let (mut signal, live) = (signal(kind)?, Rc::clone(&live));
        spawn_local(async move {
            signal.recv().await;
            live.stop(Reason::Stopped);
        });
    }
    if let Some(client) = client {
        spawn_local(end_with(Rc::clone(&live), client));
    }
    match listener {
        Some(listener) => {
            listener.set_nonblocking(true)?;
            report(&live, "clients", accept(Rc::clone(&live), UnixListener::from_std(listener)?));
        }
        None => {
            let (live, mcp) = (Rc::clone(&live), args.mcp);
            spawn_local(async move {
                let (input, output) = standard_streams();
                match mcp {
                    true => mcp::serve(Rc::clone(&live), input, output).await,
                    false => server::serve(Rc::clone(&live), input, output).await,
                }
                // Its only client has gone.
                live.stop(Reason::Stopped);
            });
        }
    }
    let reload = async {
        match args.detached {
            true => Rc::clone(&live).reload_at_hangup(&args.policy).await,
            false => std::future::pending().await,
        }
    };
    let reason = tokio::select! {
        reason = live.is_over() => reason,
        failed = reload => {
            failed?;
            Reason::Failed
        }
        () = is_lost(place) => {
            output::complain("the session ends, because its directory was taken away and nobody can reach it");
            live.stop(Reason::Stopped);
            Reason::Stopped
        }
    };
    // Clients are told.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(reason)
}

pub(crate) type Input = Box<dyn AsyncRead + Unpin + Send>;
pub(crate) type Output = Box<dyn AsyncWrite + Unpin + Send>;

/// The standard streams. Pipes are waited for by the runtime itself, which spares two changes of thread a message; they are opened
/// anew, because who shares them with us does not expect that reads and writes fail for want of patience.
pub(crate) fn standard_streams() -> (Input, Output) {
    let pipe = |fd: i32| std::fs::metadata(format!("/proc/self/fd/{fd}")).is_ok_and(|meta| meta.file_type().is_fifo());
    let input = || pipe::OpenOptions::new().open_receiver("/proc/self/fd/0");
    let output = || pipe::OpenOptions::new().open_sender("/proc/self/fd/1");
    let input: Input = match pipe(0).then(input) {
        Some(Ok(pipe)) => Box::new(pipe),
        _ => Box::new(tokio::io::stdin()),
    };
    let output: Output = match pipe(1).then(output) {
        Some(Ok(pipe)) => Box::new(pipe),
        _ => Box::new(tokio::io::stdout()),
    };
    (input, output)
}

/// A part of a session that ends it when it fails.
fn report(live: &Rc<Live>, what: &'static str, part: impl Future<Output = io::Result<()>> + 'static) {
    let live = Rc::clone(live);
    spawn_local(async move {
        if let Err(e) = part.await {
            output::complain(&format!("cannot look after {what} any more: {e}"));
            live.stop(Reason::Failed);
        }
    });
}

async fn accept(live: Rc<Live>, listener: UnixListener) -> io::Result<()> {
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Out of descriptors for a moment, accept(2).
            Err(e) if e.raw_os_error().is_some() => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            Err(e) => return Err(e),
        };
        if is_same_user(&stream) {
            let (reader, writer) = stream.into_split();
            spawn_local(server::serve(Rc::clone(&live), reader, writer));
        }
    }
}

/// The mode of the socket keeps others out already; where it does not (an old kernel, a copy of the descriptor) this does.
pub(crate) fn is_same_user(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

/// Ends the session when the process that it is for has ended.
async fn end_with(live: Rc<Live>, client: ClientProcess) {
    has_ended(client).await;
    live.stop(Reason::Stopped);
}

/// Waits for the end of the process that a session is for.
pub(crate) async fn has_ended(client: ClientProcess) {
    if let Some(process) = client.open()
        && let Ok(process) = streams::watched(process, Interest::READABLE)
    {
        let _ = process.readable().await;
    }
}

/// Waits until nobody can find the session any more.
pub(crate) async fn is_lost(place: Option<&place::Place>) {
    let Some(place) = place else { return std::future::pending().await };
    while place.is_there() {
        tokio::time::sleep(LOOK).await;
    }
}

async fn end_when_idle(live: Rc<Live>, idle: Duration) {
    loop {
        let unused = live.used.get().elapsed();
        if unused >= idle && live.is_idle() {
            return live.stop(Reason::Idle);
        }
        let left = idle.saturating_sub(unused).max(Duration::from_millis(10));
        tokio::time::sleep(left).await;
    }
}

fn bind(path: &Path) -> Result<std::os::unix::net::UnixListener, Error> {
    use nix::sys::stat::{Mode, umask};
    let cannot = |e: io::Error| {
        Error::setup(format!("cannot listen at {}: {e}", output::path(path)))
            .hint("name a path that is not there, in a directory of yours")
    };
    // Private from its first moment.
    let mask = umask(Mode::from_bits_truncate(0o177));
    let bound = std::os::unix::net::UnixListener::bind(path);
    umask(mask);
    bound.map_err(cannot)
}

/// A socket that goes with who listens.
struct Named<'p>(&'p Path);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Every job has some; init and its jobs have their own limit already.
pub(crate) fn more_descriptors() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
