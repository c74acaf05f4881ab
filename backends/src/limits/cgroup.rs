//! Control groups: where we may make one, and the one that a sandbox lives in.

mod find;

pub use find::{detect, memory_limit};

/// Start of the name of every control group of ours.
pub const PREFIX: &str = "hermes-sandbox-";
