//! `explain`: the answers of [`hermes_backends::explain`] in words.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hermes_backends::explain::{self, Answer, Certainty, Verdict};
use hermes_backends::local::seccomp::Arch;

use crate::args::{Explain, ExplainArgs};
use crate::engine;
use crate::error::Error;
use crate::guard_rules;
use crate::network;
use crate::output::{self, clean};
use crate::policy;
use crate::prepare::{self, Prepared};
use crate::session::protocol::Subject;

/// Answers and returns the exit status, which is 0 whatever the answer is.
pub(crate) fn explain(what: Explain) -> Result<u8, Error> {
    let (args, answer) = match what {
        Explain::Path { path, explain } => {
            let answer = path_in(&path, &mut prepare::prepare(&explain.policy, &[])?);
            (explain, answer)
        }
        Explain::Host { host, explain } => {
            let (name, port) = host_and_port(&host)?;
            let prepared = prepare::prepare(&explain.policy, &[])?;
            let answer = host_in(name, port, &prepared)?;
            (explain, answer)
        }
        Explain::Syscall { name, explain } => {
            let prepared = prepare::prepare(&explain.policy, &[])?;
            let answer = syscall_in(&name, &prepared)?;
            (explain, answer)
        }
        Explain::Env { name, explain } => {
            let answer = env_answer(&name, &explain)?;
            (explain, answer)
        }
        Explain::Guard { path, mut explain } => {
            // Where it is asked does not matter for the list, and nothing is started.
            explain.policy.allow_broad |= path.is_none();
            return guard_answer(path.as_deref(), &explain).map(|()| 0);
        }
        Explain::Policy { explain } => return policy_answer(&explain).map(|()| 0),
    };
    if args.json {
        output::print_json(&answer)?
    } else {
        output::print(&as_text(&answer))?
    }
    Ok(0)
}

/// The answer for a sandbox that lives.
pub(crate) fn about(what: Subject, subject: &str, prepared: &mut Prepared) -> Result<Answer, Error> {
    match what {
        Subject::Path => Ok(path_in(Path::new(subject), prepared)),
        Subject::Host => {
            let (name, port) = host_and_port(subject)?;
            host_in(name, port, prepared)
        }
        Subject::Syscall => syscall_in(subject, prepared),
        Subject::Env => {
            let mine = prepared.caller.variables.iter().find(|(key, _)| key.as_os_str() == subject);
            let mine = mine.map(|(_, value)| value.as_os_str());
            Ok(explain::explain_env(&prepared.policy.environment, OsStr::new(subject), mine))
        }
    }
}

fn host_in(name: &str, port: Option<u16>, prepared: &Prepared) -> Result<Answer, Error> {
    let Prepared { policy, plan, caller, .. } = prepared;
    let proxied = plan.gateway.is_some().then(|| network::foretell(policy, caller, name, port)).transpose()?;
    Ok(explain::explain_host(policy, plan, name, port, proxied))
}

fn syscall_in(name: &str, prepared: &Prepared) -> Result<Answer, Error> {
    let arch = Arch::NATIVE.ok_or_else(|| Error::setup("the system calls of this architecture are not known"))?;
    Ok(explain::explain_syscall(&prepared.plan, arch, name))
}

fn path_in(path: &Path, prepared: &mut Prepared) -> Answer {
    let home = prepared.caller.home.as_deref();
    let path = absolute(path, &prepared.caller.cwd, home);
    engine::survey_also(&mut prepared.survey, &[&path]);
    let mut answer = explain::explain_path(&prepared.policy, &prepared.plan, &prepared.survey, &path);
    answer.notes.extend(guard_rules::about(&prepared.policy, &path, |path| path.canonicalize().ok()).note());
    answer
}

/// `path` from the root, without `.` and `..`; a leading `~` that no shell has replaced is the home directory.
fn absolute(path: &Path, cwd: &Path, home: Option<&Path>) -> PathBuf {
    let path = match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => cwd.join(path),
    };
    hermes_profiles::paths::normalise(&path)
}

fn env_answer(name: &str, args: &ExplainArgs) -> Result<Answer, Error> {
    let (caller, resolved) = prepare::policy(&args.policy)?;
    let mine = caller.variables.iter().find(|(key, _)| key.as_os_str() == name).map(|(_, value)| value.as_os_str());
    Ok(explain::explain_env(&resolved.policy.environment, OsStr::new(name), mine))
}

