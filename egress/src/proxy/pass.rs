//! One connection to one host: what it is by its first bytes, and where these may go.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::{Boxed, Connection, Egress, HANDSHAKE, revoked};
use crate::dial::{Dialed, Place};
use crate::event::Event;
use crate::host::Host;
use crate::peek::{First, first};
use crate::policy::{Admission, Rule};
use crate::reason::Reason;
use crate::relay::{self, Begun, End};
use crate::stream::Counted;
use crate::tls::{H2, without_h2};
use crate::web::{self, Entry, Protocol};

/// A fatal alert, access_denied (RFC 8446, 6.2): a client can tell it from a network that fails.
const ACCESS_DENIED: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 49];

/// How long a connection that leads nowhere may take to show whether it understands an answer.
const CURIOSITY: Duration = Duration::from_secs(2);

/// What a connection turned out to be.
struct Opened {
    first: First,
    dialed: Dialed,
    /// Came from the server before the client had said enough, and was passed on.
    received: usize,
}

/// What is needed all along.
struct Passing<'a> {
    egress: &'a Arc<Egress>,
    connection: &'a Arc<Connection>,
    host: Host,
    port: u16,
}

impl Egress {
    /// Passes a connection to `host` on, as far as the rules allow. `before` was read from it already.
    pub(crate) fn pass(
        self: &Arc<Self>,
        connection: Arc<Connection>,
        stream: TcpStream,
        before: BytesMut,
        host: Host,
        port: u16,
        dialed: Option<Dialed>,
    ) -> Boxed {
        let egress = Arc::clone(self);
        Box::pin(async move {
            let passing = Passing { egress: &egress, connection: &connection, host, port };
            if let Err(reason) = passing.run(stream, before, dialed).await {
                egress.refused(&passing.host, passing.port, reason);
            }
        })
    }
}

