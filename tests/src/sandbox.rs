//! A scratch home with a workspace, and the program run in it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::outcome::{Outcome, run_to_end, run_to_end_with_input};

/// Settings of git that make tests alike on every machine.
pub const GITCONFIG: &str = "[user]\n\tname = Tester\n\temail = tester@example.test\n[init]\n\tdefaultBranch = main\n\
    [protocol \"file\"]\n\tallow = always\n[commit]\n\tgpgsign = false\n[gc]\n\tauto = 0\n[advice]\n\tdetachedHead = false\n";

/// The system's Python: one that every user can read, unlike a version manager's.
pub const PYTHON: &str = "/usr/bin/python3";

/// The program under test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("HERMES_SANDBOX_BIN") {
        return fs::canonicalize(&path).unwrap_or_else(|error| panic!("HERMES_SANDBOX_BIN {path:?}: {error}"));
    }
    // The test runs from target/PROFILE/deps.
    let test = std::env::current_exe().expect("our own path");
    let found = test.ancestors().map(|dir| dir.join("hermes-sandbox")).find(|path| path.is_file());
    found.expect("set HERMES_SANDBOX_BIN, or build the program first: cargo build -p hermes-sandbox")
}

/// Copies the program. By another process: a descriptor for writing that a fork of another test's holds meanwhile would make the
/// copy one that cannot be executed (ETXTBSY).
///
/// # Panics
/// It cannot be copied.
pub fn copy_binary(to: &Path) {
    let copied = Command::new("cp").arg(binary()).arg(to).status().expect("cp");
    assert!(copied.success(), "cannot copy the program to {}", to.display());
}

/// A file of `tests/fixtures`, copied to a directory that the caller can read.
pub fn fixture(name: &str) -> PathBuf {
    let base = std::env::var_os("HERMES_TEST_FIXTURES").map(PathBuf::from);
    base.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")).join(name)
}

