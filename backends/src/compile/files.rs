//! From path rules to what is granted, hidden and the sandbox's own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hermes_profiles::paths::covers;
use hermes_profiles::{Access, FileRule, HomeMode, Origin, Place, Policy, is_broad, ospath};

use rustc_hash::FxHashSet;

use super::{Choices, CompileError, Crossing};
use crate::plan::{Source, Tier};
use crate::survey::{Found, Kind, Link, Survey};

/// The sandbox's own file systems besides the home: (path, mode).
const OWN: &[(&str, u32)] = &[("/run", 0o755), ("/tmp", 0o1777), ("/var/tmp", 0o1777)];
/// Built by the sandbox itself; the host's are never granted.
const RESERVED: &[&str] = &["/proc", "/dev"];

/// A host tree that is granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// How.
    pub access: Access,
    /// What.
    pub source: Source,
    /// What it is.
    pub kind: Kind,
    /// Can the policy do without it?
    pub optional: bool,
}

/// A hidden path inside a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hide {
    /// The real path.
    pub path: PathBuf,
    /// What it is; `None` when it is not there.
    pub kind: Option<Kind>,
    /// Why it could not be looked at; 0 when it could.
    pub errno: i32,
}

/// A path inside a writable grant that a rule makes read-only, and that nothing can be mounted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unkept {
    /// The path.
    pub path: PathBuf,
    /// Why it could not be looked at; 0 when it is not there.
    pub errno: i32,
}

/// Another name of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// Where.
    pub at: PathBuf,
    /// The grant's path.
    pub of: PathBuf,
    /// Directory or something else?
    pub directory: bool,
}

/// What a policy's path rules come to on this machine.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// By real path.
    pub grants: BTreeMap<PathBuf, Grant>,
    /// Hidden paths that lie in a grant.
    pub hides: Vec<Hide>,
    /// What cannot be kept from being written or made.
    pub unkept: Vec<Unkept>,
    /// The sandbox's own file systems, which stand in front of grants around them: (path, mode, writable).
    pub own: Vec<(PathBuf, u32, bool)>,
    /// Symlinks to be made where no grant holds them.
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// Other names of grants.
    pub aliases: Vec<Alias>,
    /// Host sockets that may be connected to.
    pub sockets: Vec<PathBuf>,
    /// Where the command starts.
    pub cwd: PathBuf,
}

impl View {
    /// The innermost grant that covers `path`, unless a file system of the sandbox's own comes between.
    pub fn covering(&self, path: &Path) -> Option<(&PathBuf, &Grant)> {
        let length = |path: &Path| path.as_os_str().len();
        let innermost = self.grants.iter().filter(|(at, _)| covers(at, path)).max_by_key(|(at, _)| length(at))?;
        let shadowed = self.own.iter().any(|(own, ..)| length(own) > length(innermost.0) && covers(own, path));
        (!shadowed).then_some(innermost)
    }

    /// The grant around the one at `path`.
    fn around(&self, path: &Path) -> Option<(&PathBuf, &Grant)> {
        if self.own.iter().any(|(own, ..)| own == path) { None } else { self.covering(path.parent()?) }
    }

    /// A symlink that the sandbox may change, in this run or in another one: what is read-only in a writable tree need
    /// not have been there before.
    fn hostile<'l>(&self, links: &'l [Link]) -> Option<(&'l Link, &Path)> {
        links.iter().find_map(|link| {
            let shadowed =
                |tree: &Path| self.own.iter().any(|(own, ..)| covers(tree, own) && own != tree && covers(own, &link.at));
            let mut trees = self.grants.iter().filter(|(_, grant)| grant.access == Access::Write);
            trees.find(|(tree, _)| covers(tree, &link.at) && !shadowed(tree)).map(|(tree, _)| (link, tree.as_path()))
        })
    }

    /// A grant that may not be written and lies in one that may.
    pub fn kept_from_writing(&self) -> Option<&Path> {
        let writable = |(_, grant): (&PathBuf, &Grant)| grant.access == Access::Write;
        let kept = |(path, grant): &(&PathBuf, &Grant)| grant.access != Access::Write && self.around(path).is_some_and(writable);
        self.grants.iter().find(kept).map(|(path, _)| path.as_path())
    }
}

/// Answers which of many paths is around another; asked for every rule of a policy at every start.
struct Index<'a>(FxHashSet<&'a [u8]>);

