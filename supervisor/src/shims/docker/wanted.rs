//! From docker's options to what is wanted of a sandbox. Pure: what the machine and the shim's own policy allow is handed in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hermes_profiles::is_broad;
use hermes_profiles::paths::{covers, normalise};
use serde::{Deserialize, Serialize};

use crate::args::docker::{Create, Refused};
use crate::output::clean;

/// Where docker looks for programs when the image says nothing.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Capabilities that docker gives by default and Hermes Agent adds. They have no effect here: nothing inside ever has one.
const HARMLESS: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// What the shim's own policy allows that docker's options could ask for.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowed {
    /// The host's network.
    pub(super) host_network: bool,
    /// Grants as broad as the home directory.
    pub(super) broad: bool,
    pub(super) home: Option<PathBuf>,
    /// Unix sockets of the host.
    pub(super) sockets: Vec<PathBuf>,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A file or directory of the host inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bind {
    pub(super) host: PathBuf,
    pub(super) inside: PathBuf,
    pub(super) read_only: bool,
}

/// What is wanted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) binds: Vec<Bind>,
    /// Directories that end with the container.
    pub(super) scratch: Vec<PathBuf>,
    /// No network, whatever the policy allows.
    pub(super) offline: bool,
    /// Bytes.
    pub(super) memory: Option<u64>,
    pub(super) processes: Option<u64>,
    /// Hundredths of a processor.
    pub(super) cpu: Option<u32>,
    /// Bytes of /dev/shm.
    pub(super) shm: Option<u64>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) workdir: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) image: String,
    pub(super) command: Vec<String>,
}

/// What the options ask for, or the one that is refused and why. `variable` is the caller's environment.
pub(super) fn wanted(create: &Create, allowed: &Allowed, variable: &dyn Fn(&str) -> Option<String>) -> Result<Wanted, String> {
    refuse(&create.refused)?;
    let mut wanted = Wanted { image: create.image.clone(), command: create.command.clone(), ..Wanted::default() };
    for text in &create.volume {
        wanted.binds.push(bind(text, allowed)?);
    }
    for text in &create.tmpfs {
        let (path, options) = text.split_once(':').unwrap_or((text, ""));
        let at = inside(path).ok_or_else(|| format!("--tmpfs {}: expected an absolute path", clean(text)))?;
        check_tmpfs(options).map_err(|why| format!("--tmpfs {}: {why}", clean(text)))?;
        wanted.scratch.push(at);
    }
    check_places(&wanted)?;
    wanted.offline = network(create.network.as_deref(), allowed)?;
    let positive = |name: &str, text: &str| -> Result<f64, String> {
        text.parse().ok().filter(|number: &f64| *number > 0.0 && *number < 1e6).ok_or_else(|| bad(name, text))
    };
    wanted.memory = create.memory.as_deref().map(|text| size(text).ok_or_else(|| bad("--memory", text))).transpose()?;
    wanted.shm = create.shm_size.as_deref().map(|text| size(text).ok_or_else(|| bad("--shm-size", text))).transpose()?;
    wanted.cpu =
        create.cpus.as_deref().map(|text| positive("--cpus", text)).transpose()?.map(|cpus| (cpus * 100.0).ceil() as u32);
    wanted.processes = match create.pids_limit.as_deref() {
        // No limit of its own: the policy's holds.
        None | Some("-1" | "0") => None,
        Some(text) => Some(text.parse().map_err(|_| bad("--pids-limit", text))?),
    };
    capabilities(&create.cap_add)?;
    for text in &create.security_opt {
        if !matches!(text.as_str(), "no-new-privileges" | "no-new-privileges:true" | "no-new-privileges=true") {
            return Err(format!("--security-opt {} is refused: the system call filter and the rest always hold", clean(text)));
        }
    }
    user(create.user.as_deref(), allowed)?;
    wanted.env = environment(&create.env, variable)?;
    for text in &create.label {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        wanted.labels.insert(name.to_owned(), value.to_owned());
    }
    if let Some(dir) = &create.workdir {
        wanted.workdir = Some(inside(dir).map(|dir| dir.display().to_string()).ok_or_else(|| bad("--workdir", dir))?);
    }
    Ok(wanted)
}

fn bad(name: &str, text: &str) -> String {
    format!("{name}: `{}` is not understood", clean(text))
}

