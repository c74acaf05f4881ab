//! What the table means, said once more call by call.

use super::Verdict::{Allow, Kill, Notify};
use super::*;
use Errno::*;

const STREAM: u64 = libc::SOCK_STREAM as u64;
const DGRAM: u64 = libc::SOCK_DGRAM as u64;
const RAW: u64 = libc::SOCK_RAW as u64;
const SEQPACKET: u64 = libc::SOCK_SEQPACKET as u64;
const FLAGS: u64 = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
const UNIX: u64 = libc::AF_UNIX as u64;
const INET: u64 = libc::AF_INET as u64;
const INET6: u64 = libc::AF_INET6 as u64;
const NETLINK: u64 = libc::AF_NETLINK as u64;

#[track_caller]
fn expect(plan: &SeccompPlan, name: &str, arguments: &[u64], expected: impl Into<Option<Errno>>) {
    let expected = expected.into().map_or(Allow, Verdict::Errno);
    for arch in ARCHES {
        assert_eq!(verdict(plan, arch, name, arguments), expected, "{name}{arguments:x?} on {arch:?} in {plan:?}");
    }
}

#[test]
fn ordinary_programs_work() {
    for name in "read write openat mmap execve execveat clone futex wait4 kill pidfd_open pidfd_getfd pidfd_send_signal ptrace \
                 process_vm_readv seccomp landlock_create_ruleset landlock_restrict_self prctl chroot connect bind listen \
                 accept4 sendmsg sendto setsockopt memfd_create name_to_handle_at statmount listmount mseal futex_waitv \
                 rseq set_robust_list membarrier copy_file_range statx close_range epoll_pwait2 fchmodat2 cachestat \
                 setxattrat file_getattr shmget semop msgsnd mq_open sched_setaffinity setpriority ioprio_set mbind \
                 io_setup inotify_init1 timerfd_create signalfd4 eventfd2 splice"
        .split_whitespace()
    {
        expect(&ORDINARY, name, &[], None);
    }
    for arch in ARCHES {
        let explained = explain(&ORDINARY, arch, "read").unwrap();
        assert_eq!((explained.answer, explained.reason), (Answer::Always(Allow), None));
    }
    assert_eq!(verdict(&ORDINARY, Arch::X86_64, "uretprobe", &[]), Allow);
}

#[test]
fn administration_is_refused() {
    for name in "mount umount2 pivot_root open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr \
                 add_key request_key keyctl bpf perf_event_open userfaultfd init_module finit_module delete_module kexec_load \
                 settimeofday clock_settime clock_adjtime adjtimex open_by_handle_at quotactl quotactl_fd swapon swapoff \
                 reboot acct syslog kcmp process_madvise fanotify_init setns"
        .split_whitespace()
    {
        expect(&ORDINARY, name, &[], EPERM);
    }
    for name in ["io_uring_setup", "io_uring_enter", "io_uring_register", "clone3", "openat2"] {
        expect(&ORDINARY, name, &[], ENOSYS);
    }
    for name in ["iopl", "ioperm", "modify_ldt"] {
        assert_eq!(verdict(&ORDINARY, Arch::X86_64, name, &[]), Verdict::Errno(EPERM));
    }
}

#[test]
fn namespaces_need_the_nested_sandbox() {
    let nested = SeccompPlan { nested_sandbox: true, ..ORDINARY };
    for flag in [0x2_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000] {
        for flags in [flag, flag | 17, flag | 0x3d_0f00, flag | 0xffff_ffff_0000_0000] {
            expect(&ORDINARY, "clone", &[flags], EPERM);
            expect(&ORDINARY, "unshare", &[flags], EPERM);
            expect(&nested, "clone", &[flags], None);
            expect(&nested, "unshare", &[flags], None);
        }
    }
    expect(&ORDINARY, "unshare", &[libc::CLONE_NEWTIME as u64], EPERM);
    // The same bit in the flags of clone belongs to the signal, as do these flags of a thread and a vfork.
    for flags in [0x80, 0x3d_0f00, 0x4111, 17] {
        expect(&ORDINARY, "clone", &[flags], None);
    }
    expect(&ORDINARY, "unshare", &[(libc::CLONE_FILES | libc::CLONE_FS) as u64], None);
    for name in ["setns", "clone3", "sethostname"] {
        expect(&nested, name, &[], None);
    }
    for name in ["mount", "pivot_root", "move_mount"] {
        expect(&nested, name, &[], EPERM);
    }
}

