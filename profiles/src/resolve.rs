//! From a request to a policy: the profile, the flags on top, what follows from the environment, and last the project's
//! own file, which can only take away.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::environment;
use crate::error::{PolicyError, suggestion};
use crate::layer::NetworkMode;
use crate::merge::{Draft, Ranked, is_broad, is_of_system, set_limit, settle};
use crate::paths::{covers, normalise, same};
use crate::policy::{Access, EnvironmentRules, FileRule, Guarantee, Home, HomeMode, Network, Origin, Place, Policy, UnixRules};
use crate::profile;
use crate::project;
use crate::request::{Caller, Files, Request, Resolved};
use crate::route::Route;
use crate::values;

/// The policy for a request.
///
/// Reads, through `files` only: the user's `config.toml` and profiles, the project's `.hermes-sandbox.toml`, and the
/// trust list when there is such a project file.
///
/// # Errors
/// Anything unclear is an error: policy files that are not well-formed, unknown names, flags that contradict each other,
/// grants as broad as the home directory without `--allow-broad`, a workspace that is hidden.
pub fn resolve(request: &Request, files: &dyn Files) -> Result<Resolved, PolicyError> {
    let caller = usable(&request.caller)?;
    let caller = caller.as_ref();
    let asked = request.workspace.as_deref().unwrap_or(Path::new(""));
    let workspace = normalise(&caller.cwd.join(asked));
    free_of_nul(&workspace, "--workspace")?;
    let broad = request.overrides.allow_broad;
    if !broad && is_broad(&workspace, caller.home.as_deref()) {
        let why = "as the workspace it would give away too much; name a project directory with --workspace, or accept with --allow-broad";
        return Err(PolicyError::new(format!("{}: {why}", workspace.display())));
    }

    let config = Config::load(caller, files)?;
    let name = config.choose(request)?;
    let mut draft = Draft::new(caller, &workspace);
    for placed in profile::load(&name, caller, files)? {
        draft.apply(placed)?;
    }
    grant_places(&mut draft, caller, &workspace);
    let explicit = apply_flags(&mut draft, request, caller, &workspace)?;

    let mut notices = std::mem::take(&mut draft.notices);
    let mut rules = settle(std::mem::take(&mut draft.files))?;
    if !broad {
        refuse_broad(&rules, caller)?;
    }
    derive(&mut rules, &explicit, caller);
    let (network, unknown_hosts) = draft.network();
    if network == Network::Host {
        derive_resolver(&mut rules);
    }
    let deny: Vec<String> = std::mem::take(&mut draft.deny).into_iter().collect();
    let mut policy = Policy {
        profile: name,
        allow_broad: broad,
        workspace_access: draft.workspace_access.0,
        home: Home { dir: caller.home.clone().filter(|home| home.is_absolute()), mode: draft.home.0 },
        files: rules,
        environment: EnvironmentRules {
            allow: std::mem::take(&mut draft.allow).into_iter().collect(),
            deny,
            explicit,
            set: std::mem::take(&mut draft.set),
        },
        network,
        unknown_hosts,
        loopback: std::mem::take(&mut draft.loopback),
        unix: UnixRules { connect: std::mem::take(&mut draft.connect).into_iter().collect() },
        mcp: std::mem::take(&mut draft.mcp),
        docker: std::mem::take(&mut draft.docker),
        preferred: draft.preferred(),
        accepted: accepted(request)?,
        guard: draft.guard(),
        limits: draft.limits,
        kernel: draft.kernel,
        places: places(request)?,
        workspace,
    };
    settle_workspace(&mut policy)?;
    notices.extend(project::apply(&mut policy, caller, files)?);
    notices.extend(without_effect(&policy, caller));
    for notice in &mut notices {
        *notice = crate::ospath::escaped_bytes(notice.as_bytes());
    }
    Ok(Resolved { policy, notices })
}

