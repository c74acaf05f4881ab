//! Where pointers may lead, and which installation a program belongs to.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// What is known of the trees around.
pub struct Ground<'a> {
    /// The caller's home.
    pub home: Option<&'a Path>,
    /// Is this path outside everything that the sandbox may write?
    pub trusted: &'a dyn Fn(&Path) -> bool,
    /// May the sandbox read this path anyway?
    pub granted: &'a dyn Fn(&Path) -> bool,
}

impl fmt::Debug for Ground<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ground").field("home", &self.home).finish_non_exhaustive()
    }
}

/// What becomes of a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// It leads to what may be read anyway.
    Granted,
    /// What it leads to is granted.
    Grant,
    /// It gives nothing.
    Refused,
}

/// Decides where a pointer may lead. `target` is free of symlinks; `trusted` says that neither the pointer nor anything
/// on the way to it can be written by the sandbox.
pub fn landing(trusted: bool, target: &Path, granted: bool, home: Option<&Path>) -> Landing {
    let climbs = target.components().any(|component| component == Component::ParentDir);
    if granted {
        Landing::Granted
    } else if !climbs && target.is_absolute() && (trusted || in_toolchain(target, home)) {
        Landing::Grant
    } else {
        Landing::Refused
    }
}

/// Trees of programs that no user's secrets live in.
const SYSTEM: [&str; 10] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/etc/alternatives",
    "/home/linuxbrew/.linuxbrew",
];

/// What belongs to a program of a version manager. Paths are relative to home.
enum Extent {
    /// The first directories below the root: one version.
    Below(usize),
    /// These.
    These(&'static [&'static str]),
}

/// Roots of version managers and what a program below one needs.
const MANAGERS: &[(&str, Extent)] = &[
    (".pyenv", Extent::These(&[".pyenv"])),
    (".rbenv", Extent::These(&[".rbenv"])),
    (".nodenv", Extent::These(&[".nodenv"])),
    (".asdf", Extent::These(&[".asdf"])),
    (".volta", Extent::These(&[".volta"])),
    (".local/share/mise", Extent::These(&[".local/share/mise"])),
    (".local/share/uv/python", Extent::Below(1)),
    (".local/share/uv/tools", Extent::Below(1)),
    (".local/share/pipx/venvs", Extent::Below(1)),
    (".local/pipx/venvs", Extent::Below(1)),
    (".local/share/fnm/node-versions", Extent::Below(1)),
    (".nvm/versions/node", Extent::Below(1)),
    (".rye/py", Extent::Below(1)),
    (".sdkman/candidates", Extent::Below(2)),
    (".rustup/toolchains", Extent::Below(1)),
    // The programs there are rustup under other names, which reads its settings to find the toolchain.
    (".cargo/bin", Extent::These(&[".cargo/bin", ".rustup/toolchains", ".rustup/settings.toml"])),
    (".bun", Extent::These(&[".bun/bin", ".bun/install/global"])),
    (".deno/bin", Extent::Below(0)),
    ("go/bin", Extent::Below(0)),
    ("miniconda3", Extent::Below(0)),
    ("miniforge3", Extent::Below(0)),
    ("anaconda3", Extent::Below(0)),
];

/// Needed by what lies in `~/.local/bin`, which is everybody's: not a root that a hostile pointer may choose from.
const LOCAL_BIN: (&str, &[&str]) =
    (".local/bin", &[".local/lib", ".local/share/uv/tools", ".local/share/uv/python", ".local/share/pipx", ".local/pipx"]);

/// What an installation prefix that nobody knows consists of; its other directories are not a program's business.
const PARTS: [&str; 6] = ["bin", "lib", "lib64", "libexec", "share", "include"];

fn manager<'a>(path: &'a Path, home: Option<&Path>) -> Option<(&'a Path, &'static str, &'static Extent)> {
    let below_home = path.strip_prefix(home?).ok()?;
    MANAGERS.iter().find_map(|(root, extent)| Some((below_home.strip_prefix(root).ok()?, *root, extent)))
}

fn in_toolchain(path: &Path, home: Option<&Path>) -> bool {
    SYSTEM.iter().any(|root| path.starts_with(root)) || manager(path, home).is_some()
}