impl<'a> Index<'a> {
    fn new(paths: impl Iterator<Item = &'a Path>) -> Self {
        Self(paths.map(|path| path.as_os_str().as_bytes()).collect())
    }

    /// Is `path`, normalised, one of them or below one?
    fn covers(&self, path: &Path) -> bool {
        let path = path.as_os_str().as_bytes();
        let parents = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at.max(1)]);
        !self.0.is_empty() && (self.0.contains(path) || parents.into_iter().any(|parent| self.0.contains(parent)))
    }
}

/// The paths that a survey must look at for [`super::compile`].
pub fn paths_of(policy: &Policy) -> Vec<&Path> {
    let mut paths: Vec<&Path> = policy.files.iter().map(|rule| rule.path.as_path()).collect();
    paths.push(&policy.workspace);
    paths.extend(policy.home.dir.as_deref());
    paths.extend(policy.unix.connect.iter().map(PathBuf::as_path));
    paths
}

/// A rule that grants something which is there.
struct Wanted<'a> {
    path: &'a Path,
    origin: &'a Origin,
    grant: Grant,
    links: &'a [Link],
}

impl Wanted<'_> {
    /// Where it leads, and the symlinks on the way.
    fn places(&self) -> impl Iterator<Item = &Path> {
        self.links.iter().map(|link| link.at.as_path()).chain([self.grant.source.path.as_path()])
    }
}

/// Resolves all rules to grants and hides.
pub fn grants(policy: &Policy, survey: &Survey, choices: Choices<'_>, tier: Tier) -> Result<View, CompileError> {
    let of_scalar = |path: &Path, access, optional, origin| FileRule { path: path.to_owned(), access, optional, origin };
    let workspace = of_scalar(&policy.workspace, policy.workspace_access, false, Origin::Flag("--workspace".into()));
    let home = policy.home.dir.as_deref().filter(|_| policy.home.mode == HomeMode::Read);
    let home = home.map(|dir| of_scalar(dir, Access::Read, true, Origin::Derived("home = \"read\"".into())));
    let sockets: Vec<FileRule> = policy
        .unix
        .connect
        .iter()
        .map(|path| of_scalar(path, Access::Read, true, Origin::Derived("unix.connect".into())))
        .collect();

    let rules = || policy.files.iter().chain([&workspace]).chain(&home);
    let hidden: Vec<(&Path, &FileRule)> =
        rules().filter(|rule| rule.access == Access::Hidden).map(|rule| (survey.real(&rule.path), rule)).collect();
    let hidden_index = Index::new(hidden.iter().map(|(path, _)| *path));

    let home_real = policy.home.dir.as_deref().map(|dir| survey.real(dir));
    let mut wanted: Vec<Wanted<'_>> = Vec::new();
    for rule in rules().filter(|rule| rule.access != Access::Hidden) {
        let Some(found) = find(rule, survey)? else { continue };
        let is_workspace = std::ptr::eq(rule, &workspace);
        if is_workspace && found.grant.kind != Kind::Directory {
            return Err(CompileError::NotADirectory { path: policy.workspace.clone() });
        }
        // The text of the path was judged when the policy was resolved; here is what it leads to.
        let through_links = !found.links.is_empty() && matches!(found.grant.access, Access::Write | Access::Overlay);
        if through_links && !policy.allow_broad && is_broad(&found.grant.source.path, home_real) {
            let (path, origin, real) = (rule.path.clone(), rule.origin.clone(), found.grant.source.path);
            return Err(CompileError::TooBroad { path, origin, real });
        }
        let Some(at) = found.places().find(|at| hidden_index.covers(at)) else {
            wanted.push(found);
            continue;
        };
        if let Some((path, by)) = hidden.iter().find(|(path, _)| is_workspace && covers(path, at)) {
            let (workspace, path, origin) = (policy.workspace.clone(), path.to_path_buf(), by.origin.clone());
            return Err(CompileError::WorkspaceHidden { workspace, path, origin });
        }
    }
    let mut wanted_sockets: Vec<Wanted<'_>> = Vec::new();
    for rule in &sockets {
        if let Some(found) = find(rule, survey)?
            .filter(|found| found.grant.kind == Kind::Socket && !found.places().any(|at| hidden_index.covers(at)))
        {
            wanted_sockets.push(found);
        }
    }

    let mut view = settle(policy, survey, (choices, tier), &mut wanted, &mut wanted_sockets)?;
    for link in wanted.iter().chain(&wanted_sockets).flat_map(|wanted| wanted.links).chain(home_links(policy, survey)) {
        if view.covering(&link.at).is_none() {
            view.links.insert(link.at.clone(), link.to.clone());
        }
    }
    place(policy, survey, tier, &mut view)?;
    let absent = sockets.iter().map(|rule| &rule.path).filter(|path| *survey.get(path) == Found::Absent);
    view.sockets = wanted_sockets.iter().map(|socket| &socket.grant.source.path).chain(absent).cloned().collect();

    let index = Index::new(view.grants.keys().map(PathBuf::as_path));
    let absent = Absent { survey, view: &view, index, moved: moved(&wanted) };
    let hides = absent.hides(&hidden);
    let unkept = absent.unkept(rules());
    (view.hides, view.unkept) = (hides, unkept);
    // Nothing can be mounted behind a symlink of ours, under a mask or below a file.
    let View { own, links, hides, grants, .. } = &mut view;
    own.retain(|(own, ..)| {
        let mut files = grants.iter().filter(|(_, grant)| grant.kind != Kind::Directory);
        !(links.keys().any(|at| at != own && covers(at, own))
            || hides.iter().any(|hide| covers(&hide.path, own))
            || files.any(|(at, _)| covers(at, own)))
    });
    let start = choices.cwd.filter(|cwd| view.covering(cwd).is_some() && !view.hides.iter().any(|hide| covers(&hide.path, cwd)));
    view.cwd = match start {
        Some(cwd) => cwd.to_owned(),
        None if policy.workspace_access == Access::Hidden => PathBuf::from("/"),
        None => survey.real(&policy.workspace).to_owned(),
    };
    Ok(view)
}