/// The caller with the paths that everything else starts from in normal form.
fn usable(caller: &Caller) -> Result<Cow<'_, Caller>, PolicyError> {
    if caller.cwd.is_relative() {
        return Err(PolicyError::new("the current directory is not known; it may have been removed"));
    }
    let home = caller.home.as_deref().filter(|home| home.is_absolute()).map(normalise);
    if home == caller.home {
        return Ok(Cow::Borrowed(caller));
    }
    Ok(Cow::Owned(Caller { home, ..caller.clone() }))
}

fn free_of_nul(path: &Path, flag: &'static str) -> Result<(), PolicyError> {
    match path.as_os_str().as_bytes().contains(&0) {
        true => Err(PolicyError::at(Origin::Flag(flag.into()), "a path cannot hold NUL")),
        false => Ok(()),
    }
}

/// Rules for the home directory and the workspace, from their scalars.
fn grant_places(draft: &mut Draft<'_>, caller: &Caller, workspace: &Path) {
    let rule = |path: &Path, access, origin| FileRule { path: path.to_path_buf(), access, optional: false, origin };
    let layer = draft.next_layer();
    let mut push = |rule: FileRule| draft.files.push(Ranked { rule, layer, strict: false });
    if let (HomeMode::Read, Some(home)) = (draft.home.0, caller.home.as_deref()) {
        push(rule(home, Access::Read, draft.home.1.clone()));
    }
    push(rule(workspace, draft.workspace_access.0, draft.workspace_access.1.clone()));
}

/// Puts the flags on top; the names of `--env`.
fn apply_flags(
    draft: &mut Draft<'_>,
    request: &Request,
    caller: &Caller,
    workspace: &Path,
) -> Result<BTreeSet<String>, PolicyError> {
    let flags = &request.overrides;
    let error = |flag: &'static str, message: String| PolicyError::at(Origin::Flag(flag.into()), message);
    let layer = draft.next_layer();
    let lists = [(&flags.ro, Access::Read, "--ro"), (&flags.rw, Access::Write, "--rw"), (&flags.deny, Access::Hidden, "--deny")];
    for (paths, access, flag) in lists {
        for path in paths {
            free_of_nul(path, flag)?;
            if path.as_os_str().is_empty() {
                return Err(error(flag, "an empty path".into()));
            }
            let optional = access == Access::Hidden;
            let rule = FileRule { path: normalise(&caller.cwd.join(path)), access, optional, origin: Origin::Flag(flag.into()) };
            draft.files.push(Ranked { rule, layer, strict: true });
        }
    }
    if flags.overlay {
        let origin = Origin::Flag("--overlay".into());
        let rule = FileRule { path: workspace.to_path_buf(), access: Access::Overlay, optional: false, origin };
        draft.files.push(Ranked { rule, layer, strict: true });
    }

    let mut explicit = BTreeSet::new();
    for name in &flags.env {
        values::variable_name(name).map_err(|why| match name.split_once('=') {
            Some((name, _)) => error("--env", format!("{why}; to give {name} a value use --set-env")),
            None => error("--env", why),
        })?;
        explicit.insert(name.clone());
        if let Some(socket) = caller.variable(name).and_then(|value| environment::socket_of(name, value, caller)) {
            draft.connect.insert(socket);
        }
        if !caller.variables.iter().any(|(known, _)| known.as_os_str() == name.as_str()) {
            draft.notices.push(format!("--env {name}: the caller has no such variable"));
        }
    }
    for pair in &flags.set_env {
        let (name, value) = pair.split_once('=').ok_or_else(|| error("--set-env", format!("{pair}: expected NAME=VALUE")))?;
        values::variable_name(name).map_err(|why| error("--set-env", format!("{pair}: {why}")))?;
        if value.contains('\0') {
            return Err(error("--set-env", format!("{name}: a variable cannot hold NUL")));
        }
        if explicit.contains(name) {
            return Err(error("--set-env", format!("{name} is also named by --env; use one of them")));
        }
        draft.set.insert(name.to_owned(), value.to_owned());
    }
    // A value that a profile sets does not beat one that the caller asked for by name.
    draft.set.retain(|name, _| !explicit.contains(name));

    if let Some(text) = &flags.net {
        let mode = values::network_mode(text).ok_or_else(|| {
            let hint = suggestion(text, values::NETWORK_MODES);
            error("--net", format!("unknown mode \"{text}\"; expected off, routes, ask, audit or host{hint}"))
        })?;
        if matches!(mode, NetworkMode::Off | NetworkMode::Host) && !flags.allow_hosts.is_empty() {
            return Err(error("--allow-host", format!("contradicts --net {text}; leave one of them out")));
        }
        draft.network = Some(mode);
    }
    for text in &flags.allow_hosts {
        let entry = values::destination(text).map_err(|why| error("--allow-host", format!("{text}: {why}")))?;
        if !draft.has_routes() {
            draft.network = Some(NetworkMode::Routes);
        }
        draft.route(Route::new(entry.host, entry.ports, Origin::Flag("--allow-host".into())));
    }
    draft.loopback.connect.extend(&flags.connect);
    draft.loopback.publish.extend(&flags.publish);
    for text in &flags.limits {
        let (name, value) = text.split_once('=').ok_or_else(|| error("--limit", format!("{text}: expected NAME=VALUE")))?;
        let limit = values::limit(name, value).ok_or_else(|| {
            let hint = suggestion(name, values::LIMITS);
            error("--limit", format!("unknown limit \"{name}\"; expected one of {}{hint}", values::LIMITS.join(", ")))
        })?;
        set_limit(&mut draft.limits, limit.map_err(|why| error("--limit", format!("{text}: {why}")))?);
    }
    Ok(explicit)
}

