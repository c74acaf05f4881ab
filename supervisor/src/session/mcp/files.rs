//! Reading and writing files: jobs of the sandbox like any other, so that a path means what it means there, and reaches only what can
//! be reached there. The supervisor opens nothing.

use super::Front;
use super::call::{Answer, Call};
use super::edit;
use super::text;
use super::tools::{Patch, Read, Write};
use crate::output;
use crate::session::protocol::{Bytes, Input, Keep, Start, Stream, Word};

/// Lines that are read at a time, unless the call says otherwise.
pub(super) const MOST_LINES: u64 = 2000;
/// Bytes of text that are read at a time.
pub(super) const MOST_TEXT: usize = 50_000;
/// Bytes that are read at a time for base64.
pub(super) const MOST_RAW: usize = 48 * 1024;
/// Bytes of a file that can be edited.
pub(super) const MOST_EDITED: usize = 4 << 20;

/// Seconds for what is done at once unless something hangs: a FIFO that came in the place of a file, a file system without its server.
const TIMEOUT: f64 = 30.0;
/// Bytes of what went wrong that are passed on.
const MOST_SAID: usize = 1000;

/// What every sandbox with a shell has. A FIFO or a device is refused before it is opened; who puts one there in between gains nothing but
/// the time until the job is killed.
const CHECK: &str = r#"
if [ ! -e "$1" ]; then echo "it is not there, or hidden" >&2; exit 1; fi
if [ -d "$1" ]; then echo "it is a directory" >&2; exit 1; fi
if [ ! -f "$1" ]; then echo "it is no regular file" >&2; exit 1; fi
if [ ! -r "$1" ]; then echo "permission denied" >&2; exit 1; fi
"#;
const LINES: &str = r#"tail -n "+$2" -- "$1" | head -c "$3""#;
const BYTES: &str = r#"tail -c "+$2" -- "$1" | head -c "$3""#;
/// In place: a file that is granted alone, or has a second name, stays the same file.
const WRITE: &str = r#"
if [ -d "$1" ]; then echo "it is a directory" >&2; exit 1; fi
if [ -e "$1" ] && [ ! -f "$1" ]; then echo "it is no regular file" >&2; exit 1; fi
case $1 in */*) [ -d "${1%/*}/" ] || mkdir -p -- "${1%/*}" || exit 1 ;; esac
exec cat >"$1"
"#;

impl Front {
    pub(super) async fn read(&self, read: Read, call: &Call) -> Answer {
        if read.offset == 0 || read.limit == Some(0) {
            return Err("wrong arguments: `offset` and `limit` count from 1".into());
        }
        let most = if read.base64 {
            read.limit.map_or(MOST_RAW, |limit| usize::try_from(limit).unwrap_or(MOST_RAW).min(MOST_RAW))
        } else {
            MOST_TEXT
        };
        let bytes = self.bytes(&read.path, if read.base64 { BYTES } else { LINES }, read.offset, most, call).await?;
        if read.base64 {
            let more = bytes.len() > most;
            let part = Bytes::encoded(&bytes[..bytes.len().min(most)]);
            let next = read.offset + most as u64;
            return Ok(vec![part]
                .into_iter()
                .chain(more.then(|| format!("[there is more; go on with offset {next}]")))
                .collect());
        }
        let page = text::page(&bytes, read.offset, read.limit.unwrap_or(MOST_LINES), most);
        let page = page.ok_or_else(|| format!("{}: it is no UTF-8 text; read it with `base64`", output::clean(&read.path)))?;
        Ok([page.text].into_iter().filter(|text| !text.is_empty()).chain(page.note).collect())
    }

    pub(super) async fn write(&self, write: Write, call: &Call) -> Answer {
        let content = match write.base64 {
            true => Bytes { data: None, base64: Some(write.content) },
            false => Bytes { data: Some(write.content), base64: None },
        };
        let content = content.bytes().map_err(|failure| format!("wrong arguments: {}", failure.message))?;
        let length = content.len();
        let _one = self.alone(call).await?;
        self.put(&write.path, content, call).await?;
        Ok(vec![format!("wrote {length} bytes to {}", output::clean(&write.path))])
    }

    pub(super) async fn patch(&self, patch: Patch, call: &Call) -> Answer {
        let path = output::clean(&patch.path);
        // Two changes of one file at a time would lose one of them.
        let _one = self.alone(call).await?;
        let bytes = self.bytes(&patch.path, BYTES, 1, MOST_EDITED, call).await?;
        if bytes.len() > MOST_EDITED {
            return Err(format!("{path}: it is larger than {} MiB, which is too much to patch", MOST_EDITED >> 20));
        }
        let text = String::from_utf8(bytes).map_err(|_| format!("{path}: it is no UTF-8 text, which cannot be patched"))?;
        let edited = edit::replace(&text, &patch.old, &patch.new, patch.all).map_err(|unclear| format!("{path}: {unclear}"))?;
        let said = match edited.lines[..] {
            [line] => format!("changed line {line} of {path}"),
            _ => format!("changed {} places in {path}", edited.lines.len()),
        };
        self.put(&patch.path, edited.text.into_bytes(), call).await?;
        Ok(vec![said])
    }

    /// At most one byte more than `most`, from line or byte `offset` on.
    async fn bytes(&self, path: &str, how: &str, offset: u64, most: usize, call: &Call) -> Result<Vec<u8>, String> {
        let args = [offset.to_string(), (most + 1).to_string()];
        let job = self.run(script(&format!("{CHECK}{how}"), path, &args, Input::Null, most + 1)?, call).await?;
        let bytes = job.kept(Stream::Stdout).borrow().bytes();
        let end = job.end();
        let said = end.stderr.unwrap_or_default();
        // `tail` fails behind the pipe.
        match end.exit.status != 0 || bytes.is_empty() && !said.is_empty() {
            true => Err(failed("read", path, &end.note.unwrap_or(said))),
            false => Ok(bytes),
        }
    }

    async fn put(&self, path: &str, content: Vec<u8>, call: &Call) -> Result<(), String> {
        let job = self.run(script(WRITE, path, &[], Input::All(Bytes::of(content)), 0)?, call).await?;
        let end = job.end();
        match end.exit.status {
            0 => Ok(()),
            _ => Err(failed("write", path, &end.note.or(end.stderr).unwrap_or_default())),
        }
    }
}

/// A job that runs a script with a path.
fn script(text: &str, path: &str, args: &[String], stdin: Input, head: usize) -> Result<Start, String> {
    if path.is_empty() || path.contains('\0') {
        return Err("wrong arguments: `path` is empty or holds NUL".into());
    }
    let words = ["sh", "-c", text, "sh", path].map(str::to_owned);
    Ok(Start {
        argv: words.into_iter().chain(args.iter().cloned()).map(Word::Text).collect(),
        stdin,
        timeout: Some(TIMEOUT),
        keep: Keep { head, tail: MOST_SAID },
        ..Start::default()
    })
}

/// What a script said, without the shell's own name and place in front.
fn failed(what: &str, path: &str, said: &str) -> String {
    let said = said.trim();
    let said = ["sh: ", "bash: "].iter().find_map(|shell| said.strip_prefix(shell)).unwrap_or(said);
    let said = said
        .split_once(": ")
        .filter(|(place, _)| place.trim_start_matches("line ").parse::<u32>().is_ok())
        .map_or(said, |(_, rest)| rest);
    format!(
        "cannot {what} {}: {}",
        output::clean(path),
        output::clean(if said.is_empty() { "no reason was given" } else { said })
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_does_not_put_itself_forward() {
        for said in ["sh: 5: cannot create /x: Read-only file system\n", "sh: line 5: cannot create /x: Read-only file system"] {
            assert_eq!(failed("write", "/x", said), "cannot write /x: cannot create /x: Read-only file system");
        }
        assert_eq!(failed("read", "a\x1b", "it is a directory\n"), "cannot read a\\x1b: it is a directory");
        assert_eq!(failed("read", "a", ""), "cannot read a: no reason was given");
    }

    #[test]
    fn the_scripts_do_what_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let run = |text: &str, args: &[&str], input: &str| {
            let mut shell = std::process::Command::new("/bin/sh");
            shell.args(["-c", text, "sh"]).args(args).current_dir(dir.path());
            let file = dir.path().join(".input");
            std::fs::write(&file, input).unwrap();
            let done = shell.stdin(std::fs::File::open(file).unwrap()).output().unwrap();
            (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap())
        };
        for path in ["a", "-n", "d/e/f", " x ", "(", "!"] {
            assert_eq!(run(WRITE, &[path], "1\n2\n3\n"), (0, String::new()), "{path}");
            assert_eq!(run(&format!("{CHECK}{LINES}"), &[path, "2", "100"], ""), (0, "2\n3\n".into()), "{path}");
            assert_eq!(run(&format!("{CHECK}{BYTES}"), &[path, "2", "3"], ""), (0, "\n2\n".into()), "{path}");
        }
        nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for (path, says) in [("fifo", "no regular file"), ("d", "a directory"), ("/dev/zero", "no regular file")] {
            for script in [WRITE, &format!("{CHECK}{LINES}")] {
                let (status, said) = run(script, &[path, "1", "10"], "x");
                assert!(status == 1 && said.contains(says), "{path}: {said}");
            }
        }
        assert!(run(&format!("{CHECK}{LINES}"), &["none", "1", "10"], "").1.contains("not there"));
    }
}
