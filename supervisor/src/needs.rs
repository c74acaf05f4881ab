//! What a command needs beyond the policy's path rules: its interpreter and installation, and the git directory of a
//! linked worktree. Found on the machine, added to the policy as rules of their own.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use hermes_backends::closure::{Ground, Reason, closure, git_common_dir};
use hermes_profiles::{Access, Caller, FileRule, Origin, Policy};

/// Adds the rules. `environment` is what goes in.
pub(crate) fn add(policy: &mut Policy, caller: &Caller, command: &[OsString], environment: &[(OsString, OsString)]) {
    let workspace = std::fs::canonicalize(&policy.workspace).unwrap_or_else(|_| policy.workspace.clone());
    add_git(policy, &workspace);
    if let Some(program) = command.first() {
        let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        add_program(policy, caller, &workspace, program, path);
    }
}

fn add_git(policy: &mut Policy, workspace: &Path) {
    let access = policy.workspace_access;
    if access != Access::Hidden
        && let Some(git) = git_common_dir(workspace, nix::unistd::geteuid().as_raw())
    {
        policy.files.push(derived(git.path, access, "git directory of the workspace"));
    }
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
                Reason::SearchPath => "directory in PATH",
            };
            derived(grant.path, Access::Read, why)
        })
        .collect();
    policy.files.extend(rules);
}

fn derived(path: PathBuf, access: Access, why: &'static str) -> FileRule {
    FileRule { path, access, optional: true, origin: Origin::Derived(why.into()) }
}
