//! What is known about secrets: names, whom they belong to, and where their values come from. Pure.

use std::path::Path;

use hermes_profiles::paths::normalise;
use serde::{Deserialize, Serialize};

use super::value::Value;
use crate::error::Error;

/// Most values of one secret.
const MOST_MEMBERS: usize = 64;
/// Bytes of the longest name.
const LONGEST_NAME: usize = 128;

/// Where one value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// It is kept.
    Stored(Value),
    /// A variable of whoever starts the sandbox.
    Variable(String),
    /// What a program prints: an absolute path and arguments.
    Command(Vec<String>),
    /// The desktop's keyring.
    Keyring {
        /// What the account is for.
        service: String,
        /// Whose it is.
        account: String,
    },
}

impl Source {
    /// For people and programs.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Stored(_) => "stored",
            Self::Variable(_) => "environment",
            Self::Command(_) => "command",
            Self::Keyring { .. } => "keyring",
        }
    }

    /// The keyring's entry of `SERVICE/ACCOUNT`. Services are often URLs, so the last slash counts.
    pub(crate) fn keyring(text: &str) -> Result<Self, Error> {
        let plain = |part: &str| !part.is_empty() && !part.contains(char::is_control);
        match text.rsplit_once('/') {
            Some((service, account)) if plain(service) && plain(account) => {
                Ok(Self::Keyring { service: service.to_owned(), account: account.to_owned() })
            }
            _ => {
                Err(Error::usage("`--from-keyring` takes SERVICE/ACCOUNT").hint("for example --from-keyring gh:github.com/alice"))
            }
        }
    }

    /// A variable of the caller.
    pub(crate) fn variable(name: &str) -> Result<Self, Error> {
        variable(name, "--from-env").map(Self::Variable)
    }
}

/// A secret of one profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The profile; see [`scope`].
    pub(crate) scope: String,
    /// The name that routes know it by.
    pub(crate) name: String,
    /// The variable that holds the placeholder inside.
    pub(crate) variable: Option<String>,
    /// Where its values come from; more than one is a pool. None when it is suppressed.
    pub(crate) members: Vec<Source>,
    /// It was removed for good.
    pub(crate) suppressed: bool,
}

/// What becomes of a name that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Refuse,
    Append,
    Replace,
}

/// All secrets, in the order of scopes and names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vault {
    pub(crate) entries: Vec<Entry>,
}

