//! Asks the kernel which sockets exist in this network namespace (`linux/unix_diag.h`).

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, send, socket};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_VFS: u32 = 2;
const UNIX_DIAG_VFS: u16 = 1;
const HEADER: usize = 16;
const MESSAGE: usize = 16;

/// Socket states of the kernel (`net/tcp_states.h`), as numbers and as the bits of a request.
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// Listening sockets only: the common case, and the shortest list.
pub(super) const LISTENING: u32 = 1 << LISTEN;
/// Every state in which a socket may be bound.
pub(super) const BOUND: u32 = 1 << LISTEN | 1 << CLOSE | 1 << ESTABLISHED;

/// The identity of a bound socket's file as unix_diag tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VfsId {
    device: u32,
    inode: u32,
}

impl VfsId {
    /// From `st_dev` and `st_ino`. The kernel tells its own form of the device number and the low half of the inode.
    pub(super) fn new(device: u64, inode: u64) -> Self {
        let (major, minor) = (libc::major(device), libc::minor(device));
        Self { device: major << 20 | minor & 0xf_ffff, inode: (inode & u64::from(u32::MAX)) as u32 }
    }
}

/// A netlink socket for dumps.
#[derive(Debug)]
pub(super) struct Diag {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Diag {
    /// Opens the socket in the network namespace of the calling thread.
    pub(super) fn open() -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkSockDiag)?;
        Ok(Self { socket, buffer: vec![0; 32 << 10].into_boxed_slice(), sequence: 0 })
    }

    /// Whether a socket of this network namespace, in one of `states`, was bound to the file.
    pub(super) fn knows(&mut self, file: VfsId, states: u32) -> Result<bool, Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        send(self.socket.as_raw_fd(), &request(self.sequence, states), MsgFlags::empty())?;
        let mut found = false;
        // Read to the end even when found: an unfinished dump makes the next request fail with EBUSY.
        loop {
            // A dump's next part is there as soon as the last one was read, so there is never a reason to wait.
            let (length, from) = recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut self.buffer)?;
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            let batch = Batch::parse(self.buffer.get(..length).unwrap_or_default(), self.sequence, file);
            found |= batch.found;
            match batch.end {
                None => {}
                Some(0) => return Ok(found),
                Some(errno) => return Err(Errno::from_raw(errno)),
            }
        }
    }
}

