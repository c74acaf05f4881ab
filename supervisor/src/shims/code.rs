//! What `execute_code` of Hermes Agent needs of `python` besides the run: its script lies in a temporary directory of the host, and
//! its tools are behind a Unix socket there (`_execute_local` in tools/code_execution_tool.py). Neither goes in. The script is copied
//! into the sandbox's own directory of the same name, and a socket of the same name inside is listened to there; one connection of
//! it, which is all that the agent answers, is carried to the agent's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;

use super::session;
use super::shim::Shim;
use crate::error::Error;
use crate::output;
use crate::session::client::{Client, Said};
use crate::session::protocol::{Bytes, Input, Keep, Notification, Start, Started, Stream, Word, Write as WriteParams};

const SOCKET: &str = "HERMES_RPC_SOCKET";
const TOKEN: &str = "HERMES_RPC_TOKEN";
/// Bytes that a script and its modules may have.
const LONGEST: u64 = 4 << 20;
const PIECE: usize = 32 * 1024;

/// Inside: takes the files and the socket's name, says that it listens, and carries one connection.
const LISTENER: &str = r#"
import json, os, select, socket
def take(count):
    taken = b""
    while len(taken) < count:
        piece = os.read(0, count - len(taken))
        if not piece:
            raise SystemExit(1)
        taken += piece
    return taken
def put(fd, data):
    while data:
        data = data[os.write(fd, data):]
task = json.loads(take(int(take(8))))
os.umask(0o077)
os.makedirs(task["stage"], exist_ok=True)
for name, text in task["files"].items():
    with open(os.path.join(task["stage"], name), "w") as file:
        file.write(text)
listener = socket.socket(socket.AF_UNIX)
listener.bind(task["socket"])
listener.listen(1)
os.write(2, b"listening\n")
connection, _ = listener.accept()
os.unlink(task["socket"])
while True:
    ready, _, _ = select.select([connection, 0], [], [])
    if connection in ready:
        piece = connection.recv(65536)
        if not piece:
            break
        put(1, piece)
    if 0 in ready:
        piece = os.read(0, 65536)
        if not piece:
            break
        connection.sendall(piece)
"#;

/// A call of `execute_code`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// The directory of the script.
    stage: PathBuf,
    socket: PathBuf,
    token: OsString,
}

/// As long as it lives, what is inside does.
#[derive(Debug)]
pub(super) struct Served {
    /// Closed at the end, which ends the thread that reads from it.
    agent: Option<UnixStream>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(agent) = &self.agent {
            let _ = agent.shutdown(Shutdown::Both);
        }
    }
}

impl Code {
    /// Is it such a call? The names are those that the agent makes up (`mkdtemp(prefix="hermes_sandbox_")`, `hermes_rpc_*.sock`).
    pub(super) fn of(args: &[OsString], variables: &[(OsString, OsString)]) -> Option<Self> {
        let value = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        let script = Path::new(args.first()?);
        let stage = script.parent().filter(|dir| dir.is_absolute())?;
        let socket = Path::new(value(SOCKET)?);
        let named = |path: &Path, start: &str| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
        };
        let ours = named(stage, "hermes_sandbox_") && socket.is_absolute() && named(socket, "hermes_rpc_");
        ours.then(|| Self {
            stage: stage.to_owned(),
            socket: socket.to_owned(),
            token: value(TOKEN).cloned().unwrap_or_default(),
        })
    }

    /// What the script is to be told; the policy's scrub would take the token for a credential.
    pub(super) fn variables(&self) -> [(String, Word); 2] {
        [(SOCKET.to_owned(), Word::of(self.socket.as_os_str())), (TOKEN.to_owned(), Word::of(&self.token))]
    }

    /// Brings the script in and serves its socket. Without one the script runs all the same and says which tool fails.
    pub(super) fn serve(self, shim: &Shim, python: &OsStr) -> Option<Served> {
        let served = self.try_serve(shim, python);
        served.inspect_err(|error| output::complain(&format!("the agent's tools are not there for this script: {error}"))).ok()
    }

    fn try_serve(self, shim: &Shim, python: &OsStr) -> Result<Served, Error> {
        let cannot = |e: std::io::Error| Error::setup(format!("{}: {e}", output::path(&self.socket)));
        let agent = UnixStream::connect(&self.socket).map_err(cannot)?;
        let mut client = session::connect(shim)?;
        let start = Start {
            argv: [python, "-I".as_ref(), "-S".as_ref(), "-c".as_ref(), LISTENER.as_ref()].map(Word::of).to_vec(),
            stdin: Input::Pipe,
            stream: true,
            tied: true,
            keep: Keep { head: 0, tail: 0 },
            ..Start::default()
        };
        let Started { job } = client.ask("start", &start)?;
        let task = json!({"stage": self.stage, "socket": self.socket, "files": files(&self.stage).map_err(cannot)?}).to_string();
        send(&mut client, job, format!("{:8}{task}", task.len()).into_bytes())?;
        let mut said = Vec::new();
        while !said.ends_with(b"listening\n") {
            match client.receive()? {
                Some(Said::Notification(Notification::Output { job: of, stream: Stream::Stderr, bytes })) if of == job => {
                    said.extend(bytes.bytes().unwrap_or_default());
                    if said.len() > PIECE {
                        return Err(Error::setup("the listener inside says what is not understood"));
                    }
                }
                Some(Said::Notification(Notification::Closing { .. })) | None => {
                    return Err(Error::setup("the session has ended"));
                }
                Some(_) => {}
            }
            // Python's own words about what failed are its last line.
            if let Some(why) = failure(&said) {
                return Err(Error::setup(why));
            }
        }
        let kept = agent.try_clone().map_err(cannot)?;
        std::thread::spawn(move || carry(&mut client, job, &agent));
        Ok(Served { agent: Some(kept) })
    }
}

