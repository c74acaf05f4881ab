//! The mediated way out of one sandbox: the proxy in a thread of its own, and what it has to tell.

mod calls;
mod decider;
mod elsewhere;
mod foretell;
mod loopback;
mod pace;
mod told;
mod trust;
mod unknown;

use std::collections::{BTreeSet, VecDeque};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hermes_backends::compile::network::MOST_PORTS;
use hermes_backends::local::Sandbox;
use hermes_backends::plan::{GatewayPlan, NetworkPlan, Plan};
use hermes_backends::wire::{self, Certificates, Listener};
use hermes_egress::policy::Invalid;
use hermes_egress::proxy::{Meant, OwnAddress};
use hermes_egress::{Egress, Listeners};
use hermes_profiles::{Caller, LoopbackRules, Policy, Route, UnknownHosts};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::events::Log;
use crate::output;
use calls::Calls;
pub(crate) use decider::Decider;
use elsewhere::Elsewhere;
pub(crate) use elsewhere::{Duplex, Offer, Opening, Way};
pub(crate) use foretell::foretell;

/// How long connections may go on after the sandbox has ended.
const LAST: Duration = Duration::from_millis(500);

/// Why a live sandbox can be given no routes.
pub(crate) const NO_WAY_OUT: &str = "the sandbox was started without a way out; start another one with a route";
/// Why the far half of a sandbox changes none.
const NOT_HERE: &str = "routes are decided on the machine that the session was started from";

/// The way out of one sandbox, and what its loopback shares with the host's. Connections end when it is dropped.
pub(crate) struct WayOut {
    decides: Decides,
    gateway: Option<GatewayPlan>,
    /// Without namespaces: by whose word a connection is the sandbox's.
    calls: Option<Calls>,
    roots: Option<PathBuf>,
    /// Sockets on the host that lead to ports inside, until they are served.
    published: Vec<(TcpListener, u16)>,
    /// To the thread, which ends with it.
    thread: Option<UnboundedSender<Input>>,
    changes: VecDeque<Change>,
}

/// Who decides about connections.
enum Decides {
    /// This process.
    Here(Decider),
    /// The one that this process works for.
    Elsewhere(Arc<Elsewhere>),
}

/// What the thread is given.
enum Input {
    Listeners(Vec<(Listener, OwnedFd)>),
    /// A socket of the sandbox's own network, or none.
    Socket(Option<OwnedFd>),
    /// Nobody is inside any more: to be answered when their connections have ended.
    Finish(std::sync::mpsc::Sender<()>),
}

/// What waits for ports.
struct Change {
    ports: Vec<u16>,
    /// What is to be done then; nothing where somebody else does it.
    swap: Option<(Swap, Vec<Route>)>,
    reply: Reply,
}

/// How routes take the place of others.
type Swap = fn(&Egress, &[Route]) -> Result<u64, Invalid>;

/// Who wants to know of new routes: their generation, or why the old ones are kept.
pub(crate) type Reply = oneshot::Sender<Result<u64, String>>;

impl WayOut {
    /// What the policy needs; `None` for a sandbox that shares nothing with any network.
    ///
    /// # Errors
    /// A route or the caller's own proxy cannot be used, or a port that is to be published is taken.
    pub(crate) fn new(policy: &Policy, plan: &Plan, caller: &Caller, log: &Log) -> Result<Option<Self>, Error> {
        Self::by(policy, plan, caller, |meant| Decider::new(policy, caller, log, meant).map(Decides::Here))
    }

    /// The same, with decisions made elsewhere.
    pub(crate) fn elsewhere(policy: &Policy, plan: &Plan, caller: &Caller, offer: Offer) -> Result<Option<Self>, Error> {
        Self::by(policy, plan, caller, |meant| Ok(Decides::Elsewhere(Arc::new(Elsewhere::new(offer, meant)))))
    }

