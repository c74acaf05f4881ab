//! What starts every job.
//!
//! It gives up all capabilities, enters the jobs' Landlock domain and loads their filter once; jobs inherit all three.
//! So nothing is built per job, and no job can be started less confined.
//!
//! Being in the jobs' domain it can be signalled by them. In the namespaces tier it is the first thread of pid 1, which no
//! signal from inside can kill or stop. In the Landlock tier a signal to the thread would end init, so it is a process of its own
//! there, and its jobs are made children of init.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc;

use caps::{CapSet, CapsHashSet};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, dup2_stdin, getpid, getppid};

use super::landlock::{Handed, restrict};
use super::sys;
use super::sys::process::{JobSpec, spawn_job};
use crate::plan::LandlockPlan;
use crate::step::{At, Step, StepError};
use crate::wire::{Channel, Spawn};

/// The lowest number for descriptors that become 0, 1, 2 and so on, so that none is overwritten before it is copied.
const ABOVE_STDIO: i32 = 10;
/// Milliseconds that a start may take: a job can stop the process that starts jobs, and init must not wait for ever.
const PATIENCE: u16 = 10_000;

type Order = (Spawn, Vec<OwnedFd>);
type Answer = Result<Pid, StepError>;

/// What the jobs are held by.
pub struct Confinement {
    /// File, network and scope rules.
    pub landlock: Option<LandlockPlan>,
    /// Descriptors that may be opened again.
    pub handed: Vec<Handed>,
    /// The seccomp program.
    pub filter: Vec<libc::sock_filter>,
    /// Does it notify?
    pub notify: bool,
    /// Are there capabilities to give up?
    pub capable: bool,
}

/// A handle on what starts jobs.
pub enum Spawner {
    /// A thread of init.
    Thread {
        /// To the thread.
        orders: mpsc::Sender<Order>,
        /// From the thread.
        answers: mpsc::Receiver<Answer>,
    },
    /// A child of init.
    Process {
        /// To the child.
        channel: Channel,
        /// The child.
        pid: Pid,
    },
}

impl Spawner {
    /// Starts a job and waits for its exec.
    ///
    /// # Errors
    /// The step of the start that failed; [`Step::Spawner`] when no job can be started any more.
    pub fn spawn(&self, spawn: Spawn, stdio: Vec<OwnedFd>) -> Answer {
        match self {
            Self::Thread { orders, answers } => {
                orders.send((spawn, stdio)).map_err(|_| gone(Errno::ESRCH))?;
                answers.recv().map_err(|_| gone(Errno::ESRCH))?
            }
            Self::Process { channel, .. } => order(channel, &spawn, &stdio),
        }
    }

    /// The process that jobs inherit from, 0 for the caller's own.
    pub fn process(&self) -> i32 {
        match self {
            Self::Thread { .. } => 0,
            Self::Process { pid, .. } => pid.as_raw(),
        }
    }
}

fn gone(errno: Errno) -> StepError {
    StepError::new(Step::Spawner, errno)
}

/// Where the spawner thread takes its orders.
pub struct Desk {
    orders: mpsc::Receiver<Order>,
    answers: mpsc::Sender<Answer>,
}

/// A handle for the keeper and a desk for the thread that is, or will be, confined.
pub fn pair() -> (Spawner, Desk) {
    let (to_desk, orders) = mpsc::channel::<Order>();
    let (answers, from_desk) = mpsc::channel::<Answer>();
    (Spawner::Thread { orders: to_desk, answers: from_desk }, Desk { orders, answers })
}

impl Desk {
    /// Starts jobs until the handle is dropped.
    pub fn serve(self) {
        for (spawn, stdio) in self.orders {
            if self.answers.send(start(&spawn, &stdio, false)).is_err() {
                return;
            }
        }
    }
}

/// Starts the spawner as a child and waits until it is confined. Returns the filter's listener when it notifies.
///
/// # Errors
/// The step of the confinement that failed.
pub fn start_process(confinement: Confinement) -> Result<(Spawner, Option<OwnedFd>), StepError> {
    let (ours, theirs) = Channel::pair().at(Step::Spawn)?;
    let init = getpid();
    let pid = sys::process::fork(|| serve(theirs, confinement, init)).at(Step::Spawn)?;
    let (confined, mut fds) = ours.receive::<Result<(), StepError>>().at(Step::Spawner)?.ok_or(gone(Errno::ESRCH))?;
    confined?;
    Ok((Spawner::Process { channel: ours, pid }, fds.pop()))
}

/// The life of the spawner process.
fn serve(channel: Channel, confinement: Confinement, init: Pid) -> i32 {
    // Not SIGKILL: it is to read the end of the channel, and this wakes it even where a job has stopped it.
    let linked = prctl::set_pdeathsig(Signal::SIGCONT).is_ok() && getppid() == init;
    let _ = prctl::set_name(c"hermes-spawner");
    if !linked || dup2_stdin(&channel).is_err() {
        return 1;
    }
    let kept_in = confinement.landlock.as_ref().is_some_and(|plan| plan.scope_signals);
    let (result, listener) = match confine(&confinement) {
        Ok(listener) => (Ok(()), listener),
        Err(error) => (Err(error), None),
    };
    let told = channel.send(&result, &listener.iter().map(AsFd::as_fd).collect::<Vec<_>>());
    drop((channel, confinement, listener));
    // Init's end of the channel above all: while it is open here, the end of init goes unseen.
    if result.is_err() || told.is_err() || sys::thread::close_from(3).is_err() {
        return 1;
    }
    let Ok(channel) = Channel::from_stdin() else { return 1 };
    while let Ok(Some((spawn, stdio))) = channel.receive::<Spawn>() {
        if channel.send(&start(&spawn, &stdio, true).map(Pid::as_raw), &[]).is_err() {
            break;
        }
    }
    // Init is gone, and with it whoever would end the jobs.
    if kept_in {
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    }
    0
}

