//! What a policy costs at every start: `cargo run --release -p hermes-profiles --example speed`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use hermes_profiles::{Caller, Files, Request, environment, resolve};

struct Nothing;

impl Files for Nothing {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn best(what: &str, mut run: impl FnMut()) {
    let rounds = (0..200).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed()
    });
    let mut rounds: Vec<_> = rounds.collect();
    let first = rounds[0];
    rounds.sort_unstable();
    println!("{what}: first {first:?}, median {:?}, best {:?}", rounds[rounds.len() / 2], rounds[0]);
}

fn main() {
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    variables.extend(
        (0..100 - variables.len().min(99)).map(|n| (format!("UNKNOWN_VARIABLE_{n}").into(), "some value or other".into())),
    );
    let caller = Caller::from_variables(PathBuf::from("/home/user/project"), variables.clone());
    let caller = Caller { home: Some("/home/user".into()), ..caller };
    let request = Request { caller, ..Request::default() };
    let Ok(resolved) = resolve(&request, &Nothing) else { return };
    println!("{} rules, {} variables", resolved.policy.files.len(), variables.len());
    best("resolve agent", || drop(resolve(&request, &Nothing)));
    best("copy environment", || drop(variables.to_vec()));
    best("filter environment", || drop(environment::filter(&resolved.policy.environment, variables.iter().cloned())));
}
