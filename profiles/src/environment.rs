//! Which variables of the caller go in.
//!
//! A variable goes in when it is named explicitly (`--env NAME`), or when it is well known to be harmless or allowed by the
//! policy *and* survives the scrub: no variable that makes programs run code, no socket of an agent, no name that means a
//! credential, no value that looks like one. The scrub is a second net under the allowlist, not the boundary.

mod names;
mod shapes;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::merge::is_broad;
use crate::paths::normalise;
use crate::policy::EnvironmentRules;
use crate::request::Caller;

/// The variables of a sandbox, and what was left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// The whole environment of the sandbox: what passed, in the caller's order; then what the policy sets.
    pub passed: Vec<(OsString, OsString)>,
    /// Names that stay out, each with the reason, in the caller's order.
    pub dropped: Vec<(OsString, Reason)>,
}

impl Environment {
    fn has(&self, name: &OsStr) -> bool {
        self.passed.iter().any(|(known, _)| known == name) || self.dropped.iter().any(|(known, _)| known == name)
    }
}

/// Why a variable goes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Grant {
    /// Named by `--env`.
    Explicit,
    /// Well known to be harmless.
    Known,
    /// Allowed by the policy.
    Allowed,
}

/// Why a variable stays out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Neither well known nor allowed by the policy.
    NotAllowed,
    /// On the policy's `deny` list.
    Denied,
    /// It makes other programs run code.
    CodeInjection,
    /// It leads to a socket that does the caller's work: an agent, a bus, a display, a container engine.
    AgentSocket,
    /// A word of its name means a credential.
    CredentialName,
    /// Its value looks like a credential of this kind.
    CredentialValue(&'static str),
    /// The sandbox has a value of its own.
    Replaced,
    /// The same name was there before.
    Duplicate,
    /// Not something that a program could ask for: the name is empty.
    Nameless,
}

impl Reason {
    /// Half a sentence for people, e.g. `its name means a credential`.
    pub fn describe(self) -> String {
        match self {
            Self::NotAllowed => "not among the well-known variables nor allowed by the policy".into(),
            Self::Denied => "denied by the policy".into(),
            Self::CodeInjection => "it makes other programs run code".into(),
            Self::AgentSocket => "it leads to a service of the caller".into(),
            Self::CredentialName => "its name means a credential".into(),
            Self::CredentialValue(kind) => format!("its value looks like {kind}"),
            Self::Replaced => "the sandbox has a value of its own".into(),
            Self::Duplicate => "the same name came before".into(),
            Self::Nameless => "it has no name".into(),
        }
    }
}

/// Does the variable go in? The whole answer but for duplicates.
pub fn decide(rules: &EnvironmentRules, name: &OsStr, value: &OsStr) -> Result<Grant, Reason> {
    let bytes = name.as_bytes();
    if bytes.is_empty() {
        return Err(Reason::Nameless);
    }
    if denied(rules, bytes) {
        return Err(Reason::Denied);
    }
    if name.to_str().is_some_and(|name| rules.explicit.contains(name)) {
        return Ok(Grant::Explicit);
    }
    if bytes == b"TMPDIR" || name.to_str().is_some_and(|name| rules.set.contains_key(name)) {
        return Err(Reason::Replaced);
    }
    if names::injects_code(bytes) {
        return Err(Reason::CodeInjection);
    }
    if names::leads_to_agent(bytes) {
        return Err(Reason::AgentSocket);
    }
    if names::means_credential(bytes) {
        return Err(Reason::CredentialName);
    }
    let grant = if names::is_known(bytes) {
        Grant::Known
    } else if rules.allow.iter().any(|pattern| matches(pattern, bytes)) {
        Grant::Allowed
    } else {
        return Err(Reason::NotAllowed);
    };
    if names::holds_program(bytes, value.as_bytes()) {
        return Err(Reason::CodeInjection);
    }
    match shapes::credential(value.as_bytes(), names::is_locale(bytes)) {
        Some(kind) => Err(Reason::CredentialValue(kind)),
        None => Ok(grant),
    }
}

