//! The engine: accepts, finds out what is meant, asks the rules, and passes on.

mod pass;

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hermes_profiles::Route;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::dial::{Dialer, OuterProxy, Resolve, SystemResolver};
use crate::event::{Event, Events, Silent};
use crate::host::Host;
use crate::names::{self, Block, Names, SYNTHETIC};
use crate::policy::{Invalid, Ruleset};
use crate::reason::{Reason, Refusal};
use crate::relay::{self, Meter};
use crate::secret::{NoSecrets, Secrets};
use crate::stream::Counted;
use crate::tls::{Authority, Clients, TlsError};
use crate::web::{self, Entry, Protocol};

/// How long a TLS handshake may take, on either side.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(15);

/// Routes that are decided on the way; what comes after them is refused.
const MOST_GRANTED: usize = 1024;

/// How long to wait when there is no descriptor for the next connection.
const EXHAUSTED: Duration = Duration::from_millis(50);

/// Sockets that were made inside the sandbox's network, or on loopback.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Where connections to any address arrive; the address meant is the socket's own.
    pub transparent: Vec<TcpListener>,
    /// Where programs that know of proxies connect to (CONNECT, and absolute form for `http://`).
    pub explicit: Vec<TcpListener>,
    /// Where queries for names arrive.
    pub dns_udp: Vec<UdpSocket>,
    /// The same over TCP.
    pub dns_tcp: Vec<TcpListener>,
}

/// Bounds on what one sandbox can use up.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time. More wait in the listeners' queues.
    pub connections: usize,
    /// Connections of HTTP/2 at a time; others are offered HTTP/1.1 alone. Each may hold some hundred KiB of frames in either direction.
    pub h2_connections: usize,
    /// Bytes that requests under way may take with their heads, of all connections together; more are refused.
    pub heads: usize,
    /// Pipes for fast copies; each has two descriptors and some memory of the kernel.
    pub pipes: usize,
    /// Names below one wildcard that get an address.
    pub names_below_wildcard: usize,
    /// Until a connection has shown what it is.
    pub first_bytes: Duration,
    /// Until the next request's head is there.
    pub keep_alive: Duration,
    /// Without any byte in either direction.
    pub idle: Duration,
    /// For resolving and connecting.
    pub dial: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2048,
            h2_connections: 256,
            heads: 32 << 20,
            pipes: 64,
            names_below_wildcard: 1024,
            first_bytes: Duration::from_secs(30),
            keep_alive: Duration::from_secs(75),
            idle: Duration::from_secs(15 * 60),
            dial: Duration::from_secs(20),
        }
    }
}

/// Which address a connection inside is meant for.
pub trait Meant: Send + Sync {
    /// The address; `None` for a connection that is none of the sandbox's, which is dropped.
    fn address(&self, stream: &TcpStream, peer: SocketAddr) -> Option<SocketAddr>;
}

/// What a connection is that was accepted elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived {
    /// One to this address.
    Transparent(SocketAddr),
    /// One of a program that knows of proxies.
    Explicit,
}

/// A decision, some time later: a route that leads to the host, or nothing.
pub type Deciding<'a> = Pin<Box<dyn Future<Output = Option<Route>> + Send + 'a>>;

/// Decides about hosts that no route is about.
pub trait Unknown: Send + Sync {
    /// May `host` be reached on `port`? The route then holds until the end, whatever else is replaced.
    fn decide<'a>(&'a self, host: &'a Host, port: u16) -> Deciding<'a>;
}

/// The address meant is the socket's own (AnyIP). Whoever can connect to the listeners is the sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnAddress;

impl Meant for OwnAddress {
    fn address(&self, stream: &TcpStream, _: SocketAddr) -> Option<SocketAddr> {
        stream.local_addr().ok()
    }
}

/// What the engine needs from outside.
pub struct Config {
    /// Name of the sandbox, for messages.
    pub sandbox: String,
    /// Bounds.
    pub limits: Limits,
    /// Where names get their addresses from.
    pub synthetic: Block,
    /// Knows real addresses.
    pub resolver: Arc<dyn Resolve>,
    /// A proxy that the caller has to use.
    pub outer: Option<OuterProxy>,
    /// Takes events.
    pub events: Arc<dyn Events>,
    /// Knows secrets.
    pub secrets: Arc<dyn Secrets>,
    /// Knows what connections are meant for.
    pub meant: Arc<dyn Meant>,
    /// Decides about hosts that no route is about; `None` refuses them.
    pub unknown: Option<Arc<dyn Unknown>>,
    /// Roots for servers outside; `None` means the system's, read when they are first needed.
    pub clients: Option<Clients>,
}

