//! Rules that once went wrong, and what they come to.

use std::path::Path;

use hermes_profiles::{Access, Guarantee, HomeMode, Limits, Network, Origin, Place, Policy};
use nix::errno::Errno;

use super::hosts::{baseline, fails, without_userns};
use super::view::{Shown, check_steps, follow, given, shown};
use super::world::{World, machine, policy};
use crate::compile::{Choices, CompileError, Kept, compile};
use crate::host::{CgroupAccess, Enclosure, Host, Probe, UsernsCause};
use crate::plan::{Enforcer, Layer, Lost, MountStep, NetworkPlan, PathRights, Plan, Tier};
use crate::step::Step;

fn compiled(policy: &Policy, world: &World, tier: Tier) -> Result<Plan, CompileError> {
    let choices = Choices { tier: Some(tier), ..Choices::default() };
    compile(policy, &baseline(), &world.survey(policy), choices)
}

fn plan(rules: &str, nodes: &str) -> Plan {
    let world = machine().with(nodes);
    let plan = compiled(&policy(rules), &world, Tier::Namespaces).unwrap();
    check_steps(&plan, &world).unwrap();
    plan
}

fn error(rules: &str, nodes: &str) -> String {
    compiled(&policy(rules), &machine().with(nodes), Tier::Namespaces).unwrap_err().to_string()
}

fn at(plan: &Plan, path: &str) -> Shown {
    given(plan, Path::new(path))
}

fn reason(losses: &[Lost], guarantee: Guarantee) -> &str {
    losses.iter().find(|lost| lost.guarantee == guarantee).map_or("", |lost| &lost.reason)
}

#[test]
fn a_symlink_in_a_writable_tree_gives_nothing() {
    let nodes = "/data/x/ /home/u/ws/l -> /data/x /home/u/ws/m -> l";
    assert_eq!(
        error("read /home/u/ws/l", nodes),
        "/home/u/ws/l (--test) crosses the symlink /home/u/ws/l, which lies in /home/u/ws, a tree that the sandbox may write; \
         name the real path /data/x"
    );
    for rules in ["read ?/home/u/ws/l", "write ?/home/u/ws/m", "copy ?/home/u/ws/l"] {
        assert_eq!(at(&plan(rules, nodes), "/data/x"), Shown::Nothing, "{rules}");
    }
}

#[test]
fn what_is_named_by_its_real_path_too_stays() {
    let nodes = "/data/x/ /home/u/ws/l -> /data/x /home/u/far -> /data/x";
    for rules in ["read ?/home/u/ws/l read /data/x", "write ?/home/u/ws/l read /data/x", "read ?/home/u/far write ?/home/u/ws/l"]
    {
        assert_eq!(at(&plan(rules, nodes), "/data/x"), Shown::Read, "{rules}");
    }
}

#[test]
fn a_rule_that_makes_its_own_symlink_writable_is_refused() {
    assert!(error("write /data/x/self", "/data/x/ /data/x/self -> /data/x").contains("name the real path /data/x"));
}

#[test]
fn a_symlink_protected_only_by_a_dropped_rule_is_hostile() {
    // The first rule is dropped; without it /data/sub is writable, and with it the symlink there.
    let nodes = "/data/sub/ /data/sub/m -> /etc/ssl /home/u/ws/l -> /data/sub";
    let plan = plan("write /data copy ?/home/u/ws/l read ?/data/sub/m", nodes);
    assert_eq!((at(&plan, "/data/sub"), at(&plan, "/etc/ssl")), (Shown::Copy, Shown::Nothing));
}

#[test]
fn what_takes_rights_away_does_so_over_a_symlink_too() {
    let plan = plan("write /data read ?/data/l", "/data/l -> rules /data/rules/");
    assert_eq!((at(&plan, "/data"), at(&plan, "/data/rules")), (Shown::Write, Shown::Read));
}

#[test]
fn what_cannot_be_kept_from_writing_is_named() {
    let absent = plan("write /data read ?/data/rules", "/data/");
    assert!(absent.lost.is_empty());
    assert!(
        reason(&absent.weakened, Guarantee::FilesWriteConfined).starts_with("/data/rules is to be read-only, but is not there")
    );
    // Its directory was locked by an earlier run, which may unlock it in this one.
    let locked = plan("write /data read ?/data/dir/rules", "/data/dir!");
    assert_eq!(reason(&locked.lost, Guarantee::FilesWriteConfined), "cannot look at /data/dir/rules: Permission denied");
    let locked = plan("write /data hide /data/dir/secret", "/data/dir!");
    assert_eq!(reason(&locked.lost, Guarantee::FilesHidden), "cannot look at /data/dir/secret: Permission denied");
    assert_eq!(locked.fatal().count(), 1);
}

