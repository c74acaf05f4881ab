#![allow(clippy::unwrap_used)]

mod kernel;
mod machine;
mod random;
mod reference;

use std::collections::BTreeSet;
use std::str::FromStr;

use syscalls::{aarch64, x86_64};

use super::*;
use machine::{Call, check, run};
use reference::Reference;

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];
/// The ordinary filter, with connections decided by the broker, may not grow beyond this unnoticed.
const MOST_INSTRUCTIONS: usize = 128;

const ORDINARY: SeccompPlan = SeccompPlan {
    strict: false,
    nested_sandbox: false,
    notify_connect: false,
    unix_sockets: true,
    unix_datagram: false,
    inet_sockets: true,
    deny_ipc: false,
};

/// All plans that there are.
fn plans() -> impl Iterator<Item = SeccompPlan> {
    (0..1 << 7).map(|bits| {
        let bit = |n: u8| bits & (1 << n) != 0;
        SeccompPlan {
            strict: bit(0),
            nested_sandbox: bit(1),
            notify_connect: bit(2),
            unix_sockets: bit(3),
            unix_datagram: bit(4),
            inet_sockets: bit(5),
            deny_ipc: bit(6),
        }
    })
}

/// `ORDINARY`, what differs from it in one thing, and its opposite.
fn some_plans() -> impl Iterator<Item = SeccompPlan> {
    let bits = |plan: &SeccompPlan| {
        let SeccompPlan { strict, nested_sandbox, notify_connect, unix_sockets, unix_datagram, inet_sockets, deny_ipc } = *plan;
        [strict, nested_sandbox, notify_connect, unix_sockets, unix_datagram, inet_sockets, deny_ipc]
    };
    let ordinary = bits(&ORDINARY);
    plans().filter(move |plan| [0, 1, 7].contains(&bits(plan).iter().zip(ordinary).filter(|&(a, b)| *a != b).count()))
}

fn number(arch: Arch, name: &str) -> u32 {
    match arch {
        Arch::X86_64 => x86_64::Sysno::from_str(name).unwrap() as u32,
        Arch::Aarch64 => aarch64::Sysno::from_str(name).unwrap() as u32,
    }
}

fn verdict(plan: &SeccompPlan, arch: Arch, name: &str, first: &[u64]) -> Verdict {
    let mut arguments = [0; 6];
    arguments[..first.len()].copy_from_slice(first);
    let call = Call { number: number(arch, name), architecture: arch.audit(), arguments };
    let action = run(&compile(plan, arch), call);
    let data = (action & libc::SECCOMP_RET_DATA) as i32;
    match action & libc::SECCOMP_RET_ACTION_FULL {
        libc::SECCOMP_RET_ALLOW => Verdict::Allow,
        libc::SECCOMP_RET_ERRNO => Verdict::Errno(Errno::from_raw(data)),
        libc::SECCOMP_RET_USER_NOTIF => Verdict::Notify,
        libc::SECCOMP_RET_KILL_PROCESS => Verdict::Kill,
        other => panic!("unexpected action {other:#x}"),
    }
}

/// A small source of numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// Values that mean something to some rule, their neighbours, and values whose upper half is not zero.
fn argument(dice: &mut Dice) -> u64 {
    const WORDS: [u64; 36] = [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        8,
        10,
        16,
        17,
        30,
        38,
        40,
        64,
        262,
        0x80,
        0x5412,
        0x541c,
        0x5423,
        0x8_0802,
        0x8_0801,
        0x8_0003,
        0x8_0005,
        0x2_0000,
        0x4_0000,
        0x40_0000,
        0x0200_0000,
        0x1000_0000,
        0x2000_0000,
        0x2000_4000,
        0x4000_0000,
        0x7e02_0080,
        0x7fff_ffff,
        0xffff_ffff,
        0x003d_0f00,
    ];
    let word = WORDS[dice.roll(WORDS.len())];
    match dice.roll(8) {
        0 => word | 0xdead_beef_0000_0000,
        1 => word | 1 << 32,
        2 => (word + 1) & 0xffff_ffff,
        _ => word,
    }
}

