//! What is refused and why.
//!
//! Everything else is allowed: the kernel's own checks, the namespaces and Landlock stand behind it. Refused is what
//! no build, test or agent needs and what has been a way out before, or passes the other layers by. ENOSYS is
//! the answer where programs know how to do without the call, EPERM where a refusal is what they expect.

use nix::errno::Errno::{self, EACCES, EAFNOSUPPORT, ENOPROTOOPT, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT, ESOCKTNOSUPPORT};
use nix::sys::resource::Resource;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq, Ne};
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};
use syscalls::{aarch64, x86_64};

use super::{Arch, Case, Ruling, Verdict};
use crate::plan::SeccompPlan;

/// A system call, with its number where a machine has it.
#[derive(Debug, Clone, Copy)]
struct Call {
    x86_64: u32,
    aarch64: Option<u32>,
}

macro_rules! call {
    ($name:ident) => {
        Call { x86_64: x86_64::Sysno::$name as u32, aarch64: Some(aarch64::Sysno::$name as u32) }
    };
    (x86 $name:ident) => {
        Call { x86_64: x86_64::Sysno::$name as u32, aarch64: None }
    };
}

/// A system call that is refused whatever its arguments are.
#[derive(Debug)]
struct Denial {
    call: Call,
    errno: Errno,
    reason: &'static str,
}

/// `ERRNO, "reason": calls of both machines; calls of x86_64 alone;`
macro_rules! denials {
    ($($errno:ident, $reason:literal: $($both:ident)* $(, x86: $($x86:ident)*)?;)*) => {
        &[$(
            $(Denial { call: call!($both), errno: $errno, reason: $reason },)*
            $($(Denial { call: call!(x86 $x86), errno: $errno, reason: $reason },)*)?
        )*]
    };
}

/// What builds a sandbox, and nobody in it may do again.
static WHEN_BUILT: &[Denial] = denials! {
    EPERM, "changes mounts, which confine the sandbox":
        mount umount2 pivot_root open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr;
    ENOSYS, "its mode lies in memory, where a filter cannot look for set-user-id bits; programs fall back to openat": openat2;
};

/// What not even our own programs do.
static ALWAYS: &[Denial] = denials! {
    EPERM, "keyrings are shared with the host's processes of the same user": add_key request_key keyctl;
    EPERM, "loads code into the kernel": bpf init_module finit_module delete_module kexec_load kexec_file_load,
        x86: create_module get_kernel_syms query_module;
    EPERM, "measures the kernel and other processes, and has a long record of kernel bugs": perf_event_open;
    EPERM, "stops the kernel at a page fault of the program's choice, which turns kernel races into exploits": userfaultfd;
    ENOSYS, "does system calls that this filter does not see": io_uring_setup io_uring_enter io_uring_register;
    EPERM, "sets the machine's clock": settimeofday clock_settime clock_adjtime adjtimex;
    EPERM, "opens files by inode number, past mounts and hidden directories": open_by_handle_at;
    EPERM, "watches whole file systems": fanotify_init;
    EPERM, "administers the machine": quotactl quotactl_fd swapon swapoff reboot acct vhangup, x86: iopl ioperm;
    EPERM, "reads the kernel's log": syslog;
    EPERM, "acts on the memory of other processes": process_madvise process_mrelease;
    EPERM, "compares kernel objects of processes, which reveals kernel addresses' order": kcmp;
    EPERM, "builds segments for 16-bit and 32-bit code, and has a record of kernel bugs": , x86: modify_ldt;
    ENOSYS, "is a leftover that no living program uses": lookup_dcookie, x86: uselib ustat sysfs;
};

static UNLESS_NESTED: &[Denial] = denials! {
    EPERM, "enters namespaces (nested-sandbox allows it)": setns;
    EPERM, "names the machine (nested-sandbox allows it)": sethostname setdomainname;
    ENOSYS, "its flags lie in memory, where a filter cannot look for new namespaces; programs fall back to clone": clone3;
};

static WITHOUT_IPC_NAMESPACE: &[Denial] = denials! {
    EPERM, "System V IPC is shared with the host here":
        shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl;
    EPERM, "POSIX message queues are shared with the host here":
        mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr;
};

