//! The guard rules that ship, what a policy makes of them, and which paths they are about.
#![allow(clippy::unwrap_used)]

mod support;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::{Action, Guard, GuardRules, Selector, builtin, link_leads_out};
use hermes_profiles::{Access, Policy};
use proptest::prelude::*;
use support::*;

/// The table as it is written, with the paths that the rules are to be tried with.
fn table() -> Vec<toml::Table> {
    let text = include_str!("../builtin/guard.toml");
    let file: toml::Table = text.parse().unwrap();
    file["rule"].as_array().unwrap().iter().map(|rule| rule.as_table().unwrap().clone()).collect()
}

fn id_for(guard: &Guard<'_>, path: &str) -> Option<String> {
    guard.rule_for(Path::new(path)).map(|rule| rule.id.to_string())
}

/// The rule for a path relative to the workspace, by the text of the `[filesystem]` table of a profile.
fn by_policy(filesystem: &str, path: &str) -> Option<String> {
    let policy = filesystem_policy(filesystem);
    id_for(&Guard::new(&policy.guard, Path::new(WORK)), path)
}

fn filesystem_policy(filesystem: &str) -> Policy {
    written(&format!("schema = 1\n[filesystem]\n{filesystem}\n")).unwrap().policy
}

#[test]
fn every_rule_finds_its_example_and_not_what_only_looks_like_it() {
    let rules = GuardRules::default();
    let guard = Guard::new(&rules, Path::new(WORK));
    let rows = table();
    assert!(rows.len() == builtin().len() && rows.len() > 94 + 20);
    for (row, rule) in rows.iter().zip(builtin()) {
        let text = |key: &str| row.get(key).and_then(toml::Value::as_str);
        assert_eq!(text("id"), Some(&*rule.id));
        assert!(!rule.runs.is_empty() && !rule.source.is_empty(), "{}", rule.id);
        if rule.files.is_empty() {
            assert!(guard.by_id(&rule.id).is_some() && text("example").is_none(), "{}", rule.id);
            continue;
        }
        let (example, unlike) = (text("example").unwrap(), text("unlike").unwrap());
        assert_eq!(id_for(&guard, example).as_deref(), Some(&*rule.id), "{example}");
        assert_ne!(id_for(&guard, unlike).as_deref(), Some(&*rule.id), "{unlike}");
    }
    for id in ["git-pointer", "git-buried", "git-nested", "symlink-out", "stage", "policy"] {
        assert!(guard.by_id(id).is_some(), "{id}");
    }
    assert!(guard.by_id("no-such-rule").is_none());
}

#[test]
fn depth_roots_and_directories() {
    let rules = GuardRules::default();
    let guard = Guard::new(&rules, Path::new(WORK));
    let id = |path: &str| id_for(&guard, path);
    for (path, wanted) in [
        (".envrc", Some("direnv")),
        ("a/b/c/.envrc", Some("direnv")),
        (".hermes/x", Some("hermes")),
        ("a/.hermes/x", None),
        // What is listed first decides, also where everything below a directory is guarded.
        (".devcontainer/devcontainer.json", Some("devcontainer")),
        (".devcontainer/x/y/z", Some("devcontainer-files")),
        (".husky/_/x/y", Some("husky")),
        // In the place of the directory itself.
        (".husky", Some("husky")),
        ("", None),
        ("/", None),
        // Rules that only report are not about installed packages, with one exception; the others are.
        ("web/package.json", Some("package-json")),
        ("web/node_modules/x/package.json", None),
        ("web/node_modules/x/.envrc", Some("direnv")),
        ("web/node_modules/.bin/x", Some("bin-directories")),
    ] {
        assert_eq!(id(path).as_deref(), wanted, "{path}");
    }
    let whole = |directory: &str| guard.whole(&guard.scope(Path::new(directory))).map(|rule| rule.id.to_string());
    assert_eq!(whole(".husky/_").as_deref(), Some("husky"));
    assert_eq!(whole(".vscode"), None);
    // A directory is none of the files that are called like it.
    assert_eq!(whole(".env"), None);
    assert_eq!(id(".env").as_deref(), Some("dotenv"));
}