/// A scratch directory with a home, a workspace in it, and a place outside.
pub struct Sandbox {
    dir: Option<TempDir>,
    /// `$HOME` of the caller.
    pub home: PathBuf,
    /// The workspace, a directory in the home.
    pub workspace: PathBuf,
    /// A directory that no policy names.
    pub outside: PathBuf,
    flags: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
    way: Vec<OsString>,
    token: String,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Sandbox {
    /// Makes the directories, below `HERMES_TEST_BASE` or `/var/tmp` (not `/tmp`: a sandbox has its own).
    pub fn new() -> Self {
        // The probes would act on the real machine, so nothing starts under a program that does not confine at all.
        static CHECKED: OnceLock<bool> = OnceLock::new();
        assert!(*CHECKED.get_or_init(|| Self::bare().confines()), "{} does not confine: no test is run", binary().display());
        Self::bare()
    }

    /// Does the program keep a command from a file outside the workspace?
    fn confines(&self) -> bool {
        let secret = self.write(self.outside.join("secret"), self.canary("preflight"));
        let made = self.outside.join("made");
        let result = self.sh(&format!("cat '{}'; echo x > '{}'", secret.display(), made.display()));
        !result.all().contains(&self.canary("preflight")) && !made.exists()
    }

    fn bare() -> Self {
        let base = std::env::var_os("HERMES_TEST_BASE").unwrap_or_else(|| "/var/tmp".into());
        let dir = tempfile::Builder::new().prefix("hsbx-").tempdir_in(base).expect("a scratch directory");
        let root = fs::canonicalize(dir.path()).expect("just made");
        let (home, outside) = (root.join("home"), root.join("outside"));
        let workspace = home.join("ws");
        for path in [&workspace, &outside] {
            fs::create_dir_all(path).expect("scratch directory");
        }
        let token: String = root.to_string_lossy().chars().rev().take(6).collect();
        let path = format!("{}/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", home.display());
        let env = [
            ("HOME", home.as_os_str().to_owned()),
            ("PATH", path.into()),
            ("USER", "tester".into()),
            ("LANG", "C.UTF-8".into()),
            ("TERM", "xterm".into()),
            ("SHELL", "/bin/sh".into()),
        ]
        .map(|(name, value)| (OsString::from(name), value));
        Self { dir: Some(dir), home, workspace, outside, flags: Vec::new(), env: env.into(), way: Vec::new(), token }
    }

    /// Adds flags of `run`.
    pub fn flags<S: AsRef<OsStr>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags.extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the caller.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Has everything, sandboxed or not, started by this command, which starts what its arguments say; several nest, the first
    /// one outermost.
    pub fn by_way_of<S: AsRef<OsStr>>(mut self, way: impl IntoIterator<Item = S>) -> Self {
        self.way.extend(way.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Takes a variable away from the caller.
    pub fn without_env(mut self, name: &str) -> Self {
        self.env.remove(OsStr::new(name));
        self
    }

    /// The directory that holds home and outside.
    pub fn root(&self) -> &Path {
        self.dir.as_ref().expect("until dropped").path()
    }

    /// A word that stands nowhere else.
    pub fn canary(&self, name: &str) -> String {
        format!("CANARY-{name}-{}", self.token)
    }

    /// Writes a file of the host below the scratch directory, with parents.
    pub fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.workspace.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("parents");
        }
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Writes an executable script.
    pub fn script(&self, path: impl AsRef<Path>, text: &str) -> PathBuf {
        let path = self.write(path, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    }

    /// A file of the host as text; empty when absent.
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        fs::read(self.workspace.join(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Any command in the workspace with the caller's environment, without the sandbox.
    pub fn plain_command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut words = self.way.iter().map(OsString::as_os_str).chain([program.as_ref()]);
        let mut command = Command::new(words.next().expect("the program at least"));
        command.args(words).env_clear().envs(&self.env).current_dir(&self.workspace);
        command
    }

    /// The program itself, with the caller's environment.
    pub fn hermes(&self) -> Command {
        self.plain_command(binary())
    }

    /// `hermes-sandbox run FLAGS`, still without `--`.
    pub fn run_command(&self) -> Command {
        let mut command = self.hermes();
        command.arg("run").args(&self.flags);
        if !self.flags.iter().any(|flag| flag == "--workspace") {
            command.arg("--workspace").arg(&self.workspace);
        }
        command
    }

    /// `hermes-sandbox run FLAGS -- ARGV`.
    pub fn inside<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.run_command();
        command.arg("--").args(argv);
        command
    }

    /// Runs a command in the sandbox.
    pub fn run<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Outcome {
        run_to_end(&mut self.inside(argv))
    }

    /// Runs a command in the sandbox with input.
    pub fn run_with_input<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>, input: &[u8]) -> Outcome {
        run_to_end_with_input(&mut self.inside(argv), input)
    }

    /// Runs a shell script in the sandbox.
    pub fn sh(&self, script: &str) -> Outcome {
        self.run(["/bin/sh", "-c", script])
    }

    /// Runs a Python program in the sandbox.
    pub fn python(&self, program: &str) -> Outcome {
        self.run([PYTHON, "-c", program])
    }

    /// The positive control: the same shell script without the sandbox.
    pub fn plain_sh(&self, script: &str) -> Outcome {
        run_to_end(self.plain_command("/bin/sh").args(["-c", script]))
    }

    /// The positive control: the same Python program without the sandbox.
    pub fn plain_python(&self, program: &str) -> Outcome {
        run_to_end(self.plain_command(PYTHON).args(["-c", program]))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A test may have taken its own rights to a directory away.
        let Some(dir) = self.dir.take() else { return };
        let path = dir.path().to_owned();
        for mount in fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines().rev() {
            let target = mount.split(' ').nth(1).unwrap_or_default();
            if Path::new(target).starts_with(&path) {
                let _ = Command::new("umount").args(["-l", target]).status();
            }
        }
        if dir.close().is_err() {
            let _ = Command::new("chmod").arg("-R").arg("u+rwX").arg(&path).status();
            let _ = fs::remove_dir_all(&path);
        }
    }
}
