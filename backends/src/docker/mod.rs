//! A container as the place of a sandbox: Docker, or Podman by the same API.
//!
//! Owns how an engine is found and asked ([`engine`]), what a container is made of ([`container`], [`mounts`],
//! [`seccomp`]; pure), how it is started, spoken to and removed ([`launch`], [`channel`], [`clean`]). What runs in it is
//! this same program: it is mounted as the entrypoint and builds the sandbox inside, so the engine is no part of the
//! boundary between jobs and policy, only a second one around it. This room refuses to know what is said over the channel.

pub mod channel;
pub mod clean;
pub mod container;
pub mod endpoint;
pub mod engine;
pub mod launch;
pub mod mounts;
pub mod seccomp;

pub use channel::Channel;
pub use engine::Engine;
pub use launch::{Launched, launch};

/// What failed, on what and why; and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// One line.
    pub message: String,
    /// One line.
    pub remedy: String,
}

impl Error {
    fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}