#[test]
fn inside_git_directories() {
    let rules = GuardRules::default();
    let guard = Guard::new(&rules, Path::new(WORK));
    for (path, wanted) in [
        ("hooks/post-index-change", Some("git-hooks")),
        ("hooks/a/b", Some("git-hooks")),
        ("hooks/pre-push.sample", None),
        ("config", Some("git-config")),
        ("config.worktree", Some("git-config-worktree")),
        ("worktrees/w/config.worktree", Some("git-config-worktree")),
        ("commondir", Some("git-commondir")),
        ("worktrees/w/commondir", Some("git-commondir")),
        ("rebase-merge/git-rebase-todo", Some("git-todo")),
        ("modules/a/b/config", Some("git-config")),
        ("modules/a/hooks/x", Some("git-hooks")),
        ("worktrees/w/modules/a/b/hooks/x", Some("git-hooks")),
        ("worktrees/w/modules/a/config", Some("git-config")),
        ("worktrees/w/logs/modules/a/config", None),
        // A branch can have any name.
        ("refs/heads/config", None),
        ("modules/a/refs/heads/config", None),
        ("modules/a/logs/refs/heads/hooks/x", None),
        ("objects/hooks/x", None),
        ("a/config", None),
        ("index", None),
    ] {
        let found = guard.in_git_dir(Path::new(path)).map(|rule| rule.id.to_string());
        assert_eq!(found.as_deref(), wanted, "{path}");
        assert_eq!(id_for(&guard, &format!("x/.git/{path}")).as_deref(), wanted, "{path}");
    }
    // A rule of the working tree is not about names in there.
    assert_eq!(id_for(&guard, ".git/refs/heads/.envrc"), None);
}

#[test]
fn links_in_the_place_of_directories() {
    let rules = GuardRules::default();
    let guard = Guard::new(&rules, Path::new(WORK));
    let link = |directory: &str, name: &str| {
        let directory = Path::new(directory);
        guard.rule_for_link(&guard.scope(directory), directory, OsStr::new(name)).map(|rule| rule.id.to_string())
    };
    assert!(link("a", ".vscode").unwrap().starts_with("vscode"));
    assert!(link("", ".cargo").unwrap().starts_with("cargo"));
    assert_eq!(link("a", ".husky").as_deref(), Some("husky"));
    assert_eq!(link("a/.idea", "runConfigurations").as_deref(), Some("idea-tools"));
    assert_eq!(link("a", "src"), None);
    // `.vscode` is no directory of a rule below `.idea`, and `runConfigurations` none elsewhere.
    assert_eq!(link("a", "runConfigurations"), None);
    let policy = filesystem_policy("guard = [\"deep/er/file\"]\nunguard = [\".vscode\"]");
    let guard = Guard::new(&policy.guard, Path::new(WORK));
    let link = |name: &str| guard.rule_for_link(&guard.scope(Path::new("")), Path::new(""), OsStr::new(name));
    assert_eq!(link("deep").map(|rule| &*rule.id), Some("policy"));
    assert!(link(".vscode").is_none());
}

#[test]
fn links_that_lead_out() {
    let out = |at: &str, target: &str| link_leads_out(Path::new("/w/t"), Path::new(at), Path::new(target));
    assert_eq!(out("a/b", "../c"), None);
    assert_eq!(out("a/b", "/w/t/x"), None);
    assert_eq!(out("a", "."), None);
    assert_eq!(out("a/b", "../../c"), Some("/w/c".into()));
    assert_eq!(out("a", "/etc/passwd"), Some("/etc/passwd".into()));
    assert_eq!(out("a", "/w/t2"), Some("/w/t2".into()));
    assert_eq!(out("a", "/w/t/../x"), Some("/w/x".into()));
    assert_eq!(out("a", "x/../../../../.."), Some("/".into()));
}

