//! The file that a shim is: a `#!` line for the kernel, then TOML which says what it stands for and under which policy.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::args::ShimName;
use crate::error::Error;
use crate::output;

/// Bytes that the kernel reads of a `#!` line, its newline included (BINPRM_BUF_SIZE, execve(2)).
const LONGEST_LINE: usize = 256;
/// Bytes that a shim may have.
const LONGEST: u64 = 1 << 20;

/// What a shim says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    pub(super) schema: u32,
    pub(super) shim: ShimName,
    /// The interpreter that `python` stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) python: Option<PathBuf>,
    /// The options of the policy.
    pub(super) options: Vec<String>,
}

impl Header {
    /// The whole file.
    pub(super) fn render(&self, program: &Path) -> Result<String, Error> {
        let line = first_line(program)?;
        let body = toml::to_string(self).map_err(|e| Error::usage(format!("cannot write a shim with these options: {e}")))?;
        Ok(format!("{line}\n# Written by `hermes-sandbox shims install`, which writes it anew.\n{body}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("#!") || !first.ends_with(" shim") {
            return Err("its first line is no `#!... shim`".to_owned());
        }
        let header: Self = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        match header.schema {
            1 => Ok(header),
            other => Err(format!("schema {other} is not known to this version")),
        }
    }
}

fn first_line(program: &Path) -> Result<String, Error> {
    let shown = output::path(program);
    let remedy = |error: Error| error.hint("install hermes-sandbox to a short path without spaces, e.g. /usr/local/bin");
    let Some(text) = program.to_str().filter(|text| !text.contains(char::is_whitespace)) else {
        return Err(remedy(Error::setup(format!("a shim cannot name {shown}: the kernel ends it at the space"))));
    };
    let line = format!("#!{text} shim");
    match line.len() < LONGEST_LINE {
        true => Ok(line),
        false => Err(remedy(Error::setup(format!("a shim cannot name {shown}: the kernel reads {LONGEST_LINE} bytes of it")))),
    }
}

/// Reads a shim that nobody but its owner can have written.
pub(super) fn load(path: &Path) -> Result<Header, Error> {
    let shown = output::path(path);
    let cannot = |why: &dyn std::fmt::Display| Error::setup(format!("cannot use the shim {shown}: {why}"));
    let open = std::fs::File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = open.map_err(|e| cannot(&e))?;
    let remedy = "`chmod go-w` it and its directory, or write it anew with `hermes-sandbox shims install`";
    let metadata = file.metadata().map_err(|e| cannot(&e))?;
    if !metadata.is_file() {
        return Err(cannot(&"it is not a file"));
    }
    check_owner(metadata.uid(), metadata.mode()).map_err(|why| cannot(&why).hint(remedy))?;
    let real = std::fs::canonicalize(path).map_err(|e| cannot(&e))?;
    let directory = real.parent().unwrap_or(Path::new("/")).metadata().map_err(|e| cannot(&e))?;
    // What a sticky directory holds only its owner can replace.
    let mode = if directory.mode() & 0o1000 != 0 { directory.mode() & !0o022 } else { directory.mode() };
    check_owner(directory.uid(), mode).map_err(|why| cannot(&format!("of its directory, {why}")).hint(remedy))?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(|e| cannot(&e))?;
    Header::parse(&text).map_err(|why| cannot(&why).hint("write it anew with `hermes-sandbox shims install`"))
}

fn check_owner(owner: u32, mode: u32) -> Result<(), &'static str> {
    match (owner == 0 || owner == geteuid().as_raw(), mode & 0o022) {
        (false, _) => Err("the owner is somebody else"),
        (true, 0) => Ok(()),
        (true, _) => Err("others can write it"),
    }
}

/// May `shims install` write over what is at `path`?
pub(super) fn may_replace(path: &Path) -> bool {
    match path.symlink_metadata() {
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        Ok(metadata) if metadata.is_file() => is_shim(path),
        Ok(_) => false,
    }
}

/// Is it a shim?
pub(super) fn is_shim(path: &Path) -> bool {
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    read.is_ok() && Header::parse(&text).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn header() -> Header {
        let options = ["--ro", "/a \"b\"\\"].map(str::to_owned).to_vec();
        Header { schema: 1, shim: ShimName::Bash, python: Some("/usr/bin/python3".into()), options }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = header().render(Path::new("/usr/local/bin/hermes-sandbox")).unwrap();
        assert!(text.starts_with("#!/usr/local/bin/hermes-sandbox shim\n"), "{text}");
        assert_eq!(Header::parse(&text).unwrap(), header());
        for bad in [
            text.replace(" shim\n", "\n"),
            text.replace("schema = 1", "schema = 2"),
            text.replace("bash", "zsh"),
            text.replace("options", "option"),
            text.clone() + "more = 1\n",
            "#!/bin/sh\necho\n".to_owned(),
        ] {
            assert!(Header::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_kernel_must_find_the_program() {
        let line = |length: usize| first_line(&PathBuf::from("/".to_owned() + &"x".repeat(length - 1)));
        assert!(line(LONGEST_LINE - 8).is_ok() && line(LONGEST_LINE - 7).is_err());
        assert!(first_line(Path::new("/a b/c")).is_err());
    }

    #[test]
    fn only_what_nobody_else_can_write_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("bash");
        std::fs::write(&at, header().render(Path::new("/x")).unwrap()).unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(dir.path(), 0o755);
        mode(&at, 0o755);
        assert_eq!(load(&at).unwrap(), header());
        for bad in [0o775, 0o757] {
            mode(&at, bad);
            assert!(load(&at).is_err(), "{bad:o}");
            mode(&at, 0o755);
            mode(dir.path(), bad);
            assert!(load(&at).is_err(), "directory {bad:o}");
            mode(dir.path(), 0o1777);
            assert!(load(&at).is_ok());
            mode(dir.path(), 0o755);
        }
        let other = dir.path().join("other");
        std::fs::write(&other, "#!/bin/sh\n").unwrap();
        assert!(may_replace(&at) && may_replace(&dir.path().join("none")) && !may_replace(&other) && !may_replace(dir.path()));
        std::os::unix::fs::symlink(&at, dir.path().join("link")).unwrap();
        assert!(!may_replace(&dir.path().join("link")));
    }
}
