//! The far half: a whole supervisor whose clients come over one channel.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hermes_profiles::{Caller, Overrides, Request, Resolved, resolve};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::files::Replay;
use super::hello::{self, Asked, Bytes, Enclosed, Errand, Hello, ToFar, ToNear, Wanted, at_home};
use super::mux::{self, BEAT, Mux, Side, Stream};
use super::standard::{Standard, hush};
use super::{GREETING, docker};
use crate::engine;
use crate::error::Error;
use crate::events::Log;
use crate::network::{Duplex, NO_WAY_OUT, Offer, Opening, Way, WayOut};
use crate::output;
use crate::prepare::{self, Prepared};
use crate::run;
use crate::session::live::Live;
use crate::session::protocol::Reason;
use crate::session::{begin, live_through, mcp, server};
use crate::{doctor, plan, request};

/// How long the tree may take to end after the other side has gone.
const LAST: Duration = Duration::from_secs(5);
/// How long all that is left to do may take then, above all to put aside what is guarded.
const TIDY: Duration = Duration::from_secs(60);
/// How long the last words may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What comes over the channel.
enum Came {
    Hello(Box<Hello>, Mux),
    Client(Stream, Wanted),
    Listen(Vec<u16>),
    Stop,
    /// Nothing more.
    Lost,
}

/// The channel, for the thread that holds the sandbox.
struct Link {
    came: UnboundedReceiver<Came>,
    says: UnboundedSender<ToNear>,
    /// Takes the last message.
    last: oneshot::Sender<ToNear>,
    /// Nothing runs any more.
    quiet: Arc<AtomicBool>,
    /// The channel is of no use any more.
    lost: bool,
    /// Passes on what is written to standard error.
    told: std::thread::JoinHandle<()>,
}

/// Serves who started this process. Returns the exit status.
pub(crate) fn main() -> Result<u8, Error> {
    let (input, output, said) = Standard::take()?.into_parts();
    let mut link = Link::start(input, output, said)?;
    let last = match link.came.blocking_recv() {
        Some(Came::Hello(hello, mux)) => match obey(&mut link, *hello, mux) {
            Ok(last) => last,
            Err(error) => ToNear::failed(&error),
        },
        _ => ToNear::Ended(Reason::Failed),
    };
    link.end(last);
    Ok(0)
}

fn obey(link: &mut Link, hello: Hello, mux: Mux) -> Result<ToNear, Error> {
    let Hello { errand, asked, enclosed } = hello;
    let mut writable = Vec::new();
    if let Some(Enclosed { enclosure, expected, writable: volumes }) = enclosed {
        writable = volumes;
        hermes_backends::docker::mounts::verify(&expected).map_err(docker::refused)?;
        engine::enclose(enclosure);
    }
    match errand {
        Errand::Doctor { json, verbose } => {
            let (text, status) = doctor::described(&engine::measure_now(), json, verbose)?;
            Ok(ToNear::Answer { text, status })
        }
        Errand::Plan { command, json } => {
            let prepared = prepare(link, &asked, &writable, &words(&command))?;
            let (text, status) = plan::described(prepared, &asked.wishes(), json)?;
            Ok(ToNear::Answer { text, status })
        }
        Errand::Sandbox { program, command, name, mcp, ttl, idle, events, way_out } => {
            let (mut log, told) = log(link, events)?;
            let offer = way_out.unwrap_or_default();
            let open = Arc::new(move |way| Box::pin(lead(mux.clone(), way)) as Opening);
            let offer = Offer { open, authority: offer.authority, placeholders: offer.placeholders };
            let served = Served { name, mcp, ttl: ttl.map(Duration::from_millis), idle: idle.map(Duration::from_millis) };
            let outcome = sandbox(link, (&asked, &writable), (&words(&program), &words(&command)), served, offer, &mut log);
            drop(log);
            // All events are on their way before the last word.
            let _ = told.map(std::thread::JoinHandle::join);
            outcome.map(ToNear::Ended)
        }
    }
}

/// A stream that leads to who decides.
async fn lead(mux: Mux, way: Way) -> io::Result<Box<dyn Duplex>> {
    let mut stream = mux.open().await?;
    hello::write(&mut stream, &way).await?;
    Ok(Box::new(stream))
}

fn words(words: &[Bytes]) -> Vec<std::ffi::OsString> {
    words.iter().map(Bytes::text).collect()
}

/// How a sandbox is served.
struct Served {
    name: Option<String>,
    mcp: bool,
    ttl: Option<Duration>,
    idle: Option<Duration>,
}

/// A log whose lines go to the other side.
fn log(link: &Link, events: bool) -> Result<(Log, Option<std::thread::JoinHandle<()>>), Error> {
    if !events {
        return Ok((Log::default(), None));
    }
    let cannot = |e: io::Error| Error::setup(format!("cannot pass events on: {e}"));
    let (reader, writer) = io::pipe().map_err(cannot)?;
    let says = link.says.clone();
    let told = std::thread::Builder::new().name("hermes-events".to_owned());
    let told = told.spawn(move || lines(reader, |line| drop(says.send(ToNear::Event(line))))).map_err(cannot)?;
    Ok((Log::to(File::from(OwnedFd::from(writer))), Some(told)))
}

