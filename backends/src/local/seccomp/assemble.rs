//! Puts a program together from its end to its start.
//!
//! BPF jumps only go forward. Emitted backwards, every target is known when a jump to it is made, and an instruction
//! that is there already can be used again by whoever needs the same.

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use seccompiler::{BpfProgram, sock_filter};

pub(super) const LOAD: u16 = (BPF_LD | BPF_W | BPF_ABS) as u16;
pub(super) const RETURN: u16 = (BPF_RET | BPF_K) as u16;
pub(super) const EQUAL: u16 = (BPF_JMP | BPF_JEQ | BPF_K) as u16;
const AT_LEAST: u16 = (BPF_JMP | BPF_JGE | BPF_K) as u16;
const MASK: u16 = (BPF_ALU | BPF_AND | BPF_K) as u16;
const ALWAYS: u16 = (BPF_JMP | BPF_JA) as u16;

/// So many comparisons in a row are as good as a search among them.
const FEW: usize = 3;

/// Offset of `seccomp_data.nr`.
pub(super) const NUMBER: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
/// Offset of `seccomp_data.arch`.
pub(super) const ARCHITECTURE: u32 = std::mem::offset_of!(libc::seccomp_data, arch) as u32;

/// An instruction without a condition.
pub(super) fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// The place of an instruction, counted from the end of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label(usize);

/// An instruction by what it does, wherever it lies.
#[derive(PartialEq, Eq)]
struct Meaning {
    code: u16,
    k: u32,
    yes: Option<Label>,
    no: Option<Label>,
}

/// What the accumulator is known to hold before an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// The instruction is never reached.
    Unreached,
    /// The word at this offset of `seccomp_data`, and what it was masked with.
    Word(u32, u32),
    /// One thing or another.
    Mixed,
}

impl Held {
    fn join(&mut self, other: Self) {
        *self = match *self {
            Self::Unreached => other,
            same if same == other => same,
            _ => Self::Mixed,
        };
    }

    fn masked(self, mask: u32) -> Self {
        match self {
            Self::Word(offset, before) => Self::Word(offset, before & mask),
            other => other,
        }
    }
}

#[derive(Default)]
pub(super) struct Assembler {
    reversed: BpfProgram,
    known: Vec<(Meaning, Label)>,
}

impl Assembler {
    fn push(&mut self, instruction: sock_filter) -> Label {
        self.reversed.push(instruction);
        Label(self.reversed.len() - 1)
    }

