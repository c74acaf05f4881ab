//! `quarantine`: what was put aside after runs is listed, shown, brought back or removed.

mod approvals;
mod place;
mod show;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use hermes_profiles::ospath;
use nix::unistd::{AccessFlags, access};
use serde::Serialize;

use crate::args::{BringArgs, Quarantine as Action, QuarantineArgs};
use crate::clock;
use crate::diff::{self, Side, Style};
use crate::error::Error;
use crate::events::Log;
use crate::guard::quarantine::{Before, Entry, Stage, What};
use crate::guard::{self, restore};
use crate::output;
use crate::request;
use crate::start;
use crate::state;
use crate::table;
use place::Place;

const EMPTY: &str = "nothing is in quarantine\n";

/// Answers and returns the exit status.
pub(crate) fn quarantine(action: Action) -> Result<u8, Error> {
    match action {
        Action::List { all, of } => list(&open(&of, Wants::look(all))?, of.json),
        Action::Show { id, of } => show::show(&open(&of, Wants::Look)?.entry(id)?, of.json),
        Action::Diff { id, of } => difference(&open(&of, Wants::Look)?.entry(id)?, of.json),
        Action::Restore { which } => bring(&which, false),
        Action::Approve { which } => bring(&which, true),
        Action::Approvals { all, of } => approvals::list(&open(&of, Wants::look(all))?, of.json),
        Action::Revoke { ids, all, of } => approvals::revoke(&open(&of, Wants::Change)?, &ids, all, of.json),
        Action::Discard { ids, all, of } => discard(&ids, all, &of),
    }
}

/// What a command does with the quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// Looks at that of one directory.
    Look,
    /// Looks at all there are.
    LookAtAll,
    /// Changes that of one directory.
    Change,
}

impl Wants {
    fn look(all: bool) -> Self {
        if all { Self::LookAtAll } else { Self::Look }
    }
}

/// What a command works with.
struct Opened {
    state_dir: PathBuf,
    /// As people named it.
    named: String,
    /// Trees around the workspace, the innermost first; or all of them.
    places: Vec<Place>,
}

/// An entry and where it is.
struct Found<'a> {
    place: &'a Place,
    id: u64,
    entry: Entry,
}

/// Settles what killed runs have left, as `run` does: what they planted is an entry only then.
fn open(of: &QuarantineArgs, wants: Wants) -> Result<Opened, Error> {
    let user = of.user.as_deref().map(start::become_user).transpose()?;
    let caller = request::caller(user)?;
    let state_dir = caller.state_dir.clone().ok_or_else(|| {
        Error::setup("there is no home directory in which anything could have been put aside").hint("set HOME or XDG_STATE_HOME")
    })?;
    // From components: without a slash at the end.
    let dir: PathBuf = caller.cwd.join(of.workspace.as_deref().unwrap_or(Path::new("."))).components().collect();
    let real = dir.canonicalize().unwrap_or_else(|_| dir.clone());
    let mut log = Log::open(None)?;
    let all = wants == Wants::LookAtAll;
    match guard::recover(&state_dir, &|tree| !all && guard::touch(tree, &real), &mut log) {
        // What can be read can be looked at, with a word about what is missing.
        Err(error) if wants != Wants::Change && access(&state_dir, AccessFlags::W_OK).is_err() => drop(error.report()),
        settled => settled?,
    }
    let places = if all { place::all(&state_dir)? } else { place::around(&state_dir, &dir)? };
    Ok(Opened { state_dir, named: output::path(&dir), places })
}

impl Opened {
    /// An entry of the innermost tree. Those around it have numbers of their own.
    fn entry(&self, id: u64) -> Result<Found<'_>, Error> {
        let known = |place: &Place| entries(place).map(|entries| entries.into_iter().find(|(other, _)| *other == id));
        let unknown = Error::usage(format!("there is no entry {id} in the quarantine of {}", self.path()));
        let Some((own, outer)) = self.places.split_first() else {
            return Err(unknown.hint("`hermes-sandbox quarantine list --all` shows all there are"));
        };
        if let Some((_, entry)) = known(own)? {
            return Ok(Found { place: own, id, entry });
        }
        for place in outer {
            if known(place)?.is_some() {
                return Err(unknown.hint(format!("that of the larger {0} has one: --workspace {0}", output::path(&place.path))));
            }
        }
        Err(unknown.hint("`hermes-sandbox quarantine list` shows those that there are"))
    }

    /// Several, each once. All must be known before anything is done to one.
    fn entries(&self, ids: &[u64]) -> Result<Vec<Found<'_>>, Error> {
        let ids: BTreeSet<u64> = ids.iter().copied().collect();
        ids.into_iter().map(|id| self.entry(id)).collect()
    }

    fn path(&self) -> String {
        self.places.first().map_or_else(|| self.named.clone(), |place| output::path(&place.path))
    }
}

fn entries(place: &Place) -> Result<Vec<(u64, Entry)>, Error> {
    place.quarantine().list().map_err(|e| cannot("read the quarantine of", &place.path, &e))
}

