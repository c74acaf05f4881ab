//! Names of the guard rules, for those who check a policy and need nothing else of them.

include!(concat!(env!("OUT_DIR"), "/names.rs"));

pub(crate) fn rules() -> &'static [&'static str] {
    RULES
}
