//! Pid 1 of a sandbox (in the Landlock tier: the parent of its jobs).
//!
//! *main* (here) stays outside the jobs' Landlock domain and filter: it obeys the supervisor, reaps and kills. The
//! [spawner](super::spawner), a thread or a process, is confined for good and starts every job. A thread, the
//! [broker](super::broker), answers `connect` where the filter asks.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid, setsid};

use super::landlock::{Handed, keep_signals_in};
use super::spawner::{Confinement, Spawner};
use super::{broker, root, sys, tree};
use crate::limits::watchdog;
use crate::plan::{MountStep, NetworkPlan, Tier};
use crate::step::{At, Step, StepError};
use crate::wire::{Channel, Event, JobId, Request, Setup, Spawn, Stdio};

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
    match set_up(&setup, fds) {
        Ok(init) => init.serve(&channel),
        Err(error) => {
            let _ = channel.send(&Event::SetupFailed(error), &[]);
            125
        }
    }
}

struct Init {
    tier: Tier,
    /// Does `kill(-1)` reach this sandbox and nothing else?
    kept_in: bool,
    spawner: Spawner,
    /// How the broker's start went; asked for before the first job, so that the two overlap.
    broker: Option<Receiver<Result<(), StepError>>>,
    children: SignalFd,
    jobs: BTreeMap<JobId, Job>,
    terminal: Option<OwnedFd>,
    memory: Option<u64>,
}

struct Job {
    pid: Pid,
    last: bool,
}

fn set_up(setup: &Setup, mut fds: Vec<OwnedFd>) -> Result<Init, StepError> {
    let namespaces = setup.tier == Tier::Namespaces;
    prctl::set_no_new_privs().at(Step::NoNewPrivileges)?;
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    if namespaces {
        // Outlives its supervisor by nothing; the poll on the control socket notices a death before this line.
        prctl::set_pdeathsig(Signal::SIGKILL).at(Step::Spawn)?;
    } else {
        sys::thread::become_subreaper().at(Step::Spawn)?;
    }
    prctl::set_dumpable(false).at(Step::Spawn)?;
    let _ = prctl::set_name(c"hermes-init");
    let _ = setsid();
    // The modes in the plan are what is meant; jobs get the caller's mask.
    umask(Mode::empty());
    if let Some(processes) = setup.processes {
        // Never above what the caller may have: only CAP_SYS_RESOURCE raises a hard limit (getrlimit(2)).
        let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).at(Step::Limits)?;
        let processes = processes.min(hard);
        setrlimit(Resource::RLIMIT_NPROC, processes, processes).at(Step::Limits)?;
    }
    let blocked = SigSet::all();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&blocked), None).at(Step::Spawn)?;
    let mut child = SigSet::empty();
    child.add(Signal::SIGCHLD);
    let children = SignalFd::with_flags(&child, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).at(Step::Spawn)?;
    if setup.network == NetworkPlan::Private {
        let any = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).at(Step::Loopback)?;
        sys::thread::loopback_up(any.as_fd()).at(Step::Loopback)?;
    }
    let handed_fds = fds.split_off(setup.trees.len().min(fds.len()));
    if fds.len() != setup.trees.len() || handed_fds.len() != setup.handed.len() {
        return Err(StepError::new(Step::Message, Errno::EBADMSG));
    }
    let handed = handed_fds.into_iter().zip(&setup.handed).map(|(fd, &opened)| Handed { fd, opened }).collect();
    let private_devices = match namespaces {
        true => root::enter(&setup.mounts, setup.scratch, setup.trees.iter().map(|&i| i as usize).zip(fds).collect())?,
        false => Vec::new(),
    };
    let filter = setup.filter.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let capable = namespaces || nix::unistd::geteuid().is_root();
    let landlock = setup.landlock.clone();
    let kept_in = match &landlock {
        _ if namespaces => true,
        Some(plan) if plan.scope_signals => {
            keep_signals_in()?;
            // Before the supervisor and everything else of the user are trusted to it, see that it holds.
            kill(getppid(), None) == Err(Errno::EPERM)
        }
        _ => false,
    };
    let confinement = Confinement { landlock, handed, filter, notify: setup.notify, capable };
    let (spawner, listener) = Spawner::start(confinement, setup.tier, || if namespaces { root::detach_old() } else { Ok(()) })?;
    if capable {
        keep_only(&[Capability::CAP_SYS_PTRACE]).at(Step::Capabilities)?;
    }
    let broker = listener.map(|listener| start_broker(listener, setup, private_devices)).transpose()?;
    Ok(Init {
        tier: setup.tier,
        kept_in,
        spawner,
        broker,
        children,
        jobs: BTreeMap::new(),
        terminal: None,
        memory: setup.memory_watchdog,
    })
}

