//! What changes while connections live, and what a sandbox can use up.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use hermes_egress::dial::OuterProxy;
use hermes_egress::event::Event;
use hermes_egress::reason::Reason;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn tunnels_of_removed_routes_are_cut() {
    let (server, _) = server::raw(b"hello\n").await;
    let port = server.port();
    let routes = [route("a.test", port), route("b.test", port)];
    let world = World::new(port, &routes, |_| {}).await;
    let mut a = world.connect("a.test").await;
    let mut b = world.connect("b.test").await;
    for stream in [&mut a, &mut b] {
        read_until(stream, "hello").await;
        stream.write_all(b"\0binary").await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.egress.replace(&routes[1..]), Ok(1));
    let mut rest = Vec::new();
    let cut = tokio::time::timeout(PATIENCE, a.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(cut.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "cut off must not look like complete");
    assert!(tokio::time::timeout(Duration::from_millis(200), b.read_u8()).await.is_err(), "the other one goes on");
    let closed = |event: &Event| matches!(event, Event::Closed { host, why: Some(why), .. } if *host == support::host("a.test") && why.contains("policy changed"));
    assert!(world.events().iter().any(closed));
    assert_eq!(world.look_up("a.test").await, None);
}

#[tokio::test]
async fn answers_of_removed_routes_are_cut() {
    let (server, _) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[with(route("a.test", port), &[], &["/**"])], |_| {}).await;
    let mut stream = world.connect("a.test").await;
    stream.write_all(get(&format!("a.test:{port}"), "/forever").as_bytes()).await.unwrap();
    read_until(&mut stream, "\r\nx\r\n").await;
    // Narrower, but still allowed: it goes on.
    world.egress.replace(&[with(route("a.test", port), &["GET"], &["/forever"])]).unwrap();
    let mut buffer = [0; 64];
    for _ in 0..3 {
        assert!(tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap() > 0);
    }
    world.egress.replace(&[with(route("a.test", port), &["GET"], &["/other"])]).unwrap();
    let began = Instant::now();
    read_all(&mut stream).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(world.refusals(), [Reason::Revoked]);
}

#[tokio::test]
async fn a_policy_that_is_none_changes_nothing() {
    let (server, _) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    assert!(world.egress.replace(&[route("not a host", port)]).is_err());
    assert!(world.exchange("a.test", &get(&format!("a.test:{port}"), "/")).await.contains("200 OK"));
}

