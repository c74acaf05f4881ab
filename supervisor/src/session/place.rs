//! Where sessions are found: a directory of each in the user's runtime directory.
//!
//! `$XDG_RUNTIME_DIR/hermes-sandbox/<name>/`, or `/tmp/hermes-sandbox-<uid>/<name>/` without one: `lock` is held as long as the
//! session lives, `socket` is where it listens, `log` is what it says, `ready` is there when it serves.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::Error;
use crate::output;
use crate::state::{private_directory, session_directories};

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

/// How often and how long a lock is waited for that somebody may only look at.
const LOOKS: (u32, Duration) = (50, Duration::from_millis(2));

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
    let runtime = RUNTIME.get_or_init(|| std::env::var_os("XDG_RUNTIME_DIR"));
    let dir = session_directories(runtime.as_deref()).swap_remove(0);
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
        let (looks, pause) = LOOKS;
        let free = (0..looks).any(|look| {
            if look > 0 {
                std::thread::sleep(pause);
            }
            lock.try_lock().is_ok()
        });
        if !free {
            return Err(Error::usage(format!("there is a session `{name}` already"))
                .hint(format!("`hermes-sandbox session stop {name}` ends it")));
        }
        place.clear().map_err(cannot)?;
        place.lock = Some(lock);
        Ok(place)
    }

    /// Takes away what a session that has ended would be taken for one that serves by.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for left in ["socket", "ready"] {
            match std::fs::remove_file(self.dir.join(left)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Keeps others from starting it, or from taking away what it has left, as long as the answer lives.
    pub(crate) fn turn(&self) -> io::Result<File> {
        let path = self.dir.join("turn");
        loop {
            private_directory(&self.dir, true)?;
            let turn = match File::options().create(true).truncate(false).write(true).open(&path) {
                // Taken away meanwhile, as below.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            turn.lock()?;
            if is_at(&turn, &path) {
                return Ok(turn);
            }
        }
    }

    /// Can it still be found?
    pub(crate) fn is_there(&self) -> bool {
        self.lock.as_ref().is_none_or(|lock| is_at(lock, &self.dir.join("lock")))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// A workspace for one that has none. Not in the directory, which no sandbox may see.
    pub(crate) fn work(&self) -> PathBuf {
        let sessions = self.dir.parent().unwrap_or(&self.dir);
        let mut beside = sessions.as_os_str().to_owned();
        beside.push("-work");
        PathBuf::from(beside).join(&self.name)
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
            // Shared: others may be looking, too.
            Ok(lock) => lock.try_lock_shared().is_err(),
            Err(_) => false,
        }
    }

    /// Waits until its process has ended.
    pub(crate) fn wait(&self) -> io::Result<()> {
        match File::options().write(true).open(self.dir.join("lock")) {
            Ok(lock) => lock.lock_shared(),
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

    /// Takes away what a session has left, in one's [turn](Self::turn).
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_dir_all(self.work());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Another session's may be there by now. The log stays for who asks why this one ended.
        if self.lock.is_some() && self.is_there() {
            for name in ["socket", "ready"] {
                let _ = std::fs::remove_file(self.dir.join(name));
            }
        }
    }
}

/// Is this file what lies at `path`?
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
    matches!((&file.metadata(), &path.symlink_metadata()), (Ok(ours), Ok(there)) if identity(ours) == identity(there))
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