    fn by(
        policy: &Policy,
        plan: &Plan,
        caller: &Caller,
        decides: impl FnOnce(Arc<dyn Meant>) -> Result<Decides, Error>,
    ) -> Result<Option<Self>, Error> {
        let LoopbackRules { connect, publish } = &policy.loopback;
        if plan.network == NetworkPlan::NoSockets && !(connect.is_empty() && publish.is_empty()) {
            return Err(Error::setup("ports of the loopback cannot be shared without a network namespace")
                .hint("leave --connect and --publish out, or use a kernel with user and network namespaces"));
        }
        if plan.network == NetworkPlan::Notified && !publish.is_empty() {
            return Err(Error::setup(
                "no port can be published without a network namespace: there every server of the sandbox is on the host's loopback, \
                 under whatever port it can get",
            )
            .hint("leave --publish out and connect to the server's own port, or use a kernel with user and network namespaces"));
        }
        // With the host's network what listens inside listens there.
        let publish: Vec<u16> = publish.iter().copied().filter(|_| plan.network == NetworkPlan::Private).collect();
        if plan.gateway.is_none() && plan.connect.is_empty() && publish.is_empty() {
            return Ok(None);
        }
        let calls = match (&plan.gateway, plan.network) {
            (Some(gateway), NetworkPlan::Notified) => Some(Calls::new(gateway, plan)?),
            _ => None,
        };
        let decides = decides(calls.as_ref().map_or_else(|| Arc::new(OwnAddress) as _, Calls::meant))?;
        let roots = if plan.gateway.is_some() { trust::roots(caller)? } else { None };
        let published = publish.iter().map(|port| loopback::publish(*port)).collect::<Result<_, _>>()?;
        let (gateway, changes) = (plan.gateway.clone(), VecDeque::new());
        Ok(Some(Self { decides, gateway, calls, roots, published, thread: None, changes }))
    }

    /// Variables that programs expect secrets in, and what stands in the place of these inside.
    pub(crate) fn placeholders(&self) -> &[(String, String)] {
        match &self.decides {
            Decides::Here(decider) => &decider.placeholders,
            Decides::Elsewhere(elsewhere) => elsewhere.placeholders(),
        }
    }

    /// What is trusted inside: the system's certificates, and the proxy's own.
    pub(crate) fn certificates(&self, plan: &Plan) -> Result<Certificates, Error> {
        if self.gateway.is_none() {
            return Ok(Certificates::default());
        }
        let own = match &self.decides {
            Decides::Here(decider) => decider.authority()?,
            Decides::Elsewhere(elsewhere) => elsewhere.authority(),
        };
        trust::certificates(plan, self.roots.as_deref(), own)
    }

    /// Starts the thread, once there is a sandbox. What is served it is told by [`hear`](Self::hear).
    pub(crate) fn start(&mut self, sandbox: &Sandbox) -> Result<(), Error> {
        raise_descriptors();
        let cannot = |e: &dyn std::fmt::Display| Error::setup(format!("cannot start the proxy: {e}"));
        let inside = loopback::Inside::new(sandbox.another_channel().map_err(|e| cannot(&e))?);
        let (thread, inputs) = unbounded_channel();
        self.thread = Some(thread);
        let (serves, published) = (self.decides.serves(), std::mem::take(&mut self.published));
        for (_, port) in &published {
            output::complain(&format!("port {port} of the sandbox is shown on 127.0.0.1:{port}"));
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| cannot(&e))?;
        let work = move || {
            if let Err(e) = runtime.block_on(serve(serves, inside, published, inputs)) {
                output::complain(&format!("the proxy has ended, and nothing reaches the network any more: {e}"));
            }
        };
        std::thread::Builder::new().name("hermes-egress".to_owned()).spawn(work).map(drop).map_err(|e| cannot(&e))
    }

    /// Takes what init says about the network.
    pub(crate) fn hear(&mut self, event: &wire::Event, fds: Vec<OwnedFd>) {
        let input = match event {
            wire::Event::Listening(kinds) => Input::Listeners(self.mediated(kinds.iter().copied().zip(fds).collect())),
            wire::Event::Socket => Input::Socket(fds.into_iter().next()),
            wire::Event::ListenFailed(error) => {
                if let Some(change) = self.changes.pop_front() {
                    let _ = change.reply.send(Err(error.to_string()));
                }
                return;
            }
            _ => return,
        };
        let answers =
            matches!(event, wire::Event::Listening(kinds) if kinds.iter().all(|kind| matches!(kind, Listener::Transparent(_))));
        if let Some(thread) = &self.thread {
            let _ = thread.send(input);
        }
        if answers && let Some(change) = self.changes.pop_front() {
            self.add_ports(change.ports.iter().copied());
            // Nobody has waited to the end: then nobody relies on it either.
            if !change.reply.is_closed() {
                let _ = change.reply.send(change.swap.map_or(Ok(0), |(swap, routes)| self.swap(swap, &routes)));
            }
        }
    }

