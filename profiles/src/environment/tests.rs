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
        let _ = shapes::credential(value.as_bytes());
    }
}
