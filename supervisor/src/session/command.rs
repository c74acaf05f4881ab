//! `session`: starts sessions, and is their client.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::{Value, json};

use super::client::{Client, Said, understood};
use super::place::{self, Place};
use super::protocol::{
    Bytes, End, Input, Kept, List, Listed, Notification, Of, Output, Resize, Signal as SignalParams, Size, Start, Started,
    Stream, Word, Write as WriteParams,
};
use super::routes;
use crate::args::{Backend, ExecArgs, Session, SessionPolicy};
use crate::error::Error;
use crate::output;
use crate::state::private_directory;
use crate::table;
use crate::terminal::{RawMode, outer_size};

/// How long a start may take.
pub(crate) const START: Duration = Duration::from_secs(60);
/// The same on another machine, to which the program is brought first.
const FAR_START: Duration = Duration::from_secs(600);
/// Ctrl-], as in telnet.
const DETACH: u8 = 0x1d;
/// Bytes of input that travel at a time.
const PIECE: usize = 64 * 1024;

/// Does what is asked. Returns the exit status.
pub(crate) fn session(action: Session) -> Result<u8, Error> {
    match action {
        Session::Start { args } if args.socket.is_some() || args.mcp || args.schema => {
            Err(Error::usage("`session start` takes no --socket, --mcp or --schema").hint("`hermes-sandbox serve` does"))
        }
        Session::Start { args } => {
            let patience = if args.policy.backend()? == Backend::Local { START } else { FAR_START };
            start(args.name.as_deref(), patience)
        }
        Session::Exec(args) => exec(*args),
        Session::Attach { name, job } => attach(&name, job),
        Session::List { name: None, json } => list(json),
        Session::List { name: Some(name), json } => list_jobs(&name, json),
        Session::Stop { names, all } => stop(names, all),
        Session::Policy { action: SessionPolicy::Show { name, json } } => routes::show(&mut connect(&name)?, json),
        Session::Policy { action: SessionPolicy::Set { name, policy } } => routes::set(&mut connect(&name)?, &policy),
        Session::Logs { name, job } => logs(&name, job),
    }
}

fn no_session(name: &str) -> Error {
    let others: Vec<String> = Place::all().unwrap_or_default().iter().map(|place| place.name.clone()).collect();
    let there = if others.is_empty() { "there are none".to_owned() } else { format!("there are: {}", others.join(", ")) };
    Error::usage(format!("there is no session `{name}`"))
        .hint(format!("{there}; `hermes-sandbox session start {name}` starts this one"))
}

/// A connection to the session of this name.
fn connect(name: &str) -> Result<Client, Error> {
    let place = Place::of(name)?;
    if !place.is_alive() {
        return Err(match place.log().exists() {
            true => Error::usage(format!("the session `{name}` has ended"))
                .hint(format!("`hermes-sandbox session logs {name}` is what it said, `session stop {name}` forgets it")),
            false => no_session(name),
        });
    }
    Client::connect(&place.socket()).map(|(client, _)| client)
}

/// Starts `serve NAME` with the same options as a process of its own, and waits until it serves.
fn start(named: Option<&str>, patience: Duration) -> Result<u8, Error> {
    let name = named.unwrap_or("default");
    let place = Place::of(name)?;
    let cannot = |e: std::io::Error| Error::setup(format!("cannot start a session in {}: {e}", output::path(&place.dir)));
    let _turn = place.turn().map_err(cannot)?;
    if place.is_alive() {
        return Err(Error::usage(format!("there is a session `{name}` already"))
            .hint(format!("`hermes-sandbox session stop {name}` ends it")));
    }
    place.clear().map_err(cannot)?;
    let mut options: Vec<OsString> = std::env::args_os().skip_while(|arg| arg != "start").skip(1).collect();
    if named.is_none() {
        options.insert(0, name.into());
    }
    let status = launch(&place, &options, patience, |_| {})?;
    print_log(&place, 0);
    match status {
        None => output::print(&format!("{name}\n")).map(|()| 0),
        Some(status) => {
            place.remove();
            Ok(status)
        }
    }
}