impl Config {
    /// The usual: the system's resolver and roots, own addresses, no secrets, no one who listens to events.
    pub fn new(sandbox: impl Into<String>) -> Self {
        Self {
            sandbox: sandbox.into(),
            limits: Limits::default(),
            synthetic: SYNTHETIC,
            resolver: Arc::new(SystemResolver),
            outer: None,
            events: Arc::new(Silent),
            secrets: Arc::new(NoSecrets),
            meant: Arc::new(OwnAddress),
            unknown: None,
            clients: None,
        }
    }
}

/// The way out of one sandbox.
pub struct Egress {
    config: Config,
    rules: watch::Sender<Arc<Ruleset>>,
    routes: Mutex<Routes>,
    names: Mutex<Names>,
    dialer: Dialer,
    authority: OnceLock<Result<Authority, String>>,
    clients: OnceLock<Result<Clients, String>>,
    connections: Arc<Semaphore>,
    h2_connections: Arc<Semaphore>,
    heads: Arc<Semaphore>,
    pipes: Semaphore,
    began: Instant,
}

/// What the rules are made from.
struct Routes {
    /// The policy's.
    named: Vec<Route>,
    /// Those that were decided on the way.
    granted: Vec<Route>,
    /// Are other hosts decided on?
    open: bool,
}

impl Routes {
    fn rules(&self, before: Option<&Ruleset>) -> Result<Ruleset, Invalid> {
        let all: Vec<Route> = self.named.iter().chain(&self.granted).cloned().collect();
        let rules = Ruleset::new(&all, before)?;
        Ok(if self.open { rules.with_any_name() } else { rules })
    }
}

/// One connection inside, as long as anything of it lives.
pub(crate) struct Connection {
    pub(crate) meter: Arc<Meter>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Transparent,
    Explicit,
    Dns,
}

impl Egress {
    /// A way out by `routes`. Needs no runtime yet.
    ///
    /// # Errors
    /// A route that cannot be a rule.
    pub fn new(mut config: Config, routes: &[Route]) -> Result<Arc<Self>, Invalid> {
        let routes = Routes { named: routes.to_vec(), granted: Vec::new(), open: config.unknown.is_some() };
        let rules = routes.rules(None)?;
        let clients = config.clients.take().map_or_else(OnceLock::new, |clients| OnceLock::from(Ok(clients)));
        Ok(Arc::new(Self {
            rules: watch::Sender::new(Arc::new(rules)),
            routes: Mutex::new(routes),
            names: Mutex::new(Names::new(config.synthetic, config.limits.names_below_wildcard)),
            dialer: Dialer::new(Arc::clone(&config.resolver), config.outer.take(), config.limits.dial),
            authority: OnceLock::new(),
            clients,
            connections: Arc::new(Semaphore::new(config.limits.connections)),
            h2_connections: Arc::new(Semaphore::new(config.limits.h2_connections)),
            heads: Arc::new(Semaphore::new(config.limits.heads)),
            pipes: Semaphore::new(config.limits.pipes),
            began: Instant::now(),
            config,
        }))
    }

    /// Other rules from now on, in one step: every decision is by the old ones or by the new ones. What goes on and is no longer allowed is
    /// cut off. Returns the generation.
    ///
    /// # Errors
    /// A route that cannot be a rule; then the old ones keep holding.
    pub fn replace(&self, routes: &[Route]) -> Result<u64, Invalid> {
        let mut own = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Routes { named: routes.to_vec(), granted: own.granted.clone(), open: self.config.unknown.is_some() };
        let generation = self.swap(&new)?;
        *own = new;
        Ok(generation)
    }

    /// The same, and hosts that no route is about are refused from now on, also those that were decided on before.
    ///
    /// # Errors
    /// A route that cannot be a rule; then all stays as it was.
    pub fn close(&self, routes: &[Route]) -> Result<u64, Invalid> {
        let mut own = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Routes { named: routes.to_vec(), granted: Vec::new(), open: false };
        let generation = self.swap(&new)?;
        *own = new;
        Ok(generation)
    }

    /// How many connections from inside there are.
    pub fn connections(&self) -> usize {
        self.config.limits.connections - self.connections.available_permits()
    }