fn numbers() -> impl Iterator<Item = u32> {
    let bits = [X32, 1 << 31].into_iter().flat_map(|bit| [bit - 1, bit, bit + 1, bit + 41, bit + 165, bit + 520]);
    (0..=600).chain(bits).chain([u32::MAX, 0xffff, 1 << 16, 1 << 24])
}

#[test]
fn agrees_with_seccompiler() {
    let mut dice = Dice(7);
    for (plan, arch) in some_plans().flat_map(|plan| ARCHES.map(|arch| (plan.clone(), arch))) {
        let rulings = table::rulings(&plan, arch);
        let program = compile(&plan, arch);
        check(&program);
        let reference = Reference::new(&rulings, arch);
        let by_arguments: BTreeSet<u32> = rulings.iter().filter(|r| !r.cases.is_empty()).map(|r| r.number).collect();
        for number in numbers() {
            for _ in 0..if by_arguments.contains(&number) { 1500 } else { 8 } {
                let call = Call { number, architecture: arch.audit(), arguments: [(); 6].map(|()| argument(&mut dice)) };
                let x32 = arch == Arch::X86_64 && (X32..X32 << 1).contains(&number);
                let expected = if x32 && plan.strict { Verdict::Kill } else { reference.verdict(call) };
                assert_eq!(run(&program, call), expected.action(), "{plan:?} {arch:?} {call:x?}");
            }
        }
    }
}

#[test]
fn foreign_architectures_are_refused() {
    for (plan, arch) in plans().flat_map(|plan| ARCHES.map(|arch| (plan.clone(), arch))) {
        let program = compile(&plan, arch);
        let expected = if plan.strict { Verdict::Kill } else { Verdict::Errno(Errno::ENOSYS) };
        let i386 = 3 | 0x4000_0000;
        let arm = 40 | 0x4000_0000;
        let other = ARCHES.into_iter().find(|other| *other != arch).unwrap().audit();
        for architecture in [i386, arm, other, 0, u32::MAX, arch.audit() & 0xffff] {
            for number in [0, 1, 20, 102, 469, u32::MAX] {
                let call = Call { number, architecture, arguments: [0; 6] };
                assert_eq!(run(&program, call), expected.action(), "{plan:?} {arch:?} {call:x?}");
            }
        }
    }
}

#[test]
fn every_plan_gives_a_program_that_the_kernel_takes() {
    for (plan, arch) in plans().flat_map(|plan| ARCHES.map(|arch| (plan.clone(), arch))) {
        let rulings = table::rulings(&plan, arch);
        let numbers: BTreeSet<u32> = rulings.iter().map(|ruling| ruling.number).collect();
        assert_eq!(numbers.len(), rulings.len(), "a number is ruled on twice");
        assert!(numbers.iter().all(|number| arch.known().iter().any(|range| range.contains(number))));
        check(&compile(&plan, arch));
    }
}

#[test]
fn stays_small() {
    for arch in ARCHES {
        let length = compile(&SeccompPlan { notify_connect: true, ..ORDINARY }, arch).len();
        assert!(length <= MOST_INSTRUCTIONS, "{arch:?}: {length} instructions");
    }
}

#[test]
fn known_numbers_are_those_of_the_kernel() {
    // 403 to 423 of the generic table are for 32-bit machines (`asm-generic/unistd.h`); the library lists them all the same.
    let other = 403..424;
    for number in 0..=HIGHEST {
        let known = |arch: Arch| arch.known().iter().any(|range| range.contains(&number));
        assert_eq!(known(Arch::X86_64), x86_64::Sysno::new(number as usize).is_some(), "{number}");
        let listed = aarch64::Sysno::new(number as usize).is_some();
        assert_eq!(known(Arch::Aarch64), listed && !other.contains(&number), "{number}");
    }
    assert_eq!(ARCHES.map(|arch| number(arch, "file_setattr")), [HIGHEST; 2]);
}

