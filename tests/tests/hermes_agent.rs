//! The real Hermes Agent, with a scripted model, wholly inside.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Hermes, PYTHON, Sandbox, agent_packages, need, run_to_end_with_input, thieving_turns};
use serde_json::{Value, json};

#[test]
fn the_agent_works_inside_and_cannot_steal() {
    need!(PYTHON);
    let packages = match agent_packages() {
        Ok(packages) => packages,
        Err(reason) => hermes_tests::skip!("{reason}"),
    };
    // Positive control: the same agent with the same script outside reads the key and the variable.
    let turns = |everywhere| move |sandbox: &Sandbox| thieving_turns(sandbox, &sandbox.workspace, everywhere);
    let control = Hermes::new(&packages, "backend: local", &turns(false));
    let result = control.run_outside();
    let answers = control.answers();
    assert!(
        answers.contains("CANARY-key") && answers.contains("CANARY-variable"),
        "positive control\n{answers}\n{}",
        result.report()
    );

    let agent = Hermes::new(&packages, "backend: local", &turns(true))
        .with(|sandbox| sandbox.flags(["--profile", "hermes", "--net", "host"]));
    let result = agent.run_inside();
    let answers = agent.answers();
    let everything = result.all() + &answers + &agent.requests();
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

/// Looks for a word in the memory of every process that it can read; the word is put together where it runs.
const SEARCH: &str = "import glob, re
word = b'CANARY-' + b'model'
found = []
for maps in glob.glob('/proc/[0-9]*/maps'):
    try:
        mem = open(maps[:-4] + 'mem', 'rb', 0)
        for line in open(maps):
            low, high = (int(part, 16) for part in re.match('([0-9a-f]+)-([0-9a-f]+) r', line).groups())
            mem.seek(low); text = mem.read(high - low)
            found += [text[at.start():at.start() + 40] for at in re.finditer(re.escape(word), text)]
    except (OSError, AttributeError, ValueError, OverflowError): pass
print('SEARCHED', len(glob.glob('/proc/[0-9]*/maps')), found)";

#[test]
fn its_model_is_reached_by_a_route_and_the_key_stays_outside() {
    need!(PYTHON);
    let packages = match agent_packages() {
        Ok(packages) => packages,
        Err(reason) => hermes_tests::skip!("{reason}"),
    };
    let turns = |sandbox: &Sandbox| -> Value {
        let mut all = thieving_turns(sandbox, &sandbox.workspace, true);
        let search = json!({"call": "terminal", "with": {"command": format!("{PYTHON} -c \"{SEARCH}\"; env")}});
        all.as_array_mut().unwrap().insert(0, search);
        all
    };
    let agent = Hermes::new(&packages, "backend: local", &turns);
    let key = format!("{}-0123456789", agent.sandbox.canary("model"));
    let config = config_of(&agent);
    // Positive control: the agent itself sends the key that it is given.
    let text = agent.sandbox.read(&config);
    agent.sandbox.write(&config, text.replace("not-a-secret", &key));
    agent.run_outside();
    let control = agent.requests();
    assert!(control.contains(&format!("Bearer {key}")), "{control}");

    let agent = Hermes::new(&packages, "backend: local", &turns);
    let text = agent.sandbox.read(config_of(&agent));
    let text = text.replace(&format!("http://127.0.0.1:{}", agent.port), "https://model.test");
    agent.sandbox.write(config_of(&agent), text);
    let profile = agent.sandbox.write(
        agent.sandbox.outside.join("model.toml"),
        format!(
            "schema = 1\ndescription = \"the agent and its model\"\nincludes = [\"hermes\"]\n[[network.route]]\nhost = \"model.test\"\nports = [443]\n\
             paths = [\"/v1/**\"]\nupstream = \"{}\"\nsecret = {{ name = \"model\", header = \"Authorization\", format = \"Bearer {{}}\" }}\n",
            format_args!("http://127.0.0.1:{}", agent.port)
        ),
    );
    let mut add = agent.sandbox.hermes();
    add.args(["secrets", "add", "model", "--env", "MODEL_KEY", "--profile"]).arg(&profile);
    run_to_end_with_input(&mut add, key.as_bytes()).ok();
    let agent = agent.with(|sandbox| sandbox.flags(["--profile", &profile.display().to_string(), "--net", "routes"]));
    let result = agent.run_inside();
    let (answers, requests) = (agent.answers(), agent.requests());
    result.ok().says("ALL-DONE").never_says(&key);
    for sign in ["SEARCHED", "MODEL_KEY=hsx-secret-", "TERMINAL-42", "STOLEN-END", "CODE-RAN"] {
        assert!(answers.contains(sign), "{sign} is missing\n{answers}\n{}", result.report());
    }
    assert!(!answers.contains(&key), "{answers}");
    for line in requests.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        assert_eq!(request["authorization"], format!("Bearer {key}"), "the server gets the key");
        assert_eq!(line.matches(&key).count(), 1, "and nothing else that comes from inside has it");
    }
}

fn config_of(agent: &Hermes) -> std::path::PathBuf {
    agent.sandbox.home.join(".hermes/config.yaml")
}
