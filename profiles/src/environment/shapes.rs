//! What values look like credentials. Few passes over the bytes; no allocation but for percent-encoded ones.

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

/// What kind of credential `value` holds, if it looks like one. `is_locale` says that it lists languages, which look
/// like `user:password@host` (`ca:ca@valencia`).
pub(super) fn credential(value: &[u8], is_locale: bool) -> Option<&'static str> {
    let found = find(value, is_locale);
    if found.is_some() || !value.contains(&b'%') {
        return found;
    }
    // What is quoted once more for a form or a query.
    let mut decoded = value.to_vec();
    for _ in 0..MOST_QUOTED {
        let length = decoded.len();
        decoded = unquoted(&decoded);
        if decoded.len() == length {
            return None;
        }
        if let Some(kind) = find(&decoded, is_locale) {
            return Some(kind);
        }
    }
    None
}

/// How often a value can be percent-encoded and is still looked through.
const MOST_QUOTED: usize = 3;

fn unquoted(text: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        match tail {
            [high, low, after @ ..]
                if *byte == b'%'
                    && let (Some(high), Some(low)) = (digit(high), digit(low)) =>
            {
                out.push((high * 16 + low) as u8);
                rest = after;
            }
            _ => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    out
}

fn find(value: &[u8], is_locale: bool) -> Option<&'static str> {
    if value.contains(&b'@') && holds_login(value, is_locale) {
        return Some("a login for a host");
    }
    let mut boundary = true;
    for at in 0..value.len() {
        let rest = &value[at..];
        if boundary && let Some(kind) = starts_credential(rest) {
            return Some(kind);
        }
        if rest[0] == b'=' && assigns_credential(&value[..at], &rest[1..]) {
            return Some("a setting of a credential");
        }
        boundary = !is_word(rest[0]);
    }
    None
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
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

/// The least length of a setting that counts: `AUTH=1`, `--token=auto` and `auth=debug` switch something.
const SHORTEST: usize = 6;

/// Is it `TOKEN=...`, as in `make TOKEN=...` (`MAKEFLAGS`), `-DTOKEN="..."`, `--token=...`, `?token=...`?
fn assigns_credential(before: &[u8], after: &[u8]) -> bool {
    let length = before.iter().rev().take_while(|b| is_word(**b)).count();
    let (lead, name) = before.split_at(before.len() - length);
    // Colours of file names (`*.key=01;31`) and directories are none.
    if name.is_empty() || matches!(lead, [.., b'/'] | [.., b'*', b'.']) {
        return false;
    }
    // The definition of a macro is written without a space.
    let name = name.strip_prefix(b"-D").unwrap_or(name);
    let start = after.iter().take_while(|b| matches!(b, b'"' | b'\'' | b'\\')).count();
    let value = after[start..].iter().take_while(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b',' | b'&' | b'\\'));
    value.take(SHORTEST).count() == SHORTEST && super::names::means_credential(name)
}

/// Is there a `scheme://user@`, `//user:password@` or `user:password@host` anywhere?
///
/// Only `/` and white space end what can be a login: a password may hold any other character, and where it would have to
/// be encoded the programs that read it do not insist. `git` alone is the user that everybody has.
fn holds_login(value: &[u8], is_locale: bool) -> bool {
    let ends = |b: &u8| *b == b'/' || *b == b'"' || b.is_ascii_whitespace();
    let mut start = 0;
    value.split(ends).any(|run| {
        let before = &value[..start];
        start += run.len() + 1;
        let is_url = before.ends_with(b"://");
        let run = if is_url { authority(run) } else { run };
        let Some(at) = run.iter().rposition(|b| *b == b'@') else { return false };
        let (login, host) = (&run[..at], &run[at + 1..]);
        let has_password = login.iter().position(|b| *b == b':').is_some_and(|colon| colon > 0);
        match before {
            _ if is_url => !login.is_empty() && login != b"git",
            [.., b'/', b'/'] => has_password,
            // Deeper in a path.
            [.., b'/'] => false,
            // A digest pins an image: `name:tag@sha256:...`.
            _ => has_password && !is_locale && !host.is_empty() && !host.starts_with(b"sha256:"),
        }
    })
}

/// What of `run` can be the authority of a URL: all before `?` and `#`, unless what is there is no `host:port`.
fn authority(run: &[u8]) -> &[u8] {
    let end = run.iter().position(|b| matches!(b, b'?' | b'#')).unwrap_or(run.len());
    let head = &run[..end];
    match head.iter().position(|b| *b == b':') {
        Some(colon) if !head.starts_with(b"[") && !head[colon + 1..].iter().all(u8::is_ascii_digit) => run,
        _ => head,
    }
}
