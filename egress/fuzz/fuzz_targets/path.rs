//! Any path of a request.
#![no_main]

#[allow(dead_code)]
#[path = "../checks.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|path: &str| checks::request("x.a.test", "GET", path));
