//! The project's own file only takes away.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::Selector;
use hermes_profiles::project::{PROJECT_FILE, narrow};
use hermes_profiles::trust::{self, Trust};
use hermes_profiles::{Access, Guarantee, HomeMode, Limits, McpTool, Network, Policy, Request, environment, profile};
use proptest::prelude::*;
use support::*;

fn project_path() -> PathBuf {
    Path::new(WORK).join(PROJECT_FILE)
}

fn trusted(text: &str) -> Memory {
    let mut trust = Trust::default();
    trust.add(text.as_bytes(), &project_path());
    Memory::default().with(project_path(), text).with(format!("{STATE}/trust"), trust.format())
}

#[test]
fn without_trust_it_is_mentioned_and_not_applied() {
    let text = "schema = 1\n[environment]\nallow = [\"OPENAI_API_KEY\"]\n[filesystem]\nwrite = [\"/\"]\n";
    let files = Memory::default().with(project_path(), text);
    let plain = policy(&request("agent"), &Memory::default());
    assert_eq!(policy(&request("agent"), &files), plain);
    let said = notices(&request("agent"), &files);
    assert_eq!(said, ["/home/user/project/.hermes-sandbox.toml: is not trusted, so it was not applied; read it, then trust it"]);

    let mut files = trusted("schema = 1\n[filesystem]\nhide = [\"x\"]\n");
    files = files.with(project_path(), "schema = 1\n");
    assert!(notices(&request("agent"), &files)[0].contains("has changed since it was trusted"));
}

#[test]
fn garbage_without_trust_stops_nothing() {
    for garbage in [&b"\xff\xfe"[..], b"not toml", &[0; 10], &vec![b'x'; 2 << 20]] {
        let files = Memory::default().with(project_path(), garbage);
        assert_eq!(notices(&request("agent"), &files).len(), 1);
    }
}

#[test]
fn it_takes_away() {
    let text = r#"
schema = 1
[filesystem]
workspace = "read"
hide = ["private", "/usr/local"]
read = ["/srv/data"]
guard = ["**/special"]
[environment]
deny = ["EDITOR", "GH_TOKEN"]
[network]
mode = "off"
[limits]
memory = "1GiB"
processes = 10
timeout = "5m"
[kernel]
strict = true
[guarantees]
require = ["memory-limited"]
[mcp]
tools = ["read", "exec"]
"#;
    let mut request = request("agent");
    request.overrides.rw = vec!["/srv/data".into()];
    request.overrides.net = Some("host".into());
    request.overrides.env = vec!["GH_TOKEN".into()];
    request.caller = caller(&[("GH_TOKEN", "x")]);
    let files = trusted(text);
    let narrowed = policy(&request, &files);
    assert_eq!(narrowed.workspace_access, Access::Read);
    assert_eq!(access(&narrowed, "/home/user/project/src"), Some(Access::Read));
    assert_eq!(access(&narrowed, "/home/user/project/private/x"), Some(Access::Hidden));
    assert_eq!(access(&narrowed, "/usr/local/bin"), Some(Access::Hidden));
    assert_eq!(access(&narrowed, "/srv/data/x"), Some(Access::Read));
    assert_eq!(narrowed.network, Network::Off);
    assert_eq!((narrowed.limits.memory, narrowed.limits.memory_percent), (Some(1 << 30), Some(75)));
    assert_eq!((narrowed.limits.processes, narrowed.limits.timeout), (Some(10), Some(300_000)));
    assert!(narrowed.kernel.strict && narrowed.requires(Guarantee::MemoryLimited));
    assert_eq!(Vec::from_iter(narrowed.mcp.tools), [McpTool::Exec, McpTool::Read]);
    assert_eq!(narrowed.guard.add, [Selector::Anywhere("**/special".into())]);
    assert_eq!(
        environment::filter(&narrowed.environment, variables(&[("EDITOR", "vi"), ("GH_TOKEN", "x")]).into_iter()).passed.len(),
        1
    );
    assert_eq!(notices(&request, &files), ["--env GH_TOKEN has no effect: the policy denies it"]);
}

