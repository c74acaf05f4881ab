//! What holds for all policy files.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use hermes_profiles::{Policy, builtin, profile, resolve};
use proptest::prelude::*;
use support::*;

/// Lists of which the merge claims that the order of files does not matter, with paths of their own for every access.
fn some_layer() -> impl Strategy<Value = String> {
    let names = |prefix: &'static str| prop::collection::vec((0..6_u8).prop_map(move |n| format!("{prefix}{n}")), 0..4);
    let guarantees = || prop::collection::vec(prop::sample::select(vec!["tree-killed", "home-private", "ipc-private"]), 0..2);
    (
        (names("/srv/read"), names("/srv/write"), names("?/srv/overlay"), names("/srv/cache"), names("/srv/")),
        (names("A"), names("D*"), names("**/g"), names("/run/s"), guarantees(), guarantees()),
        prop::collection::vec((0..3_u8, 1..4_u16), 0..3),
    )
        .prop_map(|((read, write, overlay, cache, hide), (allow, deny, guard, connect, prefer, require), routes)| {
            let prefer: Vec<_> = prefer.into_iter().filter(|g| !require.contains(g)).collect();
            let mut text = format!(
                "schema = 1\nincludes = []\n[filesystem]\nread = {read:?}\nwrite = {write:?}\noverlay = {overlay:?}\ncache = {cache:?}\n\
                 hide = {hide:?}\nguard = {guard:?}\n[environment]\nallow = {allow:?}\ndeny = {deny:?}\n[unix]\nconnect = {connect:?}\n\
                 [guarantees]\nprefer = {prefer:?}\nrequire = {require:?}\n"
            );
            for (host, port) in routes {
                text += &format!("[[network.route]]\nhost = \"h{host}.example.test\"\nports = [{port}]\n");
            }
            text
        })
}

/// A policy without the places where its parts were written.
fn meaning(policy: Policy) -> impl PartialEq + std::fmt::Debug {
    let files: BTreeSet<_> = policy.files.into_iter().map(|rule| (rule.path, rule.access, rule.optional)).collect();
    let network = match policy.network {
        hermes_profiles::Network::Routes(routes) => Some(routes.into_iter().map(|r| (r.host, r.ports)).collect::<BTreeSet<_>>()),
        _ => None,
    };
    (files, network, policy.environment, policy.unix, policy.preferred, policy.guard)
}

fn merged(order: &[&String]) -> Policy {
    let names: Vec<String> = (0..order.len()).map(|n| format!("l{n}")).collect();
    let mut files = Memory::default().profile("mine", &format!("schema = 1\nincludes = {names:?}\n"));
    for (name, text) in names.iter().zip(order) {
        files = files.profile(name, text);
    }
    policy(&request("mine"), &files)
}

proptest! {
    #[test]
    fn the_order_of_includes_does_not_matter_where_that_is_claimed(a in some_layer(), b in some_layer(), c in some_layer()) {
        let first = meaning(merged(&[&a, &b, &c]));
        prop_assert_eq!(&first, &meaning(merged(&[&c, &a, &b])));
        prop_assert_eq!(&first, &meaning(merged(&[&b, &c, &a, &b])));
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = profile::check(Path::new("/p.toml"), &bytes);
    }

    #[test]
    fn no_change_of_a_profile_makes_the_parser_panic(
        which in 0..builtin::all().len(), at in any::<prop::sample::Index>(), length in 0..20_usize, put in "(\\PC|[\\[\\]{}\"'=.\n]){0,12}",
    ) {
        let mut bytes = builtin::all()[which].text.as_bytes().to_vec();
        let start = at.index(bytes.len());
        let end = (start + length).min(bytes.len());
        bytes.splice(start..end, put.bytes());
        if let Err(error) = profile::check(Path::new("/p.toml"), &bytes) {
            let text = error.to_string();
            prop_assert!(text.starts_with("/p.toml:") && !text.contains('\n'), "{}", text);
        }
    }

    #[test]
    fn what_is_written_in_a_path_never_panics_and_never_escapes_the_rules(text in "[?~$]?(\\$|\\{|\\}|:-|~|/|\\.\\.|[A-Z]{1,3}|\\PC){0,12}") {
        let quoted = format!("{text:?}").replace("\\'", "'");
        let file = format!("schema = 1\nincludes = []\n[filesystem]\nread = [{quoted}]\n");
        if let Ok(resolved) = resolve(&request("mine"), &Memory::default().profile("mine", &file)) {
            for rule in &resolved.policy.files {
                let path = rule.path.to_str().unwrap();
                prop_assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".." || part == "."), "{}", path);
            }
        }
    }
}
