//! Which rule is about a path, without anything to prepare: the table of the rules that ship is made when the program is
//! built, because a start has no time to compile globs and a tree can have hundreds of thousands of names.
//!
//! A pattern is found by its last part: a literal name or a literal ending in a hash table, the few others in a list that
//! is entered by their first byte. Only then are the directories above compared.

use std::borrow::Cow;

use fast_glob::glob_match;

/// Is it about the tree's root, any depth, or the inside of a git directory?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Base {
    /// Any directory.
    Anywhere,
    /// The root of the tree.
    Root,
    /// The root of a git directory.
    GitDir,
}

/// One pattern without alternatives.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pattern<'a> {
    /// Where it starts.
    pub(crate) base: Base,
    /// Directories above the name, with `/` between them; `**` is any number of them.
    pub(crate) parents: Cow<'a, str>,
    /// The last part.
    pub(crate) name: Cow<'a, str>,
    /// Everything below counts, too.
    pub(crate) below: bool,
    /// What it belongs to. Of several the lowest number decides.
    pub(crate) rule: u16,
}

/// Alternatives that one pattern may stand for.
const MAX_ALTERNATIVES: usize = 256;
/// `**` in one pattern: each multiplies the work of a comparison.
const MAX_ANY_DEPTH: usize = 3;

/// The patterns that `text` stands for, or what is wrong with it.
pub(crate) fn parse(text: &str, rule: u16) -> Result<Vec<Pattern<'static>>, String> {
    fast_glob::validate(text).map_err(|error| format!("not a glob: {error}"))?;
    if text.starts_with('!') {
        return Err("a \"!\" in front is not supported; exceptions go into \"unguard\"".into());
    }
    let mut all = Vec::new();
    alternatives(String::new(), text, &mut all)?;
    all.iter().map(|text| one(text, rule)).collect()
}

fn one(text: &str, rule: u16) -> Result<Pattern<'static>, String> {
    let (base, rest) = match (text.strip_prefix("{gitdir}/"), text.strip_prefix('/')) {
        (Some(rest), _) => (Base::GitDir, rest),
        (None, Some(rest)) => (Base::Root, rest),
        (None, None) => (Base::Anywhere, text),
    };
    let mut parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err("\"..\" is not supported".into());
    }
    if base == Base::Anywhere && parts.first() == Some(&"**") {
        parts.remove(0);
    }
    parts.dedup_by(|a, b| *a == "**" && *b == "**");
    let below = parts.last() == Some(&"**");
    if below {
        parts.pop();
    }
    if parts.iter().filter(|part| **part == "**").count() > MAX_ANY_DEPTH {
        return Err(format!("more than {MAX_ANY_DEPTH} times \"**\""));
    }
    let name = parts.pop().unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err("this is everything; name what is meant".into());
    }
    Ok(Pattern { base, parents: parts.join("/").into(), name: name.into(), below, rule })
}

/// Takes braces apart, so that every alternative can be found by its name.
fn alternatives(done: String, rest: &str, all: &mut Vec<String>) -> Result<(), String> {
    let Some((open, close, commas)) = braces(rest) else {
        if all.len() == MAX_ALTERNATIVES {
            return Err(format!("more than {MAX_ALTERNATIVES} alternatives"));
        }
        all.push(done + rest);
        return Ok(());
    };
    let starts = std::iter::once(open + 1).chain(commas.iter().map(|at| at + 1));
    let ends = commas.iter().copied().chain([close]);
    for (start, end) in starts.zip(ends) {
        let middle = format!("{}{}", &rest[start..end], &rest[close + 1..]);
        alternatives(format!("{done}{}", &rest[..open]), &middle, all)?;
    }
    Ok(())
}

/// The first pair of braces with a comma in it, and its commas. `{gitdir}` has none.
fn braces(text: &str) -> Option<(usize, usize, Vec<usize>)> {
    let (mut depth, mut open, mut commas) = (0_usize, 0, Vec::new());
    let (mut escaped, mut class) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b']' => class = false,
            _ if class => {}
            b'[' => class = true,
            b'{' => {
                if depth == 0 {
                    (open, commas) = (at, Vec::new());
                }
                depth += 1;
            }
            b',' if depth == 1 => commas.push(at),
            b'}' if depth > 0 => {
                depth -= 1;
                if depth == 0 && !commas.is_empty() {
                    return Some((open, at, commas));
                }
            }
            _ => {}
        }
    }
    None
}

/// `text` with everything that a glob would not take literally escaped.
pub(crate) fn literal(text: &[u8]) -> Vec<u8> {
    let special = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b']' | b'{' | b'}' | b'\\' | b'!' | b',');
    text.iter().flat_map(|byte| special(byte).then_some(b'\\').into_iter().chain([*byte])).collect()
}

fn is_literal(part: &str) -> bool {
    !part.bytes().any(is_special)
}

/// Does one part of a pattern stand for this name?
pub(crate) fn fits(part: &str, name: &[u8]) -> bool {
    let bytes = part.as_bytes();
    // Almost every name is told apart by its first or last byte.
    let differs = |a: Option<&u8>, b: Option<&u8>| a.is_some_and(|a| !is_special(*a) && Some(a) != b);
    if differs(bytes.first(), name.first()) || differs(bytes.last(), name.last()) && !bytes.contains(&b'\\') {
        return false;
    }
    match bytes.iter().position(|byte| is_special(*byte)) {
        None => bytes == name,
        Some(star) if bytes[star] == b'*' && is_literal(&part[star + 1..]) => {
            let (start, end) = (&bytes[..star], &bytes[star + 1..]);
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
        Some(_) => glob_match(part, name),
    }
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b']' | b'{' | b'}' | b'\\')
}

