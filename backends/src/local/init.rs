//! Pid 1 of a sandbox (in the Landlock tier: the parent of its jobs).
//!
//! The *keeper* stays outside the jobs' Landlock domain and filter: it obeys the supervisor, reaps and kills. The
//! [spawner](super::spawner) is confined for good and starts every job. The [broker](super::broker) answers `connect`
//! where the filter asks.
//!
//! In the namespaces tier the first thread builds the sandbox, confines itself, starts the first job and is the spawner
//! from then on; the keeper is a thread made before that. So nothing waits for another thread to be scheduled between
//! the set-up and the first job, which on a busy machine takes longer than the whole set-up. In the Landlock tier the
//! first thread is the keeper, and the spawner a process; with routes the filter's other end goes to the supervisor, which
//! answers the calls ([`broker::inet`]).

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::Winsize;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid, setsid};

use super::gateway::{Gateway, Listening};
use super::jobs::Jobs;
use super::landlock::{Handed, keep_signals_in};
use super::spawner::{Confinement, Spawner};
use super::{broker, cover, gateway, root, spawner, sys, tree};
use crate::limits::watchdog;
use crate::plan::{MountStep, NetworkPlan, Tier};
use crate::step::{At, Step, StepError};
use crate::wire::{Channel, Cover, Ends, Event, JobId, Listener, Request, Setup, Spawn, Stdio};

/// How often the watchdog looks while memory use is far from its limit.
const WATCH_SLOW: Duration = Duration::from_millis(500);
/// How often it looks from half of the limit on.
const WATCH_FAST: Duration = Duration::from_millis(50);
/// Jobs die before their supervisor when the machine runs out of memory.
const OOM_SCORE_ADJ: &str = "500";

/// Runs init on the control socket at descriptor 0. Returns the exit status of the process.
pub fn main() -> i32 {
    let Ok(channel) = Channel::from_stdin() else { return 125 };
    let Ok(Some((Request::Setup(setup), fds))) = channel.receive::<Request>() else { return 125 };
    let channel = Arc::new(channel);
    let outcome = match setup.tier {
        Tier::Namespaces => serve_namespaces(*setup, fds, &channel),
        Tier::Landlock => serve_landlock(&setup, fds, &channel),
    };
    outcome.unwrap_or_else(|error| fail(&channel, error))
}

/// Tells the supervisor why the sandbox ends. Returns the exit status.
fn fail(channel: &Channel, error: StepError) -> i32 {
    let _ = channel.send(&Event::SetupFailed(error), &[]);
    125
}

struct Init {
    tier: Tier,
    /// Does `kill(-1)` reach this sandbox and nothing else?
    kept_in: bool,
    spawner: Spawner,
    children: SignalFd,
    jobs: Jobs,
    terminal: Option<OwnedFd>,
    memory: Option<u64>,
    gateway: Option<Gateway>,
}

/// What the first thread, which gives up all rights before the first job, asks the keeper for.
enum Task {
    /// Cover names; the answer goes to the supervisor.
    Cover(Vec<Cover>),
    /// Listen on more ports; the answer goes to the supervisor.
    Listen(Vec<u16>),
    /// Take over: the first job runs.
    HandOver { listener: Option<OwnedFd>, jobs: Jobs },
}

