//! Profiles: what a file may say, what it means when it says nothing, and how several become one.
//!
//! A profile is a TOML file. All keys but `schema` may be left out; unknown ones are errors.
//!
//! | key | a missing key means | an empty list means |
//! |---|---|---|
//! | `schema` | error; write `schema = 1` | |
//! | `includes` | `["base"]` (nothing in profiles that ship) | nothing: not even system directories |
//! | `filesystem.workspace` | as included, else `read` | |
//! | `filesystem.home` | as included, else `private` | |
//! | `filesystem.read`, `write`, `overlay`, `cache`, `hide` | as included | nothing more |
//! | `filesystem.guard`, `unguard`, `prevent`, `stage` | as included | nothing more; the rules that ship hold all the same |
//! | `environment.allow`, `deny`, `set` | as included | nothing more |
//! | `network.mode` | as included; `routes` if there are routes, else `off` | |
//! | `network.route.ports` | 443 and 80 | error |
//! | `network.route.methods`, `paths`, `addresses` | any (addresses: any public one) | error |
//! | `network.route.max-body`, `rate`, `secret`, `upstream` | none | |
//! | `unix.connect` | as included | nothing more |
//! | `mcp.tools` | as included, else none | none |
//! | `docker.image`, `platform`, `mounts`, `env` | as included, else none | nothing more |
//! | `docker.pull` | as included, else `never` | |
//! | `limits.*` | as included, else no limit; `grace` 2 s | |
//! | `kernel.*` | as included, else `false` | |
//! | `guarantees.prefer`, `require` | as included | nothing more |
//!
//! # Merging
//!
//! Includes come before the file that names them, in the order in which it names them; each is applied once, where it is met
//! first. A cycle is an error. Then, file by file:
//! - Lists are united, but for `mcp.tools`. The order of files does not matter for `hide`, `guard`, `unguard`, `prevent`, `stage`, `allow`, `deny`,
//!   `connect`, routes, `prefer` and `require`, nor for paths that only one access is named for.
//! - A path for which files name different access has that of the last file; but hidden stays hidden. The flags count as
//!   the last file. In one file this is an error.
//! - `require` wins over `prefer`, `deny` over `allow`, also over `--env`.
//! - `mcp.tools` is one value although it is a list: the last file that names it decides about all of it, so that a profile can
//!   offer less than one that it includes.
//! - Everything else is a scalar: the last file that says something decides. Variables in `set` are scalars by name.
//! - `cache` is `overlay` with a `?` in front of every entry.
//! - Routes that differ in more than their ports stand beside each other. Of the routes for one host and port those with the
//!   narrowest pattern count (a name before a wildcard, a long wildcard before a short one), and any of these may allow.
//!
//! Of two rules about one file the longer path decides, except that a hidden path hides everything below.
//!
//! # Files that host tools obey later
//!
//! Rules ship for them ([`crate::guard`]). `guard` adds to them: globs, `rule:ID` for a rule that only reports, and
//! `class:build` or `class:push` for all such rules with that trigger. `unguard` takes globs and rules (`rule:ID`) out, and is
//! stronger than all the others. `prevent` (globs, `rule:ID`, or `*` for all that is put aside) makes what exists read-only at
//! once. `stage` (globs) makes changes wait for approval. A glob that starts with `~`, `/` or `$` is one from the root of the
//! file system; any other matches at any depth. Each is about all below it, too.
//!
//! How paths are written: [`crate::paths`].

use std::path::{Path, PathBuf};

use crate::builtin;
use crate::error::{PolicyError, suggestion};
use crate::layer::{Layer, Place};
use crate::parse;
use crate::paths::normalise;
use crate::request::{Caller, Files, MAX_FILE};

/// Files that one policy may be made of.
const MAX_LAYERS: usize = 64;

/// A layer in its place.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) place: Place,
    /// Where its relative paths start; `None` is the workspace.
    pub(crate) base: Option<PathBuf>,
    pub(crate) layer: Layer,
}

/// Parses the text of a profile, for `profiles check`. Never panics, whatever the bytes.
pub fn check(path: &Path, bytes: &[u8]) -> Result<Layer, PolicyError> {
    parse_file(path, bytes)
}

pub(crate) fn parse_file(path: &Path, bytes: &[u8]) -> Result<Layer, PolicyError> {
    let place = Place::File(path.to_path_buf());
    if bytes.len() > MAX_FILE {
        return Err(PolicyError::at(place.line(0), format!("larger than {MAX_FILE} bytes; a policy is not that long")));
    }
    parse::layer(&place, bytes)
}

