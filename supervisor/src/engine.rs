//! The seam to the backends: everything of theirs that this crate calls.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use hermes_backends::compile::files::paths_of;
use hermes_backends::compile::mounts::MARKER;
use hermes_backends::compile::network::{self, variables};
use hermes_backends::compile::shadow::Shadow;
use hermes_backends::compile::{Choices, Kept, compile as compile_plan};
use hermes_backends::host::{Enclosure, Host};
use hermes_backends::limits::TreeLimits;
use hermes_backends::limits::cgroup::Cgroup;
use hermes_backends::local::Sandbox;
use hermes_backends::local::landlock::KNOWN_ABI;
use hermes_backends::plan::{Enforcer, Plan, Tier};
use hermes_backends::survey::Survey;
use hermes_backends::{local, probe};
use hermes_profiles::{Caller, Policy};

use crate::args::{PolicyArgs, TierArg};
use crate::error::{Error, Kind};
use crate::events::{Event, Log};
use crate::guard::{self, Guards};
use crate::network::WayOut;
use crate::output;
use crate::prepare::Prepared;
use crate::request;
use crate::supervise::{self, Along};

/// Does the first argument ask for [`init`]?
pub(crate) fn is_init(argument: &OsStr) -> bool {
    argument.as_bytes() == local::INIT_ARGUMENT.to_bytes()
}

/// The first process of a sandbox; called before anything else.
pub(crate) fn init() -> ExitCode {
    ExitCode::from(local::init::main() as u8)
}

/// The container around this process.
static ENCLOSURE: OnceLock<Enclosure> = OnceLock::new();

/// What is planned from now on is for this container, which our own other half has made.
pub(crate) fn enclose(enclosure: Enclosure) {
    let _ = ENCLOSURE.set(enclosure);
}

/// The container around this process.
pub(crate) fn enclosure() -> Option<Enclosure> {
    ENCLOSURE.get().copied()
}

/// What this machine can enforce, from the cache of this boot when there is one.
pub(crate) fn measure(cache_dir: Option<&Path>) -> Host {
    let host = match cache_dir {
        Some(dir) => probe::cached(dir),
        None => probe::probe(),
    };
    Host { enclosure: enclosure(), ..host }
}

/// What this machine can enforce, measured now.
pub(crate) fn measure_now() -> Host {
    Host { enclosure: enclosure(), ..probe::probe() }
}

/// Bytes of memory of this machine.
pub(crate) fn memory(caller: &Caller) -> u64 {
    measure(request::cache_dir(caller).as_deref()).memory
}

/// What jobs elsewhere can write of this machine, as a plan. It is good for nothing else.
pub(crate) fn plan_of_trees(policy: &Policy, survey: &Survey, caller: &Caller) -> Result<Plan, Error> {
    // Rules of Landlock name the trees, whatever this kernel has.
    let host = Host { landlock_abi: KNOWN_ABI, ..measure(request::cache_dir(caller).as_deref()) };
    let args = PolicyArgs { tier: Some(TierArg::Landlock), ..PolicyArgs::default() };
    compile(policy, &host, survey, &args, caller, Places::default())
}

/// Is this process in one of our own sandboxes? A directory of this name alone would not be enough for commands to be run
/// unconfined: all that such a sandbox does to its jobs must be there.
pub(crate) fn is_inside() -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let marked = Path::new(MARKER).symlink_metadata().is_ok_and(|marker| marker.is_dir() && marker.mode() & 0o7777 == 0o555);
    marked && is_confined(&read("/proc/self/status"), &read("/proc/self/uid_map"))
}

/// No new privileges, a system call filter, and a user namespace with one user, by proc(5).
fn is_confined(status: &str, uid_map: &str) -> bool {
    let is = |name: &str, value: &str| {
        status.lines().filter_map(|line| line.strip_prefix(name)).any(|line| line.trim_start_matches(':').trim() == value)
    };
    let maps: Vec<_> = uid_map.lines().map(|line| line.split_ascii_whitespace().nth(2)).collect();
    is("NoNewPrivs", "1") && is("Seccomp", "2") && maps == [Some("1")]
}

