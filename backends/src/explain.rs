//! Answers "why can it not ...?" from policy and plan: which rule decides, which layer enforces it, what would change it,
//! or that nothing enforces it. Pure functions; nothing is tried, so every answer is [`Certainty::Computed`].

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use hermes_profiles::environment::{self, Grant, Reason};
use hermes_profiles::{Access, EnvironmentRules, FileRule, Guarantee, Network, Origin, Policy, ospath};
use serde::Serialize;

use crate::local::seccomp::{self, Arch};
use crate::plan::{MountStep, NetworkPlan, PathRights, Plan, SeccompPlan};
use crate::survey::{Found, Survey};

/// How an answer was come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Certainty {
    /// It was seen to happen.
    Observed,
    /// It follows from the plan.
    Computed,
    /// It is likely.
    Guessed,
}

/// What refuses an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// The file system that was built for the sandbox.
    Mounts,
    /// Landlock.
    Landlock,
    /// The system call filter.
    Seccomp,
    /// The network namespace.
    NetworkNamespace,
    /// The proxy that is the only way out.
    Proxy,
    /// The environment is built from an allowlist.
    Environment,
}

impl Layer {
    /// For people, after "by".
    pub fn words(self) -> &'static str {
        match self {
            Self::Mounts => "the sandbox's own mounts",
            Self::Landlock => "Landlock",
            Self::Seccomp => "the system call filter",
            Self::NetworkNamespace => "the network namespace",
            Self::Proxy => "the proxy",
            Self::Environment => "the environment allowlist",
        }
    }
}

/// What happens when it is tried inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The sandbox does not refuse it; the kernel's ordinary permissions still apply.
    Allowed,
    /// It is refused by these layers, each by itself.
    Enforced(Vec<Layer>),
    /// The policy refuses it, and nothing enforces that: the reason.
    NotEnforced(String),
}

/// The rule that decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// What it says.
    pub text: String,
    /// Where it was written.
    pub origin: Origin,
}

/// The answer to one question. Texts may hold what was asked; escape them before printing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// What was asked about.
    pub subject: String,
    /// Each operation (`read`, `write`, `connect`, `proxy`, `call`, `pass`) and what happens.
    pub verdicts: Vec<(&'static str, Verdict)>,
    /// The rule that decides; `None` when no rule names it.
    pub rule: Option<Rule>,
    /// What would allow it.
    pub allow: Option<String>,
    /// What else should be known.
    pub notes: Vec<String>,
    /// How the answer was come by.
    pub certainty: Certainty,
}

impl Answer {
    fn new(subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            verdicts: Vec::new(),
            rule: None,
            allow: None,
            notes: Vec::new(),
            certainty: Certainty::Computed,
        }
    }
}

