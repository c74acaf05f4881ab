//! Runs one command in a sandbox: start, forward, wait.
//!
//! One thread and one `poll`: there is nothing here that an async runtime would make simpler, and a start that needs
//! none is faster.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

use hermes_backends::closure::DEFAULT_PATH;
use hermes_backends::local::{HandedFd, Sandbox};
use hermes_backends::plan::Plan;
use hermes_backends::step::{Step, StepError};
use hermes_backends::wire::{Ends, Event as Answer, Request, Spawn, Stdio};
use hermes_profiles::ospath;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::unistd::Pid;

use crate::clock;
use crate::error::{Error, Kind};
use crate::events::{Event, Log};
use crate::guard::Guards;
use crate::network::WayOut;
use crate::output;
use crate::stdio::{self, Descriptor};
use crate::terminal::{Relay, Typed};

/// The only job of a `run`.
const JOB: u32 = 1;
/// How long init may take to obey; then it is killed, and the kernel kills everything with it.
const UNANSWERED: Duration = Duration::from_secs(5);
/// How long a start may take.
const START: Duration = Duration::from_secs(60);
/// Time between Ctrl-Z and the stop.
const TIDY: Duration = Duration::from_millis(100);
/// A second Ctrl-C within this time kills.
const IMPATIENCE: Duration = Duration::from_secs(2);
/// What `timeout` is answered with.
const TIMED_OUT: u8 = 124;

const FORWARDED: &[Signal] = &[
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGTTOU,
];

/// What goes along with a sandbox.
pub(crate) struct Along<'a> {
    /// Init joins these.
    pub(crate) cgroups: &'a [BorrowedFd<'a>],
    /// Init keeps these open.
    pub(crate) held: &'a [BorrowedFd<'a>],
    pub(crate) guards: Option<&'a mut Guards>,
    pub(crate) way_out: Option<&'a mut WayOut>,
}

