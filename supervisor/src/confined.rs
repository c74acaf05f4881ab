//! A host program that works on hostile files: run in a sandbox of its own, with pipes to it, until a deadline.
//!
//! It reads the system and the named directories, has no network, writes to its own temporary directory alone, and sees
//! nothing of the caller's environment but `PATH`. What it says is hostile data.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hermes_backends::closure::DEFAULT_PATH;
use hermes_backends::limits::cgroup::Cgroup;
use hermes_backends::local::Sandbox;
use hermes_backends::plan::Tier;
use hermes_backends::wire::{Certificates, Ends, Event, Spawn, Stdio};
use hermes_profiles::{Files, Overrides, Request};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::args::{PolicyArgs, TierArg};
use crate::engine::{self, Places};
use crate::error::Error;
use crate::request;
use crate::scratch::Scratch;
use crate::supervise::candidates;

/// What the sandboxes here are made from, and what a program in one may use.
const PROFILE: &str = "base";
const LIMITS: [&str; 4] = ["memory=1GiB", "processes=64", "scratch=64MiB", "shm=1MiB"];

/// What to run.
#[derive(Debug)]
pub(crate) struct Tool<'a> {
    /// The program, looked for in the caller's `PATH`, and its arguments. In a shell script `$TMPDIR` is writable.
    pub(crate) command: &'a [&'a OsStr],
    /// Variables beside `PATH` and `TMPDIR`.
    pub(crate) environment: &'a [(&'a str, &'a OsStr)],
    /// The directory that it works in, readable.
    pub(crate) directory: &'a Path,
    /// Further readable directories.
    pub(crate) read: &'a [PathBuf],
    /// The mechanism, if not the best one here.
    pub(crate) tier: Option<TierArg>,
    /// When it is killed.
    pub(crate) deadline: Instant,
}

/// A running tool. Reading is from its standard output; dropping it kills it with everything that it started.
#[derive(Debug)]
pub(crate) struct Confined {
    // The sandbox is to be gone before its directory and its control group are removed: fields are dropped in this order.
    sandbox: Sandbox,
    _scratch: Option<Scratch>,
    _group: Option<Cgroup>,
    input: Option<io::PipeWriter>,
    output: io::PipeReader,
    unwritten: Vec<u8>,
    deadline: Instant,
    end: Option<End>,
}

#[derive(Debug, Clone)]
enum End {
    /// As wait(2) codes it.
    Status(i32),
    Failed(String),
}

/// Built-in profiles only: nothing that a person or a project wrote decides about this sandbox.
struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

impl Confined {
    /// Starts `tool`. As for every sandbox: from the main thread, while there is no other.
    ///
    /// # Errors
    /// There is no such sandbox on this machine. Whether the program could be started is told when its output is read.
    pub(crate) fn start(tool: &Tool<'_>) -> Result<Self, Error> {
        let caller = request::caller(None)?;
        let cache_dir = request::cache_dir(&caller);
        let overrides = Overrides {
            ro: tool.read.to_vec(),
            net: Some("off".into()),
            limits: LIMITS.map(str::to_owned).into(),
            ..Overrides::default()
        };
        let request = Request {
            profile: Some(PROFILE.into()),
            source: None,
            workspace: Some(tool.directory.to_owned()),
            overrides,
            caller,
        };
        let policy = hermes_profiles::resolve(&request, &NoFiles)?.policy;
        let mut caller = request.caller;
        caller.cwd = tool.directory.to_owned();
        let host = engine::measure(cache_dir.as_deref());
        let survey = engine::survey(&policy);
        let args = PolicyArgs { tier: tool.tier, ..PolicyArgs::default() };
        let mut plan = engine::compile(&policy, &host, &survey, &args, &caller, Places::default())?;
        if let Some(lost) = plan.fatal().next() {
            return Err(Error::setup(format!("{} cannot be given here: {}", lost.guarantee, lost.reason)).hint(&lost.remedy));
        }
        let mut scratch = None;
        if plan.tier == Tier::Landlock {
            let dir = Scratch::new().map_err(|e| Error::setup(format!("cannot make a private temporary directory: {e}")))?;
            plan = engine::compile(
                &policy,
                &host,
                &survey,
                &args,
                &caller,
                Places { scratch: Some(dir.path()), ..Places::default() },
            )?;
            scratch = Some(dir);
        }
        let group = engine::group(&plan, &host)?;
        let procs: Vec<BorrowedFd<'_>> = group.iter().flat_map(Cgroup::procs).collect();

        let pipe = |e: io::Error| Error::setup(format!("cannot make a pipe: {e}"));
        let (theirs_in, input) = io::pipe().map_err(pipe)?;
        let (output, theirs_out) = io::pipe().map_err(pipe)?;
        for ours in [input.as_fd(), output.as_fd()] {
            fcntl(ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| pipe(errno.into()))?;
        }
        let setup = |error: hermes_backends::step::StepError| Error::setup(error.to_string());
        let sandbox = Sandbox::start(&plan, &[], (&procs, &[]), Certificates::default()).map_err(setup)?;
        let path = caller.variable("PATH").unwrap_or(OsStr::new(DEFAULT_PATH));
        let tmpdir: (&str, &OsStr) = ("TMPDIR", OsStr::new("/tmp"));
        let redirects = plan.redirects.iter().map(|redirect| (redirect.name.as_str(), redirect.directory.as_os_str()));
        // Of a name that is there twice a shell takes the last, getenv(3) the first; so there is none.
        let mut environment = vec![tmpdir, ("PATH", path)];
        for pair in redirects.chain(tool.environment.iter().copied()) {
            environment.retain(|(name, _)| *name != pair.0);
            environment.push(pair);
        }
        let program = tool.command.first().copied().unwrap_or_default();
        let spawn = Spawn {
            job: 1,
            candidates: candidates(program, path),
            args: tool.command.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
            environment: environment.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect(),
            cwd: plan.cwd.as_os_str().as_bytes().to_vec(),
            stdio: vec![Stdio::Handed, Stdio::Handed, Stdio::Null],
            umask: 0o077,
            open_files: plan.limits.open_files,
            file_size: plan.limits.file_size,
            ends: Ends::Sandbox,
        };
        sandbox.spawn(spawn, &[theirs_in.as_fd(), theirs_out.as_fd()]).map_err(setup)?;
        drop(procs);
        Ok(Self {
            sandbox,
            _scratch: scratch,
            _group: group,
            input: Some(input),
            output,
            unwritten: Vec::new(),
            deadline: tool.deadline,
            end: None,
        })
    }