#[test]
fn whatever_adds_is_an_error_with_its_line() {
    for (text, line, what) in [
        ("schema = 1\nincludes = [\"agent\"]\n", 2, "includes"),
        ("schema = 1\n[filesystem]\nunguard = [\"rule:husky\"]\n", 3, "filesystem.unguard"),
        ("schema = 1\n[filesystem]\nwrite = [\"/srv\"]\n", 3, "does not allow this for /srv"),
        ("schema = 1\n[filesystem]\nread = [\"/srv\"]\n", 3, "does not allow this for /srv"),
        ("schema = 1\n[filesystem]\nread = [\"/\"]\n", 3, "does not allow this for /"),
        ("schema = 1\n[filesystem]\nwrite = [\"/usr/local\"]\n", 3, "does not allow this"),
        ("schema = 1\n[filesystem]\nread = [\"~/.ssh\"]\n", 3, "does not allow this"),
        ("schema = 1\n[filesystem]\ncache = [\"/usr/share\"]\n", 3, "does not allow this"),
        ("schema = 1\n[filesystem]\nread = [\"sub\"]\n", 3, "only part of a grant"),
        ("schema = 1\n[filesystem]\nhome = \"read\"\n", 3, "filesystem.home"),
        ("schema = 1\n[filesystem]\nhide = [\".\"]\n", 3, "hides the workspace"),
        ("schema = 1\n[environment]\nallow = [\"X\"]\n", 3, "environment.allow"),
        ("schema = 1\n[environment]\nset = { X = \"1\" }\n", 3, "environment.set"),
        ("schema = 1\n[network]\nmode = \"host\"\n", 3, "network.mode"),
        ("schema = 1\n[[network.route]]\nhost = \"example.test\"\n", 3, "network.mode"),
        ("schema = 1\n[unix]\nconnect = [\"/run/x\"]\n", 3, "unix.connect"),
        ("schema = 1\n[limits]\nprocesses = 10000\n", 3, "limits"),
        ("schema = 1\n[limits]\nprocesses = \"none\"\n", 3, "limits"),
        ("schema = 1\n[limits]\nmemory = \"none\"\n", 3, "limits"),
        ("schema = 1\n[limits]\nmemory = \"80%\"\n", 3, "limits"),
        ("schema = 1\n[limits]\ngrace = \"1h\"\n", 3, "limits"),
        ("schema = 1\n[kernel]\nnested-sandbox = true\n", 3, "kernel"),
        ("schema = 1\n[guarantees]\nprefer = [\"signals-confined\"]\n", 3, "guarantees.prefer"),
    ] {
        let message = error(&request("agent"), &trusted(text));
        assert!(message.starts_with(&format!("{}:{line}: ", project_path().display())) && message.contains(what), "{message}");
    }
    let mut review = request("review");
    review.overrides.overlay = false;
    let more = error(&review, &trusted("schema = 1\n[mcp]\ntools = [\"read\", \"exec\"]\n"));
    assert!(more.contains(":3: mcp.tools: the policy does not offer exec; a project file may only take away"), "{more}");
    assert!(error(&review, &trusted("schema = 1\n[filesystem]\nworkspace = \"write\"\n")).contains("filesystem.workspace"));
}

#[test]
fn routes_may_be_left_out() {
    let mut request = request("agent");
    request.overrides.allow_hosts = vec!["a.example.test".into(), "b.example.test:22".into()];
    let policy = |text: &str| policy(&request, &trusted(text));
    let Network::Routes(routes) = policy("schema = 1\n[[network.route]]\nhost = \"a.example.test\"\nports = [443]\n").network
    else {
        panic!()
    };
    assert_eq!((routes.len(), routes[0].host.as_str(), &routes[0].ports[..]), (1, "a.example.test", &[443][..]));
    assert!(
        error(&request, &trusted("schema = 1\n[[network.route]]\nhost = \"a.example.test\"\nports = [22]\n"))
            .contains("does not lead to")
    );
    assert!(error(&request, &trusted("schema = 1\n[[network.route]]\nhost = \"c.example.test\"\n")).contains("does not lead to"));
}

#[test]
fn what_a_route_says_can_only_become_less() {
    let base = "schema = 1\nincludes = [\"agent\"]\n[[network.route]]\nhost = \"*.example.test\"\n[[network.route]]\n\
                host = \"api.example.test\"\nmethods = [\"GET\", \"POST\"]\nrate = \"60/m\"\n";
    let files = |text: &str| trusted(text).profile("mine", base);
    let request = request("mine");
    let routes = |text: &str| match policy(&request, &files(text)).network {
        Network::Routes(routes) => routes,
        other => panic!("{other:?}"),
    };
    let less = routes("schema = 1\n[[network.route]]\nhost = \"api.example.test\"\nmethods = [\"GET\"]\nrate = \"30/m\"\n");
    assert_eq!((less.len(), less[0].rules.methods.join(" ")), (1, "GET".into()));
    assert_eq!(less[0].rules.rate.map(|rate| rate.count), Some(30));
    let kept = routes("schema = 1\n[[network.route]]\nhost = \"api.example.test\"\n");
    assert_eq!(kept[0].rules.methods.join(" "), "GET POST");
    // Without its own route, the host would be reached by the wildcard's, which reads no requests.
    let wide = routes("schema = 1\n[[network.route]]\nhost = \"*.example.test\"\n");
    assert_eq!(wide.iter().map(|route| route.host.as_str()).collect::<Vec<_>>(), ["*.example.test", "api.example.test"]);
    for text in ["methods = [\"PUT\"]", "upstream = \"https://x.test\"", "addresses = [\"10.0.0.1\"]"] {
        let text = format!("schema = 1\n[[network.route]]\nhost = \"api.example.test\"\n{text}\n");
        assert!(error(&request, &files(&text)).contains("network.route"), "{text}");
    }
}

