//! Without namespaces: the thread that makes the sandbox's connections on its behalf, and the proxy's knowledge of them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use hermes_backends::local::broker::inet::{Mediator, Ports, Promises, listeners};
use hermes_backends::plan::{GatewayPlan, Plan};
use hermes_backends::step::StepError;
use hermes_backends::wire::Listener;
use hermes_egress::proxy::Meant;
use tokio::net::TcpStream;

use crate::error::Error;

/// What the calls of one sandbox are decided by.
pub(super) struct Calls {
    plan: Plan,
    ports: Arc<Ports>,
    promises: Arc<Promises>,
}

/// A connection is the sandbox's, and meant for what the mediator says, or is dropped.
struct Promised(Arc<Promises>);

impl Calls {
    pub(super) fn new(gateway: &GatewayPlan, plan: &Plan) -> Result<Self, Error> {
        let promises = Promises::new().map_err(|errno| Error::setup(format!("cannot ask about sockets: {}", errno.desc())))?;
        let ports = Arc::new(Ports::default());
        ports.open(gateway.ports.iter().copied());
        Ok(Self { plan: plan.clone(), ports, promises: Arc::new(promises) })
    }

    /// Leads these ports to the proxy, too.
    pub(super) fn open(&self, ports: impl IntoIterator<Item = u16>) {
        self.ports.open(ports);
    }

    pub(super) fn meant(&self) -> Arc<dyn Meant> {
        Arc::new(Promised(Arc::clone(&self.promises)))
    }

    /// Answers calls in a thread of its own. Returns the listeners that it leads connections to.
    pub(super) fn serve(&self, calls: OwnedFd) -> Result<Vec<(Listener, OwnedFd)>, Error> {
        let setup = |error: StepError| Error::setup(error.to_string());
        let (ends, made) = listeners().map_err(setup)?;
        let (plan, ports, promises) = (self.plan.clone(), Arc::clone(&self.ports), Arc::clone(&self.promises));
        let (ready, outcome) = mpsc::channel();
        let serve = move || match Mediator::new(calls, &plan, ports, ends, promises) {
            Ok(mediator) => {
                let _ = ready.send(Ok(()));
                mediator.serve();
            }
            Err(error) => drop(ready.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name("hermes-mediator".to_owned()).spawn(serve);
        thread.map_err(|e| Error::setup(format!("cannot start the mediator: {e}")))?;
        outcome.recv().map_err(|_| Error::setup("the mediator has ended"))?.map_err(setup)?;
        Ok(made)
    }
}

impl Meant for Promised {
    fn address(&self, stream: &TcpStream, peer: SocketAddr) -> Option<SocketAddr> {
        let local = stream.local_addr().ok()?;
        // A socket whose connection is over has no peer any more (`inet_getname`).
        self.0.redeem(peer, local, || stream.peer_addr().is_ok())
    }
}
