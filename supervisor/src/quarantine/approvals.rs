//! What was approved, and taking that back.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};

use hermes_profiles::ospath;
use serde::Serialize;

use super::place::Place;
use super::{Answer, Opened, cannot, fitted, tell};
use crate::error::Error;
use crate::guard::quarantine::Approval;
use crate::output::{self, clean};
use crate::state;
use crate::table;
use crate::usage::APPROVALS;

const EMPTY: &str = "nothing is approved\n";

/// An approval for programs.
#[derive(Debug, Serialize)]
struct Listed {
    id: String,
    tree: String,
    path: String,
    rule: String,
    kind: String,
}

fn approvals(place: &Place) -> Result<Vec<Approval>, Error> {
    place.quarantine().approved().map(|approved| approved.list()).map_err(|e| cannot("read the approvals of", &place.path, &e))
}

/// Prints them and returns the exit status.
pub(super) fn list(opened: &Opened, json: bool) -> Result<u8, Error> {
    let mut found = Vec::new();
    for place in &opened.places {
        found.push((place, approvals(place)?));
    }
    found.retain(|(_, approvals)| !approvals.is_empty());
    if json {
        let listed = |place: &Place, Approval { id, rule, path, kind }: Approval| Listed {
            id,
            tree: output::path(&place.path),
            path: ospath::escaped(&path),
            rule,
            kind,
        };
        let all = found.into_iter().flat_map(|(place, approvals)| approvals.into_iter().map(move |one| listed(place, one)));
        output::print_json(&all.collect::<Vec<_>>())?;
    } else if found.is_empty() {
        output::print(EMPTY)?;
    } else {
        let sections: Vec<String> = found.iter().map(|(place, approvals)| section(place, approvals)).collect();
        output::print(&sections.join("\n"))?;
    }
    Ok(0)
}

/// The approvals of one tree.
fn section(place: &Place, approvals: &[Approval]) -> String {
    let terminal = io::stdout().is_terminal();
    let mut text = place.title();
    let mut rows = vec![["ID", "PATH", "RULE", "KIND"].map(str::to_owned)];
    rows.extend(approvals.iter().map(|Approval { id, rule, path, kind }| {
        [id.clone(), fitted(output::path(path), terminal), clean(rule).into_owned(), clean(kind).into_owned()]
    }));
    table::columns(&mut text, &rows);
    text
}

/// Takes approvals of the innermost tree back. All must be known before any is.
pub(super) fn revoke(opened: &Opened, ids: &[String], all: bool, json: bool) -> Result<u8, Error> {
    let Some(place) = opened.places.first() else {
        return match ids.first() {
            Some(id) => Err(unknown(opened, id).hint("`hermes-sandbox quarantine approvals --all` shows all there are")),
            None => tell::<String>(&[], json, EMPTY).map(|()| 0),
        };
    };
    // Two commands at once would forget each other's changes.
    let _lock = state::lock(&place.state)?;
    let known = approvals(place)?;
    if let Some(id) = ids.iter().find(|id| !known.iter().any(|one| one.id == **id)) {
        let mut hint = APPROVALS.to_owned();
        for outer in &opened.places[1..] {
            if approvals(outer)?.iter().any(|one| one.id == *id) {
                hint = format!("that of the larger {0} has it: --workspace {0}", output::path(&outer.path));
            }
        }
        return Err(unknown(opened, id).hint(hint));
    }
    let gone: Vec<&Approval> = known.iter().filter(|one| all || ids.contains(&one.id)).collect();
    let wanted: BTreeSet<String> = gone.iter().map(|one| one.id.clone()).collect();
    place.quarantine().revoke(&wanted).map_err(|e| cannot("change the approvals of", &place.path, &e))?;
    let answer = |one: &&Approval| Answer { id: one.id.clone(), path: output::path(&one.path), became: "revoked" };
    tell(&gone.iter().map(answer).collect::<Vec<_>>(), json, EMPTY).map(|()| 0)
}

fn unknown(opened: &Opened, id: &str) -> Error {
    Error::usage(format!("there is no approval {id} in the quarantine of {}", opened.path()))
}