impl Vault {
    /// The secret of exactly this profile.
    pub(crate) fn find(&self, scope: &str, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.scope == scope && entry.name == name)
    }

    /// Adds a value, and tells how many there are now. `new` has one member.
    ///
    /// # Errors
    /// The name is taken or suppressed, there are too many values, or the variable is another one or another secret's.
    pub(crate) fn add(&mut self, new: Entry, taken: Taken, lift: bool) -> Result<usize, Error> {
        let Entry { scope, name, .. } = &new;
        let other = |entry: &&Entry| entry.scope == *scope && entry.name != *name && entry.variable.is_some();
        if let Some(other) = self.entries.iter().filter(other).find(|entry| entry.variable == new.variable) {
            let variable = new.variable.as_deref().unwrap_or_default();
            return Err(Error::usage(format!("the variable {variable} is that of the secret {} already", other.name)));
        }
        let Some(at) = self.entries.iter().position(|entry| entry.scope == *scope && entry.name == *name) else {
            self.entries.push(new);
            self.entries.sort_by(|a, b| (&a.scope, &a.name).cmp(&(&b.scope, &b.name)));
            return Ok(1);
        };
        let old = &mut self.entries[at];
        if old.suppressed {
            if !lift {
                return Err(Error::usage(format!("the secret {name} of profile {scope} is suppressed: it was removed for good"))
                    .hint("add it with --lift-suppression if you want it after all"));
            }
            *old = new;
            return Ok(1);
        }
        match taken {
            Taken::Refuse => {
                return Err(Error::usage(format!("there is a secret {name} of profile {scope} already"))
                    .hint("--replace replaces it, --pool adds one more value to it"));
            }
            Taken::Replace => *old = new,
            Taken::Append => {
                if old.members.len() >= MOST_MEMBERS {
                    return Err(Error::usage(format!("the secret {name} has {MOST_MEMBERS} values already, which is the most")));
                }
                if new.variable.is_some() && old.variable.is_some() && new.variable != old.variable {
                    let variable = old.variable.as_deref().unwrap_or_default();
                    return Err(Error::usage(format!("the secret {name} has the variable {variable} already"))
                        .hint("one secret has one placeholder; leave --env out"));
                }
                // The same value twice would be asked twice about the same quota.
                if old.members.iter().any(|member| new.members.contains(member)) {
                    return Err(Error::usage(format!("the secret {name} has this value already")));
                }
                old.members.extend(new.members);
                old.variable = old.variable.take().or(new.variable);
            }
        }
        Ok(self.entries[at].members.len())
    }

    /// Removes a secret; `suppress` also keeps it from being added again.
    ///
    /// # Errors
    /// There is none, and none is to be suppressed.
    pub(crate) fn remove(&mut self, scope: &str, name: &str, suppress: bool) -> Result<(), Error> {
        let known = self.find(scope, name).is_some();
        if !known && !suppress {
            return Err(self.unknown(scope, name));
        }
        self.entries.retain(|entry| entry.scope != scope || entry.name != name);
        if suppress {
            let (scope, name) = (scope.to_owned(), name.to_owned());
            self.entries.push(Entry { scope, name, variable: None, members: Vec::new(), suppressed: true });
            self.entries.sort_by(|a, b| (&a.scope, &a.name).cmp(&(&b.scope, &b.name)));
        }
        Ok(())
    }

    /// The profiles that have a secret of this name.
    pub(super) fn scopes_of(&self, name: &str) -> Vec<&str> {
        self.entries.iter().filter(|entry| entry.name == name).map(|entry| entry.scope.as_str()).collect()
    }

    /// Why there is no such secret, and who has one of that name.
    fn unknown(&self, scope: &str, name: &str) -> Error {
        let error = Error::usage(format!("there is no secret {name} of profile {scope}"));
        match self.scopes_of(name).as_slice() {
            [] => error.hint("`hermes-sandbox secrets list` shows those that there are"),
            others => error.hint(format!("there is one of profile {}", others.join(", "))),
        }
    }
}

/// The profile that a secret belongs to, as it is kept: a name, or the absolute path of a file.
///
/// # Errors
/// It is no profile. There is none that stands for all.
pub(crate) fn scope(profile: &str, cwd: &Path) -> Result<String, Error> {
    let cannot = |why: &str| Err(Error::usage(format!("`--profile` does not name a profile: {why}")));
    if profile.contains('/') || profile.ends_with(".toml") {
        return match normalise(&cwd.join(profile)).into_os_string().into_string() {
            Ok(path) if !path.contains(char::is_control) => Ok(path),
            _ => cannot("the path must be printable UTF-8"),
        };
    }
    if profile.contains('*') {
        return cannot("a secret belongs to one profile, none stands for all");
    }
    if !is_name(profile) {
        return cannot("expected letters, digits, `-`, `_` and `.`, or a file");
    }
    Ok(profile.to_owned())
}

/// A name that a route can use. The text is not repeated: it may be a value in the wrong place.
pub(crate) fn name(text: &str) -> Result<String, Error> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err(Error::usage("the name of a secret has up to 128 letters, digits, `-`, `_` and `.`")
            .hint("a value is never taken from the command line, where others can read it; give it on standard input")),
    }
}

