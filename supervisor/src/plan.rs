//! `plan`: what would be done on this machine, and what would be lost, for people and as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use hermes_backends::plan::{
    Content, Enforcer, Identity, Layer, LimitsPlan, Lost, MountStep, NetworkPlan, PathRights, Plan, SeccompPlan, Tier,
};
use hermes_profiles::environment::Environment;
use hermes_profiles::{Policy, UnknownHosts};
use serde_json::json;

use crate::args::{Backend, PlanArgs, PolicyArgs};
use crate::changes;
use crate::error::Error;
use crate::events;
use crate::output::{self, clean, path};
use crate::prepare::{self, Prepared};
use crate::remote;
use crate::table::{Row, bytes, field, seconds, section};

/// Prints the plan; 0 when `run` would start, 125 when it would not.
pub(crate) fn plan(args: &PlanArgs) -> Result<u8, Error> {
    if args.policy.backend()? != Backend::Local {
        return remote::plan(args);
    }
    let (text, status) = described(prepare::prepare(&args.policy, &args.command)?, &args.policy, args.json)?;
    output::print(&text).map(|()| status)
}

/// What there is to say about a plan, and the exit status.
pub(crate) fn described(mut prepared: Prepared, args: &PolicyArgs, json: bool) -> Result<(String, u8), Error> {
    if args.checkpoint {
        changes::needs_checkpoint(prepared.policy.workspace_access)?;
    }
    if let Some(note) = keeping(&prepared, args.checkpoint) {
        prepared.notices.push(note);
    }
    let text = if json { output::json(&as_json(&prepared)?)? } else { as_text(&prepared, args.verbose) };
    Ok((text, if prepared.plan.fatal().next().is_some() { 125 } else { 0 }))
}

/// What a run would keep in the state directory.
fn keeping(prepared: &Prepared, checkpoint: bool) -> Option<String> {
    let state = path(&prepared.caller.state_dir.as_ref()?.join("trees"));
    let tree = path(&prepared.trees[0]);
    let layer = prepared.plan.mounts.iter().any(|step| matches!(step, MountStep::Overlay { layer: Layer::Planned, .. }));
    match (layer, checkpoint) {
        (true, _) => Some(format!("changes to {tree} would wait in a layer below {state}: see `hermes-sandbox changes list`")),
        (_, true) => Some(format!("a checkpoint of {tree} would be taken first, below {state}")),
        _ => None,
    }
}

/// Variables by name alone: a plan is shown to people and kept in logs.
fn as_json(prepared: &Prepared) -> Result<serde_json::Value, Error> {
    let names = |variables: &[(std::ffi::OsString, std::ffi::OsString)]| -> Vec<String> {
        variables.iter().map(|(name, _)| path(name.as_ref())).collect()
    };
    let dropped: serde_json::Map<_, _> =
        prepared.environment.dropped.iter().map(|(name, why)| (path(name.as_ref()), why.describe().into())).collect();
    let mut policy = json!(prepared.policy);
    if let Some(set) = policy["environment"]["set"].as_object_mut() {
        set.values_mut().for_each(|value| *value = serde_json::Value::Null);
    }
    Ok(json!({
        "hash": events::fingerprint(&prepared.plan)?,
        "starts": prepared.plan.fatal().next().is_none(),
        "plan": prepared.plan,
        "policy": policy,
        "environment": { "passed": names(&prepared.environment.passed), "dropped": dropped },
        "notices": prepared.notices,
    }))
}