impl Passing<'_> {
    async fn run(&self, stream: TcpStream, mut before: BytesMut, dialed: Option<Dialed>) -> Result<(), Reason> {
        self.egress.consider(&self.host, self.port).await;
        let mut changes = self.egress.changes();
        let rules = Arc::clone(&changes.borrow_and_update());
        let rule = match rules.admit(&self.host, self.port) {
            Ok(Admission::PassThrough(rule)) => rule,
            Ok(Admission::Inspect) => return Box::pin(self.inspect(stream, before)).await,
            Err(reason) => return Box::pin(self.explain(stream, before, reason)).await,
        };
        // What a connection needs to open is given back before it lives: thousands may.
        let opened = match Box::pin(self.open(&stream, &mut before, &rule, dialed)).await {
            Ok(Some(opened)) => opened,
            // Both were silent to their end.
            Ok(None) => return Ok(()),
            Err(reason) => {
                relay::abort(&stream);
                return Err(reason);
            }
        };
        let refused = match &opened.first {
            First::Tls { server_name, encrypted } => self.check_name(server_name.as_deref(), *encrypted).err(),
            First::Http { h2: false } if opened.received == 0 => {
                Box::pin(self.serve_http(stream, before, Some(opened.dialed))).await;
                return Ok(());
            }
            First::Http { h2: true } => Some(Reason::unsupported("HTTP/2 without TLS")),
            First::Http { .. } => Some(Reason::unsupported("a request after the server has spoken")),
            First::Hostile(what) => Some(Reason::malformed(*what)),
            First::Other | First::Incomplete => None,
        };
        let refused = refused.or_else(|| (!rule.take(self.egress.uptime())).then_some(Reason::Rate));
        if let Some(reason) = refused {
            deny(&stream, &opened.first);
            return Err(reason);
        }
        Box::pin(self.relay(&stream, &before, opened, &rule, changes)).await
    }

    /// Dials, and reads until the client has shown what it is. Servers that speak first are listened to meanwhile.
    async fn open(
        &self,
        stream: &TcpStream,
        before: &mut BytesMut,
        rule: &Rule,
        dialed: Option<Dialed>,
    ) -> Result<Option<Opened>, Reason> {
        let limits = &self.egress.config().limits;
        let place = Place::meant(&self.host, self.port, &rule.rules.addresses);
        let dial = self.egress.dialer().dial(&place);
        tokio::pin!(dial);
        let mut dialed = dialed;
        let (mut shown, mut received, mut deadline) = (first(before), 0, Instant::now() + limits.first_bytes);
        loop {
            if shown != First::Incomplete
                && let Some(dialed) = dialed.take()
            {
                return Ok(Some(Opened { first: shown, dialed, received }));
            }
            tokio::select! {
                result = &mut dial, if dialed.is_none() => {
                    let result = result?;
                    relay::write_all(stream, &result.early).await.map_err(Reason::unreachable)?;
                    received += result.early.len();
                    dialed = Some(Dialed { early: Default::default(), ..result });
                }
                ready = stream.readable(), if shown == First::Incomplete => {
                    ready.map_err(Reason::unreachable)?;
                    match stream.try_read_buf(before) {
                        Ok(0) if before.is_empty() && received == 0 => return Ok(None),
                        // Nothing more will come: what is no request by now will never be one.
                        Ok(0) => shown = if before.first() == Some(&0x16) { First::Hostile("half a client hello") } else { First::Other },
                        Ok(_) => shown = first(before),
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(_) => return Ok(None),
                    }
                }
                ready = readable(dialed.as_ref()), if shown == First::Incomplete && dialed.is_some() => {
                    ready.map_err(Reason::unreachable)?;
                    let Some(outside) = &dialed else { continue };
                    let mut buffer = [0; 2048];
                    match outside.stream.try_read(&mut buffer) {
                        // The relay finds that end again.
                        Ok(0) => shown = First::Other,
                        Ok(length) => {
                            relay::write_all(stream, &buffer[..length]).await.map_err(Reason::unreachable)?;
                            received += length;
                            deadline = Instant::now() + limits.idle;
                        }
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(Reason::unreachable(error)),
                    }
                }
                () = sleep_until(deadline) => return if before.is_empty() { Ok(None) } else { Err(Reason::Silence) },
            }
        }
    }

    /// Reads requests, inside TLS or not.
    async fn inspect(&self, stream: TcpStream, mut before: BytesMut) -> Result<(), Reason> {
        let shown = self.shown(&stream, &mut before).await;
        let refused = match &shown {
            Ok(First::Tls { server_name, encrypted }) => match self.check_name(server_name.as_deref(), *encrypted) {
                Ok(()) => return Box::pin(self.terminate(stream, before)).await,
                Err(reason) => reason,
            },
            Ok(First::Http { h2: false }) => {
                Box::pin(self.serve_http(stream, before, None)).await;
                return Ok(());
            }
            Ok(First::Http { h2: true }) => Reason::unsupported("HTTP/2 without TLS"),
            Ok(First::Hostile(what)) => Reason::malformed(*what),
            Ok(First::Incomplete) if before.is_empty() => return Ok(()),
            Ok(First::Other | First::Incomplete) => Reason::NotHttp,
            Err(reason) => reason.clone(),
        };
        deny(&stream, shown.as_ref().unwrap_or(&First::Other));
        Err(refused)
    }

    /// What a client says first; [`First::Incomplete`] when it ends before.
    async fn shown(&self, stream: &TcpStream, before: &mut BytesMut) -> Result<First, Reason> {
        let reading = async {
            loop {
                match first(before) {
                    First::Incomplete => {}
                    shown => return Ok(shown),
                }
                stream.readable().await.map_err(Reason::unreachable)?;
                match stream.try_read_buf(before) {
                    Ok(0) => return Ok(First::Incomplete),
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(Reason::unreachable(error)),
                }
            }
        };
        timeout(self.egress.config().limits.first_bytes, reading).await.unwrap_or(Err(Reason::Silence))
    }

    /// Where no route leads: to a request, an answer that says so; to everything else, a closed connection.
    async fn explain(&self, stream: TcpStream, mut before: BytesMut, reason: Reason) -> Result<(), Reason> {
        let shown = timeout(CURIOSITY, self.shown(&stream, &mut before)).await;
        match shown.unwrap_or(Ok(First::Other)) {
            Ok(First::Http { h2: false }) => {
                Box::pin(self.serve_http(stream, before, None)).await;
                Ok(())
            }
            shown => {
                deny(&stream, &shown.unwrap_or(First::Other));
                Err(reason)
            }
        }
    }

    /// The server name must be the host that the connection is to: otherwise a server that fronts for many would be asked for
    /// another one.
    fn check_name(&self, server_name: Option<&str>, encrypted: bool) -> Result<(), Reason> {
        if encrypted {
            return Err(Reason::EncryptedHello);
        }
        match (server_name.map(Host::parse), &self.host) {
            (Some(Ok(named)), host) if named == *host => Ok(()),
            // RFC 6066, 3: there is no server name for an address.
            (None, Host::Address(_)) => Ok(()),
            (None, Host::Name(_)) => Err(Reason::NoServerName),
            (Some(_), _) => Err(Reason::OtherHost { named: server_name.unwrap_or_default().to_owned() }),
        }
    }

    async fn serve_http(&self, stream: TcpStream, before: BytesMut, dialed: Option<Dialed>) {
        let entry = Entry::Host { host: self.host.clone(), port: self.port, tls: false };
        let stream = Counted::new(before, stream, Arc::clone(&self.connection.meter));
        web::serve(self.egress, self.connection, stream, entry, Protocol::Http1, dialed).await;
    }

    async fn terminate(&self, stream: TcpStream, before: BytesMut) -> Result<(), Reason> {
        let authority = self.egress.authority().map_err(Reason::unreachable)?;
        let mut config = authority.server(&self.host).map_err(Reason::unreachable)?;
        let room = self.egress.h2_room();
        if room.is_none() {
            self.egress.emit(Event::LimitReached { limit: "h2-connections" });
            config = Arc::new(without_h2(&config));
        }
        let stream = Counted::new(before, stream, Arc::clone(&self.connection.meter));
        let accepted = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await.map_err(|_| Reason::Silence)?;
        // Most often a program that does not trust the sandbox's authority.
        let stream = accepted.map_err(|error| Reason::malformed(format!("TLS: {error}")))?;
        let protocol = if stream.get_ref().1.alpn_protocol() == Some(H2) { Protocol::Http2 } else { Protocol::Http1 };
        let _room = room.filter(|_| protocol == Protocol::Http2);
        let entry = Entry::Host { host: self.host.clone(), port: self.port, tls: true };
        // Large, and on its way through several futures, each of which has room for what it is given.
        web::serve(self.egress, self.connection, Box::new(stream), entry, protocol, None).await;
        Ok(())
    }

    async fn relay(
        &self,
        stream: &TcpStream,
        before: &[u8],
        opened: Opened,
        rule: &Rule,
        changes: super::Changes,
    ) -> Result<(), Reason> {
        let (egress, meter) = (self.egress, &self.connection.meter);
        let place = || (self.host.clone(), self.port);
        let (host, port) = place();
        egress.emit(Event::Connected { host, port, rule: rule.origin.clone() });
        meter.note_received(opened.received);
        let begun = Begun { to_outside: before, to_inside: &opened.dialed.early };
        let outside = &opened.dialed.stream;
        let addresses = rule.rules.addresses.clone();
        let still = move |rules: &crate::policy::Ruleset| match rules.admit(&self.host, self.port) {
            Ok(Admission::PassThrough(rule)) => rule.rules.addresses == addresses,
            _ => false,
        };
        let why = tokio::select! {
            end = relay::sockets(stream, outside, begun, meter, &egress.pipes, egress.config().limits.idle) => match end {
                End::Done => None,
                End::Idle => Some("idle".to_owned()),
                End::Failed(error) => Some(error.to_string()),
            },
            () = revoked(changes, still) => {
                relay::abort(stream);
                relay::abort(outside);
                Some(Reason::Revoked.to_string())
            }
        };
        let (host, port) = place();
        egress.emit(Event::Closed { host, port, sent: meter.sent(), received: meter.received(), why });
        Ok(())
    }
}

/// Closes a connection so that its program can tell that it was refused.
fn deny(stream: &TcpStream, first: &First) {
    if matches!(first, First::Tls { .. }) {
        // What was not read makes the kernel reset the connection, and the alert would be lost with it; all was read here.
        let _ = stream.try_write(&ACCESS_DENIED);
    } else {
        relay::abort(stream);
    }
}

async fn readable(dialed: Option<&Dialed>) -> std::io::Result<()> {
    match dialed {
        Some(dialed) => dialed.stream.readable().await,
        None => std::future::pending().await,
    }
}
