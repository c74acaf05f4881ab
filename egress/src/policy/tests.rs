use hermes_profiles::Origin;
use proptest::prelude::*;

use super::*;

fn route(host: &str, ports: &[u16]) -> Route {
    Route::new(host, ports, Origin::Flag("--allow-host".into()))
}

fn with(mut route: Route, methods: &[&str], paths: &[&str]) -> Route {
    route.rules.methods = methods.iter().map(|text| (*text).to_owned()).collect();
    route.rules.paths = paths.iter().map(|text| (*text).to_owned()).collect();
    route
}

fn rules(routes: &[Route]) -> Ruleset {
    Ruleset::new(routes, None).unwrap()
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

fn decide(rules: &Ruleset, name: &str, method: &str, path: &str) -> Result<String, Reason> {
    match rules.decide(&Request { host: &host(name), port: 443, method, path }) {
        Decision::Allow(rule) => Ok(rule.rules.paths.join(" ")),
        Decision::Refuse(reason) => Err(reason),
    }
}

#[test]
fn connections() {
    let rules = rules(&[
        route("*.example.test", &[443]),
        with(route("api.example.test", &[443]), &["GET"], &[]),
        route("10.0.0.5", &[5432]),
        route("ssh.example.test", &[22]),
    ]);
    let admit = |name: &str, port| rules.admit(&host(name), port);
    assert!(matches!(admit("www.example.test", 443), Ok(Admission::PassThrough(_))));
    assert!(matches!(admit("api.example.test", 443), Ok(Admission::Inspect)));
    assert!(matches!(admit("ssh.example.test", 443), Ok(Admission::PassThrough(_))), "by the wildcard: its own rule is about 22");
    assert_eq!(admit("example.test", 443).err(), Some(Reason::NoRoute));
    assert_eq!(admit("www.example.test", 80).err(), Some(Reason::Port { ports: vec![443] }));
    assert!(matches!(admit("10.0.0.5", 5432), Ok(Admission::PassThrough(_))));
    assert_eq!(admit("10.0.0.6", 5432).err(), Some(Reason::UnknownAddress));
}

#[test]
fn requests() {
    let rules = rules(&[
        route("*.example.test", &[443]),
        with(route("api.example.test", &[443]), &["GET", "POST"], &["/v1/**"]),
        with(route("api.example.test", &[443]), &["GET"], &["/health"]),
    ]);
    assert_eq!(decide(&rules, "api.example.test", "POST", "/v1/chat"), Ok("/v1/**".into()));
    assert_eq!(decide(&rules, "api.example.test", "GET", "/health"), Ok("/health".into()));
    assert_eq!(decide(&rules, "api.example.test", "POST", "/health"), Err(Reason::Path));
    assert_eq!(decide(&rules, "api.example.test", "DELETE", "/v1/x"), Err(Reason::Method));
    assert_eq!(decide(&rules, "api.example.test", "get", "/v1/x"), Err(Reason::Method));
    assert_eq!(decide(&rules, "api.example.test", "GET", "/V1/x"), Err(Reason::Path));
    assert_eq!(decide(&rules, "api.example.test", "GET", "/v1"), Err(Reason::Path));
    assert!(matches!(decide(&rules, "api.example.test", "GET", "/v1/../admin"), Err(Reason::AmbiguousPath { .. })));
    assert!(matches!(decide(&rules, "api.example.test", "GET", "/v1/..%2fadmin"), Err(Reason::AmbiguousPath { .. })));
    assert!(matches!(decide(&rules, "api.example.test", "GET", "/v1/%00"), Err(Reason::AmbiguousPath { .. })));
    assert_eq!(decide(&rules, "api.example.test", "GET", "/v1/a/../b"), Ok("/v1/**".into()));
    assert_eq!(decide(&rules, "api.example.test", "GET", "/v1/@scope%2fname"), Ok("/v1/**".into()));
    assert_eq!(decide(&rules, "www.example.test", "DELETE", "/any/../thing"), Ok(String::new()));
}

#[test]
fn the_rule_that_says_most_comes_first() {
    let rules = rules(&[route("api.example.test", &[443]), with(route("api.example.test", &[443]), &[], &["/v1/**"])]);
    assert_eq!(decide(&rules, "api.example.test", "GET", "/v1/x"), Ok("/v1/**".into()));
    assert_eq!(decide(&rules, "api.example.test", "GET", "/other"), Ok(String::new()));
}

#[test]
fn a_rate_allows_bursts_and_refills() {
    let mut limited = route("api.example.test", &[443]);
    limited.rules.rate = Some(Rate { count: 3, milliseconds: 1_000 });
    let first = rules(&[limited.clone()]);
    let Ok(Admission::PassThrough(rule)) = first.admit(&host("api.example.test"), 443) else { panic!() };
    let at = |ms: u64| Duration::from_millis(10_000 + ms);
    assert_eq!([0, 0, 0, 0].map(|ms| rule.take(at(ms))), [true, true, true, false]);
    assert_eq!([300, 340, 400].map(|ms| rule.take(at(ms))), [false, true, false]);
    // A reload that does not change the rule does not fill its bucket.
    let second = Ruleset::new(&[limited], Some(&first)).unwrap();
    assert_eq!(second.generation(), 1);
    let Ok(Admission::PassThrough(rule)) = second.admit(&host("api.example.test"), 443) else { panic!() };
    assert!(!rule.take(at(400)));
}

proptest! {
    /// Whatever stands in front: what is allowed below a prefix stays below it, by the reading of RFC 3986 at least.
    #[test]
    fn no_way_out_of_a_prefix(rest in "(/|a|\\.|%2e|%2f|%5c|;|%25|2f|2e|\\\\){0,12}") {
        let rules = rules(&[with(route("api.example.test", &[443]), &[], &["/v1/**"])]);
        let path = format!("/v1/{rest}");
        if decide(&rules, "api.example.test", "GET", &path).is_ok() {
            for reading in path::readings(&path).unwrap() {
                prop_assert!(reading.starts_with("/v1/"), "{path} -> {reading}");
            }
        }
    }
}

#[test]
fn globs_of_paths() {
    for (glob, inside, outside) in [
        ("/v1/**", &["/v1/", "/v1/a", "/v1/a/b"][..], &["/v1", "/v10", "/v2/v1/"][..]),
        ("/**", &["/", "/a", "/a/b/"], &[]),
        ("/a/*/c", &["/a/b/c"], &["/a/b/b/c", "/a/c"]),
        ("/a/{b,c}", &["/a/b", "/a/c"], &["/a/d", "/a/b/"]),
    ] {
        let rules = rules(&[with(route("a.test", &[443]), &[], &[glob])]);
        assert!(inside.iter().all(|path| decide(&rules, "a.test", "GET", path).is_ok()), "{glob}");
        assert!(!outside.iter().any(|path| decide(&rules, "a.test", "GET", path).is_ok()), "{glob}");
    }
}
