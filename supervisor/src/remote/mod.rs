//! Sandboxes on another kernel: a host by ssh, a container.
//!
//! # The seam
//!
//! A [`Backend`] brings this same program to the other side and starts it there as [`FAR_COMMAND`]; what it has to give back is a
//! [`Channel`]: an ordered duplex stream to that process's standard input and output. All the rest is the same for every backend and
//! is done here, in two halves of this program:
//!
//! - **far** ([`far::main`]) is a whole supervisor. It measures its own kernel, looks at its own paths, compiles its own plan, and
//!   runs jobs with the machinery of `serve`. It ends, and all that runs in it, as soon as its standard input ends or nothing has
//!   come for [`mux::SILENCE`].
//! - **near** ([`near`]) is what was called: it reads policy files and secrets, decides about the network, and speaks with people.
//!
//! To add a backend: implement [`Backend`], and name it in [`backend`]. The far command line takes no options, so nothing of the
//! policy can be seen in a process list; standard error is free for what goes wrong before the first byte. The far half assumes
//! nothing about how it was reached, in particular not that its paths are other than here: a container whose workspace is a bind
//! mount of this host's directory has the same path in its [`hello::Hello`] as the caller named. It needs no environment
//! but `PATH`, and a `HOME` that may be missing.
//!
//! # On the channel
//!
//! The far half writes [`GREETING`] and a newline; what comes before it, at most [`CHATTER`] bytes, is skipped (login scripts talk).
//! After that both speak yamux, near as its client. The first stream is the control stream: [`hello::Hello`] from near, then
//! [`hello::ToFar`] and [`hello::ToNear`]. Near opens streams that begin with a [`hello::Wanted`], e.g. one client of the
//! session protocol; far opens streams that begin with a [`Way`](crate::network::Way): one connection out of the sandbox, which the rules here decide about.

mod docker;
pub(crate) mod far;
mod files;
pub(crate) mod hello;
pub(crate) mod mux;
mod near;
mod ssh;
mod standard;
mod ways;

use std::ffi::OsString;
use std::future::Future;
use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::args::{self, BackendArgs, PlanArgs, PolicyArgs, RunArgs, ServeArgs};
use crate::error::Error;
use crate::events::Log;
use crate::output;
use crate::session::Found;
use hello::{Errand, Hello};
use hermes_profiles::{Caller, Policy};
use near::{Near, Said};

/// How this program is started on the other side: `hermes-sandbox remote`.
pub(crate) const FAR_COMMAND: &str = "remote";

/// What the far half says first, on a line of its own. Another version of the program does not understand this one.
pub(crate) const GREETING: &str = concat!("hermes-sandbox remote ", env!("CARGO_PKG_VERSION"));

/// Bytes that may come before the greeting.
pub(crate) const CHATTER: usize = 64 * 1024;

/// A duplex stream. Its reading half ends when the far process has ended.
pub(crate) trait Channel: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Channel for T {}

/// An answer some time later.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a backend whose paths are this machine's is told before anything is started.
#[derive(Clone, Copy)]
pub(crate) struct Here<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) caller: &'a Caller,
    /// What jobs are for; `None` where none run.
    pub(crate) command: Option<&'a [OsString]>,
    pub(crate) session: Option<&'a str>,
    pub(crate) checkpoint: bool,
    pub(crate) log: &'a Log,
}

/// A way to another kernel.
pub(crate) trait Backend: Send {
    /// What is on the other side, in words that fit behind "on" and "to", e.g. `user@host.example.test`.
    fn name(&self) -> String;

    /// Refuses, by name, what this backend cannot do with these options. Asked before anything is started.
    ///
    /// # Errors
    /// The option, and why.
    fn refuse(&self, args: &PolicyArgs) -> Result<(), Error>;

    /// Are its paths those of this machine? Then it is told the policy by [`Backend::prepare`], and guards what jobs can write.
    fn is_here(&self) -> bool {
        false
    }

    /// Takes what it needs of the policy. Called before [`Backend::launch`] where [`Backend::is_here`].
    ///
    /// # Errors
    /// The policy cannot be had there, and why.
    fn prepare(&mut self, _here: Here<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Adds to the first message what only the backend knows.
    fn greet(&self, _hello: &mut Hello) {}

    /// Called when all is over, however that came to be.
    ///
    /// # Errors
    /// What was started is not gone, or what jobs have left cannot be put aside.
    fn finish(&mut self) -> Later<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Starts the far half. Called within a runtime of tokio, on whose thread the channel is used from then on.
    ///
    /// # Errors
    /// One line: what failed, why, and what to do. Nothing is left running then.
    fn launch(&mut self) -> Later<'_, Result<Box<dyn Channel>, Error>>;

    /// Asked when the channel ended before the far half had said its [`GREETING`]: why.
    fn why_silent(&mut self) -> Option<Error> {
        None
    }

    /// Asked when the channel ended before the far half had said that it ends: what the transport has to say about it.
    fn epitaph(&mut self) -> Later<'_, Option<String>> {
        Box::pin(std::future::ready(None))
    }
}

/// The backend that the options choose.
fn backend(place: &BackendArgs) -> Result<Box<dyn Backend>, Error> {
    match place.chosen()? {
        args::Backend::Ssh => Ok(Box::new(ssh::Ssh::new(place)?)),
        args::Backend::Docker => Ok(Box::new(docker::Docker::new(place)?)),
        _ => Err(Error::usage("there is nothing on another kernel here")),
    }
}

/// Runs a command there, with our own streams. Returns the exit status.
pub(crate) fn run(args: RunArgs, log: &mut Log) -> Result<u8, Error> {
    near::run(backend(&args.policy.place)?, args, log)
}

/// Opens a sandbox there and serves its clients here. Returns the exit status.
pub(crate) fn serve(args: &ServeArgs, found: Found, log: &mut Log) -> Result<u8, Error> {
    near::serve(backend(&args.policy.place)?, args, found, log)
}

/// Prints what would be done there.
pub(crate) fn plan(args: &PlanArgs) -> Result<u8, Error> {
    let backend = backend(&args.policy.place)?;
    backend.refuse(&args.policy)?;
    let errand = Errand::Plan { command: hello::Bytes::words(&args.command), json: args.json };
    answered(Near::start(backend, &args.policy, errand, &Log::default())?, args.json)
}

/// Prints what the machine there can enforce.
pub(crate) fn doctor(place: &BackendArgs, json: bool, verbose: bool) -> Result<u8, Error> {
    answered(Near::start(backend(place)?, &PolicyArgs::default(), Errand::Doctor { json, verbose }, &Log::default())?, json)
}

/// Removes containers that dead processes of this user have left.
pub(crate) fn clean() -> Result<u8, Error> {
    let removed = docker::sweep()?;
    let text = match removed.len() {
        0 => "no container was left over\n".to_owned(),
        _ => removed.iter().map(|id| format!("removed {}\n", output::clean(id))).collect(),
    };
    output::print(&text).map(|()| 0)
}

fn answered(mut near: Near, json: bool) -> Result<u8, Error> {
    let Said::Answer { text, status } = near.wait()? else { return Err(Error::setup("the other side did not answer")) };
    if json {
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| Error::setup(format!("the other side's answer is not understood: {e}")))?;
        return output::print_json(&value).map(|()| status);
    }
    let lines = text.lines().map(|line| output::clean(line).into_owned() + "\n");
    output::print(&lines.collect::<String>()).map(|()| status)
}
