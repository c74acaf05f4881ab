//! From requests to policies.
#![allow(clippy::unwrap_used)]

mod support;

use hermes_profiles::{Access, Caller, Guarantee, HomeMode, Network, Origin, Overrides, Request, resolve};
use support::*;

fn flags(change: impl FnOnce(&mut Overrides)) -> Request {
    let mut request = request("agent");
    change(&mut request.overrides);
    request
}

#[test]
fn agent_is_the_default() {
    let policy = policy(&Request { caller: caller(&[]), ..Request::default() }, &Memory::default());
    assert_eq!(policy.profile, "agent");
    assert_eq!(policy.workspace_access, Access::Write);
    assert_eq!(policy.home.mode, HomeMode::Private);
    assert_eq!(policy.network, Network::Off);
    assert_eq!(policy.limits.processes, Some(4096));
    assert_eq!(policy.limits.memory_percent, Some(75));
    assert_eq!(policy.limits.scratch, Some(4 << 30));
    assert_eq!(policy.limits.grace, 2000);
    assert_eq!(access(&policy, "/usr/bin/sh"), Some(Access::Read));
    assert_eq!(access(&policy, "/home/user/project/src"), Some(Access::Write));
    assert_eq!(access(&policy, "/home/user/.ssh/id_ed25519"), Some(Access::Hidden));
    assert_eq!(access(&policy, "/home/user/.cargo/registry"), Some(Access::Overlay));
    assert_eq!(access(&policy, "/home/user/.cargo/credentials.toml"), Some(Access::Hidden));
    assert_eq!(access(&policy, "/home/user/notes"), None);
    assert_eq!(access(&policy, "/sys/kernel"), None);
    assert!(policy.requires(Guarantee::FilesReadConfined));
    assert!(!policy.requires(Guarantee::MemoryLimited));
    assert_eq!(policy.guard, hermes_profiles::GuardRules::default(), "the rules that ship hold without being named");
}

#[test]
fn every_builtin_resolves_without_notices() {
    for builtin in hermes_profiles::builtin::all() {
        let resolved = resolve(&request(builtin.name), &Memory::default()).unwrap();
        assert_eq!(resolved.notices, [""; 0], "{}", builtin.name);
        assert_eq!(hermes_profiles::builtin::find(builtin.name).unwrap().name, builtin.name);
        let mut paths: Vec<_> = resolved.policy.files.iter().map(|rule| &rule.path).collect();
        paths.sort();
        assert!(paths.windows(2).all(|pair| pair[0] != pair[1]), "{}: a path has two rules", builtin.name);
    }
}

#[test]
fn builtins_need_no_home() {
    for builtin in hermes_profiles::builtin::all() {
        let caller = Caller::from_variables("/srv/project".into(), variables(&[("HOME", "relative/home")]));
        let request = Request { profile: Some(builtin.name.into()), caller, ..Request::default() };
        match resolve(&request, &Memory::default()) {
            Ok(resolved) => assert_eq!(resolved.policy.home.dir, None),
            // Its state directory is not optional.
            Err(error) => assert!(builtin.name == "hermes" && error.to_string().contains("HOME"), "{error}"),
        }
    }
}

#[test]
fn credentials_are_hidden_in_a_readable_home() {
    let text = "schema = 1\nincludes = [\"agent\"]\n[filesystem]\nhome = \"read\"\n";
    let policy = written(text).unwrap().policy;
    for file in [
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".netrc",
        ".config/gh/hosts.yml",
        ".docker/config.json",
        ".kube/config",
        ".git-credentials",
        ".npmrc",
        ".pypirc",
        ".cargo/credentials.toml",
        ".hermes/.env",
        ".gnupg/private-keys-v1.d/k",
        ".config/gcloud/application_default_credentials.json",
        ".bash_history",
        ".local/share/keyrings/login.keyring",
        ".mozilla/firefox/p/cookies.sqlite",
        ".cache/huggingface/token",
        ".m2/settings.xml",
        ".gradle/gradle.properties",
        ".config/hermes-sandbox/config.toml",
        ".local/state/hermes-sandbox/trust",
    ] {
        assert_eq!(access(&policy, &format!("{HOME}/{file}")), Some(Access::Hidden), "{file}");
    }
    assert_eq!(access(&policy, "/home/user/notes"), Some(Access::Read));
    assert_eq!(access(&policy, "/home/user/project/x"), Some(Access::Write));
}

