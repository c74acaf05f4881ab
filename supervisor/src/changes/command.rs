//! The `changes` subcommand.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use hermes_profiles::Caller;
use hermes_profiles::paths::normalise;
use nix::unistd::AccessFlags;

use super::apply::{self, Held, tidy};
use super::checkpoint::{self, Checkpoint};
use super::decide::{Wanted, covered};
use super::diff;
use super::everywhere;
use super::journal::Spot;
use super::layer::{self, Found, Layer, Part};
use super::order::in_git;
use super::report::{self, Row};
use super::repository;
use super::scan::{Change, scan};
use crate::args::{Changes, ChangesOf, Colour};
use crate::beneath::Root;
use crate::diff::{Style, quote, wants_colour};
use crate::error::{Error, Kind};
use crate::events::Log;
use crate::guard;
use crate::output;
use crate::request;
use crate::start;
use crate::state::Tree;

/// Runs a `changes` command and returns the exit status.
pub(crate) fn changes(action: Changes) -> Result<u8, Error> {
    match action {
        Changes::List { of, json, all } => list(&of, json, all),
        Changes::Diff { of, paths, stat, name_only, color, all } => {
            let show = match (stat, name_only) {
                (true, _) => Show::Stat,
                (_, true) => Show::Names,
                _ => Show::Text,
            };
            diff(&of, &paths, show, color, all)
        }
        Changes::Apply { of, paths, take_layer, with_guarded } => apply(&of, &paths, &take_layer, with_guarded),
        Changes::Discard { of, paths } => discard(&of, &paths),
        Changes::Rollback { of, checkpoint, dry_run } => rollback(&of, checkpoint, dry_run),
    }
}

/// The tree that a command is about, if anything is kept about it.
struct Opened {
    caller: Caller,
    workspace: PathBuf,
    held: Option<Held>,
}

fn open(of: &ChangesOf) -> Result<Opened, Error> {
    open_to(of, true)
}

fn state_dir(of: &ChangesOf) -> Result<(Caller, PathBuf), Error> {
    let user = of.user.as_deref().map(start::become_user).transpose()?;
    let caller = request::caller(user)?;
    let none = || Error::setup("there is no state directory").hint("set HOME or XDG_STATE_HOME to a directory of yours");
    let state = caller.state_dir.clone().ok_or_else(none)?;
    Ok((caller, state))
}

/// To change something, or only to look: where the state directory is read-only nobody else can change it either.
fn open_to(of: &ChangesOf, change: bool) -> Result<Opened, Error> {
    let (caller, state) = state_dir(of)?;
    let state = state.as_path();
    let workspace = of.workspace.as_ref().map_or_else(|| caller.cwd.clone(), |path| caller.cwd.join(path));
    let real = std::fs::canonicalize(&workspace).unwrap_or_else(|_| workspace.clone());
    guard::recover(state, &|tree| guard::touch(tree, &real), &mut Log::default())?;
    let tree = Tree::open(state, &workspace, false)?;
    let workspace = tree.as_ref().map_or(workspace, |tree| tree.path.clone());
    let held = match tree {
        None => None,
        Some(tree) if change || nix::unistd::access(&tree.state, AccessFlags::W_OK).is_ok() => {
            let (held, failed) = Held::new(tree)?;
            report::recovered(&failed, &[]);
            Some(held)
        }
        Some(tree) => Some(Held::unlocked(tree)),
    };
    Ok(Opened { caller, workspace, held })
}

impl Opened {
    /// The layer that is meant.
    fn layer(&self, number: Option<u64>) -> Result<Layer, Error> {
        let workspace = output::path(&self.workspace);
        let found = self.held.iter().flat_map(|held| layer::find(&held.tree));
        let mut found: Vec<Found> = found.filter(|found| number.is_none_or(|number| number == found.number())).collect();
        match (found.pop(), found.pop()) {
            (None, _) => Err(match number {
                Some(number) => Error::usage(format!("there is no layer {number} of {workspace}")),
                None => Error::usage(format!("no changes wait for {workspace}")),
            }
            .hint("`hermes-sandbox changes list --workspace DIR` shows what waits; a layer begins with `run --overlay`")),
            (Some(Found::Free(layer)), None) => Ok(layer),
            (Some(Found::Busy(number)), None) => Err(Error::setup(format!("a sandbox has layer {number} of {workspace}"))
                .hint("wait for it to end, or end it; then do it again")),
            (Some(last), Some(_)) => Err(Error::usage(format!("several layers wait for {workspace}"))
                .hint(format!("name one, for example --layer {}; `changes list` shows them", last.number()))),
        }
    }

