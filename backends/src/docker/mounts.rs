//! What of this machine a container sees, and whether it sees what was meant.
//!
//! The engine resolves every path again, usually as root, so somebody who can swap a directory for a symlink in between
//! could have it mount anything. Each source is opened here without following a symlink, and the far side compares
//! device and inode of what it finds at the target before it starts a job.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hermes_profiles::{Access, Origin, Policy, ospath};
use serde::{Deserialize, Serialize};

use super::Error;
use super::container::PROGRAM;
use super::engine::{Facts, Kind};
use crate::survey::{Found, Survey};

/// One bind mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// On this machine, free of symlinks.
    pub source: PathBuf,
    /// Inside.
    pub target: PathBuf,
    /// May it be written?
    pub writable: bool,
}

/// What must stand at a path inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// Inside.
    #[serde(with = "ospath")]
    pub target: PathBuf,
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// Directories whose parts in the image are meant when a policy names them.
const OF_IMAGE: [&str; 11] = ["/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sbin", "/usr", "/var"];
/// Directories that the container has of its own.
const OF_CONTAINER: [&str; 3] = ["/dev", "/proc", "/sys"];
/// Sockets that give rights over the machine.
const ENGINE_SOCKETS: [&str; 6] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/docker/containerd/containerd.sock",
];

/// What a policy gives: the workspace, what flags name, and what a profile of the user's names outside the system.
/// What built-in profiles name is the system, which is the image's, and tool caches of the home directory, which is not mounted.
///
/// # Errors
/// Something is named that is not there, or a workspace that is copy-on-write.
pub fn grants(policy: &Policy, survey: &Survey) -> Result<Vec<Grant>, Error> {
    if policy.workspace_access == Access::Overlay {
        return Err(Error::new(
            "a copy-on-write workspace (--overlay) cannot be kept out of a container",
            "leave --overlay out, or use the local backend; --checkpoint can be rolled back",
        ));
    }
    let mut grants: Vec<Grant> = Vec::new();
    let workspace = Path::new(&policy.workspace);
    let named = |path: &Path, origin: &Origin| {
        let system = OF_IMAGE.iter().chain(&OF_CONTAINER).any(|of| hermes_profiles::paths::covers(Path::new(of), path));
        path == workspace
            || match origin {
                Origin::Flag(_) => true,
                Origin::File { .. } => !system,
                Origin::Builtin(_) | Origin::Derived(_) => false,
            }
    };
    for rule in &policy.files {
        let writable = match rule.access {
            Access::Write => true,
            Access::Read => false,
            Access::Hidden | Access::Overlay => continue,
        };
        if !named(&rule.path, &rule.origin) {
            continue;
        }
        let source = match survey.get(&rule.path) {
            Found::Present { real, .. } => real.clone(),
            Found::Absent if rule.optional => continue,
            Found::Absent => {
                return Err(Error::new(
                    format!("{} does not exist ({})", ospath::escaped(&rule.path), rule.origin),
                    "create it, or leave it out",
                ));
            }
            Found::Unreadable(_) if rule.optional => continue,
            Found::Unreadable(errno) => {
                let why = nix::errno::Errno::from_raw(*errno).desc();
                let what = format!("cannot look at {} ({}): {why}", ospath::escaped(&rule.path), rule.origin);
                return Err(Error::new(what, "make it accessible, or leave it out"));
            }
        };
        // Inside there is no symlink on the way, so it stands at the path that was asked for.
        grants.push(Grant { source, target: rule.path.clone(), writable });
    }
    grants.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(grants)
}

