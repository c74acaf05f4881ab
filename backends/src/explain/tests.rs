//! The sandbox of these tests: /usr read-only, a private home, a workspace in it with one hidden file.

use super::*;
use crate::plan::{Enforcer, Identity, LandlockPlan, LimitsPlan, Lost, PathRule, Source, Tier};
use hermes_profiles::{Home, HomeMode, KernelRules, Limits, Route, UnixRules};

fn rule(path: &str, access: Access, origin: Origin) -> FileRule {
    FileRule { path: path.into(), access, optional: true, origin }
}

fn policy() -> Policy {
    let base = || Origin::Builtin("base".into());
    Policy {
        profile: "agent".into(),
        workspace: "/home/u/ws".into(),
        workspace_access: Access::Write,
        allow_broad: false,
        home: Home { dir: Some("/home/u".into()), mode: HomeMode::Private },
        files: vec![
            rule("/usr", Access::Read, base()),
            rule("/lib", Access::Read, base()),
            rule("/home/u/ws", Access::Write, base()),
            rule("/home/u/ws/s.env", Access::Hidden, Origin::Flag("--deny".into())),
        ],
        environment: EnvironmentRules::default(),
        network: Network::Off,
        unknown_hosts: Default::default(),
        loopback: Default::default(),
        unix: UnixRules::default(),
        mcp: hermes_profiles::McpRules::default(),
        docker: hermes_profiles::DockerRules::default(),
        limits: Limits::default(),
        kernel: KernelRules::default(),
        preferred: [].into(),
        accepted: [].into(),
        guard: hermes_profiles::GuardRules::default(),
        places: Vec::new(),
    }
}

fn bind(path: &str, writable: bool) -> MountStep {
    MountStep::Bind {
        source: Source { path: path.into(), dev: 1, ino: 1 },
        target: path.into(),
        directory: true,
        writable,
        device: false,
    }
}

fn tmpfs(path: &str, writable: bool) -> MountStep {
    MountStep::Private { target: path.into(), mode: 0o755, writable }
}

fn allowed(path: &str, rights: PathRights) -> PathRule {
    PathRule { path: path.into(), identity: None, rights }
}

fn plan() -> Plan {
    Plan {
        profile: "agent".into(),
        tier: Tier::Namespaces,
        identity: Identity { uid: 1000, gid: 1000, host_uid: 1000, host_gid: 1000, idmap: false },
        mounts: vec![
            tmpfs("/", false),
            bind("/usr", false),
            MountStep::Symlink { target: "/lib".into(), to: "usr/lib".into() },
            tmpfs("/tmp", true),
            tmpfs("/home/u", true),
            bind("/home/u/ws", true),
            MountStep::Mask { target: "/home/u/ws/s.env".into(), directory: false },
            MountStep::Proc,
        ],
        scratch: None,
        landlock: Some(LandlockPlan {
            abi: 7,
            paths: vec![
                allowed("/usr", PathRights::Read),
                allowed("/tmp", PathRights::Write),
                allowed("/home/u", PathRights::Write),
            ],
            handle_files: true,
            deny_tcp: false,
            scope_signals: true,
            scope_abstract: true,
        }),
        seccomp: SeccompPlan {
            strict: false,
            nested_sandbox: false,
            notify_connect: true,
            unix_sockets: true,
            unix_datagram: false,
            inet_sockets: true,
            mediate_tcp: false,
            make_sockets: false,
            deny_ipc: false,
        },
        network: NetworkPlan::Private,
        gateway: None,
        connect: Vec::new(),
        unix_connect: Vec::new(),
        limits: LimitsPlan {
            memory: None,
            memory_by: Enforcer::Nothing,
            processes: None,
            processes_by: Enforcer::Nothing,
            cpu_percent: None,
            open_files: None,
            file_size: None,
            timeout: None,
            grace: 2000,
        },
        redirects: Vec::new(),
        cwd: "/home/u/ws".into(),
        lost: Vec::new(),
        weakened: Vec::new(),
    }
}

