//! What the supervisor and init say to each other over one SEQPACKET socket.
//!
//! Each message is one datagram in postcard form; a message that does not fit is put into a sealed memory file that
//! travels as the first descriptor. Init is trusted by the supervisor no more than it must be: whatever arrives is
//! decoded with limits and never panics.

use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use std::path::{Path, PathBuf};

use hermes_profiles::ospath;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::local::sys::fd::received;
use crate::plan::{GatewayPlan, LandlockPlan, MountStep, NetworkPlan, Tier};
use crate::step::{StepError, errno_of};

/// Longest datagram, in bytes; longer messages go by memory file. Well below the default socket buffer (212992).
const INLINE: usize = 48 * 1024;
/// Longest message, in bytes: the kernel's limit for arguments and environment (a quarter of an 8 MiB stack) and air.
pub const LONGEST: usize = 8 << 20;
/// Most descriptors in a message.
pub const MOST_FDS: usize = 128;
/// Most descriptors that the kernel puts in one message, SCM_MAX_FD of unix(7).
const SCM_MAX_FD: usize = 253;

/// A job's number, chosen by the supervisor.
pub type JobId = u32;

/// From the supervisor to init.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Build the sandbox. Descriptors: one id-mapped tree per `trees`, then the handed files, then what is only held.
    Setup(Box<Setup>),
    /// Mount over names in host trees; answered by [`Event::Covered`].
    Cover(Vec<Cover>),
    /// Start a job. Descriptors: one per `Stdio::Handed` in order.
    Spawn(Box<Spawn>),
    /// Listen on more ports of the gateway; answered by [`Event::Listening`], or [`Event::ListenFailed`].
    Listen(Vec<u16>),
    /// Make a TCP socket in the sandbox's network, for an address of this family; answered by [`Event::Socket`].
    Socket {
        /// For IPv6, else for IPv4.
        ipv6: bool,
    },
    /// Answered by [`Event::Ready`] when all that was asked before is done.
    Ready,
    /// Open a pseudo-terminal for the next job; answered by [`Event::Terminal`].
    OpenTerminal {
        /// Rows and columns, so that the job never sees another size; 0 and 0 if they are not known yet.
        size: (u16, u16),
    },
    /// Send a signal to a job.
    Signal {
        /// Which.
        job: JobId,
        /// Signal number.
        signal: i32,
        /// To its process group, not only its leader.
        group: bool,
    },
    /// Kill a job with all its descendants, also what it has left in the background.
    Kill {
        /// Which.
        job: JobId,
    },
}

/// Everything init needs to build the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The mechanism.
    pub tier: Tier,
    /// Mount steps.
    pub mounts: Vec<MountStep>,
    /// Bytes for the sandbox's own file system.
    pub scratch: Option<u64>,
    /// Indexes of mount steps whose tree comes as a descriptor.
    pub trees: Vec<u32>,
    /// Landlock.
    pub landlock: Option<LandlockPlan>,
    /// For each handed descriptor: how it was opened.
    pub handed: Vec<Opened>,
    /// How many descriptors are kept open as long as the sandbox lives.
    pub held: u32,
    /// The seccomp program: code, jump true, jump false, constant.
    pub filter: Vec<(u16, u8, u8, u32)>,
    /// Does the filter notify?
    pub notify: bool,
    /// The network.
    pub network: NetworkPlan,
    /// The mediated way out.
    pub gateway: Option<GatewayPlan>,
    /// Ports of the sandbox's loopback to listen on for the supervisor.
    pub connect: Vec<u16>,
    /// What [`Content::Certificates`](crate::plan::Content) and its like stand for.
    pub certificates: Certificates,
    /// Host sockets that may be connected to.
    #[serde(with = "ospath::list")]
    pub unix_connect: Vec<PathBuf>,
    /// RLIMIT_NPROC for the tree.
    pub processes: Option<u64>,
    /// Bytes at which the watchdog kills.
    pub memory_watchdog: Option<u64>,
}

/// The certificates that a sandbox is to trust, in the forms that programs read; empty where no step asks for them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificates {
    /// PEM.
    pub pem: Bytes,
    /// A store for Java.
    pub java: Bytes,
}

/// A socket that was made inside, for the supervisor to accept on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listener {
    /// Connections to any address on this port.
    Transparent(u16),
    /// The explicit proxy.
    Proxy,
    /// Queries for names.
    DnsUdp,
    /// The same over TCP.
    DnsTcp,
    /// The sandbox's own loopback, for this port of the host's.
    Loopback(u16),
    /// The filter's own end, for calls that the supervisor carries out.
    Calls,
}

