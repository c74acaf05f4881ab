//! A command on a pseudo-terminal, driven step by step by `fixtures/terminal.py`.

use std::process::Command;

use serde_json::{Value, json};

use crate::outcome::{Outcome, run_to_end};
use crate::sandbox::{PYTHON, Sandbox, fixture};

/// One step of a dialogue.
pub enum Step<'a> {
    /// Wait until this regular expression matches what came out since the last match; fail after 20 seconds.
    Expect(&'a str),
    /// Type this.
    Send(&'a str),
    /// Change the window size to rows and columns.
    Resize(u16, u16),
    /// Close the terminal's other side.
    HangUp,
}

/// What happened on the terminal.
pub struct Pty {
    /// Everything that came out.
    pub output: String,
    /// Exit status as a shell reports it; `None` when it had to be killed.
    pub code: Option<i32>,
    /// The step that failed, counted from 0.
    pub failed: Option<u64>,
    /// Were the terminal's modes the same before and after?
    pub modes_restored: bool,
}

impl Pty {
    /// Runs a command of the fixture on a terminal of 24 rows and 80 columns.
    pub fn play(sandbox: &Sandbox, command: &Command, steps: &[Step<'_>]) -> Self {
        let argv: Vec<String> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let steps: Vec<Value> = steps
            .iter()
            .map(|step| match step {
                Step::Expect(pattern) => json!({"expect": pattern}),
                Step::Send(text) => json!({"send": text}),
                Step::Resize(rows, columns) => json!({"resize": [rows, columns]}),
                Step::HangUp => json!({"hangup": true}),
            })
            .collect();
        let scenario = json!({"argv": argv, "steps": steps}).to_string();
        let outcome = run_to_end(sandbox.plain_command(PYTHON).arg(fixture("terminal.py")).arg(scenario));
        Self::parse(outcome.ok())
    }

    fn parse(outcome: &Outcome) -> Self {
        let result: Value = serde_json::from_slice(&outcome.stdout).unwrap_or_else(|_| panic!("no result\n{}", outcome.report()));
        Self {
            output: result["output"].as_str().unwrap_or_default().to_owned(),
            code: result["code"].as_i64().and_then(|code| i32::try_from(code).ok()),
            failed: result["failed"].as_u64(),
            modes_restored: result["modes_restored"].as_bool().unwrap_or(false),
        }
    }

    /// Insists that every step was answered.
    #[track_caller]
    pub fn complete(&self) -> &Self {
        assert!(self.failed.is_none(), "step {:?} was not answered; output:\n{}", self.failed, self.output);
        self
    }

    /// Insists on this exit status.
    #[track_caller]
    pub fn exits(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "exit status; output:\n{}", self.output);
        self
    }
}
