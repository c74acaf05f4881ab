//! What must hold for any input. The fuzz targets and `tests/fuzz.rs` run these same functions.

use hermes_egress::event::Event;
use hermes_egress::host::{Host, authority};
use hermes_egress::names::{Names, SYNTHETIC, answer};
use hermes_egress::path::readings;
use hermes_egress::peek::{First, first};
use hermes_egress::policy::{Decision, Request, Ruleset};
use hermes_profiles::{Origin, Route};

fn route(host: &str) -> Route {
    Route::new(host, [443], Origin::Flag("--allow-host".into()))
}

/// Any query: no panic, and never an address for a name that no rule permits.
pub fn dns(query: &[u8]) {
    let Ok(rules) = Ruleset::new(&[route("a.test"), route("*.b.test")], None) else { return };
    let answer = answer(query, &mut Names::new(SYNTHETIC, 8), &rules);
    if let Some(Event::NameGiven { name, .. }) = answer.event {
        assert!(name == "a.test" || name.ends_with(".b.test"), "{name}");
    }
}

/// Any first bytes: no panic, and a verdict that more bytes do not take back.
pub fn first_bytes(bytes: &[u8]) {
    let whole = first(bytes);
    for end in [bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let part = first(&bytes[..end]);
        // What is refused either way is refused.
        let same = part == whole || matches!((&part, &whole), (First::Hostile(_), First::Hostile(_)));
        assert!(part == First::Incomplete || same, "{part:?}, then {whole:?}");
    }
}

/// Any host, method and path: no panic, and what is allowed below a prefix has no reading outside of it.
pub fn request(host: &str, method: &str, path: &str) {
    let mut route = route("*.a.test");
    route.rules.paths = vec!["/v1/**".into()];
    let Ok(rules) = Ruleset::new(&[route], None) else { return };
    let Ok((host, port)) = authority(host, 443) else { return };
    if let Decision::Allow(_) = rules.decide(&Request { host: &host, port, method, path }) {
        assert!(matches!(&host, Host::Name(name) if name.ends_with(".a.test")) && port == 443, "{host}");
        assert!(readings(path).is_ok_and(|all| all.iter().all(|reading| reading.starts_with("/v1/"))), "{path}");
        for (server, reading) in servers(path) {
            assert!(reading.starts_with(b"/v1/"), "{server}: {path} is {}", String::from_utf8_lossy(&reading));
        }
    }
}

/// How servers of different kinds read a path. Written for bytes, and with nothing of what is checked.
pub fn servers(path: &str) -> Vec<(&'static str, Vec<u8>)> {
    let bytes = path.as_bytes();
    let once = decode(bytes);
    let twice = decode(&once);
    vec![
        ("as it stands", bytes.to_vec()),
        ("resolved, not decoded (RFC 3986)", resolve(bytes, false, false)),
        ("WHATWG URL", resolve(&dots(bytes), true, false)),
        ("decoded, resolved (Go, Python)", resolve(&once, false, false)),
        ("decoded, merged, resolved (nginx)", resolve(&once, false, true)),
        ("resolved, then decoded", decode(&resolve(bytes, false, false))),
        ("parameters dropped, decoded, resolved (Tomcat)", resolve(&decode(&without_parameters(bytes)), false, true)),
        ("backslashes (IIS)", resolve(&once, true, true)),
        ("decoded twice, backslashes", resolve(&twice, true, true)),
        ("decoded twice, resolved", resolve(&twice, false, false)),
    ]
}

fn decode(path: &[u8]) -> Vec<u8> {
    let hex = |at: usize| path.get(at).and_then(|b| char::from(*b).to_digit(16));
    let (mut out, mut at) = (Vec::new(), 0);
    while at < path.len() {
        match (path[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// The URL standard takes encoded dots for dots, and decodes nothing else.
fn dots(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = path;
    while let [first, ..] = rest {
        let (byte, length) = if rest.len() >= 3 && rest[..3].eq_ignore_ascii_case(b"%2e") { (b'.', 3) } else { (*first, 1) };
        out.push(byte);
        rest = &rest[length..];
    }
    out
}

fn without_parameters(path: &[u8]) -> Vec<u8> {
    let (mut out, mut inside) = (Vec::new(), false);
    for byte in path {
        inside = *byte != b'/' && (inside || *byte == b';');
        if !inside {
            out.push(*byte);
        }
    }
    out
}

/// One pass from the left, cutting the output back at `..`.
fn resolve(path: &[u8], backslashes: bool, merge: bool) -> Vec<u8> {
    let slash = |byte: u8| byte == b'/' || (backslashes && byte == b'\\');
    let mut out: Vec<u8> = Vec::new();
    let mut at = 0;
    while at < path.len() {
        // At a slash.
        let end = (at + 1..path.len()).find(|next| slash(path[*next])).unwrap_or(path.len());
        let segment = &path[at + 1..end];
        match segment {
            b"." | b".." => {
                if segment == b".." {
                    let cut = out.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                    out.truncate(cut);
                }
                if end == path.len() {
                    out.push(b'/');
                }
            }
            b"" if merge && end < path.len() => {}
            _ => {
                out.push(b'/');
                out.extend_from_slice(segment);
            }
        }
        at = end;
    }
    out
}
