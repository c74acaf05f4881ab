//! The file that holds secrets: `$XDG_STATE_HOME/hermes-sandbox/secrets`, for its owner alone.
//!
//! A line that says the version, then [`Vault`] as `postcard` writes it.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hermes_profiles::Caller;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use zeroize::Zeroizing;

use super::value::room;
use super::vault::Vault;
use crate::error::Error;
use crate::{output, state};

const VERSION: &[u8] = b"hermes-sandbox secrets 1\n";
/// Bytes of the largest file.
const LARGEST: usize = 1 << 20;
/// What a file is called that has no name yet.
const TEMPORARY: &str = ".secrets-";

/// Where secrets are kept.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
}

impl Store {
    /// That of this caller.
    ///
    /// # Errors
    /// There is no place for it.
    pub(crate) fn of(caller: &Caller) -> Result<Self, Error> {
        Ok(Self { dir: state::directory(caller)?.to_owned() })
    }

    fn path(&self) -> PathBuf {
        self.dir.join("secrets")
    }

    /// All that is kept; nothing when there is no file yet.
    ///
    /// # Errors
    /// Others could have read or changed it, or it cannot be read or understood.
    pub(crate) fn read(&self) -> Result<Vault, Error> {
        self.private(false)?;
        read(&self.path()).map_err(|e| self.refuse("read", &e))
    }

    /// Changes what is kept, as the only one who does. When `change` fails nothing has changed.
    ///
    /// # Errors
    /// As [`Store::read`], and those of `change`; the file cannot be written.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Vault) -> Result<T, Error>) -> Result<T, Error> {
        self.private(true)?;
        let hint = "another hermes-sandbox command changes the secrets; wait for it to end";
        let _lock = state::lock_file(&self.dir.join("secrets.lock"), hint)?;
        let mut vault = read(&self.path()).map_err(|e| self.refuse("read", &e))?;
        let answer = change(&mut vault)?;
        write(&self.dir, &self.path(), &vault).map_err(|e| self.refuse("write", &e))?;
        Ok(answer)
    }

    fn private(&self, make: bool) -> Result<(), Error> {
        match state::private_directory(&self.dir, make) {
            Err(e) if !make && e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::setup(format!("cannot keep secrets in {}: {e}", output::path(&self.dir)))
                .hint("make that directory writable for you alone, or point XDG_STATE_HOME to one that is")),
            Ok(()) => Ok(()),
        }
    }

    fn refuse(&self, what: &str, why: &io::Error) -> Error {
        let path = self.path();
        let error = Error::setup(format!("cannot {what} the secrets in {}: {why}", output::path(&path)));
        match why.kind() {
            ErrorKind::PermissionDenied => error.hint(format!(
                "if others could read it, replace the values; make it yours again by chmod 600 {0}, or remove it",
                output::quoted(&path)
            )),
            ErrorKind::InvalidData => {
                error.hint(format!("move it away and add the secrets again: mv {0} {0}.broken", output::quoted(&path)))
            }
            _ => error,
        }
    }
}

fn read(path: &Path) -> io::Result<Vault> {
    let denied = |why: &str| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    let broken = |why: &str| Err(io::Error::new(ErrorKind::InvalidData, why));
    // O_NONBLOCK: opening a FIFO would wait for a writer.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let mut file = match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vault::default()),
        Err(e) if e.raw_os_error() == Some(nix::libc::ELOOP) => return denied("it is a symlink"),
        file => file?,
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return denied("it is not a regular file");
    }
    if meta.uid() != geteuid().as_raw() {
        return denied("it belongs to somebody else");
    }
    if meta.mode() & 0o7177 != 0 {
        return denied("others than its owner have rights to it");
    }
    if meta.nlink() != 1 {
        return denied("it has more than one name");
    }
    if meta.len() > LARGEST as u64 {
        return broken("it is larger than 1 MiB");
    }
    let mut bytes = room(LARGEST + 1);
    (&mut file).take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    let Some(content) = bytes.strip_prefix(VERSION) else {
        return broken("it is no file of secrets that this version understands");
    };
    match postcard::take_from_bytes(content) {
        Ok((vault, [])) => Ok(vault),
        _ => broken("it is damaged"),
    }
}