#[test]
fn numbers_are_those_of_the_c_library() {
    macro_rules! same {
        ($($name:ident => $constant:ident)*) => {
            if let Some(arch) = Arch::NATIVE {
                $(assert_eq!(i64::from(number(arch, stringify!($name))), i64::from(libc::$constant));)*
            }
        };
    }
    same! {
        mount => SYS_mount umount2 => SYS_umount2 pivot_root => SYS_pivot_root clone => SYS_clone clone3 => SYS_clone3
        unshare => SYS_unshare setns => SYS_setns socket => SYS_socket socketpair => SYS_socketpair connect => SYS_connect
        sendto => SYS_sendto sendmsg => SYS_sendmsg sendmmsg => SYS_sendmmsg setsockopt => SYS_setsockopt ioctl => SYS_ioctl
        bpf => SYS_bpf keyctl => SYS_keyctl io_uring_setup => SYS_io_uring_setup personality => SYS_personality
        prlimit64 => SYS_prlimit64 open_by_handle_at => SYS_open_by_handle_at mount_setattr => SYS_mount_setattr
        perf_event_open => SYS_perf_event_open userfaultfd => SYS_userfaultfd process_madvise => SYS_process_madvise
    }
}

#[test]
fn architecture_is_what_seccompiler_compares_with() {
    for (arch, target) in ARCHES.into_iter().zip([seccompiler::TargetArch::x86_64, seccompiler::TargetArch::aarch64]) {
        let empty = seccompiler::SeccompFilter::new(
            Default::default(),
            seccompiler::SeccompAction::Allow,
            seccompiler::SeccompAction::Trap,
            target,
        );
        let program = BpfProgram::try_from(empty.unwrap()).unwrap();
        let call = |architecture| Call { number: 0, architecture, arguments: [0; 6] };
        assert_eq!(run(&program, call(arch.audit())), libc::SECCOMP_RET_ALLOW);
        assert_ne!(run(&program, call(arch.audit() ^ 1)), libc::SECCOMP_RET_ALLOW);
    }
}

mod meaning {
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
        for name in
            "read write openat mmap execve execveat clone futex wait4 kill pidfd_open pidfd_getfd pidfd_send_signal ptrace \
                     process_vm_readv seccomp landlock_create_ruleset landlock_restrict_self prctl chroot connect bind listen \
                     accept4 sendmsg sendto setsockopt memfd_create name_to_handle_at statmount listmount mseal futex_waitv \
                     rseq set_robust_list membarrier copy_file_range statx openat2 close_range epoll_pwait2 fchmodat2 cachestat \
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
        for name in ["io_uring_setup", "io_uring_enter", "io_uring_register", "clone3"] {
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

    #[test]
    fn other_processes_are_left_alone() {
        for name in ["prlimit64", "move_pages", "migrate_pages"] {
            expect(&ORDINARY, name, &[0, 7], None);
            expect(&ORDINARY, name, &[5 << 32, 7], None);
            expect(&ORDINARY, name, &[1234, 7], EPERM);
        }
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
        assert_eq!(explain(&plan, Arch::Aarch64, "iopl"), None);
        assert_eq!(explain(&plan, Arch::X86_64, "no_such_call"), None);
    }
}

/// `cargo test --release -p hermes-backends seccomp -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
fn cost() {
    use std::hint::black_box;
    use std::time::{Duration, Instant};

    let measure = |times, mut act: Box<dyn FnMut() -> Duration>| {
        let mut taken: Vec<Duration> = (0..times).map(|_| act()).collect();
        taken.sort_unstable();
        format!("{:?} (min {:?})", taken[times / 2], taken[0])
    };
    let load = |program: BpfProgram| {
        let in_thread = move || {
            let program = program.clone();
            let load = move || {
                let start = Instant::now();
                seccompiler::apply_filter(&program).unwrap();
                start.elapsed()
            };
            std::thread::spawn(load).join().unwrap()
        };
        measure(400, Box::new(in_thread))
    };
    let Some(arch) = Arch::NATIVE else { return };
    println!("one instruction: load {}", load(vec![assemble::statement(assemble::RETURN, libc::SECCOMP_RET_ALLOW)]));
    for notify_connect in [false, true] {
        let plan = SeccompPlan { notify_connect, ..ORDINARY };
        let program = compile(&plan, arch);
        let length = program.len();
        let build = move || {
            let start = Instant::now();
            black_box(compile(black_box(&plan), arch));
            start.elapsed()
        };
        println!("{length} instructions: build {}, load {}", measure(2000, Box::new(build)), load(program));
    }
}
