//! TLS: passed through where nothing is read, terminated where something is.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use hermes_egress::reason::Reason;
use hermes_profiles::{Route, SecretRule, Upstream};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn inspected(host: &str, port: u16) -> Route {
    with(route(host, port), &["GET", "POST"], &["/v1/**"])
}

fn with_secret(mut route: Route) -> Route {
    route.rules.secret = Some(SecretRule { name: "model".into(), header: "authorization".into(), format: "Bearer {}".into() });
    route
}

/// A request over TLS that was terminated here.
async fn ask(world: &World, name: &str, request: &str) -> String {
    let pem = world.egress.authority().unwrap().pem().to_owned();
    let mut stream = server::tls(world.connect(name).await, name, &pem, &["http/1.1"]).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn passed_through_it_is_the_servers_own() {
    let (server, seen) = server::http(Some(server::tls_server(&["a.test", "other.test"], &[]))).await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    let theirs = server::authority().certificate.pem();
    let mut stream = server::tls(world.connect("a.test").await, "a.test", &theirs, &[]).await.unwrap();
    stream.write_all(get("a.test", "/x").as_bytes()).await.unwrap();
    read_until(&mut stream, "GET /x").await;
    // Fronting: the connection is to a.test, and asks its server for another name.
    let fronted = server::tls(world.connect("a.test").await, "other.test", &theirs, &[]).await;
    assert!(fronted.unwrap_err().to_string().contains("AccessDenied"));
    assert_eq!(world.refusal().await, Reason::OtherHost { named: "other.test".into() });
    let nameless = server::tls(world.connect("a.test").await, "192.0.2.1", &theirs, &[]).await;
    assert!(nameless.is_err());
    assert_eq!(world.refusal().await, Reason::NoServerName);
    assert_eq!(seen.lock().unwrap().len(), 1);
    // The control: without the proxy both reach the server.
    let direct = tokio::net::TcpStream::connect(server).await.unwrap();
    assert!(server::tls(direct, "other.test", &theirs, &[]).await.is_ok());
}

#[tokio::test]
async fn terminated_each_request_is_decided() {
    let (server, seen) = server::http(Some(server::tls_server(&["a.test"], &["http/1.1"]))).await;
    let port = server.port();
    let world = World::new(port, &[inspected("a.test", port)], |_| {}).await;
    let host = format!("a.test:{port}");
    assert!(ask(&world, "a.test", &get(&host, "/v1/x")).await.contains("GET /v1/x"));
    let refused = ask(&world, "a.test", &get(&host, "/admin")).await;
    assert_eq!(refusal_in(&refused)["reason"], "path");
    for path in [
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/..%2fadmin",
        "/v1/..;/admin",
        "/v1/%252e%252e/admin",
        "//v1/../admin",
        "/v1/..%5cadmin",
    ] {
        let refused = ask(&world, "a.test", &get(&host, path)).await;
        assert!(refused.contains("x-hermes-sandbox: refused"), "{path}: {refused}");
    }
    assert!(ask(&world, "a.test", &get("b.test", "/v1/x")).await.contains("other-host"));
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn http2_on_both_sides_and_on_one() {
    for alpn in [&["h2", "http/1.1"][..], &["http/1.1"]] {
        let (server, seen) = server::http(Some(server::tls_server(&["a.test"], alpn))).await;
        let port = server.port();
        let world = World::new(port, &[with_secret(inspected("a.test", port))], |_| {}).await;
        let pem = world.egress.authority().unwrap().pem().to_owned();
        let stream = server::tls(world.connect("a.test").await, "a.test", &pem, &["h2"]).await.unwrap();
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let ask = |path: &str| {
            let mut sender = sender.clone();
            let request = http::Request::get(format!("https://a.test:{port}{path}")).body(Empty::<Bytes>::new()).unwrap();
            async move {
                let response = sender.send_request(request).await.unwrap();
                let status = response.status().as_u16();
                (status, response.into_body().collect().await.unwrap().to_bytes())
            }
        };
        // Side by side, so that HTTP/1.1 needs several connections.
        let all = tokio::join!(ask("/v1/1"), ask("/v1/2"), ask("/v1/3"), ask("/other"));
        assert_eq!([all.0.0, all.1.0, all.2.0, all.3.0], [200, 200, 200, 403]);
        let seen = seen.lock().unwrap();
        let version = if alpn[0] == "h2" { "HTTP/2.0" } else { "HTTP/1.1" };
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|head| head.contains(version) && head.contains("authorization: Bearer real-value")), "{seen:?}");
    }
}