#[tokio::test]
async fn a_storm_of_reloads_under_load() {
    let (server, _) = server::http(None).await;
    let port = server.port();
    let always = with(route("a.test", port), &[], &["/ok"]);
    let world = World::new(port, std::slice::from_ref(&always), |_| {}).await;
    let host = format!("a.test:{port}");
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(world.connect("a.test").await);
    }
    let load = connections.into_iter().map(|mut stream| {
        let host = host.clone();
        tokio::spawn(async move {
            for _ in 0..40 {
                stream.write_all(format!("GET /ok HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
                assert!(read_until(&mut stream, "body 0").await.contains("200 OK"));
                stream.write_all(format!("GET /never HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
                assert!(read_until(&mut stream, "}").await.contains("403"));
            }
        })
    });
    let load: Vec<_> = load.collect();
    let mut generation = 0;
    while !load.iter().all(|task| task.is_finished()) {
        generation = world.egress.replace(&[always.clone(), route("b.test", port)][..1 + generation as usize % 2]).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for task in load {
        task.await.unwrap();
    }
    assert!(generation > 10);
}

#[tokio::test]
async fn connections_are_counted_and_wait() {
    let (server, _) = server::http(None).await;
    let port = server.port();
    let change = |config: &mut hermes_egress::Config| {
        config.limits.connections = 4;
        config.limits.first_bytes = Duration::from_millis(400);
    };
    let world = World::new(port, &[route("a.test", port)], change).await;
    let address = world.look_up("a.test").await.unwrap();
    // Silent ones take all places, and are thrown out when their time is up.
    let mut silent = Vec::new();
    for _ in 0..12 {
        silent.push(TcpStream::connect((address, port)).await.unwrap());
    }
    let began = Instant::now();
    assert!(world.exchange("a.test", &get(&format!("a.test:{port}"), "/")).await.contains("200 OK"));
    assert!(began.elapsed() > Duration::from_millis(300));
    assert!(world.events().contains(&Event::LimitReached { limit: "connections" }));
}

#[tokio::test]
async fn idle_connections_end() {
    let (server, _) = server::raw(b"hello\n").await;
    let world = World::new(server.port(), &[route("a.test", server.port())], |config| {
        config.limits.idle = Duration::from_millis(300);
    })
    .await;
    let mut stream = world.connect("a.test").await;
    read_until(&mut stream, "hello").await;
    stream.write_all(b"\0").await.unwrap();
    read_all(&mut stream).await;
    assert!(world.events().iter().any(|event| matches!(event, Event::Closed { why: Some(why), .. } if why == "idle")));
}

#[tokio::test]
async fn large_and_endless_heads() {
    let (server, seen) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    let host = format!("a.test:{port}");
    for head in [
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n", "x".repeat(200_000)),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n{}\r\n", "X: y\r\n".repeat(2_000)),
        format!("GET /{} HTTP/1.1\r\nHost: {host}\r\n\r\n", "x".repeat(200_000)),
        "x".repeat(200_000),
    ] {
        let answer = world.exchange("a.test", &head).await;
        assert!(!answer.contains("200 OK"), "{}", &answer[..answer.len().min(200)]);
    }
    assert!(seen.lock().unwrap().is_empty());
    let fits = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nX: {}\r\n\r\n", "x".repeat(30_000));
    assert!(world.exchange("a.test", &fits).await.contains("200 OK"));
}

#[tokio::test]
async fn servers_that_fail() {
    let (server, _) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port), route("gone.test", port)], |config| {
        config.limits.dial = Duration::from_millis(500);
    })
    .await;
    let answer = world.proxied(&format!("CONNECT gone.test:{port} HTTP/1.1\r\nHost: gone.test:{port}\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("\"unresolved\""), "{answer}");
    // Nobody listens there.
    world.names.set("a.test", "127.0.0.9");
    let answer = world.proxied(&format!("CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("x-hermes-sandbox: failed"), "{answer}");
    world.names.set("a.test", "127.0.0.1");
    assert!(world.exchange("a.test", &get(&format!("a.test:{port}"), "/")).await.contains("200 OK"), "it recovers");
}

/// A server may close a connection just when the next request is on its way.
#[tokio::test]
async fn kept_connections_that_die() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    let server = tokio::spawn(async move {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_until(&mut stream, "\r\n\r\n").await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            // The second request is read, and not answered.
            let _ = stream.read(&mut [0; 1024]).await;
        }
    });
    let mut stream = world.connect("a.test").await;
    let request = |method: &str| format!("{method} / HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 0\r\n\r\n");
    for (method, status) in [("GET", "200"), ("GET", "200"), ("POST", "502"), ("GET", "200")] {
        stream.write_all(request(method).as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method}: {answer}");
        if status == "502" && !answer.contains('}') {
            read_until(&mut stream, "}").await;
        }
    }
    server.abort();
}

#[tokio::test]
async fn the_end_of_serving_is_the_end_of_all() {
    let (server, _) = server::http(None).await;
    let port = server.port();
    let world = World::new(port, &[route("a.test", port)], |_| {}).await;
    let mut tunnel = TcpStream::connect(world.explicit).await.unwrap();
    let request = format!("CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n");
    tunnel.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut tunnel, "\r\n\r\n").await;
    tunnel.write_all(b"\0binary").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(world);
    read_all(&mut tunnel).await;
}

