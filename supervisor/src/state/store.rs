//! Files of the state directory: each is written whole or not at all.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `value` to `path`. Readers see the old file or the new one, after a loss of power too.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, value, true)
}

/// As [`write`], but it does not wait for the disk, which on a busy machine takes longer than all else in a start: readers see the
/// old file or the new one whenever we are killed, after a loss of power once [`sync`] was called.
pub(crate) fn write_soon(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, value, false)
}

/// Sees that what was written survives a loss of power.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_data()
}

fn replace(path: &Path, value: &impl Serialize, wait: bool) -> io::Result<()> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let mut file = tempfile::NamedTempFile::new_in(directory(path)?)?;
    file.write_all(&bytes)?;
    if wait {
        file.as_file().sync_data()?;
    }
    file.persist(path)?;
    Ok(())
}

/// As [`write`], where there is nothing yet.
///
/// # Errors
/// `AlreadyExists`.
pub(crate) fn write_new(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let mut file = tempfile::NamedTempFile::new_in(directory(path)?)?;
    file.write_all(&bytes)?;
    file.persist_noclobber(path).map(drop).map_err(|e| e.error)
}

/// As [`write`]; after a loss of power there is the new file, because what follows relies on it.
pub(crate) fn write_through(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write(path, value)?;
    File::open(directory(path)?)?.sync_all()
}

fn directory(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Reads what [`write`] wrote.
///
/// # Errors
/// `InvalidData` for a file that this version does not understand.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    match postcard::take_from_bytes(&std::fs::read(path)?) {
        Ok((value, [])) => Ok(value),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "written by another version")),
    }
}

/// As [`read`]; `None` when there is no file or none that this version understands.
pub(crate) fn read_if_known<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match read(path) {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Numbers of the directories in `dir`, lowest first; none when there is no such directory.
pub(crate) fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Makes the next numbered directory in `dir`, for its owner alone; numbers up to `given` are not given again.
pub(crate) fn next(dir: &Path, given: u64) -> io::Result<(u64, PathBuf)> {
    DirBuilder::new().mode(0o700).recursive(true).create(dir)?;
    let mut number = numbers(dir)?.last().copied().unwrap_or(0).max(given) + 1;
    loop {
        let path = dir.join(number.to_string());
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
            other => return other.map(|()| (number, path)),
        }
    }
}
