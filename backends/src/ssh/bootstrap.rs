//! The first process on another host: takes our program when it is not there yet, and becomes it.

use std::os::unix::net::UnixStream;

use super::{Program, read_line, send};

/// With this begins what the script says; login scripts may have said other things.
const MARK: &str = "hermes-sandbox-bootstrap:";
/// Bytes of other things that are skipped.
const CHATTER: usize = 64 * 1024;

/// In POSIX shell, as one argument of a command line that any login shell reads: one line (csh), without single quotes,
/// backslashes (fish) and exclamation marks (csh). `$1` hash, `$2` size, `$3` token, `$4` argument.
///
/// Nobody else gets into the directory; the file itself is for all, since as root it is executed as a user who is nobody.
/// The program is looked at by its hash each time, and put in place in one step. Those that were not used for a month go.
const SCRIPT: &str = concat!(
    r#"u=$(umask); umask 077; d=${XDG_CACHE_HOME:-$HOME/.cache}/hermes-sandbox/bin; p=$d/$1; t=$d/.$3; "#,
    r#"say() { echo "hermes-sandbox-bootstrap: $*"; }; fail() { rm -f "$t"; say fail "$*"; exit 1; }; "#,
    r#"good() { test -f "$1" && test -x "$1" && test "$(sha256sum <"$1" | cut -c1-64)" = "$2"; }; "#,
    r#"echo; say on "$(uname -s)" "$(uname -m)"; "#,
    r#"command -v sha256sum >/dev/null && command -v head >/dev/null || fail tools; "#,
    r#"if good "$p" "$1"; then touch -c "$p"; else mkdir -p "$d" && chmod 700 "$d" && : >"$t" && chmod 755 "$t" || fail make "$d"; "#,
    r#"say need; head -c "$2" >"$t" || fail write "$d"; test -x "$t" || fail noexec "$d"; good "$t" "$1" || fail hash "$d"; mv -f "$t" "$p" || fail make "$d"; "#,
    r#"ln -sf "$1" "$d/hermes-sandbox"; find "$d" -type f -mtime +30 -exec rm -f {} +; fi; "#,
    r#"say run "$d"; umask "$u"; exec "$p" "$4""#
);

/// Where the way to our program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Nothing of ours was said.
    Unreached,
    /// The machine is another one: system and architecture.
    OtherMachine(String),
    /// `sha256sum` or `head` is missing.
    Tools,
    /// A directory cannot be made, or written.
    Directory(String),
    /// Nothing can be executed in this directory.
    NoExec(String),
    /// The program did not arrive as it was sent.
    Damaged(String),
    /// The program was to begin, and did not say so.
    NotStarted,
}

/// The command for the login shell.
pub(super) fn command_line(program: &Program<'_>) -> String {
    let Program { bytes, hash, token, argument } = program;
    format!("exec /bin/sh -c '{SCRIPT}' hermes-sandbox {hash} {} {token} {argument}", bytes.len())
}

/// Speaks with the script until it becomes the program.
pub(super) fn bring(stream: &UnixStream, program: &Program<'_>) -> Result<(), Stopped> {
    let mut skipped = 0;
    loop {
        let line = read_line(stream, CHATTER).ok_or(Stopped::Unreached)?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let Some((_, said)) = line.split_once(MARK) else {
            skipped += line.len() + 1;
            if skipped > CHATTER {
                return Err(Stopped::Unreached);
            }
            continue;
        };
        let (word, rest) = said.trim_start().split_once(' ').unwrap_or((said.trim(), ""));
        match word {
            "on" if !is_like_ours(rest) => return Err(Stopped::OtherMachine(rest.to_owned())),
            "on" => {}
            // Not more than it asked for: `head` may read ahead, and nothing may be lost. A write that fails is explained next.
            "need" => drop(send(stream, program.bytes)),
            "run" => return Ok(()),
            _ => {
                let (what, directory) = rest.split_once(' ').unwrap_or((rest, ""));
                return Err(match what {
                    "tools" => Stopped::Tools,
                    "noexec" => Stopped::NoExec(directory.to_owned()),
                    "hash" => Stopped::Damaged(directory.to_owned()),
                    _ => Stopped::Directory(directory.to_owned()),
                });
            }
        }
    }
}

