//! Package managers, Java, Go, WebSockets and streams of events by routes.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use hermes_tests::{CLIENT_ROUTES, Client, Internet, PYTHON, need, program, skip};

#[test]
fn pip_downloads() {
    need!("/usr/bin/pip3");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    let fetch = format!(
        "rm -rf got; {PYTHON} -m pip download -q --isolated --no-cache-dir --disable-pip-version-check --no-deps --retries 0 --timeout 20 \
         --trusted-host nobody.test ${{PIP_CERT:+--cert \"$PIP_CERT\"}} -d got --trusted-host \"$(case $1 in http:*) echo ${{1#*//}};; *) echo nobody.test;; esac)\" \
         -i \"$1/simple\" demo-got-it; ls got | sed s/got_it/GOT-IT/"
    );
    Client::new(&sandbox, &fetch).reaches_only_what_is_routed(internet);
}

#[test]
fn npm_views_and_installs() {
    need!("npm");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    let options = "--registry \"$1/npm/\" --cache ./cache --fetch-retries=0 --fetch-timeout=20000 --no-update-notifier --no-audit --no-fund";
    let fetch = format!(
        "rm -rf got cache; mkdir got; echo '{{}}' > got/package.json; npm install --prefix got {options} demo-got-it; cat got/node_modules/demo-got-it/index.js"
    );
    Client::new(&sandbox, &fetch).reaches_only_what_is_routed(internet);
}

#[test]
fn cargo_fetches_from_a_registry() {
    let Some(internet) = Internet::here() else { return };
    let cargo = match std::env::var_os("HERMES_TEST_RUST") {
        Some(rust) => Path::new(&rust).join("bin/cargo"),
        None => match program("rustc").and_then(|rustc| {
            let printed = std::process::Command::new(rustc).args(["--print", "sysroot"]).output().ok()?;
            Some(Path::new(String::from_utf8(printed.stdout).ok()?.trim()).join("bin/cargo"))
        }) {
            Some(cargo) => cargo,
            None => skip!("cargo is not installed"),
        },
    };
    if !cargo.is_file() {
        skip!("cargo is not installed");
    }
    let toolchain = cargo.parent().unwrap().parent().unwrap();
    let sandbox = internet.with(&CLIENT_ROUTES).flags([Path::new("--ro"), toolchain]);
    sandbox.write("demo/src/lib.rs", "");
    sandbox.write(
        "demo/Cargo.toml",
        "[package]\nname = \"demo\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\ndemo-got-it = { version = \"1\", registry = \"test\" }\n",
    );
    let fetch = format!(
        "rm -rf demo/Cargo.lock cargo; CARGO_HOME=$PWD/cargo CARGO_NET_RETRY=0 CARGO_REGISTRIES_TEST_INDEX=\"sparse+$1/cargo/\" \
         CARGO_HTTP_TIMEOUT=20 PATH='{}':$PATH cargo fetch -q --manifest-path demo/Cargo.toml && echo GOT-IT",
        cargo.parent().unwrap().display()
    );
    Client::new(&sandbox, &fetch).reaches_only_what_is_routed(internet);
}