fn as_text(prepared: &Prepared, verbose: bool) -> String {
    let Prepared { plan, policy, environment, .. } = prepared;
    let mut text = String::new();
    field(&mut text, "profile", &plan.profile);
    field(&mut text, "made of", tier_words(plan));
    field(&mut text, "runs as", &identity_words(&plan.identity));
    field(&mut text, "starts in", &path(&plan.cwd));
    field(&mut text, "network", &network_words(plan, policy));
    for socket in &plan.unix_connect {
        field(&mut text, "socket", &path(socket));
    }
    field(&mut text, "filter", &filter_words(&plan.seccomp));
    section(&mut text, "files, as the command sees them", &file_rows(plan, policy));
    section(&mut text, "limits", &limit_rows(&plan.limits, plan.scratch));
    environment_text(&mut text, environment, verbose);
    losses(&mut text, "lost: not given here", &plan.lost);
    losses(&mut text, "weakened: given by weaker means", &plan.weakened);
    for notice in &prepared.notices {
        _ = writeln!(text, "\nnote: {}", clean(notice));
    }
    if let Some(first) = plan.fatal().next() {
        _ = writeln!(text, "\n`run` would not start: {} is required and lost", first.guarantee);
    }
    text
}

fn losses(text: &mut String, title: &str, losses: &[Lost]) {
    if losses.is_empty() {
        return;
    }
    _ = writeln!(text, "\n{title}");
    for lost in losses {
        let insists = if lost.required { "required" } else { "preferred" };
        _ = writeln!(text, "  {} ({insists}): {}", lost.guarantee, clean(&lost.reason));
        if !lost.remedy.is_empty() {
            _ = writeln!(text, "    hint: {}", clean(&lost.remedy));
        }
    }
}

fn tier_words(plan: &Plan) -> &'static str {
    match (plan.tier, plan.landlock.is_some()) {
        (Tier::Namespaces, true) => "namespaces, mounts, Landlock, seccomp",
        (Tier::Namespaces, false) => "namespaces, mounts, seccomp",
        (Tier::Landlock, _) => "Landlock, seccomp",
    }
}

fn identity_words(identity: &Identity) -> String {
    let Identity { uid, gid, host_uid, host_gid, idmap } = *identity;
    let mut words = format!("uid {uid}, gid {gid}");
    if (uid, gid) != (host_uid, host_gid) {
        _ = write!(words, "; to the host it is uid {host_uid}, gid {host_gid}");
    }
    if idmap {
        words.push_str("; grants are id-mapped");
    }
    words
}

fn network_words(plan: &Plan, policy: &Policy) -> String {
    let mut words = match (plan.network, &plan.gateway) {
        (NetworkPlan::Host, _) => "the host's, unmediated".to_owned(),
        (NetworkPlan::Private, Some(gateway)) => {
            let ports: Vec<_> = gateway.ports.iter().map(u16::to_string).collect();
            format!("a loopback of its own, and a proxy by the policy's routes (ports {})", ports.join(", "))
        }
        (NetworkPlan::Private, None) => "a loopback of its own and nothing else".to_owned(),
        (NetworkPlan::Notified, _) => {
            "the host's loopback for servers of its own, and the routes of the policy, by the supervisor".to_owned()
        }
        (NetworkPlan::NoSockets, _) => "no internet sockets at all".to_owned(),
    };
    match policy.unknown_hosts {
        UnknownHosts::Refuse => {}
        UnknownHosts::Ask => words.push_str("; other hosts are asked about"),
        UnknownHosts::Audit => words.push_str("; ALL other hosts are reached, and recorded"),
    }
    let listed = |ports: &BTreeSet<u16>| ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    // `run` refuses what stands here as impossible.
    if !policy.loopback.connect.is_empty() {
        let are = if plan.network == NetworkPlan::NoSockets { "CANNOT be opened" } else { "are open" };
        _ = write!(words, "; the host's loopback ports {} {are}", listed(&policy.loopback.connect));
    }
    if !policy.loopback.publish.is_empty() {
        let are = match plan.network {
            NetworkPlan::NoSockets | NetworkPlan::Notified => "CANNOT be shown on the host (needs a network namespace)",
            NetworkPlan::Private | NetworkPlan::Host => "are shown on the host",
        };
        _ = write!(words, "; own ports {} {are}", listed(&policy.loopback.publish));
    }
    words
}

