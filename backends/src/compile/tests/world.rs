//! A file system made of a map, and policies on it.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use hermes_profiles::{
    Access, Caller, EnvironmentRules, FileRule, Files, Home, HomeMode, KernelRules, Limits, Network, Origin, Policy, Request,
    UnixRules,
};

use crate::compile::files::paths_of;
use crate::survey::{Found, Kind, Link, Survey};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Is(Kind),
    Link(PathBuf),
    /// It cannot be looked at, nor what is below.
    Locked,
}

/// Nodes by path; parents are directories unless they say otherwise.
#[derive(Debug, Clone, Default)]
pub(super) struct World(pub(super) BTreeMap<PathBuf, Node>);

impl World {
    /// Adds a node and the directories on the way to it.
    pub(super) fn add(&mut self, path: impl Into<PathBuf>, node: Node) {
        let path = path.into();
        for parent in path.ancestors().skip(1) {
            self.0.entry(parent.to_owned()).or_insert(Node::Is(Kind::Directory));
        }
        self.0.insert(path, node);
    }

    /// One node in each line: `path/` is a directory, `path=` a socket, `path -> to` a symlink, `path!` locked, else a file.
    pub(super) fn with(mut self, lines: &str) -> Self {
        for line in
            lines.split_whitespace().collect::<Vec<_>>().join(" ").replace(" -> ", "->").split(' ').filter(|l| !l.is_empty())
        {
            if let Some((at, to)) = line.split_once("->") {
                self.add(at, Node::Link(to.into()));
            } else if let Some(path) = line.strip_suffix('/') {
                self.add(path, Node::Is(Kind::Directory));
            } else if let Some(path) = line.strip_suffix('=') {
                self.add(path, Node::Is(Kind::Socket));
            } else if let Some(path) = line.strip_suffix('!') {
                self.add(path, Node::Locked);
            } else {
                self.add(line, Node::Is(Kind::File));
            }
        }
        self
    }

    /// As path_resolution(7).
    pub(super) fn find(&self, path: &Path) -> Found {
        let (mut real, mut links) = (PathBuf::from("/"), Vec::new());
        let mut pending: Vec<Component<'_>> = path.components().rev().collect();
        let mut targets = Vec::new();
        while let Some(component) = pending.pop() {
            match component {
                Component::Normal(name) => {
                    let next = real.join(name);
                    match self.0.get(&next) {
                        None => return Found::Absent,
                        Some(Node::Locked) => return Found::Unreadable(nix::libc::EACCES),
                        Some(Node::Is(Kind::Directory)) => real = next,
                        Some(Node::Is(_)) if pending.is_empty() => real = next,
                        Some(Node::Is(_)) => return Found::Absent,
                        Some(Node::Link(_)) if links.len() == 40 => return Found::Unreadable(nix::libc::ELOOP),
                        Some(Node::Link(to)) => {
                            links.push(Link { at: next, to: to.clone() });
                            pending.extend(to.components().rev());
                            targets.push(to);
                        }
                    }
                }
                Component::ParentDir => drop(real.pop()),
                Component::RootDir => real = "/".into(),
                _ => {}
            }
        }
        let Some(Node::Is(kind)) = self.0.get(&real) else { return Found::Absent };
        // The same whatever else is there, so that snapshots stay as they are.
        let ino = real.as_os_str().as_bytes().iter().fold(7, |sum: u64, byte| (sum * 31 + u64::from(*byte)) % 9973);
        Found::Present { kind: *kind, dev: 1, ino, uid: 1000, links, real }
    }

    pub(super) fn survey(&self, policy: &Policy) -> Survey {
        let mut survey = Survey::default();
        for path in paths_of(policy) {
            survey.insert(path, self.find(path));
        }
        survey
    }

    /// Where `path` leads, links followed.
    pub(super) fn real(&self, path: &Path) -> Option<PathBuf> {
        match self.find(path) {
            Found::Present { real, .. } => Some(real),
            _ => None,
        }
    }
}

/// A merged `/usr`, and the home of a user with some tools, some of their caches and some credentials.
pub(super) fn machine() -> World {
    World::default().with(
        "/usr/bin/ /usr/sbin/ /usr/lib/ /usr/lib64/ /usr/local/bin/ /bin -> usr/bin /sbin -> usr/sbin /lib -> usr/lib
         /lib64 -> usr/lib64 /etc/ssl/ /opt/ /tmp/ /var/tmp/ /run/user/1000/ /dev/null /proc/
         /home/u/ws/src/ /home/u/ws/.git/hooks/ /home/u/ws/README
         /home/u/.cargo/bin/ /home/u/.cargo/registry/ /home/u/.cargo/credentials.toml /home/u/.rustup/
         /home/u/.cache/pip/ /home/u/.cache/mozilla/ /home/u/.npm/ /home/u/.local/lib/ /home/u/.nvm -> /opt/nvm /opt/nvm/
         /home/u/.gitconfig -> dotfiles/gitconfig /home/u/dotfiles/gitconfig /home/u/.config/git/ /home/u/.config/gh/
         /home/u/.ssh/id_ed25519 /home/u/.aws/ /home/u/.netrc
         /home/u/.hermes/config.yaml /home/u/.hermes/hooks/ /home/u/.hermes/.env /home/u/.hermes/auth.json
         /home/u/.hermes/platforms/pairing/ /home/u/.claude/ /home/u/.claude.json /home/u/.codex/ /home/u/.gemini/",
    )
}

struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &Path) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

/// A profile that ships, for `/home/u/ws` of the user `u`.
pub(super) fn builtin(profile: &str) -> Policy {
    let variables =
        [("HOME", "/home/u"), ("PATH", "/usr/local/bin:/usr/bin:/bin")].map(|(name, value)| (name.into(), value.into()));
    let caller = Caller::from_variables("/home/u/ws".into(), variables.into());
    let request = Request { profile: Some(profile.into()), caller, ..Request::default() };
    hermes_profiles::resolve(&request, &NoFiles).map_err(|error| error.to_string()).unwrap().policy
}

pub(super) fn rule(text: &str, access: Access) -> FileRule {
    let (path, optional) = text.strip_prefix('?').map_or((text, false), |path| (path, true));
    FileRule { path: path.into(), access, optional: optional || access == Access::Hidden, origin: Origin::Flag("--test".into()) }
}

/// `/home/u/ws` writable, home private, no network, and these rules: `read PATH`, `write ?PATH`, `copy PATH`, `hide PATH`.
pub(super) fn policy(rules: &str) -> Policy {
    let words: Vec<&str> = rules.split_whitespace().collect();
    let files = words.chunks(2).map(|pair| {
        let access = match pair[0] {
            "read" => Access::Read,
            "write" => Access::Write,
            "copy" => Access::Overlay,
            "hide" => Access::Hidden,
            other => panic!("{other}"),
        };
        rule(pair[1], access)
    });
    Policy {
        profile: "test".into(),
        workspace: "/home/u/ws".into(),
        workspace_access: Access::Write,
        home: Home { dir: Some("/home/u".into()), mode: HomeMode::Private },
        files: files.collect(),
        allow_broad: false,
        environment: EnvironmentRules::default(),
        network: Network::Off,
        unknown_hosts: Default::default(),
        loopback: Default::default(),
        unix: UnixRules::default(),
        mcp: hermes_profiles::McpRules::default(),
        docker: hermes_profiles::DockerRules::default(),
        limits: Limits::default(),
        kernel: KernelRules::default(),
        preferred: [].into(),
        accepted: [].into(),
        guard: hermes_profiles::GuardRules::default(),
        places: Vec::new(),
    }
}
