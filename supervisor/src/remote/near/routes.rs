//! The routes of a sandbox on the other side, which hold here: what holds, and others in their place.

use std::sync::Arc;

use hermes_egress::Egress;
use hermes_profiles::{Network, Policy, Route, UnknownHosts};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Mutex, oneshot};

use super::Deciding;
use crate::error::Error;
use crate::network::NO_WAY_OUT;
use crate::output;
use crate::session::protocol::{Code, Failure, Generation, Routes};
use crate::session::routes::{holding, may_become, understood};

/// Waits until ports are listened on.
pub(super) type Listening = oneshot::Sender<Result<(), String>>;

/// Routes that can be replaced.
pub(super) struct LiveRoutes {
    egress: Arc<Egress>,
    unknown: UnknownHosts,
    profile: String,
    listen: UnboundedSender<(Vec<u16>, Listening)>,
    /// One change at a time.
    turn: Mutex<()>,
}

impl LiveRoutes {
    pub(super) fn new(deciding: &Deciding, listen: UnboundedSender<(Vec<u16>, Listening)>) -> Self {
        let (unknown, profile) = deciding.own.clone();
        Self { egress: Arc::clone(&deciding.decider.egress), unknown, profile, listen, turn: Mutex::default() }
    }

    /// What holds now.
    pub(super) fn show(&self) -> Result<Routes, Failure> {
        holding(self.egress.routes())
    }

    /// Has other routes hold, as a client asks for them.
    pub(super) async fn set_spoken(&self, asked: Routes) -> Result<Generation, Failure> {
        let (routes, unknown) = understood(asked, &self.profile)?;
        self.set(routes, unknown).await
    }

    /// Has other routes hold, in one step, once their ports are listened on there; or keeps the old ones.
    async fn set(&self, routes: Vec<Route>, unknown: UnknownHosts) -> Result<Generation, Failure> {
        may_become(self.unknown, unknown)?;
        let _turn = self.turn.lock().await;
        let (waits, listens) = oneshot::channel();
        let ports = routes.iter().flat_map(|route| route.ports.iter().copied()).collect();
        let ended = || Failure::new(Code::Ended, "the sandbox has ended");
        self.listen.send((ports, waits)).map_err(|_| ended())?;
        listens.await.map_err(|_| ended())?.map_err(|why| Failure::new(Code::Parameters, why))?;
        let swapped = match unknown {
            UnknownHosts::Refuse => self.egress.close(&routes),
            _ => self.egress.replace(&routes),
        };
        swapped.map(|generation| Generation { generation }).map_err(|e| Failure::new(Code::Parameters, e.to_string()))
    }
}

/// Has the routes hold that a policy has now. One that cannot be used is told, and the old ones hold.
pub(super) async fn reload(policy: Option<Result<Policy, Error>>, routes: Option<Arc<LiveRoutes>>) {
    let outcome = match (policy, routes) {
        (Some(Ok(policy)), _) if matches!(policy.network, Network::Host) => {
            Err("the policy wants the host's network now".to_owned())
        }
        (Some(Ok(policy)), Some(routes)) => {
            routes.set(policy.routes().to_vec(), policy.unknown_hosts).await.map_err(|failure| failure.message)
        }
        (Some(Err(error)), _) => Err(error.to_string()),
        _ => Err(NO_WAY_OUT.to_owned()),
    };
    match outcome {
        Ok(Generation { generation }) => output::complain(&format!("the routes were read again (generation {generation})")),
        Err(why) => output::complain(&format!("the routes stay as they were: {why}")),
    }
}