    /// Instructions between the one that is emitted next and `target`.
    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - 1 - target.0
    }

    /// A place that leads to `target` and that a conditional jump can reach even when one more instruction comes between.
    fn near(&mut self, target: Label) -> Label {
        if self.distance(target) < usize::from(u8::MAX) {
            return target;
        }
        let distance = self.distance(target) as u32;
        self.push(statement(ALWAYS, distance))
    }

    /// The instruction with this meaning, emitted by `emit` if there is none yet.
    fn once(&mut self, meaning: Meaning, emit: impl FnOnce(&mut Self) -> Label) -> Label {
        if let Some((_, label)) = self.known.iter().find(|(known, _)| *known == meaning) {
            return *label;
        }
        let label = emit(self);
        self.known.push((meaning, label));
        label
    }

    /// Ends with this action.
    pub(super) fn answer(&mut self, action: u32) -> Label {
        let meaning = Meaning { code: RETURN, k: action, yes: None, no: None };
        self.once(meaning, |this| this.push(statement(RETURN, action)))
    }

    /// Goes on at `yes` or `no`.
    pub(super) fn branch(&mut self, code: u16, k: u32, yes: Label, no: Label) -> Label {
        if yes == no {
            return yes;
        }
        let (yes, no) = (self.near(yes), self.near(no));
        // `near` leaves room for the hop that the other direction may have needed, so both fit.
        let (jt, jf) = (self.distance(yes) as u8, self.distance(no) as u8);
        self.push(sock_filter { code, jt, jf, k })
    }

    /// An instruction that is not a jump, and goes on at `next`.
    pub(super) fn then(&mut self, code: u16, k: u32, next: Label) -> Label {
        let distance = self.distance(next) as u32;
        if distance > 0 {
            self.push(statement(ALWAYS, distance));
        }
        self.push(statement(code, k))
    }

    /// A piece of program that ends in itself, in forward order, entered with the system call number in the accumulator.
    pub(super) fn chain(&mut self, source: &[sock_filter]) -> Label {
        let held = held(source);
        let mut labels = vec![Label(0); source.len() + 1];
        for (at, instruction) in source.iter().enumerate().rev() {
            let &sock_filter { code, jt, jf, k } = instruction;
            let to = |offset: usize| labels[at + 1 + offset];
            labels[at] = match u32::from(code) & 7 {
                _ if held[at] == Held::Unreached => continue,
                BPF_RET => self.answer(k),
                BPF_JMP if code == ALWAYS => to(k as usize),
                BPF_JMP => {
                    let (yes, no) = (to(jt.into()), to(jf.into()));
                    self.once(Meaning { code, k, yes: Some(yes), no: Some(no) }, |this| this.branch(code, k, yes, no))
                }
                _ if code == LOAD && held[at] == Held::Word(k, u32::MAX) => to(0),
                _ if code == LOAD && (source[at + 1].code, held[at]) == (MASK, Held::Word(k, source[at + 1].k)) => to(1),
                _ => {
                    let next = to(0);
                    self.once(Meaning { code, k, yes: Some(next), no: None }, |this| this.then(code, k, next))
                }
            };
        }
        labels[0]
    }

    /// Finds the label of the last start that is not above the accumulator. `line` is sorted and starts at 0; neighbours
    /// have different labels.
    pub(super) fn search(&mut self, line: &[(u32, Label)]) -> Label {
        // A number alone among others takes one comparison where a cut on either side of it would take two.
        let alone =
            |at: usize| at > 0 && at + 1 < line.len() && line[at - 1].1 == line[at + 1].1 && line[at].0 + 1 == line[at + 1].0;
        let around = line[0].1;
        if line.len() <= 2 * FEW + 1 && (1..line.len()).all(|at| if at % 2 == 0 { line[at].1 == around } else { alone(at) }) {
            return line.iter().skip(1).step_by(2).fold(around, |no, &(number, yes)| self.branch(EQUAL, number, yes, no));
        }
        let middle = line.len() / 2;
        let cut =
            (1..line.len()).filter(|&at| !alone(at) && !alone(at - 1)).min_by_key(|at| at.abs_diff(middle)).unwrap_or(middle);
        let (low, high) = line.split_at(cut);
        let no_less = self.search(high);
        let less = self.search(low);
        self.branch(AT_LEAST, high[0].0, no_less, less)
    }

    /// The program in the order of its execution.
    pub(super) fn finish(mut self) -> BpfProgram {
        self.reversed.reverse();
        self.reversed
    }
}

/// What the accumulator holds before each instruction; all jumps go forward, so one pass finds it.
fn held(code: &[sock_filter]) -> Vec<Held> {
    let mut held = vec![Held::Unreached; code.len() + 1];
    held[0] = Held::Word(NUMBER, u32::MAX);
    for (at, &sock_filter { code, jt, jf, k }) in code.iter().enumerate() {
        let before = held[at];
        if before == Held::Unreached {
            continue;
        }
        match u32::from(code) & 7 {
            BPF_RET => {}
            BPF_JMP if code == ALWAYS => held[at + 1 + k as usize].join(before),
            BPF_JMP => {
                held[at + 1 + usize::from(jt)].join(before);
                held[at + 1 + usize::from(jf)].join(before);
            }
            _ if code == LOAD => held[at + 1].join(Held::Word(k, u32::MAX)),
            _ if code == MASK => held[at + 1].join(before.masked(k)),
            _ => held[at + 1].join(Held::Mixed),
        }
    }
    held
}