#[test]
fn terminal_requests_are_compared_on_32_bits() {
    for request in [0x5412, 0x541c, 0x5423] {
        for high in [0, 1 << 32, 0xffff_ffff_0000_0000] {
            expect(&ORDINARY, "ioctl", &[0, request | high], EPERM);
        }
        expect(&ORDINARY, "ioctl", &[request, request + 1], None);
    }
    expect(&ORDINARY, "ioctl", &[0, 0x5413], None);
}

#[test]
fn personalities_that_weaken_are_refused() {
    for harmless in [0, 0x8, 0x4_0000, 0x4_0008, 0x2_0000, 0xffff_ffff] {
        expect(&ORDINARY, "personality", &[harmless], None);
    }
    for weak in [0x40_0000, 0x44_0000, 0x10_0000, 0x20_0000, 0x1, 0xffff_fffe, 0x800_0000] {
        expect(&ORDINARY, "personality", &[weak], EPERM);
    }
}

/// As `expect`, for calls that only x86_64 has.
#[track_caller]
fn expect_x86(name: &str, arguments: &[u64], expected: impl Into<Option<Errno>>) {
    let expected = expected.into().map_or(Allow, Verdict::Errno);
    assert_eq!(verdict(&ORDINARY, Arch::X86_64, name, arguments), expected, "{name}{arguments:x?}");
    assert_eq!(explain(&ORDINARY, Arch::Aarch64, name), None);
}

/// What a caller may leave in the upper bits of a register that the kernel takes as `umode_t` or `int`.
const REST: [u64; 3] = [0, 1 << 32, 0xffff_ffff_ffff_0000];

#[test]
fn set_id_bits_are_refused() {
    for kind in [0, libc::S_IFREG, libc::S_IFIFO].map(u64::from) {
        for rest in REST {
            for (mode, expected) in [
                (0, None),
                (0o755, None),
                (0o1777, None),
                (0o4755, Some(EPERM)),
                (0o2755, Some(EPERM)),
                (0o6000, Some(EPERM)),
                (0o7777, Some(EPERM)),
            ] {
                let mode = mode | kind | rest;
                expect(&ORDINARY, "fchmod", &[0o6000, mode, 0o6000], expected);
                for name in ["fchmodat", "fchmodat2", "mknodat"] {
                    expect(&ORDINARY, name, &[0o6000, 0o6000, mode, 0o6000], expected);
                }
                for name in ["chmod", "creat", "mknod"] {
                    expect_x86(name, &[0o6000, mode, 0o6000], expected);
                }
            }
        }
    }
    // The kernel takes the bits away by itself.
    expect(&ORDINARY, "mkdirat", &[0, 0, 0o7777], None);
    expect_x86("mkdir", &[0, 0o7777], None);
    for plan in plans() {
        expect(&plan, "fchmodat", &[0, 0, 0o4755], EPERM);
    }
}

#[test]
fn set_id_bits_of_open_count_only_when_it_creates() {
    const CREATE: u64 = libc::O_CREAT as u64;
    // `O_TMPFILE` without the `O_DIRECTORY` in it, which the machines number differently.
    const TEMPORARY: u64 = 0o2000_0000;
    assert_eq!(libc::O_TMPFILE as u64, TEMPORARY | libc::O_DIRECTORY as u64);
    let both = |flags: u64, mode: u64, expected: Option<Errno>| {
        expect(&ORDINARY, "openat", &[u64::MAX, 0o6000, flags, mode, 0o6000], expected);
        expect_x86("open", &[0o6000, flags, mode, 0o6000], expected);
    };
    for rest in REST {
        for set in [0o4000, 0o2000, 0o6755, 0o4755] {
            for creates in [CREATE, TEMPORARY, CREATE | TEMPORARY, CREATE | libc::O_EXCL as u64 | libc::O_RDWR as u64] {
                both(creates | 1 << 32, set | rest, Some(EPERM));
                both(creates | 1 << 32, 0o1644 | rest, None);
            }
            // Nothing is created: the register holds anything.
            for flags in [0, libc::O_RDWR as u64, (libc::O_CLOEXEC | libc::O_TRUNC | libc::O_PATH) as u64, 0o20_0000, 0o4_0000] {
                both(flags | 0xffff_ffff_0000_0000, set | rest, None);
            }
        }
    }
}

