//! What the tests of the finished program share: a scratch home with canaries, a way to run the program and the same
//! command without it, servers on the host's side, and skips that are counted.
//!
//! This room knows the command line and nothing else: it links no other room of the project, so that it tests the
//! contract and not the code. The program is found by `HERMES_SANDBOX_BIN`, else in the target directory.

mod agent;
mod changes;
mod clients;
mod engine;
mod hermes;
mod host;
mod outcome;
mod pty;
mod quarantine;
mod rpc;
mod sandbox;
mod shims;
mod skip;
mod ssh;
mod web;

pub use agent::{agent_packages, mcp_packages};
pub use changes::let_files_age;
pub use clients::{CLIENT_ROUTES, Client};
pub use engine::Engine;
pub use hermes::{Hermes, thieving_turns};
pub use host::{Listener, TreeSnapshot, assert_gone, processes_with, wait_until};
pub use outcome::{Live, Outcome, run_to_end, run_to_end_with_input, run_to_end_within, shell_line};
pub use pty::{Pty, Step};
pub use quarantine::{Aside, Seen};
pub use rpc::Rpc;
pub use sandbox::{GITCONFIG, PYTHON, Sandbox, binary, copy_binary, fixture};
pub use shims::Shims;
pub use skip::{is_root, program, record_skip};
pub use ssh::Remote;
pub use web::{Internet, Route};
