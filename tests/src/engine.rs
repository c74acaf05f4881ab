//! Container engines of the tests' own: each in namespaces of its own, with its files in a scratch directory, and ended when the
//! test program ends, however that comes to be.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::host::wait_until;
use crate::skip::{is_root, program};

/// What an engine of the machine needs to work within these tests' namespaces, for Podman.
const CONTAINERS_CONF: &str = "[containers]\ndefault_ulimits = [\"nofile=4096:4096\",\"nproc=4096:4096\"]\n\
    [engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\nruntime=\"runc\"\n";

/// An engine that listens on a socket that everybody may use.
pub struct Engine {
    /// `docker` or `podman`.
    pub name: &'static str,
    /// Its socket.
    pub socket: PathBuf,
    /// Its files.
    pub dir: PathBuf,
    engine: Child,
    _end: Child,
}

/// Ends the engine and takes away what it made when its standard input ends: that is when the tests have ended.
const END: &str = r#"cat >/dev/null
kill -TERM "$1" 2>/dev/null
n=0; while kill -0 "$1" 2>/dev/null && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
kill -KILL "$1" 2>/dev/null
for proc in /proc/[0-9]*; do
  [ "${proc#/proc/}" = $$ ] || { tr '\0' ' ' <"$proc/cmdline" | grep -qF "$2/" && kill -KILL "${proc#/proc/}"; } 2>/dev/null
done
sleep 0.3
for base in /sys/fs/cgroup/*/"$3" /sys/fs/cgroup/*/libpod_parent; do
  [ -d "$base" ] && find "$base" -depth -type d -exec rmdir {} \; 2>/dev/null
done
rm -rf "$2""#;

