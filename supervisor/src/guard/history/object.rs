//! Git's objects: their ids, and what stands in a commit, a tag and a tree. Whatever the bytes are, nothing here panics.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The id of an object: the hash of all that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum Id {
    /// Of a repository as git makes it by default.
    Sha1([u8; 20]),
    /// Of one made with `--object-format=sha256`.
    Sha256([u8; 32]),
}

/// The hash that names a repository's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Sha1,
    Sha256,
}

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Commit,
    Tree,
    Tag,
    Blob,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Commit, Self::Tree, Self::Tag, Self::Blob];

    pub(crate) fn parse(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Tag => "tag",
            Self::Blob => "blob",
        }
    }
}

impl Format {
    /// Bytes of an id.
    fn length(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The id of an object; `None` when its bytes were made to collide with others (SHAttered, <https://shattered.io>).
    pub(crate) fn id(self, kind: Kind, content: &[u8]) -> Option<Id> {
        let header = format!("{} {}\0", kind.name(), content.len());
        match self {
            Self::Sha1 => {
                use sha1_checked::Digest;
                let mut hash = sha1_checked::Sha1::new();
                hash.update(header);
                hash.update(content);
                let result = hash.try_finalize();
                (!result.has_collision()).then(|| Id::Sha1((*result.hash()).into()))
            }
            Self::Sha256 => {
                use sha2::Digest;
                let mut hash = sha2::Sha256::new();
                hash.update(header);
                hash.update(content);
                Some(Id::Sha256(hash.finalize().into()))
            }
        }
    }
}

impl Id {
    /// From hexadecimal digits of either letter case and nothing else.
    pub(crate) fn parse(hex: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        let (pairs, []) = hex.as_chunks::<2>() else { return None };
        if pairs.len() > bytes.len() {
            return None;
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let digit = |c: &u8| char::from(*c).to_digit(16);
            *byte = (digit(high)? << 4 | digit(low)?) as u8;
        }
        Self::from_raw(&bytes[..pairs.len()])
    }

    pub(crate) fn from_raw(bytes: &[u8]) -> Option<Self> {
        match bytes.len() {
            20 => bytes.try_into().ok().map(Self::Sha1),
            32 => bytes.try_into().ok().map(Self::Sha256),
            _ => None,
        }
    }

    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Sha1(_) => Format::Sha1,
            Self::Sha256(_) => Format::Sha256,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Sha1(bytes) => bytes,
            Self::Sha256(bytes) => bytes,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for Id {
    type Error = &'static str;

    fn try_from(hex: String) -> Result<Self, Self::Error> {
        Self::parse(hex.as_bytes()).ok_or("not an object id")
    }
}

/// What a commit says about where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) tree: Id,
    pub(crate) parents: Vec<Id>,
    /// Seconds since 1970, as the committer has it; 0 when it is not to be read.
    pub(crate) time: i64,
}

/// Reads the header of a commit ("Commit Object" in git's user manual).
pub(crate) fn commit(content: &[u8]) -> Option<Commit> {
    let mut lines = content.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    let tree = Id::parse(lines.next()?.strip_prefix(b"tree ")?)?;
    let mut commit = Commit { tree, parents: Vec::new(), time: 0 };
    for line in lines {
        if let Some(parent) = line.strip_prefix(b"parent ") {
            commit.parents.push(Id::parse(parent)?);
        } else if let Some(committer) = line.strip_prefix(b"committer ") {
            let seconds = committer.rsplit(|byte| *byte == b' ').nth(1).and_then(|word| std::str::from_utf8(word).ok());
            commit.time = seconds.and_then(|word| word.parse().ok()).unwrap_or(0);
            break;
        }
    }
    Some(commit)
}

/// What an annotated tag names.
pub(crate) fn tag(content: &[u8]) -> Option<Id> {
    Id::parse(content.split(|byte| *byte == b'\n').next()?.strip_prefix(b"object ")?)
}

/// What an entry of a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A regular file, executable or not.
    File,
    Symlink,
    Directory,
    /// A submodule's commit, or something unknown.
    Other,
}

/// One entry of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'t> {
    pub(crate) mode: Mode,
    pub(crate) name: &'t [u8],
    pub(crate) id: Id,
}

