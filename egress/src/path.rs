//! All the paths that a server may take one path for.
//!
//! Servers disagree about `..`, `%2f`, `%252f`, `//`, `;x` and `\`. To pick one reading and match it would let the others
//! through. So a path is allowed only if *every* reading of it is: `/v1/..%2fadmin` is both `/v1/..%2fadmin` and `/admin`.
//! An ordinary path has one reading, and costs one look at its bytes.

use std::borrow::Cow;

/// A path without a meaning that all servers would agree not to misread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(&'static str);

/// How often percent-encoding is taken off. What still has some then is refused.
const LAYERS: usize = 3;

/// Every reading of the path in a request target (without query), decoded. The first is that of RFC 3986: percent-encoding
/// decoded once, dot segments removed.
///
/// # Errors
/// Malformed or deeply nested percent-encoding, control characters, text that is not UTF-8, segments of dots and spaces that some file systems
/// take for `..`, and a path that does not start with `/`.
pub fn readings(path: &str) -> Result<Vec<Cow<'_, str>>, Unreadable> {
    if !path.starts_with('/') {
        return Err(Unreadable("a path starts with a slash"));
    }
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'%' | b';' | b'\\');
    if path.bytes().all(plain) && !path.contains("//") && !path.contains("/.") {
        return Ok(vec![Cow::Borrowed(path)]);
    }
    let mut layers = vec![path.to_owned()];
    loop {
        let last = &layers[layers.len() - 1];
        if !last.contains('%') {
            break;
        }
        if layers.len() > LAYERS {
            return Err(Unreadable("percent-encoding in percent-encoding"));
        }
        match decoded(last) {
            Ok(next) => layers.push(next),
            // A decoded path may hold a percent sign of its own ("100%"): then nobody decodes it again. With something else
            // encoded beside it ("100%/..%2f") somebody may decode that, and leave the sign.
            Err(_) if layers.len() > 1 && !has_encoded(last) => break,
            Err(why) => return Err(why),
        }
    }
    let mut all: Vec<Cow<'_, str>> = Vec::new();
    // Undecoded last: a server that does not decode sees what we would print.
    let undecoded = layers.remove(0);
    for layer in layers.iter().chain([&undecoded]) {
        if layer.chars().any(char::is_control) {
            return Err(Unreadable("a control character in a path"));
        }
        if layer.split(['/', '\\']).any(disguised) {
            return Err(Unreadable("a segment of dots and spaces"));
        }
        for choice in 0..8_u8 {
            let reading = Cow::Owned(read(layer, choice & 1 != 0, choice & 2 != 0, choice & 4 != 0));
            if !all.contains(&reading) {
                all.push(reading);
            }
        }
        // The path as it stands, for whoever does not resolve dot segments at all.
        let literal = Cow::Owned(layer.clone());
        if !all.contains(&literal) {
            all.push(literal);
        }
    }
    Ok(all)
}

/// `...`, `.. `, ` ..`: Windows and some normalisers drop trailing dots and spaces. The two dot segments proper are resolved.
fn disguised(segment: &str) -> bool {
    let bare = segment.split(';').next().unwrap_or(segment);
    bare != "." && bare != ".." && bare.contains('.') && bare.chars().all(|c| c == '.' || c.is_whitespace())
}

/// One server's idea: are backslashes slashes, are `;parameters` dropped, are empty segments dropped? Dot segments go.
fn read(path: &str, backslashes: bool, parameters: bool, merge: bool) -> String {
    let path = if backslashes { Cow::Owned(path.replace('\\', "/")) } else { Cow::Borrowed(path) };
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let segment = if parameters { segment.split(';').next().unwrap_or(segment) } else { segment };
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            "" if merge && !last => {}
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Is anything percent-encoded?
fn has_encoded(path: &str) -> bool {
    path.as_bytes().windows(3).any(|part| part[0] == b'%' && part[1].is_ascii_hexdigit() && part[2].is_ascii_hexdigit())
}

/// Takes one layer of percent-encoding off; `None` where a `%` begins none.
pub(crate) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).and_then(|digit| u8::try_from(digit).ok());
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push(high << 4 | low),
            _ => return None,
        }
    }
    Some(bytes)
}