#[tokio::test]
async fn a_secret_goes_where_it_belongs_and_nowhere_else() {
    let (server, seen) = server::http(Some(server::tls_server(&["a.test", "b.test"], &["http/1.1"]))).await;
    let port = server.port();
    let world = World::new(port, &[with_secret(inspected("a.test", port)), inspected("b.test", port)], |_| {}).await;
    let request = |host: &str, path: &str, header: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n{header}\r\n\r\n")
    };
    let answer = ask(&world, "a.test", &request("a.test", "/v1/x", "Authorization: Bearer PLACEHOLDER-1")).await;
    assert!(answer.contains("200 OK"), "{answer}");
    assert!(seen.lock().unwrap()[0].contains("authorization: Bearer real-value"));
    // A program cannot keep the header from being sent by calling it one of this connection.
    ask(&world, "a.test", &request("a.test", "/v1/x", "Connection: authorization")).await;
    assert!(seen.lock().unwrap()[1].contains("authorization: Bearer real-value"));
    for (host, path, header) in [
        ("a.test", "/v1/PLACEHOLDER-1", "X: y"),
        ("a.test", "/v1/x?a=PLACEHOLDER%2d1", "X: y"),
        ("a.test", "/v1/x", "X-Note: PLACEHOLDER-1"),
        ("b.test", "/v1/x", "Authorization: Bearer PLACEHOLDER-1"),
    ] {
        let refused = ask(&world, host, &request(host, path, header)).await;
        assert!(refused.contains("\"placeholder\""), "{host} {path} {header}: {refused}");
    }
    let trace = request("a.test", "/v1/x", "X: y").replacen("GET", "TRACE", 1);
    assert!(ask(&world, "a.test", &trace).await.contains("x-hermes-sandbox: refused"));
    assert_eq!(seen.lock().unwrap().len(), 2);
    assert_eq!(*world.secrets.0.lock().unwrap(), [200, 200]);
    assert!(!format!("{:?}", world.events()).contains("real-value"));
}

#[tokio::test]
async fn an_upstream_is_somewhere_else() {
    let (server, seen) = server::http(None).await;
    let mut rule = with_secret(inspected("model.test", 19_443));
    rule.rules.addresses.clear();
    rule.rules.upstream =
        Some(Upstream { tls: false, host: "127.0.0.1".into(), port: server.port(), prefix: "/inference".into() });
    let world = World::new(19_443, &[rule], |_| {}).await;
    let answer = ask(&world, "model.test", &get("model.test:19443", "/v1/chat?x=1")).await;
    assert!(answer.contains("GET /inference/v1/chat?x=1"), "{answer}");
    let head = seen.lock().unwrap()[0].clone();
    assert!(head.contains(&format!("host: 127.0.0.1:{}", server.port())) && head.contains("Bearer real-value"), "{head}");
}

