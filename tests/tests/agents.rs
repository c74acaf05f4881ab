//! Coding agents that others make, each with its profile and a scripted model.
//!
//! They are used where they are found: below `HERMES_TEST_AGENTS_DIR` (`node_modules/.bin`, `venv/bin` or `bin` in it), else on the
//! path. docs/agents.md says which versions were tried.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hermes_tests::{Outcome, PYTHON, Sandbox, fixture, need, program, run_to_end_within, skip, wait_until};
use serde_json::{Value, json};

/// Interpreters that are large start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

fn find(name: &str) -> Option<(PathBuf, Option<PathBuf>)> {
    let dir = std::env::var_os("HERMES_TEST_AGENTS_DIR").map(PathBuf::from);
    let below = dir.and_then(|dir| {
        let places = ["node_modules/.bin", "venv/bin", "bin"].map(|place| dir.join(place).join(name));
        places.into_iter().find(|path| path.is_file()).map(|path| (path, Some(dir)))
    });
    below.or_else(|| program(name).map(|path| (path, None)))
}

struct Model(Child);

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What differs between the agents. `PORT` stands for the model's port.
struct Agent {
    name: &'static str,
    /// Directories that it keeps its state in, and that must be there for that.
    state: &'static [&'static str],
    /// Its settings in the home: they hold for it, and cannot be changed for good.
    settings: (&'static str, &'static str),
    /// Its login in the home, which is hidden.
    login: &'static str,
    /// Variables that are named by `--env`.
    keys: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
    /// Its tool for shell commands, and what that calls the command.
    tool: Option<(&'static str, &'static str)>,
}

struct Ready {
    sandbox: Sandbox,
    log: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    _model: Model,
}

impl Agent {
    fn prepare(&self, program: &Path) -> Ready {
        let sandbox = Sandbox::new();
        for dir in self.state {
            fs::create_dir_all(sandbox.home.join(dir)).unwrap();
        }
        let key = sandbox.write(sandbox.home.join(".ssh/id_ed25519"), sandbox.canary("key"));
        let login = sandbox.home.join(self.login);
        let turns: Value = match self.tool {
            Some((tool, argument)) => {
                let command = format!(
                    "printf 'TURN-%d\\n' 052; cat {} {}; env; echo spoilt >> {}; echo made > made.txt; echo END",
                    key.display(),
                    login.display(),
                    sandbox.home.join(self.settings.0).display()
                );
                json!([{"call": tool, "with": {argument: command, "description": "work"}}, {"say": "ALL-DONE"}])
            }
            // It has no tools: files come in the answer.
            None => json!([{"say": "made.txt\n```\nmade\n```\n"}]),
        };
        let script = sandbox.write(sandbox.outside.join("turns.json"), turns.to_string());
        let (port_file, log) = (sandbox.outside.join("port"), sandbox.outside.join("requests"));
        let model =
            Command::new(PYTHON).arg(fixture("scripted_model.py")).args([&script, &port_file, &log]).stdin(Stdio::null()).spawn();
        let model = Model(model.unwrap());
        assert!(wait_until(30, || port_file.exists()), "the model did not start");
        let port = fs::read_to_string(&port_file).unwrap();
        sandbox.write(&login, sandbox.canary("login"));
        sandbox.write(sandbox.home.join(self.settings.0), self.settings.1.replace("PORT", &port));
        let canary = sandbox.canary("variable");
        let mut sandbox = sandbox.env("UNRELATED_SERVICE_PASSPHRASE", canary).flags(["--profile", self.name, "--net", "host"]);
        for name in self.keys {
            sandbox = sandbox.env(name, "not-a-secret").flags(["--env", name]);
        }
        for (name, value) in self.variables {
            sandbox = sandbox.env(name, value.replace("PORT", &port));
        }
        let home = sandbox.home.display().to_string();
        let arguments = self.arguments.iter().map(|word| word.replace("HOME", &home)).collect();
        Ready { sandbox, log, program: program.to_owned(), arguments, _model: model }
    }

