//! What `run`, `plan` and `explain` have in common: from the command line to a plan. Nothing is changed on the machine.

use std::ffi::OsString;
use std::path::PathBuf;

use hermes_backends::compile::Kept;
use hermes_backends::host::{Host, Probe, UsernsCause};
use hermes_backends::plan::{Layer, Lost, MountStep, Plan, Tier};
use hermes_backends::survey::Survey;
use hermes_profiles::environment::{self, Environment};
use hermes_profiles::{Access, Caller, Guarantee, Policy, Resolved};

use crate::args::PolicyArgs;
use crate::changes::{self, Overlaid};
use crate::engine::{self, Places};
use crate::error::Error;
use crate::needs;
use crate::output;
use crate::request::{self, Disk};
use crate::scratch::Scratch;
use crate::start;

/// A plan and everything it was made from.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) caller: Caller,
    pub(crate) policy: Policy,
    pub(crate) host: Host,
    pub(crate) survey: Survey,
    pub(crate) plan: Plan,
    pub(crate) environment: Environment,
    /// The workspace, and its git directory if that lies elsewhere.
    pub(crate) trees: Vec<PathBuf>,
    /// Can layers over the workspace be kept? Only asked for a copy-on-write one.
    pub(crate) keeps: Option<Probe>,
    /// What the caller should be told about how the policy came to be.
    pub(crate) notices: Vec<String>,
}

/// The policy alone: needs nothing of the machine but policy files.
pub(crate) fn policy(args: &PolicyArgs) -> Result<(Caller, Resolved), Error> {
    args.only_local()?;
    let user = args.user.as_deref().map(start::become_user).transpose()?;
    let request = request::request(args, request::caller(user)?);
    let resolved = hermes_profiles::resolve(&request, &Disk)?;
    Ok((request.caller, resolved))
}

/// The plan for running `command`, which may be empty when only the plan is wanted.
pub(crate) fn prepare(args: &PolicyArgs, command: &[OsString]) -> Result<Prepared, Error> {
    let (caller, resolved) = policy(args)?;
    prepare_for(args, command, caller, resolved)
}

/// The same for a policy that is there already. `args` has the wishes that are no part of it.
pub(crate) fn prepare_for(
    args: &PolicyArgs,
    command: &[OsString],
    caller: Caller,
    resolved: Resolved,
) -> Result<Prepared, Error> {
    let mut policy = resolved.policy;
    let environment = environment::filter(&policy.environment, caller.variables.iter().cloned());
    let git = needs::add(&mut policy, &caller, command, &environment.passed);
    // In a container there is nothing to be kept.
    let cache_dir = request::cache_dir(&caller).filter(|_| engine::enclosure().is_none());
    needs::protect_own(&mut policy, &caller, cache_dir.clone())?;
    let host = engine::measure(cache_dir.as_deref());
    let survey = engine::survey(&policy);
    let trees: Vec<PathBuf> =
        [survey.real(&policy.workspace).to_owned()].into_iter().chain(git.map(|git| survey.real(&git).to_owned())).collect();
    let keeps = match (policy.workspace_access, &caller.state_dir) {
        (Access::Overlay, Some(state)) => Some(changes::probe(state, &trees[0])),
        _ => None,
    };
    let planned: Vec<_> = trees.iter().map(|tree| (tree.clone(), Layer::Planned)).collect();
    let kept = keeps.as_ref().map(|works| Kept { trees: &planned, works });
    let mut plan = engine::compile(&policy, &host, &survey, args, &caller, Places { kept, ..Places::default() })?;
    let unkept = |lost: &&mut Lost| lost.guarantee == Guarantee::WorkspaceOverlaid;
    if plan.tier == Tier::Namespaces
        && let Some(lost) = plan.lost.iter_mut().find(unkept)
        && let Some((reason, remedy)) = changes::obstacle(&caller, &trees[0])
    {
        (lost.reason, lost.remedy) = (reason, remedy);
    }
    Ok(Prepared { caller, policy, host, survey, plan, environment, trees, keeps, notices: resolved.notices })
}

