//! `profiles`: list, show, check and trust policy files.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hermes_profiles::layer::Layer;
use hermes_profiles::project::{PROJECT_FILE, TRUST_FILE};
use hermes_profiles::trust::{self, Trust};
use hermes_profiles::{Caller, Files, Overrides, PolicyError, Request, builtin, profile};
use serde::Serialize;

use crate::args::Profiles;
use crate::error::{Error, Kind};
use crate::output::{self, clean};
use crate::request::{self, Disk};

/// Answers and returns the exit status.
pub(crate) fn profiles(action: Profiles) -> Result<u8, Error> {
    let caller = request::caller(None)?;
    match action {
        Profiles::List { json } => list(&caller, json),
        Profiles::Show { name, includes } => show(&caller, &name, includes),
        Profiles::Check { file } => check(&caller, &file),
        Profiles::Trust { file } => trust(&caller, &file),
    }?;
    Ok(0)
}

#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    description: String,
    /// `built in` or the file.
    from: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn list(caller: &Caller, json: bool) -> Result<(), Error> {
    let built_in = builtin::all().iter().map(|profile| Listed {
        name: profile.name.to_owned(),
        description: profile.description.to_owned(),
        from: "built in".to_owned(),
        error: None,
    });
    let mut listed: Vec<_> = built_in.chain(own_files(caller).iter().map(|file| own(file))).collect();
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    if json {
        return output::print_json(&listed);
    }
    let width = listed.iter().map(|profile| profile.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Listed { name, description, from, error } in &listed {
        let what = error.as_ref().map_or_else(|| clean(description).into_owned(), |error| format!("ERROR: {}", clean(error)));
        let from = if from == "built in" { String::new() } else { format!(" ({from})") };
        _ = writeln!(text, "{name:<width$}  {what}{from}");
    }
    output::print(&text)
}

/// The user's profiles, in no order.
fn own_files(caller: &Caller) -> Vec<PathBuf> {
    let directory = caller.config_dir.as_ref().map(|dir| dir.join("profiles"));
    let entries = directory.and_then(|dir| std::fs::read_dir(dir).ok());
    let paths = entries.into_iter().flatten().filter_map(|entry| entry.ok().map(|entry| entry.path()));
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect()
}

fn own(file: &Path) -> Listed {
    let name = file.file_stem().map(|stem| output::path(stem.as_ref())).unwrap_or_default();
    let (description, mut error) = match parsed(file) {
        Ok((layer, _)) => (layer.description.unwrap_or_default(), None),
        Err(error) => (String::new(), Some(error.message)),
    };
    if builtin::find(&name).is_some() {
        error = Some("a built-in profile has this name, so this file is never used; rename it".to_owned());
    }
    Listed { name, description, from: output::path(file), error }
}

fn parsed(file: &Path) -> Result<(Layer, Vec<u8>), Error> {
    let bytes = Disk.read(file).map_err(|e| Error::new(Kind::Policy, format!("cannot read {}: {e}", output::path(file))))?;
    let layer = profile::check(file, &bytes)?;
    Ok((layer, bytes))
}

fn show(caller: &Caller, name: &str, includes: bool) -> Result<(), Error> {
    let mut text = String::new();
    let mut waiting = vec![name.to_owned()];
    let mut shown = Vec::new();
    while let Some(name) = waiting.pop() {
        if shown.contains(&name) {
            continue;
        }
        let (from, source, layer) = source_of(caller, &name)?;
        if includes {
            _ = writeln!(text, "{}# {} ({from})", if shown.is_empty() { "" } else { "\n" }, clean(&name));
            let default = || if from == "built in" { Vec::new() } else { vec!["base".to_owned()] };
            let named = layer.includes.map_or_else(default, |names| names.into_iter().map(|name| name.value).collect());
            waiting.extend(named.into_iter().rev());
        }
        for line in source.lines() {
            // A tab is layout, not a trick.
            _ = writeln!(text, "{}", line.split('\t').map(clean).collect::<Vec<_>>().join("\t"));
        }
        shown.push(name);
    }
    output::print(&text)
}

/// Where a profile is from, its text and what it says.
fn source_of(caller: &Caller, name: &str) -> Result<(String, String, Layer), Error> {
    if let Some(profile) = builtin::find(name) {
        let layer = profile::check(Path::new(name), profile.text.as_bytes())?;
        return Ok(("built in".to_owned(), profile.text.to_owned(), layer));
    }
    let file = match &caller.config_dir {
        _ if name.contains('/') || name.ends_with(".toml") => caller.cwd.join(name),
        Some(dir) => dir.join("profiles").join(format!("{name}.toml")),
        None => caller.cwd.join(name),
    };
    let (layer, bytes) = parsed(&file).map_err(|error| error.hint("`hermes-sandbox profiles list` shows the names"))?;
    Ok((output::path(&file), String::from_utf8_lossy(&bytes).into_owned(), layer))
}

/// Reports the first error of a file. A profile is also resolved, so that its includes are checked with it.
fn check(caller: &Caller, file: &Path) -> Result<(), Error> {
    let finding = |error: Error| Error { kind: Kind::Finding, ..error };
    let path = caller.cwd.join(file);
    parsed(&path).map_err(finding)?;
    let is_project_file = path.file_name().is_some_and(|name| name == PROJECT_FILE);
    if !is_project_file {
        resolves(caller, &path).map_err(|error| finding(error.into()))?;
    }
    output::print(&format!("{}: no errors\n", output::path(file)))
}

fn resolves(caller: &Caller, path: &Path) -> Result<(), PolicyError> {
    let Some(name) = path.to_str() else { return Err(PolicyError::new("the name of a profile's file must be UTF-8")) };
    let request = Request {
        profile: Some(name.to_owned()),
        // The directory in which it is checked is not the one in which it will be used.
        overrides: Overrides { allow_broad: true, ..Overrides::default() },
        caller: caller.clone(),
        ..Request::default()
    };
    hermes_profiles::resolve(&request, &Disk).map(drop)
}

fn trust(caller: &Caller, file: &Path) -> Result<(), Error> {
    let path = hermes_profiles::paths::normalise(&caller.cwd.join(file));
    let (_, bytes) = parsed(&path)?;
    let state = caller.state_dir.as_ref().ok_or_else(|| Error::setup("there is no home directory to keep the trust list in"))?;
    let list = state.join(TRUST_FILE);
    let refuse = |e: std::io::Error| Error::setup(format!("cannot change the trust list {}: {e}", output::path(&list)));
    let mut trusted = match Disk.read(&list) {
        Ok(text) => Trust::parse(&text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Trust::default(),
        Err(e) => return Err(refuse(e)),
    };
    trusted.add(&bytes, &path);
    write_whole(state, &list, &trusted.format()).map_err(refuse)?;
    output::print(&format!("{} is trusted as it is now (SHA-256 {})\n", output::path(&path), trust::hash(&bytes)))
}

/// Replaces a file in one step, so that a reader or a crash sees the old list or the new one.
fn write_whole(directory: &Path, path: &Path, content: &[u8]) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn caller(home: &Path) -> Caller {
        Caller::from_variables(home.into(), vec![("HOME".into(), home.into())])
    }

    #[test]
    fn a_file_with_errors_is_a_finding_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.toml");
        std::fs::write(&file, "schema = 1\n[filesystem]\nraed = [\"/x\"]\n").unwrap();
        let error = check(&caller(dir.path()), &file).unwrap_err();
        assert_eq!(error.kind.status(), 1);
        assert!(error.message.contains("p.toml:3") && error.message.contains("read"), "{error}");
        std::fs::write(&file, "schema = 1\nincludes = [\"no-such\"]\n").unwrap();
        assert!(check(&caller(dir.path()), &file).unwrap_err().message.contains("no-such"));
        std::fs::write(&file, "schema = 1\n").unwrap();
        check(&caller(dir.path()), &file).unwrap();
    }

    #[test]
    fn trust_is_by_content_and_survives_a_second_file() {
        let dir = tempfile::tempdir().unwrap();
        let caller = caller(dir.path());
        for name in ["a", "b"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            let file = dir.path().join(name).join(PROJECT_FILE);
            std::fs::write(&file, format!("schema = 1\ndescription = \"{name}\"\n")).unwrap();
            trust(&caller, &file).unwrap();
        }
        let list = Trust::parse(&std::fs::read(caller.state_dir.unwrap().join(TRUST_FILE)).unwrap());
        assert!(list.contains(b"schema = 1\ndescription = \"a\"\n") && list.contains(b"schema = 1\ndescription = \"b\"\n"));
        assert!(!list.contains(b"schema = 1\n"));
    }
}