#[test]
fn a_symlink_in_a_hidden_directory_leads_nowhere() {
    let nodes = "/home/u/.ssh/config -> /home/u/dotfiles/ssh /home/u/dotfiles/ssh";
    assert_eq!(at(&plan("read /home/u/.ssh/config hide /home/u/.ssh", nodes), "/home/u/dotfiles/ssh"), Shown::Nothing);
    let mut of_link = policy("hide /home/u/.ssh");
    of_link.workspace = "/home/u/.ssh/ws".into();
    let world = machine().with("/home/u/.ssh/ws -> /home/u/ws");
    let error = compiled(&of_link, &world, Tier::Namespaces).unwrap_err().to_string();
    assert_eq!(
        error,
        "the workspace /home/u/.ssh/ws is hidden by /home/u/.ssh (--test); choose another workspace or remove that rule"
    );
}

#[test]
fn hidden_paths_that_are_not_there_are_known_by_their_real_place() {
    let nodes = "/disk/cache/ /home/u/.cache2 -> /disk/cache";
    let plan = plan("copy /home/u/.cache2 hide /home/u/.cache2/hf/token", nodes);
    let reason = reason(&plan.weakened, Guarantee::HiddenSurvivesReplacement);
    assert!(reason.starts_with("/disk/cache/hf/token becomes visible"), "{reason}");
}

#[test]
fn the_private_home_stands_in_front_of_a_grant_around_it() {
    let plan = plan("read /home read /home/u/.rustup hide /home/u/.ssh", "/home/v/");
    assert_eq!(at(&plan, "/home/v"), Shown::Read);
    assert_eq!(at(&plan, "/home/u/.aws"), Shown::Nothing);
    assert_eq!(at(&plan, "/home/u/.rustup"), Shown::Read);
    assert!(!plan.mounts.iter().any(|step| matches!(step, MountStep::Mask { .. })), "nothing to hide in a private home");
}

#[test]
fn a_home_behind_a_symlink_is_made_where_it_is() {
    // As on image-based systems, where /home leads to /var/home.
    let world = World::default().with("/home -> var/home /var/home/u/ws/ /usr/bin/ /tmp/ /run/ /var/tmp/");
    let plan = compiled(&policy("read /usr"), &world, Tier::Namespaces).unwrap();
    check_steps(&plan, &world).unwrap();
    assert!(
        plan.mounts.iter().any(|step| matches!(step, MountStep::Private { target, mode: 0o700, .. } if target == "/var/home/u"))
    );
    assert_eq!(follow(&plan, &world, Path::new("/home/u/ws")).as_deref(), Some(Path::new("/var/home/u/ws")));
    assert_eq!(plan.cwd, Path::new("/var/home/u/ws"));
}

#[test]
fn homes_that_cannot_be_made_are_left_out() {
    for home in ["/", "/dev/null", "/proc/1", "/etc/absent", "/bin/absent", "/usr/bin/tool", "/usr/bin/tool/below"] {
        for mode in [HomeMode::Private, HomeMode::Hidden] {
            let mut policy = policy("read /usr read /bin read /etc");
            policy.home = hermes_profiles::Home { dir: Some(home.into()), mode };
            let world = machine().with("/usr/bin/tool");
            let plan = compiled(&policy, &world, Tier::Namespaces).unwrap();
            check_steps(&plan, &world).unwrap_or_else(|error| panic!("{home}: {error}"));
            assert_eq!(at(&plan, "/usr/bin/tool"), Shown::Read, "{home}");
        }
    }
}

#[test]
fn what_the_sandbox_makes_itself_cannot_be_granted() {
    let nodes = "/dev/disk/ /dev/mine -> /data/x /data/x/";
    assert_eq!(error("read /", nodes), "/ (--test) cannot be granted: the sandbox has a / of its own");
    assert_eq!(error("read /dev/disk", nodes), "/dev/disk (--test) cannot be granted: the sandbox has a /dev of its own");
    assert_eq!(error("read /dev/mine", nodes), "/dev/mine (--test) cannot be granted: the sandbox has a /dev of its own");
    plan("read ?/ read ?/dev/disk read ?/dev/mine read ?/proc/1", nodes);
}

