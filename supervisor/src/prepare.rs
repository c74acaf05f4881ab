//! What `run`, `plan` and `explain` have in common: from the command line to a plan. Nothing is changed on the machine.

use std::ffi::OsString;

use hermes_backends::host::Host;
use hermes_backends::plan::Plan;
use hermes_backends::survey::Survey;
use hermes_profiles::environment::{self, Environment};
use hermes_profiles::{Caller, Policy};

use crate::args::PolicyArgs;
use crate::engine;
use crate::error::Error;
use crate::output;
use crate::request::{self, Disk};

/// A plan and everything it was made from.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) caller: Caller,
    pub(crate) policy: Policy,
    pub(crate) host: Host,
    pub(crate) survey: Survey,
    pub(crate) plan: Plan,
    pub(crate) environment: Environment,
    /// What the caller should be told about how the policy came to be.
    pub(crate) notices: Vec<String>,
}

/// The policy alone: needs nothing of the machine but policy files.
pub(crate) fn policy(args: &PolicyArgs) -> Result<(Caller, hermes_profiles::Resolved), Error> {
    args.refuse_unsupported()?;
    let request = request::request(args, request::caller()?);
    let resolved = hermes_profiles::resolve(&request, &Disk)?;
    Ok((request.caller, resolved))
}

/// The plan for running `command`, which may be empty when only the plan is wanted.
pub(crate) fn prepare(args: &PolicyArgs, command: &[OsString]) -> Result<Prepared, Error> {
    let (caller, resolved) = policy(args)?;
    let policy = resolved.policy;
    let host = engine::measure(request::cache_dir(&caller).as_deref());
    let survey = engine::survey(&policy);
    let plan = engine::compile(&policy, &host, &survey, args, &caller)?;
    let environment = environment::filter(&policy.environment, caller.variables.iter().cloned());
    Ok(Prepared { caller, policy, host, survey, plan, environment, notices: resolved.notices })
}

impl Prepared {
    /// The refusal when a required guarantee is lost: every loss is told with its remedy, then this error.
    pub(crate) fn refuse_lost(&self) -> Result<(), Error> {
        let fatal: Vec<_> = self.plan.fatal().collect();
        let Some(first) = fatal.first() else { return Ok(()) };
        for lost in &fatal {
            output::complain(&format!("{} cannot be given here: {}", lost.guarantee, lost.reason));
            output::complain(&format!("hint: {}", lost.remedy));
        }
        let flags: Vec<_> = fatal.iter().map(|lost| format!("--accept-loss {}", lost.guarantee)).collect();
        Err(Error::setup(format!(
            "nothing was started: this machine cannot give {} that the policy requires",
            match fatal.len() {
                1 => format!("`{}`", first.guarantee),
                n => format!("{n} guarantees"),
            }
        ))
        .hint(format!("`hermes-sandbox doctor` says why; to run without: {}", flags.join(" "))))
    }

    /// Tells once what is given by weaker means or not at all although the policy would prefer it.
    pub(crate) fn tell_losses(&self) {
        for notice in &self.notices {
            output::complain(notice);
        }
        for lost in self.plan.lost.iter().filter(|lost| !lost.required) {
            output::complain(&format!("without {}: {}", lost.guarantee, lost.reason));
        }
        for weak in &self.plan.weakened {
            output::complain(&format!("weaker {}: {}", weak.guarantee, weak.reason));
        }
    }
}
