//! The error that ends a subcommand: what went wrong in one line, at most two hints, and the exit status.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::output;

/// Decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// The command line makes no sense. Status 125 and not 2, which could be the command's own.
    Usage,
    /// A policy file or a combination of flags makes no sense.
    Policy,
    /// The sandbox could not be set up, or this host cannot give what the policy requires.
    Setup,
    /// The command was found but cannot be executed.
    NotExecutable,
    /// The command was not found.
    NotFound,
    /// A checked file has errors (`profiles check`).
    Finding,
}

impl Kind {
    /// The exit status: as `env`, `timeout` and container engines have it.
    pub(crate) fn status(self) -> u8 {
        match self {
            Self::Usage | Self::Policy | Self::Setup => 125,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Finding => 1,
        }
    }
}

/// What is told to the caller when a subcommand fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Error {
    /// Decides the exit status.
    pub(crate) kind: Kind,
    /// What failed, on what, why.
    pub(crate) message: String,
    /// What to do; the first two are printed.
    pub(crate) hints: Vec<String>,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hints: Vec::new() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    pub(crate) fn setup(message: impl Into<String>) -> Self {
        Self::new(Kind::Setup, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Prints the error to stderr and returns the exit status.
    pub(crate) fn report(&self) -> u8 {
        output::complain(&self.message);
        for hint in self.hints.iter().take(2) {
            output::complain(&format!("hint: {hint}"));
        }
        self.kind.status()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