/// Refuses, by name, mounts that would undo the container.
///
/// # Errors
/// The first such mount.
pub fn refuse_dangerous(grants: &[Grant], facts: &Facts) -> Result<(), Error> {
    for grant in grants {
        let source = &grant.source;
        let shown = ospath::escaped(source);
        let holds = |path: &Path| path.starts_with(source);
        if source == Path::new("/") {
            return Err(Error::new("/ cannot be mounted in a container: it is the whole machine", "name what is needed"));
        }
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let sockets = ENGINE_SOCKETS.iter().map(Path::new).filter(|path| path.exists()).chain([facts.socket.as_path()]);
        if let Some(socket) = sockets.map(real).find(|socket| holds(socket)) {
            return Err(Error::new(
                format!(
                    "{shown} cannot be mounted in a container: it holds the engine's socket {}, which is as much as root",
                    socket.display()
                ),
                "mount a directory without it",
            ));
        }
        let root = real(&facts.root);
        if !facts.root.as_os_str().is_empty() && (holds(&root) || source.starts_with(&root)) {
            return Err(Error::new(
                format!("{shown} cannot be mounted in a container: the engine keeps its own files there"),
                "mount another directory",
            ));
        }
        let reserved = OF_CONTAINER.iter().map(Path::new).chain([Path::new(PROGRAM)]);
        if let Some(own) = reserved.into_iter().find(|own| grant.target.starts_with(own) || own.starts_with(&grant.target)) {
            return Err(Error::new(
                format!("{} cannot be mounted: the container has a {} of its own", ospath::escaped(&grant.target), own.display()),
                "mount it at another place",
            ));
        }
        if let Some(own) = OF_CONTAINER.iter().find(|own| source.starts_with(own)) {
            return Err(Error::new(format!("{shown} cannot be mounted in a container: {own} is the machine's"), "leave it out"));
        }
        for path in [source, &grant.target] {
            let Some(text) = path.to_str() else {
                return Err(Error::new(
                    format!("{} cannot be mounted: engines take paths in UTF-8 alone", ospath::escaped(path)),
                    "give it another name, or use the local backend",
                ));
            };
            // Podman makes one comma-separated text of a mount.
            if text.contains(['\n', '\r']) || facts.kind == Kind::Podman && text.contains([',', '"', '=']) {
                return Err(Error::new(
                    format!("{} cannot be mounted: {} does not take such a name", ospath::escaped(path), facts.kind.name()),
                    "give it another name, or use the local backend",
                ));
            }
        }
    }
    Ok(())
}

/// What each grant is now, opened without following a symlink anywhere on the way.
///
/// # Errors
/// One cannot be opened so.
pub fn expected(grants: &[Grant]) -> Result<Vec<Expected>, Error> {
    grants.iter().map(|grant| identity(&grant.source, &grant.target)).collect()
}

/// What `source`, to be seen at `target`, is now.
///
/// # Errors
/// It cannot be opened without following a symlink.
pub fn identity(source: &Path, target: &Path) -> Result<Expected, Error> {
    use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    let stat = openat2(AT_FDCWD, source, how).and_then(nix::sys::stat::fstat);
    let stat = stat.map_err(|errno| {
        Error::new(
            format!("{} is no longer what it was: {}", ospath::escaped(source), errno.desc()),
            "start again when nothing moves it",
        )
    })?;
    #[allow(clippy::useless_conversion)] // not the same types on all machines
    Ok(Expected { target: target.to_owned(), dev: stat.st_dev.into(), ino: stat.st_ino.into() })
}

/// Run on the far side: does every mount show what was meant?
///
/// # Errors
/// The first that does not.
pub fn verify(expected: &[Expected]) -> Result<(), Error> {
    for Expected { target, dev, ino } in expected {
        let found = std::fs::symlink_metadata(target).map(|meta| (meta.dev(), meta.ino()));
        if found.as_ref().ok() != Some(&(*dev, *ino)) {
            return Err(Error::new(
                format!("{} in the container is not what it is here: the engine mounted something else", ospath::escaped(target)),
                "use an engine of this machine that sees the same files, and start again when nothing moves the directory",
            ));
        }
    }
    Ok(())
}

/// Mounts of this machine below the sources, which the container does not see.
pub fn hidden_below<'a>(grants: &'a [Grant], mountinfo: &str) -> Vec<&'a Path> {
    let points: Vec<&str> = mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    let below = |source: &Path| points.iter().any(|point| Path::new(point).starts_with(source) && Path::new(point) != source);
    grants.iter().map(|grant| grant.source.as_path()).filter(|source| below(source)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
