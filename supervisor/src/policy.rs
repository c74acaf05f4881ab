//! `explain policy`: what is allowed, before it meets a machine.

use std::collections::BTreeSet;

use hermes_profiles::guard::Selector;
use hermes_profiles::{
    Access, EnvironmentRules, FileRule, Guarantee, GuardRules, HomeMode, KernelRules, Limits, LoopbackRules, Network, Policy,
    UnknownHosts,
};

use crate::output::{clean, path};
use crate::table::{Row, bytes, field, seconds, section};

/// The policy for people.
pub(crate) fn as_text(policy: &Policy) -> String {
    let mut text = String::new();
    field(&mut text, "profile", &policy.profile);
    field(&mut text, "workspace", &format!("{} ({})", path(&policy.workspace), access_word(policy.workspace_access)));
    let home = policy.home.dir.as_deref().map_or("none".to_owned(), path);
    field(&mut text, "home", &format!("{home}: {}", home_words(policy.home.mode)));
    network(&mut text, policy);
    loopback(&mut text, &policy.loopback);
    for socket in &policy.unix.connect {
        field(&mut text, "socket", &path(socket));
    }
    let tools: Vec<_> = policy.mcp.tools.iter().map(|tool| tool.name()).collect();
    field(&mut text, "mcp tools", &if tools.is_empty() { "none".to_owned() } else { tools.join(", ") });
    field(&mut text, "kernel", &kernel_words(&policy.kernel));
    section(&mut text, "files", &file_rows(&policy.files));
    section(&mut text, "environment", &environment_rows(&policy.environment));
    section(&mut text, "limits", &limit_rows(&policy.limits));
    section(&mut text, "added to the guard rules (`explain guard` prints those)", &guard_rows(&policy.guard));
    text.push('\n');
    field(&mut text, "preferred", &names(&policy.preferred));
    if !policy.accepted.is_empty() {
        field(&mut text, "accepted", &names(&policy.accepted));
    }
    text
}

fn home_words(mode: HomeMode) -> &'static str {
    match mode {
        HomeMode::Private => "an empty one of its own",
        HomeMode::Hidden => "empty and read-only",
        HomeMode::Read => "the real one, read-only",
    }
}

fn network(text: &mut String, policy: &Policy) {
    match &policy.network {
        Network::Off => field(text, "network", "off"),
        Network::Host => field(text, "network", "the host's, unmediated"),
        Network::Routes(routes) => {
            let words = match (policy.unknown_hosts, routes.is_empty()) {
                (UnknownHosts::Audit, _) => "all hosts, recorded",
                (UnknownHosts::Ask, _) => "these routes, and others after a question",
                (UnknownHosts::Refuse, true) => "routes, none named",
                (UnknownHosts::Refuse, false) => "these routes",
            };
            field(text, "network", words);
            for route in routes {
                let ports: Vec<_> = route.ports.iter().map(u16::to_string).collect();
                field(text, "", &format!("{} on {} ({})", route.host, ports.join(", "), route.origin));
            }
        }
    }
}

fn loopback(text: &mut String, rules: &LoopbackRules) {
    for (name, ports) in [("connect", &rules.connect), ("publish", &rules.publish)] {
        if !ports.is_empty() {
            field(text, name, &ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", "));
        }
    }
}

fn kernel_words(kernel: &KernelRules) -> String {
    let words = [
        (kernel.nested_sandbox, "nested sandboxes allowed"),
        (kernel.strict, "foreign architectures are killed"),
        (kernel.unix_datagram, "named datagram sockets allowed"),
    ];
    let words: Vec<_> = words.into_iter().filter_map(|(on, word)| on.then_some(word)).collect();
    if words.is_empty() { "the default filter".to_owned() } else { words.join("; ") }
}

/// Grants first, then what is hidden, each by path.
fn file_rows(files: &[FileRule]) -> Vec<Row> {
    let mut files: Vec<_> = files.iter().collect();
    files.sort_by_key(|rule| (rule.access == Access::Hidden, &rule.path));
    let row = |rule: &FileRule| {
        let optional = if rule.optional && rule.access != Access::Hidden { ", if it exists" } else { "" };
        (access_word(rule.access).to_owned(), path(&rule.path), format!("{}{optional}", clean(&rule.origin.to_string())))
    };
    files.into_iter().map(row).collect()
}

