//! The container of `--backend docker`.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;

use hermes_profiles::{DockerRules, Pull};
use support::*;

fn written(text: &str) -> DockerRules {
    policy(&request("mine"), &Memory::default().profile("mine", text)).docker
}

#[test]
fn it_says_what_the_container_is() {
    assert_eq!(written("schema = 1\n"), DockerRules::default());
    assert_eq!(DockerRules::default().pull, Pull::Never, "nothing is fetched unasked");
    let rules = written(
        "schema = 1\n[docker]\nimage = \"registry.example.test:5000/tools/rust:1.95\"\npull = \"missing\"\nplatform = \"linux/amd64\"\n\
         mounts = [{ source = \"~/data\", target = \"/data/./in\", write = true }, { source = \"/srv/models\" }, { source = \"?$NONE/x\" }]\n\
         [docker.env]\nCI = \"1\"\n",
    );
    assert_eq!(rules.image.as_deref(), Some("registry.example.test:5000/tools/rust:1.95"));
    assert_eq!((rules.pull, rules.platform.as_deref()), (Pull::Missing, Some("linux/amd64")));
    assert_eq!(rules.env.into_iter().collect::<Vec<_>>(), [("CI".to_owned(), "1".to_owned())]);
    let mounts: Vec<_> = rules.mounts.iter().map(|mount| (mount.target.as_path(), mount.write)).collect();
    assert_eq!(mounts, [(Path::new("/data/in"), true), (Path::new("/srv/models"), false)]);
    assert!(rules.mounts[0].source.ends_with("data") && rules.mounts[0].source.is_absolute());
}

#[test]
fn mistakes_and_what_would_undo_it_are_named() {
    for (text, says) in [
        ("imgae = \"x\"", "3: unknown key \"imgae\" in [docker]; did you mean \"image\"?"),
        ("image = \"-v\"", "3: image: \"-v\": expected the name of an image, e.g. \"debian:12\""),
        ("image = \"a b\"", "3: image: \"a b\": expected the name of an image, e.g. \"debian:12\""),
        ("pull = \"always\"", "3: pull: unknown value \"always\"; expected never, missing"),
        ("platform = \"amd64\"", "3: platform: expected os/architecture, e.g. \"linux/amd64\""),
        ("privileged = true", "3: privileged: refused: a privileged container is no boundary"),
        ("cap-add = [\"SYS_ADMIN\"]", "3: cap-add: refused: the container has no capabilities, and gets none"),
        ("network = \"host\"", "3: network: refused: the container has no network; [network] says where jobs may connect to"),
        ("pid = \"host\"", "3: pid: refused: the host's namespaces are not shared"),
        ("security-opt = []", "3: security-opt: refused: the container's filters are not loosened"),
        ("mounts = [{ target = \"/x\" }]", "3: mounts: source is missing"),
        ("mounts = [{ source = \"/x\", target = \"x\" }]", "3: target: expected an absolute path"),
        ("mounts = [{ source = \"/x\", wirte = true }]", "3: unknown key \"wirte\" in [mounts]; did you mean \"write\"?"),
        ("env = { \"A=B\" = \"x\" }", "3: A=B: expected the name of a variable"),
    ] {
        let message = error(&request("mine"), &Memory::default().profile("mine", &format!("schema = 1\n[docker]\n{text}\n")));
        assert!(message.ends_with(says), "{message}");
    }
}

#[test]
fn later_files_decide() {
    let files = Memory::default()
        .profile(
            "base2",
            "schema = 1\n[docker]\nimage = \"a:1\"\npull = \"missing\"\nmounts = [{ source = \"/a\", target = \"/x\" }]\n",
        )
        .profile(
            "mine",
            "schema = 1\nincludes = [\"base2\"]\n[docker]\nimage = \"b:2\"\nmounts = [{ source = \"/b\", target = \"/x\" }]\n",
        );
    let rules = policy(&request("mine"), &files).docker;
    assert_eq!((rules.image.as_deref(), rules.pull), (Some("b:2"), Pull::Missing));
    assert_eq!(rules.mounts.iter().map(|mount| mount.source.as_path()).collect::<Vec<_>>(), [Path::new("/b")]);
}