#[test]
fn trust_survives_being_written() {
    let mut list = Trust::default();
    list.add(b"one", Path::new("/a b/\u{1}\\x"));
    list.add(b"two", Path::new("/c"));
    assert_eq!(Trust::parse(&list.format()), list);
    list.add(b"three", Path::new("/c"));
    assert!(!list.contains(b"two") && list.contains(b"three") && list.contains(b"one"));
    assert!(list.remove(Path::new("/c")) && !list.remove(Path::new("/c")));
    assert_eq!(trust::hash(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    let broken = b"short  /x\n\nE3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855  /x\n";
    assert_eq!(Trust::parse(broken), Trust::default());
}

fn rank(access: Option<Access>) -> u8 {
    match access {
        None | Some(Access::Hidden) => 0,
        Some(Access::Read) => 1,
        Some(Access::Overlay) => 2,
        Some(Access::Write) => 3,
    }
}

fn at_most<T: PartialOrd>(narrow: Option<T>, wide: Option<T>) -> bool {
    match (narrow, wide) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(narrow), Some(wide)) => narrow <= wide,
    }
}

fn limits_narrower(a: &Limits, b: &Limits) -> bool {
    at_most(a.memory, b.memory)
        && at_most(a.memory_percent, b.memory_percent)
        && at_most(a.processes, b.processes)
        && at_most(a.scratch, b.scratch)
        && at_most(a.shm, b.shm)
        && at_most(a.open_files, b.open_files)
        && at_most(a.file_size, b.file_size)
        && at_most(a.cpu_percent, b.cpu_percent)
        && at_most(a.timeout, b.timeout)
        && a.grace <= b.grace
}

fn network_narrower(a: &Network, b: &Network) -> bool {
    match (a, b) {
        (Network::Off, _) | (_, Network::Host) => true,
        (Network::Routes(a), Network::Routes(b)) => {
            a.iter().all(|a| b.iter().any(|b| a.host == b.host && a.ports.iter().all(|port| b.ports.contains(port))))
        }
        _ => false,
    }
}

fn home_rank(mode: HomeMode) -> u8 {
    match mode {
        HomeMode::Hidden => 0,
        HomeMode::Private => 1,
        HomeMode::Read => 2,
    }
}

fn some_path() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("/".to_owned()),
        Just("~".to_owned()),
        Just(".".to_owned()),
        prop::collection::vec(prop::sample::select(vec!["a", "b", "..", "usr", "srv"]), 1..4)
            .prop_map(|parts| format!("/{}", parts.join("/"))),
        prop::collection::vec(prop::sample::select(vec!["a", "b", "..", ".ssh"]), 1..3).prop_map(|parts| parts.join("/")),
        prop::sample::select(vec!["~/.cargo", "~/.ssh", "~/.cache/x", "/home/user", "/srv/a"]).prop_map(str::to_owned),
    ]
}

fn list(density: f64, name: &'static str, items: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop::option::weighted(density, prop::collection::vec(items, 0..3)).prop_map(move |items| match items {
        Some(items) => format!("{name} = {items:?}\n"),
        None => String::new(),
    })
}

fn maybe(density: f64, text: Vec<&'static str>) -> impl Strategy<Value = String> {
    prop::option::weighted(density, prop::sample::select(text))
        .prop_map(|line| line.map(|line| format!("{line}\n")).unwrap_or_default())
}

