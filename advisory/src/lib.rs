//! Heuristics over text that prevent accidents and are never the boundary.
//!
//! Pure functions from text to [`Advice`]: no file is read, no policy is known, nothing that confines depends on the answer.
//! A command that means harm is written so that no reader of text recognises it (a script in a file, an interpreter's own
//! program text, a variable put together at run time); what holds then is the sandbox. `--advise note` and `--advise ask` of
//! `run` are refused by name.

mod rules;
mod shell;

/// What is advised, from the mildest to the gravest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// No rule found anything.
    Safe,
    /// Loses work or weakens something, and is often meant.
    Warn,
    /// Somebody should look at it first.
    Ask,
    /// Nobody means this.
    Never,
}

/// What one rule found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name; it does not change between versions.
    pub rule: &'static str,
    /// What this finding alone advises.
    pub verdict: Verdict,
    /// What it is, in a few words.
    pub title: &'static str,
    /// Where in the text; as it stands there, so not fit for a terminal.
    pub detail: String,
}

/// All findings, the gravest first, each rule once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// What was found.
    pub findings: Vec<Finding>,
}

impl Advice {
    /// The gravest finding's verdict.
    pub fn verdict(&self) -> Verdict {
        self.findings.first().map_or(Verdict::Safe, |finding| finding.verdict)
    }
}

/// Judges a command line of a POSIX shell. What cannot be read as one is for somebody to look at, never safe.
pub fn judge(command: &str) -> Advice {
    let mut findings = rules::judge(command);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    let mut seen = std::collections::HashSet::new();
    findings.retain(|finding| seen.insert(finding.rule));
    Advice { findings }
}