impl Along<'_> {
    fn start(&mut self, plan: &Plan, handed: &[HandedFd<'_>], command: &[OsString]) -> Result<Sandbox, Error> {
        let certificates = self.way_out.as_ref().map(|way_out| way_out.certificates(plan)).transpose()?.unwrap_or_default();
        let to_error = |error: StepError| failed(&error, command);
        let sandbox = Sandbox::start(plan, handed, (self.cgroups, self.held), certificates).map_err(to_error)?;
        if let Some(way_out) = &mut self.way_out {
            way_out.start(&sandbox)?;
        }
        if let Some(guards) = &mut self.guards {
            // Beside the set-up, and before the first process.
            let covers = guards.take_baseline(sandbox.init().as_raw())?;
            if !covers.is_empty() {
                sandbox.cover(covers).map_err(to_error)?;
            }
        }
        Ok(sandbox)
    }

    /// Takes what init says about what goes along; false for anything else.
    fn hear(&mut self, event: &Answer, fds: &mut Vec<OwnedFd>) -> Result<bool, Error> {
        match (event, &mut self.guards, &mut self.way_out) {
            (Answer::Covered { failed }, Some(guards), _) => guards.covered(failed)?,
            (Answer::Listening(_) | Answer::Socket, _, Some(way_out)) => way_out.hear(event, std::mem::take(fds)),
            (Answer::Covered { .. } | Answer::Listening(_) | Answer::Socket, ..) => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Runs `command` and returns its exit status.
pub(crate) fn run(
    plan: &Plan,
    command: &[OsString],
    environment: Vec<(OsString, OsString)>,
    mut along: Along<'_>,
    log: &mut Log,
) -> Result<u8, Error> {
    let descriptors = stdio::look()?;
    let mut signals = SigSet::empty();
    for &signal in FORWARDED {
        signals.add(signal);
    }
    signals.thread_block().map_err(|errno| failed(&StepError::new(Step::Spawn, errno), command))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&signals, flags).map_err(|errno| failed(&StepError::new(Step::Spawn, errno), command))?;

    let own = [std::io::stdin().as_fd(), std::io::stdout().as_fd(), std::io::stderr().as_fd()].map(|fd| fd.try_clone_to_owned());
    let mut fds = Vec::with_capacity(3);
    for fd in own {
        fds.push(fd.map_err(|e| Error::setup(format!("cannot copy a standard descriptor: {e}")))?);
    }
    let handed: Vec<HandedFd<'_>> = fds
        .iter()
        .zip(&descriptors)
        .filter(|(_, descriptor)| descriptor.reopenable)
        .map(|(fd, descriptor)| HandedFd { fd: fd.as_fd(), opened: descriptor.opened })
        .collect();
    let to_error = |error: StepError| failed(&error, command);
    let sandbox = along.start(plan, &handed, command)?;
    let terminal = descriptors.iter().any(|descriptor| descriptor.kind == Stdio::Terminal);
    let spawn = spawn(plan, command, environment, &descriptors);
    let passed: Vec<BorrowedFd<'_>> =
        fds.iter().zip(&descriptors).filter(|(_, d)| d.kind == Stdio::Handed).map(|(fd, _)| fd.as_fd()).collect();
    let mut relay = None;
    if terminal {
        sandbox.request(&Request::OpenTerminal { size: (0, 0) }, &[]).map_err(to_error)?;
        relay = Some(open_terminal(&sandbox, command, &mut along)?);
    }
    if !along.held.is_empty() {
        clock::await_tick();
    }
    sandbox.spawn(spawn, &passed).map_err(to_error)?;
    drop(passed);
    let waits = !(along.cgroups.is_empty() && along.held.is_empty());
    let mut session = Session {
        plan,
        command,
        sandbox,
        signals,
        relay,
        along,
        log,
        deadline: Some((Instant::now() + START, Due::Start)),
        interrupted: None,
        leader: None,
        suspend: None,
        timed_out: false,
    };
    let status = session.wait()?;
    if waits {
        // The control group can only be removed when init has left it, and what it holds is only free then.
        session.sandbox.wait();
    } else {
        session.sandbox.release();
    }
    Ok(status)
}

/// Starts a sandbox without a command and waits until it stands.
pub(crate) fn open(plan: &Plan, mut along: Along<'_>) -> Result<Sandbox, Error> {
    let to_error = |error: StepError| failed(&error, &[]);
    let sandbox = along.start(plan, &[], &[])?;
    if !along.held.is_empty() {
        clock::await_tick();
    }
    sandbox.request(&Request::Ready, &[]).map_err(to_error)?;
    loop {
        match sandbox.event().map_err(to_error)? {
            Some((Answer::Ready, _)) => return Ok(sandbox),
            Some((Answer::SetupFailed(error), _)) => return Err(to_error(error)),
            Some((event, mut fds)) => drop(along.hear(&event, &mut fds)?),
            None => return Err(Error::setup("the sandbox's init ended before the sandbox stood")),
        }
    }
}

fn open_terminal(sandbox: &Sandbox, command: &[OsString], along: &mut Along<'_>) -> Result<Relay, Error> {
    let lost = || Error::setup("the sandbox's init ended before it opened a terminal");
    loop {
        match sandbox.event().map_err(|error| failed(&error, command))? {
            Some((Answer::Terminal, mut fds)) => {
                let master = fds.pop().ok_or_else(lost)?;
                return Relay::new(master).map_err(|errno| failed(&StepError::new(Step::Terminal, errno), command));
            }
            Some((Answer::SetupFailed(error) | Answer::TerminalFailed(error), _)) => return Err(failed(&error, command)),
            Some((event, mut fds)) => {
                if !along.hear(&event, &mut fds)? {
                    return Err(lost());
                }
            }
            None => return Err(lost()),
        }
    }
}

fn spawn(plan: &Plan, command: &[OsString], environment: Vec<(OsString, OsString)>, descriptors: &[Descriptor; 3]) -> Spawn {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    let mask = umask(Mode::empty());
    umask(mask);
    Spawn {
        job: JOB,
        candidates: candidates(&command[0], path.as_deref().unwrap_or(OsStr::new(DEFAULT_PATH))),
        args: command.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        environment: environment.into_iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect(),
        cwd: plan.cwd.as_os_str().as_bytes().to_vec(),
        stdio: descriptors.iter().map(|descriptor| descriptor.kind).collect(),
        umask: mask.bits(),
        open_files: plan.limits.open_files,
        file_size: plan.limits.file_size,
        ends: Ends::Sandbox,
    }
}

/// Where execvp would look for `program`.
pub(crate) fn candidates(program: &OsStr, path: &OsStr) -> Vec<Vec<u8>> {
    if program.as_bytes().contains(&b'/') || program.is_empty() {
        return vec![program.as_bytes().to_vec()];
    }
    std::env::split_paths(path)
        .map(|dir| if dir.as_os_str().is_empty() { ".".into() } else { dir })
        .map(|dir| dir.join(program).into_os_string().into_vec())
        .collect()
}

/// What a deadline is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The command has not started.
    Start,
    /// The command's time is up.
    Timeout,
    /// The grace after a SIGTERM or SIGHUP is over.
    Kill,
    /// Init has not answered.
    Abandon,
}

struct Session<'a> {
    plan: &'a Plan,
    command: &'a [OsString],
    sandbox: Sandbox,
    signals: SignalFd,
    relay: Option<Relay>,
    along: Along<'a>,
    log: &'a mut Log,
    deadline: Option<(Instant, Due)>,
    interrupted: Option<Instant>,
    /// The job's own process group, known once it runs.
    leader: Option<Pid>,
    /// When to stop the job because of Ctrl-Z.
    suspend: Option<Instant>,
    timed_out: bool,
}