fn filter_words(seccomp: &SeccompPlan) -> String {
    let mut words = vec!["default list"];
    let extra = [
        (seccomp.strict, "foreign architectures are killed"),
        (seccomp.nested_sandbox, "nested namespaces allowed"),
        (seccomp.notify_connect, "unix connects are checked one by one"),
        (!seccomp.unix_sockets, "no unix sockets"),
        (seccomp.unix_datagram, "named datagram sockets allowed"),
        (!seccomp.inet_sockets, "no internet sockets"),
        (seccomp.mediate_tcp, "TCP alone, connected by the supervisor"),
        (seccomp.deny_ipc, "no System V IPC"),
    ];
    words.extend(extra.into_iter().filter_map(|(on, word)| on.then_some(word)));
    words.join("; ")
}

fn file_rows(plan: &Plan, policy: &Policy) -> Vec<Row> {
    let origin = |place: &std::path::Path| {
        policy
            .files
            .iter()
            .find(|rule| rule.path == place)
            .map(|rule| clean(&rule.origin.to_string()).into_owned())
            .unwrap_or_default()
    };
    let mut rows: Vec<Row> = if plan.tier == Tier::Namespaces {
        plan.mounts
            .iter()
            .filter_map(|step| Some((step, mount_words(step)?)))
            .map(|(step, (word, remark))| {
                let remark = if remark.is_empty() { origin(step.target()) } else { remark };
                (word.to_owned(), path(step.target()), remark)
            })
            .collect()
    } else {
        let paths = plan.landlock.iter().flat_map(|landlock| &landlock.paths);
        paths.map(|rule| (rights_word(rule.rights).to_owned(), path(&rule.path), origin(&rule.path))).collect()
    };
    rows.sort_by(|a, b| a.1.cmp(&b.1));
    rows
}

fn mount_words(step: &MountStep) -> Option<(&'static str, String)> {
    Some(match step {
        MountStep::Private { writable: true, .. } => ("private", String::new()),
        MountStep::Bind { device: true, .. } => ("device", String::new()),
        MountStep::Bind { source, target, writable, .. } => {
            let remark = if source.path == *target { String::new() } else { format!("is {}", path(&source.path)) };
            (if *writable { "write" } else { "read" }, remark)
        }
        MountStep::Overlay { whiteouts, layer, .. } => {
            let hidden = if whiteouts.is_empty() { String::new() } else { format!(", {} hidden", whiteouts.len()) };
            let whereto = match layer {
                Layer::Private => "in memory",
                Layer::Planned | Layer::Kept(_) => "changes are kept until they are applied or discarded",
            };
            ("copy", format!("{whereto}{hidden}"))
        }
        MountStep::Mask { .. } => ("hidden", String::new()),
        MountStep::File { content, .. } => ("own", content_words(content).into()),
        MountStep::Alias { of, .. } => ("also", path(of)),
        MountStep::Symlink { to, .. } => ("link", format!("to {}", path(to))),
        MountStep::Proc => ("private", "its own processes only".into()),
        MountStep::Dev { .. } => ("private", "null, zero, full, random, urandom, tty, pts, shm".into()),
        // Scaffolding between the mounts.
        MountStep::Private { .. } | MountStep::Directory { .. } | MountStep::Pin { .. } => return None,
    })
}

fn content_words(content: &Content) -> &'static str {
    match content {
        Content::Text(_) => "names are resolved by the sandbox's rules",
        Content::Hosts => "this machine's own names only",
        Content::NameServices => "the host's, but names of hosts are looked up in files and by DNS alone",
        Content::Certificates | Content::JavaCertificates => "the system's certificates and the sandbox's own",
    }
}

fn rights_word(rights: PathRights) -> &'static str {
    match rights {
        PathRights::List => "list",
        PathRights::Read => "read",
        PathRights::Write => "write",
        PathRights::Device => "device",
    }
}