#[test]
fn java_http_client() {
    need!("java", "javac", "keytool");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    sandbox.write(
        "Client.java",
        "import java.net.URI; import java.net.http.*; import java.time.Duration;\n\
         public class Client { public static void main(String[] a) throws Exception {\n\
         HttpClient client = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(20)).build();\n\
         for (String url : a) { try {\n\
         System.out.println(client.send(HttpRequest.newBuilder(URI.create(url)).timeout(Duration.ofSeconds(20)).build(), HttpResponse.BodyHandlers.ofString()).body());\n\
         } catch (Exception e) { System.out.println(e); } } } }\n",
    );
    sandbox.plain_sh("javac Client.java").ok();
    // Java knows of no variables for certificates: outside it is told of a store, one for each set of them. Inside its own has them.
    let fetch = "run() { java -XX:TieredStopAtLevel=1 $*; }; [ -e /run/hermes-sandbox ] && [ -e /etc/ssl/certs/java/cacerts ] && { run -cp . Client \"$1/@\"; exit; }
        store=$(cksum < \"$SSL_CERT_FILE\" | cut -d' ' -f1).p12; password=changeit
        [ -e $store ] || { awk '/BEGIN/ {n++} {print > \"c\" n \".pem\"}' \"$SSL_CERT_FILE\"
            for c in c[0-9]*.pem; do keytool -importcert -noprompt -storetype PKCS12 -storepass $password -keystore $store -alias $c -file $c; done; rm -f c*.pem; }
        run -Djavax.net.ssl.trustStore=$store -Djavax.net.ssl.trustStorePassword=$password -cp . Client \"$1/@\"";
    Client::new(&sandbox, fetch).reaches_only_what_is_routed(internet);
}

#[test]
fn go_http_client() {
    need!("go");
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    sandbox.write(
        "client.go",
        "package main\nimport (\"fmt\"; \"io\"; \"net/http\"; \"os\")\nfunc main() {\n\
         answer, err := http.Get(os.Args[1])\nif err != nil { fmt.Println(err); return }\n\
         text, _ := io.ReadAll(answer.Body)\nfmt.Println(string(text)) }\n",
    );
    sandbox.plain_sh("GOCACHE=$PWD/cache GOPATH=$PWD/go GO111MODULE=off go build -o client client.go").ok();
    Client::new(&sandbox, "timeout 30 ./client \"$1/@\"").reaches_only_what_is_routed(internet);
}

/// Opens a connection by the variables, or without them, and leaves `sock` and `host`.
const CONNECT: &str = "
import os, socket, ssl, sys
scheme, _, host = sys.argv[1].partition('://')
port = 443 if scheme == 'https' else 80
proxy = os.environ.get('https_proxy', '').removeprefix('http://')
if proxy:
    sock = socket.create_connection(proxy.rsplit(':', 1), 20)
    sock.sendall(f'CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n'.encode())
    answer = b''
    while b'\\r\\n\\r\\n' not in answer:
        more = sock.recv(1)
        if not more: sys.exit('closed')
        answer += more
    if b' 200 ' not in answer: sys.exit(answer)
else:
    sock = socket.create_connection((host, port), 20)
if scheme == 'https':
    sock = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE']).wrap_socket(sock, server_hostname=host)
";

#[test]
fn websockets() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    let program = "
sock.sendall(f'GET /socket/@ HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\nSec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\n\\r\\n'.encode())
stream = sock.makefile('rb')
print(status := stream.readline())
if b'101' not in status: sys.exit(stream.read(200))
while stream.readline().strip(): pass
said = []
for n in range(3):
    sock.sendall(bytes([0x81, 0x80 | 7, 0, 0, 0, 0]) + b'frame-%d' % n)
    head = stream.read(2); said.append(stream.read(head[1]))
print('GOT-IT' if said == [b'frame-0', b'frame-1', b'frame-2'] else said)";
    sandbox.write("client.py", [CONNECT, &program.replace('@', &sandbox.canary("path"))].concat());
    Client::new(&sandbox, &format!("{PYTHON} client.py $1")).reaches_only_what_is_routed(internet);
}

#[test]
fn streams_of_events() {
    let Some(internet) = Internet::here() else { return };
    let sandbox = internet.with(&CLIENT_ROUTES);
    let program = "
sock.sendall(f'GET /events/@ HTTP/1.1\\r\\nHost: {host}\\r\\nAccept: text/event-stream\\r\\n\\r\\n'.encode())
text = b''
while b'data: GOT-IT 2' not in text:
    more = sock.recv(4096)
    if not more: break
    text += more
print('GOT-IT' if text.count(b'data: GOT-IT') == 3 else len(text))";
    sandbox.write("client.py", [CONNECT, &program.replace('@', &sandbox.canary("path"))].concat());
    Client::new(&sandbox, &format!("{PYTHON} client.py $1")).reaches_only_what_is_routed(internet);
}
