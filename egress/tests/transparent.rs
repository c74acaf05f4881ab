//! Programs that know nothing of proxies.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use hermes_egress::event::Event;
use hermes_egress::reason::Reason;
use hermes_profiles::Rate;
use support::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[tokio::test]
async fn a_permitted_host_is_reached_and_no_other() {
    let (server, seen) = server::http(None).await;
    let world = World::new(server.port(), &[route("a.test", server.port())], |_| {}).await;
    let answer = world.exchange("a.test", &get(&format!("a.test:{}", server.port()), "/x?q=1")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!answer.contains("alt-svc"));
    assert!(seen.lock().unwrap()[0].starts_with("GET /x?q=1 HTTP/1.1"));
    assert_eq!(world.look_up("b.test").await, None);
    let events = world.events();
    assert!(events.contains(&Event::NameRefused { name: "b.test.".into(), kind: "A".into() }), "{events:?}");
    let requested = |event: &Event| matches!(event, Event::Requested { path, status: 200, .. } if path == "/x");
    assert!(events.iter().any(requested), "{events:?}");
}

#[tokio::test]
async fn each_request_of_a_connection_is_decided_anew() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[with(route("a.test", port), &["GET"], &["/v1/**"])], |_| {}).await;
    let mut stream = world.connect("a.test").await;
    let ask = |path: &str, method: &str| format!("{method} {path} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n");
    stream.write_all(ask("/v1/one", "GET").as_bytes()).await.unwrap();
    read_until(&mut stream, "GET /v1/one").await;
    stream.write_all(ask("/admin", "GET").as_bytes()).await.unwrap();
    let refused = read_until(&mut stream, "}").await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let json = refusal_in(&refused);
    assert_eq!(
        (json["reason"].as_str(), json["path"].as_str(), json["host"].as_str()),
        (Some("path"), Some("/admin"), Some("a.test"))
    );
    assert!(json["allow"].as_str().unwrap().contains("paths = [\"/admin\"]"), "{json}");
    stream.write_all(ask("/v1/x", "DELETE").as_bytes()).await.unwrap();
    assert!(read_until(&mut stream, "}").await.contains("\"method\""));
    stream.write_all(ask("/v1/two", "GET").as_bytes()).await.unwrap();
    read_until(&mut stream, "GET /v1/two").await;
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn answers_of_servers_pass_untouched() {
    let (server, _) = server::http(None).await;
    let world = World::new(server.port(), &[route("a.test", server.port())], |_| {}).await;
    let host = format!("a.test:{}", server.port());
    let answer = world.exchange("a.test", &get(&host, "/forbidden")).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.ends_with("their own"), "{answer}");
    assert!(!answer.contains("x-hermes-sandbox"), "only our own refusals say so: {answer}");
    let big = world.exchange("a.test", &get(&host, "/big")).await;
    assert!(big.len() > 8 << 20);
}

#[tokio::test]
async fn events_are_not_held_back() {
    let (server, _) = server::http(None).await;
    let world = World::new(server.port(), &[route("a.test", server.port())], |_| {}).await;
    let mut stream = world.connect("a.test").await;
    let began = Instant::now();
    stream.write_all(get(&format!("a.test:{}", server.port()), "/events").as_bytes()).await.unwrap();
    read_until(&mut stream, "data: one").await;
    assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
    read_until(&mut stream, "data: two").await;
    assert!(began.elapsed() >= Duration::from_millis(450));
}

#[tokio::test]
async fn websockets() {
    let (server, seen) = server::http(None).await;
    let world = World::new(server.port(), &[with(route("a.test", server.port()), &[], &["/echo"])], |_| {}).await;
    let mut stream = world.connect("a.test").await;
    let request = format!(
        "GET /echo HTTP/1.1\r\nHost: a.test:{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
        server.port()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for text in ["one", "two"] {
        stream.write_all(text.as_bytes()).await.unwrap();
        read_until(&mut stream, text).await;
    }
    assert!(seen.lock().unwrap()[0].contains("sec-websocket-key"));
}

#[tokio::test]
async fn servers_that_speak_first() {
    let (server, seen) = server::raw(b"SSH-2.0-test\r\n").await;
    let world = World::new(server.port(), &[route("a.test", server.port())], |_| {}).await;
    let mut stream = world.connect("a.test").await;
    read_until(&mut stream, "SSH-2.0-test").await;
    stream.write_all(b"SSH-2.0-client one\r\n\0\0\0\x01binary").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await, "");
    assert_eq!(seen.lock().unwrap()[0], "SSH-2.0-client one\r\n\0\0\0\x01binary");
    // A client that never says a word gets all that the server says.
    let mut silent = world.connect("a.test").await;
    read_until(&mut silent, "SSH-2.0-test").await;
    silent.shutdown().await.unwrap();
    read_all(&mut silent).await;
}