/// Can `path` (absolute, as the host has it) be read and written inside? `survey` should know `path` and the paths of
/// the policy; symlinks that it does not know are not seen through.
pub fn explain_path(policy: &Policy, plan: &Plan, survey: &Survey, path: &Path) -> Answer {
    let real = survey.real(path);
    let rule = deciding_rule(policy, survey, path, real);
    let wish = rule.map(|rule| rule.access);
    let sight = sight(plan, real);
    let mut answer = Answer::new(ospath::escaped(path));
    if real != path {
        answer.notes.push(format!("it leads to {}", ospath::escaped(real)));
    }
    match survey.get(path) {
        Found::Absent => answer.notes.push("nothing is there on the host now".into()),
        Found::Unreadable(_) => answer.notes.push("the caller cannot look at it either".into()),
        Found::Present { .. } => {}
    }
    answer.notes.extend(sight.note);
    if wish == Some(Access::Overlay) && sight.write.is_empty() {
        answer.notes.push("changes stay in a private layer and do not reach the host".into());
    }
    let may_read = !matches!(wish, None | Some(Access::Hidden));
    let may_write = matches!(wish, Some(Access::Write | Access::Overlay));
    // A place of the sandbox's own needs no rule: nothing of the host is reached there.
    let own = sight.own;
    answer.verdicts = vec![
        ("read", verdict(plan, &sight.read, may_read || own, &[Guarantee::FilesHidden, Guarantee::FilesReadConfined])),
        ("write", verdict(plan, &sight.write, may_write || own, &[Guarantee::FilesWriteConfined, Guarantee::FilesHidden])),
    ];
    if plan.mounts.is_empty() && !may_read {
        answer
            .notes
            .extend(loss(plan, &[Guarantee::MetadataConfined]).map(|reason| format!("its metadata is not confined: {reason}")));
    }
    let flag = |flag: &str| format!("{flag} {}", quoted(&ospath::escaped(path)));
    answer.allow = match (wish, rule.map(|rule| &rule.origin)) {
        (Some(Access::Write | Access::Overlay), _) => None,
        (Some(Access::Hidden), Some(Origin::Flag(name))) => Some(format!("leave out {name} {}", rule_path(rule))),
        (Some(Access::Hidden), Some(origin @ Origin::File { .. })) => {
            Some(format!("take {} out of `hide` in {origin}", rule_path(rule)))
        }
        (Some(Access::Hidden), _) => Some(format!("a profile of your own that does not hide {}", rule_path(rule))),
        (Some(Access::Read), _) => Some(format!("{} (to write)", flag("--rw"))),
        (None, _) => Some(format!("{} (to read) or {} (to write too)", flag("--ro"), flag("--rw"))),
    };
    answer.rule = rule.map(|rule| Rule { text: rule_words(survey, rule), origin: rule.origin.clone() });
    if rule.is_none() {
        answer.notes.push("no rule grants it, and what no rule grants is refused".into());
    }
    answer
}

/// What the proxy does with a connection to a host: this room has no part in that decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proxied {
    /// It is passed on.
    Allowed {
        /// By this rule.
        rule: Rule,
        /// Its requests are read.
        read: bool,
        /// Addresses that the name may lead to; those of the public internet where there are none.
        addresses: Vec<String>,
    },
    /// A person is asked.
    Asked,
    /// It is refused.
    Refused {
        /// Why.
        why: String,
        /// The rule by which, if one was written for it.
        rule: Option<Rule>,
    },
}

