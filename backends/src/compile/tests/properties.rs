//! What holds for every policy on every machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use hermes_profiles::paths::covers;
use hermes_profiles::{Access, FileRule, Guarantee, HomeMode, Network, Origin, Policy, builtin};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::hosts;
use super::view::{Shown, check_steps, follow, given, rights, shown};
use super::world::{Node, World, builtin, machine, policy};
use crate::compile::{Choices, CompileError, Kept, compile};
use crate::host::Host;
use crate::plan::{Layer, NetworkPlan, PathRights, Plan, Tier};
use crate::survey::{Found, Kind};

/// A policy, and all that is needed to compile it.
#[derive(Clone)]
struct Case {
    world: World,
    policy: Policy,
    host: Host,
    tier: Option<Tier>,
    cwd: Option<PathBuf>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Policy { home, network, preferred, accepted, .. } = &self.policy;
        writeln!(f, "tier {:?}, cwd {:?}, home {home:?}, network {network:?}, {preferred:?}, {accepted:?}", self.tier, self.cwd)?;
        writeln!(f, "{:?}", self.host)?;
        for rule in self.rules() {
            writeln!(f, "  {:?} {}{}", rule.access, if rule.optional { "?" } else { "" }, rule.path.display())?;
        }
        self.world.0.iter().try_for_each(|(path, node)| writeln!(f, "  {} {node:?}", path.display()))
    }
}

impl Case {
    fn plan(&self) -> Result<Plan, CompileError> {
        let workspace = self.world.real(&self.policy.workspace).unwrap_or_else(|| self.policy.workspace.clone());
        let trees = [(workspace, Layer::Planned)];
        let kept = Some(Kept { trees: &trees, works: &self.host.overlay });
        let choices = Choices { tier: self.tier, cwd: self.cwd.as_deref(), scratch: Some(Path::new("/tmp/private")), kept };
        compile(&self.policy, &self.host, &self.world.survey(&self.policy), choices)
    }

    /// Every rule, those of scalars too.
    fn rules(&self) -> Vec<FileRule> {
        let of_scalar = |path: &Path, access, optional| {
            let origin = Origin::Derived("".into());
            FileRule { path: path.to_owned(), access, optional, origin }
        };
        let mut rules = self.policy.files.clone();
        rules.push(of_scalar(&self.policy.workspace, self.policy.workspace_access, false));
        if let (HomeMode::Read, Some(home)) = (self.policy.home.mode, &self.policy.home.dir) {
            rules.push(of_scalar(home, Access::Read, true));
        }
        rules
    }

    /// The symlinks that a path crosses.
    fn links(&self, path: &Path) -> Vec<PathBuf> {
        match self.world.find(path) {
            Found::Present { links, .. } => links.into_iter().map(|link| link.at).collect(),
            _ => Vec::new(),
        }
    }
}

/// What the rules alone say of every path.
struct Oracle {
    decided: BTreeMap<PathBuf, Option<(usize, Access)>>,
    /// What one of the longest rules makes writable.
    writable: BTreeSet<PathBuf>,
    /// Sockets that may be connected to.
    sockets: Vec<PathBuf>,
    /// A rule crosses a symlink where another rule hides or may write it, so that it has no effect.
    doubtful: bool,
}

