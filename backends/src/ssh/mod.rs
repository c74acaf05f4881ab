//! Another host by OpenSSH: the program `ssh`, with the user's configuration, agent and jump hosts.
//!
//! One connection with one channel is all that is needed, since the two halves of our program multiplex by themselves: so there
//! is no control master of ours, no control path, and two runs share nothing. What the user's configuration shares is used, but
//! never begun by us. Nobody is asked anything (`BatchMode`) and a host key that is not known is refused.
//!
//! The first process on the other side is a line of POSIX shell ([`bootstrap`]), which takes the program if it is not there yet
//! and becomes it.

mod bootstrap;
mod destination;
mod refused;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use destination::Destination;
pub use refused::Refused;

/// How long a host may take to say something before our program runs there. That it is gone `ssh` notices earlier; it may be slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long `ssh` may take to end, and its last words to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Bytes of `ssh`'s own words that are kept: the last ones.
const MOST_WORDS: usize = 8 * 1024;

/// A program on its way to another host.
#[derive(Debug)]
pub struct Program<'a> {
    /// The executable.
    pub bytes: &'a [u8],
    /// Its SHA-256 in lower-case hexadecimal.
    pub hash: &'a str,
    /// Makes the name of a file that nobody else has.
    pub token: &'a str,
    /// The argument that it is started with.
    pub argument: &'a str,
}

/// A program that runs on another host.
#[derive(Debug)]
pub struct Running {
    ssh: Ssh,
    /// Its standard input and output.
    pub stream: UnixStream,
}

/// The client process.
#[derive(Debug)]
struct Ssh {
    child: Child,
    words: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

/// Starts `program` on `destination`, after bringing it there when it is not there yet. `config` is a file instead of the
/// user's configuration.
///
/// # Errors
/// Which of the many things went wrong, in one line, and what to do.
pub fn start(destination: &Destination, config: Option<&Path>, program: &Program<'_>) -> Result<Running, Refused> {
    let cannot = |e: io::Error| Refused::new(format!("cannot start ssh: {e}"), "");
    let (ours, theirs) = UnixStream::pair().map_err(cannot)?;
    let theirs = OwnedFd::from(theirs);
    let mut command = Command::new("ssh");
    command.args(arguments(destination, config, &bootstrap::command_line(program)));
    command.stdin(theirs.try_clone().map_err(cannot)?).stdout(theirs).stderr(Stdio::piped());
    // Ctrl-C is for the job, not for the way to it.
    command.process_group(0);
    let child = command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Refused::new("there is no program `ssh` in PATH", "install the OpenSSH client"),
        _ => cannot(e),
    })?;
    // Our copies of the other end are closed by now: an end is seen.
    drop(command);
    let mut ssh = Ssh::watched(child);
    ours.set_read_timeout(Some(PATIENCE)).map_err(cannot)?;
    ours.set_write_timeout(Some(PATIENCE)).map_err(cannot)?;
    match bootstrap::bring(&ours, program) {
        Ok(()) => {
            ours.set_read_timeout(None).map_err(cannot)?;
            ours.set_write_timeout(None).map_err(cannot)?;
            Ok(Running { ssh, stream: ours })
        }
        Err(stopped) => {
            drop(ours);
            let (status, words) = ssh.end();
            Err(refused::why(destination, &stopped, status, &words))
        }
    }
}

impl Running {
    /// What `ssh` has said when the stream has ended, and its status. Ends it.
    pub fn last_words(&mut self) -> (Option<i32>, String) {
        self.ssh.end()
    }

    /// Why the program did not speak for itself, after the stream ended before its first word.
    pub fn why_silent(&mut self, destination: &Destination) -> Refused {
        let (status, words) = self.ssh.end();
        refused::why(destination, &bootstrap::Stopped::NotStarted, status, &words)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.ssh.end();
    }
}

impl Ssh {
    fn watched(mut child: Child) -> Self {
        let words = Arc::new(Mutex::new(Vec::new()));
        let (kept, errors) = (Arc::clone(&words), child.stderr.take());
        let reader = std::thread::spawn(move || {
            let (mut buffer, Some(mut errors)) = ([0; 1024], errors) else { return };
            while let Ok(length @ 1..) = errors.read(&mut buffer) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..length]);
                let excess = kept.len().saturating_sub(MOST_WORDS);
                kept.drain(..excess);
            }
        });
        Self { child, words, reader }
    }

    /// Waits a moment for its end, then ends it. Returns its status and what it has said.
    fn end(&mut self) -> (Option<i32>, String) {
        let until = Instant::now() + LAST_WORDS;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status.code(),
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    break None;
                }
            }
        };
        // What it started (a ProxyCommand) may hold the pipe longer.
        while !self.reader.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        (status, String::from_utf8_lossy(&words).into_owned())
    }
}

/// What `ssh` is started with.
fn arguments(destination: &Destination, config: Option<&Path>, command: &str) -> Vec<std::ffi::OsString> {
    let mut arguments: Vec<std::ffi::OsString> = Vec::new();
    if let Some(config) = config {
        arguments.extend(["-F".into(), PathBuf::from(config).into_os_string()]);
    }
    // Given here they stand before the user's, and the first one counts (ssh_config(5)).
    for option in [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "ControlMaster=no",
        "ClearAllForwardings=yes",
        "ForwardAgent=no",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "RequestTTY=no",
        "Tunnel=no",
        "EscapeChar=none",
        "LogLevel=ERROR",
        "ConnectTimeout=20",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
    ] {
        arguments.extend(["-o".into(), option.into()]);
    }
    arguments.extend(["-T".into(), "--".into(), destination.as_str().into(), command.into()]);
    arguments
}

/// A line from `stream`, without reading beyond it; `None` at the end, or when nothing came.
fn read_line(mut stream: &UnixStream, most: usize) -> Option<Vec<u8>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < most {
        match stream.read(&mut byte) {
            Ok(1) if byte[0] == b'\n' => return Some(line),
            Ok(1) => line.push(byte[0]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    None
}

fn send(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_and_no_key_is_taken_on_trust() {
        let destination: Destination = "u@h.example.test".parse().unwrap();
        let all = arguments(&destination, Some(Path::new("/c")), "exec true");
        let all: Vec<_> = all.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(all[..4], ["-F", "/c", "-o", "BatchMode=yes"]);
        assert!(all.contains(&"StrictHostKeyChecking=yes") && all.contains(&"ControlMaster=no"));
        assert_eq!(all[all.len() - 4..], ["-T", "--", "u@h.example.test", "exec true"]);
    }
}
