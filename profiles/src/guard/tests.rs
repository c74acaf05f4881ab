//! What counts as a change, kind by kind, each with what does not.

use proptest::prelude::*;

use super::git_config::{self, merge};
use super::*;

fn rule(id: &str) -> &'static Rule {
    builtin().find(|rule| rule.id == id).unwrap()
}

fn judged(id: &str, before: Option<&str>, now: &str) -> Verdict {
    judge(rule(id), before.map(str::as_bytes), now.as_bytes())
}

#[track_caller]
fn kept(id: &str, before: Option<&str>, now: &str) {
    assert_eq!(judged(id, before, now), Verdict::Keep, "{now}");
}

#[track_caller]
fn put_aside(id: &str, before: Option<&str>, now: &str, wanted: &str) {
    match judged(id, before, now) {
        Verdict::PutAside { why } => assert!(why.contains(wanted), "{why}\nwanted: {wanted}"),
        other => panic!("{other:?}: {now}"),
    }
}

#[track_caller]
fn reported(id: &str, before: Option<&str>, now: &str, wanted: &str) {
    match judged(id, before, now) {
        Verdict::Report { why } => assert!(why.contains(wanted), "{why}\nwanted: {wanted}"),
        other => panic!("{other:?}: {now}"),
    }
}

#[test]
fn whole_files() {
    kept("direnv", Some("a"), "a");
    put_aside("direnv", Some("a"), "b", "has changed");
    put_aside("direnv", None, "", "is new");
    reported("make-like", Some("a"), "b", "has changed");
    put_aside("stage", Some("a"), "b", "has changed");
}

#[test]
fn json() {
    let id = "vscode-settings";
    kept(id, None, "{\n// fine\n\"editor.tabSize\": 2, \"[rust]\": {\"editor.formatOnSave\": true,},}");
    put_aside(id, None, "{\"git.path\": \"./x\"}", "sets git.path");
    put_aside(id, None, "{\"[rust]\": {\"rust-analyzer.server.path\": \"./x\"}}", "sets [rust]/rust-analyzer.server.path");
    put_aside(id, None, "{\"g\\u0069t.path\": \"./x\"}", "sets git.path");
    kept(id, Some("{\"git.path\": \"x\"}"), "{/* */ \"git.path\":\"x\", \"files.eol\": \"\\n\"}");
    put_aside(id, Some("{\"git.path\": \"x\"}"), "{\"git.path\": \"y\"}", "sets git.path");
    put_aside(id, Some("{\"security.workspace.trust.enabled\": true}"), "{}", "security.workspace.trust.enabled");
    // A key twice: readers take the first or the last.
    put_aside(id, Some("{\"git.path\": \"x\"}"), "{\"git.path\": \"y\", \"git.path\": \"x\"}", "git.path");
    put_aside(id, Some("{\"a\": 1, \"a\": 2}"), "{\"a\": 2, \"a\": 1}", "sets a");
    for odd in ["{\"git.path\": ", "\u{feff}{}", "{}\0", "{a: 1}", "{'a': 1}", "{\"a\": 0x1}", "[1]", "{} {}"] {
        put_aside(id, Some("{}"), odd, "");
    }
    assert!(matches!(judge(rule(id), None, b"\xff\xfe{\0}\0"), Verdict::PutAside { .. }), "UTF-16");
    kept(id, None, "");
    put_aside("claude", None, "{\"model\": \"x\", \"hooks\": {}}", "sets hooks");
    put_aside("claude", Some("{\"permissions\": {\"deny\": [\"x\"]}}"), "{\"permissions\": {\"deny\": []}}", "sets permissions");
    put_aside("devcontainer", None, "{\"image\": \"x\", \"initializeCommand\": \"y\"}", "sets initializeCommand");
    kept("devcontainer", None, "{\"image\": \"x\", \"customizations\": {\"vscode\": {\"extensions\": [\"a\"]}}}");
    put_aside(
        "devcontainer",
        None,
        "{\"customizations\": {\"vscode\": {\"settings\": {\"a\": 1}}}}",
        "sets customizations/vscode/settings",
    );
    put_aside("claude-state", Some("{}"), "{\"projects\": {\"/w\": {\"mcpServers\": {}}}}", "mcpServers");
    kept("claude-state", Some("{}"), "{\"projects\": {\"/w\": {\"history\": []}}}");
}