impl Oracle {
    fn new(case: &Case) -> Self {
        let mut rules: Vec<(PathBuf, Access)> = Vec::new();
        let connect = |path: &PathBuf| case.world.real(path).filter(|path| case.world.0[path] == Node::Is(Kind::Socket));
        let sockets: Vec<PathBuf> = case.policy.unix.connect.iter().filter_map(connect).collect();
        let hidden: Vec<PathBuf> = case
            .rules()
            .into_iter()
            .filter(|rule| rule.access == Access::Hidden)
            .map(|rule| case.world.real(&rule.path).unwrap_or(rule.path))
            .collect();
        let is_hidden = |at: &Path| hidden.iter().any(|hidden| covers(hidden, at));
        for rule in case.rules() {
            let real = case.world.real(&rule.path);
            // Copy-on-write is for directories.
            let file = real.as_ref().is_some_and(|real| case.world.0[real] != Node::Is(Kind::Directory));
            let access = if rule.access == Access::Overlay && file { Access::Read } else { rule.access };
            let places = case.links(&rule.path).into_iter().chain(real.clone());
            // What the sandbox makes itself is not the host's, and what is hidden leads nowhere.
            if access == Access::Hidden || !places.into_iter().any(|at| is_made(&at) || is_hidden(&at)) {
                rules.push((real.unwrap_or(rule.path), access));
            }
        }
        let decide = |path: &Path| {
            let covering = || rules.iter().filter(|(at, _)| covers(at, path));
            if covering().any(|(_, access)| *access == Access::Hidden) {
                return Some((0, Access::Hidden));
            }
            // Of alike ones the widest.
            let longest = covering().map(|(at, access)| (length(at), *access)).max();
            longest.or(sockets.iter().any(|socket| socket == path).then_some((length(path), Access::Read)))
        };
        let decided = case.world.0.keys().map(|path| (path.clone(), decide(path))).collect();
        let mut oracle = Self { decided, writable: BTreeSet::new(), sockets, doubtful: false };
        for (path, decided) in &oracle.decided {
            let longest = |at: &Path| decided.is_some_and(|(longest, _)| length(at) == longest) && covers(at, path);
            if rules.iter().any(|(at, access)| *access == Access::Write && longest(at)) {
                oracle.writable.insert(path.clone());
            }
        }
        let named = case.rules();
        let paths = named.iter().map(|rule| &rule.path).chain(&case.policy.unix.connect);
        oracle.doubtful = paths.flat_map(|path| case.links(path)).any(|link| {
            let writable = rules.iter().any(|(at, access)| *access == Access::Write && covers(at, &link));
            writable || is_made(&link) || is_hidden(&link)
        });
        oracle
    }

    /// Hidden wins, else the longest rule. `path` is free of symlinks before its end.
    fn decided(&self, path: &Path) -> Option<Access> {
        self.decided[path].map(|(_, access)| access)
    }

    /// What `path` is to be in the namespaces tier.
    fn wanted(&self, case: &Case, path: &Path) -> Shown {
        let home = case.policy.home.dir.as_ref().filter(|_| case.policy.home.mode != HomeMode::Read);
        let home = home.and_then(|home| case.world.real(home)).filter(|home| case.world.0[home] == Node::Is(Kind::Directory));
        let own = ["/run", "/tmp", "/var/tmp"].map(PathBuf::from).into_iter().chain(home.filter(|home| !is_made(home)));
        let own = own.filter(|own| covers(own, path)).map(|own| length(&own)).max().unwrap_or(0);
        match self.decided[path] {
            Some((_, Access::Hidden)) => Shown::Nothing,
            Some((at, _)) if at < own && self.sockets.iter().any(|socket| socket == path) => Shown::Read,
            Some((at, _)) if at < own => Shown::Nothing,
            None => Shown::Nothing,
            Some((_, Access::Write)) => Shown::Write,
            Some((_, Access::Overlay)) if case.host.overlay.works() => Shown::Copy,
            Some(_) => Shown::Read,
        }
    }
}

fn length(path: &Path) -> usize {
    path.as_os_str().len()
}

fn is_made(path: &Path) -> bool {
    path.parent().is_none() || path.starts_with("/proc") || path.starts_with("/dev")
}

fn lost(plan: &Plan, guarantee: Guarantee) -> bool {
    plan.lost.iter().any(|lost| lost.guarantee == guarantee)
}

