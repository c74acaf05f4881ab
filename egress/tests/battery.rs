//! Ways around the rules, each with its control: what reaches the server when nothing is in between, or when the rule allows it.
#![allow(clippy::unwrap_used)]

mod support;

use hermes_egress::reason::Reason;
use support::*;
use tokio::net::TcpStream;

/// What a server with no proxy in front of it gets from these bytes.
async fn direct(bytes: &[u8]) -> String {
    let (server, seen) = server::raw(b"").await;
    talk(TcpStream::connect(server).await.unwrap(), bytes).await;
    seen.lock().unwrap().concat()
}

/// What it gets from them through a rule that allows `/ok` only, and the answer.
async fn through(bytes: &str) -> (String, String) {
    let (server, seen) = server::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let port = server.port();
    let world = World::new(port, &[with(route("a.test", port), &[], &["/ok"])], |_| {}).await;
    let answer = world.exchange("a.test", &bytes.replace("HOST", &format!("a.test:{port}"))).await;
    let seen = seen.lock().unwrap().concat();
    (seen, answer)
}

#[tokio::test]
async fn smuggled_requests() {
    let hidden = "GET /hidden HTTP/1.1\r\nHost: HOST\r\nX: ";
    let length = hidden.len() + 5;
    for (what, request) in [
        (
            "CL.TE",
            format!(
                "POST /ok HTTP/1.1\r\nHost: HOST\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        (
            "TE.CL",
            format!(
                "POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{:x}\r\n{hidden}\r\n0\r\n\r\n",
                hidden.len()
            ),
        ),
        (
            "TE.TE",
            format!(
                "POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        ("xchunked", format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}")),
        (
            "TE with a tab",
            format!(
                "POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\tchunked\r\nContent-Length: {length}\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        (
            "TE with a space",
            format!(
                "POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\nContent-Length: {length}\r\n\r\n0\r\n\r\n{hidden}"
            ),
        ),
        (
            "two lengths",
            format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        ),
        ("a list of lengths", format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0, {length}\r\n\r\n{hidden}")),
        ("a signed length", format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nContent-Length: +0\r\n\r\n{hidden}")),
        ("a folded field", format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nX: y\r\n Content-Length: 0\r\n\r\n{hidden}")),
        ("HTTP/1.0 with TE", format!("POST /ok HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}")),
        ("a bare CR", format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nX: y\rContent-Length: 0\r\n\r\n{hidden}")),
        (
            "a chunk extension with a newline",
            format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n0;x\n\r\n\r\n{hidden}"),
        ),
        (
            "a large chunk size",
            format!("POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n100000000000000000\r\n{hidden}"),
        ),
    ] {
        assert!(direct(request.as_bytes()).await.contains("/hidden"), "{what}: the control");
        let (seen, answer) = through(&request).await;
        // Hidden in a body that is one for the server as well, it is nothing but a body.
        let framed = seen.contains("/hidden")
            && what == "TE.CL"
            && seen.contains("transfer-encoding: chunked")
            && !seen.contains("content-length");
        assert!(!seen.contains("/hidden") || framed, "{what}: {seen} -> {answer}");
        // Both framings together never get out.
        assert!(!(seen.contains("content-length") && seen.contains("transfer-encoding")), "{what}: {seen}");
    }
}

/// What two readers may take for two things is refused, and said to be: by an answer while there can be one, and an event always.
#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused() {
    let chunked = "POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n";
    for (request, in_head) in [
        ("POST /ok HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), true),
        (format!("{chunked}Content-Length: 5\r\n\r\n0\r\n\r\n"), true),
        (format!("{chunked}Content-Length: 5\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"), true),
        (format!("{chunked}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), true),
        ("POST /ok HTTP/1.1\r\nHost: HOST\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab".to_owned(), true),
        ("POST /ok HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(), true),
        ("GET /ok HTTP/1.1\nHost: HOST\n\n".to_owned(), true),
        ("GET /ok HTTP/1.1\r\nHost: HOST\r\nX: y\nZ: z\r\n\r\n".to_owned(), true),
        // The library does not take these for requests either, and answers by itself.
        ("GET /ok HTTP/1.1\r\nHost: HOST\r\nX: y\r\n folded\r\n\r\n".to_owned(), true),
        ("GET /ok HTTP/1.1\r\nHost: HOST\r\nX: y\rZ: z\r\n\r\n".to_owned(), true),
        ("GET /ok HTTP/1.1\r\nHost: HOST\r\nX Y: z\r\n\r\n".to_owned(), true),
        ("GET /ok HTTP/1.1\r\nHost: HOST\r\nX : z\r\n\r\n".to_owned(), true),
        (format!("{chunked}\r\n3 \r\nabc\r\n0\r\n\r\n"), false),
        (format!("{chunked}\r\n3;\x01\r\nabc\r\n0\r\n\r\n"), false),
        (format!("{chunked}\r\n3;x\nabc\r\n0\r\n\r\n"), false),
        (format!("{chunked}\r\n3\r\nabcd\r\n0\r\n\r\n"), false),
        (format!("{chunked}\r\n0\r\nContent-Length: 5\r\n\r\n"), false),
    ] {
        let (server, seen) = server::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        let port = server.port();
        let world = World::new(port, &[with(route("a.test", port), &[], &["/ok"])], |_| {}).await;
        let request = request.replace("HOST", &format!("a.test:{port}"));
        // A second one behind it must not be answered: nobody knows where it begins.
        let second = format!("GET /ok?second HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n");
        let exchange = format!("{request}{second}");
        let answer = tokio::time::timeout(PATIENCE / 2, world.exchange("a.test", &exchange)).await;
        let answer = answer.unwrap_or_else(|_| panic!("no end after {exchange:?}"));
        let got = seen.lock().unwrap().concat();
        assert!(!got.contains("second"), "{request:?}: {got}");
        if in_head {
            assert!(answer.starts_with("HTTP/1.1 400"), "{request:?}: {answer}");
            assert_eq!(got, "", "{request:?}");
        } else {
            // The server may have got its head and some of the body, but no end of it.
            assert!(!got.ends_with("0\r\n\r\n"), "{request:?}: {got}");
        }
        assert!(matches!(world.refusal().await, Reason::Malformed { .. }), "{request:?}");
        // The control: what is framed well passes, and no refusal comes of it.
        let well = format!("{chunked}\r\n3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\n").replace("HOST", &format!("a.test:{port}"));
        let answer = world.exchange("a.test", &well).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(world.refusals(), [], "{request:?}");
    }
}

#[tokio::test]
async fn injected_lines_and_strange_bytes() {
    for request in [
        "GET /ok\r\nX: y HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: HOST\r\nX: a\0b\r\n\r\n",
        "GET /ok\0 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: HOST\0.evil.test\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: HOST@evil.test\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: evil.test@HOST\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: HOST\r\nHost: evil.test\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: HOST, evil.test\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost : HOST\r\n\r\n",
        "GET /ok HTTP/1.1\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET /ok HTTP/1.1\r\nHost: \r\n\r\n",
        "GET http://evil.test/ok HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET http://HOST@evil.test/ok HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET http://evil.test/ok HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET https://HOST/ok HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET //evil.test/ok HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok/../hidden HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok%2f..%2fhidden HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok%00 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok;x HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n",
        "CONNECT HOST HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ok HTTP/2.0\r\nHost: HOST\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x00\x00",
    ] {
        assert!(!direct(request.as_bytes()).await.is_empty(), "{request:?}: the control");
        let (seen, answer) = through(request).await;
        assert_eq!(seen, "", "{request:?} -> {answer}");
        assert!(!answer.starts_with("HTTP/1.1 200"), "{request:?} -> {answer}");
    }
    // The control of the rule: it is not that nothing passes.
    for request in [
        "GET /ok HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET http://HOST/ok?x HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "\r\nGET /ok HTTP/1.1\r\nHost: HOST\r\n\r\n",
    ] {
        let (seen, answer) = through(request).await;
        assert!(seen.starts_with("GET /ok") && answer.starts_with("HTTP/1.1 200"), "{request:?}: {seen} -> {answer}");
    }
}

#[tokio::test]
async fn upgrades_that_would_hide_requests() {
    let request = "GET /ok HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let (seen, _) = through(request).await;
    assert!(seen.starts_with("GET /ok") && !seen.contains("h2c") && !seen.contains("http2-settings"), "{seen}");
    // A server that agrees to what was not asked for.
    let (server, seen) = server::raw(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").await;
    let port = server.port();
    let world = World::new(port, &[with(route("a.test", port), &[], &["/ok"])], |_| {}).await;
    let answer =
        world.exchange("a.test", &format!("GET /ok HTTP/1.1\r\nHost: a.test:{port}\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n")).await;
    assert!(!answer.contains(" 101 "), "{answer}");
    assert!(!seen.lock().unwrap().concat().contains("/hidden"));
}

#[tokio::test]
async fn methods_in_disguise() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[with(route("a.test", port), &["GET"], &[])], |_| {}).await;
    let request =
        |method: &str, field: &str| format!("{method} / HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n{field}\r\n\r\n");
    for (method, field) in
        [("DELETE", "X: y"), ("get", "X: y"), ("GET", "X-HTTP-Method-Override: DELETE"), ("GET", "X-HTTP-Method: PUT")]
    {
        assert!(
            world.exchange("a.test", &request(method, field)).await.contains("x-hermes-sandbox: refused"),
            "{method} {field}"
        );
    }
    assert!(seen.lock().unwrap().is_empty());
    assert!(world.exchange("a.test", &request("GET", "X: y")).await.contains("200 OK"));
}

#[tokio::test]
async fn tunnels_to_where_no_route_leads() {
    let (server, seen) = server::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    for target in [
        "other.test:PORT",
        "a.test:1",
        "a.test.other.test:PORT",
        "127.0.0.1:PORT",
        "[::ffff:127.0.0.1]:PORT",
        "[::1]:PORT",
        "0x7f.1:PORT",
        "2130706433:PORT",
        "127.1:PORT",
        "0:PORT",
        "localhost:PORT",
        "a.test@other.test:PORT",
        "a.test%00.other.test:PORT",
        "a.test",
        "a.test:0",
        "a.test:99999",
    ] {
        let target = target.replace("PORT", &port.to_string());
        let answer = world.proxied(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nGET / HTTP/1.1\r\n\r\n")).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{target}: {answer}");
        let absolute =
            world.proxied(&format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n")).await;
        assert!(!absolute.starts_with("HTTP/1.1 200"), "{target}: {absolute}");
    }
    // SOCKS is no HTTP.
    for hello in ["\x05\x01\x00", "\x04\x01\x00\x50\x7f\x00\x00\x01\x00"] {
        let answer = world.proxied(hello).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(seen.lock().unwrap().concat(), "");
    // The control: the permitted one, in other spellings of it.
    for target in ["a.test:PORT", "A.TEST.:PORT"] {
        let target = target.replace("PORT", &port.to_string());
        let tunnel = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        assert!(world.proxied(&tunnel).await.starts_with("HTTP/1.1 200"), "{target}");
        let absolute =
            world.proxied(&format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n")).await;
        assert!(absolute.starts_with("HTTP/1.1 200"), "{target}: {absolute}");
    }
}

#[tokio::test]
async fn a_request_in_a_tunnel_is_still_a_request() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    let tunnel = |request: &str| format!("CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n{request}");
    let fronted = world.proxied(&tunnel(&get("other.test", "/"))).await;
    assert_eq!(refusal_in(fronted.split_once("\r\n\r\n").unwrap().1)["reason"], "other-host");
    assert!(seen.lock().unwrap().is_empty());
    let answer = world.proxied(&tunnel(&get(&format!("a.test:{port}"), "/"))).await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
    assert_eq!(world.refusals().len(), 1);
}

#[tokio::test]
async fn half_a_hello_and_a_name_in_pieces() {
    let (server, seen) = server::raw(b"").await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |config| {
        config.limits.first_bytes = std::time::Duration::from_millis(300);
    })
    .await;
    assert_eq!(talk(world.connect("a.test").await, b"\x16\x03\x01\x02\x00\x01").await, "");
    assert!(matches!(world.refusal().await, Reason::Malformed { .. }));
    // Half a request line, and then nothing: it must not be taken for something else when the time is up.
    let mut slow = world.connect("a.test").await;
    tokio::io::AsyncWriteExt::write_all(&mut slow, b"GET / HT").await.unwrap();
    assert_eq!(read_all(&mut slow).await, "");
    assert_eq!(world.refusal().await, Reason::Silence);
    assert_eq!(seen.lock().unwrap().concat(), "");
}
