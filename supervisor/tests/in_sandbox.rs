//! Tests that start sandboxes from inside the program: the program's own modules, and a `main` that is init when it is
//! asked to be, and otherwise runs every case in the one thread that may start a sandbox.
// The modules bring tests of their own, which run where there is a test runner.
#![allow(dead_code, unused_imports, clippy::unwrap_used, missing_docs)]

#[path = "../src/approvals/mod.rs"]
mod approvals;
#[path = "../src/args/mod.rs"]
mod args;
#[path = "../src/beneath.rs"]
mod beneath;
#[path = "../src/changes/mod.rs"]
mod changes;
#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/confined.rs"]
mod confined;
#[path = "../src/diff/mod.rs"]
mod diff;
#[path = "../src/engine.rs"]
mod engine;
#[path = "../src/error.rs"]
mod error;
#[path = "../src/events.rs"]
mod events;
#[path = "../src/fresh.rs"]
mod fresh;
#[path = "../src/guard/mod.rs"]
mod guard;
#[path = "../src/needs.rs"]
mod needs;
#[path = "../src/network/mod.rs"]
mod network;
#[path = "../src/output.rs"]
mod output;
#[path = "../src/prepare.rs"]
mod prepare;
#[path = "../src/request.rs"]
mod request;
#[cfg(test)]
#[path = "../src/sample.rs"]
mod sample;
#[path = "../src/scratch.rs"]
mod scratch;
#[path = "../src/secrets/mod.rs"]
mod secrets;
#[path = "../src/start.rs"]
mod start;
#[path = "../src/state/mod.rs"]
mod state;
#[path = "../src/stdio.rs"]
mod stdio;
#[path = "../src/supervise.rs"]
mod supervise;
#[path = "../src/table.rs"]
mod table;
#[path = "../src/terminal.rs"]
mod terminal;
#[path = "../src/usage.rs"]
mod usage;

#[path = "in_sandbox/history.rs"]
mod history;
#[path = "in_sandbox/tool.rs"]
mod tool;

use std::process::ExitCode;

use args::TierArg;

/// A name, and what is run in each tier.
type Case = (&'static str, fn(TierArg));

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    if argv.get(1).is_some_and(|name| engine::is_init(name)) {
        return engine::init();
    }
    if let [_, flag, tier, git_dir] = argv.as_slice()
        && flag == "--ask"
    {
        history::ask_for_main(&tier.to_string_lossy(), git_dir.as_ref());
        return ExitCode::SUCCESS;
    }
    let only = argv.get(1).and_then(|name| name.to_str()).filter(|name| !name.starts_with('-')).unwrap_or("");
    let host = engine::measure_now();
    let namespaces = host.userns.works();
    let (mut passed, mut failed) = (0, 0);
    for (name, case) in history::CASES.iter().chain(tool::CASES) {
        for tier in [TierArg::Namespaces, TierArg::Landlock] {
            let name = format!("{name} ({tier:?})");
            if !name.contains(only) {
                continue;
            }
            let lacks = match tier {
                TierArg::Namespaces if !namespaces => "no user namespaces",
                TierArg::Landlock if host.uid == 0 => "root does not enter a sandbox without namespaces",
                TierArg::Landlock if host.landlock_abi == 0 => "no Landlock",
                _ => "",
            };
            if !lacks.is_empty() {
                println!("SKIPPED {name}: {lacks}");
                continue;
            }
            match std::panic::catch_unwind(|| case(tier)) {
                Ok(()) => passed += 1,
                Err(_) => {
                    println!("FAILED {name}");
                    failed += 1;
                }
            }
        }
    }
    println!("test result: {}. {passed} passed; {failed} failed", if failed == 0 { "ok" } else { "FAILED" });
    ExitCode::from(u8::from(failed > 0))
}
