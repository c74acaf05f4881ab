use std::sync::Arc;

use proptest::prelude::*;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

fn hello(name: &str) -> Vec<u8> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut bytes = Vec::new();
    ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut bytes).unwrap();
    bytes
}

/// The same hello, in records of at most `size` bytes.
fn split(hello: &[u8], size: usize) -> Vec<u8> {
    hello[5..].chunks(size).flat_map(|part| [&[0x16, 3, 1, 0, part.len() as u8][..], part].concat()).collect()
}

/// The same hello with one more extension.
fn extended(hello: &[u8], kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = hello.to_vec();
    bytes.extend(kind.to_be_bytes());
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    let added = 4 + body.len();
    // The session id follows 5 + 4 + 2 + 32 bytes; then cipher suites and compression methods.
    let session = 43;
    let ciphers = session + 1 + usize::from(bytes[session]);
    let compression = ciphers + 2 + usize::from(u16::from_be_bytes([bytes[ciphers], bytes[ciphers + 1]]));
    let list = compression + 1 + usize::from(bytes[compression]);
    for at in [3, 7, list] {
        let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]) + added as u16;
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

fn tls_for(name: &str) -> First {
    First::Tls { server_name: Some(name.into()), encrypted: false }
}

#[test]
fn server_names() {
    let bytes = hello("api.example.test");
    assert_eq!(first(&bytes), tls_for("api.example.test"));
    for end in 0..bytes.len() {
        assert_eq!(first(&bytes[..end]), First::Incomplete, "{end}");
    }
    for size in [1, 3, 7, 50] {
        assert_eq!(first(&split(&bytes, size)), tls_for("api.example.test"), "{size}");
    }
    assert_eq!(first(&hello("192.0.2.1")), First::Tls { server_name: None, encrypted: false });
    // Early data follows in records of its own.
    assert_eq!(first(&[&bytes[..], &[0x17, 3, 3, 0, 1, 0]].concat()), tls_for("api.example.test"));
}

#[test]
fn hidden_and_doubled_names() {
    let bytes = hello("api.example.test");
    assert_eq!(
        first(&extended(&bytes, 0xabcd, b"x")),
        tls_for("api.example.test"),
        "an unknown extension is none of our business"
    );
    let outer = &[0, 0, 1, 0, 1, 7, 0, 1, 9, 0, 1, 9][..];
    for (kind, body) in [(0xfe0d, outer), (0xffce, b"x")] {
        let found = first(&extended(&bytes, kind, body));
        assert_eq!(found, First::Tls { server_name: Some("api.example.test".into()), encrypted: true });
    }
    let second = [&[0, 12, 0, 0, 9][..], b"evil.test"].concat();
    assert!(matches!(first(&extended(&bytes, 0, &second)), First::Hostile(_)));
    let only = [&[0, 12, 0, 0, 9][..], b"evil\0test"].concat();
    assert!(matches!(first(&extended(&hello("192.0.2.1"), 0, &only)), First::Hostile(_)));
}

#[test]
fn tls_that_is_none() {
    let bytes = hello("api.example.test");
    let changed = |at: usize, to: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = to;
        first(&bytes)
    };
    assert!(matches!(changed(5, 2), First::Hostile(_)), "a server hello");
    assert!(matches!(changed(1, 2), First::Hostile(_)), "SSL 2");
    assert!(matches!(changed(3, 0xff), First::Hostile(_)), "a long record");
    assert!(matches!(changed(6, 1), First::Hostile(_)), "a long hello");
    assert!(matches!(first(&[0x80, 0x2e, 1, 3, 1, 0]), First::Hostile(_)));
    assert!(matches!(first(&[0x16, 3, 1, 0, 0]), First::Hostile(_)), "an empty record");
}

#[test]
fn texts() {
    let http = First::Http { h2: false };
    for text in [
        "GET / HTTP/1.1\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\n",
        "GET / http/1.1 \n",
        "get /é HTTP/1.0\r\n",
        "X\t/\tHTTP/1.1\r\n",
        "GET / HTTP/9",
        "PUT /a b c HTTP/1.1\r\n",
    ] {
        assert_eq!(first(text.as_bytes()), http, "{text:?}");
    }
    assert_eq!(first(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), First::Http { h2: true });
    // However it is cut: half of it is no request line of HTTP/1.
    assert_eq!(first(b"PRI * HTTP/2.0\r"), First::Incomplete);
    for text in [
        "SSH-2.0-OpenSSH_9.2 Debian\r\n",
        "*1\r\n$4\r\nPING\r\n",
        "AMQP\0\0\x09\x01",
        "EHLO x\r\n",
        "GET /\r\n",
        "\0\0\0\x08\x04\x52\x16\x2f",
    ] {
        assert_eq!(first(text.as_bytes()), First::Other, "{text:?}");
    }
    assert!(matches!(first(b"GET /\x01 HTTP/1.1\r\n"), First::Hostile(_)));
    for text in ["", "\r\n", "G", "GET /", "GET / HTT"] {
        assert_eq!(first(text.as_bytes()), First::Incomplete, "{text:?}");
    }
    assert_eq!(first(&[b'a'; MOST]), First::Other, "no method");
    assert!(matches!(first(&[&b"GET "[..], &[b'a'; MOST]].concat()), First::Hostile(_)));
    assert!(matches!(first(&[b'\n'; MOST]), First::Hostile(_)));
}

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = first(&bytes);
    }

    #[test]
    fn damaged_hellos(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5)) {
        let mut bytes = hello("api.example.test");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = first(&bytes);
    }

    /// More bytes never take a verdict back.
    #[test]
    fn verdicts_are_final(text in "(GET|POST|SSH-2.0|\\r\\n| |/|HTTP/1.1|\\x00|a){1,8}", more in "[ -~\\r\\n]{0,12}") {
        let before = first(text.as_bytes());
        if before != First::Incomplete {
            prop_assert_eq!(first(format!("{text}{more}").as_bytes()), before);
        }
    }
}

#[test]
fn who_sends_no_method_is_not_waited_for() {
    for text in [&b"hello"[..], b"0033git-upload-pack /demo.git\0host=x", &[b'x'; 64], b"GET\0 / ", &[b'A'; 64]] {
        assert_eq!(first(text), First::Other, "{text:?}");
    }
    for text in [&b"GE"[..], b"GET ", b"GET /x HTT", b"M-SEARCH * "] {
        assert_eq!(first(text), First::Incomplete, "{text:?}");
    }
    for text in [&b"he"[..], b"get", b"Post /x"] {
        assert_eq!(first(text), First::Incomplete, "{text:?}");
    }
    assert_eq!(first(b"get / http/1.1\r\n"), First::Http { h2: false });
}