/// What the policy's paths are on this machine.
pub(crate) fn survey(policy: &Policy) -> Survey {
    // Most rules name credentials and caches that this home does not have.
    let hubs: Vec<PathBuf> = match &policy.home.dir {
        Some(home) => [".config", ".cache", ".local/share"].iter().map(|below| home.join(below)).chain([home.clone()]).collect(),
        None => Vec::new(),
    };
    let network = if network::is_mediated(policy) { network::paths() } else { Vec::new() };
    hermes_backends::survey::survey(paths_of(policy).into_iter().chain(network.iter().map(Path::new)), &hubs)
}

/// Adds what `paths` are to a survey.
pub(crate) fn survey_also(survey: &mut Survey, paths: &[&Path]) {
    let more = hermes_backends::survey::survey(paths.iter().copied(), &[]);
    for path in paths {
        survey.insert(*path, more.get(path).clone());
    }
}

/// Directories of the host that a sandbox is given for its own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Places<'a> {
    /// In the place of /tmp.
    pub(crate) scratch: Option<&'a Path>,
    /// For what is copy-on-write and kept.
    pub(crate) kept: Option<Kept<'a>>,
}

/// The plan. `args` has the wishes that are no part of the policy.
pub(crate) fn compile(
    policy: &Policy,
    host: &Host,
    survey: &Survey,
    args: &PolicyArgs,
    caller: &Caller,
    places: Places<'_>,
) -> Result<Plan, Error> {
    let tier = args.tier.map(|tier| match tier {
        TierArg::Namespaces => Tier::Namespaces,
        TierArg::Landlock => Tier::Landlock,
    });
    let choices = Choices { tier, cwd: Some(&caller.cwd), scratch: places.scratch, kept: places.kept };
    compile_plan(policy, host, survey, choices).map_err(|error| Error::new(Kind::Policy, error.to_string()))
}

/// Shows the private copies of a guard inside.
pub(crate) fn show_shadow(plan: &mut Plan, shadow: Shadow) {
    hermes_backends::compile::shadow::add(plan, shadow);
}

