//! Hostile bytes, large messages and peers that end.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::sys::stat::fstat;
use nix::unistd::pipe;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::plan::{Layer, PathRights, PathRule, Source};
use crate::step::Step;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn paths() -> impl Strategy<Value = PathBuf> {
    bytes().prop_map(|bytes| OsString::from_vec(bytes).into())
}

fn errors() -> impl Strategy<Value = StepError> {
    let steps = vec![Step::Message, Step::Open, Step::Landlock, Step::Exec, Step::Broker];
    (select(steps), prop::option::of(paths()), any::<i32>()).prop_map(|(step, subject, errno)| StepError { step, subject, errno })
}

fn mounts() -> impl Strategy<Value = MountStep> {
    let source = || (paths(), any::<u64>(), any::<u64>()).prop_map(|(path, dev, ino)| Source { path, dev, ino });
    let layers = prop_oneof![Just(Layer::Private), Just(Layer::Planned), source().prop_map(Layer::Kept)];
    prop_oneof![
        (paths(), any::<u32>(), any::<bool>()).prop_map(|(target, mode, writable)| MountStep::Private { target, mode, writable }),
        paths().prop_map(|target| MountStep::Pin { target }),
        (source(), paths(), any::<[bool; 3]>()).prop_map(|(source, target, [directory, writable, device])| {
            MountStep::Bind { source, target, directory, writable, device }
        }),
        (source(), layers, paths(), prop::collection::vec(paths(), 0..3))
            .prop_map(|(source, layer, target, whiteouts)| MountStep::Overlay { source, layer, target, whiteouts }),
        (paths(), any::<bool>()).prop_map(|(target, directory)| MountStep::Mask { target, directory }),
        (paths(), any::<u32>()).prop_map(|(target, mode)| MountStep::Directory { target, mode }),
        (paths(), paths()).prop_map(|(target, to)| MountStep::Symlink { target, to }),
        (paths(), paths(), any::<bool>()).prop_map(|(target, of, directory)| MountStep::Alias { target, of, directory }),
        Just(MountStep::Proc),
        any::<Option<u64>>().prop_map(|shm| MountStep::Dev { shm }),
    ]
}

fn landlocks() -> impl Strategy<Value = LandlockPlan> {
    let rights = select(vec![PathRights::List, PathRights::Read, PathRights::Write, PathRights::Device]);
    let rule = (paths(), any::<Option<(u64, u64)>>(), rights);
    let rules = prop::collection::vec(rule.prop_map(|(path, identity, rights)| PathRule { path, identity, rights }), 0..4);
    (any::<u32>(), rules, any::<[bool; 4]>()).prop_map(|(abi, paths, [handle_files, deny_tcp, scope_signals, scope_abstract])| {
        LandlockPlan { abi, paths, handle_files, deny_tcp, scope_signals, scope_abstract }
    })
}

fn setups() -> impl Strategy<Value = Setup> {
    let network = select(vec![NetworkPlan::Private, NetworkPlan::NoSockets, NetworkPlan::Notified, NetworkPlan::Host]);
    let lists = (prop::collection::vec(mounts(), 0..5), prop::collection::vec(any::<u32>(), 0..5), any::<Vec<(bool, bool)>>());
    let files = (prop::option::of(landlocks()), prop::collection::vec(any::<(u16, u8, u8, u32)>(), 0..50));
    let numbers = any::<(Option<u64>, Option<u64>, Option<u64>)>();
    (
        select(vec![Tier::Namespaces, Tier::Landlock]),
        lists,
        files,
        any::<bool>(),
        network,
        prop::collection::vec(paths(), 0..3),
        numbers,
    )
        .prop_map(|(tier, (mounts, trees, handed), (landlock, filter), notify, network, unix_connect, numbers)| {
            let (scratch, processes, memory_watchdog) = numbers;
            let handed = handed.into_iter().map(|(readable, writable)| Opened { readable, writable }).collect();
            let some_bytes = trees.iter().map(|tree: &u32| *tree as u8).collect();
            Setup {
                tier,
                mounts,
                scratch,
                trees,
                landlock,
                handed,
                held: scratch.unwrap_or_default() as u32,
                filter,
                notify,
                network,
                gateway: scratch.map(|bytes| GatewayPlan {
                    ports: vec![bytes as u16],
                    proxy: 3128,
                    certificates: notify.then(|| "/c".into()),
                }),
                connect: processes.map(|number| number as u16).into_iter().collect(),
                certificates: Certificates { pem: some_bytes, java: Vec::new() },
                unix_connect,
                processes,
                memory_watchdog,
            }
        })
}

