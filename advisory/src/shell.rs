//! A command line as simple commands: words without their quotes, where output goes, and which command reads whose output.
//!
//! Expansion is not done: `$HOME` stays `$HOME`. Reserved words are ordinary words here.

/// A deeper nesting is not read.
const DEEPEST: usize = 24;
/// More commands than this are not read: the time for one answer is short.
const MOST: usize = 2000;

/// Why a text cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A quote, a bracket or a substitution does not end.
    Unclosed,
    /// Too many levels of substitutions and groups.
    TooDeep,
    /// Too many commands.
    TooMany,
}

/// One command without operators.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Simple {
    /// Assignments, reserved words, the program and its arguments.
    pub(crate) words: Vec<String>,
    /// Files that its output is sent to.
    pub(crate) writes: Vec<String>,
    /// Files that it reads by `<`.
    pub(crate) reads: Vec<String>,
    /// Text that it reads by `<<` and `<<<`.
    pub(crate) input: Vec<String>,
    /// Commands whose output it reads or has among its arguments.
    pub(crate) fed_by: Vec<usize>,
}

/// The simple commands of a command line, those in substitutions included.
pub(crate) fn read(text: &str) -> Result<Vec<Simple>, Trouble> {
    let mut reader = Reader { text: text.chars().collect(), ..Reader::default() };
    reader.list(false, 0)?;
    Ok(reader.commands)
}

#[derive(Default)]
struct Reader {
    text: Vec<char>,
    at: usize,
    commands: Vec<Simple>,
    /// Here-documents that begin after the next line end: whose, up to which word, with tabs stripped.
    documents: Vec<(usize, String, bool)>,
}

