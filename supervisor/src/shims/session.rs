//! The session that the calls of one client share.
//!
//! Its name is a hash of everything that decides about it: the resolved policy, the options and the interpreter in the shim, this
//! program's version, and the client's process with its start time. So a changed profile, shim or workspace is another session, and
//! bash and python of one installation share one. Hermes Agent's own `HERMES_SESSION_ID` is no part of it: its conversations share
//! one terminal environment, whose snapshot must be found in each call (`_create_environment` in tools/terminal_tool.py).

use std::ffi::OsString;
use std::path::Path;

use hermes_profiles::{Policy, trust};
use serde_json::json;

use super::shim::Shim;
use super::{options, variables};
use crate::error::Error;
use crate::output;
use crate::session::client::Client;
use crate::session::command::{START, launch, print_log};
use crate::session::place::{OF_SHIM, Place, starting};
use crate::session::protocol::{End, Start, Word};

/// A session that nobody uses ends, although its client lives.
const IDLE: &str = "8h";

/// The client's session, started when this is its first call.
pub(super) fn connect(shim: &Shim) -> Result<Client, Error> {
    let policy = shim.policy(&shim.args)?;
    let place = Place::of(&name(shim, &policy)?)?;
    if let Some(client) = Client::reach(&place) {
        return Ok(client);
    }
    // First calls at once: one starts it, the others wait here and find it.
    let lock = starting()?;
    if let Some(client) = Client::reach(&place) {
        return Ok(client);
    }
    sweep();
    start(shim, &place)?;
    drop(lock);
    let (mut client, _) = Client::connect(&place.socket())?;
    prepare(shim, &mut client);
    Ok(client)
}

fn name(shim: &Shim, policy: &Policy) -> Result<String, Error> {
    let all = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "options": shim.header.options,
        "python": shim.header.python.as_deref().map(output::path),
        "client": shim.client.to_string(),
        "policy": policy,
    });
    let bytes = serde_json::to_vec(&all).map_err(|e| Error::setup(format!("cannot name the session: {e}")))?;
    Ok(format!("{OF_SHIM}{}", &trust::hash(&bytes)[..16]))
}

fn start(shim: &Shim, place: &Place) -> Result<(), Error> {
    place.remove();
    let mut words: Vec<OsString> = ["--idle", IDLE, "--client"].map(Into::into).to_vec();
    words.push(shim.client.to_string().into());
    words.extend(shim.header.python.iter().flat_map(|python| ["--program".into(), python.clone().into_os_string()]));
    words.extend(options::with_workspace(&shim.header.options, &shim.args, &shim.caller.cwd));
    words.push(place.name.clone().into());
    let status = launch(place, &words, START, |command| {
        command.env_clear().envs(shim.caller.variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(&shim.caller.cwd);
    })?;
    print_log(place, 0);
    match status {
        None => Ok(()),
        Some(_) => {
            place.remove();
            Err(Error::setup("the sandbox of this shim could not be started, so the command was not run"))
        }
    }
}

/// Makes the client's directory for temporary files inside: Hermes Agent names files there in its commands.
fn prepare(shim: &Shim, client: &mut Client) {
    let Some(dir) = variables::temporary(&shim.caller.variables).filter(|dir| *dir != Path::new("/tmp")) else { return };
    let argv = ["mkdir".as_ref(), "-p".as_ref(), "--".as_ref(), dir.as_os_str()].map(Word::of).to_vec();
    let make = Start { argv, ..Start::default() };
    let made = client.ask::<End>("exec", &make).is_ok_and(|end| end.exit.status == 0);
    if !made {
        output::complain(&format!(
            "{} cannot be made in the sandbox; temporary files there will fail (unset TMPDIR, or grant it with --rw)",
            output::path(dir)
        ));
    }
}

/// Takes away what killed sessions of shims have left. Nobody starts one meanwhile.
fn sweep() {
    let Ok(places) = Place::all() else { return };
    places.iter().filter(|place| place.is_of_shim() && !place.is_alive()).for_each(Place::remove);
}
