//! What a connection is, by its first bytes. Pure: bytes in, verdict out.

use tokio_rustls::rustls::server::Acceptor;

/// Most bytes that are looked at before a connection must have shown what it is.
pub const MOST: usize = 32 * 1024;

/// Letters of the longest method that is waited for.
const LONGEST_METHOD: usize = 32;

const USUAL_METHODS: [&[u8]; 9] = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"];

/// What the first bytes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum First {
    /// Not enough of them.
    Incomplete,
    /// TLS, with this server name.
    Tls {
        /// Lower case as far as the client sent it so; `None` without one.
        server_name: Option<String>,
        /// The real server name may be another, which only the server can read.
        encrypted: bool,
    },
    /// An HTTP/1 request line, or HTTP/2 with prior knowledge.
    Http {
        /// The preface of HTTP/2 (RFC 9113, 3.4).
        h2: bool,
    },
    /// None of these.
    Other,
    /// TLS that we do not understand, or a line that never ends: nothing to pass on.
    Hostile(&'static str),
}

/// Says what a connection is that begins with `bytes`.
pub fn first(bytes: &[u8]) -> First {
    // Servers skip empty lines in front of a request (RFC 9112, 2.2).
    let start = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    match bytes.get(start) {
        None if bytes.len() < MOST => First::Incomplete,
        None => First::Hostile("nothing but empty lines"),
        Some(0x16) if start == 0 => tls(bytes),
        // SSLv2's hello, which some servers still answer, has its length first and the type third (RFC 5246, E.2).
        Some(0x80..=0xff) if start == 0 && bytes.get(2) == Some(&1) && bytes.get(3).is_some_and(|major| *major <= 3) => {
            First::Hostile("a hello of SSL 2")
        }
        Some(0x80..=0xff) if start == 0 && bytes.len() < 4 => First::Incomplete,
        Some(byte) if is_token(*byte) => http(&bytes[start..]),
        Some(_) => First::Other,
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A text: HTTP if its first line names HTTP. What is not is told by a byte that no request line has.
fn http(bytes: &[u8]) -> First {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
    if bytes.starts_with(PREFACE) {
        return First::Http { h2: true };
    }
    if PREFACE.starts_with(bytes) {
        return First::Incomplete;
    }
    if !can_be_a_method(bytes) {
        return First::Other;
    }
    let end = bytes.iter().position(|b| b.is_ascii_control() && !matches!(b, b'\t' | b'\r'));
    let line = &bytes[..end.unwrap_or(bytes.len())];
    if line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/")) {
        return First::Http { h2: false };
    }
    if let Some(end) = end {
        // A line that ends without naming HTTP is at most HTTP/0.9, which names no host. With a control character in it,
        // some server may still take the rest for a request.
        let target = line.iter().position(|b| *b == b' ').and_then(|space| line[space..].iter().find(|b| **b != b' '));
        let like_a_request = bytes[end] != b'\n' && target == Some(&b'/');
        return if like_a_request { First::Hostile("a control character in a request line") } else { First::Other };
    }
    if bytes.len() >= MOST { First::Hostile("a line without end") } else { First::Incomplete }
}

/// Can the first word be, or become, the method of a request? Who sends something else does not wait for us to make up our mind.
fn can_be_a_method(bytes: &[u8]) -> bool {
    let length = bytes.iter().take_while(|b| b.is_ascii_alphabetic() || matches!(b, b'-' | b'_')).count();
    let (word, after) = bytes.split_at(length);
    let ends = after.first().is_some_and(|b| matches!(b, b' ' | b'\t'));
    if length == 0 || length > LONGEST_METHOD || !(ends || after.is_empty()) {
        return false;
    }
    // Methods are in upper case (RFC 9110, 9.1), but some servers take the usual ones otherwise.
    let usual = |method: &&[u8]| match ends {
        true => method.eq_ignore_ascii_case(word),
        false => method.get(..length).is_some_and(|begin| begin.eq_ignore_ascii_case(word)),
    };
    !word.iter().any(u8::is_ascii_lowercase) || USUAL_METHODS.iter().any(usual)
}

/// A client hello, gathered from as many records as it is spread over (RFC 8446, 5.1).
fn tls(bytes: &[u8]) -> First {
    let mut message = Vec::new();
    let mut rest = bytes;
    let mut consumed = 0;
    loop {
        let [kind, major, _, high, low, body @ ..] = rest else { return incomplete(bytes) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        // 2^14 bytes in a record at most, and none empty (RFC 8446, 5.1).
        if *kind != 0x16 || *major != 3 || length == 0 || length > 1 << 14 {
            return First::Hostile("a record that is no handshake's");
        }
        let Some(body) = body.get(..length) else { return incomplete(bytes) };
        message.extend_from_slice(body);
        consumed += 5 + length;
        rest = &bytes[consumed..];
        if message[0] != 1 {
            return First::Hostile("a handshake that does not begin with a client hello");
        }
        if let [_, a, b, c, hello @ ..] = &message[..] {
            let wanted = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if wanted > MOST {
                return First::Hostile("a client hello that is too large");
            }
            if hello.len() > wanted {
                return First::Hostile("more than a client hello in its record");
            }
            if hello.len() == wanted {
                return hello_in(&bytes[..consumed], hello);
            }
        }
    }
}

fn incomplete(bytes: &[u8]) -> First {
    if bytes.len() >= MOST { First::Hostile("a client hello that is too large") } else { First::Incomplete }
}

/// rustls reads the hello; of the extensions that it does not tell of, only their numbers are looked at here.
fn hello_in(records: &[u8], hello: &[u8]) -> First {
    let Some(extensions) = extensions(hello) else { return First::Hostile("a client hello that cannot be read") };
    let mut acceptor = Acceptor::default();
    let mut rest = records;
    while !rest.is_empty() {
        if !matches!(acceptor.read_tls(&mut rest), Ok(1..)) {
            return First::Hostile("a client hello that cannot be read");
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) if rest.is_empty() => {
                let server_name = accepted.client_hello().server_name().map(str::to_owned);
                // encrypted_client_hello (RFC 9849) and its draft, encrypted_server_name.
                let encrypted = extensions.iter().any(|kind| matches!(kind, 0xfe0d | 0xfe0a | 0xffce));
                // What rustls does not take for a name must not be one for the server.
                if server_name.is_none() && extensions.contains(&0) {
                    return First::Hostile("a server name that is none");
                }
                return First::Tls { server_name, encrypted };
            }
            _ => break,
        }
    }
    First::Hostile("a client hello that cannot be read")
}

/// The types of all extensions (RFC 8446, 4.1.2). `None` for what is cut short or goes on.
fn extensions(hello: &[u8]) -> Option<Vec<u16>> {
    let mut rest = hello.get(2 + 32..)?;
    let mut skip = |width: usize| {
        let (length, after) = rest.split_at_checked(width)?;
        let length = length.iter().fold(0_usize, |all, byte| all << 8 | usize::from(*byte));
        let (body, after) = after.split_at_checked(length)?;
        rest = after;
        Some(body)
    };
    let (_session, _ciphers, _compression) = (skip(1)?, skip(2)?, skip(1)?);
    let mut list = skip(2).unwrap_or_default();
    if !rest.is_empty() {
        return None;
    }
    let mut kinds = Vec::new();
    while let [a, b, high, low, body @ ..] = list {
        kinds.push(u16::from_be_bytes([*a, *b]));
        list = body.get(usize::from(u16::from_be_bytes([*high, *low]))..)?;
    }
    list.is_empty().then_some(kinds)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
