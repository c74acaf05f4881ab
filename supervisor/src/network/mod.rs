//! The mediated way out of one sandbox: the proxy in a thread of its own, and what it has to tell.

mod calls;
mod loopback;
mod told;

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hermes_backends::compile::network::routes;
use hermes_backends::plan::{NetworkPlan, Plan};
use hermes_backends::wire::{Certificates, Listener};
use hermes_egress::dial::OuterProxy;
use hermes_egress::{Config, Egress, Listeners};
use hermes_profiles::{Caller, Policy};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::events::Log;
use calls::Calls;
use told::Told;

/// Where systems keep the certificates that they trust, PEM.
const ROOTS: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The way out of one sandbox. Connections end when it is dropped.
pub(crate) struct WayOut {
    egress: Arc<Egress>,
    told: Arc<Told>,
    inspects: bool,
    /// Without namespaces: by whose word a connection is the sandbox's.
    calls: Option<Calls>,
    roots: Option<PathBuf>,
    /// Ends the thread when it is dropped.
    running: Option<oneshot::Sender<()>>,
}

impl WayOut {
    /// What the policy's routes need; `None` for a sandbox without a network.
    ///
    /// # Errors
    /// A route or the caller's own proxy cannot be used.
    pub(crate) fn new(policy: &Policy, plan: &Plan, caller: &Caller, log: &Log) -> Result<Option<Self>, Error> {
        if plan.gateway.is_none() && plan.connect.is_empty() {
            return Ok(None);
        }
        let told = Arc::new(Told::new(log.another()?));
        let mut config = Config::new(&policy.profile);
        config.events = Arc::clone(&told) as _;
        config.outer = outer_proxy(caller)?;
        let calls = match (&plan.gateway, plan.network) {
            (Some(gateway), NetworkPlan::Notified) => Some(Calls::new(gateway, plan)?),
            _ => None,
        };
        if let Some(calls) = &calls {
            config.meant = calls.meant();
        }
        let egress = Egress::new(config, routes(policy)).map_err(|e| Error::new(crate::error::Kind::Policy, e.to_string()))?;
        let inspects = plan.gateway.as_ref().is_some_and(|gateway| gateway.inspects);
        let named = caller.variable("SSL_CERT_FILE").map(PathBuf::from);
        let roots = named.into_iter().chain(ROOTS.iter().map(PathBuf::from)).find(|path| path.exists());
        Ok(Some(Self { egress, told, inspects, calls, roots, running: None }))
    }

    /// What is trusted inside: the system's certificates, and the proxy's own.
    pub(crate) fn certificates(&self) -> Result<Certificates, Error> {
        if !self.inspects {
            return Ok(Certificates::default());
        }
        let own = self.egress.authority().map_err(|e| Error::setup(e.to_string()))?.pem();
        let mut pem = match &self.roots {
            Some(path) => std::fs::read(path).map_err(|e| cannot_read(path, &e))?,
            None => Vec::new(),
        };
        if !pem.is_empty() && !pem.ends_with(b"\n") {
            pem.push(b'\n');
        }
        pem.extend_from_slice(own.as_bytes());
        Ok(Certificates { pem, java: Vec::new() })
    }

    /// Serves on sockets that were made inside, until it is dropped.
    pub(crate) fn serve(&mut self, kinds: &[Listener], fds: Vec<OwnedFd>) -> Result<(), Error> {
        raise_descriptors();
        let mut listeners = Listeners::default();
        let mut loopback = Vec::new();
        let mut all: Vec<(Listener, OwnedFd)> = kinds.iter().copied().zip(fds).collect();
        if let Some(at) = all.iter().position(|(kind, _)| *kind == Listener::Calls) {
            let (_, calls) = all.swap_remove(at);
            if let Some(mediator) = &self.calls {
                all.extend(mediator.serve(calls)?);
            }
        }
        for (kind, fd) in all {
            match kind {
                Listener::Transparent(_) => listeners.transparent.push(TcpListener::from(fd)),
                Listener::Proxy => listeners.explicit.push(TcpListener::from(fd)),
                Listener::DnsUdp => listeners.dns_udp.push(UdpSocket::from(fd)),
                Listener::DnsTcp => listeners.dns_tcp.push(TcpListener::from(fd)),
                Listener::Loopback(port) => loopback.push((TcpListener::from(fd), port)),
                Listener::Calls => {}
            }
        }
        let (running, ended) = oneshot::channel::<()>();
        self.running = Some(running);
        let egress = Arc::clone(&self.egress);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::setup(format!("cannot start the proxy: {e}")))?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    served = egress.serve(listeners) => served,
                    served = loopback::serve(loopback) => served,
                    _ = ended => Ok(()),
                }
            })
        };
        let report = move || {
            if let Err(e) = work() {
                crate::output::complain(&format!("the proxy has ended, and nothing reaches the network any more: {e}"));
            }
        };
        let thread = std::thread::Builder::new().name("hermes-egress".to_owned()).spawn(report);
        thread.map(drop).map_err(|e| Error::setup(format!("cannot start the proxy: {e}")))
    }

    /// Tells people, in a line, what was refused.
    pub(crate) fn tell(&self) {
        self.told.tell();
    }
}

impl std::fmt::Debug for WayOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WayOut").field("inspects", &self.inspects).finish_non_exhaustive()
    }
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

fn cannot_read(path: &Path, why: &std::io::Error) -> Error {
    Error::setup(format!("cannot read the system's certificates in {}: {why}", crate::output::path(path)))
}

/// A connection takes two descriptors at least, and the usual soft limit is 1024. Jobs have limits of their own.
fn raise_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard.min(1 << 16), hard);
    }
}