impl Engine {
    /// Docker, one for the test program.
    ///
    /// # Errors
    /// It cannot be had here, and why.
    pub fn docker() -> Result<&'static Self, String> {
        static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
        ENGINE.get_or_init(|| Self::start("docker")).as_ref().map_err(Clone::clone)
    }

    /// Podman, one for the test program.
    ///
    /// # Errors
    /// It cannot be had here, and why.
    pub fn podman() -> Result<&'static Self, String> {
        static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
        ENGINE.get_or_init(|| Self::start("podman")).as_ref().map_err(Clone::clone)
    }

    /// One of its own for a test that ends it.
    ///
    /// # Errors
    /// It cannot be had here, and why.
    pub fn start(name: &'static str) -> Result<Self, String> {
        if !is_root() {
            return Err("only root can start a container engine of the tests' own".to_owned());
        }
        let needed: &[&str] =
            if name == "docker" { &["dockerd", "containerd", "runc", "docker"] } else { &["podman", "runc", "docker"] };
        for program_name in needed.iter().chain(&["busybox", "unshare", "tar"]) {
            if program(program_name).is_none() {
                return Err(format!("{program_name} is not installed"));
            }
        }
        let dir = tempfile::Builder::new().prefix("hsbx-engine-").tempdir_in("/var/tmp").map_err(|e| e.to_string())?.keep();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).map_err(|e| e.to_string())?;
        let socket = dir.join("engine.sock");
        let group = dir.file_name().expect("a name").to_string_lossy().into_owned();
        let at = |name: &str| dir.join(name).display().to_string();
        let (words, variables) = match name {
            "docker" => {
                let words = format!(
                    "exec dockerd --host unix://{} --data-root {} --exec-root {} --pidfile {} --cgroup-parent /{group} \
                     --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false",
                    socket.display(),
                    at("data"),
                    at("exec"),
                    at("pid"),
                );
                (words, Vec::new())
            }
            _ => {
                let storage =
                    format!("[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n", at("data"), at("run"));
                fs::write(dir.join("storage.conf"), storage).map_err(|e| e.to_string())?;
                fs::write(dir.join("containers.conf"), CONTAINERS_CONF).map_err(|e| e.to_string())?;
                let words = format!("exec podman system service --time=0 unix://{}", socket.display());
                (words, vec![("CONTAINERS_CONF", at("containers.conf")), ("CONTAINERS_STORAGE_CONF", at("storage.conf"))])
            }
        };
        let log = fs::File::create(dir.join("log")).map_err(|e| e.to_string())?;
        let engine = Command::new("setsid")
            .args(["unshare", "--mount", "--propagation", "private", "sh", "-c", &words])
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|e| e.to_string())?)
            .stderr(log)
            .spawn()
            .map_err(|e| e.to_string())?;
        let end = Command::new("setsid")
            .args(["sh", "-c", END, "end"])
            .args([engine.id().to_string(), dir.display().to_string(), group])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let engine = Self { name, socket, dir, engine, _end: end };
        if !wait_until(30, || engine.client(&["version"]).status.success()) {
            let log = fs::read_to_string(engine.dir.join("log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(3).collect();
            return Err(format!("{name} does not start here: {}", last.join(" / ")));
        }
        let _ = fs::set_permissions(&engine.socket, fs::Permissions::from_mode(0o666));
        engine.import(
            "bb",
            &[
                "sh", "cat", "id", "env", "ls", "touch", "sleep", "head", "tail", "dd", "wc", "grep", "mount", "kill", "true",
                "wget",
            ],
        )?;
        Ok(engine)
    }

    /// Makes an image that has a static busybox under these names and nothing else.
    ///
    /// # Errors
    /// The engine does not take it.
    pub fn import(&self, name: &str, tools: &[&str]) -> Result<(), String> {
        let root = self.dir.join(format!("image-{name}"));
        fs::create_dir_all(root.join("bin")).map_err(|e| e.to_string())?;
        if !tools.is_empty() {
            let busybox = program("busybox").ok_or("busybox is not installed")?;
            fs::copy(busybox, root.join("bin/busybox")).map_err(|e| e.to_string())?;
        }
        for tool in tools {
            let _ = std::os::unix::fs::symlink("busybox", root.join("bin").join(tool));
        }
        let tar = self.dir.join(format!("{name}.tar"));
        let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status();
        if !packed.is_ok_and(|status| status.success()) {
            return Err("tar fails".to_owned());
        }
        let tar = tar.display().to_string();
        let changes = ["-c", "ENV PATH=/bin", "-c", "ENV FROM_IMAGE=yes", "-c", "VOLUME /data", &tar, &format!("{name}:latest")];
        let imported = self.client(&[&["import"], &changes[..]].concat());
        match imported.status.success() {
            true => Ok(()),
            false => Err(format!("{} does not take an image: {}", self.name, String::from_utf8_lossy(&imported.stderr).trim())),
        }
    }

    /// The engine as `DOCKER_HOST` names it.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Asks the engine by docker's own client.
    ///
    /// # Panics
    /// There is no such client.
    pub fn client(&self, words: &[&str]) -> std::process::Output {
        Command::new("docker").args(["--host", &self.host()]).args(words).stdin(Stdio::null()).output().expect("docker's client")
    }

    /// What the client prints, without white space around.
    pub fn says(&self, words: &[&str]) -> String {
        String::from_utf8_lossy(&self.client(words).stdout).trim().to_owned()
    }

    /// Ids of all containers, also of those that do not run.
    pub fn containers(&self) -> Vec<String> {
        self.says(&["ps", "-aq", "--no-trunc"]).lines().map(str::to_owned).collect()
    }

    /// Kills the engine, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.engine.kill();
        let _ = self.engine.wait();
    }

    /// Is this a program that runs in an image without libraries?
    pub fn can_run(binary: &Path) -> bool {
        let bytes = fs::read(binary).unwrap_or_default();
        // The name of a dynamic loader, as PT_INTERP holds it.
        !bytes.is_empty()
            && !bytes.get(..4096).is_some_and(|head| head.windows(8).any(|part| part == b"/ld-linu" || part == b"/ld-musl"))
    }
}