/// The last line of a traceback.
fn failure(said: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(said);
    let last = text.lines().last()?;
    (text.starts_with("Traceback") && text.ends_with('\n') && last.contains("Error")).then(|| output::clean(last).into_owned())
}

/// The modules beside the script, and the script.
fn files(stage: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let (mut files, mut left) = (BTreeMap::new(), LONGEST);
    for entry in std::fs::read_dir(stage)?.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !name.ends_with(".py") {
            continue;
        }
        let file = File::options().read(true).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits()).open(entry.path())?;
        if file.metadata()?.is_file() {
            let mut text = String::new();
            left -= file.take(left).read_to_string(&mut text)? as u64;
            files.insert(name, text);
        }
    }
    match left {
        0 => Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "the script is too long")),
        _ => Ok(files),
    }
}

fn send(client: &mut Client, job: u32, bytes: Vec<u8>) -> Result<(), Error> {
    let Bytes { data, base64 } = Bytes::of(bytes);
    client.send("write", &WriteParams { job, data, base64, eof: false }).map(drop)
}

/// Carries bytes between the agent and the job until one of them has ended.
fn carry(client: &mut Client, job: u32, mut agent: &UnixStream) {
    let mut buffer = vec![0; PIECE];
    loop {
        while client.has_more() {
            match client.receive() {
                Ok(Some(Said::Notification(Notification::Output { job: of, stream: Stream::Stdout, bytes }))) if of == job => {
                    let Ok(bytes) = bytes.bytes() else { return };
                    if agent.write_all(&bytes).is_err() {
                        return;
                    }
                }
                Ok(Some(Said::Notification(Notification::Closing { .. })) | None) | Err(_) => return,
                Ok(Some(_)) => {}
            }
        }
        let mut fds = [PollFd::new(client.socket().as_fd(), PollFlags::POLLIN), PollFd::new(agent.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            return;
        }
        let ready = fds.map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        if ready[0] && !client.fill() {
            return;
        }
        if ready[1] {
            match agent.read(&mut buffer) {
                Ok(length @ 1..) if send(client, job, buffer[..length].to_vec()).is_ok() => {}
                _ => return,
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(script: &str, socket: &str) -> Option<Code> {
        let variables = [(SOCKET, socket), (TOKEN, "t")].map(|(name, value)| (name.into(), value.into()));
        Code::of(&[script.into()], &variables)
    }

    #[test]
    fn only_what_the_agent_makes_is_brought_in() {
        let code = of("/tmp/hermes_sandbox_x/script.py", "/tmp/hermes_rpc_1.sock").unwrap();
        assert_eq!((code.stage.as_path(), code.variables().len()), (Path::new("/tmp/hermes_sandbox_x"), 2));
        for (script, socket) in [
            ("/tmp/other/script.py", "/tmp/hermes_rpc_1.sock"),
            ("hermes_sandbox_x/script.py", "/tmp/hermes_rpc_1.sock"),
            ("/tmp/hermes_sandbox_x/script.py", "/run/docker.sock"),
            ("/tmp/hermes_sandbox_x/script.py", "tcp://127.0.0.1:1"),
            ("-c", "/tmp/hermes_rpc_1.sock"),
        ] {
            assert_eq!(of(script, socket), None, "{script} {socket}");
        }
        assert_eq!(Code::of(&["/tmp/hermes_sandbox_x/script.py".into()], &[]), None);
    }

    #[test]
    fn symlinks_beside_the_script_are_no_way_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("script.py"), "x").unwrap();
        std::fs::write(dir.path().join("data"), "y").unwrap();
        assert_eq!(files(dir.path()).unwrap(), BTreeMap::from([("script.py".to_owned(), "x".to_owned())]));
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("more.py")).unwrap();
        assert!(files(dir.path()).is_err());
    }

    #[test]
    fn a_failure_inside_is_told_in_one_line() {
        assert_eq!(failure(b"Traceback (most recent call last):\n  x\nOSError: no\n").as_deref(), Some("OSError: no"));
        assert_eq!(failure(b"listening\n"), None);
    }
}
