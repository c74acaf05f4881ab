//! The keys that do no more than they say, and what their values may be.

use super::grammar::Name;
use super::{Values, of};

/// A key that differs between the baseline and now.
pub(super) struct Change<'c, 'f> {
    pub(super) key: &'c Name,
    pub(super) new: &'c [Option<&'f [u8]>],
    pub(super) before: &'c Values<'f>,
    pub(super) now: &'c Values<'f>,
    pub(super) host: &'c Values<'f>,
    /// What the caller knows to be good, by key and value.
    pub(super) also: super::Also<'c>,
}

/// What a value may be.
enum Kind {
    Boolean,
    Number,
    /// A boolean or one of these words.
    Word(&'static [&'static str]),
    /// A boolean, a number, or plain words: colours.
    Words,
    /// One line of anything.
    Line,
    /// Anything printable, several lines too.
    Text,
    /// A branch, or another short name without what options, paths and addresses are made of.
    Name,
    /// The name of a remote.
    Remote,
    /// A reference or a pair of them.
    Refspec,
    /// A filter of objects.
    Filter,
    /// A path below the working tree.
    Path,
    /// The address of a remote.
    Address,
}

/// Longest value, in bytes.
const MAX_VALUE: usize = 4096;

const KEYS: &[(&str, &[&str], Kind)] = &[
    (
        "core",
        &["bare", "filemode", "ignorecase", "logallrefupdates", "precomposeunicode", "quotepath", "sparsecheckout"],
        Kind::Word(&["always"]),
    ),
    ("core", &["sparsecheckoutcone", "symlinks", "fsmonitor"], Kind::Boolean),
    ("core", &["repositoryformatversion"], Kind::Number),
    ("core", &["autocrlf"], Kind::Word(&["input"])),
    ("core", &["safecrlf"], Kind::Word(&["warn"])),
    ("core", &["eol"], Kind::Word(&["lf", "crlf", "native"])),
    ("core", &["untrackedcache"], Kind::Word(&["keep"])),
    // Not "all" and no mode: others could write what is made.
    ("core", &["sharedrepository"], Kind::Word(&["umask", "group"])),
    ("extensions", &["worktreeconfig", "relativeworktrees"], Kind::Boolean),
    ("extensions", &["objectformat", "compatobjectformat"], Kind::Word(&["sha1", "sha256"])),
    ("extensions", &["refstorage"], Kind::Word(&["files", "reftable"])),
    ("extensions", &["partialclone"], Kind::Remote),
    ("user", &["name", "email"], Kind::Line),
    ("pull", &["ff"], Kind::Word(&["only"])),
    // Not "interactive": it starts an editor.
    ("pull", &["rebase"], Kind::Word(&["merges"])),
    ("push", &["default"], Kind::Word(&["nothing", "current", "upstream", "tracking", "simple", "matching"])),
    ("push", &["autosetupremote", "followtags", "useforceifincludes", "negotiate"], Kind::Boolean),
    ("push", &["gpgsign"], Kind::Word(&["if-asked"])),
    ("push", &["recursesubmodules"], Kind::Word(&["check", "on-demand", "only", "no"])),
    ("rebase", &["autosquash", "autostash", "updaterefs"], Kind::Boolean),
    ("merge", &["ff"], Kind::Word(&["only"])),
    ("merge", &["conflictstyle"], Kind::Word(&["merge", "diff3", "zdiff3"])),
    ("fetch", &["prune", "prunetags", "writecommitgraph"], Kind::Boolean),
    ("gc", &["auto"], Kind::Number),
    ("index", &["version", "threads", "sparse", "recordendofindexentries", "recordoffsettable", "skiphash"], Kind::Words),
    ("feature", &["manyfiles", "experimental"], Kind::Boolean),
    ("color", &["*"], Kind::Words),
    ("advice", &["*"], Kind::Boolean),
    ("lfs", &["repositoryformatversion"], Kind::Number),
    ("commit", &["gpgsign"], Kind::Boolean),
    ("tag", &["gpgsign"], Kind::Boolean),
    ("submodule", &["active"], Kind::Line),
];

/// The same for keys with a subsection.
const NAMED: &[(&str, &[&str], Kind)] = &[
    ("branch", &["remote", "pushremote"], Kind::Remote),
    ("branch", &["merge"], Kind::Refspec),
    ("branch", &["gh-merge-base", "vscode-merge-base"], Kind::Name),
    ("branch", &["rebase"], Kind::Word(&["merges"])),
    ("branch", &["description"], Kind::Text),
    ("remote", &["fetch", "push"], Kind::Refspec),
    ("remote", &["tagopt"], Kind::Word(&["--tags", "--no-tags"])),
    ("remote", &["prune", "prunetags", "skipfetchall", "skipdefaultupdate", "promisor"], Kind::Boolean),
    ("remote", &["partialclonefilter"], Kind::Filter),
    ("remote", &["gh-resolved"], Kind::Name),
    ("remote", &["url", "pushurl"], Kind::Address),
    ("submodule", &["url"], Kind::Address),
    ("submodule", &["path"], Kind::Path),
    ("submodule", &["ignore"], Kind::Word(&["all", "dirty", "untracked", "none"])),
    ("submodule", &["shallow"], Kind::Boolean),
    ("submodule", &["fetchrecursesubmodules"], Kind::Word(&["on-demand"])),
    ("submodule", &["active"], Kind::Boolean),
    ("submodule", &["branch"], Kind::Name),
    ("color", &["*"], Kind::Words),
];

