//! `--backend ssh`: our program on another host, by OpenSSH.

use std::io::Read;
use std::path::PathBuf;

use hermes_backends::ssh::{self, Destination, Program, Refused, Running};
use tokio::net::UnixStream;

use super::{Backend, Channel, FAR_COMMAND, Later};
use crate::args::{BackendArgs, PolicyArgs};
use crate::error::Error;
use crate::fresh;
use crate::output;

/// Another host.
pub(super) struct Ssh {
    destination: Destination,
    config: Option<PathBuf>,
    running: Option<Running>,
}

impl Ssh {
    pub(super) fn new(place: &BackendArgs) -> Result<Self, Error> {
        let none =
            || Error::usage("--backend ssh needs --ssh-host").hint("name the host as ssh takes it, e.g. user@host.example.test");
        let given = place.ssh_host.as_ref().ok_or_else(none)?.to_string_lossy();
        let destination = given.parse().map_err(|why| {
            Error::usage(format!("`{}` cannot be the host of --ssh-host: {why}; nothing was started", output::clean(&given)))
                .hint("name it as [user@]host, or give it a name in ~/.ssh/config")
        })?;
        Ok(Self { destination, config: place.ssh_config.clone(), running: None })
    }

    fn start(&mut self) -> Result<Box<dyn Channel>, Error> {
        let cannot = |e: std::io::Error| Error::setup(format!("cannot start on {}: {e}", self.destination));
        let mut bytes = Vec::new();
        std::fs::File::open("/proc/self/exe").and_then(|mut file| file.read_to_end(&mut bytes)).map_err(cannot)?;
        let hash = hermes_profiles::trust::hash(&bytes);
        let token = u64::from_ne_bytes(fresh::random().map_err(cannot)?);
        let token = format!("{token:016x}");
        let program = Program { bytes: &bytes, hash: &hash, token: &token, argument: FAR_COMMAND };
        let running = ssh::start(&self.destination, self.config.as_deref(), &program).map_err(refused)?;
        let stream = running.stream.try_clone().map_err(cannot)?;
        self.running = Some(running);
        stream.set_nonblocking(true).map_err(cannot)?;
        Ok(Box::new(UnixStream::from_std(stream).map_err(cannot)?))
    }
}

impl Backend for Ssh {
    fn name(&self) -> String {
        self.destination.to_string()
    }

    fn refuse(&self, args: &PolicyArgs) -> Result<(), Error> {
        let refused =
            |option: &str, hint: &str| Err(Error::usage(format!("{option} cannot be used with --backend ssh")).hint(hint));
        if args.user.is_some() {
            return refused("--user", "log in as that user: --ssh-host USER@HOST");
        }
        Ok(())
    }

    fn launch(&mut self) -> Later<'_, Result<Box<dyn Channel>, Error>> {
        // Nothing else goes on in this thread yet.
        let started = self.start();
        Box::pin(std::future::ready(started))
    }

    fn epitaph(&mut self) -> Later<'_, Option<String>> {
        let words = self.running.as_mut().map(|running| running.last_words().1);
        let last = words.and_then(|words| words.lines().map(str::trim).rfind(|line| !line.is_empty()).map(str::to_owned));
        Box::pin(std::future::ready(last))
    }

    fn why_silent(&mut self) -> Option<Error> {
        let destination = &self.destination;
        self.running.as_mut().map(|running| refused(running.why_silent(destination)))
    }
}

fn refused(why: Refused) -> Error {
    let error = Error::setup(format!("{}; nothing was started", why.what));
    if why.remedy.is_empty() { error } else { error.hint(why.remedy) }
}
