use super::*;
use std::os::unix::ffi::OsStringExt;

fn parsed(argv: &[&str]) -> Result<Parsed, Error> {
    parse(argv.iter().map(OsString::from).collect())
}

fn run(argv: &[&str]) -> RunArgs {
    let argv = [&["hermes-sandbox", "run"], argv].concat();
    match parsed(&argv).unwrap() {
        Parsed::Command(Command::Run(run)) => *run,
        _ => panic!("not a run"),
    }
}

fn refusal(argv: &[&str]) -> Error {
    match parsed(&[&["hermes-sandbox"], argv].concat()) {
        Err(e) => e,
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn the_description_is_consistent() {
    tree().debug_assert();
    run_command().debug_assert();
}

#[test]
fn what_follows_the_command_is_the_commands() {
    assert_eq!(run(&["--", "echo", "--no-such-flag", "--help", "-v"]).command, ["echo", "--no-such-flag", "--help", "-v"]);
    assert_eq!(run(&["echo", "--ro", "x", "--", "-v"]).command, ["echo", "--ro", "x", "--", "-v"]);
    assert_eq!(run(&["--", "-x"]).command, ["-x"]);
    assert_eq!(run(&["--", "a", "--", "b"]).command, ["a", "--", "b"]);
    assert!(!run(&["--", "echo", "-v"]).policy.verbose);
}

#[test]
fn arguments_need_not_be_utf8() {
    let odd = OsString::from_vec(vec![b'a', 0xff]);
    let argv = vec!["hermes-sandbox".into(), "run".into(), "--ro".into(), odd.clone(), "--".into(), odd.clone()];
    let Ok(Parsed::Command(Command::Run(run))) = parse(argv) else { panic!("refused") };
    assert_eq!((run.policy.ro, run.command), (vec![PathBuf::from(&odd)], vec![odd]));
}

#[test]
fn other_spellings_of_the_network_modes() {
    let net = |name| run(&["--net", name, "true"]).policy.net.unwrap();
    assert_eq!([net("none"), net("off"), net("proxy"), net("host")], [Net::Off, Net::Off, Net::Routes, Net::Host]);
}

#[test]
fn what_does_not_exist_yet_is_refused_by_name() {
    for flags in [&["--backend", "docker"][..], &["--backend=ssh"], &["--image", "i"], &["--ssh-host", "h"], &["--advise", "ask"]]
    {
        let error = run(&[flags, &["true"]].concat()).policy.only_local().unwrap_err();
        assert!(error.message.starts_with(flags[0].split("=").next().unwrap()), "{error}");
        assert_eq!(error.kind.status(), 125);
    }
    run(&["--backend", "local", "--advise", "off", "true"]).policy.only_local().unwrap();
}

#[test]
fn errors_say_what_and_what_to_do() {
    let unknown = refusal(&["run", "--worksapce", "x", "--", "touch", "ran"]);
    assert_eq!(unknown.message, "unknown option `--worksapce`");
    assert_eq!(unknown.hints, ["did you mean `--workspace`?"]);
    assert_eq!(refusal(&["run"]).message, "no command given");
    assert_eq!(refusal(&["rum"]).hints, ["did you mean `run`?"]);
    assert_eq!(
        refusal(&["run", "--net", "on", "true"]).message,
        "bad value `on` for `--net`: not one of off, routes, ask, audit, host"
    );
    assert_eq!(refusal(&["run", "--net"]).message, "`--net` needs a value");
    assert_eq!(refusal(&["run", "--tier", "landlock", "--tier", "landlock", "true"]).message, "`--tier` is given twice");
    assert_eq!(refusal(&["run", "--overlay=yes", "true"]).message, "`--overlay` takes no value, but `yes` was given");
    assert_eq!(refusal(&[]).message, "no subcommand given");
    assert_eq!(refusal(&[]).hints, ["`hermes-sandbox --help` lists them"]);
    assert_eq!(refusal(&["quarantine"]).message, "no subcommand given");
    assert_eq!(refusal(&["quarantine"]).hints, ["`hermes-sandbox quarantine --help` lists them"]);
    for verb in ["show", "diff", "restore", "approve", "discard"] {
        let missing = refusal(&["quarantine", verb, "--json"]);
        assert!(missing.message.starts_with("missing <ID"), "{verb}: {missing}");
        assert_eq!(missing.hints, ["`hermes-sandbox quarantine list` shows those that there are"], "{verb}");
    }
    assert_eq!(refusal(&["quarantine", "revoke"]).hints, [crate::usage::APPROVALS]);
    assert_eq!(refusal(&["changes"]).hints, ["`hermes-sandbox changes --help` lists them"]);
    let number = refusal(&["changes", "rollback", "x"]);
    assert!(number.message.ends_with("not a number; `hermes-sandbox changes list` shows them"), "{number}");
    assert_eq!(refusal(&["doctor", "x"]).message, "unexpected argument `x`");
    assert_eq!(refusal(&["explain", "path"]).message, "missing <PATH>");
    assert_eq!(refusal(&["check", "--json"]).hints, [crate::usage::ONE_ARGUMENT]);
    assert!(parse(Vec::new()).is_err());
}
