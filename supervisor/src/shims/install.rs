//! `shims install`: writes shims.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::header::{self, Header};
use super::{options, shim};
use crate::args::{InstallArgs, ShimName};
use crate::changes::word;
use crate::error::Error;
use crate::output;
use crate::request::{self, Disk};

/// Writes the shims that were asked for and says how to use them.
pub(super) fn install(args: &InstallArgs) -> Result<(), Error> {
    args.policy.only_local()?;
    let names = if args.only.is_empty() { vec![ShimName::Bash, ShimName::Python, ShimName::Docker] } else { args.only.clone() };
    let caller = request::caller(None)?;
    let recorded = options::record(&args.policy, &caller.cwd)?;
    // What no call could resolve is refused now. Without a workspace it would be judged by where this command stands.
    let mut trial = options::parse(&recorded)?;
    let dir = make(&args.dir)?;
    if trial.workspace.is_none() {
        trial.workspace = Some(dir.join("workspace-of-the-caller"));
    }
    let policy = hermes_profiles::resolve(&request::request(&trial, caller.clone()), &Disk)?.policy;
    shim::refuse_writable(&policy, &dir)?;
    let program = std::env::current_exe()
        .and_then(std::fs::canonicalize)
        .map_err(|e| Error::setup(format!("cannot tell where this program is: {e}")))?;
    let python = interpreter(&caller, &dir);
    if python.is_none() && args.only.contains(&ShimName::Python) {
        return Err(Error::setup("there is no python3 for the shim to stand for").hint("install one, or put it into PATH"));
    }
    let mut written = Vec::new();
    for name in names.into_iter().filter(|name| *name != ShimName::Python || python.is_some()) {
        let header = Header { schema: 1, shim: name, python: python.clone(), options: recorded.clone() };
        let text = header.render(&program)?;
        for path in places(name, &dir) {
            write(&path, &text)?;
        }
        written.push(name);
    }
    output::print(&usage(&dir, &written))
}

/// Where a shim is looked for: Hermes Agent takes `$VIRTUAL_ENV/bin/python` (`_resolve_child_python`).
fn places(name: ShimName, dir: &Path) -> Vec<PathBuf> {
    match name {
        ShimName::Python => ["python", "python3"].iter().map(|name| dir.join("venv/bin").join(name)).collect(),
        other => vec![dir.join(other.name())],
    }
}

/// How to use them, for a shell.
fn usage(dir: &Path, written: &[ShimName]) -> String {
    let dir = word(dir);
    let line = |name: &ShimName| match name {
        ShimName::Bash => format!("export PATH={dir}:\"$PATH\" SHELL={dir}/bash\n"),
        ShimName::Python => format!("export VIRTUAL_ENV={dir}/venv\n"),
        ShimName::Docker => format!("export HERMES_DOCKER_BINARY={dir}/docker\n"),
    };
    written.iter().map(line).collect()
}

fn make(dir: &Path) -> Result<PathBuf, Error> {
    let cannot = |e: std::io::Error| Error::setup(format!("cannot write shims to {}: {e}", output::path(dir)));
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(cannot)?;
    let real = std::fs::canonicalize(dir).map_err(cannot)?;
    match real.to_str().is_some_and(|text| !text.contains([':', '\n'])) {
        true => Ok(real),
        false => Err(cannot(std::io::Error::other("its name cannot stand in PATH")).hint("name another directory")),
    }
}

/// What `python` is to stand for: that of the virtual environment in use, else the first one that `PATH` has.
fn interpreter(caller: &hermes_profiles::Caller, dir: &Path) -> Option<PathBuf> {
    let usable = |path: &PathBuf| {
        path.is_file() && access(path, AccessFlags::X_OK).is_ok() && !path.starts_with(dir) && !header::is_shim(path)
    };
    let own = caller.variable("VIRTUAL_ENV").map(|venv| Path::new(venv).join("bin/python"));
    let search = caller.variable("PATH").unwrap_or(OsStr::new("/usr/bin:/bin"));
    let found = ["python3", "python"].iter().flat_map(|name| std::env::split_paths(search).map(move |at| at.join(name)));
    own.into_iter().chain(found).filter(|path| path.is_absolute()).find(usable)
}

/// Writes one shim, whole or not at all.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let shown = output::path(path);
    if !header::may_replace(path) {
        return Err(Error::setup(format!("{shown} is there and is no shim of ours, so it was not written over"))
            .hint("remove it, or name another directory"));
    }
    let cannot = |e: std::io::Error| Error::setup(format!("cannot write the shim {shown}: {e}"));
    let dir = path.parent().unwrap_or(Path::new("/"));
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(cannot)?;
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(cannot)?;
    file.write_all(text.as_bytes()).map_err(cannot)?;
    file.as_file().set_permissions(Permissions::from_mode(0o755)).map_err(cannot)?;
    file.persist(path).map_err(|e| cannot(e.error))?;
    // Refuses here what each call would refuse.
    header::load(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_to_use_them_takes_a_few_lines() {
        let text = usage(Path::new("/a b"), &[ShimName::Bash, ShimName::Python, ShimName::Docker]);
        assert_eq!(
            text,
            "export PATH='/a b':\"$PATH\" SHELL='/a b'/bash\nexport VIRTUAL_ENV='/a b'/venv\nexport HERMES_DOCKER_BINARY='/a b'/docker\n"
        );
    }
}
