//! The filter loaded into a thread of the test: it ends with the thread.

use std::process::Command;

use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket, socketpair};

use super::super::{Arch, compile};
use super::ORDINARY;

#[test]
fn refuses_and_lets_programs_work() {
    let Some(arch) = Arch::NATIVE else { return };
    let filtered = move || {
        seccompiler::apply_filter(&compile(&ORDINARY, arch)).unwrap();
        let none = SockFlag::SOCK_CLOEXEC;
        let nowhere = "/no such directory";
        assert_eq!(nix::mount::mount(None::<&str>, nowhere, Some("tmpfs"), MsFlags::empty(), None::<&str>), Err(Errno::EPERM));
        assert_eq!(nix::sched::unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
        assert_eq!(nix::sched::unshare(CloneFlags::CLONE_FS), Ok(()));
        let refused = |family, kind, protocol| socket(family, kind, none, protocol).map(drop).unwrap_err();
        assert_eq!(refused(AddressFamily::Inet, SockType::Raw, SockProtocol::Icmp.into()), Errno::EPERM);
        assert_eq!(refused(AddressFamily::Unix, SockType::Datagram, None), Errno::ESOCKTNOSUPPORT);
        assert_eq!(refused(AddressFamily::Packet, SockType::Raw, None), Errno::EAFNOSUPPORT);
        assert_eq!(refused(AddressFamily::Netlink, SockType::Raw, SockProtocol::NetlinkAudit.into()), Errno::EPROTONOSUPPORT);
        for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Unix] {
            // A kernel without IPv6 answers for itself.
            assert!(matches!(socket(family, SockType::Stream, none, None), Ok(_) | Err(Errno::EAFNOSUPPORT)));
        }
        socketpair(AddressFamily::Unix, SockType::Stream, None, none).unwrap();
        std::thread::spawn(|| ()).join().unwrap();
        let child = Command::new("/proc/self/exe").arg("--help").output().unwrap();
        assert!(child.status.success());
    };
    std::thread::spawn(filtered).join().unwrap();
}
