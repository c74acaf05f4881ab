//! What the proxy would decide about a host, by the functions that decide when it is tried.

use std::net::IpAddr;

use hermes_backends::explain::{Proxied, Rule};
use hermes_egress::host::Host;
use hermes_egress::policy::{Admission, Invalid, Ruleset};
use hermes_egress::reason::Reason;
use hermes_profiles::{Caller, Origin, Policy, Route, UnknownHosts};

use super::unknown;
use crate::approvals::{Approvals, Scope, ruled};
use crate::error::{Error, Kind};

/// What becomes of a connection to `host`, on `port` or on any that a route names. Nothing is resolved and nobody is asked.
///
/// # Errors
/// A route that cannot be a rule.
pub(crate) fn foretell(policy: &Policy, caller: &Caller, host: &str, port: Option<u16>) -> Result<Proxied, Error> {
    let before = |host: &Host, port| ruled_before(policy, caller, host, port);
    decide(policy.routes(), policy.unknown_hosts, host, port, before).map_err(|e| Error::new(Kind::Policy, e.to_string()))
}

/// `before` is what a person has said once and for all.
fn decide(
    routes: &[Route],
    unknown_hosts: UnknownHosts,
    host: &str,
    port: Option<u16>,
    before: impl FnOnce(&Host, u16) -> Option<bool>,
) -> Result<Proxied, Invalid> {
    let rules = Ruleset::new(routes, None)?;
    let host = match host.parse::<IpAddr>().map(Host::from).or_else(|_| Host::parse(host)) {
        Ok(host) => host,
        Err(why) => return Ok(Proxied::Refused { why: why.to_string(), rule: None }),
    };
    let ports = || routes.iter().flat_map(|route| route.ports.iter().copied()).collect();
    let mut refused = Reason::NoRoute;
    for port in port.map_or_else(ports, |port| vec![port]) {
        match rules.admit(&host, port) {
            Ok(admission) => return Ok(allowed(routes, &rules, &host, port, &admission)),
            Err(reason) => refused = reason,
        }
    }
    let by = |text: &str| Rule { text: text.into(), origin: Origin::Flag("--net".into()) };
    let unread = |rule| Proxied::Allowed { rule, read: false, addresses: Vec::new() };
    Ok(match unknown_hosts {
        UnknownHosts::Refuse => Proxied::Refused { why: refused.to_string(), rule: None },
        UnknownHosts::Audit => match unknown::public(&host) {
            Ok(()) => unread(by("audit: every host on the public internet")),
            Err(class) => {
                Proxied::Refused { why: format!("audit reaches the public internet alone, and this is {class}"), rule: None }
            }
        },
        UnknownHosts::Ask => match port.and_then(|port| before(&host, port)) {
            Some(true) => unread(by("a person has allowed it for good")),
            Some(false) => {
                Proxied::Refused { why: "`approvals rules` has it".into(), rule: Some(by("a person has denied it for good")) }
            }
            None => Proxied::Asked,
        },
    })
}

fn allowed(routes: &[Route], rules: &Ruleset, host: &Host, port: u16, admission: &Admission) -> Proxied {
    let rule = rules.rule_for(host, port);
    let route = routes.iter().find(|route| rule.is_some_and(|rule| rule.is_of(route)));
    let text = |route: &Route| {
        let ports: Vec<_> = route.ports.iter().map(u16::to_string).collect();
        format!("route {} on {}", route.host, ports.join(", "))
    };
    let origin = route.map_or_else(|| Origin::Derived("routes".into()), |route| route.origin.clone());
    let addresses = route.into_iter().flat_map(|route| &route.rules.addresses);
    Proxied::Allowed {
        rule: Rule { text: route.map(text).unwrap_or_default(), origin },
        read: matches!(admission, Admission::Inspect),
        addresses: addresses.map(|network| format!("{}/{}", network.address, network.prefix)).collect(),
    }
}

