//! The real Hermes Agent, with a scripted model, wholly inside.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Hermes, PYTHON, Sandbox, agent_packages, need, thieving_turns};

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