#[test]
fn other_processes_are_left_alone() {
    for name in ["prlimit64", "move_pages", "migrate_pages"] {
        expect(&ORDINARY, name, &[0, 7], None);
        expect(&ORDINARY, name, &[5 << 32, 7], None);
        expect(&ORDINARY, name, &[1234, 7], EPERM);
    }
    // RLIMIT_RTTIME is 15, RLIMIT_NOFILE 7: a job may read the mark of its processes and not change it.
    for call in [[0, 15, 0], [0, 15 | 1 << 32, 0], [0, 7, 1], [0, 7 | 1 << 32, 1 << 32]] {
        expect(&ORDINARY, "prlimit64", &call, None);
    }
    for call in [[0, 15, 1], [0, 15, 1 << 32], [0, 15 | 1 << 32, 1], [1 << 32, 15, 7]] {
        expect(&ORDINARY, "prlimit64", &call, EPERM);
    }
    expect(&ORDINARY, "setrlimit", &[7, 1], None);
    expect(&ORDINARY, "setrlimit", &[15, 1], EPERM);
    expect(&ORDINARY, "setrlimit", &[15 | 1 << 32, 1], EPERM);
    let shared = SeccompPlan { deny_ipc: true, ..ORDINARY };
    expect(&shared, "setpriority", &[0, 0, 19], None);
    expect(&shared, "setpriority", &[0, 1234, 19], EPERM);
    expect(&shared, "setpriority", &[2, 0, 19], EPERM);
    expect(&shared, "ioprio_set", &[1, 0, 0], None);
    expect(&shared, "ioprio_set", &[3, 0, 0], EPERM);
}

#[test]
fn sockets_are_allowed_by_list() {
    for family in [INET, INET6] {
        for kind in [STREAM, DGRAM, STREAM | FLAGS] {
            expect(&ORDINARY, "socket", &[family, kind, 0], None);
        }
        expect(&ORDINARY, "socket", &[family, STREAM, 6], None);
        expect(&ORDINARY, "socket", &[family, DGRAM | FLAGS, 17], None);
        expect(&ORDINARY, "socket", &[family, STREAM, libc::IPPROTO_MPTCP as u64], EPROTONOSUPPORT);
        expect(&ORDINARY, "socket", &[family, DGRAM, 1], EPROTONOSUPPORT);
        expect(&ORDINARY, "socket", &[family, DGRAM, 58], EPROTONOSUPPORT);
        for protocol in [0, 1, 6, 255] {
            expect(&ORDINARY, "socket", &[family, RAW | FLAGS, protocol], EPERM);
        }
        for kind in [SEQPACKET, 6, 10] {
            expect(&ORDINARY, "socket", &[family, kind, 0], ESOCKTNOSUPPORT);
        }
        let without = SeccompPlan { inet_sockets: false, ..ORDINARY };
        expect(&without, "socket", &[family, STREAM, 0], EAFNOSUPPORT);
    }
    expect(&ORDINARY, "socket", &[NETLINK, RAW | FLAGS, 0], None);
    expect(&ORDINARY, "socket", &[NETLINK, DGRAM, 0], None);
    for protocol in 1..=22 {
        expect(&ORDINARY, "socket", &[NETLINK, RAW, protocol], EPROTONOSUPPORT);
    }
    for family in (0..=46).filter(|family| ![UNIX, INET, INET6, NETLINK].contains(family)) {
        expect(&ORDINARY, "socket", &[family, STREAM, 0], EAFNOSUPPORT);
        expect(&ORDINARY, "socketpair", &[family, STREAM, 0], EAFNOSUPPORT);
    }
    expect(&ORDINARY, "socket", &[1 << 32 | 40, STREAM, 0], EAFNOSUPPORT);
}