/// Flags of `clone` and `unshare` that make namespaces. The low byte of `clone`'s flags is a signal (`CSIGNAL`
/// in `kernel/fork.c`), so there `CLONE_NEWTIME` does not exist.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// `PER_LINUX32`, `UNAME26` and `ADDR_NO_RANDOMIZE` of `linux/personality.h`: another `uname`, and what debuggers and the
/// thread sanitizer set for their own children.
const HARMLESS_PERSONA: u32 = 0x0008 | 0x002_0000 | 0x004_0000;
/// Asks `personality` for the current value.
const QUERY_PERSONA: u32 = 0xffff_ffff;

/// `SOCK_TYPE_MASK` of `linux/net.h`: what remains of `type` is flags.
const TYPE: u64 = 0xf;

/// A file with one of these bits, made inside, lends its owner's rights to whoever runs it outside.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// `WILL_CREATE` of `fs/open.c`; both machines have these values. Without them the kernel does not look at the mode, and
/// the C library leaves the register as it is.
const WILL_CREATE: u32 = 0o100 | 0o2000_0000;

#[allow(clippy::unnecessary_cast)] // a c_int in musl, unsigned in glibc
const PRIO_PROCESS: u32 = libc::PRIO_PROCESS as u32;
/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`.
const IOPRIO_WHO_PROCESS: u32 = 1;

/// Options by which the packets of a connection to one address go to another one: source routes (`tcp_v4_connect` and
/// `fl6_update_dst` send to the first hop) and interfaces, where `ip_route_output_key_hash_rcu` takes every address for a neighbour.
const LEAD_ELSEWHERE: [(libc::c_int, libc::c_int); 5] = [
    (libc::IPPROTO_IP, libc::IP_OPTIONS),
    (libc::IPPROTO_IPV6, libc::IPV6_RTHDR),
    (libc::IPPROTO_IPV6, libc::IPV6_2292PKTOPTIONS),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, SO_BINDTOIFINDEX),
];
/// `asm-generic/socket.h`; the two machines have the same.
const SO_BINDTOIFINDEX: libc::c_int = 62;

/// A test of an argument that the kernel takes as `int`: the upper half of the register is not looked at by the
/// kernel, so it must not be looked at here (CVE-2019-10063).
fn word(argument: u8, operator: SeccompCmpOp, value: u32) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into()).expect("a system call has six arguments")
}

/// A condition on all 64 bits of an argument.
fn long(argument: u8, operator: SeccompCmpOp, value: u64) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value).expect("a system call has six arguments")
}

fn case(conditions: impl Into<Vec<SeccompCondition>>, then: Verdict) -> Case {
    Case { when: SeccompRule::new(conditions.into()).expect("a case has conditions"), then }
}

/// Numbers of the calls that nothing in a container needs, with what they are answered.
pub(super) fn never(arch: Arch) -> impl Iterator<Item = (u32, Errno)> {
    let number = move |call: &Call| match arch {
        Arch::X86_64 => Some(call.x86_64),
        Arch::Aarch64 => call.aarch64,
    };
    ALWAYS.iter().filter_map(move |denial| Some((number(&denial.call)?, denial.errno)))
}

/// All rulings of a plan that the machine has system calls for, each number once, in no particular order.
pub(super) fn rulings(plan: &SeccompPlan, arch: Arch) -> Vec<Ruling> {
    use Verdict::{Allow, Errno, Notify};
    let number = |call: Call| match arch {
        Arch::X86_64 => Some(call.x86_64),
        Arch::Aarch64 => call.aarch64,
    };
    let mut rulings = Vec::with_capacity(128);
    let denials = WHEN_BUILT
        .iter()
        .chain(ALWAYS)
        .chain(if plan.nested_sandbox { &[] } else { UNLESS_NESTED })
        .chain(if plan.deny_ipc { WITHOUT_IPC_NAMESPACE } else { &[] });
    for &Denial { call, errno, reason } in denials {
        if let Some(number) = number(call) {
            rulings.push(Ruling { number, cases: Vec::new(), otherwise: Errno(errno), reason });
        }
    }
    let mut rule = |call: Call, cases: Vec<Case>, otherwise: Verdict, reason: &'static str| {
        if let Some(number) = number(call) {
            rulings.push(Ruling { number, cases, otherwise, reason });
        }
    };

    if !plan.nested_sandbox {
        let reason = "makes namespaces, which opens kernel code that is meant for root (nested-sandbox allows it)";
        let none = |more: u32| vec![case([word(0, MaskedEq((NEW_NAMESPACES | more).into()), 0)], Allow)];
        rule(call!(clone), none(0), Errno(EPERM), reason);
        rule(call!(unshare), none(libc::CLONE_NEWTIME as u32), Errno(EPERM), reason);
    }

    let reason = "makes memory executable or the address space predictable in ways that weaken the program";
    let harmless = case([word(0, MaskedEq((!HARMLESS_PERSONA).into()), 0)], Allow);
    let query = case([word(0, Eq, QUERY_PERSONA)], Allow);
    rule(call!(personality), vec![harmless, query], Errno(EPERM), reason);

    let reason = "types into the terminal, or loads a line discipline";
    let refused =
        [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSETD].map(|request| case([word(1, Eq, request as u32)], Errno(EPERM)));
    rule(call!(ioctl), refused.into(), Allow, reason);

    // The list of systemd's RestrictSUIDSGID= (`seccomp_restrict_suid_sgid`), but for mkdir, where the kernel takes the
    // bits away by itself (`vfs_mkdir`). `umode_t` is the low half of the word.
    let reason = "makes a file that runs with its owner's or group's rights, also outside, whoever starts it";
    let plain = |mode: u8| case([word(mode, MaskedEq(SET_ID.into()), 0)], Allow);
    for (call, mode) in [
        (call!(x86 chmod), 1),
        (call!(fchmod), 1),
        (call!(fchmodat), 2),
        (call!(fchmodat2), 2),
        (call!(x86 creat), 1),
        (call!(x86 mknod), 1),
        (call!(mknodat), 2),
    ] {
        rule(call, vec![plain(mode)], Errno(EPERM), reason);
    }
    for (call, flags) in [(call!(x86 open), 1), (call!(openat), 2)] {
        let existing = case([word(flags, MaskedEq(WILL_CREATE.into()), 0)], Allow);
        rule(call, vec![existing, plain(flags + 1)], Errno(EPERM), reason);
    }

    let reason = "acts on other processes of the same user, which Landlock does not cover; 0 means the caller";
    for call in [call!(move_pages), call!(migrate_pages)] {
        rule(call, vec![case([word(0, Eq, 0)], Allow)], Errno(EPERM), reason);
    }
    let mark = Resource::RLIMIT_RTTIME as u32;
    let query = case([word(0, Eq, 0), long(2, Eq, 0)], Allow);
    let others = case([word(0, Eq, 0), word(1, Ne, mark)], Allow);
    rule(call!(prlimit64), vec![query, others], Errno(EPERM), reason);
    let reason = "tells which job a process belongs to";
    rule(call!(setrlimit), vec![case([word(0, Eq, mark)], Errno(EPERM))], Allow, reason);
    // Without an IPC namespace there is no process namespace either: the two tiers differ in both.
    if plan.deny_ipc {
        for (call, oneself) in [(call!(setpriority), PRIO_PROCESS), (call!(ioprio_set), IOPRIO_WHO_PROCESS)] {
            rule(call, vec![case([word(0, Eq, oneself), word(1, Eq, 0)], Allow)], Errno(EPERM), reason);
        }
    }

    let (sockets, others) = socket(plan);
    rule(call!(socket), sockets, others, "socket families, types and protocols are allowed by list");
    let mut pair = vec![case([word(0, Ne, libc::AF_UNIX as u32)], Errno(EAFNOSUPPORT))];
    pair.extend((!plan.unix_datagram).then(|| datagram([])));
    rule(call!(socketpair), pair, Allow, "a datagram socket reaches any named socket without connecting");

    // With no family left to make a socket of, one that can do this was handed in. What is connected already, or
    // listens, was given on purpose: it may talk and accept.
    let no_sockets = !plan.inet_sockets && !plan.unix_sockets;
    if no_sockets {
        let reason = "gives a socket that was handed in another peer or address, and there is no network here";
        for call in [call!(connect), call!(bind), call!(listen)] {
            rule(call, Vec::new(), Errno(EACCES), reason);
        }
    } else if plan.mediate_tcp {
        let reason = "done by the supervisor on the program's behalf: to the proxy, or on the sandbox's own loopback ports";
        for call in [call!(connect), call!(bind), call!(listen)] {
            rule(call, Vec::new(), Notify, reason);
        }
    } else if plan.notify_connect {
        rule(call!(connect), Vec::new(), Notify, "decided by what it connects to");
    }
    if no_sockets || plan.notifies() {
        let reason = "connects while sending, past what decides on connections";
        let flag = libc::MSG_FASTOPEN as u32;
        for (call, flags) in [(call!(sendto), 3), (call!(sendmsg), 2), (call!(sendmmsg), 3)] {
            rule(call, vec![case([word(flags, MaskedEq(flag.into()), flag)], Errno(EOPNOTSUPP))], Allow, reason);
        }
        let mut options = vec![(libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT)];
        options.extend(plan.mediate_tcp.then_some(LEAD_ELSEWHERE).into_iter().flatten());
        let refused = options
            .into_iter()
            .map(|(level, option)| case([word(2, Eq, option as u32), word(1, Eq, level as u32)], Errno(ENOPROTOOPT)));
        rule(call!(setsockopt), refused.collect(), Allow, reason);
    }
    rulings
}

/// A unix socket that sends to names: `SOCK_DGRAM` is 2 and `SOCK_RAW`, which `net/unix/af_unix.c` turns into it, is 3.
fn datagram<const N: usize>(others: [SeccompCondition; N]) -> Case {
    let mut conditions = vec![word(1, MaskedEq(TYPE & !1), libc::SOCK_DGRAM as u32)];
    conditions.extend(others);
    case(conditions, Verdict::Errno(ESOCKTNOSUPPORT))
}

/// The cases of `socket`, and the answer to all the rest.
fn socket(plan: &SeccompPlan) -> (Vec<Case>, Verdict) {
    use Verdict::{Allow, Errno, Notify};
    const KIND: u8 = 1;
    const PROTOCOL: u8 = 2;
    let family = |operator, family: libc::c_int| word(0, operator, family as u32);
    let mut cases = Vec::with_capacity(10);
    if plan.unix_sockets {
        cases.extend((!plan.unix_datagram).then(|| datagram([family(Eq, libc::AF_UNIX)])));
        cases.push(case([family(Eq, libc::AF_UNIX)], Allow));
    }
    // Route answers getifaddrs and getaddrinfo. The others are administration, audit and large kernel surfaces;
    // libraries take EPROTONOSUPPORT for a kernel built without them.
    let route = word(PROTOCOL, Eq, libc::NETLINK_ROUTE as u32);
    cases.push(case([route, family(Eq, libc::AF_NETLINK)], Allow));
    cases.push(case([family(Eq, libc::AF_NETLINK)], Errno(EPROTONOSUPPORT)));
    if !plan.inet_sockets {
        return (cases, Errno(EAFNOSUPPORT));
    }
    cases.push(case([family(Ne, libc::AF_INET), family(Ne, libc::AF_INET6)], Errno(EAFNOSUPPORT)));
    cases.push(case([word(KIND, MaskedEq(TYPE), libc::SOCK_RAW as u32)], Errno(EPERM)));
    if plan.mediate_tcp {
        // UDP goes where each packet says, which no register shows.
        cases.push(case([word(KIND, MaskedEq(TYPE), libc::SOCK_DGRAM as u32)], Errno(EACCES)));
    }
    // Neither MPTCP, which Landlock's TCP rights do not cover, nor ping, SCTP, UDP-Lite, SMC.
    let protocols: &[libc::c_int] =
        if plan.mediate_tcp { &[0, libc::IPPROTO_TCP] } else { &[0, libc::IPPROTO_TCP, libc::IPPROTO_UDP] };
    let others: Vec<_> = protocols.iter().map(|protocol| word(PROTOCOL, Ne, *protocol as u32)).collect();
    cases.push(case(others, Errno(EPROTONOSUPPORT)));
    // By list, because protocol 0 of SOCK_SEQPACKET is SCTP, and AF_INET with SOCK_PACKET is AF_PACKET (`net/socket.c`).
    let kinds: &[libc::c_int] = if plan.mediate_tcp { &[libc::SOCK_STREAM] } else { &[libc::SOCK_STREAM, libc::SOCK_DGRAM] };
    let made = if plan.mediate_tcp && plan.make_sockets { Notify } else { Allow };
    for &kind in kinds {
        cases.push(case([word(KIND, MaskedEq(TYPE), kind as u32)], made));
    }
    (cases, Errno(ESOCKTNOSUPPORT))
}
