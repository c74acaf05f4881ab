//! What must hold for any input. The fuzz targets and `tests/fuzz.rs` run these same functions.

use hermes_egress::event::Event;
use hermes_egress::framed;
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

/// Any requests: no panic, the same verdict however the bytes are cut, and what passes is the same requests for every reader.
pub fn head(bytes: &[u8]) {
    let whole = framed(&[bytes]);
    let cuts = [bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(1)];
    for cut in cuts {
        let (front, back) = bytes.split_at(cut);
        assert_eq!(framed(&[front, back]), whole, "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(framed(&single), whole, "byte by byte");
    if whole.is_ok() {
        assert!(!readers_differ(bytes), "{:?}", READERS.map(|reader| reader.requests(bytes)));
    }
}

/// Is there anything in which the readers below differ?
pub fn readers_differ(bytes: &[u8]) -> bool {
    let [first, others @ ..] = READERS.map(|reader| reader.requests(bytes));
    others.into_iter().any(|other| first != other)
}

/// A reader of requests, with what one or another server or proxy does. Written with nothing of what is checked.
struct Reader {
    /// LF alone ends a line, and space in front of a colon belongs to no name.
    lenient: bool,
    /// Of two lengths the last counts, else the first.
    last_length: bool,
    /// A length counts beside chunks.
    length_wins: bool,
    /// Any coding that names chunks means them.
    any_chunks: bool,
}

const READERS: [Reader; 4] = [
    Reader { lenient: false, last_length: false, length_wins: false, any_chunks: false },
    Reader { lenient: true, last_length: false, length_wins: false, any_chunks: true },
    Reader { lenient: true, last_length: true, length_wins: true, any_chunks: true },
    Reader { lenient: false, last_length: true, length_wins: true, any_chunks: false },
];

impl Reader {
    /// Where requests begin and end that have come whole; up to a CONNECT, after which there are none.
    fn requests(&self, bytes: &[u8]) -> Vec<(usize, usize)> {
        let (mut all, mut at) = (Vec::new(), 0);
        while let Some((start, end, tunnel)) = self.request(bytes, at) {
            all.push((start, end));
            at = end;
            if tunnel {
                break;
            }
        }
        all
    }

    fn request(&self, bytes: &[u8], mut at: usize) -> Option<(usize, usize, bool)> {
        let (start, line) = loop {
            let begin = at;
            let line = self.line(bytes, &mut at)?;
            if !line.is_empty() {
                break (begin, line);
            }
        };
        let (mut length, mut chunked) = (None, false);
        loop {
            let field = self.line(bytes, &mut at)?;
            if field.is_empty() {
                break;
            }
            let Some(colon) = field.iter().position(|byte| *byte == b':') else { continue };
            let name = if self.lenient { field[..colon].trim_ascii() } else { &field[..colon] };
            let value = String::from_utf8_lossy(field[colon + 1..].trim_ascii()).to_ascii_lowercase();
            if name.eq_ignore_ascii_case(b"content-length") && (length.is_none() || self.last_length) {
                let digits = value.chars().take_while(char::is_ascii_digit).collect::<String>();
                length = digits.parse::<u64>().ok();
            }
            if name.eq_ignore_ascii_case(b"transfer-encoding") {
                chunked |= if self.any_chunks { value.contains("chunked") } else { value == "chunked" };
            }
        }
        if line.starts_with(b"CONNECT ") {
            return Some((start, at, true));
        }
        let body = match (length, chunked) {
            (Some(length), true) if self.length_wins => Some(length),
            (_, true) => None,
            (length, false) => Some(length.unwrap_or(0)),
        };
        let Some(mut left) = body else { return Some((start, self.chunks(bytes, at)?, false)) };
        left += at as u64;
        (left <= bytes.len() as u64).then_some((start, left as usize, false))
    }

    fn chunks(&self, bytes: &[u8], mut at: usize) -> Option<usize> {
        loop {
            let line = self.line(bytes, &mut at)?;
            let digits: String = line.iter().map(|byte| char::from(*byte)).take_while(char::is_ascii_hexdigit).collect();
            match u64::from_str_radix(&digits, 16).ok()? {
                0 => break,
                size => at = usize::try_from(size).ok()?.checked_add(at).filter(|end| *end <= bytes.len())?,
            }
            if !self.line(bytes, &mut at)?.is_empty() {
                return None;
            }
        }
        while !self.line(bytes, &mut at)?.is_empty() {}
        Some(at)
    }

    fn line<'a>(&self, bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
        let rest = &bytes[*at..];
        let end = if self.lenient {
            rest.iter().position(|byte| *byte == b'\n')? + 1
        } else {
            rest.windows(2).position(|two| two == b"\r\n")? + 2
        };
        *at += end;
        Some(rest[..end - 1].strip_suffix(b"\r").unwrap_or(&rest[..end - 1]))
    }
}

/// The arguments of [`route`], one in a line.
pub fn lines(text: &str) {
    let mut lines = text.splitn(3, '\n');
    if let (Some(first), Some(second), Some(host)) = (lines.next(), lines.next(), lines.next()) {
        route_of(first, second, host);
    }
}

/// Any host, and the hosts of two routes of which one allows GET and the other POST: no panic, and the narrower one decides.
pub fn route_of(first: &str, second: &str, host: &str) {
    let with = |host: &str, method: &str| {
        let mut route = route(host);
        route.rules.methods = vec![method.into()];
        route
    };
    let Ok(rules) = Ruleset::new(&[with(first, "GET"), with(second, "POST")], None) else { return };
    let Ok((host, port)) = authority(host, 443) else { return };
    let spelled = host.to_string();
    // Labels of a pattern that are the host's last ones; all of them, for the host itself.
    let covers = |pattern: &str| -> Option<usize> {
        let bare = pattern.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(pattern);
        let address = bare.parse::<std::net::IpAddr>().map(|address| Host::from(address).to_string());
        let pattern = address.unwrap_or_else(|_| pattern.trim_end_matches('.').to_ascii_lowercase());
        let Some(domain) = pattern.strip_prefix("*.") else { return (pattern == spelled).then_some(usize::MAX) };
        let (own, wanted): (Vec<&str>, Vec<&str>) = (spelled.split('.').collect(), domain.split('.').collect());
        let below = matches!(host, Host::Name(_)) && own.len() > wanted.len() && own.ends_with(&wanted);
        below.then_some(wanted.len())
    };
    let (get, post) = (covers(first), covers(second));
    let expected = |own: Option<usize>, other: Option<usize>| port == 443 && own.is_some() && own >= other;
    for (method, expected) in [("GET", expected(get, post)), ("POST", expected(post, get))] {
        let decision = rules.decide(&Request { host: &host, port, method, path: "/" });
        assert_eq!(matches!(decision, Decision::Allow(_)), expected, "{method} {host}:{port} by {first:?} and {second:?}");
    }
    assert_eq!(rules.admit(&host, port).is_ok(), port == 443 && get.or(post).is_some(), "{host}:{port}");
    let named = rules.permits_name(&host).is_some();
    assert_eq!(named, get.or(post).is_some(), "{host}");
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
