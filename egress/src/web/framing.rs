//! A second look at how requests are framed, stricter than the library's. Pure: bytes in, verdict out.
//!
//! The library takes what it can (a length beside chunks, a line that ends with LF), and writes one message anew, so nothing of that
//! gets out. But who sends such a thing means to be read in two ways, and gets no third one from us: only what every reader
//! of RFC 9112 takes for the same message is passed on.

/// Most bytes of one line.
const LINE: usize = super::HEAD;

/// Follows the requests of one connection as its bytes come.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    state: State,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    head: Head,
}

/// Why the bytes are not framed as a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) why: &'static str,
    /// In the head: the request can be refused. Otherwise it is under way, and must be cut off.
    pub(crate) in_head: bool,
}

/// What is wrong with requests that come in these parts, for the checks of `fuzz/`.
#[doc(hidden)]
pub fn framed(parts: &[&[u8]]) -> Result<(), &'static str> {
    let mut framing = Framing::default();
    parts.iter().try_for_each(|part| framing.feed(part)).map_err(|flaw| flaw.why)
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before a request line; empty lines are skipped (RFC 9112, 2.2).
    #[default]
    Start,
    Fields,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// No requests any more.
    Tunnel,
}

/// What the head so far says of the body.
#[derive(Debug, Default, Clone, Copy)]
struct Head {
    connect: bool,
    length: Option<u64>,
    chunked: bool,
}

impl Framing {
    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Flaw> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Tunnel => return Ok(()),
                State::Body(left) => self.skip(bytes, left, State::Body, State::Start),
                State::Chunk(left) => self.skip(bytes, left, State::Chunk, State::ChunkEnd),
                _ => self
                    .take_line(bytes)
                    .map_err(|why| Flaw { why, in_head: matches!(self.state, State::Start | State::Fields) })?,
            };
        }
        Ok(())
    }

    /// What comes now is no request: the connection was handed on.
    pub(crate) fn hand_on(&mut self) {
        self.state = State::Tunnel;
    }

    fn skip<'a>(&mut self, bytes: &'a [u8], left: u64, more: fn(u64) -> State, then: State) -> &'a [u8] {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        self.state = match left - taken as u64 {
            0 => then,
            left => more(left),
        };
        &bytes[taken..]
    }

    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
        let end = bytes.iter().position(|b| *b == b'\n');
        let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if self.line.len() + part.len() > LINE {
            return Err("a line without end");
        }
        if end.is_none() {
            self.line.extend_from_slice(part);
        } else if self.line.is_empty() {
            self.line_ended(part)?;
        } else {
            let mut line = std::mem::take(&mut self.line);
            line.extend_from_slice(part);
            self.line_ended(&line)?;
        }
        Ok(rest)
    }

    fn line_ended(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let line = line.strip_suffix(b"\r\n").ok_or("a line that ends with a bare LF")?;
        if line.contains(&b'\r') {
            return Err("a bare CR");
        }
        self.state = match (self.state, line) {
            (State::Start, b"") => State::Start,
            (State::Start, _) => {
                self.head = Head { connect: line.starts_with(b"CONNECT "), ..Head::default() };
                State::Fields
            }
            (State::Fields, b"") => match self.head {
                Head { connect: true, .. } => State::Tunnel,
                Head { length: Some(_), chunked: true, .. } => return Err("both Content-Length and Transfer-Encoding"),
                Head { chunked: true, .. } => State::ChunkSize,
                Head { length: Some(length @ 1..), .. } => State::Body(length),
                Head { .. } => State::Start,
            },
            (State::Fields, _) => {
                self.field(line)?;
                State::Fields
            }
            (State::ChunkSize, _) => match chunk_size(line).ok_or("a malformed chunk size")? {
                0 => State::Trailers,
                size => State::Chunk(size),
            },
            (State::ChunkEnd, b"") => State::ChunkSize,
            (State::ChunkEnd, _) => return Err("a chunk that is longer than its size"),
            (State::Trailers, b"") => State::Start,
            (State::Trailers, _) => {
                let (name, _) = field(line)?;
                if is(name, "content-length") || is(name, "transfer-encoding") {
                    return Err("a trailer that frames");
                }
                State::Trailers
            }
            (state @ (State::Body(_) | State::Chunk(_) | State::Tunnel), _) => state,
        };
        Ok(())
    }

    fn field(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let (name, value) = field(line)?;
        if is(name, "content-length") {
            if self.head.length.is_some() {
                return Err("more than one Content-Length");
            }
            // At most what 19 digits can say: nobody counts further, and some count wrong.
            let digits = value.len() <= 19 && !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let length = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
            self.head.length = Some(length.ok_or("a malformed Content-Length")?);
        } else if is(name, "transfer-encoding") {
            if self.head.chunked {
                return Err("more than one Transfer-Encoding");
            }
            if !is(value, "chunked") {
                return Err("a Transfer-Encoding other than chunked");
            }
            self.head.chunked = true;
        }
        Ok(())
    }
}

fn is(text: &[u8], name: &str) -> bool {
    text.eq_ignore_ascii_case(name.as_bytes())
}

/// RFC 9112, 5: name and value of a field, without what may stand around the value.
fn field(line: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err("a folded field");
    }
    let colon = line.iter().position(|b| *b == b':').ok_or("a field without a colon")?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if name.is_empty() || !name.iter().all(token) {
        return Err("a field whose name is none");
    }
    if value.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
        return Err("a control character in a field");
    }
    Ok((name, value.trim_ascii()))
}

/// RFC 9112, 7.1: a size, and extensions that mean nothing here.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|b| *b == b';').unwrap_or(line.len());
    let (digits, extension) = line.split_at(end);
    let sized = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    // More than a name behind each semicolon, and nothing that a terminal or a parser would take for something else.
    let harmless = extension.iter().all(|b| *b == b'\t' || (b' '..=b'~').contains(b))
        && extension.split(|b| *b == b';').skip(1).all(|part| part.trim_ascii().first().is_some_and(u8::is_ascii_alphanumeric));
    let text = std::str::from_utf8(digits).ok().filter(|_| sized && harmless)?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