fn spawns() -> impl Strategy<Value = Spawn> {
    let stdio = || select(vec![Stdio::Handed, Stdio::Terminal, Stdio::Null]);
    let lists = [(); 3].map(|()| prop::collection::vec(bytes(), 0..4));
    let ends = select(vec![Ends::Sandbox, Ends::Tree, Ends::Nothing]);
    let numbers = (any::<(u32, u32, Option<u64>, Option<u64>)>(), ends);
    (lists, bytes(), prop::collection::vec(stdio(), 0..5), numbers).prop_map(
        |([candidates, args, environment], cwd, stdio, ((job, umask, open_files, file_size), ends))| Spawn {
            job,
            candidates,
            args,
            environment,
            cwd,
            stdio,
            umask,
            open_files,
            file_size,
            ends,
        },
    )
}

fn covers() -> impl Strategy<Value = Cover> {
    (paths(), paths(), 0..4).prop_map(|(target, source, kind)| match kind {
        0 => Cover::Pin { target },
        1 => Cover::ReadOnly { target },
        2 => Cover::Directory { target, source },
        _ => Cover::Link { target, source },
    })
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        setups().prop_map(|setup| Request::Setup(Box::new(setup))),
        spawns().prop_map(|spawn| Request::Spawn(Box::new(spawn))),
        any::<(u16, u16)>().prop_map(|size| Request::OpenTerminal { size }),
        prop::collection::vec(covers(), 0..4).prop_map(Request::Cover),
        any::<(JobId, i32, bool)>().prop_map(|(job, signal, group)| Request::Signal { job, signal, group }),
        any::<JobId>().prop_map(|job| Request::Kill { job }),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        errors().prop_map(Event::SetupFailed),
        Just(Event::Terminal),
        errors().prop_map(Event::TerminalFailed),
        any::<JobId>().prop_map(|job| Event::Started { job }),
        (any::<JobId>(), errors()).prop_map(|(job, error)| Event::StartFailed { job, error }),
        any::<(JobId, i32)>().prop_map(|(job, status)| Event::Exited { job, status }),
        any::<(JobId, i32)>().prop_map(|(job, signal)| Event::Stopped { job, signal }),
        any::<u64>().prop_map(|resident| Event::MemoryExceeded { resident }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode::<Request>(&bytes);
        let _ = decode::<Event>(&bytes);
    }

    #[test]
    fn no_change_of_a_message_makes_decoding_panic(
        request in requests(), event in events(), at in any::<prop::sample::Index>(), put in prop::collection::vec(any::<u8>(), 0..12), gone in 0..6_usize,
    ) {
        let changed = |mut bytes: Vec<u8>| {
            let start = at.index(bytes.len());
            bytes.splice(start..(start + gone).min(bytes.len()), put.iter().copied());
            bytes
        };
        let _ = decode::<Request>(&changed(encode(&request).unwrap()));
        let _ = decode::<Event>(&changed(encode(&event).unwrap()));
    }

    #[test]
    fn messages_come_out_as_they_went_in(request in requests(), event in events()) {
        let bytes = encode(&request).unwrap();
        prop_assert_eq!(decode::<Request>(&bytes), Ok(request));
        prop_assert_eq!(decode::<Request>(&bytes[..bytes.len() - 1]), Err(Errno::EBADMSG));
        let mut bytes = encode(&event).unwrap();
        prop_assert_eq!(decode::<Event>(&bytes), Ok(event));
        bytes.push(0);
        prop_assert_eq!(decode::<Event>(&bytes), Err(Errno::EBADMSG));
    }

    #[test]
    fn messages_pass_through_the_socket(request in requests(), event in events()) {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(&request, &[]).unwrap();
        theirs.send(&event, &[]).unwrap();
        prop_assert_eq!(theirs.receive::<Request>().unwrap().unwrap().0, request);
        prop_assert_eq!(ours.receive::<Event>().unwrap().unwrap().0, event);
    }
}

