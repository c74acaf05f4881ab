//! A live sandbox: what init is asked for, and what it answers.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hermes_backends::closure::DEFAULT_PATH;
use hermes_backends::local::Sandbox;
use hermes_backends::local::sys::thread::set_window_size;
use hermes_backends::step::{Step, StepError};
use hermes_backends::wire::{Ends, Event as Answer, Request, Spawn};
use hermes_profiles::ospath;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::{Mode, umask};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_local;

use super::job::{self, Job, Progress};
use super::protocol::{Code, Failure, Input, Notification, Reason, Size, Start, State, Stream, Word};
use super::shell::{self, Shell};
use super::streams::{self, Sink, Source, Streams};
use crate::clock;
use crate::engine;
use crate::events::{Event, Log};
use crate::guard::Guards;
use crate::network::WayOut;
use crate::output;
use crate::prepare::Prepared;
use crate::supervise::candidates;

/// Ended jobs that are remembered at least.
const REMEMBERED: usize = 256;
/// Most that is kept of a stream, in bytes.
const MOST_KEPT: usize = 16 << 20;

/// A live sandbox.
#[derive(Debug)]
pub(crate) struct Live {
    sandbox: Sandbox,
    pub(crate) prepared: RefCell<Prepared>,
    pub(crate) name: Option<String>,
    pub(crate) log: RefCell<Log>,
    environment: Vec<(OsString, OsString)>,
    umask: u32,
    pub(crate) guards: RefCell<Option<Guards>>,
    pub(crate) way_out: RefCell<Option<WayOut>>,
    jobs: RefCell<BTreeMap<u32, Rc<Job>>>,
    next: Cell<u32>,
    terminals: RefCell<VecDeque<oneshot::Sender<Result<OwnedFd, StepError>>>>,
    starting: RefCell<BTreeMap<u32, oneshot::Sender<Result<(), StepError>>>>,
    shell: RefCell<Shell>,
    pub(crate) subscribers: RefCell<Vec<mpsc::Sender<String>>>,
    pub(crate) over: watch::Sender<Option<Reason>>,
    /// When somebody last wanted something.
    pub(crate) used: Cell<Instant>,
}

impl Live {
    pub(crate) fn new(
        sandbox: Sandbox,
        prepared: Prepared,
        mut environment: Vec<(OsString, OsString)>,
        (guards, way_out): (Option<Guards>, Option<WayOut>),
        name: Option<String>,
        log: Log,
    ) -> Rc<Self> {
        // As in every terminal. A bash without it asks the user database at each start, which tries to reach a daemon.
        if !environment.iter().any(|(name, _)| name == "SHELL") {
            environment.push(("SHELL".into(), "/bin/sh".into()));
        }
        let mask = umask(Mode::empty());
        umask(mask);
        let shell = Shell { cwd: prepared.plan.cwd.clone(), environment: None };
        Rc::new(Self {
            sandbox,
            prepared: RefCell::new(prepared),
            name,
            log: RefCell::new(log),
            environment,
            umask: mask.bits(),
            guards: RefCell::new(guards),
            way_out: RefCell::new(way_out),
            jobs: RefCell::default(),
            next: Cell::new(1),
            terminals: RefCell::default(),
            starting: RefCell::default(),
            shell: RefCell::new(shell),
            subscribers: RefCell::default(),
            over: watch::Sender::new(None),
            used: Cell::new(Instant::now()),
        })
    }

