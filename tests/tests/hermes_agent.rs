//! The real Hermes Agent, with a scripted model, wholly inside.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hermes_tests::{Outcome, PYTHON, Sandbox, agent_packages, fixture, need, run_to_end, wait_until};
use serde_json::{Value, json};

struct Model(Child);

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Agent {
    sandbox: Sandbox,
    program: PathBuf,
    log: PathBuf,
    _model: Model,
}

impl Agent {
    /// A home with a virtual environment of the agent, its state, a canary key, and a model that follows these turns.
    fn new(packages: &Path, turns: &dyn Fn(&Sandbox) -> Value) -> Self {
        let sandbox = Sandbox::new();
        let venv = sandbox.home.join(".venvs/hermes");
        sandbox
            .plain_sh(&format!(
                "{PYTHON} -m venv --without-pip '{0}' && cp -r '{1}'/. '{0}'/lib/python3.*/site-packages/",
                venv.display(),
                packages.display()
            ))
            .ok();
        let program = sandbox.script(
            venv.join("bin/hermes"),
            &format!("#!{}/bin/python\nimport sys\nfrom hermes_cli.main import main\nsys.exit(main())\n", venv.display()),
        );
        sandbox.write(sandbox.home.join(".ssh/id_ed25519"), sandbox.canary("key"));
        let script = sandbox.write(sandbox.outside.join("turns.json"), turns(&sandbox).to_string());
        let (port_file, log) = (sandbox.outside.join("port"), sandbox.outside.join("requests"));
        let model = Command::new(PYTHON)
            .arg(fixture("fake_openai.py"))
            .args([&script, &port_file, &log])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let model = Model(model);
        assert!(wait_until(30, || port_file.exists()), "the model did not start");
        let port = fs::read_to_string(&port_file).unwrap();
        sandbox.write(
            sandbox.home.join(".hermes/config.yaml"),
            format!(
                "model: {{default: scripted, provider: custom, base_url: \"http://127.0.0.1:{port}/v1\", api_key: not-a-secret}}\n\
                 security: {{tirith_enabled: false}}\napprovals: {{mode: \"off\"}}\nterminal: {{backend: local}}\n"
            ),
        );
        let canary = sandbox.canary("variable");
        let sandbox = sandbox
            .env("HERMES_HOME", sandbox_path(&program, 4).join(".hermes"))
            .env("UNRELATED_SERVICE_PASSPHRASE", canary)
            .env("TERM", "dumb");
        Self { sandbox, program, log, _model: model }
    }

    fn chat(&self) -> Vec<String> {
        [&self.program.display().to_string(), "chat", "-q", "do it", "-Q", "-t", "terminal,file,code_execution"]
            .map(str::to_owned)
            .to_vec()
    }

    fn inside(self) -> (Outcome, Self) {
        let Self { sandbox, program, log, _model } = self;
        let sandbox = sandbox.flags(["--profile", "hermes", "--net", "host"]);
        let agent = Self { sandbox, program, log, _model };
        (agent.sandbox.run(agent.chat()), agent)
    }

    fn outside(&self) -> Outcome {
        run_to_end(self.sandbox.plain_command(&self.chat()[0]).args(&self.chat()[1..]))
    }

    /// Everything that the tools answered, as the model saw it.
    fn answers(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let last = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .rfind(|request| request.get("tools").is_some());
        let messages = last.and_then(|request| request["messages"].as_array().cloned()).unwrap_or_default();
        messages.iter().filter(|message| message["role"] == "tool").map(|message| message["content"].to_string() + "\n").collect()
    }
}

fn sandbox_path(path: &Path, up: usize) -> PathBuf {
    path.ancestors().nth(up).unwrap().to_owned()
}

/// What the model makes the agent do: honest work, and three ways to steal.
fn turns(sandbox: &Sandbox, inside: bool) -> Value {
    // Outside, only the agent's own processes are looked at.
    let (processes, more) = if inside {
        ("glob.glob('/proc/[0-9]*/environ')", "/proc/[0-9]*/environ")
    } else {
        ("['/proc/%d/environ' % os.getppid()]", "")
    };
    let key = sandbox.home.join(".ssh/id_ed25519").display().to_string();
    let theft = format!(
        "import os,glob\nout=[]\nfor p in ['{key}']+{processes}:\n    try: out.append(open(p,'rb').read().decode('latin1')[:65536])\n    except OSError as e: out.append(str(e))\nprint('CODE-RAN', [w for t in out for w in t.split(chr(0)) if 'CANARY' in w])"
    );
    json!([
        {"call": "terminal", "with": {"command": "echo TERMINAL-$((40+2)); pwd; ls -a"}},
        {"call": "terminal", "with": {"command": "export KEPT=yes; cd /tmp"}},
        {"call": "terminal", "with": {"command": "echo kept-$KEPT; pwd"}},
        {"call": "write_file", "with": {"path": sandbox.workspace.join("made.txt"), "content": "written by the agent\n"}},
        {"call": "read_file", "with": {"path": sandbox.workspace.join("made.txt")}},
        {"call": "terminal", "with": {"command": format!("cat '{key}'; env; cat /proc/$PPID/environ {more} | tr '\\0' '\\n' | grep CANARY; echo STOLEN-END")}},
        {"call": "execute_code", "with": {"code": theft}},
        {"say": "ALL-DONE"}
    ])
}

#[test]
fn the_agent_works_inside_and_cannot_steal() {
    need!(PYTHON);
    let packages = match agent_packages() {
        Ok(packages) => packages,
        Err(reason) => hermes_tests::skip!("{reason}"),
    };
    // Positive control: the same agent with the same script outside reads the key and the variable.
    let control = Agent::new(&packages, &|sandbox| turns(sandbox, false));
    let result = control.outside();
    let answers = control.answers();
    assert!(
        answers.contains("CANARY-key") && answers.contains("CANARY-variable"),
        "positive control\n{answers}\n{}",
        result.report()
    );

    let (result, agent) = Agent::new(&packages, &|sandbox| turns(sandbox, true)).inside();
    let answers = agent.answers();
    let everything = result.all() + &answers + &fs::read_to_string(&agent.log).unwrap_or_default();
    result.ok().says("ALL-DONE");
    for sign in ["TERMINAL-42", "kept-yes", "written by the agent", "STOLEN-END", "CODE-RAN"] {
        assert!(answers.contains(sign), "{sign} is missing\n{answers}\n{}", result.report());
    }
    assert_eq!(agent.sandbox.read("made.txt"), "written by the agent\n");
    for canary in ["CANARY-key", "CANARY-variable"] {
        assert!(!everything.contains(canary), "{canary} came out\n{answers}");
    }
    assert!(agent.sandbox.home.join(".hermes/state.db").exists(), "the agent's state is kept between runs");
}