fn cannot(what: &str, path: &Path, why: &io::Error) -> Error {
    Error::setup(format!("cannot {what} {}: {why}", output::path(path)))
}

/// An entry for programs.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    id: u64,
    tree: String,
    path: String,
    state: &'static str,
    time: u64,
    rule: &'a str,
    runs: &'a str,
    why: &'a str,
    profile: &'a str,
    command: &'a str,
    run: &'a str,
    what: What,
    mode: String,
    before: Was,
}

/// What was there before, for programs.
#[derive(Debug, Serialize)]
struct Was {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
}

impl<'a> Listed<'a> {
    fn new(place: &Place, id: u64, entry: &'a Entry) -> Self {
        let (kind, mode) = match entry.before {
            Before::Absent => ("absent", None),
            Before::File(mode) => ("file", Some(mode)),
            Before::Symlink => ("symlink", None),
            Before::Unknown => ("unknown", None),
        };
        Self {
            id,
            tree: output::path(&place.path),
            path: ospath::escaped(&entry.path),
            state: if entry.staged { "waits" } else { "put-aside" },
            time: entry.time,
            rule: &entry.rule,
            runs: &entry.runs,
            why: &entry.why,
            profile: &entry.profile,
            command: &entry.command,
            run: &entry.run,
            what: entry.what,
            mode: octal(entry.mode),
            before: Was { kind, mode: mode.map(octal) },
        }
    }
}

/// Permission bits as chmod(1) takes them.
fn octal(mode: u32) -> String {
    format!("{:04o}", mode & 0o7777)
}

fn list(opened: &Opened, json: bool) -> Result<u8, Error> {
    let mut found = Vec::new();
    for place in &opened.places {
        found.push((place, entries(place)?));
    }
    found.retain(|(_, entries)| !entries.is_empty());
    if json {
        let all = found.iter().flat_map(|(place, entries)| entries.iter().map(|(id, entry)| Listed::new(place, *id, entry)));
        output::print_json(&all.collect::<Vec<_>>())?;
    } else if found.is_empty() {
        output::print(&nothing(opened)?)?;
    } else {
        let now = clock::milliseconds();
        let sections: Vec<String> = found.iter().map(|(place, entries)| section(place, entries, now)).collect();
        output::print(&sections.join("\n"))?;
    }
    Ok(0)
}

/// Where nothing is, something may be elsewhere.
fn nothing(opened: &Opened) -> Result<String, Error> {
    let own = |place: &Place| opened.places.iter().any(|other| other.state == place.state);
    let mut elsewhere = 0;
    for place in place::all(&opened.state_dir)?.iter().filter(|place| !own(place)) {
        elsewhere += entries(place)?.len();
    }
    Ok(match elsewhere {
        0 => EMPTY.to_owned(),
        1 => format!("nothing is in the quarantine of {}; 1 entry elsewhere: --all\n", opened.named),
        more => format!("nothing is in the quarantine of {}; {more} entries elsewhere: --all\n", opened.named),
    })
}

/// A path that leaves the columns of a terminal in line.
fn fitted(path: String, terminal: bool) -> String {
    let length = path.chars().count();
    if !terminal || length <= table::WIDEST {
        return path;
    }
    // The name at its end tells more than where it begins.
    let first = (table::WIDEST - 3) / 3;
    let last = table::WIDEST - 3 - first;
    path.chars().take(first).chain("...".chars()).chain(path.chars().skip(length - last)).collect()
}

/// The entries of one tree.
fn section(place: &Place, entries: &[(u64, Entry)], now: u64) -> String {
    let mut text = place.title();
    let mut rows = vec![["ID", "WHEN", "PATH", "RULE", "WHY"].map(str::to_owned)];
    let terminal = io::stdout().is_terminal();
    rows.extend(entries.iter().map(|(id, entry)| {
        let why = if entry.staged { format!("waits: {}", entry.why) } else { entry.why.clone() };
        let [rule, why] = [&entry.rule, &why].map(|text| output::clean(text).into_owned());
        [id.to_string(), table::age(now, entry.time), fitted(output::path(&entry.path), terminal), rule, why]
    }));
    table::columns(&mut text, &rows);
    text
}

#[derive(Debug, Serialize)]
struct Compared<'a> {
    #[serde(flatten)]
    listed: Listed<'a>,
    /// Bytes that are not UTF-8 are written as `\xNN`.
    diff: String,
}