/// Makes room for what the policy places at paths of its own. Nothing that is granted is shadowed, and nothing is made in a host tree.
fn place(policy: &Policy, survey: &Survey, tier: Tier, view: &mut View) -> Result<(), CompileError> {
    for place in &policy.places {
        let at = place.at();
        let refuse = |why: String| Err(CompileError::Unplaced { path: at.to_owned(), why });
        if tier != Tier::Namespaces {
            return refuse("this machine has no user namespaces".to_owned());
        }
        if is_made(at) {
            return refuse("the sandbox makes it itself".to_owned());
        }
        if let Some((around, _)) = view.covering(at) {
            return refuse(format!("{} is granted", ospath::escaped(around)));
        }
        match place {
            Place::Alias { of, .. } => {
                let below = view.grants.keys().chain(view.links.keys()).find(|path| covers(at, path));
                if let Some(below) = below {
                    return refuse(format!("{} is there", ospath::escaped(below)));
                }
                let real = survey.real(of);
                let Some(grant) = view.grants.get(real) else {
                    return refuse(format!("{} is not granted, or hidden", ospath::escaped(of)));
                };
                view.aliases.push(Alias { at: at.to_owned(), of: real.to_owned(), directory: grant.kind == Kind::Directory });
                view.own.retain(|(own, ..)| !covers(at, own));
            }
            Place::Scratch { .. } if view.own.iter().any(|(own, ..)| own == at) => {}
            Place::Scratch { .. } => view.own.push((at.to_owned(), 0o755, true)),
        }
    }
    Ok(())
}

/// Does the sandbox make this by itself, so that nothing can be granted or put there?
fn is_made(path: &Path) -> bool {
    path.parent().is_none() || RESERVED.iter().any(|made| covers(Path::new(made), path))
}

fn find<'a>(rule: &'a FileRule, survey: &'a Survey) -> Result<Option<Wanted<'a>>, CompileError> {
    let (path, origin, optional) = (&rule.path, &rule.origin, rule.optional);
    let error = |error: fn(PathBuf, Origin) -> CompileError| Err(error(path.clone(), origin.clone()));
    match survey.get(path) {
        Found::Present { real, kind, dev, ino, links, .. } => {
            if let Some(own) = links.iter().map(|link| &link.at).chain([real]).find(|at| is_made(at)) {
                let own = own.components().take(2).collect();
                let (path, origin) = (path.clone(), origin.clone());
                return if optional { Ok(None) } else { Err(CompileError::Reserved { path, origin, own }) };
            }
            // Copy-on-write of a single file would need a layer over its directory: give the file read-only.
            let access = match (rule.access, kind) {
                (Access::Overlay, kind) if *kind != Kind::Directory => Access::Read,
                (access, _) => access,
            };
            let source = Source { path: real.clone(), dev: *dev, ino: *ino };
            Ok(Some(Wanted { path, origin, grant: Grant { access, source, kind: *kind, optional }, links }))
        }
        _ if optional => Ok(None),
        Found::Absent => error(|path, origin| CompileError::Missing { path, origin }),
        Found::Unreadable(errno) => Err(CompileError::Unreadable { path: path.clone(), origin: origin.clone(), errno: *errno }),
    }
}

