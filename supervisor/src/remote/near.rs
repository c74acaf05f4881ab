//! The near half: what was called. Reads policy files, decides about the network, and leads clients to the far half.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hermes_backends::compile::network::is_mediated;
use hermes_egress::proxy::OwnAddress;
use hermes_profiles::{Caller, Policy, UnknownHosts, resolve};
use tokio::io::AsyncReadExt;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::files::{Bundle, Recorder};
use super::hello::{self, Asked, Bytes, Errand, Hello, ToFar, ToNear, Wanted, WayOut, at_home};
use super::mux::{self, BEAT, Lost, Side};
use super::{Backend, CHATTER, Channel, GREETING, Here, ways};
use crate::args::PolicyArgs;
use crate::error::Error;
use crate::events::Log;
use crate::network::{Decider, raise_descriptors};
use crate::output;
use crate::request;
use crate::session::protocol::Reason;

mod client;
mod routes;
mod run;
mod serve;

use routes::{Listening, LiveRoutes};
pub(super) use run::run;
pub(super) use serve::serve;

/// How long the far half may take to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(30);

/// The far half, from here. It ends when this is dropped.
pub(super) struct Near {
    name: String,
    orders: UnboundedSender<Order>,
    said: UnboundedReceiver<Said>,
}

/// What the thread that holds the channel is to do.
enum Order {
    /// Lead this client there.
    Lead(UnixStream, Wanted),
    Say(ToFar),
    /// Read the policy again.
    Reload,
}

/// What comes of it.
#[derive(Debug)]
pub(super) enum Said {
    /// The sandbox stands, and serves.
    Ready,
    /// What was asked for.
    Answer { text: String, status: u8 },
    /// Nothing more comes.
    Over(Result<Reason, Error>),
}