#[test]
fn the_policys_globs() {
    for (filesystem, path, wanted) in [
        ("guard = [\"generated/*.sh\"]", "a/generated/x.sh", Some("policy")),
        ("guard = [\"generated/*.sh\"]", "a/generated/b/x.sh", None),
        ("guard = [\"generated\"]", "a/generated/b/x", Some("policy")),
        ("guard = [\"a/**/b\"]", "x/a/c/d/b/e", Some("policy")),
        ("guard = [\"a/**/b\"]", "x/c/d/b/e", None),
        ("guard = [\"{one,two}.{sh,py}\"]", "two.sh", Some("policy")),
        ("guard = [\"{one,two}.{sh,py}\"]", "three.sh", None),
        ("guard = [\"[ab]*\"]", "ant", Some("policy")),
        ("guard = [\"[ab]*\"]", "cat", None),
        ("guard = [\"~/project/sub\"]", "sub/x", Some("policy")),
        ("guard = [\"~/project/sub\"]", "a/sub/x", None),
        ("guard = [\"/home/*/project/sub\"]", "sub/x", Some("policy")),
        ("guard = [\"/home/**/sub\"]", "a/b/sub", Some("policy")),
        ("guard = [\"/home/user/other/sub\"]", "sub", None),
        ("guard = [\"$HOME/project\"]", "anything", Some("policy")),
        ("guard = [\"?$NOT_SET/x\"]", "x", None),
        // Stronger and weaker.
        ("guard = [\"Makefile\"]", "Makefile", Some("policy")),
        ("guard = [\"a\"]\nunguard = [\"a/b\"]", "a/b/c", None),
        ("guard = [\"a\"]\nunguard = [\"a/b\"]", "a/c", Some("policy")),
        ("guard = [\"a/b\"]\nunguard = [\"a\"]", "a/b/c", None),
        ("stage = [\"a\"]\nguard = [\"a\"]", "a/c", Some("stage")),
        ("stage = [\"a\"]\nunguard = [\"a\"]", "a/c", None),
        ("stage = [\"notes\"]", "notes/.envrc", Some("stage")),
        ("unguard = [\".vscode\"]", "a/.vscode/tasks.json", None),
        ("unguard = [\"b/.envrc\"]", "a/.envrc", Some("direnv")),
        ("unguard = [\"rule:direnv\"]", "a/.envrc", None),
        ("unguard = [\"rule:git-hooks\"]", ".git/hooks/x", None),
        ("unguard = [\"rule:git-hooks\"]", ".git/config", Some("git-config")),
        ("unguard = [\".git/hooks\"]", ".git/hooks/x", None),
        ("guard = [\".git\"]", ".git/config", Some("git-config")),
        ("guard = [\".git\"]", ".git/index", Some("policy")),
        ("prevent = [\"secret.sh\"]", "secret.sh", Some("policy")),
    ] {
        assert_eq!(by_policy(filesystem, path).as_deref(), wanted, "{filesystem}: {path}");
    }
}

#[test]
fn reports_that_the_policy_turns_into_more() {
    let action = |filesystem: &str, path: &str| {
        let policy = filesystem_policy(filesystem);
        Guard::new(&policy.guard, Path::new(WORK)).rule_for(Path::new(path)).unwrap().action
    };
    assert_eq!(action("", "Makefile"), Action::Report);
    assert_eq!(action("guard = [\"class:build\"]", "Makefile"), Action::PutAside);
    assert_eq!(action("guard = [\"rule:make-like\"]", "Makefile"), Action::PutAside);
    assert_eq!(action("guard = [\"class:push\"]", "Makefile"), Action::Report);
    assert_eq!(action("guard = [\"class:push\"]", ".github/workflows/a.yml"), Action::PutAside);
    assert_eq!(action("guard = [\"class:build\"]", ".github/workflows/a.yml"), Action::Report);
    assert_eq!(action("stage = [\"Makefile\"]", "Makefile"), Action::Stage);
}

