//! The sockets that [`names::answer`] answers on.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use nix::cmsg_space;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockaddrLike, SockaddrStorage, getsockname, recvmsg, sendmsg,
    setsockopt,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::proxy::Egress;

/// Largest query that is read. Real ones have a name and a few options.
const LARGEST: usize = 4096;

/// Queries that may wait for somebody else's answer at a time.
const MOST_ASKED: usize = 64;

/// How long a TCP connection may take for its next query.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which address a packet was sent to. The answer has to come from there, or the program inside does not take it.
#[derive(Debug, Clone, Copy)]
enum SentTo {
    V4(nix::libc::in_pktinfo),
    V6(nix::libc::in6_pktinfo),
}

struct Packet {
    bytes: Vec<u8>,
    from: SockaddrStorage,
    to: Option<SentTo>,
}

/// Has queries on a UDP socket answered by somebody else, until dropped. Queries beyond [`MOST_ASKED`] at a time are lost.
///
/// # Errors
/// A socket that the runtime does not take.
pub async fn relay_udp<F>(socket: std::net::UdpSocket, ask: impl Fn(Vec<u8>) -> F) -> io::Result<()>
where
    F: Future<Output = Option<Vec<u8>>> + Send + 'static,
{
    socket.set_nonblocking(true)?;
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    tell_address(&socket)?;
    let mut asked = JoinSet::new();
    loop {
        let packet = tokio::select! {
            packet = socket.async_io(Interest::READABLE, || receive(&socket)) => packet,
            Some(_) = asked.join_next() => continue,
        };
        match packet {
            Ok(_) if asked.len() >= MOST_ASKED => {}
            Ok(mut packet) => {
                let (answer, socket) = (ask(std::mem::take(&mut packet.bytes)), Arc::clone(&socket));
                asked.spawn(async move {
                    if let Some(answer) = answer.await {
                        let _ = socket.try_io(Interest::WRITABLE, || send(&socket, &answer, &packet));
                    }
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Has the kernel say which address a packet was sent to.
fn tell_address(socket: &UdpSocket) -> io::Result<()> {
    if getsockname::<SockaddrStorage>(socket.as_raw_fd())?.family() == Some(AddressFamily::Inet6) {
        setsockopt(socket, Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(socket, Ipv4PacketInfo, &true)?;
    }
    Ok(())
}

/// Answers queries on a UDP socket until dropped.
pub(crate) async fn serve_udp(egress: Arc<Egress>, socket: UdpSocket) -> io::Result<()> {
    tell_address(&socket)?;
    loop {
        match socket.async_io(Interest::READABLE, || receive(&socket)).await {
            Ok(packet) => {
                if let Some(answer) = egress.name_query(&packet.bytes) {
                    // UDP may lose packets; who asked asks again.
                    let _ = socket.try_io(Interest::WRITABLE, || send(&socket, &answer, &packet));
                }
            }
            // An earlier answer was not wanted any more (ICMP), or memory is short.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

fn receive(socket: &UdpSocket) -> io::Result<Packet> {
    let mut buffer = [0; LARGEST];
    let mut control = cmsg_space!(nix::libc::in6_pktinfo, nix::libc::in_pktinfo);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let received = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let to = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(SentTo::V4(info)),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(SentTo::V6(info)),
        _ => None,
    });
    let (length, from) = (received.bytes, received.address.ok_or(io::ErrorKind::InvalidData)?);
    Ok(Packet { bytes: buffer[..length.min(LARGEST)].to_vec(), from, to })
}

fn send(socket: &UdpSocket, answer: &[u8], packet: &Packet) -> io::Result<usize> {
    let (v4, v6);
    let control = match packet.to {
        Some(SentTo::V4(info)) => {
            v4 =
                nix::libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: info.ipi_addr, ipi_addr: nix::libc::in_addr { s_addr: 0 } };
            Some(ControlMessage::Ipv4PacketInfo(&v4))
        }
        Some(SentTo::V6(info)) => {
            v6 = nix::libc::in6_pktinfo { ipi6_ifindex: 0, ..info };
            Some(ControlMessage::Ipv6PacketInfo(&v6))
        }
        None => None,
    };
    let parts = [IoSlice::new(answer)];
    Ok(sendmsg(socket.as_raw_fd(), &parts, control.as_slice(), MsgFlags::empty(), Some(&packet.from))?)
}

/// Answers queries on a TCP connection (RFC 7766) until it ends.
pub(crate) async fn serve_tcp(egress: &Egress, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut query = Vec::new();
    loop {
        let mut length = [0; 2];
        timeout(PATIENCE, stream.read_exact(&mut length)).await??;
        let length = usize::from(u16::from_be_bytes(length));
        if length > LARGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        query.resize(length, 0);
        timeout(PATIENCE, stream.read_exact(&mut query)).await??;
        let Some(answer) = egress.name_query(&query) else { return Ok(()) };
        let Ok(length) = u16::try_from(answer.len()) else { return Ok(()) };
        let framed = [&length.to_be_bytes()[..], &answer].concat();
        timeout(PATIENCE, stream.write_all(&framed)).await??;
    }
}