/// The same without namespaces: nothing can hide a file inside a granted tree.
fn landlock_plan() -> Plan {
    let mut plan = Plan { tier: Tier::Landlock, mounts: Vec::new(), network: NetworkPlan::NoSockets, ..plan() };
    if let Some(landlock) = &mut plan.landlock {
        landlock.paths = vec![allowed("/usr", PathRights::Read), allowed("/home/u/ws", PathRights::Write)];
    }
    let lost = |guarantee, reason: &str| Lost { guarantee, required: false, reason: reason.into(), remedy: String::new() };
    plan.lost = vec![
        lost(Guarantee::FilesHidden, "Landlock cannot hide below a grant"),
        lost(Guarantee::MetadataConfined, "Landlock has no such right"),
    ];
    plan
}

fn survey() -> Survey {
    let mut survey = Survey::default();
    let present = |real: &str| Found::Present {
        real: real.into(),
        kind: crate::survey::Kind::Directory,
        dev: 1,
        ino: 1,
        uid: 0,
        links: Vec::new(),
    };
    for path in ["/usr", "/home/u/ws", "/home/u/ws/s.env", "/home/u/.ssh/id", "/tmp/x", "/usr/bin/sh"] {
        survey.insert(path, present(path));
    }
    survey.insert("/lib", present("/usr/lib"));
    survey.insert("/lib/x.so", present("/usr/lib/x.so"));
    survey
}

fn path(plan: &Plan, path: &str) -> (Verdict, Verdict, Answer) {
    let answer = explain_path(&policy(), plan, &survey(), Path::new(path));
    (answer.verdicts[0].1.clone(), answer.verdicts[1].1.clone(), answer)
}

const BOTH: [Layer; 2] = [Layer::Mounts, Layer::Landlock];

#[test]
fn a_granted_tree_is_granted() {
    let (read, write, answer) = path(&plan(), "/home/u/ws");
    assert_eq!((read, write), (Verdict::Allowed, Verdict::Allowed));
    assert_eq!((answer.allow, answer.notes), (None, vec![]));
    let (read, write, answer) = path(&plan(), "/usr/bin/sh");
    assert_eq!((read, write), (Verdict::Allowed, Verdict::Enforced(BOTH.to_vec())));
    assert_eq!(answer.allow.as_deref(), Some("--rw /usr/bin/sh (to write)"));
    assert_eq!(answer.rule.map(|rule| (rule.text, rule.origin.to_string())), Some(("read /usr".into(), "profile base".into())));
}

#[test]
fn what_no_rule_names_is_refused_and_the_flag_is_named() {
    let (read, write, answer) = path(&plan(), "/home/u/.ssh/id");
    // The private home covers it, and inside that tree Landlock has nothing against it.
    assert_eq!((read, write), (Verdict::Enforced(vec![Layer::Mounts]), Verdict::Enforced(vec![Layer::Mounts])));
    assert_eq!(answer.allow.as_deref(), Some("--ro /home/u/.ssh/id (to read) or --rw /home/u/.ssh/id (to write too)"));
    assert!(answer.notes[0].contains("/home/u is a private directory"));
    let (read, _, answer) = path(&plan(), "/etc/shadow file");
    assert_eq!(read, Verdict::Enforced(BOTH.to_vec()));
    assert!(answer.allow.is_some_and(|allow| allow.starts_with("--ro '/etc/shadow file'")));
}

#[test]
fn a_hidden_file_inside_a_grant() {
    let (read, _, answer) = path(&plan(), "/home/u/ws/s.env");
    assert_eq!(read, Verdict::Enforced(vec![Layer::Mounts]));
    assert_eq!(answer.allow.as_deref(), Some("leave out --deny /home/u/ws/s.env"));

    let (read, write, _) = path(&landlock_plan(), "/home/u/ws/s.env");
    let nothing = Verdict::NotEnforced("files-hidden: Landlock cannot hide below a grant".into());
    assert_eq!((read, write), (nothing.clone(), nothing));
}

