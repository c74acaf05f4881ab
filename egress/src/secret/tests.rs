use std::thread::{self, ThreadId};

use super::*;

/// One secret, `model`; `slow` says that it waits.
struct One {
    value: &'static str,
    slow: bool,
    home: ThreadId,
}

impl Secrets for One {
    fn placeholder_in(&self, text: &[u8]) -> Option<String> {
        memmem::find(text, b"PLACEHOLDER").map(|_| "model".to_owned())
    }
    fn placeholder(&self, name: &str) -> Option<String> {
        (name == "model").then(|| "PLACEHOLDER".to_owned())
    }
    fn value(&self, name: &str) -> Option<Secret> {
        assert_eq!(self.slow, thread::current().id() != self.home);
        (name == "model").then(|| Secret { value: Zeroizing::new(self.value.into()), member: 3 })
    }
    fn waits(&self, _: &str) -> bool {
        self.slow
    }
    fn answered(&self, _: &str, _: usize, _: u16) {}
}

fn one(value: &'static str) -> Arc<dyn Secrets> {
    Arc::new(One { value, slow: false, home: thread::current().id() })
}

fn rule(name: &str, format: &str) -> SecretRule {
    SecretRule { name: name.into(), header: "authorization".into(), format: format.into() }
}

fn bearer(name: &str) -> SecretRule {
    rule(name, "Bearer {}")
}

fn parts(target: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = http::Request::get(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn values(parts: &Parts) -> Vec<&str> {
    parts.headers.get_all("authorization").iter().map(|value| value.to_str().unwrap()).collect()
}

fn encoded(text: &str) -> String {
    format!("Basic {}", BASE64.encode(text))
}

#[tokio::test]
async fn the_value_goes_into_its_header_only() {
    for sent in [&[("authorization", "Bearer PLACEHOLDER")][..], &[("authorization", "Bearer mine")], &[]] {
        let mut parts = parts("/v1/x", sent);
        let injected = inject(&mut parts, Some(&bearer("model")), &one("real")).await.unwrap().unwrap();
        assert_eq!((injected.name.as_str(), injected.member), ("model", 3));
        assert_eq!(injected.carried, [Zeroizing::new(b"real".to_vec())]);
        assert_eq!(values(&parts), ["Bearer real"]);
        assert!(!format!("{:?}{injected:?}", parts.headers).contains("real"), "a sensitive value is not printed");
    }
}

#[tokio::test]
async fn a_value_that_takes_time_keeps_nobody_waiting() {
    let mut parts = parts("/v1/x", &[]);
    let slow: Arc<dyn Secrets> = Arc::new(One { value: "real", slow: true, home: thread::current().id() });
    inject(&mut parts, Some(&bearer("model")), &slow).await.unwrap().unwrap();
    assert_eq!(values(&parts), ["Bearer real"]);
}

#[tokio::test]
async fn placeholders_elsewhere_are_refused() {
    let basic = encoded("user:PLACEHOLDER");
    let unpadded = basic.trim_end_matches('=').replacen("Basic", "bAsIc ", 1);
    for (target, headers) in [
        ("/v1/PLACEHOLDER", &[][..]),
        ("/v1/x?k=PLACEHOLDER", &[]),
        ("/v1/%50LACEHOLDER", &[]),
        ("/v1/x", &[("x-note", "a PLACEHOLDER")]),
        ("/v1/x", &[("cookie", "PLACEHOLDER")]),
        ("/v1/x", &[("x-note", &basic)]),
        ("/v1/x", &[("proxy-authorization", &unpadded)]),
    ] {
        let refused = inject(&mut parts(target, headers), Some(&bearer("model")), &one("real")).await;
        assert!(matches!(refused, Err(Reason::Placeholder { .. })), "{target} {headers:?}");
    }
    for text in ["Bearer PLACEHOLDER", &basic, &unpadded] {
        let mut other = parts("/", &[("authorization", text)]);
        assert!(matches!(inject(&mut other, None, &one("real")).await, Err(Reason::Placeholder { .. })));
        let another = inject(&mut other, Some(&bearer("another")), &one("real")).await;
        assert!(matches!(another, Err(Reason::Placeholder { .. })));
        assert!(inject(&mut other, Some(&bearer("model")), &one("real")).await.is_ok(), "the control");
    }
}

#[tokio::test]
async fn a_missing_secret_refuses() {
    let refused = inject(&mut parts("/", &[]), Some(&bearer("gone")), &one("real")).await;
    assert_eq!(refused, Err(Reason::SecretUnavailable { secret: "gone".into() }));
    let none: Arc<dyn Secrets> = Arc::new(NoSecrets);
    assert!(inject(&mut parts("/", &[]), Some(&bearer("model")), &none).await.is_err());
}

#[tokio::test]
async fn basic_credentials_keep_what_is_not_the_placeholder() {
    for format in ["Bearer {}", "Basic {}", "{}"] {
        let mut parts = parts("/", &[("authorization", &encoded("user:PLACEHOLDER"))]);
        let injected = inject(&mut parts, Some(&rule("model", format)), &one("real")).await.unwrap().unwrap();
        assert_eq!(values(&parts), [encoded("user:real")]);
        let carried: Vec<_> = injected.carried.iter().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect();
        assert_eq!(carried, ["real".to_owned(), encoded("user:real").replace("Basic ", "")]);
    }
    // Their own password is not the secret, so it does not go out.
    let mut own = parts("/", &[("authorization", &encoded("user:mine"))]);
    inject(&mut own, Some(&bearer("model")), &one("real")).await.unwrap().unwrap();
    assert_eq!(values(&own), ["Bearer real"]);
}

#[tokio::test]
async fn a_basic_format_is_encoded() {
    for (format, value, becomes) in
        [("Basic {}", "user:real", Some("user:real")), ("basic token:{}", "real", Some("token:real")), ("Basic {}", "real", None)]
    {
        for sent in [&[][..], &[("authorization", "Bearer mine")]] {
            let mut parts = parts("/", sent);
            let injected = inject(&mut parts, Some(&rule("model", format)), &one(value)).await.unwrap();
            assert_eq!(injected.is_some(), becomes.is_some());
            assert_eq!(values(&parts), becomes.map(encoded).into_iter().collect::<Vec<_>>());
        }
    }
}
