#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;

fn pass(rules: &EnvironmentRules, pairs: &[(&str, &str)]) -> Environment {
    filter(rules, pairs.iter().map(|(name, value)| (name.into(), value.into())))
}

fn names(environment: &Environment) -> Vec<&str> {
    environment.passed.iter().map(|(name, _)| name.to_str().unwrap()).collect()
}

fn reason(name: &str, value: &str) -> Option<Reason> {
    decide(&EnvironmentRules::default(), OsStr::new(name), OsStr::new(value)).err()
}

#[test]
fn credentials_stay_out() {
    for name in [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "GITHUB_TOKEN",
        "GH_TOKEN",
        "HF_TOKEN",
        "NPM_TOKEN",
        "SLACK_BOT_TOKEN",
        "AUXILIARY_VISION_API_KEY",
        "GATEWAY_RELAY_SECRET",
        "MY_APP_PASSWORD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "STRIPE_SECRET_KEY",
        "CARGO_REGISTRY_TOKEN",
        "PGPASSWORD",
        "ACTIONS_RUNTIME_TOKEN",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
        "ACTIONS_ID_TOKEN_REQUEST_URL",
        "CI_JOB_TOKEN",
        "UV_PUBLISH_PASSWORD",
        "CARGO_REGISTRIES_MINE_TOKEN",
        "PIP_KEYRING_AUTH",
        "npm_config__authToken",
        "DB_PWD",
        "SECRET2",
        "API_KEY_1",
    ] {
        assert_eq!(reason(name, "x"), Some(Reason::CredentialName), "{name}");
    }
    assert_eq!(reason("DATABASE_URL", "postgres://u:p@h/d"), Some(Reason::NotAllowed));
    assert_eq!(reason("XQZ_7", "x"), Some(Reason::NotAllowed));
}

#[test]
fn ordinary_variables_pass() {
    for name in [
        "LANG",
        "LC_ALL",
        "TERM",
        "TZ",
        "EDITOR",
        "COLORTERM",
        "USER",
        "CI",
        "NO_COLOR",
        "FORCE_COLOR",
        "RUST_BACKTRACE",
        "TOKENIZERS_PARALLELISM",
        "MAKEFLAGS",
        "VIRTUAL_ENV",
        "PYTHONUNBUFFERED",
        "HOME",
        "PATH",
        "PWD",
        "SHELL",
        "LOGNAME",
        "GITHUB_SHA",
        "GITHUB_REF",
        "GITHUB_ACTIONS",
        "CARGO_TARGET_DIR",
        "CARGO_HOME",
        "XDG_CONFIG_HOME",
        "NODE_ENV",
        "JAVA_HOME",
        "PYTHONPATH",
        "GIT_AUTHOR_NAME",
    ] {
        assert_eq!(reason(name, "some-value"), None, "{name}");
    }
}

#[test]
fn code_injection_and_agents_stay_out() {
    for name in [
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "BASH_ENV",
        "ENV",
        "BASH_FUNC_f%%",
        "PYTHONSTARTUP",
        "PYTHONHOME",
        "GIT_SSH_COMMAND",
        "GIT_EXTERNAL_DIFF",
        "GIT_CONFIG_COUNT",
        "GIT_CONFIG_KEY_0",
        "PERL5OPT",
        "RUBYOPT",
        "NODE_OPTIONS",
        "JAVA_TOOL_OPTIONS",
        "PROMPT_COMMAND",
        "PS4",
        "IFS",
        "SHELLOPTS",
        "RUSTC_WRAPPER",
        "CARGO_BUILD_RUSTC_WRAPPER",
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER",
        "CARGO_BUILD_RUSTC",
        "CARGO_BUILD_RUSTDOC",
        "RUSTC_WORKSPACE_WRAPPER",
        "LESSOPEN",
        "LESSCLOSE",
    ] {
        assert_eq!(reason(name, "x"), Some(Reason::CodeInjection), "{name}");
    }
    for name in ["SSH_AUTH_SOCK", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "XDG_RUNTIME_DIR"] {
        assert_eq!(reason(name, "x"), Some(Reason::AgentSocket), "{name}");
    }
}

