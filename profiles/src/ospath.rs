//! Serde for paths that need not be UTF-8: text for people (with `\xNN` for other bytes), plain bytes for machines.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `path` as text in which every byte that is not printable UTF-8 is escaped as `\xNN`.
pub fn escaped(path: &Path) -> String {
    escaped_bytes(path.as_os_str().as_bytes())
}

/// As [`escaped`], for any bytes.
pub fn escaped_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.encode_utf8(&mut [0; 4]).bytes().map(|b| format!("\\x{b:02x}")));
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(|b| format!("\\x{b:02x}")));
    }
    text
}

/// Serialises a path.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        serializer.serialize_str(&escaped(path))
    } else {
        serializer.serialize_bytes(path.as_os_str().as_bytes())
    }
}

/// Deserialises a path. The escaped text form is not undone: it is for people.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    if deserializer.is_human_readable() {
        Ok(PathBuf::from(String::deserialize(deserializer)?))
    } else {
        Ok(PathBuf::from(OsString::from_vec(Vec::<u8>::deserialize(deserializer)?)))
    }
}

struct AsPath<'a>(&'a Path);

impl Serialize for AsPath<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize(self.0, serializer)
    }
}

struct OwnedPath(PathBuf);

impl<'de> Deserialize<'de> for OwnedPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize(deserializer).map(OwnedPath)
    }
}

/// The same for `Option<PathBuf>`.
pub mod option {
    use super::*;

    /// Serialises an optional path.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(AsPath).serialize(serializer)
    }

    /// Deserialises an optional path.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<OwnedPath>::deserialize(deserializer)?.map(|p| p.0))
    }
}

/// The same for `Vec<PathBuf>`.
pub mod list {
    use super::*;

    /// Serialises a list of paths.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|p| AsPath(p)))
    }

    /// Deserialises a list of paths.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<OwnedPath>::deserialize(deserializer)?.into_iter().map(|p| p.0).collect())
    }
}
