//! Socket addresses of the internet families: as bytes of the kernel, and what they mean.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::errno::Errno;

/// `SIN6_LEN_RFC2133`: the kernel takes addresses without the scope, too.
const SHORTEST_6: usize = 24;
const LENGTH_4: usize = 16;
const LENGTH_6: usize = 28;

/// A family that the mediator has sockets of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`; `only`: no IPv4 in IPv6 form (`IPV6_V6ONLY`).
    V6 {
        /// No IPv4.
        only: bool,
    },
}

/// What an address asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// To be connected no more (`AF_UNSPEC`).
    Nothing,
    /// This address; IPv4 in IPv6 form is IPv4.
    Address(SocketAddr),
}

fn family_of(bytes: &[u8]) -> Result<libc::c_int, Errno> {
    let family = bytes.first_chunk().ok_or(Errno::EINVAL)?;
    Ok(libc::c_int::from(libc::sa_family_t::from_ne_bytes(*family)))
}

fn port_of(bytes: &[u8]) -> Result<u16, Errno> {
    Ok(u16::from_be_bytes(*bytes.get(2..).and_then(<[u8]>::first_chunk).ok_or(Errno::EINVAL)?))
}

fn v4_of(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let octets: [u8; 4] = *bytes.get(4..LENGTH_4).and_then(<[u8]>::first_chunk).ok_or(Errno::EINVAL)?;
    Ok((Ipv4Addr::from(octets), port_of(bytes)?).into())
}

fn v6_of(bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let octets: [u8; 16] = *bytes.get(8..SHORTEST_6).and_then(<[u8]>::first_chunk).ok_or(Errno::EINVAL)?;
    Ok((Ipv6Addr::from(octets), port_of(bytes)?).into())
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Reads the address of a `connect` as `inet_stream_connect` and `tcp_v4_connect` or `tcp_v6_connect` do.
pub(super) fn to_connect(family: Family, bytes: &[u8]) -> Result<Asked, Errno> {
    let asked = family_of(bytes)?;
    let address = match family {
        _ if asked == libc::AF_UNSPEC => return Ok(Asked::Nothing),
        Family::V4 if bytes.len() < LENGTH_4 => return Err(Errno::EINVAL),
        Family::V6 { .. } if bytes.len() < SHORTEST_6 => return Err(Errno::EINVAL),
        Family::V4 if asked == libc::AF_INET => v4_of(bytes)?,
        Family::V6 { .. } if asked == libc::AF_INET6 => v6_of(bytes)?,
        _ => return Err(Errno::EAFNOSUPPORT),
    };
    match (family, canonical(address)) {
        // `tcp_v6_connect`: not with IPV6_V6ONLY.
        (Family::V6 { only: true }, SocketAddr::V4(_)) => Err(Errno::ENETUNREACH),
        (_, address) => Ok(Asked::Address(address)),
    }
}

/// Where a socket is bound that asks for this address (`__inet_bind`, `__inet6_bind`): on the loopback, or nowhere. To ask for
/// all addresses is to ask for those that there are.
pub(super) fn to_bind(family: Family, bytes: &[u8]) -> Result<SocketAddr, Errno> {
    let asked = family_of(bytes)?;
    let address = match family {
        Family::V4 if bytes.len() < LENGTH_4 => return Err(Errno::EINVAL),
        Family::V6 { .. } if bytes.len() < SHORTEST_6 => return Err(Errno::EINVAL),
        Family::V4 if asked == libc::AF_INET => v4_of(bytes)?,
        // Old programs bind to any address like this.
        Family::V4 if asked == libc::AF_UNSPEC && v4_of(bytes)?.ip().is_unspecified() => v4_of(bytes)?,
        Family::V6 { .. } if asked == libc::AF_INET6 => v6_of(bytes)?,
        _ => return Err(Errno::EAFNOSUPPORT),
    };
    let ip = match (family, address.ip()) {
        (_, ip) if ip.is_unspecified() => anywhere(family),
        (Family::V6 { only: true }, ip) if ip.to_canonical().is_ipv4() => return Err(Errno::EINVAL),
        (_, ip) if ip.to_canonical().is_loopback() => ip,
        _ => return Err(Errno::EADDRNOTAVAIL),
    };
    Ok(SocketAddr::new(ip, address.port()))
}

/// The loopback address in the place of all addresses. One socket is on one of them, and most programs mean IPv4.
pub(super) fn anywhere(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 { only: false } => Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
        Family::V6 { only: true } => Ipv6Addr::LOCALHOST.into(),
    }
}