#[test]
fn nothing_is_made_in_a_granted_run() {
    assert_eq!(at(&plan("read /run read /var read /tmp", ""), "/run/user"), Shown::Read);
}

#[test]
fn what_is_mounted_in_a_writable_tree_cannot_be_moved() {
    let plan = plan("write /data read /data/a/b/rules hide /data/c/secret", "/data/a/b/rules/ /data/c/secret");
    let pins: Vec<&Path> =
        plan.mounts.iter().filter(|step| matches!(step, MountStep::Pin { .. })).map(MountStep::target).collect();
    assert_eq!(pins, ["/data/a", "/data/c", "/data/a/b"].map(Path::new));
}

#[test]
fn another_name_of_a_grant_comes_last_and_grants_nothing() {
    let nodes = "/data/x/secret /data/f /home/u/ws/sub/ /far/";
    let of = |rules: &str, places: &[(&str, &str)], tier| {
        let mut policy = policy(rules);
        policy.places = places.iter().map(|(at, of)| Place::Alias { at: at.into(), of: of.into() }).collect();
        compiled(&policy, &machine().with(nodes), tier)
    };
    let rules = "write /data/x read /data/f hide /data/x/secret write /home/u/ws/sub";
    let places = [("/root/in", "/data/f"), ("/root", "/data/x"), ("/work", "/home/u/ws/sub")];
    let plan = of(rules, &places, Tier::Namespaces).unwrap();
    let last = plan.mounts.iter().rev().take(3).rev().cloned().collect::<Vec<_>>();
    let alias = |target: &str, of: &str, directory| MountStep::Alias { target: target.into(), of: of.into(), directory };
    let wanted = [alias("/root", "/data/x", true), alias("/work", "/home/u/ws/sub", true), alias("/root/in", "/data/f", false)];
    assert_eq!(last, wanted);
    // What is shown twice is a mount of its own, also in a grant of the same kind.
    assert!(
        plan.mounts.iter().any(|step| matches!(step, MountStep::Bind { .. }) && step.target() == Path::new("/home/u/ws/sub"))
    );
    for (places, tier, why) in [
        (("/x", "/far"), Tier::Namespaces, "/far is not granted, or hidden"),
        (("/x", "/data/x/secret"), Tier::Namespaces, "/data/x/secret is not granted, or hidden"),
        (("/usr/x", "/data/x"), Tier::Namespaces, "/usr is granted"),
        (("/data", "/data/x"), Tier::Namespaces, "is there"),
        (("/proc/x", "/data/x"), Tier::Namespaces, "the sandbox makes it itself"),
        (("/x", "/data/x"), Tier::Landlock, "no user namespaces"),
    ] {
        let rules = "read /usr write /data/x hide /data/x/secret";
        let error = of(rules, &[places], tier).unwrap_err().to_string();
        assert!(error.contains(why), "{places:?}: {error}");
    }
}

#[test]
fn a_directory_of_its_own_may_stand_where_nothing_is() {
    let mut policy = policy("read /usr");
    policy.places = ["/work", "/tmp", "/var/tmp"].map(|at| Place::Scratch { at: at.into() }).into();
    let plan = compiled(&policy, &machine(), Tier::Namespaces).unwrap();
    let own = |at: &str| {
        plan.mounts
            .iter()
            .filter(|step| matches!(step, MountStep::Private { writable: true, .. }) && step.target() == Path::new(at))
            .count()
    };
    assert_eq!([own("/work"), own("/tmp"), own("/var/tmp")], [1, 1, 1]);
    policy.places = vec![Place::Scratch { at: "/usr/x".into() }];
    assert!(compiled(&policy, &machine(), Tier::Namespaces).is_err());
}

