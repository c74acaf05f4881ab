//! The only way out of a sandbox: DNS, proxy, routes, secrets.
//!
//! This room owns the decision whether a program inside may reach a host, and the bytes on their way there and back. It makes
//! no namespace and no listener: it is handed sockets that were made elsewhere ([`Listeners`]), and works the same on the
//! host's loopback, which is how it is tested. It refuses to know where secrets are kept ([`secret::Secrets`]) and what
//! becomes of its events ([`event::Events`]).
//!
//! The way through it: [`policy::Ruleset`] is a policy's routes, ready to decide; [`names`] gives each permitted name an address of
//! its own, so that a connection to it tells which name was meant; [`proxy`] accepts, peeks, asks the rules, dials by
//! [`dial`] (the real resolution is there, pinned and checked) and copies by [`relay`]. Where a rule reads requests, [`tls`]
//! terminates and [`web`] decides each request anew. What is refused says why, and what would allow it ([`reason`]).
//!
//! Decisions are pure functions: [`policy`], [`path`], [`host`], [`peek`], [`names::answer`], [`address`].

pub mod address;
pub mod dial;
mod dns;
pub mod event;
pub mod host;
pub mod names;
pub mod path;
pub mod peek;
pub mod policy;
pub mod proxy;
pub mod reason;
pub mod relay;
pub mod secret;
mod stream;
pub mod tls;
mod upstream;
mod web;

pub use proxy::{Config, Egress, Limits, Listeners};
