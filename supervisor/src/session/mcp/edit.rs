//! Text in the place of other text.

use std::fmt;

/// Occurrences of which the lines are named.
const NAMED: usize = 10;

/// An edited text, and the lines, counted from 1, where something was replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Edited {
    pub(super) text: String,
    pub(super) lines: Vec<usize>,
}

/// Why a text was not edited; says what to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unclear {
    Nothing,
    Same,
    /// It is nowhere; the line where its first line stands with other white space around it.
    Absent(Option<usize>),
    Several(Vec<usize>),
}

/// Puts `new` where `old` stands: in one place, or `everywhere`.
pub(super) fn replace(text: &str, old: &str, new: &str, everywhere: bool) -> Result<Edited, Unclear> {
    if old.is_empty() {
        return Err(Unclear::Nothing);
    }
    if old == new {
        return Err(Unclear::Same);
    }
    let (mut lines, mut line, mut from) = (Vec::new(), 1, 0);
    for (at, _) in text.match_indices(old) {
        line += newlines(&text[from..at]);
        from = at;
        lines.push(line);
    }
    match lines.len() {
        0 => Err(Unclear::Absent(similar(text, old))),
        2.. if !everywhere => Err(Unclear::Several(lines)),
        _ => Ok(Edited { text: text.replace(old, new), lines }),
    }
}

fn newlines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

fn similar(text: &str, old: &str) -> Option<usize> {
    let wanted = old.lines().map(str::trim).find(|line| !line.is_empty())?;
    text.lines().position(|line| line.trim() == wanted).map(|index| index + 1)
}

impl fmt::Display for Unclear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "`old` is empty; name the text to replace, or use `write` for a whole file"),
            Self::Same => write!(f, "`old` and `new` are the same"),
            Self::Absent(None) => write!(f, "`old` is not in the file; read it and copy the text exactly"),
            Self::Absent(Some(line)) => write!(
                f,
                "`old` is not in the file as it is written; line {line} differs from its first line at most in white space, \
                 so read from there and copy the text exactly"
            ),
            Self::Several(lines) => {
                let named: Vec<_> = lines.iter().take(NAMED).map(usize::to_string).collect();
                let more = if lines.len() > NAMED { ", ..." } else { "" };
                write!(
                    f,
                    "`old` is in the file {} times (lines {}{more}); add lines around it until it is there once, or set `all`",
                    lines.len(),
                    named.join(", ")
                )
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_place_is_replaced_and_doubt_is_told() {
        let text = "a\n  b\nc\n  b\n";
        assert_eq!(replace(text, "c\n", "", false).unwrap(), Edited { text: "a\n  b\n  b\n".into(), lines: vec![3] });
        assert_eq!(replace(text, "b", "x", true).unwrap(), Edited { text: "a\n  x\nc\n  x\n".into(), lines: vec![2, 4] });
        assert_eq!(replace(text, "b", "x", false).unwrap_err(), Unclear::Several(vec![2, 4]));
        assert_eq!(replace(text, "\tb\nc", "x", false).unwrap_err(), Unclear::Absent(Some(2)));
        assert_eq!(replace(text, "z", "x", false).unwrap_err(), Unclear::Absent(None));
        assert_eq!(replace(text, "", "x", false).unwrap_err(), Unclear::Nothing);
        assert_eq!(replace(text, "a", "a", false).unwrap_err(), Unclear::Same);
        assert_eq!(replace("a\r\nb\r\n", "a\nb", "x", false).unwrap_err(), Unclear::Absent(Some(1)));
        assert!(Unclear::Several(vec![1; 20]).to_string().contains("20 times (lines 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...)"));
    }

    #[test]
    fn a_text_made_to_be_slow_is_not() {
        let text = "a".repeat(4 << 20);
        let old = format!("{}b", "a".repeat(1 << 20));
        assert_eq!(replace(&text, &old, "", false).unwrap_err(), Unclear::Absent(None));
    }

    proptest! {
        #[test]
        fn replacing_back_gives_what_was_there(text in "[ab\n]{0,40}", at in any::<prop::sample::Index>(), length in 1usize..5) {
            let start = at.index(text.len() + 1);
            let old = &text[start..(start + length).min(text.len())];
            if let Ok(edited) = replace(&text, old, "XYZ", false) {
                prop_assert_eq!(edited.lines[0], text[..text.find(old).unwrap()].matches('\n').count() + 1);
                prop_assert_eq!(replace(&edited.text, "XYZ", old, false).unwrap().text, text);
            }
        }
    }
}
