//! The user's `config.toml`: which profile, when none is named.
//!
//! ```toml
//! default = "agent"
//! [sources]
//! webhook = "review"
//! ```

use std::collections::BTreeMap;

use crate::error::{PolicyError, suggestion};
use crate::layer::Place;
use crate::parse;
use crate::profile::{self, is_file};
use crate::request::{Caller, Files, Request};

/// Profile when nothing else decides.
const DEFAULT: &str = "agent";

/// Profiles of well-known sources. People who are known to the agent get `agent`; what anybody can send gets `review`.
pub const SOURCES: &[(&str, &str)] = &[
    ("acp", "agent"),
    ("ci", "ci"),
    ("cli", "agent"),
    ("code", "code"),
    ("command", "command"),
    ("cron", "cron"),
    ("discord", "agent"),
    ("email", "review"),
    ("matrix", "agent"),
    ("mcp", "mcp-server"),
    ("signal", "agent"),
    ("slack", "agent"),
    ("sms", "review"),
    ("telegram", "agent"),
    ("tui", "agent"),
    ("webhook", "review"),
    ("whatsapp", "agent"),
];

#[derive(Debug, Default)]
pub(crate) struct Config {
    default: Option<String>,
    sources: BTreeMap<String, String>,
}

impl Config {
    pub(crate) fn load(caller: &Caller, files: &dyn Files) -> Result<Self, PolicyError> {
        let Some(dir) = &caller.config_dir else { return Ok(Self::default()) };
        let path = dir.join("config.toml");
        match profile::read(files, &path)? {
            Some(bytes) => Self::parse(Place::File(path), &bytes),
            None => Ok(Self::default()),
        }
    }

    fn parse(place: Place, bytes: &[u8]) -> Result<Self, PolicyError> {
        parse::document(&place, bytes, |_, mut root| {
            let default = root.take("default").map(|value| value.text().map(str::to_owned)).transpose()?;
            let mut sources = BTreeMap::new();
            if let Some(table) = root.table("sources")? {
                for (source, value) in table.rest() {
                    sources.insert(source.to_owned(), value.text()?.to_owned());
                }
            }
            root.finish()?;
            Ok(Self { default, sources })
        })
    }

    /// The profile for a request: named; else by source; else the default. Files named in the configuration are relative
    /// to it.
    pub(crate) fn choose(&self, request: &Request) -> Result<String, PolicyError> {
        if let Some(profile) = &request.profile {
            return Ok(profile.clone());
        }
        let configured = |name: &String| match &request.caller.config_dir {
            Some(dir) if is_file(name) => dir.join(name).to_string_lossy().into_owned(),
            _ => name.clone(),
        };
        let default = || self.default.as_ref().map_or_else(|| DEFAULT.to_owned(), configured);
        let Some(source) = &request.source else { return Ok(default()) };
        if let Some(profile) = self.sources.get(source) {
            return Ok(configured(profile));
        }
        match SOURCES.iter().find(|(known, _)| known == source) {
            Some((_, DEFAULT)) => Ok(default()),
            Some((_, profile)) => Ok((*profile).to_owned()),
            None => {
                let known = SOURCES.iter().map(|(name, _)| *name).chain(self.sources.keys().map(String::as_str));
                let hint = suggestion(source, known);
                let message = format!("--source {source}: no profile belongs to it; add it to [sources] in config.toml{hint}");
                Err(PolicyError::new(message))
            }
        }
    }
}