fn check(case: &Case, oracle: &Oracle) -> Result<(), String> {
    let plan = match case.plan() {
        Ok(plan) => plan,
        Err(error) => return check_error(case, oracle, &error),
    };
    let namespaces = plan.tier == Tier::Namespaces;
    let require = |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{what}: {plan:?}")) };

    // Losses.
    for lost in &plan.lost {
        let fatal = plan.fatal().any(|fatal| fatal.guarantee == lost.guarantee);
        require(fatal == case.policy.requires(lost.guarantee), "a loss is fatal when the policy insists")?;
        require(!lost.reason.is_empty() && !lost.remedy.is_empty(), "a loss has a reason and a remedy")?;
    }
    let starts = plan.fatal().next().is_none();
    require(namespaces || case.tier.is_some() || starts, "Landlock alone is chosen only when it does")?;
    let can = case.host.userns.works() && case.host.proc_mount.works() && case.host.recursive_attributes.works();
    require(!namespaces || !starts || can || !plan.policy_insists(&case.policy), "what cannot be built is refused")?;

    // Network and identity.
    require(!namespaces || plan.identity.host_uid != 0, "real root enters")?;
    match case.policy.network {
        Network::Host => require(plan.network == NetworkPlan::Host, "the host's network is given")?,
        _ => {
            let routes = matches!(&case.policy.network, Network::Routes(routes) if !routes.is_empty());
            let mediated = routes && case.host.landlock_abi >= 4 && case.host.mediation.works();
            let own = match (namespaces, mediated) {
                (true, _) => NetworkPlan::Private,
                (false, true) => NetworkPlan::Notified,
                (false, false) => NetworkPlan::NoSockets,
            };
            require(plan.network == own, "the network is confined")?;
            require(plan.seccomp.inet_sockets == (namespaces || mediated), "no sockets without an own network")?;
            require(plan.seccomp.mediate_tcp == (own == NetworkPlan::Notified), "shared sockets are mediated")?;
            let denied = plan.landlock.as_ref().is_some_and(|landlock| landlock.deny_tcp);
            require(own != NetworkPlan::Notified || denied, "Landlock stands behind the mediator")?;
            let without = routes && plan.gateway.is_none();
            require(!without || lost(&plan, Guarantee::NetworkMediated), "routes that lead nowhere are lost")?;
        }
    }

    // Files.
    if namespaces {
        check_steps(&plan, &case.world)?;
    } else {
        require(plan.mounts.is_empty(), "nothing is mounted")?;
    }
    for (path, node) in &case.world.0 {
        if matches!(node, Node::Link(_) | Node::Locked) || is_made(path) {
            continue;
        }
        let says = |what: &str| format!("{} {what}: {plan:?}", path.display());
        let (decided, given) = (oracle.decided(path), given(&plan, path));
        if !namespaces && plan.landlock.is_none() {
            require(lost(&plan, Guarantee::FilesHidden) && lost(&plan, Guarantee::FilesWriteConfined), "nothing confines files")?;
            continue;
        }
        match decided {
            None if given != Shown::Nothing => return Err(says("is shown, and no rule grants it")),
            Some(Access::Hidden) if given != Shown::Nothing && !lost(&plan, Guarantee::FilesHidden) => {
                return Err(says("is shown, and a rule hides it"));
            }
            _ => {}
        }
        let no = decided != Some(Access::Hidden) && !oracle.writable.contains(path);
        if given == Shown::Write && no && !lost(&plan, Guarantee::FilesWriteConfined) {
            return Err(says("is writable, and no rule says so"));
        }
        if namespaces && !oracle.doubtful && given != oracle.wanted(case, path) && !lost(&plan, Guarantee::FilesHidden) {
            return Err(says(&format!("is {given:?}, not {:?}", oracle.wanted(case, path))));
        }
        let by_landlock = rights(&plan, path);
        if namespaces && given == Shown::Write && plan.landlock.as_ref().is_some_and(|landlock| landlock.handle_files) {
            require(by_landlock == Some(PathRights::Write), "Landlock gives what is mounted writable")?;
        }
    }
    check_links(case, oracle, &plan)
}

impl Plan {
    /// Does the policy insist on what the namespaces tier cannot do without?
    fn policy_insists(&self, policy: &Policy) -> bool {
        policy.requires(Guarantee::FilesReadConfined)
    }
}