/// Starts `serve OPTIONS` as a process of its own and waits until it serves. What it says is in its log. The status when it does
/// not come to that.
pub(crate) fn launch(
    place: &Place,
    options: &[OsString],
    patience: Duration,
    set: impl Fn(&mut Command),
) -> Result<Option<u8>, Error> {
    let cannot = |e: std::io::Error| Error::setup(format!("cannot start a session in {}: {e}", output::path(&place.dir)));
    private_directory(&place.dir, true).map_err(cannot)?;
    let log = File::create(place.log()).map_err(cannot)?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.args(["serve", "--detached"]).args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    set(&mut command);
    let mut child = command.spawn().map_err(cannot)?;
    let until = Instant::now() + patience;
    loop {
        if place.is_ready() {
            return Ok(None);
        }
        if let Some(status) = child.try_wait().map_err(cannot)? {
            return Ok(Some(status.code().map_or(125, |code| code as u8)));
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(cannot(std::io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a session has said behind the first `from` bytes, as our own words.
pub(crate) fn print_log(place: &Place, from: usize) {
    let log = place::text(&place.log());
    let _ = std::io::stderr().write_all(log.get(from..).unwrap_or_default().as_bytes());
}

fn stop(names: Vec<String>, all: bool) -> Result<u8, Error> {
    let places = match all {
        true => Place::all()?,
        false => names.iter().map(|name| Place::of(name)).collect::<Result<_, _>>()?,
    };
    for place in &places {
        let said = place::text(&place.log()).len();
        if place.is_alive() {
            let (mut client, _) = Client::connect(&place.socket())?;
            let _: Value = client.ask_soon("stop", &json!({}))?;
            place.wait().map_err(|e| Error::setup(format!("cannot wait for the session `{}`: {e}", place.name)))?;
        } else if !place.dir.exists() {
            return Err(no_session(&place.name));
        }
        let cannot = |e| Error::setup(format!("cannot forget the session `{}`: {e}", place.name));
        let _turn = place.turn().map_err(cannot)?;
        // Another one of this name may have begun.
        if !place.is_alive() {
            // What was said since: that something was put aside, above all.
            print_log(place, said);
            place.remove();
        }
    }
    Ok(0)
}

fn list(json: bool) -> Result<u8, Error> {
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for place in Place::all()? {
        let connected = if place.is_alive() { Client::connect(&place.socket()).ok() } else { None };
        let asked = connected.and_then(|(mut client, initialized)| {
            let jobs: List = client.ask_soon("list", &json!({})).ok()?;
            Some((jobs.jobs.iter().filter(|job| job.exit.is_none()).count(), initialized.workspace))
        });
        let (state, running, workspace) = match asked {
            Some((running, workspace)) => ("lives", running, workspace),
            None if place.is_alive() => (if place.is_ready() { "hangs" } else { "starts" }, 0, String::new()),
            None => ("ended", 0, String::new()),
        };
        values.push(json!({"name": place.name, "state": state, "jobs": running, "workspace": workspace}));
        let jobs = format!("{running} {}", if running == 1 { "job" } else { "jobs" });
        rows.push([place.name.clone(), state.to_owned(), jobs, output::clean(&workspace).into_owned()]);
    }
    if json {
        output::print_json(&values)?;
    } else {
        print_rows(&rows, "there are no sessions")?;
    }
    Ok(0)
}

fn print_rows<const N: usize>(rows: &[[String; N]], none: &str) -> Result<(), Error> {
    if rows.is_empty() {
        output::complain(none);
    }
    let mut text = String::new();
    table::columns(&mut text, rows);
    output::print(&text)
}

fn list_jobs(name: &str, json: bool) -> Result<u8, Error> {
    let mut client = connect(name)?;
    let listed: List = client.ask_soon("list", &json!({}))?;
    if json {
        return output::print_json(&listed.jobs).map(|()| 0);
    }
    let row = |job: &Listed| {
        let state = job.exit.as_ref().map_or("running".to_owned(), |exit| format!("ended with {}", exit.status));
        [job.job.to_string(), state, output::clean(&job.argv.join(" ")).into_owned()]
    };
    let rows: Vec<_> = listed.jobs.iter().map(row).collect();
    print_rows(&rows, "there are no jobs").map(|()| 0)
}

fn logs(name: &str, job: Option<u32>) -> Result<u8, Error> {
    let Some(job) = job else {
        let place = Place::of(name)?;
        if !place.dir.exists() {
            return Err(no_session(name));
        }
        output::print(&place::text(&place.log()))?;
        return Ok(0);
    };
    let mut client = connect(name)?;
    for stream in [Stream::Stdout, Stream::Stderr] {
        let kept: Kept = client.ask("output", &Output { job, stream })?;
        write_out(stream, kept.bytes)?;
        if kept.dropped > 0 {
            output::complain(&format!("{} bytes in the middle are no longer kept", kept.dropped));
        }
    }
    Ok(0)
}

/// Runs a command in a session, with our own streams.
fn exec(args: ExecArgs) -> Result<u8, Error> {
    let mut client = connect(&args.name)?;
    let mut env = std::collections::BTreeMap::new();
    for pair in &args.env {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| Error::usage(format!("`{}` is not NAME=VALUE", output::clean(pair))))?;
        env.insert(name.to_owned(), Word::Text(value.to_owned()));
    }
    let person = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let tty = args.tty || (person && !args.background && !args.no_stdin);
    let pty = tty.then(Size::ours);
    let reads = !args.no_stdin && !args.background && (pty.is_some() || !std::io::stdin().is_terminal());
    let start = Start {
        argv: if args.shell { Vec::new() } else { args.command.iter().map(|word| Word::of(word)).collect() },
        shell: args.shell.then(|| Word::of(&args.command.join(OsStr::new(" ")))),
        cwd: args.cwd.as_ref().map(|cwd| Word::of(cwd.as_os_str())),
        env,
        stdin: if reads { Input::Pipe } else { Input::Null },
        pty,
        timeout: args.timeout.map(|timeout| timeout.as_secs_f64()),
        background: args.background,
        tied: !args.background,
        stream: !args.background,
        ..Start::default()
    };
    let Started { job } = client.ask("start", &start)?;
    if args.background {
        output::print(&format!("{job}\n"))?;
        return Ok(0);
    }
    relay(&mut client, job, pty.is_some(), reads).map(|end| end.exit.status)
}

fn attach(name: &str, job: u32) -> Result<u8, Error> {
    hold_signals()?;
    let mut client = connect(name)?;
    let listed: List = client.ask("list", &json!({}))?;
    let pty = listed.jobs.iter().find(|known| known.job == job).is_some_and(|known| known.pty);
    let kept: Kept = client.ask("attach", &Of { job })?;
    match follow(&mut client, job, (pty, true), Some(kept.bytes), None)? {
        Followed::Ended(end) => Ok(end.exit.status),
        Followed::Left => {
            output::complain(&format!("detached; job {job} runs on"));
            Ok(0)
        }
    }
}

/// Signals wait from now on until [`relay`] forwards them: one that comes while the job starts is for the job.
pub(crate) fn hold_signals() -> Result<SigSet, Error> {
    let held: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH].into_iter().collect();
    held.thread_block().map_err(|errno| Error::setup(format!("cannot hold signals: {}", errno.desc())))?;
    Ok(held)
}

/// The same for those that a command of `run` is told of besides.
pub(crate) fn hold_more_signals() -> Result<SigSet, Error> {
    let mut held = hold_signals()?;
    [Signal::SIGTSTP, Signal::SIGUSR1, Signal::SIGUSR2].into_iter().for_each(|signal| held.add(signal));
    held.thread_block().map_err(|errno| Error::setup(format!("cannot hold signals: {}", errno.desc())))?;
    Ok(held)
}

/// Copies streams and signals until the job has ended.
pub(crate) fn relay(client: &mut Client, job: u32, pty: bool, reads: bool) -> Result<End, Error> {
    relay_and(client, job, (pty, reads), None)
}

/// The same. When we are to be suspended (Ctrl-Z), so is the job; `suspend` is called just before.
pub(crate) fn relay_and(
    client: &mut Client,
    job: u32,
    (pty, reads): (bool, bool),
    suspend: Option<&dyn Fn()>,
) -> Result<End, Error> {
    match follow(client, job, (pty, reads), None, suspend)? {
        Followed::Ended(end) => Ok(end),
        Followed::Left => Err(Error::setup("the job is not followed any more")),
    }
}

/// Why a job is not followed any more.
enum Followed {
    Ended(End),
    /// Who was only attached has gone.
    Left,
}

/// The same. Who only attaches to the job begins with what it has `said`, and may go without it.
fn follow(
    client: &mut Client,
    job: u32,
    (pty, reads): (bool, bool),
    said: Option<Bytes>,
    suspend: Option<&dyn Fn()>,
) -> Result<Followed, Error> {
    let cannot = |errno: Errno| Error::setup(format!("cannot follow the job: {}", errno.desc()));
    let wanted = if suspend.is_some() { hold_more_signals()? } else { hold_signals()? };
    let signals = SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(cannot)?;
    let mut raw = pty.then(RawMode::enter);
    let attached = said.is_some();
    said.map_or(Ok(()), |said| write_out(Stream::Stdout, said))?;
    let end = client.send("wait", &json!({"job": job}))?;
    // The write that is not answered yet: no more is read until it is.
    let (mut open, mut writing) = (reads, None);
    loop {
        while client.has_more() || is_ready(client)? {
            match client.receive()? {
                None => return Err(Error::setup("the session has ended, and the job with it")),
                Some(Said::Answer(id, outcome)) if id == end => {
                    drop(raw.take());
                    let end: End = understood(outcome)?;
                    if let Some(note) = &end.note {
                        output::complain(note.trim_matches(['[', ']']));
                    }
                    return Ok(Followed::Ended(end));
                }
                Some(Said::Answer(id, outcome)) => {
                    if writing == Some(id) {
                        writing = None;
                        // It reads no more.
                        open = open && outcome.is_ok();
                    }
                }
                Some(Said::Notification(Notification::Output { job: of, stream, bytes })) if of == job => {
                    write_out(stream, bytes)?
                }
                Some(Said::Notification(_)) => {}
            }
        }
        let input = std::io::stdin();
        let mut fds =
            vec![PollFd::new(client.socket().as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        if open && writing.is_none() {
            fds.push(PollFd::new(input.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(cannot(errno)),
        }
        let ready = |at: usize| fds.get(at).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
        let (signalled, typed) = (ready(1), ready(2));
        drop(fds);
        if signalled {
            while let Ok(Some(info)) = signals.read_signal() {
                if attached && info.ssi_signo != Signal::SIGWINCH as u32 {
                    return Ok(Followed::Left);
                }
                forward(client, job, info.ssi_signo as i32)?;
                if let Some(suspend) = suspend.filter(|_| info.ssi_signo == Signal::SIGTSTP as u32) {
                    suspend();
                    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                    forward(client, job, Signal::SIGCONT as i32)?;
                }
            }
        }
        if typed {
            let mut buffer = vec![0; PIECE];
            let length = input.lock().read(&mut buffer).unwrap_or(0);
            buffer.truncate(length);
            open = length > 0;
            if attached && let Some(at) = buffer.iter().position(|byte| *byte == DETACH) {
                buffer.truncate(at);
                let Bytes { data, base64 } = Bytes::of(buffer);
                let _: Value = client.ask("write", &WriteParams { job, data, base64, eof: false })?;
                return Ok(Followed::Left);
            }
            // The end of our input is not the job's when others may have more for it.
            if attached && length == 0 {
                continue;
            }
            let Bytes { data, base64 } = Bytes::of(buffer);
            writing = Some(client.send("write", &WriteParams { job, data, base64, eof: length == 0 })?);
        }
    }
}

fn is_ready(client: &Client) -> Result<bool, Error> {
    let mut fds = [PollFd::new(client.socket().as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0))
}

fn forward(client: &mut Client, job: u32, signal: i32) -> Result<(), Error> {
    let Ok(signal) = Signal::try_from(signal) else { return Ok(()) };
    if signal == Signal::SIGWINCH {
        if let Some((rows, columns)) = outer_size() {
            client.send("resize", &Resize { job, rows, columns })?;
        }
        return Ok(());
    }
    let name = signal.as_str().trim_start_matches("SIG").to_owned();
    client.send("signal", &SignalParams { job, signal: name, group: true }).map(drop)
}

fn write_out(stream: Stream, bytes: Bytes) -> Result<(), Error> {
    let bytes = bytes.bytes().map_err(|failure| Error::setup(failure.message))?;
    let written = match stream {
        Stream::Stdout => std::io::stdout().lock().write_all(&bytes).and_then(|()| std::io::stdout().flush()),
        Stream::Stderr => std::io::stderr().lock().write_all(&bytes),
    };
    written.map_err(|e| Error::setup(format!("cannot write the job's output: {e}")))
}
