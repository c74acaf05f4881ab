//! Connections to the outside that carry the requests of one connection inside.
//!
//! They are nobody else's: what a server ties to a connection stays with whoever made it, and all ends with that.

use std::collections::HashMap;
use std::sync::Mutex as SyncMutex;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderValue};
use http::uri::{PathAndQuery, Uri};
use http::{Method, Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::dial::{Dialed, Dialer, Place};
use crate::host::Host;
use crate::reason::Reason;
use crate::stream::Counted;
use crate::tls::{Clients, H2, server_name};

/// Why the bytes of a body stop.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// Any body.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;

/// Most connections to one place for one connection inside (HTTP/2 inside, HTTP/1 outside).
const MOST_LANES: usize = 32;

/// How long a connection may take to be ready for the next request after it was answered.
const SETTLE: Duration = Duration::from_secs(1);

/// Most bytes of a response head.
const HEAD: usize = 256 * 1024;

/// Bytes that a server may send on a connection of HTTP/2 before they went on.
const WINDOW: u32 = 2 << 20;

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) tls: bool,
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// Rules may change what a name leads to.
    pub(crate) generation: u64,
}

#[derive(Default)]
struct Lanes {
    h1: Vec<http1::SendRequest<Body>>,
    h2: Option<http2::SendRequest<Body>>,
}

/// The connections of one connection inside.
pub(crate) struct Upstreams {
    /// The connection inside speaks HTTP/2, so requests come side by side.
    multiplexed: bool,
    lanes: SyncMutex<HashMap<Target, Lanes>>,
    room: Semaphore,
}

enum Lane {
    H1(http1::SendRequest<Body>),
    H2(http2::SendRequest<Body>),
}

impl Upstreams {
    pub(crate) fn new(multiplexed: bool) -> Self {
        Self { multiplexed, lanes: SyncMutex::default(), room: Semaphore::new(MOST_LANES) }
    }

    /// Takes a connection that was made before any request was read.
    pub(crate) async fn prime(&self, target: Target, dialed: Dialed) -> Result<(), Reason> {
        let sender = h1(stream(dialed)).await?;
        self.put(&target, sender);
        Ok(())
    }