/// A length that no message has does not ask for its memory.
#[test]
fn a_claimed_length_costs_nothing() {
    for tag in 0..8 {
        for length in [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0xff; 9], &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f]] {
            let bytes = [&[tag][..], length, &[1]].concat();
            assert_eq!(decode::<Request>(&bytes).err(), Some(Errno::EBADMSG));
            let nested = [&[tag, 1, 1, 1], length].concat();
            let _ = decode::<Request>(&nested);
        }
    }
}

fn spawn_of(length: usize) -> Request {
    Request::Spawn(Box::new(Spawn {
        job: 1,
        candidates: vec![b"/bin/true".to_vec()],
        args: vec![vec![b'x'; length]],
        environment: Vec::new(),
        cwd: b"/".to_vec(),
        stdio: vec![Stdio::Handed, Stdio::Null, Stdio::Terminal],
        umask: 0o22,
        open_files: None,
        file_size: None,
        ends: Ends::Sandbox,
    }))
}

fn inode(fd: impl AsFd) -> (u64, u64) {
    let stat = fstat(fd).unwrap();
    (stat.st_dev, stat.st_ino)
}

#[test]
fn descriptors_keep_their_order_however_large_the_message_is() {
    let (ours, theirs) = Channel::pair().unwrap();
    let ((a, b), (c, _d)) = (pipe().unwrap(), pipe().unwrap());
    for length in [0, INLINE - 100, INLINE, INLINE + 1, 1 << 20, LONGEST - 100] {
        let request = spawn_of(length);
        ours.send(&request, &[a.as_fd(), b.as_fd(), c.as_fd()]).unwrap();
        let (received, fds) = theirs.receive::<Request>().unwrap().unwrap();
        assert_eq!(received, request, "{length}");
        assert_eq!(fds.iter().map(inode).collect::<Vec<_>>(), [&a, &b, &c].map(inode), "{length}");
        for fd in &fds {
            let flags = fcntl(fd, FcntlArg::F_GETFD).unwrap();
            assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        }
    }
}

#[test]
fn what_nobody_would_take_is_not_sent() {
    let (ours, theirs) = Channel::pair().unwrap();
    assert_eq!(ours.send(&spawn_of(LONGEST), &[]), Err(Errno::EMSGSIZE));
    let (a, _b) = pipe().unwrap();
    assert_eq!(ours.send(&Request::OpenTerminal { size: (0, 0) }, &vec![a.as_fd(); MOST_FDS + 1]), Err(Errno::EMSGSIZE));
    for request in [spawn_of(INLINE), Request::OpenTerminal { size: (0, 0) }] {
        ours.send(&request, &vec![a.as_fd(); MOST_FDS]).unwrap();
        let (received, fds) = theirs.receive::<Request>().unwrap().unwrap();
        assert_eq!((received, fds.len()), (request, MOST_FDS));
    }
}

/// Sends a datagram as it is.
fn raw(to: &Channel, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &control };
    sendmsg::<()>(to.0.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
}

fn refused(channel: &Channel) -> Errno {
    channel.receive::<Event>().map(drop).unwrap_err()
}

