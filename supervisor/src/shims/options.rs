//! The options of a policy as text that a shim keeps, and back.

use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches};
use hermes_profiles::paths::normalise;

use crate::args::{Net, PolicyArgs, TierArg};
use crate::error::Error;
use crate::output;
use crate::usage;

/// The options as they were given, but with absolute paths: a shim is called from anywhere.
pub(super) fn record(args: &PolicyArgs, cwd: &Path) -> Result<Vec<String>, Error> {
    // All of them by name: one that is forgotten here would be a wall that is not there.
    let PolicyArgs {
        profile,
        source,
        workspace,
        ro,
        rw,
        deny,
        env,
        set_env,
        net,
        allow_host,
        connect,
        publish,
        limit,
        accept_loss,
        tier,
        user,
        overlay,
        checkpoint,
        allow_broad,
        verbose,
        alias,
        scratch_at,
        place: _,
        advise: _,
    } = args;
    let mut options = Vec::new();
    let mut add = |name: &str, value: String| options.extend([name.to_owned(), value]);
    let absolute = |path: &Path| {
        let path = normalise(&cwd.join(path));
        let shown = output::path(&path);
        path.into_os_string().into_string().map_err(|_| Error::usage(format!("{shown} is not UTF-8; a shim cannot hold it")))
    };
    if let Some(profile) = profile {
        let is_file = profile.contains('/') || profile.ends_with(".toml");
        add("--profile", if is_file { absolute(Path::new(profile))? } else { profile.clone() });
    }
    source.iter().for_each(|source| add("--source", source.clone()));
    for (name, paths) in
        [("--workspace", workspace.as_slice()), ("--ro", ro), ("--rw", rw), ("--deny", deny), ("--scratch-at", scratch_at)]
    {
        for path in paths {
            add(name, absolute(path)?);
        }
    }
    for (name, values) in [
        ("--alias", alias),
        ("--env", env),
        ("--set-env", set_env),
        ("--allow-host", allow_host),
        ("--limit", limit),
        ("--accept-loss", accept_loss),
    ] {
        values.iter().for_each(|value| add(name, value.clone()));
    }
    for (name, ports) in [("--connect", connect), ("--publish", publish)] {
        ports.iter().for_each(|port| add(name, port.to_string()));
    }
    user.iter().for_each(|user| add("--user", user.clone()));
    net.iter().for_each(|net| add("--net", net_name(*net).to_owned()));
    tier.iter().for_each(|tier| add("--tier", tier_name(*tier).to_owned()));
    let switches = [("--overlay", overlay), ("--checkpoint", checkpoint), ("--allow-broad", allow_broad), ("--verbose", verbose)];
    options.extend(switches.into_iter().filter(|(_, on)| **on).map(|(name, _)| name.to_owned()));
    Ok(options)
}

fn net_name(net: Net) -> &'static str {
    match net {
        Net::Off => "off",
        Net::Routes => "routes",
        Net::Ask => "ask",
        Net::Audit => "audit",
        Net::Host => "host",
    }
}

fn tier_name(tier: TierArg) -> &'static str {
    match tier {
        TierArg::Namespaces => "namespaces",
        TierArg::Landlock => "landlock",
    }
}

/// The options that were recorded.
pub(super) fn parse(options: &[String]) -> Result<PolicyArgs, Error> {
    let command = PolicyArgs::augment_args(clap::Command::new("shim").bin_name("hermes-sandbox run").no_binary_name(true));
    let args = command
        .try_get_matches_from(options)
        .and_then(|matches| PolicyArgs::from_arg_matches(&matches))
        .map_err(|e| usage::condense(&e))?;
    args.only_local().map(|()| args)
}

/// As options of a command line.
pub(super) fn with_workspace(options: &[String], args: &PolicyArgs, workspace: &Path) -> Vec<std::ffi::OsString> {
    let own = args.workspace.is_none().then(|| ["--workspace".into(), PathBuf::from(workspace).into_os_string()]);
    options.iter().map(Into::into).chain(own.into_iter().flatten()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_what_was_given() {
        let given = [
            "--profile",
            "p.toml",
            "--source",
            "cron",
            "--workspace",
            "ws",
            "--ro",
            "../a",
            "--rw",
            "/b",
            "--deny",
            "c",
            "--env",
            "A",
            "--set-env",
            "B=c d",
            "--limit",
            "memory=1GiB",
            "--accept-loss",
            "tree-killed",
            "--user",
            "u",
            "--net",
            "none",
            "--tier",
            "landlock",
            "--overlay",
            "--checkpoint",
            "--allow-broad",
            "-v",
        ];
        let given = parse(&given.map(str::to_owned)).unwrap();
        let recorded = record(&given, Path::new("/home/u")).unwrap();
        let again = parse(&recorded).unwrap();
        assert_eq!(again.profile.as_deref(), Some("/home/u/p.toml"));
        assert_eq!(
            (again.workspace.unwrap(), again.ro, again.rw, again.deny),
            (PathBuf::from("/home/u/ws"), vec!["/home/a".into()], vec!["/b".into()], vec!["/home/u/c".into()])
        );
        assert_eq!((again.env, again.set_env, again.limit), (given.env, given.set_env, given.limit));
        assert_eq!((again.net, again.tier, again.user), (Some(Net::Off), Some(TierArg::Landlock), Some("u".into())));
        assert!(again.overlay && again.checkpoint && again.allow_broad && again.verbose);
        assert_eq!(parse(&record(&parse(&[]).unwrap(), Path::new("/")).unwrap()).unwrap().workspace, None);
    }

    #[test]
    fn a_named_profile_stays_a_name_and_what_is_unknown_is_refused() {
        let named = PolicyArgs { profile: Some("hermes".into()), ..Default::default() };
        assert_eq!(record(&named, Path::new("/x")).unwrap(), ["--profile", "hermes"]);
        for bad in [&["--no-such"][..], &["word"], &["--net", "on"], &["--backend", "docker"]] {
            assert!(parse(&bad.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).is_err(), "{bad:?}");
        }
    }
}
