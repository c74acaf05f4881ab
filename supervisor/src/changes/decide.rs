//! Which changes of a layer may go to the host, and why the others may not.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::unistd::{AccessFlags, faccessat};

use super::guarded::{Guard, Verdict};
use super::journal::Spot;
use super::layer::Ground;
use super::node::{self, Kind, Stamp};
use super::order;
use super::repository::{self, Asked, Repositories};
use super::scan::{Change, Scan, same_things};
use crate::beneath::Root;
use crate::guard::snapshot::{Is, Seen};

/// Files that are looked into for a decision.
const SHORT: u64 = 1 << 20;

/// What was asked for.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Files and directories; none means all.
    pub(crate) paths: Vec<Spot>,
    /// Where the layer's version goes over what the host has now.
    pub(crate) take: Vec<Spot>,
}

/// What is to be done with each change.
#[derive(Debug, Default)]
pub(crate) struct Decision<'a> {
    /// Goes to the host.
    pub(crate) go: Vec<&'a Change>,
    /// What goes of those of them that do not go as they are.
    pub(crate) rewritten: BTreeMap<Spot, Vec<u8>>,
    /// Would go, but the host has changed the same path, or does not let it be changed: what to say.
    pub(crate) refused: Vec<(&'a Change, String)>,
    /// Waits for `--with-guarded`, and why.
    pub(crate) guarded: Vec<(&'a Change, String)>,
    /// Never goes, and why.
    pub(crate) never: Vec<(&'a Change, &'static str)>,
    /// Already so on the host, or of no use to it: taken out of the layer without a word.
    pub(crate) moot: Vec<&'a Change>,
    /// Lock files of git, which nobody wants: taken out too, and named.
    pub(crate) locks: Vec<&'a Change>,
    /// Was not asked for.
    pub(crate) rest: Vec<&'a Change>,
}

/// Is `path` of a part one of `wanted` or below one?
pub(crate) fn covered(wanted: &[Spot], part: usize, path: &Path) -> bool {
    wanted.iter().any(|wanted| wanted.part == part && path.starts_with(&wanted.path))
}

/// Decides about every change. Without `guard` what tools of the host obey goes, too.
pub(crate) fn decide<'a>(scan: &'a Scan, grounds: &[Ground], wanted: &Wanted, guard: Option<&Guard<'_>>) -> Decision<'a> {
    let mut decision = Decision::default();
    let asked = |change: &Change| {
        let named = |spots: &[Spot]| covered(spots, change.part, &change.path);
        wanted.paths.is_empty() || named(&wanted.paths) || named(&wanted.take)
    };
    let mut needed: BTreeSet<Spot> = BTreeSet::new();
    for change in scan.changes.iter().filter(|change| asked(change)) {
        needed.extend(change.path.ancestors().skip(1).map(|path| Spot { part: change.part, path: path.to_owned() }));
    }
    let repositories = Repositories::look(
        &scan.changes,
        grounds,
        &Asked {
            wanted: &asked,
            taken: &|change| covered(&wanted.take, change.part, &change.path),
            collides: &|change| collides(change, &grounds[change.part]).is_some(),
        },
    );
    for change in &scan.changes {
        // A directory that what was asked for lies in is needed too.
        let made = change.after.is_some_and(|after| after.is_directory()) && change.before.is_none();
        let spot = || Spot { part: change.part, path: change.path.clone() };
        let wanted_too = made && needed.contains(&spot());
        if !asked(change) && !wanted_too {
            decision.rest.push(change);
            continue;
        }
        let ground = &grounds[change.part];
        if order::is_lock(&change.path, change.part > 0) {
            decision.locks.push(change);
            continue;
        }
        if let Some(why) = never(change) {
            decision.never.push((change, why));
            continue;
        }
        let rewritten = match guard.map_or(Verdict::Free, |guard| judge(change, ground, guard)) {
            Verdict::Guarded(why) => {
                decision.guarded.push((change, why));
                continue;
            }
            Verdict::Rewritten(text) => Some(text),
            Verdict::Free => None,
        };
        if let Some(why) = forbidden(change, ground) {
            decision.refused.push((change, why));
        } else if repository::same_index(change, ground) {
            decision.moot.push(change);
        } else if let Some(why) = repositories.stays(change) {
            decision.refused.push((change, why.to_owned()));
        } else {
            match collides(change, ground).filter(|_| !covered(&wanted.take, change.part, &change.path)) {
                Some(why) => decision.refused.push((change, why)),
                None => {
                    if let Some(text) = rewritten {
                        decision.rewritten.insert(spot(), text);
                    }
                    decision.go.push(change);
                }
            }
        }
    }
    keep_what_is_replaced(&mut decision);
    hold_back(&mut decision);
    decision
}

/// What the host has in a directory stays with it while what is to stand in its place does not come.
fn keep_what_is_replaced(decision: &mut Decision<'_>) {
    fn replacing<W: Clone>(waiting: &[(&Change, W)]) -> Vec<(usize, PathBuf, W)> {
        let directory = |(change, _): &&(&Change, W)| change.before.is_some_and(|before| before.is_directory());
        waiting.iter().filter(directory).map(|(change, why)| (change.part, change.path.clone(), why.clone())).collect()
    }
    fn around<'w, W>(waiting: &'w [(usize, PathBuf, W)], change: &Change) -> Option<&'w W> {
        let found = waiting.iter().find(|(part, path, _)| *part == change.part && change.path.starts_with(path));
        found.filter(|_| change.is_deletion()).map(|(.., why)| why)
    }
    let (guarded, never) = (replacing(&decision.guarded), replacing(&decision.never));
    for change in std::mem::take(&mut decision.go) {
        if let Some(why) = around(&guarded, change) {
            decision.guarded.push((change, why.clone()));
        } else if let Some(why) = around(&never, change) {
            decision.never.push((change, why));
        } else {
            decision.go.push(change);
        }
    }
}

