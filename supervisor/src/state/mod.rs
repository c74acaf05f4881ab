//! What the program keeps about a writable tree of the host between runs: outside of the tree, for its owner alone.
//!
//! `$XDG_STATE_HOME/hermes-sandbox/trees/<dev>-<ino>-<born>/`: a tree is known by its directory, not by its name, so a
//! renamed project keeps its state and another one of the same name does not get it.

pub(crate) mod store;

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::{AccessFlags, access, geteuid};
use rustix::fs::{AtFlags, StatxFlags, statx};

use hermes_profiles::Caller;

use crate::beneath::Root;
use crate::error::Error;
use crate::output;

/// A writable tree and the directory that is kept about it.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Where the tree is: absolute, free of symlinks.
    pub(crate) path: PathBuf,
    /// The tree itself.
    pub(crate) root: Root,
    /// Device number of the tree.
    pub(crate) dev: u64,
    /// The directory that is kept about it.
    pub(crate) state: PathBuf,
}

impl Tree {
    /// Opens the tree at `path` and the directory about it, made when `make`.
    ///
    /// # Errors
    /// The tree cannot be opened; the directory cannot be made, or is somebody else's.
    pub(crate) fn open(state_dir: &Path, path: &Path, make: bool) -> Result<Option<Self>, Error> {
        let refuse = |at: &Path, why: &str| {
            Error::setup(format!("cannot keep what is known about {} in {}: {why}", output::path(path), output::path(at)))
                .hint("make that directory writable for you alone, or point XDG_STATE_HOME to one that is")
        };
        let real = std::fs::canonicalize(path)
            .map_err(|e| Error::setup(format!("cannot open the directory {}: {e}", output::path(path))))?;
        let root = Root::open(&real)
            .map_err(|errno| Error::setup(format!("cannot open the directory {}: {}", output::path(path), errno.desc())))?;
        let identity = statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
            .map_err(|e| Error::setup(format!("cannot look at the directory {}: {e}", output::path(path))))?;
        let born = identity.stx_btime.tv_sec;
        let dev = nix::sys::stat::makedev(identity.stx_dev_major.into(), identity.stx_dev_minor.into());
        let state =
            state_dir.join("trees").join(format!("{dev:x}-{}-{born:x}.{:x}", identity.stx_ino, identity.stx_btime.tv_nsec));
        match private_directory(&state, make) {
            Ok(()) => {}
            Err(e) if !make && e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(refuse(&state, &e.to_string())),
        }
        let known_as = state.join("path");
        if make && std::fs::read(&known_as).ok().as_deref() != Some(real.as_os_str().as_bytes()) {
            std::fs::write(&known_as, real.as_os_str().as_bytes()).map_err(|e| refuse(&known_as, &e.to_string()))?;
        }
        Ok(Some(Self { path: real, root, dev, state }))
    }
}

/// Where the state of this caller is. A home that does not exist is not made, and neither is what `XDG_STATE_HOME` lies in.
///
/// # Errors
/// There is no place for it.
pub(crate) fn directory(caller: &Caller) -> Result<&Path, Error> {
    let refuse = |why: String| Error::setup(why).hint("point XDG_STATE_HOME to a directory of yours");
    let state = caller.state_dir.as_deref().ok_or_else(|| refuse("there is no home directory to keep state in".to_owned()))?;
    let base = match &caller.home {
        Some(home) if state.starts_with(home) => home.as_path(),
        _ => state.parent().and_then(Path::parent).unwrap_or(Path::new("/")),
    };
    match base.is_dir() {
        true => Ok(state),
        false => Err(refuse(format!("cannot keep state in {}: {} is no directory", output::path(state), output::path(base)))),
    }
}

/// A directory of ours that nobody else can enter; made, with its parents, when `make`.
pub(crate) fn private_directory(path: &Path, make: bool) -> io::Result<()> {
    if make {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    }
    let meta = path.symlink_metadata()?;
    if !meta.is_dir() || meta.uid() != geteuid().as_raw() || meta.mode() & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a directory of yours with mode 0700"));
    }
    if make {
        // The bits say nothing about a read-only file system, nor about access control lists.
        access(path, AccessFlags::W_OK | AccessFlags::X_OK)?;
    }
    Ok(())
}

/// Where the user's sessions can be with this `XDG_RUNTIME_DIR`, first where those are that are started.
pub(crate) fn session_directories(runtime: Option<&OsStr>) -> Vec<PathBuf> {
    let runtime = runtime.map(PathBuf::from).filter(|dir| dir.is_absolute() && dir.is_dir());
    let runtime = runtime.map(|dir| dir.join("hermes-sandbox"));
    runtime.into_iter().chain([PathBuf::from(format!("/tmp/hermes-sandbox-{}", geteuid()))]).collect()
}

/// How long another command on the same tree may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps other commands from what is kept about a tree, and so from the tree, as long as the answer lives.
///
/// # Errors
/// Another one has it and does not end.
pub(crate) fn lock(state: &Path) -> Result<File, Error> {
    lock_file(&state.join("lock"), "another hermes-sandbox command works on this workspace; wait for it to end")
}

/// Keeps other commands from something as long as the answer lives. `hint` says who may have it.
///
/// # Errors
/// Another one has it and does not end.
pub(crate) fn lock_file(path: &Path, hint: &str) -> Result<File, Error> {
    let cannot = |why: &dyn std::fmt::Display| Error::setup(format!("cannot lock {}: {why}", output::path(path)));
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)
        .map_err(|e| cannot(&e))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => {
                return Err(cannot(&e).hint(hint));
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_is_known_by_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (state, tree) = (dir.path().join("state"), dir.path().join("tree"));
        std::fs::create_dir(&tree).unwrap();
        assert!(Tree::open(&state, &tree, false).unwrap().is_none());
        let first = Tree::open(&state, &tree, true).unwrap().unwrap();
        symlink("tree", dir.path().join("link")).unwrap();
        let by_link = Tree::open(&state, &dir.path().join("link"), false).unwrap().unwrap();
        assert_eq!((&by_link.path, &by_link.state), (&first.path, &first.state));
        std::fs::rename(&tree, dir.path().join("renamed")).unwrap();
        std::fs::create_dir(&tree).unwrap();
        assert!(Tree::open(&state, &tree, false).unwrap().is_none());
        let renamed = Tree::open(&state, &dir.path().join("renamed"), true).unwrap().unwrap();
        assert_eq!(renamed.state, first.state);
        assert_eq!(std::fs::read(renamed.state.join("path")).unwrap(), renamed.path.as_os_str().as_bytes());
        assert_eq!(first.dev, std::fs::metadata(&renamed.path).unwrap().dev());
    }

    #[test]
    fn what_others_can_enter_or_nobody_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("open");
        std::fs::create_dir(&at).unwrap();
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_directory(&at, true).is_err());
        symlink(dir.path(), dir.path().join("link")).unwrap();
        assert!(private_directory(&dir.path().join("link"), true).is_err());
        let locked = dir.path().join("locked");
        private_directory(&locked, true).unwrap();
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o500)).unwrap();
        assert!(geteuid().is_root() || private_directory(&locked, true).is_err());
    }
}
