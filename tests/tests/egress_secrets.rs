//! A secret of the host reaches the server of its route, and nobody else: not the program, not other servers, no record.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use hermes_tests::{Internet, Outcome, Route, Sandbox, need, run_to_end_with_input};

const ROUTES: [Route; 4] = [
    Route::rule(
        "read.test",
        &[443],
        "paths = [\"/v1/**\"]\nsecret = { name = \"key\", header = \"Authorization\", format = \"Bearer {}\" }",
    ),
    Route::rule("read.test", &[443], "paths = [\"/free/**\"]"),
    Route::to("plain.test", &[80, 443]),
    Route::rule("*.wild.test", &[443], "methods = [\"GET\", \"POST\"]"),
];

/// A sandbox whose profile has a secret; its value.
fn with_secret(internet: &Internet) -> (Sandbox, String) {
    let sandbox = internet.with(&ROUTES);
    let value = format!("{}-0123456789", sandbox.canary("value"));
    let profile = sandbox.outside.join("profile.toml");
    let mut add = sandbox.hermes();
    add.args(["secrets", "add", "key", "--env", "API_KEY", "--profile"]).arg(profile);
    run_to_end_with_input(&mut add, value.as_bytes()).ok();
    let events = sandbox.outside.join("events");
    (sandbox.flags([Path::new("--json-events"), &events]), value)
}

/// The value is nowhere but in the headers of requests to the route.
#[track_caller]
fn kept(internet: &Internet, sandbox: &Sandbox, value: &str, result: &Outcome) {
    result.never_says(value);
    assert!(!sandbox.read(sandbox.outside.join("events")).contains(value), "{}", result.report());
    for line in internet.seen(value) {
        let meant = line["at"] == "93.184.216.35:443" && line["target"].as_str().is_some_and(|target| target.starts_with("/v1/"));
        assert!(meant && line["headers"]["authorization"] == format!("Bearer {value}"), "{line}\n{}", result.report());
        assert_eq!(line.to_string().matches(value).count(), 1, "{line}");
    }
}

#[test]
fn it_is_put_in_on_its_route_and_is_not_to_be_found_inside() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let (sandbox, value) = with_secret(internet);
    let word = sandbox.canary("path");
    let script = format!(
        "[ -n \"$API_KEY\" ] || exit 1
         curl -sS --max-time 20 -H \"Authorization: Bearer $API_KEY\" https://read.test/v1/{word}/placeholder
         curl -sS --max-time 20 https://read.test/v1/{word}/nothing
         curl -sS --max-time 20 --http1.1 --noproxy '*' -H 'Authorization: Bearer mine' https://read.test/v1/{word}/another
         curl -sS --max-time 20 https://read.test/free/{word}
         env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'
         grep -rsE -D skip 'CANARY-[v]alue' ~ /tmp /run /dev/shm /etc /var 2>/dev/null | head -n 3; echo END"
    );
    let result = sandbox.sh(&script);
    result.ok().says("END");
    kept(internet, &sandbox, &value, &result);
    let seen = internet.seen(&word);
    let with: Vec<_> = seen.iter().filter(|line| line["headers"]["authorization"] == format!("Bearer {value}")).collect();
    assert_eq!((seen.len(), with.len()), (4, 3), "{seen:?}\n{}", result.report());
    let free = seen.iter().find(|line| line["target"].to_string().contains("/free/")).unwrap();
    assert_eq!(free["headers"]["authorization"], serde_json::Value::Null, "{free}");
}

#[test]
fn no_other_request_carries_it_or_its_placeholder() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let (sandbox, value) = with_secret(internet);
    let word = sandbox.canary("path");
    let tries = [
        "-H \"Authorization: Bearer $API_KEY\" https://a.wild.test/@",
        "-H \"X-Copy: $API_KEY\" https://read.test/v1/@",
        "-H \"X-Copy: $API_KEY\" https://read.test/free/@",
        "-H \"Authorization: Bearer $API_KEY\" https://read.test/free/@",
        "https://read.test/v1/@?key=$API_KEY",
        "https://read.test/v1/@/$API_KEY",
        "-H \"Cookie: key=$API_KEY\" https://read.test/v1/@",
        "-u \"user:$API_KEY\" https://a.wild.test/@",
        "-H \"Authorization: Bearer $API_KEY\" -H \"Authorization: Bearer $API_KEY\" https://a.wild.test/@",
        "--http2 -H \"Authorization: Bearer $API_KEY\" -H 'Host: a.wild.test' https://read.test/v1/@",
        "-H \"Authorization: Bearer $API_KEY\" https://read.test/v1/../@",
        "-H \"Authorization: Bearer $API_KEY\" https://read.test/v1/%2e%2e/@ --path-as-is",
        "-H \"Authorization: Bearer $API_KEY\" http://read.test/v1/@",
        "-H \"Authorization: Bearer $API_KEY\" -H 'Upgrade: h2c' -H 'Connection: Upgrade, Authorization' https://a.wild.test/@",
    ];
    let lines: String = tries.iter().map(|one| format!("curl -sS --max-time 20 {one} | tr -d '\\n'; echo\n")).collect();
    let script = format!("echo PLACEHOLDER $API_KEY\n{}", lines.replace('@', &word));
    let result = sandbox.sh(&script);
    let out = result.out();
    let placeholder = out.lines().next().unwrap().strip_prefix("PLACEHOLDER ").unwrap().to_owned();
    assert!(placeholder.len() > 10, "{}", result.report());
    result.never_says("GOT-IT");
    internet.never_saw(&placeholder, &result);
    internet.never_saw(&word, &result);
    kept(internet, &sandbox, &value, &result);
    // Without the placeholder each of these places is reached.
    let control = "for path in v1 free; do curl -sS --max-time 20 https://read.test/$path/x; done; curl -sS --max-time 20 https://a.wild.test/x";
    assert_eq!(sandbox.sh(control).ok().out().matches("GOT-IT").count(), 3);
}

#[test]
fn a_server_that_sends_it_back_does_not_tell_it() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let (sandbox, value) = with_secret(internet);
    let script = "curl -sS --max-time 20 -i https://read.test/v1/headers; curl -sS --max-time 20 --http1.1 -i https://read.test/v1/a/headers; echo END";
    let result = sandbox.sh(script);
    result.ok().says("END");
    kept(internet, &sandbox, &value, &result);
    assert_eq!(internet.seen(&value).len(), 2, "positive control");
    assert!(sandbox.read(sandbox.outside.join("events")).contains("secret-echoed"), "{}", result.report());
}

#[test]
fn another_profile_does_not_get_it() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let (owner, value) = with_secret(internet);
    // The same routes in a profile of another name, in the same home.
    let text = owner.read(owner.outside.join("profile.toml"));
    let copy = owner.write(owner.outside.join("copy.toml"), text);
    let mut command = owner.hermes();
    command.arg("run").arg("--profile").arg(copy).arg("--workspace").arg(&owner.workspace);
    command.args(["--", "/bin/sh", "-c", "echo $API_KEY; curl -sS --max-time 20 https://read.test/v1/x"]);
    let result = hermes_tests::run_to_end(&mut command);
    kept(internet, &owner, &value, result.never_says("GOT-IT"));
    assert!(internet.seen(&value).is_empty());
    owner.sh("curl -sS --max-time 20 https://read.test/v1/x").ok().says("GOT-IT");
    assert_eq!(internet.seen(&value).len(), 1, "positive control");
}
