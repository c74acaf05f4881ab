//! Fuzzing on the stable compiler: the checks of the fuzz targets over mutated samples, the same in every run.
//!
//! `FUZZ_ROUNDS` is how many inputs each check gets, `FUZZ_SEED` where the sequence begins.
#![allow(clippy::unwrap_used)]

mod support;

#[path = "../fuzz/checks.rs"]
mod checks;

use std::panic::{AssertUnwindSafe, catch_unwind};

use support::*;

fn setting(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn rounds() -> u64 {
    setting("FUZZ_ROUNDS", 4_000)
}

/// SplitMix64: small, and good enough to be everywhere in time.
struct Random(u64);

impl Random {
    fn new(check: u64) -> Self {
        Self(setting("FUZZ_SEED", 1).wrapping_mul(0x5851_f42d_4c95_7f2d) ^ check)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A sample with some bytes changed, taken out, put in, doubled, or taken from another sample.
    fn mutated(&mut self, samples: &[Vec<u8>], words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = self.one_of(samples).clone();
        for _ in 0..self.below(5) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(9)).min(bytes.len());
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.next() as u8,
                2 => drop(bytes.drain(at..end)),
                3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
                4 => bytes.truncate(at),
                5 => {
                    let other = self.one_of(samples).clone();
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[self.below(other.len())..]);
                }
                _ => drop(bytes.splice(at..at, self.one_of(words).to_vec())),
            }
        }
        bytes
    }
}

fn run(number: u64, samples: &[Vec<u8>], words: &[&[u8]], check: impl Fn(&[u8])) {
    let mut random = Random::new(number);
    for round in 0..rounds() {
        let input = random.mutated(samples, words);
        let held = catch_unwind(AssertUnwindSafe(|| check(&input))).is_ok();
        assert!(held, "round {round}: {:?}", String::from_utf8_lossy(&input).into_owned() + &format!(" = {input:02x?}"));
    }
}

#[test]
fn dns_messages() {
    let samples: Vec<_> = ["a.test", "x.b.test", "y.x.b.test", "other.test", ""]
        .iter()
        .flat_map(|name| [1, 28, 65, 255].map(|kind| query(name, kind)))
        .collect();
    run(
        1,
        &samples,
        &[b"\xc0\x0c", b"\0", b"\x3f", b"\x01b", b"\x04test", b"\xff\xff", b"\0\0\x29\x10\0\0\0\0\0\0\0"],
        checks::dns,
    );
}

/// Hellos of a real client, and what other first bytes there are.
fn first_samples() -> Vec<Vec<u8>> {
    use tokio_rustls::rustls::{ClientConnection, pki_types::ServerName};
    let pem = server::authority().certificate.pem();
    let hello = |name: &str, alpn: &[&str]| {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(std::sync::Arc::new(server::tls_client(&pem, alpn)), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    };
    let mut samples = vec![hello("a.test", &[]), hello("a.test", &["h2", "http/1.1"]), hello("127.0.0.1", &[])];
    for text in [
        "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "SSH-2.0-x\r\n",
        "\r\n\r\nGET /",
        "\x05\x01\0",
    ] {
        samples.push(text.into());
    }
    samples
}

#[test]
fn first_bytes() {
    let words: [&[u8]; 8] = [b"\x16\x03\x01", b"HTTP/", b"\r\n", b"\0", b" /", b"\xfe\x0d", b"\x80\x2e\x01\x03", b"\n"];
    run(2, &first_samples(), &words, checks::first_bytes);
}

const PATHS: [&str; 20] = [
    "/v1/x",
    "/v1/../admin",
    "/v1/%2e%2e/admin",
    "/v1/..%2fadmin",
    "/v1/..%252fadmin",
    "/v1/..;/admin",
    "/v1/..%5cadmin",
    "/v1//x",
    "/v1/./x",
    "/v1/x;y=/../z",
    "/v1/%76",
    "/v1/a/../b",
    "/v1/%c0%ae",
    "/v1/\u{e9}",
    "/v1/.../x",
    "//v1/x",
    "/v1/100%25",
    "/v1/%2f",
    "/v1/x\\..\\..\\y",
    "/v1/",
];

#[test]
fn hosts_and_paths() {
    let samples: Vec<Vec<u8>> = PATHS.iter().map(|path| path.as_bytes().to_vec()).collect();
    let words: [&[u8]; 16] = [
        b"..", b".", b"/", b"%2e", b"%2F", b"%25", b"%5c", b"\\", b";", b"//", b"%3b", b"%00", b"%", b"admin", b"/../", b"%252e",
    ];
    run(3, &samples, &words, |input| checks::request("x.a.test", "GET", &String::from_utf8_lossy(input)));
    let hosts: Vec<Vec<u8>> =
        ["x.a.test", "X.A.TEST.", "x.a.test:443", "[::1]:443", "127.0.0.1", "b\u{fc}cher.a.test", "u@x.a.test"]
            .iter()
            .map(|host| host.as_bytes().to_vec())
            .collect();
    let words: [&[u8]; 8] = [b".", b":", b"@", b"%00", b"xn--", b"\0", b".evil.test", b"0x7f.1"];
    run(4, &hosts, &words, |input| checks::request(&String::from_utf8_lossy(input), "GET", "/v1/x"));
}

#[test]
fn heads() {
    let host = "Host: a.test\r\n";
    let hidden = format!("GET /hidden HTTP/1.1\r\n{host}\r\n");
    let samples: Vec<Vec<u8>> = [
        format!("GET /ok HTTP/1.1\r\n{host}\r\n{hidden}"),
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\nabc{hidden}"),
        format!("\r\nPOST /ok HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: x\r\n\r\n{hidden}"),
        format!("CONNECT a.test:443 HTTP/1.1\r\n{host}\r\n{hidden}"),
    ]
    .map(String::into_bytes)
    .to_vec();
    let words: [&[u8]; 14] = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"Content-Length: 1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"0\r\n\r\n",
        b";x",
        b"0",
        b"+",
    ];
    run(6, &samples, &words, checks::head);
    // The control: readers of these kinds do differ about what does not pass.
    for smuggled in [
        "Content-Length: 5\r\nContent-Length: 0\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length : 5\r\n",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\n{smuggled}\r\n0\r\n\r\n{hidden}");
        assert!(hermes_egress::framed(&[bytes.as_bytes()]).is_err() && checks::readers_differ(bytes.as_bytes()), "{smuggled}");
    }
}