#[tokio::test]
async fn an_outer_proxy_gets_the_pinned_address() {
    let (server, _) = server::raw(b"hello\n").await;
    let port = server.port();
    let outer = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://user:pass@{}", outer.local_addr().unwrap());
    let heads = tokio::spawn(async move {
        let mut heads = Vec::new();
        for grant in [true, false] {
            let (mut stream, _) = outer.accept().await.unwrap();
            heads.push(read_until(&mut stream, "\r\n\r\n").await);
            if !grant {
                stream.write_all(b"HTTP/1.1 407 no\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                continue;
            }
            // The server's first words come together with the answer.
            stream.write_all(b"HTTP/1.1 200 yes\r\n\r\nhello\n").await.unwrap();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                let mut skip = [0; 6];
                server.read_exact(&mut skip).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
            });
        }
        heads
    });
    let world = World::new(port, &[route("a.test", port)], |config| {
        config.outer = Some(OuterProxy::parse(&url, "").unwrap());
    })
    .await;
    let mut stream = world.connect("a.test").await;
    read_until(&mut stream, "hello").await;
    let refused = world.proxied(&format!("CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\n\r\n")).await;
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused}");
    let heads = heads.await.unwrap();
    assert!(heads[0].starts_with(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1")), "{}", heads[0]);
    assert!(heads[0].to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjpwyxnz"), "{}", heads[0]);
}

#[tokio::test]
async fn names_over_udp_and_tcp() {
    let (server, _) = server::http(None).await;
    let world = World::new(server.port(), &[route("*.cdn.test", server.port())], |_| {}).await;
    let first = world.look_up("www.cdn.test").await.unwrap();
    let mut stream = TcpStream::connect(world.dns).await.unwrap();
    for (name, wanted) in [("www.cdn.test", Some(first)), ("cdn.test", None), ("WWW.cdn.TEST", Some(first))] {
        let query = query(name, 1);
        stream.write_all(&[&(query.len() as u16).to_be_bytes()[..], &query].concat()).await.unwrap();
        let length = usize::from(stream.read_u16().await.unwrap());
        let mut reply = vec![0; length];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(address_in(&reply), wanted, "{name}");
    }
    // A length that promises more than any query has.
    stream.write_all(&[0xff, 0xff, 0]).await.unwrap();
    assert_eq!(read_all(&mut stream).await, "");
    // Noise is answered or not, and harms nobody.
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for length in 0..300 {
        socket.send_to(&vec![length as u8; length], world.dns).await.unwrap();
    }
    assert_eq!(world.look_up("www.cdn.test").await, Some(first));
}

/// A client that people use, if there is one.
#[tokio::test]
async fn curl() {
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        println!("SKIPPED: no curl");
        return;
    }
    let (server, seen) = server::http(Some(server::tls_server(&["a.test"], &["http/1.1", "h2"]))).await;
    let port = server.port();
    let world = World::new(port, &[with(route("a.test", port), &[], &["/v1/**"])], |_| {}).await;
    let address = world.look_up("a.test").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("ca.pem");
    std::fs::write(&bundle, world.egress.authority().unwrap().pem()).unwrap();
    let run = async |more: &[&str], url: &str| {
        let mut command = std::process::Command::new("curl");
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["-sS", "--max-time", "10", "--path-as-is", "--cacert"]).arg(&bundle).args(more).arg(url);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let resolve = format!("a.test:{port}:{address}");
    let proxy = format!("http://{}", world.explicit);
    for more in [&["--resolve", &resolve][..], &["--proxy", &proxy], &["--http1.1", "--proxy", &proxy]] {
        let answer = run(more, &format!("https://a.test:{port}/v1/x")).await;
        assert!(answer.starts_with("GET ") && answer.contains("/v1/x"), "{more:?}: {answer}");
        let answer = run(more, &format!("https://a.test:{port}/v1/../admin")).await;
        assert!(answer.contains("\"ambiguous-path\""), "{more:?}: {answer}");
    }
    assert!(run(&["--proxy", &proxy], "https://other.test/").await.contains("403"));
    let refused = run(&["--proxy", &proxy], "http://other.test/x").await;
    assert!(refused.contains("\"allow\":\"--allow-host other.test:80\""), "{refused}");
    assert_eq!(seen.lock().unwrap().len(), 3);
}