#[test]
fn named_sockets_are_there_unless_hidden_or_behind_a_hostile_symlink() {
    let nodes = "/run/agent= /home/u/.gnupg/s= /home/u/ws/l -> /run/bus /run/bus= /home/u/ws/inner= /run/dir/";
    let mut policy = policy("hide /home/u/.gnupg");
    let named = ["/run/agent", "/home/u/.gnupg/s", "/home/u/ws/l", "/home/u/ws/inner", "/run/dir", "/run/later"];
    policy.unix.connect = named.map(Into::into).into();
    let world = machine().with(nodes);
    let plan = compiled(&policy, &world, Tier::Namespaces).unwrap();
    assert_eq!(plan.unix_connect, ["/run/agent", "/home/u/ws/inner", "/run/later"].map(Path::new));
    assert_eq!(shown(&plan, Path::new("/run/agent")), Shown::Read);
    assert_eq!(shown(&plan, Path::new("/home/u/ws/inner")), Shown::Write);
    for path in ["/home/u/.gnupg/s", "/run/bus", "/run/dir"] {
        assert_eq!(shown(&plan, Path::new(path)), Shown::Nothing, "{path}");
    }
}

#[test]
fn landlock_alone_names_what_it_cannot_take_out_of_a_tree() {
    let landlock = |rules: &str, nodes: &str| compiled(&policy(rules), &machine().with(nodes), Tier::Landlock).unwrap();
    let kept = landlock("write /data read /data/rules", "/data/rules/");
    assert_eq!(reason(&kept.lost, Guarantee::FilesWriteConfined), "Landlock cannot take /data/rules out of a writable tree");
    // A cache with a credential in it is not granted; in a writable tree that would make it writable.
    let cache = landlock("copy ?/data hide /data/token", "/data/token");
    assert_eq!((at(&cache, "/data"), reason(&cache.lost, Guarantee::FilesHidden)), (Shown::Nothing, ""));
    let cache = landlock("write /data copy ?/data/cache hide /data/cache/token", "/data/cache/token");
    assert!(!reason(&cache.lost, Guarantee::FilesHidden).is_empty());
    assert!(!reason(&cache.lost, Guarantee::FilesWriteConfined).is_empty());
    // Only what the policy can do without is left out.
    let asked = landlock("copy /data hide /data/token", "/data/token");
    assert!(!reason(&asked.lost, Guarantee::FilesHidden).is_empty());
}

#[test]
fn without_seccomp_landlock_alone_confines_no_sockets() {
    let policy = policy("");
    let host = Host { seccomp: super::hosts::fails(crate::step::Step::Seccomp, Errno::EINVAL), ..baseline() };
    let choices = Choices { tier: Some(Tier::Landlock), ..Choices::default() };
    let plan = compile(&policy, &host, &machine().survey(&policy), choices).unwrap();
    for guarantee in [Guarantee::NetworkMediated, Guarantee::UnixSocketsConfined, Guarantee::IpcPrivate] {
        assert!(!reason(&plan.lost, guarantee).is_empty(), "{guarantee}");
    }
}

#[test]
fn without_namespaces_the_other_tier_is_taken_or_pointed_to() {
    let plan = |abi: u32, uid: u32| {
        let mut policy = policy("");
        let preferred = super::world::builtin("agent").preferred;
        policy.preferred = preferred;
        let host = Host { landlock_abi: abi, uid, ..without_userns(UsernsCause::AppArmor, Errno::EACCES) };
        compile(&policy, &host, &machine().survey(&policy), Choices::default()).unwrap()
    };
    assert_eq!(plan(6, 1000).tier, Tier::Landlock);
    let hint = |plan: &Plan| plan.fatal().next().unwrap().remedy.clone();
    assert_eq!(plan(5, 1000).tier, Tier::Namespaces);
    assert!(hint(&plan(5, 1000)).ends_with("; or see what `--tier landlock` needs, which loses signals-confined"));
    assert!(hint(&plan(7, 0)).ends_with("; or see what `--tier landlock` needs, which loses files-write-confined"));
}

#[test]
fn an_accepted_loss_of_notifications_starts_without_them() {
    let mut policy = policy("");
    policy.accepted.insert(Guarantee::UnixSocketsConfined);
    let host = Host { notify: super::hosts::fails(crate::step::Step::Broker, Errno::EBUSY), ..baseline() };
    let plan = compile(&policy, &host, &machine().survey(&policy), Choices::default()).unwrap();
    assert!(!plan.seccomp.notify_connect && plan.fatal().next().is_none());
}