fn refuse(refused: &Refused) -> Result<(), String> {
    let Refused {
        privileged,
        device,
        gpus,
        pid,
        ipc,
        uts,
        userns,
        cgroupns,
        mount,
        volumes_from,
        group_add,
        publish,
        entrypoint,
        env_file,
    } = refused;
    let walls = "a sandbox has no such hole";
    let given = [
        ("--privileged", privileged.as_ref().is_some_and(|value| value != "false"), walls),
        ("--device", !device.is_empty(), walls),
        ("--gpus", gpus.is_some(), walls),
        ("--pid", pid.is_some(), "it always has its own processes"),
        ("--ipc", ipc.as_ref().is_some_and(|value| value != "private" && value != "none"), "it always has its own"),
        ("--uts", uts.is_some(), "it always has its own"),
        ("--userns", userns.is_some(), "it always has its own"),
        ("--cgroupns", cgroupns.as_ref().is_some_and(|value| value != "private"), walls),
        ("--group-add", !group_add.is_empty(), walls),
        ("--publish", !publish.is_empty(), "ports inside cannot be reached from outside"),
        ("--mount", !mount.is_empty(), "this shim takes -v HOST:INSIDE"),
        ("--volumes-from", !volumes_from.is_empty(), "this shim takes -v HOST:INSIDE"),
        ("--entrypoint", entrypoint.as_ref().is_some_and(|value| !value.is_empty()), "images are not used"),
        ("--env-file", !env_file.is_empty(), "this shim takes -e NAME=VALUE"),
    ];
    match given.into_iter().find(|(_, given, _)| *given) {
        Some((name, _, why)) => Err(format!("{name} is refused: {why}")),
        None => Ok(()),
    }
}

/// `HOST:INSIDE[:OPTIONS]`.
fn bind(text: &str, allowed: &Allowed) -> Result<Bind, String> {
    let refuse = |why: &str| format!("-v {} is refused: {why}", clean(text));
    let mut parts = text.split(':');
    let (Some(host), Some(to), options, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(refuse("expected HOST:INSIDE or HOST:INSIDE:ro"));
    };
    if !host.starts_with('/') {
        return Err(refuse("there are no named volumes; name a directory of the host by its absolute path"));
    }
    let mut read_only = false;
    for option in options.unwrap_or_default().split(',').filter(|option| !option.is_empty()) {
        match option {
            "ro" => read_only = true,
            // Labels of SELinux have no meaning here.
            "rw" | "z" | "Z" => {}
            other => return Err(refuse(&format!("the option `{}` is not known", clean(other)))),
        }
    }
    let host = normalise(Path::new(host));
    let Some(inside) = inside(to) else { return Err(refuse("expected an absolute path inside other than /")) };
    if !allowed.broad && is_broad(&host, allowed.home.as_deref()) {
        return Err(refuse("it gives away too much; the shim's own policy would have to have --allow-broad"));
    }
    if [Path::new("/proc"), Path::new("/sys"), Path::new("/dev")].iter().any(|tree| covers(tree, &host)) {
        return Err(refuse("it is the kernel's"));
    }
    Ok(Bind { host, inside, read_only })
}

/// Refuses a socket of the host that the shim's policy does not allow. `real` is what it is behind its symlinks.
pub(super) fn refuse_socket(bind: &Bind, real: &Path, allowed: &Allowed) -> Result<(), String> {
    match allowed.sockets.iter().any(|socket| socket == real || *socket == bind.host) {
        true => Ok(()),
        false => Err(format!(
            "-v {} is refused: it is a socket of the host; the shim's own policy would have to name it in unix.connect",
            clean(&bind.host.to_string_lossy())
        )),
    }
}

fn inside(text: &str) -> Option<PathBuf> {
    let path = normalise(Path::new(text));
    (path.is_absolute() && path != Path::new("/")).then_some(path)
}

/// Options of tmpfs: a sandbox's own directories are never nosuid or nodev by choice, but always, and have one limit together.
fn check_tmpfs(options: &str) -> Result<(), String> {
    const KNOWN: &[&str] = &["rw", "exec", "noexec", "nosuid", "nodev"];
    let unknown = options
        .split(',')
        .filter(|option| !option.is_empty())
        .find(|option| !KNOWN.contains(option) && !option.starts_with("size=") && !option.starts_with("mode="));
    match unknown {
        Some(option) => Err(format!("the option `{}` is not known", clean(option))),
        None => Ok(()),
    }
}

