//! The thread that starts every job.
//!
//! It gives up all capabilities, enters the jobs' Landlock domain and loads their filter once; jobs inherit all three.
//! So nothing is built per job, and no job can be started less confined.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use caps::{CapSet, CapsHashSet};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::Pid;

use super::landlock::{Handed, restrict};
use super::sys;
use super::sys::process::{JobSpec, spawn_job};
use crate::plan::LandlockPlan;
use crate::step::{At, Step, StepError};
use crate::wire::Spawn;

/// The lowest number for descriptors that become 0 to 2, so that none is overwritten before it is copied.
const ABOVE_STDIO: i32 = 10;

type Order = (Spawn, Vec<OwnedFd>);
type Answer = Result<Pid, StepError>;

/// A handle on the thread.
pub struct Spawner {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
}

impl Spawner {
    /// Starts the thread and waits until it is confined. Returns the filter's listener when `notify`.
    ///
    /// # Errors
    /// The step of the confinement that failed.
    pub fn start(
        landlock: Option<LandlockPlan>,
        handed: Vec<Handed>,
        filter: Vec<libc::sock_filter>,
        notify: bool,
        capable: bool,
    ) -> Result<(Self, Option<OwnedFd>), StepError> {
        let (orders, inbox) = channel::<Order>();
        let (outbox, answers) = channel::<Answer>();
        let (confined, ready) = channel();
        std::thread::Builder::new()
            .name("hermes-spawner".to_owned())
            .spawn(move || {
                let result = confine(landlock.as_ref(), &handed, &filter, notify, capable);
                drop(handed);
                let failed = result.is_err();
                if confined.send(result).is_err() || failed {
                    return;
                }
                for (spawn, stdio) in inbox {
                    if outbox.send(start(&spawn, &stdio)).is_err() {
                        return;
                    }
                }
            })
            .at(Step::Thread)?;
        let gone = |_| StepError::new(Step::Thread, Errno::ESRCH);
        let listener = ready.recv().map_err(gone)??;
        Ok((Self { orders, answers }, listener))
    }

    /// Starts a job and waits for its exec.
    pub fn spawn(&self, spawn: Spawn, stdio: Vec<OwnedFd>) -> Answer {
        let gone = StepError::new(Step::Thread, Errno::ESRCH);
        self.orders.send((spawn, stdio)).map_err(|_| gone.clone())?;
        self.answers.recv().map_err(|_| gone)?
    }
}

fn confine(
    landlock: Option<&LandlockPlan>,
    handed: &[Handed],
    filter: &[libc::sock_filter],
    notify: bool,
    capable: bool,
) -> Result<Option<OwnedFd>, StepError> {
    if capable {
        drop_capabilities().at(Step::Capabilities)?;
    }
    if let Some(plan) = landlock {
        restrict(plan, handed)?;
    }
    // Last, because the filter refuses some of the calls above.
    sys::thread::load_filter(filter, notify).at(Step::Seccomp)
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

fn start(spawn: &Spawn, stdio: &[OwnedFd]) -> Answer {
    let strings = |list: &[Vec<u8>]| -> Result<Vec<CString>, StepError> {
        list.iter()
            .map(|bytes| CString::new(bytes.as_slice()).map_err(|_| StepError::new(Step::Message, Errno::EINVAL)))
            .collect()
    };
    let above: Vec<OwnedFd> = stdio
        .iter()
        .map(|fd| fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(ABOVE_STDIO)).map(sys::fd::received).at(Step::Descriptor))
        .collect::<Result<_, _>>()?;
    let [input, output, error] = above.as_slice() else { return Err(StepError::new(Step::Message, Errno::EBADMSG)) };
    let terminal = spawn.stdio.iter().position(|kind| *kind == crate::wire::Stdio::Terminal);
    let same = |value: u64| libc::rlimit { rlim_cur: value, rlim_max: value };
    let limits: Vec<(libc::c_int, libc::rlimit)> = [
        (libc::RLIMIT_NOFILE as libc::c_int, spawn.open_files),
        (libc::RLIMIT_FSIZE as libc::c_int, spawn.file_size),
        (libc::RLIMIT_CORE as libc::c_int, Some(0)),
    ]
    .into_iter()
    .filter_map(|(resource, value)| value.map(|value| (resource, same(value))))
    .collect();
    let cwd = CString::new(spawn.cwd.as_slice()).map_err(|_| StepError::new(Step::Message, Errno::EINVAL))?;
    let spec = JobSpec {
        candidates: &strings(&spawn.candidates)?,
        args: &strings(&spawn.args)?,
        environment: &strings(&spawn.environment)?,
        cwd: &cwd,
        stdio: [input.as_raw_fd(), output.as_raw_fd(), error.as_raw_fd()],
        terminal,
        umask: spawn.umask,
        limits: &limits,
    };
    spawn_job(&spec).map_err(|(step, errno)| match step {
        Step::WorkingDirectory => StepError::on(step, path(&spawn.cwd), errno),
        Step::Exec => StepError { step, subject: spawn.args.first().map(|arg| path(arg)), errno: errno as i32 },
        _ => StepError::new(step, errno),
    })
}

fn path(bytes: &[u8]) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}
