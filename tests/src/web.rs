//! A small internet in namespaces of the tests' own, with a resolver and servers, and the host's place in it.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::agent::http_packages;
use crate::outcome::Outcome;
use crate::sandbox::{PYTHON, Sandbox, fixture};
use crate::skip::{is_root, program, record_skip};

/// Variables that name a file of trusted certificates, for programs outside.
const CERTIFICATE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "CARGO_HTTP_CAINFO",
    "npm_config_cafile",
];

/// The names and servers of `fixtures/internet.py`, as long as the test process lives.
pub struct Internet {
    /// Certificates, keys, repositories, and the log.
    pub dir: PathBuf,
    /// A process in the host's place.
    holder: u32,
}

impl Internet {
    /// The one of this test process, made when first asked for. Where none can be made the test is skipped.
    pub fn here() -> Option<&'static Self> {
        static SHARED: OnceLock<Result<Internet, String>> = OnceLock::new();
        match SHARED.get_or_init(Self::new) {
            Ok(internet) => Some(internet),
            Err(why) => {
                record_skip(why);
                None
            }
        }
    }

    fn new() -> Result<Self, String> {
        for name in [PYTHON, "openssl", "git", "ip", "unshare", "nsenter"] {
            program(name).ok_or_else(|| format!("{name} is not installed"))?;
        }
        let base = std::env::var_os("HERMES_TEST_BASE").unwrap_or_else(|| "/var/tmp".into());
        let dir = tempfile::Builder::new().prefix("hsbx-net-").tempdir_in(base).map_err(|error| error.to_string())?;
        let dir = fs::canonicalize(dir.keep()).map_err(|error| error.to_string())?;
        let made = Command::new(PYTHON).arg(fixture("packages.py")).arg(&dir).output().map_err(|error| error.to_string())?;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        fs::write(dir.join("log"), "").map_err(|error| error.to_string())?;
        remote_shell(&dir);
        let mut command = Command::new("unshare");
        // As root without a user namespace, as others with one in which they stay who they are.
        command.args(["-n", "-m"]);
        if !is_root() {
            command.args(["-U", "--map-current-user", "--keep-caps"]);
        }
        command.arg(PYTHON).arg(fixture("internet.py")).arg(&dir).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line);
        if line != "READY\n" {
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            let _ = fs::remove_dir_all(&dir);
            return Err(format!("no network namespaces: {}", why.lines().last().unwrap_or_default()));
        }
        let holder = child.id();
        keep(child, &dir);
        Ok(Self { dir, holder })
    }

    /// A sandbox's caller in the host's place, who trusts the test's authority.
    pub fn sandbox(&self) -> Sandbox {
        let sandbox = Sandbox::new();
        let mut way = vec!["nsenter".to_owned(), "--preserve-credentials".to_owned()];
        way.extend([format!("--target={}", self.holder), "--net".to_owned(), "--mount".to_owned()]);
        if !is_root() {
            way.push("--user".to_owned());
        }
        way.extend(["env".to_owned(), "-C".to_owned(), sandbox.workspace.display().to_string()]);
        let authority = self.dir.join("ca.pem");
        CERTIFICATE_VARIABLES.iter().fold(sandbox.by_way_of(way), |sandbox, name| sandbox.env(name, &authority))
    }

    /// The same with a policy of these routes.
    pub fn with(&self, routes: &[Route]) -> Sandbox {
        self.with_profile("agent", routes, "")
    }

    /// The same with [`http_packages`] in `packages` of the workspace. Where there are none the test is skipped.
    pub fn with_http_packages(&self, routes: &[Route]) -> Option<Sandbox> {
        let packages = http_packages().map_err(|why| record_skip(&why)).ok()?;
        let sandbox = self.with(routes);
        sandbox.plain_sh(&format!("cp -r '{}' packages", packages.display())).ok();
        Some(sandbox)
    }

    /// The same beginning with another profile, and with more lines.
    pub fn with_profile(&self, base: &str, routes: &[Route], more: &str) -> Sandbox {
        let sandbox = self.sandbox();
        let mut text = format!("schema = 1\nincludes = [{base:?}]\n{more}\n");
        for route in routes {
            let _ = writeln!(text, "[[network.route]]\nhost = {:?}\nports = {:?}\n{}", route.host, route.ports, route.more);
        }
        let profile = sandbox.write(sandbox.outside.join("profile.toml"), text);
        sandbox.flags([Path::new("--profile"), &profile])
    }

    /// Everything that reached a server or the resolver and holds this word.
    pub fn seen(&self, word: &str) -> Vec<Value> {
        // What was under way arrives.
        thread::sleep(Duration::from_millis(50));
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        text.lines().filter(|line| line.contains(word)).filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Insists that nothing that holds this word reached anybody.
    #[track_caller]
    pub fn never_saw(&self, word: &str, outcome: &Outcome) {
        let seen = self.seen(word);
        assert!(seen.is_empty(), "{word:?} got out: {seen:?}\n{}", outcome.report());
    }
}

impl Sandbox {
    /// A program of Python with the words of `fixtures/probe.py`, in which `@` after a slash stands for a word that must not get out.
    pub fn probe(&self, program: &str) -> String {
        let words = fs::read_to_string(fixture("probe.py")).expect("a fixture");
        format!("{words}\n{}", program.replace("/@", &format!("/{}", self.canary("path"))))
    }
}

/// A route of a policy.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    host: &'static str,
    ports: &'static [u16],
    more: &'static str,
}

impl Route {
    /// One that passes connections through.
    pub const fn to(host: &'static str, ports: &'static [u16]) -> Self {
        Self { host, ports, more: "" }
    }

    /// One with more lines.
    pub const fn rule(host: &'static str, ports: &'static [u16], more: &'static str) -> Self {
        Self { host, ports, more }
    }
}

/// Keeps the internet until this process ends, and takes its directory away then.
fn keep(child: Child, dir: &Path) {
    // The pipe ends with this process; whoever reads the other end tidies up.
    let tidy = "cat; rm -rf \"$0\"";
    let watched =
        Command::new("/bin/sh").args(["-c", tidy]).arg(dir).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn();
    std::mem::forget((child, watched));
}

/// A configuration for a server of SSH that lets in who has the key beside it, if there is such a server.
fn remote_shell(dir: &Path) {
    for name in ["host_key", "user_key"] {
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(name)).status();
        if !made.is_ok_and(|status| status.success()) {
            return;
        }
    }
    let (public, shown) = (dir.join("user_key.pub"), dir.display());
    let _ = fs::copy(public, dir.join("authorized_keys"));
    let text = format!(
        "Port 22\nHostKey {shown}/host_key\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n\
         AuthorizedKeysFile {shown}/authorized_keys\n"
    );
    let _ = fs::write(dir.join("sshd_config"), text);
}