    fn held(&self) -> Result<&Held, Error> {
        self.held.as_ref().ok_or_else(|| {
            Error::usage(format!("nothing is kept about {}", output::path(&self.workspace)))
                .hint("a layer begins with `run --overlay`, a checkpoint with `run --checkpoint`")
        })
    }

    /// What paths of the command line mean: relative ones start where the caller is, or else at the workspace, as the
    /// names that `changes` prints do.
    fn spots(&self, paths: &[PathBuf], parts: &[Part]) -> Result<Vec<Spot>, Error> {
        let cwd = std::fs::canonicalize(&self.caller.cwd).unwrap_or_else(|_| self.caller.cwd.clone());
        let root = |part: usize| if part == 0 { &self.workspace } else { &parts[part].path };
        let spot = |path: &PathBuf| {
            let places = [cwd.join(path), self.workspace.join(path)].map(|place| normalise(&place));
            let inside = |place: &PathBuf| {
                let below = |part: usize| Some(Spot { part, path: place.strip_prefix(root(part)).ok()?.to_owned() });
                (0..parts.len()).find_map(below)
            };
            places
                .iter()
                .find_map(inside)
                .ok_or_else(|| Error::usage(format!("{} is not in {}", output::path(path), output::path(&self.workspace))))
        };
        paths.iter().map(spot).collect()
    }
}

fn list(of: &ChangesOf, json: bool, all: bool) -> Result<u8, Error> {
    if all {
        everywhere::list(&state_dir(of)?.1, json)?;
        return Ok(0);
    }
    let opened = open_to(of, false)?;
    if of.layer.is_some() {
        drop(opened.layer(of.layer)?);
    }
    let mut scans = Vec::new();
    let mut checkpoints = Vec::new();
    if let Some(held) = &opened.held {
        for found in layer::find(&held.tree).into_iter().filter(|found| of.layer.is_none_or(|number| number == found.number())) {
            scans.push(match found {
                Found::Busy(number) => (number, None),
                Found::Free(layer) => (layer.number, Some((scan(&layer, &held.tree)?.0, layer.about.clone()))),
            });
        }
        checkpoints = checkpoint::list(&held.tree);
    }
    let row = scans.iter().map(|(number, found)| match found {
        None => Row::Busy(*number),
        Some((found, about)) => Row::Free(*number, about, found),
    });
    let rows: Vec<Row<'_>> = row.collect();
    match json {
        true => output::print_json(&report::list_json(&opened.workspace, &rows, &checkpoints))?,
        false => output::print(&report::list(&opened.workspace, &rows, &checkpoints))?,
    }
    Ok(0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Show {
    Text,
    Stat,
    Names,
}

fn diff(of: &ChangesOf, paths: &[PathBuf], show: Show, colour: Colour, all: bool) -> Result<u8, Error> {
    let opened = open(of)?;
    let layer = opened.layer(of.layer)?;
    let paths = opened.spots(paths, &layer.about.parts)?;
    let parts = layer.about.parts.clone();
    let (found, grounds) = scan(&layer, &opened.held()?.tree)?;
    found.must_have(&parts, &paths)?;
    let asked = |change: &&Change| change.part == 0 && (paths.is_empty() || covered(&paths, 0, &change.path));
    let inner = |change: &Change| !all && in_git(&change.path).is_some();
    let left_out = found.changes.iter().filter(|change| asked(change) && inner(change)).count();
    let elsewhere = found.changes.iter().filter(|change| change.part > 0).count();
    let changes: Vec<&Change> = found.changes.iter().filter(asked).filter(|change| !inner(change)).collect();

    let colour = match colour {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => wants_colour(),
    };
    let style = Style { colour, harmless: std::io::stdout().is_terminal() };
    let ground = &grounds[0];
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let outcome = match show {
        Show::Text => changes.iter().try_for_each(|change| crate::diff::write(&mut out, &diff::lines(change, ground)?, style)),
        Show::Names => changes.iter().filter(shows).try_for_each(|change| writeln!(out, "{}", quote::name("", &change.path))),
        Show::Stat => stat(&mut out, &changes, ground),
    };
    match outcome.and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            return Err(Error::setup(format!("cannot show the changes: {e}")));
        }
        _ => {}
    }
    for (_, path, why) in &found.unreachable {
        output::complain(&format!("{}: not shown: {why}", output::path(path)));
    }
    if left_out > 0 {
        output::complain(&format!(
            "{left_out} change{} inside git directories not shown (--all shows {})",
            if left_out == 1 { " is" } else { "s are" },
            if left_out == 1 { "it" } else { "them" },
        ));
    }
    if elsewhere > 0 && paths.is_empty() {
        let directory = parts.get(1).map_or_else(String::new, |part| output::path(&part.path));
        output::complain(&format!(
            "{elsewhere} change{} in {directory} not shown: the workspace's git directory, which lies elsewhere",
            if elsewhere == 1 { " is" } else { "s are" },
        ));
    }
    let odd: Vec<&&Change> = changes.iter().filter(|change| !shows(change) && odd(change)).collect();
    for change in odd {
        let kind = change.after.or(change.before).map_or("thing", |stamp| stamp.kind().word());
        output::complain(&format!("{}: a {kind}, which no diff shows", output::path(&change.path)));
    }
    Ok(0)
}