impl Ground<'_> {
    /// Is this too much to grant for the sake of a program: the root, a directory above home, or home itself?
    pub(super) fn is_broad(&self, path: &Path) -> bool {
        let shared = ["/", "/home", "/root", "/etc", "/var", "/srv", "/mnt", "/media", "/tmp", "/run", "/proc", "/sys", "/dev"];
        shared.iter().any(|broad| path == Path::new(broad)) || self.home.is_some_and(|home| home.starts_with(path))
    }

    /// Directories that the program at `real`, free of symlinks, needs beside itself. They need not exist.
    pub(super) fn installation(&self, real: &Path) -> Vec<PathBuf> {
        if let Some(packages) = outermost(real, "node_modules") {
            return vec![packages];
        }
        for store in ["/nix/store", "/gnu/store"] {
            if real.starts_with(store) {
                return vec![store.into()];
            }
        }
        if let (Some(home), Some((below, root, extent))) = (self.home, manager(real, self.home)) {
            return match extent {
                Extent::These(paths) => paths.iter().map(|path| home.join(path)).collect(),
                Extent::Below(depth) => vec![below.components().take(*depth).fold(home.join(root), |path, part| path.join(part))],
            };
        }
        if let Some(home) = self.home
            && real.parent() == Some(&home.join(LOCAL_BIN.0))
        {
            return LOCAL_BIN.1.iter().map(|path| home.join(path)).collect();
        }
        let Some(prefix) = real.parent().filter(|bin| bin.ends_with("bin")).and_then(Path::parent) else { return Vec::new() };
        let system = [Path::new("/"), Path::new("/usr"), Path::new("/usr/local")];
        if system.contains(&prefix) || self.is_broad(prefix) {
            return Vec::new();
        }
        // A Java home keeps its settings beside `lib`.
        if prefix.join("release").is_file() && prefix.join("lib").is_dir() {
            return vec![prefix.to_owned()];
        }
        if !(prefix.join("lib").is_dir() || prefix.join("lib64").is_dir() || prefix.join("libexec").is_dir()) {
            return Vec::new();
        }
        PARTS.iter().map(|part| prefix.join(part)).collect()
    }
}

/// `path` up to the first directory of that name.
fn outermost(path: &Path, name: &str) -> Option<PathBuf> {
    let mut parts = path.components();
    let mut up_to = PathBuf::new();
    parts.by_ref().find(|part| {
        up_to.push(part);
        part.as_os_str() == OsStr::new(name)
    })?;
    Some(up_to)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Option<&Path> = None;

    fn hostile(target: &str) -> Landing {
        landing(false, Path::new(target), false, Some(Path::new("/home/u")))
    }

    #[test]
    fn a_hostile_pointer_lands_in_toolchains_only() {
        for target in
            ["/usr/bin/python3", "/opt/py/bin/python", "/nix/store/x/bin/sh", "/home/u/.pyenv/versions/3.11.7/bin/python3.11"]
        {
            assert_eq!(hostile(target), Landing::Grant, "{target}");
        }
        for target in [
            "/etc/shadow",
            "/home/u/.ssh/id_ed25519",
            "/home/u",
            "/",
            "/home/u/other/bin/tool",
            "/home/u/.local/bin/tool",
            "/home/v/.pyenv/versions/3/bin/python",
            "/usr/../home/u/.ssh/id_ed25519",
            "/usrlocal/x",
            "/home/u/.pyenv-secret",
            "usr/bin/python3",
        ] {
            assert_eq!(hostile(target), Landing::Refused, "{target}");
        }
    }

    #[test]
    fn trust_and_grants() {
        assert_eq!(landing(true, Path::new("/home/u/tool"), false, HOME), Landing::Grant);
        assert_eq!(landing(false, Path::new("/home/u/work/tool"), true, HOME), Landing::Granted);
        assert_eq!(landing(false, Path::new("/home/u/tool"), false, HOME), Landing::Refused);
    }

    #[test]
    fn installations() {
        let home = Path::new("/home/u");
        let ground = Ground { home: Some(home), trusted: &|_| true, granted: &|_| false };
        let of = |path: &str| ground.installation(Path::new(path));
        assert_eq!(of("/home/u/.nvm/versions/node/v22.1.0/bin/node"), [home.join(".nvm/versions/node/v22.1.0")]);
        assert_eq!(of("/home/u/.local/lib/node_modules/a/node_modules/b/cli.js"), [home.join(".local/lib/node_modules")]);
        assert_eq!(of("/home/u/.sdkman/candidates/java/21/bin/java"), [home.join(".sdkman/candidates/java/21")]);
        assert_eq!(of("/nix/store/abc-git/bin/git"), [Path::new("/nix/store")]);
        assert_eq!(of("/home/u/bin/tool"), Vec::<PathBuf>::new());
        assert_eq!(of("/usr/bin/true"), Vec::<PathBuf>::new());
    }

    #[test]
    fn broad_directories() {
        let ground = Ground { home: Some(Path::new("/home/u")), trusted: &|_| true, granted: &|_| false };
        for path in ["/", "/home", "/home/u", "/tmp"] {
            assert!(ground.is_broad(Path::new(path)), "{path}");
        }
        assert!(!ground.is_broad(Path::new("/home/u/bin")));
    }
}
