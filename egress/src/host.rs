//! Hosts, in one spelling.
//!
//! Whatever a program sends is refused unless it is a name or an address in its usual spelling: what looks like one thing to
//! us and like another to a resolver (`0x7f.1`, `127.1`, `2130706433`, `a@b`, NUL) never gets as far as a rule.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::Serialize;

/// A name (lower case, ASCII, no trailing dot) or an address (IPv4 where it is IPv4 in IPv6 clothes).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum Host {
    /// A name.
    Name(String),
    /// A literal address.
    Address(IpAddr),
}

/// Not a host: what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotAHost(&'static str);

impl Host {
    /// Reads a host as it stands in a URL's authority, a `Host` header or a server name: `example.test`, `192.0.2.1`,
    /// `[2001:db8::1]`.
    ///
    /// # Errors
    /// Everything else, and unusual spellings of addresses.
    pub fn parse(text: &str) -> Result<Self, NotAHost> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(NotAHost("an address without its closing bracket"))?;
            let address = inner.parse::<Ipv6Addr>().map_err(|_| NotAHost("not an IPv6 address"))?;
            return Ok(Self::from(IpAddr::V6(address)));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return match address {
                IpAddr::V4(_) => Ok(Self::Address(address)),
                IpAddr::V6(_) => Err(NotAHost("an IPv6 address without brackets")),
            };
        }
        name(text).map(Self::Name)
    }

    /// The name, if it is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl fmt::Display for Host {
    /// As it stands in an authority: IPv6 in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// The canonical form of a host name.
///
/// # Errors
/// Empty or long labels, characters that no name on the wire has, and numbers that `inet_aton` reads as addresses.
pub fn name(text: &str) -> Result<String, NotAHost> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() || text.len() > 253 {
        return Err(NotAHost("a name has 1 to 253 characters"));
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !text.split('.').all(|label| (1..=63).contains(&label.len()) && label.bytes().all(plain)) {
        return Err(NotAHost("a name has labels of 1 to 63 letters, digits, hyphens and underscores"));
    }
    let lower = text.to_ascii_lowercase();
    let last = lower.rsplit('.').next().unwrap_or_default();
    // inet_aton(3): a last label that is a number makes the whole an address in most resolvers (and in the URL standard).
    let hexadecimal = last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    if hexadecimal || last.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NotAHost("an address in an unusual spelling"));
    }
    Ok(lower)
}

/// Reads `HOST[:PORT]`, as in a `Host` header.
///
/// # Errors
/// User information, and what [`Host::parse`] refuses.
pub fn authority(text: &str, default_port: u16) -> Result<(Host, u16), NotAHost> {
    if text.contains('@') {
        // RFC 9110, 4.2.4: "http://permitted.test@elsewhere.test/" is a way to deceive.
        return Err(NotAHost("user information in an address"));
    }
    let end = text.rfind(']').map_or(0, |at| at + 1);
    let (host, port) = match text[end..].rfind(':') {
        None => (text, default_port),
        Some(colon) => {
            let (host, port) = (&text[..end + colon], &text[end + colon + 1..]);
            let digits = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
            let port = digits.then(|| port.parse::<u16>().ok()).flatten().filter(|port| *port > 0);
            (host, port.ok_or(NotAHost("not a port from 1 to 65535"))?)
        }
    };
    Ok((Host::parse(host)?, port))
}

/// Which hosts a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This one.
    Exactly(Host),
    /// Every name below this one, but not itself: the domain without `*.`.
    Below(String),
}

impl Pattern {
    /// Reads a policy's host: a name, `*.` and a name, or an address.
    ///
    /// # Errors
    /// Everything else.
    pub fn parse(text: &str) -> Result<Self, NotAHost> {
        if let Some(domain) = text.strip_prefix("*.") {
            return name(domain).map(Self::Below);
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(Self::Exactly(address.into())),
            Err(_) => Host::parse(text).map(Self::Exactly),
        }
    }

    /// Is `host` one of them?
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Exactly(own), host) => own == host,
            (Self::Below(domain), Host::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
            (Self::Below(_), Host::Address(_)) => false,
        }
    }

    /// Of two patterns that match one host, the greater one says more about it.
    pub(crate) fn precision(&self) -> usize {
        match self {
            Self::Exactly(_) => usize::MAX,
            Self::Below(domain) => domain.len(),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(host) => write!(f, "{host}"),
            Self::Below(domain) => write!(f, "*.{domain}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn usual_spellings_are_folded() {
        for (text, wanted) in [
            ("Example.TEST", "example.test"),
            ("example.test.", "example.test"),
            ("[::FFFF:127.0.0.1]", "127.0.0.1"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("192.0.2.7", "192.0.2.7"),
            ("_srv.example.test", "_srv.example.test"),
        ] {
            assert_eq!(Host::parse(text).map(|host| host.to_string()), Ok(wanted.to_owned()), "{text}");
        }
    }

    #[test]
    fn unusual_spellings_are_refused() {
        for text in [
            "",
            ".",
            "..",
            "a..b",
            "example.test..",
            ".example.test",
            "127.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "2130706433",
            "017700000001",
            "127.0.0.01",
            "127.0.0.1.",
            "1.2.3.0x4",
            "::1",
            "[::1",
            "[fe80::1%eth0]",
            "[127.0.0.1]",
            "exa mple.test",
            "example.test\0.evil.test",
            "example.test/",
            "a@example.test",
            "example\u{ff0e}test",
            "b\u{fc}cher.test",
            "example%2etest",
            "*.example.test",
        ] {
            assert!(Host::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn authorities() {
        assert_eq!(authority("example.test", 80), Ok((Host::Name("example.test".into()), 80)));
        assert_eq!(authority("[::1]:8080", 80), Ok((Host::Address("::1".parse().unwrap()), 8080)));
        for text in
            ["example.test:", "example.test:0", "example.test:65536", "example.test:+80", "x@example.test:80", "a:b:80", ":80"]
        {
            assert!(authority(text, 80).is_err(), "{text}");
        }
    }

    #[test]
    fn wildcards_are_below_only() {
        let pattern = Pattern::parse("*.example.test").unwrap();
        let matches = |text: &str| pattern.matches(&Host::parse(text).unwrap());
        assert!(matches("a.example.test") && matches("a.b.EXAMPLE.test."));
        assert!(!matches("example.test") && !matches("notexample.test") && !matches("example.test.evil.test"));
    }
}