/// Open pipes whose other end is `end`: what was received and not closed still holds it.
fn is_closed(end: OwnedFd) -> bool {
    let mut poll = [nix::poll::PollFd::new(end.as_fd(), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO).unwrap();
    poll[0].revents().unwrap().contains(nix::poll::PollFlags::POLLHUP)
}

#[test]
fn garbage_is_an_error_and_the_next_message_arrives() {
    let (ours, theirs) = Channel::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    for (bytes, fds) in [
        (&[0][..], &[][..]),
        (&[0, 99], &[]),
        (&[0, 1, 0], &[]),
        (&[1], &[]),
        (&[1, 0], &[file.as_fd()]),
        (&[2], &[]),
        (&[255, 1, 2, 3], &[file.as_fd()]),
    ] {
        raw(&theirs, bytes, fds);
        assert_eq!(refused(&ours), Errno::EBADMSG, "{bytes:?}");
    }
    raw(&theirs, &vec![0; INLINE + 2], &[]);
    assert_eq!(refused(&ours), Errno::EMSGSIZE);
    theirs.send(&Event::Terminal, &[]).unwrap();
    assert_eq!(ours.receive::<Event>().unwrap().unwrap().0, Event::Terminal);
}

#[test]
fn descriptors_of_a_refused_message_are_closed() {
    let (ours, theirs) = Channel::pair().unwrap();
    for (bytes, count) in [(&[9][..], 1), (&[0, 1], MOST_FDS + 2), (&[0, 1], SCM_MAX_FD), (&[0; INLINE + 2], 3)] {
        let (read, write) = pipe().unwrap();
        raw(&theirs, bytes, &vec![write.as_fd(); count]);
        drop(write);
        refused(&ours);
        assert!(is_closed(read), "{count}");
    }
}

#[test]
fn only_a_sealed_memory_file_is_read_as_a_message() {
    let (ours, theirs) = Channel::pair().unwrap();
    let message = encode(&Event::Terminal).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&message).unwrap();
    let unsealed = memfd_create(c"message", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    std::fs::File::from(unsealed.try_clone().unwrap()).write_all(&message).unwrap();
    let long = sealed(&vec![0; LONGEST + 1]).unwrap();
    // Reading from it would wait for ever.
    let (pipe, _write) = pipe().unwrap();
    for fd in [file.as_fd(), unsealed.as_fd(), pipe.as_fd(), long.as_fd(), std::fs::File::open("/dev/zero").unwrap().as_fd()] {
        raw(&theirs, &[1], &[fd]);
        refused(&ours);
    }
    let mut file = std::fs::File::from(sealed(&message).unwrap());
    file.seek(SeekFrom::Start(1)).unwrap();
    raw(&theirs, &[1], &[file.as_fd()]);
    assert_eq!(ours.receive::<Event>().unwrap().unwrap().0, Event::Terminal);
}

#[test]
fn a_peer_that_is_gone_is_the_end() {
    let (ours, theirs) = Channel::pair().unwrap();
    drop(theirs);
    assert!(ours.receive::<Event>().unwrap().is_none());
    assert_eq!(ours.send(&Request::OpenTerminal { size: (0, 0) }, &[]), Err(Errno::EPIPE));
}

#[test]
fn what_a_peer_sent_before_it_ended_arrives() {
    let (ours, theirs) = Channel::pair().unwrap();
    let events = [Event::Started { job: 1 }, Event::SetupFailed(StepError::new(Step::Landlock, Errno::EINVAL))];
    for event in &events {
        theirs.send(event, &[]).unwrap();
    }
    // It ends with unread messages, which the kernel reports as ECONNRESET before it delivers anything.
    ours.send(&Request::OpenTerminal { size: (0, 0) }, &[]).unwrap();
    drop(theirs);
    for event in events {
        assert_eq!(ours.receive::<Event>().unwrap().unwrap().0, event);
    }
    assert!(ours.receive::<Event>().unwrap().is_none());
    assert!(ours.receive::<Event>().unwrap().is_none());
}
