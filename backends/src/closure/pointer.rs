//! Reading the pointers that files hold. No file is opened here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A `#!` line and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shebang {
    /// The interpreter.
    pub(super) interpreter: PathBuf,
    /// The program that `env` is to look for.
    pub(super) by_name: Option<OsString>,
    /// The program that a shell script of one statement executes: how pip and uv write an interpreter that is too long
    /// for a `#!` line, or has a space in it.
    pub(super) then: Option<PathBuf>,
}

/// Takes the start of a file apart as the kernel does (fs/binfmt_script.c): one interpreter, at most one argument.
pub(super) fn shebang(head: &[u8]) -> Option<Shebang> {
    let rest = head.strip_prefix(b"#!")?;
    let end = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
    let line = rest[..end].trim_ascii();
    let split = line.iter().position(|b| matches!(b, b' ' | b'\t' | 0)).unwrap_or(line.len());
    let (interpreter, argument) = (&line[..split], line[split..].trim_ascii());
    if interpreter.is_empty() {
        return None;
    }
    let interpreter = PathBuf::from(OsStr::from_bytes(interpreter));
    let is = |name: &str| interpreter.file_name() == Some(OsStr::new(name));
    let by_name = if is("env") { env_program(argument) } else { None };
    let then = if is("sh") { long_interpreter(rest.get(end + 1..).unwrap_or_default()) } else { None };
    Some(Shebang { interpreter, by_name, then })
}

/// The program in the argument of `env`: all of it, or with `-S` its first word that is no option and no assignment.
fn env_program(argument: &[u8]) -> Option<OsString> {
    let split = [&b"-S"[..], b"--split-string=", b"-vS"].iter().find_map(|option| argument.strip_prefix(*option));
    let program = match split {
        Some(words) => words
            .split(u8::is_ascii_whitespace)
            .map(|word| word.trim_ascii())
            .find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='))?,
        None => argument,
    };
    (!program.is_empty() && !program.starts_with(b"-")).then(|| OsStr::from_bytes(program).to_owned())
}

/// `'''exec' "/a b/python" "$0" "$@"`
fn long_interpreter(second_line: &[u8]) -> Option<PathBuf> {
    let rest = second_line.strip_prefix(b"'''exec' ")?;
    let program = match rest.strip_prefix(b"\"") {
        Some(quoted) => quoted.split(|&b| b == b'"').next()?,
        None => rest.split(|b| b.is_ascii_whitespace()).next()?,
    };
    program.starts_with(b"/").then(|| PathBuf::from(OsStr::from_bytes(program)))
}

/// The `home` key of a `pyvenv.cfg`: the `bin` directory of the Python that the environment was made with.
pub(super) fn pyvenv_home(text: &[u8]) -> Option<PathBuf> {
    text.split(|&b| b == b'\n').find_map(|line| {
        let split = line.iter().position(|&b| b == b'=')?;
        let (key, value) = (line[..split].trim_ascii(), line[split + 1..].trim_ascii());
        (key.eq_ignore_ascii_case(b"home") && !value.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(value)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lines() {
        let of = |text: &str| shebang(text.as_bytes());
        assert_eq!(of("#!/bin/sh\n").unwrap().interpreter, PathBuf::from("/bin/sh"));
        assert_eq!(of("#! \t/usr/bin/python3 -u -x\nrest").unwrap().interpreter, PathBuf::from("/usr/bin/python3"));
        assert_eq!(of("#!/usr/bin/env node").unwrap().by_name, Some("node".into()));
        assert_eq!(of("#!/usr/bin/env -S A=b deno run -A\n").unwrap().by_name, Some("deno".into()));
        assert_eq!(of("#!/usr/bin/env -Sdeno run\n").unwrap().by_name, Some("deno".into()));
        assert_eq!(of("#!/usr/bin/env -i\n").unwrap().by_name, None);
        assert_eq!(of("#!\n"), None);
        assert_eq!(of("#!"), None);
        assert_eq!(of("\x7fELF"), None);
    }

    #[test]
    fn long_interpreters() {
        let of = |text: &str| shebang(text.as_bytes()).unwrap().then;
        assert_eq!(of("#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\"\n' '''\n"), Some("/a b/bin/python".into()));
        assert_eq!(of("#!/bin/sh\n'''exec' /long/bin/python \"$0\" \"$@\"\n"), Some("/long/bin/python".into()));
        assert_eq!(of("#!/bin/sh\nexec /elsewhere\n"), None);
        assert_eq!(of("#!/bin/sh\n'''exec' relative\n"), None);
    }

    #[test]
    fn homes() {
        assert_eq!(pyvenv_home(b"version = 3\nhome = /opt/py/bin\n"), Some("/opt/py/bin".into()));
        assert_eq!(pyvenv_home(b"Home=/opt/py/bin"), Some("/opt/py/bin".into()));
        assert_eq!(pyvenv_home(b"home =\nhomely = /x\n"), None);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_panics(head in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = pyvenv_home(&head);
            let _ = shebang(&head);
            let _ = shebang(&[b"#!/bin/sh\n'''exec' ", head.as_slice()].concat());
            let _ = shebang(&[b"#!/usr/bin/env ", head.as_slice()].concat());
        }
    }
}
