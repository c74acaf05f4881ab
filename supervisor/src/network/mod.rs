//! The mediated way out of one sandbox: the proxy in a thread of its own, and what it has to tell.

mod calls;
mod foretell;
mod loopback;
mod pace;
mod told;
mod trust;
mod unknown;

use std::collections::{BTreeSet, VecDeque};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hermes_backends::compile::network::MOST_PORTS;
use hermes_backends::local::Sandbox;
use hermes_backends::plan::{GatewayPlan, NetworkPlan, Plan};
use hermes_backends::wire::{self, Certificates, Listener};
use hermes_egress::dial::OuterProxy;
use hermes_egress::policy::Invalid;
use hermes_egress::proxy::Unknown;
use hermes_egress::{Config, Egress, Listeners};
use hermes_profiles::{Caller, LoopbackRules, Policy, Route, UnknownHosts};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::approvals::{Approvals, Scope};
use crate::error::{Error, Kind};
use crate::events::Log;
use crate::output;
use crate::secrets::sandbox::SandboxSecrets;
use calls::Calls;
pub(crate) use foretell::foretell;
use told::Told;
use unknown::{Ask, Audit};

/// How long connections may go on after the sandbox has ended.
const LAST: Duration = Duration::from_millis(500);

/// Why a live sandbox can be given no routes.
pub(crate) const NO_WAY_OUT: &str = "the sandbox was started without a way out; start another one with a route";

/// The way out of one sandbox, and what its loopback shares with the host's. Connections end when it is dropped.
pub(crate) struct WayOut {
    egress: Arc<Egress>,
    told: Arc<Told>,
    placeholders: Vec<(String, String)>,
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

/// What the thread is given.
enum Input {
    Listeners(Vec<(Listener, OwnedFd)>),
    /// A socket of the sandbox's own network, or none.
    Socket(Option<OwnedFd>),
    /// Nobody is inside any more: to be answered when their connections have ended.
    Finish(std::sync::mpsc::Sender<()>),
}

/// Routes that wait for their ports.
struct Change {
    routes: Vec<Route>,
    swap: fn(&Egress, &[Route]) -> Result<u64, Invalid>,
    reply: Reply,
}

/// Who wants to know of new routes: their generation, or why the old ones are kept.
pub(crate) type Reply = oneshot::Sender<Result<u64, String>>;

impl WayOut {
    /// What the policy needs; `None` for a sandbox that shares nothing with any network.
    ///
    /// # Errors
    /// A route or the caller's own proxy cannot be used, or a port that is to be published is taken.
    pub(crate) fn new(policy: &Policy, plan: &Plan, caller: &Caller, log: &Log) -> Result<Option<Self>, Error> {
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
        let told = Arc::new(Told::new(log.another()?));
        // A file's place on the host is nobody's business inside.
        let name = Path::new(&policy.profile).file_stem().unwrap_or_default().to_string_lossy();
        let mut config = Config::new(name);
        config.events = Arc::clone(&told) as _;
        config.unknown = unknown_hosts(policy, caller, &told)?;
        let to_tell = Arc::clone(&told);
        let secrets = SandboxSecrets::open(caller, policy, move |notice| to_tell.note(notice))?;
        secrets.require()?;
        let placeholders = secrets.variables();
        config.secrets = Arc::new(secrets);
        config.outer = outer_proxy(caller)?;
        let calls = match (&plan.gateway, plan.network) {
            (Some(gateway), NetworkPlan::Notified) => Some(Calls::new(gateway, plan)?),
            _ => None,
        };
        if let Some(calls) = &calls {
            config.meant = calls.meant();
        }
        let egress = Egress::new(config, policy.routes()).map_err(|e| Error::new(Kind::Policy, e.to_string()))?;
        let roots = if plan.gateway.is_some() { trust::roots(caller)? } else { None };
        let published = publish.iter().map(|port| loopback::publish(*port)).collect::<Result<_, _>>()?;
        let (gateway, changes) = (plan.gateway.clone(), VecDeque::new());
        Ok(Some(Self { egress, told, placeholders, gateway, calls, roots, published, thread: None, changes }))
    }

    /// Variables that programs expect secrets in, and what stands in the place of these inside.
    pub(crate) fn placeholders(&self) -> &[(String, String)] {
        &self.placeholders
    }

    /// What is trusted inside: the system's certificates, and the proxy's own.
    pub(crate) fn certificates(&self, plan: &Plan) -> Result<Certificates, Error> {
        if self.gateway.is_none() {
            return Ok(Certificates::default());
        }
        let own = self.egress.authority().map_err(|e| Error::setup(e.to_string()))?.pem();
        trust::certificates(plan, self.roots.as_deref(), own)
    }

