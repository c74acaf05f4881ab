//! The command `approvals`.

use serde::Serialize;

use super::{Approvals, Rule};
use crate::args::Approvals as Action;
use crate::clock;
use crate::error::Error;
use crate::output::{self, clean};
use crate::table;

/// One question for programs.
#[derive(Serialize)]
struct Listed<'a> {
    id: u64,
    time: u64,
    until: u64,
    profile: &'a str,
    workspace: String,
    host: &'a str,
    port: u16,
}

/// One decision for programs.
#[derive(Serialize)]
struct Ruled<'a> {
    number: usize,
    time: u64,
    allow: bool,
    profile: &'a str,
    workspace: String,
    host: &'a str,
    port: u16,
}

pub(crate) fn approvals(action: Action) -> Result<u8, Error> {
    let caller = crate::request::caller(None)?;
    let approvals = Approvals::of(crate::state::directory(&caller)?);
    match action {
        Action::List { json } => list(&approvals, json),
        Action::Allow { ids, always } => decide(&approvals, &ids, true, always),
        Action::Deny { ids, always } => decide(&approvals, &ids, false, always),
        Action::Rules { json } => rules(&approvals, json),
        Action::Forget { numbers } => forget(&approvals, &numbers),
    }
}

fn cannot(what: &str, e: &std::io::Error) -> Error {
    Error::setup(format!("cannot {what}: {e}"))
}

fn list(approvals: &Approvals, json: bool) -> Result<u8, Error> {
    let pending = approvals.pending().map_err(|e| cannot("read the questions", &e))?;
    if json {
        let all: Vec<_> = pending
            .iter()
            .map(|(id, question)| Listed {
                id: *id,
                time: question.time,
                until: question.until,
                profile: &question.scope.profile,
                workspace: output::path(&question.scope.workspace),
                host: &question.host,
                port: question.port,
            })
            .collect();
        return output::print_json(&all).map(|()| 0);
    }
    if pending.is_empty() {
        return output::print("nothing waits for approval\n").map(|()| 0);
    }
    let now = clock::milliseconds();
    let mut rows = vec![["ID", "ASKED", "PROFILE", "WORKSPACE", "WANTS TO REACH"].map(str::to_owned)];
    rows.extend(pending.iter().map(|(id, question)| {
        [
            id.to_string(),
            table::age(now, question.time),
            clean(&question.scope.profile).into_owned(),
            output::path(&question.scope.workspace),
            clean(&format!("{}:{}", question.host, question.port)).into_owned(),
        ]
    }));
    let mut text = String::new();
    table::columns(&mut text, &rows);
    output::print(&text).map(|()| 0)
}

fn decide(approvals: &Approvals, ids: &[u64], allow: bool, always: bool) -> Result<u8, Error> {
    let pending = approvals.pending().map_err(|e| cannot("read the questions", &e))?;
    if let Some(unknown) = ids.iter().find(|id| !pending.iter().any(|(known, _)| known == *id)) {
        return Err(nobody_waits(*unknown));
    }
    for &id in ids {
        let question = approvals.decide(id, allow).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => nobody_waits(id),
            _ => cannot(&format!("answer question {id}"), &e),
        })?;
        let word = if allow { "allowed" } else { "denied" };
        output::print(&format!("{word} {}\n", clean(&format!("{}:{}", question.host, question.port))))?;
        if always {
            let super::Question { scope, host, port, .. } = question;
            let rule = Rule { time: clock::milliseconds(), scope, host, port, allow };
            approvals.add_rule(rule).map_err(|e| cannot("keep the decision", &e))?;
        }
    }
    Ok(0)
}

fn nobody_waits(id: u64) -> Error {
    Error::usage(format!("no question {id} waits for an answer")).hint("`approvals list` names those that do")
}

fn rules(approvals: &Approvals, json: bool) -> Result<u8, Error> {
    let rules = approvals.rules().map_err(|e| cannot("read the decisions", &e))?;
    if json {
        let all: Vec<_> = (1..)
            .zip(&rules)
            .map(|(number, rule)| Ruled {
                number,
                time: rule.time,
                allow: rule.allow,
                profile: &rule.scope.profile,
                workspace: output::path(&rule.scope.workspace),
                host: &rule.host,
                port: rule.port,
            })
            .collect();
        return output::print_json(&all).map(|()| 0);
    }
    if rules.is_empty() {
        return output::print("nothing was decided for good\n").map(|()| 0);
    }
    let mut rows = vec![["NUMBER", "DECISION", "HOST", "PROFILE", "WORKSPACE"].map(str::to_owned)];
    rows.extend((1..).zip(&rules).map(|(number, rule): (usize, _)| {
        [
            number.to_string(),
            if rule.allow { "allow" } else { "deny" }.to_owned(),
            clean(&format!("{}:{}", rule.host, rule.port)).into_owned(),
            clean(&rule.scope.profile).into_owned(),
            output::path(&rule.scope.workspace),
        ]
    }));
    let mut text = String::new();
    table::columns(&mut text, &rows);
    output::print(&text).map(|()| 0)
}

fn forget(approvals: &Approvals, numbers: &[usize]) -> Result<u8, Error> {
    let rules = approvals.rules().map_err(|e| cannot("read the decisions", &e))?;
    if let Some(unknown) = numbers.iter().find(|number| **number == 0 || **number > rules.len()) {
        return Err(Error::usage(format!("there is no decision {unknown}")).hint("`approvals rules` names them"));
    }
    // What was looked at, not what stands at its place by then.
    let meant: Vec<Rule> = numbers.iter().map(|number| rules[number - 1].clone()).collect();
    let change = |rules: &mut Vec<Rule>| rules.retain(|rule| !meant.contains(rule));
    approvals.change_rules(change).map_err(|e| cannot("forget decisions", &e)).map(|()| 0)
}
