//! The network of a sandbox with routes: a gateway, which is another network namespace beside the sandbox's own.
//!
//! One veth pair joins them. The sandbox's default route leads into the gateway, where every address is the gateway's own (AnyIP:
//! a `local` route to everything), so that a connection to any address arrives at a wildcard listener there, whose
//! getsockname(2) tells the address that was meant. A port without a listener is refused at once. Neither namespace has any
//! other way out; the gateway lives as long as its listeners, which the supervisor has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc;

use caps::{CapSet, Capability, CapsHashSet};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily as Family, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::sockopt::{Ipv6V6Only, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, listen, recv, send, setsockopt,
    socket,
};
use nix::unistd::{Pid, gettid};

use crate::plan::{GATEWAY_ADDRESS, GatewayPlan, SANDBOX_ADDRESS};
use crate::step::{At, Step, StepError};
use crate::wire::Listener;

/// Number of either end of the pair, in its own namespace: far above what the kernel makes by itself.
const LINK: u32 = 1000;
/// The loopback interface's, in every namespace.
const LOOPBACK: u32 = 1;
/// Bytes of a packet, as many as such a pair carries: nothing but memory is between the two.
const MTU: u32 = 65535;
/// The same for IPv6, where names lead nowhere (there are no AAAA records) and literal addresses are refused by the rules.
const SANDBOX_ADDRESS_6: Ipv6Addr = Ipv6Addr::new(0xfd42, 0x198, 0x18, 0, 0, 0, 0, 2);
const GATEWAY_ADDRESS_6: Ipv6Addr = Ipv6Addr::new(0xfd42, 0x198, 0x18, 0, 0, 0, 0, 1);
/// Queries for names, which no route takes away.
const DNS: u16 = 53;
/// Bytes of an answer of rtnetlink: a header, an error number and the header of the question.
const LONGEST_ANSWER: usize = 4096;

/// A listener and what it is for.
pub type Listening = (Listener, OwnedFd);

/// A gateway that stands.
#[derive(Debug)]
pub struct Gateway {
    ports: mpsc::Sender<Vec<u16>>,
    made: mpsc::Receiver<Result<Vec<Listening>, Errno>>,
}

impl Gateway {
    /// Makes the gateway for the calling thread's network namespace, which needs CAP_SYS_ADMIN, CAP_NET_ADMIN and, for low
    /// ports, CAP_NET_BIND_SERVICE.
    ///
    /// # Errors
    /// [`Step::Gateway`].
    pub fn make(plan: &GatewayPlan) -> Result<(Self, Vec<Listening>), StepError> {
        let sandbox = gettid();
        let inside = netlink().at(Step::Gateway)?;
        let (ports, wanted) = mpsc::channel::<Vec<u16>>();
        let (done, made) = mpsc::channel();
        let plan = plan.clone();
        let first = move || -> Result<Vec<Listening>, Errno> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let gateway = netlink()?;
            connect(&gateway, &inside, sandbox)?;
            let listeners = listeners(&plan)?;
            let bind = CapsHashSet::from([Capability::CAP_NET_BIND_SERVICE]);
            let refused = |_| Errno::EPERM;
            caps::set(None, CapSet::Effective, &bind).map_err(refused)?;
            caps::set(None, CapSet::Permitted, &bind).map_err(refused)?;
            Ok(listeners)
        };
        // A thread of its own, because a namespace is a thread's. It stays for ports that come later.
        let work = move || {
            let mut sent = done.send(first());
            while let (Ok(()), Ok(ports)) = (&sent, wanted.recv()) {
                sent = done.send(ports.into_iter().map(transparent).collect());
            }
        };
        std::thread::Builder::new().name("hermes-gateway".to_owned()).spawn(work).at(Step::Thread)?;
        let gateway = Self { ports, made };
        let listening = gateway.answer().at(Step::Gateway)?;
        Ok((gateway, listening))
    }

    /// Listens on more ports: on all of them or on none.
    ///
    /// # Errors
    /// One of them cannot be listened on.
    pub fn listen(&self, ports: Vec<u16>) -> Result<Vec<Listening>, Errno> {
        self.ports.send(ports).map_err(|_| Errno::ESRCH)?;
        self.answer()
    }

    fn answer(&self) -> Result<Vec<Listening>, Errno> {
        self.made.recv().map_err(|_| Errno::ESRCH)?
    }
}