fn guard_rows(guard: &GuardRules) -> Vec<Row> {
    let lists = [
        ("guard", &guard.add, "put aside"),
        ("unguard", &guard.allow, "may change"),
        ("prevent", &guard.prevent, "read-only where it exists"),
        ("stage", &guard.stage, "takes effect after approval"),
    ];
    let row = |(word, list, effect): (&str, &Vec<Selector>, &str)| -> Vec<Row> {
        list.iter().map(|entry| (word.to_owned(), clean(&entry.to_string()).into_owned(), effect.to_owned())).collect()
    };
    lists.into_iter().flat_map(row).collect()
}

fn environment_rows(rules: &EnvironmentRules) -> Vec<Row> {
    let allow: Vec<_> = rules.allow.iter().map(String::as_str).collect();
    let deny: Vec<_> = rules.deny.iter().map(String::as_str).collect();
    let explicit: Vec<_> = rules.explicit.iter().map(String::as_str).collect();
    let set: Vec<_> = rules.set.keys().map(String::as_str).collect();
    [("allow", allow), ("deny", deny), ("explicit", explicit), ("set", set)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(word, names)| (word.to_owned(), clean(&names.join(" ")).into_owned(), String::new()))
        .collect()
}

fn limit_rows(limits: &Limits) -> Vec<Row> {
    let memory = limits.memory.map(bytes).or(limits.memory_percent.map(|percent| format!("{percent} % of the machine")));
    let rows = [
        ("memory", memory),
        ("processes", limits.processes.map(|n| n.to_string())),
        ("scratch", limits.scratch.map(bytes)),
        ("shm", limits.shm.map(bytes)),
        ("open files", limits.open_files.map(|n| n.to_string())),
        ("file size", limits.file_size.map(bytes)),
        ("cpu", limits.cpu_percent.map(|n| format!("{n} %"))),
        ("timeout", limits.timeout.map(seconds)),
        ("grace", Some(seconds(limits.grace))),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?, String::new()))).collect()
}

fn names(guarantees: &BTreeSet<Guarantee>) -> String {
    guarantees.iter().map(|guarantee| guarantee.name()).collect::<Vec<_>>().join(" ")
}

fn access_word(access: Access) -> &'static str {
    match access {
        Access::Hidden => "hidden",
        Access::Read => "read",
        Access::Write => "write",
        Access::Overlay => "copy",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_four_lists_of_the_guard() {
        let all = |text: &str| vec![Selector::Anywhere(text.to_owned())];
        let guard =
            GuardRules { add: all("a\x1b"), allow: all("b"), prevent: vec![Selector::Everything], stage: all("c"), home: None };
        let rows = guard_rows(&guard);
        let words: Vec<_> = rows.iter().map(|(word, entry, _)| (word.as_str(), entry.as_str())).collect();
        assert_eq!(words, [("guard", "a\\x1b"), ("unguard", "b"), ("prevent", "*"), ("stage", "c")]);
        assert!(guard_rows(&GuardRules::default()).is_empty());
    }

    #[test]
    fn a_policy_in_words() {
        let request = hermes_profiles::Request {
            overrides: hermes_profiles::Overrides {
                deny: vec!["/w/odd\x1b".into()],
                set_env: vec!["A=s3cr3t".into()],
                limits: vec!["timeout=90".into()],
                ..Default::default()
            },
            caller: hermes_profiles::Caller { cwd: "/w".into(), home: Some("/home/u".into()), ..Default::default() },
            ..Default::default()
        };
        let text = as_text(&hermes_profiles::resolve(&request, &crate::request::Disk).unwrap().policy);
        for part in [
            "profile     agent\nworkspace   /w (write)\nhome        /home/u: an empty one of its own\n",
            "/w/odd\\x1b ",
            "--deny\n",
            "  timeout  ",
            "preferred   ",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
        assert!(!text.contains("s3cr3t") && text.find("write").unwrap() < text.find("hidden").unwrap());
    }
}
