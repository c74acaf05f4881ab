//! Which addresses a name may not lead to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hermes_profiles::IpNetwork;
use serde::Serialize;

/// Why an address is not a place on the public internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// `0.0.0.0/8` and `::`, which connect to this machine.
    Unspecified,
    /// `127.0.0.0/8`, `::1`
    Loopback,
    /// RFC 1918, `fc00::/7`, `fec0::/10`
    Private,
    /// `169.254.0.0/16`, `fe80::/10`
    LinkLocal,
    /// `100.64.0.0/10` (RFC 6598)
    CarrierGradeNat,
    /// Where clouds hand credentials to whoever asks.
    Metadata,
    /// Multicast and broadcast.
    Multicast,
    /// Benchmarking, documentation, protocol assignments, future use; the sandbox's own synthetic addresses among them.
    Reserved,
    /// An address of this machine itself.
    Own,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::Private => "private",
            Self::LinkLocal => "link-local",
            Self::CarrierGradeNat => "carrier-grade NAT",
            Self::Metadata => "cloud metadata",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
            Self::Own => "this machine's own",
        })
    }
}

/// What is special about `address`, in any IPv6 clothes that an IPv4 address can wear; nothing for a public one.
pub fn class(address: IpAddr) -> Option<Class> {
    match address.to_canonical() {
        IpAddr::V4(address) => class_v4(address),
        IpAddr::V6(address) => class_v6(address),
    }
}

fn class_v4(address: Ipv4Addr) -> Option<Class> {
    // EC2 and most others; Oracle; Alibaba; Azure's wire server, which is a public address.
    const METADATA: [Ipv4Addr; 4] = [
        Ipv4Addr::new(169, 254, 169, 254),
        Ipv4Addr::new(192, 0, 0, 192),
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(168, 63, 129, 16),
    ];
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        _ if METADATA.contains(&address) => Class::Metadata,
        (0, ..) => Class::Unspecified,
        (127, ..) => Class::Loopback,
        (10, ..) | (192, 168, _) => Class::Private,
        (172, 16..=31, _) => Class::Private,
        (169, 254, _) => Class::LinkLocal,
        (100, 64..=127, _) => Class::CarrierGradeNat,
        (224..=239, ..) => Class::Multicast,
        _ if address.is_broadcast() => Class::Multicast,
        (240..=255, ..) => Class::Reserved,
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) => Class::Reserved,
        _ => return None,
    })
}

fn class_v6(address: Ipv6Addr) -> Option<Class> {
    // EC2; Google.
    const METADATA: [Ipv6Addr; 2] =
        [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];
    let words = address.segments();
    let embedded = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    if METADATA.contains(&address) {
        return Some(Class::Metadata);
    }
    match words {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Class::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Class::Loopback),
        // IPv4-compatible (RFC 4291, 2.5.5.1), IPv4-translated (RFC 2765), NAT64 (RFC 6052): what they embed counts.
        [0, 0, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            class_v4(embedded(high, low))
        }
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => class_v4(embedded(high, low)),
        // Local-use NAT64 (RFC 8215) embeds at a place that only its operator knows; Teredo (RFC 4380) embeds two addresses.
        [0x64, 0xff9b, 1, ..] | [0x2001, 0, ..] => Some(Class::Reserved),
        // ISATAP (RFC 5214).
        [.., 0 | 0x200, 0x5efe, high, low] => class_v4(embedded(high, low)),
        [0xfe80..=0xfebf, ..] => Some(Class::LinkLocal),
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(Class::Private),
        [0xff00..=0xffff, ..] => Some(Class::Multicast),
        // Global unicast is 2000::/3 and nothing else; benchmarking, ORCHID and documentation are in it.
        [0x2001, 0x2, 0, ..] | [0x2001, 0x10..=0x2f, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some(Class::Reserved),
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Class::Reserved),
    }
}

