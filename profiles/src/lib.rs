//! Policy as data.
//!
//! This room owns what is allowed: types, TOML, includes, merging, flags, environment rules and the answers of
//! `explain`. It refuses to know what the machine can enforce: it makes no system call but through the
//! [`Files`] it is handed, and has no unsafe code.

pub mod environment;
mod error;
pub mod ospath;
pub mod policy;
mod request;
mod resolve;

pub use error::PolicyError;
pub use policy::{
    Access, EnvironmentRules, FileRule, Guarantee, Home, HomeMode, KernelRules, Limits, Network, Origin, Policy, Route, UnixRules,
};
pub use request::{Caller, Files, MAX_FILE, Overrides, Request, Resolved};
pub use resolve::resolve;
