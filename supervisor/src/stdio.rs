//! Descriptors 0 to 2 on their way in: what is refused, what is handed in, what becomes a pseudo-terminal.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use hermes_backends::wire::{Opened, Stdio};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{SockType, SockaddrStorage, getpeername, getsockopt, sockopt};
use nix::sys::stat::{FileStat, SFlag, fstat, major, minor};

use crate::error::Error;

/// What one descriptor of the caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// How it goes in.
    pub(crate) kind: Stdio,
    /// A file or device that a job may open again by `/proc/self/fd`.
    pub(crate) reopenable: bool,
    /// How it was opened.
    pub(crate) opened: Opened,
}

/// Looks at descriptors 0, 1 and 2.
///
/// # Errors
/// A directory walks out of any root, an O_PATH descriptor names a file outside it, a datagram socket can send to any
/// named socket, a socket without a peer can get one on the host, and a device speaks to the host's hardware: none of them
/// goes in.
pub(crate) fn look() -> Result<[Descriptor; 3], Error> {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let one = |fd: BorrowedFd<'_>| {
        judge(fd).map_err(|why| {
            Error::setup(format!("descriptor {} is {why}; it cannot go into a sandbox", fd.as_raw_fd()))
                .hint("redirect it to a file, a pipe or /dev/null")
        })
    };
    Ok([one(input.as_fd())?, one(output.as_fd())?, one(error.as_fd())?])
}

fn judge(fd: BorrowedFd<'_>) -> Result<Descriptor, &'static str> {
    let stat = fstat(fd).map_err(|_| "closed")?;
    let flags = fcntl(fd, FcntlArg::F_GETFL).map_err(|_| "closed")?;
    if flags & OFlag::O_PATH.bits() != 0 {
        return Err("an O_PATH descriptor");
    }
    let opened = opened(flags);
    let handed = |reopenable| Ok(Descriptor { kind: Stdio::Handed, reopenable, opened });
    match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFREG => handed(true),
        SFlag::S_IFIFO => handed(false),
        SFlag::S_IFDIR => Err("a directory"),
        SFlag::S_IFSOCK => match getsockopt(&fd, sockopt::SockType) {
            Ok(SockType::Stream | SockType::SeqPacket) => match getpeername::<SockaddrStorage>(fd.as_raw_fd()) {
                Ok(_) => handed(false),
                Err(_) => Err("an unconnected socket"),
            },
            _ => Err("a datagram or raw socket"),
        },
        // The host's terminal stays outside: whoever holds it can read what is typed and set its modes.
        SFlag::S_IFCHR if fd.is_terminal() => Ok(Descriptor { kind: Stdio::Terminal, reopenable: false, opened }),
        SFlag::S_IFCHR if harmless_device(&stat) => handed(true),
        SFlag::S_IFCHR | SFlag::S_IFBLK => Err("a device"),
        // Anonymous inodes: memory files come out as regular files above; what is left has no use as standard stream.
        _ => Err("neither a file, a pipe nor a terminal"),
    }
}

fn opened(flags: i32) -> Opened {
    let mode = flags & OFlag::O_ACCMODE.bits();
    // Mode 3 neither reads nor writes (open(2)).
    let either = mode == OFlag::O_RDWR.bits();
    Opened { readable: either || mode == OFlag::O_RDONLY.bits(), writable: either || mode == OFlag::O_WRONLY.bits() }
}

/// null, zero, full, random and urandom: major 1 (Documentation/admin-guide/devices.txt).
fn harmless_device(stat: &FileStat) -> bool {
    major(stat.st_rdev) == 1 && matches!(minor(stat.st_rdev), 3 | 5 | 7 | 8 | 9)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_needs_a_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(judge(listener.as_fd()), Err("an unconnected socket"));
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(judge(connected.as_fd()).is_ok());
        let (one, other) = UnixStream::pair().unwrap();
        drop(other);
        assert!(judge(one.as_fd()).is_ok());
    }

    #[test]
    fn a_descriptor_keeps_its_mode() {
        let write_only = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        assert_eq!(judge(write_only.as_fd()).unwrap().opened, Opened { readable: false, writable: true });
    }
}
