//! The engine: a connection, and what it can do.

use std::path::{Path, PathBuf};

use bollard::errors::Error as Failure;
use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};
use bollard::{ClientVersion, Docker};
use serde::Serialize;

use super::Error;
use super::endpoint::{self, Reachable, Surroundings};

/// The API that is spoken where the engine still does: that of Docker 20.10 and Podman 4.
const SPOKEN: (usize, usize) = (1, 41);
/// Seconds for a request. Docker answers a start only when the process runs, which takes long on a busy machine.
const PATIENCE: u64 = 60;

/// Whose program it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Docker Engine, or what looks like it.
    Docker,
    /// Podman.
    Podman,
}

impl Kind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// What an engine is and can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Its socket.
    pub socket: PathBuf,
    /// Whose program it is.
    pub kind: Kind,
    /// Its version.
    pub version: String,
    /// The version of the API that is spoken.
    pub api: String,
    /// The Go name of its architecture, e.g. `amd64`.
    pub architecture: String,
    /// It runs as an ordinary user.
    pub rootless: bool,
    /// It runs containers in a user namespace of subordinate ids (`userns-remap`).
    pub remapped: bool,
    /// It confines containers by AppArmor, whose default profile refuses mounts.
    pub apparmor: bool,
    /// 1 or 2.
    pub cgroup_version: u8,
    /// It can limit memory.
    pub limits_memory: bool,
    /// It can limit the number of processes.
    pub limits_processes: bool,
    /// It can limit processor time.
    pub limits_cpu: bool,
    /// Where it keeps its own files.
    pub root: PathBuf,
}

#[cfg(test)]
impl Facts {
    /// Docker with the rights of root, that can limit all.
    pub(super) fn sample(socket: impl Into<PathBuf>, root: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            kind: Kind::Docker,
            version: "20.10.24".into(),
            api: "1.41".into(),
            architecture: "amd64".into(),
            rootless: false,
            remapped: false,
            apparmor: false,
            cgroup_version: 2,
            limits_memory: true,
            limits_processes: true,
            limits_cpu: true,
            root: root.into(),
        }
    }
}

/// A connection to an engine that has answered.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(super) docker: Docker,
    /// What it is.
    pub facts: Facts,
}

