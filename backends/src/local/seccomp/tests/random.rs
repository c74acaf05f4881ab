//! Any table at all, against what its conditions mean and against seccompiler.

use proptest::collection::vec;
use proptest::prelude::*;
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::super::{Arch, Case, HIGHEST, Ruling, Verdict, link};
use super::Errno;
use super::machine::{Call, check, run};
use super::reference::Reference;

#[derive(Debug, Clone)]
struct Condition {
    argument: u8,
    wide: bool,
    operator: SeccompCmpOp,
    value: u64,
}

#[derive(Debug, Clone)]
struct Row {
    number: u32,
    cases: Vec<(Vec<Condition>, Verdict)>,
    otherwise: Verdict,
}

impl Condition {
    fn holds(&self, arguments: &[u64; 6]) -> bool {
        let mask = if self.wide { u64::MAX } else { u32::MAX.into() };
        let (have, want) = (arguments[usize::from(self.argument)] & mask, self.value & mask);
        match self.operator {
            SeccompCmpOp::Eq => have == want,
            SeccompCmpOp::Ne => have != want,
            SeccompCmpOp::Ge => have >= want,
            SeccompCmpOp::Gt => have > want,
            SeccompCmpOp::Le => have <= want,
            SeccompCmpOp::Lt => have < want,
            SeccompCmpOp::MaskedEq(bits) => have & bits & mask == want & bits & mask,
        }
    }

    fn rule(&self) -> SeccompCondition {
        let length = if self.wide { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
        SeccompCondition::new(self.argument, length, self.operator.clone(), self.value).unwrap()
    }
}

impl Row {
    fn verdict(&self, arguments: &[u64; 6]) -> Verdict {
        let matching = self.cases.iter().find(|(conditions, _)| conditions.iter().all(|condition| condition.holds(arguments)));
        matching.map_or(self.otherwise, |(_, verdict)| *verdict)
    }

    fn ruling(&self) -> Ruling {
        let case = |(conditions, then): &(Vec<Condition>, Verdict)| {
            let when = SeccompRule::new(conditions.iter().map(Condition::rule).collect()).unwrap();
            Case { when, then: *then }
        };
        let cases = self.cases.iter().map(case).collect();
        Ruling { number: self.number, cases, otherwise: self.otherwise, reason: "random" }
    }
}

/// Few values, so that conditions meet and arguments hit them.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, Just(u32::MAX.into()), Just(u64::MAX), (0..4u64).prop_map(|low| 1 << 32 | low)]
}

fn condition() -> impl Strategy<Value = Condition> {
    use SeccompCmpOp::{Eq, Ge, Gt, Le, Lt, MaskedEq, Ne};
    let operator = prop_oneof![Just(Eq), Just(Ne), Just(Ge), Just(Gt), Just(Le), Just(Lt), value().prop_map(MaskedEq)];
    (0..3u8, any::<bool>(), operator, value()).prop_map(|(argument, wide, operator, value)| Condition {
        argument,
        wide,
        operator,
        value,
    })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    use Verdict::{Allow, Kill, Notify};
    let errnos = [Errno::EPERM, Errno::ENOSYS, Errno::EACCES].map(Verdict::Errno);
    prop_oneof![Just(Allow), Just(Notify), Just(Kill), prop::sample::select(errnos.to_vec())]
}

fn row(cases: usize) -> impl Strategy<Value = Row> {
    // Close together, so that neighbours, lone numbers and gaps all occur; some numbers do not exist.
    let number = prop_oneof![0..80u32, 230..300u32, 320..350u32, 420..=HIGHEST];
    (number, vec((vec(condition(), 1..4), verdict()), 0..cases), verdict()).prop_map(|(number, cases, otherwise)| Row {
        number,
        cases,
        otherwise,
    })
}

fn agree(mut rows: Vec<Row>, arguments: &[[u64; 6]]) -> Result<usize, TestCaseError> {
    rows.sort_by_key(|row| row.number);
    rows.dedup_by_key(|row| row.number);
    let rulings: Vec<_> = rows.iter().map(Row::ruling).collect();
    for arch in super::ARCHES {
        let known = |number: u32| arch.known().iter().any(|range| range.contains(&number));
        let rulings: Vec<_> = rulings.iter().filter(|ruling| known(ruling.number)).cloned().collect();
        // The numbers that the machine does not have must not disturb the others.
        let program = link(rows.iter().rev().map(Row::ruling).collect(), arch, false);
        check(&program);
        let reference = Reference::new(&rulings, arch);
        for number in 0..=HIGHEST + 1 {
            let row = rows.iter().find(|row| row.number == number);
            for &arguments in if row.is_some() { arguments } else { &arguments[..1] } {
                let meant = match row {
                    _ if !known(number) => Verdict::Errno(Errno::ENOSYS),
                    Some(row) => row.verdict(&arguments),
                    None => Verdict::Allow,
                };
                let call = Call { number, architecture: arch.audit(), arguments };
                prop_assert_eq!(run(&program, call), meant.action(), "{:?} {:?}", arch, call);
                prop_assert_eq!(reference.verdict(call), meant, "seccompiler: {:?} {:?}", arch, call);
            }
        }
    }
    Ok(link(rulings, Arch::X86_64, false).len())
}

fn arguments(how_many: usize) -> impl Strategy<Value = Vec<[u64; 6]>> {
    vec((value(), value(), value()).prop_map(|(a, b, c)| [a, b, c, 0, 0, 0]), how_many)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_table(rows in vec(row(4), 0..30), arguments in arguments(40)) {
        agree(rows, &arguments)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn jumps_too_far_for_a_byte(rows in vec(row(6), 180), arguments in arguments(6)) {
        let length = agree(rows, &arguments)?;
        prop_assert!(length > 3 * usize::from(u8::MAX), "only {} instructions", length);
    }
}
