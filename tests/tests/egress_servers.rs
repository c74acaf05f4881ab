//! Servers and proxies of others' making: nginx behind routes, and a company proxy that the caller has to use.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Internet, Route, Sandbox, need, run_to_end, wait_until};

/// Passed through unread at one port, read at the other.
const NGINX: [Route; 2] = [
    Route::to("nginx.test", &[8090]),
    Route::rule("nginx.test", &[8453], "methods = [\"GET\", \"POST\"]\npaths = [\"/open/**\", \"/large.bin\", \"/own/*\"]"),
];
const ROUTES: [Route; 2] =
    [Route::to("plain.test", &[80, 443]), Route::rule("read.test", &[80, 443], "methods = [\"GET\"]\npaths = [\"/open/**\"]")];
const FETCH: &str = "curl -sS --max-time 30";

#[test]
fn nginx_is_reached_as_routes_say() {
    need!("curl", "/usr/sbin/nginx");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&NGINX);
    let script = format!(
        "{FETCH} http://nginx.test:8090/open/a\n{FETCH} --http1.1 https://nginx.test:8453/open/b\n\
         {FETCH} --http2 https://nginx.test:8453/open/c https://nginx.test:8453/open/d\n\
         {FETCH} -d data https://nginx.test:8453/open/e\n{FETCH} --compressed -H 'Range: bytes=0-3' https://nginx.test:8453/open/f"
    );
    let answers = ["GOT-IT GET HTTP/1.1", "GOT-IT GET HTTP/2.0", "GOT-IT POST HTTP"];
    let inside = sandbox.sh(&script);
    let outside = sandbox.plain_sh(&script);
    for answer in answers {
        inside.ok().says(answer);
        outside.ok().says(answer);
    }
    assert_eq!(inside.out().lines().count(), 6, "{}", inside.report());
    let word = sandbox.canary("path");
    let closed = format!("{FETCH} https://nginx.test:8453/{word}; {FETCH} -X PUT -d x https://nginx.test:8453/open/{word}");
    let refused = sandbox.sh(&closed);
    refused.ok().says("\"reason\":\"path\"").says("\"reason\":\"method\"");
    internet.never_saw(&word, &refused);
    sandbox.plain_sh(&closed).ok();
    assert_eq!(internet.seen(&word).len(), 2, "positive control");
}

#[test]
fn a_refusal_of_the_servers_own_is_passed_on_as_it_is() {
    need!("curl", "/usr/sbin/nginx");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&NGINX);
    for place in ["http://nginx.test:8090", "https://nginx.test:8453"] {
        let fetch = format!("{FETCH} -i {place}/own/refusal");
        sandbox.sh(&fetch).ok().says("403").says("GOT-IT: the server's own").never_says("x-hermes-sandbox");
    }
}

#[test]
fn large_files_arrive_as_they_are() {
    need!("curl", "/usr/sbin/nginx", "sha256sum");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&NGINX);
    let sum = |text: String| text.split_whitespace().next().unwrap_or_default().to_owned();
    let truth = sum(sandbox.plain_sh(&format!("sha256sum '{}/www/large.bin'", internet.dir.display())).ok().out());
    assert_eq!(truth.len(), 64);
    for flags in ["http://nginx.test:8090", "--http1.1 https://nginx.test:8453", "--http2 https://nginx.test:8453"] {
        let inside = sandbox.sh(&format!("{FETCH} {flags}/large.bin | sha256sum"));
        assert_eq!(sum(inside.ok().out()), truth, "{flags}\n{}", inside.report());
    }
}

/// Both the server and the proxy may answer before a body was read, and then read no further.
#[test]
fn answers_to_requests_with_bodies_are_heard() {
    need!("curl", "/usr/sbin/nginx");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&NGINX);
    let script = |path: &str| {
        format!(
            "for i in $(seq 60); do {FETCH} -o /dev/null -w '%{{http_code}} ' -d data https://nginx.test:8453/{path} || echo LOST; done"
        )
    };
    for (path, status) in [("open/a", "200 "), ("closed", "403 ")] {
        let result = sandbox.sh(&script(path));
        assert_eq!(result.ok().out().matches(status).count(), 60, "{}", result.report());
    }
    assert_eq!(sandbox.plain_sh(&script("open/a")).ok().out().matches("200 ").count(), 60);
}