/// Runs a command in a sandbox and returns the exit status. The sandbox keeps `held` open until it has ended.
pub(crate) fn run(
    prepared: Prepared,
    command: Vec<OsString>,
    held: &[BorrowedFd<'_>],
    mut guards: Option<Guards>,
    log: &mut Log,
) -> Result<u8, Error> {
    let group = group(&prepared.plan, &prepared.host)?;
    let procs: Vec<_> = group.iter().flat_map(Cgroup::procs).collect();
    let mut way_out = WayOut::new(&prepared.policy, &prepared.plan, &prepared.caller, log)?;
    let environment = environment(&prepared, way_out.as_ref());
    let along = Along { cgroups: &procs, held, guards: guards.as_mut(), way_out: way_out.as_mut() };
    let outcome = supervise::run(&prepared.plan, &command, environment, along, log);
    leave(group.as_ref(), guards, way_out, log)?;
    if outcome.as_ref().is_err_and(|error| error.kind == Kind::Setup)
        && let Some(dir) = request::cache_dir(&prepared.caller)
    {
        // The machine is perhaps no longer what was measured.
        probe::forget(&dir);
    }
    // The process ends: to give back piece by piece what a policy allocated would only keep the caller waiting.
    std::mem::forget((prepared.policy, prepared.plan, prepared.survey, prepared.caller));
    outcome
}

/// The variables that jobs get.
fn environment(prepared: &Prepared, way_out: Option<&WayOut>) -> Vec<(OsString, OsString)> {
    completed(prepared, way_out, prepared.environment.passed.clone())
}

/// The variables that a job gets whose caller has these.
pub(crate) fn environment_for(
    prepared: &Prepared,
    way_out: Option<&WayOut>,
    caller: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    completed(prepared, way_out, hermes_profiles::environment::filter(&prepared.policy.environment, caller).passed)
}

/// With what leads programs to the sandbox's own places.
fn completed(
    prepared: &Prepared,
    way_out: Option<&WayOut>,
    mut environment: Vec<(OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let redirects = prepared.plan.redirects.iter();
    let redirects = redirects.map(|redirect| (OsString::from(&redirect.name), OsString::from(&redirect.directory)));
    // What the policy sets by name is meant.
    let set = &prepared.policy.environment.set;
    let plan = &prepared.plan;
    let network = plan.gateway.iter().flat_map(|gateway| variables(plan.network, gateway));
    let network = network.filter(|(name, _)| !set.contains_key(name));
    let placeholders = way_out.into_iter().flat_map(WayOut::placeholders).cloned();
    // Placeholders last: a value of the caller's in their place would be the secret itself.
    let network = network.chain(placeholders).map(|(name, value)| (OsString::from(name), OsString::from(value)));
    for (name, value) in redirects.chain(network) {
        environment.retain(|(known, _)| *known != name);
        environment.push((name, value));
    }
    environment
}

/// What is to be done and told when everything in a sandbox has ended.
fn leave(group: Option<&Cgroup>, guards: Option<Guards>, way_out: Option<WayOut>, log: &mut Log) -> Result<(), Error> {
    if let Some(mut way_out) = way_out {
        way_out.finish();
    }
    if let Some(group) = group {
        tell_limits(group, log)?;
    }
    match guards {
        Some(guards) => guard::tell(&guards.settle()?, log),
        None => Ok(()),
    }
}

/// A sandbox without a command, for a session.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) sandbox: Sandbox,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) way_out: Option<WayOut>,
    /// To be dropped when nothing is left in it.
    pub(crate) group: Option<Cgroup>,
}

/// The way out of a sandbox about which this process decides.
pub(crate) fn way_out(prepared: &Prepared, log: &Log) -> Result<Option<WayOut>, Error> {
    WayOut::new(&prepared.policy, &prepared.plan, &prepared.caller, log)
}

/// Starts a sandbox and waits until it stands. It keeps `held` open until it has ended.
pub(crate) fn open(
    prepared: &Prepared,
    held: &[BorrowedFd<'_>],
    guards: Option<&mut Guards>,
    mut way_out: Option<WayOut>,
) -> Result<Opened, Error> {
    let group = group(&prepared.plan, &prepared.host)?;
    let procs: Vec<_> = group.iter().flat_map(Cgroup::procs).collect();
    let along = Along { cgroups: &procs, held, guards, way_out: way_out.as_mut() };
    let sandbox = supervise::open(&prepared.plan, along)?;
    let environment = environment(prepared, way_out.as_ref());
    Ok(Opened { sandbox, environment, group, way_out })
}

/// Everything in the sandbox of a session has ended.
pub(crate) fn close(group: Option<Cgroup>, guards: Option<Guards>, way_out: Option<WayOut>, log: &mut Log) -> Result<(), Error> {
    leave(group.as_ref(), guards, way_out, log)
}

/// The control group that the plan's limits ask for.
pub(crate) fn group(plan: &Plan, host: &Host) -> Result<Option<Cgroup>, Error> {
    let limits = &plan.limits;
    let by_cgroup = |value: Option<u64>, enforcer| value.filter(|_| enforcer == Enforcer::Cgroup);
    let tree = TreeLimits {
        memory: by_cgroup(limits.memory, limits.memory_by),
        processes: by_cgroup(limits.processes, limits.processes_by),
        cpu_percent: limits.cpu_percent,
    };
    match tree.is_empty() {
        true => Ok(None),
        false => Cgroup::create(&host.cgroup, &tree).map(Some).map_err(|error| Error::setup(error.to_string())),
    }
}

/// Says which limits of the control group were hit: a kill by the kernel looks like any other from outside.
fn tell_limits(group: &Cgroup, log: &mut Log) -> Result<(), Error> {
    let events = group.events();
    let hits = [
        (events.oom_kills, "memory", "processes were killed at the memory limit; raise it with --limit memory=SIZE"),
        (events.forks_refused, "processes", "forks were refused at the limit of processes; raise it with --limit processes=N"),
    ];
    for (count, limit, words) in hits.into_iter().filter(|(count, ..)| *count > 0) {
        output::complain(&format!("{count} {words}"));
        log.write(&Event::LimitHit { limit: limit.into() })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_is_where_everything_says_so() {
        let status = "Name:\tsh\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let map = "      1000       1000          1\n";
        assert!(is_confined(status, map));
        assert!(!is_confined(&status.replace("Privs:\t1", "Privs:\t0"), map));
        assert!(!is_confined(&status.replace("Seccomp:\t2", "Seccomp:\t0"), map));
        assert!(!is_confined(status, "0 0 4294967295\n") && !is_confined(status, "0 1000 1\n1 100000 65536\n"));
        assert!(!is_confined("", ""));
    }
}