/// Merges rules to grants. Those that the sandbox could turn somewhere else, because they cross a symlink that it may
/// write, are refused or, when optional, taken out, until none is left.
fn settle(
    policy: &Policy,
    survey: &Survey,
    (choices, tier): (Choices<'_>, Tier),
    wanted: &mut Vec<Wanted<'_>>,
    sockets: &mut Vec<Wanted<'_>>,
) -> Result<View, CompileError> {
    loop {
        let mut view = View::default();
        for Wanted { grant, .. } in &*wanted {
            let entry = view.grants.entry(grant.source.path.clone()).or_insert_with(|| grant.clone());
            entry.access = entry.access.max(grant.access);
            entry.optional &= grant.optional;
        }
        if tier == Tier::Namespaces {
            view.own = own(policy, survey, &view);
        }
        for Wanted { grant, .. } in &*sockets {
            if view.covering(&grant.source.path).is_none() {
                view.grants.insert(grant.source.path.clone(), grant.clone());
            }
        }
        // What takes rights away inside a writable tree does so wherever it leads.
        let takes = |wanted: &Wanted<'_>| {
            let around = view.around(&wanted.grant.source.path);
            wanted.grant.access != Access::Write && around.is_some_and(|(_, grant)| grant.access == Access::Write)
        };
        let before = (wanted.len(), sockets.len());
        wanted.retain(|wanted| !wanted.grant.optional || view.hostile(wanted.links).is_none() || takes(wanted));
        sockets.retain(|socket| view.hostile(socket.links).is_none());
        if before != (wanted.len(), sockets.len()) {
            continue;
        }
        let required = wanted.iter().filter(|wanted| !wanted.grant.optional);
        for Wanted { path, origin, grant, links } in required {
            if let Some((link, tree)) = view.hostile(links) {
                let (path, origin, real) = (path.to_path_buf(), (*origin).clone(), grant.source.path.clone());
                let crossing = Crossing { path, origin, link: link.at.clone(), tree: tree.to_owned(), real };
                return Err(CompileError::CrossesWritable(Box::new(crossing)));
            }
        }
        let aliased: Vec<&Path> = policy
            .places
            .iter()
            .filter_map(|place| match place {
                Place::Alias { of, .. } => Some(survey.real(of)),
                Place::Scratch { .. } => None,
            })
            .collect();
        drop_covered(&mut view, choices, &aliased);
        return Ok(view);
    }
}

fn home_links<'a>(policy: &'a Policy, survey: &'a Survey) -> &'a [Link] {
    match policy.home.dir.as_deref().map(|dir| survey.get(dir)) {
        Some(Found::Present { links, kind: Kind::Directory, .. }) if !links.iter().any(|link| is_made(&link.at)) => links,
        _ => &[],
    }
}

/// The sandbox's own file systems.
pub(super) fn own(policy: &Policy, survey: &Survey, view: &View) -> Vec<(PathBuf, u32, bool)> {
    let mut own: Vec<_> = OWN.iter().map(|(path, mode)| (PathBuf::from(path), *mode, true)).collect();
    let Some(dir) = policy.home.dir.as_deref().filter(|_| policy.home.mode != HomeMode::Read) else { return own };
    let home = survey.real(dir);
    let possible = match survey.get(dir) {
        Found::Present { kind, .. } => *kind == Kind::Directory,
        // Nothing is made in a host tree to have a place for it.
        _ => view.covering(home).is_none(),
    };
    if possible && !is_made(home) && !own.iter().any(|(own, ..)| own == home) {
        own.push((home.to_owned(), 0o700, policy.home.mode == HomeMode::Private));
    }
    own
}

