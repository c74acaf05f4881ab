#![allow(clippy::unwrap_used)]

mod kernel;
mod machine;
mod meaning;
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
const MOST_INSTRUCTIONS: usize = 170;

const ORDINARY: SeccompPlan = SeccompPlan {
    strict: false,
    nested_sandbox: false,
    notify_connect: false,
    unix_sockets: true,
    unix_datagram: false,
    inet_sockets: true,
    mediate_tcp: false,
    make_sockets: false,
    deny_ipc: false,
};

/// All plans that there are.
fn plans() -> impl Iterator<Item = SeccompPlan> {
    (0..1 << 9).map(|bits| {
        let bit = |n: u8| bits & (1 << n) != 0;
        SeccompPlan {
            strict: bit(0),
            nested_sandbox: bit(1),
            notify_connect: bit(2),
            unix_sockets: bit(3),
            unix_datagram: bit(4),
            inet_sockets: bit(5),
            deny_ipc: bit(6),
            mediate_tcp: bit(7),
            make_sockets: bit(8),
        }
    })
}

/// `ORDINARY`, what differs from it in one thing, and its opposite.
fn some_plans() -> impl Iterator<Item = SeccompPlan> {
    let bits = |plan: &SeccompPlan| {
        let SeccompPlan {
            strict,
            nested_sandbox,
            notify_connect,
            unix_sockets,
            unix_datagram,
            inet_sockets,
            mediate_tcp,
            make_sockets,
            deny_ipc,
        } = *plan;
        [strict, nested_sandbox, notify_connect, unix_sockets, unix_datagram, inet_sockets, mediate_tcp, make_sockets, deny_ipc]
    };
    let ordinary = bits(&ORDINARY);
    plans().filter(move |plan| [0, 1, 9].contains(&bits(plan).iter().zip(ordinary).filter(|&(a, b)| *a != b).count()))
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
    const WORDS: [u64; 42] = [
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
        0o755,
        0o1777,
        0o2000,
        0o2755,
        0o4000,
        0o10_4755,
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
        fchmod => SYS_fchmod fchmodat => SYS_fchmodat mknodat => SYS_mknodat openat => SYS_openat openat2 => SYS_openat2
        bind => SYS_bind listen => SYS_listen
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
