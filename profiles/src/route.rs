//! One way out: which host and ports, which requests, and where they end up. Types, and the grammar of their texts.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::policy::Origin;
use crate::values;

/// One destination. A route without [`RouteRules::needs_inspection`] is passed through unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// Host name, `*.` wildcard or literal address; lower case, ASCII, no trailing dot.
    pub host: String,
    /// TCP ports.
    pub ports: Vec<u16>,
    /// What else must hold, and what becomes of a request.
    #[serde(flatten)]
    pub rules: RouteRules,
    /// Where the route was written.
    pub origin: Origin,
}

impl Route {
    /// A route by host and ports alone.
    pub fn new(host: impl Into<String>, ports: impl Into<Vec<u16>>, origin: Origin) -> Self {
        Self { host: host.into(), ports: ports.into(), rules: RouteRules::default(), origin }
    }
}

/// What a route says beside host and ports. The default says nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRules {
    /// HTTP methods; empty means any.
    pub methods: Vec<String>,
    /// Globs of URL paths; empty means any.
    pub paths: Vec<String>,
    /// Bytes of the largest request body.
    pub max_body: Option<u64>,
    /// The credential that requests get on their way out.
    pub secret: Option<SecretRule>,
    /// Where requests go instead of the host that the program means.
    pub upstream: Option<Upstream>,
    /// The only addresses that the host's name may lead to, private ones included. Empty: any public one.
    pub addresses: Vec<IpNetwork>,
    /// Requests (connections where they are not read) in a time.
    pub rate: Option<Rate>,
}

impl RouteRules {
    /// Must single requests be read, and so TLS be terminated?
    pub fn needs_inspection(&self) -> bool {
        !self.methods.is_empty()
            || !self.paths.is_empty()
            || self.max_body.is_some()
            || self.secret.is_some()
            || self.upstream.is_some()
    }
}

/// A secret by name, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRule {
    /// The name it is stored under.
    pub name: String,
    /// The request header, lower case.
    pub header: String,
    /// The header's value, with `{}` where the secret goes.
    pub format: String,
}

/// `http://` or `https://`, a host, a port and a path that is put in front of the request's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    /// Speak TLS, and verify the certificate.
    pub tls: bool,
    /// Name or literal address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Empty, or starts with `/` and does not end with one.
    pub prefix: String,
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        let bracketed = self.host.contains(':');
        let (open, close) = if bracketed { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{open}{}{close}:{}{}", self.host, self.port, self.prefix)
    }
}

/// An address and how many of its leading bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpNetwork {
    /// The first address.
    pub address: IpAddr,
    /// 0 to 32, or to 128.
    pub prefix: u8,
}

impl IpNetwork {
    /// Is `address` one of this network's? IPv4 and IPv6 are different worlds here.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
                (a.to_bits() ^ b.to_bits()) & mask == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0);
                (a.to_bits() ^ b.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

/// So many in so many milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// At least 1.
    pub count: u32,
    /// At least 1.
    pub milliseconds: u64,
}

/// A method: a token in upper case (RFC 9110, 5.6.2 and 9.1; methods are case-sensitive).
pub(crate) fn method(text: &str) -> Result<(), String> {
    if text == "CONNECT" {
        return Err("a tunnel is not a request; leave methods out to allow tunnels".into());
    }
    let plain = |b: u8| b.is_ascii_uppercase() || b == b'-' || b == b'_';
    if text.is_empty() || !text.bytes().all(plain) {
        return Err("expected a method such as \"GET\", in upper case".into());
    }
    Ok(())
}

/// A glob of paths.
pub(crate) fn path_glob(text: &str) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err("a path starts with \"/\"".into());
    }
    if text.contains(['?', '#', '%', '\\', ';']) {
        return Err("a path is matched decoded and without its query: no \"?\", \"#\", \"%\", \"\\\" or \";\"".into());
    }
    if text.split('/').any(|segment| segment == "." || segment == "..") || text.contains("//") {
        return Err("a path is matched after \".\", \"..\" and \"//\" are resolved; write what is left".into());
    }
    fast_glob::validate(text).map_err(|error| format!("not a glob: {error:?}"))
}

/// `https://HOST[:PORT][/PREFIX]`
pub(crate) fn upstream(text: &str) -> Result<Upstream, String> {
    let expected = || "expected \"https://HOST[:PORT][/PREFIX]\" or the same with http".to_owned();
    let (tls, rest) = match text.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        _ => return Err(expected()),
    };
    let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if prefix.contains(['?', '#', '%', '\\', ';', '*']) || prefix.contains("//") || prefix.contains("/.") {
        return Err("the path in front must be a plain one".into());
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().ok().filter(|port| *port > 0).ok_or("expected a port from 1 to 65535")?)
        }
        _ => (authority, if tls { 443 } else { 80 }),
    };
    if host.starts_with('*') {
        return Err("an upstream is one place; it cannot be a wildcard".into());
    }
    Ok(Upstream { tls, host: values::host(host)?, port, prefix: prefix.trim_end_matches('/').to_owned() })
}

/// `10.0.0.0/8`, or an address alone.
pub(crate) fn ip_network(text: &str) -> Result<IpNetwork, String> {
    let expected = || "expected an address or a network such as \"10.0.0.0/8\"".to_owned();
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| expected())?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| expected())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = prefix.unwrap_or(most);
    if prefix > most {
        return Err(expected());
    }
    Ok(IpNetwork { address, prefix })
}

/// `10/s`, `60/m`, `1000/h`
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let parse = || {
        let (count, unit) = text.split_once('/')?;
        let milliseconds = match unit {
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        Some(Rate { count: count.parse().ok().filter(|count| *count > 0)?, milliseconds })
    };
    parse().ok_or_else(|| "expected a rate such as \"10/s\", \"60/m\" or \"1000/h\"".into())
}

/// A header that a secret may go into: a token (RFC 9110, 5.6.2) that does not frame or route the message.
pub(crate) fn secret_header(text: &str) -> Result<String, String> {
    const TAKEN: [&str; 10] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "proxy-connection",
    ];
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    let lower = text.to_ascii_lowercase();
    if text.is_empty() || !text.bytes().all(token) || TAKEN.contains(&lower.as_str()) {
        return Err("expected the name of a header such as \"Authorization\"".into());
    }
    Ok(lower)
}

/// The value of such a header.
pub(crate) fn secret_format(text: &str) -> Result<(), String> {
    if text.matches("{}").count() != 1 || !text.is_ascii() {
        return Err("expected ASCII text with one \"{}\" for the secret, as in \"Bearer {}\"".into());
    }
    Ok(())
}