fn check_places(wanted: &Wanted) -> Result<(), String> {
    let all: Vec<&Path> =
        wanted.binds.iter().map(|bind| bind.inside.as_path()).chain(wanted.scratch.iter().map(PathBuf::as_path)).collect();
    match all.iter().enumerate().find(|(n, path)| all[..*n].contains(path)) {
        Some((_, path)) => Err(format!("{} is named twice", clean(&path.to_string_lossy()))),
        None => Ok(()),
    }
}

/// Is there to be no network?
fn network(mode: Option<&str>, allowed: &Allowed) -> Result<bool, String> {
    match mode {
        Some("none") => Ok(true),
        // What the policy gives.
        None | Some("bridge" | "default") => Ok(false),
        Some("host") if allowed.host_network => Ok(false),
        Some("host") => Err("--network host is refused: the shim's own policy does not have --net host".to_owned()),
        Some(other) => Err(format!("--network {} is refused: there are only none, bridge and host", clean(other))),
    }
}

fn capabilities(add: &[String]) -> Result<(), String> {
    let plain = |name: &String| name.to_ascii_uppercase().trim_start_matches("CAP_").to_owned();
    match add.iter().find(|name| !HARMLESS.contains(&plain(name).as_str())) {
        Some(name) => Err(format!("--cap-add {} is refused: nothing inside ever has a capability", clean(name))),
        None => Ok(()),
    }
}

/// Whoever the container is for, it runs as the caller.
pub(super) fn user(user: Option<&str>, allowed: &Allowed) -> Result<(), String> {
    let Some(text) = user else { return Ok(()) };
    let (uid, gid) = text.split_once(':').map_or((text, None), |(uid, gid)| (uid, Some(gid)));
    let same = uid.parse() == Ok(allowed.uid) && gid.is_none_or(|gid| gid.parse() == Ok(allowed.gid));
    match same {
        true => Ok(()),
        false => Err(format!("--user {} is refused: a container runs as you, {}:{}", clean(text), allowed.uid, allowed.gid)),
    }
}

/// `NAME=VALUE`, or `NAME` for the caller's value.
pub(super) fn environment(
    list: &[String],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for text in list {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text.as_str(), variable(text)),
        };
        if name.is_empty() {
            return Err(bad("--env", text));
        }
        all.extend(value.map(|value| (name.to_owned(), value)));
    }
    Ok(all)
}