/// The kernel's bytes of an address, for a socket of this family; `None` where it has no such address.
pub(super) fn bytes(family: Family, address: SocketAddr) -> Option<Vec<u8>> {
    let head = |family: libc::c_int| {
        let mut bytes = (family as libc::sa_family_t).to_ne_bytes().to_vec();
        bytes.extend(address.port().to_be_bytes());
        bytes
    };
    let ip = match (family, address.ip()) {
        (Family::V4, ip) => {
            let IpAddr::V4(ip) = ip.to_canonical() else { return None };
            let mut bytes = head(libc::AF_INET);
            bytes.extend(ip.octets());
            bytes.resize(LENGTH_4, 0);
            return Some(bytes);
        }
        (Family::V6 { only: true }, ip) if ip.to_canonical().is_ipv4() => return None,
        (Family::V6 { .. }, IpAddr::V4(ip)) => ip.to_ipv6_mapped(),
        (Family::V6 { .. }, IpAddr::V6(ip)) => ip,
    };
    let whole = SocketAddrV6::new(ip, address.port(), 0, 0);
    let mut bytes = head(libc::AF_INET6);
    bytes.extend(whole.flowinfo().to_ne_bytes());
    bytes.extend(ip.octets());
    bytes.resize(LENGTH_6, 0);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const V6: Family = Family::V6 { only: false };
    const ONLY: Family = Family::V6 { only: true };

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn raw(text: &str) -> Vec<u8> {
        let address = address(text);
        bytes(if address.is_ipv4() { Family::V4 } else { V6 }, address).unwrap()
    }

    #[test]
    fn connects_are_read_as_the_kernel_reads_them() {
        let to = |text: &str| Ok(Asked::Address(address(text)));
        assert_eq!(to_connect(Family::V4, &raw("1.2.3.4:5")), to("1.2.3.4:5"));
        assert_eq!(to_connect(V6, &raw("[::ffff:1.2.3.4]:5")), to("1.2.3.4:5"));
        assert_eq!(to_connect(ONLY, &raw("[::ffff:1.2.3.4]:5")), Err(Errno::ENETUNREACH));
        assert_eq!(to_connect(ONLY, &raw("[2001:db8::1]:5")), to("[2001:db8::1]:5"));
        assert_eq!(to_connect(V6, &raw("[::1]:5")[..24]), to("[::1]:5"));
        assert_eq!(to_connect(V6, &raw("[::1]:5")[..23]), Err(Errno::EINVAL));
        assert_eq!(to_connect(Family::V4, &raw("1.2.3.4:5")[..15]), Err(Errno::EINVAL));
        assert_eq!(to_connect(Family::V4, &raw("[::1]:5")), Err(Errno::EAFNOSUPPORT));
        assert_eq!(to_connect(V6, &[raw("1.2.3.4:5"), vec![0; 12]].concat()), Err(Errno::EAFNOSUPPORT));
        assert_eq!(to_connect(V6, &[0, 0]), Ok(Asked::Nothing));
        assert_eq!(to_connect(V6, &[0]), Err(Errno::EINVAL));
    }

    #[test]
    fn sockets_are_bound_to_loopback_and_nothing_else() {
        for (family, asked, bound) in [
            (Family::V4, "0.0.0.0:80", "127.0.0.1:80"),
            (Family::V4, "127.3.2.1:0", "127.3.2.1:0"),
            (V6, "[::]:80", "[::ffff:127.0.0.1]:80"),
            (ONLY, "[::]:80", "[::1]:80"),
            (V6, "[::1]:80", "[::1]:80"),
            (V6, "[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80"),
        ] {
            assert_eq!(to_bind(family, &raw(asked)), Ok(address(bound)), "{asked}");
        }
        for (family, asked) in [(Family::V4, "192.0.2.1:80"), (V6, "[2001:db8::1]:80"), (V6, "[::ffff:192.0.2.1]:80")] {
            assert_eq!(to_bind(family, &raw(asked)), Err(Errno::EADDRNOTAVAIL), "{asked}");
        }
        assert_eq!(to_bind(ONLY, &raw("[::ffff:127.0.0.1]:80")), Err(Errno::EINVAL));
        let unspecified = |address: &str| [vec![0, 0], raw(address)[2..].to_vec()].concat();
        assert_eq!(to_bind(Family::V4, &unspecified("0.0.0.0:80")), Ok(address("127.0.0.1:80")));
        assert_eq!(to_bind(Family::V4, &unspecified("127.0.0.1:80")), Err(Errno::EAFNOSUPPORT));
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_ends_on_the_loopback(given in proptest::collection::vec(any::<u8>(), 0..40), only: bool) {
            for family in [Family::V4, Family::V6 { only }] {
                let _ = to_connect(family, &given);
                if let Ok(at) = to_bind(family, &given) {
                    prop_assert!(at.ip().to_canonical().is_loopback());
                }
            }
        }

        #[test]
        fn addresses_come_back_as_they_were(ip: IpAddr, port: u16) {
            let address = SocketAddr::new(ip, port);
            let given = bytes(V6, address).unwrap();
            prop_assert_eq!(to_connect(V6, &given), Ok(Asked::Address(canonical(address))));
        }
    }

    #[test]
    fn bytes_are_those_of_the_c_library() {
        use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike};
        let length = |address: &dyn Fn() -> libc::socklen_t| address() as usize;
        let (four, six) = (SockaddrIn::new(1, 2, 3, 4, 5), SockaddrIn6::from(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 0, 0)));
        assert_eq!(raw("1.2.3.4:5").len(), length(&|| four.len()));
        assert_eq!(raw("[::1]:5").len(), length(&|| six.len()));
        assert_eq!(bytes(ONLY, address("1.2.3.4:5")), None);
        assert_eq!(bytes(Family::V4, address("[::1]:5")), None);
    }
}