    /// Has the calls among these answered, which leads to listeners instead.
    fn mediated(&self, mut all: Vec<(Listener, OwnedFd)>) -> Vec<(Listener, OwnedFd)> {
        let at = all.iter().position(|(kind, _)| *kind == Listener::Calls);
        if let (Some(at), Some(mediator)) = (at, &self.calls) {
            let (_, calls) = all.swap_remove(at);
            match mediator.serve(calls) {
                Ok(listeners) => all.extend(listeners),
                // Every call fails then.
                Err(error) => drop(error.report()),
            }
        }
        all
    }

    /// Other routes from now on, or the old ones and why. Returns ports that init is to listen on first, which then tells
    /// [`hear`](Self::hear).
    pub(crate) fn replace(&mut self, routes: Vec<Route>, unknown: UnknownHosts, reply: Reply) -> Option<Vec<u16>> {
        let swap: Swap = if unknown == UnknownHosts::Refuse { Egress::close } else { Egress::replace };
        let new = match self.new_ports(&routes) {
            Ok(new) if !new.is_empty() => new,
            nothing_to_wait_for => {
                let outcome = nothing_to_wait_for.and_then(|_| self.swap(swap, &routes));
                let _ = reply.send(outcome);
                return None;
            }
        };
        let ports = routes.iter().flat_map(|route| route.ports.iter().copied()).collect();
        self.changes.push_back(Change { ports, swap: Some((swap, routes)), reply });
        Some(new)
    }

    /// Leads these ports to whoever decides elsewhere, too. Returns those that init is to listen on first.
    pub(crate) fn listen(&mut self, ports: Vec<u16>, reply: Reply) -> Option<Vec<u16>> {
        match self.not_open(ports.iter().copied()) {
            Ok(new) if !new.is_empty() => {
                self.changes.push_back(Change { ports, swap: None, reply });
                Some(new)
            }
            nothing_to_wait_for => {
                let _ = reply.send(nothing_to_wait_for.map(|_| 0));
                None
            }
        }
    }

    fn swap(&self, swap: Swap, routes: &[Route]) -> Result<u64, String> {
        match &self.decides {
            Decides::Here(decider) => swap(&decider.egress, routes).map_err(|e| e.to_string()),
            Decides::Elsewhere(_) => Err(NOT_HERE.to_owned()),
        }
    }

    /// The ports of these routes on which nobody listens yet, or why the routes cannot be had.
    fn new_ports(&self, routes: &[Route]) -> Result<Vec<u16>, String> {
        self.not_open(routes.iter().flat_map(|route| route.ports.iter().copied()))
    }

    fn not_open(&self, ports: impl Iterator<Item = u16>) -> Result<Vec<u16>, String> {
        if !self.changes.is_empty() {
            return Err("another change is under way; try again".to_owned());
        }
        let gateway = self.gateway.as_ref().ok_or(NO_WAY_OUT)?;
        if let Some(calls) = &self.calls {
            calls.open(ports);
            return Ok(Vec::new());
        }
        let known: BTreeSet<u16> = gateway.ports.iter().copied().collect();
        // Where names are resolved nothing else is.
        let new: BTreeSet<u16> = ports.filter(|port| !known.contains(port) && *port != 53).collect();
        match known.len() + new.len() > MOST_PORTS {
            true => Err(format!("routes lead to more than {MOST_PORTS} ports")),
            false => Ok(new.into_iter().collect()),
        }
    }

    /// The routes that hold and how often they were replaced.
    pub(crate) fn routes(&self) -> (Vec<Route>, u64) {
        match &self.decides {
            Decides::Here(decider) => decider.egress.routes(),
            Decides::Elsewhere(_) => Default::default(),
        }
    }

