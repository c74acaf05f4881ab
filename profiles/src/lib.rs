//! Policy as data.
//!
//! This room owns what is allowed: types, TOML, includes, merging, flags, environment rules and the answers of
//! `explain`. It refuses to know what the machine can enforce: it makes no system call but through the
//! [`Files`](load::Files) it is handed, and has no unsafe code.

pub mod ospath;
pub mod policy;

pub use policy::{
    Access, EnvironmentRules, FileRule, Guarantee, Home, HomeMode, KernelRules, Limits, Network, Origin, Policy, Route, UnixRules,
};