fn request(sequence: u32, states: u32) -> Vec<u8> {
    let length = (HEADER + 24) as u32;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut bytes = Vec::with_capacity(HEADER + 24);
    // struct nlmsghdr: length, type, flags, sequence number, port
    bytes.extend(length.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    // struct unix_diag_req: family, protocol, padding, states, inode, what to show, cookie
    bytes.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(UDIAG_SHOW_VFS.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// What one datagram of a dump says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Batch {
    found: bool,
    /// The dump is over: 0, or the errno.
    end: Option<i32>,
}

impl Batch {
    fn parse(mut bytes: &[u8], sequence: u32, file: VfsId) -> Self {
        let mut batch = Self::default();
        while let (Some(length), Some(kind), Some(number)) = (word(bytes, 0), half(bytes, 4), word(bytes, 8)) {
            let length = length as usize;
            let Some(payload) = bytes.get(HEADER..length) else { break };
            if number == sequence {
                match libc::c_int::from(kind) {
                    libc::NLMSG_DONE => batch.end = Some(0),
                    libc::NLMSG_ERROR => {
                        let errno = word(payload, 0).map_or(0, u32::cast_signed).wrapping_neg();
                        batch.end = Some(if errno > 0 { errno } else { libc::EIO });
                    }
                    _ if kind == SOCK_DIAG_BY_FAMILY => batch.found |= is_bound_to(payload, file),
                    _ => {}
                }
            }
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        batch
    }
}

fn is_bound_to(message: &[u8], file: VfsId) -> bool {
    let (Some(&kind), Some(&state)) = (message.get(1), message.get(2)) else { return false };
    // A stream socket in ESTABLISHED may carry the file of the *listener* that it was accepted by or connected to, which
    // can be a socket of another namespace; only its own bind puts a file on any other socket (`unix_stream_connect`).
    let own = matches!(state, LISTEN | CLOSE) || state == ESTABLISHED && libc::c_int::from(kind) == libc::SOCK_DGRAM;
    let mut attributes = message.get(MESSAGE..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (half(attributes, 0), half(attributes, 2)) {
        let length = usize::from(length);
        let Some(value) = attributes.get(4..length) else { break };
        if kind == UNIX_DIAG_VFS {
            return own && word(value, 0) == Some(file.inode) && word(value, 4) == Some(file.device);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use proptest::prelude::*;

    use super::*;

    fn message(sequence: u32, kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn socket_message(kind: libc::c_int, state: u8, device: u32, inode: u32) -> Vec<u8> {
        let mut payload = vec![libc::AF_UNIX as u8, kind as u8, state, 0];
        payload.resize(MESSAGE, 0);
        // A name that is not a multiple of four long comes before the file.
        payload.extend(6u16.to_ne_bytes());
        payload.extend(0u16.to_ne_bytes());
        payload.extend(*b"/x\0\0");
        payload.extend(12u16.to_ne_bytes());
        payload.extend(UNIX_DIAG_VFS.to_ne_bytes());
        payload.extend(inode.to_ne_bytes());
        payload.extend(device.to_ne_bytes());
        message(7, SOCK_DIAG_BY_FAMILY, &payload)
    }

    const FILE: VfsId = VfsId { device: 0x80_0001, inode: 42 };

    #[test]
    fn only_a_bound_socket_of_this_very_file_counts() {
        let found = |bytes: &[u8]| Batch::parse(bytes, 7, FILE).found;
        assert!(found(&socket_message(libc::SOCK_STREAM, LISTEN, 0x80_0001, 42)));
        assert!(found(&socket_message(libc::SOCK_STREAM, CLOSE, 0x80_0001, 42)));
        assert!(found(&socket_message(libc::SOCK_DGRAM, ESTABLISHED, 0x80_0001, 42)));
        assert!(!found(&socket_message(libc::SOCK_STREAM, ESTABLISHED, 0x80_0001, 42)));
        assert!(!found(&socket_message(libc::SOCK_STREAM, LISTEN, 0x80_0001, 43)));
        assert!(!found(&socket_message(libc::SOCK_STREAM, LISTEN, 0x80_0002, 42)));
        assert!(!Batch::parse(&socket_message(libc::SOCK_STREAM, LISTEN, 0x80_0001, 42), 8, FILE).found);
    }

    #[test]
    fn the_end_and_errors_are_told() {
        let mut bytes = socket_message(libc::SOCK_STREAM, LISTEN, 0x80_0001, 42);
        bytes.extend(message(7, libc::NLMSG_DONE as u16, &[0; 4]));
        assert_eq!(Batch::parse(&bytes, 7, FILE), Batch { found: true, end: Some(0) });
        let error = |errno: i32| Batch::parse(&message(7, libc::NLMSG_ERROR as u16, &errno.to_ne_bytes()), 7, FILE).end;
        assert_eq!(error(-libc::ENOENT), Some(libc::ENOENT));
        assert_eq!(error(i32::MIN), Some(libc::EIO));
        assert_eq!(error(0), Some(libc::EIO));
    }

    #[test]
    fn device_numbers_are_the_kernels() {
        let id = VfsId::new(nix::sys::stat::makedev(259, 0x12345), 0x7_0000_002a);
        assert_eq!(id, VfsId { device: 259 << 20 | 0x12345, inode: 42 });
    }

    #[test]
    fn a_socket_of_this_process_is_known_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let mut diag = Diag::open().unwrap();
        let id = |path| std::fs::metadata(path).map(|m| VfsId::new(m.dev(), m.ino())).unwrap();
        let (stream, datagram) = (dir.path().join("s"), dir.path().join("d"));
        let listener = UnixListener::bind(&stream).unwrap();
        let _datagram = UnixDatagram::bind(&datagram).unwrap();
        assert_eq!(diag.knows(id(&stream), LISTENING), Ok(true));
        assert_eq!(diag.knows(id(&datagram), LISTENING), Ok(false));
        assert_eq!(diag.knows(id(&datagram), BOUND), Ok(true));
        drop(listener);
        assert_eq!(diag.knows(id(&stream), BOUND), Ok(false));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Batch::parse(&bytes, 0, FILE);
        }
    }
}
