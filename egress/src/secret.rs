//! Where secrets come from, and how they get into a request. Storage is somebody else's.

use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
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

    /// The value that the next request gets; `None` when there is none, and then the request is refused.
    fn value(&self, name: &str) -> Option<Secret>;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Injected {
    pub(crate) name: String,
    pub(crate) member: usize,
}

/// Refuses placeholders that no rule has a use for, and puts in the secret that `rule` names.
///
/// The header is set whatever the program sent in it: an account of its own at a permitted host would be a way to carry
/// data out.
pub(crate) fn inject(parts: &mut Parts, rule: Option<&SecretRule>, secrets: &dyn Secrets) -> Result<Option<Injected>, Reason> {
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
        match (rule.filter(|rule| rule.header == name.as_str()), secrets.placeholder_in(value.as_bytes())) {
            (_, None) => {}
            (Some(rule), Some(secret)) if secret == rule.name => {}
            _ => return Err(Reason::Placeholder { place }),
        }
    }
    let Some(rule) = rule else { return Ok(None) };
    let unavailable = || Reason::SecretUnavailable { secret: rule.name.clone() };
    let secret = secrets.value(&rule.name).ok_or_else(unavailable)?;
    let text = Zeroizing::new(rule.format.replacen("{}", &secret.value, 1));
    let mut value = HeaderValue::from_str(&text).map_err(|_| unavailable())?;
    value.set_sensitive(true);
    let header = HeaderName::from_bytes(rule.header.as_bytes()).map_err(|_| unavailable())?;
    parts.headers.insert(header, value);
    Ok(Some(Injected { name: rule.name.clone(), member: secret.member }))
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
mod tests {
    use super::*;

    struct One;

    impl Secrets for One {
        fn placeholder_in(&self, text: &[u8]) -> Option<String> {
            text.windows(11).any(|part| part == b"PLACEHOLDER").then(|| "model".to_owned())
        }
        fn value(&self, name: &str) -> Option<Secret> {
            (name == "model").then(|| Secret { value: Zeroizing::new("real".into()), member: 3 })
        }
        fn answered(&self, _: &str, _: usize, _: u16) {}
    }

    fn rule(name: &str) -> SecretRule {
        SecretRule { name: name.into(), header: "authorization".into(), format: "Bearer {}".into() }
    }

    fn parts(target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::get(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_value_goes_into_its_header_only() {
        for sent in [&[("authorization", "Bearer PLACEHOLDER")][..], &[("authorization", "Bearer mine")], &[]] {
            let mut parts = parts("/v1/x", sent);
            let injected = inject(&mut parts, Some(&rule("model")), &One).unwrap().unwrap();
            assert_eq!((injected.name.as_str(), injected.member), ("model", 3));
            let values: Vec<_> = parts.headers.get_all("authorization").iter().collect();
            assert_eq!(values, ["Bearer real"]);
            assert!(!format!("{:?}", parts.headers).contains("real"), "a sensitive value is not printed");
        }
    }

    #[test]
    fn placeholders_elsewhere_are_refused() {
        for (target, headers) in [
            ("/v1/PLACEHOLDER", &[][..]),
            ("/v1/x?k=PLACEHOLDER", &[]),
            ("/v1/%50LACEHOLDER", &[]),
            ("/v1/x", &[("x-note", "a PLACEHOLDER")]),
            ("/v1/x", &[("cookie", "PLACEHOLDER")]),
        ] {
            assert!(matches!(inject(&mut parts(target, headers), Some(&rule("model")), &One), Err(Reason::Placeholder { .. })));
        }
        let mut other = parts("/", &[("authorization", "Bearer PLACEHOLDER")]);
        assert!(matches!(inject(&mut other, None, &One), Err(Reason::Placeholder { .. })));
        assert!(matches!(inject(&mut other, Some(&rule("another")), &One), Err(Reason::Placeholder { .. })));
    }

    #[test]
    fn a_missing_secret_refuses() {
        let refused = inject(&mut parts("/", &[]), Some(&rule("gone")), &One);
        assert_eq!(refused, Err(Reason::SecretUnavailable { secret: "gone".into() }));
        assert!(inject(&mut parts("/", &[]), Some(&rule("model")), &NoSecrets).is_err());
    }
}