fn shows(change: &&&Change) -> bool {
    diff::shown(change.before).is_some() || diff::shown(change.after).is_some()
}

fn odd(change: &Change) -> bool {
    change.after.or(change.before).is_some_and(|stamp| !stamp.is_directory())
}

/// Widest bar of `--stat`.
const BAR: usize = 40;

fn stat(out: &mut impl Write, changes: &[&Change], ground: &layer::Ground) -> std::io::Result<()> {
    let mut rows = Vec::new();
    for change in changes.iter().filter(shows) {
        rows.push((quote::name("", &change.path), diff::count(change, ground)?));
    }
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let most = rows.iter().filter_map(|(_, count)| count.map(|(came, went)| came + went)).max().unwrap_or(0);
    let digits = most.to_string().len().max(3);
    let scale = |n: usize| if most <= BAR { n } else { (n * BAR).div_ceil(most) };
    let (mut all_came, mut all_went) = (0, 0);
    for (name, count) in &rows {
        match count {
            None => writeln!(out, " {name:<width$} | {:>digits$}", "Bin")?,
            Some((came, went)) => {
                all_came += came;
                all_went += went;
                let bar = "+".repeat(scale(*came)) + &"-".repeat(scale(*went));
                writeln!(out, "{}", format!(" {name:<width$} | {:>digits$} {bar}", came + went).trim_end())?;
            }
        }
    }
    // As git has it: what is zero is left out, but not both.
    let some = |count: usize, other: usize, word: &str, sign: &str| match count {
        0 if other > 0 || rows.is_empty() => String::new(),
        1 => format!(", 1 {word}({sign})"),
        n => format!(", {n} {word}s({sign})"),
    };
    let (came, went) = (some(all_came, all_went, "insertion", "+"), some(all_went, all_came, "deletion", "-"));
    writeln!(out, " {} changed{came}{went}", report::files(rows.len()))
}

fn apply(of: &ChangesOf, paths: &[PathBuf], take: &[PathBuf], with_guarded: bool) -> Result<u8, Error> {
    let opened = open(of)?;
    let layer = opened.layer(of.layer)?;
    let (number, parts) = (layer.number, layer.about.parts.clone());
    let wanted = Wanted { paths: opened.spots(paths, &parts)?, take: opened.spots(take, &parts)? };
    let applied = apply::apply(opened.held()?, layer, &wanted, with_guarded)?;
    report::applied(&applied, &parts);
    if applied.nothing {
        let together = applied.refused.iter().any(|(_, why)| why.starts_with(repository::BOTH));
        let conflict = applied.refused.iter().any(|(_, why)| why.starts_with("host: "));
        let hint = match (together, conflict) {
            (false, false) => "`changes apply PATH...` applies what is named and can be".to_owned(),
            (true, _) => {
                let git = parts.get(1).map_or_else(|| ".git".to_owned(), |part| report::word(&part.path));
                format!(
                    "`changes apply {git}/objects`, then `git merge ID` keeps both sides; `changes discard {git}` drops the layer's"
                )
            }
            (false, true) => {
                "`changes diff PATH` shows it; `changes apply --take-layer PATH` takes the layer's version, `changes discard PATH` \
                 keeps the host's".to_owned()
            }
        };
        return Err(Error::new(Kind::Finding, format!("nothing was applied: {} refused", report::files(applied.refused.len())))
            .hint(hint));
    }
    if applied.done == 0 && applied.refused.is_empty() && !applied.guarded.is_empty() {
        output::complain(&format!("nothing was applied: what waits in layer {number} is guarded"));
        // Asked for by name and not done.
        return Ok(u8::from(!paths.is_empty()));
    }
    let left = if applied.left { format!("; the rest waits in layer {number}") } else { String::new() };
    output::complain(&format!("{} applied{left}", report::files(applied.done)));
    Ok(u8::from(!applied.refused.is_empty()))
}

