//! Guarded files that a job hides behind what the look at a tree takes for something else.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use hermes_tests::{Sandbox, is_root, let_files_age, need, skip};

const SCRIPT: &str = r##"
hook() { mkdir -p "$1"; printf '#!/bin/sh\ntouch fired\n' > "$1/$2"; chmod +x "$1/$2"; }
repository() { mkdir -p "$1/objects" "$1/refs"; echo 'ref: refs/heads/main' > "$1/HEAD"; }
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com
"##;

#[test]
fn hooks_and_todo_lists_that_look_like_a_repository_stay_what_they_are() {
    need!("git");
    let plants = [
        ("", "git init -q sub; hook sub/.git/hooks post-commit; repository sub/.git/hooks", "sub"),
        ("git init -q sub; hook sub/.git/hooks pre-push", "hook sub/.git/hooks post-commit; repository sub/.git/hooks", "sub"),
        (
            "mkdir -p sub/.git; hook sub/.git/hooks post-commit; echo '#!/bin/sh' > sub/.git/hooks/post-commit",
            "git init -q sub; hook sub/.git/hooks post-commit",
            "sub",
        ),
        (
            "git init -q sub; cd sub; git commit -q --allow-empty -m a",
            "cd sub; git -c sequence.editor='echo break >' rebase -q -i --root; repository .git/rebase-merge; \
          echo 'exec touch fired' > .git/rebase-merge/git-rebase-todo",
            "sub",
        ),
    ];
    for tier in ["namespaces", "landlock"] {
        for (prepare, plant, at) in plants {
            for inside in [false, true] {
                let sandbox = Sandbox::new().flags(["--tier", tier]);
                sandbox.plain_sh(&format!("{SCRIPT}{prepare}")).ok();
                let_files_age();
                let plant = format!("{SCRIPT}{plant}");
                let done = if inside { sandbox.sh(&plant) } else { sandbox.plain_sh(&plant) };
                if done.code() == 125 {
                    skip!("no {tier} tier here");
                }
                done.ok();
                let act = "test -d .git/rebase-merge && git rebase --continue || git commit -q --allow-empty -m x";
                sandbox.plain_sh(&format!("{SCRIPT}cd {at}; {act}"));
                assert_eq!(sandbox.workspace.join(at).join("fired").exists(), !inside, "{tier}: {plant}\n{}", done.report());
            }
        }
    }
}

#[test]
fn a_directory_cannot_be_hidden_among_many_that_nobody_may_list() {
    if is_root() {
        skip!("root may list all");
    }
    let plant = "for i in $(seq 300); do mkdir d$i; echo x > d$i/.envrc; chmod 300 d$i; done";
    let left = |sandbox: &Sandbox| sandbox.plain_sh("cat d*/.envrc 2>/dev/null | wc -l; chmod 700 d*").out();
    let plain = Sandbox::new();
    plain.plain_sh(plant).ok();
    assert_eq!(left(&plain).trim(), "300");
    let sandbox = Sandbox::new();
    sandbox.sh(plant).ok();
    assert_eq!(left(&sandbox).trim(), "0");
}

#[test]
fn hooks_are_guarded_where_the_configuration_lies_outside_of_the_workspace() {
    need!("git");
    let prepare = "mkdir main; cd main; git init -q .; git config core.hooksPath tools/hooks; mkdir -p tools/hooks; \
                   echo x > tools/hooks/x; git add .; git commit -qm x; git worktree add -q ../linked; \
                   git config include.path ../tools/more";
    for (workspace, plant, top) in [
        ("linked", "hook tools/hooks post-commit", "linked"),
        ("main/tools", "hook hooks post-commit", "main"),
        ("main/tools", "git config -f more core.fsmonitor 'touch fired #'", "main"),
    ] {
        for inside in [false, true] {
            let sandbox = Sandbox::new();
            sandbox.plain_sh(&format!("{SCRIPT}{prepare}")).ok();
            let_files_age();
            let workspace = sandbox.workspace.join(workspace);
            let plant = format!("{SCRIPT}cd {}; {plant}", workspace.display());
            let sandbox = sandbox.flags([Path::new("--workspace"), &workspace]);
            let done = if inside { sandbox.sh(&plant) } else { sandbox.plain_sh(&plant) };
            done.ok();
            sandbox.plain_sh(&format!("{SCRIPT}cd {top}; git commit -q --allow-empty -m y")).ok();
            assert_eq!(sandbox.workspace.join(top).join("fired").exists(), !inside, "{}", done.report());
        }
    }
}

#[test]
fn hooks_are_guarded_where_the_users_own_git_configuration_looks_for_them() {
    need!("git");
    let plant = format!("{SCRIPT}hook myhooks post-commit");
    for (place, path) in [("the user's", "myhooks"), ("the repository's", "~/ws/myhooks")] {
        for (sandbox, inside) in [(Sandbox::new(), false), (Sandbox::new(), true), (Sandbox::overlaid(), true)] {
            sandbox.plain_sh(&format!("{SCRIPT}git init -q .; mkdir myhooks; echo x > myhooks/note")).ok();
            let configuration =
                if place == "the user's" { sandbox.home.join(".gitconfig") } else { sandbox.workspace.join(".git/config") };
            std::fs::write(configuration, format!("[core]\n\thooksPath = {path}\n")).unwrap();
            let_files_age();
            if inside { sandbox.sh(&plant) } else { sandbox.plain_sh(&plant) }.ok();
            if inside {
                sandbox.changes(&["apply"]);
            }
            sandbox.plain_sh(&format!("{SCRIPT}git commit -q --allow-empty -m x")).ok();
            assert_eq!(sandbox.workspace.join("fired").exists(), !inside, "{place}");
        }
    }
}