#[tokio::test]
async fn the_end_of_one_direction_is_not_the_end_of_the_other() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let got = read_all(&mut stream).await;
        // Much, after the client's end: by pipe.
        let answer = vec![b'y'; 3 << 20];
        stream.write_all(&answer).await.unwrap();
        stream.shutdown().await.unwrap();
        got.len()
    });
    let sent = vec![1; 2 << 20];
    let mut stream = world.connect("a.test").await;
    stream.write_all(&sent).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await.len(), 3 << 20);
    // 2 MiB of 0x01 are one character each.
    assert_eq!(server.await.unwrap(), 2 << 20);
}

#[tokio::test]
async fn a_slow_reader_slows_its_writer() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    let mut client = world.connect("a.test").await;
    client.write_all(b"\0go").await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let part = vec![0; 1 << 20];
    let mut written = 0;
    while let Ok(Ok(length)) = tokio::time::timeout(Duration::from_millis(500), async {
        server.writable().await?;
        server.try_write(&part).or_else(|error| if error.kind() == std::io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) })
    })
    .await
    {
        written += length;
        assert!(written < 64 << 20, "nobody reads, and it is all taken");
    }
    assert!(written > 0);
}

#[tokio::test]
async fn literal_addresses_lead_nowhere_unless_named() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    // An address that no name was given for.
    let answer = talk(TcpStream::connect(("127.64.1.3", port)).await.unwrap(), get("a.test", "/").as_bytes()).await;
    assert_eq!(refusal_in(&answer)["reason"], "unknown-address");
    assert_eq!(seen.lock().unwrap().len(), 0);
    let connect = |host: &str| format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    assert_eq!(refusal_in(&world.proxied(&connect("127.0.0.1")).await)["reason"], "unknown-address");
    let mut named = route("127.0.0.1", port);
    named.rules.addresses.clear();
    world.egress.replace(&[named]).unwrap();
    assert!(world.proxied(&connect("127.0.0.1")).await.starts_with("HTTP/1.1 200"));
    assert!(world.proxied(&connect("[::ffff:127.0.0.1]")).await.starts_with("HTTP/1.1 200"));
    assert!(world.proxied(&connect("127.1")).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn names_that_lead_inside_are_refused() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let mut plain = route("a.test", port);
    plain.rules.addresses.clear();
    let world = World::new(port, &[plain, route("b.test", port)], |_| {}).await;
    for (address, class) in [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("10.0.0.1", "private"),
        ("169.254.169.254", "metadata"),
        ("64:ff9b::7f00:1", "loopback"),
        ("198.18.1.0", "reserved"),
        ("0.0.0.0", "unspecified"),
    ] {
        world.names.set("a.test", address);
        let answer = world.exchange("a.test", &get(&format!("a.test:{port}"), "/")).await;
        assert!(!answer.contains("200 OK"), "{address}: {answer}");
        let reason = world.refusal().await;
        assert_eq!(serde_json::to_value(&reason).unwrap()["class"], class, "{address}");
    }
    assert_eq!(seen.lock().unwrap().len(), 0);
    // The control: a route that names the address.
    assert!(world.exchange("b.test", &get(&format!("b.test:{port}"), "/")).await.contains("200 OK"));
    // And an address that moves to where the route does not lead.
    world.names.set("b.test", "10.0.0.1");
    assert!(!world.exchange("b.test", &get(&format!("b.test:{port}"), "/")).await.contains("200 OK"));
}

#[tokio::test]
async fn rates_and_sizes() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let mut limited = route("a.test", port);
    limited.rules.max_body = Some(10);
    limited.rules.rate = Some(Rate { count: 3, milliseconds: 3_600_000 });
    let world = World::new(port, &[limited], |_| {}).await;
    let post = |body: &str| {
        format!("POST / HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    assert!(world.exchange("a.test", &post("0123456789")).await.contains("body 10"));
    assert!(world.exchange("a.test", &post("0123456789a")).await.starts_with("HTTP/1.1 413"));
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n012345\r\n6\r\n012345\r\n0\r\n\r\n"
    );
    assert!(world.exchange("a.test", &chunked).await.starts_with("HTTP/1.1 413"));
    assert!(world.exchange("a.test", &post("x")).await.starts_with("HTTP/1.1 429"));
    assert!(!seen.lock().unwrap().iter().any(|head| head.contains("body 12")));
    assert!(world.refusals().contains(&Reason::Rate));
}