#[test]
fn unix_datagrams_are_refused_by_type() {
    let datagram = SeccompPlan { unix_datagram: true, ..ORDINARY };
    let without = SeccompPlan { unix_sockets: false, ..ORDINARY };
    for name in ["socket", "socketpair"] {
        for kind in [DGRAM, RAW] {
            expect(&ORDINARY, name, &[UNIX, kind | FLAGS, 0], ESOCKTNOSUPPORT);
            expect(&ORDINARY, name, &[UNIX, kind | 1 << 32, 0], ESOCKTNOSUPPORT);
            expect(&datagram, name, &[UNIX, kind | FLAGS, 0], None);
        }
        for kind in [STREAM, SEQPACKET] {
            expect(&ORDINARY, name, &[UNIX, kind | FLAGS, 0], None);
        }
    }
    expect(&without, "socket", &[UNIX, STREAM, 0], EAFNOSUPPORT);
    expect(&without, "socketpair", &[UNIX, STREAM, 0], None);
    expect(&without, "socketpair", &[UNIX, DGRAM, 0], ESOCKTNOSUPPORT);
}

#[test]
fn connections_go_to_the_broker_and_not_past_it() {
    let plan = SeccompPlan { notify_connect: true, ..ORDINARY };
    for arch in ARCHES {
        assert_eq!(verdict(&plan, arch, "connect", &[3, 1, 16]), Notify);
    }
    let fast = libc::MSG_FASTOPEN as u64;
    for (name, before) in [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)] {
        let arguments = |flags| [vec![fast; before], vec![flags]].concat();
        expect(&plan, name, &arguments(fast), EOPNOTSUPP);
        expect(&plan, name, &arguments(fast | 0x4000), EOPNOTSUPP);
        expect(&plan, name, &arguments(0x4000), None);
        expect(&ORDINARY, name, &arguments(fast), None);
    }
    expect(&plan, "setsockopt", &[3, 6, 30], ENOPROTOOPT);
    expect(&plan, "setsockopt", &[3, 6, 1], None);
    expect(&plan, "setsockopt", &[3, 1, 30], None);
}

#[test]
fn mediated_sockets_are_of_tcp_and_go_nowhere_by_themselves() {
    let plan = SeccompPlan { mediate_tcp: true, unix_sockets: false, ..ORDINARY };
    for arch in ARCHES {
        for name in ["connect", "bind", "listen"] {
            assert_eq!(verdict(&plan, arch, name, &[3, 1, 16]), Notify, "{name}");
        }
    }
    for family in [INET, INET6] {
        expect(&plan, "socket", &[family, STREAM | FLAGS, 0], None);
        expect(&plan, "socket", &[family | 1 << 32, STREAM, 6], None);
        expect(&plan, "socket", &[family, DGRAM | FLAGS, 0], EACCES);
        expect(&plan, "socket", &[family, DGRAM | 1 << 32, 17], EACCES);
        expect(&plan, "socket", &[family, RAW, 1], EPERM);
        expect(&plan, "socket", &[family, SEQPACKET, 0], ESOCKTNOSUPPORT);
        // MPTCP, SCTP, UDP, DCCP
        for protocol in [262, 132, 17, 33] {
            expect(&plan, "socket", &[family, STREAM, protocol], EPROTONOSUPPORT);
        }
    }
    let made = SeccompPlan { make_sockets: true, ..plan.clone() };
    for arch in ARCHES {
        assert_eq!(verdict(&made, arch, "socket", &[INET6, STREAM | FLAGS, 0]), Notify);
    }
    expect(&made, "socket", &[INET, STREAM, 262], EPROTONOSUPPORT);
    expect(&made, "socket", &[INET, DGRAM, 0], EACCES);
    for family in [UNIX, 17, 40, 43] {
        expect(&plan, "socket", &[family, STREAM, 0], EAFNOSUPPORT);
    }
    let fast = libc::MSG_FASTOPEN as u64;
    for (name, before) in [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)] {
        expect(&plan, name, &[vec![0; before], vec![fast | 0x4000]].concat(), EOPNOTSUPP);
    }
    // Fast open, source routes, interfaces; and what servers and clients use every day.
    for (level, option) in [(6, 30), (0, 4), (41, 57), (41, 6), (1, 25), (1, 62)] {
        expect(&plan, "setsockopt", &[3, level, option | 1 << 32], ENOPROTOOPT);
    }
    for (level, option) in [(6, 1), (0, 1), (41, 26), (1, 2), (1, 9), (1, 15)] {
        expect(&plan, "setsockopt", &[3, level, option], None);
    }
}