/// Can the sandbox connect to `host` (a name or a literal address), on `port` or on any? `proxied` is what the proxy decides where
/// there is one.
pub fn explain_host(policy: &Policy, plan: &Plan, host: &str, port: Option<u16>, proxied: Option<Proxied>) -> Answer {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let with_port =
        |host: &str, port: u16| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let subject = port.map_or_else(|| host.clone(), |port| with_port(&host, port));
    let mut answer = Answer::new(subject);
    let local = is_loopback(&host);
    let open = local && port.is_some_and(|port| plan.connect.contains(&port));
    let gateway = plan.gateway.as_ref().filter(|_| !open);
    let proxied = proxied.filter(|_| gateway.is_some());
    // A port without a listener is refused at once, and the loopback never leads to the gateway.
    let leads = gateway.is_some_and(|gateway| !local && port.is_none_or(|port| gateway.ports.contains(&port)));
    let passed = matches!(proxied, Some(Proxied::Allowed { .. }));
    let direct = open || policy.network == Network::Host || (leads && passed);
    let mut layers = match plan.network {
        _ if open => Vec::new(),
        _ if leads => Vec::new(),
        NetworkPlan::Private => vec![Layer::NetworkNamespace],
        // With notifications the supervisor refuses to connect.
        NetworkPlan::NoSockets | NetworkPlan::Notified => vec![Layer::Seccomp],
        NetworkPlan::Host => Vec::new(),
    };
    if proxied.is_some() && !passed {
        layers.push(Layer::Proxy);
    }
    if !direct && plan.landlock.as_ref().is_some_and(|landlock| landlock.deny_tcp) {
        layers.push(Layer::Landlock);
    }
    answer.verdicts = vec![("connect", verdict(plan, &layers, direct, &[Guarantee::NetworkMediated]))];
    if passed && !direct {
        answer.verdicts.push(("proxy", Verdict::Allowed));
    }
    if local && !open && matches!(plan.network, NetworkPlan::Private) {
        answer.notes.push("loopback inside is the sandbox's own; services of the host do not listen there".into());
    }
    if local && !open && plan.network == NetworkPlan::Notified {
        answer.notes.push("on the loopback only servers of the sandbox's own are reached".into());
    }
    if plan.network == NetworkPlan::Host {
        answer.notes.push("the host's network is given as it is; nothing mediates it".into());
    }
    if let (Some(gateway), Some(port)) = (gateway, port)
        && !local
        && !leads
    {
        let ports = gateway.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        answer
            .notes
            .push(format!("nothing listens on port {port}, only on {ports}: only programs that use the proxy can ask for it"));
    }
    let wanted = direct || passed;
    match proxied {
        Some(Proxied::Allowed { rule, read, addresses }) => {
            answer.notes.push(if read {
                "requests are read: TLS is terminated with the sandbox's own certificates".into()
            } else {
                "passed through unread: whatever that name's servers front for can be reached by them".into()
            });
            if !addresses.is_empty() {
                answer.notes.push(format!("only while its name leads to {}", addresses.join(", ")));
            } else if !local && host.parse::<std::net::IpAddr>().is_err() {
                answer
                    .notes
                    .push("only while its name leads to the public internet: that is looked up for each connection".into());
            }
            answer.rule = Some(rule);
        }
        Some(Proxied::Asked) => answer.notes.push("a person is asked, and the connection waits".into()),
        Some(Proxied::Refused { why, rule }) => {
            answer.notes.push(why);
            answer.rule = rule;
        }
        None if wanted => {}
        None if matches!(&policy.network, Network::Routes(_)) => answer.notes.push("this plan has no way out".into()),
        None => answer.notes.push("the policy gives no network".into()),
    }
    answer.allow = (!wanted).then(|| format!("--allow-host {}", quoted(&answer.subject)));
    answer
}

/// What does the system call filter do to the call `name`?
pub fn explain_syscall(plan: &Plan, arch: Arch, name: &str) -> Answer {
    let mut answer = Answer::new(name);
    let Some(found) = seccomp::explain(&plan.seccomp, arch, name) else {
        answer.verdicts = vec![("call", Verdict::Enforced(vec![Layer::Seccomp]))];
        answer.notes.push("this machine has no call of that name; unknown numbers fail with ENOSYS".into());
        return answer;
    };
    let cases = match &found.answer {
        seccomp::Answer::Always(verdict) => std::slice::from_ref(verdict),
        seccomp::Answer::ByArguments(verdicts) => verdicts,
    };
    let refuses = |verdict: &seccomp::Verdict| matches!(verdict, seccomp::Verdict::Errno(_) | seccomp::Verdict::Kill);
    let refused = cases.iter().all(refuses);
    let layers: &[Layer] = if refused { &[Layer::Seccomp] } else { &[] };
    let unfiltered = loss(plan, &[Guarantee::SyscallsFiltered]);
    let verdict = match unfiltered {
        Some(reason) if refused => Verdict::NotEnforced(reason),
        _ => verdict(plan, layers, true, &[]),
    };
    answer.verdicts = vec![("call", verdict)];
    let mut words: Vec<String> = Vec::new();
    for word in cases.iter().map(call_words) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    match words.as_slice() {
        [always] if found.reason.is_some() => answer.notes.push(format!("it {always}")),
        [_] | [] => {}
        several => answer.notes.push(format!("by its arguments it {}", several.join(", or "))),
    }
    answer.rule = found.reason.map(|reason| Rule { text: reason.into(), origin: Origin::Derived("built in".into()) });
    answer.allow = cases.iter().any(refuses).then(|| opening(&plan.seccomp, arch, name, &found.answer));
    answer
}