/// May a connection go to `address`?
///
/// `literal` are the networks that a rule names; with some, nothing else will do. A metadata address must be named alone.
///
/// # Errors
/// The class of an address that is refused; `None` for a public one that the rule does not name.
pub fn check(address: IpAddr, literal: &[IpNetwork]) -> Result<(), Option<Class>> {
    let address = address.to_canonical();
    let class = class(address);
    if literal.is_empty() {
        return class.map_or(Ok(()), |class| Err(Some(class)));
    }
    let alone = |network: &IpNetwork| network.prefix == if network.address.is_ipv4() { 32 } else { 128 };
    let named = literal.iter().any(|network| network.contains(address) && (class != Some(Class::Metadata) || alone(network)));
    if named { Ok(()) } else { Err(class) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Option<Class> {
        class(text.parse().unwrap())
    }

    #[test]
    fn every_spelling_of_a_refused_address() {
        for (text, wanted) in [
            ("127.0.0.1", Class::Loopback),
            ("127.255.255.254", Class::Loopback),
            ("::1", Class::Loopback),
            ("::ffff:127.0.0.1", Class::Loopback),
            ("::127.0.0.1", Class::Loopback),
            ("::ffff:0:127.0.0.1", Class::Loopback),
            ("64:ff9b::127.0.0.1", Class::Loopback),
            ("2002:7f00:1::", Class::Loopback),
            ("2001:db8::5efe:127.0.0.1", Class::Loopback),
            ("0.0.0.0", Class::Unspecified),
            ("0.1.2.3", Class::Unspecified),
            ("::", Class::Unspecified),
            ("10.0.0.1", Class::Private),
            ("172.16.0.1", Class::Private),
            ("172.31.255.255", Class::Private),
            ("192.168.1.1", Class::Private),
            ("fd12::1", Class::Private),
            ("fec0::1", Class::Private),
            ("64:ff9b::10.0.0.1", Class::Private),
            ("2002:0a00:0001::", Class::Private),
            ("169.254.1.1", Class::LinkLocal),
            ("fe80::1", Class::LinkLocal),
            ("100.64.0.1", Class::CarrierGradeNat),
            ("169.254.169.254", Class::Metadata),
            ("fd00:ec2::254", Class::Metadata),
            ("::ffff:169.254.169.254", Class::Metadata),
            ("64:ff9b::a9fe:a9fe", Class::Metadata),
            ("2002:a9fe:a9fe::1", Class::Metadata),
            ("168.63.129.16", Class::Metadata),
            ("224.0.0.1", Class::Multicast),
            ("255.255.255.255", Class::Multicast),
            ("ff02::1", Class::Multicast),
            ("198.18.0.1", Class::Reserved),
            ("64:ff9b:1::1", Class::Reserved),
            ("2001:0:1:2::3", Class::Reserved),
            ("4000::1", Class::Reserved),
        ] {
            assert_eq!(of(text), Some(wanted), "{text}");
        }
        for text in ["93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::93.184.216.34", "11.0.0.1"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn only_what_is_named() {
        let network = |text: &str, prefix| IpNetwork { address: text.parse().unwrap(), prefix };
        let check = |address: &str, networks: &[IpNetwork]| check(address.parse().unwrap(), networks);
        assert_eq!(check("10.1.2.3", &[network("10.1.0.0", 16)]), Ok(()));
        assert_eq!(check("::ffff:10.1.2.3", &[network("10.1.0.0", 16)]), Ok(()));
        assert_eq!(check("10.2.2.3", &[network("10.1.0.0", 16)]), Err(Some(Class::Private)));
        assert_eq!(check("93.184.216.34", &[network("10.1.0.0", 16)]), Err(None));
        assert_eq!(check("169.254.169.254", &[network("169.254.0.0", 16)]), Err(Some(Class::Metadata)));
        assert_eq!(check("169.254.169.254", &[network("169.254.169.254", 32)]), Ok(()));
    }

    proptest! {
        /// What the standard library says of IPv4 addresses is never public here.
        #[test]
        fn agrees_with_the_standard_library(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let special = address.is_loopback() || address.is_private() || address.is_link_local() || address.is_multicast()
                || address.is_broadcast() || address.is_documentation() || address.is_unspecified();
            prop_assert!(!special || class(address.into()).is_some());
            let [a, b, c, d] = address.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for v6 in [
                address.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(class(v6.into()), class(address.into()));
            }
        }
    }
}