#[test]
fn the_smaller_memory_limit_counts() {
    let memory = |memory, memory_percent| {
        let policy = Policy { limits: Limits { memory, memory_percent, ..Limits::default() }, ..policy("") };
        compiled(&policy, &machine(), Tier::Namespaces).unwrap().limits.memory
    };
    assert_eq!(memory(Some(1 << 30), Some(50)), Some(1 << 30));
    assert_eq!(memory(Some(1 << 40), Some(50)), Some((16 << 30) / 100 * 50));
    assert_eq!(memory(None, None), None);
}

#[test]
fn without_network_there_is_none() {
    for network in [Network::Off, Network::Routes(Vec::new())] {
        let policy = Policy { network, ..policy("") };
        let plan = compiled(&policy, &machine(), Tier::Landlock).unwrap();
        assert!(!plan.seccomp.inet_sockets && plan.landlock.unwrap().deny_tcp);
    }
}

#[test]
fn routes_without_namespaces_need_rules_for_tcp_and_notifications() {
    let policy = Policy { network: routes(), ..policy("") };
    let plan = |host: Host| {
        let choices = Choices { tier: Some(Tier::Landlock), scratch: Some("/tmp/s".as_ref()), ..Choices::default() };
        compile(&policy, &host, &machine().survey(&policy), choices).unwrap()
    };
    let works = plan(baseline());
    assert_eq!(works.network, NetworkPlan::Notified);
    assert!(works.seccomp.mediate_tcp && works.landlock.as_ref().unwrap().deny_tcp && works.gateway.is_some());
    assert_eq!(reason(&works.lost, Guarantee::NetworkMediated), "");
    assert!(reason(&works.lost, Guarantee::LoopbackPrivate).contains("shared"));
    let broken = super::hosts::fails(crate::step::Step::Broker, Errno::EBUSY);
    for (host, why) in
        [(Host { landlock_abi: 3, ..baseline() }, "ABI 4"), (Host { mediation: broken, ..baseline() }, "notifications")]
    {
        let plan = plan(host);
        assert_eq!((plan.network, plan.gateway.is_some()), (NetworkPlan::NoSockets, false));
        assert!(plan.fatal().any(|lost| lost.guarantee == Guarantee::NetworkMediated && lost.reason.contains(why)));
    }
}

fn routes() -> Network {
    Network::Routes(vec![hermes_profiles::Route::new("a.test", [443], Origin::Flag("--test".into()))])
}

#[test]
fn a_limit_that_is_lost_is_not_asked_for() {
    let policy = Policy { limits: Limits { cpu_percent: Some(150), ..Limits::default() }, ..policy("") };
    let world = machine();
    let plan = |cgroup| {
        let host = Host { cgroup, ..baseline() };
        compile(&policy, &host, &world.survey(&policy), Choices::default()).unwrap()
    };
    let with_cpu = plan(CgroupAccess::V2 { directory: "/cg".into(), controllers: vec!["cpu".into()] });
    assert_eq!((with_cpu.limits.cpu_percent, reason(&with_cpu.lost, Guarantee::CpuLimited)), (Some(150), ""));
    let without = plan(CgroupAccess::V2 { directory: "/cg".into(), controllers: vec!["pids".into()] });
    assert_eq!(without.limits.cpu_percent, None);
    assert!(reason(&without.lost, Guarantee::CpuLimited).contains("cpu controller"));
}

