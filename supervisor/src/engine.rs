//! The seam to the backends: everything of theirs that this crate calls.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use hermes_backends::explain::CallAnswer;
use hermes_backends::host::Host;
use hermes_backends::plan::{Plan, SeccompPlan};
use hermes_backends::survey::Survey;
use hermes_profiles::{Caller, Policy};

use crate::args::PolicyArgs;
use crate::error::Error;
use crate::events::Log;
use crate::prepare::Prepared;

/// The first process of a sandbox; called before anything else, with `init` as the only argument.
pub(crate) fn init() -> ExitCode {
    not_connected().report().into()
}

/// What this machine can enforce, from the cache of this boot when there is one.
pub(crate) fn measure(_cache_dir: Option<&Path>) -> Host {
    unconnected_host()
}

/// What this machine can enforce, measured now.
pub(crate) fn measure_now() -> Host {
    unconnected_host()
}

/// What the policy's paths and the command's are on this machine.
pub(crate) fn survey(_policy: &Policy, _caller: &Caller, _command: &[OsString]) -> Survey {
    Survey::default()
}

/// Adds what `paths` are to a survey.
pub(crate) fn survey_also(_survey: &mut Survey, _paths: &[&Path]) {}

/// The plan. `args` has the wishes that are no part of the policy: `tier` and `user`.
pub(crate) fn compile(_policy: &Policy, _host: &Host, _survey: &Survey, _args: &PolicyArgs) -> Result<Plan, Error> {
    Err(not_connected())
}

/// What the system call filter of a plan answers to a call.
pub(crate) fn call_answer(_plan: &SeccompPlan, _name: &str) -> Option<CallAnswer> {
    None
}

/// Runs a command in a sandbox and returns the exit status.
pub(crate) fn run(_prepared: Prepared, _command: Vec<OsString>, _log: &mut Log, _verbose: bool) -> Result<u8, Error> {
    Err(not_connected())
}

fn not_connected() -> Error {
    Error::setup("this build has no backend")
}

fn unconnected_host() -> Host {
    use hermes_backends::host::{CgroupAccess, Probe};
    use hermes_backends::step::{Step, StepError};
    let fails = || Probe::Fails(StepError { step: Step::Spawn, subject: None, errno: 0 });
    Host {
        kernel: String::new(),
        arch: std::env::consts::ARCH.into(),
        landlock_abi: 0,
        userns: fails(),
        userns_cause: None,
        netns: fails(),
        proc_mount: fails(),
        overlay: fails(),
        recursive_attributes: fails(),
        idmap: fails(),
        notify: fails(),
        seccomp: fails(),
        processes_per_userns: false,
        cgroup: CgroupAccess::None,
        uid: 0,
        gid: 0,
        powerful_groups: Vec::new(),
        memory: 0,
    }
}
