//! Variables that lead to shims: inside they would lead to nothing, or back here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::session::protocol::Word;

/// Variables that name one program or directory.
const NAMING: &[&str] = &["VIRTUAL_ENV", "HERMES_DOCKER_BINARY", "SHELL", "_"];

/// `variables` as they were before the shims were put in: their directories are taken out of `PATH`, and what names one of them
/// goes.
pub(super) fn without_shims(variables: Vec<(OsString, OsString)>, is_shim: &dyn Fn(&Path) -> bool) -> Vec<(OsString, OsString)> {
    let kept = |(name, value): (OsString, OsString)| {
        if name == "PATH" {
            let left = std::env::split_paths(&value).filter(|entry| !is_shim(entry));
            return std::env::join_paths(left).ok().map(|path| (name, path));
        }
        let leads_here = NAMING.iter().any(|naming| name == *naming) && is_shim(Path::new(&value));
        (!leads_here).then_some((name, value))
    };
    variables.into_iter().filter_map(kept).collect()
}

/// The variables of a call as the protocol takes them: those whose names are text, the first one of each name.
pub(super) fn of_call(variables: Vec<(OsString, OsString)>, is_shim: &dyn Fn(&Path) -> bool) -> BTreeMap<String, Word> {
    let mut all = BTreeMap::new();
    for (name, value) in without_shims(variables, is_shim) {
        if let Ok(name) = name.into_string() {
            all.entry(name).or_insert_with(|| Word::of(&value));
        }
    }
    all
}

/// Where programs put temporary files, as Python's tempfile and Hermes Agent look for it (`get_temp_dir` of its local backend).
pub(super) fn temporary(variables: &[(OsString, OsString)]) -> Option<&Path> {
    let value = |name: &str| variables.iter().find(|(known, _)| known == OsStr::new(name)).map(|(_, value)| Path::new(value));
    ["TMPDIR", "TMP", "TEMP"].into_iter().filter_map(value).find(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn shims_go_from_where_programs_are_looked_for() {
        let is_shim = |path: &Path| path.starts_with("/shims");
        let given = pairs(&[
            ("PATH", "/shims:/usr/bin::/shims/venv/bin:/bin"),
            ("SHELL", "/shims/bash"),
            ("VIRTUAL_ENV", "/shims/venv"),
            ("EDITOR", "/shims/x"),
        ]);
        assert_eq!(without_shims(given, &is_shim), pairs(&[("PATH", "/usr/bin::/bin"), ("EDITOR", "/shims/x")]));
        let other = pairs(&[("SHELL", "/bin/bash"), ("VIRTUAL_ENV", "/v")]);
        assert_eq!(without_shims(other.clone(), &is_shim), other);
    }

    #[test]
    fn the_first_of_a_name_counts() {
        use std::os::unix::ffi::OsStringExt;
        let mut given = pairs(&[("A", "1"), ("A", "2")]);
        given.push((OsString::from_vec(vec![0xff]), "x".into()));
        assert_eq!(of_call(given, &|_| false), BTreeMap::from([("A".to_owned(), Word::Text("1".to_owned()))]));
    }

    #[test]
    fn temporary_files_go_to_the_first_absolute_place() {
        assert_eq!(temporary(&pairs(&[("TMP", "/b"), ("TMPDIR", "relative")])), Some(Path::new("/b")));
        assert_eq!(temporary(&pairs(&[("TMP", "/b"), ("TMPDIR", "/a")])), Some(Path::new("/a")));
        assert_eq!(temporary(&[]), None);
    }
}