fn lines(reader: PipeReader, mut take: impl FnMut(Vec<u8>)) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        take(std::mem::take(&mut line));
    }
}

/// The plan, made from the policy of the other side and the paths and the kernel of this one.
fn prepare(link: &Link, asked: &Asked, writable: &[PathBuf], program: &[std::ffi::OsString]) -> Result<Prepared, Error> {
    let own = request::caller(None)?;
    let workspace = at_home(&asked.workspace.path(), own.home.as_deref());
    // Where commands begin, and where relative paths do.
    std::env::set_current_dir(&workspace).map_err(|e| {
        Error::setup(format!("cannot enter the workspace {}: {e}", output::path(&workspace)))
            .hint("--workspace names a directory there")
    })?;
    let caller = caller(asked, own, workspace.clone());
    let home = caller.home.clone();
    let mut request = Request {
        profile: asked.profile.clone(),
        source: asked.source.clone(),
        workspace: Some(workspace.clone()),
        overrides: asked.overrides.clone(),
        caller,
    };
    at_homes(&mut request.overrides, home.as_deref());
    let replay = Replay::new(&asked.files, &request.caller, &hermes_profiles::paths::normalise(&workspace));
    let mut resolved: Resolved = resolve(&request, &replay)?;
    if engine::enclosure().is_some() {
        let rules = docker::image_rules(&resolved.policy, writable);
        resolved.policy.files.extend(rules);
    }
    let project = replay.into_project();
    let _ = link.says.send(ToNear::Resolved { project });
    prepare::prepare_for(&asked.wishes(), program, request.caller, resolved)
}

/// Paths of the options that begin with `~`, which no shell has expanded.
fn at_homes(overrides: &mut Overrides, home: Option<&Path>) {
    let Overrides { ro, rw, deny, .. } = overrides;
    for path in ro.iter_mut().chain(rw).chain(deny).filter(|path| path.starts_with("~")) {
        *path = at_home(path, home);
    }
}

/// Who asks: this user here, with the variables that the other side names. Those do not decide where this user's home is.
fn caller(asked: &Asked, own: Caller, workspace: PathBuf) -> Caller {
    let mut caller = request::caller_of(workspace, own.variables);
    let variables = &mut caller.variables;
    for (name, value) in &asked.variables {
        let name = name.text();
        match value {
            Some(value) => {
                variables.retain(|(known, _)| *known != name);
                variables.push((name, value.text()));
            }
            // What is meant is the caller's, who has none.
            None if name != "TERM" => variables.retain(|(known, _)| *known != name),
            None => {}
        }
    }
    caller
}

fn sandbox(
    link: &mut Link,
    (asked, writable): (&Asked, &[PathBuf]),
    (program, command): (&[std::ffi::OsString], &[std::ffi::OsString]),
    served: Served,
    offer: Offer,
    log: &mut Log,
) -> Result<Reason, Error> {
    let wishes = asked.wishes();
    let prepared = prepare(link, asked, writable, program)?;
    let ready = run::make_ready(prepared, &wishes, command, log)?;
    let Prepared { policy, plan, caller, .. } = &ready.prepared;
    if served.mcp {
        mcp::needs_tools(&policy.mcp.tools, &policy.profile)?;
    }
    let way_out = WayOut::elsewhere(policy, plan, caller, offer)?;
    let quiet = Arc::clone(&link.quiet);
    let attended = async |live| attend(live, link, &served).await;
    live_through(ready, way_out, served.name.clone(), log, attended, || quiet.store(true, Ordering::Relaxed))
}

/// Runs everything that a session does, and returns why it ends.
async fn attend(live: Rc<Live>, link: &mut Link, served: &Served) -> Reason {
    let _ = link.says.send(ToNear::Ready);
    begin(&live, served.ttl, served.idle);
    loop {
        let came = tokio::select! {
            reason = live.is_over() => {
                // Clients are told.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return reason;
            }
            came = link.came.recv() => came,
        };
        match came {
            Some(Came::Client(stream, wanted)) => {
                let (live, (reader, writer)) = (Rc::clone(&live), tokio::io::split(stream));
                match wanted {
                    Wanted::Session => drop(spawn_local(server::serve(live, reader, writer))),
                    Wanted::Mcp => drop(spawn_local(mcp::serve(live, reader, writer))),
                }
            }
            Some(Came::Listen(ports)) => {
                let (reply, answer) = oneshot::channel();
                let new = live.way_out.borrow_mut().as_mut().and_then(|way_out| way_out.listen(ports, reply));
                if let Some(new) = new {
                    let _ = live.ask(&hermes_backends::wire::Request::Listen(new), &[]);
                }
                let says = link.says.clone();
                spawn_local(async move {
                    let outcome = answer.await.unwrap_or_else(|_| Err(NO_WAY_OUT.to_owned()));
                    let _ = says.send(ToNear::Listens(outcome.map(drop)));
                });
            }
            Some(Came::Stop) => live.stop(Reason::Stopped),
            // At once: nobody waits for anything.
            Some(Came::Lost | Came::Hello(..)) | None => {
                link.lost = true;
                return Reason::Stopped;
            }
        }
    }
}