impl Near {
    /// Starts the far half for an errand, and a thread that holds the channel. Nothing is awaited yet.
    ///
    /// # Errors
    /// Options or policy files make no sense, or a secret is missing: then nothing was started.
    pub(super) fn start(mut backend: Box<dyn Backend>, args: &PolicyArgs, mut errand: Errand, log: &Log) -> Result<Self, Error> {
        backend.refuse(args)?;
        let caller = request::caller(None)?;
        let here = backend.is_here();
        let asker = match (&errand, here) {
            (Errand::Doctor { .. }, false) => Asker { args: args.clone(), caller: caller.clone(), here },
            _ => Asker::new(args, &caller, here)?,
        };
        let mut prepare = |policy: &Policy, command: Option<(&[Bytes], Option<&str>)>| {
            let words: Option<Vec<_>> = command.map(|(words, _)| words.iter().map(Bytes::text).collect());
            let session = command.and_then(|(_, session)| session);
            let checkpoint = args.checkpoint;
            backend.prepare(Here { policy, caller: &caller, command: words.as_deref(), session, checkpoint, log })
        };
        let (mut asked, decider) = match &mut errand {
            Errand::Doctor { .. } if !here => (Asked::default(), None),
            Errand::Doctor { .. } | Errand::Plan { .. } => {
                let (policy, asked) = asker.resolve(None)?;
                prepare(&policy, None)?;
                (asked, None)
            }
            Errand::Sandbox { way_out, command, name, .. } => {
                let (policy, asked) = asker.resolve(None)?;
                prepare(&policy, Some((command, name.as_deref())))?;
                let decider = match is_mediated(&policy) {
                    true => Some(Decider::new(&policy, &caller, log, Arc::new(OwnAddress))?),
                    false => None,
                };
                if let Some(decider) = &decider {
                    raise_descriptors();
                    let (authority, placeholders) = (decider.authority()?.to_owned(), decider.placeholders.clone());
                    *way_out = Some(WayOut { authority, placeholders });
                }
                let own = (policy.unknown_hosts, policy.profile.clone());
                (asked, decider.map(|decider| Deciding { decider, asker, own, project: None }))
            }
        };
        if let Some(deciding) = &decider {
            // In their place stand placeholders.
            let secret = |name: &Bytes| deciding.decider.placeholders.iter().any(|(known, _)| name.text() == known.as_str());
            asked.variables.retain(|(name, _)| !secret(name));
        }
        let (orders, ordered) = unbounded_channel();
        let (says, said) = unbounded_channel();
        let name = backend.name();
        let cannot = |e: io::Error| Error::setup(format!("cannot start what leads to the other side: {e}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let link = Link {
            backend,
            name: name.clone(),
            hello: Hello { errand, asked, enclosed: None },
            deciding: decider,
            log: log.another()?,
            says,
        };
        std::thread::Builder::new().name("hermes-link".to_owned()).spawn(move || link.run(&runtime, ordered)).map_err(cannot)?;
        Ok(Self { name, orders, said })
    }

    /// What is on the other side.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for what comes next.
    ///
    /// # Errors
    /// It is over because something failed.
    pub(super) fn wait(&mut self) -> Result<Said, Error> {
        over(self.said.blocking_recv())
    }

    /// Waits until the sandbox stands, and serves.
    fn ready(&mut self) -> Result<(), Error> {
        match self.wait()? {
            Said::Ready => Ok(()),
            _ => Err(Error::setup(format!("{} ended before it began", self.name))),
        }
    }

    /// As [`wait`](Self::wait), within a runtime.
    async fn next(&mut self) -> Result<Said, Error> {
        over(self.said.recv().await)
    }

    fn lead(&self, client: UnixStream, wanted: Wanted) {
        let _ = self.orders.send(Order::Lead(client, wanted));
    }

    fn say(&self, message: ToFar) {
        let _ = self.orders.send(Order::Say(message));
    }

    /// Has it end, and waits for that.
    fn end(mut self) -> Result<Reason, Error> {
        self.say(ToFar::Stop);
        loop {
            if let Said::Over(outcome) = self.wait()? {
                return outcome;
            }
        }
    }
}

fn over(said: Option<Said>) -> Result<Said, Error> {
    match said {
        Some(Said::Over(Err(error))) => Err(error),
        Some(said) => Ok(said),
        None => Err(Error::setup("what leads to the other side has ended")),
    }
}

/// Makes what is asked for from the options, as often as it is needed.
struct Asker {
    args: PolicyArgs,
    caller: Caller,
    /// The paths there are those here.
    here: bool,
}

impl Asker {
    fn new(args: &PolicyArgs, caller: &Caller, here: bool) -> Result<Self, Error> {
        if here {
            let mut args = args.clone();
            let given = args.workspace.take().unwrap_or_default();
            args.workspace = Some(hermes_profiles::paths::normalise(&caller.cwd.join(given)));
            for path in args.ro.iter_mut().chain(&mut args.rw).chain(&mut args.deny) {
                *path = caller.cwd.join(&*path);
            }
            return Ok(Self { args, caller: caller.clone(), here });
        }
        let none = || {
            Error::usage("a sandbox on another machine needs --workspace")
                .hint("name a directory there: absolute, or below the home directory there")
        };
        args.workspace.as_ref().ok_or_else(none)?;
        Ok(Self { args: args.clone(), caller: caller.clone(), here })
    }

    /// The policy as far as it can be told here, with the project's own file once that is known.
    fn resolve(&self, project: Option<Vec<u8>>) -> Result<(Policy, Asked), Error> {
        let mut request = request::request(&self.args, self.caller.clone());
        let given = self.args.workspace.clone().unwrap_or_default();
        // What is below the home directory there has no name here.
        let workspace = at_home(&given, Some(Path::new("/home directory there")));
        request.workspace = Some(workspace.clone());
        // The other side asks again, about its own directories.
        request.overrides.allow_broad |= !self.here;
        let recorder = Recorder::new(&self.caller, &workspace, project);
        let policy = resolve(&request, &recorder)?.policy;
        if !(policy.loopback.connect.is_empty() && policy.loopback.publish.is_empty()) {
            return Err(Error::usage("ports of the loopback (--connect, --publish) cannot be shared with another machine yet"));
        }
        let asked = self.asked(given, recorder.into_bundle());
        Ok((policy, asked))
    }