    /// The sandbox is to end.
    pub(crate) fn stop(&self, reason: Reason) {
        self.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert(reason);
            first
        });
    }

    /// Waits until it is to end.
    pub(crate) async fn is_over(&self) -> Reason {
        let mut over = self.over.subscribe();
        let reason = over.wait_for(Option::is_some).await.ok().and_then(|reason| *reason);
        reason.unwrap_or(Reason::Failed)
    }

    pub(crate) fn job(&self, number: u32) -> Result<Rc<Job>, Failure> {
        let none = || Failure::new(Code::Job, format!("there is no job {number}")).hint("`list` names the jobs");
        self.jobs.borrow().get(&number).cloned().ok_or_else(none)
    }

    /// Nobody will ask for it again.
    pub(crate) fn forget(&self, number: u32) {
        self.jobs.borrow_mut().remove(&number);
    }

    /// Where the next shell job begins.
    pub(crate) fn shell_cwd(&self) -> PathBuf {
        self.shell.borrow().cwd.clone()
    }

    pub(crate) fn jobs(&self) -> Vec<Rc<Job>> {
        self.jobs.borrow().values().cloned().collect()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.borrow().values().all(|job| job.has_exited())
    }

    /// Asks init. While it has no room for the question, it may itself wait for room for what it says, which is heard meanwhile:
    /// to be called while nothing is borrowed that [`heard`](Self::heard) needs.
    pub(crate) fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
        let asked = || -> Result<(), StepError> {
            while !self.sandbox.try_request(request, fds)? {
                let mut ready = [PollFd::new(self.sandbox.as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT)];
                let _ = poll(&mut ready, PollTimeout::NONE);
                if is_readable(self.sandbox.as_fd())
                    && let Some((event, fds)) = self.sandbox.event()?
                {
                    self.heard(event, fds);
                }
            }
            Ok(())
        };
        asked().map_err(|error| match error.errno() {
            Errno::EMSGSIZE => Failure::new(Code::Start, "the command and its variables are too long").status(126),
            _ => Failure::new(Code::Ended, error.to_string()),
        })
    }

    pub(crate) fn signal(&self, job: u32, signal: nix::sys::signal::Signal, group: bool) -> Result<(), Failure> {
        self.ask(&Request::Signal { job, signal: signal as i32, group }, &[])
    }

    pub(crate) fn kill(&self, job: u32) -> Result<(), Failure> {
        self.ask(&Request::Kill { job }, &[])
    }

    pub(crate) fn resize(&self, job: &Job, size: Size) -> Result<(), Failure> {
        let master = job.master.borrow();
        let master = master.as_ref().ok_or_else(|| Failure::new(Code::Parameters, "the job has no terminal"))?;
        let _ = set_window_size(master.get_ref().as_fd(), &window(size));
        Ok(())
    }

    /// Starts a job; `client` is told of its output.
    pub(crate) async fn start(self: &Rc<Self>, start: Start, client: Option<mpsc::Sender<String>>) -> Result<Rc<Job>, Failure> {
        if start.argv.is_empty() == start.shell.is_none() {
            return Err(Failure::new(Code::Parameters, "one of `argv` and `shell` is needed"));
        }
        if start.keep.head.max(start.keep.tail) > MOST_KEPT {
            return Err(Failure::new(Code::Parameters, format!("`keep` is at most {MOST_KEPT} bytes at either end")));
        }
        if start.timeout.is_some_and(|seconds| !(seconds > 0.0 && seconds <= 1e9)) {
            return Err(Failure::new(Code::Parameters, "`timeout` is a number of seconds above 0"));
        }
        let number = self.next.replace(self.next.get() + 1);
        let (spawn, mut streams) = self.prepare_job(number, &start)?;
        let cwd = self.log.borrow().wanted().then(|| output::path(Path::new(OsStr::from_bytes(&spawn.cwd))));
        let plan = job::Plan {
            number,
            argv: start.shell.iter().chain(&start.argv).map(|word| ospath::escaped_bytes(word.meant().as_bytes())).collect(),
            started: clock::milliseconds(),
            background: start.background,
            split: !start.merge && start.pty.is_none(),
            pty: start.pty.is_some(),
            timeout: least(start.timeout, self.prepared.borrow().plan.limits.timeout),
            keep: start.keep,
        };
        // Before init is asked: its end can be told in one breath with its start.
        let job = Rc::new(Job::new(plan));
        job.clients.borrow_mut().extend(client);
        self.jobs.borrow_mut().insert(number, Rc::clone(&job));
        if let Err(failure) = self.start_job(&job, spawn, &mut streams, start.pty).await {
            self.jobs.borrow_mut().remove(&number);
            self.starting.borrow_mut().remove(&number);
            return Err(self.begin_anew(&start, failure));
        }
        if let Some(cwd) = cwd {
            self.note(&Event::JobStart { job: number, argv: job.plan.argv.clone(), cwd });
        }
        self.tell(&Notification::Job { job: number, state: State::Started, status: None });
        self.attend(&job, streams, start);
        Ok(job)
    }

    /// After a line that could not be started where and with what the one before has left: its directory is gone, or what it exported
    /// does not fit into a start any more. Otherwise no line could be started again.
    fn begin_anew(&self, start: &Start, failure: Failure) -> Failure {
        let cwd = self.prepared.borrow().plan.cwd.clone();
        let mut shell = self.shell.borrow_mut();
        if start.shell.is_none() || start.cwd.is_some() || shell.environment.is_none() && shell.cwd == cwd {
            return failure;
        }
        *shell = Shell { cwd, environment: None };
        failure.hint("the next line begins as the first one did, without the directory and the variables of this one")
    }

    /// Has init start a job.
    async fn start_job(&self, job: &Job, spawn: Spawn, streams: &mut Streams, pty: Option<Size>) -> Result<(), Failure> {
        let (started, answer) = oneshot::channel();
        self.starting.borrow_mut().insert(job.plan.number, started);
        // Together: init gives the terminal to the job that it is asked for next.
        let mut terminal = None;
        if let Some(size) = pty {
            let (given, answer) = oneshot::channel();
            self.terminals.borrow_mut().push_back(given);
            self.ask(&Request::OpenTerminal { size: (size.rows, size.columns) }, &[])?;
            terminal = Some(answer);
        }
        let argv0 = spawn.args.first().cloned().unwrap_or_default();
        let fds: Vec<BorrowedFd<'_>> = streams.theirs.iter().map(AsFd::as_fd).collect();
        self.ask(&Request::Spawn(Box::new(spawn)), &fds)?;
        streams.theirs.clear();
        let ended = |_| Failure::new(Code::Ended, "the sandbox has ended");
        let failed = |error: StepError| start_failure(&error, &argv0);
        let broken = |e: io::Error| Failure::new(Code::Start, format!("cannot listen to the job: {e}")).status(125);
        if let Some(terminal) = terminal {
            let master = streams::terminal(terminal.await.map_err(ended)?.map_err(failed)?).map_err(broken)?;
            *job.stdin.lock().await = Some(Sink::Terminal(Rc::clone(&master)));
            job.master.replace(Some(master));
        } else {
            *job.stdin.lock().await = streams.input.take().map(Sink::Pipe);
        }
        answer.await.map_err(ended)?.map_err(failed)
    }

    /// Everything that goes on beside a job.
    fn attend(self: &Rc<Self>, job: &Rc<Job>, streams: Streams, start: Start) {
        let mut all = Vec::new();
        let terminal = job.master.borrow().as_ref().map(|master| (Stream::Stdout, Source::Terminal(Rc::clone(master))));
        for (stream, source) in terminal.into_iter().chain(streams.output) {
            let (drained, is_drained) = oneshot::channel::<()>();
            all.push(is_drained);
            spawn_local(Rc::clone(job).take_output(source, stream, drained));
        }
        let pty = start.pty.is_some();
        match start.stdin {
            Input::Pipe => {}
            Input::Null if pty => {}
            Input::Null => spawn_and_forget(Rc::clone(job), Vec::new()),
            // What cannot be decoded was refused before the start.
            Input::All(bytes) => spawn_and_forget(Rc::clone(job), bytes.bytes().unwrap_or_default()),
        }
        if let Some(seconds) = job.plan.timeout {
            spawn_local(Rc::clone(self).end_in_time(Rc::clone(job), Duration::from_secs_f64(seconds)));
        }
        let report = streams.report.map(|report| spawn_local(Rc::clone(job).collect(report)));
        let (live, job) = (Rc::clone(self), Rc::clone(job));
        spawn_local(async move {
            let status = job.exited().await;
            for drained in all {
                let _ = drained.await;
            }
            if let Some(report) = report {
                let report = report.await.unwrap_or_default();
                *job.cwd.borrow_mut() = Some(live.shell.borrow_mut().take(&report));
            }
            job.release().await;
            job.progress.send_replace(Progress::Done(status));
            live.note(&Event::exited(job.plan.number, status));
            live.used.set(Instant::now());
            live.tell(&Notification::Job { job: job.plan.number, state: State::Ended, status: Some(job.exit().status) });
            live.forget_old();
        });
    }

    /// Stops a job whose time is up: first it is asked, after the policy's grace it is killed.
    async fn end_in_time(self: Rc<Self>, job: Rc<Job>, timeout: Duration) {
        tokio::select! {
            _ = job.exited() => return,
            () = tokio::time::sleep(timeout) => {}
        }
        job.timed_out.set(true);
        let _ = self.signal(job.plan.number, nix::sys::signal::Signal::SIGTERM, true);
        let grace = Duration::from_millis(self.prepared.borrow().plan.limits.grace);
        tokio::select! {
            _ = job.exited() => {}
            () = tokio::time::sleep(grace) => drop(self.kill(job.plan.number)),
        }
    }

    /// Writes an event. That it cannot is told, and ends nothing.
    fn note(&self, event: &Event<'_>) {
        if let Err(error) = self.log.borrow_mut().write(event) {
            error.report();
        }
    }

    /// Tells subscribers; one that does not read misses it.
    fn tell(&self, notification: &Notification) {
        let mut subscribers = self.subscribers.borrow_mut();
        subscribers.retain(|client| !client.is_closed());
        if subscribers.is_empty() {
            return;
        }
        let line = super::server::notification(notification);
        for client in subscribers.iter() {
            let _ = client.try_send(line.clone());
        }
    }

    fn forget_old(&self) {
        let mut jobs = self.jobs.borrow_mut();
        if jobs.len() < 2 * REMEMBERED {
            return;
        }
        let ended: Vec<u32> = jobs.values().filter(|job| job.has_exited()).map(|job| job.plan.number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(REMEMBERED)) {
            jobs.remove(number);
        }
    }

    fn prepare_job(&self, number: u32, start: &Start) -> Result<(Spawn, Streams), Failure> {
        let prepared = self.prepared.borrow();
        let plan = &prepared.plan;
        let shell = self.shell.borrow();
        let mut environment = match (&start.shell, &shell.environment, &start.caller) {
            (Some(_), Some(environment), _) => environment.clone(),
            (_, _, Some(caller)) => {
                let variables = caller.iter().map(|(name, value)| variable(name, value)).collect::<Result<Vec<_>, _>>()?;
                engine::environment_for(&prepared, self.way_out.borrow().as_ref(), variables.into_iter())
            }
            _ => self.environment.clone(),
        };
        for (name, value) in &start.env {
            let (name, value) = variable(name, value)?;
            environment.retain(|(known, _)| *known != name);
            environment.push((name, value));
        }
        let base = if start.shell.is_some() { &shell.cwd } else { &plan.cwd };
        let cwd = start.cwd.as_ref().map_or_else(|| base.clone(), |cwd| base.join(cwd.meant()));
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
        let path = path.as_deref().unwrap_or(OsStr::new(DEFAULT_PATH));
        let (candidates, args) = match &start.shell {
            Some(line) => shell::command(&line.meant(), path),
            None => (candidates(&start.argv[0].meant(), path), start.argv.iter().map(|arg| arg.meant().into_vec()).collect()),
        };
        if let Input::All(bytes) = &start.stdin {
            bytes.clone().bytes()?;
        }
        let mut streams = Streams::default();
        let broken = |e: io::Error| Failure::new(Code::Start, format!("cannot make pipes for the job: {e}")).status(125);
        let stdio = streams.make(start).map_err(broken)?;
        let spawn = Spawn {
            job: number,
            candidates,
            args,
            environment: environment
                .into_iter()
                .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
                .collect(),
            cwd: cwd.into_os_string().into_vec(),
            stdio,
            umask: self.umask,
            open_files: plan.limits.open_files,
            file_size: plan.limits.file_size,
            ends: if start.background { Ends::Nothing } else { Ends::Tree },
        };
        Ok((spawn, streams))
    }

    /// Takes what init says until the sandbox ends.
    pub(crate) async fn listen(self: Rc<Self>) -> io::Result<()> {
        let ready = streams::watched(self.sandbox.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        loop {
            let mut guard = ready.readable().await?;
            let said = guard.try_io(|_| {
                self.sandbox.try_event().map_err(|error| match error.errno() {
                    Errno::EAGAIN => io::ErrorKind::WouldBlock.into(),
                    _ => io::Error::other(error),
                })
            });
            match said {
                Err(_would_block) => {}
                Ok(event) => match event? {
                    None => {
                        self.stop(Reason::Failed);
                        return Ok(());
                    }
                    Some((event, fds)) => self.heard(event, fds),
                },
            }
        }
    }

    fn heard(&self, event: Answer, mut fds: Vec<OwnedFd>) {
        match event {
            Answer::Terminal => {
                if let (Some(waits), Some(master)) = (self.terminals.borrow_mut().pop_front(), fds.pop()) {
                    let _ = waits.send(Ok(master));
                }
            }
            Answer::TerminalFailed(error) => {
                if let Some(waits) = self.terminals.borrow_mut().pop_front() {
                    let _ = waits.send(Err(error));
                }
            }
            Answer::Started { job } => self.answered(job, Ok(())),
            Answer::StartFailed { job, error } => self.answered(job, Err(error)),
            Answer::Exited { job, status } => {
                if let Some(job) = self.jobs.borrow().get(&job) {
                    job.progress.send_replace(Progress::Exited(status));
                }
            }
            Answer::Covered { failed } => {
                if let Some(guards) = self.guards.borrow_mut().as_mut()
                    && let Err(error) = guards.covered(&failed)
                {
                    error.report();
                }
            }
            Answer::MemoryExceeded { resident } => output::complain(&format!(
                "the memory limit was exceeded ({} MiB in use), so all jobs were killed; raise it with --limit memory=SIZE",
                resident >> 20
            )),
            Answer::SetupFailed(error) => {
                output::complain(&error.to_string());
                self.stop(Reason::Failed);
            }
            event @ (Answer::Listening(_) | Answer::ListenFailed(_) | Answer::Socket) => {
                if let Some(way_out) = self.way_out.borrow_mut().as_mut() {
                    way_out.hear(&event, fds);
                }
            }
            Answer::Ready | Answer::Stopped { .. } => {}
        }
    }

    fn answered(&self, job: u32, answer: Result<(), StepError>) {
        if let Some(waits) = self.starting.borrow_mut().remove(&job) {
            let _ = waits.send(answer);
        }
    }

    /// Looks after guarded files while the sandbox lives.
    pub(crate) async fn guard(self: Rc<Self>) -> io::Result<()> {
        let mut watch: Option<AsyncFd<OwnedFd>> = None;
        loop {
            let due = self.guards.borrow_mut().as_mut().map(Guards::tick);
            match due {
                None => return Ok(()),
                Some(Ok(covers)) => covers.into_iter().for_each(|covers| drop(self.ask(&Request::Cover(covers), &[]))),
                Some(Err(error)) => drop(error.report()),
            }
            let deadline = {
                let mut guards = self.guards.borrow_mut();
                let Some(guards) = guards.as_mut() else { return Ok(()) };
                match (guards.events(), &watch) {
                    (Some(fd), None) => watch = Some(streams::watched(fd.try_clone_to_owned()?, Interest::READABLE)?),
                    (None, Some(_)) => watch = None,
                    _ => {}
                }
                guards.deadline()
            };
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let happened = async {
                match &watch {
                    Some(watch) => watch.readable().await.map(|mut ready| ready.clear_ready()),
                    None => std::future::pending().await,
                }
            };
            tokio::select! { () = due => {}, happened = happened => happened? }
        }
    }
}