#[test]
fn toml() {
    kept("cargo", None, "[net]\nretry = 3\n[profile.dev]\ndebug = 0\n");
    put_aside("cargo", None, "[build]\nrustc-wrapper = \"./x\"\n", "sets build");
    put_aside("cargo", None, "build.rustc-wrapper = \"./x\"\n", "sets build");
    put_aside("cargo", None, "[target.'cfg(all())']\nrunner = \"./x\"\n", "sets target");
    put_aside("cargo", Some(""), "[net\n", "is not TOML");
    kept("cargo", Some("[alias]\nx = \"y\"\n"), "alias = { x = \"y\" }\n[term]\nquiet = true\n");
    kept("rust-toolchain", None, "[toolchain]\nchannel = \"1.80\"\n");
    put_aside("rust-toolchain", None, "[toolchain]\npath = \"x\"\n", "sets toolchain/path");
    reported("pyproject", Some(""), "[tool.pytest.ini_options]\naddopts = \"-p x\"\n", "pytest");
    kept("pyproject", Some(""), "[project]\nname = \"x\"\n");
}

#[test]
fn lines_of_keys() {
    kept("npmrc", None, "# fine\nsave-exact = true\nfund=false\r\n");
    put_aside("npmrc", None, "script-shell=./x\n", "sets script-shell");
    put_aside("npmrc", None, "save-exact=true\rscript-shell=./x\n", "script-shell");
    put_aside("npmrc", None, "\"script-shell\"=./x\n", "script-shell");
    put_aside("npmrc", None, "fund=${X}\n", "sets fund");
    put_aside("npmrc", None, "[fund]\n", "[fund]");
    kept("npmrc", Some("registry=https://a.test\n"), "registry=https://a.test\naudit=false\n");
    put_aside("npmrc", Some("registry=https://a.test\n"), "registry=https://b.test\n", "sets registry");
    put_aside("npmrc", Some("ignore-scripts=true\n"), "fund=false\n", "sets ignore-scripts");
    put_aside("gradle-properties", Some("a=b\\\n"), "a=b\\\ngroup=x\n", "has other lines");
    kept("python-venv", None, "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.1\n");
    put_aside("python-venv", None, "home = /w/x\n", "sets home");
    put_aside("python-venv", None, "home = /usr/../w/x\n", "sets home");
    put_aside("desktop", None, "[Desktop Entry]\nName=x\nExec=./x\n", "Exec");
}

#[test]
fn variables() {
    kept("dotenv", None, "# fine\nDATABASE_URL=postgres://u@h/d\nexport PORT=8080\nNAME=\"a b\"\n");
    for (line, wanted) in [
        ("PATH=./bin", "sets PATH"),
        ("LD_PRELOAD=./x", "sets LD_PRELOAD"),
        ("export NODE_OPTIONS=--require=./x", "sets NODE_OPTIONS"),
        ("OPENAI_BASE_URL=http://x", "sets OPENAI_BASE_URL"),
        ("A=$(x)", "a shell would expand"),
        ("A=b c", "a shell would expand"),
        ("A=\"`x`\"", "a shell would expand"),
        ("A=b;c", "a shell would expand"),
        ("curl x", "no NAME=value"),
        ("A=1\rcurl x", "no NAME=value"),
        ("alias a=b", "no NAME=value"),
    ] {
        put_aside("dotenv", None, line, wanted);
        kept("dotenv", Some(&format!("{line}\n")), &format!("{line}\nFINE=1\n"));
    }
    put_aside("dotenv", Some("a \\\nb\n"), "a \\\nFINE=1\nb\n", "around lines");
}

#[test]
fn steps() {
    kept("git-todo", None, "pick 123 exec this\n# exec x\nfixup -C 1\nbreak\n\nmerge -C 1 x # y\n");
    put_aside("git-todo", None, "pick 1\nexec touch x\n", "runs a command");
    put_aside("git-todo", None, " x touch x\n", "runs a command");
    put_aside("git-todo", None, "pick 1\rexec x\n", "runs a command");
    put_aside("git-todo", None, "frob\n", "not known");
}