    fn asked(&self, workspace: PathBuf, files: Bundle) -> Asked {
        let request = request::request(&self.args, self.caller.clone());
        let is_file = |profile: &str| profile.contains('/') || profile.ends_with(".toml");
        let profile = request.profile.map(|profile| match is_file(&profile) {
            true => self.caller.cwd.join(&profile).to_string_lossy().into_owned(),
            false => profile,
        });
        let named = request.overrides.env.iter().map(String::as_str);
        let home: &[&str] = if self.here { &["TERM", "HOME"] } else { &["TERM"] };
        let variables =
            named.chain(home.iter().copied()).map(|name| (Bytes::of(name), self.caller.variable(name).map(Bytes::of))).collect();
        Asked {
            profile,
            source: request.source,
            workspace: Bytes::of(workspace.as_os_str()),
            overrides: request.overrides,
            tier: self.args.tier,
            checkpoint: self.args.checkpoint,
            verbose: self.args.verbose,
            variables,
            files,
        }
    }
}

/// Decides about connections, by a policy that the project's own file may narrow.
struct Deciding {
    decider: Decider,
    asker: Asker,
    /// How the policy has unknown hosts treated, and which profile it is of.
    own: (UnknownHosts, String),
    /// The project's own file as it was at the start.
    project: Option<Vec<u8>>,
}

impl Deciding {
    fn narrow(&mut self, project: Vec<u8>) -> Result<(), Error> {
        let (policy, _) = self.asker.resolve(Some(project.clone()))?;
        self.project = Some(project);
        let egress = &self.decider.egress;
        let swapped = match policy.unknown_hosts {
            UnknownHosts::Refuse => egress.close(policy.routes()),
            _ => egress.replace(policy.routes()),
        };
        swapped.map(drop).map_err(|e| Error::setup(e.to_string()))
    }

    /// The policy as it is now, for a sandbox that is there.
    fn again(&self) -> Result<Policy, Error> {
        Ok(self.asker.resolve(self.project.clone())?.0)
    }
}

/// What the thread has.
struct Link {
    backend: Box<dyn Backend>,
    name: String,
    hello: Hello,
    deciding: Option<Deciding>,
    log: Log,
    says: UnboundedSender<Said>,
}

impl Link {
    fn run(mut self, runtime: &tokio::runtime::Runtime, ordered: UnboundedReceiver<Order>) {
        let outcome = runtime.block_on(self.hold(ordered));
        if let Some(deciding) = &self.deciding {
            deciding.decider.egress.end();
            deciding.decider.tell();
        }
        let finished = runtime.block_on(self.backend.finish());
        let outcome = outcome.and_then(|reason| finished.map(|()| reason));
        let says = self.says.clone();
        // The process there has ended when it is told.
        drop(self);
        let _ = says.send(Said::Over(outcome));
    }

