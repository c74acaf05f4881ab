//! Everything that happens on the way out, for whoever records it.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::mpsc;

use crate::host::Host;
use crate::reason::Refusal;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A name that no rule permits was asked for.
    NameRefused {
        /// As asked, lower case.
        name: String,
        /// The record type.
        kind: String,
    },
    /// A permitted name got its address.
    NameGiven {
        /// The name.
        name: String,
        /// What it leads to inside.
        address: Ipv4Addr,
    },
    /// A connection or a request was refused, or failed.
    Refused(Box<Refusal>),
    /// A connection was passed on unread.
    Connected {
        /// The host that the program meant.
        host: Host,
        /// Its port.
        port: u16,
        /// Where the rule is written.
        rule: String,
    },
    /// The end of a connection that was passed on.
    Closed {
        /// The host.
        host: Host,
        /// Its port.
        port: u16,
        /// Bytes from the sandbox.
        sent: u64,
        /// Bytes to the sandbox.
        received: u64,
        /// Why, when it was not the two ends' own decision.
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// A request was read, allowed and answered.
    Requested {
        /// The host that the program meant.
        host: Host,
        /// Its port.
        port: u16,
        /// Method.
        method: String,
        /// Path without the query.
        path: String,
        /// Status of the answer.
        status: u16,
        /// The name of the secret that was put in.
        #[serde(skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
        /// Where the rule is written.
        rule: String,
    },
    /// An answer held the secret that its request carried. That header was left out, or the body was cut off before it.
    SecretEchoed {
        /// The host that the program meant.
        host: Host,
        /// Its port.
        port: u16,
        /// Path of the request without the query.
        path: String,
        /// The name of the secret.
        secret: String,
        /// Where it was found: `body`, or e.g. `header x-note`.
        place: String,
    },
    /// New rules hold.
    RulesReplaced {
        /// Counted from 1.
        generation: u64,
    },
    /// A limit keeps something from being served for the moment.
    LimitReached {
        /// Which.
        limit: &'static str,
    },
}

/// Takes events. Called on the way of every connection: it must not wait, and must bound what it keeps.
pub trait Events: Send + Sync {
    /// Takes one.
    fn emit(&self, event: Event);
}

/// A channel of events. What does not fit is dropped and counted: a flood inside must not become memory outside.
#[derive(Debug)]
pub struct Channel {
    sender: mpsc::Sender<Event>,
    dropped: AtomicU64,
}

impl Channel {
    /// A channel that holds `capacity` events, and the end that receives them.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self { sender, dropped: AtomicU64::new(0) }, receiver)
    }

    /// How many events did not fit since the last call.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}

impl Events for Channel {
    fn emit(&self, event: Event) {
        if self.sender.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Forgets all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Events for Silent {
    fn emit(&self, _: Event) {}
}
