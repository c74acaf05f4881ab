//! Measures the [`Host`] by doing the real thing in throw-away children.
//!
//! Sysctls are read only to name the cause of a failure, never to predict one: Ubuntu's AppArmor restriction, seccomp
//! filters of containers and over-mounted /proc directories all look fine in sysctls.

mod cache;
mod cause;
mod child;
mod facts;
mod layer;
mod mediate;

use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use serde::{Deserialize, Serialize};

pub use cache::{cached, forget};
pub use layer::overlay_in;

use crate::host::{Host, Probe};
use crate::limits::cgroup;
use crate::local::sys::probe as sys;
use crate::step::{Step, StepError};

/// Something that the children try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Item {
    Userns,
    /// A user namespace and nothing else; only tried when `Userns` fails.
    UsernsAlone,
    Netns,
    Proc,
    Overlay,
    Recursive,
    Idmap,
    Seccomp,
    Notify,
    Mediation,
    Borrowing,
    PerUserns,
}

impl Item {
    /// The step that is blamed when a child ends without an answer.
    fn step(self) -> Step {
        match self {
            Self::Userns | Self::UsernsAlone | Self::Netns => Step::Namespaces,
            Self::Proc => Step::Proc,
            Self::Overlay => Step::Overlay,
            Self::Recursive | Self::Idmap => Step::Attributes,
            Self::Seccomp => Step::Seccomp,
            Self::Notify | Self::Mediation | Self::Borrowing => Step::Broker,
            Self::PerUserns => Step::Limits,
        }
    }
}

/// What one child found; travels over a pipe.
type Finding = (Item, Probe);

/// Far above what the slowest machine needs: only a hung file system or a stopped child gets there.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is measured at most: a child that somebody killed says nothing about the machine, and must not make the
/// next sandbox a weaker one.
const TRIES: usize = 3;

/// Measures this machine. Takes a few milliseconds and leaves nothing behind.
///
/// Forks; meant for a process that has not started any thread.
pub fn probe() -> Host {
    let mut host = measure();
    for _ in 1..TRIES {
        // One that hung will hang again, and takes its time.
        if !cache::failures(&host).any(|errno| cache::is_momentary(errno) && errno != Errno::ETIMEDOUT) {
            break;
        }
        host = measure();
    }
    host
}

fn measure() -> Host {
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let answers = Answers::collect(uid == 0);
    let userns = answers.get(Item::Userns);
    // Without own namespaces there is nothing to mount in: what was not tried fails for the same reason.
    let inside = |item: Item| match &userns {
        Probe::Works => answers.get(item),
        Probe::Fails(error) => answers.found(item).unwrap_or_else(|| Probe::Fails(error.clone())),
    };
    let idmap = if uid == 0 { answers.get(Item::Idmap) } else { Probe::Fails(StepError::new(Step::Attributes, Errno::EPERM)) };
    let userns_cause = match &userns {
        Probe::Works => None,
        Probe::Fails(error) => Some(cause::name(error, &cause::Signs::read(answers.found(Item::UsernsAlone)))),
    };
    Host {
        kernel: facts::kernel(),
        arch: std::env::consts::ARCH.to_owned(),
        landlock_abi: sys::landlock_abi(),
        userns_cause,
        netns: inside(Item::Netns),
        proc_mount: inside(Item::Proc),
        overlay: inside(Item::Overlay),
        recursive_attributes: inside(Item::Recursive),
        idmap,
        notify: answers.get(Item::Notify),
        mediation: answers.get(Item::Mediation),
        borrowing: answers.get(Item::Borrowing),
        seccomp: answers.get(Item::Seccomp),
        processes_per_userns: answers.get(Item::PerUserns).works(),
        cgroup: cgroup::detect(uid),
        enclosure: None,
        uid,
        gid,
        powerful_groups: facts::powerful_groups(uid),
        memory: facts::memory(),
        userns,
    }
}

/// What the children said, and what to say of the rest.
struct Answers {
    findings: Vec<Finding>,
    silence: Errno,
}

impl Answers {
    fn collect(root: bool) -> Self {
        match Self::run(root) {
            Ok(answers) => answers,
            Err(errno) => Self { findings: Vec::new(), silence: errno },
        }
    }

    fn run(root: bool) -> Result<Self, Errno> {
        let (receiver, sender) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let launcher = sys::fork(|| {
            child::launch(&sender, root);
            0
        })?;
        drop(sender);
        let mut bytes = Vec::with_capacity(256);
        let finished = read_until(receiver.into(), &mut bytes, Instant::now() + PATIENCE);
        if !finished {
            let _ = kill(launcher, Signal::SIGKILL);
        }
        let _ = waitpid(launcher, None);
        Ok(Self { findings: decode(&bytes), silence: if finished { Errno::EPIPE } else { Errno::ETIMEDOUT } })
    }

    /// The last word on `item`: a later try is made in the place that matters more.
    fn found(&self, item: Item) -> Option<Probe> {
        self.findings.iter().rev().find(|(found, _)| *found == item).map(|(_, probe)| probe.clone())
    }

    fn get(&self, item: Item) -> Probe {
        self.found(item).unwrap_or_else(|| Probe::Fails(StepError::new(item.step(), self.silence)))
    }
}

/// Reads to the end; false when the deadline came first.
fn read_until(mut from: std::fs::File, into: &mut Vec<u8>, deadline: Instant) -> bool {
    let mut buffer = [0; 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return false,
            Ok(_) => match from.read(&mut buffer) {
                Ok(0) => return true,
                Ok(n) => into.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            },
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

fn decode(mut bytes: &[u8]) -> Vec<Finding> {
    let mut findings = Vec::new();
    while let Ok((finding, rest)) = postcard::take_from_bytes(bytes) {
        findings.push(finding);
        bytes = rest;
    }
    findings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn silence_is_failure() {
        let answers = Answers { findings: vec![(Item::Proc, Probe::Works)], silence: Errno::EPIPE };
        assert!(answers.get(Item::Proc).works());
        assert_eq!(answers.get(Item::Notify), Probe::Fails(StepError::new(Step::Broker, Errno::EPIPE)));
    }

    #[test]
    fn findings_survive_the_pipe() {
        let findings: Vec<Finding> =
            vec![(Item::Userns, Probe::Works), (Item::Overlay, Probe::Fails(StepError::on(Step::Overlay, "/x", Errno::EINVAL)))];
        let bytes: Vec<u8> = findings.iter().flat_map(|finding| postcard::to_stdvec(finding).unwrap()).collect();
        assert_eq!(decode(&bytes), findings);
        assert_eq!(decode(&bytes[..bytes.len() - 1]), findings[..1]);
    }

    /// The C library's own view of the mount table, children and the id of the test must be as before.
    #[test]
    fn leaves_nothing_behind() {
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let before = (mounts(), nix::unistd::geteuid());
        let host = probe();
        assert_eq!((mounts(), nix::unistd::geteuid()), before);
        println!("{}", serde_json::to_string_pretty(&host).unwrap());
    }
}