/// What a person has said once and for all.
fn ruled_before(policy: &Policy, caller: &Caller, host: &Host, port: u16) -> Option<bool> {
    let approvals = Approvals::of(crate::state::directory(caller).ok()?);
    let scope = Scope::of(policy);
    ruled(&approvals.rules().ok()?, &scope, &unknown::named(host), port)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn told(routes: &[Route], unknown_hosts: UnknownHosts, host: &str, port: impl Into<Option<u16>>) -> Proxied {
        decide(routes, unknown_hosts, host, port.into(), |host, _| match host.to_string().as_str() {
            "known.test" => Some(true),
            "barred.test" => Some(false),
            _ => None,
        })
        .unwrap()
    }

    fn is_allowed(proxied: &Proxied) -> bool {
        matches!(proxied, Proxied::Allowed { .. })
    }

    #[test]
    fn routes_are_told_as_they_decide() {
        let wide = Route::new("*.example.test", [443], Origin::Builtin("wide".into()));
        let mut narrow = Route::new("api.example.test", [443, 8443], Origin::Builtin("narrow".into()));
        narrow.rules.methods = vec!["GET".into()];
        let literal = Route::new("10.1.2.3", [80], Origin::Builtin("literal".into()));
        let routes = [wide, narrow, literal];
        let told = |host: &str, port: Option<u16>| told(&routes, UnknownHosts::Refuse, host, port);
        let Proxied::Allowed { rule, read: true, .. } = told("API.example.test", Some(443)) else { panic!("read") };
        assert_eq!(rule, Rule { text: "route api.example.test on 443, 8443".into(), origin: Origin::Builtin("narrow".into()) });
        let Proxied::Allowed { rule, read: false, .. } = told("www.example.test", None) else { panic!("unread") };
        assert_eq!(rule.origin, Origin::Builtin("wide".into()));
        assert!(is_allowed(&told("10.1.2.3", Some(80))) && is_allowed(&told("::ffff:10.1.2.3", Some(80))));
        let refused = [
            ("www.example.test", Some(22)),
            ("example.test", None),
            ("notexample.test", None),
            ("10.1.2.4", Some(80)),
            ("0x7f.1", None),
        ];
        for (host, port) in refused {
            assert!(matches!(told(host, port), Proxied::Refused { .. }), "{host}");
        }
    }

    #[test]
    fn audit_tells_what_is_special_about_an_address() {
        for (host, class) in [
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("localhost", "loopback"),
            ("10.0.0.1", "private"),
            ("::ffff:10.0.0.1", "private"),
            ("64:ff9b::a9fe:a9fe", "cloud metadata"),
            ("169.254.169.254", "cloud metadata"),
            ("100.64.0.1", "carrier-grade NAT"),
            ("0.0.0.0", "unspecified"),
            ("198.18.0.1", "reserved"),
        ] {
            let Proxied::Refused { why, .. } = told(&[], UnknownHosts::Audit, host, 80) else { panic!("{host}") };
            assert!(why.ends_with(class), "{host}: {why}");
        }
        assert!(is_allowed(&told(&[], UnknownHosts::Audit, "93.184.216.34", 80)));
        assert!(is_allowed(&told(&[], UnknownHosts::Audit, "a.test", None)));
        let meant = [Route::new("127.0.0.1", [80], Origin::Builtin("literal".into()))];
        assert!(is_allowed(&told(&meant, UnknownHosts::Audit, "127.0.0.1", 80)));
    }

    #[test]
    fn a_person_is_asked_but_for_what_was_said_for_good() {
        let told = |host: &str| told(&[], UnknownHosts::Ask, host, 443);
        assert_eq!((told("a.test"), told("10.0.0.1")), (Proxied::Asked, Proxied::Asked));
        assert!(is_allowed(&told("known.test")) && matches!(told("barred.test"), Proxied::Refused { .. }));
    }
}
