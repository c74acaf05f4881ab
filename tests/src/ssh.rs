//! A real server of SSH for the tests' own user, whose home is a scratch directory.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::host::wait_until;
use crate::outcome::Live;
use crate::sandbox::Sandbox;
use crate::skip::{is_root, program, record_skip};

/// Another host: the same machine, seen through `sshd`, with a home directory of its own.
pub struct Remote {
    /// Home there.
    pub home: PathBuf,
    /// The workspace there, `ws` in the home.
    pub workspace: PathBuf,
    /// Configuration, keys and logs.
    pub dir: PathBuf,
    /// For `--ssh-config`; it knows the host as `far.test`.
    pub config: PathBuf,
    /// The server, unless it is started anew for each connection.
    server: Option<Live>,
}

impl Remote {
    /// One that listens on a port of the loopback. Where there is no server the test is skipped.
    pub fn new(sandbox: &Sandbox) -> Option<Self> {
        let mut remote = Self::configured(sandbox)?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        let sshd = program("sshd").expect("looked for");
        let mut command = Command::new(sshd);
        command.args(["-D", "-p", &port.to_string(), "-o", "ListenAddress=127.0.0.1", "-f"]).arg(remote.dir.join("sshd_config"));
        command.arg("-E").arg(remote.dir.join("sshd.log")).stdout(Stdio::null()).stderr(Stdio::null());
        remote.server = Some(Live::start(&mut command));
        let up = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        assert!(wait_until(20, up), "no sshd: {}", remote.log());
        remote.add(&format!("  HostName 127.0.0.1\n  Port {port}\n"));
        Some(remote)
    }

    /// One that is started for each connection, by `sshd -i`, in the words of `way`, e.g. in a network namespace of its own.
    pub fn by_way_of(sandbox: &Sandbox, way: &str) -> Option<Self> {
        let remote = Self::configured(sandbox)?;
        let (sshd, dir) = (program("sshd").expect("looked for"), remote.dir.display());
        remote.add(&format!("  ProxyCommand {way} {} -i -f {dir}/sshd_config -E {dir}/sshd.log\n", sshd.display()));
        Some(remote)
    }

    fn configured(sandbox: &Sandbox) -> Option<Self> {
        for name in ["ssh", "sshd", "ssh-keygen"] {
            if program(name).is_none() {
                record_skip(&format!("{name} is not installed"));
                return None;
            }
        }
        let home = sandbox.root().join("far");
        let (dir, workspace) = (sandbox.root().join("ssh"), home.join("ws"));
        fs::create_dir_all(&workspace).and_then(|()| fs::create_dir_all(&dir)).expect("scratch directories");
        if is_root() {
            // Where the server puts itself aside, as its package does at the start of the system.
            let _ = fs::create_dir("/run/sshd");
        }
        for name in ["host", "user", "other"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(name)).status();
            assert!(made.expect("ssh-keygen").success());
        }
        let shown = dir.display();
        let server = format!(
            "HostKey {shown}/host\nPidFile none\nStrictModes no\nUsePAM no\nUseDNS no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin yes\nAuthorizedKeysFile {shown}/user.pub\nSetEnv HOME={}\n",
            home.display()
        );
        fs::write(dir.join("sshd_config"), server).expect("scratch");
        let remote = Self { home, workspace, config: dir.join("config"), dir, server: None };
        remote.know("host");
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten().expect("a user").name;
        let shown = remote.dir.display();
        let client = format!(
            "Host far.test\n  User {user}\n  IdentityFile {shown}/user\n  IdentitiesOnly yes\n  UserKnownHostsFile {shown}/known\n  HostKeyAlias far.test\n"
        );
        fs::write(&remote.config, client).expect("scratch");
        Some(remote)
    }

    /// Knows the host by this key.
    pub fn know(&self, key: &str) {
        let public = fs::read_to_string(self.dir.join(key).with_extension("pub")).expect("made");
        fs::write(self.dir.join("known"), format!("far.test {public}")).expect("scratch");
    }

    /// Adds to the client's configuration.
    pub fn add(&self, lines: &str) {
        let mut text = fs::read_to_string(&self.config).expect("made");
        text.push_str(lines);
        fs::write(&self.config, text).expect("scratch");
    }

    /// The options that lead there, without a workspace.
    pub fn way(&self) -> Vec<String> {
        ["--backend", "ssh", "--ssh-host", "far.test", "--ssh-config"]
            .map(str::to_owned)
            .into_iter()
            .chain([self.config.display().to_string()])
            .collect()
    }

    /// The options that lead there.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = self.way();
        flags.extend(["--workspace".to_owned(), self.workspace.display().to_string()]);
        flags
    }

    /// What the server has to say.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("sshd.log")).unwrap_or_default()
    }

    /// A file of the other host as text; empty when absent.
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.workspace.join(path)).unwrap_or_default()
    }

    /// Writes a file there.
    pub fn write(&self, path: impl AsRef<Path>, text: &str) {
        fs::write(self.workspace.join(path), text).expect("the workspace there");
    }
}
