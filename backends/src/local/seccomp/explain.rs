//! What the filter does to a system call, by name.

use std::str::FromStr;

use nix::errno::Errno;
use syscalls::{aarch64, x86_64};

use super::{Arch, Verdict, table};
use crate::plan::SeccompPlan;

/// What becomes of a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The same whatever the arguments are.
    Always(Verdict),
    /// The arguments decide among these, in the order in which they are tried; the last is the answer to all the rest.
    ByArguments(Vec<Verdict>),
}

/// What becomes of a system call, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Its number on the machine.
    pub number: u32,
    /// The answer.
    pub answer: Answer,
    /// Why it is not simply allowed; `None` when it is.
    pub reason: Option<&'static str>,
}

/// Explains the system call `name`; `None` when the machine has none of that name.
pub fn explain(plan: &SeccompPlan, arch: Arch, name: &str) -> Option<Explanation> {
    let number = match arch {
        Arch::X86_64 => x86_64::Sysno::from_str(name).ok()? as u32,
        Arch::Aarch64 => aarch64::Sysno::from_str(name).ok()? as u32,
    };
    if let Some(ruling) = table::rulings(plan, arch).into_iter().find(|ruling| ruling.number == number) {
        let answer = if ruling.cases.is_empty() {
            Answer::Always(ruling.otherwise)
        } else {
            Answer::ByArguments(ruling.cases.iter().map(|case| case.then).chain([ruling.otherwise]).collect())
        };
        return Some(Explanation { number, answer, reason: Some(ruling.reason) });
    }
    Some(if arch.known().iter().any(|range| range.contains(&number)) {
        Explanation { number, answer: Answer::Always(Verdict::Allow), reason: None }
    } else {
        let reason = "not among the system calls of the kernel whose table was looked at";
        Explanation { number, answer: Answer::Always(Verdict::Errno(Errno::ENOSYS)), reason: Some(reason) }
    })
}
