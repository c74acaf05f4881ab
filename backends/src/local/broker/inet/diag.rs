//! Asks the kernel which TCP socket there is (`linux/inet_diag.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, send, socket};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const HEADER: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 8 + ID;
/// `struct inet_diag_sockid`.
const ID: usize = 48;
/// Where the cookie stands in `struct inet_diag_msg`.
const COOKIE: usize = 4 + ID - 8;
/// `INET_DIAG_NOCOOKIE`, twice: whatever socket it is.
const ANY: [u8; 8] = [0xff; 8];

/// A netlink socket for questions.
#[derive(Debug)]
pub(super) struct Diag {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Diag {
    /// Opens the socket in the network namespace of the calling thread.
    pub(super) fn open() -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)?;
        Ok(Self { socket, buffer: vec![0; 8 << 10], sequence: 0 })
    }

    /// The cookie (`SO_COOKIE`) of the socket at `local` whose peer is `remote`, or else of the one that listens there: the
    /// kernel looks as it does for a packet from `remote` (`inet_diag_find_one_icsk`). `None` when there is none.
    pub(super) fn cookie(&mut self, local: SocketAddr, remote: SocketAddr) -> Result<Option<u64>, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        send(self.socket.as_raw_fd(), &request(self.sequence, local, remote), MsgFlags::empty())?;
        loop {
            // The answer is there when the question has been sent.
            let (length, from) = recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut self.buffer)?;
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            if let Some(answer) = parse(self.buffer.get(..length).unwrap_or_default(), self.sequence) {
                return answer;
            }
        }
    }

    /// The cookie of the socket that a new connection to `address` would reach.
    pub(super) fn listener(&mut self, address: SocketAddr) -> Result<Option<u64>, Errno> {
        let nobody: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        self.cookie(address, SocketAddr::new(nobody, 0))
    }
}

fn request(sequence: u32, local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let length = HEADER + REQUEST;
    let mut bytes = Vec::with_capacity(length);
    // struct nlmsghdr: length, type, flags, sequence number, port
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    // struct inet_diag_req_v2: family, protocol, extensions, padding, states, id
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    // struct inet_diag_sockid: ports, addresses, interface, cookie
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    for address in [local, remote] {
        let octets = match address.ip() {
            IpAddr::V4(ip) => {
                let mut octets = [0; 16];
                octets[..4].copy_from_slice(&ip.octets());
                octets
            }
            IpAddr::V6(ip) => ip.octets(),
        };
        bytes.extend(octets);
    }
    bytes.extend([0; 4]);
    bytes.extend(ANY);
    bytes
}

/// What a datagram says; `None` when it is no answer to this question.
fn parse(bytes: &[u8], sequence: u32) -> Option<Result<Option<u64>, Errno>> {
    let word = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    if word(8)? != sequence {
        return None;
    }
    if libc::c_int::from(kind) == libc::NLMSG_ERROR {
        let errno = word(HEADER).map_or(libc::EIO, |errno| errno.cast_signed().wrapping_neg());
        return Some(match Errno::from_raw(errno) {
            Errno::ENOENT => Ok(None),
            errno => Err(errno),
        });
    }
    let halves = (word(HEADER + COOKIE), word(HEADER + COOKIE + 4));
    Some(match halves {
        (Some(low), Some(high)) if kind == SOCK_DIAG_BY_FAMILY => Ok(Some(u64::from(high) << 32 | u64::from(low))),
        _ => Err(Errno::EBADMSG),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;
    use crate::local::sys::notify::cookie;

    #[test]
    fn sockets_are_told_by_their_addresses() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let at = listener.local_addr().unwrap();
            let mut diag = Diag::open().unwrap();
            assert_eq!(diag.listener(at), Ok(Some(cookie(listener.as_fd()).unwrap())));
            let client = TcpStream::connect(at).unwrap();
            let (server, peer) = listener.accept().unwrap();
            assert_eq!(diag.cookie(peer, at), Ok(Some(cookie(client.as_fd()).unwrap())));
            assert_eq!(diag.cookie(at, peer), Ok(Some(cookie(server.as_fd()).unwrap())));
            assert_ne!(diag.listener(peer), Ok(Some(cookie(client.as_fd()).unwrap())), "it does not listen");
            drop((server, client, listener));
            assert_eq!(diag.listener(at), Ok(None));
        }
    }

    #[test]
    fn a_wildcard_listener_is_found() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), listener.local_addr().unwrap().port());
        assert_eq!(Diag::open().unwrap().listener(at), Ok(Some(cookie(listener.as_fd()).unwrap())));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes, 0);
        }
    }
}