impl Engine {
    /// Finds an engine and asks it what it is.
    ///
    /// # Errors
    /// There is none, it does not answer, or it is not one for this user.
    pub async fn find(around: &dyn Surroundings) -> Result<Self, Error> {
        let Reachable { endpoint, listener } = endpoint::reachable(endpoint::candidates(around)?)?;
        let socket = &endpoint.socket;
        let failed = |failure: Failure| explain(socket, "ask what it is", &failure);
        let mut docker = client(socket, SPOKEN)?;
        let version = match docker.version().await {
            Err(Failure::DockerResponseServerError { message, .. }) if oldest(&message).is_some() => {
                docker = client(socket, oldest(&message).unwrap_or(SPOKEN))?;
                docker.version().await.map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let info = docker.info().await.map_err(failed)?;
        let api = docker.client_version();
        let facts = facts(socket, listener, &version, &info, format!("{}.{}", api.major_version, api.minor_version));
        if facts.rootless && listener != nix::unistd::geteuid().as_raw() {
            return Err(Error::new(
                format!(
                    "the rootless engine at {} is user {listener}'s, and so would be what its containers make",
                    socket.display()
                ),
                "use an engine of your own or the machine's",
            ));
        }
        Ok(Self { docker, facts })
    }

    /// An error of a request.
    pub(super) fn explain(&self, what: &str, failure: &Failure) -> Error {
        explain(&self.facts.socket, what, failure)
    }
}

fn client(socket: &Path, (major_version, minor_version): (usize, usize)) -> Result<Docker, Error> {
    let path = socket.to_str().ok_or_else(|| {
        Error::new(format!("the engine's socket {} is not called in UTF-8", socket.display()), "give it another name")
    })?;
    Docker::connect_with_unix(path, PATIENCE, &ClientVersion { major_version, minor_version })
        .map_err(|failure| explain(socket, "connect", &failure))
}

/// The oldest API of an engine that no longer speaks ours, out of its refusal.
fn oldest(message: &str) -> Option<(usize, usize)> {
    let (_, rest) = message.split_once("Minimum supported API version is ")?;
    let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let (major, minor) = number.trim_end_matches('.').split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn facts(socket: &Path, listener: u32, version: &SystemVersion, info: &SystemInfo, api: String) -> Facts {
    let components = version.components.iter().flatten();
    let podman = components.map(|component| component.name.as_str()).any(|name| name.starts_with("Podman"));
    let has = |name: &str| {
        let options = info.security_options.iter().flatten();
        options.flat_map(|option| option.split(',')).any(|option| option.strip_prefix("name=") == Some(name))
    };
    // Podman 4 does not say it.
    let rootless = has("rootless") || listener != 0;
    let cgroup_version = if info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_2) { 2 } else { 1 };
    // Nobody delegates v1 controllers to a user; Podman ignores the limits there and still says that it can.
    let can = |said: Option<bool>| said != Some(false) && !(rootless && cgroup_version == 1);
    Facts {
        socket: socket.to_owned(),
        kind: if podman { Kind::Podman } else { Kind::Docker },
        version: version.version.clone().unwrap_or_default(),
        api,
        architecture: version.arch.clone().unwrap_or_default(),
        rootless,
        remapped: has("userns"),
        apparmor: has("apparmor"),
        cgroup_version,
        limits_memory: can(info.memory_limit),
        limits_processes: can(info.pids_limit),
        limits_cpu: can(info.cpu_cfs_quota),
        root: info.docker_root_dir.clone().unwrap_or_default().into(),
    }
}

/// What a failed request means. `what` completes "cannot".
pub(super) fn explain(socket: &Path, what: &str, failure: &Failure) -> Error {
    let at = socket.display();
    match failure {
        Failure::DockerResponseServerError { message, .. } | Failure::DockerStreamError { error: message } => {
            let line = one_line(message);
            let remedy = if line.contains("no space left on device") {
                "make room where the engine keeps its files: `docker system df` says what is there"
            } else if line.contains("client version") {
                "use Docker 20.10 or later, or Podman 4 or later"
            } else {
                "the engine's log says more"
            };
            Error::new(format!("the engine at {at} cannot {what}: {line}"), remedy)
        }
        Failure::RequestTimeoutError => Error::new(
            format!("the engine at {at} does not answer: cannot {what} within {PATIENCE} s"),
            "look whether it hangs, and restart it",
        ),
        other => Error::new(
            format!("the engine at {at} is gone or no engine: cannot {what}: {}", one_line(&chain(other))),
            "start it again; nothing was started elsewhere instead",
        ),
    }
}

fn chain(failure: &dyn std::error::Error) -> String {
    let mut text = failure.to_string();
    let mut source = failure.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// An engine's words, bounded and without control characters.
pub(super) fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_left_our_api_behind_says_what_it_speaks() {
        let said = "client version 1.41 is too old. Minimum supported API version is 1.44, please upgrade your client to a newer version";
        assert_eq!(oldest(said), Some((1, 44)));
        assert_eq!(oldest("client version 1.41 is too new. Maximum supported API version is 1.40"), None);
    }

    #[test]
    fn what_it_is_comes_from_its_own_words() {
        let version: SystemVersion = serde_json::from_str(
            r#"{"Components":[{"Name":"Podman Engine","Version":"4.3.1"}],"Version":"4.3.1","ApiVersion":"1.41","Arch":"amd64"}"#,
        )
        .unwrap();
        let info: SystemInfo = serde_json::from_str(
            r#"{"SecurityOptions":["name=seccomp,profile=default","name=rootless"],"CgroupVersion":"1","MemoryLimit":true,"PidsLimit":true}"#,
        )
        .unwrap();
        let known = facts(Path::new("/s"), 0, &version, &info, "1.41".into());
        assert!(known.kind == Kind::Podman && known.rootless && !known.remapped && !known.apparmor);
        assert!(!known.limits_memory && !known.limits_processes && !known.limits_cpu, "rootless on v1");
        let unsaid = SystemInfo { security_options: None, ..info };
        assert!(facts(Path::new("/s"), 1000, &version, &unsaid, "1.41".into()).rootless);
        let info: SystemInfo = serde_json::from_str(
            r#"{"SecurityOptions":["name=apparmor","name=seccomp,profile=builtin","name=userns"],"CgroupVersion":"2","MemoryLimit":true,"PidsLimit":false}"#,
        )
        .unwrap();
        let known = facts(Path::new("/s"), 0, &SystemVersion::default(), &info, "1.41".into());
        assert!(known.kind == Kind::Docker && !known.rootless && known.remapped && known.apparmor);
        assert!(known.limits_memory && !known.limits_processes && known.limits_cpu);
    }

    #[test]
    fn reasons_are_one_line() {
        let said = |message: &str| {
            let failure = Failure::DockerResponseServerError { status_code: 500, message: message.into() };
            explain(Path::new("/s"), "make a container", &failure)
        };
        assert_eq!(said("a\nb\x1b[1m").message, "the engine at /s cannot make a container: a b [1m");
        assert!(said("write /x: no space left on device").remedy.contains("docker system df"));
    }
}