/// A rule that crosses a symlink which the sandbox may change gives nothing.
fn check_links(case: &Case, oracle: &Oracle, plan: &Plan) -> Result<(), String> {
    for (index, rule) in case.policy.files.iter().enumerate() {
        let links = case.links(&rule.path);
        if rule.access == Access::Hidden || links.is_empty() || links.iter().any(|at| is_made(at)) {
            continue;
        }
        let hostile = links.iter().any(|at| given(plan, at) == Shown::Write);
        if hostile && !lost(plan, Guarantee::FilesWriteConfined) {
            let mut without = case.clone();
            without.policy.files.remove(index);
            let Ok(without) = without.plan() else { continue };
            for path in case.world.0.keys() {
                let (with, without) = (given(plan, path), given(&without, path));
                if with != without && (with == Shown::Write || without == Shown::Nothing) {
                    return Err(format!("{rule:?} gives {} over {links:?}", path.display()));
                }
            }
        }
        let leads = case.world.real(&rule.path).unwrap();
        let visible = plan.tier == Tier::Namespaces && shown(plan, &leads) != Shown::Nothing;
        if visible && !oracle.doubtful && follow(plan, &case.world, &rule.path).as_deref() != Some(&leads) {
            return Err(format!("{rule:?} does not lead to {}: {plan:?}", leads.display()));
        }
    }
    Ok(())
}

fn check_error(case: &Case, oracle: &Oracle, error: &CompileError) -> Result<(), String> {
    let found = |path: &Path| case.world.find(path);
    let right = match error {
        CompileError::Missing { path, .. } => found(path) == Found::Absent,
        CompileError::Unreadable { path, .. } => matches!(found(path), Found::Unreadable(_)),
        CompileError::CrossesWritable(crossing) => {
            matches!(found(&crossing.path), Found::Present { real, .. } if real == crossing.real)
                && crossing.link.starts_with(&crossing.tree)
        }
        CompileError::TooBroad { real, .. } => {
            let home = case.policy.home.dir.as_deref().map(|dir| case.world.real(dir).unwrap_or_else(|| dir.to_owned()));
            hermes_profiles::is_broad(real, home.as_deref())
        }
        // No case places anything.
        CompileError::Unplaced { .. } => false,
        CompileError::WorkspaceHidden { .. } => {
            let workspace = &case.policy.workspace;
            let on_the_way = case.links(workspace).into_iter().chain(case.world.real(workspace));
            on_the_way.into_iter().any(|path| oracle.decided(&path) == Some(Access::Hidden))
        }
        CompileError::NotADirectory { path } => !matches!(found(path), Found::Present { kind: Kind::Directory, .. }),
        CompileError::Reserved { .. } => true,
    };
    let text = error.to_string();
    if right && !text.contains('\n') { Ok(()) } else { Err(text) }
}

#[test]
fn every_profile_on_every_host() {
    for profile in builtin::all() {
        let mut case = Case { world: machine(), policy: builtin(profile.name), host: hosts::baseline(), tier: None, cwd: None };
        let oracle = Oracle::new(&case);
        let all = hosts::all().into_iter().map(|(name, host)| (name, host, None));
        let insists = |tier| hosts::single().into_iter().map(move |(name, host)| (name.to_owned(), host, Some(tier)));
        for (name, host, tier) in all.chain(insists(Tier::Namespaces)).chain(insists(Tier::Landlock)) {
            (case.host, case.tier) = (host, tier);
            check(&case, &oracle).unwrap_or_else(|error| panic!("{} on {name} ({tier:?}): {error}", profile.name));
        }
    }
}

fn names() -> impl Strategy<Value = String> {
    select(vec!["a", "b", "c"]).prop_map(str::to_owned)
}

