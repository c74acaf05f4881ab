//! Which engine is meant: `DOCKER_HOST`, the current context of docker's configuration, else the usual sockets.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde::Deserialize;

use super::Error;

/// A socket that an engine may listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The socket, absolute.
    pub socket: PathBuf,
    /// Who named it, for messages.
    pub origin: String,
}

/// What the caller's surroundings say about engines.
pub trait Surroundings: Sync {
    /// A variable of the caller; an empty one counts as not set.
    fn variable(&self, name: &str) -> Option<String>;
    /// A file as text; `None` when there is none.
    fn read(&self, path: &Path) -> Option<String>;
    /// Paths in a directory; none when there is no such directory.
    fn list(&self, path: &Path) -> Vec<PathBuf>;
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Configuration {
    current_context: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Context {
    name: String,
    endpoints: ContextEndpoints,
}

#[derive(Debug, Deserialize)]
struct ContextEndpoints {
    docker: Option<ContextEndpoint>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContextEndpoint {
    host: String,
}

/// The engine that is named, or else those that are usual, the caller's own before the machine's.
///
/// # Errors
/// One is named that is not on this machine, or a context is named that is not there.
pub fn candidates(around: &dyn Surroundings) -> Result<Vec<Endpoint>, Error> {
    if let Some(host) = around.variable("DOCKER_HOST") {
        return named(&host, "DOCKER_HOST").map(|endpoint| vec![endpoint]);
    }
    let directory = around
        .variable("DOCKER_CONFIG")
        .or_else(|| around.variable("HOME").map(|home| format!("{home}/.docker")))
        .map(PathBuf::from);
    if let Some(directory) = directory
        && let Some(endpoint) = by_context(around, &directory)?
    {
        return Ok(vec![endpoint]);
    }
    let own = around.variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let own = own.into_iter().flat_map(|dir| [dir.join("docker.sock"), dir.join("podman/podman.sock")]);
    let machine = ["/var/run/docker.sock", "/run/podman/podman.sock"].map(PathBuf::from);
    Ok(own.chain(machine).map(|socket| Endpoint { socket, origin: "a usual place".into() }).collect())
}

fn by_context(around: &dyn Surroundings, directory: &Path) -> Result<Option<Endpoint>, Error> {
    let file = directory.join("config.json");
    let name = match around.variable("DOCKER_CONTEXT") {
        Some(name) => name,
        None => {
            let Some(text) = around.read(&file) else { return Ok(None) };
            let known: Configuration = serde_json::from_str(&text)
                .map_err(|error| Error::new(format!("{}: {error}", file.display()), "repair the file, or set DOCKER_HOST"))?;
            known.current_context
        }
    };
    if name.is_empty() || name == "default" {
        return Ok(None);
    }
    // Docker names the directory by a hash of the name; the name is in the file, too.
    let contexts = around.list(&directory.join("contexts/meta"));
    let context = contexts
        .iter()
        .filter_map(|directory| around.read(&directory.join("meta.json")))
        .filter_map(|text| serde_json::from_str::<Context>(&text).ok())
        .find(|context| context.name == name);
    match context.and_then(|context| context.endpoints.docker) {
        Some(endpoint) => named(&endpoint.host, &format!("docker's context `{name}`")).map(Some),
        None => Err(Error::new(
            format!("docker's context `{name}` is not in {}", directory.join("contexts").display()),
            "choose another with `docker context use NAME`, or set DOCKER_HOST=unix:///PATH",
        )),
    }
}

/// Only sockets of this machine: the engine mounts this machine's files, and whoever answers a TCP port is not known.
fn named(host: &str, origin: &str) -> Result<Endpoint, Error> {
    match host.strip_prefix("unix://").map(PathBuf::from) {
        Some(socket) if socket.is_absolute() => Ok(Endpoint { socket, origin: origin.to_owned() }),
        Some(_) => Err(Error::new(format!("{origin} names {host}, which is no absolute path"), "write unix:///PATH")),
        None => Err(Error::new(
            format!("{origin} names {host}, but a container needs this machine's files and so an engine on its unix socket"),
            "set DOCKER_HOST=unix:///PATH; for another machine use --backend ssh",
        )),
    }
}

/// An endpoint that answers a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reachable {
    /// Where.
    pub endpoint: Endpoint,
    /// The user who listens there, as the kernel knows it.
    pub listener: u32,
}

/// The first that answers a connection.
///
/// # Errors
/// None does: the reason is that of the one that came closest.
pub fn reachable(candidates: Vec<Endpoint>) -> Result<Reachable, Error> {
    let mut closest: Option<(Endpoint, std::io::ErrorKind, String)> = None;
    for candidate in candidates {
        let connected = UnixStream::connect(&candidate.socket)
            .and_then(|stream| getsockopt(&stream, PeerCredentials).map_err(std::io::Error::from));
        match connected {
            Ok(peer) => return Ok(Reachable { endpoint: candidate, listener: peer.uid() }),
            Err(error) => {
                let better = closest.as_ref().is_none_or(|(_, known, _)| *known == std::io::ErrorKind::NotFound);
                if better {
                    closest = Some((candidate, error.kind(), error.to_string()));
                }
            }
        }
    }
    Err(match closest {
        Some((Endpoint { socket, .. }, std::io::ErrorKind::PermissionDenied, _)) => Error::new(
            format!("permission denied on the container engine's socket {}", socket.display()),
            "use a rootless engine of your own (Podman, or dockerd-rootless), or ask for access to this one, which is as much as root",
        ),
        Some((Endpoint { socket, origin }, std::io::ErrorKind::NotFound, _)) if origin == "a usual place" => Error::new(
            format!(
                "no container engine is running: there is none of the usual sockets ({} was the first looked for)",
                socket.display()
            ),
            "start Docker, or `podman system service --time=0`, or set DOCKER_HOST=unix:///PATH; nothing was started elsewhere instead",
        ),
        Some((Endpoint { socket, origin }, _, why)) => Error::new(
            format!("no container engine answers at {} ({origin}): {why}", socket.display()),
            "start it, or set DOCKER_HOST=unix:///PATH of one that runs; nothing was started elsewhere instead",
        ),
        None => Error::new("no container engine is known", "set DOCKER_HOST=unix:///PATH"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Default)]
    struct World {
        variables: BTreeMap<&'static str, &'static str>,
        files: BTreeMap<PathBuf, &'static str>,
    }

    impl Surroundings for World {
        fn variable(&self, name: &str) -> Option<String> {
            self.variables.get(name).map(|value| (*value).to_owned())
        }
        fn read(&self, path: &Path) -> Option<String> {
            self.files.get(path).map(|text| (*text).to_owned())
        }
        fn list(&self, path: &Path) -> Vec<PathBuf> {
            self.files.keys().filter_map(|file| file.parent()).filter(|dir| dir.parent() == Some(path)).map(Into::into).collect()
        }
    }

    fn world(variables: &[(&'static str, &'static str)], files: &[(&'static str, &'static str)]) -> World {
        World {
            variables: variables.iter().copied().collect(),
            files: files.iter().map(|(path, text)| (PathBuf::from(path), *text)).collect(),
        }
    }

    fn sockets(world: &World) -> Vec<String> {
        candidates(world).unwrap().iter().map(|endpoint| endpoint.socket.display().to_string()).collect()
    }

    #[test]
    fn what_is_named_counts_alone() {
        let named = world(&[("DOCKER_HOST", "unix:///a.sock"), ("XDG_RUNTIME_DIR", "/r")], &[]);
        assert_eq!(sockets(&named), ["/a.sock"]);
        let usual = world(&[("XDG_RUNTIME_DIR", "/r"), ("HOME", "/h")], &[]);
        assert_eq!(
            sockets(&usual),
            ["/r/docker.sock", "/r/podman/podman.sock", "/var/run/docker.sock", "/run/podman/podman.sock"]
        );
    }

    #[test]
    fn a_context_is_found_by_its_name() {
        const META: &str =
            r#"{"Name":"rootless","Metadata":{},"Endpoints":{"docker":{"Host":"unix:///run/user/1/docker.sock"}}}"#;
        let files = [
            ("/h/.docker/config.json", r#"{"auths":{},"currentContext":"rootless"}"#),
            ("/h/.docker/contexts/meta/ab/meta.json", META),
        ];
        assert_eq!(sockets(&world(&[("HOME", "/h")], &files)), ["/run/user/1/docker.sock"]);
        assert_eq!(sockets(&world(&[("HOME", "/h"), ("DOCKER_CONTEXT", "default")], &files)).len(), 2, "the usual ones");
        let gone = candidates(&world(&[("HOME", "/h"), ("DOCKER_CONTEXT", "gone")], &files)).unwrap_err();
        assert!(gone.message.contains("`gone`"), "{gone}");
        let broken = candidates(&world(&[("HOME", "/h")], &[("/h/.docker/config.json", "{")])).unwrap_err();
        assert!(broken.message.contains("/h/.docker/config.json"), "{broken}");
    }

    #[test]
    fn engines_elsewhere_are_refused() {
        for host in [
            "tcp://127.0.0.1:2375",
            "tcp://engine.example.test:2376",
            "ssh://me@host.example.test",
            "npipe:////./x",
            "unix://docker.sock",
        ] {
            let mut world = World::default();
            world.variables.insert("DOCKER_HOST", host);
            let error = candidates(&world).unwrap_err();
            assert!(error.message.contains(host) && error.message.contains("DOCKER_HOST"), "{error}");
        }
    }

    #[test]
    fn the_closest_one_gives_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = |path: PathBuf, origin: &str| Endpoint { socket: path, origin: origin.into() };
        let dead = dir.path().join("dead.sock");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let none = dir.path().join("none.sock");
        let error =
            reachable(vec![endpoint(none.clone(), "a usual place"), endpoint(dead.clone(), "a usual place")]).unwrap_err();
        assert!(error.message.contains("dead.sock"), "{error}");
        let error = reachable(vec![endpoint(none.clone(), "a usual place")]).unwrap_err();
        assert!(error.message.starts_with("no container engine is running"), "{error}");
        let live = dir.path().join("live.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&live).unwrap();
        let found = reachable(vec![endpoint(none, "x"), endpoint(dead, "x"), endpoint(live.clone(), "x")]).unwrap();
        assert_eq!((found.endpoint.socket, found.listener), (live, nix::unistd::geteuid().as_raw()));
    }
}