    /// Gives `bytes` to its standard input, as it takes them while its output is read.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.input.is_some() {
            self.unwritten.extend_from_slice(bytes);
            self.write();
        }
    }

    /// How it ended, after the end of its output: the exit status, or 128+n for a signal.
    ///
    /// # Errors
    /// It could not be started, or does not end before the deadline.
    pub(crate) fn status(&mut self) -> Result<i32, Error> {
        while self.end.is_none() {
            self.wait(false).map_err(|e| Error::setup(e.to_string()))?;
        }
        match &self.end {
            Some(End::Status(status)) if status & 0x7f == 0 => Ok(status >> 8 & 0xff),
            Some(End::Status(status)) => Ok(128 + (status & 0x7f)),
            Some(End::Failed(why)) => Err(Error::setup(why.clone())),
            None => Err(Error::setup("it has not ended")),
        }
    }

    fn write(&mut self) {
        let Some(input) = &mut self.input else { return };
        match input.write(&self.unwritten) {
            Ok(written) => drop(self.unwritten.drain(..written)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // It reads no more; what it still has to say is in its output.
            Err(_) => {
                self.input = None;
                self.unwritten.clear();
            }
        }
    }

    /// Waits until there is output (when `output`) or an event, and takes the event. True when there is output.
    fn wait(&mut self, output: bool) -> io::Result<bool> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        let writes = !self.unwritten.is_empty();
        // Only what is waited for: a side that is gone would be told whatever was asked about it.
        let sources = [
            (output, self.output.as_fd(), PollFlags::POLLIN),
            (self.end.is_none(), self.sandbox.as_fd(), PollFlags::POLLIN),
            (writes, self.input.as_ref().map_or(self.sandbox.as_fd(), AsFd::as_fd), PollFlags::POLLOUT),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.into_iter().filter(|(wanted, ..)| *wanted).map(|(_, fd, flags)| PollFd::new(fd, flags)).collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = |at: usize| fds.get(at).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
        let (event, output) = (self.end.is_none() && ready(usize::from(output)), output && ready(0));
        if event {
            self.take_event();
        }
        if writes {
            self.write();
        }
        Ok(output)
    }

    fn take_event(&mut self) {
        self.end = match self.sandbox.event() {
            Ok(Some((Event::Exited { status, .. }, _))) => Some(End::Status(status)),
            Ok(Some((Event::SetupFailed(error) | Event::StartFailed { error, .. }, _))) => Some(End::Failed(error.to_string())),
            Ok(Some(_)) => None,
            Ok(None) => Some(End::Failed("the sandbox's init ended unexpectedly".into())),
            Err(error) => Some(End::Failed(error.to_string())),
        };
    }
}

impl Read for Confined {
    /// Waits for output; 0 bytes at its end.
    ///
    /// # Errors
    /// The deadline has passed.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.wait(true)? {
                match self.output.read(buffer) {
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    other => return other,
                }
            }
        }
    }
}