    fn add_ports(&mut self, more: impl Iterator<Item = u16>) {
        if let Some(gateway) = &mut self.gateway {
            gateway.ports.extend(more);
            gateway.ports.sort_unstable();
            gateway.ports.dedup();
        }
    }

    /// Waits until what the sandbox has sent last is on its way, and tells people, in a line, what was refused.
    pub(crate) fn finish(&mut self) {
        if let Some(thread) = &self.thread {
            let (done, is_done) = std::sync::mpsc::channel();
            let asked = thread.send(Input::Finish(done));
            let _ = asked.is_ok().then(|| is_done.recv_timeout(2 * LAST));
        }
        if let Decides::Here(decider) = &self.decides {
            decider.tell();
        }
    }
}

impl Decides {
    fn serves(&self) -> Serves {
        match self {
            Self::Here(decider) => Serves::Here(Arc::clone(&decider.egress)),
            Self::Elsewhere(elsewhere) => Serves::Elsewhere(Arc::clone(elsewhere)),
        }
    }
}

/// Who takes connections.
enum Serves {
    Here(Arc<Egress>),
    Elsewhere(Arc<Elsewhere>),
}

impl Serves {
    fn connections(&self) -> usize {
        match self {
            Self::Here(egress) => egress.connections(),
            Self::Elsewhere(elsewhere) => elsewhere.connections(),
        }
    }

    fn spawn(&self, listeners: Listeners, served: &mut JoinSet<std::io::Result<()>>) {
        match self {
            Self::Here(egress) => {
                let egress = Arc::clone(egress);
                served.spawn(async move { egress.serve(listeners).await });
            }
            Self::Elsewhere(elsewhere) => drop(served.spawn(Arc::clone(elsewhere).serve(listeners))),
        }
    }
}

/// Serves what it is given until nobody is there to give more.
async fn serve(
    serves: Serves,
    inside: loopback::Inside,
    published: Vec<(TcpListener, u16)>,
    mut inputs: UnboundedReceiver<Input>,
) -> std::io::Result<()> {
    let inside = Arc::new(inside);
    let mut served = JoinSet::new();
    for (listener, port) in published {
        served.spawn(loopback::serve_published(Arc::clone(&inside), listener, port));
    }
    loop {
        let input = tokio::select! {
            input = inputs.recv() => input,
            Some(ended) = served.join_next() => {
                ended.map_err(std::io::Error::other)??;
                continue;
            }
        };
        match input {
            None => return Ok(()),
            Some(Input::Socket(socket)) => inside.give(socket),
            Some(Input::Finish(done)) => {
                last_bytes(&serves, &inside).await;
                let _ = done.send(());
            }
            Some(Input::Listeners(all)) => {
                let mut listeners = Listeners::default();
                for (kind, fd) in all {
                    match kind {
                        Listener::Transparent(_) => listeners.transparent.push(TcpListener::from(fd)),
                        Listener::Proxy => listeners.explicit.push(TcpListener::from(fd)),
                        Listener::DnsUdp => listeners.dns_udp.push(UdpSocket::from(fd)),
                        Listener::DnsTcp => listeners.dns_tcp.push(TcpListener::from(fd)),
                        Listener::Calls => {}
                        Listener::Loopback(port) => {
                            drop(served.spawn(loopback::serve_connect(Arc::clone(&inside), TcpListener::from(fd), port)))
                        }
                    }
                }
                serves.spawn(listeners, &mut served);
            }
        }
    }
}

/// Waits, for a bounded time, until the connections of a sandbox that has ended have ended too. What was sent just before the
/// end may not even have been accepted yet, so one look is not enough.
async fn last_bytes(serves: &Serves, inside: &loopback::Inside) {
    let end = tokio::time::Instant::now() + LAST;
    let mut quiet = 0;
    while quiet < 2 && tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1)).await;
        quiet = if serves.connections() + inside.connections() == 0 { quiet + 1 } else { 0 };
    }
}

impl std::fmt::Debug for WayOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WayOut").field("gateway", &self.gateway).finish_non_exhaustive()
    }
}

/// A connection takes two descriptors at least, and the usual soft limit is 1024. Jobs have limits of their own.
pub(crate) fn raise_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(1 << 16)), hard);
    }
}