    /// The routes that hold, those that were decided on the way too, and the generation.
    pub fn routes(&self) -> (Vec<Route>, u64) {
        let own = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        (own.named.iter().chain(&own.granted).cloned().collect(), self.rules().generation())
    }

    /// Adds a route that was decided on the way.
    fn grant(&self, route: Route) -> Result<u64, Invalid> {
        let mut own = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.open || own.granted.len() >= MOST_GRANTED {
            self.emit(Event::LimitReached { limit: "hosts" });
            return Ok(0);
        }
        let granted = own.granted.iter().cloned().chain([route]).collect();
        let new = Routes { named: own.named.clone(), granted, open: own.open };
        let generation = self.swap(&new)?;
        *own = new;
        Ok(generation)
    }

    /// Has a host decided that no route is about, where somebody decides. Whoever asks the rules afterwards finds the answer.
    pub(crate) async fn consider(&self, host: &Host, port: u16) {
        let Some(unknown) = &self.config.unknown else { return };
        if !self.routes.lock().unwrap_or_else(PoisonError::into_inner).open {
            return;
        }
        let refused = self.rules().admit(host, port).err();
        let undecided = matches!(refused, Some(Reason::NoRoute | Reason::Port { .. } | Reason::UnknownAddress));
        if undecided
            && let Some(route) = unknown.decide(host, port).await
            // Somebody else may have been told the same meanwhile.
            && self.rules().admit(host, port).is_err()
        {
            let _ = self.grant(route);
        }
    }

    fn swap(&self, routes: &Routes) -> Result<u64, Invalid> {
        let mut result = Ok(0);
        self.rules.send_if_modified(|current| match routes.rules(Some(current)) {
            Ok(rules) => {
                result = Ok(rules.generation());
                *current = Arc::new(rules);
                true
            }
            Err(invalid) => {
                result = Err(invalid);
                false
            }
        });
        if let Ok(generation) = result {
            self.emit(Event::RulesReplaced { generation });
        }
        result
    }

    /// The certificate authority, made when first asked for. Its [`Authority::pem`] must be trusted inside if any route needs inspection.
    ///
    /// # Errors
    /// None could be made.
    pub fn authority(&self) -> Result<&Authority, TlsError> {
        let made = self.authority.get_or_init(|| Authority::new(&[]).map_err(|error| error.to_string()));
        made.as_ref().map_err(TlsError::new)
    }