/// The name of a variable for `option`, which is not repeated either.
pub(crate) fn variable(text: &str, option: &str) -> Result<String, Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match text.len() <= LONGEST_NAME
        && text.bytes().all(plain)
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
    {
        true => Ok(text.to_owned()),
        false => Err(Error::usage(format!("`{option}` takes the name of a variable: letters, digits and `_`"))),
    }
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty() && text.len() <= LONGEST_NAME && !text.starts_with(['.', '-']) && text.bytes().all(plain)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(scope: &str, name: &str, variable: Option<&str>, from: &str) -> Entry {
        let members = vec![Source::Variable(from.into())];
        Entry { scope: scope.into(), name: name.into(), variable: variable.map(str::to_owned), members, suppressed: false }
    }

    #[test]
    fn a_secret_belongs_to_one_profile() {
        let mut vault = Vault::default();
        assert_eq!(vault.add(entry("a", "model", None, "X"), Taken::Refuse, false).unwrap(), 1);
        assert!(vault.find("a", "model").is_some());
        assert!(vault.find("b", "model").is_none() && vault.find("*", "model").is_none());
        let unknown = vault.remove("b", "model", false).unwrap_err();
        assert_eq!(unknown.hints, ["there is one of profile a"]);
        assert_eq!(scope("agent", Path::new("/w")).unwrap(), "agent");
        assert_eq!(scope("./x/../p.toml", Path::new("/w")).unwrap(), "/w/p.toml");
        for bad in ["*", "", "a*", ".a", "a b", "-a", "a\nb", "/a\nb"] {
            assert!(scope(bad, Path::new("/w")).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_that_is_taken_is_refused_replaced_or_gets_one_more() {
        let mut vault = Vault::default();
        vault.add(entry("a", "model", Some("KEY"), "X"), Taken::Refuse, false).unwrap();
        assert!(vault.add(entry("a", "model", None, "Y"), Taken::Refuse, false).unwrap_err().hints[0].contains("--pool"));
        assert_eq!(vault.add(entry("a", "model", None, "Y"), Taken::Append, false).unwrap(), 2);
        assert_eq!(vault.find("a", "model").unwrap().variable.as_deref(), Some("KEY"));
        assert!(vault.add(entry("a", "model", None, "Y"), Taken::Append, false).is_err(), "the same one");
        assert!(vault.add(entry("a", "model", Some("OTHER"), "Z"), Taken::Append, false).is_err());
        assert!(vault.add(entry("a", "other", Some("KEY"), "Z"), Taken::Append, false).is_err());
        assert_eq!(vault.add(entry("b", "other", Some("KEY"), "Z"), Taken::Append, false).unwrap(), 1);
        assert_eq!(vault.add(entry("a", "model", None, "Z"), Taken::Replace, false).unwrap(), 1);
        assert_eq!(vault.find("a", "model").unwrap().variable, None);
    }

    #[test]
    fn a_suppressed_one_comes_back_only_when_that_is_said() {
        let mut vault = Vault::default();
        vault.add(entry("a", "model", None, "X"), Taken::Refuse, false).unwrap();
        vault.remove("a", "model", true).unwrap();
        for taken in [Taken::Refuse, Taken::Append, Taken::Replace] {
            assert!(vault.add(entry("a", "model", None, "X"), taken, false).unwrap_err().message.contains("suppressed"));
        }
        assert_eq!(vault.add(entry("a", "model", None, "X"), Taken::Refuse, true).unwrap(), 1);
        assert!(!vault.find("a", "model").unwrap().suppressed);
        vault.remove("a", "model", false).unwrap();
        assert_eq!(vault, Vault::default());
    }

    #[test]
    fn pools_are_bounded() {
        let mut vault = Vault::default();
        for n in 0..MOST_MEMBERS {
            vault.add(entry("a", "model", None, &format!("X{n}")), Taken::Append, false).unwrap();
        }
        assert!(vault.add(entry("a", "model", None, "Y"), Taken::Append, false).is_err());
    }

    #[test]
    fn names_and_sources() {
        assert!(name("model-1.x_Y").is_ok() && variable("OPENAI_API_KEY", "--env").is_ok());
        for bad in ["", "a=b", "a b", "-a", "\u{e9}", &"a".repeat(129)] {
            assert!(name(bad).is_err() && variable(bad, "--env").is_err(), "{bad}");
        }
        assert!(variable("1A", "--env").is_err() && variable("A-B", "--env").is_err());
        let found = Source::keyring("https://x.test/a/me").unwrap();
        assert_eq!(found, Source::Keyring { service: "https://x.test/a".into(), account: "me".into() });
        for bad in ["service", "/me", "service/", ""] {
            assert!(Source::keyring(bad).is_err(), "{bad}");
        }
    }
}
