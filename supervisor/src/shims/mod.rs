//! Shims: programs in the place of `bash`, `python` and `docker` that run what an agent calls them for in a sandbox, so that an
//! agent which knows nothing of it is confined. The contract that they keep is Hermes Agent's; docs/hermes.md is for people.
//!
//! A shim is a text file whose `#!` line leads here and which holds its policy ([`header`]). All calls of one process, its
//! *client*, under one policy share a session ([`session`]): one sandbox, one /tmp, whose background processes live on. It ends with
//! the client.

mod call;
mod client;
mod code;
mod docker;
mod header;
mod install;
mod options;
mod session;
mod shim;
mod variables;

use std::ffi::OsString;
use std::path::Path;

use crate::args::{ShimName, Shims};
use crate::error::Error;
pub(crate) use client::ClientProcess;

/// Does what is asked. Returns the exit status.
pub(crate) fn shims(action: Shims) -> Result<u8, Error> {
    match action {
        Shims::Install(args) => install::install(&args).map(|()| 0),
    }
}

/// Is this a call by a `#!` line? The kernel makes it `PROGRAM shim FILE ARGUMENT...`, execve(2).
pub(crate) fn is_call(argv: &[OsString]) -> bool {
    argv.get(1).is_some_and(|name| name == "shim")
}

/// Stands for the program that a shim is called as. Returns its exit status.
pub(crate) fn call(argv: &[OsString]) -> Result<u8, Error> {
    let Some((file, args)) = argv.get(2..).and_then(<[_]>::split_first) else {
        return Err(Error::usage("no shim given").hint("`hermes-sandbox shims install DIR` writes shims; call these"));
    };
    let shim = shim::Shim::load(Path::new(file))?;
    match shim.header.shim {
        ShimName::Bash | ShimName::Python => call::call(&shim, args),
        ShimName::Docker => docker::docker(&shim, args),
    }
}
