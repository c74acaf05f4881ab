//! Projects that a Python environment imports from where they are developed (PEP 660).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::read_start;

/// `direct_url.json` of an installed distribution, PEP 610.
#[derive(Deserialize)]
struct DirectUrl {
    url: String,
    dir_info: Option<DirInfo>,
}

#[derive(Deserialize)]
struct DirInfo {
    #[serde(default)]
    editable: bool,
}

/// Directories of the projects that are installed as editable in the environment at `root`.
pub(super) fn projects(root: &Path) -> Vec<PathBuf> {
    let pythons = entries(&root.join("lib")).into_iter().filter(|name| name.as_bytes().starts_with(b"python"));
    pythons.flat_map(|python| in_site_packages(&root.join("lib").join(python).join("site-packages"))).collect()
}

fn in_site_packages(site: &Path) -> Vec<PathBuf> {
    let names = entries(site);
    // Every editable install adds a .pth; most environments have none but these two, and then nothing more is read.
    let usual = [OsStr::new("_virtualenv.pth"), OsStr::new("distutils-precedence.pth")];
    if !names.iter().any(|name| name.as_bytes().ends_with(b".pth") && !usual.contains(&name.as_os_str())) {
        return Vec::new();
    }
    let installed = names.iter().filter(|name| name.as_bytes().ends_with(b".dist-info"));
    installed.filter_map(|name| editable(&read_start(&site.join(name).join("direct_url.json"), 16 * 1024)?)).collect()
}

fn editable(json: &[u8]) -> Option<PathBuf> {
    let direct: DirectUrl = serde_json::from_slice(json).ok()?;
    direct.dir_info.filter(|info| info.editable)?;
    let path = unescape(direct.url.strip_prefix("file://")?.as_bytes())?;
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

/// Undoes `%XX`.
fn unescape(text: &[u8]) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    (!bytes.contains(&0)).then(|| OsString::from_vec(bytes))
}

fn entries(directory: &Path) -> Vec<OsString> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_urls() {
        let of = |text: &str| editable(text.as_bytes());
        assert_eq!(of(r#"{"url":"file:///a%20b/c","dir_info":{"editable":true}}"#), Some("/a b/c".into()));
        for text in [
            r#"{"url":"file:///a","dir_info":{}}"#,
            r#"{"url":"file:///a"}"#,
            r#"{"url":"https://example.test/a","dir_info":{"editable":true}}"#,
            r#"{"url":"file://host/a","dir_info":{"editable":true}}"#,
            r#"{"url":"file:///a%2","dir_info":{"editable":true}}"#,
            r#"{"url":"file:///a%zz","dir_info":{"editable":true}}"#,
            "",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