fn decoded(path: &str) -> Result<String, Unreadable> {
    let bytes = percent_decoded(path).ok_or(Unreadable("malformed percent-encoding"))?;
    // Not UTF-8 is Latin-1 at best, and an overlong "/" (CVE-2000-0884) at worst.
    String::from_utf8(bytes).map_err(|_| Unreadable("a path that is not UTF-8"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(path: &str) -> Vec<String> {
        readings(path).unwrap().into_iter().map(Cow::into_owned).collect()
    }

    #[test]
    fn ordinary_paths_have_one_reading() {
        for path in ["/", "/v1/chat", "/a.b/c-d_e~f", "/v1/", "/@scope/name", "/a:b,c=d"] {
            assert_eq!(all(path), [path]);
        }
        assert_eq!(all("/caf%C3%A9")[0], "/café");
    }

    #[test]
    fn what_a_path_may_also_mean() {
        for (path, also) in [
            ("/v1/../admin", "/admin"),
            ("/v1/%2e%2e/admin", "/admin"),
            ("/v1/%2E./admin", "/admin"),
            ("/v1/..%2fadmin", "/admin"),
            ("/v1/..%252fadmin", "/admin"),
            ("/v1/%252e%252e/admin", "/admin"),
            ("/v1/..;/admin", "/admin"),
            ("/v1/..;a=b/admin", "/admin"),
            ("/v1/..%3b/admin", "/admin"),
            ("/v1\\..\\..\\admin", "/admin"),
            ("/v1/..%5cadmin", "/admin"),
            ("//admin", "/admin"),
            ("/v1//..//admin", "/admin"),
            ("/v1/x;/../../admin", "/admin"),
            ("/..", "/"),
            ("/v1/.", "/v1/"),
            ("/admin;x", "/admin"),
            ("/adm%69n", "/admin"),
        ] {
            assert!(all(path).iter().any(|reading| reading == also), "{path}: {:?}", all(path));
        }
    }

    #[test]
    fn what_nobody_can_read() {
        for path in [
            "",
            "v1",
            "*",
            "/%",
            "/%2",
            "/%zz",
            "/%u002f",
            "/a%00b",
            "/a%0d%0ab",
            "/%c0%ae%c0%ae/admin",
            "/a/.../b",
            "/a/..%20/b",
            "/%25252525",
            "/v1/..%252fadm%25in",
        ] {
            assert!(readings(path).is_err(), "{path}: {:?}", readings(path));
        }
        assert!(readings("/100%25").is_ok());
    }

    /// RFC 3986, 5.2.4, as it is written there: the reference that the readings are compared with.
    fn remove_dot_segments(input: &str) -> String {
        let (mut input, mut output) = (input.to_owned(), String::new());
        while !input.is_empty() {
            if let Some(rest) = input.strip_prefix("../").or_else(|| input.strip_prefix("./")) {
                input = rest.to_owned();
            } else if input.starts_with("/./") {
                input.replace_range(..2, "");
            } else if input == "/." {
                input = "/".into();
            } else if input.starts_with("/../") {
                input.replace_range(..3, "");
                output.truncate(output.rfind('/').unwrap_or(0));
            } else if input == "/.." {
                input = "/".into();
                output.truncate(output.rfind('/').unwrap_or(0));
            } else if input == "." || input == ".." {
                input.clear();
            } else {
                let end = input[1..].find('/').map_or(input.len(), |at| at + 1);
                output.push_str(&input[..end]);
                input.replace_range(..end, "");
            }
        }
        output
    }

    fn path() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "/", "a", "b", ".", "..", "%2e", "%2f", "%2F", "%252e", "%252f", "%5c", "\\", ";", ";x=1", "//", "%3b", "admin",
            "%61",
        ]);
        prop::collection::vec(piece, 0..9).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #[test]
        fn never_panics(path in "\\PC*") {
            let _ = readings(&path);
        }

        /// A server of each common kind finds its own reading among ours.
        #[test]
        fn covers_every_kind_of_server(path in path()) {
            let Ok(all) = readings(&path) else { return Ok(()) };
            let once = decoded(&path).unwrap();
            let twice = decoded(&once).unwrap_or_else(|_| once.clone());
            let strip = |path: &str| {
                path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect::<Vec<_>>().join("/")
            };
            let mut servers = vec![path.clone(), once.clone(), twice.clone()];
            for layer in [&path, &once, &twice] {
                servers.push(remove_dot_segments(layer));
                servers.push(remove_dot_segments(&layer.replace('\\', "/")));
                servers.push(remove_dot_segments(&strip(layer)));
            }
            for server in servers {
                let server = if server.is_empty() { "/".to_owned() } else { server };
                prop_assert!(all.iter().any(|reading| *reading == server), "{} is not among {:?}", server, all);
            }
        }
    }
}