    /// Starts the thread, once there is a sandbox. What is served it is told by [`hear`](Self::hear).
    pub(crate) fn start(&mut self, sandbox: &Sandbox) -> Result<(), Error> {
        raise_descriptors();
        let cannot = |e: &dyn std::fmt::Display| Error::setup(format!("cannot start the proxy: {e}"));
        let inside = loopback::Inside::new(sandbox.another_channel().map_err(|e| cannot(&e))?);
        let (thread, inputs) = unbounded_channel();
        self.thread = Some(thread);
        let (egress, published) = (Arc::clone(&self.egress), std::mem::take(&mut self.published));
        for (_, port) in &published {
            output::complain(&format!("port {port} of the sandbox is shown on 127.0.0.1:{port}"));
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| cannot(&e))?;
        let work = move || {
            if let Err(e) = runtime.block_on(serve(egress, inside, published, inputs)) {
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
            self.add_ports(change.routes.iter().flat_map(|route| route.ports.iter().copied()));
            // Nobody has waited to the end: then nobody relies on it either.
            if !change.reply.is_closed() {
                let _ = change.reply.send((change.swap)(&self.egress, &change.routes).map_err(|e| e.to_string()));
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
        let swap = if unknown == UnknownHosts::Refuse { Egress::close } else { Egress::replace };
        let new = match self.new_ports(&routes) {
            Ok(new) if !new.is_empty() => new,
            nothing_to_wait_for => {
                let outcome = nothing_to_wait_for.and_then(|_| swap(&self.egress, &routes).map_err(|e| e.to_string()));
                let _ = reply.send(outcome);
                return None;
            }
        };
        self.changes.push_back(Change { routes, swap, reply });
        Some(new)
    }

    /// The ports of these routes on which nobody listens yet, or why the routes cannot be had.
    fn new_ports(&self, routes: &[Route]) -> Result<Vec<u16>, String> {
        if !self.changes.is_empty() {
            return Err("another change is under way; try again".to_owned());
        }
        let gateway = self.gateway.as_ref().ok_or(NO_WAY_OUT)?;
        let ports = || routes.iter().flat_map(|route| route.ports.iter().copied());
        if let Some(calls) = &self.calls {
            calls.open(ports());
            return Ok(Vec::new());
        }
        let known: BTreeSet<u16> = gateway.ports.iter().copied().collect();
        // Where names are resolved nothing else is.
        let new: BTreeSet<u16> = ports().filter(|port| !known.contains(port) && *port != 53).collect();
        match known.len() + new.len() > MOST_PORTS {
            true => Err(format!("routes lead to more than {MOST_PORTS} ports")),
            false => Ok(new.into_iter().collect()),
        }
    }

    /// The routes that hold and how often they were replaced.
    pub(crate) fn routes(&self) -> (Vec<Route>, u64) {
        self.egress.routes()
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
        self.told.tell();
    }
}

/// Serves what it is given until nobody is there to give more.
async fn serve(
    egress: Arc<Egress>,
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
                last_bytes(&egress, &inside).await;
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
                let egress = Arc::clone(&egress);
                served.spawn(async move { egress.serve(listeners).await });
            }
        }
    }
}

/// Waits, for a bounded time, until the connections of a sandbox that has ended have ended too. What was sent just before the
/// end may not even have been accepted yet, so one look is not enough.
async fn last_bytes(egress: &Egress, inside: &loopback::Inside) {
    let end = tokio::time::Instant::now() + LAST;
    let mut quiet = 0;
    while quiet < 2 && tokio::time::Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1)).await;
        quiet = if egress.connections() + inside.connections() == 0 { quiet + 1 } else { 0 };
    }
}

fn unknown_hosts(policy: &Policy, caller: &Caller, told: &Arc<Told>) -> Result<Option<Arc<dyn Unknown>>, Error> {
    Ok(match policy.unknown_hosts {
        UnknownHosts::Refuse => None,
        UnknownHosts::Audit => {
            output::complain(
                "--net audit: EVERY host on the internet can be reached; it is for finding out which routes are needed",
            );
            Some(Arc::new(Audit))
        }
        UnknownHosts::Ask => {
            let approvals = Approvals::of(crate::state::directory(caller)?);
            let scope = Scope { profile: policy.profile.clone(), workspace: policy.workspace.clone() };
            Some(Arc::new(Ask::new(approvals, scope, Arc::clone(told))))
        }
    })
}

impl std::fmt::Debug for WayOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WayOut").field("gateway", &self.gateway).finish_non_exhaustive()
    }
}

/// The proxy that the caller has to use.
fn outer_proxy(caller: &Caller) -> Result<Option<OuterProxy>, Error> {
    let value = |names: &[&str]| {
        let found = names.iter().find_map(|name| Some((*name, caller.variable(name)?)).filter(|(_, value)| !value.is_empty()));
        found.map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()))
    };
    let Some((name, url)) = value(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]) else { return Ok(None) };
    let without = value(&["no_proxy", "NO_PROXY"]).map(|(_, list)| list).unwrap_or_default();
    let parsed = OuterProxy::parse(&url, &without);
    parsed.map(Some).map_err(|why| {
        Error::setup(format!("the proxy of {name} cannot be used: {why}")).hint(format!("correct {name}, or unset it"))
    })
}

/// A connection takes two descriptors at least, and the usual soft limit is 1024. Jobs have limits of their own.
fn raise_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(1 << 16)), hard);
    }
}