    /// It starts inside, does what the model says, and gets at nothing.
    fn works_inside(&self) {
        need!(PYTHON);
        let Some((program, dir)) = find(self.name) else { skip!("{} is not installed", self.name) };
        // Positive control: the same turn outside reads the key.
        let control = self.prepare(&program);
        let result = run_to_end_within(control.sandbox.plain_command(&program).args(&control.arguments), PATIENCE);
        assert!(control.requests().contains("CANARY-key"), "positive control\n{}\n{}", result.report(), control.requests());

        let mut ready = self.prepare(&program);
        if let Some(dir) = dir {
            ready.sandbox = ready.sandbox.flags([Path::new("--ro"), &dir]);
        }
        let planted: Vec<usize> = self.state.iter().map(|dir| entries(&ready.sandbox.home.join(dir))).collect();
        for question in ["--version", "--help"] {
            ready.inside(&[question.to_owned()]).ok();
        }
        let before = fs::read_to_string(ready.sandbox.home.join(self.settings.0)).unwrap();
        let result = ready.inside(&ready.arguments);
        let everything = result.all() + &ready.requests();
        result.ok();
        assert_eq!(ready.sandbox.read("made.txt"), "made\n", "{everything}");
        if self.tool.is_some() {
            for sign in ["TURN-42", "END", "ALL-DONE"] {
                assert!(everything.contains(sign), "{sign} is missing\n{everything}");
            }
        }
        for canary in ["CANARY-key", "CANARY-login", "CANARY-variable"] {
            assert!(!everything.contains(canary), "{canary} came out\n{everything}");
        }
        assert_eq!(fs::read_to_string(ready.sandbox.home.join(self.settings.0)).unwrap(), before, "its settings changed");
        let kept = self.state.iter().map(|dir| entries(&ready.sandbox.home.join(dir)));
        for ((dir, kept), planted) in self.state.iter().zip(kept).zip(planted) {
            assert!(kept > planted, "nothing is kept in {dir}");
        }
    }
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

impl Ready {
    fn inside(&self, arguments: &[String]) -> Outcome {
        let argv = std::iter::once(self.program.as_os_str()).chain(arguments.iter().map(AsRef::as_ref));
        run_to_end_within(&mut self.sandbox.inside(argv), PATIENCE)
    }

    fn requests(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

#[test]
fn codex() {
    Agent {
        name: "codex",
        state: &[".codex"],
        settings: (
            ".codex/config.toml",
            "model = \"scripted\"\nmodel_provider = \"local\"\n[model_providers.local]\nname = \"local\"\nwire_api = \"responses\"\n\
             base_url = \"http://127.0.0.1:PORT/v1\"\nenv_key = \"OPENAI_API_KEY\"\n",
        ),
        login: ".codex/auth.json",
        keys: &["OPENAI_API_KEY"],
        variables: &[],
        arguments: &["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "do it"],
        tool: Some(("exec_command", "cmd")),
    }
    .works_inside();
}

#[test]
fn claude() {
    Agent {
        name: "claude",
        state: &[".claude"],
        settings: (".claude/settings.json", "{\"env\": {\"ANTHROPIC_BASE_URL\": \"http://127.0.0.1:PORT\"}}\n"),
        login: ".claude/.credentials.json",
        keys: &["ANTHROPIC_API_KEY"],
        variables: &[("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")],
        arguments: &["-p", "do it", "--dangerously-skip-permissions", "--model", "scripted"],
        tool: Some(("Bash", "command")),
    }
    .works_inside();
}

#[test]
fn gemini() {
    Agent {
        name: "gemini",
        state: &[".gemini"],
        settings: (".gemini/settings.json", "{\"security\": {\"auth\": {\"selectedType\": \"gemini-api-key\"}}}\n"),
        login: ".gemini/oauth_creds.json",
        keys: &["GEMINI_API_KEY"],
        variables: &[("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:PORT")],
        arguments: &["-p", "do it", "--yolo", "--skip-trust", "-m", "gemini-2.5-pro"],
        tool: Some(("run_shell_command", "command")),
    }
    .works_inside();
}

#[test]
fn opencode() {
    Agent {
        name: "opencode",
        state: &[".local/share/opencode", ".local/state/opencode"],
        settings: (
            ".config/opencode/opencode.json",
            "{\"model\": \"local/scripted\", \"small_model\": \"local/scripted\", \"permission\": \"allow\", \"autoupdate\": false, \
             \"provider\": {\"local\": {\"npm\": \"@ai-sdk/openai-compatible\", \"models\": {\"scripted\": {\"tool_call\": true}}, \
             \"options\": {\"baseURL\": \"http://127.0.0.1:PORT/v1\", \"apiKey\": \"not-a-secret\"}}}}\n",
        ),
        login: ".local/share/opencode/mcp-auth.json",
        keys: &["OPENCODE_DISABLE_MODELS_FETCH"],
        variables: &[],
        arguments: &["run", "do it"],
        tool: Some(("bash", "command")),
    }
    .works_inside();
}

#[test]
fn aider() {
    Agent {
        name: "aider",
        state: &[],
        settings: (".aider.model.settings.yml", "- name: openai/scripted\n  edit_format: whole\n"),
        login: ".aider/oauth-keys.env",
        keys: &["OPENAI_API_KEY"],
        variables: &[("OPENAI_API_BASE", "http://127.0.0.1:PORT/v1"), ("LITELLM_LOCAL_MODEL_COST_MAP", "True")],
        arguments: &[
            "--model",
            "openai/scripted",
            "--yes-always",
            "--no-git",
            "--no-check-update",
            "--no-show-model-warnings",
            "--analytics-disable",
            "--read",
            "HOME/.ssh/id_ed25519",
            "--message",
            "do it",
            "made.txt",
        ],
        tool: None,
    }
    .works_inside();
}