fn write(dir: &Path, path: &Path, vault: &Vault) -> io::Result<()> {
    sweep(dir)?;
    let mut buffer = Zeroizing::new(vec![0; LARGEST]);
    buffer[..VERSION.len()].copy_from_slice(VERSION);
    let full = |_| io::Error::new(ErrorKind::FileTooLarge, "all secrets together would be larger than 1 MiB");
    let length = postcard::to_slice(vault, &mut buffer[VERSION.len()..]).map_err(full)?.len();
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(dir)?;
    file.write_all(&buffer[..VERSION.len() + length])?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(dir)?.sync_all()
}

/// Takes away what a killed command has left. The caller has the lock, so nobody writes.
fn sweep(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
            std::fs::remove_file(dir.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::secrets::value::Value;
    use crate::secrets::vault::{Entry, Source, Taken};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn store(dir: &tempfile::TempDir) -> Store {
        Store { dir: dir.path().join("state") }
    }

    fn entry(name: &str, value: &str) -> Entry {
        let value = Value::parse(Zeroizing::new(value.as_bytes().to_vec())).unwrap();
        let members = vec![Source::Stored(value)];
        Entry { scope: "agent".into(), name: name.into(), variable: None, members, suppressed: false }
    }

    fn add(store: &Store, name: &str, value: &str) -> Result<usize, Error> {
        store.change(|vault| vault.add(entry(name, value), Taken::Refuse, false))
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        assert_eq!(store.read().unwrap(), Vault::default());
        add(&store, "one", "1").unwrap();
        fs::write(store.dir.join(".secrets-left"), "by a killed one").unwrap();
        assert!(add(&store, "one", "2").is_err());
        add(&store, "two", "2").unwrap();
        assert_eq!(store.read().unwrap().entries, [entry("one", "1"), entry("two", "2")]);
        let meta = fs::metadata(store.path()).unwrap();
        assert_eq!((meta.mode() & 0o7777, fs::metadata(&store.dir).unwrap().mode() & 0o7777), (0o600, 0o700));
        assert!(!store.dir.join(".secrets-left").exists());
    }

    #[test]
    fn what_others_could_have_touched_or_is_damaged_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        add(&store, "one", "1").unwrap();
        let (path, good) = (store.path(), fs::read(store.path()).unwrap());
        let refused = |why: &str| {
            for error in [store.read().unwrap_err(), add(&store, "two", "2").unwrap_err()] {
                assert!(error.message.contains(why) && !error.hints.is_empty(), "{error}");
            }
        };
        let with = |content: &[u8]| {
            let _ = fs::remove_file(&path);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        };
        for mode in [0o640, 0o604, 0o700, 0o4600] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            refused("others than its owner");
        }
        with(&good);
        fs::hard_link(&path, dir.path().join("again")).unwrap();
        refused("more than one name");
        fs::rename(dir.path().join("again"), dir.path().join("other")).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(dir.path().join("other"), &path).unwrap();
        refused("symlink");
        with(b"hermes-sandbox secrets 2\n");
        refused("no file of secrets");
        with(&good[..good.len() - 1]);
        refused("damaged");
        with(&[&good[..], b"x"].concat());
        refused("damaged");
        with(&vec![b'x'; LARGEST + 1]);
        refused("larger than 1 MiB");
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU & nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        refused("not a regular file");
        with(&good);
        assert_eq!(store.read().unwrap().entries.len(), 1, "the control");
        fs::set_permissions(&store.dir, Permissions::from_mode(0o755)).unwrap();
        refused("0700");
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir);
        let long = "x".repeat(64 * 1024);
        let fit = (0..20).take_while(|n| add(&store, &format!("s{n}"), &long).is_ok()).count();
        assert_eq!(fit, 15);
        assert_eq!(store.read().unwrap().entries.len(), fit);
    }
}
