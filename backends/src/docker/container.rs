//! What a container is made of: a pure function from what is wanted and what the engine can do.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountTmpfsOptions, MountType, RestartPolicy, RestartPolicyNameEnum,
};

use super::engine::{Facts, Kind};
use super::mounts::Grant;
use super::seccomp;
use crate::limits::TreeLimits;
use crate::local::seccomp::Arch;

/// Where our program stands inside.
pub const PROGRAM: &str = "/.hermes-sandbox";

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The image, as a person names it.
    pub image: String,
    /// `os/architecture`, where the image has several.
    pub platform: Option<String>,
    /// Our program on this machine.
    pub program: PathBuf,
    /// Its arguments. They can be seen by everybody, so nothing of a policy is in them.
    pub arguments: Vec<String>,
    /// Who the jobs are.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Their home directory; a file system of the container's own.
    pub home: Option<PathBuf>,
    /// What they see of this machine.
    pub grants: Vec<Grant>,
    /// Limits on the whole container.
    pub limits: TreeLimits,
    /// Bytes for each of /tmp, /run and the home directory.
    pub scratch: Option<u64>,
    /// Bytes for /dev/shm.
    pub shm: Option<u64>,
    /// Labels.
    pub labels: Vec<(String, String)>,
}

/// What an image brings that a container would take over by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Its id.
    pub id: String,
    /// Its variables.
    pub environment: Vec<(String, String)>,
    /// Directories for which an engine would make volumes.
    pub volumes: Vec<String>,
}

/// Who the container's processes are, and in which user namespace: what they make must be the caller's.
fn user(facts: &Facts, wanted: &Wanted) -> (String, &'static str) {
    let caller = format!("{}:{}", wanted.uid, wanted.gid);
    match (facts.rootless, facts.kind) {
        // Root of a rootless engine's namespace is the caller.
        (true, Kind::Docker) => ("0:0".to_owned(), ""),
        (true, Kind::Podman) => (caller, "keep-id"),
        // Files of a subordinate id would not be the caller's.
        (false, _) if facts.remapped => (caller, "host"),
        (false, _) => (caller, ""),
    }
}

/// Can the sandbox inside have namespaces of its own? They need a /proc that nothing is mounted on, which is only shown
/// to a user who could do nothing with it: root owns `/proc/sys`, whatever capabilities it has.
pub fn has_namespaces(facts: &Facts, wanted: &Wanted) -> bool {
    let root = user(facts, wanted).0.starts_with("0:");
    !root && !facts.apparmor
}

/// What the engine is asked for.
pub fn body(facts: &Facts, wanted: &Wanted, image: &Image) -> ContainerCreateBody {
    let (user, userns) = user(facts, wanted);
    let namespaces = has_namespaces(facts, wanted);
    let none = namespaces.then(Vec::new);
    let mut security = vec!["no-new-privileges".to_owned()];
    // Podman wants a file of its own side there, and its default allows namespaces.
    if let (Kind::Docker, Some(arch)) = (facts.kind, Arch::NATIVE) {
        security.push(format!("seccomp={}", seccomp::profile(arch)));
    }
    if facts.kind == Kind::Podman && namespaces {
        security.push("unmask=ALL".to_owned());
    }
    let limits = &wanted.limits;
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let memory = limits.memory.filter(|_| facts.limits_memory).map(signed);
    let host = HostConfig {
        mounts: Some(mounts(wanted, image)),
        tmpfs: Some(tmpfs(facts, &user, wanted)),
        network_mode: Some("none".into()),
        pid_mode: Some(String::new()),
        ipc_mode: Some("private".into()),
        uts_mode: Some(String::new()),
        userns_mode: Some(userns.into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(security),
        readonly_rootfs: Some(true),
        masked_paths: none.clone(),
        readonly_paths: none,
        memory,
        // Swap included.
        memory_swap: memory,
        pids_limit: limits.processes.filter(|_| facts.limits_processes).map(signed),
        nano_cpus: limits.cpu_percent.filter(|_| facts.limits_cpu).map(|percent| i64::from(percent) * 10_000_000),
        shm_size: wanted.shm.map(signed),
        // Standard output is the channel: it must not be copied to a log of the machine.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        auto_remove: Some(true),
        init: Some(false),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(image.id.clone()),
        entrypoint: Some([PROGRAM.to_owned()].into_iter().chain(wanted.arguments.iter().cloned()).collect()),
        cmd: Some(Vec::new()),
        user: Some(user),
        working_dir: Some("/".into()),
        network_disabled: Some(true),
        open_stdin: Some(true),
        // It is closed when we are gone, which ends the program inside.
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        labels: Some(wanted.labels.iter().cloned().collect()),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

fn mounts(wanted: &Wanted, image: &Image) -> Vec<Mount> {
    let bind = |source: &Path, target: &Path, writable: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_string_lossy().into_owned()),
        read_only: Some(!writable),
        // Read-only does not reach mounts below before Docker 25, so there are none.
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    };
    let volume = |target: &String| Mount {
        typ: Some(MountType::TMPFS),
        target: Some(target.clone()),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: wanted.scratch.and_then(|bytes| i64::try_from(bytes).ok()),
            mode: Some(0o1777),
            options: None,
        }),
        ..Mount::default()
    };
    let own = own_places(wanted);
    let taken = |target: &String| {
        let target = Path::new(target);
        wanted.grants.iter().any(|grant| grant.target == target) || own.iter().any(|(own, _)| own == target)
    };
    let volumes = image.volumes.iter().filter(|target| !taken(target)).map(volume);
    let grants = wanted.grants.iter().map(|grant| bind(&grant.source, &grant.target, grant.writable));
    [bind(&wanted.program, Path::new(PROGRAM), false)].into_iter().chain(volumes).chain(grants).collect()
}

/// File systems of the container's own, and their modes.
fn own_places(wanted: &Wanted) -> Vec<(PathBuf, &'static str)> {
    let home = wanted.home.iter().filter(|home| home.as_path() != Path::new("/") && home.to_str().is_some());
    let places = [("/tmp".into(), "1777"), ("/run".into(), "0755"), ("/var/tmp".into(), "1777")]
        .into_iter()
        .chain(home.map(|home| (home.clone(), "0700")));
    places.filter(|(place, _)| !wanted.grants.iter().any(|grant| grant.target == *place)).collect()
}

fn tmpfs(facts: &Facts, user: &str, wanted: &Wanted) -> HashMap<String, String> {
    let (uid, gid) = user.split_once(':').unwrap_or(("0", "0"));
    let size = wanted.scratch.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    // Builds run what they made in /tmp.
    let options = |mode: &str| match facts.kind {
        Kind::Docker => format!("rw,nosuid,nodev,exec,mode={mode},uid={uid},gid={gid}{size}"),
        // Podman knows no owner there; there is one user in the container.
        Kind::Podman => format!("rw,nosuid,nodev,exec,notmpcopyup,mode=1777{size}"),
    };
    own_places(wanted).into_iter().map(|(path, mode)| (path.to_string_lossy().into_owned(), options(mode))).collect()
}

#[cfg(test)]
mod tests;