#[test]
fn hermes_keeps_its_state_but_not_its_rules() {
    for (pairs, dir) in [(&[][..], "/home/user/.hermes"), (&[("HERMES_HOME", "/srv/hermes/")][..], "/srv/hermes")] {
        let request = Request { caller: caller(pairs), ..request("hermes") };
        let policy = policy(&request, &Memory::default());
        let at = |file: &str| access(&policy, &format!("{dir}/{file}"));
        for data in
            ["state.db", "state.db-wal", "sessions/1.json", "logs/a.log", "memories/m", "skills/s/SKILL.md", "auth.lock", "new"]
        {
            assert_eq!(at(data), Some(Access::Write), "{data}");
        }
        for rule in ["config.yaml", "pairing/telegram-approved.json", "hooks/h", "plugins/p", "shell-hooks-allowlist.json"] {
            assert_eq!(at(rule), Some(Access::Read), "{rule}");
        }
        for secret in
            [".env", "auth.json", "mcp-tokens/x", ".anthropic_oauth.json", "auth/google_oauth.json", "profiles/work/.env"]
        {
            assert_eq!(at(secret), Some(Access::Hidden), "{secret}");
        }
    }
}

#[test]
fn strict_profiles_change_nothing_on_the_host() {
    for name in ["review", "code-strict", "mcp-server"] {
        let policy = policy(&request(name), &Memory::default());
        assert_eq!(policy.workspace_access, Access::Read, "{name}");
        assert!(policy.files.iter().all(|rule| rule.access != Access::Write), "{name}");
    }
    let strict = policy(&request("code-strict"), &Memory::default());
    assert!(strict.files.iter().all(|rule| matches!(rule.access, Access::Read | Access::Hidden)));
    assert!(policy(&request("review"), &Memory::default()).requires(Guarantee::ProcessesHidden));
}

#[test]
fn sources_choose_profiles() {
    let by = |source: &str, files: &Memory| {
        let request = Request { source: Some(source.into()), caller: caller(&[]), ..Request::default() };
        resolve(&request, files).map(|resolved| resolved.policy.profile)
    };
    let plain = Memory::default();
    for (source, profile) in [("cli", "agent"), ("webhook", "review"), ("cron", "cron"), ("ci", "ci"), ("mcp", "mcp-server")] {
        assert_eq!(by(source, &plain).unwrap(), profile);
    }
    assert_eq!(
        by("webhok", &plain).unwrap_err().to_string(),
        "--source webhok: no profile belongs to it; add it to [sources] in config.toml; did you mean \"webhook\"?"
    );
    let config = "default = \"review\"\n[sources]\ntelegram = \"offline\"\n\"my chat\" = \"code\"\n";
    let files = Memory::default().with(format!("{CONFIG}/config.toml"), config);
    assert_eq!(by("telegram", &files).unwrap(), "offline");
    assert_eq!(by("my chat", &files).unwrap(), "code");
    assert_eq!(by("cli", &files).unwrap(), "review");
    assert_eq!(policy(&Request { caller: caller(&[]), ..Request::default() }, &files).profile, "review");
    assert_eq!(policy(&Request { source: Some("cron".into()), ..request("ci") }, &files).profile, "ci");

    let files = Memory::default().with(format!("{CONFIG}/config.toml"), "defualt = \"review\"\n");
    assert_eq!(
        error(&Request { caller: caller(&[]), ..Request::default() }, &files),
        "/home/user/.config/hermes-sandbox/config.toml:1: unknown key \"defualt\"; did you mean \"default\"?"
    );
}

