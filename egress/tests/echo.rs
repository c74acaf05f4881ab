//! Secrets that a server sends back do not come in.
#![allow(clippy::unwrap_used)]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hermes_egress::event::Event;
use hermes_profiles::{Route, SecretRule};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The same route with a secret and without one.
async fn world(secret: bool) -> World {
    let (server, _) = server::http(Some(server::tls_server(&["a.test"], &["http/1.1"]))).await;
    let port = server.port();
    World::new(port, &[rule(port, secret)], |_| {}).await
}

fn rule(port: u16, secret: bool) -> Route {
    let mut route = with(route("a.test", port), &["GET"], &["/v1/**"]);
    let rule = SecretRule { name: "model".into(), header: "authorization".into(), format: "Bearer {}".into() };
    route.rules.secret = secret.then_some(rule);
    route
}

/// What comes back, and where a secret was found in it.
async fn ask(world: &World, path: &str, header: &str) -> (String, Vec<String>) {
    let pem = world.egress.authority().unwrap().pem().to_owned();
    let mut stream = server::tls(world.connect("a.test").await, "a.test", &pem, &["http/1.1"]).await.unwrap();
    let port = world.port;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n{header}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let place = |event| match event {
        Event::SecretEchoed { secret, place, path: asked, .. } => {
            assert_eq!((secret.as_str(), asked.as_str()), ("model", path));
            Some(place)
        }
        _ => None,
    };
    let places = world.events().into_iter().filter_map(place).collect();
    (String::from_utf8_lossy(&answer).into_owned(), places)
}

#[tokio::test]
async fn in_a_body_it_is_cut_off_at_the_secret() {
    let world = world(true).await;
    let (answer, places) = ask(&world, "/v1/mirror", "X: y").await;
    // The library may not have sent the head yet.
    assert!(!answer.contains("authorization") && !answer.contains("real-value"), "{answer}");
    assert_eq!(places, ["body"]);
    let (answer, places) = ask(&world, "/v1/mirror-pieces", "X: y").await;
    assert!(answer.contains("data: Bearer") && !answer.contains("real-v") && !answer.contains("after"), "{answer}");
    assert_eq!(places, ["body"]);
    // The control: what is no secret comes back whole.
    let (answer, places) = ask(&world, "/v1/nearly", "X: y").await;
    assert!(answer.ends_with("real-valu"), "{answer}");
    assert_eq!(places, [""; 0]);
}

#[tokio::test]
async fn in_a_header_it_is_left_out() {
    let world = world(true).await;
    let (answer, places) = ask(&world, "/v1/mirror-header", "X: y").await;
    assert!(answer.ends_with("fine") && answer.contains("x-other: o") && !answer.contains("real-value"), "{answer}");
    assert_eq!(places, ["header x-sent"]);
}

#[tokio::test]
async fn basic_credentials_are_found_encoded() {
    let world = world(true).await;
    let header = format!("Authorization: Basic {}", STANDARD.encode("user:PLACEHOLDER-1"));
    for (path, place) in [("/v1/mirror-header", "header x-sent"), ("/v1/mirror", "body"), ("/v1/mirror-pieces", "body")] {
        let (answer, places) = ask(&world, path, &header).await;
        assert!(!answer.contains(&STANDARD.encode("user:real-value")), "{answer}");
        assert_eq!(places, [place]);
    }
}

#[tokio::test]
async fn encoded_bodies_are_not_looked_into() {
    let world = world(true).await;
    let (answer, places) = ask(&world, "/v1/mirror-encoded", "X: y").await;
    assert!(answer.contains("real-value") && places.is_empty(), "{answer}");
}

#[tokio::test]
async fn without_a_secret_nothing_is_looked_for() {
    let world = world(false).await;
    for path in ["/v1/mirror", "/v1/mirror-header", "/v1/mirror-pieces"] {
        let (answer, places) = ask(&world, path, "Authorization: Bearer real-value").await;
        let whole = if path.ends_with("pieces") { "after" } else { "real-value" };
        assert!(answer.contains(whole) && places.is_empty(), "{path}: {answer}");
    }
}
