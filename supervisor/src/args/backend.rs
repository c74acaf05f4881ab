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
    /// Where the sandbox is: local, docker or ssh (see docs/backends.md) [default: local]
    #[arg(long, value_name = "WHERE", hide_possible_values = true)]
    pub(crate) backend: Option<Backend>,
    /// Host of `--backend ssh`, as ssh takes it
    #[arg(long, value_name = "DEST")]
    pub(crate) ssh_host: Option<OsString>,
    /// Configuration of ssh instead of the user's
    #[arg(long, value_name = "FILE")]
    pub(crate) ssh_config: Option<PathBuf>,
    /// Image of `--backend docker`
    #[arg(long, value_name = "IMAGE")]
    pub(crate) image: Option<OsString>,
}

impl BackendArgs {
    /// The backend, if its options fit together.
    ///
    /// # Errors
    /// An option of another backend, or one that this version does not have: what is ignored would be a sandbox somewhere else.
    pub(crate) fn chosen(&self) -> Result<Backend, Error> {
        let chosen = self.backend.unwrap_or(Backend::Local);
        let others = [
            (self.ssh_host.is_some(), Backend::Ssh, "--ssh-host", "ssh"),
            (self.ssh_config.is_some(), Backend::Ssh, "--ssh-config", "ssh"),
            (self.image.is_some(), Backend::Docker, "--image", "docker"),
        ];
        match others.into_iter().find(|(given, backend, ..)| *given && *backend != chosen) {
            Some((.., option, backend)) => Err(Error::usage(format!("{option} needs --backend {backend}; nothing was started"))),
            None => Ok(chosen),
        }
    }
}