fn discard(of: &ChangesOf, paths: &[PathBuf]) -> Result<u8, Error> {
    if let Some(named) = &of.workspace
        && paths.is_empty()
        && !named.exists()
    {
        let (caller, state) = state_dir(of)?;
        let workspace = normalise(&caller.cwd.join(named));
        if let Some((layers, checkpoints)) = everywhere::discard(&state, &workspace, of.layer)? {
            let word = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
            output::complain(&format!("{} and {} discarded", word(layers, "layer"), word(checkpoints, "checkpoint")));
            return Ok(0);
        }
    }
    let opened = open(of)?;
    let layer = opened.layer(of.layer)?;
    let paths = opened.spots(paths, &layer.about.parts)?;
    let gone = apply::discard(opened.held()?, layer, &paths)?;
    output::complain(&format!("{} discarded", report::files(gone)));
    Ok(0)
}

fn rollback(of: &ChangesOf, number: Option<u64>, dry_run: bool) -> Result<u8, Error> {
    let opened = open(of)?;
    let held = opened.held()?;
    for found in layer::find(&held.tree) {
        match found {
            Found::Busy(number) => {
                return Err(Error::setup(format!("a sandbox has layer {number} of {}", output::path(&opened.workspace)))
                    .hint("wait for it to end, or end it; then do it again"));
            }
            Found::Free(layer) => drop(tidy(layer, &held.tree)?),
        }
    }
    let back = Checkpoint::open(&held.tree, number)?;
    let parts = back.parts(&held.tree);
    let others = open_others(&parts)?;
    let roots: Vec<&Root> = std::iter::once(&held.tree.root).chain(&others).collect();
    let hidden = opened.caller.state_dir.as_deref();
    let (wishes, way) = back.way(&parts, &roots, hidden)?;
    for (spot, kind) in &way.left {
        output::complain(&format!("{}: a {kind} is not brought back", report::place(spot, &parts)));
    }
    if way.shared {
        let repository = parts.get(1).map_or_else(String::new, |part| output::path(&part.path));
        output::complain(&format!(
            "{repository} has changed since and is left as it is, but for this worktree's own HEAD and index: other worktrees \
             share its refs and configuration"
        ));
    }
    if wishes.is_empty() {
        output::complain(&format!("nothing has changed since checkpoint {}", back.number));
        return Ok(0);
    }
    if dry_run {
        let line = |word: &str, spot: &Spot| format!("{word} {}\n", report::place(spot, &parts));
        let text: String = way.restored.iter().map(|spot| line("restore", spot)).collect::<String>()
            + &way.removed.iter().map(|spot| line("remove ", spot)).collect::<String>();
        output::print(&text)?;
        return Ok(0);
    }
    let undo = checkpoint::take(held, &parts, &roots, hidden, format!("before the rollback to {}", back.number))?;
    let journal = checkpoint::begin(held, &parts, &roots, wishes)?;
    let failed = apply::complete(&held.tree, journal)?;
    report::recovered(&failed, &parts);
    output::complain(&format!(
        "back at checkpoint {}: {} restored, {} removed; `changes rollback {}` undoes that",
        back.number,
        way.restored.len(),
        way.removed.len(),
        undo.number
    ));
    Ok(u8::from(!failed.is_empty()))
}

/// The trees besides the workspace, if they are still where they were.
pub(super) fn open_others(parts: &[Part]) -> Result<Vec<Root>, Error> {
    let open = |part: &Part| {
        let root = Root::open(&part.path)
            .map_err(|errno| Error::setup(format!("cannot open {}: {}", output::path(&part.path), errno.desc())))?;
        let stamp = super::node::Stamp::at(&root, Path::new("")).ok().flatten();
        match stamp {
            Some(stamp) if (stamp.dev, stamp.ino) == (part.dev, part.ino) => Ok(root),
            _ => Err(Error::setup(format!("{} is no longer the directory that it was", output::path(&part.path)))),
        }
    };
    parts.iter().skip(1).map(open).collect()
}
