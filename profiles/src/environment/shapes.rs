//! What values look like credentials. One pass over the bytes, no allocation.

/// Beginnings that key makers use, with the least number of characters that follow.
const PREFIXES: &[(&[u8], usize)] = &[
    (b"AGE-SECRET-KEY-1", 20),
    (b"AIza", 30),
    (b"AKIA", 16),
    (b"ASIA", 16),
    (b"SG.", 20),
    (b"dckr_pat_", 20),
    (b"doo_v1_", 30),
    (b"dop_v1_", 30),
    (b"figd_", 20),
    (b"gho_", 30),
    (b"ghp_", 30),
    (b"ghr_", 30),
    (b"ghs_", 30),
    (b"ghu_", 30),
    (b"github_pat_", 20),
    (b"glpat-", 15),
    (b"glrt-", 15),
    (b"gsk_", 20),
    (b"hf_", 20),
    (b"lin_api_", 20),
    (b"npm_", 30),
    (b"ntn_", 20),
    (b"nvapi-", 20),
    (b"pplx-", 20),
    (b"pypi-", 20),
    (b"r8_", 20),
    (b"rk_live_", 10),
    (b"sbp_", 20),
    (b"shpat_", 20),
    (b"sk-", 20),
    (b"sk_live_", 10),
    (b"sk_test_", 10),
    (b"tvly-", 16),
    (b"whsec_", 16),
    (b"xai-", 20),
    (b"xapp-", 10),
    (b"xoxa-", 10),
    (b"xoxb-", 10),
    (b"xoxp-", 10),
    (b"xoxr-", 10),
    (b"xoxs-", 10),
    (b"ya29.", 20),
];

/// Keys of connection strings.
const SETTINGS: &[&[u8]] = &[b"password=", b"pwd=", b"accountkey=", b"sharedaccesskey="];

/// What kind of credential `value` holds, if it looks like one.
pub(super) fn credential(value: &[u8]) -> Option<&'static str> {
    let mut boundary = true;
    for at in 0..value.len() {
        let rest = &value[at..];
        if boundary && let Some(kind) = starts_credential(rest) {
            return Some(kind);
        }
        if rest.starts_with(b"://") && holds_login(&value[..at], &rest[3..]) {
            return Some("a URL with a login");
        }
        boundary = !(rest[0].is_ascii_alphanumeric() || matches!(rest[0], b'_' | b'-'));
    }
    None
}

fn starts_credential(text: &[u8]) -> Option<&'static str> {
    match text[0] {
        b'-' => {
            let end = text.len().min(64);
            let header = text.starts_with(b"-----BEGIN ") && text[..end].windows(11).any(|window| window == b"PRIVATE KEY");
            return header.then_some("a private key");
        }
        b'e' if text.starts_with(b"eyJ") => return is_jwt(text).then_some("a signed token"),
        b'p' | b'P' | b'a' | b'A' | b's' | b'S' => {
            let setting = |key: &&&[u8]| text.get(..key.len()).is_some_and(|head| head.eq_ignore_ascii_case(key));
            if let Some(key) = SETTINGS.iter().find(setting) {
                return text
                    .get(key.len())
                    .is_some_and(|b| !b.is_ascii_whitespace())
                    .then_some("a connection string with a password");
            }
        }
        _ => {}
    }
    // The first byte alone rules almost everything out.
    let found = |(prefix, least): &&(&[u8], usize)| {
        prefix[0] == text[0] && text.starts_with(prefix) && run(&text[prefix.len()..]) >= *least
    };
    PREFIXES.iter().find(found).map(|_| "an access key")
}

/// How many characters of a key `text` begins with.
fn run(text: &[u8]) -> usize {
    text.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')).count()
}

/// Three runs of base64url, the first two of JSON objects.
fn is_jwt(text: &[u8]) -> bool {
    let mut parts = text[..run(text)].split(|b| *b == b'.');
    let mut part = |least: usize, start: &[u8]| parts.next().is_some_and(|part| part.len() >= least && part.starts_with(start));
    part(10, b"eyJ") && part(10, b"eyJ") && part(1, b"")
}

/// Has the authority that `after` begins with a password, or a token in place of the user?
fn holds_login(before: &[u8], after: &[u8]) -> bool {
    let end = after.iter().position(|b| matches!(b, b'/' | b'?' | b'#' | b' ' | b'"' | b'\'' | b',')).unwrap_or(after.len());
    let Some(at) = after[..end].iter().rposition(|b| *b == b'@') else { return false };
    let login = &after[..at];
    match login.iter().position(|b| *b == b':') {
        Some(colon) => colon + 1 < login.len(),
        // ssh://git@host is an ordinary user; https://TOKEN@host is not.
        None => !login.is_empty() && login != b"git" && (before.ends_with(b"http") || before.ends_with(b"https")),
    }
}
