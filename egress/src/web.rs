//! Requests: each is read, decided anew, and sent on as what was read.
//!
//! Nothing of a request's framing survives from inside to outside: the library parses one message and writes another, so there is
//! nothing that two parsers could take for different numbers of requests (CWE-444).

mod answer;
mod framing;
mod request_body;
mod room;
mod target;
mod watched;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::dial::{Dialed, Place};
use crate::event::Event;
use crate::host::Host;
use crate::policy::{Admission, Decision, Request as Wanted, Rule};
use crate::proxy::{Connection, Egress, revoked};
use crate::reason::{Reason, Refusal};
use crate::relay;
use crate::scan::Scanner;
use crate::secret::{self, Injected};
use crate::stream::Counted;
use crate::upstream::{Body, Target, Upstreams};

use answer::Lookout;
#[doc(hidden)]
pub use framing::framed;
use request_body::RequestBody;
use room::{Room, room};
pub(crate) use target::Entry;
use watched::{Watch, Watched};

/// Bytes of a request head. Cookies of some sites need more than the usual 8 KiB.
const HEAD: usize = 64 * 1024;
/// Requests side by side on one HTTP/2 connection.
const STREAMS: u32 = 32;
/// Bytes that a connection of HTTP/2 inside may send before they went on, for a request and for all of its requests, and that wait for it
/// for a request. It is on this machine: there is no delay that more would make up for.
const WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 128 * 1024;
const UNSENT: usize = 64 * 1024;

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

struct Session {
    egress: Arc<Egress>,
    connection: Arc<Connection>,
    entry: Entry,
    upstreams: Upstreams,
    /// What the bytes of HTTP/1 looked like.
    watch: Arc<Watch>,
}

