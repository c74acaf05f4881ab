//! Reading a value from standard input: what comes, or a line that is typed without being shown.

use std::io::{self, IsTerminal};

use nix::errno::Errno;
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use nix::unistd::read;
use zeroize::Zeroizing;

use super::value::{LONGEST, Value, room};
use crate::error::Error;
use crate::output;

/// Reads the value of `name`.
///
/// # Errors
/// Nothing can be read, or it is no value.
pub(super) fn value(name: &str) -> Result<Value, Error> {
    let bytes = if io::stdin().is_terminal() { typed(&format!("value of {name} (it is not shown)")) } else { piped() };
    let cannot = |why: &str| Error::usage(format!("cannot take the value of {name}: {why}"));
    Value::parse(bytes.map_err(|why| cannot(&why))?).map_err(cannot)
}

/// Not through std's buffered stdin, which would keep a copy.
fn next(buffer: &mut [u8]) -> Result<usize, String> {
    loop {
        match read(io::stdin(), buffer) {
            Err(Errno::EINTR) => {}
            answer => return answer.map_err(|errno| errno.desc().to_owned()),
        }
    }
}

fn piped() -> Result<Zeroizing<Vec<u8>>, String> {
    // Two for the newline, and one to see that there is more.
    let (mut all, mut buffer) = (room(LONGEST + 3), Zeroizing::new([0; 4096]));
    loop {
        let count = next(&mut *buffer)?.min(LONGEST + 3 - all.len());
        all.extend_from_slice(&buffer[..count]);
        if count == 0 || all.len() == LONGEST + 3 {
            return Ok(all);
        }
    }
}

/// The terminal without echo, as long as it lives.
struct Unseen(Termios);

impl Unseen {
    fn enter() -> Result<Self, String> {
        let modes = tcgetattr(io::stdin()).map_err(|errno| errno.desc().to_owned())?;
        let mut unseen = modes.clone();
        // By the character: lines of a terminal end at 4096 bytes. Without signals: one would leave it like this.
        unseen
            .local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ECHONL | LocalFlags::ICANON | LocalFlags::ISIG | LocalFlags::IEXTEN);
        unseen.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
        unseen.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        // What was typed before was shown, and is not the answer.
        tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &unseen).map_err(|errno| errno.desc().to_owned())?;
        Ok(Self(modes))
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

fn typed(question: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    // Before the question: whoever answers at once must not be seen either.
    let _unseen = Unseen::enter()?;
    output::ask(question);
    let answer = line();
    output::ask_ended();
    answer
}

fn line() -> Result<Zeroizing<Vec<u8>>, String> {
    let (mut line, mut byte) = (room(LONGEST + 1), Zeroizing::new([0; 1]));
    while next(&mut *byte)? == 1 {
        match edit(&mut line, byte[0]) {
            Typed::More => {}
            Typed::Done => return Ok(line),
            Typed::Cancelled => return Err("cancelled".to_owned()),
        }
    }
    Err("the terminal has hung up".to_owned())
}

#[derive(Debug, PartialEq, Eq)]
enum Typed {
    More,
    Done,
    Cancelled,
}

/// The keys that a terminal's own line editing knows.
fn edit(line: &mut Vec<u8>, key: u8) -> Typed {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    const BACKSPACE: u8 = 8;
    const CTRL_U: u8 = 21;
    const DELETE: u8 = 127;
    match key {
        b'\n' | b'\r' => return Typed::Done,
        CTRL_C => return Typed::Cancelled,
        CTRL_D if line.is_empty() => return Typed::Cancelled,
        CTRL_D => return Typed::Done,
        BACKSPACE | DELETE => _ = line.pop(),
        CTRL_U => line.clear(),
        // One too many is enough to see that it is too long.
        _ if line.len() <= LONGEST => line.push(key),
        _ => {}
    }
    Typed::More
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let all = |keys: &[u8]| {
            let mut line = Vec::new();
            let last = keys.iter().map(|key| edit(&mut line, *key)).last();
            (line, last)
        };
        assert_eq!(all(b"wrong\x15abx\x7f\x08bc\n"), (b"abc".to_vec(), Some(Typed::Done)));
        assert_eq!(all(b"a\x04"), (b"a".to_vec(), Some(Typed::Done)));
        assert_eq!(all(b"\x04").1, Some(Typed::Cancelled));
        assert_eq!(all(b"abc\x03").1, Some(Typed::Cancelled));
        assert_eq!(all(&vec![b'x'; 2 * LONGEST]).0.len(), LONGEST + 1);
    }
}