#[test]
fn what_is_prevented() {
    let prevented = |filesystem: &str, path: &str| {
        let policy = filesystem_policy(filesystem);
        let guard = Guard::new(&policy.guard, Path::new(WORK));
        guard.prevents(Path::new(path), guard.rule_for(Path::new(path)).unwrap())
    };
    assert!(!prevented("", ".envrc"));
    assert!(prevented("prevent = [\"*\"]", ".envrc") && !prevented("prevent = [\"*\"]", "Makefile"));
    assert!(prevented("prevent = [\"rule:make-like\"]", "Makefile"));
    assert!(!prevented("prevent = [\"rule:make-like\"]", ".envrc"));
    assert!(prevented("prevent = [\"a/.envrc\"]", "b/a/.envrc") && !prevented("prevent = [\"a/.envrc\"]", ".envrc"));
    assert!(prevented("prevent = [\"~/project/.husky\"]", ".husky/x"));
    assert!(!prevented("prevent = [\"~/other/.husky\"]", ".husky/x"));
}

#[test]
fn what_variables_hold_is_no_glob() {
    let files = Memory::default().profile("mine", "schema = 1\n[filesystem]\nguard = [\"$ODD/x\"]\n");
    let request = hermes_profiles::Request { caller: caller(&[("ODD", "/srv/[a]{b,c}*")]), ..request("mine") };
    let policy = policy(&request, &files);
    let found = |tree: &str| Guard::new(&policy.guard, Path::new(tree)).rule_for(Path::new("x")).is_some();
    assert!(found("/srv/[a]{b,c}*") && !found("/srv/ab") && !found("/srv/ab*"));
}

#[test]
fn a_tree_with_two_names() {
    let rules = GuardRules { add: vec![Selector::Absolute("/home/user/link/x".into())], ..Default::default() };
    let (real, granted) = (Path::new("/data/real"), Path::new("/home/user/link"));
    assert!(Guard::new(&rules, real).rule_for(Path::new("x")).is_none());
    assert!(Guard::named(&rules, &[real, granted]).rule_for(Path::new("x")).is_some());
}

#[test]
fn agents_find_what_they_protect_guarded_while_it_is_absent() {
    for profile in ["hermes", "claude", "codex", "gemini", "opencode"] {
        let policy = policy(&request(profile), &Memory::default());
        let trees = policy.files.iter().filter(|rule| rule.access == Access::Write && !rule.path.starts_with(WORK));
        let mut found = 0;
        for tree in trees {
            let guard = Guard::new(&policy.guard, &tree.path);
            let below = policy.files.iter().filter(|rule| rule.path != tree.path && rule.path.starts_with(&tree.path));
            for rule in below.filter(|rule| matches!(rule.access, Access::Read | Access::Hidden)) {
                let path = rule.path.strip_prefix(&tree.path).unwrap();
                assert_eq!(guard.rule_for(path).map(|rule| &*rule.id), Some("policy"), "{profile}: {}", rule.path.display());
                found += 1;
            }
            assert!(guard.rule_for(Path::new("sessions/x")).is_none(), "{profile}");
        }
        assert!(found > 1, "{profile}");
    }
    let policy = policy(&request("hermes"), &Memory::default());
    let guard = Guard::new(&policy.guard, Path::new("/home/user/.hermes"));
    assert_eq!(id_for(&guard, "cron/jobs.json").as_deref(), Some("policy"));
    assert_eq!(id_for(&guard, "cron/output/x.md"), None);
    assert_eq!(id_for(&guard, "memories/MEMORY.md"), None, "not staged unless asked for");
}

#[test]
fn mistakes_are_errors_with_their_line() {
    let hermes = |text: &str| message(written(&format!("schema = 1\n[filesystem]\n{text}\n")));
    for (text, wanted) in [
        ("guard = [\"rule:huski\"]", ":3: guard: \"rule:huski\": no rule \"huski\"; did you mean \"husky\"?"),
        ("unguard = [\n\"rule:xyzzy\"]", ":4: unguard: \"rule:xyzzy\": no rule \"xyzzy\"; \"explain guard\" prints them"),
        ("guard = [\"class:biuld\"]", "the classes are \"class:build\" and \"class:push\""),
        ("unguard = [\"class:build\"]", "a class can only be added to \"guard\""),
        ("stage = [\"rule:husky\"]", "takes paths and globs only"),
        ("guard = [\"*\"]", "this is everything"),
        ("unguard = [\"**\"]", "this is everything"),
        ("unguard = [\"/**\"]", "this is everything"),
        ("unguard = [\"/\"]", "this is everything"),
        ("guard = [\"!a\"]", "exceptions go into \"unguard\""),
        ("guard = [\"a/../b\"]", "\"..\" is not supported"),
        ("guard = [\"a[\"]", "not a glob"),
        ("guard = [\"~other/x\"]", "\"~name\" is not supported"),
        ("guard = [\"$NOT_SET/x\"]", ":3: $NOT_SET/x: the variable NOT_SET is not set; a ? in front makes the rule optional"),
        ("gaurd = []", "unknown key \"gaurd\" in [filesystem]; did you mean \"guard\"?"),
        ("guard = [\"a/**/b/**/c/**/d/**/e\"]", "more than 3 times"),
    ] {
        let message = hermes(text);
        assert!(message.contains(wanted), "{message}\nwanted: {wanted}");
    }
}