/// Feeds a job all of its input. What it leaves in the background may read on.
fn spawn_and_forget(job: Rc<Job>, bytes: Vec<u8>) {
    spawn_local(async move {
        tokio::select! {
            _ = job.write(&bytes, true) => {}
            // Another job may have taken the other end, and never read.
            _ = job.exited(), if !job.plan.background => {}
        }
    });
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn window(size: Size) -> nix::pty::Winsize {
    nix::pty::Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A variable, if it can be one.
fn variable(name: &str, value: &Word) -> Result<(OsString, OsString), Failure> {
    let value = value.meant();
    match name.is_empty() || name.contains(['=', '\0']) || value.as_bytes().contains(&0) {
        true => Err(Failure::new(Code::Parameters, format!("`{}` cannot be a variable", output::clean(name)))),
        false => Ok((name.into(), value)),
    }
}

/// The seconds that a job has: what was asked for, but no more than the policy's milliseconds.
fn least(asked: Option<f64>, policy: Option<u64>) -> Option<f64> {
    let policy = policy.map(|milliseconds| Duration::from_millis(milliseconds).as_secs_f64());
    asked.into_iter().chain(policy).reduce(f64::min)
}

/// Why a job did not start, as `run` would say it.
fn start_failure(error: &StepError, argv0: &[u8]) -> Failure {
    let program = output::path(Path::new(OsStr::from_bytes(argv0)));
    match (error.step, error.errno()) {
        (Step::Exec, Errno::ENOENT | Errno::ENOTDIR) => {
            Failure::new(Code::Start, format!("{program}: command not found in the sandbox")).status(127)
        }
        (Step::Exec, errno) => {
            Failure::new(Code::Start, format!("{program}: cannot be executed: {} ({errno:?})", errno.desc())).status(126)
        }
        (Step::WorkingDirectory, errno) => {
            let directory = error.subject.as_deref().map(output::path).unwrap_or_default();
            Failure::new(Code::Start, format!("{directory}: cannot be entered in the sandbox: {} ({errno:?})", errno.desc()))
                .status(126)
        }
        _ => Failure::new(Code::Start, error.to_string()).status(125),
    }
}