#[test]
fn sockets_handed_in_find_no_new_peer_without_a_network() {
    let plan = SeccompPlan { inet_sockets: false, unix_sockets: false, ..ORDINARY };
    for plan in [plan.clone(), SeccompPlan { notify_connect: true, ..plan }] {
        for name in ["connect", "bind", "listen"] {
            expect(&plan, name, &[0, 1, 16], EACCES);
        }
        let fast = libc::MSG_FASTOPEN as u64;
        for (name, before) in [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)] {
            let arguments = |flags| [vec![fast; before], vec![flags]].concat();
            expect(&plan, name, &arguments(fast | 0x4000 | 1 << 32), EOPNOTSUPP);
            expect(&plan, name, &arguments(0x4000), None);
        }
        expect(&plan, "setsockopt", &[3, 6, 30], ENOPROTOOPT);
        expect(&plan, "setsockopt", &[3, 6, 1], None);
        // What was given on purpose stays of use.
        for name in ["accept4", "recvmsg", "recvfrom", "shutdown", "getsockopt", "getpeername"] {
            expect(&plan, name, &[], None);
        }
        expect(&plan, "socketpair", &[UNIX, STREAM, 0], None);
    }
    for one in [SeccompPlan { inet_sockets: true, ..plan.clone() }, SeccompPlan { unix_sockets: true, ..plan }] {
        for name in ["connect", "bind", "listen"] {
            expect(&one, name, &[0, 1, 16], None);
        }
    }
}

#[test]
fn host_ipc_is_refused_without_a_namespace() {
    let plan = SeccompPlan { deny_ipc: true, ..ORDINARY };
    for name in ["shmget", "shmat", "shmctl", "semget", "semop", "msgget", "msgrcv", "mq_open", "mq_unlink"] {
        expect(&plan, name, &[], EPERM);
    }
}

#[test]
fn strict_kills_foreign_calls_only() {
    let plan = SeccompPlan { strict: true, ..ORDINARY };
    let answer = |number| {
        let program = compile(&plan, Arch::X86_64);
        run(&program, Call { number, architecture: Arch::X86_64.audit(), arguments: [0; 6] })
    };
    assert_eq!(answer(X32 | 1), Kill.action());
    assert_eq!(answer(u32::MAX), Verdict::Errno(ENOSYS).action());
    assert_eq!(answer(HIGHEST + 1), Verdict::Errno(ENOSYS).action());
    expect(&plan, "mount", &[], EPERM);
}

#[test]
fn explains() {
    let plan = SeccompPlan { notify_connect: true, ..ORDINARY };
    let answer = |name| explain(&plan, Arch::X86_64, name).unwrap();
    assert_eq!(answer("mount").answer, Answer::Always(Verdict::Errno(EPERM)));
    assert!(answer("mount").reason.unwrap().contains("mounts"));
    assert_eq!(answer("connect").answer, Answer::Always(Notify));
    assert_eq!(answer("personality").answer, Answer::ByArguments(vec![Allow, Allow, Verdict::Errno(EPERM)]));
    assert_eq!(answer("openat").answer, Answer::ByArguments(vec![Allow, Allow, Verdict::Errno(EPERM)]));
    assert_eq!(answer("chmod").answer, Answer::ByArguments(vec![Allow, Verdict::Errno(EPERM)]));
    assert!(answer("chmod").reason.unwrap().contains("owner's or group's rights"));
    assert_eq!(answer("openat2").answer, Answer::Always(Verdict::Errno(ENOSYS)));
    let none = SeccompPlan { inet_sockets: false, unix_sockets: false, ..ORDINARY };
    let refused = explain(&none, Arch::X86_64, "connect").unwrap();
    assert_eq!(refused.answer, Answer::Always(Verdict::Errno(EACCES)));
    assert!(refused.reason.unwrap().contains("handed in"));
    assert_eq!(explain(&plan, Arch::Aarch64, "iopl"), None);
    assert_eq!(explain(&plan, Arch::X86_64, "no_such_call"), None);
}