/// Do these parents stand for the end of `directory` (for all of it, when `whole`)?
pub(crate) fn tail(parents: &str, directory: &[u8], whole: bool) -> bool {
    if parents.is_empty() {
        return !whole || directory.is_empty();
    }
    let (above, part) = parents.rsplit_once('/').unwrap_or(("", parents));
    if part == "**" {
        let mut rest = directory;
        loop {
            if tail(above, rest, whole) {
                return true;
            }
            if rest.is_empty() {
                return false;
            }
            rest = split(rest).0;
        }
    }
    let (rest, last) = split(directory);
    !last.is_empty() && fits(part, last) && tail(above, rest, whole)
}

/// Directory and name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Patterns, found by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index<'a> {
    /// Literal names, then those with a literal ending, then the rest; in each by key, then by rule.
    pub(crate) patterns: Cow<'a, [Pattern<'a>]>,
    /// Open addressing: 1 + the first pattern of that name.
    pub(crate) names: Cow<'a, [u16]>,
    /// The same by what follows the last dot.
    pub(crate) endings: Cow<'a, [u16]>,
    /// Where the rest starts.
    pub(crate) rest: u16,
    /// First bytes that the rest can have.
    pub(crate) first: [u64; 4],
}

/// Of the first and the last eight bytes and the length. Made for this table, which is built once: the build and the program
/// must have the same one, and it is asked for every file of a tree.
fn hash(key: &[u8]) -> usize {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let (first, last) = match key.len() {
        8.. => (word(key.first_chunk()), word(key.last_chunk())),
        _ => (key.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0),
    };
    let mixed = (first ^ last.rotate_left(23) ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}

/// What follows the last dot.
fn ending(name: &[u8]) -> Option<&[u8]> {
    name.iter().rposition(|byte| *byte == b'.').map(|at| &name[at + 1..])
}

/// What a pattern is found by, in the order of the table.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key<'a> {
    Name(&'a str),
    Ending(&'a str),
    Rest,
}

fn key<'a>(pattern: &'a Pattern<'_>) -> Key<'a> {
    let name: &'a str = &pattern.name;
    match name.rsplit_once('.') {
        _ if is_literal(name) => Key::Name(name),
        Some((_, ending)) if !ending.is_empty() && is_literal(ending) => Key::Ending(ending),
        _ => Key::Rest,
    }
}

impl<'a> Index<'a> {
    pub(crate) fn new(mut patterns: Vec<Pattern<'a>>) -> Self {
        patterns.sort_by(|a, b| {
            let (left, right) = (key(a), key(b));
            left.cmp(&right).then(a.rule.cmp(&b.rule))
        });
        patterns.truncate(usize::from(u16::MAX) - 1);
        let size = (patterns.len() * 3).next_power_of_two().max(2);
        let (mut names, mut endings) = (vec![0; size], vec![0; size]);
        let (mut rest, mut first) = (patterns.len() as u16, [0; 4]);
        for (at, pattern) in patterns.iter().enumerate() {
            let (slots, text) = match key(pattern) {
                Key::Name(name) => (&mut names, name),
                Key::Ending(ending) => (&mut endings, ending),
                Key::Rest => {
                    rest = rest.min(at as u16);
                    match pattern.name.bytes().next() {
                        Some(byte) if is_literal(&pattern.name[..1]) => first[usize::from(byte >> 6)] |= 1 << (byte & 63),
                        _ => first = [u64::MAX; 4],
                    }
                    continue;
                }
            };
            let mut slot = hash(text.as_bytes()) & (size - 1);
            loop {
                match slots[slot] {
                    0 => {
                        slots[slot] = at as u16 + 1;
                        break;
                    }
                    known if key(&patterns[usize::from(known) - 1]) == key(pattern) => break,
                    _ => slot = (slot + 1) & (size - 1),
                }
            }
        }
        Self { patterns: patterns.into(), names: names.into(), endings: endings.into(), rest, first }
    }

    /// The lowest rule for `name` in `directory` that `accept` does not refuse.
    pub(crate) fn find(&self, directory: &[u8], name: &[u8], accept: impl Fn(&Pattern<'_>) -> bool) -> Option<u16> {
        let mut best: Option<u16> = None;
        let mut look = |pattern: &Pattern<'_>| {
            if best.is_none_or(|best| pattern.rule < best)
                && accept(pattern)
                && tail(&pattern.parents, directory, pattern.base != Base::Anywhere)
            {
                best = Some(pattern.rule);
            }
        };
        let all = &*self.patterns;
        let at = self.slot(&self.names, name, |pattern| pattern.name.as_bytes() == name);
        if let Some(at) = at {
            all[at..].iter().take_while(|pattern| pattern.name.as_bytes() == name).for_each(&mut look);
        }
        if let Some(end) = ending(name)
            && let Some(at) = self.slot(&self.endings, end, |pattern| ending(pattern.name.as_bytes()) == Some(end))
        {
            let same = |pattern: &&Pattern<'_>| ending(pattern.name.as_bytes()) == Some(end);
            let group = all[at..usize::from(self.rest)].iter().take_while(same);
            group.filter(|pattern| fits(&pattern.name, name)).for_each(&mut look);
        }
        if let Some(byte) = name.first()
            && self.first[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
        {
            let rest = all[usize::from(self.rest)..].iter();
            rest.filter(|pattern| fits(&pattern.name, name)).for_each(&mut look);
        }
        best
    }

    fn slot(&self, slots: &[u16], key: &[u8], same: impl Fn(&Pattern<'_>) -> bool) -> Option<usize> {
        let mask = slots.len().checked_sub(1)?;
        let mut slot = hash(key) & mask;
        loop {
            match slots[slot] {
                0 => return None,
                known if same(&self.patterns[usize::from(known) - 1]) => return Some(usize::from(known) - 1),
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}