fn serve_namespaces(setup: Setup, mut fds: Vec<OwnedFd>, channel: &Arc<Channel>) -> Result<i32, StepError> {
    // Outlives its supervisor by nothing; the end of the control socket tells of a death before this line.
    let (children, jobs) = prepare(&setup)?;
    prctl::set_pdeathsig(Signal::SIGKILL).at(Step::Spawn)?;
    if setup.network == NetworkPlan::Private {
        let any = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).at(Step::Loopback)?;
        sys::thread::loopback_up(any.as_fd()).at(Step::Loopback)?;
    }
    // Locks above all: they are free when the last process of the sandbox is gone, and not before.
    let (handed, _held) = split_handed(&setup, &mut fds)?;
    let trees = setup.trees.iter().map(|&index| index as usize).zip(fds).collect();
    let gateway = tell_listeners(&setup, channel)?;
    let private_devices = root::enter(&setup, trees)?;
    let confinement = confinement(&setup, handed, true);
    let (spawner, desk) = spawner::pair();
    let (tasks, to_do) = mpsc::channel::<Task>();
    let (covered, done) = mpsc::channel::<()>();
    let keeper = {
        let channel = Arc::clone(channel);
        move || {
            let keep = || -> Result<i32, StepError> {
                keep(&[Capability::CAP_SYS_PTRACE], &[Capability::CAP_SYS_ADMIN]).at(Step::Capabilities)?;
                // Before there is a job: one that takes all processes that are allowed would leave none for it.
                let broker = if setup.notify { Some(prepare_broker()?) } else { None };
                let (listener, jobs) = loop {
                    match to_do.recv().map_err(|_| StepError::new(Step::Thread, Errno::ESRCH))? {
                        Task::HandOver { listener, jobs } => break (listener, jobs),
                        Task::Cover(covers) => {
                            cover_names(&channel, &covers);
                            covered.send(()).map_err(|_| StepError::new(Step::Thread, Errno::ESRCH))?;
                        }
                        Task::Listen(ports) => listen(&channel, gateway.as_ref(), ports),
                    }
                };
                // The first job runs already; its connects wait until the broker serves them.
                if let (Some(broker), Some(listener)) = (broker, listener) {
                    broker.start(listener, broker_config(&setup, private_devices))?;
                }
                let (tier, memory) = (setup.tier, setup.memory_watchdog);
                Ok(Init { tier, kept_in: true, spawner, children, jobs, terminal: None, memory, gateway }.serve(&channel))
            };
            // Without its keeper a sandbox ends; the kernel takes everything with pid 1.
            std::process::exit(keep().unwrap_or_else(|error| fail(&channel, error)))
        }
    };
    std::thread::Builder::new().name("hermes-keeper".to_owned()).spawn(keeper).at(Step::Thread)?;
    let listener = spawner::confine(&confinement)?;
    drop(confinement);
    let gone = || StepError::new(Step::Thread, Errno::ESRCH);
    let cover = |covers| tasks.send(Task::Cover(covers)).is_ok() && done.recv().is_ok();
    let more = |ports| drop(tasks.send(Task::Listen(ports)));
    let Some(jobs) = first_job(channel, jobs, cover, more) else { return Ok(125) };
    tasks.send(Task::HandOver { listener, jobs }).map_err(|_| gone())?;
    desk.serve();
    Ok(125)
}