#[test]
fn values_that_look_like_credentials_stay_out() {
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl";
    let long = "0123456789abcdefghijABCDEFGHIJ0123456789";
    for value in [
        "https://user:secret@example.test/simple".to_owned(),
        "https://0123456789abcdef@example.test".to_owned(),
        "-i https://a:b@example.test/".to_owned(),
        format!("ghp_{long}"),
        format!("--config=sk-{long}"),
        format!("x AKIA{}", "ABCDEFGHIJKLMNOP"),
        jwt.to_owned(),
        "-----BEGIN OPENSSH PRIVATE KEY-----\nabc".to_owned(),
        "Server=example.test;Password=hunter2;".to_owned(),
    ] {
        assert!(matches!(reason("LANG", &value), Some(Reason::CredentialValue(_))), "{value}");
    }
    for value in [
        "https://example.test/simple",
        "ssh://git@example.test/x",
        "https://git@example.test/x",
        "sk-SK",
        "sk_SK.UTF-8",
        "task-skeleton",
        "eyJ",
        "/home/user@work:/bin",
        "http://[::1]:80/@x",
        "npm_x",
        "-----BEGIN CERTIFICATE-----",
        "Password=",
        "a@b",
        "://",
        "0123456789abcdef0123456789abcdef01234567",
    ] {
        assert_eq!(reason("LANG", value), None, "{value}");
    }
}

#[test]
fn logins_stay_out_wherever_they_stand() {
    for (name, value) in [
        ("UV_EXTRA_INDEX_URL", "foo=https://TOKEN:@h"),
        ("UV_EXTRA_INDEX_URL", "a=https://example.test/x b=https://u:p@example.test/y"),
        ("UV_INDEX_URL", "https://TOKEN@example.test/"),
        ("UV_INDEX_URL", "ssh://deploy@example.test/"),
        ("PIP_PROXY", "u:p@h"),
        ("PIP_PROXY", "u:p@h:3128"),
        ("PIP_PROXY", "TOKEN:@h"),
        ("PIP_PROXY", "me@example.test:p@h"),
        ("PIP_PROXY", "//u:p@h"),
        ("PIP_PROXY", "x u:p@h"),
        ("PIP_PROXY", "u:p%40w@h"),
        ("PIP_PROXY", "u%3Ap%40h"),
        ("CARGO_HTTP_PROXY", "http://u:p,w;x&y@h:1"),
        ("CARGO_HTTP_PROXY", "http://u:p#w@h:1"),
        ("CARGO_HTTP_PROXY", "http://u:p?w@h:1"),
        ("CARGO_REGISTRIES_X_INDEX", "sparse+https://u:p@h/"),
        ("GOPROXY", "https://example.test,https://u:p@h,direct"),
        ("NIX_PATH", "nixpkgs=https://u:p@h/a.tgz"),
        ("GIT_AUTHOR_NAME", "git@evil:p@h"),
        ("GITHUB_API_URL", "x?to=https%3A%2F%2Fu%3Ap%40h"),
        ("GITHUB_API_URL", "x?to=https%253a%252f%252fu%253ap%2540h"),
        ("CFLAGS", "-DURL=\\\"https://u:p@h\\\""),
        ("LESS", "https://git:p@h"),
        ("PYTHONPATH", "/a:https://u@h"),
        ("LANGUAGE", "https://u:p@h"),
    ] {
        let why = reason(name, value);
        assert_eq!(why, Some(Reason::CredentialValue("a login for a host")), "{name}={value}");
    }
    for (name, value) in [
        ("GIT_AUTHOR_EMAIL", "me@example.test"),
        ("GIT_AUTHOR_NAME", "A: B <me@example.test>"),
        ("LANGUAGE", "ca:ca@valencia:sr@latin"),
        ("LC_TIME", "de_DE.UTF-8@euro"),
        ("PATH", "/usr/bin:/opt/node@20/bin:/home/u@w/bin:node_modules/@x/bin"),
        ("PATH", "/usr/bin:bin/a@b"),
        ("GOPROXY", "https://example.test:443,direct"),
        ("GOPRIVATE", "git@example.test:org/repo@v1"),
        ("UV_INDEX_URL", "git+ssh://git@example.test/x"),
        ("UV_INDEX_URL", "https://example.test:80/@scope/x"),
        ("UV_INDEX_URL", "https://example.test?by=me@example.test"),
        ("UV_INDEX_URL", "https://[::1]:80?by=me@example.test"),
        ("UV_INDEX_URL", "file:///@x/y:z@w"),
        ("CI_SERVER_NAME", "name:tag@sha256:0123"),
        ("PIP_PROXY", "%zz%4"),
        ("PIP_PROXY", "100%@"),
    ] {
        assert_eq!(reason(name, value), None, "{name}={value}");
    }
}