#[test]
fn whiteouts_hide_and_copies_are_said_to_be_copies() {
    let mut plan = plan();
    let source = Source { path: "/home/u/ws".into(), dev: 1, ino: 1 };
    plan.mounts[5] = MountStep::Overlay {
        source,
        layer: crate::plan::Layer::Private,
        target: "/home/u/ws".into(),
        whiteouts: vec!["s.env".into()],
    };
    plan.mounts.remove(6);
    assert_eq!(path(&plan, "/home/u/ws/s.env").0, Verdict::Enforced(vec![Layer::Mounts]));
    let mut policy = policy();
    policy.files[2].access = Access::Overlay;
    let answer = explain_path(&policy, &plan, &survey(), Path::new("/home/u/ws"));
    assert_eq!(answer.verdicts[1].1, Verdict::Allowed);
    assert!(answer.notes.iter().any(|note| note.contains("do not reach the host")));
}

#[test]
fn symlinks_are_seen_through() {
    let (read, _, answer) = path(&plan(), "/lib/x.so");
    assert_eq!(read, Verdict::Allowed);
    assert_eq!(answer.notes, ["it leads to /usr/lib/x.so"]);
    assert_eq!(answer.rule.map(|rule| rule.text).as_deref(), Some("read /lib, which leads to /usr/lib"));
}

#[test]
fn without_mounts_landlock_refuses_and_metadata_is_said_to_be_open() {
    let (read, write, answer) = path(&landlock_plan(), "/home/u/.ssh/id");
    assert_eq!((read, write), (Verdict::Enforced(vec![Layer::Landlock]), Verdict::Enforced(vec![Layer::Landlock])));
    assert!(answer.notes.iter().any(|note| note.contains("metadata-confined")));
}

#[test]
fn hosts() {
    let connect = |policy: &Policy, plan: &Plan, host: &str, port, proxied| {
        let answer = explain_host(policy, plan, host, port, proxied);
        (answer.verdicts[0].1.clone(), answer)
    };
    let mut policy = policy();
    let (verdict, answer) = connect(&policy, &plan(), "API.example.test.", Some(443), None);
    assert_eq!(verdict, Verdict::Enforced(vec![Layer::NetworkNamespace]));
    assert_eq!(answer.allow.as_deref(), Some("--allow-host api.example.test:443"));
    assert_eq!(connect(&policy, &landlock_plan(), "x.test", None, None).0, Verdict::Enforced(vec![Layer::Seccomp]));
    assert!(connect(&policy, &plan(), "127.0.0.1", Some(80), None).1.notes[0].contains("sandbox's own"));
    assert_eq!(connect(&policy, &plan(), "::1", Some(80), None).1.allow.as_deref(), Some("--allow-host '[::1]:80'"));

    policy.network = Network::Routes(vec![Route::new("*.example.test", [443], Origin::Builtin("agent".into()))]);
    let gateway = crate::plan::GatewayPlan { ports: vec![443], proxy: 3128, certificates: None };
    let routed = Plan { gateway: Some(gateway.clone()), ..plan() };
    let notified = Plan { network: NetworkPlan::Notified, gateway: Some(gateway), ..landlock_plan() };
    let rule = || Rule { text: "route".into(), origin: Origin::Builtin("agent".into()) };
    let allowed = || Some(Proxied::Allowed { rule: rule(), read: false, addresses: vec!["10.0.0.0/8".into()] });
    let refused = || Some(Proxied::Refused { why: "no route leads to this host".into(), rule: None });
    for plan in [&routed, &notified] {
        let (verdict, answer) = connect(&policy, plan, "api.example.test", Some(443), allowed());
        assert_eq!((verdict, answer.rule, answer.allow), (Verdict::Allowed, Some(rule()), None));
        assert!(answer.notes.iter().any(|note| note.contains("10.0.0.0/8")));
        let (verdict, answer) = connect(&policy, plan, "other.test", Some(443), refused());
        assert!(matches!(verdict, Verdict::Enforced(layers) if layers.contains(&Layer::Proxy)));
        assert_eq!(answer.notes, ["no route leads to this host"]);
        // Nothing listens, but the proxy itself can be asked.
        let answer = connect(&policy, plan, "api.example.test", Some(9999), allowed()).1;
        assert!(matches!(answer.verdicts[0], ("connect", Verdict::Enforced(_))), "{:?}", answer.verdicts);
        assert_eq!(answer.verdicts[1..], [("proxy", Verdict::Allowed)]);
        // The loopback inside leads to no proxy either.
        let answer = connect(&policy, plan, "localhost", Some(443), allowed()).1;
        assert!(matches!(answer.verdicts[0], ("connect", Verdict::Enforced(_))), "{:?}", answer.verdicts);
        assert_eq!(answer.verdicts[1..], [("proxy", Verdict::Allowed)]);
    }
    assert!(
        connect(&policy, &notified, "localhost", Some(80), refused()).1.notes.iter().any(|note| note.contains("own are reached"))
    );
    let opened = Plan { connect: vec![80], ..routed };
    assert_eq!(connect(&policy, &opened, "localhost", Some(80), refused()).0, Verdict::Allowed);

    policy.network = Network::Host;
    let host = Plan { network: NetworkPlan::Host, ..plan() };
    assert_eq!(connect(&policy, &host, "x.test", None, None).0, Verdict::Allowed);
}

