//! Hosts that no route names, where the policy does not simply refuse them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hermes_egress::address::{Class, class};
use hermes_egress::dial::is_own;
use hermes_egress::host::Host;
use hermes_egress::proxy::{Deciding, Unknown};
use hermes_profiles::{Origin, Route};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use super::told::Told;
use crate::approvals::{Approvals, Question, Scope, ruled};
use crate::clock;
use crate::events::Event;
use crate::guard::run::start_time;
use crate::output;

/// How long a connection waits for an answer; then it is refused.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks for the answer.
const INTERVAL: Duration = Duration::from_millis(200);
/// Places that one sandbox asks about; a flood of questions is no question.
const MOST: usize = 256;

/// All may be reached, but what is not on the public internet.
pub(super) struct Audit;

impl Unknown for Audit {
    fn decide<'a>(&'a self, host: &'a Host, port: u16) -> Deciding<'a> {
        let public = public(host).is_ok();
        Box::pin(async move { public.then(|| route(host, port, "--net audit")) })
    }
}

/// Is this a place on the public internet, as far as can be told before a name is looked up? A route that names an address means it,
/// whatever it is; nobody has meant this one.
///
/// # Errors
/// What it is instead.
pub(super) fn public(host: &Host) -> Result<(), Class> {
    match host {
        Host::Address(address) => match class(*address) {
            Some(class) => Err(class),
            None if is_own(*address) => Err(Class::Own),
            None => Ok(()),
        },
        Host::Name(name) if name == "localhost" => Err(Class::Loopback),
        Host::Name(_) => Ok(()),
    }
}

/// Host and port.
type Place = (String, u16);

/// A person is asked, once for every place.
pub(super) struct Ask {
    approvals: Approvals,
    scope: Scope,
    told: Arc<Told>,
    answers: Mutex<BTreeMap<Place, Arc<OnceCell<bool>>>>,
}

impl Ask {
    pub(super) fn new(approvals: Approvals, scope: Scope, told: Arc<Told>) -> Self {
        Self { approvals, scope, told, answers: Mutex::default() }
    }

    /// Asks, and waits for the answer.
    async fn ask(&self, host: &str, port: u16) -> Option<bool> {
        if let Ok(rules) = self.approvals.rules()
            && let Some(allow) = ruled(&rules, &self.scope, host, port)
        {
            return Some(allow);
        }
        let (own, now) = (std::process::id() as i32, clock::milliseconds());
        let question = Question {
            time: now,
            until: now + PATIENCE.as_millis() as u64,
            asker: (own, start_time(own).unwrap_or(0)),
            scope: self.scope.clone(),
            host: host.to_owned(),
            port,
        };
        let told = self.told.may_ask();
        let id = match self.approvals.ask(&question) {
            Ok(id) => id,
            Err(e) => {
                if told {
                    output::complain(&format!("cannot ask whether {} may be reached: {e}", output::clean(host)));
                }
                return None;
            }
        };
        let _withdrawn = Withdrawn(&self.approvals, id);
        if told {
            self.told.note(&Event::ApprovalAsked { id, host, port });
            output::complain(&format!(
                "{}:{port} is to be reached; `hermes-sandbox approvals allow {id}` or `deny {id}` within {} s",
                output::clean(host),
                PATIENCE.as_secs()
            ));
        }
        let end = Instant::now() + PATIENCE;
        let answer = loop {
            match self.approvals.answer(id) {
                Ok(None) if Instant::now() < end => sleep(INTERVAL).await,
                answer => break answer.ok().flatten(),
            }
        };
        let decision = match answer {
            Some(true) => "allow",
            Some(false) => "deny",
            None => "no answer",
        };
        if told || answer.is_some() {
            self.told.note(&Event::ApprovalDecided { id, host, port, decision });
        }
        answer
    }
}

/// Withdraws a question when nobody waits for its answer any more.
struct Withdrawn<'a>(&'a Approvals, u64);

impl Drop for Withdrawn<'_> {
    fn drop(&mut self) {
        self.0.withdraw(self.1);
    }
}

impl Unknown for Ask {
    fn decide<'a>(&'a self, host: &'a Host, port: u16) -> Deciding<'a> {
        Box::pin(async move {
            let text = named(host);
            let cell = {
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                let room = answers.len() < MOST;
                match answers.get(&(text.clone(), port)) {
                    Some(cell) => Arc::clone(cell),
                    None if room => Arc::clone(answers.entry((text.clone(), port)).or_default()),
                    None => return None,
                }
            };
            // No answer is kept: the next connection asks again.
            let answer = cell.get_or_try_init(|| async { self.ask(&text, port).await.ok_or(()) }).await;
            matches!(answer, Ok(true)).then(|| route(host, port, "approved"))
        })
    }
}

/// As a policy names it.
pub(super) fn named(host: &Host) -> String {
    match host {
        Host::Name(name) => name.clone(),
        Host::Address(address) => address.to_string(),
    }
}

fn route(host: &Host, port: u16, origin: &'static str) -> Route {
    Route::new(named(host), [port], Origin::Derived(origin.into()))
}