/// A grant inside another one of the same kind says nothing new; a device in a tree would be without its function. What has another
/// name stays a mount, which alone can be shown twice.
fn drop_covered(view: &mut View, choices: Choices<'_>, aliased: &[&Path]) {
    // What is kept and what ends with the sandbox need a layer each.
    let kept = |path: &Path, access| access == Access::Overlay && choices.layer(path).is_some();
    let redundant: Vec<PathBuf> = view
        .grants
        .iter()
        .filter(|(path, grant)| grant.kind != Kind::Device && !aliased.contains(&path.as_path()))
        .filter(|(path, grant)| {
            let same = |(at, around): (&PathBuf, &Grant)| {
                around.access == grant.access && !kept(path, grant.access) && !kept(at, around.access)
            };
            view.around(path).is_some_and(same)
        })
        .map(|(path, _)| path.clone())
        .collect();
    for path in redundant {
        view.grants.remove(&path);
    }
}

/// Rules that lead over symlinks, and where to.
fn moved<'a>(wanted: &'a [Wanted<'_>]) -> Vec<(&'a Path, &'a Path)> {
    wanted
        .iter()
        .filter(|wanted| !wanted.links.is_empty())
        .map(|wanted| (wanted.path, wanted.grant.source.path.as_path()))
        .collect()
}

/// Finds the rules that take something out of grants; of what is not there, too.
struct Absent<'a> {
    survey: &'a Survey,
    view: &'a View,
    index: Index<'a>,
    moved: Vec<(&'a Path, &'a Path)>,
}

impl Absent<'_> {
    /// The innermost grant around `path`.
    fn covering(&self, path: &Path) -> Option<&Grant> {
        self.index.covers(path).then(|| self.view.covering(path)).flatten().map(|(_, grant)| grant)
    }

    /// Where `path`, which is not there, would be behind the symlinks that are known.
    fn place<'p>(&self, path: &'p Path) -> Cow<'p, Path> {
        let around = self.moved.iter().filter(|(from, _)| covers(from, path)).max_by_key(|(from, _)| from.as_os_str().len());
        let moved = around.and_then(|(from, to)| Some(to.join(path.strip_prefix(from).ok()?)));
        moved.map_or(Cow::Borrowed(path), Cow::Owned)
    }

    fn hides(&self, hidden: &[(&Path, &FileRule)]) -> Vec<Hide> {
        let hide = |(real, rule): &(&Path, &FileRule)| {
            let (path, kind, errno) = match self.survey.get(&rule.path) {
                Found::Present { kind, .. } => (Cow::Borrowed(*real), Some(*kind), 0),
                Found::Unreadable(errno) => (self.place(real), None, *errno),
                Found::Absent => (self.place(real), None, 0),
            };
            self.covering(&path)?;
            Some(Hide { path: path.into_owned(), kind, errno })
        };
        let mut hides: Vec<Hide> = hidden.iter().filter_map(hide).collect();
        hides.sort_by(|a, b| a.path.cmp(&b.path));
        hides.dedup_by(|a, b| covers(&b.path, &a.path));
        hides
    }

    fn unkept<'r>(&self, rules: impl Iterator<Item = &'r FileRule>) -> Vec<Unkept> {
        let unkept = |rule: &FileRule| {
            let errno = match self.survey.get(&rule.path) {
                Found::Present { .. } => return None,
                Found::Unreadable(errno) => *errno,
                Found::Absent => 0,
            };
            let path = self.place(&rule.path);
            self.covering(&path).filter(|grant| grant.access == Access::Write)?;
            Some(Unkept { path: path.into_owned(), errno })
        };
        rules.filter(|rule| matches!(rule.access, Access::Read | Access::Overlay)).filter_map(unkept).collect()
    }
}

/// Without copy-on-write a cache that holds a credential cannot be granted at all: Landlock cannot hide one file of a tree.
pub fn drop_caches_with_secrets(view: &mut View) {
    let secret: Vec<PathBuf> = view
        .hides
        .iter()
        .filter(|hide| hide.kind.is_some())
        .filter_map(|hide| view.covering(&hide.path))
        .filter(|(path, grant)| grant.access == Access::Overlay && grant.optional && view.around(path).is_none())
        .map(|(path, _)| path.clone())
        .collect();
    view.grants.retain(|path, _| !secret.contains(path));
    let hides = std::mem::take(&mut view.hides);
    view.hides = hides.into_iter().filter(|hide| view.covering(&hide.path).is_some()).collect();
}
