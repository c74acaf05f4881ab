//! Where a connection goes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use super::Listening;
use super::address::Family;
use crate::plan::GATEWAY_ADDRESS;

/// The port of name servers, whatever address they have.
const DNS: u16 = 53;

/// Ports that routes lead to; more may be added.
#[derive(Debug, Default)]
pub struct Ports(RwLock<BTreeSet<u16>>);

impl Ports {
    /// Adds ports. Where a route is gone, its port leads to the proxy all the same, which refuses.
    pub fn open(&self, more: impl IntoIterator<Item = u16>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(more);
    }

    fn contains(&self, port: u16) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }
}

/// What the sandbox may reach.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// Ports that routes lead to.
    pub(super) ports: Arc<Ports>,
    /// The explicit proxy's.
    pub(super) proxy: u16,
    /// Open ports of the host's loopback.
    pub(super) host: Vec<u16>,
}

/// Where a connection goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// To one of the supervisor's own listeners.
    Proxy(Kind),
    /// To a port of the loopback, if it is the sandbox's own.
    Own,
    /// To a port of the loopback, whoever has it.
    Host,
    /// Nowhere: as if nobody listened.
    Refused,
}

/// A listener of the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// For names.
    Dns,
    /// For programs that know of proxies.
    Explicit,
    /// For all others.
    Transparent,
}

impl Rules {
    pub(super) fn target(&self, asked: SocketAddr) -> Target {
        let (ip, port) = (asked.ip(), asked.port());
        // Before the loopback: a resolver on the host is there (127.0.0.53).
        if port == DNS {
            Target::Proxy(Kind::Dns)
        } else if ip.is_loopback() || ip.is_unspecified() {
            if self.host.contains(&port) { Target::Host } else { Target::Own }
        } else if ip == IpAddr::V4(GATEWAY_ADDRESS) && port == self.proxy {
            Target::Proxy(Kind::Explicit)
        } else if self.ports.contains(port) {
            Target::Proxy(Kind::Transparent)
        } else {
            Target::Refused
        }
    }
}

/// `connect` to all addresses is to the loopback (`ip_route_connect`, `tcp_v6_connect`).
pub(super) fn loopback(asked: SocketAddr) -> SocketAddr {
    let ip = match asked.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, asked.port())
}

/// Which of a listener's addresses a socket of this family can reach that is bound to `local`.
pub(super) fn end(listening: &Listening, family: Family, local: IpAddr) -> Option<SocketAddr> {
    let only_6 = family == Family::V6 { only: true } || local.to_canonical().is_ipv6() && !local.is_unspecified();
    if only_6 { listening.v6 } else { Some(listening.v4) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_address_has_one_way() {
        let ports = Arc::new(Ports::default());
        ports.open([80, 443]);
        let rules = Rules { ports, proxy: 3128, host: vec![5432] };
        for (asked, target) in [
            ("192.0.2.1:443", Target::Proxy(Kind::Transparent)),
            ("[2001:db8::1]:80", Target::Proxy(Kind::Transparent)),
            ("198.18.0.1:3128", Target::Proxy(Kind::Explicit)),
            ("198.18.0.2:3128", Target::Refused),
            ("192.0.2.1:3128", Target::Refused),
            ("127.0.0.53:53", Target::Proxy(Kind::Dns)),
            ("192.0.2.1:53", Target::Proxy(Kind::Dns)),
            ("127.0.0.1:443", Target::Own),
            ("127.9.9.9:1", Target::Own),
            ("0.0.0.0:443", Target::Own),
            ("[::]:443", Target::Own),
            ("[::1]:3128", Target::Own),
            ("127.0.0.1:5432", Target::Host),
            ("192.0.2.1:5432", Target::Refused),
            ("169.254.169.254:8080", Target::Refused),
        ] {
            assert_eq!(rules.target(asked.parse().unwrap()), target, "{asked}");
        }
    }

    #[test]
    fn the_listener_is_of_a_family_that_the_socket_can_reach() {
        let listening = Listening { v4: "127.0.0.1:1".parse().unwrap(), v6: Some("[::1]:2".parse().unwrap()) };
        let end = |family, local: &str| end(&listening, family, local.parse().unwrap()).unwrap().port();
        assert_eq!(end(Family::V4, "0.0.0.0"), 1);
        assert_eq!(end(Family::V6 { only: false }, "::"), 1);
        assert_eq!(end(Family::V6 { only: false }, "::ffff:127.0.0.1"), 1);
        assert_eq!(end(Family::V6 { only: false }, "::1"), 2);
        assert_eq!(end(Family::V6 { only: true }, "::"), 2);
    }
}