/// Starts the first job that the supervisor asks for, by the calling thread. `None` when the sandbox ends instead.
fn first_job(channel: &Channel, mut jobs: Jobs, cover: impl Fn(Vec<Cover>) -> bool, listen: impl Fn(Vec<u16>)) -> Option<Jobs> {
    let mut terminal = None;
    loop {
        match channel.receive::<Request>() {
            Ok(Some((Request::OpenTerminal { size }, _))) => terminal = give_terminal(channel, size),
            Ok(Some((Request::Spawn(spawn), fds))) => {
                let started = standard(&spawn, terminal.take(), fds).and_then(|stdio| spawner::start(&spawn, &stdio, false));
                let _ = enter_job(channel, &mut jobs, (spawn.job, spawn.ends), started);
                return Some(jobs);
            }
            Ok(Some((Request::Cover(covers), _))) => {
                // A job that started before would write past the cover.
                if !cover(covers) {
                    return None;
                }
            }
            Ok(Some((Request::Socket { ipv6 }, _))) => give_socket(channel, ipv6),
            Ok(Some((Request::Listen(ports), _))) => listen(ports),
            Ok(Some((Request::Ready, _))) => drop(channel.send(&Event::Ready, &[])),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

fn give_socket(channel: &Channel, ipv6: bool) {
    let made = gateway::unconnected(ipv6).ok();
    let _ = channel.send(&Event::Socket, &made.iter().map(AsFd::as_fd).collect::<Vec<_>>());
}

/// Makes the sockets that the supervisor serves the sandbox on, and hands them out.
fn tell_listeners(setup: &Setup, channel: &Channel) -> Result<Option<Gateway>, StepError> {
    let mut all = gateway::loopback(&setup.connect)?;
    let gateway = setup.gateway.as_ref().map(Gateway::make).transpose()?;
    let gateway = gateway.map(|(gateway, listening)| {
        all.extend(listening);
        gateway
    });
    if !all.is_empty() {
        tell(channel, all).at(Step::Gateway)?;
    }
    Ok(gateway)
}

fn tell(channel: &Channel, listening: Vec<Listening>) -> Result<(), Errno> {
    let (kinds, fds): (Vec<_>, Vec<_>) = listening.into_iter().unzip();
    channel.send(&Event::Listening(kinds), &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>())
}

/// Listens on more ports of the gateway.
fn listen(channel: &Channel, gateway: Option<&Gateway>, ports: Vec<u16>) {
    let made = gateway.ok_or(Errno::ENONET).and_then(|gateway| gateway.listen(ports));
    let told = match made {
        Ok(listening) => tell(channel, listening),
        Err(errno) => channel.send(&Event::ListenFailed(StepError::new(Step::Gateway, errno)), &[]),
    };
    let _ = told;
}

/// Covers names with the right to mount, which the keeper holds for no longer.
fn cover_names(channel: &Channel, covers: &[Cover]) {
    let admin = Capability::CAP_SYS_ADMIN;
    let failed = match caps::raise(None, CapSet::Effective, admin) {
        Ok(()) => cover::apply(covers),
        Err(_) => (0..)
            .zip(covers)
            .map(|(index, cover)| (index, StepError::on(Step::Capabilities, cover.target(), Errno::EPERM)))
            .collect(),
    };
    let _ = caps::drop(None, CapSet::Effective, admin);
    let _ = channel.send(&Event::Covered { failed }, &[]);
}

/// Tells the supervisor how a start went, and enters a job that runs. An error is the step that failed.
fn enter_job(
    channel: &Channel,
    jobs: &mut Jobs,
    (job, ends): (JobId, Ends),
    started: Result<Pid, StepError>,
) -> Result<(), Step> {
    let (event, outcome) = match started {
        Ok(pid) => {
            jobs.started(job, pid, ends);
            (Event::Started { job }, Ok(()))
        }
        Err(error) => {
            let step = error.step;
            (Event::StartFailed { job, error }, Err(step))
        }
    };
    let _ = channel.send(&event, &[]);
    outcome
}

fn serve_landlock(setup: &Setup, mut fds: Vec<OwnedFd>, channel: &Channel) -> Result<i32, StepError> {
    let (children, jobs) = prepare(setup)?;
    sys::thread::become_subreaper().at(Step::Spawn)?;
    let (handed, _held) = split_handed(setup, &mut fds)?;
    // Root of a container may have none, and with an empty bounding set no exec gives any.
    let some = |set| caps::read(None, set).map_or(true, |held| !held.is_empty());
    let capable = nix::unistd::geteuid().is_root() && (some(CapSet::Permitted) || some(CapSet::Bounding));
    let kept_in = match &setup.landlock {
        Some(plan) if plan.scope_signals => {
            keep_signals_in()?;
            // Before the supervisor and everything else of the user are trusted to it, see that it holds.
            kill(getppid(), None) == Err(Errno::EPERM)
        }
        _ => false,
    };
    if let Some(path) = setup.gateway.as_ref().and_then(|gateway| gateway.certificates.as_deref()) {
        write_new(path, &setup.certificates.pem).at_path(Step::Create, path)?;
    }
    let (spawner, calls) = spawner::start_process(confinement(setup, handed, capable))?;
    if let Some(calls) = calls {
        channel.send(&Event::Listening(vec![Listener::Calls]), &[calls.as_fd()]).at(Step::Gateway)?;
    }
    if capable {
        keep_only(&[]).at(Step::Capabilities)?;
    }
    let memory = setup.memory_watchdog;
    let init = Init { tier: setup.tier, kept_in, spawner, children, jobs, terminal: None, memory, gateway: None };
    Ok(init.serve(channel))
}

/// What comes first in both tiers. Returns where deaths of children are told, and an empty table of jobs.
fn prepare(setup: &Setup) -> Result<(SignalFd, Jobs), StepError> {
    prctl::set_no_new_privs().at(Step::NoNewPrivileges)?;
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    prctl::set_dumpable(false).at(Step::Spawn)?;
    let _ = prctl::set_name(c"hermes-init");
    let _ = setsid();
    // The modes in the plan are what is meant; jobs get the caller's mask.
    umask(Mode::empty());
    if let Some(processes) = setup.processes {
        let processes = spawner::capped(Resource::RLIMIT_NPROC, processes)?;
        setrlimit(Resource::RLIMIT_NPROC, processes, processes).at(Step::Limits)?;
    }
    let blocked = SigSet::all();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None).at(Step::Spawn)?;
    let mut child = SigSet::empty();
    child.add(Signal::SIGCHLD);
    let children = SignalFd::with_flags(&child, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).at(Step::Spawn)?;
    Ok((children, Jobs::prepare()))
}

/// Takes the handed files and what is only held off the end of the descriptors of the set-up; what is left are the trees.
fn split_handed(setup: &Setup, fds: &mut Vec<OwnedFd>) -> Result<(Vec<Handed>, Vec<OwnedFd>), StepError> {
    let mut files = fds.split_off(setup.trees.len().min(fds.len()));
    let held = files.split_off(setup.handed.len().min(files.len()));
    if fds.len() != setup.trees.len() || files.len() != setup.handed.len() || held.len() != setup.held as usize {
        return Err(StepError::new(Step::Message, Errno::EBADMSG));
    }
    Ok((files.into_iter().zip(&setup.handed).map(|(fd, &opened)| Handed { fd, opened }).collect(), held))
}

fn confinement(setup: &Setup, handed: Vec<Handed>, capable: bool) -> Confinement {
    let filter = setup.filter.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    Confinement { landlock: setup.landlock.clone(), handed, filter, notify: setup.notify, capable }
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

fn keep_only(wanted: &[Capability]) -> Result<(), Errno> {
    keep(wanted, &[])
}

/// Gives up all capabilities but `effective`, and `permitted`, which must be raised to be used.
fn keep(effective: &[Capability], permitted: &[Capability]) -> Result<(), Errno> {
    let refused = |_| Errno::EPERM;
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    caps::clear(None, CapSet::Inheritable).map_err(refused)?;
    caps::set(None, CapSet::Effective, &effective.iter().copied().collect()).map_err(refused)?;
    caps::set(None, CapSet::Permitted, &effective.iter().chain(permitted).copied().collect()).map_err(refused)
}

/// A thread that waits for what it is to serve.
struct WaitingBroker {
    work: mpsc::Sender<(OwnedFd, broker::BrokerConfig)>,
    outcome: mpsc::Receiver<Result<(), StepError>>,
}

fn prepare_broker() -> Result<WaitingBroker, StepError> {
    let (work, to_do) = mpsc::channel();
    let (ready, outcome) = mpsc::channel();
    let serve = move || {
        let Ok((listener, config)) = to_do.recv() else { return };
        let made =
            keep_only(&[Capability::CAP_SYS_PTRACE]).at(Step::Capabilities).and_then(|()| broker::Broker::new(listener, &config));
        match made {
            Ok(broker) => {
                let _ = ready.send(Ok(()));
                broker.serve();
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    };
    std::thread::Builder::new().name("hermes-broker".to_owned()).spawn(serve).at(Step::Thread)?;
    Ok(WaitingBroker { work, outcome })
}

impl WaitingBroker {
    /// Has it serve, and waits until it can.
    fn start(self, listener: OwnedFd, config: broker::BrokerConfig) -> Result<(), StepError> {
        let gone = || StepError::new(Step::Broker, Errno::ESRCH);
        self.work.send((listener, config)).map_err(|_| gone())?;
        self.outcome.recv().map_err(|_| gone())?
    }
}

fn broker_config(setup: &Setup, private_devices: Vec<u64>) -> broker::BrokerConfig {
    let (in_writable, elsewhere): (Vec<PathBuf>, Vec<PathBuf>) =
        setup.unix_connect.iter().cloned().partition(|path| lies_in_writable(path, &setup.mounts));
    let open = |path: &PathBuf| openat(AT_FDCWD, path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok();
    broker::BrokerConfig {
        own_network: setup.network == NetworkPlan::Private,
        granted: elsewhere,
        pinned: in_writable.iter().filter_map(open).collect(),
        private_devices,
    }
}

/// Could a job put another socket in the place of this one?
fn lies_in_writable(path: &Path, mounts: &[MountStep]) -> bool {
    let innermost =
        mounts.iter().filter(|step| path.starts_with(step.target())).max_by_key(|step| step.target().components().count());
    !matches!(innermost, Some(MountStep::Bind { writable: false, .. }))
}

impl Init {
    fn serve(mut self, channel: &Channel) -> i32 {
        let mut next_watch = self.memory.map(|_| Instant::now() + WATCH_FAST);
        loop {
            let timeout = next_watch.map_or(PollTimeout::NONE, |at| {
                PollTimeout::try_from(at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
                    .unwrap_or(PollTimeout::MAX)
            });
            let mut fds =
                [PollFd::new(channel.as_fd(), PollFlags::POLLIN), PollFd::new(self.children.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return self.end(),
            }
            let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|r| !r.is_empty());
            let (asked, died) = (ready(&fds[0]), ready(&fds[1]));
            if died && let Some(status) = self.reap(channel) {
                return status;
            }
            if asked {
                match channel.receive::<Request>() {
                    Ok(Some((request, fds))) => {
                        if let Some(status) = self.obey(channel, request, fds) {
                            return status;
                        }
                    }
                    // The supervisor is gone, or speaks no protocol we know: nothing may outlive it.
                    Ok(None) | Err(_) => return self.end(),
                }
            }
            if next_watch.is_some_and(|at| at <= Instant::now()) {
                next_watch = self.watch(channel);
            }
        }
    }

    /// Does what the supervisor asks. `Some(status)` when the sandbox ends.
    fn obey(&mut self, channel: &Channel, request: Request, fds: Vec<OwnedFd>) -> Option<i32> {
        match request {
            Request::Setup(_) => {}
            Request::OpenTerminal { size } => self.terminal = give_terminal(channel, size),
            // Without a mount namespace there is nothing to cover with, and nobody asks.
            Request::Cover(_) if self.tier == Tier::Landlock => {}
            Request::Cover(covers) => cover_names(channel, &covers),
            Request::Ready => drop(channel.send(&Event::Ready, &[])),
            Request::Socket { ipv6 } => give_socket(channel, ipv6),
            Request::Listen(ports) => listen(channel, self.gateway.as_ref(), ports),
            Request::Spawn(spawn) => {
                let named = (spawn.job, spawn.ends);
                let started = self.spawn(*spawn, fds);
                if enter_job(channel, &mut self.jobs, named, started) == Err(Step::Spawner) {
                    return Some(self.end());
                }
            }
            Request::Signal { job, signal, group } => {
                if let (Some(pid), Ok(signal)) = (self.jobs.leader(job), Signal::try_from(signal)) {
                    let target = if group { Pid::from_raw(-pid.as_raw()) } else { pid };
                    let _ = kill(target, signal);
                }
            }
            Request::Kill { job } => {
                if self.jobs.kill(job).is_none() && self.jobs.leader(job).is_some() {
                    self.kill_all();
                }
            }
        }
        None
    }

    fn spawn(&mut self, spawn: Spawn, fds: Vec<OwnedFd>) -> Result<Pid, StepError> {
        let stdio = standard(&spawn, self.terminal.take(), fds)?;
        self.jobs.mark_next(self.spawner.process());
        self.spawner.spawn(spawn, stdio)
    }

    /// Takes in what died. `Some(status)` when the sandbox ends.
    fn reap(&mut self, channel: &Channel) -> Option<i32> {
        while let Ok(Some(_)) = self.children.read_signal() {}
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::StillAlive) | Err(_) => return None,
                Ok(status) => status,
            };
            let Some(job) = status.pid().and_then(|pid| self.jobs.led_by(pid)) else { continue };
            let code = match status {
                WaitStatus::Exited(_, code) => (code & 0xff) << 8,
                WaitStatus::Signaled(_, signal, core) => signal as i32 | if core { 0x80 } else { 0 },
                WaitStatus::Stopped(_, signal) => {
                    let _ = channel.send(&Event::Stopped { job, signal: signal as i32 }, &[]);
                    continue;
                }
                _ => continue,
            };
            let last = self.jobs.ended(job).is_some_and(|ended| ended.ends == Ends::Sandbox);
            if last {
                self.kill_all();
                // What the event promises: nothing of the tree is left.
                while self.kept_in && matches!(waitpid(None, None), Ok(_) | Err(Errno::EINTR)) {}
            }
            let _ = channel.send(&Event::Exited { job, status: code }, &[]);
            if last {
                return Some(0);
            }
        }
    }

    /// Kills everything but init.
    fn kill_all(&self) {
        if self.kept_in {
            // Every other process of the namespace or of the Landlock domain, whatever session or group it is in.
            let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        } else {
            tree::kill_descendants();
        }
    }

    fn end(&self) -> i32 {
        self.kill_all();
        0
    }

    fn watch(&self, channel: &Channel) -> Option<Instant> {
        let limit = self.memory?;
        let resident = match self.tier {
            Tier::Namespaces => watchdog::measure(Path::new("/proc"), limit),
            Tier::Landlock => tree::memory_of_descendants(limit),
        };
        if resident > limit {
            self.kill_all();
            let _ = channel.send(&Event::MemoryExceeded { resident }, &[]);
        }
        Some(Instant::now() + if resident > limit / 2 { WATCH_FAST } else { WATCH_SLOW })
    }
}

/// A pseudo-terminal of the sandbox's own devpts.
fn open_terminal((ws_row, ws_col): (u16, u16)) -> Result<(OwnedFd, OwnedFd), StepError> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = openat(AT_FDCWD, "/dev/ptmx", flags, Mode::empty()).at_path(Step::Terminal, "/dev/ptmx")?;
    sys::thread::unlock_terminal(master.as_fd()).at(Step::Terminal)?;
    let slave = sys::thread::terminal_peer(master.as_fd()).at(Step::Terminal)?;
    let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    sys::thread::set_window_size(master.as_fd(), &size).at(Step::Terminal)?;
    Ok((master, slave))
}

/// Opens a pseudo-terminal, sends its master to the supervisor and returns the other end.
fn give_terminal(channel: &Channel, size: (u16, u16)) -> Option<OwnedFd> {
    match open_terminal(size) {
        Ok((master, slave)) => {
            let _ = channel.send(&Event::Terminal, &[master.as_fd()]);
            Some(slave)
        }
        Err(error) => {
            let _ = channel.send(&Event::TerminalFailed(error), &[]);
            None
        }
    }
}

/// A job's descriptors 0 to 2.
fn standard(spawn: &Spawn, terminal: Option<OwnedFd>, fds: Vec<OwnedFd>) -> Result<Vec<OwnedFd>, StepError> {
    let mut fds = fds.into_iter();
    let one = |kind: &Stdio| {
        let fd = match kind {
            Stdio::Handed => fds.next(),
            Stdio::Terminal => terminal.as_ref().map(OwnedFd::try_clone).transpose().at(Step::Terminal)?,
            Stdio::Null => {
                Some(openat(AT_FDCWD, "/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).at(Step::Descriptor)?)
            }
        };
        fd.ok_or(StepError::new(Step::Message, Errno::EBADMSG))
    };
    spawn.stdio.iter().map(one).collect()
}
