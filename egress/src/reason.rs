//! Why something was refused, and what would allow it.

use std::fmt::Write as _;

use serde::Serialize;

use crate::address::Class;
use crate::host::Host;

/// Why a connection or a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Reason {
    /// No rule is about the host.
    #[error("no route leads to this host")]
    NoRoute,
    /// There is a rule for the host, but not on this port.
    #[error("routes lead to this host, but not to this port")]
    Port {
        /// Where they lead.
        ports: Vec<u16>,
    },
    /// Rules for the host allow other methods.
    #[error("no route for this host allows the method")]
    Method,
    /// Rules for the host allow other paths.
    #[error("no route for this host allows the path")]
    Path,
    /// The path has readings that are not allowed, or none.
    #[error("servers may read the path in more than one way: {detail}")]
    AmbiguousPath {
        /// A reading that is not allowed, or what is wrong.
        detail: String,
    },
    /// An address that no name was given for, and no rule names literally.
    #[error("no name stands for this address, and no route names it")]
    UnknownAddress,
    /// Not a host, or not one message that everybody would read alike.
    #[error("malformed: {detail}")]
    Malformed {
        /// What is wrong.
        detail: String,
    },
    /// The server name in TLS, or the `Host` of a request, is not the host that the connection is to.
    #[error("the connection is to one host, and names another: {named}")]
    OtherHost {
        /// What it names.
        named: String,
    },
    /// TLS without a server name.
    #[error("TLS without a server name")]
    NoServerName,
    /// A server name that only somebody else can read.
    #[error("TLS with an encrypted client hello: the real server name cannot be seen")]
    EncryptedHello,
    /// Nothing that a rule could be applied to arrived in time.
    #[error("nothing arrived in time")]
    Silence,
    /// The route reads requests, and this is neither HTTP nor TLS.
    #[error("the route reads HTTP requests, and this is something else")]
    NotHttp,
    /// A kind of message that is not passed on.
    #[error("not supported: {detail}")]
    Unsupported {
        /// What.
        detail: String,
    },
    /// The name leads to an address that it may not lead to.
    #[error("the name leads to an address that the route does not name: {address}{}", class_words(*class))]
    Address {
        /// One of them.
        address: std::net::IpAddr,
        /// What is special about it.
        class: Option<Class>,
    },
    /// The request is too large.
    #[error("the request is larger than the route allows ({limit} bytes)")]
    BodyTooLarge {
        /// Bytes.
        limit: u64,
    },
    /// More than the route allows in a time.
    #[error("more requests than the route allows")]
    Rate,
    /// All that may be under way in the sandbox at a time is.
    #[error("requests that are under way take all the memory that the sandbox has for them; try again when some have ended")]
    Busy,
    /// A placeholder of a secret where no rule wants it.
    #[error("the placeholder of a secret was sent where the policy has no use for it: {place}")]
    Placeholder {
        /// Where it was found, e.g. `header x-note`.
        place: String,
    },
    /// The secret that the route needs cannot be had.
    #[error("the secret that the route needs is not available: {secret}")]
    SecretUnavailable {
        /// Its name.
        secret: String,
    },
    /// The rules changed, and no longer allow what was going on.
    #[error("the policy changed, and no longer allows it")]
    Revoked,
    /// The name could not be resolved, outside.
    #[error("the name could not be resolved: {detail}")]
    Unresolved {
        /// What the resolver says.
        detail: String,
    },
    /// The place could not be reached, or did not answer.
    #[error("the server could not be reached: {detail}")]
    Unreachable {
        /// What the operating system, or TLS, says.
        detail: String,
    },
}

fn class_words(class: Option<Class>) -> String {
    class.map(|class| format!(" ({class})")).unwrap_or_default()
}