fn guard_answer(path: Option<&Path>, args: &ExplainArgs) -> Result<(), Error> {
    let (caller, resolved) = prepare::policy(&args.policy)?;
    let policy = &resolved.policy;
    match path {
        None if args.json => output::print_json(&guard_rules::all(policy)),
        None => output::print(&guard_rules::as_table(policy)),
        Some(path) => {
            let path = absolute(path, &caller.cwd, caller.home.as_deref());
            let answer = guard_rules::about(policy, &path, |path| path.canonicalize().ok());
            if args.json { output::print_json(&answer) } else { output::print(&answer.as_text()) }
        }
    }
}

fn policy_answer(args: &ExplainArgs) -> Result<(), Error> {
    let (_, resolved) = prepare::policy(&args.policy)?;
    if args.json {
        return output::print_json(&resolved.policy);
    }
    let mut text = policy::as_text(&resolved.policy);
    for notice in &resolved.notices {
        _ = writeln!(text, "\nnote: {}", clean(notice));
    }
    output::print(&text)
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]:PORT` or a bare IPv6 address.
fn host_and_port(text: &str) -> Result<(&str, Option<u16>), Error> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None if text.parse::<std::net::Ipv6Addr>().is_ok() => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port =
        port.map(str::parse::<u16>).transpose().map_err(|_| Error::usage(format!("`{text}` has no port after the colon")))?;
    if host.is_empty() || host.contains(['/', ' ']) {
        return Err(Error::usage(format!("`{text}` is not HOST or HOST:PORT")).hint("give a name without scheme and path"));
    }
    Ok((host, port))
}

fn as_text(answer: &Answer) -> String {
    let mut text = format!("{}\n", clean(&answer.subject));
    for (operation, verdict) in &answer.verdicts {
        let verdict = match verdict {
            Verdict::Allowed => "allowed".to_owned(),
            Verdict::Enforced(layers) => {
                let layers: Vec<_> = layers.iter().map(|layer| layer.words()).collect();
                format!("denied by {}", layers.join(" and by "))
            }
            Verdict::NotEnforced(reason) => format!("denied by the policy, but NOTHING ENFORCES IT: {}", clean(reason)),
        };
        _ = writeln!(text, "  {operation:<8} {verdict}");
    }
    match &answer.rule {
        Some(rule) => _ = writeln!(text, "  rule     {} ({})", clean(&rule.text), clean(&rule.origin.to_string())),
        None => text.push_str("  rule     none names it\n"),
    }
    if let Some(allow) = &answer.allow {
        _ = writeln!(text, "  allow    {}", clean(allow));
    }
    for note in &answer.notes {
        _ = writeln!(text, "  note     {}", clean(note));
    }
    text.push_str(match answer.certainty {
        Certainty::Observed => "  seen to happen\n",
        Certainty::Computed => "  computed from the plan, not tried\n",
        Certainty::Guessed => "  a guess\n",
    });
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hermes_backends::explain::{Layer, Rule};
    use hermes_profiles::Origin;

    #[test]
    fn hosts_and_ports() {
        assert_eq!(host_and_port("a.test").unwrap(), ("a.test", None));
        assert_eq!(host_and_port("a.test:22").unwrap(), ("a.test", Some(22)));
        assert_eq!(host_and_port("[::1]:22").unwrap(), ("::1", Some(22)));
        assert_eq!(host_and_port("::1").unwrap(), ("::1", None));
        for bad in ["", ":22", "a:port", "a:", "https://a", "a/b", "a:99999"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_made_absolute() {
        let home = Some(Path::new("/h"));
        assert_eq!(absolute(Path::new("a/../b/."), Path::new("/w"), home), Path::new("/w/b"));
        assert_eq!(absolute(Path::new("~/.ssh"), Path::new("/w"), home), Path::new("/h/.ssh"));
        assert_eq!(absolute(Path::new("/../.."), Path::new("/w"), home), Path::new("/"));
    }

    #[test]
    fn an_answer_in_words() {
        let answer = Answer {
            subject: "/h/.ssh/id\x1b".into(),
            verdicts: vec![
                ("read", Verdict::Enforced(vec![Layer::Mounts, Layer::Landlock])),
                ("write", Verdict::NotEnforced("why".into())),
            ],
            rule: Some(Rule { text: "hide /h/.ssh".into(), origin: Origin::Builtin("base".into()) }),
            allow: Some("--ro x".into()),
            notes: vec!["n".into()],
            certainty: Certainty::Computed,
        };
        assert_eq!(
            as_text(&answer),
            "/h/.ssh/id\\x1b\n  read     denied by the sandbox's own mounts and by Landlock\n  write    denied by the policy, but \
             NOTHING ENFORCES IT: why\n  rule     hide /h/.ssh (profile base)\n  allow    --ro x\n  note     n\n  computed from the \
             plan, not tried\n"
        );
    }
}
