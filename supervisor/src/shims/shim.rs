//! A shim that was called: what it says, who called it, and the policy that this makes.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use hermes_profiles::paths::covers;
use hermes_profiles::{Access, Caller, Policy};

use super::client::ClientProcess;
use super::header::{self, Header};
use super::{options, variables};
use crate::args::PolicyArgs;
use crate::error::{Error, Kind};
use crate::output;
use crate::request::{self, Disk};
use crate::session::place;

/// A shim that was called.
#[derive(Debug)]
pub(super) struct Shim {
    pub(super) header: Header,
    pub(super) args: PolicyArgs,
    /// The directory that it was installed to, its symlinks resolved.
    pub(super) root: PathBuf,
    pub(super) client: ClientProcess,
    /// Directory and environment of the client.
    pub(super) caller: Caller,
    /// See [`Self::base`], which each command of docker needs several times.
    base: OnceCell<Policy>,
}

impl Shim {
    /// Reads a shim, and who calls it.
    pub(super) fn load(file: &Path) -> Result<Self, Error> {
        let header = header::load(file)?;
        let args = options::parse(&header.options)?;
        let real =
            std::fs::canonicalize(file).map_err(|e| Error::setup(format!("cannot use the shim {}: {e}", output::path(file))))?;
        let root = installed_to(&real);
        let client = ClientProcess::parent()
            .ok_or_else(|| Error::setup("cannot tell which process calls this shim").hint("mount /proc"))?;
        let cwd = client
            .directory()
            .map_or_else(std::env::current_dir, Ok)
            .map_err(|e| Error::setup(format!("cannot tell the current directory: {e}")).hint("change to one that exists"))?;
        let all = client.variables().unwrap_or_else(|| std::env::vars_os().collect());
        let caller = request::caller_of(cwd, variables::without_shims(all, &|path| is_below(path, &root)));
        // The session is started with the client's environment, a call may have another one.
        place::look_in(caller.variable("XDG_RUNTIME_DIR").map(ToOwned::to_owned));
        Ok(Self { header, args, root, client, caller, base: OnceCell::new() })
    }

    /// The policy that these options make for its client.
    pub(super) fn policy(&self, args: &PolicyArgs) -> Result<Policy, Error> {
        let policy = hermes_profiles::resolve(&request::request(args, self.caller.clone()), &Disk)?.policy;
        refuse_writable(&policy, &self.root)?;
        Ok(policy)
    }

    /// The shim's own policy without a workspace: what is mounted is the container's.
    pub(super) fn base(&self) -> Result<&Policy, Error> {
        if let Some(base) = self.base.get() {
            return Ok(base);
        }
        let base = self.policy(&PolicyArgs { workspace: Some(self.root.join("no-workspace")), ..self.args.clone() })?;
        Ok(self.base.get_or_init(|| base))
    }

    /// Is this a place of these shims?
    pub(super) fn is_own(&self, path: &Path) -> bool {
        is_below(path, &self.root)
    }
}

/// `DIR` for `DIR/bash` and `DIR/venv/bin/python`.
fn installed_to(file: &Path) -> PathBuf {
    let dir = file.parent().unwrap_or(Path::new("/"));
    match dir.ends_with("venv/bin") {
        true => dir.ancestors().nth(2).unwrap_or(dir).to_owned(),
        false => dir.to_owned(),
    }
}

fn is_below(path: &Path, root: &Path) -> bool {
    path.starts_with(root) || std::fs::canonicalize(path).is_ok_and(|real| real.starts_with(root))
}

/// Refuses shims, and a program behind them, which the sandbox could change: whoever writes them decides what the next one may do.
pub(super) fn refuse_writable(policy: &Policy, root: &Path) -> Result<(), Error> {
    let program = std::env::current_exe().unwrap_or_default();
    for (path, what) in [(root, "the shims in"), (program.as_path(), "the program")] {
        if let Some(tree) = writable_around(policy, path, &|path| std::fs::canonicalize(path).ok()) {
            let shown = output::path(path);
            let message =
                format!("{what} {shown} could be changed from inside: the policy makes {} writable", output::path(&tree));
            return Err(Error::new(Kind::Policy, message).hint("install outside of every tree that the policy makes writable"));
        }
    }
    Ok(())
}

/// The tree that the policy makes writable around `path`, or around something below it.
fn writable_around(policy: &Policy, path: &Path, real: &dyn Fn(&Path) -> Option<PathBuf>) -> Option<PathBuf> {
    let rules = policy.files.iter().filter(|rule| rule.access == Access::Write).map(|rule| &rule.path);
    let workspace = (policy.workspace_access == Access::Write).then_some(&policy.workspace);
    rules.chain(workspace).flat_map(|tree| real(tree).into_iter().chain([tree.clone()])).find(|tree| covers(tree, path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn policy(options: &[&str]) -> Policy {
        let args = options::parse(&options.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap();
        let caller = request::caller_of("/home/u/project".into(), vec![("HOME".into(), "/home/u".into())]);
        hermes_profiles::resolve(&request::request(&args, caller), &Disk).unwrap().policy
    }

    #[test]
    fn shims_in_a_writable_tree_are_found() {
        let around = |options: &[&str], path: &str| {
            let real =
                |path: &Path| path.starts_with("/link").then(|| Path::new("/real").join(path.strip_prefix("/link").unwrap()));
            writable_around(&policy(options), Path::new(path), &real)
        };
        assert_eq!(around(&[], "/home/u/project/shims"), Some("/home/u/project".into()));
        assert_eq!(around(&["--rw", "/data"], "/data/a/shims"), Some("/data".into()));
        assert_eq!(around(&["--rw", "/link/a"], "/real/a/shims"), Some("/real/a".into()));
        assert_eq!(around(&["--rw", "/data/tmp"], "/data"), None);
        assert_eq!(around(&["--ro", "/data"], "/data/shims"), None);
        assert_eq!(around(&["--overlay"], "/home/u/project/shims"), None);
    }

    #[test]
    fn where_shims_were_installed_to() {
        assert_eq!(installed_to(Path::new("/s/bash")), Path::new("/s"));
        assert_eq!(installed_to(Path::new("/s/venv/bin/python")), Path::new("/s"));
    }
}
