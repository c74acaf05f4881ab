//! Which variables go in.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use hermes_tests::{Sandbox, run_to_end};

/// Names whose words mean a credential.
const SECRET_NAMES: &[&str] = &[
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "ACTIONS_RUNTIME_TOKEN",
    "CI_JOB_TOKEN",
    "NPM_TOKEN",
    "NODE_AUTH_TOKEN",
    "DATABASE_URL",
    "PGPASSWORD",
    "MYSQL_PWD",
    "VAULT_TOKEN",
    "KUBECONFIG",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "SLACK_BOT_TOKEN",
    "AUXILIARY_VISION_API_KEY",
    "SUDO_PASSWORD",
    "SSH_AUTH_SOCK",
    "DOCKER_HOST",
    "DBUS_SESSION_BUS_ADDRESS",
    "SOME_UNKNOWN_NAME",
];

/// Variables that make programs run code of the caller's choice.
const INJECTORS: &[&str] = &[
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "NODE_OPTIONS",
    "PYTHONSTARTUP",
    "PERL5OPT",
    "PERL5LIB",
    "RUBYOPT",
    "RUBYLIB",
    "GIT_SSH_COMMAND",
    "GIT_EXTERNAL_DIFF",
    "GIT_CONFIG_GLOBAL",
    "GIT_EXEC_PATH",
    "PROMPT_COMMAND",
    "JAVA_TOOL_OPTIONS",
    "LESSOPEN",
    "BASH_FUNC_x%%",
];

#[test]
fn only_harmless_variables_go_in() {
    let mut sandbox = Sandbox::new();
    let canary = sandbox.canary("env");
    for name in SECRET_NAMES {
        sandbox = sandbox.env(name, &canary);
    }
    assert_eq!(sandbox.plain_sh("env").out().matches(&canary).count(), SECRET_NAMES.len(), "positive control");
    sandbox.sh("env; echo END").ok().says("END").never_says(&canary);
}

#[test]
fn variables_that_inject_code_are_removed() {
    let mut sandbox = Sandbox::new();
    for name in INJECTORS {
        // An existing empty file is harmless wherever it is loaded by the wrapper's own start.
        sandbox = sandbox.env(name, "/nonexistent/INJECTED");
    }
    let result = sandbox.run(["/usr/bin/env"]);
    result.ok().never_says("INJECTED");
}

#[test]
fn ordinary_variables_are_kept() {
    let ordinary = [
        ("LANG", "C.UTF-8"),
        ("LC_TIME", "C"),
        ("TZ", "Europe/Berlin"),
        ("TERM", "xterm"),
        ("COLORTERM", "truecolor"),
        ("NO_COLOR", "1"),
        ("CI", "true"),
        ("USER", "tester"),
        ("EDITOR", "vi"),
    ];
    let sandbox = ordinary.iter().fold(Sandbox::new(), |sandbox, (name, value)| sandbox.env(name, value));
    let out = sandbox.run(["/usr/bin/env"]).ok().out();
    for (name, value) in ordinary {
        assert!(out.lines().any(|line| line == format!("{name}={value}")), "{name} is missing in\n{out}");
    }
    let home = format!("HOME={}", sandbox.home.display());
    assert!(out.lines().any(|line| line == home), "{home} is missing in\n{out}");
    assert!(out.lines().any(|line| line.starts_with("PATH=") && line.contains("/usr/bin")));
}

#[test]
fn names_that_only_look_like_secrets_are_kept() {
    // TOKENIZERS is not TOKEN: names are judged by their words.
    let sandbox = Sandbox::new().env("TOKENIZERS_PARALLELISM", "false").flags(["--env", "TOKENIZERS_PARALLELISM"]);
    sandbox.run(["/usr/bin/env"]).ok().says("TOKENIZERS_PARALLELISM=false");
}

#[test]
fn a_variable_given_by_name_goes_in_even_a_secret() {
    let sandbox = Sandbox::new();
    let (wanted, other) = (sandbox.canary("wanted"), sandbox.canary("other"));
    let sandbox = sandbox.env("MY_API_TOKEN", &wanted).env("OTHER_TOKEN", &other).flags(["--env", "MY_API_TOKEN"]);
    sandbox.run(["/usr/bin/env"]).ok().says(&format!("MY_API_TOKEN={wanted}")).never_says(&other);
}

#[test]
fn set_variables_reach_the_command() {
    let sandbox = Sandbox::new().flags(["--set-env", "GREETING=a b=c\nd", "--set-env", "EMPTY="]);
    sandbox.sh("printf '[%s][%s]' \"$GREETING\" \"${EMPTY-unset}\"").ok().says("[a b=c\nd][]");
}

#[test]
fn a_credential_in_a_harmless_name_is_scrubbed() {
    // Well-formed and worthless.
    let token = "ghp_".to_owned() + &"a1B2c3D4e5F6".repeat(3);
    let sandbox = Sandbox::new().env("LC_ADDRESS", &token).env("EDITOR", &token);
    sandbox.plain_sh("env").says(&token);
    sandbox.run(["/usr/bin/env"]).ok().never_says(&token);
}

#[test]
fn no_process_inside_ever_had_the_callers_environment() {
    let sandbox = Sandbox::new();
    let canary = sandbox.canary("proc");
    let sandbox = sandbox.env("CALLER_API_KEY", &canary);
    // The control looks only at the parent, which is this test: other processes of the machine are nobody's business.
    let mut control = sandbox.plain_command("/bin/sh");
    control.args(["-c", "sh -c 'tr \"\\0\" \"\\n\" < /proc/$PPID/environ; :'; :"]);
    run_to_end(&mut control).says(&canary);
    // Only the fact is printed, never what a process holds.
    let search = "for p in /proc/[0-9]*; do for f in $p/environ $p/cmdline $p/mem; do \
                    [ $p = /proc/$$ ] || { grep -qas 'CANARY[-]proc' $f && echo FOUND $f; }; done; done 2>/dev/null; echo END";
    sandbox.sh(search).says("END").never_says("FOUND");
}

#[test]
fn bytes_that_are_no_text_pass_unchanged() {
    let value = OsStr::from_bytes(b"caf\xe9");
    let sandbox = Sandbox::new().env("BINARY", value).flags(["--env", "BINARY"]);
    let result = sandbox.sh("printf %s \"$BINARY\" | od -An -tx1");
    result.ok().says("63 61 66 e9");
}

#[test]
fn malformed_settings_are_refused() {
    for bad in ["", "=x", "NOVALUE"] {
        Sandbox::new().flags(["--set-env", bad]).sh("echo RAN").refused_usage();
    }
    for bad in ["", "A=B"] {
        Sandbox::new().flags(["--env", bad]).sh("echo RAN").refused_usage();
    }
}

trait RefusedUsage {
    fn refused_usage(&self);
}

impl RefusedUsage for hermes_tests::Outcome {
    /// A mistake on the command line: never runs the command, says why.
    #[track_caller]
    fn refused_usage(&self) {
        assert!(self.stdout.is_empty() && self.code() != 0 && !self.stderr.is_empty(), "{}", self.report());
        self.no_panic();
    }
}
