//! Any first bytes: no panic, and a verdict that more bytes do not take back.
#![no_main]

use hermes_egress::peek::{First, first};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = first(bytes);
    for end in [bytes.len() / 3, bytes.len() / 2] {
        let part = first(&bytes[..end]);
        assert!(part == First::Incomplete || part == whole);
    }
});
