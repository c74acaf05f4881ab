//! Has a client fetch from places that routes name and from others, by every way that there is.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::outcome::Outcome;
use crate::sandbox::Sandbox;
use crate::web::{Internet, Route};

const PLACES: [&str; 4] = ["http://plain.test", "https://plain.test", "http://read.test", "https://read.test"];
const ELSEWHERE: [&str; 2] = ["http://other.test", "https://other.test"];
/// Where `other.test` is.
const ELSEWHERES_ADDRESS: &str = "93.184.216.36:";

/// `plain.test` is passed through unread, requests to `read.test` are read, no route leads to `other.test`.
pub const CLIENT_ROUTES: [Route; 2] = [
    Route::to("plain.test", &[80, 443]),
    Route::rule("read.test", &[80, 443], "methods = [\"GET\", \"HEAD\", \"POST\", \"OPTIONS\"]"),
];

/// A client: how it fetches, and which places it can be asked for.
pub struct Client<'a> {
    sandbox: &'a Sandbox,
    fetch: String,
    word: String,
    places: Vec<&'static str>,
    elsewhere: Vec<&'static str>,
}

impl<'a> Client<'a> {
    /// `fetch` is the body of a shell function: `$1` is `http://host` or `https://host`, `@` stands for a word that must not get
    /// elsewhere. What it prints holds `GOT-IT` when, and only when, it worked.
    pub fn new(sandbox: &'a Sandbox, fetch: &str) -> Self {
        // Each of several clients in one sandbox has a word of its own.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let word = sandbox.canary(&format!("path{}x", COUNT.fetch_add(1, Ordering::Relaxed)));
        let fetch = fetch.replace('@', &word);
        Self { sandbox, fetch, word, places: PLACES.to_vec(), elsewhere: ELSEWHERE.to_vec() }
    }

    /// Only places of this scheme.
    #[must_use]
    pub fn only(mut self, scheme: &str) -> Self {
        let prefix = format!("{scheme}://");
        self.places.retain(|place| place.starts_with(&prefix));
        self.elsewhere.retain(|place| place.starts_with(&prefix));
        self
    }

    /// A script that has it fetch from each place with the proxy's variables and without them.
    fn script(&self, places: &[&str], twice: bool) -> String {
        let unset = "unset HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy NODE_USE_ENV_PROXY JAVA_TOOL_OPTIONS";
        format!(
            "fetch() {{ {}\n}}\nround() {{ for place in {}; do out=$(fetch $place 2>&1 </dev/null | tr '\\0\\n' '  ')\n\
             case $out in *GOT-IT*) echo \"REACHED $1 $place.\";; *) echo \"failed $1 $place: $(echo \"$out\" | tail -c 400)\";; esac; done; }}\n\
             round variables\n{}",
            self.fetch,
            places.join(" "),
            if twice { format!("{unset}\nround nothing") } else { String::new() }
        )
    }

    /// Insists that it reaches what is routed, with the proxy's variables and without them, and nothing else; and that it
    /// reaches everything without a sandbox.
    #[track_caller]
    pub fn reaches_only_what_is_routed(&self, internet: &Internet) {
        let all = [&self.places[..], &self.elsewhere].concat();
        let inside = self.sandbox.sh(&self.script(&all, true));
        reached(inside.ok(), &["variables", "nothing"], &self.places);
        for place in &self.elsewhere {
            inside.never_says(&format!("REACHED variables {place}.")).never_says(&format!("REACHED nothing {place}."));
        }
        let mut strayed = internet.seen(&self.word);
        strayed.retain(|line| line["at"].as_str().is_some_and(|at| at.starts_with(ELSEWHERES_ADDRESS)));
        assert!(strayed.is_empty(), "{strayed:?}\n{}", inside.report());
        let control = self.sandbox.plain_sh(&self.script(&all, false));
        reached(control.ok(), &["variables"], &all);
    }
}

#[track_caller]
fn reached(outcome: &Outcome, with: &[&str], places: &[&str]) {
    for with in with {
        for place in places {
            outcome.says(&format!("REACHED {with} {place}."));
        }
    }
}
