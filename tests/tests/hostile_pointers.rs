//! A pointer that lies in a tree which the sandbox may write never becomes a grant.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use hermes_tests::{PYTHON, Sandbox, need, run_to_end};

struct Target {
    sandbox: Sandbox,
    /// Paths whose content must not come out.
    secrets: Vec<String>,
}

/// A workspace beside secrets: a private key and another project.
fn targets() -> Target {
    let sandbox = Sandbox::new();
    let secrets = [
        sandbox.write(sandbox.home.join(".ssh/id_ed25519"), sandbox.canary("key")),
        sandbox.write(sandbox.home.join("other-project/secret"), sandbox.canary("project")),
        sandbox.write(sandbox.outside.join("secret"), sandbox.canary("outside")),
    ];
    let secrets = secrets.map(|path| path.display().to_string()).into();
    Target { sandbox, secrets }
}

impl Target {
    fn script(&self) -> String {
        self.secrets.iter().map(|path| format!("cat '{path}' 2>/dev/null; ")).collect::<String>()
            + "cat /etc/shadow 2>/dev/null | grep root: ; echo END"
    }

    #[track_caller]
    fn assert_safe(&self, first: &str) {
        // The pointer is followed, if at all, before anything runs; the command then looks for what it opened.
        let result = self.sandbox.run([first, "-c", &self.script()]);
        result.never_says("CANARY").never_says("root:").no_panic();
        let result = self.sandbox.sh(&self.script());
        result.says("END").never_says("CANARY").never_says("root:");
    }
}

#[test]
fn positive_control() {
    let target = targets();
    assert_eq!(target.sandbox.plain_sh(&target.script()).out().matches("CANARY").count(), target.secrets.len());
}

#[test]
fn a_shebang_grants_nothing() {
    let target = targets();
    let key = target.secrets[0].clone();
    for line in [
        format!("#!{key}"),
        format!("#!/bin/sh {key}"),
        format!("#!{}/../other-project/secret", target.sandbox.workspace.display()),
        "#!/etc/shadow".to_owned(),
        format!("#!/usr/bin/env {key}"),
    ] {
        target.sandbox.script("tool", &format!("{line}\n"));
        target.assert_safe("./tool");
    }
}

#[test]
fn a_virtualenv_in_the_workspace_grants_nothing() {
    for home in ["HOME/.ssh", "HOME/other-project", "OUTSIDE", "/etc", "/root"] {
        let target = targets();
        let real = home
            .replace("HOME", &target.sandbox.home.display().to_string())
            .replace("OUTSIDE", &target.sandbox.outside.display().to_string());
        target.sandbox.write(
            ".venv/pyvenv.cfg",
            format!("home = {real}\nbase-prefix = {real}\nexecutable = {real}/python3\ninclude-system-site-packages = true\n"),
        );
        fs::create_dir_all(target.sandbox.workspace.join(".venv/bin")).unwrap();
        symlink("/bin/sh", target.sandbox.workspace.join(".venv/bin/python")).unwrap();
        target.assert_safe(".venv/bin/python");
    }
}

#[test]
fn a_symlinked_program_grants_only_what_was_granted() {
    let target = targets();
    let other = target.sandbox.home.join("other-project");
    target.sandbox.script(other.join("bin/tool"), "#!/bin/sh\nexec /bin/sh \"$@\"\n");
    symlink(other.join("bin/tool"), target.sandbox.workspace.join("tool")).unwrap();
    target.assert_safe("./tool");
    symlink(target.sandbox.home.join(".ssh"), target.sandbox.workspace.join("bin")).unwrap();
    target.assert_safe("bin/id_ed25519");
}

#[test]
fn a_git_pointer_grants_nothing_without_its_back_link() {
    for aim in ["HOME/.ssh", "HOME/other-project", "OUTSIDE", "/etc"] {
        let target = targets();
        let aim = aim
            .replace("HOME", &target.sandbox.home.display().to_string())
            .replace("OUTSIDE", &target.sandbox.outside.display().to_string());
        target.sandbox.write(".git", format!("gitdir: {aim}\n"));
        target.assert_safe("/bin/sh");
        fs::remove_file(target.sandbox.workspace.join(".git")).unwrap();
        symlink(&aim, target.sandbox.workspace.join(".git")).unwrap();
        target.assert_safe("/bin/sh");
    }
    // A worktree that claims a common directory.
    let target = targets();
    let project = target.sandbox.home.join("other-project");
    target.sandbox.write("wt/commondir", project.display().to_string());
    target.sandbox.write("wt/gitdir", target.sandbox.workspace.join(".git").display().to_string());
    target.sandbox.write("wt/HEAD", "ref: refs/heads/main\n");
    target.sandbox.write(".git", format!("gitdir: {}\n", target.sandbox.workspace.join("wt").display()));
    target.assert_safe("/bin/sh");
}

#[test]
fn another_repository_stays_closed_though_a_pointer_aims_at_it() {
    need!("git");
    let target = targets();
    let repository = target.sandbox.home.join("other-project");
    target
        .sandbox
        .plain_sh(&format!(
            "cd '{}' && git init -q . && git add secret && git -c user.name=t -c user.email=t@example.test commit -qm x",
            repository.display()
        ))
        .ok();
    target.sandbox.write(".git", format!("gitdir: {}/.git\n", repository.display()));
    let result = target.sandbox.run(["git", "show", "HEAD:secret"]);
    result.never_says("CANARY");
    target.sandbox.plain_sh("git show HEAD:secret").says("CANARY");
}

#[test]
fn a_script_of_the_workspace_cannot_pull_in_a_tree_by_its_interpreters_prefix() {
    need!(PYTHON);
    let target = targets();
    // An interpreter link in the workspace whose "prefix" is the home directory.
    fs::create_dir_all(target.sandbox.workspace.join("bin")).unwrap();
    let fake = target.sandbox.home.join("bin/python3");
    target.sandbox.script(&fake, "#!/bin/sh\nexec /bin/sh \"$@\"\n");
    symlink(&fake, target.sandbox.workspace.join("bin/python3")).unwrap();
    target.sandbox.script("run.py", &format!("#!{}\n", target.sandbox.workspace.join("bin/python3").display()));
    target.assert_safe("./run.py");
}

#[test]
fn a_profile_in_the_workspace_is_not_obeyed() {
    let target = targets();
    let text = format!(
        "schema = 1\n[filesystem]\nread = [\"{0}\"]\nwrite = [\"{0}\"]\nhome = \"read\"\n[network]\nmode = \"host\"\n",
        target.sandbox.home.display()
    );
    for name in [
        "hermes-sandbox.toml",
        ".hermes-sandbox.toml",
        ".hermes-sandbox/profile.toml",
        "agent.toml",
        "base.toml",
        ".config/hermes-sandbox/profiles/agent.toml",
    ] {
        target.sandbox.write(name, &text);
    }
    target.assert_safe("/bin/sh");
}

#[test]
fn a_workspace_that_turns_into_a_symlink_is_not_followed() {
    let target = targets();
    let workspace = target.sandbox.workspace.clone();
    let moved = target.sandbox.home.join("moved");
    // The race as its end result: the name now points to the secrets.
    fs::rename(&workspace, &moved).unwrap();
    symlink(target.sandbox.home.join(".ssh"), &workspace).unwrap();
    let mut command = target.sandbox.inside(["/bin/sh", "-c", "cat id_ed25519; cat ./*; echo END"]);
    let result = run_to_end(command.current_dir(Path::new("/")));
    fs::remove_file(&workspace).unwrap();
    fs::rename(&moved, &workspace).unwrap();
    result.never_says("CANARY").no_panic();
}
