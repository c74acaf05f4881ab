//! The routes of a live sandbox: what holds, and others in their place.

use std::rc::Rc;

use hermes_backends::wire::Request;
use hermes_profiles::project::PROJECT_FILE;
use hermes_profiles::{Network, Origin, Route, RouteRules, UnknownHosts};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use super::client::Client;
use super::live::Live;
use super::protocol::{Code, Failure, Generation, Routes};
use crate::args::PolicyArgs;
use crate::error::Error;
use crate::network::NO_WAY_OUT;
use crate::output::{self, clean};
use crate::prepare;
use crate::table;

/// A route as it travels: as a profile says it, and where it was written.
#[derive(Debug, Serialize, Deserialize)]
struct Spoken {
    host: String,
    ports: Vec<u16>,
    #[serde(flatten)]
    rules: RouteRules,
    origin: String,
}

impl Live {
    /// What holds now.
    pub(crate) fn routes(&self) -> Result<Routes, Failure> {
        holding(self.way_out.borrow().as_ref().map(|way_out| way_out.routes()).unwrap_or_default())
    }

    /// Has other routes hold, in one step, or keeps the old ones.
    pub(crate) async fn set_spoken_routes(&self, asked: Routes) -> Result<Generation, Failure> {
        let (routes, unknown) = understood(asked, &self.prepared.borrow().policy.profile)?;
        self.set_routes(routes, unknown).await
    }

    async fn set_routes(&self, routes: Vec<Route>, unknown: UnknownHosts) -> Result<Generation, Failure> {
        may_become(self.prepared.borrow().policy.unknown_hosts, unknown)?;
        let (reply, answer) = oneshot::channel();
        let none = || Failure::new(Code::Parameters, NO_WAY_OUT);
        let ports = self.way_out.borrow_mut().as_mut().map(|way_out| way_out.replace(routes, unknown, reply)).ok_or_else(none)?;
        if let Some(ports) = ports {
            self.ask(&Request::Listen(ports), &[])?;
        }
        let generation = answer.await.map_err(|_| Failure::new(Code::Ended, "the sandbox has ended"))?;
        generation.map(|generation| Generation { generation }).map_err(|why| Failure::new(Code::Parameters, why))
    }

    /// Reads the policy again at every SIGHUP. One that cannot be used is told, and the old one holds.
    pub(crate) async fn reload_at_hangup(self: Rc<Self>, args: &PolicyArgs) -> std::io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        // A job may have changed or removed it meanwhile, and it takes away.
        let path = self.prepared.borrow().policy.workspace.join(PROJECT_FILE);
        let at_start = std::fs::read(&path).ok();
        while hangup.recv().await.is_some() {
            let policy = prepare::policy(args).map(|(_, resolved)| resolved.policy);
            let outcome = match policy {
                Ok(_) if std::fs::read(&path).ok() != at_start => {
                    Err(format!("{} has changed since the start; start another session", output::path(&path)))
                }
                Ok(policy) if matches!(policy.network, Network::Host) => {
                    Err("the policy wants the host's network now".to_owned())
                }
                Ok(policy) => {
                    let routes = policy.routes().to_vec();
                    self.set_routes(routes, policy.unknown_hosts).await.map_err(|failure| failure.message)
                }
                Err(error) => Err(error.to_string()),
            };
            match outcome {
                Ok(Generation { generation }) => {
                    output::complain(&format!("the routes were read again (generation {generation})"))
                }
                Err(why) => output::complain(&format!("the routes stay as they were: {why}")),
            }
        }
        Ok(())
    }
}

/// Routes that hold, as they are said.
pub(crate) fn holding((routes, generation): (Vec<Route>, u64)) -> Result<Routes, Failure> {
    let routes = spoken(&routes).map_err(|e| Failure::new(Code::Ended, format!("cannot express a route: {e}")))?;
    Ok(Routes { generation, routes, ..Routes::default() })
}

/// Routes that are asked for in a sandbox of the profile `own`.
pub(crate) fn understood(asked: Routes, own: &str) -> Result<(Vec<Route>, UnknownHosts), Failure> {
    let understood = |value: Value| -> Result<Route, Failure> {
        let spoken = serde_json::from_value::<Spoken>(value);
        let Spoken { host, ports, rules, origin } =
            spoken.map_err(|e| Failure::new(Code::Parameters, format!("not a route: {e}")))?;
        Ok(Route { host, ports, rules, origin: Origin::Derived(origin.into()) })
    };
    let refused = |why: String| Failure::new(Code::Parameters, why);
    let unknown = match asked.unknown_hosts.as_str() {
        "" | "refuse" => UnknownHosts::Refuse,
        "ask" => UnknownHosts::Ask,
        "audit" => UnknownHosts::Audit,
        other => return Err(refused(format!("`{}` is no way to treat unknown hosts", clean(other)))),
    };
    let routes: Vec<Route> = asked.routes.into_iter().map(understood).collect::<Result<_, _>>()?;
    if asked.profile != own && routes.iter().any(|route| route.rules.secret.is_some()) {
        return Err(refused(format!("routes with secrets must be of the sandbox's own profile, {}", clean(own))));
    }
    Ok((routes, unknown))
}

/// May unknown hosts be treated so from now on, where the start has them treated as `own` says?
pub(crate) fn may_become(own: UnknownHosts, unknown: UnknownHosts) -> Result<(), Failure> {
    if unknown != own && unknown != UnknownHosts::Refuse {
        let why = "how unknown hosts are treated is decided at the start; it can only be changed to refusing them";
        return Err(Failure::new(Code::Parameters, why));
    }
    Ok(())
}

fn spoken(routes: &[Route]) -> serde_json::Result<Vec<Value>> {
    let one = |route: &Route| {
        let Route { host, ports, rules, origin } = route.clone();
        serde_json::to_value(Spoken { host, ports, rules, origin: origin.to_string() })
    };
    routes.iter().map(one).collect()
}

/// Prints what holds in a session.
pub(super) fn show(client: &mut Client, json: bool) -> Result<u8, Error> {
    let routes: Routes = client.ask_soon("routes", &serde_json::json!({}))?;
    if json {
        return output::print_json(&routes).map(|()| 0);
    }
    let mut rows = vec![["HOST", "PORTS", "FROM"].map(str::to_owned)];
    for value in &routes.routes {
        let Ok(spoken) = serde_json::from_value::<Spoken>(value.clone()) else { continue };
        let ports: Vec<String> = spoken.ports.iter().map(u16::to_string).collect();
        rows.push([clean(&spoken.host).into_owned(), ports.join(", "), clean(&spoken.origin).into_owned()]);
    }
    let mut text = format!("generation {}\n", routes.generation);
    match rows.len() {
        1 => text.push_str("no routes\n"),
        _ => table::columns(&mut text, &rows),
    }
    output::print(&text).map(|()| 0)
}

/// Has the routes hold that a policy has.
pub(super) fn set(client: &mut Client, args: &PolicyArgs) -> Result<u8, Error> {
    let policy = prepare::policy(args)?.1.policy;
    if policy.network == Network::Host {
        return Err(
            Error::usage("a live sandbox cannot be given the host's network").hint("start another session with --net host")
        );
    }
    let routes = spoken(policy.routes()).map_err(|e| Error::setup(format!("cannot express a route: {e}")))?;
    let asked = serde_json::json!({ "routes": routes, "unknown_hosts": policy.unknown_hosts, "profile": policy.profile });
    let Generation { generation } = client.ask_soon("set-routes", &asked)?;
    output::print(&format!("generation {generation}\n")).map(|()| 0)
}