impl Reason {
    /// Nobody's decision, but a failure on the way.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Unresolved { .. } | Self::Unreachable { .. })
    }

    /// The status of an HTTP answer that says so.
    pub fn status(&self) -> http::StatusCode {
        match self {
            Self::Malformed { .. } => http::StatusCode::BAD_REQUEST,
            Self::BodyTooLarge { .. } => http::StatusCode::PAYLOAD_TOO_LARGE,
            Self::Rate => http::StatusCode::TOO_MANY_REQUESTS,
            Self::Silence => http::StatusCode::REQUEST_TIMEOUT,
            Self::Busy => http::StatusCode::SERVICE_UNAVAILABLE,
            _ if self.is_failure() => http::StatusCode::BAD_GATEWAY,
            _ => http::StatusCode::FORBIDDEN,
        }
    }

    /// Words of somebody else.
    fn repeats(&mut self) -> Option<&mut String> {
        match self {
            Self::AmbiguousPath { detail: text }
            | Self::Malformed { detail: text }
            | Self::OtherHost { named: text }
            | Self::Unsupported { detail: text }
            | Self::Placeholder { place: text }
            | Self::Unresolved { detail: text }
            | Self::Unreachable { detail: text } => Some(text),
            _ => None,
        }
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::Malformed { detail: detail.into() }
    }

    pub(crate) fn unsupported(detail: impl Into<String>) -> Self {
        Self::Unsupported { detail: detail.into() }
    }

    pub(crate) fn unreachable(detail: impl std::fmt::Display) -> Self {
        Self::Unreachable { detail: detail.to_string() }
    }
}

/// What was refused, why, and what would allow it. This is the body of a 403 and the text of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The name of the sandbox.
    pub sandbox: String,
    /// The host that was meant, if that is known.
    pub host: Option<Host>,
    /// The port that was meant.
    pub port: u16,
    /// Method of a request that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Its path, without the query, which may hold secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Why.
    #[serde(flatten)]
    pub reason: Reason,
    /// The same in words.
    pub message: String,
    /// What would allow it: a flag, or a line of a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
}

/// Most characters that are repeated of what a program or a server sent.
const LONGEST: usize = 512;
/// The same of a method.
const LONGEST_METHOD: usize = 64;

impl Refusal {
    /// A refusal of a connection.
    pub fn new(sandbox: &str, host: Option<&Host>, port: u16, mut reason: Reason) -> Self {
        if let Some(text) = reason.repeats() {
            *text = text.chars().take(LONGEST).collect();
        }
        let mut refusal = Self {
            sandbox: sandbox.to_owned(),
            host: host.cloned(),
            port,
            method: None,
            path: None,
            message: reason.to_string(),
            reason,
            allow: None,
        };
        refusal.allow = refusal.remedy();
        refusal
    }

    /// The same of a request. The query is left out.
    pub fn of_request(mut self, method: &str, path: &str) -> Self {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        self.method = Some(method.chars().take(LONGEST_METHOD).collect());
        self.path = Some(path.chars().take(LONGEST).collect());
        self.allow = self.remedy();
        self
    }

    fn remedy(&self) -> Option<String> {
        let host = self.host.as_ref()?;
        match &self.reason {
            Reason::NoRoute | Reason::Port { .. } | Reason::UnknownAddress => Some(format!("--allow-host {host}:{}", self.port)),
            Reason::Method => {
                Some(self.route(|line| _ = write!(line, ", methods = [{:?}]", self.method.as_deref().unwrap_or("GET"))))
            }
            Reason::Path => Some(self.route(|line| _ = write!(line, ", paths = [{:?}]", self.path.as_deref().unwrap_or("/**")))),
            Reason::Address { address, .. } => Some(self.route(|line| _ = write!(line, ", addresses = [\"{address}\"]"))),
            _ => None,
        }
    }

    fn route(&self, more: impl FnOnce(&mut String)) -> String {
        let host = self.host.as_ref().map(|host| host.to_string().replace(['[', ']'], "")).unwrap_or_default();
        let mut line = format!("network.route = [{{ host = \"{host}\", ports = [{}]", self.port);
        more(&mut line);
        line.push_str(" }]");
        line
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_would_allow_it() {
        let host = Host::parse("api.example.test").unwrap();
        let refusal = Refusal::new("s", Some(&host), 443, Reason::NoRoute);
        assert_eq!(refusal.allow.as_deref(), Some("--allow-host api.example.test:443"));
        let refusal = Refusal::new("s", Some(&host), 443, Reason::Method).of_request("PUT", "/v1/x?key=1");
        let long = "x".repeat(60_000);
        let repeated =
            Refusal::new("s", Some(&host), 443, Reason::AmbiguousPath { detail: long.clone() }).of_request(&long, &long);
        assert!(serde_json::to_string(&repeated).unwrap().len() < 3_000, "a program does not decide how much is written");
        let json = serde_json::to_value(&refusal).unwrap();
        assert_eq!(json["reason"], "method");
        assert_eq!(json["path"], "/v1/x");
        assert_eq!(json["allow"], "network.route = [{ host = \"api.example.test\", ports = [443], methods = [\"PUT\"] }]");
    }
}