#[test]
fn lists_of_included_files_are_united() {
    let files = Memory::default()
        .profile("below", "schema = 1\n[filesystem]\nguard = [\"a\"]\nprevent = [\"*\"]\n")
        .profile("mine", "schema = 1\nincludes = [\"below\"]\n[filesystem]\nguard = [\"b\", \"a\"]\nstage = [\"c\"]\n");
    let guard = policy(&request("mine"), &files).guard;
    assert_eq!(guard.add, [Selector::Anywhere("a".into()), Selector::Anywhere("b".into())]);
    assert_eq!((guard.prevent, guard.stage), (vec![Selector::Everything], vec![Selector::Anywhere("c".into())]));
}

/// Names as they could be in a tree, many of them those of rules.
fn some_path() -> impl Strategy<Value = PathBuf> {
    let known: Vec<String> = table().iter().filter_map(|rule| rule.get("example")?.as_str().map(str::to_owned)).collect();
    let part = prop_oneof![
        prop::sample::select(known),
        prop::sample::select(vec![".git", "node_modules", "hooks", "modules", "a", ".", "..", ""]).prop_map(str::to_owned),
        "[a-z.*?\\[\\]{}!\\\\-]{0,6}",
    ];
    let odd = prop::collection::vec(any::<u8>().prop_filter("a name", |byte| !matches!(byte, 0 | b'/')), 0..5);
    (prop::collection::vec(part, 0..5), odd).prop_map(|(parts, odd)| {
        let mut path = parts.join("/").into_bytes();
        path.extend(odd);
        PathBuf::from(OsString::from_vec(path))
    })
}

proptest! {
    #[test]
    fn no_path_and_no_glob_make_it_panic(path in some_path(), globs in prop::collection::vec("[a-c*?/\\[\\]{},!\\\\~.]{1,10}", 0..4)) {
        let files = Memory::default().profile("mine", &format!("schema = 1\n[filesystem]\nguard = {globs:?}\nprevent = {globs:?}\n"));
        let guard = resolve_guard(&files).unwrap_or_default();
        let guard = Guard::new(&guard, Path::new(WORK));
        let _ = guard.in_git_dir(&path);
        let scope = guard.scope(&path);
        let _ = (guard.whole(&scope), guard.rule_for_link(&scope, &path, OsStr::new(".vscode")));
        if let Some(rule) = guard.rule_for(&path) {
            guard.prevents(&path, rule);
        }
    }

    #[test]
    fn what_is_below_a_guarded_directory_is_guarded(path in some_path(), below in "[a-z]{1,4}(/[a-z]{1,4}){0,3}") {
        let rules = GuardRules { add: vec![Selector::Anywhere("kept".into())], ..Default::default() };
        let guard = Guard::new(&rules, Path::new(WORK));
        let id = |path: PathBuf| guard.rule_for(&path).map(|rule| rule.id.to_string());
        prop_assert!(id(path.join("kept").join(&below)).is_some());
        let inside = path.components().any(|part| part.as_os_str() == ".git");
        if !inside {
            prop_assert!(id(path.join(".husky").join(&below)).is_some());
        }
    }
}

fn resolve_guard(files: &Memory) -> Option<GuardRules> {
    hermes_profiles::resolve(&request("mine"), files).ok().map(|resolved| resolved.policy.guard)
}
