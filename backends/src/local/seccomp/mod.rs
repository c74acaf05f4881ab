//! The system call filter: from a [`SeccompPlan`] to one BPF program.
//!
//! `table` says what is refused and why, in seccompiler's rules; seccompiler translates each rule; `assemble` joins the
//! pieces to one program whose depth grows with the logarithm of the table. One filter with several answers is
//! needed because the kernel runs every loaded filter on every call, and because seccompiler's own filter knows one
//! answer and takes a comparison per entry: the kernel evaluates a filter for each system call number when it is
//! loaded (`seccomp_cache_prepare`), so a deep chain is what makes a start slow.
//!
//! This module computes; it loads nothing.

mod assemble;
mod explain;
mod table;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use nix::errno::Errno;
use seccompiler::{BpfProgram, SeccompRule};

use crate::plan::SeccompPlan;
use assemble::Assembler;

pub use explain::{Answer, Explanation, explain};

/// A machine whose system call numbers are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// 64-bit x86.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

/// What the filter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel carries the call out.
    Allow,
    /// The call fails with this error.
    Errno(Errno),
    /// The broker that holds the filter's listener decides.
    Notify,
    /// The process is killed by SIGSYS.
    Kill,
}

/// A condition on the arguments and what it leads to.
#[derive(Debug, Clone)]
struct Case {
    when: SeccompRule,
    then: Verdict,
}

/// What becomes of one system call: the first case that matches, or `otherwise`.
#[derive(Debug, Clone)]
struct Ruling {
    number: u32,
    cases: Vec<Case>,
    otherwise: Verdict,
    reason: &'static str,
}

/// Newest kernel whose system calls are known here; a number that it does not have is answered with ENOSYS, so that
/// a newer kernel does not open calls that nobody has looked at.
pub const KNOWN_KERNEL: &str = "6.18";
/// `file_setattr`, the highest number of [`KNOWN_KERNEL`] on both machines (the numbers are common from 424 on).
const HIGHEST: u32 = 469;
/// The gap up to 424 keeps the two tables of the kernel in step.
const KNOWN_X86_64: [RangeInclusive<u32>; 2] = [0..=336, 424..=HIGHEST];
/// 244 to 259 are left to 32-bit machines of the generic table, 295 to 423 to their 64-bit time calls.
const KNOWN_AARCH64: [RangeInclusive<u32>; 3] = [0..=243, 260..=294, 424..=HIGHEST];

/// `__X32_SYSCALL_BIT`: x32 calls have the architecture of x86_64 and this bit in the number.
const X32: u32 = 0x4000_0000;
/// `__AUDIT_ARCH_64BIT` and `__AUDIT_ARCH_LE` of `linux/audit.h`.
const AUDIT_64_LE: u32 = 0x8000_0000 | 0x4000_0000;

impl Arch {
    /// The machine that this program was built for; `None` where there is no table for it.
    pub const NATIVE: Option<Self> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
        Some(Self::X86_64)
    } else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
        Some(Self::Aarch64)
    } else {
        None
    };

    /// `AUDIT_ARCH_*`, as `seccomp_data.arch` holds it.
    const fn audit(self) -> u32 {
        AUDIT_64_LE
            | match self {
                Self::X86_64 => libc::EM_X86_64 as u32,
                Self::Aarch64 => libc::EM_AARCH64 as u32,
            }
    }

    fn known(self) -> &'static [RangeInclusive<u32>] {
        match self {
            Self::X86_64 => &KNOWN_X86_64,
            Self::Aarch64 => &KNOWN_AARCH64,
        }
    }
}

impl Verdict {
    /// The value that the program returns.
    const fn action(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Errno(errno) => libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA),
            Self::Notify => libc::SECCOMP_RET_USER_NOTIF,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// The program for `plan`, to be loaded as it is. It must be loaded with a listener when the plan notifies.
pub fn compile(plan: &SeccompPlan, arch: Arch) -> BpfProgram {
    link(table::rulings(plan, arch), arch, plan.strict)
}

/// Names of the calls that neither a sandbox nor what builds one needs, with what they are answered.
pub fn never(arch: Arch) -> Vec<(&'static str, Errno)> {
    let name = |number: u32| match arch {
        Arch::X86_64 => syscalls::x86_64::Sysno::new(number as usize).map(|call| call.name()),
        Arch::Aarch64 => syscalls::aarch64::Sysno::new(number as usize).map(|call| call.name()),
    };
    table::never(arch).filter_map(|(number, errno)| Some((name(number)?, errno))).collect()
}

/// Joins rulings to a program. A number that has no ruling is allowed when it is known.
fn link(rulings: Vec<Ruling>, arch: Arch, strict: bool) -> BpfProgram {
    let mut assembler = Assembler::default();
    let allow = assembler.answer(Verdict::Allow.action());
    let unknown = assembler.answer(Verdict::Errno(Errno::ENOSYS).action());
    let foreign = if strict { assembler.answer(Verdict::Kill.action()) } else { unknown };

    let mut marks: Vec<_> = rulings
        .into_iter()
        .map(|ruling| {
            let mut chain = BpfProgram::new();
            for case in ruling.cases {
                chain.extend(BpfProgram::from(case.when));
                chain.push(assemble::statement(assemble::RETURN, case.then.action()));
            }
            chain.push(assemble::statement(assemble::RETURN, ruling.otherwise.action()));
            (ruling.number, assembler.chain(&chain))
        })
        .collect();
    marks.sort_unstable_by_key(|&(number, _)| number);

    // The line of all numbers as (start, what is done from there on).
    let mut line = Vec::with_capacity(2 * marks.len() + 8);
    let mut marks = marks.into_iter().peekable();
    for range in arch.known() {
        let mut next = *range.start();
        while let Some((number, label)) = marks.next_if(|(number, _)| number <= range.end()) {
            if number < next {
                continue; // in a gap, where ENOSYS is the answer
            }
            if number > next {
                line.push((next, allow));
            }
            line.push((number, label));
            next = number + 1;
        }
        if next <= *range.end() {
            line.push((next, allow));
        }
        line.push((range.end() + 1, unknown));
    }
    if arch == Arch::X86_64 && strict {
        // Up to the sign bit: a tracer sets the number to -1 to skip a call, which must not kill.
        line.extend([(X32, foreign), (X32 << 1, unknown)]);
    }
    line.dedup_by_key(|&mut (_, label)| label);

    let numbers = assembler.search(&line);
    let numbers = assembler.then(assemble::LOAD, assemble::NUMBER, numbers);
    let native = assembler.branch(assemble::EQUAL, arch.audit(), numbers, foreign);
    assembler.then(assemble::LOAD, assemble::ARCHITECTURE, native);
    assembler.finish()
}