#[test]
fn settings_of_credentials_stay_out() {
    for (name, value) in [
        ("MAKEFLAGS", "TOKEN=s3cretpw"),
        ("MAKEFLAGS", "-j2 -- CC=gcc API_KEY=s3cretpw"),
        ("CFLAGS", "-O2 -DTOKEN=s3cretpw"),
        ("CFLAGS", "-DKEY=\\\"s3cretpw\\\""),
        ("RUSTFLAGS", "--cfg token=\"s3cretpw\""),
        ("GOFLAGS", "-ldflags=-X=main.apiKey=s3cretpw"),
        ("UV_INDEX_URL", "https://example.test/?access_token=s3cretpw&x"),
        ("LESS", "--token=s3cretpw"),
    ] {
        let why = reason(name, value);
        assert_eq!(why, Some(Reason::CredentialValue("a setting of a credential")), "{name}={value}");
    }
    for (name, value) in [
        ("CFLAGS", "-DUSE_AUTH=1 -DKEY=ON -DAUTHOR=somebody -DMONKEY=bananas"),
        ("RUST_LOG", "app::auth=debug,token=trace,info"),
        ("LS_COLORS", "rs=0:*.key=01;38;5;244:*.pem=00;36"),
        ("RUSTFLAGS", "--remap-path-prefix=/home/u/key=/somewhere/else -Clink-arg=-fuse-ld=mold"),
        ("MAKEFLAGS", "-j2 --jobserver-auth=3,4"),
        ("MAKEFLAGS", "TOKEN="),
    ] {
        assert_eq!(reason(name, value), None, "{name}={value}");
    }
}

#[test]
fn options_that_run_code_stay_out_and_choices_stay() {
    for (name, value) in [
        ("MAKEFLAGS", "--eval=$(shell\\ id)"),
        ("MAKEFLAGS", "-j2 -- SHELL=/x/evil"),
        ("MFLAGS", "-E x"),
        ("GOFLAGS", "-mod=mod '-toolexec=/x/evil a'"),
        ("LESS", "-R --lesskey-file=/x"),
        ("LESS", "-R -k/x"),
        ("LESS", "-R +!id"),
        ("CFLAGS", "-O2 -fplugin=/x.so"),
        ("LDFLAGS", "-wrapper /x/evil"),
    ] {
        assert_eq!(reason(name, value), Some(Reason::CodeInjection), "{name}={value}");
    }
    for (name, value) in [
        ("MAKEFLAGS", "-j2"),
        ("MAKEFLAGS", " -kE"),
        ("GOFLAGS", "-mod=mod -trimpath"),
        ("LESS", "-FRX"),
        ("LESS", "-R --use-color +G"),
        ("CFLAGS", "-O2 -fPIC -fplugin-arg-x-y"),
        ("CC", "ccache gcc"),
        ("PAGER", "less -R"),
        ("VISUAL", "code --wait"),
        ("EDITOR", "vi"),
    ] {
        assert_eq!(reason(name, value), None, "{name}={value}");
    }
}

#[test]
fn an_explicit_name_passes_whatever_it_holds() {
    let rules = EnvironmentRules { explicit: ["GH_TOKEN".into(), "LD_PRELOAD".into()].into(), ..Default::default() };
    let environment = pass(&rules, &[("GH_TOKEN", "tok-1234"), ("OPENAI_API_KEY", "x"), ("LD_PRELOAD", "y")]);
    assert_eq!(names(&environment), ["GH_TOKEN", "LD_PRELOAD", "TMPDIR"]);
    assert_eq!(environment.dropped, [("OPENAI_API_KEY".into(), Reason::CredentialName)]);
}

#[test]
fn the_policy_allows_and_denies_by_pattern() {
    let rules = EnvironmentRules {
        allow: vec!["MY_*".into(), "EXACT".into(), "*_DIR".into()],
        deny: vec!["MY_X*".into(), "LANG".into()],
        explicit: ["MY_XY".into()].into(),
        ..Default::default()
    };
    let pairs = [
        ("MY_A", "1"),
        ("MY_X", "1"),
        ("MY_XY", "1"),
        ("MY_TOKEN", "1"),
        ("EXACT", "1"),
        ("EXACTLY", "1"),
        ("A_DIR", "1"),
        ("LANG", "C"),
    ];
    assert_eq!(names(&pass(&rules, &pairs)), ["MY_A", "EXACT", "A_DIR", "TMPDIR"]);
}