impl Reader {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = expected.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == Some(c));
        if found {
            self.at += expected.chars().count();
        }
        found
    }

    /// Up to the end, or to the bracket that closes a group. Returns which commands the list has at its own level.
    fn list(&mut self, in_group: bool, depth: usize) -> Result<Vec<usize>, Trouble> {
        if depth > DEEPEST {
            return Err(Trouble::TooDeep);
        }
        let mut all = Vec::new();
        let mut current = self.begin(Vec::new());
        // What a pipe after this point would carry: the last command, or all of the last group.
        let mut output = vec![current];
        all.push(current);
        while let Some(c) = self.peek(0) {
            if self.commands.len() > MOST {
                return Err(Trouble::TooMany);
            }
            let mut feed = None;
            match c {
                ' ' | '\t' | '\r' => self.at += 1,
                '#' => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                '\n' => {
                    self.at += 1;
                    self.here_documents();
                    feed = Some(Vec::new());
                }
                '&' if self.peek(1) == Some('>') => {
                    self.at += 1;
                    self.redirect(current, depth)?;
                }
                ';' | '&' => {
                    self.at += 1;
                    feed = Some(Vec::new());
                }
                '|' => {
                    self.at += 1;
                    let or = self.take("|");
                    _ = self.take("&");
                    feed = Some(if or { Vec::new() } else { std::mem::take(&mut output) });
                }
                '(' => {
                    self.at += 1;
                    let group = self.list(true, depth + 1)?;
                    // What feeds the group feeds all in it.
                    let feeding = self.commands[current].fed_by.clone();
                    for &one in &group {
                        self.commands[one].fed_by.extend(&feeding);
                    }
                    all.extend(&group);
                    output.extend(group);
                }
                ')' => {
                    self.at += 1;
                    if in_group {
                        return Ok(all);
                    }
                    // The end of a pattern of `case`.
                    feed = Some(Vec::new());
                }
                '<' | '>' => self.redirect(current, depth)?,
                _ => {
                    let word = self.word(current, depth)?;
                    self.commands[current].words.push(word);
                }
            }
            if let Some(feeding) = feed {
                current = self.begin(feeding);
                output = vec![current];
                all.push(current);
            }
        }
        if in_group { Err(Trouble::Unclosed) } else { Ok(all) }
    }

    fn begin(&mut self, fed_by: Vec<usize>) -> usize {
        self.commands.push(Simple { fed_by, ..Simple::default() });
        self.commands.len() - 1
    }

    fn redirect(&mut self, current: usize, depth: usize) -> Result<(), Trouble> {
        if self.peek(1) == Some('(') {
            let word = self.word(current, depth)?;
            self.commands[current].words.push(word);
            return Ok(());
        }
        let here = ["<<<", "<<-", "<<"].into_iter().find(|operator| self.take(operator));
        let output = here.is_none() && [">>", ">|", ">&", ">", "<>"].into_iter().any(|operator| self.take(operator));
        if here.is_none() && !output && !self.take("<&") {
            self.at += 1;
        }
        while matches!(self.peek(0), Some(' ' | '\t')) {
            self.at += 1;
        }
        let target = self.word(current, depth)?;
        let command = &mut self.commands[current];
        match here {
            Some("<<<") => command.input.push(target),
            Some(operator) => self.documents.push((current, target, operator == "<<-")),
            None if output => command.writes.push(target),
            None => command.reads.push(target),
        }
        Ok(())
    }

    fn here_documents(&mut self) {
        for (command, end, strip) in std::mem::take(&mut self.documents) {
            let mut body = String::new();
            while self.at < self.text.len() {
                let rest = &self.text[self.at..];
                let length = rest.iter().position(|&c| c == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.at = (self.at + length + 1).min(self.text.len());
                if (if strip { line.trim_start_matches('\t') } else { &line }) == end {
                    break;
                }
                body.push_str(&line);
                body.push('\n');
            }
            self.commands[command].input.push(body);
        }
    }

    /// One word, its quotes taken away. Substitutions become commands that feed `current`.
    fn word(&mut self, current: usize, depth: usize) -> Result<String, Trouble> {
        let mut word = String::new();
        while let Some(c) = self.peek(0) {
            match c {
                '\'' => {
                    self.at += 1;
                    self.until('\'', &mut word)?;
                }
                '"' => {
                    self.at += 1;
                    self.double_quoted(&mut word, current, depth)?;
                }
                '<' | '>' if self.peek(1) == Some('(') && word.is_empty() => self.substitution(2, &mut word, current, depth)?,
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '$' if self.peek(1) == Some('\'') => {
                    self.at += 2;
                    self.until('\'', &mut word)?;
                }
                _ => self.plain(&mut word, current, depth)?,
            }
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut String, current: usize, depth: usize) -> Result<(), Trouble> {
        loop {
            match self.peek(0).ok_or(Trouble::Unclosed)? {
                '"' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => self.plain(word, current, depth)?,
            }
        }
    }

    /// A character, an escaped one, an expansion or a substitution.
    fn plain(&mut self, word: &mut String, current: usize, depth: usize) -> Result<(), Trouble> {
        match (self.peek(0), self.peek(1)) {
            (Some('\\'), escaped) => {
                word.extend(escaped.filter(|&c| c != '\n'));
                self.at = (self.at + 2).min(self.text.len());
            }
            (Some('$'), Some('(')) => self.substitution(2, word, current, depth)?,
            (Some('`'), _) => {
                self.at += 1;
                let mut inner = String::new();
                self.until('`', &mut inner)?;
                let mut reader =
                    Reader { text: inner.chars().collect(), commands: std::mem::take(&mut self.commands), ..Reader::default() };
                let list = reader.list(false, depth + 1);
                self.commands = reader.commands;
                self.commands[current].fed_by.extend(list?);
                word.push_str("$()");
            }
            (Some('$'), Some('{')) => {
                self.until('}', word)?;
                word.push('}');
            }
            (Some(c), _) => {
                word.push(c);
                self.at += 1;
            }
            (None, _) => {}
        }
        Ok(())
    }

    fn substitution(&mut self, opening: usize, word: &mut String, current: usize, depth: usize) -> Result<(), Trouble> {
        self.at += opening;
        let list = self.list(true, depth + 1)?;
        self.commands[current].fed_by.extend(list);
        word.push_str("$()");
        Ok(())
    }

    fn until(&mut self, end: char, into: &mut String) -> Result<(), Trouble> {
        loop {
            let c = self.peek(0).ok_or(Trouble::Unclosed)?;
            self.at += 1;
            if c == end {
                return Ok(());
            }
            into.push(c);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        read(text).unwrap().into_iter().map(|command| command.words).filter(|words| !words.is_empty()).collect()
    }

    #[test]
    fn quotes_and_operators() {
        assert_eq!(words("a 'b c' \"d;e\" f\\ g"), [["a", "b c", "d;e", "f g"]]);
        assert_eq!(words("a;b&&c||d|e&f\ng"), [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]]);
        assert_eq!(words("a # b\nc"), [["a"], ["c"]]);
        assert_eq!(words("r''m"), [["rm"]]);
        assert_eq!(words("echo ${A:-x y}"), [["echo", "${A:-x y}"]]);
    }

    #[test]
    fn redirects_and_documents() {
        let commands = read("cat <<'E' >out 2>&1\nrm -rf /\nE\nb").unwrap();
        assert_eq!((&commands[0].writes[0], &commands[0].input[0]), (&"out".to_owned(), &"rm -rf /\n".to_owned()));
        assert_eq!(words("cat <<E\nrm -rf /\nE\nb"), [vec!["cat"], vec!["b"]]);
        assert_eq!(read("sh <<< 'a b'").unwrap()[0].input, ["a b"]);
        assert_eq!(read("a &> x").unwrap()[0].writes, ["x"]);
        assert_eq!(read("a < x").unwrap()[0].reads, ["x"]);
    }

    #[test]
    fn who_feeds_whom() {
        let feeders = |text: &str| {
            let commands = read(text).unwrap();
            let sh = commands.iter().position(|c| c.words.first().is_some_and(|w| w == "sh")).unwrap();
            commands[sh].fed_by.iter().filter_map(|&i| commands[i].words.first().cloned()).collect::<Vec<_>>()
        };
        for text in ["curl x | sh", "sh -c \"$(curl x)\"", "sh <(curl x)", "sh -c `curl x`", "(curl x) | sh", "curl x | (sh)"] {
            assert_eq!(feeders(text), ["curl"], "{text}");
        }
        assert!(feeders("curl x; sh").is_empty() && feeders("curl x || sh").is_empty());
    }

    #[test]
    fn what_does_not_end_is_said() {
        for text in ["'a", "\"a", "`a", "$(a", "${a", "(a", "a \"$(b"] {
            assert_eq!(read(text).unwrap_err(), Trouble::Unclosed, "{text}");
        }
        assert_eq!(read(&"(".repeat(100_000)).unwrap_err(), Trouble::TooDeep);
        assert_eq!(read(&"$(".repeat(100_000)).unwrap_err(), Trouble::TooDeep);
        assert_eq!(read(&"a;".repeat(100_000)).unwrap_err(), Trouble::TooMany);
        for text in ["", "\\", "a)", "case x in a) b;; esac", "$((1 << 2))", "<<", ">", "|", "&", "<("] {
            _ = read(text);
        }
    }
}