#[tokio::test]
async fn servers_that_cannot_be_verified() {
    let (server, seen) = server::http(Some(server::tls_server(&["wrong.test"], &[]))).await;
    let port = server.port();
    let world = World::new(port, &[with_secret(inspected("a.test", port))], |_| {}).await;
    let answer = ask(&world, "a.test", &get(&format!("a.test:{port}"), "/v1/x")).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("x-hermes-sandbox: failed"), "{answer}");
    let strict = |config: &mut hermes_egress::Config| {
        let other = rcgen::generate_simple_self_signed(["x.test".to_owned()]).unwrap();
        config.clients = Some(hermes_egress::tls::Clients::new([other.cert.der().clone()]).unwrap());
    };
    let (server, seen2) = server::http(Some(server::tls_server(&["a.test"], &[]))).await;
    let port = server.port();
    drop(world);
    let world = World::new(port, &[with_secret(inspected("a.test", port))], strict).await;
    let answer = ask(&world, "a.test", &get(&format!("a.test:{port}"), "/v1/x")).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert!(seen.lock().unwrap().is_empty() && seen2.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_is_no_http_is_not_passed_where_requests_are_read() {
    let (server, seen) = server::raw(b"").await;
    let port = server.port();
    let world = World::new(port, &[inspected("a.test", port)], |_| {}).await;
    for bytes in [&b"SSH-2.0-x\r\n"[..], b"\0\0\0\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        assert_eq!(talk(world.connect("a.test").await, bytes).await, "");
        world.refusal().await;
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn an_authority_can_be_bound_to_names() {
    let bound = hermes_egress::tls::Authority::new(&["a.test".into()]).unwrap();
    assert!(bound.pem().starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(Arc::new(bound).pem().len() > 400);
}

#[tokio::test]
async fn a_secret_is_not_sent_in_the_clear() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[with_secret(inspected("a.test", port))], |_| {}).await;
    let host = format!("a.test:{port}");
    assert!(world.exchange("a.test", &get(&host, "/v1/x")).await.contains("plain HTTP"));
    let absolute = format!("GET http://{host}/v1/x HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    assert!(world.proxied(&absolute).await.contains("plain HTTP"));
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn beyond_its_share_a_connection_is_offered_http_1_alone() {
    let (server, _) = server::http(Some(server::tls_server(&["a.test"], &["h2", "http/1.1"]))).await;
    let port = server.port();
    let world = World::new(port, &[inspected("a.test", port)], |config| config.limits.h2_connections = 1).await;
    let pem = world.egress.authority().unwrap().pem().to_owned();
    let connect = async || server::tls(world.connect("a.test").await, "a.test", &pem, &["h2", "http/1.1"]).await.unwrap();
    let protocol =
        |stream: &tokio_rustls::client::TlsStream<tokio::net::TcpStream>| stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    let first = connect().await;
    assert_eq!(protocol(&first).as_deref(), Some(&b"h2"[..]));
    let mut second = connect().await;
    assert_eq!(protocol(&second).as_deref(), Some(&b"http/1.1"[..]));
    second.write_all(get(&format!("a.test:{port}"), "/v1/x").as_bytes()).await.unwrap();
    assert!(read_until(&mut second, "GET /v1/x").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn what_has_no_room_is_refused_and_what_has_ended_gives_room() {
    let (server, seen) = server::http(Some(server::tls_server(&["a.test"], &["http/1.1"]))).await;
    let port = server.port();
    let world = World::new(port, &[inspected("a.test", port)], |config| config.limits.heads = 20 * 1024).await;
    let host = format!("a.test:{port}");
    let pem = world.egress.authority().unwrap().pem().to_owned();
    // Under way, since its body never comes.
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = server::tls(world.connect("a.test").await, "a.test", &pem, &["http/1.1"]).await.unwrap();
        stream.write_all(format!("POST /v1/x HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n\r\n").as_bytes()).await.unwrap();
        open.push(stream);
    }
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let refused = ask(&world, "a.test", &get(&host, "/v1/x")).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert_eq!(refusal_in(&refused)["reason"], "busy");
    assert_eq!(world.refusal().await, Reason::Busy);
    drop(open);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(ask(&world, "a.test", &get(&host, "/v1/x")).await.contains("GET /v1/x"));
    assert!(!seen.lock().unwrap().is_empty());
}