/// A mount over a name in a host tree. All paths are as seen inside and lead through no symlink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cover {
    /// A directory on itself, so that it cannot be renamed or removed.
    Pin {
        /// Which.
        #[serde(with = "ospath")]
        target: PathBuf,
    },
    /// A file or directory on itself, read-only.
    ReadOnly {
        /// Which.
        #[serde(with = "ospath")]
        target: PathBuf,
    },
    /// Another directory over a directory.
    Directory {
        /// Which.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// What is seen there.
        #[serde(with = "ospath")]
        source: PathBuf,
    },
    /// A symlink over a regular file.
    Link {
        /// Which.
        #[serde(with = "ospath")]
        target: PathBuf,
        /// The symlink that is seen there.
        #[serde(with = "ospath")]
        source: PathBuf,
    },
}

impl Cover {
    /// The name that is covered.
    pub fn target(&self) -> &Path {
        match self {
            Self::Pin { target } | Self::ReadOnly { target } | Self::Directory { target, .. } | Self::Link { target, .. } => {
                target
            }
        }
    }
}

/// What a descriptor was opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// For reading.
    pub readable: bool,
    /// For writing.
    pub writable: bool,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawn {
    /// Its number.
    pub job: JobId,
    /// Paths to try in order.
    pub candidates: Vec<Bytes>,
    /// Arguments.
    pub args: Vec<Bytes>,
    /// Environment, `NAME=VALUE`.
    pub environment: Vec<Bytes>,
    /// Working directory.
    pub cwd: Bytes,
    /// Descriptors from 0 on, at least three.
    pub stdio: Vec<Stdio>,
    /// File mode creation mask.
    pub umask: u32,
    /// RLIMIT_NOFILE.
    pub open_files: Option<u64>,
    /// RLIMIT_FSIZE.
    pub file_size: Option<u64>,
    /// What ends with it.
    pub ends: Ends,
}

/// What ends when a job's first process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ends {
    /// The sandbox.
    Sandbox,
    /// Every process that it left.
    Tree,
    /// Nothing: what it left lives on until the job is killed or the sandbox ends.
    Nothing,
}

/// A string of the operating system: any bytes but NUL.
pub type Bytes = Vec<u8>;

/// What a descriptor of a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdio {
    /// The next descriptor of the message.
    Handed,
    /// The pseudo-terminal opened before.
    Terminal,
    /// /dev/null of the sandbox.
    Null,
}

/// From init to the supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The set-up failed; init ends.
    SetupFailed(StepError),
    /// The master of a pseudo-terminal comes as a descriptor.
    Terminal,
    /// A pseudo-terminal could not be opened.
    TerminalFailed(StepError),
    /// The network stands; a descriptor each, in order.
    Listening(Vec<Listener>),
    /// More ports could not be had.
    ListenFailed(StepError),
    /// A socket comes as a descriptor; none does when none could be made.
    Socket,
    /// The names are covered, but for these: index in the request and why not.
    Covered {
        /// Empty when all are.
        failed: Vec<(u32, StepError)>,
    },
    /// The job runs.
    Started {
        /// Which.
        job: JobId,
    },
    /// The job could not be started.
    StartFailed {
        /// Which.
        job: JobId,
        /// Why.
        error: StepError,
    },
    /// All that was asked before is done.
    Ready,
    /// The job's leader has ended, and with it what was to end.
    Exited {
        /// Which.
        job: JobId,
        /// How, as wait(2) codes it.
        status: i32,
    },
    /// The job's leader was stopped by this signal.
    Stopped {
        /// Which.
        job: JobId,
        /// Signal number.
        signal: i32,
    },
    /// The watchdog killed the sandbox's jobs: bytes in use.
    MemoryExceeded {
        /// Resident bytes when it was noticed.
        resident: u64,
    },
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Errno> {
    postcard::to_stdvec(message).map_err(|_| Errno::EMSGSIZE)
}

/// Decodes a message; trailing bytes are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Errno> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Errno::EBADMSG),
    }
}