/// Serves requests on a connection until it ends. `dialed` leads to the entry's host already.
pub(crate) async fn serve<S>(
    egress: &Arc<Egress>,
    connection: &Arc<Connection>,
    stream: S,
    entry: Entry,
    protocol: Protocol,
    dialed: Option<Dialed>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let upstreams = Upstreams::new(protocol == Protocol::Http2);
    if let (Entry::Host { host, port, tls }, Some(dialed)) = (&entry, dialed) {
        let target = Target { tls: *tls, host: host.clone(), port: *port, generation: egress.rules().generation() };
        // Without it, the first request makes its own.
        let _ = Box::pin(upstreams.prime(target, dialed)).await;
    }
    let watch = Arc::<Watch>::default();
    let session =
        Session { egress: Arc::clone(egress), connection: Arc::clone(connection), entry, upstreams, watch: Arc::clone(&watch) };
    let session = Arc::new(session);
    let ended = Arc::clone(&session);
    let service = service_fn(move |request| {
        let session = Arc::clone(&session);
        // Before anything waits: what has no room is gone when the next request is read.
        let taken = match room(session.egress.heads(), &request) {
            Some(room) => Ok((request, room)),
            None => Err(session.busy(&request)),
        };
        async move {
            Ok::<_, Infallible>(match taken {
                Ok((request, room)) => session.answer(request, room).await,
                Err(busy) => busy,
            })
        }
    });
    let limits = &egress.config().limits;
    // In its place from the beginning: a future that is moved takes its room twice, and thousands may wait here.
    let mut serving = std::pin::pin!(async {
        match protocol {
            Protocol::Http1 => {
                let mut builder = hyper::server::conn::http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(limits.keep_alive).max_buf_size(HEAD);
                // A client that has sent all that it will may still wait for the answer.
                builder.half_close(true);
                builder.serve_connection(TokioIo::new(Watched::new(stream, watch)), service).with_upgrades().await
            }
            Protocol::Http2 => {
                let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.timer(TokioTimer::new()).max_header_list_size(HEAD as u32 / 2).max_concurrent_streams(STREAMS);
                builder.initial_stream_window_size(WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
                builder.max_send_buf_size(UNSENT);
                builder.serve_connection(TokioIo::new(stream), service).await
            }
        }
    });
    tokio::select! {
        // What a client does wrong is its own affair: it got a 400, or a closed connection.
        _ = &mut serving => {}
        () = connection.meter.idle(limits.idle) => {}
    }
    // In a body whose answer was on its way already, or in what the library did not take for a request.
    if let Some(why) = ended.watch.untold() {
        let (host, port) = ended.entry.place();
        egress.emit(Event::Refused(Box::new(Refusal::new(&egress.config().sandbox, host, port, Reason::malformed(why)))));
    }
}

impl Session {
    async fn answer(self: &Arc<Self>, mut request: Request<Incoming>, room: Room) -> Response<Body> {
        let upgrade = hyper::upgrade::on(&mut request);
        let (parts, body) = request.into_parts();
        let body = RequestBody::new(body, parts.version);
        let asked = Asked { method: parts.method.clone(), uri: parts.uri.clone() };
        if let Some(why) = self.watch.tell() {
            let (host, port) = self.entry.place();
            return answer::last(self.refuse(host, port, &asked, Reason::malformed(why)));
        }
        let (host, port) = match (&self.entry, parts.method == Method::CONNECT) {
            (Entry::Proxy, true) => return Box::pin(self.tunnel(&asked, &parts, upgrade)).await,
            (Entry::Host { host, port, .. }, true) => {
                let refused = self.refuse(Some(host), *port, &asked, Reason::unsupported("CONNECT to what is no proxy"));
                return if parts.version == Version::HTTP_2 { refused } else { answer::last(refused) };
            }
            (entry, false) => match target::host_of(&parts, entry) {
                Ok(place) => place,
                Err(reason) => match entry {
                    Entry::Proxy => return self.refuse(None, 0, &asked, reason),
                    Entry::Host { host, port, .. } => {
                        // Where no route leads at all it does not matter what else is wrong.
                        let reason = self.egress.rules().admit(host, *port).err().unwrap_or(reason);
                        return self.refuse(Some(host), *port, &asked, reason);
                    }
                },
            },
        };
        self.egress.consider(&host, port).await;
        match self.forward(&host, port, &asked, Arrived { parts, body, upgrade, room }).await {
            Ok(response) => response,
            Err(reason) => {
                let reason = self.watch.tell().map_or(reason, Reason::malformed);
                self.refuse(Some(&host), port, &asked, reason)
            }
        }
    }

    /// There is no room for one more request.
    fn busy(&self, request: &Request<Incoming>) -> Response<Body> {
        let asked = Asked { method: request.method().clone(), uri: request.uri().clone() };
        let (host, port) = self.entry.place();
        let refused = self.refuse(host, port, &asked, Reason::Busy);
        if request.version() == Version::HTTP_2 { refused } else { answer::last(refused) }
    }

    fn refuse(&self, host: Option<&Host>, port: u16, asked: &Asked, reason: Reason) -> Response<Body> {
        let refusal = Refusal::new(&self.egress.config().sandbox, host, port, reason);
        let refusal = refusal.of_request(asked.method.as_str(), asked.uri.path());
        self.egress.emit(Event::Refused(Box::new(refusal.clone())));
        answer::refusal(&refusal)
    }

    /// CONNECT: asks the rules, connects where nothing will be read, and goes on as a connection to the host.
    async fn tunnel(self: &Arc<Self>, asked: &Asked, parts: &Parts, upgrade: OnUpgrade) -> Response<Body> {
        let (host, port) = match target::tunnel_of(parts) {
            Ok(place) => place,
            Err(reason) => return answer::last(self.refuse(None, 0, asked, reason)),
        };
        self.egress.consider(&host, port).await;
        let dialed = match self.egress.rules().admit(&host, port) {
            Err(reason) => Err(reason),
            Ok(Admission::Inspect) => Ok(None),
            Ok(Admission::PassThrough(rule)) => {
                self.egress.dialer().dial(&Place::meant(&host, port, &rule.rules.addresses)).await.map(Some)
            }
        };
        let dialed = match dialed {
            Ok(dialed) => dialed,
            Err(reason) => return answer::last(self.refuse(Some(&host), port, asked, reason)),
        };
        let (egress, connection) = (Arc::clone(&self.egress), Arc::clone(&self.connection));
        tokio::spawn(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let Ok(parts) = upgraded.downcast::<TokioIo<Watched<Counted<TcpStream>>>>() else { return };
            let (stream, rest) = parts.io.into_inner().into_inner().into_parts();
            let mut before = BytesMut::from(&parts.read_buf[..]);
            before.extend_from_slice(&rest);
            egress.pass(connection, stream, before, host, port, dialed).await;
        });
        answer::empty(StatusCode::OK)
    }

    async fn forward(
        self: &Arc<Self>,
        host: &Host,
        port: u16,
        asked: &Asked,
        Arrived { parts, body, upgrade, room }: Arrived,
    ) -> Result<Response<Body>, Reason> {
        let egress = &self.egress;
        // From here on a change of the rules is noticed, also one before the answer.
        let mut changes = egress.changes();
        let rules = Arc::clone(&changes.borrow_and_update());
        let wanted = Wanted { host, port, method: asked.method.as_str(), path: asked.uri.path() };
        let rule = match rules.decide(&wanted) {
            Decision::Allow(rule) => rule,
            Decision::Refuse(reason) => return Err(reason),
        };
        target::method(&parts, !rule.rules.methods.is_empty(), rule.rules.secret.is_some(), !rule.rules.paths.is_empty())?;
        if !rule.take(egress.uptime()) {
            return Err(Reason::Rate);
        }
        let websocket = target::wants_websocket(&parts);
        let tls = matches!(self.entry, Entry::Host { tls: true, .. });
        let body = request_body::limited(&parts, body, rule.rules.max_body)?;
        let mut outgoing = Outgoing::new(parts, host, port, tls, &rule)?;
        outgoing.target.generation = rules.generation();
        target::end_to_end(&mut outgoing.parts.headers);
        outgoing.parts.headers.remove(header::EXPECT);
        if websocket {
            outgoing.parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            outgoing.parts.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        let injected = secret::inject(&mut outgoing.parts, rule.rules.secret.as_ref(), egress.secrets()).await?;
        let request = Request::from_parts(outgoing.parts, body);
        let clients = if outgoing.target.tls { Some(egress.clients()?) } else { None };
        let sent = self.upstreams.send(&outgoing.target, &outgoing.place, egress.dialer(), clients, request).await;
        let mut response = sent.map_err(|failed| match rule.rules.max_body {
            Some(limit) if failed.too_large => Reason::BodyTooLarge { limit },
            _ => failed.reason,
        })?;
        self.record(&wanted, &rule, injected.as_ref(), response.status());
        let lookout = injected.and_then(|injected| self.lookout(&wanted, injected));
        if let Some(lookout) = &lookout {
            answer::hide(&mut response, lookout);
        }
        let lasting = Lasting {
            egress: Arc::clone(egress),
            host: host.clone(),
            port,
            method: asked.method.clone(),
            uri: asked.uri.clone(),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if !websocket {
                return Err(Reason::unsupported("an upgrade that was not asked for"));
            }
            let outside = hyper::upgrade::on(&mut response);
            self.watch.hand_on();
            self.websocket(upgrade, outside, revoked(changes, move |rules| lasting.allowed_by(rules)));
            return Ok(answer::switching(response));
        }
        Ok(answer::passed_on(response, changes, lasting, lookout, room))
    }

    fn record(&self, wanted: &Wanted<'_>, rule: &Rule, injected: Option<&Injected>, status: StatusCode) {
        if let Some(injected) = injected {
            self.egress.secrets().answered(&injected.name, injected.member, status.as_u16());
        }
        self.egress.emit(Event::Requested {
            host: wanted.host.clone(),
            port: wanted.port,
            method: wanted.method.to_owned(),
            path: wanted.path.to_owned(),
            status: status.as_u16(),
            secret: injected.map(|injected| injected.name.clone()),
            rule: rule.origin.clone(),
        });
    }

    /// Looks in the answer for the secret that the request carried.
    fn lookout(&self, wanted: &Wanted<'_>, injected: Injected) -> Option<Lookout> {
        let scanner = Scanner::new(injected.carried)?;
        let (egress, host, port) = (Arc::clone(&self.egress), wanted.host.clone(), wanted.port);
        let (path, secret) = (wanted.path.to_owned(), injected.name);
        let tell = move |place| {
            let (host, path, secret) = (host.clone(), path.clone(), secret.clone());
            egress.emit(Event::SecretEchoed { host, port, path, secret, place });
        };
        Some(Lookout { scanner, tell: Box::new(tell) })
    }

    fn websocket(&self, inside: OnUpgrade, outside: OnUpgrade, revoked: impl Future<Output = ()> + Send + 'static) {
        let connection = Arc::clone(&self.connection);
        let idle: Duration = self.egress.config().limits.idle;
        tokio::spawn(async move {
            let Ok((inside, outside)) = tokio::try_join!(inside, outside) else { return };
            // The connection counts by itself, and its place is taken until this ends.
            let _connection = connection;
            let meter = relay::Meter::default();
            tokio::select! {
                _ = relay::streams(TokioIo::new(inside), TokioIo::new(outside), &meter, idle) => {}
                () = revoked => {}
            }
        });
    }
}

/// A request as it came.
struct Arrived {
    parts: Parts,
    body: RequestBody,
    upgrade: OnUpgrade,
    room: Room,
}

/// What a request asks for, when its parts have gone on.
struct Asked {
    method: Method,
    uri: Uri,
}

/// A request whose answer is still under way.
struct Lasting {
    egress: Arc<Egress>,
    host: Host,
    port: u16,
    method: Method,
    uri: Uri,
}

impl Lasting {
    fn allowed_by(&self, rules: &crate::policy::Ruleset) -> bool {
        let wanted = Wanted { host: &self.host, port: self.port, method: self.method.as_str(), path: self.uri.path() };
        let allowed = matches!(rules.decide(&wanted), Decision::Allow(_));
        if !allowed {
            let refusal = Refusal::new(&self.egress.config().sandbox, Some(&self.host), self.port, Reason::Revoked);
            self.egress.emit(Event::Refused(Box::new(refusal.of_request(self.method.as_str(), self.uri.path()))));
        }
        allowed
    }
}

/// A request as it goes out.
struct Outgoing {
    parts: Parts,
    target: Target,
    place: Place,
}

impl Outgoing {
    fn new(mut parts: Parts, host: &Host, port: u16, tls: bool, rule: &Rule) -> Result<Self, Reason> {
        let (tls, host, port, prefix) = match &rule.rules.upstream {
            None => (tls, host.clone(), port, ""),
            Some(upstream) => {
                let text = if upstream.host.contains(':') { format!("[{}]", upstream.host) } else { upstream.host.clone() };
                let host = Host::parse(&text).map_err(|why| Reason::malformed(why.to_string()))?;
                (upstream.tls, host, upstream.port, upstream.prefix.as_str())
            }
        };
        let default = port == if tls { 443 } else { 80 };
        let authority = if default { host.to_string() } else { format!("{host}:{port}") };
        let asterisk = parts.method == Method::OPTIONS && parts.uri.path() == "*";
        let path = match parts.uri.path_and_query() {
            _ if asterisk => return Err(Reason::unsupported("OPTIONS *")),
            None if prefix.is_empty() => PathAndQuery::from_static("/"),
            None => format!("{prefix}/").parse().map_err(|_| Reason::malformed("a path that cannot be sent"))?,
            Some(path) if prefix.is_empty() => path.clone(),
            Some(path) => format!("{prefix}{path}").parse().map_err(|_| Reason::malformed("a path that cannot be sent"))?,
        };
        let authority = Bytes::from(authority);
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
        let named =
            Authority::from_maybe_shared(authority.clone()).map_err(|_| Reason::malformed("a host that cannot be sent"))?;
        uri.authority = Some(named);
        uri.path_and_query = Some(path);
        parts.uri = Uri::from_parts(uri).map_err(|_| Reason::malformed("an address that cannot be sent"))?;
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        let field = HeaderValue::from_maybe_shared(authority).map_err(|_| Reason::malformed("a host that cannot be sent"))?;
        parts.headers.insert(header::HOST, field);
        // HTTP/2 clients may send one cookie per field; HTTP/1.1 knows one field (RFC 9113, 8.2.3).
        join_cookies(&mut parts.headers);
        let place = Place::meant(&host, port, &rule.rules.addresses);
        // By default a route is about port 80 as well, and a program may speak HTTP to any port.
        if rule.rules.secret.is_some() && !tls && rule.rules.upstream.is_none() {
            return Err(Reason::unsupported("a secret over plain HTTP, unless the route has an http:// upstream"));
        }
        Ok(Self { parts, target: Target { tls, host, port, generation: 0 }, place })
    }
}

fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(header::COOKIE, joined);
    }
}

/// Our own header, which no answer from outside may carry.
pub(crate) const MARK: HeaderName = HeaderName::from_static("x-hermes-sandbox");