#[test]
fn changes_to_a_copy_on_write_workspace_are_kept_or_nothing_starts() {
    let mut overlaid = policy("copy /home/u/.cargo hide /home/u/ws/README hide /home/u/.cargo/credentials.toml");
    overlaid.workspace_access = Access::Overlay;
    let survey = machine().survey(&overlaid);
    let trees = [("/home/u/ws".into(), Layer::Planned)];
    let with = |works: &Probe, host: &Host, tier| {
        let choices = Choices { tier, kept: Some(Kept { trees: &trees, works }), ..Choices::default() };
        compile(&overlaid, host, &survey, choices).unwrap()
    };
    let step = |plan: &Plan, target: &str| plan.mounts.iter().find(|step| step.target() == Path::new(target)).cloned();
    let lost = |plan: &Plan| plan.fatal().any(|lost| lost.guarantee == Guarantee::WorkspaceOverlaid);

    // What the host's memory file system cannot do is no reason: the layer lies elsewhere.
    let old = Host { overlay: fails(Step::Overlay, Errno::EOPNOTSUPP), ..baseline() };
    for host in [&baseline(), &old] {
        let plan = with(&Probe::Works, host, None);
        assert!(!lost(&plan), "{:?}", plan.lost);
        // A whiteout would be a deletion of the command's.
        assert!(
            matches!(step(&plan, "/home/u/ws"), Some(MountStep::Overlay { layer: Layer::Planned, whiteouts, .. }) if whiteouts.is_empty())
        );
        assert!(matches!(step(&plan, "/home/u/ws/README"), Some(MountStep::Mask { .. })));
    }
    let caches = step(&with(&Probe::Works, &baseline(), None), "/home/u/.cargo");
    assert!(matches!(caches, Some(MountStep::Overlay { layer: Layer::Private, whiteouts, .. }) if whiteouts.len() == 1));

    let none = compile(&overlaid, &baseline(), &survey, Choices::default()).unwrap();
    let failing = with(&fails(Step::Overlay, Errno::EINVAL), &baseline(), None);
    for plan in [&none, &failing] {
        assert!(lost(plan));
        assert!(matches!(step(plan, "/home/u/ws"), Some(MountStep::Bind { writable: false, .. })));
    }
    assert!(lost(&with(&Probe::Works, &baseline(), Some(Tier::Landlock))));

    overlaid.workspace_access = Access::Write;
    let plain = compile(&overlaid, &baseline(), &survey, Choices::default()).unwrap();
    assert!(!lost(&plain), "nothing is to be kept");
}

#[test]
fn what_is_kept_and_what_ends_with_the_sandbox_never_share_a_layer() {
    let mut nested = policy("copy /home/u/.cargo/registry copy /home/u");
    nested.workspace = "/home/u/.cargo".into();
    nested.workspace_access = Access::Overlay;
    nested.allow_broad = true;
    let trees = [("/home/u/.cargo".into(), Layer::Planned)];
    let choices = Choices { kept: Some(Kept { trees: &trees, works: &Probe::Works }), ..Choices::default() };
    let plan = compile(&nested, &baseline(), &machine().survey(&nested), choices).unwrap();
    let layers: Vec<_> = plan
        .mounts
        .iter()
        .filter_map(|step| match step {
            MountStep::Overlay { target, layer, .. } => Some((target.to_str().unwrap(), layer.clone())),
            _ => None,
        })
        .collect();
    let expected = [("/home/u", Layer::Private), ("/home/u/.cargo", Layer::Planned), ("/home/u/.cargo/registry", Layer::Private)];
    assert_eq!(layers, expected);
}

#[test]
fn a_container_gives_what_landlock_alone_would_lose() {
    let mut limited = policy("write /home/u/ws");
    (limited.limits.memory, limited.limits.processes) = (Some(1 << 30), Some(100));
    let enclosure = Enclosure { memory: true, processes: true, cpu: true };
    let root = Host { uid: 0, gid: 0, userns: fails(Step::Namespaces, Errno::EPERM), ..baseline() };
    let enclosed = Host { enclosure: Some(enclosure), cgroup: CgroupAccess::None, ..root.clone() };
    let choices = Choices { tier: Some(Tier::Landlock), scratch: Some(Path::new("/tmp/x")), ..Choices::default() };
    let survey = machine().survey(&limited);
    let plain = compile(&limited, &root, &survey, choices).unwrap();
    assert!(plain.fatal().any(|lost| lost.guarantee == Guarantee::FilesWriteConfined), "the control: real root would enter");
    let plan = compile(&limited, &enclosed, &survey, choices).unwrap();
    for given in [
        Guarantee::FilesWriteConfined,
        Guarantee::HomePrivate,
        Guarantee::ProcessesHidden,
        Guarantee::TreeKilled,
        Guarantee::MemoryLimited,
        Guarantee::ProcessesLimited,
    ] {
        assert!(plan.held().contains(&given), "{given}: {:?}", plan.lost);
    }
    assert_eq!((plan.limits.memory_by, plan.limits.processes_by), (Enforcer::Container, Enforcer::Container));
    let rules = &plan.landlock.as_ref().unwrap().paths;
    for place in ["/tmp", "/run", "/dev/shm", "/home/u"] {
        assert!(rules.iter().any(|rule| rule.path == Path::new(place) && rule.rights == PathRights::Write), "{place}");
    }
    assert!(!plain.landlock.unwrap().paths.iter().any(|rule| rule.path == Path::new("/tmp")));
}