impl Link {
    /// Starts the thread that holds the channel.
    fn start(input: OwnedFd, output: OwnedFd, said: PipeReader) -> Result<Self, Error> {
        let cannot = |e: io::Error| Error::setup(format!("cannot hold the channel: {e}"));
        let (comes, came) = unbounded_channel();
        let (says, to_say) = unbounded_channel();
        let (last, is_last) = oneshot::channel();
        let quiet = Arc::new(AtomicBool::new(false));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let (complains, is_quiet) = (says.clone(), Arc::clone(&quiet));
        let told = std::thread::Builder::new().name("hermes-said".to_owned());
        let told = told.spawn(move || {
            lines(said, |mut line| {
                line.truncate(line.trim_ascii_end().len());
                let _ = complains.send(ToNear::Said(line));
            });
        });
        let told = told.map_err(cannot)?;
        let hold = move || {
            runtime.block_on(hold(input, output, &comes, to_say, is_last));
            let _ = comes.send(Came::Lost);
            // Who is in the middle of something long is not waited for: what it has made dies with it.
            std::thread::sleep(LAST);
            if is_quiet.load(Ordering::Relaxed) {
                std::thread::sleep(TIDY);
            }
            std::process::exit(125);
        };
        std::thread::Builder::new().name("hermes-link".to_owned()).spawn(hold).map_err(cannot)?;
        Ok(Self { came, says, last, quiet, lost: false, told })
    }

    /// Says the last word, and waits until it was heard.
    fn end(mut self, last: ToNear) {
        let until = Instant::now() + LAST_WORDS;
        // What was said on standard error comes before it.
        hush();
        while !self.told.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.last.send(last);
        while !self.lost && Instant::now() < until {
            match self.came.try_recv() {
                Ok(Came::Lost) | Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => return,
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Holds the channel until it is of no use any more.
async fn hold(
    input: OwnedFd,
    output: OwnedFd,
    comes: &UnboundedSender<Came>,
    to_say: UnboundedReceiver<ToNear>,
    last: oneshot::Receiver<ToNear>,
) {
    let Ok(mut channel) = Standard::channel(input, output) else { return };
    if channel.write_all(format!("{GREETING}\n").as_bytes()).await.is_err() {
        return;
    }
    let (mux, mut streams, driver) = mux::over(Box::new(channel), Side::Far);
    let mut driver = tokio::spawn(driver.run());
    let control = tokio::select! {
        control = streams.recv() => control,
        _ = &mut driver => return,
    };
    let Some(control) = control else { return };
    let (reader, writer) = tokio::io::split(control);
    tokio::spawn(hear(reader, mux, comes.clone()));
    tokio::spawn(say(writer, to_say, last));
    loop {
        tokio::select! {
            _ = &mut driver => return,
            Some(mut stream) = streams.recv() => {
                let comes = comes.clone();
                tokio::spawn(async move {
                    if let Ok(wanted) = hello::read::<Wanted>(&mut stream).await {
                        let _ = comes.send(Came::Client(stream, wanted));
                    }
                });
            }
        }
    }
}

async fn hear(mut reader: impl tokio::io::AsyncRead + Unpin, mux: Mux, comes: UnboundedSender<Came>) {
    let Ok(hello) = hello::read::<Hello>(&mut reader).await else { return drop(comes.send(Came::Lost)) };
    let _ = comes.send(Came::Hello(Box::new(hello), mux.clone()));
    while let Ok(message) = hello::read::<ToFar>(&mut reader).await {
        let _ = match message {
            ToFar::Beat => Ok(()),
            ToFar::Pause => {
                mux.pause();
                Ok(())
            }
            ToFar::Listen(ports) => comes.send(Came::Listen(ports)),
            ToFar::Stop => comes.send(Came::Stop),
        };
    }
}

/// Says what is to be said, and that we live; at the end the last word.
async fn say(
    mut writer: impl tokio::io::AsyncWrite + Unpin,
    mut to_say: UnboundedReceiver<ToNear>,
    mut last: oneshot::Receiver<ToNear>,
) {
    loop {
        let message = tokio::select! {
            biased;
            Some(message) = to_say.recv() => message,
            message = &mut last => {
                if let Ok(message) = message {
                    let _ = hello::write(&mut writer, &message).await;
                }
                return std::future::pending().await;
            }
            () = tokio::time::sleep(BEAT) => ToNear::Beat,
        };
        if hello::write(&mut writer, &message).await.is_err() {
            return;
        }
    }
}
