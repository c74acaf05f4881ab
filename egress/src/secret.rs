//! Where secrets come from, and how they get into a request. Storage is somebody else's.

use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use memchr::memmem;
use zeroize::Zeroizing;

use hermes_profiles::SecretRule;

use crate::reason::Reason;

/// One value of a secret.
pub struct Secret {
    /// The value. Wiped when dropped; what the HTTP library copies is not.
    pub value: Zeroizing<String>,
    /// Which one of a pool it is; handed back to [`Secrets::answered`].
    pub member: usize,
}

/// Knows the secrets of one sandbox.
pub trait Secrets: Send + Sync {
    /// The name of a secret whose placeholder is somewhere in `text`.
    fn placeholder_in(&self, text: &[u8]) -> Option<String>;

    /// What stands for the secret inside; `None` when nothing does.
    fn placeholder(&self, name: &str) -> Option<String> {
        let _ = name;
        None
    }

    /// The value that the next request gets; `None` when there is none, and then the request is refused.
    fn value(&self, name: &str) -> Option<Secret>;

    /// Would [`Secrets::value`] wait for something? Then it is called where that keeps nobody else waiting.
    fn waits(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// A request that carried `member` of `name` was answered with `status`. A pool goes on to its next value on 401, 402 and 429.
    fn answered(&self, name: &str, member: usize, status: u16);
}

/// There are no secrets; a rule that wants one refuses.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn placeholder_in(&self, _: &[u8]) -> Option<String> {
        None
    }

    fn value(&self, _: &str) -> Option<Secret> {
        None
    }

    fn answered(&self, _: &str, _: usize, _: u16) {}
}

/// What was put into a request.
#[derive(PartialEq, Eq)]
pub(crate) struct Injected {
    pub(crate) name: String,
    pub(crate) member: usize,
    /// The value, and the text that it became part of if that does not show it.
    pub(crate) carried: Vec<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Injected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injected").field("name", &self.name).field("member", &self.member).finish_non_exhaustive()
    }
}

/// Refuses placeholders that no rule has a use for, and puts in the secret that `rule` names.
///
/// The header is set whatever the program sent in it: an account of its own at a permitted host would be a way to carry
/// data out. Only of Basic credentials (RFC 7617) that hold the placeholder the rest stays, since a user name belongs to them.
///
/// # Errors
/// A placeholder in another place, and a secret that cannot be had or is no value of a header.
pub(crate) async fn inject(
    parts: &mut Parts,
    rule: Option<&SecretRule>,
    secrets: &Arc<dyn Secrets>,
) -> Result<Option<Injected>, Reason> {
    check(parts, rule, &**secrets)?;
    let Some(rule) = rule else { return Ok(None) };
    let unavailable = || Reason::SecretUnavailable { secret: rule.name.clone() };
    let found = if secrets.waits(&rule.name) {
        let (secrets, name) = (Arc::clone(secrets), rule.name.clone());
        tokio::task::spawn_blocking(move || secrets.value(&name)).await.ok().flatten()
    } else {
        secrets.value(&rule.name)
    };
    let secret = found.ok_or_else(unavailable)?;
    let header = HeaderName::from_bytes(rule.header.as_bytes()).map_err(|_| unavailable())?;
    let placeholder = secrets.placeholder(&rule.name);
    let sent = parts.headers.get_all(&header).into_iter().find_map(|value| {
        let placeholder = placeholder.as_deref()?;
        let credentials = basic(value.as_bytes())?;
        memmem::find(&credentials, placeholder.as_bytes()).is_some().then_some((credentials, placeholder))
    });
    let credentials = match (sent, of_basic(&rule.format)) {
        (Some((sent, placeholder)), _) => Some(replaced(&sent, placeholder.as_bytes(), secret.value.as_bytes())),
        (None, Some(format)) => Some(replaced(format.as_bytes(), b"{}", secret.value.as_bytes())),
        (None, None) => None,
    };
    let mut carried = vec![Zeroizing::new(secret.value.as_bytes().to_vec())];
    let text = match credentials {
        // Without a user name there are none. Clients such as git ask without first, and are told to come again.
        Some(credentials) if !credentials.contains(&b':') => {
            parts.headers.remove(&header);
            return Ok(None);
        }
        Some(credentials) => {
            let encoded = Zeroizing::new(BASE64.encode(&*credentials));
            carried.push(Zeroizing::new(encoded.as_bytes().to_vec()));
            replaced(b"Basic {}", b"{}", encoded.as_bytes())
        }
        None => replaced(rule.format.as_bytes(), b"{}", secret.value.as_bytes()),
    };
    let mut value = HeaderValue::from_bytes(&text).map_err(|_| unavailable())?;
    value.set_sensitive(true);
    parts.headers.insert(header, value);
    Ok(Some(Injected { name: rule.name.clone(), member: secret.member, carried }))
}

fn check(parts: &Parts, rule: Option<&SecretRule>, secrets: &dyn Secrets) -> Result<(), Reason> {
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    let found = |text: &[u8], place: &str| match secrets.placeholder_in(text) {
        Some(_) => Err(Reason::Placeholder { place: place.to_owned() }),
        None => Ok(()),
    };
    found(target.as_bytes(), "path or query")?;
    found(&percent_decoded(target), "path or query")?;
    for (name, value) in &parts.headers {
        let place = format!("header {name}");
        found(name.as_str().as_bytes(), &place)?;
        let credentials = basic(value.as_bytes());
        for text in [Some(value.as_bytes()), credentials.as_ref().map(|text| text.as_slice())].into_iter().flatten() {
            match (rule.filter(|rule| rule.header == name.as_str()), secrets.placeholder_in(text)) {
                (_, None) => {}
                (Some(rule), Some(secret)) if secret == rule.name => {}
                _ => return Err(Reason::Placeholder { place }),
            }
        }
    }
    Ok(())
}

/// Clients differ in whether they pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What follows the scheme of Basic credentials.
fn of_basic(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then(|| rest.trim())
}

/// Basic credentials in the clear.
fn basic(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let text = of_basic(std::str::from_utf8(value).ok()?.trim())?;
    BASE64.decode(text).ok().map(Zeroizing::new)
}

/// `text` with every `from` as `to`.
fn replaced(text: &[u8], from: &[u8], to: &[u8]) -> Zeroizing<Vec<u8>> {
    let count = memmem::find_iter(text, from).count();
    // Large enough at once: a vector that grows leaves copies behind.
    let mut all = Zeroizing::new(Vec::with_capacity(text.len() + count * to.len()));
    let mut rest = 0;
    for at in memmem::find_iter(text, from) {
        all.extend_from_slice(&text[rest..at]);
        all.extend_from_slice(to);
        rest = at + from.len();
    }
    all.extend_from_slice(&text[rest..]);
    all
}

/// For looking only: what is no encoding stays as it is.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digit =
            |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16)).and_then(|digit| u8::try_from(digit).ok());
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(high << 4 | low);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
