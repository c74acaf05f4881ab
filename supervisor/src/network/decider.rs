//! Who decides about connections out of one sandbox: the engine with the policy's routes, the secrets that they name, and
//! what is told about it.

use std::path::Path;
use std::sync::Arc;

use hermes_egress::dial::OuterProxy;
use hermes_egress::proxy::{Meant, Unknown};
use hermes_egress::{Config, Egress};
use hermes_profiles::{Caller, Policy, UnknownHosts};

use super::told::Told;
use super::unknown::{Ask, Audit};
use crate::approvals::{Approvals, Scope};
use crate::error::{Error, Kind};
use crate::events::Log;
use crate::output;
use crate::secrets::sandbox::SandboxSecrets;

/// Decides about connections.
pub(crate) struct Decider {
    pub(crate) egress: Arc<Egress>,
    /// Variables that programs expect secrets in, and what stands in the place of these inside.
    pub(crate) placeholders: Vec<(String, String)>,
    told: Arc<Told>,
}

impl Decider {
    /// By the routes of `policy`. `meant` knows what connections are meant for that the engine accepts itself.
    ///
    /// # Errors
    /// A route, a secret that one names, or the caller's own proxy cannot be used.
    pub(crate) fn new(policy: &Policy, caller: &Caller, log: &Log, meant: Arc<dyn Meant>) -> Result<Self, Error> {
        let told = Arc::new(Told::new(log.another()?));
        // A file's place on the host is nobody's business inside.
        let name = Path::new(&policy.profile).file_stem().unwrap_or_default().to_string_lossy();
        let mut config = Config::new(name);
        config.events = Arc::clone(&told) as _;
        config.unknown = unknown_hosts(policy, caller, &told)?;
        let to_tell = Arc::clone(&told);
        let secrets = SandboxSecrets::open(caller, policy, move |notice| to_tell.note(notice))?;
        secrets.require()?;
        let placeholders = secrets.variables();
        config.secrets = Arc::new(secrets);
        config.outer = outer_proxy(caller)?;
        config.meant = meant;
        let egress = Egress::new(config, policy.routes()).map_err(|e| Error::new(Kind::Policy, e.to_string()))?;
        Ok(Self { egress, placeholders, told })
    }

    /// The certificate, in PEM, that must be trusted inside.
    ///
    /// # Errors
    /// None could be made.
    pub(crate) fn authority(&self) -> Result<&str, Error> {
        Ok(self.egress.authority().map_err(|e| Error::setup(e.to_string()))?.pem())
    }

    /// Tells people, in a line, what was refused.
    pub(crate) fn tell(&self) {
        self.told.tell();
    }
}

fn unknown_hosts(policy: &Policy, caller: &Caller, told: &Arc<Told>) -> Result<Option<Arc<dyn Unknown>>, Error> {
    Ok(match policy.unknown_hosts {
        UnknownHosts::Refuse => None,
        UnknownHosts::Audit => {
            output::complain(
                "--net audit: EVERY host on the internet can be reached; it is for finding out which routes are needed",
            );
            Some(Arc::new(Audit))
        }
        UnknownHosts::Ask => {
            let approvals = Approvals::of(crate::state::directory(caller)?);
            let scope = Scope::of(policy);
            Some(Arc::new(Ask::new(approvals, scope, Arc::clone(told))))
        }
    })
}

/// The proxy that the caller has to use.
fn outer_proxy(caller: &Caller) -> Result<Option<OuterProxy>, Error> {
    let value = |names: &[&str]| {
        let found = names.iter().find_map(|name| Some((*name, caller.variable(name)?)).filter(|(_, value)| !value.is_empty()));
        found.map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()))
    };
    let Some((name, url)) = value(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]) else { return Ok(None) };
    let without = value(&["no_proxy", "NO_PROXY"]).map(|(_, list)| list).unwrap_or_default();
    let parsed = OuterProxy::parse(&url, &without);
    parsed.map(Some).map_err(|why| {
        Error::setup(format!("the proxy of {name} cannot be used: {why}")).hint(format!("correct {name}, or unset it"))
    })
}