fn difference(found: &Found<'_>, json: bool) -> Result<u8, Error> {
    let Found { place, id, entry } = found;
    let (before, content) = show::both(found)?;
    let old = match entry.before {
        Before::File(mode) => Some(Side::file(mode, Some(&before))),
        Before::Symlink => Some(Side::symlink(Some(&before))),
        Before::Unknown => Some(Side::file(entry.mode, None)),
        Before::Absent => None,
    };
    let new = match entry.what {
        What::Symlink => Side::symlink(content.as_deref()),
        _ => Side::file(entry.mode, content.as_deref()),
    };
    let lines = match entry.what {
        What::Special => {
            vec![("", format!("{}: {}", output::path(&entry.path), show::SPECIAL).into_bytes())]
        }
        _ => diff::lines(&entry.path, old, Some(new), &|| true),
    };
    // Piped too: most of what it is piped to shows it on a terminal.
    let text = |colour| {
        let mut text = Vec::new();
        diff::write(&mut text, &lines, Style { colour, harmless: true })
            .map_err(|e| cannot("show the difference of", &entry.path, &e))?;
        Ok::<_, Error>(String::from_utf8_lossy(&text).into_owned())
    };
    if json {
        let listed = Listed::new(place, *id, entry);
        output::print_json(&Compared { listed, diff: text(false)? })?;
        return Ok(0);
    }
    output::print(&text(diff::wants_colour())?)?;
    Ok(0)
}

/// What became of an entry, for programs.
#[derive(Debug, Serialize)]
struct Answer<I> {
    id: I,
    path: String,
    became: &'static str,
}

fn bring(which: &BringArgs, approve: bool) -> Result<u8, Error> {
    let opened = open(&which.of, Wants::Change)?;
    // Two commands at once would take each other's entries, and forget each other's approvals.
    let _lock = opened.places.first().map(|place| state::lock(&place.state)).transpose()?;
    let found = opened.entries(&which.ids)?;
    each(found, which.of.json, |found| {
        let became = bring_one(&opened.state_dir, found, which.force, approve)?;
        remove(found).map(|()| became)
    })
}

fn bring_one(state_dir: &Path, found: &Found<'_>, force: bool, approve: bool) -> Result<&'static str, Error> {
    let Found { place, id, entry } = found;
    let path = output::path(&entry.path);
    let Some(tree) = &place.tree else {
        return Err(Error::setup(format!("cannot restore {path}: {} is gone or was moved", output::path(&place.path)))
            .hint("if it was moved, name its new place: --workspace DIR"));
    };
    if entry.stage == Stage::Copied {
        return Err(Error::setup(format!("cannot restore {path}: it is only being put aside")).hint("try again"));
    }
    if approve && matches!(entry.what, What::LongFile) {
        return Err(Error::setup(format!("cannot approve {path}: it is too long to be known again"))
            .hint(format!("`hermes-sandbox quarantine restore {id}` brings it back once")));
    }
    // What is approved stays when that run ends.
    if !approve && !force && guard::in_use(state_dir, &place.state)? {
        return Err(Error::setup(format!("cannot restore {path}: a sandbox runs there, and it would count as the sandbox's"))
            .hint(format!("wait for its end, or approve it: `hermes-sandbox quarantine approve {id}`")));
    }
    let quarantine = place.quarantine();
    let restored = restore::restore(tree, &quarantine, *id, entry, force)?;
    if approve && let Some(is) = restore::content(&quarantine, *id, entry).map_err(|e| cannot("read", &entry.path, &e))? {
        quarantine
            .approve(&entry.rule, &entry.path, &is, entry.mode)
            .map_err(|e| cannot("remember the approval of", &entry.path, &e).hint("it is back; approve it again"))?;
    }
    Ok(match (approve, restored) {
        (false, restore::Restored::Written) => "restored",
        (false, restore::Restored::WasThere) => "there already",
        (true, _) => "approved",
    })
}

fn discard(ids: &[u64], all: bool, of: &QuarantineArgs) -> Result<u8, Error> {
    let opened = open(of, Wants::Change)?;
    let own = opened.places.first();
    let _lock = own.map(|place| state::lock(&place.state)).transpose()?;
    let mut found = opened.entries(ids)?;
    if all && let Some(place) = own {
        found.extend(entries(place)?.into_iter().map(|(id, entry)| Found { place, id, entry }));
    }
    each(found, of.json, |found| remove(found).map(|()| "discarded"))
}

fn remove(found: &Found<'_>) -> Result<(), Error> {
    match found.place.quarantine().remove(found.id) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(cannot("remove the entry of", &found.entry.path, &e)),
        _ => Ok(()),
    }
}

/// Does something to each entry and tells what became of it. One that cannot be done keeps no other from being done.
fn each(found: Vec<Found<'_>>, json: bool, act: impl Fn(&Found<'_>) -> Result<&'static str, Error>) -> Result<u8, Error> {
    let mut status = 0;
    let mut answers = Vec::new();
    for found in found {
        match act(&found) {
            Ok(became) => answers.push(Answer { id: found.id, path: output::path(&found.entry.path), became }),
            Err(mut error) => {
                error.message = format!("entry {}: {}", found.id, error.message);
                status = error.report();
            }
        }
    }
    let empty = if status == 0 { EMPTY } else { "" };
    tell(&answers, json, empty).map(|()| status)
}

fn tell<I: Serialize + Display>(answers: &[Answer<I>], json: bool, empty: &str) -> Result<(), Error> {
    if json {
        return output::print_json(&answers);
    }
    let lines = answers.iter().map(|answer| format!("{} {}: {}\n", answer.id, answer.path, answer.became));
    output::print(&if answers.is_empty() { empty.to_owned() } else { lines.collect() })
}
