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
//!
//! ```no_run
//! # async fn example(routes: &[hermes_profiles::Route], listeners: hermes_egress::Listeners) -> Result<(), Box<dyn std::error::Error>> {
//! use hermes_egress::{Config, Egress};
//!
//! let egress = Egress::new(Config::new("my-sandbox"), routes)?;
//! let trusted_inside = egress.authority()?.pem().to_owned();
//! egress.serve(listeners).await?; // until dropped; egress.replace(routes) meanwhile
//! # Ok(()) }
//! ```
//!
//! # What it does not see
//!
//! - What is passed through unread is trusted as far as its name goes: whatever else that name's servers front for can be
//!   reached by them, if they look at more than the server name. TLS that begins after some plain text (STARTTLS) is not looked into.
//! - An encrypted client hello is refused where TLS is passed through, and so is the decoy of one that Chromium sends unless
//!   its policy `EncryptedClientHelloEnabled` is off. Where TLS is terminated it does no harm.
//! - Methods that a framework reads from a query or a body (`_method`), and placeholders in bodies or in another encoding than Basic.
//! - Secrets that a server sends back compressed, in any other encoding or in pieces, or after an upgrade; what is looked for is in
//!   [`scan`]. Copies of a value that the HTTP library makes are not wiped.
//! - Requests of HTTP/1 are read more strictly than RFC 9112 asks: lines that end with a bare LF, one length twice, and codings
//!   other than `chunked` are refused, since readers disagree about them.
//! - HTTP/2 without TLS and WebSocket over HTTP/2 are not offered; HTTP/3 is not, since UDP leads nowhere but to DNS.

pub mod address;
pub mod dial;
pub mod dns;
pub mod event;
pub mod host;
pub mod names;
pub mod path;
pub mod peek;
pub mod policy;
pub mod proxy;
pub mod reason;
pub mod relay;
pub mod scan;
pub mod secret;
mod stream;
pub mod tls;
mod upstream;
mod web;

pub use proxy::{Config, Egress, Limits, Listeners};
#[doc(hidden)]
pub use web::framed;
