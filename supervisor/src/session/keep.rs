//! What is kept of a stream: its beginning and its end.

use std::collections::VecDeque;

use super::protocol::Keep;

/// The kept bytes.
#[derive(Debug)]
pub(crate) struct Kept {
    limits: Keep,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Bytes between the two that are gone.
    dropped: u64,
}

impl Kept {
    pub(crate) fn new(limits: Keep) -> Self {
        Self { limits, head: Vec::new(), tail: VecDeque::new(), dropped: 0 }
    }

    /// Takes more of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let room = self.limits.head - self.head.len().min(self.limits.head);
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let over = rest.len().saturating_sub(self.limits.tail);
        let old = (self.tail.len() + rest.len() - over).saturating_sub(self.limits.tail);
        self.tail.drain(..old);
        self.tail.extend(&rest[over..]);
        self.dropped += (old + over) as u64;
    }

    /// Bytes that are gone.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What is kept, without a mark.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.head.iter().chain(&self.tail).copied().collect()
    }

    /// What is kept as text, with a line in the place of what is gone. Bytes that are no UTF-8 are U+FFFD; a character that the
    /// limits cut in two counts as gone.
    pub(crate) fn text(&self) -> (String, u64) {
        if self.dropped == 0 {
            return (String::from_utf8_lossy(&self.bytes()).into_owned(), 0);
        }
        let head = &self.head[..whole(&self.head)];
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let tail = &tail[begun(&tail)..];
        let gone = self.dropped + (self.head.len() - head.len() + self.tail.len() - tail.len()) as u64;
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
        (format!("{head}\n[... {gone} bytes omitted ...]\n{tail}"), gone)
    }
}

/// How much of `bytes` ends with a whole character.
pub(crate) fn whole(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    for at in (from..bytes.len()).rev() {
        let needs = match bytes[at] {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if at + needs > bytes.len() { at } else { bytes.len() };
    }
    bytes.len()
}

/// Where the first character begins.
fn begun(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| matches!(byte, 0x80..=0xbf)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(head: usize, tail: usize, pieces: &[&[u8]]) -> Kept {
        let mut kept = Kept::new(Keep { head, tail });
        pieces.iter().for_each(|piece| kept.push(piece));
        kept
    }

    #[test]
    fn characters_are_not_cut() {
        let euro = "\u{20ac}".as_bytes();
        let five = euro.repeat(5);
        assert_eq!(kept(4, 4, &[&five]).text(), ("\u{20ac}\n[... 9 bytes omitted ...]\n\u{20ac}".into(), 9));
        assert_eq!(kept(0, 0, &[b"abc"]).text().1, 3);
        assert_eq!(kept(9, 9, &[b"a\xffb"]).text().0, "a\u{fffd}b");
        for cut in 0..3 {
            assert_eq!(whole(&euro[..cut]), 0);
        }
        assert_eq!([whole(euro), whole(b"ab"), whole(b"\xff"), whole(b"\x80\x80\x80\x80")], [3, 2, 1, 4]);
    }

    proptest! {
        #[test]
        fn however_it_comes_head_and_tail_are_exact(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            cuts in prop::collection::vec(0usize..300, 0..6),
            head in 0usize..60,
            tail in 0usize..60,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let kept = kept(head, tail, &pieces);
            let expected = if bytes.len() <= head + tail {
                bytes.clone()
            } else {
                [&bytes[..head], &bytes[bytes.len() - tail..]].concat()
            };
            prop_assert_eq!(kept.dropped() as usize, bytes.len() - expected.len());
            prop_assert_eq!(kept.bytes(), expected);
        }
    }
}