/// One end of the control socket.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// A connected pair.
    pub fn pair() -> Result<(Self, Self), Errno> {
        let (a, b) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self(a), Self(b)))
    }

    /// Another hand on the same end.
    pub fn another(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Takes over descriptor 0, which init's parent put there.
    pub fn from_stdin() -> io::Result<Self> {
        io::stdin().as_fd().try_clone_to_owned().map(Self)
    }

    /// Sends one message with descriptors; waits for room.
    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.transmit(message, fds, MsgFlags::empty())
    }

    /// As [`send`](Self::send), but [`Errno::EAGAIN`] when there is no room now.
    pub fn try_send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.transmit(message, fds, MsgFlags::MSG_DONTWAIT)
    }

    fn transmit<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>], flags: MsgFlags) -> Result<(), Errno> {
        let bytes = encode(message)?;
        if bytes.len() > LONGEST || fds.len() > MOST_FDS {
            return Err(Errno::EMSGSIZE);
        }
        let mut raw: Vec<RawFd> = Vec::with_capacity(fds.len() + 1);
        let memory = if bytes.len() > INLINE { Some(sealed(&bytes)?) } else { None };
        raw.extend(memory.as_ref().map(AsRawFd::as_raw_fd));
        raw.extend(fds.iter().map(AsRawFd::as_raw_fd));
        let kind = [u8::from(memory.is_some())];
        let inline: &[u8] = if memory.is_some() { &[] } else { &bytes };
        let parts = [IoSlice::new(&kind), IoSlice::new(inline)];
        let control = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &control };
        loop {
            match sendmsg::<()>(self.0.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL | flags, None) {
                Err(Errno::EINTR) => {}
                other => return other.map(drop),
            }
        }
    }

    /// Waits for one message; `None` at the end of the stream.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
        self.receive_with(MsgFlags::empty())
    }

    /// Takes a message that is there; `EAGAIN` when there is none.
    pub fn try_receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
        self.receive_with(MsgFlags::MSG_DONTWAIT)
    }

    fn receive_with<T: DeserializeOwned>(&self, flags: MsgFlags) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
        thread_local! {
            /// Zeros cost more than a message.
            static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; INLINE + 1]);
        }
        BUFFER.with_borrow_mut(|buffer| self.receive_in(buffer, flags))
    }

    fn receive_in<T: DeserializeOwned>(&self, buffer: &mut [u8], flags: MsgFlags) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
        // Room for all, so that none is left in our table unseen.
        let mut space = nix::cmsg_space!([RawFd; SCM_MAX_FD]);
        let mut reset = false;
        let (length, mut fds, too_much) = loop {
            let mut parts = [IoSliceMut::new(buffer)];
            match recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut space), flags | MsgFlags::MSG_CMSG_CLOEXEC) {
                Err(Errno::EINTR) => {}
                // A peer that ended with unread messages: the kernel says so once, before what it sent is delivered.
                Err(Errno::ECONNRESET) if !reset => reset = true,
                Err(Errno::ECONNRESET) => return Ok(None),
                Err(errno) => return Err(errno),
                Ok(mut message) => {
                    let truncated = message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
                    // Otherwise the descriptors that came through are not told.
                    message.flags.remove(MsgFlags::MSG_CTRUNC);
                    let mut fds = Vec::new();
                    for control in message.cmsgs()? {
                        if let ControlMessageOwned::ScmRights(raw) = control {
                            fds.extend(raw.into_iter().map(received));
                        }
                    }
                    let too_many = fds.len() > MOST_FDS + 1;
                    break (message.bytes, fds, truncated || too_many);
                }
            }
        };
        match buffer.get(..length) {
            _ if too_much => Err(Errno::EMSGSIZE),
            None | Some([]) => Ok(None),
            Some([0, inline @ ..]) => Ok(Some((decode(inline)?, fds))),
            Some([1]) if !fds.is_empty() => {
                let memory = fds.remove(0);
                Ok(Some((decode(&read_sealed(memory)?)?, fds)))
            }
            Some(_) => Err(Errno::EBADMSG),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What makes a memory file safe to read: it can neither shrink nor change.
const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_WRITE).union(SealFlag::F_SEAL_SEAL);

fn sealed(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(c"message", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).map_err(errno_of)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
    Ok(file.into())
}

fn read_sealed(fd: OwnedFd) -> Result<Vec<u8>, Errno> {
    // Anything else than a memory file (a pipe, a file of a hung file system) has no seals.
    let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(|_| Errno::EBADMSG)?;
    if !SealFlag::from_bits_truncate(seals).contains(SEALS) {
        return Err(Errno::EBADMSG);
    }
    let mut file = std::fs::File::from(fd);
    let length = file.metadata().map_err(errno_of)?.len();
    if length > LONGEST as u64 {
        return Err(Errno::EMSGSIZE);
    }
    file.seek(SeekFrom::Start(0)).map_err(errno_of)?;
    let mut bytes = Vec::with_capacity(length as usize);
    file.read_to_end(&mut bytes).map_err(errno_of)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