fn call_words(verdict: &seccomp::Verdict) -> String {
    match verdict {
        seccomp::Verdict::Allow => "goes to the kernel".into(),
        seccomp::Verdict::Errno(errno) => format!("fails with {errno:?}"),
        seccomp::Verdict::Notify => "is checked and made by the sandbox's broker".into(),
        seccomp::Verdict::Kill => "kills the process".into(),
    }
}

/// The option of a profile that changes the answer.
fn opening(plan: &SeccompPlan, arch: Arch, name: &str, now: &seccomp::Answer) -> String {
    let options = [
        ("nested-sandbox", SeccompPlan { nested_sandbox: true, ..plan.clone() }),
        ("unix-datagram", SeccompPlan { unix_datagram: true, ..plan.clone() }),
    ];
    options
        .iter()
        .find(|(_, with)| seccomp::explain(with, arch, name).is_some_and(|found| found.answer != *now))
        .map_or("no option of a policy opens it".into(), |(option, _)| format!("{option} = true under [kernel] in a profile"))
}

/// Does a variable of the caller go in? `value` is what the caller has; the answer never shows it.
pub fn explain_env(rules: &EnvironmentRules, name: &OsStr, value: Option<&OsStr>) -> Answer {
    let mut answer = Answer::new(ospath::escaped(Path::new(name)));
    let decided = environment::decide(rules, name, value.unwrap_or_default());
    let verdict = if decided.is_ok() { Verdict::Allowed } else { Verdict::Enforced(vec![Layer::Environment]) };
    answer.verdicts = vec![("pass", verdict)];
    let text = match decided {
        Ok(Grant::Explicit) => "it is named by --env, so it passes whatever it holds".into(),
        Ok(Grant::Known) => "it is well known to be harmless".into(),
        Ok(Grant::Allowed) => "the policy allows it".into(),
        Err(reason) => reason.describe(),
    };
    answer.rule = Some(Rule { text, origin: Origin::Derived("environment rules".into()) });
    answer.allow = match decided {
        Ok(_) | Err(Reason::Nameless | Reason::Duplicate) => None,
        Err(Reason::Denied) => Some("a profile whose [environment] deny does not match it; --env cannot".into()),
        Err(_) => Some(format!("--env {}", quoted(&answer.subject))),
    };
    if value.is_none() {
        answer.notes.push("the caller does not have it now".into());
    }
    answer
}

/// What the plan makes of a host path.
struct Sight {
    /// Layers that refuse reading; empty when it is possible.
    read: Vec<Layer>,
    /// Layers that refuse writing.
    write: Vec<Layer>,
    /// Something of the sandbox's own stands there.
    own: bool,
    note: Option<String>,
}

fn sight(plan: &Plan, path: &Path) -> Sight {
    let mut sight = Sight { read: Vec::new(), write: Vec::new(), own: false, note: None };
    let mut seen_at = path.to_owned();
    if !plan.mounts.is_empty() {
        match exposure(&plan.mounts, path) {
            Some((inside, writable)) => {
                if inside != path {
                    sight.note = Some(format!("inside it is {}", ospath::escaped(&inside)));
                }
                seen_at = inside;
                if !writable {
                    sight.write.push(Layer::Mounts);
                }
            }
            None => {
                match top(&plan.mounts, path) {
                    Some(MountStep::Private { target, writable: true, .. }) => {
                        sight.own = true;
                        sight.note =
                            Some(format!("{} is a private directory inside; the host's is not there", ospath::escaped(target)));
                    }
                    Some(MountStep::Proc | MountStep::Dev { .. }) => {
                        sight.own = true;
                        sight.note = Some("the sandbox has its own here".into());
                    }
                    _ => {}
                }
                // What stands there instead is the sandbox's; the host's file is out of reach.
                sight.read.push(Layer::Mounts);
                sight.write.push(Layer::Mounts);
            }
        }
    }
    if let Some(landlock) = plan.landlock.as_ref().filter(|landlock| landlock.handle_files) {
        let rights = || landlock.paths.iter().filter(|rule| seen_at.starts_with(&rule.path)).map(|rule| rule.rights);
        if !rights().any(|rights| matches!(rights, PathRights::Read | PathRights::Write | PathRights::Device)) {
            sight.read.push(Layer::Landlock);
        }
        if !rights().any(|rights| matches!(rights, PathRights::Write | PathRights::Device)) {
            sight.write.push(Layer::Landlock);
        }
    }
    sight
}