#[test]
fn every_known_source_has_a_profile() {
    for (source, profile) in hermes_profiles::SOURCES {
        assert!(hermes_profiles::builtin::find(profile).is_some(), "{source}");
    }
}

#[test]
fn flags_are_the_last_layer() {
    let policy = policy(
        &flags(|f| {
            f.ro = vec!["docs/../vendor".into(), "/home/user/.cargo".into()];
            f.rw = vec!["/srv/data/".into()];
            f.deny = vec!["secret".into(), "/srv/data/private".into()];
        }),
        &Memory::default(),
    );
    assert_eq!(access(&policy, "/home/user/project/vendor/x"), Some(Access::Read));
    assert_eq!(access(&policy, "/home/user/.cargo/bin"), Some(Access::Read));
    assert_eq!(access(&policy, "/srv/data/x"), Some(Access::Write));
    assert_eq!(access(&policy, "/srv/data/private/x"), Some(Access::Hidden));
    assert_eq!(access(&policy, "/home/user/project/secret"), Some(Access::Hidden));
    let rule = policy.rule_for("/srv/data".as_ref()).unwrap();
    assert_eq!((rule.origin.clone(), rule.optional), (Origin::Flag("--rw".into()), false));
}

#[test]
fn deny_beats_rw_and_says_so() {
    let request = flags(|f| (f.rw, f.deny) = (vec!["/srv/x".into()], vec!["/srv/x".into()]));
    assert_eq!(access(&policy(&request, &Memory::default()), "/srv/x/y"), Some(Access::Hidden));
    let request = flags(|f| f.ro = vec!["/home/user/.ssh/known_hosts".into()]);
    assert_eq!(
        notices(&request, &Memory::default()),
        ["--ro /home/user/.ssh/known_hosts has no effect: /home/user/.ssh is hidden by profile credentials"]
    );
}

#[test]
fn contradictions_are_errors() {
    let cases: [(Request, &str); 14] = [
        (
            flags(|f| (f.net, f.allow_hosts) = (Some("off".into()), vec!["example.test".into()])),
            "--allow-host: contradicts --net off",
        ),
        (
            flags(|f| (f.net, f.allow_hosts) = (Some("host".into()), vec!["example.test".into()])),
            "--allow-host: contradicts --net host",
        ),
        (
            flags(|f| (f.ro, f.rw) = (vec!["/srv/x".into()], vec!["/srv/y/../x".into()])),
            "--rw: /srv/x cannot be both read-only (--ro) and writable (--rw)",
        ),
        (flags(|f| (f.overlay, f.rw) = (true, vec![".".into()])), "cannot be both"),
        (flags(|f| f.deny = vec!["..".into()]), "--deny: hides /home/user, and with it the workspace /home/user/project"),
        (flags(|f| f.env = vec!["A=b".into()]), "--env: expected the name of a variable; to give A a value use --set-env"),
        (flags(|f| f.set_env = vec!["A".into()]), "--set-env: A: expected NAME=VALUE"),
        (flags(|f| (f.env, f.set_env) = (vec!["A".into()], vec!["A=1".into()])), "--set-env: A is also named by --env"),
        (
            flags(|f| f.net = Some("hots".into())),
            "--net: unknown mode \"hots\"; expected off, routes, ask, audit or host; did you mean \"host\"?",
        ),
        (flags(|f| f.limits = vec!["memmory=1GiB".into()]), "did you mean \"memory\"?"),
        (flags(|f| f.limits = vec!["memory=lots".into()]), "--limit: memory=lots: expected a size such as"),
        (
            flags(|f| f.accept_loss = vec!["memory-limit".into()]),
            "--accept-loss: there is no guarantee \"memory-limit\"; did you mean \"memory-limited\"?",
        ),
        (flags(|f| f.allow_hosts = vec!["https://example.test/".into()]), "expected a host without scheme, path or user"),
        (flags(|f| f.ro = vec!["".into()]), "--ro: an empty path"),
    ];
    for (request, wanted) in cases {
        let text = error(&request, &Memory::default());
        assert!(text.contains(wanted), "{text}\nwanted: {wanted}");
    }
}

