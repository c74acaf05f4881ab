//! A machine made of a map.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use hermes_profiles::{Access, Caller, Files, Policy, PolicyError, Request, Resolved, resolve};

pub const HOME: &str = "/home/user";
pub const WORK: &str = "/home/user/project";
pub const CONFIG: &str = "/home/user/.config/hermes-sandbox";
pub const STATE: &str = "/home/user/.local/state/hermes-sandbox";

/// Files by path.
#[derive(Debug, Clone, Default)]
pub struct Memory(pub BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    pub fn with(mut self, path: impl Into<PathBuf>, content: impl AsRef<[u8]>) -> Self {
        self.0.insert(path.into(), content.as_ref().to_vec());
        self
    }

    pub fn profile(self, name: &str, content: &str) -> Self {
        self.with(format!("{CONFIG}/profiles/{name}.toml"), content)
    }
}

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

pub fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

pub fn caller(pairs: &[(&str, &str)]) -> Caller {
    let mut all = vec![("HOME", HOME), ("PATH", "/usr/local/bin:/usr/bin:/bin")];
    all.extend_from_slice(pairs);
    Caller::from_variables(WORK.into(), variables(&all))
}

pub fn request(profile: &str) -> Request {
    Request { profile: Some(profile.into()), caller: caller(&[]), ..Request::default() }
}

pub fn policy(request: &Request, files: &Memory) -> Policy {
    resolve(request, files).map_err(|error| error.to_string()).unwrap().policy
}

pub fn notices(request: &Request, files: &Memory) -> Vec<String> {
    resolve(request, files).map_err(|error| error.to_string()).unwrap().notices
}

pub fn error(request: &Request, files: &Memory) -> String {
    message(resolve(request, files))
}

pub fn message(result: Result<Resolved, PolicyError>) -> String {
    let text = result.expect_err("an error is expected").to_string();
    assert!(!text.contains('\n'), "more than one line: {text}");
    text
}

/// A policy from the text of a profile of the user.
pub fn written(text: &str) -> Result<Resolved, PolicyError> {
    resolve(&request("mine"), &Memory::default().profile("mine", text))
}

/// What may be done with a path; `None` when nothing grants it.
pub fn access(policy: &Policy, path: &str) -> Option<Access> {
    policy.rule_for(Path::new(path)).map(|rule| rule.access)
}
