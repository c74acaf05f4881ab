//! Shims, installed beside a workspace, and a shell that is their client.

use std::path::PathBuf;
use std::process::Command;

use crate::host::{processes_with, wait_until};
use crate::outcome::{Outcome, run_to_end};
use crate::sandbox::Sandbox;

/// Installed shims.
pub struct Shims {
    /// Home, workspace and environment of the client.
    pub sandbox: Sandbox,
    /// Where they are.
    pub dir: PathBuf,
}

impl Shims {
    /// Installs shims with these options. Sessions of other tests are not seen.
    ///
    /// # Panics
    /// They cannot be installed.
    pub fn new(options: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let run = sandbox.root().join("run");
        std::fs::create_dir(&run).expect("a scratch directory");
        let dir = sandbox.outside.join("shims");
        let shims = Self { sandbox: sandbox.env("XDG_RUNTIME_DIR", run), dir };
        shims.install(options).ok();
        shims
    }

    /// The same with another environment.
    #[must_use]
    pub fn with(self, change: impl FnOnce(Sandbox) -> Sandbox) -> Self {
        Self { sandbox: change(self.sandbox), ..self }
    }

    /// `shims install`.
    pub fn install(&self, options: &[&str]) -> Outcome {
        run_to_end(self.sandbox.hermes().args(["shims", "install"]).arg(&self.dir).args(options))
    }

    /// A shell with `$bash`, `$python` and `$docker`, and `$key`, a file of the home that is nobody's business. It is the client of
    /// all that it calls.
    pub fn client(&self, script: &str) -> Outcome {
        run_to_end(&mut self.client_command(script))
    }

    /// The same, still to be run.
    ///
    /// # Panics
    /// The key cannot be written.
    pub fn client_command(&self, script: &str) -> Command {
        let key = self.sandbox.write(self.sandbox.home.join(".ssh/id"), self.sandbox.canary("key"));
        let mut command = self.sandbox.plain_command("/bin/sh");
        // With a command behind it the shell does not execute the last one in its own place.
        command.args(["-c", &format!("{script}\nstatus=$?; exit $status")]);
        command.env("bash", self.dir.join("bash")).env("python", self.dir.join("venv/bin/python"));
        command.env("docker", self.dir.join("docker")).env("key", key);
        command
    }

    /// Sessions that live, by their processes.
    pub fn sessions(&self) -> Vec<String> {
        let run = self.sandbox.root().display().to_string();
        processes_with(" serve --detached ").into_iter().filter(|line| line.contains(&run)).collect()
    }

    /// Insists that all sessions have ended with their clients.
    #[track_caller]
    pub fn nothing_is_left(&self) {
        assert!(wait_until(10, || self.sessions().is_empty()), "left over: {:?}", self.sessions());
    }
}