/// Listens on the sandbox's own loopback, for what the policy opens of the host's.
///
/// # Errors
/// [`Step::Gateway`].
pub fn loopback(ports: &[u16]) -> Result<Vec<Listening>, StepError> {
    let mut all = Vec::with_capacity(2 * ports.len());
    for &port in ports {
        let listener = |address: IpAddr| tcp(address, port).map(|fd| (Listener::Loopback(port), fd));
        all.push(listener(Ipv4Addr::LOCALHOST.into()).at(Step::Gateway)?);
        // A kernel without IPv6 has no such address.
        all.extend(listener(Ipv6Addr::LOCALHOST.into()));
    }
    Ok(all)
}

/// A socket in the calling thread's network namespace, for who connects it from outside.
pub fn unconnected(ipv6: bool) -> Result<OwnedFd, Errno> {
    let family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
}

fn listeners(plan: &GatewayPlan) -> Result<Vec<Listening>, Errno> {
    let mut all = vec![
        (Listener::Proxy, tcp(GATEWAY_ADDRESS.into(), plan.proxy)?),
        (Listener::DnsUdp, everywhere(SockType::Datagram, DNS)?),
        (Listener::DnsTcp, everywhere(SockType::Stream, DNS)?),
    ];
    for &port in plan.ports.iter().filter(|port| **port != DNS) {
        all.push(transparent(port)?);
    }
    Ok(all)
}

fn transparent(port: u16) -> Result<Listening, Errno> {
    Ok((Listener::Transparent(port), everywhere(SockType::Stream, port)?))
}

/// A listener on one address.
pub(super) fn tcp(address: IpAddr, port: u16) -> Result<OwnedFd, Errno> {
    listener(SockType::Stream, SocketAddr::new(address, port))
}

