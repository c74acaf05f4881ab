//! The real Hermes Agent, with a scripted model, unpatched and outside: its commands go through shims.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use hermes_tests::{Hermes, Outcome, PYTHON, Sandbox, agent_packages, binary, need, run_to_end, thieving_turns, wait_until};
use serde_json::{Value, json};

const CANARIES: [&str; 2] = ["CANARY-key", "CANARY-variable"];

/// Steals, and then works in the background, on a terminal, and with tools that are called from code.
fn turns(sandbox: &Sandbox, workspace: &Path, everywhere: bool) -> Value {
    let key = sandbox.home.join(".ssh/id_ed25519").display().to_string();
    let background = |file: &str, pty: bool| {
        let file = workspace.join(file).display().to_string();
        json!({"call": "terminal", "with": {"command": format!("(cat '{key}'; env; cat /proc/$PPID/environ) >'{file}' 2>&1; echo BACKGROUND >>'{file}'"), "background": true, "pty": pty}})
    };
    let rpc = "from hermes_tools import terminal, read_file\nprint('RPC', terminal('echo FROM-CODE-$((20+3))'))";
    let mut turns = thieving_turns(sandbox, workspace, everywhere);
    let all = turns.as_array_mut().unwrap();
    let say = all.pop().unwrap();
    all.extend([
        background("bg.txt", false),
        background("pty.txt", true),
        json!({"call": "terminal", "with": {"command": "sleep 2; echo SLEPT"}}),
        json!({"call": "execute_code", "with": {"code": rpc}}),
        say,
    ]);
    turns
}

fn install(sandbox: &Sandbox, shims: &Path, options: &[&str]) {
    run_to_end(sandbox.hermes().args(["shims", "install"]).arg(shims).args(options)).ok();
}

/// The environment that `shims install` says to set.
fn use_shims(sandbox: Sandbox, shims: &Path) -> Sandbox {
    let path = format!("{}:{}/.local/bin:/usr/local/bin:/usr/bin:/bin", shims.display(), sandbox.home.display());
    let run = sandbox.root().join("run");
    std::fs::create_dir_all(&run).unwrap();
    sandbox
        .env("PATH", path)
        .env("SHELL", shims.join("bash"))
        .env("VIRTUAL_ENV", shims.join("venv"))
        .env("HERMES_DOCKER_BINARY", shims.join("docker"))
        .env("XDG_RUNTIME_DIR", run)
}

fn packages() -> Option<PathBuf> {
    match agent_packages() {
        Ok(packages) => Some(packages),
        Err(reason) => {
            hermes_tests::record_skip(&reason);
            None
        }
    }
}

/// The same agent without shims gives away the key and the variable: from a command, from code and from the background.
fn control(packages: &Path) {
    let agent = Hermes::new(packages, "backend: local", &|sandbox| turns(sandbox, &sandbox.workspace, false));
    let result = agent.run_outside();
    let answers = agent.answers();
    for canary in CANARIES {
        assert!(answers.contains(canary), "positive control: no {canary}\n{answers}\n{}", result.report());
        for file in ["bg.txt", "pty.txt"] {
            assert!(agent.sandbox.read(file).contains(canary), "positive control: no {canary} in {file}\n{}", result.report());
        }
    }
    let code = answers.lines().find(|line| line.contains("CODE-RAN")).unwrap_or_default();
    assert!(CANARIES.iter().all(|canary| code.contains(canary)), "positive control: code\n{answers}");
}

fn works_and_steals_nothing(agent: &Hermes, result: &Outcome) {
    let answers = agent.answers();
    result.ok().says("ALL-DONE");
    for sign in ["TERMINAL-42", "kept-yes", "written by the agent", "STOLEN-END", "CODE-RAN", "SLEPT", "FROM-CODE-23"] {
        assert!(answers.contains(sign), "{sign} is missing\n{answers}\n{}", result.report());
    }
    assert_eq!(agent.sandbox.read("made.txt"), "written by the agent\n", "{}", result.report());
    let left = |file: &str| agent.sandbox.read(file);
    let everything = result.all() + &answers + &agent.requests() + &left("bg.txt") + &left("pty.txt");
    for canary in CANARIES {
        assert!(!everything.contains(canary), "{canary} came out\n{answers}\n{}", left("bg.txt"));
    }
}

/// Everything ends with the agent.
fn nothing_is_left(sandbox: &Sandbox) {
    let root = sandbox.root().display().to_string();
    let left =
        || hermes_tests::processes_with(&root).into_iter().filter(|line| !line.contains("fake_openai")).collect::<Vec<_>>();
    assert!(wait_until(15, || left().is_empty()), "left over: {:?}", left());
}

#[test]
fn bash_and_python_shims_confine_commands_and_code() {
    need!(PYTHON);
    let Some(packages) = packages() else { return };
    control(&packages);
    let agent = Hermes::new(&packages, "backend: local", &|sandbox| turns(sandbox, &sandbox.workspace, true));
    let shims = agent.sandbox.outside.join("shims");
    install(&agent.sandbox, &shims, &["--only", "bash,python"]);
    let agent = agent.with(|sandbox| use_shims(sandbox, &shims));
    let result = agent.run_outside();
    works_and_steals_nothing(&agent, &result);
    for file in ["bg.txt", "pty.txt"] {
        assert!(agent.sandbox.read(file).contains("BACKGROUND"), "{file}\n{}\n{}", agent.answers(), result.report());
    }
    nothing_is_left(&agent.sandbox);
}

#[test]
fn the_docker_shim_confines_commands_and_code() {
    need!(PYTHON);
    let Some(packages) = packages() else { return };
    control(&packages);
    let terminal = "backend: docker, docker_image: unused, docker_mount_cwd_to_workspace: true";
    let agent = Hermes::new(&packages, terminal, &|sandbox| turns(sandbox, Path::new("/workspace"), true));
    let shims = agent.sandbox.outside.join("shims");
    install(&agent.sandbox, &shims, &["--only", "docker"]);
    let agent = agent.with(|sandbox| use_shims(sandbox, &shims));
    let result = agent.run_outside();
    works_and_steals_nothing(&agent, &result);
    assert!(agent.sandbox.read("bg.txt").contains("BACKGROUND"), "{}\n{}", agent.answers(), result.report());
    nothing_is_left(&agent.sandbox);
}

#[test]
fn shims_in_a_wrapped_agent_use_the_sandbox_around_it() {
    need!(PYTHON);
    let Some(packages) = packages() else { return };
    control(&packages);
    let agent = Hermes::new(&packages, "backend: local", &|sandbox| turns(sandbox, &sandbox.workspace, true));
    let shims = agent.sandbox.outside.join("shims");
    install(&agent.sandbox, &shims, &["--only", "bash,python"]);
    let program = binary().parent().unwrap().display().to_string();
    let agent =
        agent.with(|sandbox| use_shims(sandbox, &shims).flags(["--profile", "hermes", "--net", "host", "--ro", &program]));
    let result = agent.run_inside();
    works_and_steals_nothing(&agent, &result);
    nothing_is_left(&agent.sandbox);
}
