//! Policy as data.
//!
//! This room owns what is allowed: types, TOML, includes, merging, flags and environment rules. It refuses to know what the
//! machine can enforce: it makes no system call but through the [`Files`] it is handed, and has no unsafe code.
//!
//! The way through it: a [`Request`] names a profile, flags and the caller; [`resolve`] loads the [`profile`] with its
//! includes, merges, expands [`paths`], lets the [`project`] take away, and returns a [`Policy`];
//! [`environment::filter`] applies its rules to the caller's variables.

pub mod builtin;
mod config;
pub mod environment;
mod error;
pub mod guard;
pub mod layer;
mod merge;
mod names;
pub mod ospath;
mod parse;
pub mod paths;
mod pattern;
pub mod policy;
pub mod profile;
pub mod project;
mod request;
mod resolve;
mod route;
mod rule;
mod selector;
pub mod trust;
mod values;
pub use values::duration;

pub use config::SOURCES;
pub use error::PolicyError;
pub use guard::GuardRules;
pub use merge::is_broad;
pub use policy::{
    Access, DockerMount, DockerRules, EnvironmentRules, FileRule, Guarantee, Home, HomeMode, KernelRules, Limits, LoopbackRules,
    McpRules, McpTool, Network, Origin, Place, Policy, Pull, UnixRules, UnknownHosts,
};
pub use request::{Caller, Files, MAX_FILE, Overrides, Request, Resolved};
pub use resolve::resolve;
pub use route::{IpNetwork, Rate, Route, RouteRules, SecretRule, Upstream};
