//! The shim of docker: the command line that Hermes Agent speaks, and what it must not open.
#![allow(clippy::unwrap_used)]

use std::fs;

use hermes_tests::{PYTHON, Shims, assert_gone, binary, need};

/// What Hermes Agent passes, but for mounts.
const USUAL: &str = "--init --label hermes-agent=1 --label hermes-task-id=default --label hermes-profile=default --cap-drop ALL \
     --cap-add DAC_OVERRIDE --cap-add CHOWN --cap-add FOWNER --cap-add SETUID --cap-add SETGID --security-opt no-new-privileges \
     --tmpfs /tmp:rw,nosuid,size=512m --tmpfs /var/tmp:rw,noexec,nosuid,size=256m --tmpfs /run:rw,noexec,nosuid,size=64m \
     --pids-limit 256 --memory 512m";

/// Shims and directories of the host to be mounted: `$home`, `$ws` and `$ro`.
fn shims(options: &[&str]) -> Shims {
    let shims = Shims::new(&[&["--only", "docker"], options].concat());
    let canary = shims.sandbox.canary("variable");
    let shims = shims.with(|sandbox| {
        let (home, ro) = (sandbox.outside.join("home"), sandbox.outside.join("ro"));
        fs::create_dir(&home).unwrap();
        sandbox.write(ro.join("file"), "read-only\n");
        let ws = sandbox.workspace.clone();
        sandbox.env("home", home).env("ro", ro).env("ws", ws).env("SERVICE_PASSPHRASE", canary)
    });
    shims.sandbox.write("file", "of the workspace\n");
    shims
}

fn run(more: &str) -> String {
    format!(
        "id=$(\"$docker\" run -d --name box {USUAL} -w /root -v \"$home:/root\" -v \"$ws:/workspace\" {more} image sleep infinity)"
    )
}

#[test]
fn a_container_is_made_used_and_forgotten() {
    let shims = shims(&[]);
    let script = format!(
        "{}\n\"$docker\" exec $id bash -c 'pwd; cat /workspace/file; echo made >/workspace/made; echo kept >~/kept'\n\
         printf in | \"$docker\" exec -i $id bash -c 'cat; echo err >&2; exit 7'; echo status $?\n\
         printf in | \"$docker\" exec $id cat\n\
         \"$docker\" exec -w /workspace -e A=b $id sh -c 'pwd; echo $A; ls; find /workspace -name file'\n\
         \"$docker\" exec $id bash -c 'sleep 95.4 & echo $! >/tmp/pid'; \"$docker\" exec $id bash -c 'kill -0 $(cat /tmp/pid) && echo LIVES'\n\
         \"$docker\" inspect --format '{{{{.State.Status}}}} {{{{.State.FinishedAt}}}}|{{{{.HostConfig.NetworkMode}}}}' box\n\
         \"$docker\" stop -t 10 $id >/dev/null; \"$docker\" exec $id true; echo status $?\n\
         test \"$(\"$docker\" ps -a --filter label=hermes-agent=1 --filter status=exited --format '{{{{.ID}}}}')\" = $id && echo EXITED\n\
         \"$docker\" start $id >/dev/null; \"$docker\" exec $id cat /root/kept\n\
         \"$docker\" rm $id; echo status $?; \"$docker\" rm -f $id >/dev/null; echo status $?\n\
         for command in 'stop box' 'rm box' 'start box' 'exec box true' 'inspect box'; do \"$docker\" $command; echo status $?; done",
        run("")
    );
    let result = shims.client(&script);
    let expected = "/root\nof the workspace\ninstatus 7\n/workspace\nb\nfile\nmade\n/workspace/file\nLIVES\n\
                    running 0001-01-01T00:00:00Z|bridge\nstatus 1\nEXITED\nkept\nstatus 1\nstatus 0\n\
                    status 1\nstatus 1\nstatus 1\nstatus 1\n[]\nstatus 1\n";
    assert_eq!(result.out(), expected, "{}", result.report());
    for message in ["is not running", "container is running", "No such container: box"] {
        assert!(result.err().contains(message), "{message}\n{}", result.report());
    }
    assert_eq!(shims.sandbox.read("made"), "made\n");
    assert_gone("sleep 95.4");
    shims.nothing_is_left();
}