/// On all addresses of both families, or of IPv4 where there is no other.
fn everywhere(kind: SockType, port: u16) -> Result<OwnedFd, Errno> {
    match listener(kind, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
        Err(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL) => listener(kind, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
        other => other,
    }
}

fn listener(kind: SockType, address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if address.is_ipv6() {
        setsockopt(&fd, Ipv6V6Only, &!address.ip().is_unspecified())?;
    }
    if kind == SockType::Stream {
        setsockopt(&fd, ReuseAddr, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
    if kind == SockType::Stream {
        // As many connections as the kernel lets wait: what the C library calls the most may be less than that.
        listen(&fd, Backlog::MAXALLOWABLE)?;
    }
    Ok(fd)
}

/// Joins the two namespaces and makes every address the gateway's.
fn connect(gateway: &OwnedFd, inside: &OwnedFd, sandbox: Pid) -> Result<(), Errno> {
    let pair = |family: &dyn Fn(Ends) -> [Vec<RouteNetlinkMessage>; 2], ends| -> Result<(), Errno> {
        let [outer, inner] = family(ends);
        ask(gateway, outer)?;
        ask(inside, inner)
    };
    let make = vec![RouteNetlinkMessage::SetLink(up(LOOPBACK)), RouteNetlinkMessage::NewLink(veth(sandbox))];
    ask(gateway, make)?;
    // Neither end goes up before the other is there.
    [gateway, inside].into_iter().try_for_each(|end| ask(end, vec![RouteNetlinkMessage::SetLink(up(LINK))]))?;
    pair(&routes, Ends { gateway: GATEWAY_ADDRESS.into(), sandbox: SANDBOX_ADDRESS.into() })?;
    // Where there is no IPv6 nothing is lost: there is no way out by it then.
    let _ = pair(&routes, Ends { gateway: GATEWAY_ADDRESS_6.into(), sandbox: SANDBOX_ADDRESS_6.into() });
    Ok(())
}

#[derive(Clone, Copy)]
struct Ends {
    gateway: IpAddr,
    sandbox: IpAddr,
}

/// Addresses and routes: of the gateway, and of the sandbox.
fn routes(ends: Ends) -> [Vec<RouteNetlinkMessage>; 2] {
    let only = |address| (address, whole(address));
    [
        vec![
            address(ends.gateway),
            route(only(ends.sandbox), LINK, RouteType::Unicast, None),
            // In the main table: of the routes there the one above is the longer match.
            route((any(ends.gateway), 0), LOOPBACK, RouteType::Local, None),
        ],
        vec![
            address(ends.sandbox),
            route(only(ends.gateway), LINK, RouteType::Unicast, None),
            route((any(ends.sandbox), 0), LINK, RouteType::Unicast, Some(ends.gateway)),
        ],
    ]
}

fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn family(of: IpAddr) -> Family {
    if of.is_ipv4() { Family::Inet } else { Family::Inet6 }
}

fn up(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header = LinkHeader { index, flags: LinkFlags::Up, change_mask: LinkFlags::Up, ..LinkHeader::default() };
    link
}

fn veth(sandbox: Pid) -> LinkMessage {
    let mut inner = LinkMessage::default();
    inner.header.index = LINK;
    inner.attributes = vec![
        LinkAttribute::IfName("eth0".to_owned()),
        LinkAttribute::Mtu(MTU),
        LinkAttribute::NetNsPid(sandbox.as_raw().unsigned_abs()),
    ];
    let mut outer = LinkMessage::default();
    outer.header.index = LINK;
    outer.attributes = vec![
        LinkAttribute::IfName("gateway".to_owned()),
        LinkAttribute::Mtu(MTU),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(inner)))]),
    ];
    outer
}

fn address(of: IpAddr) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: family(of),
        prefix_len: whole(of),
        // There is nobody who could have the same one.
        flags: AddressHeaderFlags::Nodad,
        scope: AddressScope::Universe,
        index: LINK,
    };
    message.attributes = vec![AddressAttribute::Local(of), AddressAttribute::Address(of)];
    RouteNetlinkMessage::NewAddress(message)
}

fn route(to: (IpAddr, u8), link: u32, kind: RouteType, via: Option<IpAddr>) -> RouteNetlinkMessage {
    let wire = |address| match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    };
    let mut message = RouteMessage::default();
    let scope = match (kind, via) {
        (RouteType::Local, _) => RouteScope::Host,
        (_, None) => RouteScope::Link,
        (_, Some(_)) => RouteScope::Universe,
    };
    message.header = RouteHeader {
        address_family: family(to.0),
        destination_prefix_length: to.1,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Boot,
        scope,
        kind,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Oif(link)];
    if to.1 > 0 {
        message.attributes.push(RouteAttribute::Destination(wire(to.0)));
    }
    message.attributes.extend(via.map(|via| RouteAttribute::Gateway(wire(via))));
    RouteNetlinkMessage::NewRoute(message)
}

fn netlink() -> Result<OwnedFd, Errno> {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)
}

/// Has the kernel carry out all messages, in order; the first error.
fn ask(socket: &OwnedFd, messages: Vec<RouteNetlinkMessage>) -> Result<(), Errno> {
    let mut first = Ok(());
    for message in messages {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
        first = first.and(answer(socket));
    }
    first
}

fn answer(socket: &OwnedFd) -> Result<(), Errno> {
    let mut bytes = [0; LONGEST_ANSWER];
    let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
    let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes[..length]).map_err(|_| Errno::EBADMSG)?;
    match message.payload {
        NetlinkPayload::Error(error) => match error.code {
            None => Ok(()),
            Some(code) => Err(Errno::from_raw(-code.get())),
        },
        _ => Err(Errno::EBADMSG),
    }
}