#[test]
fn words_in_texts() {
    kept("idea", None, "<?xml version=\"1.0\" encoding=\"UTF-8\"?><project><component name=\"VcsDirectoryMappings\"/></project>");
    put_aside("idea", None, "<option name=\"PROGRAM\" value=\"x\"/>", "names program");
    for hidden in
        ["<a b=\"&#112;rog\"/>", "<!DOCTYPE a [<!ENTITY x 'y'>]>", "<![CDATA[x]]>", "<?xml version='1.0' encoding='UTF-7'?>"]
    {
        put_aside("idea", None, hidden, "");
    }
    reported("git-attributes", None, "*.c filter=x\n", "names filter");
    kept("git-attributes", None, "*.c text eol=lf\n");
}

#[test]
fn versions() {
    for fine in ["20.1.0\n", "lts/*", "lts/hydrogen", "3.12\n3.11", "pypy3.9-7.3\n", "java=17.0.1-tem\n", "nodejs 20.1 # why\n"] {
        kept("version-files", None, fine);
    }
    for bad in ["../../x", "/x", "path:./x", "ref:main", "./x", "a/../b", "$(x)", "-x"] {
        put_aside("version-files", None, bad, "no plain version");
    }
}

#[test]
fn lines_that_python_runs() {
    kept("python-pth", None, "/usr/lib/x\n./y\n# import x\nimportant\n");
    put_aside("python-pth", None, "x\nimport os; os.system('x')\n", "executes");
    put_aside("python-pth", None, "x\rimport\tos\n", "executes");
    put_aside("python-pth", None, "\u{feff}import os", "byte order mark");
    kept("python-pth", Some("import x\n"), "import x\n/y\n");
    put_aside("python-pth", Some("import x\n"), "import x\nimport y\n", "executes");
}

#[test]
fn packages() {
    kept("package-json", Some("{}"), "{\"name\": \"x\", \"description\": \"y\"}");
    reported(
        "package-json",
        Some("{}"),
        "{\"scripts\": {\"postinstall\": \"x\", \"test\": \"y\"}}",
        "by themselves: postinstall",
    );
    reported("package-json", Some("{}"), "{\"scripts\": {\"test\": \"y\"}}", "changes scripts");
    reported("package-json", Some("{}"), "{\"dependencies\": {\"a\": \"1\"}}", "changes dependencies");
    put_aside("package-json", Some("{}"), "{\"scripts\": ", "is not JSON");
    // Nobody obeyed it before, or it was no better.
    reported("package-json", None, "nothing", "is not JSON");
    reported("package-json", Some("{{"), "{\"scripts\": ", "is not JSON");
}

#[test]
fn git_configuration_as_a_content() {
    kept(
        "git-config",
        None,
        "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = https://a.test/b\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
    );
    put_aside("git-config", None, "[core] fsmonitor = ./x\n", "sets core.fsmonitor");
    put_aside("git-config", Some("[core]\n"), "[core\n", "is not git configuration");
    kept("git-modules", None, "[submodule \"a\"]\n\tpath = lib/a\n\turl = ../a.git\n");
    put_aside("git-modules", None, "[submodule \"a\"]\n\tpath = lib/a\n\turl = ext::sh -c x\n", "submodule.a.url");
    put_aside("git-modules", None, "[submodule \"a\"]\n\tpath = ../a\n\tupdate = !x\n", "submodule.a.path, submodule.a.update");
}

#[test]
fn a_long_list_of_names_is_cut() {
    let keys: Vec<String> = (0..9).map(|n| format!("\"k{n}{}\": 1", "x".repeat(100))).collect();
    match judged("claude", None, &format!("{{{}}}", keys.join(","))) {
        Verdict::PutAside { why } => assert!(why.len() < 250 && why.ends_with("and 6 more"), "{why}"),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_judge_panic(
        which in 0..builtin().len(), before in prop::option::of(prop::collection::vec(any::<u8>(), 0..60)),
        now in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "([\\[\\]{}\"'=:,#;\\\\ \t\r\n]|core|url|exec|import|a\\.b|&#|\\PC){0,30}".prop_map(String::into_bytes),
        ],
    ) {
        let rule = builtin().nth(which).unwrap();
        let verdict = judge(rule, before.as_deref(), &now);
        prop_assert!(before.as_deref() != Some(&now[..]) || verdict == Verdict::Keep);
        let _ = merge(&now, before.as_deref().unwrap_or_default(), &now);
        let _ = git_config::merge(before.as_deref().unwrap_or_default(), &now, b"[core]\n");
    }
}
