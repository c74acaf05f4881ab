//! Any host, method and path: no panic, and what is allowed below a prefix has no reading outside of it.
#![no_main]

use hermes_egress::host::{Host, authority};
use hermes_egress::path::readings;
use hermes_egress::policy::{Decision, Request, Ruleset};
use hermes_profiles::{Origin, Route};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: (&str, &str, &str)| {
    let (host, method, path) = text;
    let mut route = Route::new("*.a.test", [443], Origin::Flag("--allow-host".into()));
    route.rules.paths = vec!["/v1/**".into()];
    let Ok(rules) = Ruleset::new(&[route], None) else { return };
    let Ok((host, port)) = authority(host, 443) else { return };
    if let Decision::Allow(_) = rules.decide(&Request { host: &host, port, method, path }) {
        assert!(matches!(&host, Host::Name(name) if name.ends_with(".a.test")) && port == 443);
        assert!(readings(path).is_ok_and(|all| all.iter().all(|reading| reading.starts_with("/v1/"))));
    }
});