    /// Serves until the future is dropped, or a socket is no good. Connections end with it.
    ///
    /// # Errors
    /// A socket that the runtime does not take.
    pub async fn serve(self: &Arc<Self>, listeners: Listeners) -> io::Result<()> {
        let mut loops = JoinSet::new();
        let kinds =
            [(listeners.transparent, Kind::Transparent), (listeners.explicit, Kind::Explicit), (listeners.dns_tcp, Kind::Dns)];
        for (listeners, kind) in kinds {
            for listener in listeners {
                listener.set_nonblocking(true)?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                loops.spawn(Arc::clone(self).accept(listener, kind));
            }
        }
        for socket in listeners.dns_udp {
            socket.set_nonblocking(true)?;
            loops.spawn(crate::dns::serve_udp(Arc::clone(self), tokio::net::UdpSocket::from_std(socket)?));
        }
        let _end = CutOff(self);
        while let Some(ended) = loops.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// Serves one connection that was accepted elsewhere, until it or the returned future ends.
    pub async fn take(self: &Arc<Self>, arrived: Arrived, stream: TcpStream) {
        let Ok(connection) = self.admit().await else { return };
        match arrived {
            Arrived::Transparent(meant) => self.to_address(connection, stream, meant).await,
            Arrived::Explicit => self.to_proxy(connection, stream).await,
        }
    }

    /// Answers queries for names, as over TCP, that arrive elsewhere.
    ///
    /// # Errors
    /// The stream fails, or what comes is no query.
    pub async fn answer_names(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        crate::dns::serve_tcp(self, stream).await
    }

    /// Nothing is allowed any more. Connections that were handed on to tasks of their own end, too.
    pub fn end(&self) {
        self.rules.send_replace(Arc::default());
    }

    /// Waits for a place among the connections.
    async fn admit(&self) -> io::Result<Arc<Connection>> {
        let permit = match Arc::clone(&self.connections).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.emit(Event::LimitReached { limit: "connections" });
                Arc::clone(&self.connections).acquire_owned().await.map_err(io::Error::other)?
            }
        };
        Ok(Arc::new(Connection { meter: Arc::default(), _permit: permit }))
    }

    async fn accept(self: Arc<Self>, listener: tokio::net::TcpListener, kind: Kind) -> io::Result<()> {
        let mut running = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = running.join_next() => continue,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Descriptors or memory: wait for some to come back. Anything else was about one connection (accept(2)).
                    if matches!(
                        error.raw_os_error(),
                        Some(nix::libc::EMFILE | nix::libc::ENFILE | nix::libc::ENOBUFS | nix::libc::ENOMEM)
                    ) {
                        self.emit(Event::LimitReached { limit: "descriptors" });
                        sleep(EXHAUSTED).await;
                    }
                    continue;
                }
            };
            let connection = self.admit().await?;
            running.spawn(Arc::clone(&self).connection(connection, stream, peer, kind));
        }
    }

    async fn connection(self: Arc<Self>, connection: Arc<Connection>, stream: TcpStream, peer: SocketAddr, kind: Kind) {
        let Some(meant) = self.config.meant.address(&stream, peer) else {
            relay::abort(&stream);
            return;
        };
        match kind {
            Kind::Transparent => self.to_address(connection, stream, meant).await,
            Kind::Explicit => self.to_proxy(connection, stream).await,
            Kind::Dns => {
                // A query that breaks off is nobody's loss.
                let _ = Box::pin(crate::dns::serve_tcp(&self, stream)).await;
            }
        }
    }

    async fn to_address(self: &Arc<Self>, connection: Arc<Connection>, stream: TcpStream, meant: SocketAddr) {
        let _ = stream.set_nodelay(true);
        let host = self.host_at(meant.ip());
        self.pass(connection, stream, Default::default(), host, meant.port(), None).await;
    }

    async fn to_proxy(self: &Arc<Self>, connection: Arc<Connection>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let stream = Counted::new(bytes::Bytes::new(), stream, Arc::clone(&connection.meter));
        Box::pin(web::serve(self, &connection, stream, Entry::Proxy, Protocol::Http1, None)).await;
    }

    /// The name behind an address, or the address.
    fn host_at(&self, address: IpAddr) -> Host {
        let host = Host::from(address);
        let Host::Address(IpAddr::V4(v4)) = host else { return host };
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.behind(v4).cloned().unwrap_or(host)
    }

    /// Answers a query for a name.
    pub(crate) fn name_query(&self, query: &[u8]) -> Option<Vec<u8>> {
        let rules = self.rules();
        let answer = {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            names::answer(query, &mut names, &rules)
        };
        if let Some(event) = answer.event {
            self.emit(event);
        }
        answer.message
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Room for one more connection of HTTP/2.
    pub(crate) fn h2_room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.h2_connections).try_acquire_owned().ok()
    }

    /// Room for the heads of all requests under way.
    pub(crate) fn heads(&self) -> &Arc<Semaphore> {
        &self.heads
    }

    pub(crate) fn rules(&self) -> Arc<Ruleset> {
        Arc::clone(&self.rules.borrow())
    }

    pub(crate) fn changes(&self) -> Changes {
        self.rules.subscribe()
    }

    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(crate) fn secrets(&self) -> &Arc<dyn Secrets> {
        &self.config.secrets
    }

    pub(crate) fn clients(&self) -> Result<&Clients, Reason> {
        let made = self.clients.get_or_init(|| Clients::system().map_err(|error| error.to_string()));
        made.as_ref().map_err(Reason::unreachable)
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn emit(&self, event: Event) {
        self.config.events.emit(event);
    }

    fn refused(&self, host: &Host, port: u16, reason: Reason) {
        self.emit(Event::Refused(Box::new(Refusal::new(&self.config.sandbox, Some(host), port, reason))));
    }
}

/// The rules as they change.
pub(crate) type Changes = watch::Receiver<Arc<Ruleset>>;

/// Comes when rules hold by which something is no longer allowed, or when there are none any more.
pub(crate) async fn revoked(mut changes: Changes, still: impl Fn(&Ruleset) -> bool + Send) {
    while changes.changed().await.is_ok() {
        let rules = Arc::clone(&changes.borrow_and_update());
        if !still(&rules) {
            return;
        }
    }
}

/// What was handed on to tasks of its own (upgraded connections) ends with the rules.
struct CutOff<'a>(&'a Egress);

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Futures whose type would contain itself.
pub(crate) type Boxed = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
