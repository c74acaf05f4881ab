//! Whose socket is it: the sandbox's own, a granted one of the host, or another one of the host.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::fstat;
use nix::time::{ClockId, clock_gettime};

use super::BrokerConfig;
use super::address::of_descriptor;
use super::diag::{BOUND, Diag, LISTENING, VfsId};
use super::resolve::Pin;
use crate::local::sys::notify::{FileId, connect, identify};

const SLOTS: usize = 32;

/// Knows which socket files may be connected to.
#[derive(Debug)]
pub(super) struct Owners {
    /// Absent where unix_diag would show the host's sockets.
    diag: Option<Diag>,
    private_devices: Vec<u64>,
    granted: Vec<CString>,
    pinned: Vec<(u64, u64, OwnedFd)>,
    /// An inode is bound once in its life, so "own" stays true while a pin keeps its number from being given again.
    known: [Option<(u64, u64, OwnedFd)>; SLOTS],
    started: (i64, u32),
}

impl Owners {
    pub(super) fn new(config: &BrokerConfig) -> Result<Self, Errno> {
        // The coarse clock is the one that file systems stamp files with, so it never reads earlier than their birth.
        let now = clock_gettime(ClockId::CLOCK_REALTIME_COARSE)?;
        Ok(Self {
            diag: config.own_network.then(Diag::open).transpose()?,
            private_devices: config.private_devices.clone(),
            granted: config.granted.iter().filter_map(|path| c_path(path)).collect(),
            pinned: config.pinned.iter().filter_map(pinned).collect(),
            known: [const { None }; SLOTS],
            started: (now.tv_sec(), now.tv_nsec().try_into().unwrap_or(0)),
        })
    }

    /// `Ok` when the pinned file may be connected to. `EACCES`: a socket of the host; `ECONNREFUSED`: nobody listens.
    ///
    /// The two must not be mixed up: programs delete a socket file that refuses them and bind a new one.
    pub(super) fn permit(&mut self, pin: &Pin) -> Result<(), Errno> {
        let id = pin.id();
        if self.is_private(id.device) || self.is_known(id) || self.is_granted(id) {
            return Ok(());
        }
        if self.is_bound_inside(id.device, id, exact(id)) {
            self.remember(pin);
            return Ok(());
        }
        if let Some(device) = pin.superblock().filter(|device| *device != id.device) {
            if self.is_private(device) {
                return Ok(());
            }
            if self.is_bound_inside(device, id, false) {
                self.remember(pin);
                return Ok(());
            }
        }
        Err(if is_alive(pin) { Errno::EACCES } else { Errno::ECONNREFUSED })
    }

    fn is_private(&self, device: u64) -> bool {
        self.private_devices.contains(&device)
    }

    fn is_granted(&self, id: &FileId) -> bool {
        let same = |path: &CString| identify(None, path).is_ok_and(|it| (it.device, it.inode) == (id.device, id.inode));
        self.pinned.iter().any(|(device, inode, _)| (*device, *inode) == (id.device, id.inode)) || self.granted.iter().any(same)
    }

    /// Asks unix_diag. Its inode numbers are cut to 32 bits, and btrfs gives the same ones in every subvolume of one
    /// device, so where the answer is not `exact` the file must also be younger than the sandbox.
    fn is_bound_inside(&mut self, device: u64, id: &FileId, exact: bool) -> bool {
        let Some(diag) = &mut self.diag else { return false };
        if !exact && id.born.is_none_or(|born| born < self.started) {
            return false;
        }
        let file = VfsId::new(device, id.inode);
        [LISTENING, BOUND].into_iter().any(|states| diag.knows(file, states).unwrap_or(false))
    }

    fn slot(id: &FileId) -> usize {
        (id.inode % SLOTS as u64) as usize
    }

    fn is_known(&self, id: &FileId) -> bool {
        let slot = self.known.get(Self::slot(id)).and_then(Option::as_ref);
        slot.is_some_and(|(device, inode, _)| (*device, *inode) == (id.device, id.inode))
    }

    fn remember(&mut self, pin: &Pin) {
        if let (Ok(fd), Some(slot)) = (pin.duplicate(), self.known.get_mut(Self::slot(pin.id()))) {
            *slot = Some((pin.id().device, pin.id().inode, fd));
        }
    }
}

fn exact(id: &FileId) -> bool {
    u32::try_from(id.inode).is_ok()
}

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

/// Whether any socket of the machine is still bound to the file. A datagram socket that connects tells it without the
/// owner taking notice: `EPROTOTYPE` or success when there is one.
fn is_alive(pin: &Pin) -> bool {
    let Ok(scratch) = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None) else { return true };
    let address = of_descriptor(pin.fd().as_raw_fd());
    connect(std::os::fd::AsFd::as_fd(&scratch), &address) != Err(Errno::ECONNREFUSED)
}

/// A copy of a descriptor with what it names; held, so that the inode's number is not given again.
fn pinned(fd: &OwnedFd) -> Option<(u64, u64, OwnedFd)> {
    let stat = fstat(fd).ok()?;
    Some((stat.st_dev, stat.st_ino, fd.try_clone().ok()?))
}
