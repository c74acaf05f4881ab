//! The same rulings by seccompiler's own filters.
//!
//! One of its filters knows one answer, so there is one filter for each place in the lists of cases: the first that
//! matches names the case.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::machine::{Call, run};
use super::{Arch, Errno, Ruling, Verdict};

pub(super) struct Reference {
    arch: Arch,
    outcomes: BTreeMap<u32, Vec<Verdict>>,
    filters: Vec<BpfProgram>,
}

const MATCH: SeccompAction = SeccompAction::Errno(1);

impl Reference {
    pub(super) fn new(rulings: &[Ruling], arch: Arch) -> Self {
        let target = match arch {
            Arch::X86_64 => TargetArch::x86_64,
            Arch::Aarch64 => TargetArch::aarch64,
        };
        let depth = rulings.iter().map(|ruling| ruling.cases.len().max(1)).max().unwrap_or(1);
        let filters = (0..depth).map(|place| {
            let rules = rulings.iter().filter_map(|ruling| match ruling.cases.get(place) {
                Some(case) => Some((ruling.number.into(), vec![case.when.clone()])),
                // No rule at all matches every call.
                None if ruling.cases.is_empty() && place == 0 => Some((ruling.number.into(), Vec::new())),
                None => None,
            });
            SeccompFilter::new(rules.collect(), SeccompAction::Allow, MATCH, target).unwrap().try_into().unwrap()
        });
        let outcome = |ruling: &Ruling| ruling.cases.iter().map(|case| case.then).chain([ruling.otherwise]).collect();
        let outcomes = rulings.iter().map(|ruling| (ruling.number, outcome(ruling))).collect();
        Self { arch, filters: filters.collect(), outcomes }
    }

    pub(super) fn verdict(&self, call: Call) -> Verdict {
        assert_eq!(call.architecture, self.arch.audit());
        let matching = self.filters.iter().position(|filter| run(filter, call) == u32::from(MATCH));
        match (self.outcomes.get(&call.number), matching) {
            (Some(outcomes), Some(place)) => outcomes[place],
            (Some(outcomes), None) => *outcomes.last().unwrap(),
            (None, Some(_)) => panic!("seccompiler matches a number that has no ruling"),
            (None, None) if self.arch.known().iter().any(|range| range.contains(&call.number)) => Verdict::Allow,
            (None, None) => Verdict::Errno(Errno::ENOSYS),
        }
    }
}
