//! The way out: the real resolution, pinned for the connection and checked after it, and the caller's own proxy if there is one.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use hermes_profiles::IpNetwork;
use http::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::address::{Class, check};
use crate::host::{Host, authority};
use crate::path::percent_decoded;
use crate::reason::Reason;

/// Most addresses of one name that are tried.
const MOST_ADDRESSES: usize = 8;

/// What `localhost` leads to, whatever a resolver says (RFC 6761, 6.3).
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A name's addresses, some time later.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Knows the real addresses of names.
pub trait Resolve: Send + Sync {
    /// All addresses of `name`.
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a>;
}

/// The resolver of the machine (getaddrinfo), as its other programs use it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        Box::pin(async move {
            // Without a final dot, which would keep search domains out of it, but /etc/hosts as well.
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// A proxy that the caller has to use.
#[derive(Debug, Clone)]
pub struct OuterProxy {
    host: Host,
    port: u16,
    authorization: Option<HeaderValue>,
    bypass: Vec<String>,
}

impl OuterProxy {
    /// Reads the values of `HTTPS_PROXY` and `NO_PROXY`.
    ///
    /// # Errors
    /// What is not `http://[USER:PASSWORD@]HOST[:PORT]`. The message does not repeat the text, which holds a password.
    pub fn parse(url: &str, no_proxy: &str) -> Result<Self, &'static str> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => return Err("only proxies that are spoken to by plain HTTP are supported (http://HOST:PORT)"),
            None => url,
        };
        let rest = rest.trim_end_matches('/');
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let (host, port) = authority(place, 80).map_err(|_| "expected http://[USER:PASSWORD@]HOST[:PORT]")?;
        let authorization = user.map(basic).transpose()?;
        let bypass =
            no_proxy.split([',', ' ']).map(|part| part.trim().to_ascii_lowercase()).filter(|part| !part.is_empty()).collect();
        Ok(Self { host, port, authorization, bypass })
    }

    /// Is `host` reached without the proxy?
    pub fn bypasses(&self, host: &Host) -> bool {
        let text = host.to_string();
        self.bypass.iter().any(|part| {
            let domain = part.trim_start_matches("*.").trim_start_matches('.');
            part == "*" || text == domain || text.strip_suffix(domain).is_some_and(|front| front.ends_with('.'))
        })
    }
}

/// RFC 7617, of what a URL holds percent-encoded.
fn basic(user: &str) -> Result<HeaderValue, &'static str> {
    let bytes = percent_decoded(user).ok_or("malformed percent-encoding in user or password")?;
    let text = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(bytes));
    let mut value = HeaderValue::from_str(&text).map_err(|_| "a user or password that cannot be sent")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Where to connect to.
#[derive(Debug, Clone)]
pub struct Place {
    /// Name or address.
    pub host: Host,
    /// TCP port.
    pub port: u16,
    /// Addresses that the rule names; see [`check`].
    pub literal: Vec<IpNetwork>,
}

impl Place {
    /// Where a rule leads: an address that it names is meant, and so is this machine by `localhost`, which no wildcard covers.
    pub fn meant(host: &Host, port: u16, literal: &[IpNetwork]) -> Self {
        let mut place = Self { host: host.clone(), port, literal: literal.to_vec() };
        match host {
            Host::Address(address) => place.name(*address),
            Host::Name(name) if name == "localhost" => place.name(LOCALHOST),
            Host::Name(_) => {}
        }
        place
    }

    fn name(&mut self, address: IpAddr) {
        self.literal.push(IpNetwork { address, prefix: if address.is_ipv4() { 32 } else { 128 } });
    }
}

/// A connection to the outside.
#[derive(Debug)]
pub struct Dialed {
    /// The connection.
    pub stream: TcpStream,
    /// What came with the answer of an outer proxy.
    pub early: Bytes,
}

/// Connects to the outside.
pub struct Dialer {
    resolver: Arc<dyn Resolve>,
    outer: Option<OuterProxy>,
    patience: Duration,
}

impl Dialer {
    /// `patience` is for all of it: resolving, connecting, and what an outer proxy takes.
    pub fn new(resolver: Arc<dyn Resolve>, outer: Option<OuterProxy>, patience: Duration) -> Self {
        Self { resolver, outer, patience }
    }

    /// Connects to `place`, at an address that was looked up for this connection alone.
    ///
    /// # Errors
    /// The name cannot be resolved, leads only to addresses that are refused, or none of them answers.
    pub async fn dial(&self, place: &Place) -> Result<Dialed, Reason> {
        let work = async {
            let addresses = self.addresses(place).await?;
            match self.outer.as_ref().filter(|outer| !outer.bypasses(&place.host)) {
                None => {
                    let stream = self.connect(&addresses, place.port).await?;
                    Ok(Dialed { stream, early: Bytes::new() })
                }
                Some(outer) => self.through(outer, SocketAddr::new(addresses[0], place.port)).await,
            }
        };
        timeout(self.patience, work).await.unwrap_or_else(|_| Err(Reason::unreachable("no answer in time")))
    }

