//! Questions that live sandboxes wait for, and what people answered: `$XDG_STATE_HOME/hermes-sandbox/approvals/`.
//!
//! A question is a numbered directory with `question` and, once somebody has decided, `answer`. Who asked removes it. What was
//! decided for good is in `rules`.

mod command;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use hermes_profiles::{Policy, ospath};
use serde::{Deserialize, Serialize};

use crate::guard::run::start_time;
use crate::state::{private_directory, store};

pub(crate) use command::approvals;

/// Questions that one sandbox may have waiting at a time: people read no more, and others have theirs.
const MOST: usize = 16;

/// What somebody wants to know. Texts come from inside; escape them before printing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// Milliseconds since 1970.
    pub(crate) time: u64,
    /// When it is given up, in milliseconds since 1970.
    pub(crate) until: u64,
    /// Who asks: process id and start time.
    pub(crate) asker: (i32, u64),
    /// For what it would hold.
    pub(crate) scope: Scope,
    /// What is to be reached.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The sandboxes that an answer for good is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scope {
    pub(crate) profile: String,
    #[serde(with = "ospath")]
    pub(crate) workspace: PathBuf,
}

impl Scope {
    /// Sandboxes of this policy.
    pub(crate) fn of(policy: &Policy) -> Self {
        Self { profile: policy.profile.clone(), workspace: policy.workspace.clone() }
    }
}

/// A decision for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) time: u64,
    pub(crate) scope: Scope,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) allow: bool,
}

/// Where they are.
#[derive(Debug, Clone)]
pub(crate) struct Approvals {
    dir: PathBuf,
}

impl Approvals {
    pub(crate) fn of(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("approvals") }
    }

    /// Asks; the number of the question.
    pub(crate) fn ask(&self, question: &Question) -> io::Result<u64> {
        private_directory(&self.dir, true)?;
        if self.pending()?.iter().filter(|(_, waits)| waits.asker == question.asker).count() >= MOST {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many questions wait already"));
        }
        // A number is never given twice: who read it means one place.
        let _lock = self.lock()?;
        let last = self.dir.join("last");
        let (id, dir) = store::next(&self.dir, store::read_if_known(&last)?.unwrap_or(0))?;
        store::write_soon(&last, &id)?;
        store::write_soon(&dir.join("question"), question)?;
        Ok(id)
    }

    /// What was answered, if anything was.
    pub(crate) fn answer(&self, id: u64) -> io::Result<Option<bool>> {
        store::read_if_known(&self.dir.join(id.to_string()).join("answer"))
    }

    /// Nobody waits any more.
    pub(crate) fn withdraw(&self, id: u64) {
        let _ = std::fs::remove_dir_all(self.dir.join(id.to_string()));
    }

    /// Questions without an answer whose asker lives, the oldest first. Others are removed.
    pub(crate) fn pending(&self) -> io::Result<Vec<(u64, Question)>> {
        let mut pending = Vec::new();
        for id in store::numbers(&self.dir)? {
            let dir = self.dir.join(id.to_string());
            // One without a question is about to get it.
            let Some(question) = store::read_if_known::<Question>(&dir.join("question"))? else { continue };
            if start_time(question.asker.0) != Some(question.asker.1) || question.until < crate::clock::milliseconds() {
                self.withdraw(id);
            } else if !dir.join("answer").exists() {
                pending.push((id, question));
            }
        }
        Ok(pending)
    }

    /// Answers a question.
    ///
    /// # Errors
    /// `NotFound` when nobody waits for it.
    fn decide(&self, id: u64, allow: bool) -> io::Result<Question> {
        let question = self.pending()?.into_iter().find(|(known, _)| *known == id).map(|(_, question)| question);
        let question = question.ok_or(io::ErrorKind::NotFound)?;
        // Of two who answer at once one is first, and the other is told.
        store::write_new(&self.dir.join(id.to_string()).join("answer"), &allow).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => io::ErrorKind::NotFound.into(),
            _ => e,
        })?;
        Ok(question)
    }

    /// Decisions for good, the oldest first.
    pub(crate) fn rules(&self) -> io::Result<Vec<Rule>> {
        match store::read(&self.dir.join("rules")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other,
        }
    }

    fn lock(&self) -> io::Result<File> {
        let lock = File::options().create(true).truncate(false).write(true).open(self.dir.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Changes the decisions for good.
    fn change_rules(&self, change: impl FnOnce(&mut Vec<Rule>)) -> io::Result<()> {
        private_directory(&self.dir, true)?;
        let _lock = self.lock()?;
        let mut rules = self.rules()?;
        change(&mut rules);
        store::write(&self.dir.join("rules"), &rules)
    }

    fn add_rule(&self, rule: Rule) -> io::Result<()> {
        self.change_rules(|rules| {
            rules.retain(|known| (&known.scope, &known.host, known.port) != (&rule.scope, &rule.host, rule.port));
            rules.push(rule);
        })
    }
}

/// What was decided for good about a place.
pub(crate) fn ruled(rules: &[Rule], scope: &Scope, host: &str, port: u16) -> Option<bool> {
    rules.iter().find(|rule| rule.scope == *scope && rule.host == host && rule.port == port).map(|rule| rule.allow)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn question(host: &str) -> Question {
        let own = std::process::id() as i32;
        let scope = Scope { profile: "p".into(), workspace: "/w".into() };
        Question { time: 1, until: u64::MAX, asker: (own, start_time(own).unwrap()), scope, host: host.into(), port: 443 }
    }

    #[test]
    fn a_question_waits_until_it_is_answered_or_nobody_asks() {
        let state = tempfile::tempdir().unwrap();
        let approvals = Approvals::of(state.path());
        assert!(approvals.pending().unwrap().is_empty());
        let (first, second) = (approvals.ask(&question("a.test")).unwrap(), approvals.ask(&question("b.test")).unwrap());
        assert_eq!(approvals.answer(first).unwrap(), None);
        assert_eq!(approvals.decide(first, true).unwrap().host, "a.test");
        assert_eq!(approvals.answer(first).unwrap(), Some(true));
        assert_eq!(approvals.pending().unwrap(), [(second, question("b.test"))]);
        assert_eq!(approvals.decide(first, false).unwrap_err().kind(), io::ErrorKind::NotFound, "it is answered");
        approvals.withdraw(first);
        let gone = Question { asker: (question("").asker.0, 1), ..question("c.test") };
        let third = approvals.ask(&gone).unwrap();
        assert!(third > second);
        assert_eq!(approvals.pending().unwrap().len(), 1, "nobody waits for the third");
        assert!(approvals.decide(third, true).is_err());
    }

    #[test]
    fn rules_are_of_a_profile_and_a_workspace() {
        let state = tempfile::tempdir().unwrap();
        let approvals = Approvals::of(state.path());
        let Question { scope, host, port, .. } = question("a.test");
        for allow in [true, false] {
            let rule = Rule { time: 1, scope: scope.clone(), host: host.clone(), port, allow };
            approvals.add_rule(rule).unwrap();
        }
        let rules = approvals.rules().unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(ruled(&rules, &scope, "a.test", 443), Some(false));
        assert_eq!(ruled(&rules, &scope, "a.test", 80), None);
        assert_eq!(ruled(&rules, &Scope { workspace: "/x".into(), ..scope }, "a.test", 443), None);
    }
}