#[test]
fn what_the_agent_asks_first_is_answered() {
    let shims = shims(&[]);
    let result = shims.client(
        "\"$docker\" version >/dev/null && echo VERSION; \"$docker\" info --format '{{.Driver}}'\n\
         \"$docker\" image inspect any --format '{{json .Config.Entrypoint}}'\n\
         \"$docker\" run --rm --cpus 0.5 --memory 64m --pids-limit 32 image sleep 0; echo status $?\n\
         \"$docker\" run --rm image sh -c 'echo OUT; exit 5'; echo status $?\n\
         \"$docker\" info | grep -c 'images are not used'; \"$docker\" ps -a",
    );
    assert_eq!(result.out(), "VERSION\nhermes-sandbox\nnull\nstatus 0\nOUT\nstatus 5\n1\n", "{}", result.report());
}

#[test]
fn mounts_are_as_narrow_as_they_say_under_both_names() {
    need!("git");
    let shims = shims(&[]);
    shims.sandbox.write("secret", shims.sandbox.canary("secret"));
    shims.sandbox.plain_sh("git init -q . && git init -q ../other").ok();
    let secret = shims.sandbox.workspace.join("secret").display().to_string();
    shims.install(&["--only", "docker", "--deny", &secret]).ok();
    let script = format!(
        "{}\ncat \"$ws/secret\"\n\
         \"$docker\" exec $id bash -c 'cat /workspace/secret {secret}; cat /root/.hermes/ro/file; echo x >/root/.hermes/ro/file; \
             echo x >/root/.hermes/ro/new; ls '\"$key\"' $(dirname '\"$key\"'); cat '\"$key\"'; env; cat /proc/*/environ | tr \"\\0\" \"\\n\"; echo END'\n\
         \"$docker\" exec $id bash -c 'cd /workspace; echo evil >.git/hooks/pre-commit && chmod +x .git/hooks/pre-commit; \
             git config core.fsmonitor evil; mkdir new; cd new; git init -q .; sleep 1; echo evil >.git/hooks/pre-push; echo evil >/workspace/.envrc'\n\
         \"$docker\" rm -f $id >/dev/null",
        run("-v \"$ro:/root/.hermes/ro:ro\"")
    );
    let result = shims.client(&script);
    // The first cat is the positive control.
    assert_eq!(result.out().matches("CANARY").count(), 1, "{}", result.report());
    result.says("read-only\n").says("END");
    assert_eq!(shims.sandbox.read(shims.sandbox.outside.join("ro/file")), "read-only\n");
    assert!(!shims.sandbox.outside.join("ro/new").exists());
    for guarded in [".git/hooks/pre-commit", "new/.git/hooks/pre-push", ".envrc"] {
        assert!(!shims.sandbox.workspace.join(guarded).exists(), "{guarded} came out\n{}", result.report());
    }
    assert!(!shims.sandbox.read(".git/config").contains("evil"), "{}", result.report());
}