/// Where the mounts show a host path inside, and may it be written there?
fn exposure(mounts: &[MountStep], path: &Path) -> Option<(PathBuf, bool)> {
    mounts.iter().find_map(|step| {
        let (source, target, writable, whiteouts): (_, _, _, &[PathBuf]) = match step {
            MountStep::Bind { source, target, writable, .. } => (source, target, *writable, &[]),
            MountStep::Overlay { source, target, whiteouts, .. } => (source, target, true, whiteouts),
            _ => return None,
        };
        let below = path.strip_prefix(&source.path).ok()?;
        if whiteouts.iter().any(|gone| below.starts_with(gone)) {
            return None;
        }
        let inside = if below.as_os_str().is_empty() { target.clone() } else { target.join(below) };
        std::ptr::eq(top(mounts, &inside)?, step).then_some((inside, writable))
    })
}

/// The step that made what stands at `path` inside: the deepest, and of equals the last.
fn top<'a>(mounts: &'a [MountStep], path: &Path) -> Option<&'a MountStep> {
    mounts
        .iter()
        .filter(|step| match step {
            // These make one entry in the file system that they stand in and cover nothing.
            MountStep::Directory { .. } | MountStep::Symlink { .. } => false,
            _ => path.starts_with(step.target()),
        })
        .max_by_key(|step| step.target().components().count())
}

fn verdict(plan: &Plan, layers: &[Layer], allowed: bool, promises: &[Guarantee]) -> Verdict {
    if !layers.is_empty() {
        Verdict::Enforced(layers.to_vec())
    } else if allowed {
        Verdict::Allowed
    } else {
        Verdict::NotEnforced(loss(plan, promises).unwrap_or_else(|| "no layer of this plan covers it".into()))
    }
}

/// Why one of these guarantees is lost or weakened.
fn loss(plan: &Plan, guarantees: &[Guarantee]) -> Option<String> {
    plan.lost
        .iter()
        .chain(&plan.weakened)
        .find(|lost| guarantees.contains(&lost.guarantee))
        .map(|lost| format!("{}: {}", lost.guarantee, lost.reason))
}

/// As [`Policy::rule_for`], seeing through the symlinks that the survey knows.
fn deciding_rule<'a>(policy: &'a Policy, survey: &Survey, path: &Path, real: &Path) -> Option<&'a FileRule> {
    policy
        .files
        .iter()
        .filter_map(|rule| {
            let place = survey.real(&rule.path);
            let lexical = path.starts_with(&rule.path).then(|| rule.path.components().count());
            let actual = real.starts_with(place).then(|| place.components().count());
            Some((rule, lexical.max(actual)?))
        })
        .max_by_key(|(rule, depth)| (rule.access == Access::Hidden, *depth, rule.access))
        .map(|(rule, _)| rule)
}

fn rule_words(survey: &Survey, rule: &FileRule) -> String {
    let real = survey.real(&rule.path);
    let leads = if real == rule.path { String::new() } else { format!(", which leads to {}", ospath::escaped(real)) };
    format!("{} {}{leads}", access_word(rule.access), ospath::escaped(&rule.path))
}

fn rule_path(rule: Option<&FileRule>) -> String {
    rule.map(|rule| quoted(&ospath::escaped(&rule.path))).unwrap_or_default()
}

fn access_word(access: Access) -> &'static str {
    match access {
        Access::Hidden => "hide",
        Access::Read => "read",
        Access::Write => "write",
        Access::Overlay => "copy-on-write",
    }
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%~".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