fn order(channel: &Channel, spawn: &Spawn, stdio: &[OwnedFd]) -> Answer {
    channel.send(spawn, &stdio.iter().map(AsFd::as_fd).collect::<Vec<_>>()).at(Step::Spawner)?;
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::from(PATIENCE)).at(Step::Spawner)? == 0 {
        return Err(gone(Errno::ETIMEDOUT));
    }
    let (answer, _) = channel.receive::<Result<i32, StepError>>().at(Step::Spawner)?.ok_or(gone(Errno::ESRCH))?;
    let pid = Pid::from_raw(answer?);
    // It is as confined as a job and trusted as little: init signals only children of its own.
    waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT).at(Step::Spawner)?;
    Ok(pid)
}

/// Confines the calling thread for good. Returns the filter's listener when it notifies.
///
/// # Errors
/// The step that failed.
pub fn confine(confinement: &Confinement) -> Result<Option<OwnedFd>, StepError> {
    if confinement.capable {
        drop_capabilities().at(Step::Capabilities)?;
    }
    if let Some(plan) = &confinement.landlock {
        restrict(plan, &confinement.handed)?;
    }
    // Last, because the filter refuses some of the calls above.
    sys::thread::load_filter(&confinement.filter, confinement.notify).at(Step::Seccomp)
}

/// An empty bounding set: not even uid 0 of the own user namespace regains anything by an exec.
fn drop_capabilities() -> Result<(), Errno> {
    let refused = |_| Errno::EPERM;
    sys::thread::lock_securebits()?;
    sys::thread::empty_bounding_set()?;
    caps::clear(None, CapSet::Ambient).map_err(refused)?;
    let none = CapsHashSet::new();
    caps::set(None, CapSet::Inheritable, &none).map_err(refused)?;
    caps::set(None, CapSet::Effective, &none).map_err(refused)?;
    caps::set(None, CapSet::Permitted, &none).map_err(refused)
}

/// Starts a job from the calling thread.
///
/// # Errors
/// The step of the start that failed.
pub fn start(spawn: &Spawn, stdio: &[OwnedFd], sibling: bool) -> Answer {
    let strings = |list: &[Vec<u8>]| -> Result<Vec<CString>, StepError> {
        list.iter()
            .map(|bytes| CString::new(bytes.as_slice()).map_err(|_| StepError::new(Step::Message, Errno::EINVAL)))
            .collect()
    };
    let above: Vec<OwnedFd> = stdio
        .iter()
        .map(|fd| fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(ABOVE_STDIO)).map(sys::fd::received).at(Step::Descriptor))
        .collect::<Result<_, _>>()?;
    if !(3..ABOVE_STDIO as usize).contains(&above.len()) {
        return Err(StepError::new(Step::Message, Errno::EBADMSG));
    }
    let raw: Vec<RawFd> = above.iter().map(AsRawFd::as_raw_fd).collect();
    let terminal = spawn.stdio.iter().position(|kind| *kind == crate::wire::Stdio::Terminal);
    let limits = [
        (Resource::RLIMIT_NOFILE, spawn.open_files),
        (Resource::RLIMIT_FSIZE, spawn.file_size),
        (Resource::RLIMIT_CORE, Some(0)),
    ]
    .into_iter()
    .filter_map(|(resource, value)| value.map(|value| limit(resource, value)))
    .collect::<Result<Vec<_>, _>>()?;
    let cwd = CString::new(spawn.cwd.as_slice()).map_err(|_| StepError::new(Step::Message, Errno::EINVAL))?;
    let spec = JobSpec {
        candidates: &strings(&spawn.candidates)?,
        args: &strings(&spawn.args)?,
        environment: &strings(&spawn.environment)?,
        cwd: &cwd,
        stdio: &raw,
        terminal,
        umask: spawn.umask,
        limits: &limits,
        sibling,
    };
    spawn_job(&spec).map_err(|(step, errno)| match step {
        Step::WorkingDirectory => StepError::on(step, path(&spawn.cwd), errno),
        Step::Exec => StepError { step, subject: spawn.args.first().map(|arg| path(arg)), errno: errno as i32 },
        _ => StepError::new(step, errno),
    })
}

/// `value`, but never above what the caller may have: only CAP_SYS_RESOURCE raises a hard limit (getrlimit(2)).
pub fn capped(resource: Resource, value: u64) -> Result<u64, StepError> {
    let (_, hard) = getrlimit(resource).at(Step::Limits)?;
    Ok(value.min(hard))
}

fn limit(resource: Resource, value: u64) -> Result<(libc::c_int, libc::rlimit), StepError> {
    let value = capped(resource, value)?;
    Ok((resource as libc::c_int, libc::rlimit { rlim_cur: value, rlim_max: value }))
}

fn path(bytes: &[u8]) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}
