//! `doctor`: what this machine can enforce, layer by layer, and what to do about the rest.

use std::fmt::Write as _;

use hermes_backends::compile::losses::{cgroup_remedy, userns_remedy, why_no_mediation, why_no_namespaces};
use hermes_backends::host::{CgroupAccess, Host, Probe};
use hermes_backends::plan::Tier;
use serde::Serialize;

use crate::args::{Backend, BackendArgs};
use crate::engine;
use crate::error::Error;
use crate::output;
use crate::remote;

/// One layer or probe.
#[derive(Debug, Serialize)]
struct Finding {
    /// Stable name, the key in the JSON form.
    #[serde(skip)]
    key: &'static str,
    /// For people.
    #[serde(skip)]
    title: String,
    works: bool,
    /// The Landlock ABI.
    #[serde(skip_serializing_if = "Option::is_none")]
    abi: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

impl Finding {
    fn new(key: &'static str, title: impl Into<String>, probe: &Probe, remedy: &'static str) -> Self {
        let reason = match probe {
            Probe::Works => None,
            Probe::Fails(error) => Some(error.to_string()),
        };
        let remedy = reason.is_some().then_some(remedy);
        Self { key, title: title.into(), works: probe.works(), abi: None, reason, remedy }
    }

    fn fact(key: &'static str, title: impl Into<String>, works: bool, reason: &str, remedy: &'static str) -> Self {
        let fails = !works;
        Self {
            key,
            title: title.into(),
            works,
            abi: None,
            reason: fails.then(|| reason.to_owned()),
            remedy: fails.then_some(remedy),
        }
    }
}

/// Measures, prints, and returns 0 when a sandbox can be started there, 1 when not.
pub(crate) fn run(place: &BackendArgs, json: bool, verbose: bool) -> Result<u8, Error> {
    if place.chosen()? != Backend::Local {
        return remote::doctor(place, json, verbose);
    }
    let (text, status) = described(&engine::measure_now(), json, verbose)?;
    output::print(&text).map(|()| status)
}

/// What there is to say about a machine, and the exit status.
pub(crate) fn described(host: &Host, json: bool, verbose: bool) -> Result<(String, u8), Error> {
    let findings = findings(host);
    let tier = tier(host);
    let text = match json {
        true => output::json(&as_json(host, tier, &findings))?,
        false => as_text(host, tier, &findings, verbose),
    };
    Ok((text, u8::from(tier.is_none())))
}

/// The mechanism that a sandbox would use when the policy has no wish of its own.
fn tier(host: &Host) -> Option<Tier> {
    if !host.seccomp.works() {
        None
    } else if why_no_namespaces(host).is_none() {
        Some(Tier::Namespaces)
    } else if host.landlock_abi >= 3 {
        Some(Tier::Landlock)
    } else {
        None
    }
}

fn findings(host: &Host) -> Vec<Finding> {
    let landlock = Finding {
        abi: Some(host.landlock_abi),
        ..Finding::fact(
            "landlock",
            if host.landlock_abi > 0 { format!("Landlock, ABI {}", host.landlock_abi) } else { "Landlock".to_owned() },
            host.landlock_abi > 0,
            "the kernel has no Landlock or it is not switched on",
            "needs Linux 5.13 and `landlock` in the kernel's lsm= list",
        )
    };
    // What is made inside namespaces fails with them, for the same reason.
    let within = |remedy| if host.userns.works() { remedy } else { "follows from the namespaces above" };
    let mut findings = vec![
        Finding::new("namespaces", "user, mount, pid, ipc and uts namespaces", &host.userns, userns_remedy(host.userns_cause)),
        Finding::new(
            "network_namespace",
            "network namespace",
            &host.netns,
            within("needs a kernel with CONFIG_NET_NS; without it namespaces are not used"),
        ),
        Finding::new(
            "proc",
            "a fresh /proc",
            &host.proc_mount,
            within("the container's /proc is masked; start it with an unmasked one (systempaths=unconfined)"),
        ),
        landlock,
        Finding::new("seccomp", "seccomp filter", &host.seccomp, "needs a kernel with CONFIG_SECCOMP_FILTER"),
        Finding::new(
            "seccomp_notify",
            "seccomp notification and its broker",
            &host.notify,
            "needs Linux 5.9 and no other seccomp listener in force; without it the host's unix sockets cannot be kept out of namespaces",
        ),
        Finding::fact(
            "mediation",
            "routes without namespaces",
            why_no_mediation(host).is_none(),
            &why_no_mediation(host).map(|(reason, _)| reason).unwrap_or_default(),
            "needs Landlock ABI 4 (Linux 6.7) and no other seccomp listener in force",
        ),
        Finding::new(
            "overlay",
            "copy-on-write layers",
            &host.overlay,
            within("needs Linux 5.11 with overlayfs; without it tool caches are read-only"),
        ),
        Finding::new(
            "recursive_attributes",
            "recursive mount attributes",
            &host.recursive_attributes,
            within("needs Linux 5.12; without it namespaces are not used"),
        ),
    ];
    if host.uid == 0 {
        findings.push(Finding::new(
            "idmap",
            "id-mapped mounts for a root caller",
            &host.idmap,
            within("start it as an ordinary user or with --user NAME"),
        ));
    }
    findings.push(Finding::fact(
        "processes",
        "process limit of its own",
        host.processes_per_userns && host.userns.works(),
        "RLIMIT_NPROC would count all processes of the user",
        "needs Linux 5.14 and user namespaces, or a control group",
    ));
    findings.push(Finding::fact(
        "cgroup",
        format!("limits on the whole tree{}", cgroup_words(&host.cgroup)),
        ["memory", "pids", "cpu"].iter().any(|controller| host.cgroup.has(controller)),
        "no control group that this user may divide",
        cgroup_remedy(&host.cgroup),
    ));
    findings
}

fn cgroup_words(cgroup: &CgroupAccess) -> String {
    match cgroup {
        CgroupAccess::None | CgroupAccess::Systemd => String::new(),
        CgroupAccess::V2 { directory, controllers } => {
            format!(": control group {} ({})", output::path(directory), output::clean(&controllers.join(", ")))
        }
        CgroupAccess::V1 { memory, pids, cpu } => {
            let names = [(memory, "memory"), (pids, "pids"), (cpu, "cpu")].map(|(path, name)| path.as_ref().map(|_| name));
            format!(": control groups v1 ({})", names.into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
    }
}

fn warnings(host: &Host, tier: Option<Tier>) -> Vec<String> {
    let mut warnings = Vec::new();
    if !host.powerful_groups.is_empty() {
        warnings.push(format!(
            "this user is in {}: such a group gives rights over the host and cannot be left without privileges; the policy \
             still keeps its files and sockets out of reach",
            output::clean(&host.powerful_groups.join(", "))
        ));
    }
    if host.uid == 0 {
        warnings.push("this is root; the command runs as an unprivileged user, never as real root".to_owned());
    }
    if tier == Some(Tier::Namespaces) && host.landlock_abi == 0 {
        warnings.push("without Landlock the mounts alone confine files".to_owned());
    }
    if tier == Some(Tier::Landlock) && host.landlock_abi < 6 {
        warnings.push("below Landlock ABI 6 signals and abstract sockets of other processes are not confined".to_owned());
    }
    warnings
}

fn tier_words(tier: Option<Tier>) -> &'static str {
    match tier {
        Some(Tier::Namespaces) => "a sandbox here is made of namespaces, mounts, Landlock where present, and seccomp",
        Some(Tier::Landlock) => "a sandbox here is made of Landlock and seccomp alone, where the policy can do without the rest",
        None => "no sandbox can be started here",
    }
}

fn as_text(host: &Host, tier: Option<Tier>, findings: &[Finding], verbose: bool) -> String {
    let mut text = format!(
        "hermes-sandbox {} on Linux {} {}, uid {}\n{}\n\n",
        env!("CARGO_PKG_VERSION"),
        output::clean(&host.kernel),
        output::clean(&host.arch),
        host.uid,
        tier_words(tier)
    );
    for finding in findings {
        let word = if finding.works { "works" } else { "FAILS" };
        _ = write!(text, "  {word}  {}", finding.title);
        match &finding.reason {
            Some(reason) => _ = writeln!(text, ": {}", output::clean(reason)),
            None => text.push('\n'),
        }
        if let Some(remedy) = finding.remedy {
            _ = writeln!(text, "         hint: {remedy}");
        }
    }
    for warning in warnings(host, tier) {
        _ = writeln!(text, "  note   {warning}");
    }
    if verbose {
        _ = writeln!(text, "\n  memory {} bytes, gid {}", host.memory, host.gid);
    }
    text
}

fn as_json(host: &Host, tier: Option<Tier>, findings: &[Finding]) -> serde_json::Value {
    let mut report = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": host.kernel,
        "arch": host.arch,
        "uid": host.uid,
        "gid": host.gid,
        "memory": host.memory,
        "tier": tier,
        "userns_cause": host.userns_cause,
        "cgroup_access": host.cgroup,
        "powerful_groups": host.powerful_groups,
        "warnings": warnings(host, tier),
    });
    for finding in findings {
        report[finding.key] = serde_json::json!(finding);
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use hermes_backends::host::UsernsCause;
    use hermes_backends::step::{Step, StepError};
    use nix::errno::Errno;

    #[test]
    fn json_names_every_layer() {
        let host = sample::host();
        let report = as_json(&host, tier(&host), &findings(&host));
        assert_eq!(report["landlock"], serde_json::json!({"works": true, "abi": 7}));
        assert_eq!(report["tier"], "namespaces");
        assert!(["namespaces", "seccomp", "overlay", "cgroup"].iter().all(|layer| report[layer]["works"].is_boolean()));
    }

    #[test]
    fn a_refused_layer_comes_with_reason_and_remedy() {
        let mut host = sample::host();
        host.userns = Probe::Fails(StepError::new(Step::IdMap, Errno::EACCES));
        host.userns_cause = Some(UsernsCause::AppArmor);
        host.powerful_groups = vec!["docker\x1b".into()];
        let text = as_text(&host, tier(&host), &findings(&host), false);
        for part in [
            "Landlock and seccomp alone",
            "FAILS  user, mount, pid, ipc and uts namespaces: cannot write the id map of the user namespace: Permission denied",
            "scripts/install --apparmor",
            "docker\\x1b",
            "works  Landlock, ABI 7",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        host.landlock_abi = 0;
        assert_eq!(tier(&host), None);
        assert_eq!(as_json(&host, None, &findings(&host))["landlock"]["abi"], 0);
    }
}
