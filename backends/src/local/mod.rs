//! The local backend: namespaces, Landlock and seccomp on this machine.
//!
//! The supervisor's side: starts init, sends it the set-up, and holds the sandbox's life in [`Sandbox`]. What runs on
//! the other side of the socket is [`init`].

pub mod broker;
mod contents;
mod cover;
mod gateway;
mod idmap;
pub mod init;
mod jobs;
pub mod landlock;
mod root;
pub mod seccomp;
mod spawner;
pub mod sys;
mod tree;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::plan::{Enforcer, MountStep, NetworkPlan, Plan, Tier};
use crate::step::{At, Step, StepError};
use crate::wire::{Certificates, Channel, Cover, Event, JobId, Opened, Request, Setup, Spawn};
use sys::process::{InitSpec, OneUser, spawn_init};

/// First argument that makes the program act as init.
pub const INIT_ARGUMENT: &CStr = c"init";

/// Numbers of `linux/capability.h` that init needs to build the sandbox.
const INIT_CAPABILITIES: &[u32] = &[
    0,  // CHOWN: an overlay copies files up with the rights of who mounted it,
    1,  // DAC_OVERRIDE: and keeps its work directory at mode 0
    3,  // FOWNER
    4,  // FSETID
    5,  // KILL: the watchdog and kill_all reach jobs that changed their dumpability
    8,  // SETPCAP: empty the bounding set
    10, // NET_BIND_SERVICE: the gateway's listeners
    12, // NET_ADMIN: bring loopback up, join the gateway
    19, // SYS_PTRACE: the broker reads the arguments of undumpable jobs
    21, // SYS_ADMIN: mount
];

/// A live plan. Dropping it kills everything in it.
#[derive(Debug)]
pub struct Sandbox {
    channel: Channel,
    init: Pid,
    reaped: bool,
}

/// A descriptor that goes in and may be opened again through /proc.
#[derive(Debug, Clone, Copy)]
pub struct HandedFd<'a> {
    /// The file or terminal.
    pub fd: BorrowedFd<'a>,
    /// How it was opened.
    pub opened: Opened,
}