/// What `--alias` and `--scratch-at` ask for.
fn places(request: &Request) -> Result<Vec<Place>, PolicyError> {
    let check = |path: &Path, flag: &'static str| -> Result<PathBuf, PolicyError> {
        free_of_nul(path, flag)?;
        let path = normalise(path);
        match path.is_absolute() && path != Path::new("/") {
            true => Ok(path),
            false => Err(PolicyError::at(Origin::Flag(flag.into()), "expected an absolute path other than /")),
        }
    };
    let mut places: Vec<Place> = Vec::new();
    for text in &request.overrides.aliases {
        let Some((at, of)) = text.split_once('=') else {
            return Err(PolicyError::at(Origin::Flag("--alias".into()), "expected INSIDE=PATH"));
        };
        places.push(Place::Alias { at: check(Path::new(at), "--alias")?, of: check(Path::new(of), "--alias")? });
    }
    for at in &request.overrides.scratch_at {
        places.push(Place::Scratch { at: check(at, "--scratch-at")? });
    }
    let twice = places.iter().enumerate().find(|(n, place)| places[..*n].iter().any(|other| other.at() == place.at()));
    match twice {
        Some((_, place)) => Err(PolicyError::new(format!("{} would be made twice", place.at().display()))),
        None => Ok(places),
    }
}

fn accepted(request: &Request) -> Result<BTreeSet<Guarantee>, PolicyError> {
    let parse = |name: &String| {
        Guarantee::from_name(name).ok_or_else(|| {
            let hint = suggestion(name, Guarantee::ALL.iter().map(|g| g.name()));
            let hint = if hint.is_empty() { "; \"plan\" prints the names".into() } else { hint };
            PolicyError::at(Origin::Flag("--accept-loss".into()), format!("there is no guarantee \"{name}\"{hint}"))
        })
    };
    request.overrides.accept_loss.iter().map(parse).collect()
}

fn refuse_broad(rules: &[FileRule], caller: &Caller) -> Result<(), PolicyError> {
    match rules.iter().find(|rule| rule.access == Access::Write && is_broad(&rule.path, caller.home.as_deref())) {
        Some(rule) => {
            let message =
                format!("{}: too much to be writable; name what is needed, or accept with --allow-broad", rule.path.display());
            Err(PolicyError::at(rule.origin.clone(), message))
        }
        None => Ok(()),
    }
}