/// `uname -s` and `uname -m`.
fn is_like_ours(machine: &str) -> bool {
    machine == format!("Linux {}", std::env::consts::ARCH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    const HASH: &str = "2d74b8ef1e5ea5aaba9c1b0dd2a8f8ca2a4cab2ab4b1b36e4ca8b7c7f7a8b8c8";

    fn run(home: &Path, program: &Program<'_>, before: &str) -> (Result<(), Stopped>, String) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("{before}{}", command_line(program)))
            .env_clear()
            .env("HOME", home)
            .env("PATH", "/usr/bin:/bin");
        let mut child = command.stdin(theirs.try_clone().unwrap()).stdout(theirs).stderr(Stdio::null()).spawn().unwrap();
        drop(command);
        let outcome = bring(&ours, program);
        let mut rest = String::new();
        if outcome.is_ok() {
            use std::io::Read;
            let _ = (&ours).read_to_string(&mut rest);
        }
        drop(ours);
        child.wait().unwrap();
        (outcome, rest)
    }

    fn hash(bytes: &[u8]) -> String {
        hermes_profiles::trust::hash(bytes)
    }

    #[test]
    fn the_line_is_one_that_every_shell_reads() {
        let program = Program { bytes: b"", hash: HASH, token: "t", argument: "remote" };
        let line = command_line(&program);
        assert_eq!(line.matches('\'').count(), 2);
        assert!(!line.contains(['\\', '!', '\n']), "{line}");
    }

    #[test]
    fn the_program_is_brought_once_and_by_its_hash() {
        let home = tempfile::tempdir().unwrap();
        let bytes = b"#!/bin/sh\necho I am $1\n";
        let hash = hash(bytes);
        let program = Program { bytes, hash: &hash, token: "x1", argument: "remote" };
        let (outcome, said) = run(home.path(), &program, "echo hello from a login script; ");
        assert_eq!((outcome, said.as_str()), (Ok(()), "I am remote\n"));
        let place = home.path().join(".cache/hermes-sandbox/bin").join(&hash);
        let first = place.metadata().unwrap();
        assert_eq!(first.mode() & 0o777, 0o755);
        assert_eq!(place.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(run(home.path(), &program, "").1, "I am remote\n");
        assert_eq!(place.metadata().unwrap().ino(), first.ino(), "brought twice");
        // One that was changed meanwhile is replaced.
        std::fs::write(&place, "#!/bin/sh\necho another\n").unwrap();
        assert_eq!(run(home.path(), &program, "").1, "I am remote\n");
        assert_ne!(place.metadata().unwrap().ino(), first.ino());
    }

    #[test]
    fn what_arrives_otherwise_is_not_run() {
        let home = tempfile::tempdir().unwrap();
        let program = Program { bytes: b"#!/bin/sh\necho damaged\n", hash: HASH, token: "x1", argument: "remote" };
        assert!(matches!(run(home.path(), &program, "").0, Err(Stopped::Damaged(_))));
        let left: Vec<_> = std::fs::read_dir(home.path().join(".cache/hermes-sandbox/bin")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        let (outcome, _) = run(Path::new("/proc/self"), &program, "");
        assert!(matches!(outcome, Err(Stopped::Directory(_))), "{outcome:?}");
        assert_eq!(run(home.path(), &program, "exit 1; ").0, Err(Stopped::Unreached));
        assert!(is_like_ours(&format!("Linux {}", std::env::consts::ARCH)) && !is_like_ours("Linux riscv64"));
    }
}
