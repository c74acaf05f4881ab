//! Does an answer hold the secret that its request carried? Best effort.
//!
//! What is looked for is the value as it is, and the Basic credentials that it became part of, in header fields, body and
//! trailers. A compressed body (`Content-Encoding`), a value in any other encoding (JSON's `\/`, percent signs) or in pieces, and
//! what follows an upgrade are not looked into. Values of fewer than [`SHORTEST`] bytes would be found everywhere, and are not looked for.
//!
//! Nothing waits: of a stream only those bytes are held back with which the value may have begun.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, HeaderMap, HeaderName};
use memchr::{memchr, memmem};
use zeroize::Zeroizing;

/// Bytes of the shortest value that is looked for.
pub const SHORTEST: usize = 8;

/// A value was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer holds the secret that its request carried")]
pub struct Found;

/// One text, and how far the bytes so far match it (Knuth, Morris and Pratt).
struct Needle {
    text: Zeroizing<Vec<u8>>,
    /// For each length of a match: that of the longest shorter one that it ends with.
    shorter: Vec<usize>,
    matched: usize,
}

impl Needle {
    fn new(text: Zeroizing<Vec<u8>>) -> Self {
        let mut shorter = vec![0; text.len() + 1];
        let mut matched = 0;
        for at in 1..text.len() {
            while matched > 0 && text[at] != text[matched] {
                matched = shorter[matched];
            }
            matched += usize::from(text[at] == text[matched]);
            shorter[at + 1] = matched;
        }
        Self { text, shorter, matched: 0 }
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Found> {
        while let Some(&byte) = bytes.first() {
            if self.matched == 0 {
                // Most bytes are none with which it begins.
                let Some(start) = memchr(self.text[0], bytes) else { return Ok(()) };
                bytes = &bytes[start + 1..];
                self.matched = 1;
                continue;
            }
            while self.matched > 0 && self.text[self.matched] != byte {
                self.matched = self.shorter[self.matched];
            }
            self.matched += usize::from(self.text[self.matched] == byte);
            if self.matched == self.text.len() {
                return Err(Found);
            }
            bytes = &bytes[1..];
        }
        Ok(())
    }
}

/// Looks for values in a stream of bytes.
pub struct Scanner {
    needles: Vec<Needle>,
    /// Which of them holds most back.
    longest: usize,
}

impl std::fmt::Debug for Scanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scanner").finish_non_exhaustive()
    }
}

impl Scanner {
    /// Looks for these; `None` when none of them is long enough.
    pub fn new(texts: impl IntoIterator<Item = Zeroizing<Vec<u8>>>) -> Option<Self> {
        let needles: Vec<_> = texts.into_iter().filter(|text| text.len() >= SHORTEST).map(Needle::new).collect();
        (!needles.is_empty()).then_some(Self { needles, longest: 0 })
    }

    /// Takes the next bytes of a stream, and gives those that can go on: all but the ones with which a value may begin.
    ///
    /// # Errors
    /// A value was found. Its first bytes may have been in earlier chunks, but were not given.
    pub fn feed(&mut self, chunk: Bytes) -> Result<Bytes, Found> {
        let held = self.held();
        for needle in &mut self.needles {
            needle.feed(&chunk)?;
        }
        let before = self.longest;
        self.longest = (0..self.needles.len()).max_by_key(|at| self.needles[*at].matched).unwrap_or(0);
        let gone = held + chunk.len() - self.held();
        Ok(match held {
            0 => chunk.slice(..gone),
            _ => {
                let mut bytes = BytesMut::with_capacity(gone);
                bytes.extend_from_slice(&self.needles[before].text[..held.min(gone)]);
                bytes.extend_from_slice(&chunk[..gone.saturating_sub(held)]);
                bytes.freeze()
            }
        })
    }

    /// What was held back when the stream ends.
    pub fn finish(&mut self) -> Bytes {
        let needle = &self.needles[self.longest];
        let rest = Bytes::copy_from_slice(&needle.text[..needle.matched]);
        self.needles.iter_mut().for_each(|needle| needle.matched = 0);
        rest
    }

    /// How many bytes are held back.
    pub fn held(&self) -> usize {
        self.needles[self.longest].matched
    }

    /// Is a value in this text?
    pub fn holds(&self, text: &[u8]) -> bool {
        self.needles.iter().any(|needle| memmem::find(text, &needle.text).is_some())
    }