fn keep_only(wanted: &[Capability]) -> Result<(), Errno> {
    let wanted = wanted.iter().copied().collect();
    let refused = |_| Errno::EPERM;
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    caps::clear(None, CapSet::Inheritable).map_err(refused)?;
    caps::set(None, CapSet::Effective, &wanted).map_err(refused)?;
    caps::set(None, CapSet::Permitted, &wanted).map_err(refused)
}

fn start_broker(
    listener: OwnedFd,
    setup: &Setup,
    private_devices: Vec<u64>,
) -> Result<Receiver<Result<(), StepError>>, StepError> {
    let (in_writable, elsewhere): (Vec<PathBuf>, Vec<PathBuf>) =
        setup.unix_connect.iter().cloned().partition(|path| lies_in_writable(path, &setup.mounts));
    let open = |path: &PathBuf| openat(AT_FDCWD, path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).ok();
    let config = broker::BrokerConfig {
        own_network: setup.network == NetworkPlan::Private,
        granted: elsewhere,
        pinned: in_writable.iter().filter_map(open).collect(),
        private_devices,
    };
    let (ready, outcome) = channel();
    let serve = move || match broker::Broker::new(listener, &config) {
        Ok(broker) => {
            let _ = ready.send(Ok(()));
            broker.serve();
        }
        Err(error) => drop(ready.send(Err(error))),
    };
    std::thread::Builder::new().name("hermes-broker".to_owned()).spawn(serve).at(Step::Thread)?;
    Ok(outcome)
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
            Request::OpenTerminal => {
                let _ = match open_terminal() {
                    Ok((master, slave)) => {
                        self.terminal = Some(slave);
                        channel.send(&Event::Terminal, &[master.as_fd()])
                    }
                    Err(error) => channel.send(&Event::TerminalFailed(error), &[]),
                };
            }
            Request::Spawn(spawn) => {
                let job = spawn.job;
                let last = spawn.last;
                let (event, over) = match self.spawn(*spawn, fds) {
                    Ok(pid) => {
                        self.jobs.insert(job, Job { pid, last });
                        (Event::Started { job }, false)
                    }
                    Err(error) => {
                        let over = error.step == Step::Spawner;
                        (Event::StartFailed { job, error }, over)
                    }
                };
                let _ = channel.send(&event, &[]);
                if over {
                    return Some(self.end());
                }
            }
            Request::Signal { job, signal, group } => {
                if let (Some(job), Ok(signal)) = (self.jobs.get(&job), Signal::try_from(signal)) {
                    let target = if group { Pid::from_raw(-job.pid.as_raw()) } else { job.pid };
                    let _ = kill(target, signal);
                }
            }
            Request::Kill { job } => {
                if self.jobs.contains_key(&job) {
                    self.kill_all();
                }
            }
        }
        None
    }

    fn spawn(&mut self, spawn: Spawn, fds: Vec<OwnedFd>) -> Result<Pid, StepError> {
        if let Some(broker) = &self.broker {
            broker.recv().map_err(|_| StepError::new(Step::Broker, Errno::ESRCH))??;
            self.broker = None;
        }
        let mut fds = fds.into_iter();
        let terminal = self.terminal.take();
        let mut stdio = Vec::with_capacity(3);
        for kind in spawn.stdio {
            let fd = match kind {
                Stdio::Handed => fds.next(),
                Stdio::Terminal => match &terminal {
                    Some(fd) => Some(fd.try_clone().at(Step::Terminal)?),
                    None => None,
                },
                Stdio::Null => {
                    Some(openat(AT_FDCWD, "/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).at(Step::Descriptor)?)
                }
            };
            stdio.push(fd.ok_or(StepError::new(Step::Message, Errno::EBADMSG))?);
        }
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
            let Some((&job, entry)) = status.pid().and_then(|pid| self.jobs.iter().find(|(_, job)| job.pid == pid)) else {
                continue;
            };
            let code = match status {
                WaitStatus::Exited(_, code) => (code & 0xff) << 8,
                WaitStatus::Signaled(_, signal, core) => signal as i32 | if core { 0x80 } else { 0 },
                WaitStatus::Stopped(_, signal) => {
                    let _ = channel.send(&Event::Stopped { job, signal: signal as i32 }, &[]);
                    continue;
                }
                _ => continue,
            };
            let last = entry.last;
            self.jobs.remove(&job);
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
fn open_terminal() -> Result<(OwnedFd, OwnedFd), StepError> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = openat(AT_FDCWD, "/dev/ptmx", flags, Mode::empty()).at_path(Step::Terminal, "/dev/ptmx")?;
    sys::thread::unlock_terminal(master.as_fd()).at(Step::Terminal)?;
    let slave = sys::thread::terminal_peer(master.as_fd()).at(Step::Terminal)?;
    Ok((master, slave))
}
