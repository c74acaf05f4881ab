//! Real clients reach the hosts that routes name and no others, whether or not they know of the proxy, and whether or not their
//! requests are read.
#![allow(clippy::unwrap_used)]

use hermes_tests::{CLIENT_ROUTES, Client, Internet, PYTHON, Route, Sandbox, need, skip};

fn python(sandbox: &Sandbox, program: &str) -> String {
    let file = sandbox.write("client.py", program);
    format!("PYTHONPATH=./packages {PYTHON} {} \"$1/@\"", file.display())
}

#[test]
fn curl() {
    need!("curl");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    Client::new(&sandbox, "curl -sS --max-time 20 \"$1/@\"").reaches_only_what_is_routed(internet);
    Client::new(&sandbox, "curl -sS --max-time 20 --http2 -d data \"$1/echo/@\"").reaches_only_what_is_routed(internet);
    // A redirect to where no route leads is followed to nothing.
    let fetch = "curl -sSL --max-time 20 \"https://plain.test/redirect?$1/@\"";
    Client::new(&sandbox, fetch).reaches_only_what_is_routed(internet);
}

#[test]
fn wget() {
    need!("wget");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    Client::new(&sandbox, "wget -q --ca-certificate=\"$SSL_CERT_FILE\" -t 1 -T 20 -O - \"$1/@\"")
        .reaches_only_what_is_routed(internet);
}

#[test]
fn python_urllib() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    let program = "import sys, urllib.request\nprint(urllib.request.urlopen(sys.argv[1], timeout=20).read())";
    Client::new(&sandbox, &python(&sandbox, program)).reaches_only_what_is_routed(internet);
}

#[test]
fn python_requests() {
    let Some(internet) = Internet::here() else { return };
    let Some(sandbox) = internet.with_http_packages(&CLIENT_ROUTES) else { return };
    let program = "import sys, requests\nprint(requests.get(sys.argv[1], timeout=20).text)";
    Client::new(&sandbox, &python(&sandbox, program)).reaches_only_what_is_routed(internet);
}

#[test]
fn python_httpx() {
    let Some(internet) = Internet::here() else { return };
    let Some(sandbox) = internet.with_http_packages(&CLIENT_ROUTES) else { return };
    let program = "import sys, httpx\nprint(httpx.get(sys.argv[1], timeout=20).text)";
    Client::new(&sandbox, &python(&sandbox, program)).reaches_only_what_is_routed(internet);
    let program = "import sys, httpx\nprint(httpx.Client(http2=True, timeout=20).get(sys.argv[1]).text)";
    Client::new(&sandbox, &python(&sandbox, program)).reaches_only_what_is_routed(internet);
}

#[test]
fn python_aiohttp() {
    let Some(internet) = Internet::here() else { return };
    let Some(sandbox) = internet.with_http_packages(&CLIENT_ROUTES) else { return };
    let program = "
import sys, aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True, timeout=aiohttp.ClientTimeout(20)) as session:
        async with session.get(sys.argv[1]) as response: print(await response.text())
asyncio.run(main())";
    Client::new(&sandbox, &python(&sandbox, program)).reaches_only_what_is_routed(internet);
}

#[test]
fn node_fetch() {
    need!("node");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    sandbox.write("client.mjs", "console.log(await (await fetch(process.argv[2])).text())");
    Client::new(&sandbox, "timeout 30 node client.mjs \"$1/@\"").reaches_only_what_is_routed(internet);
}

#[test]
fn node_https() {
    need!("node");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    let program = "
const url = process.argv[2]
require(url.split(':')[0]).get(url, answer => answer.on('data', data => console.log(String(data)))).on('error', e => console.log(e.message))";
    sandbox.write("client.cjs", program);
    Client::new(&sandbox, "timeout 30 node client.cjs \"$1/@\"").reaches_only_what_is_routed(internet);
}

#[test]
fn openssl_client() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    // Knows of no variables, and of TLS only.
    let fetch =
        "host=${1#*://}; case $1 in https*) printf 'GET /@ HTTP/1.1\\r\\nHost: %s\\r\\nConnection: close\\r\\n\\r\\n' $host |
        timeout 20 openssl s_client -quiet -verify_return_error -CAfile \"$SSL_CERT_FILE\" -connect $host:443 -servername $host;;
        *) curl -sS --max-time 20 \"$1/@\";; esac";
    Client::new(&sandbox, fetch).reaches_only_what_is_routed(internet);
}

#[test]
fn git_clones_and_pushes() {
    need!("git");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    let fetch = "got=$(mktemp -d) && git clone -q \"$1/git/demo.git\" $got; cat $got/file";
    Client::new(&sandbox, fetch).reaches_only_what_is_routed(internet);
    let word = sandbox.canary("branch");
    let push = |name: &str| {
        format!(
            "git -c user.name=T -c user.email=t@example.test commit -q --allow-empty -m x && git push -q origin HEAD:{word}-{name}"
        )
    };
    for name in ["plain", "read"] {
        let script = format!("git clone -q https://{name}.test/git/demo.git /tmp/got && cd /tmp/got && {}", push(name));
        sandbox.sh(&script).ok();
    }
    let script = format!(
        "git clone -q https://plain.test/git/demo.git /tmp/got && cd /tmp/got && git remote set-url origin https://other.test/git/demo.git && {}",
        push("other")
    );
    assert_ne!(sandbox.sh(&script).code(), 0);
    let branches = sandbox.plain_sh("git ls-remote https://other.test/git/demo.git");
    assert_eq!(branches.ok().out().matches(&word).count(), 2, "{}", branches.report());
}

#[test]
fn git_over_ssh() {
    need!("git", "ssh", "sshd");
    let Some(internet) = Internet::here() else { return };
    if !std::fs::metadata(internet.dir.join("user_key")).is_ok_and(|meta| meta.is_file()) {
        skip!("ssh-keygen is not installed");
    }
    let sandbox = internet.with(&[Route::to("plain.test", &[22])]);
    sandbox.plain_sh(&format!("cp '{}/user_key' key && chmod 600 key", internet.dir.display())).ok();
    let user = sandbox.plain_sh("id -un").ok().out().trim().to_owned();
    let ssh = "ssh -i key -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20 -o BatchMode=yes";
    let clone = |host: &str| {
        format!(
            "got=$(mktemp -d); GIT_SSH_COMMAND='{ssh}' git clone -q '{user}@{host}:{}/repos/demo.git' $got; cat $got/file",
            internet.dir.display()
        )
    };
    sandbox.sh(&clone("plain.test")).ok().says("GOT-IT");
    sandbox.sh(&clone("other.test")).never_says("GOT-IT");
    sandbox.plain_sh(&clone("other.test")).ok().says("GOT-IT");
}