/// The text of a profile without includes, in which each key is there with a probability.
fn some_profile(density: f64) -> impl Strategy<Value = String> {
    let files = (
        maybe(
            density,
            vec!["workspace = \"read\"", "workspace = \"write\"", "workspace = \"overlay\"", "workspace = \"hidden\""],
        ),
        maybe(density, vec!["home = \"read\"", "home = \"private\"", "home = \"hidden\""]),
        list(density, "read", some_path()),
        list(density, "write", some_path()),
        list(density, "cache", some_path()),
        list(density, "hide", some_path()),
    );
    let rest = (
        list(density, "allow", prop::sample::select(vec!["A", "B*", "LC_*"]).prop_map(str::to_owned)),
        list(density, "deny", prop::sample::select(vec!["A", "B*", "HOME"]).prop_map(str::to_owned)),
        maybe(density, vec!["mode = \"off\"", "mode = \"host\"", "mode = \"routes\""]),
        maybe(density, vec!["memory = \"1GiB\"", "memory = \"50%\"", "memory = \"none\"", "memory = \"90%\""]),
        maybe(
            density,
            vec!["processes = 10", "processes = 9999", "processes = \"none\"", "timeout = 3", "grace = 1", "grace = 9"],
        ),
        maybe(density, vec!["strict = true", "strict = false", "nested-sandbox = true", "unix-datagram = true"]),
        maybe(density, vec!["require = [\"tree-killed\"]", "prefer = [\"tree-killed\"]", "prefer = []"]),
        maybe(density, vec!["connect = []", "connect = [\"/run/a\"]", "connect = [\"/run/b\"]"]),
        maybe(density, vec!["tools = []", "tools = [\"read\"]", "tools = [\"write\", \"read\"]"]),
        prop::collection::vec(
            (prop::sample::select(vec!["a.example.test", "b.example.test"]), prop::collection::vec(1_u16..4, 1..3)),
            0..3,
        )
        .prop_map(move |routes| if density < 0.2 && routes.len() > 1 { Vec::new() } else { routes }),
    );
    (files, rest).prop_map(|((workspace, home, read, write, cache, hide), (allow, deny, mode, memory, limit, kernel, guarantee, connect, tools, routes))| {
        let mut text = format!("schema = 1\n[filesystem]\n{workspace}{home}{read}{write}{cache}{hide}");
        text += &format!("[environment]\n{allow}{deny}[limits]\n{memory}{limit}[kernel]\n{kernel}[guarantees]\n{guarantee}[unix]\n{connect}[mcp]\n{tools}");
        text += &format!("[network]\n{}", if routes.is_empty() { mode } else { String::new() });
        for (host, ports) in routes {
            text += &format!("[[network.route]]\nhost = \"{host}\"\nports = {ports:?}\n");
        }
        text
    })
}

fn base_policy(text: &str) -> Option<(Request, Policy)> {
    let mut request = request("mine");
    request.overrides.allow_broad = true;
    let files = Memory::default().profile("mine", text);
    hermes_profiles::resolve(&request, &files).ok().map(|resolved| (request, resolved.policy))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_project_file_never_widens(base in some_profile(0.4), project in some_profile(0.12), probes in prop::collection::vec(some_path(), 8)) {
        let Some((request, before)) = base_policy(&base) else { return Ok(()) };
        let layer = profile::check(&project_path(), project.as_bytes()).unwrap();
        let mut after = before.clone();
        if narrow(&mut after, &layer, &project_path(), &request.caller).is_err() {
            return Ok(());
        }
        let fixed = ["/", "/usr/bin", "/home", "/home/user", "/home/user/x", "/home/user/.ssh/x", WORK, "/home/user/project/a/b", "/srv/a/b"];
        let expanded = probes.iter().map(|probe| match probe.strip_prefix('~') {
            Some(rest) => format!("{HOME}{rest}"),
            None => Path::new(WORK).join(probe).to_str().unwrap().to_owned(),
        });
        for path in fixed.into_iter().map(str::to_owned).chain(expanded) {
            let path = hermes_profiles::paths::normalise(Path::new(&path));
            let path = path.to_str().unwrap();
            prop_assert!(rank(access(&after, path)) <= rank(access(&before, path)), "{path}\n{base}\n{project}");
        }
        prop_assert!(rank(Some(after.workspace_access)) <= rank(Some(before.workspace_access)));
        prop_assert_eq!(after.allow_broad, before.allow_broad);
        prop_assert!(home_rank(after.home.mode) <= home_rank(before.home.mode));
        prop_assert!(limits_narrower(&after.limits, &before.limits));
        prop_assert!(network_narrower(&after.network, &before.network));
        prop_assert!(after.unix.connect.iter().all(|path| before.unix.connect.contains(path)));
        prop_assert!(after.mcp.tools.is_subset(&before.mcp.tools));
        prop_assert!(after.preferred.is_subset(&before.preferred) && after.accepted == before.accepted);
        prop_assert!(before.guard.add.iter().all(|glob| after.guard.add.contains(glob)));
        prop_assert_eq!(&before.guard.allow, &after.guard.allow);
        prop_assert!(!after.kernel.nested_sandbox || before.kernel.nested_sandbox);
        prop_assert!(!after.kernel.unix_datagram || before.kernel.unix_datagram);
        prop_assert!(after.kernel.strict || !before.kernel.strict);
        let all = variables(&[("A", "1"), ("B1", "1"), ("LC_ALL", "1"), ("HOME", "1"), ("PATH", "1")]);
        let passed = |policy: &Policy| -> BTreeSet<(OsString, OsString)> {
            environment::filter(&policy.environment, all.iter().cloned()).passed.into_iter().collect()
        };
        prop_assert!(passed(&after).is_subset(&passed(&before)));
    }
}