fn limit_rows(limits: &LimitsPlan, scratch: Option<u64>) -> Vec<Row> {
    let by = |enforcer| match enforcer {
        Enforcer::Nothing => "by NOTHING here",
        Enforcer::Cgroup => "by a control group",
        Enforcer::Container => "by the container",
        Enforcer::Rlimit => "by RLIMIT_NPROC in its own user namespace",
        Enforcer::Watchdog => "by watching and killing",
    };
    let rows = [
        ("memory", limits.memory.map(bytes), by(limits.memory_by)),
        ("processes", limits.processes.map(|n| n.to_string()), by(limits.processes_by)),
        ("cpu", limits.cpu_percent.map(|n| format!("{n} %")), "by a control group"),
        ("open files", limits.open_files.map(|n| n.to_string()), "per process"),
        ("scratch", scratch.map(bytes), "all that it writes in memory, but /dev/shm"),
        ("file size", limits.file_size.map(bytes), "per file"),
        ("timeout", limits.timeout.map(seconds), "then status 124"),
    ];
    rows.into_iter().filter_map(|(name, value, remark)| Some((name.to_owned(), value?, remark.to_owned()))).collect()
}

fn environment_text(text: &mut String, environment: &Environment, verbose: bool) {
    let mut passed: Vec<_> = environment.passed.iter().map(|(name, _)| path(name.as_ref())).collect();
    passed.sort();
    _ = writeln!(text, "\nenvironment\n  goes in    {}", passed.join(" "));
    if verbose {
        for (name, reason) in &environment.dropped {
            _ = writeln!(text, "  stays out  {}: {}", path(name.as_ref()), reason.describe());
        }
    } else if !environment.dropped.is_empty() {
        let mut dropped: Vec<_> = environment.dropped.iter().map(|(name, _)| path(name.as_ref())).collect();
        dropped.sort();
        _ = writeln!(text, "  stays out  {}", dropped.join(" "));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sample;

    fn prepared() -> Prepared {
        let caller = hermes_profiles::Caller { cwd: "/home/u/ws".into(), home: Some("/home/u".into()), ..Default::default() };
        let overrides = hermes_profiles::Overrides { set_env: vec!["A=s3cr3t".into()], ..Default::default() };
        let request = hermes_profiles::Request { caller: caller.clone(), overrides, ..Default::default() };
        let policy = hermes_profiles::resolve(&request, &crate::request::Disk).unwrap().policy;
        Prepared {
            caller,
            policy,
            host: sample::host(),
            survey: hermes_backends::survey::Survey::default(),
            plan: sample::plan(),
            environment: Environment { passed: vec![("PATH".into(), "/bin".into())], dropped: Vec::new() },
            trees: vec!["/home/u/ws".into()],
            keeps: None,
            notices: Vec::new(),
        }
    }

    #[test]
    fn a_plan_in_words() {
        let text = as_text(&prepared(), false);
        for part in [
            "made of     namespaces, mounts, seccomp\n",
            "runs as     uid 1000, gid 1000\n",
            "  hidden   /home/u/ws/s.env\n  write    /home/u/ws\\x1b\n  link     /lib              to usr/lib\n",
            "  scratch    1 GiB    all that it writes in memory, but /dev/shm\n",
            "  memory     1.5 GiB  by watching and killing\n",
            "  timeout    1.5 s    then status 124\n",
            "  goes in    PATH\n",
            "  cpu-limited (required): no control group\n    hint: log in\n",
            "`run` would not start: cpu-limited is required and lost\n",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
    }

    #[test]
    fn json_has_the_plan_the_policy_and_names_only() {
        let json = as_json(&prepared()).unwrap();
        assert_eq!((&json["starts"], &json["plan"]["tier"]), (&false.into(), &"namespaces".into()));
        assert_eq!(json["environment"]["passed"], serde_json::json!(["PATH"]));
        assert_eq!(json["policy"]["environment"]["set"], serde_json::json!({"A": null}));
        assert_eq!(json["hash"].as_str().map(str::len), Some(64));
    }
}
