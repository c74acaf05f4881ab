//! The filter loaded into a thread of the test: it ends with the thread.

use std::process::Command;

use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket, socketpair};

use super::super::{Arch, compile};
use super::{ORDINARY, SeccompPlan};

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

#[test]
fn set_id_bits_do_not_reach_files() {
    use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, open, openat, openat2};
    use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmod, fchmodat, lstat, mkdirat, mknodat};

    let Some(arch) = Arch::NATIVE else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let filtered = || {
        seccompiler::apply_filter(&compile(&ORDINARY, arch)).unwrap();
        let plain = Mode::from_bits_truncate(0o700);
        let create = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY;
        let file = open(&path("file"), create, plain).unwrap();
        let everything = Mode::from_bits_truncate(0o1777);
        assert_eq!(fchmod(&file, everything), Ok(()));
        assert_eq!(fchmodat(AT_FDCWD, &path("file"), everything, FchmodatFlags::FollowSymlink), Ok(()));
        assert_eq!(mknodat(AT_FDCWD, &path("pipe"), SFlag::S_IFIFO, plain, 0), Ok(()));
        for set in [Mode::S_ISUID, Mode::S_ISGID, Mode::S_ISUID | Mode::S_ISGID] {
            let mode = plain | set;
            assert_eq!(fchmod(&file, mode), Err(Errno::EPERM));
            assert_eq!(fchmodat(AT_FDCWD, &path("file"), mode, FchmodatFlags::FollowSymlink), Err(Errno::EPERM));
            assert_eq!(mknodat(AT_FDCWD, &path("other"), SFlag::S_IFREG, mode, 0), Err(Errno::EPERM));
            assert_eq!(open(&path("other"), create, mode).map(drop), Err(Errno::EPERM));
            assert_eq!(openat(AT_FDCWD, &path("other"), create, mode).map(drop), Err(Errno::EPERM));
            assert_eq!(open(dir.path(), OFlag::O_TMPFILE | OFlag::O_RDWR, mode).map(drop), Err(Errno::EPERM));
            assert_eq!(open(&path("file"), OFlag::O_WRONLY, mode).map(drop), Ok(()));
        }
        assert_eq!(openat2(AT_FDCWD, &path("file"), OpenHow::new()).map(drop), Err(Errno::ENOSYS));
        // The kernel's own rule, which the table relies on.
        assert_eq!(mkdirat(AT_FDCWD, &path("directory"), Mode::from_bits_truncate(0o7700)), Ok(()));
        assert_eq!(lstat(&path("directory")).unwrap().st_mode & 0o7777, 0o1700);
        assert!(!path("other").exists());
        std::fs::copy("/proc/self/exe", path("program")).unwrap();
        assert!(Command::new(path("program")).arg("--help").output().unwrap().status.success());
    };
    std::thread::scope(|scope| scope.spawn(filtered).join()).unwrap();
}

#[test]
fn a_socket_from_outside_keeps_its_peer() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{Backlog, MsgFlags, SockaddrIn, bind, connect, listen, sendto};

    let Some(arch) = Arch::NATIVE else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let there = match address {
        std::net::SocketAddr::V4(address) => SockaddrIn::from(address),
        std::net::SocketAddr::V6(_) => unreachable!(),
    };
    let connected = TcpStream::connect(address).unwrap();
    let fresh = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let filtered = || {
        let plan = SeccompPlan { inet_sockets: false, unix_sockets: false, ..ORDINARY };
        seccompiler::apply_filter(&compile(&plan, arch)).unwrap();
        assert_eq!(connect(fresh.as_raw_fd(), &there), Err(Errno::EACCES));
        assert_eq!(
            sendto(fresh.as_raw_fd(), b"x", &there, MsgFlags::from_bits_retain(libc::MSG_FASTOPEN)),
            Err(Errno::EOPNOTSUPP)
        );
        assert_eq!(bind(fresh.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)), Err(Errno::EACCES));
        assert_eq!(listen(&fresh, Backlog::new(1).unwrap()), Err(Errno::EACCES));
        (&connected).write_all(b"hello").unwrap();
        let mut accepted = listener.accept().unwrap().0;
        let mut heard = [0; 5];
        accepted.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
    };
    std::thread::scope(|scope| scope.spawn(filtered).join()).unwrap();
}