    async fn hold(&mut self, mut ordered: UnboundedReceiver<Order>) -> Result<Reason, Error> {
        let mut channel = self.backend.launch().await?;
        self.backend.greet(&mut self.hello);
        self.name = self.backend.name();
        if let Err(e) = greeted(&mut channel).await {
            drop(channel);
            let mut silent = self.backend.why_silent();
            if silent.is_none()
                && let Some(words) = self.backend.epitaph().await
            {
                silent = Some(Error::setup(format!("cannot start on {}: {words}", self.name)));
            }
            return Err(silent.unwrap_or_else(|| Error::setup(format!("cannot start on {}: {e}", self.name))));
        }
        let (mux, mut streams, driver) = mux::over(channel, Side::Near);
        let mut tasks = JoinSet::new();
        let mut driver = Some(tokio::spawn(driver.run()));
        let lost = |e: io::Error| Error::setup(format!("cannot speak with {}: {e}", self.name));
        let mut control = mux.open().await.map_err(lost)?;
        hello::write(&mut control, &self.hello).await.map_err(lost)?;
        let (reader, writer) = tokio::io::split(control);
        let (say, to_say) = unbounded_channel();
        let (tell, mut heard) = unbounded_channel();
        tasks.spawn(beat(writer, to_say));
        tasks.spawn(hear(reader, tell));
        let (mut decides, mut why) = (false, Lost::Ended);
        let (listen, mut to_listen) = unbounded_channel::<(Vec<u16>, Listening)>();
        let mut listening: VecDeque<Listening> = VecDeque::new();
        let routes = self.deciding.as_ref().map(|deciding| Arc::new(LiveRoutes::new(deciding, listen.clone())));
        loop {
            tokio::select! {
                lost = ended(&mut driver), if driver.is_some() => {
                    // What came before is still heard.
                    (driver, why) = (None, lost);
                }
                message = heard.recv() => match message {
                    None => {
                        let why = if driver.is_some() { ended(&mut driver).await } else { why };
                        return Err(self.lost(why).await);
                    }
                    Some(ToNear::Listens(outcome)) => drop(listening.pop_front().map(|waits| waits.send(outcome))),
                    Some(message) => {
                        decides |= matches!(message, ToNear::Resolved { .. });
                        if let Some(reason) = self.take(message)? {
                            return Ok(reason);
                        }
                    }
                },
                order = ordered.recv() => match order {
                    Some(Order::Say(message)) => drop(say.send(message)),
                    Some(Order::Lead(client, wanted)) => {
                        tasks.spawn(client::lead(mux.clone(), client, wanted, routes.clone()));
                    }
                    Some(Order::Reload) => drop(tasks.spawn(routes::reload(self.deciding.as_ref().map(Deciding::again), routes.clone()))),
                    // Nobody wants anything any more.
                    None => return Ok(Reason::Stopped),
                },
                Some((ports, waits)) = to_listen.recv() => {
                    listening.push_back(waits);
                    let _ = say.send(ToFar::Listen(ports));
                }
                Some(stream) = streams.recv(), if decides => {
                    if let Some(deciding) = &self.deciding {
                        let egress = Arc::clone(&deciding.decider.egress);
                        tasks.spawn(async move { drop(ways::take(egress, stream).await) });
                    }
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    /// Takes what the far half says; the reason when all is over.
    fn take(&mut self, message: ToNear) -> Result<Option<Reason>, Error> {
        match message {
            ToNear::Beat | ToNear::Listens(_) => {}
            ToNear::Said(line) => output::pass_on(&String::from_utf8_lossy(&line)),
            ToNear::Event(line) => self.log.take_line(&line)?,
            ToNear::Resolved { project } => {
                if let (Some(project), Some(deciding)) = (project, &mut self.deciding) {
                    deciding.narrow(project)?;
                }
            }
            ToNear::Ready => drop(self.says.send(Said::Ready)),
            ToNear::Answer { text, status } => {
                let _ = self.says.send(Said::Answer { text, status });
                return Ok(Some(Reason::Stopped));
            }
            ToNear::Failed { kind, message, hints } => {
                let error = Error::new(kind, format!("on {}: {message}", self.name));
                return Err(hints.into_iter().fold(error, Error::hint));
            }
            ToNear::Ended(reason) => return Ok(Some(reason)),
        }
        Ok(None)
    }

    async fn lost(&mut self, why: Lost) -> Error {
        let error = Error::setup(format!("the connection to {} was lost; what ran there has been killed", self.name));
        let epitaph = match why {
            // An engine knows why: the container was paused, or is gone.
            Lost::Silent if self.backend.is_here() => self.backend.epitaph().await,
            Lost::Silent => Some(format!("nothing came from there for {} s", mux::SILENCE.as_secs())),
            Lost::Broken => Some("what came from there made no sense".to_owned()),
            Lost::Ended => self.backend.epitaph().await,
        };
        epitaph.into_iter().fold(error, Error::hint)
    }
}

async fn ended(driver: &mut Option<tokio::task::JoinHandle<Lost>>) -> Lost {
    match driver {
        Some(driver) => driver.await.unwrap_or(Lost::Broken),
        None => std::future::pending().await,
    }
}

/// Skips what comes before the greeting.
async fn greeted(channel: &mut Box<dyn Channel>) -> io::Result<()> {
    let greeting = async {
        let mut line = Vec::new();
        for _ in 0..CHATTER {
            match channel.read_u8().await? {
                b'\n' if line.ends_with(GREETING.as_bytes()) => return Ok(()),
                b'\n' => line.clear(),
                byte => line.push(byte),
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "something else speaks there"))
    };
    tokio::time::timeout(FIRST_WORD, greeting).await?
}

/// Says what is to be said, and that we live.
async fn beat(mut writer: impl tokio::io::AsyncWrite + Unpin, mut to_say: UnboundedReceiver<ToFar>) {
    loop {
        let message = tokio::select! {
            Some(message) = to_say.recv() => message,
            () = tokio::time::sleep(BEAT) => ToFar::Beat,
        };
        if hello::write(&mut writer, &message).await.is_err() {
            return;
        }
    }
}

async fn hear(mut reader: impl tokio::io::AsyncRead + Unpin, tell: UnboundedSender<ToNear>) {
    while let Ok(message) = hello::read(&mut reader).await {
        if tell.send(message).is_err() {
            return;
        }
    }
}
