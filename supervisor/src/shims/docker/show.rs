//! What docker tells: version, info, ps, inspect.

use serde_json::json;

use super::container::Container;
use super::format::{fill, time};
use super::{daemon, make};
use crate::args::docker::{Formatted, Inspect, Ps};
use crate::error::Error;
use crate::output;
use crate::shims::shim::Shim;
use crate::table;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Not `overlay2`: with that Hermes Agent would try whether disks can be limited (`_storage_opt_supported`).
const DRIVER: &str = "hermes-sandbox";
const NO_IMAGES: &str = "containers are sandboxes; images are not used, this machine's own system is";
/// Hermes Agent asks for this label when it looks for a container of an earlier process to use again. What it was made with is not
/// looked at by the agent, and what would be made now is not known here: there is none to be used again. See [`make::run`].
const REUSE: &str = "label=hermes-task-id=";

pub(super) fn version(how: &Formatted) -> Result<(), Error> {
    let field = |name: &str| match name {
        ".Server.Version" | ".Client.Version" => Some(VERSION.to_owned()),
        _ => None,
    };
    match &how.format {
        Some(template) => filled(template, &field),
        None => output::print(&format!("hermes-sandbox {VERSION} in the place of docker: {NO_IMAGES}\n")),
    }
}

pub(super) fn info(how: &Formatted) -> Result<(), Error> {
    let field = |name: &str| match name {
        ".Driver" => Some(DRIVER.to_owned()),
        ".ServerVersion" => Some(VERSION.to_owned()),
        ".OSType" => Some("linux".to_owned()),
        _ => None,
    };
    match &how.format {
        Some(template) => filled(template, &field),
        None => output::print(&format!("Server: hermes-sandbox {VERSION}\nDriver: {DRIVER}\nImages: none; {NO_IMAGES}\n")),
    }
}

pub(super) fn image(how: &Inspect) -> Result<(), Error> {
    let field = |name: &str| (name == "json .Config.Entrypoint").then(|| "null".to_owned());
    match &how.format {
        Some(template) => how.names.iter().try_for_each(|_| filled(template, &field)),
        None => output::print_json(&json!([{"Config": {"Entrypoint": null}}])),
    }
}

fn filled(template: &str, field: &dyn Fn(&str) -> Option<String>) -> Result<(), Error> {
    output::print(&(fill(template, field).map_err(Error::usage)? + "\n"))
}

/// Containers that this shim made under the policy that it has now.
fn own(shim: &Shim) -> Result<Vec<Container>, Error> {
    let policy = make::fingerprint(shim)?;
    let mut all: Vec<_> = Container::all()?.into_iter().filter(|container| container.record.policy == policy).collect();
    all.sort_by_key(|container| std::cmp::Reverse(container.record.created));
    Ok(all)
}

pub(super) fn ps(shim: &Shim, how: &Ps) -> Result<(), Error> {
    let states: Vec<&str> = how.filter.iter().filter_map(|filter| filter.strip_prefix("status=")).collect();
    let looks_for_reuse = states.is_empty() && how.filter.iter().any(|filter| filter.starts_with(REUSE));
    let mut rows = Vec::new();
    for container in own(shim)?.iter().filter(|_| !looks_for_reuse) {
        let state = container.state();
        let mut shown = how.all || !states.is_empty() || state == "running";
        for filter in &how.filter {
            shown &= match filter.split_once('=') {
                Some(("label", label)) => container.has_label(label),
                Some(("name", name)) => container.place.name.contains(name),
                Some(("status", _)) => states.contains(&state),
                Some(("id", id)) => container.record.id.starts_with(id),
                _ => return Err(Error::usage(format!("--filter {} is not known", output::clean(filter)))),
            };
        }
        if !shown {
            continue;
        }
        let template = how.format.as_deref().unwrap_or(if how.quiet { "{{.ID}}" } else { "" });
        if template.is_empty() {
            rows.push([container.place.name.clone(), state.to_owned(), container.record.id[..12].to_owned()]);
            continue;
        }
        filled(template, &|name| match name {
            ".ID" => Some(container.record.id.clone()),
            ".Names" => Some(container.place.name.clone()),
            ".State" | ".Status" => Some(state.to_owned()),
            ".Image" => Some(container.record.wanted.image.clone()),
            ".CreatedAt" => Some(time(container.record.created)),
            _ => None,
        })?;
    }
    let mut text = String::new();
    table::columns(&mut text, &rows);
    output::print(&text)
}

pub(super) fn inspect(shim: &Shim, how: &Inspect) -> Result<u8, Error> {
    let (all, mut found, mut status) = (own(shim)?, Vec::new(), 0);
    for name in &how.names {
        let Some(container) = all.iter().find(|container| container.is(name)) else {
            daemon(format!("No such container: {}", output::clean(name))).report();
            status = 1;
            continue;
        };
        let state = container.state();
        let finished = if state == "running" { "0001-01-01T00:00:00Z".to_owned() } else { time(container.finished()) };
        // `docker_network: false` must find `none`, whatever the policy would have given.
        let network = if container.record.wanted.offline { "none" } else { "bridge" };
        match &how.format {
            Some(template) => filled(template, &|name| match name {
                ".Id" | ".ID" => Some(container.record.id.clone()),
                ".Name" => Some(format!("/{}", container.place.name)),
                ".State.Status" => Some(state.to_owned()),
                ".State.Running" => Some((state == "running").to_string()),
                ".State.FinishedAt" => Some(finished.clone()),
                ".HostConfig.NetworkMode" => Some(network.to_owned()),
                ".Config.Image" => Some(container.record.wanted.image.clone()),
                _ => None,
            })?,
            None => found.push(json!({
                "Id": container.record.id,
                "Name": format!("/{}", container.place.name),
                "Created": time(container.record.created),
                "State": {"Status": state, "Running": state == "running", "FinishedAt": finished},
                "Config": {"Image": container.record.wanted.image, "Labels": container.record.wanted.labels},
                "HostConfig": {"NetworkMode": network},
            })),
        }
    }
    if how.format.is_none() {
        output::print_json(&found)?;
    }
    Ok(status)
}
