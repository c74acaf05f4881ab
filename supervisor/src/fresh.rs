//! What nobody has seen before: random bytes, and fresh inodes for names in a directory that somebody hostile may write, whole
//! before they have their name.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use tempfile::NamedTempFile;

use crate::beneath::{TEMPORARY, by_descriptor};

/// Random bytes, fit for secrets.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(bytes)
}

/// A file beside the name that it is to have, filled.
pub(crate) fn file(parent: impl AsFd, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(by_descriptor(parent))?;
    fill(file.as_file_mut())?;
    file.as_file().set_permissions(Permissions::from_mode(mode & 0o777))?;
    Ok(file)
}

/// Gives it its name.
///
/// # Errors
/// `AlreadyExists` when the name is taken and must not be replaced.
pub(crate) fn put<T>(made: NamedTempFile<T>, parent: impl AsFd, name: &OsStr, replace: bool) -> io::Result<()> {
    let target = PathBuf::from(by_descriptor(parent)).join(name);
    let put = if replace { made.persist(target) } else { made.persist_noclobber(target) };
    put.map(drop).map_err(|e| e.error)
}