impl Change<'_, '_> {
    pub(super) fn is_allowed(&self) -> bool {
        let Name { section, subsection, key } = self.key;
        let table = if subsection.is_some() { NAMED } else { KEYS };
        let named = |keys: &[&str]| keys.iter().any(|known| *known == key || *known == "*");
        let Some((.., kind)) = table.iter().find(|(known, keys, _)| known == section && named(keys)) else {
            return !self.new.is_empty() && self.new.iter().all(|value| self.is_known(*value));
        };
        // A remote can be called as an address or a path, and then stands in its place.
        let plain = match (section.as_str(), subsection) {
            ("remote" | "submodule", Some(name)) => is_name(name),
            (_, Some(name)) => !name.iter().any(u8::is_ascii_control) && std::str::from_utf8(name).is_ok(),
            (_, None) => true,
        };
        let known = |value| matches!(kind, Kind::Address) && self.is_known(value);
        let good = |value| fits(kind, value, section == "submodule") || known(value);
        plain && self.new.iter().all(|value| good(*value)) && self.keeps_its_way(kind)
    }

    fn is_known(&self, value: Option<&[u8]>) -> bool {
        value.is_some_and(|value| (self.also)(&self.key.to_string(), value))
    }

    /// What is fetched and pushed must not go elsewhere by itself: to have a new way is fine, to change one is not.
    fn keeps_its_way(&self, kind: &Kind) -> bool {
        let name = |key: &str| Name { key: key.to_owned(), ..self.key.clone() };
        let gone = !self.now.keys().any(|key| key.section == self.key.section && key.subsection == self.key.subsection);
        match kind {
            // With all of its remote, or submodule.
            Kind::Address if self.new.is_empty() => gone && of(self.host, self.key) == of(self.before, self.key),
            Kind::Address => {
                let known = |values: &Values<'_>| ["url", "pushurl"].iter().any(|key| !of(values, &name(key)).is_empty());
                !known(self.before) && !known(self.host) || of(self.host, self.key) == self.new
            }
            Kind::Refspec if self.key.section == "remote" && self.key.key == "push" => {
                self.new.is_empty() || of(self.before, &name("url")).is_empty()
            }
            Kind::Remote if self.key.section == "branch" => {
                let was = of(self.before, &name("remote"));
                let remote = |value: &Option<&[u8]>| {
                    let subsection = value.map(<[u8]>::to_vec);
                    let url = Name { section: "remote".into(), subsection, key: "url".into() };
                    *value == Some(b".") || !of(self.before, &url).is_empty()
                };
                was.is_empty() || self.new.iter().all(remote)
            }
            _ => true,
        }
    }
}

fn fits(kind: &Kind, value: Option<&[u8]>, submodule: bool) -> bool {
    let Some(value) = value else { return matches!(kind, Kind::Boolean | Kind::Word(_) | Kind::Words) };
    let Ok(text) = std::str::from_utf8(value) else { return false };
    if text.len() > MAX_VALUE {
        return false;
    }
    if text.chars().any(|c| c.is_control() && !(matches!(kind, Kind::Text) && matches!(c, '\n' | '\t'))) {
        return false;
    }
    let boolean = || ["true", "false", "yes", "no", "on", "off", "1", "0", ""].iter().any(|word| word.eq_ignore_ascii_case(text));
    let chars = |more: &[u8]| value.iter().all(|byte| byte.is_ascii_alphanumeric() || more.contains(byte));
    match kind {
        Kind::Boolean => boolean(),
        Kind::Number => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            (1..=9).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
        }
        Kind::Word(words) => boolean() || words.iter().any(|word| word.eq_ignore_ascii_case(text)),
        Kind::Words => chars(b" #-"),
        Kind::Line | Kind::Text => true,
        Kind::Name => is_name(value),
        Kind::Remote => text == "." || is_name(value),
        Kind::Refspec => {
            let text = text.strip_prefix(['+', '^']).unwrap_or(text);
            let part = |part: &str| !part.starts_with('-') && !part.contains(char::is_whitespace);
            text.split(':').count() <= 2 && text.split(':').all(part)
        }
        Kind::Filter => !text.starts_with('-') && chars(b":=+%.,-_/"),
        Kind::Path => !text.starts_with(['-', '/']) && !text.split('/').any(|part| matches!(part, ".." | ".git" | "")),
        // Relative to the address of the repository that it is a part of.
        Kind::Address => is_address(text) || submodule && text.starts_with("../") && !text.contains(':'),
    }
}

/// Starts with a letter, a digit or `_`, and has no colon and no `..`: no option, no path that leads up or to the root, no
/// address.
fn is_name(name: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(name) else { return false };
    text.starts_with(|c: char| c.is_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || "-_./+#@".contains(c))
        && !text.contains("..")
}

/// An address of another machine: to push to a directory runs the hooks that lie there.
fn is_address(text: &str) -> bool {
    let host = |rest: &str| {
        let authority = rest.split('/').next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        !host.is_empty() && !authority.starts_with('-') && !host.starts_with('-')
    };
    // `ext::command` and others of the kind start a helper.
    if text.contains("::") || text.chars().any(char::is_whitespace) {
        return false;
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        return matches!(scheme, "https" | "ssh" | "git" | "http" | "git+ssh" | "ssh+git") && host(rest);
    }
    // `user@host:path`; a slash before the colon makes it a path.
    match text.split_once(':') {
        Some((place, path)) => !place.contains('/') && host(place) && !path.starts_with('-') && !path.is_empty(),
        None => false,
    }
}