/// Rules that follow from the caller's situation.
fn derive(rules: &mut Vec<FileRule>, explicit: &BTreeSet<String>, caller: &Caller) {
    let add = |path: PathBuf, access, why: Cow<'static, str>, rules: &mut Vec<FileRule>| {
        rules.push(FileRule { path, access, optional: true, origin: Origin::Derived(why) });
    };
    // Who can write these decides what the next sandbox may do.
    for dir in [&caller.config_dir, &caller.state_dir].into_iter().flatten().filter(|dir| dir.is_absolute()) {
        let dir = normalise(dir);
        rules.retain(|rule| !same(&rule.path, &dir));
        add(dir, Access::Hidden, "settings of the sandbox itself".into(), rules);
    }
    let granted = |rules: &[FileRule], path: &Path| rules.iter().any(|rule| covers(&rule.path, path));
    for name in explicit {
        let socket = caller.variable(name).and_then(|value| environment::socket_of(name, value, caller));
        if let Some(socket) = socket.filter(|socket| !granted(rules, socket)) {
            add(socket, Access::Read, format!("--env {name}").into(), rules);
        }
    }
    let path = caller.variable("PATH").map(OsStrExt::as_bytes).unwrap_or_default();
    for entry in path.split(|b| *b == b':').filter(|entry| entry.first() == Some(&b'/') && !entry.contains(&b'\n')) {
        let dir = normalise(Path::new(std::ffi::OsStr::from_bytes(entry)));
        if !granted(rules, &dir) && !is_broad(&dir, caller.home.as_deref()) && !is_of_system(&dir) {
            add(dir, Access::Read, "directory in PATH".into(), rules);
        }
    }
}

/// Where `/etc/resolv.conf` leads on most systems; the directories around it hold sockets of services.
fn derive_resolver(rules: &mut Vec<FileRule>) {
    for file in [
        "/run/NetworkManager/resolv.conf",
        "/run/resolvconf/resolv.conf",
        "/run/systemd/resolve/resolv.conf",
        "/run/systemd/resolve/stub-resolv.conf",
    ] {
        if !rules.iter().any(|rule| covers(&rule.path, Path::new(file))) {
            let origin = Origin::Derived("name resolution of the host".into());
            rules.push(FileRule { path: file.into(), access: Access::Read, optional: true, origin });
        }
    }
}

/// Reads back what the rules made of the workspace.
fn settle_workspace(policy: &mut Policy) -> Result<(), PolicyError> {
    let Some(rule) = policy.rule_for(&policy.workspace) else { return Ok(()) };
    if rule.access == Access::Hidden && (rule.path != policy.workspace || policy.workspace_access != Access::Hidden) {
        let message = format!("hides {}, and with it the workspace {}", rule.path.display(), policy.workspace.display());
        return Err(PolicyError::at(rule.origin.clone(), message));
    }
    policy.workspace_access = rule.access;
    Ok(())
}

/// Flags that something stronger takes the effect from.
fn without_effect(policy: &Policy, caller: &Caller) -> Vec<String> {
    let mut notices = Vec::new();
    for rule in &policy.files {
        if let Origin::Flag(flag) = &rule.origin
            && rule.access != Access::Hidden
            && let Some(stronger) = policy.rule_for(&rule.path).filter(|stronger| stronger.access == Access::Hidden)
        {
            let (path, hidden) = (rule.path.display(), stronger.path.display());
            notices.push(format!("{flag} {path} has no effect: {hidden} is hidden by {}", stronger.origin));
        }
    }
    for name in &policy.environment.explicit {
        if caller.variable(name).is_some() && environment::denied(&policy.environment, name.as_bytes()) {
            notices.push(format!("--env {name} has no effect: the policy denies it"));
        }
    }
    notices
}
