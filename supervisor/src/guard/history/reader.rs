//! Objects out of `git cat-file --batch` (git-cat-file(1), "BATCH OUTPUT"), which is believed nothing: an object is what
//! hashes to its id.

use std::io::{self, BufRead, BufReader, Read};

use super::object::{Id, Kind};

/// Bytes of the longest object that is taken in. A directory of 200 000 files is below it.
const LONGEST: u64 = 8 << 20;
/// Bytes that one look may read in all.
const IN_ALL: u64 = 512 << 20;
/// Ids of one question. Short enough to be written at once to an empty pipe, so that neither side waits for the other.
pub(super) const BATCH: usize = 48;

/// The program's side: what it prints is read, what is fed to it waits until it reads.
pub(super) trait Pipe: Read {
    fn feed(&mut self, bytes: &[u8]);
}

pub(super) struct Reader<P> {
    from: BufReader<P>,
    left: u64,
}

/// A commit, a tree or a tag that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) kind: Kind,
    pub(super) content: Vec<u8>,
}

impl<P: Pipe> Reader<P> {
    pub(super) fn new(pipe: P) -> Self {
        Self { from: BufReader::with_capacity(64 << 10, pipe), left: IN_ALL }
    }

    pub(super) fn pipe(&mut self) -> &mut P {
        self.from.get_mut()
    }

    /// At most [`BATCH`] objects. `None` is one that is missing, too long, a blob, or not what its name says.
    ///
    /// # Errors
    /// Nothing more can be had: the program ended, its time was up, or it says what makes no sense.
    pub(super) fn read(&mut self, ids: &[Id]) -> io::Result<Vec<Option<Object>>> {
        let question: String = ids.iter().map(|id| format!("{id}\n")).collect();
        self.from.get_mut().feed(question.as_bytes());
        ids.iter().map(|id| self.answer(id)).collect()
    }

    fn answer(&mut self, id: &Id) -> io::Result<Option<Object>> {
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "git gave an answer that makes no sense");
        let mut line = Vec::new();
        (&mut self.from).take(256).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.strip_suffix(b"\n").ok_or_else(nonsense)?;
        let mut words = line.split(|byte| *byte == b' ');
        if words.next() != Some(id.to_string().as_bytes()) {
            return Err(nonsense());
        }
        let kind = words.next().ok_or_else(nonsense)?;
        let Some(length) = words.next() else {
            // "missing" or "ambiguous".
            return Ok(None);
        };
        let length = std::str::from_utf8(length).ok().and_then(|digits| digits.parse::<u64>().ok()).ok_or_else(nonsense)?;
        let whole = length.checked_add(1).ok_or_else(nonsense)?;
        self.left = self.left.checked_sub(whole).ok_or_else(|| io::Error::other("there was too much to read"))?;
        let kind = Kind::parse(kind).filter(|kind| *kind != Kind::Blob && length <= LONGEST);
        let mut content = Vec::new();
        let mut rest = (&mut self.from).take(whole);
        let read = match kind {
            Some(_) => rest.read_to_end(&mut content)? as u64,
            None => io::copy(&mut rest, &mut io::sink())?,
        };
        if read < whole {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.pop();
        Ok(kind.filter(|kind| id.format().id(*kind, &content) == Some(*id)).map(|kind| Object { kind, content }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::super::object::Format;
    use super::*;

    struct Script<'a>(&'a [u8]);

    impl Read for Script<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Pipe for Script<'_> {
        fn feed(&mut self, _: &[u8]) {}
    }

    fn read(answer: &[u8], ids: &[Id]) -> io::Result<Vec<Option<Object>>> {
        Reader::new(Script(answer)).read(ids)
    }

    #[test]
    fn only_what_hashes_to_its_id_is_taken() {
        let text = b"tree 0\n";
        let id = Format::Sha1.id(Kind::Commit, text).unwrap();
        let answer = |kind: &str, text: &str| format!("{id} {kind} {}\n{text}\n", text.len()).into_bytes();
        let one = |bytes: &[u8]| read(bytes, &[id]).map(|mut objects| objects.remove(0));
        let good = Object { kind: Kind::Commit, content: text.to_vec() };
        assert_eq!(one(&answer("commit", "tree 0\n")).unwrap(), Some(good.clone()));
        assert_eq!(one(&answer("commit", "tree 1\n")).unwrap(), None);
        assert_eq!(one(&answer("tree", "tree 0\n")).unwrap(), None);
        assert_eq!(one(&answer("blob", "tree 0\n")).unwrap(), None);
        assert_eq!(one(format!("{id} missing\n").as_bytes()).unwrap(), None);
        // One bad answer does not spoil the next.
        let both = [answer("commit", "lies"), answer("commit", "tree 0\n")].concat();
        assert_eq!(read(&both, &[id, id]).unwrap(), [None, Some(good)]);
    }

    #[test]
    fn lengths_are_not_believed() {
        let id = Format::Sha1.id(Kind::Tree, b"").unwrap();
        let long = LONGEST + 1;
        let mut answer = format!("{id} tree {long}\n").into_bytes();
        answer.resize(answer.len() + long as usize + 1, 0);
        answer.extend(format!("{id} tree 0\n\n").as_bytes());
        let objects = read(&answer, &[id, id]).unwrap();
        assert_eq!((objects[0].is_none(), objects[1].is_some()), (true, true));
        for bad in [u64::MAX.to_string(), IN_ALL.to_string(), "-1".into(), "1".into(), "9".repeat(250)] {
            assert!(read(format!("{id} tree {bad}\n").as_bytes(), &[id]).is_err(), "{bad}");
        }
        assert!(read(format!("{}\n", "0".repeat(40)).as_bytes(), &[id]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_answers_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "([0-9a-f]{40} (commit|tree|blob|missing)? ?[0-9]{0,3}\n?.{0,9}\n?){0,3}") {
            let id = Id::parse(text.as_bytes().get(..40).unwrap_or_default()).unwrap_or(Id::Sha1([0; 20]));
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                prop_assert!(read(bytes, &[id, id]).map_or(true, |objects| objects.iter().all(Option::is_none)));
            }
        }
    }
}