#[test]
fn tmpdir_is_the_sandboxs_own() {
    let mut rules = EnvironmentRules::default();
    let value = |rules: &EnvironmentRules| {
        let environment = pass(rules, &[("TMPDIR", "/home/user/tmp"), ("TMP", "/x"), ("TEMP", "/y")]);
        assert_eq!(names(&environment), ["TMPDIR"]);
        environment.passed[0].1.to_str().unwrap().to_owned()
    };
    assert_eq!(value(&rules), "/tmp");
    rules.set.insert("TMPDIR".into(), "/var/tmp".into());
    assert_eq!(value(&rules), "/var/tmp");
    rules.set.clear();
    rules.explicit.insert("TMPDIR".into());
    assert_eq!(value(&rules), "/home/user/tmp");
}

#[test]
fn the_first_of_two_decides_and_order_is_kept() {
    let environment = pass(&EnvironmentRules::default(), &[("TZ", "UTC"), ("LANG", "C"), ("TZ", "CET"), ("HOME", "/h")]);
    assert_eq!(names(&environment), ["TZ", "LANG", "HOME", "TMPDIR"]);
    assert_eq!(environment.passed[0].1, "UTC");
    assert_eq!(environment.dropped, [("TZ".into(), Reason::Duplicate)]);
    // A first one that stays out does not make room for the second.
    let environment = pass(&EnvironmentRules::default(), &[("LANG", "https://a:b@c/"), ("LANG", "C")]);
    assert_eq!(names(&environment), ["TMPDIR"]);
}

#[test]
fn set_values_replace_and_denied_ones_are_not_set() {
    let rules = EnvironmentRules {
        set: [("LANG".into(), "C".into()), ("NEW".into(), "1".into()), ("GONE".into(), "1".into())].into(),
        deny: vec!["GONE".into()],
        ..Default::default()
    };
    let environment = pass(&rules, &[("LANG", "xx"), ("TZ", "UTC")]);
    assert_eq!(names(&environment), ["TZ", "LANG", "NEW", "TMPDIR"]);
    assert_eq!(environment.passed[1].1, "C");
    assert_eq!(environment.dropped, [("LANG".into(), Reason::Replaced)]);
}

#[test]
fn bytes_that_are_no_text_are_handled() {
    let raw = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let rules = EnvironmentRules { allow: vec!["X*".into()], ..Default::default() };
    let pairs = [(raw(b"LANG"), raw(b"\xff\xfe")), (raw(b"X\xff"), raw(b"1")), (raw(b"\xff"), raw(b"2")), (raw(b""), raw(b"3"))];
    let environment = filter(&rules, pairs.into_iter());
    assert_eq!(environment.passed.len(), 3);
    assert_eq!(environment.passed[0].1, raw(b"\xff\xfe"));
    assert_eq!(environment.dropped, [(raw(b"\xff"), Reason::NotAllowed), (raw(b""), Reason::Nameless)]);
}

proptest! {
    #[test]
    fn nothing_is_lost_invented_or_worth_a_panic(
        pairs in prop::collection::vec((prop::collection::vec(1_u8..=255, 0..12), prop::collection::vec(1_u8..=255, 0..60)), 0..20),
        allow in prop::collection::vec("[A-Z]{0,2}\\*?[A-Z]{0,2}", 0..3),
    ) {
        let rules = EnvironmentRules { allow, ..Default::default() };
        let pairs: Vec<(OsString, OsString)> = pairs.into_iter().map(|(n, v)| (OsString::from_vec(n), OsString::from_vec(v))).collect();
        let environment = filter(&rules, pairs.iter().cloned());
        prop_assert_eq!(environment.passed.len() + environment.dropped.len(), pairs.len() + 1);
        for passed in environment.passed.iter().filter(|(name, _)| name.as_os_str() != "TMPDIR") {
            prop_assert!(pairs.contains(passed));
        }
    }

    #[test]
    fn no_value_makes_the_search_panic(value in "(.|[:/@.-]|eyJ|sk-|://|-----BEGIN |password=){0,60}") {
        let _ = shapes::credential(value.as_bytes(), false);
    }
}