/// The entries of a tree; they end where the bytes make no sense.
pub(crate) fn entries(mut content: &[u8], format: Format) -> impl Iterator<Item = Entry<'_>> {
    std::iter::from_fn(move || {
        let (mode, rest) = content.split_at(content.iter().position(|byte| *byte == b' ')?);
        let rest = &rest[1..];
        let (name, rest) = rest.split_at(rest.iter().position(|byte| *byte == 0)?);
        let (id, rest) = rest[1..].split_at_checked(format.length())?;
        content = rest;
        Some(Entry { mode: self::mode(mode)?, name, id: Id::from_raw(id)? })
    })
}

fn mode(octal: &[u8]) -> Option<Mode> {
    let mode = u32::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok()?;
    Some(match mode & 0o170_000 {
        0o100_000 => Mode::File,
        0o120_000 => Mode::Symlink,
        0o040_000 => Mode::Directory,
        _ => Mode::Other,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "9daeafb9864cf43055ae93beb0afd6c7d144bfa4";

    #[test]
    fn ids_are_git_s() {
        // `printf 'test\n' | git hash-object --stdin`, in a repository of either format.
        let id = |format: Format| format.id(Kind::Blob, b"test\n").unwrap().to_string();
        assert_eq!(id(Format::Sha1), HEX);
        assert_eq!(id(Format::Sha256), "999f24152159e51756a944d32257bf22080ff8608fff87ca9a4a823764e13dbe");
        for bad in ["", "9", &HEX[1..], &HEX[2..], "zdaeafb9864cf43055ae93beb0afd6c7d144bfa4", &HEX.repeat(2)] {
            assert_eq!(Id::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn ids_survive_serialisation() {
        for hex in [HEX.to_owned(), "ab".repeat(32)] {
            let id = Id::parse(hex.as_bytes()).unwrap();
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!((json.as_str(), serde_json::from_str::<Id>(&json).unwrap()), (format!("\"{hex}\"").as_str(), id));
        }
        assert!(serde_json::from_str::<Id>("\"00\"").is_err());
    }

    #[test]
    fn a_commit_names_its_tree_and_parents() {
        let text =
            format!("tree {HEX}\nparent {HEX}\nparent {HEX}\nauthor A <a> 5 +0000\ncommitter B <b> 7 +0100\n\nparent {HEX}");
        let commit = commit(text.as_bytes()).unwrap();
        assert_eq!((commit.tree.to_string(), commit.parents.len(), commit.time), (HEX.into(), 2, 7));
        assert_eq!(super::commit(format!("parent {HEX}\ntree {HEX}\n").as_bytes()), None);
        assert_eq!(tag(format!("object {HEX}\ntype commit\n").as_bytes()).unwrap().to_string(), HEX);
    }

    #[test]
    fn a_tree_ends_where_it_makes_no_sense() {
        let mut tree = Vec::new();
        for (mode, name) in [("100755", "run"), ("120000", "link"), ("40000", "dir"), ("160000", "module")] {
            tree.extend([format!("{mode} {name}\0").as_bytes(), &[7; 20]].concat());
        }
        let modes = |bytes: &[u8]| entries(bytes, Format::Sha1).map(|entry| entry.mode).collect::<Vec<_>>();
        assert_eq!(modes(&tree), [Mode::File, Mode::Symlink, Mode::Directory, Mode::Other]);
        assert_eq!(modes(&tree[..tree.len() - 1]).len(), 3);
        assert_eq!(modes(b"9 x\0aaaaaaaaaaaaaaaaaaaa"), []);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "(tree |parent |object |committer |[0-9a-f]{40}|[0-9a-f]{64}|\n| |\0|100644 x){0,12}") {
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                let _ = (Id::parse(bytes), Id::from_raw(bytes), commit(bytes), tag(bytes));
                let read: usize = entries(bytes, Format::Sha1).chain(entries(bytes, Format::Sha256)).map(|e| e.name.len()).sum();
                prop_assert!(read <= 2 * bytes.len());
            }
        }
    }
}