/// The company proxy of the tests, with these credentials.
fn behind(internet: &Internet, credentials: &str) -> Sandbox {
    internet.with(&ROUTES).env("HTTPS_PROXY", format!("http://{credentials}@10.1.2.3:8888"))
}

#[test]
fn a_company_proxy_of_the_callers_is_used() {
    need!("curl", "/usr/bin/tinyproxy");
    let Some(internet) = Internet::here() else { return };
    let led = || std::fs::read_to_string(internet.dir.join("tinyproxy.log")).unwrap_or_default().matches("CONNECT").count();
    assert!(wait_until(10, || internet.dir.join("tinyproxy.log").exists()));
    let sandbox = behind(internet, "clerk:right-word");
    let before = led();
    let result = sandbox.sh(&format!("{FETCH} https://plain.test/a; {FETCH} https://read.test/open/b; env"));
    assert_eq!(result.ok().out().matches("GOT-IT").count(), 2, "{}", result.report());
    assert!(led() >= before + 2, "it was gone around");
    result.never_says("right-word");
    let word = sandbox.canary("path");
    let refused = sandbox.sh(&format!("{FETCH} https://other.test/{word}; {FETCH} https://read.test/{word}"));
    internet.never_saw(&word, refused.never_says("GOT-IT"));
    // Without the right word nothing is reached, and nothing goes around it.
    let stranger = behind(internet, "clerk:wrong-word");
    let word = stranger.canary("path");
    let refused = stranger.sh(&format!("{FETCH} https://plain.test/{word}; {FETCH} https://read.test/open/{word}"));
    internet.never_saw(&word, refused.never_says("GOT-IT").never_says("wrong-word"));
}

#[test]
fn routes_that_change_under_load_let_nothing_else_through() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.sandbox();
    let name = format!("storm-{}", sandbox.canary("x").to_lowercase());
    let session = |words: &[&str]| run_to_end(sandbox.hermes().arg("session").args(words));
    let workspace = sandbox.workspace.display().to_string();
    session(&["start", "--workspace", &workspace, "--allow-host", "plain.test:80", &name]).ok();
    let load = sandbox.probe(
        "
import threading, time
counts, lock = {}, threading.Lock()
def one(name, host, path):
    while not os.path.exists('over'):
        got = b'GOT-IT' in exchange((host, 80), get(path, host.encode()), patience=20) if host != 'by proxy' else \\
              b'GOT-IT' in exchange(PROXY, get(b'http://other.test/@', b'other.test'), patience=20)
        with lock: counts[name, got] = counts.get((name, got), 0) + 1
work = [('kept', 'plain.test', b'/'), ('never', '93.184.216.36', b'/@'), ('never', 'by proxy', b''), ('sometimes', 'read.test', b'/')] * 2
threads = [threading.Thread(target=one, args=args) for args in work]
for thread in threads: thread.start()
open('ready', 'w').close()
for thread in threads: thread.join()
print(*(f'{name}-{got}={count}' for (name, got), count in sorted(counts.items())))",
    );
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| session(&["exec", &name, "--", hermes_tests::PYTHON, "-c", &load]));
        assert!(wait_until(30, || sandbox.workspace.join("ready").exists()));
        for round in 0..40 {
            let more: &[&str] = if round % 2 == 0 { &["--allow-host", "read.test:80"] } else { &[] };
            let words = [&["policy", "set", &name, "--workspace", &workspace, "--allow-host", "plain.test:80"], more].concat();
            session(&words).ok();
        }
        sandbox.write("over", "");
        let result = loaded.join().unwrap();
        let result = result.ok();
        result.says("kept-True").never_says("kept-False").says("never-False").never_says("never-True").says("sometimes-True");
        internet.never_saw(&sandbox.canary("path"), result);
    });
    session(&["stop", &name]).ok();
}
