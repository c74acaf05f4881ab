//! Whose a container is, and the removal of those whose owner is dead.
//!
//! The program in a container ends with our end of its standard input and the engine removes it then. What is left is
//! what an owner that was killed had made and not started, and what an engine that was killed has forgotten to remove.

use std::collections::HashMap;
use std::path::Path;

use bollard::errors::Error as Failure;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};

use super::{Engine, Error};

const OWNER: &str = "hermes-sandbox.owner";
const PID: &str = "hermes-sandbox.pid";
const STARTED: &str = "hermes-sandbox.started";
const BOOT: &str = "hermes-sandbox.boot";
const MACHINE: &str = "hermes-sandbox.machine";
const PID_NAMESPACE: &str = "hermes-sandbox.pid-namespace";
const PLAN: &str = "hermes-sandbox.plan";
const SESSION: &str = "hermes-sandbox.session";

/// A process, so that it can be told from every other one, also a later one with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Process id.
    pub pid: u32,
    /// When it was started, in clock ticks after the boot, by proc(5).
    pub started: u64,
    /// The kernel's boot id.
    pub boot: String,
    /// The machine's id.
    pub machine: String,
    /// The pid namespace that `pid` counts in.
    pub pid_namespace: String,
}

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// /proc does not say who this is.
    pub fn this() -> Result<Self, Error> {
        let pid = std::process::id();
        let unknown = |what: &str| Error::new(format!("cannot tell {what} of this process from /proc"), "mount /proc");
        Ok(Self {
            uid: nix::unistd::geteuid().as_raw(),
            pid,
            started: started(pid).ok_or_else(|| unknown("the start time"))?,
            boot: word("/proc/sys/kernel/random/boot_id").ok_or_else(|| unknown("the boot"))?,
            machine: word("/etc/machine-id").or_else(|| word("/proc/sys/kernel/hostname")).unwrap_or_default(),
            pid_namespace: std::fs::read_link("/proc/self/ns/pid")
                .map(|link| link.to_string_lossy().into_owned())
                .map_err(|_| unknown("the pid namespace"))?,
        })
    }

    /// Labels of what it makes.
    pub fn labels(&self, plan: &str, session: Option<&str>) -> Vec<(String, String)> {
        let mut labels = vec![
            (OWNER, self.uid.to_string()),
            (PID, self.pid.to_string()),
            (STARTED, self.started.to_string()),
            (BOOT, self.boot.clone()),
            (MACHINE, self.machine.clone()),
            (PID_NAMESPACE, self.pid_namespace.clone()),
            (PLAN, plan.to_owned()),
        ];
        labels.extend(session.map(|session| (SESSION, session.to_owned())));
        labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Is what has these labels this user's, and its maker certainly dead? `start_of` says when a process was started.
    fn has_outlived(&self, labels: &HashMap<String, String>, start_of: impl Fn(u32) -> Option<u64>) -> bool {
        let label = |name: &str| labels.get(name).map_or("", String::as_str);
        if label(OWNER) != self.uid.to_string() || label(MACHINE) != self.machine || self.machine.is_empty() {
            return false;
        }
        if label(BOOT) != self.boot {
            return !label(BOOT).is_empty();
        }
        // Of another pid namespace the numbers say nothing.
        let (Ok(pid), Ok(started)) = (label(PID).parse(), label(STARTED).parse::<u64>()) else { return false };
        label(PID_NAMESPACE) == self.pid_namespace && start_of(pid) != Some(started)
    }
}

fn word(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Field 22 of /proc/PID/stat, counted after the name, which may hold anything.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Removes what dead processes of this user have left, running or not; the ids.
///
/// # Errors
/// The engine does not say what there is, or does not remove it.
pub async fn sweep(engine: &Engine, owner: &Owner) -> Result<Vec<String>, Error> {
    let filters = HashMap::from([("label".to_owned(), vec![format!("{OWNER}={}", owner.uid)])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let listed = engine.docker.list_containers(Some(options)).await;
    let listed = listed.map_err(|failure| engine.explain("list containers", &failure))?;
    let mut removed = Vec::new();
    for ContainerSummary { id, labels, .. } in listed {
        let (Some(id), Some(labels)) = (id, labels) else { continue };
        if owner.has_outlived(&labels, started) {
            remove(engine, &id).await?;
            removed.push(id);
        }
    }
    Ok(removed)
}

/// Kills and removes a container with its anonymous volumes. One that is gone or going is fine.
///
/// # Errors
/// The engine does not.
pub(super) async fn remove(engine: &Engine, id: &str) -> Result<(), Error> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match engine.docker.remove_container(id, Some(options)).await {
        Ok(()) | Err(Failure::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
        Err(failure) => Err(engine.explain(&format!("remove the container {id}"), &failure)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { uid: 1000, pid: 7, started: 55, boot: "b".into(), machine: "m".into(), pid_namespace: "pid:[1]".into() }
    }

    fn judged(maker: &Owner, start_of: Option<u64>) -> bool {
        let labels = maker.labels("p", None).into_iter().collect();
        owner().has_outlived(&labels, |_| start_of)
    }

    #[test]
    fn only_ones_own_and_only_of_the_dead() {
        assert!(judged(&owner(), None), "no such process");
        assert!(judged(&owner(), Some(56)), "a later one with its number");
        assert!(!judged(&owner(), Some(55)), "it lives");
        assert!(judged(&Owner { boot: "earlier".into(), ..owner() }, Some(55)), "the machine was started again");
        assert!(!judged(&Owner { uid: 1001, ..owner() }, None), "somebody else's");
        assert!(!judged(&Owner { machine: "other".into(), boot: "other".into(), ..owner() }, None), "another machine's");
        assert!(!judged(&Owner { pid_namespace: "pid:[2]".into(), ..owner() }, None), "another namespace's");
        assert!(!owner().has_outlived(&HashMap::from([(OWNER.into(), "1000".into()), (MACHINE.into(), "m".into())]), |_| None));
    }

    #[test]
    fn this_process_is_known() {
        let this = Owner::this().unwrap();
        assert_eq!(started(this.pid), Some(this.started));
        assert!(!this.has_outlived(&this.labels("p", Some("s")).into_iter().collect(), started));
    }
}