impl Session<'_> {
    fn wait(&mut self) -> Result<u8, Error> {
        if let Some(relay) = &mut self.relay {
            relay.enter();
        }
        loop {
            let (event, signal, output, input) = self.poll()?;
            if output && let Some(relay) = &mut self.relay {
                relay.flush();
                relay.copy_output();
            }
            if input {
                match self.relay.as_mut().map(Relay::take_input) {
                    Some(Typed::HungUp) => self.forward(Signal::SIGHUP)?,
                    Some(Typed::Suspend) => self.suspend_soon(),
                    Some(Typed::Text) | None => {}
                }
            }
            if signal {
                self.take_signals()?;
            }
            if event && let Some(status) = self.take_event()? {
                if let Some(mut relay) = self.relay.take() {
                    relay.drain();
                    relay.leave();
                }
                return Ok(if self.timed_out { TIMED_OUT } else { status });
            }
            self.check_deadline()?;
            self.look_after_files()?;
        }
    }

    fn look_after_files(&mut self) -> Result<(), Error> {
        let Some(guards) = &mut self.along.guards else { return Ok(()) };
        for covers in guards.tick()? {
            self.sandbox.cover(covers).map_err(|error| failed(&error, self.command))?;
        }
        Ok(())
    }

    /// Waits for something to do: (event, signal, output of the job, input for it).
    fn poll(&self) -> Result<(bool, bool, bool, bool), Error> {
        let watched = self.along.guards.as_ref().and_then(|guards| guards.events());
        let looks = self.along.guards.as_ref().and_then(|guards| guards.deadline());
        let next = self.deadline.map(|(at, _)| at).into_iter().chain(self.suspend).chain(looks).min();
        let timeout = next.map_or(PollTimeout::NONE, |at| {
            PollTimeout::try_from(at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
                .unwrap_or(PollTimeout::MAX)
        });
        let input = std::io::stdin();
        let relay = self.relay.as_ref();
        let master = relay.and_then(Relay::master);
        let typed = relay.is_some_and(Relay::wants_input);
        let mut fds =
            vec![PollFd::new(self.sandbox.as_fd(), PollFlags::POLLIN), PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if typed {
            fds.push(PollFd::new(input.as_fd(), PollFlags::POLLIN));
        }
        if let Some(master) = master {
            let room = if relay.is_some_and(Relay::has_pending) { PollFlags::POLLOUT } else { PollFlags::empty() };
            fds.push(PollFd::new(master, PollFlags::POLLIN | room));
        }
        fds.extend(watched.map(|watched| PollFd::new(watched, PollFlags::POLLIN)));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::setup(format!("cannot wait for the sandbox: {}", errno.desc()))),
        }
        let ready = |n: usize| fds.get(n).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
        let output = 2 + usize::from(typed);
        Ok((ready(0), ready(1), master.is_some() && ready(output), typed && ready(2)))
    }

    /// One event from init; the exit status when the job has ended.
    fn take_event(&mut self) -> Result<Option<u8>, Error> {
        match self.sandbox.event().map_err(|error| failed(&error, self.command))? {
            None => {
                Err(Error::setup("the sandbox's init ended unexpectedly")
                    .hint("was it killed, or out of memory? see the kernel log"))
            }
            Some((Answer::SetupFailed(error) | Answer::StartFailed { error, .. }, _)) => Err(failed(&error, self.command)),
            Some((Answer::Started { job }, _)) => {
                self.leader = self.relay.as_ref().and_then(Relay::foreground);
                // A signal that came first has set another one.
                if self.deadline.is_some_and(|(_, due)| due == Due::Start) {
                    let timeout = self.plan.limits.timeout.map(Duration::from_millis);
                    self.deadline = timeout.map(|timeout| (Instant::now() + timeout, Due::Timeout));
                }
                if self.log.wanted() {
                    let argv = self.command.iter().map(|arg| ospath::escaped_bytes(arg.as_bytes())).collect();
                    self.log.write(&Event::JobStart { job, argv, cwd: output::path(&self.plan.cwd) })?;
                }
                Ok(None)
            }
            Some((Answer::Exited { job, status }, _)) => {
                let (code, signal) = (status >> 8 & 0xff, status & 0x7f);
                self.log.write(&Event::exited(job, status))?;
                Ok(Some(if signal == 0 { code as u8 } else { 128 + signal as u8 }))
            }
            Some((Answer::Stopped { signal, .. }, _)) => {
                // Our own SIGSTOP has been seen to already; a job that stops itself otherwise stops us with it.
                if self.relay.is_some() && signal != Signal::SIGSTOP as i32 {
                    self.stop()?;
                }
                Ok(None)
            }
            Some((Answer::MemoryExceeded { resident }, _)) => {
                let limit = self.plan.limits.memory.unwrap_or(0);
                output::complain(&format!(
                    "the memory limit was exceeded ({} MiB in use, {} MiB allowed), so the command was killed; raise it with --limit memory=SIZE",
                    resident >> 20,
                    limit >> 20
                ));
                self.log.write(&Event::LimitHit { limit: "memory".into() })?;
                Ok(None)
            }
            Some((event @ (Answer::Covered { .. } | Answer::Listening(_) | Answer::Socket), mut fds)) => {
                self.along.hear(&event, &mut fds)?;
                Ok(None)
            }
            Some((Answer::Ready | Answer::Terminal | Answer::TerminalFailed(_) | Answer::ListenFailed(_), _)) => Ok(None),
        }
    }

    /// Ctrl-Z. The kernel ignores it for a job that is its session's only group (an orphaned one, POSIX.1 3.264), so that
    /// job is stopped after it had its chance to tidy the screen; a shell inside sees to its own jobs.
    fn suspend_soon(&mut self) {
        let front = self.relay.as_ref().and_then(Relay::foreground);
        if front.is_some() && (self.leader.is_none() || front == self.leader) {
            self.suspend = Some(Instant::now() + TIDY);
        }
    }

    /// The job was stopped (Ctrl-Z on its terminal): stop with it, and continue it when continued.
    fn stop(&mut self) -> Result<(), Error> {
        if let Some(relay) = &mut self.relay {
            relay.leave();
        }
        let _ = raise(Signal::SIGSTOP);
        self.resume()
    }

    fn resume(&mut self) -> Result<(), Error> {
        if let Some(relay) = &mut self.relay {
            relay.enter();
            relay.resize();
        }
        self.send(Signal::SIGCONT, true)
    }

    fn send(&self, signal: Signal, group: bool) -> Result<(), Error> {
        self.sandbox.signal(JOB, signal, group).map_err(|error| failed(&error, self.command))
    }

    fn take_signals(&mut self) -> Result<(), Error> {
        while let Ok(Some(info)) = self.signals.read_signal() {
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                self.forward(signal)?;
            }
        }
        Ok(())
    }

    fn forward(&mut self, signal: Signal) -> Result<(), Error> {
        match signal {
            Signal::SIGTTOU => Ok(()),
            Signal::SIGWINCH => {
                if let Some(relay) = &self.relay {
                    relay.resize();
                    return Ok(());
                }
                self.send(signal, true)
            }
            Signal::SIGTSTP => {
                self.send(Signal::SIGTSTP, true)?;
                if let Some(relay) = &mut self.relay {
                    relay.leave();
                }
                let _ = raise(Signal::SIGSTOP);
                self.resume()
            }
            Signal::SIGCONT => self.resume(),
            // What the terminal's keys send goes to the foreground group; people press twice when they mean it.
            Signal::SIGINT | Signal::SIGQUIT => {
                let now = Instant::now();
                if signal == Signal::SIGINT && self.interrupted.is_some_and(|at| now - at < IMPATIENCE) {
                    return self.kill();
                }
                self.interrupted = Some(now);
                self.send(signal, true)
            }
            Signal::SIGTERM | Signal::SIGHUP => {
                self.kill_later();
                self.send(signal, false)
            }
            other => self.send(other, false),
        }
    }

    fn kill_later(&mut self) {
        let at = Instant::now() + Duration::from_millis(self.plan.limits.grace);
        if self.deadline.is_none_or(|(_, due)| due != Due::Kill) {
            self.deadline = Some((at, Due::Kill));
        }
    }

    fn kill(&mut self) -> Result<(), Error> {
        self.deadline = Some((Instant::now() + UNANSWERED, Due::Abandon));
        self.sandbox.request(&Request::Kill { job: JOB }, &[]).map_err(|error| failed(&error, self.command))
    }

    fn check_deadline(&mut self) -> Result<(), Error> {
        if self.suspend.is_some_and(|at| at <= Instant::now()) {
            self.suspend = None;
            self.send(Signal::SIGSTOP, true)?;
            return self.stop();
        }
        match self.deadline {
            Some((at, due)) if at <= Instant::now() => {
                self.deadline = None;
                match due {
                    Due::Kill => self.kill(),
                    Due::Start | Due::Abandon => {
                        self.sandbox.kill();
                        Ok(())
                    }
                    Due::Timeout => {
                        self.timed_out = true;
                        output::complain("the command's time is up (--limit timeout), so it was stopped");
                        self.log.write(&Event::LimitHit { limit: "timeout".into() })?;
                        self.kill_later();
                        self.send(Signal::SIGTERM, true)
                    }
                }
            }
            _ => Ok(()),
        }
    }
}