/// A directory that something stays in cannot go, nor make room for something else.
fn hold_back(decision: &mut Decision<'_>) {
    let staying = decision.refused.iter().map(|(change, _)| *change).chain(decision.rest.iter().copied());
    let staying: Vec<(usize, PathBuf)> = staying.map(|change| (change.part, change.path.clone())).collect();
    let (stay, go): (Vec<&Change>, Vec<&Change>) = decision.go.iter().partition(|change| {
        change.before.is_some_and(|before| before.is_directory())
            && !change.after.is_some_and(|after| after.is_directory())
            && staying.iter().any(|(part, path)| *part == change.part && path.starts_with(&change.path))
    });
    decision.go = go;
    decision.refused.extend(stay.into_iter().map(|change| (change, "something in it stays".to_owned())));
}

fn never(change: &Change) -> Option<&'static str> {
    match change.after?.kind() {
        Kind::Fifo => Some("a FIFO is not carried over"),
        Kind::Socket => Some("a socket is not carried over"),
        Kind::Device => Some("a device node is never carried over"),
        Kind::File | Kind::Directory | Kind::Symlink => None,
    }
}

fn judge(change: &Change, ground: &Ground, guard: &Guard<'_>) -> Verdict {
    // What is gone executes nothing.
    let Some(after) = change.after else { return Verdict::Free };
    let Some(now) = what(&ground.upper, &change.path, &after) else { return Verdict::Free };
    let before = change.before.and_then(|stamp| Some((what(&ground.lower, &change.path, &stamp)?, stamp.permissions())));
    // The rules name places below a workspace; a git directory outside is one as if it lay in it.
    let named = match in_repository(&change.path, &ground.lower) {
        Some(inside) => Path::new(".git").join(inside),
        None if change.part == 0 => change.path.clone(),
        None => Path::new(".git").join(&change.path),
    };
    let before = before.as_ref().map(|(is, mode)| Seen { is, mode: *mode });
    let here = (change.part == 0).then_some(change.path.as_path());
    guard.judge(here, &named, before, Seen { is: &now, mode: after.permissions() })
}

/// The part of a git directory's hooks and configuration below a directory of the host that is one, whatever it is called, or
/// becomes one by empty directories beside its HEAD, which nothing guards.
fn in_repository<'p>(path: &'p Path, lower: &Root) -> Option<&'p Path> {
    let obeyed = ["hooks", "config", "config.worktree", "commondir"].map(OsStr::new);
    // Every one on the way: a HEAD of any text in `hooks` must not stand between these and their repository.
    path.ancestors().skip(1).find_map(|directory| {
        let inside = path.strip_prefix(directory).ok()?;
        let is_repository = || lower.stat(&directory.join("HEAD")).is_ok();
        inside.iter().next().is_some_and(|first| obeyed.contains(&first) && is_repository()).then_some(inside)
    })
}

/// What a judgement is about; `None` for a directory.
fn what(root: &Root, path: &Path, stamp: &Stamp) -> Option<Is> {
    Some(match stamp.kind() {
        Kind::Directory => return None,
        Kind::File => node::content(root, path, SHORT).ok().flatten().map_or(Is::Unread, Is::File),
        Kind::Symlink => match node::target(root, path) {
            Ok(target) => Is::Link(target.into_os_string().into_encoded_bytes()),
            Err(_) => Is::Special,
        },
        Kind::Fifo | Kind::Socket | Kind::Device => Is::Special,
    })
}

/// Has the host the very thing by now?
fn agreed(change: &Change, ground: &Ground) -> bool {
    match (change.before, change.after) {
        (Some(before), Some(after)) => {
            before.mode == after.mode && same_things(&ground.lower, &before, &ground.upper, &after, &change.path)
        }
        (None, None) => true,
        _ => false,
    }
}