/// Bytes as docker writes them: a number with `b`, `k`, `m` or `g`.
fn size(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let (number, shift) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.parse::<u64>().ok().filter(|number| *number > 0)?.checked_mul(1 << shift)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::args::docker::{Docker, parse};

    fn create(options: &[&str]) -> Create {
        let args: Vec<String> =
            ["run"].iter().chain(options).chain(&["image", "sleep", "infinity"]).map(|word| (*word).to_owned()).collect();
        match parse(&args).unwrap() {
            Docker::Run(run) => run.create,
            other => panic!("{other:?}"),
        }
    }

    fn allowed() -> Allowed {
        Allowed { home: Some("/home/u".into()), uid: 1000, gid: 1000, ..Allowed::default() }
    }

    fn of(options: &[&str]) -> Result<Wanted, String> {
        wanted(&create(options), &allowed(), &|name| (name == "KNOWN").then(|| "value".to_owned()))
    }

    #[test]
    fn what_hermes_asks_for() {
        let wanted = of(&[
            "-d",
            "--init",
            "--name",
            "hermes-1",
            "--label",
            "hermes-agent=1",
            "-w",
            "/root",
            "--cap-drop",
            "ALL",
            "--cap-add",
            "DAC_OVERRIDE",
            "--cap-add",
            "CHOWN",
            "--cap-add",
            "FOWNER",
            "--security-opt",
            "no-new-privileges",
            "--tmpfs",
            "/tmp:rw,nosuid,size=512m",
            "--tmpfs",
            "/var/tmp:rw,noexec,nosuid,size=256m",
            "-v",
            "/home/u/s/home:/root",
            "-v",
            "/home/u/s/ws:/workspace",
            "-v",
            "/home/u/.hermes/skills:/root/.hermes/skills:ro",
            "--cpus",
            "1",
            "--memory",
            "5120m",
            "--pids-limit",
            "256",
            "--network=none",
            "-e",
            "A=1",
            "-e",
            "KNOWN",
            "-e",
            "UNKNOWN",
            "--cap-add",
            "SETUID",
        ])
        .unwrap();
        assert_eq!((wanted.memory, wanted.processes, wanted.cpu), (Some(5120 << 20), Some(256), Some(100)));
        assert_eq!(wanted.env, BTreeMap::from([("A".to_owned(), "1".to_owned()), ("KNOWN".to_owned(), "value".to_owned())]));
        assert_eq!(wanted.scratch, [PathBuf::from("/tmp"), PathBuf::from("/var/tmp")]);
        assert!(wanted.offline && wanted.binds[2].read_only && !wanted.binds[1].read_only);
        assert_eq!((wanted.workdir.as_deref(), wanted.labels["hermes-agent"].as_str()), (Some("/root"), "1"));
        assert_eq!(wanted.command, ["sleep", "infinity"]);
    }

    #[test]
    fn what_weakens_is_refused_by_name() {
        for options in [
            &["--privileged"][..],
            &["--privileged=true"],
            &["--cap-add", "SYS_ADMIN"],
            &["--cap-add", "ALL"],
            &["--network", "host"],
            &["--network", "container:x"],
            &["--pid=host"],
            &["--pid", "container:x"],
            &["--ipc=host"],
            &["--uts=host"],
            &["--userns=host"],
            &["--cgroupns=host"],
            &["--device", "/dev/kvm"],
            &["--gpus", "all"],
            &["--security-opt", "seccomp=unconfined"],
            &["--security-opt", "apparmor=unconfined"],
            &["--mount", "type=bind,src=/,dst=/host"],
            &["--volumes-from", "x"],
            &["--group-add", "docker"],
            &["--user", "0:0"],
            &["-u", "root"],
            &["--entrypoint", "/bin/sh"],
            &["--env-file", "/etc/passwd"],
            &["-p", "80:80"],
            &["-v", "/:/host"],
            &["-v", "/home/u/../..:/host:ro"],
            &["-v", "/home/u:/root"],
            &["-v", "/home:/home:ro"],
            &["-v", "/etc:/etc2"],
            &["-v", "/proc:/p"],
            &["-v", "/dev/kvm:/dev/kvm"],
            &["-v", "volume:/x"],
            &["-v", "/a"],
            &["-v", "/a:/"],
            &["-v", "/a:b"],
            &["-v", "/a:/b:shared"],
            &["-v", "/a:/b:ro:x"],
            &["-v", "/a:/b", "-v", "/c:/b"],
            &["--tmpfs", "/x:suid"],
            &["--memory", "much"],
            &["--cpus=0"],
            &["--pids-limit", "x"],
        ] {
            let why = of(options).unwrap_err();
            let name = options[0].split('=').next().unwrap();
            let long = match name {
                "-u" => "--user",
                "-p" => "--publish",
                other => other,
            };
            assert!(why.contains(long) || why.contains("twice"), "{options:?}: {why}");
        }
        assert!(of(&["--privileged=false"]).is_ok());
    }

    #[test]
    fn what_the_policy_allows_may_be_asked_for() {
        let allowed = Allowed { host_network: true, broad: true, sockets: vec!["/run/x.sock".into()], ..allowed() };
        let of = |options: &[&str]| wanted(&create(options), &allowed, &|_| None);
        assert!(of(&["--network", "host"]).is_ok() && of(&["-v", "/home/u:/host"]).is_ok());
        let socket = Bind { host: "/run/x.sock".into(), inside: "/x.sock".into(), read_only: false };
        assert!(refuse_socket(&socket, Path::new("/run/x.sock"), &allowed).is_ok());
        assert!(refuse_socket(&socket, Path::new("/run/x.sock"), &super::tests::allowed()).is_err());
        assert!(of(&["--user", "1000:1000"]).is_ok() && of(&["--user", "1000"]).is_ok());
    }

    #[test]
    fn unknown_options_are_errors_with_their_name() {
        for option in ["--sysctl", "--runtime", "--isolation", "--no-such", "-P"] {
            let args = ["run", option, "x", "image"].map(str::to_owned);
            let error = parse(&args).unwrap_err();
            assert!(error.message.contains(option), "{option}: {error}");
        }
        assert!(parse(&["commit".to_owned()]).unwrap_err().message.contains("commit"));
    }

    #[test]
    fn sizes_as_docker_has_them() {
        assert_eq!([size("64m"), size("1g"), size("512"), size("2kb")], [Some(64 << 20), Some(1 << 30), Some(512), Some(2048)]);
        assert_eq!([size(""), size("m"), size("0"), size("-1"), size("1t")], [None; 5]);
    }
}
