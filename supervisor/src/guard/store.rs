//! Files of the state directory: each is written whole or not at all.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `value` to `path`. Readers see the old file or the new one, whenever we are killed.
///
/// It does not wait for the disk, which on a busy one takes longer than all else in a start: see [`sync`].
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, value, false)
}

/// As [`write`], and after a loss of power too.
pub(crate) fn write_durably(path: &Path, value: &impl Serialize) -> io::Result<()> {
    replace(path, value, true)
}

/// Sees that what was written survives a loss of power.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_data()
}

fn replace(path: &Path, value: &impl Serialize, durably: bool) -> io::Result<()> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(&bytes)?;
    if durably {
        file.as_file().sync_data()?;
    }
    file.persist(path)?;
    Ok(())
}

/// Reads what [`write`] wrote.
///
/// # Errors
/// `InvalidData` for a file that this version does not understand.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    match postcard::take_from_bytes(&bytes) {
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
