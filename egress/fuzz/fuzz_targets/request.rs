//! Any host, method and path.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|text: (&str, &str, &str)| checks::request(text.0, text.1, text.2));
