//! What `scripts/bench proxy` measures the way out with: a server, a client, and what could stand between them at best.
//!
//! Each is a process of its own, on one thread. All of them speak to `scripts/bench` by lines: they say in JSON what they are or
//! what they measured, the client is told what to measure, and the end of standard input ends them.
#![allow(clippy::unwrap_used)]

mod client;
mod floor;
mod server;

use std::io::{self, Read};

use serde_json::Value;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match arguments[..] {
        ["server", address, root] => runtime.block_on(server::serve(address.parse().unwrap(), root.as_ref())),
        ["client"] => client::run(&runtime),
        ["floor", way, namespace, address, ref ports @ ..] => {
            let ports: Vec<u16> = ports.iter().map(|port| port.parse().unwrap()).collect();
            runtime.block_on(floor::stand_between(way.parse().unwrap(), namespace, address.parse().unwrap(), &ports));
        }
        _ => panic!("usage: bench server ADDRESS ROOT | client | floor copy|splice NAMESPACE ADDRESS PORT.."),
    }
}

/// Says something in a line of JSON.
fn say(what: &Value) {
    println!("{what}");
}

/// The end of whoever started this is its own end.
fn end_with_input() {
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}
