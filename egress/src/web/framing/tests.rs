use proptest::prelude::*;

use super::*;

fn fed(bytes: &[u8]) -> Result<State, &'static str> {
    let mut framing = Framing::default();
    framing.feed(bytes).map_err(|flaw| flaw.why)?;
    Ok(framing.state)
}

fn post(fields: &str, body: &str) -> Result<State, &'static str> {
    fed(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n{body}").as_bytes())
}

#[test]
fn what_every_reader_takes_for_the_same() {
    for (fields, body) in [
        ("", ""),
        ("Content-Length: 3\r\n", "abc"),
        ("content-length:\t3 \r\n", "a\rc"),
        ("Content-Length: 0\r\n", ""),
        ("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        ("TRANSFER-ENCODING: Chunked\r\n", "A\r\n0123456789\r\n00\r\nX: y\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "3;a=b;c=\"d e\"\r\nabc\r\n0;x\r\n\r\n"),
        ("Empty:\r\nX: \u{e9}\r\n", ""),
    ] {
        let once = post(fields, body);
        assert_eq!(once, Ok(State::Start), "{fields:?} {body:?}");
        assert_eq!(post(fields, &format!("{body}\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n")), once, "{fields:?} {body:?}");
        assert!(post(fields, &format!("{body}GET / HTTP/1.1\r\nHost: a.test\r\n x\r\n\r\n")).is_err(), "{fields:?} {body:?}");
    }
    assert_eq!(fed(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n\x16\x03\x01\n"), Ok(State::Tunnel));
}

#[test]
fn what_two_readers_may_take_for_two_things() {
    for (fields, body, why) in [
        ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "", "both Content-Length and Transfer-Encoding"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "", "both Content-Length and Transfer-Encoding"),
        ("Transfer-Encoding:\tchunked\r\nContent-Length: 0\r\n", "", "both Content-Length and Transfer-Encoding"),
        ("Content-Length: 3\r\nContent-Length: 3\r\n", "", "more than one Content-Length"),
        ("Content-Length: 3\r\nContent-Length: 4\r\n", "", "more than one Content-Length"),
        ("Content-Length: 3, 3\r\n", "", "a malformed Content-Length"),
        ("Content-Length: +3\r\n", "", "a malformed Content-Length"),
        ("Content-Length: 0x3\r\n", "", "a malformed Content-Length"),
        ("Content-Length: \r\n", "", "a malformed Content-Length"),
        ("Content-Length: 99999999999999999999\r\n", "", "a malformed Content-Length"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "", "more than one Transfer-Encoding"),
        ("Transfer-Encoding: gzip, chunked\r\n", "", "a Transfer-Encoding other than chunked"),
        ("Transfer-Encoding: xchunked\r\n", "", "a Transfer-Encoding other than chunked"),
        ("Transfer-Encoding: \"chunked\"\r\n", "", "a Transfer-Encoding other than chunked"),
        ("Transfer-Encoding : chunked\r\n", "", "a field whose name is none"),
        ("Transfer Encoding: chunked\r\n", "", "a field whose name is none"),
        (": x\r\n", "", "a field whose name is none"),
        ("X\r\n", "", "a field without a colon"),
        ("X: y\r\n z\r\n", "", "a folded field"),
        ("X: y\r\n\tContent-Length: 3\r\n", "", "a folded field"),
        ("X: y\nContent-Length: 3\r\n", "", "a line that ends with a bare LF"),
        ("X: y\rContent-Length: 3\r\n", "", "a bare CR"),
        ("X: y\r\r\n", "", "a bare CR"),
        ("X: a\0b\r\n", "", "a control character in a field"),
        ("Transfer-Encoding: chunked\r\n", "3 \r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "3 ;x\r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "3;\r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "3;a\0\r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "0x3\r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "-3\r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "\r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "100000000000000000\r\n", "a malformed chunk size"),
        ("Transfer-Encoding: chunked\r\n", "0;x\n\r\n", "a line that ends with a bare LF"),
        ("Transfer-Encoding: chunked\r\n", "3\nabc\r\n", "a line that ends with a bare LF"),
        ("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n", "a chunk that is longer than its size"),
        ("Transfer-Encoding: chunked\r\n", "0\r\nContent-Length: 3\r\n", "a trailer that frames"),
        ("Transfer-Encoding: chunked\r\n", "0\r\n x: y\r\n", "a folded field"),
    ] {
        assert_eq!(post(fields, body), Err(why), "{fields:?} {body:?}");
    }
    let in_head = |text: &str| Framing::default().feed(text.as_bytes()).unwrap_err().in_head;
    assert!(in_head("GET / HTTP/1.1\n"));
    assert!(in_head("GET / HTTP/1.1\r\nX: y\r\n z\r\n"));
    assert!(in_head("GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"));
    assert!(!in_head("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"));
}

#[test]
fn no_line_is_kept_for_ever() {
    let mut framing = Framing::default();
    let part = [b'x'; 1024];
    assert!((0..=LINE / part.len()).any(|_| framing.feed(&part).is_err()));
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "POST /ok HTTP/1.1\r\nHost: a.test\r\n",
        "GET /ok HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "transfer-encoding: Chunked\r\n",
        "X: y\r\n",
        " folded\r\n",
        "\r\n",
        "\n",
        "\r",
        "abc",
        "3\r\nabc\r\n",
        "3;x=y\r\nabc\r\n",
        "0\r\n\r\n",
        "0\r\n",
        "3",
        ";",
        " ",
        ":",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

/// Another reading of the same, by a whole message at a time: where each request ends. `None` for what is none, or not whole.
fn ends(mut bytes: &[u8]) -> Option<usize> {
    let mut requests = 0;
    loop {
        while let Some(rest) = bytes.strip_prefix(b"\r\n") {
            bytes = rest;
        }
        if bytes.is_empty() {
            return Some(requests);
        }
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        bytes = &bytes[end + 4..];
        let mut values = std::collections::HashMap::<String, Vec<&str>>::new();
        for line in head.split("\r\n").skip(1) {
            let (name, value) = line.split_once(':')?;
            values.entry(name.to_lowercase()).or_default().push(value.trim());
        }
        match (values.get("content-length"), values.get("transfer-encoding")) {
            (None, None) => {}
            (Some(length), None) if length.len() == 1 => bytes = bytes.get(length[0].parse().ok()?..)?,
            (None, Some(coding)) if coding.len() == 1 => loop {
                let end = bytes.windows(2).position(|part| part == b"\r\n")?;
                let size = std::str::from_utf8(&bytes[..end]).ok()?.split(';').next()?;
                let size = usize::from_str_radix(size, 16).ok()?;
                bytes = &bytes[end + 2..];
                if size > 0 {
                    bytes = bytes.get(size..)?.strip_prefix(b"\r\n")?;
                    continue;
                }
                // Trailers.
                while !bytes.starts_with(b"\r\n") {
                    let end = bytes.windows(2).position(|part| part == b"\r\n")?;
                    bytes = &bytes[end + 2..];
                }
                bytes = &bytes[2..];
                break;
            },
            _ => return None,
        }
        requests += 1;
    }
}

proptest! {
    /// However the bytes are cut, the verdict is the same.
    #[test]
    fn cuts_change_nothing(bytes in pieces(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4)) {
        let whole = fed(&bytes);
        let mut at: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let mut framing = Framing::default();
        let parts = at.windows(2).try_for_each(|pair| framing.feed(&bytes[pair[0]..pair[1]]));
        prop_assert_eq!(parts.map(|()| framing.state).map_err(|flaw| flaw.why), whole);
    }

    /// What ends between two requests here is a number of whole requests to the other reading as well.
    #[test]
    fn two_readings_agree(bytes in pieces()) {
        let mut framing = Framing::default();
        let between = framing.feed(&bytes).is_ok() && framing.state == State::Start && framing.line.is_empty();
        if between {
            prop_assert!(ends(&bytes).is_some(), "{}", String::from_utf8_lossy(&bytes));
        }
    }
}
