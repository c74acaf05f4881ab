//! Options that say where a sandbox is.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::error::Error;

/// Where the sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// On this machine
    Local,
    /// In a container
    Docker,
    /// On a remote host
    Ssh,
}

/// Options that say where a sandbox is.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct BackendArgs {
    /// Where the sandbox is: local, or ssh (see docs/backends.md) [default: local]
    #[arg(long, value_name = "WHERE", hide_possible_values = true)]
    pub(crate) backend: Option<Backend>,
    /// Host of `--backend ssh`, as ssh takes it
    #[arg(long, value_name = "DEST")]
    pub(crate) ssh_host: Option<OsString>,
    /// Configuration of ssh instead of the user's
    #[arg(long, value_name = "FILE")]
    pub(crate) ssh_config: Option<PathBuf>,
    // Known so that it can be refused by name instead of as a typing error.
    #[arg(long, value_name = "IMAGE", hide = true)]
    pub(crate) image: Option<OsString>,
}

impl BackendArgs {
    /// The backend, if its options fit together.
    ///
    /// # Errors
    /// An option of another backend, or one that this version does not have: what is ignored would be a sandbox somewhere else.
    pub(crate) fn chosen(&self) -> Result<Backend, Error> {
        let chosen = self.backend.unwrap_or(Backend::Local);
        let refused = match chosen {
            Backend::Docker => "--backend docker",
            _ if self.image.is_some() => "--image",
            Backend::Ssh => return Ok(chosen),
            Backend::Local if self.ssh_host.is_some() => return Err(needs_ssh("--ssh-host")),
            Backend::Local if self.ssh_config.is_some() => return Err(needs_ssh("--ssh-config")),
            Backend::Local => return Ok(chosen),
        };
        Err(Error::usage(format!("{refused} is not supported by version {}; nothing was started", env!("CARGO_PKG_VERSION"))))
    }
}

fn needs_ssh(option: &str) -> Error {
    Error::usage(format!("{option} needs --backend ssh; nothing was started"))
}