    /// Permitted addresses of a place; at least one.
    async fn addresses(&self, place: &Place) -> Result<Vec<IpAddr>, Reason> {
        let all = match &place.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) if name == "localhost" => vec![LOCALHOST],
            Host::Name(name) => {
                self.resolver.resolve(name).await.map_err(|error| Reason::Unresolved { detail: error.to_string() })?
            }
        };
        let mut refused = None;
        let mut permitted = Vec::new();
        for address in all.into_iter().map(|address| address.to_canonical()) {
            let verdict = match check(address, &place.literal) {
                Ok(()) if place.literal.is_empty() && is_own(address) => Err(Some(Class::Own)),
                other => other,
            };
            match verdict {
                Err(class) => refused = Some(Reason::Address { address, class }),
                Ok(()) if permitted.contains(&address) => {}
                Ok(()) => permitted.push(address),
            }
        }
        permitted.truncate(MOST_ADDRESSES);
        match (permitted.is_empty(), refused) {
            (false, _) => Ok(permitted),
            (true, Some(reason)) => Err(reason),
            (true, None) => Err(Reason::Unresolved { detail: "no addresses".into() }),
        }
    }

    /// One after the other; each but the last gets a share of the time.
    async fn connect(&self, addresses: &[IpAddr], port: u16) -> Result<TcpStream, Reason> {
        let mut last = Reason::unreachable("no address answers");
        let end = Instant::now() + self.patience;
        for (tried, address) in addresses.iter().enumerate() {
            let left = u32::try_from(addresses.len() - tried).unwrap_or(1);
            let share = Instant::now() + end.saturating_duration_since(Instant::now()) / left;
            match timeout_at(share, TcpStream::connect((*address, port))).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = Reason::unreachable(error),
                Err(_) => last = Reason::unreachable("no answer in time"),
            }
        }
        Err(last)
    }

    /// The outer proxy is the caller's choice: its own address is not checked. It is told the address, not the name, so that it
    /// cannot resolve it differently.
    async fn through(&self, outer: &OuterProxy, target: SocketAddr) -> Result<Dialed, Reason> {
        let failed = |why: &dyn std::fmt::Display| Reason::unreachable(format_args!("the outer proxy: {why}"));
        let addresses = match &outer.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) if name == "localhost" => vec![LOCALHOST],
            Host::Name(name) => self.resolver.resolve(name).await.map_err(|error| failed(&error))?,
        };
        let stream = self.connect(&addresses, outer.port).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection.with_upgrades());
        let mut request = http::Request::connect(target.to_string()).header(HOST, target.to_string());
        if let Some(value) = &outer.authorization {
            request = request.header(PROXY_AUTHORIZATION, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| failed(&error))?;
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        if !response.status().is_success() {
            return Err(failed(&format_args!("it answers {}", response.status())));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(|error| failed(&error))?;
        let parts = upgraded.downcast::<TokioIo<TcpStream>>().map_err(|_| failed(&"not a socket"))?;
        Ok(Dialed { stream: parts.io.into_inner(), early: parts.read_buf })
    }
}

/// Is this an address of the machine? A service that listens on all of them answers on a public one, too.
pub fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Fixed(Vec<IpAddr>);

    impl Resolve for Fixed {
        fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
            Box::pin(async { Ok(self.0.clone()) })
        }
    }

    async fn addresses(found: &[&str], literal: &[IpNetwork]) -> Result<Vec<IpAddr>, Reason> {
        let found = found.iter().map(|text| text.parse().unwrap()).collect();
        let dialer = Dialer::new(Arc::new(Fixed(found)), None, Duration::from_secs(1));
        dialer.addresses(&Place::meant(&Host::parse("a.test").unwrap(), 443, literal)).await
    }

    #[tokio::test]
    async fn what_a_name_may_lead_to() {
        let public = "93.184.216.34".parse::<IpAddr>().unwrap();
        assert_eq!(addresses(&["93.184.216.34", "127.0.0.1", "::ffff:10.0.0.1"], &[]).await, Ok(vec![public]));
        let metadata = Reason::Address { address: "169.254.169.254".parse().unwrap(), class: Some(Class::Metadata) };
        assert_eq!(addresses(&["::ffff:169.254.169.254"], &[]).await, Err(metadata));
        let network = IpNetwork { address: "10.0.0.0".parse().unwrap(), prefix: 8 };
        assert_eq!(addresses(&["93.184.216.34", "10.0.0.1"], &[network]).await, Ok(vec!["10.0.0.1".parse().unwrap()]));
        assert!(matches!(addresses(&[], &[]).await, Err(Reason::Unresolved { .. })));
    }

    #[test]
    fn outer_proxies() {
        let outer = OuterProxy::parse("http://user:p%40ss@proxy.corp.test:3128/", "localhost,.corp.test, other.test").unwrap();
        assert_eq!((outer.host.to_string().as_str(), outer.port), ("proxy.corp.test", 3128));
        assert_eq!(outer.authorization.as_ref().unwrap(), "Basic dXNlcjpwQHNz");
        assert!(!format!("{outer:?}").contains("dXNl"));
        let bypasses = |text: &str| outer.bypasses(&Host::parse(text).unwrap());
        assert!(bypasses("a.corp.test") && bypasses("other.test") && bypasses("x.other.test"));
        assert!(!bypasses("example.test") && !bypasses("another.test"));
        assert!(OuterProxy::parse("socks5://x:1", "").is_err());
        assert!(OuterProxy::parse("https://proxy.test:443", "").is_err());
    }
}
