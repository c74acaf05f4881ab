//! Sandboxes in sandboxes.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Sandbox, binary, need, run_to_end};

#[test]
fn itself_inside_itself_works_or_says_that_it_is_nested() {
    let sandbox = Sandbox::new();
    let program = binary();
    let sandbox = sandbox.flags([std::path::Path::new("--ro"), program.parent().unwrap()]);
    let workspace = sandbox.workspace.display().to_string();
    let inner = [
        program.to_str().unwrap(),
        "run",
        "--workspace",
        &workspace,
        "--",
        "/bin/sh",
        "-c",
        "echo inner > f; cat f; ls ~/.ssh; echo x > /etc/x 2>/dev/null; echo END",
    ];
    let result = sandbox.run(inner);
    result.no_panic();
    if result.code() == 0 {
        result.says("inner").says("END");
        return;
    }
    result.exits(125).clear_message();
    assert!(["nested", "inside", "already"].iter().any(|word| result.err().contains(word)), "{}", result.report());
}

#[test]
fn inside_another_sandbox_it_confines_or_refuses() {
    need!("bwrap");
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.outside.join("secret"), sandbox.canary("outer"));
    let run = sandbox.inside(["/bin/sh", "-c", &format!("cat '{}'; echo x > made; echo RAN", secret.display())]);
    let outer = ["--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--unshare-net", "--"];
    if !sandbox.plain_command("bwrap").args(outer).arg("true").status().is_ok_and(|status| status.success()) {
        hermes_tests::skip!("bwrap does not work here");
    }
    let result = run_to_end(sandbox.plain_command("bwrap").args(outer).arg(run.get_program()).args(run.get_args()));
    result.never_says("CANARY");
    if result.code() == 0 {
        result.says("RAN");
        assert!(sandbox.workspace.join("made").exists());
    } else {
        result.refused(125);
    }
}

#[test]
fn nested_namespaces_are_refused_without_the_policys_word() {
    need!("unshare");
    let sandbox = Sandbox::new();
    for flags in ["-U", "-Ur", "-Urn", "-Urm", "-n", "-p -f", "-i", "-u"] {
        sandbox.sh(&format!("unshare {flags} /bin/true && echo NESTED; echo END")).says("END").never_says("NESTED");
    }
}

#[test]
fn a_profile_can_allow_programs_that_bring_their_own_sandbox() {
    need!("unshare");
    let sandbox = Sandbox::new();
    let profile =
        sandbox.write(sandbox.outside.join("p.toml"), "schema = 1\nincludes = [\"agent\"]\n[kernel]\nnested-sandbox = true\n");
    let secret = sandbox.write(sandbox.outside.join("secret"), sandbox.canary("nested"));
    let sandbox = sandbox.flags([std::path::Path::new("--profile"), &profile]);
    let script = format!(
        "unshare -U /bin/true && echo NESTED; unshare -Urn cat '{0}'; unshare -Urm cat '{0}'; echo END",
        secret.display()
    );
    sandbox.sh(&script).says("NESTED").says("END").never_says("CANARY");
}
