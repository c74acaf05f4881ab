//! Containers: sessions that are remembered when they have ended.
//!
//! Each is the directory of a session with `container.json` beside the socket. It ends with the process that started it, and is
//! remembered until `rm`. One belongs to the shims, and the policy, that made it: for all others it does not exist.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::wanted::Wanted;
use crate::clock;
use crate::error::Error;
use crate::output;
use crate::session::client::Client;
use crate::session::command::print_log;
use crate::session::place::{Place, text};
use crate::state::store;

/// What is remembered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: String,
    /// Milliseconds since 1970.
    pub(super) created: u64,
    /// When it was ended; `None` before, or when it ended by itself.
    pub(super) finished: Option<u64>,
    /// Hash of the shim and its own policy.
    pub(super) policy: String,
    /// Whose it is.
    pub(super) client: String,
    pub(super) wanted: Wanted,
    /// Its home inside.
    pub(super) home: Option<String>,
    /// Options of the session.
    pub(super) options: Vec<String>,
}

/// A container.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) place: Place,
    pub(super) record: Record,
}

impl Container {
    fn file(place: &Place) -> PathBuf {
        place.dir.join("container")
    }

    fn of(place: Place) -> Option<Self> {
        let record = store::read(&Self::file(&place)).ok()?;
        Some(Self { place, record })
    }

    /// All of them.
    pub(super) fn all() -> Result<Vec<Self>, Error> {
        Ok(Place::all()?.into_iter().filter_map(Self::of).collect())
    }

    pub(super) fn save(&self) -> Result<(), Error> {
        store::write_soon(&Self::file(&self.place), &self.record)
            .map_err(|e| Error::setup(format!("cannot keep the container in {}: {e}", output::path(&self.place.dir))))
    }

    /// A connection to it, while it runs.
    pub(super) fn reach(&self) -> Option<Client> {
        Client::reach(&self.place)
    }

    /// Ends it; it is remembered.
    pub(super) fn stop(&mut self) -> Result<(), Error> {
        let said = text(&self.place.log()).len();
        let running = self.reach().map(|mut client| {
            // One that ends just now answers no more.
            let _ = client.ask::<serde_json::Value>("stop", &serde_json::json!({}));
        });
        self.place.wait().map_err(|e| Error::setup(format!("cannot wait for {}: {e}", self.place.name)))?;
        if running.is_some() {
            print_log(&self.place, said);
            self.record.finished = Some(clock::milliseconds());
            self.save()?;
        }
        Ok(())
    }

    /// `running` or `exited`, as docker has it.
    pub(super) fn state(&self) -> &'static str {
        if self.reach().is_some() {
            "running"
        } else if self.record.finished.is_none() && !self.place.log().exists() {
            "created"
        } else {
            "exited"
        }
    }

    /// Milliseconds since 1970. One that ended with its client leaves the time at which its socket went.
    pub(super) fn finished(&self) -> u64 {
        let left = || self.place.dir.metadata().ok()?.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok();
        self.record.finished.or_else(|| left().map(|time| time.as_millis() as u64)).unwrap_or(self.record.created)
    }

    /// Is it called so?
    pub(super) fn is(&self, name: &str) -> bool {
        self.place.name == name || (name.len() >= 4 && self.record.id.starts_with(name))
    }

    /// Does it have this label?
    pub(super) fn has_label(&self, label: &str) -> bool {
        match label.split_once('=') {
            Some((name, value)) => self.record.wanted.labels.get(name).is_some_and(|is| is == value),
            None => self.record.wanted.labels.contains_key(label),
        }
    }
}