#[test]
fn calls() {
    let ask = |plan: &Plan, name| {
        let answer = explain_syscall(plan, Arch::X86_64, name);
        (answer.verdicts[0].1.clone(), answer)
    };
    let refused = Verdict::Enforced(vec![Layer::Seccomp]);
    assert_eq!(ask(&plan(), "read").0, Verdict::Allowed);
    assert_eq!(ask(&plan(), "read").1.allow, None);
    let (verdict, answer) = ask(&plan(), "mount");
    assert_eq!(verdict, refused);
    assert_eq!(answer.notes, ["it fails with EPERM"]);
    assert_eq!(answer.allow.as_deref(), Some("no option of a policy opens it"));
    assert_eq!(ask(&plan(), "unshare").1.allow.as_deref(), Some("nested-sandbox = true under [kernel] in a profile"));
    assert_eq!(ask(&plan(), "connect").1.notes, ["it is checked and made by the sandbox's broker"]);
    assert_eq!(ask(&plan(), "no_such").0, refused);

    let lost =
        Lost { guarantee: Guarantee::SyscallsFiltered, required: false, reason: "no filter".into(), remedy: String::new() };
    let unfiltered = Plan { lost: vec![lost], ..plan() };
    assert_eq!(ask(&unfiltered, "mount").0, Verdict::NotEnforced("syscalls-filtered: no filter".into()));
}

#[test]
fn variables() {
    let mut rules = EnvironmentRules::default();
    let ask = |rules: &EnvironmentRules, name: &str, value: &str| {
        let answer = explain_env(rules, OsStr::new(name), Some(OsStr::new(value)));
        assert!(!format!("{answer:?}").contains("s3cr3t"));
        (answer.verdicts[0].1 == Verdict::Allowed, answer.allow)
    };
    assert_eq!(ask(&rules, "PATH", "/bin"), (true, None));
    assert_eq!(ask(&rules, "SERVICE_TOKEN", "s3cr3t"), (false, Some("--env SERVICE_TOKEN".into())));
    rules.explicit.insert("SERVICE_TOKEN".into());
    assert_eq!(ask(&rules, "SERVICE_TOKEN", "s3cr3t"), (true, None));
    rules.deny.push("SERVICE_*".into());
    assert!(ask(&rules, "SERVICE_TOKEN", "s3cr3t").1.is_some_and(|allow| allow.ends_with("--env cannot")));
    assert_eq!(explain_env(&rules, OsStr::new("LANG"), None).notes, ["the caller does not have it now"]);
}