    /// Sends a request and comes back with the head of its answer.
    ///
    /// `request` has its target in absolute form; what is sent is what the protocol wants.
    pub(crate) async fn send(
        &self,
        target: &Target,
        place: &Place,
        dialer: &Dialer,
        clients: Option<&Clients>,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, Failed> {
        let _room = self.room.acquire().await.map_err(|_| Failed::from(Reason::unreachable("closed")))?;
        let uri = request.uri().clone();
        loop {
            let (lane, fresh) = match self.take(target).await {
                Some(lane) => (lane, false),
                // Rare, and large: what every request has to carry stays small.
                None => (Box::pin(self.open(target, place, dialer, clients)).await?, true),
            };
            let again = if fresh { None } else { repeatable(&request) };
            let (result, keep) = match lane {
                Lane::H1(mut sender) => {
                    for_h1(&mut request, &uri);
                    let result = sender.try_send_request(request).await;
                    (result, Some(sender))
                }
                Lane::H2(mut sender) => {
                    for_h2(&mut request, &uri);
                    (sender.try_send_request(request).await, None)
                }
            };
            match result {
                Ok(response) => {
                    if let Some(sender) = keep {
                        self.put(target, sender);
                    }
                    return Ok(response);
                }
                // A server may close an idle connection at any moment. What it cannot have seen, or may see twice
                // (RFC 9110, 9.2.2), is sent again on another one.
                Err(mut error) => match (error.take_message(), again) {
                    (Some(unsent), _) if !fresh => request = unsent,
                    (None, Some(again)) if error.error().is_incomplete_message() => request = again.into(),
                    _ => return Err(Failed::of(error.into_error())),
                },
            }
        }
    }

    async fn take(&self, target: &Target) -> Option<Lane> {
        loop {
            let mut sender = {
                let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
                let lanes = lanes.get_mut(target)?;
                if let Some(sender) = lanes.h2.as_ref().filter(|sender| !sender.is_closed()) {
                    return Some(Lane::H2(sender.clone()));
                }
                lanes.h1.retain(|sender| !sender.is_closed());
                match lanes.h1.iter().position(http1::SendRequest::is_ready) {
                    Some(ready) => return Some(Lane::H1(lanes.h1.swap_remove(ready))),
                    // Side by side another request may be under way on it for long.
                    None if self.multiplexed => return None,
                    None => lanes.h1.pop()?,
                }
            };
            if matches!(timeout(SETTLE, sender.ready()).await, Ok(Ok(()))) {
                return Some(Lane::H1(sender));
            }
        }
    }

    fn put(&self, target: &Target, sender: http1::SendRequest<Body>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lanes.get_mut(target) {
            known.h1.push(sender);
            return;
        }
        // Of another generation: rules changed, and no request will want it any more.
        lanes.retain(|known, _| known.generation >= target.generation);
        lanes.entry(target.clone()).or_default().h1.push(sender);
    }

    async fn open(&self, target: &Target, place: &Place, dialer: &Dialer, clients: Option<&Clients>) -> Result<Lane, Reason> {
        let dialed = stream(dialer.dial(place).await?);
        if !target.tls {
            return Ok(Lane::H1(h1(dialed).await?));
        }
        let clients = clients.ok_or_else(|| Reason::unreachable("no root certificates"))?;
        let config = if self.multiplexed { &clients.h2 } else { &clients.h1 };
        let name = server_name(&target.host).map_err(Reason::unreachable)?;
        let handshake = TlsConnector::from(Arc::clone(config)).connect(name, dialed);
        let stream = timeout(crate::proxy::HANDSHAKE, handshake)
            .await
            .map_err(|_| Reason::unreachable("TLS: no answer in time"))?
            .map_err(|error| Reason::unreachable(format_args!("TLS: {error}")))?;
        if stream.get_ref().1.alpn_protocol() != Some(H2) {
            return Ok(Lane::H1(h1(Box::new(stream)).await?));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(HEAD as u32)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(Reason::unreachable)?;
        tokio::spawn(async move { _ = connection.await });
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry(target.clone()).or_default().h2 = Some(sender.clone());
        Ok(Lane::H2(sender))
    }
}

/// What it takes to send a request again, if it does no harm to send it twice.
struct Again {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

fn repeatable(request: &Request<Body>) -> Option<Again> {
    let harmless = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && request.body().is_end_stream();
    harmless.then(|| Again { method: request.method().clone(), uri: request.uri().clone(), headers: request.headers().clone() })
}

impl From<Again> for Request<Body> {
    fn from(again: Again) -> Self {
        let mut request = Request::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
        *request.method_mut() = again.method;
        *request.uri_mut() = again.uri;
        *request.headers_mut() = again.headers;
        request
    }
}

fn stream(dialed: Dialed) -> Counted<TcpStream> {
    Counted::new(dialed.early, dialed.stream, Arc::default())
}

async fn h1<S>(stream: S) -> Result<http1::SendRequest<Body>, Reason>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        http1::Builder::new().max_buf_size(HEAD).handshake(TokioIo::new(stream)).await.map_err(Reason::unreachable)?;
    // By itself, not in a future of its own that has it twice.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

/// RFC 9112, 3.2.1: what an origin server is sent.
fn for_h1(request: &mut Request<Body>, uri: &Uri) {
    let target = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = target.into();
    *request.version_mut() = Version::HTTP_11;
    // It is there, unless the request was on its way as HTTP/2 before.
    if !request.headers().contains_key(HOST)
        && let Some(Ok(host)) = uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()))
    {
        request.headers_mut().insert(HOST, host);
    }
}

/// RFC 9113, 8.3.1: the host is in `:authority`.
fn for_h2(request: &mut Request<Body>, uri: &Uri) {
    *request.uri_mut() = uri.clone();
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().remove(HOST);
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) reason: Reason,
    /// The request's own body was too large.
    pub(crate) too_large: bool,
}

impl From<Reason> for Failed {
    fn from(reason: Reason) -> Self {
        Self { reason, too_large: false }
    }
}

impl Failed {
    fn of(error: hyper::Error) -> Self {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        let mut too_large = false;
        while let Some(error) = source {
            too_large |= error.is::<http_body_util::LengthLimitError>();
            source = error.source();
        }
        // The body of the request is the program's own.
        let reason = if error.is_user() {
            Reason::malformed("the body of the request cannot be read")
        } else {
            Reason::unreachable(error)
        };
        Self { reason, too_large }
    }
}
