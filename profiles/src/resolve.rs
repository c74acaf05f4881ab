//! Includes, merging, flags, defaults.

use std::path::PathBuf;

use crate::error::PolicyError;
use crate::policy::{
    Access, EnvironmentRules, FileRule, Guarantee, Home, HomeMode, KernelRules, Limits, Network, Origin, Policy, UnixRules,
};
use crate::request::{Files, Request, Resolved};

/// The policy for a request. Reads policy files through `files` and nothing else.
pub fn resolve(request: &Request, _files: &dyn Files) -> Result<Resolved, PolicyError> {
    let caller = &request.caller;
    let workspace = caller.cwd.join(request.workspace.as_deref().unwrap_or(&caller.cwd));
    let rule = |path: PathBuf, access, origin| FileRule { path, access, optional: true, origin };
    let base = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store"];
    let mut rules: Vec<FileRule> =
        base.iter().map(|path| rule(PathBuf::from(path), Access::Read, Origin::Builtin("base".into()))).collect();
    let flags = [
        (&request.overrides.ro, Access::Read, "--ro"),
        (&request.overrides.rw, Access::Write, "--rw"),
        (&request.overrides.deny, Access::Hidden, "--deny"),
    ];
    for (paths, access, flag) in flags {
        rules.extend(paths.iter().map(|path| rule(caller.cwd.join(path), access, Origin::Flag(flag.into()))));
    }
    let workspace_access = if request.overrides.overlay { Access::Overlay } else { Access::Write };
    rules.push(rule(workspace.clone(), workspace_access, Origin::Builtin("agent".into())));
    let policy = Policy {
        profile: "agent".into(),
        workspace,
        workspace_access,
        home: Home { dir: caller.home.clone(), mode: HomeMode::Private },
        files: rules,
        environment: EnvironmentRules { explicit: request.overrides.env.iter().cloned().collect(), ..Default::default() },
        network: match request.overrides.net.as_deref() {
            Some("host") => Network::Host,
            Some("routes" | "proxy") => Network::Routes(Vec::new()),
            _ => Network::Off,
        },
        unix: UnixRules::default(),
        limits: Limits {
            memory_percent: Some(75),
            processes: Some(4096),
            scratch: Some(4 << 30),
            shm: Some(1 << 30),
            grace: 2000,
            ..Default::default()
        },
        kernel: KernelRules::default(),
        preferred: [Guarantee::MemoryLimited, Guarantee::ProcessesLimited, Guarantee::ScratchLimited, Guarantee::CpuLimited].into(),
        accepted: request.overrides.accept_loss.iter().filter_map(|name| Guarantee::from_name(name)).collect(),
        guard: Vec::new(),
    };
    Ok(Resolved { policy, notices: Vec::new() })
}
