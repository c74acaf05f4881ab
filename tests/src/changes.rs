//! Copy-on-write workspaces and their checkpoints.

use std::time::Duration;

use crate::outcome::{Outcome, run_to_end};
use crate::sandbox::Sandbox;

impl Sandbox {
    /// One whose workspace is copy-on-write.
    pub fn overlaid() -> Self {
        Self::new().flags(["--overlay"])
    }

    /// `hermes-sandbox changes WORDS` about the workspace.
    pub fn changes(&self, words: &[&str]) -> Outcome {
        run_to_end(self.hermes().arg("changes").args(words))
    }
}

/// Lets the host's files become older than the clock's grain.
pub fn let_files_age() {
    std::thread::sleep(Duration::from_millis(60));
}