#[test]
fn routes() {
    let samples: Vec<Vec<u8>> = [
        "*.a.test\nx.a.test\nx.a.test",
        "*.a.test\n*.x.a.test\ny.x.a.test:443",
        "a.test\n*.test\nA.TEST.",
        "*.a.test\n*.A.test\nb.a.test",
        "127.0.0.1\n::1\n[::ffff:127.0.0.1]",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    let words: [&[u8]; 9] = [b".", b"*.", b"\n", b"a", b".test", b"X", b":", b"xn--", b"1"];
    run(7, &samples, &words, |input| checks::lines(&String::from_utf8_lossy(input)));
}

/// Every kind of server reads below the prefix what is allowed there, and the other way round: what all of them read below it
/// and nobody could take for something else is allowed.
#[test]
fn the_other_reading_is_one() {
    for (path, server, reading) in [
        ("/v1/..%2fadmin", "decoded, resolved (Go, Python)", "/admin"),
        ("/v1/..;/admin", "parameters dropped, decoded, resolved (Tomcat)", "/admin"),
        ("/v1/%2e%2e/admin", "WHATWG URL", "/admin"),
        ("/v1/..%5cadmin", "backslashes (IIS)", "/admin"),
        ("/v1/%252e%252e/admin", "decoded twice, resolved", "/admin"),
        ("//v1//x", "decoded, merged, resolved (nginx)", "/v1/x"),
    ] {
        let found = checks::servers(path).into_iter().find(|(name, _)| *name == server).unwrap().1;
        assert_eq!(String::from_utf8(found).unwrap(), reading, "{server}: {path}");
    }
}

/// Heads and bodies through the whole proxy: nothing gets out but requests that the rule allows, framed in one way.
#[tokio::test]
async fn whole_requests() {
    let (server, seen) = server::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let port = server.port();
    let world = World::new(port, &[with(route("a.test", port), &[], &["/ok"])], |config| {
        config.limits.first_bytes = std::time::Duration::from_millis(300);
        // The server answers once in a connection, and a second request may be one.
        config.limits.idle = std::time::Duration::from_millis(300);
    })
    .await;
    let host = format!("Host: a.test:{port}\r\n");
    let hidden = format!("GET /hidden HTTP/1.1\r\n{host}\r\n");
    let samples: Vec<Vec<u8>> = [
        format!("GET /ok HTTP/1.1\r\n{host}\r\n{hidden}"),
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length: 3\r\n\r\nabc{hidden}"),
        format!("POST /ok?a HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n{hidden}"),
        format!("POST /ok HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{hidden}"),
        format!("GET http://a.test:{port}/ok HTTP/1.1\r\n{host}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"),
        format!("POST /ok HTTP/1.1\r\n{host}Content-Length: 3\r\nX: y\r\n folded\r\n\r\nabc{hidden}"),
    ]
    .map(String::into_bytes)
    .to_vec();
    let words: [&[u8]; 12] = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"0\r\n\r\n",
        b";x",
        b"/hidden",
    ];
    let mut random = Random::new(5);
    let address = world.look_up("a.test").await.unwrap();
    for round in 0..rounds().div_ceil(20) {
        let input = random.mutated(&samples, &words);
        let before = seen.lock().unwrap().len();
        let stream = tokio::net::TcpStream::connect((address, port)).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE / 2, talk(stream, &input)).await;
        assert!(ended.is_ok(), "round {round}: no end after {:?}", String::from_utf8_lossy(&input));
        for got in &seen.lock().unwrap()[before..] {
            let about = || format!("round {round}: {:?} -> {got:?}", String::from_utf8_lossy(&input));
            let Some((head, _)) = got.split_once("\r\n\r\n") else {
                assert!(got.is_empty(), "{}", about());
                continue;
            };
            let target = head.split(' ').nth(1).unwrap();
            assert!(target == "/ok" || target.starts_with("/ok?"), "{}", about());
            let head = head.to_lowercase();
            let count = |name: &str| head.matches(name).count();
            assert!(count("\r\ncontent-length:") + count("\r\ntransfer-encoding:") <= 1, "{}", about());
            assert!(!head.contains("\n ") && !head.contains("\n\t") && !head.contains('\0'), "{}", about());
            assert!(!head.replace("\r\n", "").contains(['\r', '\n']), "{}", about());
        }
    }
    // The control: it is not that nothing passes.
    assert!(seen.lock().unwrap().iter().any(|got| got.contains("\r\n\r\n")));
}