/// An entry of an environment block, environ(7); `None` for what has no name or no value.
pub fn variable(entry: &[u8]) -> Option<(OsString, OsString)> {
    let at = entry.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some((OsStr::from_bytes(&entry[..at]).to_owned(), OsStr::from_bytes(&entry[at + 1..]).to_owned()))
}

/// The sandbox's environment, made of the caller's variables. `TMPDIR` is `/tmp` unless it is set or named explicitly.
pub fn filter(rules: &EnvironmentRules, variables: impl Iterator<Item = (OsString, OsString)>) -> Environment {
    let mut environment = Environment::default();
    // A bit for each hash spares almost every search for a name that came before.
    let mut seen = [0_u64; 64];
    for (name, value) in variables {
        let hash = names::hash(name.as_bytes());
        let (word, bit) = (&mut seen[hash as usize % 64], 1 << (hash >> 58));
        let duplicate = *word & bit != 0 && environment.has(&name);
        *word |= bit;
        match if duplicate { Err(Reason::Duplicate) } else { decide(rules, &name, &value) } {
            Ok(_) => environment.passed.push((name, value)),
            Err(reason) => environment.dropped.push((name, reason)),
        }
    }
    let passed = |environment: &Environment, name: &str| environment.passed.iter().any(|(known, _)| known.as_os_str() == name);
    for (name, value) in &rules.set {
        if !denied(rules, name.as_bytes()) && !passed(&environment, name) {
            environment.passed.push((name.into(), value.into()));
        }
    }
    if !passed(&environment, "TMPDIR") {
        environment.passed.push(("TMPDIR".into(), "/tmp".into()));
    }
    environment
}

/// Does a variable of this name, read from a file by tools of the host, put code before programs, choose them, or lead what
/// they send elsewhere?
pub(crate) fn steers_tools(name: &str) -> bool {
    names::injects_code(name.as_bytes()) || names::leads_to_agent(name.as_bytes()) || names::steers(name.as_bytes())
}

/// Is the name on the policy's `deny` list?
pub(crate) fn denied(rules: &EnvironmentRules, name: &[u8]) -> bool {
    rules.deny.iter().any(|pattern| matches(pattern, name))
}

/// Does `pattern`, a name with at most one `*`, match?
fn matches(pattern: &str, name: &[u8]) -> bool {
    match pattern.split_once('*') {
        None => pattern.as_bytes() == name,
        Some((head, tail)) => {
            name.len() >= head.len() + tail.len() && name.starts_with(head.as_bytes()) && name.ends_with(tail.as_bytes())
        }
    }
}

/// The unix socket that a variable of this name is known to lead to.
pub(crate) fn socket_of(name: &str, value: &OsStr, caller: &Caller) -> Option<PathBuf> {
    let bytes = value.as_bytes();
    let path = match name {
        "SSH_AUTH_SOCK" => bytes.to_vec(),
        "GPG_AGENT_INFO" => bytes.split(|b| *b == b':').next()?.to_vec(),
        "DOCKER_HOST" | "CONTAINER_HOST" => bytes.strip_prefix(b"unix://")?.to_vec(),
        "DBUS_SESSION_BUS_ADDRESS" | "DBUS_SYSTEM_BUS_ADDRESS" => bytes.split(|b| *b == b';').find_map(bus_path)?,
        "WAYLAND_DISPLAY" => {
            let dir = caller.variable("XDG_RUNTIME_DIR").map(Path::new).unwrap_or(Path::new(""));
            dir.join(value).into_os_string().into_vec()
        }
        _ => return None,
    };
    let path = PathBuf::from(OsString::from_vec(path));
    let path = Some(path).filter(|path| path.is_absolute()).map(|path| normalise(&path))?;
    // A socket is a leaf: a value that names the root or the home would open all of it.
    (!is_broad(&path, caller.home.as_deref()) && !path.as_os_str().as_bytes().contains(&0)).then_some(path)
}

/// The path in one address of a D-Bus server list, with its `%xx` undone.
fn bus_path(address: &[u8]) -> Option<Vec<u8>> {
    let keys = address.strip_prefix(b"unix:")?;
    let path = keys.split(|b| *b == b',').find_map(|pair| pair.strip_prefix(b"path="))?;
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            out.push(*byte);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests;