    /// Takes out the fields that hold a value, and tells their names.
    pub fn clean(&self, headers: &mut HeaderMap) -> Vec<HeaderName> {
        let holds = |name: &HeaderName| {
            let in_name = self.holds(name.as_str().as_bytes());
            in_name || headers.get_all(name).iter().any(|value| self.holds(value.as_bytes()))
        };
        let found: Vec<_> = headers.keys().filter(|name| holds(name)).cloned().collect();
        found.iter().for_each(|name| _ = headers.remove(name));
        found
    }
}

/// Is a body with these header fields what its bytes say?
pub fn is_plain(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_ENCODING).iter().all(|value| value.as_bytes().eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use http::header::HeaderValue;
    use proptest::prelude::*;

    fn scanner(texts: &[&str]) -> Scanner {
        Scanner::new(texts.iter().map(|text| Zeroizing::new(text.as_bytes().to_vec()))).unwrap()
    }

    fn all(scanner: &mut Scanner, chunks: &[&[u8]]) -> Result<Vec<u8>, Found> {
        let mut out = Vec::new();
        for chunk in chunks {
            out.extend_from_slice(&scanner.feed(Bytes::copy_from_slice(chunk))?);
        }
        out.extend_from_slice(&scanner.finish());
        Ok(out)
    }

    #[test]
    fn a_value_is_found_wherever_chunks_end() {
        let text = b"before sk-sk-secret after";
        for first in 0..text.len() {
            for second in first..text.len() {
                let chunks = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(all(&mut scanner(&["sk-secret"]), &chunks), Err(Found), "{first} {second}");
                assert_eq!(all(&mut scanner(&["sk-secrets"]), &chunks).unwrap(), text, "the control");
            }
        }
    }

    #[test]
    fn only_what_may_be_its_beginning_is_held_back() {
        let mut scanner = scanner(&["sk-secret", "c2stc2VjcmV0"]);
        assert_eq!(scanner.feed("data: one\n\n".into()).unwrap(), "data: one\n\n");
        assert_eq!(scanner.feed("data: sk-se".into()).unwrap(), "data: ");
        assert_eq!(scanner.held(), 5);
        assert_eq!(scanner.feed("ction\n\n".into()).unwrap(), "sk-section\n\n");
        assert_eq!(scanner.feed("c2stc2".into()).unwrap(), "");
        assert_eq!(scanner.feed("VjcmV0".into()), Err(Found));
        assert!(!format!("{scanner:?}").contains("sk-"));
    }

    #[test]
    fn short_values_are_not_looked_for() {
        assert!(Scanner::new([Zeroizing::new(b"1234567".to_vec())]).is_none());
        assert!(Scanner::new([Zeroizing::new(b"12345678".to_vec())]).is_some());
    }

    #[test]
    fn fields_that_hold_it_are_left_out() {
        let mut headers = HeaderMap::new();
        headers.append("x-echo", HeaderValue::from_static("harmless"));
        headers.append("x-echo", HeaderValue::from_static("Bearer sk-secret"));
        headers.append("x-sk-secret", HeaderValue::from_static("y"));
        headers.append("content-type", HeaderValue::from_static("text/plain"));
        assert_eq!(scanner(&["sk-secret"]).clean(&mut headers).len(), 2);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["content-type"]);
    }

    #[test]
    fn encoded_bodies_are_told_from_plain_ones() {
        let mut headers = HeaderMap::new();
        assert!(is_plain(&headers));
        headers.append(CONTENT_ENCODING, HeaderValue::from_static("Identity"));
        assert!(is_plain(&headers));
        headers.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(!is_plain(&headers));
    }

    proptest! {
        #[test]
        fn what_goes_on_is_what_came(
            needle in "[ab]{8,12}",
            other in "[abc]{8,10}",
            text in "[abc]{0,80}",
            cuts in prop::collection::vec(0usize..80, 0..6),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|at| at.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            let is_in = text.contains(&needle) || text.contains(&other);
            match all(&mut scanner(&[&needle, &other]), &chunks) {
                Err(Found) => prop_assert!(is_in),
                Ok(out) => {
                    prop_assert!(!is_in);
                    prop_assert_eq!(out, text.into_bytes());
                }
            }
        }
    }
}