#[test]
fn options_that_would_open_it_are_refused_by_name() {
    let shims = shims(&[]);
    let socket = shims.sandbox.outside.join("docker.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mount = format!("-v {0}:/var/run/docker.sock", socket.display());
    for options in [
        "--privileged",
        "--cap-add SYS_ADMIN",
        "--network host",
        "--net=host",
        "--pid=host",
        "--ipc=host",
        "--device /dev/null",
        "--security-opt seccomp=unconfined",
        "--mount type=bind,source=/,target=/host",
        "--user 0:4",
        "-v /:/host",
        "-v \"$HOME:/host\"",
        "-v /etc:/host-etc",
        "-v volume:/x",
        "-v /no/such/place:/x",
        "-v \"$ws:/usr/local\"",
        &mount,
        "--sysctl a=b",
        "--frobnicate",
    ] {
        let result = shims.client(&format!("\"$docker\" run -d {options} image sleep infinity"));
        let name = options.split([' ', '=']).next().unwrap();
        let said = result.refused(125).err();
        assert!(
            said.contains(name) || said.contains("--network") || said.contains("cannot be made inside"),
            "{}",
            result.report()
        );
    }
    assert!(shims.client("\"$docker\" ps -a").ok().out().is_empty());
    // Positive control: with harmless options it starts.
    shims.client(&format!("{}; \"$docker\" exec box echo STARTED", run(""))).ok().says("STARTED");
    for command in ["exec --privileged box true", "exec --user 0:4 box true", "commit box", "cp box:/etc/passwd ."] {
        let result = shims.client(&format!("{}; \"$docker\" {command}; echo status $?; \"$docker\" rm -f box", run("")));
        assert!(!result.out().contains("status 0"), "{command}\n{}", result.report());
    }
}

#[test]
fn a_container_is_used_again_only_as_exactly_what_is_wanted() {
    let shims = shims(&[]);
    let other = run("-e A=b").replace("--name box", "--name other");
    let again = run("").replace("--name box", "--name again");
    let install = format!(
        "'{}' shims install '{}' --only docker --limit processes=100 >/dev/null",
        binary().display(),
        shims.dir.display()
    );
    let script = format!(
        "{}; one=$id\n\
         \"$docker\" ps -a --filter label=hermes-agent=1 --filter label=hermes-task-id=default --filter label=hermes-profile=default --format '{{{{.ID}}}}'\n\
         {again}; test $id = $one && echo SAME\n{other}; test $id = $one || echo ANOTHER\n\"$docker\" ps | grep -c running\n\
         \"$docker\" run -d --name other image; echo status $?\n\
         {install}; \"$docker\" exec $one echo RAN; echo status $?; \"$docker\" ps -a",
        run("")
    );
    let result = shims.client(&script);
    assert_eq!(result.out(), "SAME\nANOTHER\n2\nstatus 125\nstatus 1\n", "{}", result.report());
    assert!(result.err().contains("already in use") && result.err().contains("another policy"), "{}", result.report());
    shims.nothing_is_left();
    // One of another client does not live on.
    shims.client("\"$docker\" ps -a --filter status=running").ok().never_says("running");
}

#[test]
fn limits_and_network_are_never_wider_than_the_shims() {
    need!(PYTHON);
    let shims = shims(&["--limit", "processes=40"]);
    // Children that sleep, as many as can be had.
    shims.sandbox.write(
        "count.py",
        "import os, time\ncount = 0\ntry:\n    while count < 60:\n        if os.fork() == 0:\n            time.sleep(1)\n            os._exit(0)\n        count += 1\nexcept OSError:\n    pass\nprint(count)\n",
    );
    let count = "\"$docker\" exec $id python3 /workspace/count.py";
    let few: u32 = shims.client(&format!("{}; {count}", run(""))).out().trim().parse().unwrap_or(0);
    assert!(few < 41, "{few}");
    shims.install(&["--only", "docker"]).ok();
    let many: u32 =
        shims.client(&format!("\"$docker\" rm -f box 2>/dev/null >&2; {}; {count}", run(""))).out().trim().parse().unwrap_or(0);
    assert!(many == 60 || hermes_tests::is_root(), "positive control: {many}");
    shims.install(&["--only", "docker", "--net", "host"]).ok();
    let interfaces = "\"$docker\" exec $id sh -c 'cat /proc/net/dev' | grep -vc 'lo:'";
    let host = fs::read_to_string("/proc/net/dev").unwrap().lines().filter(|line| !line.contains("lo:")).count().to_string();
    for (options, same) in [("", true), ("--network host", true), ("--network=none", false)] {
        let result = shims.client(&format!("\"$docker\" rm -f box 2>/dev/null >&2; {}; {interfaces}", run(options)));
        assert_eq!(result.out().trim() == host, same || host == "2", "{options}: {}", result.report());
    }
}