/// Few names, so that paths meet.
fn worlds() -> impl Strategy<Value = World> {
    let node = (any::<Index>(), names(), 0..8_u8, any::<Index>(), any::<bool>());
    prop::collection::vec(node, 0..14).prop_map(|nodes| {
        let mut world =
            World::default().with("/usr/bin/ /bin -> usr/bin /home/u/ws/ /data/ /tmp/ /var/tmp/ /run/ /dev/null /proc/");
        for (parent, name, kind, to, relative) in nodes {
            let paths = |wanted: fn(&Node) -> bool| -> Vec<PathBuf> {
                world.0.iter().filter(|(_, node)| wanted(node)).map(|(path, _)| path.clone()).collect()
            };
            let directories = paths(|node| *node == Node::Is(Kind::Directory));
            let at = directories[parent.index(directories.len())].join(name);
            if world.0.contains_key(&at) {
                continue;
            }
            let node = match kind {
                0..3 => Node::Is(Kind::Directory),
                3 => Node::Is(Kind::File),
                4 => Node::Is(Kind::Socket),
                5 if relative => Node::Locked,
                _ => {
                    let all = paths(|_| true);
                    let to = &all[to.index(all.len())];
                    let up: PathBuf = at.ancestors().skip(2).map(|_| "..").collect();
                    Node::Link(if relative { up.join(to.strip_prefix("/").unwrap()) } else { to.clone() })
                }
            };
            world.add(at, node);
        }
        world
    })
}

fn accesses() -> impl Strategy<Value = Access> {
    select(vec![Access::Hidden, Access::Read, Access::Read, Access::Write, Access::Write, Access::Overlay])
}

fn guarantees() -> impl Strategy<Value = Vec<Guarantee>> {
    subsequence(Guarantee::ALL.to_vec(), 0..Guarantee::ALL.len())
}

/// An index of a node and a name that may be below it.
fn places() -> impl Strategy<Value = (Index, Option<String>)> {
    (any::<Index>(), prop::option::weighted(0.3, names()))
}

fn place(world: &World, (index, below): &(Index, Option<String>)) -> PathBuf {
    let path = world.0.keys().nth(index.index(world.0.len())).unwrap();
    below.iter().fold(path.clone(), |path, name| path.join(name))
}

fn policies(world: &World) -> impl Strategy<Value = Policy> + use<> {
    let world = world.clone();
    let rules = prop::collection::vec((places(), accesses(), prop::bool::weighted(0.8)), 0..7);
    let modes = select(vec![HomeMode::Private, HomeMode::Private, HomeMode::Hidden, HomeMode::Read]);
    let home = prop::option::weighted(0.3, prop::option::weighted(0.8, places()));
    let workspace = (prop::option::weighted(0.3, places()), accesses());
    let network = select(vec![Network::Off, Network::Off, Network::Routes(Vec::new()), Network::Host]);
    let sockets = prop::collection::vec(places(), 0..2);
    (rules, modes, home, workspace, network, sockets, guarantees(), guarantees()).prop_map(
        move |(rules, mode, home, (workspace, access), network, sockets, preferred, accepted)| {
            let mut policy = policy("");
            policy.files = rules
                .iter()
                .map(|(at, access, optional)| {
                    let origin = Origin::Flag("--test".into());
                    FileRule {
                        path: place(&world, at),
                        access: *access,
                        optional: *optional || *access == Access::Hidden,
                        origin,
                    }
                })
                .collect();
            policy.home.mode = mode;
            if let Some(home) = home {
                policy.home.dir = home.map(|at| place(&world, &at));
            }
            policy.workspace_access = access;
            if let Some(at) = workspace {
                policy.workspace = place(&world, &at);
            }
            policy.network = network;
            policy.unix.connect = sockets.iter().map(|at| place(&world, at)).collect();
            policy.preferred = preferred.into_iter().collect();
            policy.accepted = accepted.into_iter().collect();
            policy
        },
    )
}

fn cases() -> impl Strategy<Value = Case> {
    let hosts: Vec<Host> = hosts::all().into_iter().map(|(_, host)| host).collect();
    let mostly = prop_oneof![3 => Just(hosts::baseline()), 2 => select(hosts)];
    let tier = select(vec![None, None, Some(Tier::Namespaces), Some(Tier::Landlock)]);
    (worlds(), mostly, tier, prop::option::of(places())).prop_flat_map(|(world, host, tier, cwd)| {
        policies(&world).prop_map(move |policy| {
            let cwd = cwd.as_ref().map(|at| place(&world, at));
            Case { world: world.clone(), policy, host: host.clone(), tier, cwd }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_policy_on_any_host(case in cases()) {
        if let Err(error) = check(&case, &Oracle::new(&case)) {
            return Err(TestCaseError::fail(error));
        }
    }
}