/// The error for a step of the set-up or of the start.
fn failed(error: &StepError, command: &[OsString]) -> Error {
    let program = command.first().map(|program| ospath::escaped_bytes(program.as_bytes())).unwrap_or_default();
    match (error.step, error.errno()) {
        (Step::Exec, errno @ (Errno::ENOENT | Errno::ENOTDIR)) => match interpreter(command).filter(|_| errno == Errno::ENOENT) {
            Some(interpreter) => {
                Error::new(Kind::NotFound, format!("{program}: its interpreter {interpreter} is not in the sandbox"))
                    .hint("correct the #! line, or grant the interpreter with --ro")
            }
            None => Error::new(Kind::NotFound, format!("{program}: command not found in the sandbox"))
                .hint("it is looked for in PATH and in what the policy grants; `--ro DIR` grants a directory"),
        },
        (Step::Exec, Errno::E2BIG) => {
            Error::new(Kind::NotExecutable, format!("{program}: arguments and environment are too long (E2BIG)"))
        }
        (Step::Exec, errno) => {
            Error::new(Kind::NotExecutable, format!("{program}: cannot be executed: {} ({errno:?})", errno.desc()))
        }
        (Step::Namespaces | Step::IdMap | Step::Proc | Step::Loopback, _) => Error::setup(error.to_string())
            .hint("`hermes-sandbox doctor` says what this machine cannot do and how to change that"),
        _ => Error::setup(error.to_string()),
    }
}

/// What the `#!` line of a command names, when the command is given by a path and is a script.
fn interpreter(command: &[OsString]) -> Option<String> {
    use std::io::Read;
    let program = command.first().filter(|program| program.as_bytes().contains(&b'/'))?;
    // Looked at before it is opened: a FIFO would wait for a writer.
    std::fs::metadata(program).ok().filter(std::fs::Metadata::is_file)?;
    let file = std::fs::File::open(program).ok()?;
    let mut start = Vec::new();
    file.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    Some(ospath::escaped_bytes(name))
}
