//! Policy files: read here, and read again there from what was read here.
//!
//! A policy is resolved on both sides from the same files. Those of the user (`config.toml`, profiles, what is trusted) are
//! here alone. The project's own file lies in the workspace, and so there; it counts only when it is trusted here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use hermes_profiles::project::{PROJECT_FILE, TRUST_FILE};
use hermes_profiles::{Caller, Files};
use serde::{Deserialize, Serialize};

use crate::request::Disk;

/// What was read here.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bundle {
    /// Below the user's configuration directory, wherever that is.
    config: BTreeMap<PathBuf, Vec<u8>>,
    /// At a place that the caller or a profile names.
    named: BTreeMap<PathBuf, Vec<u8>>,
    trust: Option<Vec<u8>>,
}

/// Reads files here, and keeps what it read.
pub(crate) struct Recorder<'a> {
    caller: &'a Caller,
    /// The project's own file on the other side, and what it holds, once that is known.
    project: PathBuf,
    content: Option<Vec<u8>>,
    read: RefCell<Bundle>,
}

impl<'a> Recorder<'a> {
    /// For a workspace on the other side.
    pub(crate) fn new(caller: &'a Caller, workspace: &Path, project: Option<Vec<u8>>) -> Self {
        let trust = caller.state_dir.as_ref().and_then(|dir| Disk.read(&dir.join(TRUST_FILE)).ok());
        let read = RefCell::new(Bundle { trust, ..Bundle::default() });
        Self { caller, project: workspace.join(PROJECT_FILE), content: project, read }
    }

    pub(crate) fn into_bundle(self) -> Bundle {
        self.read.into_inner()
    }
}

impl Files for Recorder<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path == self.project {
            return self.content.clone().ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let content = Disk.read(path)?;
        let mut read = self.read.borrow_mut();
        match self.caller.config_dir.as_ref().and_then(|dir| path.strip_prefix(dir).ok()) {
            Some(below) => _ = read.config.insert(below.to_owned(), content.clone()),
            None => _ = read.named.insert(path.to_owned(), content.clone()),
        }
        Ok(content)
    }
}

/// Reads what was read on the other side, and the project's own file.
pub(crate) struct Replay<'a> {
    bundle: &'a Bundle,
    caller: &'a Caller,
    project: PathBuf,
    seen: RefCell<Option<Vec<u8>>>,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(bundle: &'a Bundle, caller: &'a Caller, workspace: &Path) -> Self {
        Self { bundle, caller, project: workspace.join(PROJECT_FILE), seen: RefCell::default() }
    }

    /// The project's own file, if there is one.
    pub(crate) fn into_project(self) -> Option<Vec<u8>> {
        self.seen.into_inner()
    }
}

impl Files for Replay<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path == self.project {
            let content = Disk.read(path)?;
            self.seen.replace(Some(content.clone()));
            return Ok(content);
        }
        let below = |dir: &Option<PathBuf>| dir.as_ref().and_then(|dir| path.strip_prefix(dir).ok());
        let found = match (below(&self.caller.config_dir), below(&self.caller.state_dir)) {
            // Never those of this machine: one policy, of one place.
            (Some(config), _) => self.bundle.config.get(config),
            (_, Some(state)) if state == Path::new(TRUST_FILE) => self.bundle.trust.as_ref(),
            _ => self.bundle.named.get(path),
        };
        found.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hermes_profiles::{Request, resolve};

    #[test]
    fn a_policy_is_the_same_from_the_files_of_here() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let (home, far_home) = (here.path().join("home"), there.path().join("home"));
        write(home.join(".config/hermes-sandbox/config.toml"), "default = \"mine\"\n");
        let profile = "schema = 1\nincludes = [\"agent\", \"more\"]\n";
        write(home.join(".config/hermes-sandbox/profiles/mine.toml"), profile);
        let more = "schema = 1\nincludes = []\n[[network.route]]\nhost = \"a.example.test\"\n[[network.route]]\nhost = \"b.example.test\"\n";
        write(home.join(".config/hermes-sandbox/profiles/more.toml"), more);
        // What lies there is not asked.
        write(far_home.join(".config/hermes-sandbox/profiles/more.toml"), "nonsense");
        let workspace = far_home.join("ws");
        let project = "schema = 1\n[network]\nmode = \"off\"\n";
        write(workspace.join(PROJECT_FILE), project);
        let mut trust = hermes_profiles::trust::Trust::default();
        trust.add(project.as_bytes(), Path::new("/elsewhere"));
        write(home.join(".local/state/hermes-sandbox/trust"), &String::from_utf8(trust.format()).unwrap());

        let caller = |home: &Path| Caller::from_variables(home.to_owned(), vec![("HOME".into(), home.into())]);
        let (near, far) = (caller(&home), caller(&far_home));
        let request =
            |caller: &Caller| Request { workspace: Some(workspace.clone()), caller: caller.clone(), ..Request::default() };
        let recorder = Recorder::new(&near, &workspace, None);
        let first = resolve(&request(&near), &recorder).unwrap().policy;
        assert_eq!((first.profile.as_str(), first.routes().len()), ("mine", 2));
        let bundle = recorder.into_bundle();
        let replay = Replay::new(&bundle, &far, &workspace);
        let theirs = resolve(&request(&far), &replay).unwrap().policy;
        assert_eq!((theirs.profile.as_str(), theirs.routes().len()), ("mine", 0), "trusted here");
        let seen = replay.into_project();
        assert_eq!(seen.as_deref(), Some(project.as_bytes()));
        let again = resolve(&request(&near), &Recorder::new(&near, &workspace, seen)).unwrap().policy;
        assert_eq!(again.routes().len(), 0);
    }
}