impl Prepared {
    /// Makes what the plan needs on the machine before the start: without a mount namespace, a private directory in the
    /// place of /tmp. It is removed when the returned value is dropped.
    pub(crate) fn make_scratch(&mut self, args: &PolicyArgs) -> Result<Option<Scratch>, Error> {
        if self.plan.tier != Tier::Landlock {
            return Ok(None);
        }
        let dir = Scratch::new().map_err(|e| Error::setup(format!("cannot make a private temporary directory: {e}")))?;
        let places = Places { scratch: Some(dir.path()), ..Places::default() };
        self.plan = engine::compile(&self.policy, &self.host, &self.survey, args, &self.caller, places)?;
        Ok(Some(dir))
    }

    /// Takes the layer that a copy-on-write workspace needs.
    pub(crate) fn take_layer(&mut self, args: &PolicyArgs) -> Result<Option<Overlaid>, Error> {
        let planned = |step: &MountStep| matches!(step, MountStep::Overlay { layer: Layer::Planned, .. });
        let Some(works) = self.keeps.as_ref().filter(|_| self.plan.mounts.iter().any(planned)) else { return Ok(None) };
        let overlaid = changes::overlay(&self.caller, &self.trees, &self.policy.guard)?;
        let trees: Vec<_> = overlaid.sources()?.into_iter().map(|(path, source)| (path, Layer::Kept(source))).collect();
        let places = Places { kept: Some(Kept { trees: &trees, works }), ..Places::default() };
        self.plan = engine::compile(&self.policy, &self.host, &self.survey, args, &self.caller, places)?;
        Ok(Some(overlaid))
    }

    /// The refusal when a required guarantee is lost: every loss is told with its remedy, then this error.
    pub(crate) fn refuse_lost(&self) -> Result<(), Error> {
        let fatal: Vec<_> = self.plan.fatal().collect();
        let Some(first) = fatal.first() else { return Ok(()) };
        for lost in &fatal {
            output::complain(&format!("{} cannot be given here: {}", lost.guarantee, lost.reason));
            output::complain(&format!("hint: {}", lost.remedy));
        }
        let nested = self.host.userns_cause == Some(UsernsCause::Nested);
        let flags: Vec<_> = fatal.iter().map(|lost| format!("--accept-loss {}", lost.guarantee)).collect();
        let refused = Error::setup(format!(
            "nothing was started: this machine cannot give {} that the policy requires",
            match fatal.len() {
                1 => format!("`{}`", first.guarantee),
                n => format!("{n} guarantees"),
            }
        ));
        Err(match nested {
            true => refused.hint(
                "this is already inside a hermes-sandbox, which confines the command: run it directly, without a nested one",
            ),
            false => refused.hint(format!("`hermes-sandbox doctor` says why; to run without: {}", flags.join(" "))),
        })
    }

    /// Tells what is lost although the policy would prefer it or the caller accepted the loss: in one line, or each with
    /// its reason. What is given by weaker means is told with `verbose` only; `plan` and `doctor` show it.
    pub(crate) fn tell_losses(&self, verbose: bool) {
        for notice in &self.notices {
            output::complain(notice);
        }
        if !verbose {
            if let Some(line) = loss_line(&self.plan) {
                output::complain(&line);
            }
            return;
        }
        for (word, losses) in [("without", &self.plan.lost), ("weaker", &self.plan.weakened)] {
            for lost in losses {
                output::complain(&format!("{word} {}: {}; {}", lost.guarantee, lost.reason, lost.remedy));
            }
        }
    }
}

fn loss_line(plan: &Plan) -> Option<String> {
    let names: Vec<_> = plan.lost.iter().map(|lost| lost.guarantee.name()).collect();
    (!names.is_empty()).then(|| format!("without {} (-v says why)", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn losses_take_one_line() {
        let mut plan = sample::plan();
        assert_eq!(loss_line(&plan).as_deref(), Some("without cpu-limited (-v says why)"));
        plan.weakened.append(&mut plan.lost);
        assert_eq!(loss_line(&plan), None);
    }
}
