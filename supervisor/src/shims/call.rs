//! `bash` and `python`: the real program with the same arguments, in the client's session.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use nix::sys::stat::{SFlag, fstat, major, minor};
use serde_json::Value;

use super::code::Code;
use super::shim::Shim;
use super::{session, variables};
use crate::args::ShimName;
use crate::engine;
use crate::error::{Error, Kind};
use crate::output;
use crate::session::client::Client;
use crate::session::command::{hold_signals, relay};
use crate::session::job;
use crate::session::protocol::{End, Input, Keep, Of, Size, Start, Started, Word};

/// Runs the program and returns its exit status.
pub(super) fn call(shim: &Shim, args: &[OsString]) -> Result<u8, Error> {
    let program = program(shim)?;
    let own: Vec<_> = std::env::vars_os().collect();
    if engine::is_inside() {
        return run_directly(shim, &program, args, variables::without_shims(own, &|path| shim.is_own(path)));
    }
    let mut client = session::connect(shim)?;
    let mut env = BTreeMap::new();
    let code = match shim.header.shim {
        ShimName::Python => Code::of(args, &own),
        _ => None,
    };
    // Ends when it is dropped, and with it what it has inside.
    let _served = code.map(|code| {
        env.extend(code.variables());
        code.serve(shim, &program)
    });
    let cwd = std::env::current_dir().map_err(|e| {
        Error::new(Kind::NotExecutable, format!("cannot tell the current directory: {e}")).hint("change to one that exists")
    })?;
    let streams = Streams::look();
    let start = Start {
        argv: std::iter::once(&program).chain(args).map(|word| Word::of(word)).collect(),
        cwd: Some(Word::of(cwd.as_os_str())),
        caller: Some(variables::of_call(own, &|path| shim.is_own(path))),
        env,
        ..streams.start()
    };
    finish(&run(&mut client, &start, streams.reads)?)
}

/// Runs a job to its end with our own streams. What it leaves lives on, unless we are killed before.
pub(super) fn run(client: &mut Client, start: &Start, reads: bool) -> Result<End, Error> {
    hold_signals()?;
    let Started { job } = client.ask("start", start)?;
    let end = relay(client, job, start.pty.is_some(), reads)?;
    let _: Value = client.ask("release", &Of { job })?;
    Ok(end)
}

/// Ends as the job has ended: who waits for this process sees the same signal.
pub(super) fn finish(end: &End) -> Result<u8, Error> {
    if let Some(signal) = end.exit.signal.as_deref().filter(|_| !end.exit.timed_out).and_then(|name| job::signal(name).ok()) {
        // Those that end a process without a core file, signal(7); this process has no handlers for them.
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGKILL) {
            let _ = nix::sys::signal::SigSet::from(signal).thread_unblock();
            let _ = raise(signal);
        }
    }
    Ok(end.exit.status)
}

/// What the shim stands for.
fn program(shim: &Shim) -> Result<OsString, Error> {
    match shim.header.shim {
        ShimName::Python => {
            let python = shim.header.python.clone().map(PathBuf::into_os_string);
            python.ok_or_else(|| Error::setup("this shim names no interpreter").hint("write it anew with `shims install`"))
        }
        other => Ok(other.name().into()),
    }
}

/// In a sandbox already: that one confines, under its own policy.
fn run_directly(shim: &Shim, program: &OsStr, args: &[OsString], variables: Vec<(OsString, OsString)>) -> Result<u8, Error> {
    // Once for each sandbox, which has its own /tmp.
    let said = std::fs::File::options().write(true).create_new(true).open("/tmp/.hermes-sandbox-shims");
    let name = shim.header.shim.name();
    if said.is_ok() {
        output::complain(&format!("already in a sandbox: {name} and others run in that one, under its policy"));
    }
    let error = Command::new(program).args(args).env_clear().envs(variables).exec();
    let kind = if error.kind() == std::io::ErrorKind::NotFound { Kind::NotFound } else { Kind::NotExecutable };
    Err(Error::new(kind, format!("{name}: cannot be executed in this sandbox: {error}")))
}

/// What our own streams are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streams {
    /// Standard input and output are a terminal.
    terminal: bool,
    /// There may be something to read.
    pub(super) reads: bool,
    /// Standard output and error are the same: their order can be kept.
    merged: bool,
}

impl Streams {
    pub(super) fn look() -> Self {
        let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let terminal = input.is_terminal() && output.is_terminal();
        let reads = terminal || !(input.is_terminal() || is_null(input.as_fd()));
        Self { terminal, reads, merged: !terminal && is_same(output.as_fd(), error.as_fd()) }
    }

    /// A job with such streams.
    pub(super) fn start(self) -> Start {
        Start {
            stdin: if self.reads { Input::Pipe } else { Input::Null },
            pty: self.terminal.then(Size::ours),
            merge: self.merged,
            background: true,
            tied: true,
            stream: true,
            keep: Keep { head: 0, tail: 0 },
            ..Start::default()
        }
    }
}

fn is_null(fd: BorrowedFd<'_>) -> bool {
    // Documentation/admin-guide/devices.txt
    fstat(fd).is_ok_and(|stat| {
        stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits() && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
    })
}

fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let of = |fd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other) || matches!(of(one), Err(Errno::EBADF))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_apart() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert!(is_null(null.as_fd()) && !is_null(zero.as_fd()));
        let (one, other) = std::io::pipe().unwrap();
        assert!(is_same(one.as_fd(), other.as_fd()) && !is_same(one.as_fd(), null.as_fd()));
        let start = Streams { terminal: false, reads: false, merged: true }.start();
        assert!(start.merge && start.tied && start.background && start.pty.is_none());
    }
}