#[test]
fn network_flags() {
    let routes = |request: &Request| match policy(request, &Memory::default()).network {
        Network::Routes(routes) => routes.into_iter().map(|route| (route.host, route.ports)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let hosts = ["Example.test.".into(), "*.example.test:8443".into(), "[::1]:80".into(), "example.test:22".into()];
    assert_eq!(
        routes(&flags(|f| f.allow_hosts = hosts.into())),
        [("*.example.test".into(), vec![8443]), ("::1".into(), vec![80]), ("example.test".into(), vec![22, 80, 443])]
    );
    assert_eq!(routes(&flags(|f| f.net = Some("proxy".into()))), []);
    assert_eq!(policy(&flags(|f| f.net = Some("none".into())), &Memory::default()).network, Network::Off);
    assert_eq!(policy(&flags(|f| f.net = Some("host".into())), &Memory::default()).network, Network::Host);
}

#[test]
fn limit_flags() {
    let limits = ["memory=2GiB", "processes=none", "timeout=90", "cpu=1.5", "grace=500ms", "open-files=1024", "file-size=1.5M"];
    let limits = policy(&flags(|f| f.limits = limits.map(String::from).into()), &Memory::default()).limits;
    assert_eq!((limits.memory, limits.memory_percent), (Some(2 << 30), None));
    assert_eq!((limits.processes, limits.timeout, limits.cpu_percent), (None, Some(90_000), Some(150)));
    assert_eq!((limits.grace, limits.open_files, limits.file_size), (500, Some(1024), Some(3 << 19)));
}

#[test]
fn broad_grants_need_a_word() {
    for workspace in ["/", "/home", "/home/user", "/home/user/", "/usr", "/etc", "/nix"] {
        let mut request = Request { workspace: Some(workspace.into()), ..request("agent") };
        let text = error(&request, &Memory::default());
        assert!(text.contains("--allow-broad"), "{text}");
        request.overrides.allow_broad = true;
        assert!(policy(&request, &Memory::default()).allow_broad);
    }
    assert!(!policy(&request("agent"), &Memory::default()).allow_broad);
    assert!(error(&flags(|f| f.rw = vec!["/home".into()]), &Memory::default()).contains("--rw: /home: too much to be writable"));
    policy(&flags(|f| f.ro = vec!["/".into()]), &Memory::default());
    // Some people keep their Go tree in their home directory itself.
    let request = Request { caller: caller(&[("CARGO_HOME", "/home/user")]), ..request("agent") };
    assert_eq!(notices(&request, &Memory::default()).len(), 1);
    assert_eq!(access(&policy(&request, &Memory::default()), "/home/user/notes"), None);
}

#[test]
fn workspace_must_not_be_hidden() {
    let request = Request { workspace: Some("/home/user/.config/gh/x".into()), ..request("agent") };
    assert_eq!(
        error(&request, &Memory::default()),
        "profile credentials: hides /home/user/.config/gh, and with it the workspace /home/user/.config/gh/x"
    );
    let policy = written("schema = 1\n[filesystem]\nworkspace = \"hidden\"\n").unwrap().policy;
    assert_eq!(policy.workspace_access, Access::Hidden);
}

#[test]
fn overlay_flag_wins_over_the_profile() {
    for profile in ["agent", "review"] {
        let mut request = request(profile);
        request.overrides.overlay = true;
        let policy = policy(&request, &Memory::default());
        assert_eq!(policy.workspace_access, Access::Overlay);
        assert_eq!(access(&policy, WORK), Some(Access::Overlay));
    }
}

#[test]
fn directories_in_path_are_readable() {
    let path = "/home/user/.local/bin:/usr/bin:/home/user:/home:/:relative:/home/user/.cargo/bin:/srv/tools/bin/:/home/user/.ssh/bin:\
                /home/user/project/node_modules/.bin:/home/user/.local/bin:/proc";
    let mut request = request("agent");
    request.caller.variables.retain(|(name, _)| name != "PATH");
    request.caller.variables.push(("PATH".into(), path.into()));
    let policy = policy(&request, &Memory::default());
    let derived: Vec<_> = policy.files.iter().filter(|rule| rule.origin == Origin::Derived("directory in PATH".into())).collect();
    assert_eq!(
        derived.iter().map(|rule| rule.path.to_str().unwrap()).collect::<Vec<_>>(),
        ["/home/user/.local/bin", "/srv/tools/bin"]
    );
    assert!(derived.iter().all(|rule| rule.optional && rule.access == Access::Read));
}

#[test]
fn a_named_variable_opens_the_socket_it_leads_to() {
    for (name, value, socket) in [
        ("SSH_AUTH_SOCK", "/run/agent/s", Some("/run/agent/s")),
        ("DOCKER_HOST", "unix:///run/docker.sock", Some("/run/docker.sock")),
        ("DOCKER_HOST", "tcp://example.test:2375", None),
        ("DBUS_SESSION_BUS_ADDRESS", "unix:abstract=/x;unix:path=/run/user/1%2f0/bus,guid=1", Some("/run/user/1/0/bus")),
        ("WAYLAND_DISPLAY", "wayland-0", Some("/run/user/1000/wayland-0")),
        ("SSH_AUTH_SOCK", "relative", None),
        ("SSH_AUTH_SOCK", "/home/user/x/..", None),
        ("GREETING", "/run/agent/s", None),
    ] {
        let mut request = Request { caller: caller(&[(name, value), ("XDG_RUNTIME_DIR", "/run/user/1000")]), ..request("agent") };
        assert!(policy(&request, &Memory::default()).unix.connect.is_empty());
        request.overrides.env = vec![name.into()];
        let policy = policy(&request, &Memory::default());
        assert_eq!(policy.unix.connect, Vec::from_iter(socket.map(std::path::PathBuf::from)), "{name}={value}");
        if let Some(socket) = socket {
            let rule = policy.rule_for(socket.as_ref()).unwrap();
            assert_eq!((rule.access, rule.optional), (Access::Read, true));
            assert_eq!(rule.origin.to_string(), format!("--env {name}"));
        }
    }
}

#[test]
fn a_name_that_is_not_there_is_mentioned() {
    let request = flags(|f| f.env = vec!["GH_TOKEN".into()]);
    assert_eq!(notices(&request, &Memory::default()), ["--env GH_TOKEN: the caller has no such variable"]);
}

#[test]
fn the_settings_of_the_sandbox_are_out_of_reach() {
    let policy = policy(&flags(|f| f.rw = vec!["/home/user/.config".into(), STATE.into()]), &Memory::default());
    assert_eq!(access(&policy, &format!("{CONFIG}/profiles/x.toml")), Some(Access::Hidden));
    assert_eq!(access(&policy, &format!("{STATE}/trust")), Some(Access::Hidden));
}

#[test]
fn workspace_is_relative_to_the_current_directory() {
    let request = Request { workspace: Some("sub/./x/..".into()), ..request("agent") };
    assert_eq!(policy(&request, &Memory::default()).workspace.to_str(), Some("/home/user/project/sub"));
    let caller = Caller { cwd: "relative".into(), ..caller(&[]) };
    let text = error(&Request { caller, ..Request::default() }, &Memory::default());
    assert!(text.contains("current directory"), "{text}");
}

#[test]
fn the_host_network_brings_its_resolver() {
    let file = "/run/systemd/resolve/stub-resolv.conf";
    let mut request = request("agent");
    assert_eq!(access(&policy(&request, &Memory::default()), file), None);
    request.overrides.net = Some("host".into());
    assert_eq!(access(&policy(&request, &Memory::default()), file), Some(Access::Read));
}
