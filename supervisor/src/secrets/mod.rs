//! `secrets`: credentials that a sandbox may use and never sees, and the secrets of one sandbox.
//!
//! [`vault`] says what there is, [`store`] keeps it, [`source`] gets values from where they come from, [`sandbox`] gives them
//! to the way out of a sandbox. No value is ever printed; [`value::Value`] is the only type that keeps one.

mod input;
mod pool;
pub(crate) mod sandbox;
mod source;
mod store;
mod value;
mod vault;

use hermes_profiles::Caller;
use nix::sys::prctl::set_dumpable;
use serde::Serialize;

use crate::args::{AddArgs, Secrets as Action};
use crate::error::Error;
use crate::output::{self, clean};
use crate::{request, start, table};
use store::Store;
use vault::{Entry, Source, Taken};

/// Answers and returns the exit status.
pub(crate) fn secrets(action: Action) -> Result<u8, Error> {
    match action {
        Action::Add(args) => add(&args),
        Action::List { profile, json, user } => list(&caller(user.as_deref())?, profile.as_deref(), json),
        Action::Remove { name, profile, suppress, user } => remove(&caller(user.as_deref())?, &name, &profile, suppress),
    }
}

fn caller(user: Option<&str>) -> Result<Caller, Error> {
    let caller = request::caller(user.map(start::become_user).transpose()?)?;
    // No core dump, and no debugger of the same user's: this process has all values in memory.
    let _ = set_dumpable(false);
    Ok(caller)
}

fn add(args: &AddArgs) -> Result<u8, Error> {
    if !args.surplus.is_empty() {
        let error = Error::usage("more than one name is given");
        return Err(if args.from_command {
            error.hint("put the command after `--`: hermes-sandbox secrets add NAME --profile PROFILE --from-command -- COMMAND")
        } else {
            error.hint("a value is never taken from the command line, where others can read it; give it on standard input")
        });
    }
    let (name, caller) = (vault::name(&args.name)?, caller(args.user.as_deref())?);
    let scope = vault::scope(&args.profile, &caller.cwd)?;
    let variable = args.env.as_deref().map(|variable| vault::variable(variable, "--env")).transpose()?;
    let store = Store::of(&caller)?;
    let taken = match (args.pool, args.replace) {
        (true, _) => Taken::Append,
        (_, true) => Taken::Replace,
        _ => Taken::Refuse,
    };
    let entry = |source| Entry {
        scope: scope.clone(),
        name: name.clone(),
        variable: variable.clone(),
        members: vec![source],
        suppressed: false,
    };
    // Before anything is asked: a value that is typed in vain is a nuisance. What no source can equal stands for it.
    store.read()?.add(entry(Source::Command(Vec::new())), taken, args.lift_suppression)?;
    let source = source(args, &name, &caller)?;
    let count = store.change(|vault| vault.add(entry(source), taken, args.lift_suppression))?;
    let values = if count == 1 { "1 value".to_owned() } else { format!("{count} values") };
    output::print(&format!("{name} of profile {}: {values}\n", clean(&scope)))?;
    Ok(0)
}

fn source(args: &AddArgs, name: &str, caller: &Caller) -> Result<Source, Error> {
    if let Some(variable) = &args.from_env {
        return Source::variable(variable);
    }
    if let Some(entry) = &args.from_keyring {
        let source = Source::keyring(entry)?;
        source.check(caller).map_err(Error::setup)?;
        return Ok(source);
    }
    if !args.from_command {
        return input::value(name).map(Source::Stored);
    }
    let Some((program, arguments)) = args.command.split_first() else {
        return Err(Error::usage("no command given").hint("put it after `--`: --from-command -- pass show model"));
    };
    // As it is found now: what PATH says when a sandbox starts may be somebody else's choice.
    let found = source::program(program, caller).map_err(Error::usage)?;
    let found = found.into_os_string().into_string().map_err(|_| Error::usage("the path of the command must be UTF-8"))?;
    Ok(Source::Command(std::iter::once(found).chain(arguments.iter().cloned()).collect()))
}

/// A secret for programs.
#[derive(Debug, Serialize)]
struct Listed<'a> {
    name: &'a str,
    profile: &'a str,
    values: usize,
    /// One for each value.
    sources: Vec<&'static str>,
    variable: Option<&'a str>,
    suppressed: bool,
}

fn list(caller: &Caller, profile: Option<&str>, json: bool) -> Result<u8, Error> {
    let scope = profile.map(|profile| vault::scope(profile, &caller.cwd)).transpose()?;
    let vault = Store::of(caller)?.read()?;
    let listed = vault.entries.iter().filter(|entry| scope.as_ref().is_none_or(|scope| entry.scope == *scope));
    let listed: Vec<_> = listed
        .map(|entry| Listed {
            name: &entry.name,
            profile: &entry.scope,
            values: entry.members.len(),
            sources: entry.members.iter().map(Source::kind).collect(),
            variable: entry.variable.as_deref(),
            suppressed: entry.suppressed,
        })
        .collect();
    if json {
        output::print_json(&listed)?;
    } else if listed.is_empty() {
        output::print("there are no secrets\n")?;
    } else {
        let mut rows = vec![["NAME", "PROFILE", "VALUES", "VARIABLE", "SOURCE"].map(str::to_owned)];
        rows.extend(listed.iter().map(row));
        let mut text = String::new();
        table::columns(&mut text, &rows);
        output::print(&text)?;
    }
    Ok(0)
}

fn row(listed: &Listed<'_>) -> [String; 5] {
    let mut kinds = listed.sources.clone();
    kinds.dedup();
    let source = if listed.suppressed { "suppressed".to_owned() } else { kinds.join(", ") };
    let variable = listed.variable.unwrap_or("-").to_owned();
    let (name, profile) = (clean(listed.name).into_owned(), clean(listed.profile).into_owned());
    [name, profile, listed.values.to_string(), variable, source]
}

fn remove(caller: &Caller, name: &str, profile: &str, suppress: bool) -> Result<u8, Error> {
    let (name, scope) = (vault::name(name)?, vault::scope(profile, &caller.cwd)?);
    Store::of(caller)?.change(|vault| vault.remove(&scope, &name, suppress))?;
    let became = if suppress { "suppressed" } else { "removed" };
    output::print(&format!("{name} of profile {}: {became}\n", clean(&scope)))?;
    Ok(0)
}