/// The collision of a change, if it is more than a newer measurement or the same change.
fn collides(change: &Change, ground: &Ground) -> Option<String> {
    let why = collision(change)?;
    let same = agreed(change, ground) || repository::same_index(change, ground) || repository::refreshed(ground, &change.path);
    (!same).then_some(why)
}

/// Has the host changed the path since the layer's version began? The three sides, for people.
fn collision(change: &Change) -> Option<String> {
    let yours = |stamp: Option<Stamp>| match stamp {
        None => "deleted".to_owned(),
        Some(stamp) => describe(&stamp),
    };
    let told = |host: String| Some(format!("host: {host}; in the layer: {}", yours(change.after)));
    match (change.before, change.orphaned) {
        (None, true) => told("deleted since the sandbox began".to_owned()),
        // What is in a directory is judged by itself, and changes the directory's time. Of a mode nothing else tells who
        // changed it.
        (Some(before), _) if before.is_directory() && !change.after.is_some_and(|after| after.is_directory()) => {
            let new = before.born != 0 && before.born >= change.since;
            new.then(|| told("made since the sandbox began, now a directory".to_owned())).flatten()
        }
        (Some(before), _) if before.changed >= change.since => {
            let young = before.born != 0 && before.born >= change.since;
            let how = match (young, change.orphaned || change.is_deletion()) {
                (true, true) => "replaced",
                (true, false) => "made",
                _ => "changed",
            };
            told(format!("{how} since the sandbox began, now {}", describe(&before)))
        }
        _ => None,
    }
}

fn describe(stamp: &Stamp) -> String {
    match stamp.kind() {
        Kind::File => format!("a file of {} bytes, mode {:o}", stamp.size, stamp.permissions()),
        Kind::Directory => format!("a directory, mode {:o}", stamp.permissions()),
        kind => format!("a {}", kind.word()),
    }
}

/// Would the host refuse it? Asked before anything is touched, so that all or nothing is done.
fn forbidden(change: &Change, ground: &Ground) -> Option<String> {
    if change.before.is_some_and(|before| before.immutable) {
        return Some("it is immutable or append-only on the host (see lsattr)".to_owned());
    }
    let parent = change.path.ancestors().skip(1).find_map(|at| Some((at, Stamp::at(&ground.lower, at).ok().flatten()?)));
    let (at, around) = parent?;
    if around.immutable {
        return Some("its directory is immutable on the host (see lsattr)".to_owned());
    }
    if !around.is_directory() {
        return None;
    }
    let tree = Stamp::at(&ground.lower, Path::new("")).ok().flatten()?;
    if around.mount != tree.mount || change.before.is_some_and(|before| before.mount != tree.mount) {
        return Some("another file system is mounted there on the host".to_owned());
    }
    let directory = ground.lower.at(at, nix::fcntl::OFlag::O_PATH, nix::sys::stat::Mode::empty()).ok()?;
    match faccessat(&directory, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS) {
        Ok(()) => None,
        // Its owner can give himself the right, and take it again.
        Err(Errno::EACCES) if around.uid == nix::unistd::geteuid().as_raw() => None,
        Err(errno) => Some(format!("its directory cannot be written: {}", errno.desc())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stamp(mode: u32, changed: crate::clock::Time) -> Stamp {
        Stamp {
            dev: 1,
            ino: 1,
            mode,
            uid: 0,
            gid: 0,
            size: 3,
            space: 0,
            modified: 0,
            changed,
            born: 0,
            mount: 1,
            names: 1,
            immutable: false,
            device: (0, 0),
        }
    }

    fn change(before: Option<Stamp>, after: Option<Stamp>, orphaned: bool) -> Change {
        Change { part: 0, path: "f".into(), before, after, since: 1_000_000_000, orphaned }
    }

    #[test]
    fn a_collision_is_a_change_by_the_host_after_the_sandbox_began() {
        let file = 0o100_644;
        let now = Some(stamp(file, 2_000_000_000));
        assert!(collision(&change(Some(stamp(file, 500_000_000)), now, true)).is_none());
        assert!(collision(&change(Some(stamp(file, 1_000_000_000)), now, true)).is_some(), "the same tick");
        assert!(collision(&change(Some(stamp(file, 3_000_000_000)), None, true)).unwrap().contains("in the layer: deleted"));
        assert!(collision(&change(None, now, true)).unwrap().starts_with("host: deleted"));
        assert!(collision(&change(None, now, false)).is_none(), "a new file");
    }

    #[test]
    fn what_cannot_be_carried_over_is_named() {
        for (mode, word) in [(0o010_644, "FIFO"), (0o140_755, "socket"), (0o020_600, "device")] {
            assert!(never(&change(None, Some(stamp(mode, 0)), false)).unwrap().contains(word));
        }
        assert_eq!(never(&change(None, Some(stamp(0o100_644, 0)), false)), None);
        assert_eq!(never(&change(Some(stamp(0o010_644, 0)), None, true)), None, "its removal");
    }
}
