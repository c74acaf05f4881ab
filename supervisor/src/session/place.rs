//! Where sessions are found: a directory of each in the user's runtime directory.
//!
//! `$XDG_RUNTIME_DIR/hermes-sandbox/<name>/`, or `/tmp/hermes-sandbox-<uid>/<name>/` without one: `lock` is held as long as the
//! session lives, `socket` is where it listens, `log` is what it says, `ready` is there when it serves.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use nix::unistd::geteuid;

use crate::error::Error;
use crate::output;
use crate::state::private_directory;

/// Longest name. With the directory it must fit into a socket's address, unix(7).
const LONGEST: usize = 40;

/// The directory of a session.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    /// Held by its own process.
    lock: Option<File>,
}

/// How names of sessions begin that shims have named.
pub(crate) const OF_SHIM: &str = "shim-";

/// Keeps other shims from starting and removing sessions as long as the answer lives.
pub(crate) fn starting() -> Result<File, Error> {
    let path = sessions()?.join(".starting");
    let cannot = |e: io::Error| Error::setup(format!("cannot lock {}: {e}", output::path(&path)));
    let lock = File::options().create(true).truncate(false).write(true).open(&path).map_err(cannot)?;
    lock.lock().map_err(cannot)?;
    Ok(lock)
}

/// `XDG_RUNTIME_DIR`, which must be the same for all who look for a session.
static RUNTIME: OnceLock<Option<OsString>> = OnceLock::new();

/// From now on looks for sessions where a process with this `XDG_RUNTIME_DIR` does.
pub(crate) fn look_in(runtime: Option<OsString>) {
    let _ = RUNTIME.set(runtime);
}

/// All sessions' directory.
fn sessions() -> Result<PathBuf, Error> {
    let runtime = RUNTIME
        .get_or_init(|| std::env::var_os("XDG_RUNTIME_DIR"))
        .clone()
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute() && dir.is_dir());
    let dir = match runtime {
        Some(dir) => dir.join("hermes-sandbox"),
        None => PathBuf::from(format!("/tmp/hermes-sandbox-{}", geteuid())),
    };
    private_directory(&dir, true).map_err(|e| {
        Error::setup(format!("cannot keep sessions in {}: {e}", output::path(&dir)))
            .hint("remove it, or point XDG_RUNTIME_DIR to a directory of yours alone")
    })?;
    Ok(dir)
}

/// Letters, digits, `-`, `_` and `.`, but not first.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= LONGEST && name.chars().all(plain) && !name.starts_with(['.', '-'])
}

impl Place {
    /// That of a session by its name.
    pub(crate) fn of(name: &str) -> Result<Self, Error> {
        if !is_name(name) {
            return Err(Error::usage(format!("`{}` cannot name a session", output::clean(name)))
                .hint(format!("use up to {LONGEST} letters, digits, `-`, `_` and `.`")));
        }
        Ok(Self { name: name.to_owned(), dir: sessions()?.join(name), lock: None })
    }

    /// All that there are, by name.
    pub(crate) fn all() -> Result<Vec<Self>, Error> {
        let dir = sessions()?;
        let entries =
            std::fs::read_dir(&dir).map_err(|e| Error::setup(format!("cannot look into {}: {e}", output::path(&dir))))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_name(name));
        let mut all: Vec<Self> = names.map(|name| Self { dir: dir.join(&name), name, lock: None }).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Makes it ours, for the process of the session.
    pub(crate) fn claim(name: &str) -> Result<Self, Error> {
        let mut place = Self::of(name)?;
        let cannot = |e: io::Error| Error::setup(format!("cannot keep the session in {}: {e}", output::path(&place.dir)));
        private_directory(&place.dir, true).map_err(cannot)?;
        let lock = File::options().create(true).truncate(false).write(true).open(place.dir.join("lock")).map_err(cannot)?;
        // Who looks whether it is taken has it for a moment, see `is_alive`.
        let mut tries = 0..20;
        while lock.try_lock().is_err() {
            if tries.next().is_some() {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            return Err(Error::usage(format!("there is a session `{name}` already"))
                .hint(format!("`hermes-sandbox session stop {name}` ends it")));
        }
        for left in ["socket", "ready"] {
            match std::fs::remove_file(place.dir.join(left)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(cannot(e)),
                _ => {}
            }
        }
        place.lock = Some(lock);
        Ok(place)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn ready_path(&self) -> PathBuf {
        self.dir.join("ready")
    }

    /// Its session serves.
    pub(crate) fn ready(&self) -> Result<(), Error> {
        let cannot = |e| Error::setup(format!("cannot keep the session in {}: {e}", output::path(&self.dir)));
        std::fs::write(self.ready_path(), std::process::id().to_string()).map_err(cannot)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready_path().exists()
    }

    /// Does its process live?
    pub(crate) fn is_alive(&self) -> bool {
        match File::options().write(true).open(self.dir.join("lock")) {
            Ok(lock) => lock.try_lock().is_err(),
            Err(_) => false,
        }
    }

    /// Waits until its process has ended.
    pub(crate) fn wait(&self) -> io::Result<()> {
        match File::options().write(true).open(self.dir.join("lock")) {
            Ok(lock) => lock.lock(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Is it one that a shim has named?
    pub(crate) fn is_of_shim(&self) -> bool {
        self.name.starts_with(OF_SHIM)
    }

    /// Takes away all of it, at its end.
    pub(crate) fn forget(self) {
        let starting = starting();
        self.remove();
        drop((self, starting));
    }

    /// Takes away what a session has left.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // The log stays for who asks why it ended.
            for name in ["socket", "ready"] {
                let _ = std::fs::remove_file(self.dir.join(name));
            }
        }
    }
}

/// What lies at `path` as text; nothing when it cannot be read.
pub(crate) fn text(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        assert!(["a", "work-1", "A.b_c"].iter().all(|name| is_name(name)));
        assert!(["", ".", "..", "-x", "a/b", "a b", "\u{e9}", &"x".repeat(41)].iter().all(|name| !is_name(name)));
    }
}