impl Sandbox {
    /// Starts init and sends it the set-up; does not wait for the outcome, which arrives with the first event.
    ///
    /// Must be called from the main thread before any other exists: PDEATHSIG follows the thread (prctl(2)).
    /// `cgroups` are `cgroup.procs` files that init joins; it keeps `held` open until everything in the sandbox is gone.
    /// `certificates` are for the plan's files that hold some.
    ///
    /// # Errors
    /// The step that failed.
    pub fn start(
        plan: &Plan,
        handed: &[HandedFd<'_>],
        (cgroups, held): (&[BorrowedFd<'_>], &[BorrowedFd<'_>]),
        certificates: Certificates,
    ) -> Result<Self, StepError> {
        let arch = seccomp::Arch::NATIVE.ok_or(StepError::new(Step::Seccomp, Errno::ENOSYS))?;
        let trees = if plan.identity.idmap { idmap::trees(plan)? } else { Vec::new() };
        let (ours, theirs) = Channel::pair().at(Step::Spawn)?;
        let init = start_init(plan, &theirs, cgroups)?;
        drop(theirs);
        let sandbox = Self { channel: ours, init, reaped: false };
        // Only now, while the new process starts on its own.
        let filter = seccomp::compile(&plan.seccomp, arch);
        let setup = Setup {
            tier: plan.tier,
            mounts: plan.mounts.clone(),
            scratch: plan.scratch,
            trees: trees.iter().map(|(index, _)| *index).collect(),
            landlock: plan.landlock.clone(),
            handed: handed.iter().map(|handed| handed.opened).collect(),
            held: held.len() as u32,
            filter: filter.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect(),
            notify: plan.seccomp.notifies(),
            network: plan.network,
            gateway: plan.gateway.clone(),
            connect: plan.connect.clone(),
            certificates,
            unix_connect: plan.unix_connect.clone(),
            processes: plan.limits.processes.filter(|_| plan.limits.processes_by == Enforcer::Rlimit),
            memory_watchdog: plan.limits.memory.filter(|_| plan.limits.memory_by == Enforcer::Watchdog),
        };
        let fds: Vec<BorrowedFd<'_>> = trees
            .iter()
            .map(|(_, tree)| tree.as_fd())
            .chain(handed.iter().map(|handed| handed.fd))
            .chain(held.iter().copied())
            .collect();
        sandbox.request(&Request::Setup(Box::new(setup)), &fds)?;
        Ok(sandbox)
    }

    /// Sends a request.
    pub fn request(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), StepError> {
        or_ended(self.channel.send(request, fds)).at(Step::Message)
    }

    /// Sends a request if there is room for it: init takes none while nobody takes its events.
    pub fn try_request(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<bool, StepError> {
        match or_ended(self.channel.try_send(request, fds)) {
            Err(Errno::EAGAIN) => Ok(false),
            other => other.map(|()| true).at(Step::Message),
        }
    }

    /// Starts a job; the answer is an event.
    pub fn spawn(&self, spawn: Spawn, fds: &[BorrowedFd<'_>]) -> Result<(), StepError> {
        self.request(&Request::Spawn(Box::new(spawn)), fds)
    }

    /// Mounts over names in host trees; the answer is an event.
    pub fn cover(&self, covers: Vec<Cover>) -> Result<(), StepError> {
        self.request(&Request::Cover(covers), &[])
    }

    /// Sends a signal to a job's leader, or to its process group.
    pub fn signal(&self, job: JobId, signal: Signal, group: bool) -> Result<(), StepError> {
        self.request(&Request::Signal { job, signal: signal as i32, group }, &[])
    }

    /// Another hand on the channel, for another thread. It may ask; what init says arrives here.
    pub fn another_channel(&self) -> std::io::Result<Channel> {
        self.channel.another()
    }

    /// Init as the host sees it.
    pub fn init(&self) -> Pid {
        self.init
    }

    /// Waits for the next event; `None` when init has ended.
    pub fn event(&self) -> Result<Option<(Event, Vec<OwnedFd>)>, StepError> {
        self.channel.receive().at(Step::Message)
    }

    /// Takes an event that is there; `EAGAIN` when there is none.
    pub fn try_event(&self) -> Result<Option<(Event, Vec<OwnedFd>)>, StepError> {
        self.channel.try_receive().at(Step::Message)
    }

    /// Kills everything in the sandbox at once.
    pub fn kill(&self) {
        let _ = kill(self.init, Signal::SIGKILL);
    }

    /// Waits until nothing of the sandbox is left: pid 1 is reaped after everything else of its namespace.
    pub fn wait(mut self) {
        self.reap();
    }

    /// Lets init go after its last job's [`Event::Exited`]: nothing else is left, and it ends by itself. Does not wait for
    /// the kernel to take the namespaces apart.
    pub fn release(mut self) {
        self.reaped = true;
    }

    fn reap(&mut self) {
        if !self.reaped {
            self.reaped = true;
            while waitpid(self.init, None) == Err(Errno::EINTR) {}
        }
    }
}

impl AsFd for Sandbox {
    /// Readable when an event is there or init has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill();
            self.reap();
        }
    }
}

/// Init has ended: why is in the events that it left, or it was killed.
fn or_ended(sent: Result<(), Errno>) -> Result<(), Errno> {
    match sent {
        Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
        other => other,
    }
}

fn start_init(plan: &Plan, control: &Channel, cgroups: &[BorrowedFd<'_>]) -> Result<Pid, StepError> {
    // By descriptor, because the user that a root caller becomes may not reach the path.
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let program = openat(AT_FDCWD, Path::new("/proc/self/exe"), flags, Mode::empty()).at_path(Step::Spawn, "/proc/self/exe")?;
    let namespaces = match plan.tier {
        Tier::Landlock => 0,
        Tier::Namespaces => {
            let network = if plan.network == NetworkPlan::Private { libc::CLONE_NEWNET } else { 0 };
            libc::CLONE_NEWUSER
                | libc::CLONE_NEWNS
                | libc::CLONE_NEWPID
                | libc::CLONE_NEWIPC
                | libc::CLONE_NEWUTS
                | libc::CLONE_NEWCGROUP
                | network
        }
    };
    let identity = plan.identity;
    let spec = InitSpec {
        program: program.as_raw_fd(),
        args: &[CString::from(c"hermes-sandbox"), CString::from(INIT_ARGUMENT)],
        control: control.as_fd().as_raw_fd(),
        namespaces,
        user: OneUser { uid: identity.uid, gid: identity.gid, host_uid: identity.host_uid, host_gid: identity.host_gid },
        drop_root: identity.idmap,
        capabilities: INIT_CAPABILITIES,
        cgroups: &cgroups.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(),
    };
    spawn_init(&spec).map_err(|(step, errno)| StepError::new(step, errno))
}

/// Does this step take a tree from the host?
fn source_of(step: &MountStep) -> Option<(&crate::plan::Source, bool)> {
    match step {
        MountStep::Bind { source, directory, .. } => Some((source, *directory)),
        MountStep::Overlay { source, .. } => Some((source, true)),
        _ => None,
    }
}
