//! One guard rule as data; `builtin/guard.toml` holds those that ship. Matching is [`crate::pattern`], judging is
//! [`crate::guard::judge`].

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Files that programs of the host execute or obey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    /// A short name, e.g. `vscode-tasks`.
    #[serde(borrow)]
    pub id: Cow<'static, str>,
    /// The patterns as they are written: see [`crate::guard`].
    #[serde(default)]
    pub files: Vec<Text>,
    /// Names that the patterns match and that are none of it.
    #[serde(default)]
    pub except: Vec<Text>,
    /// Who would run or obey it, in words for people.
    #[serde(borrow)]
    pub runs: Cow<'static, str>,
    /// Where that is written down: a manual and its section.
    #[serde(borrow)]
    pub source: Cow<'static, str>,
    /// What it takes until that happens.
    pub trigger: Trigger,
    /// What becomes of a change.
    pub action: Action,
    /// Content that version control tracked before the start excuses it.
    #[serde(default)]
    pub tracked: bool,
    /// It looks into directories of installed packages, too, although it only reports.
    #[serde(default)]
    pub packages: bool,
    /// In a directory that came into being in the same run it is of one piece with the rest of it: what would be put aside is
    /// told of, what would be told of is not.
    #[serde(default)]
    pub new_directory_excuses: bool,
    /// What counts as a change.
    #[serde(default)]
    pub check: Check,
}

/// What it takes until a program of the host runs or obeys a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// Nothing: any git command, a prompt, an editor that looks around.
    Unasked,
    /// A person opens the project in an editor or agent, or starts a tool in it.
    OnOpen,
    /// A person builds, tests or runs the project: it is the project's code.
    OnBuild,
    /// A push: a service runs it, with its own secrets.
    OnPush,
}

/// What becomes of a change that a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is taken away; what lay there before comes back.
    PutAside,
    /// It stays and is told of.
    Report,
    /// It takes effect only after approval, whatever it holds. From the policy's `stage`.
    Stage,
}

/// What counts as a change: all of a file, or what it says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", bound(deserialize = "'de: 'static"))]
pub enum Check {
    /// Any byte.
    #[default]
    Whole,
    /// Keys of git's configuration that are not known to be harmless.
    GitConfig,
    /// Commands in git's list of steps.
    Todo,
    /// Keys of JSON, with comments and trailing commas.
    Json(Keys),
    /// Keys of TOML.
    Toml(Keys),
    /// Keys of `key = value` lines.
    Lines(Keys),
    /// Variables: anything but plain `NAME=value` lines, and names that put code before programs.
    Environment,
    /// Any of these words, in any case, in XML or another text.
    Tokens(Vec<Text>),
    /// Anything but plain names and versions.
    Version,
    /// Lines that Python executes.
    Pth,
    /// Scripts of a `package.json` that run by themselves, and what else in it is obeyed.
    Package,
}

/// Keys that count. A pattern is a key, or keys one below the other with `/` between them; `*` stands for any characters
/// in one of them. It is about all that is below, too. For `key = value` lines a pattern may go on with `=` and a glob for the
/// value, in which `*` stands for any characters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub struct Keys {
    /// If not empty: all keys count but these.
    #[serde(default)]
    pub allow: Vec<Text>,
    /// Otherwise: these count, at any depth and in any case.
    #[serde(default)]
    pub refuse: Vec<Text>,
}

/// A string that is borrowed from the program where it can be. A type of its own, because serde borrows fields only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text(#[serde(borrow)] pub Cow<'static, str>);

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unasked => "unasked",
            Self::OnOpen => "on open",
            Self::OnBuild => "on build",
            Self::OnPush => "on push",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PutAside => "put aside",
            Self::Report => "report",
            Self::Stage => "stage",
        })
    }
}
