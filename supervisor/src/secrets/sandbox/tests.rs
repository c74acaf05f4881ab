use super::*;
use std::sync::Arc;
use zeroize::Zeroizing;

fn stored(text: &str) -> Source {
    Source::Stored(Value::parse(Zeroizing::new(text.as_bytes().to_vec())).unwrap())
}

fn sh(script: &str) -> Source {
    Source::Command(["/bin/sh", "-c", script].map(str::to_owned).to_vec())
}

fn entry(scope: &str, name: &str, variable: Option<&str>, members: Vec<Source>) -> Entry {
    Entry { scope: scope.into(), name: name.into(), variable: variable.map(str::to_owned), members, suppressed: false }
}

type Notices = Arc<Mutex<Vec<Notice>>>;

fn of(entries: Vec<Entry>, names: &[&str]) -> (SandboxSecrets, Notices) {
    let (vault, notices) = (Vault { entries }, Notices::default());
    let told = Arc::clone(&notices);
    let tell = Box::new(move |notice: &Notice| told.lock().unwrap().push(notice.clone()));
    let caller = Caller::from_variables("/".into(), vec![("GIVEN".into(), "from-env".into())]);
    (SandboxSecrets::new(&vault, "agent", &names.iter().copied().collect(), &caller, tell).unwrap(), notices)
}

fn value(secrets: &SandboxSecrets, name: &str) -> Option<(String, usize)> {
    secrets.value(name).map(|secret| (secret.value.to_string(), secret.member))
}

#[test]
fn only_what_routes_name_and_only_of_this_profile() {
    let entries = vec![
        entry("agent", "model", Some("KEY"), vec![stored("one")]),
        entry("agent", "unused", Some("UNUSED"), vec![stored("two")]),
        entry("other", "theirs", None, vec![stored("three")]),
        Entry { suppressed: true, ..entry("agent", "gone", None, Vec::new()) },
        entry("agent", "unset", None, vec![Source::Variable("NOT_SET".into())]),
    ];
    let (secrets, _) = of(entries, &["model", "theirs", "gone", "unset", "never"]);
    assert_eq!(value(&secrets, "model"), Some(("one".into(), 0)));
    for name in ["unused", "theirs", "gone", "unset", "never"] {
        assert_eq!((value(&secrets, name), secrets.placeholder(name)), (None, None), "{name}");
    }
    let why = |name: &str| secrets.missing.iter().find(|missing| missing.name == name).unwrap().why.clone();
    assert_eq!(secrets.missing.len(), 4);
    assert!(why("theirs").contains("only for other") && why("gone").contains("suppressed"));
    assert!(why("unset").contains("NOT_SET") && why("never").contains("not added"));
    let error = secrets.require().unwrap_err();
    assert!(error.message.contains("profile agent") && error.message.contains("gone"), "{error}");
    let variables = secrets.variables();
    assert_eq!((variables.len(), variables[0].0.as_str()), (1, "KEY"));
    assert!(of(Vec::new(), &[]).0.require().is_ok());
}

#[test]
fn placeholders_are_found_in_any_text() {
    let entries = vec![entry("agent", "a", None, vec![stored("1")]), entry("agent", "b", None, vec![stored("2")])];
    let (secrets, _) = of(entries, &["a", "b"]);
    let (a, b) = (secrets.placeholder("a").unwrap(), secrets.placeholder("b").unwrap());
    assert!(a != b && a.len() == 43 && a.starts_with("hsx-secret-"));
    for (text, name) in [
        (a.clone(), Some("a")),
        (format!("Bearer {b}"), Some("b")),
        (format!("\u{ff}hsx-secret-{b}x"), Some("b")),
        (format!("{}{a}", "hsx-secret-0".repeat(9)), Some("a")),
        (a[..42].to_owned(), None),
        (format!("hsx-secret-{}", "0".repeat(32)), None),
        (String::new(), None),
    ] {
        assert_eq!(secrets.placeholder_in(text.as_bytes()).as_deref(), name, "{text}");
    }
    assert_ne!(of(vec![entry("agent", "a", None, vec![stored("1")])], &["a"]).0.placeholder("a").unwrap(), a);
}

#[test]
fn a_pool_goes_on_and_says_when_it_is_exhausted() {
    let members = vec![stored("one"), Source::Variable("GIVEN".into()), stored("three")];
    let (secrets, notices) = of(vec![entry("agent", "model", None, members)], &["model"]);
    for (member, status, next) in [(0, 200, "one"), (0, 401, "from-env"), (1, 429, "three")] {
        secrets.answered("model", member, status);
        assert_eq!(value(&secrets, "model").unwrap().0, next);
    }
    assert!(notices.lock().unwrap().is_empty());
    secrets.answered("model", 2, 402);
    assert_eq!((value(&secrets, "model"), value(&secrets, "model")), (None, None));
    let notices = notices.lock().unwrap();
    assert!(matches!(notices.as_slice(), [Notice::SecretExhausted { secret, seconds: 50..=60 }] if secret == "model"));
}

#[test]
fn a_command_runs_once_and_only_when_it_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let script = format!("echo x >> '{}'; echo from-command", count.display());
    let (secrets, _) = of(vec![entry("agent", "model", None, vec![sh(&script)])], &["model"]);
    assert!(!count.exists() && secrets.waits("model"));
    assert_eq!(value(&secrets, "model"), Some(("from-command".into(), 0)));
    assert!(!secrets.waits("model"));
    assert_eq!(value(&secrets, "model"), Some(("from-command".into(), 0)));
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
}

#[test]
fn what_fails_is_told_once_and_the_next_value_is_used() {
    let members = vec![sh("echo hidden-text; exit 3"), sh("exit 4"), stored("three")];
    let (secrets, notices) = of(vec![entry("agent", "model", None, members)], &["model"]);
    assert_eq!(value(&secrets, "model"), Some(("three".into(), 2)));
    let told = serde_json::to_string(&*notices.lock().unwrap()).unwrap();
    assert!(told.contains("\"event\":\"secret-unavailable\"") && told.contains("exit status: 3"), "{told}");
    assert!(!told.contains("hidden-text") && !told.contains("exit status: 4"), "{told}");

    let (secrets, notices) = of(vec![entry("agent", "model", None, vec![sh("exit 3")])], &["model"]);
    assert_eq!((value(&secrets, "model"), value(&secrets, "model")), (None, None));
    assert_eq!(notices.lock().unwrap().len(), 2, "unavailable, then exhausted");
}