/// The content of a file; `None` when there is none.
pub(crate) fn read(files: &dyn Files, path: &Path) -> Result<Option<Vec<u8>>, PolicyError> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let place = || Place::File(path.to_path_buf()).line(0);
    match files.read(path) {
        Ok(bytes) if bytes.len() <= MAX_FILE => Ok(Some(bytes)),
        Ok(_) => Err(PolicyError::at(place(), format!("larger than {MAX_FILE} bytes"))),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
        Err(error) => Err(PolicyError::at(place(), format!("cannot be read: {error}"))),
    }
}

/// Is this the name of a file, not of a profile?
pub(crate) fn is_file(profile: &str) -> bool {
    profile.contains('/') || profile.ends_with(".toml")
}

/// `profile` and everything that it includes, includes first.
pub(crate) fn load(profile: &str, caller: &Caller, files: &dyn Files) -> Result<Vec<Placed>, PolicyError> {
    let mut loader = Loader { caller, files, trail: Vec::new(), layers: Vec::new() };
    loader.visit(profile, &caller.cwd, true)?;
    Ok(loader.layers)
}

struct Loader<'a> {
    caller: &'a Caller,
    files: &'a dyn Files,
    trail: Vec<Place>,
    layers: Vec<Placed>,
}

impl Loader<'_> {
    fn visit(&mut self, profile: &str, from: &Path, files_allowed: bool) -> Result<(), PolicyError> {
        let (place, base) = self.locate(profile, from, files_allowed)?;
        if let Some(start) = self.trail.iter().position(|open| *open == place) {
            let names: Vec<String> = self.trail[start..].iter().chain([&place]).map(|p| p.line(0).to_string()).collect();
            return Err(PolicyError::new(format!("includes form a cycle: {}", names.join(" -> "))));
        }
        if self.layers.iter().any(|placed| placed.place == place) {
            return Ok(());
        }
        if self.layers.len() + self.trail.len() >= MAX_LAYERS {
            return Err(PolicyError::at(place.line(0), format!("more than {MAX_LAYERS} profiles include each other")));
        }
        let layer = match &place {
            Place::Builtin(name) => builtin::find(name).ok_or_else(|| self.unknown(name, None))?.layer()?,
            Place::File(path) => {
                let bytes = read(self.files, path)?.ok_or_else(|| self.unknown(profile, Some(path)))?;
                parse_file(path, &bytes)?
            }
        };
        self.trail.push(place.clone());
        let directory = base.as_deref().unwrap_or(from);
        let annotate = |line: u32, error: PolicyError| match error.origin {
            None => PolicyError::at(place.line(line), format!("includes: {}", error.message)),
            Some(_) => error,
        };
        match &layer.includes {
            Some(includes) => {
                for include in includes {
                    self.visit(&include.value, directory, base.is_some()).map_err(|error| annotate(include.line, error))?;
                }
            }
            None if base.is_some() => self.visit("base", directory, false)?,
            None => {}
        }
        self.trail.pop();
        self.layers.push(Placed { place, base, layer });
        Ok(())
    }

    fn locate(&self, profile: &str, from: &Path, files_allowed: bool) -> Result<(Place, Option<PathBuf>), PolicyError> {
        if let Some(builtin) = builtin::find(profile) {
            return Ok((Place::Builtin(builtin.name), None));
        }
        let path = if is_file(profile) && files_allowed {
            normalise(&from.join(profile))
        } else {
            let plain = profile.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
            match &self.caller.config_dir {
                Some(dir) if plain && !profile.is_empty() && !profile.starts_with('.') => {
                    dir.join("profiles").join(format!("{profile}.toml"))
                }
                _ => return Err(self.unknown(profile, None)),
            }
        };
        let base = path.parent().map(Path::to_path_buf);
        Ok((Place::File(path), base))
    }

    fn unknown(&self, profile: &str, path: Option<&Path>) -> PolicyError {
        let names = || builtin::all().iter().map(|b| b.name);
        let looked = path.map(|path| format!(" (no {})", path.display())).unwrap_or_default();
        let hint = match suggestion(profile, names()) {
            hint if hint.is_empty() => "; see \"profiles list\"".to_owned(),
            hint => hint,
        };
        PolicyError::new(format!("no profile \"{profile}\"{looked}{hint}"))
    }
}
