//! `docker`: the commands that Hermes Agent calls (`DockerEnvironment` in tools/environments/docker.py), with sandboxes for
//! containers. Images are not used: what a container sees is this machine's own system, read-only, and what is mounted.

mod container;
mod format;
mod make;
mod show;
mod wanted;

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::call::{self, Streams};
use super::shim::Shim;
use crate::args::docker::{Docker, Exec, Image, parse};
use crate::engine;
use crate::error::{Error, Kind};
use crate::output;
use crate::session::client::Client;
use crate::session::protocol::{Input, Size, Start, Started, Word};
use container::Container;

/// Does what docker is asked for and returns the exit status.
pub(super) fn docker(shim: &Shim, args: &[OsString]) -> Result<u8, Error> {
    let text = |word: &OsString| {
        word.to_str().map(str::to_owned).ok_or_else(|| Error::usage("a shim takes only UTF-8 on its command line"))
    };
    let args: Vec<String> = args.iter().map(text).collect::<Result<_, _>>()?;
    let name = args.first().cloned().unwrap_or_default();
    let told = |error: Error| Error { message: format!("docker {}: {}", output::clean(&name), error.message), ..error };
    obey(shim, parse(&args).map_err(told)?).or_else(|error| match error.kind {
        // What docker says of a container it says without more.
        Kind::Finding => Ok(error.report()),
        _ => Err(told(error)),
    })
}

fn obey(shim: &Shim, docker: Docker) -> Result<u8, Error> {
    match docker {
        Docker::Version(how) => show::version(&how).map(|()| 0),
        Docker::Info(how) => show::info(&how).map(|()| 0),
        Docker::Image { what: Image::Inspect(how) } => show::image(&how).map(|()| 0),
        _ if engine::is_inside() => Err(Error::setup("already in a sandbox, in which none can be started")
            .hint("use the agent's local terminal backend there: its commands are confined by the sandbox around them")),
        Docker::Ps(how) => show::ps(shim, &how).map(|()| 0),
        Docker::Inspect(how) => show::inspect(shim, &how),
        Docker::Run(run) => make::run(shim, &run),
        Docker::Create(create) => make::create(shim, &create).map(|()| 0),
        Docker::Start { containers } => each(shim, &containers, |container| make::start(shim, container)),
        Docker::Stop { time: _, containers } => each(shim, &containers, |container| container.stop()),
        Docker::Rm { force, volumes: _, containers } => each(shim, &containers, |container| remove(container, force)),
        Docker::Exec(exec) => self::exec(shim, *exec),
    }
}

/// Does it to each, and prints what it was called. The status is 1 when one was not there.
fn each(shim: &Shim, names: &[String], mut act: impl FnMut(&mut Container) -> Result<(), Error>) -> Result<u8, Error> {
    let mut status = 0;
    for name in names {
        let done = find(shim, name).and_then(|mut container| act(&mut container));
        match done {
            Ok(()) => output::print(&format!("{name}\n"))?,
            Err(error) => {
                error.report();
                status = 1;
            }
        }
    }
    Ok(status)
}

/// What docker says, with its status: 1.
fn daemon(message: String) -> Error {
    Error::new(Kind::Finding, format!("Error response from daemon: {message}"))
}

/// The container of this name. What another policy made is none, and is ended: nothing may run under a policy that has gone.
fn find(shim: &Shim, name: &str) -> Result<Container, Error> {
    let none = || daemon(format!("No such container: {}", output::clean(name)));
    let mut container = Container::all()?.into_iter().find(|container| container.is(name)).ok_or_else(none)?;
    if container.record.policy == make::fingerprint(shim)? {
        return Ok(container);
    }
    container.stop()?;
    container.place.remove();
    output::complain(&format!("the container {} was made under another policy and has been removed", output::clean(name)));
    Err(none())
}

fn remove(container: &mut Container, force: bool) -> Result<(), Error> {
    if !force && container.reach().is_some() {
        let name = &container.place.name;
        return Err(daemon(format!(
            "cannot remove container \"/{name}\": container is running: stop the container before removing or force remove"
        )));
    }
    container.stop()?;
    container.place.remove();
    Ok(())
}

fn exec(shim: &Shim, exec: Exec) -> Result<u8, Error> {
    let container = find(shim, &exec.container)?;
    if exec.privileged {
        return Err(Error::usage("--privileged is refused: a sandbox has no such hole"));
    }
    wanted::user(exec.user.as_deref(), &make::allowed(shim.base()?)).map_err(Error::usage)?;
    let Some(mut client) = container.reach() else {
        return Err(daemon(format!("container {} is not running", container.record.id)));
    };
    let more = wanted::environment(&exec.env, &|name| std::env::var(name).ok()).map_err(Error::usage)?;
    let how = How { detach: exec.detach, interactive: exec.interactive, tty: exec.tty, workdir: exec.workdir.as_deref() };
    in_container(&container, &mut client, &exec.command, more, how)
}

/// How a command is to be run.
#[derive(Debug, Clone, Copy)]
struct How<'a> {
    detach: bool,
    interactive: bool,
    tty: bool,
    workdir: Option<&'a str>,
}

/// Runs a command in a container.
fn in_container(
    container: &Container,
    client: &mut Client,
    command: &[String],
    more: BTreeMap<String, String>,
    how: How<'_>,
) -> Result<u8, Error> {
    let wanted = &container.record.wanted;
    let cwd = how.workdir.or(wanted.workdir.as_deref()).map(str::to_owned);
    let mut env = BTreeMap::from([("PATH".to_owned(), wanted::PATH.to_owned())]);
    env.extend(container.record.home.iter().map(|home| ("HOME".to_owned(), home.clone())));
    // A shell takes it when it is the directory that it is in, and so shows the name by which that was asked for.
    env.extend(cwd.iter().map(|cwd| ("PWD".to_owned(), cwd.clone())));
    env.extend(wanted.env.clone());
    env.extend(more);
    let streams = Streams::look();
    let reads = how.interactive && !how.detach && (how.tty || streams.reads);
    let start = Start {
        argv: command.iter().cloned().map(Word::Text).collect(),
        cwd: cwd.map(Word::Text),
        // Nothing of the caller's goes into a container but what -e names.
        caller: Some(BTreeMap::new()),
        env: env.into_iter().map(|(name, value)| (name, Word::Text(value))).collect(),
        stdin: if reads { Input::Pipe } else { Input::Null },
        pty: how.tty.then(Size::ours),
        tied: !how.detach,
        stream: !how.detach,
        merge: !how.tty && streams.start().merge,
        ..streams.start()
    };
    if how.detach {
        let _: Started = client.ask("start", &Start { stdin: Input::Null, pty: None, ..start })?;
        return Ok(0);
    }
    let end = call::run(client, &start, reads)?;
    Ok(end.exit.status)
}
