//! One value of a secret, which is wiped when it is dropped and never printed.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Bytes of the longest value.
pub(crate) const LONGEST: usize = 64 * 1024;

/// A value that can stand in a header.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Value(Zeroizing<String>);

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value(..)")
    }
}

impl Value {
    /// What was read, without the newline that ends it.
    ///
    /// # Errors
    /// What is wrong with it, in words that do not repeat it.
    pub(crate) fn parse(mut bytes: Zeroizing<Vec<u8>>) -> Result<Self, &'static str> {
        let ended = bytes.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line).len());
        if let Some(length) = ended {
            bytes.truncate(length);
        }
        if bytes.is_empty() {
            return Err("it is empty");
        }
        if bytes.len() > LONGEST {
            return Err("it is longer than 64 KiB");
        }
        if bytes.contains(&0) {
            return Err("it holds a NUL byte");
        }
        if bytes.contains(&b'\n') || bytes.contains(&b'\r') {
            return Err("it has more than one line, which a header cannot carry");
        }
        if !bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err("it holds something else than printable ASCII, which a header cannot carry");
        }
        if bytes.starts_with(b" ") || bytes.ends_with(b" ") {
            return Err("it begins or ends with a blank, which a header cannot carry");
        }
        String::from_utf8(std::mem::take(&mut bytes)).map(|text| Self(Zeroizing::new(text))).map_err(|_| "it is not ASCII")
    }

    /// It, in the clear.
    pub(crate) fn reveal(&self) -> &Zeroizing<String> {
        &self.0
    }
}

/// Room that does not have to grow: what grows leaves copies behind.
pub(crate) fn room(bytes: usize) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(Vec::with_capacity(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<String, &'static str> {
        Value::parse(Zeroizing::new(bytes.to_vec())).map(|value| value.reveal().to_string())
    }

    #[test]
    fn one_newline_at_the_end_is_not_part_of_it() {
        for text in ["user:pass word", "user:pass word\n", "user:pass word\r\n"] {
            assert_eq!(parse(text.as_bytes()).unwrap(), "user:pass word");
        }
        assert!(parse(b"a\n\n").is_err() && parse(b"a\rb").is_err() && parse(b"a\r").is_err());
    }

    #[test]
    fn what_no_header_carries_is_refused() {
        for bad in
            [&b""[..], b"\n", b"a\0b", b"a\nb", b"a\tb", b"\x7f", "\u{e9}".as_bytes(), b" a", b"a ", &vec![b'a'; LONGEST + 1]]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse(&vec![b'a'; LONGEST]).is_ok());
    }

    #[test]
    fn it_is_not_printed() {
        assert_eq!(format!("{:?}", Value::parse(Zeroizing::new(b"sk-1".to_vec())).unwrap()), "Value(..)");
    }
}
