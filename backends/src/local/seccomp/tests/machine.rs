//! The kernel's side: what it accepts as a filter, and what it does with it.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_MAXINSNS, BPF_RET, BPF_W,
};
use seccompiler::sock_filter;

/// A system call as the kernel shows it to a filter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub number: u32,
    pub architecture: u32,
    pub arguments: [u64; 6],
}

impl Call {
    /// `struct seccomp_data` on a little-endian machine.
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.architecture,
            8 | 12 => panic!("the filter looks at the instruction pointer"),
            _ => {
                let argument = self.arguments[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
            }
        }
    }
}

/// The rules of `bpf_check_classic` and `seccomp_check_filter`.
pub(super) fn check(program: &[sock_filter]) {
    assert!(!program.is_empty() && program.len() <= BPF_MAXINSNS as usize, "{} instructions", program.len());
    for (at, instruction) in program.iter().enumerate() {
        let rest = program.len() - at - 1;
        match u32::from(instruction.code) {
            code if code == BPF_LD | BPF_W | BPF_ABS => assert!(instruction.k.is_multiple_of(4) && instruction.k < 64),
            code if code == BPF_ALU | BPF_AND | BPF_K || code == BPF_RET | BPF_K => {}
            code if code == BPF_JMP | BPF_JA => assert!((instruction.k as usize) < rest, "{at}: jump out of the program"),
            code if [BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JSET].iter().any(|op| code == BPF_JMP | op | BPF_K) => {
                assert!(usize::from(instruction.jt.max(instruction.jf)) < rest, "{at}: jump out of the program");
            }
            code => panic!("{at}: unexpected code {code:#x}"),
        }
    }
    assert_eq!(u32::from(program[program.len() - 1].code), BPF_RET | BPF_K);
}

/// What the program returns.
pub(super) fn run(program: &[sock_filter], call: Call) -> u32 {
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let &sock_filter { code, jt, jf, k } = &program[at];
        let code = u32::from(code);
        at += 1;
        let mut jump = |condition: bool| at += usize::from(if condition { jt } else { jf });
        match code & 7 {
            BPF_RET => return k,
            BPF_LD => accumulator = call.word(k),
            BPF_ALU => accumulator &= k,
            _ => match code & 0xf0 {
                BPF_JA => at += k as usize,
                BPF_JEQ => jump(accumulator == k),
                BPF_JGE => jump(accumulator >= k),
                BPF_JGT => jump(accumulator > k),
                BPF_JSET => jump(accumulator & k != 0),
                other => panic!("unexpected jump {other:#x}"),
            },
        }
    }
}
