//! Names of the steps of a set-up, and the error that says which one failed. They travel as data, never as text.

use std::fmt;
use std::path::PathBuf;

use hermes_profiles::ospath;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

/// A system call (or a small group of them) of the set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Step {
    /// Read or check the set-up message.
    Message,
    /// Change to an unprivileged user (root callers).
    Identity,
    /// Spawn the init process.
    Spawn,
    /// Create the namespaces.
    Namespaces,
    /// Write `/proc/self/setgroups` and the id maps.
    IdMap,
    /// Keep capabilities over the exec of init.
    Capabilities,
    /// `PR_SET_NO_NEW_PRIVS`.
    NoNewPrivileges,
    /// Open the source of a mount.
    Open,
    /// A granted path is not the file that was checked.
    Changed,
    /// Make mounts private.
    Propagation,
    /// Mount a tmpfs.
    Tmpfs,
    /// Make a directory, file or symlink in the new root.
    Create,
    /// Clone a mount tree.
    Bind,
    /// Set mount attributes (read-only, nosuid, nodev, id map).
    Attributes,
    /// Attach a mount.
    Attach,
    /// Mount an overlay.
    Overlay,
    /// Mount /proc.
    Proc,
    /// Build /dev.
    Devices,
    /// `pivot_root` and detaching the old root.
    Pivot,
    /// Bring up the loopback interface.
    Loopback,
    /// Make the gateway of the network, and its listeners.
    Gateway,
    /// Set resource limits.
    Limits,
    /// Join the control group.
    Cgroup,
    /// Build or enforce the Landlock rule set.
    Landlock,
    /// Load the seccomp filter.
    Seccomp,
    /// Start a thread of init.
    Thread,
    /// Open the pseudo-terminal.
    Terminal,
    /// Check descriptors 0 to 2.
    Descriptor,
    /// Enter the working directory.
    WorkingDirectory,
    /// `execve` of the command.
    Exec,
    /// Start the broker of unix sockets.
    Broker,
    /// Reach the process that starts jobs.
    Spawner,
}

impl Step {
    /// What was being done, for the middle of a sentence: "cannot ...".
    pub fn action(self) -> &'static str {
        match self {
            Self::Message => "read the set-up message",
            Self::Identity => "change to an unprivileged user",
            Self::Spawn => "start the sandbox's init",
            Self::Namespaces => "create namespaces",
            Self::IdMap => "write the id map of the user namespace",
            Self::Capabilities => "set capabilities",
            Self::NoNewPrivileges => "set no_new_privs",
            Self::Open => "open",
            Self::Changed => "grant a path that changed while the sandbox was being set up:",
            Self::Propagation => "make mounts private",
            Self::Tmpfs => "mount a tmpfs on",
            Self::Create => "create",
            Self::Bind => "clone the mount of",
            Self::Attributes => "set the mount attributes of",
            Self::Attach => "attach the mount",
            Self::Overlay => "mount a copy-on-write layer on",
            Self::Proc => "mount /proc",
            Self::Devices => "build /dev",
            Self::Pivot => "change to the new root",
            Self::Loopback => "bring up the loopback interface",
            Self::Gateway => "make the network that leads to the proxy",
            Self::Limits => "set resource limits",
            Self::Cgroup => "join the control group",
            Self::Landlock => "enforce Landlock",
            Self::Seccomp => "load the seccomp filter",
            Self::Thread => "start a thread",
            Self::Terminal => "open a pseudo-terminal",
            Self::Descriptor => "hand in a descriptor",
            Self::WorkingDirectory => "enter the working directory",
            Self::Exec => "execute",
            Self::Broker => "start the unix socket broker",
            Self::Spawner => "reach the sandbox's process that starts commands",
        }
    }
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// Which step.
    pub step: Step,
    /// What it was done to.
    #[serde(with = "ospath::option")]
    pub subject: Option<PathBuf>,
    /// The kernel's answer as a raw errno; 0 when it was not the kernel that refused.
    pub errno: i32,
}

impl StepError {
    /// A failure with no subject.
    pub fn new(step: Step, errno: Errno) -> Self {
        Self { step, subject: None, errno: errno as i32 }
    }

    /// A failure on a path.
    pub fn on(step: Step, subject: impl Into<PathBuf>, errno: Errno) -> Self {
        Self { step, subject: Some(subject.into()), errno: errno as i32 }
    }

    /// The kernel's answer.
    pub fn errno(&self) -> Errno {
        Errno::from_raw(self.errno)
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.step.action())?;
        if let Some(subject) = &self.subject {
            write!(f, " {}", ospath::escaped(subject))?;
        }
        if self.errno != 0 {
            let errno = self.errno();
            write!(f, ": {} ({errno:?})", errno.desc())?;
        }
        Ok(())
    }
}

impl std::error::Error for StepError {}

/// The kernel's answer behind an error of the standard library; EIO when it was not the kernel that refused.
pub(crate) fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}

/// Adds the step to a system call's result.
pub trait At<T> {
    /// Names the step.
    fn at(self, step: Step) -> Result<T, StepError>;
    /// Names the step and the path it was done to.
    fn at_path(self, step: Step, subject: impl Into<PathBuf>) -> Result<T, StepError>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: Step) -> Result<T, StepError> {
        self.map_err(|errno| StepError::new(step, errno))
    }

    fn at_path(self, step: Step, subject: impl Into<PathBuf>) -> Result<T, StepError> {
        self.map_err(|errno| StepError::on(step, subject, errno))
    }
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, step: Step) -> Result<T, StepError> {
        self.map_err(|e| StepError::new(step, Errno::from_raw(e.raw_os_error().unwrap_or(0))))
    }

    fn at_path(self, step: Step, subject: impl Into<PathBuf>) -> Result<T, StepError> {
        self.map_err(|e| StepError::on(step, subject, Errno::from_raw(e.raw_os_error().unwrap_or(0))))
    }
}
