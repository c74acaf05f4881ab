//! What a command needs beyond the policy's path rules: its interpreter and installation, and the git directory of a
//! linked worktree. Found on the machine, added to the policy as rules of their own.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hermes_backends::closure::{Ground, Reason, closure, git_common_dir};
use hermes_profiles::{Access, Caller, FileRule, Origin, Policy};

use crate::error::Error;
use crate::output;
use crate::state::session_directories;

/// Adds the rules. `environment` is what goes in. Returns the git directory of the workspace, if that lies elsewhere.
pub(crate) fn add(
    policy: &mut Policy,
    caller: &Caller,
    command: &[OsString],
    environment: &[(OsString, OsString)],
) -> Option<PathBuf> {
    let workspace = std::fs::canonicalize(&policy.workspace).unwrap_or_else(|_| policy.workspace.clone());
    let git = add_git(policy, &workspace);
    if let Some(program) = command.first() {
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        add_program(policy, caller, &workspace, program, path);
    }
    git
}

/// Hides the program's own configuration, state, measurements and sessions. Where a rule makes the place around them writable they
/// are made first when absent: nothing can be hidden that is not there, and a command that made them would decide about
/// the next start.
pub(crate) fn protect_own(policy: &mut Policy, caller: &Caller, cache_dir: Option<PathBuf>) -> Result<(), Error> {
    let writable: Vec<PathBuf> = policy
        .files
        .iter()
        .filter(|rule| rule.access == Access::Write)
        .map(|rule| rule.path.clone())
        .chain((policy.workspace_access == Access::Write).then(|| policy.workspace.clone()))
        .flat_map(|path| std::fs::canonicalize(&path).into_iter().chain([path]))
        .collect();
    let own = [caller.config_dir.clone(), caller.state_dir.clone(), cache_dir].into_iter().flatten();
    for dir in own.chain(session_directories(caller.variable("XDG_RUNTIME_DIR"))) {
        let real = dir.ancestors().find_map(|at| std::fs::canonicalize(at).ok());
        if writable.iter().any(|tree| dir.starts_with(tree) || real.as_ref().is_some_and(|real| real.starts_with(tree))) {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|e| {
                Error::setup(format!(
                    "cannot make {}, which a command could otherwise make in its place: {e}",
                    output::path(&dir)
                ))
                .hint("do not make the directory around it writable")
            })?;
        }
        policy.files.push(derived(dir, Access::Hidden, "hermes-sandbox's own"));
    }
    Ok(())
}

fn add_git(policy: &mut Policy, workspace: &Path) -> Option<PathBuf> {
    let access = policy.workspace_access;
    if access == Access::Hidden {
        return None;
    }
    let git = git_common_dir(workspace, nix::unistd::geteuid().as_raw())?;
    policy.files.push(derived(git.path.clone(), access, "git directory of the workspace"));
    Some(git.path)
}

fn add_program(policy: &mut Policy, caller: &Caller, workspace: &Path, program: &OsStr, path: Option<&OsStr>) {
    let writable: Vec<PathBuf> = policy
        .files
        .iter()
        .filter(|rule| rule.access == Access::Write)
        .map(|rule| std::fs::canonicalize(&rule.path).unwrap_or_else(|_| rule.path.clone()))
        // A workspace is hostile ground however it is granted: it may have been cloned a minute ago.
        .chain([workspace.to_owned()])
        .collect();
    let trusted = |path: &Path| !writable.iter().any(|tree| path.starts_with(tree));
    let granted =
        |path: &Path| path.starts_with(workspace) || policy.rule_for(path).is_some_and(|rule| rule.access != Access::Hidden);
    let ground = Ground { home: caller.home.as_deref(), trusted: &trusted, granted: &granted };
    let needs = closure(program, path, &caller.cwd, &ground);
    let rules: Vec<FileRule> = needs
        .grants
        .into_iter()
        .map(|grant| {
            let why = match grant.reason {
                Reason::Program => "the command",
                Reason::Interpreter => "interpreter of the command",
                Reason::Environment => "virtual environment of the command",
                Reason::Installation => "installation of the command",
            };
            derived(grant.path, Access::Read, why)
        })
        .collect();
    policy.files.extend(rules);
}

fn derived(path: PathBuf, access: Access, why: &'static str) -> FileRule {
    FileRule { path, access, optional: true, origin: Origin::Derived(why.into()) }
}
