//! Any query: no panic, and never an answer for a name that no rule permits.
#![no_main]

use hermes_egress::event::Event;
use hermes_egress::names::{Names, SYNTHETIC, answer};
use hermes_egress::policy::Ruleset;
use hermes_profiles::{Origin, Route};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|query: &[u8]| {
    let route = |host: &str| Route::new(host, [443], Origin::Flag("--allow-host".into()));
    let Ok(rules) = Ruleset::new(&[route("a.test"), route("*.b.test")], None) else { return };
    let answer = answer(query, &mut Names::new(SYNTHETIC, 8), &rules);
    if let Some(Event::NameGiven { name, .. }) = answer.event {
        assert!(name == "a.test" || name.ends_with(".b.test"));
    }
});
