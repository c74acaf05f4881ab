//! `--backend docker` with real engines: Docker and Podman, each for root and for an ordinary user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hermes_tests::*;

/// An ordinary user without a name.
const USER: u32 = 61_234;

/// What the program itself tells, which is on standard error.
trait Told {
    fn tells(&self, text: &str) -> &Self;
}

impl Told for Outcome {
    #[track_caller]
    fn tells(&self, text: &str) -> &Self {
        assert!(self.err().contains(text), "no {text:?} on standard error\n{}", self.report());
        self
    }
}

/// Tests count the containers of an engine that they share, so one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who starts what where.
struct Case {
    name: String,
    engine: &'static Engine,
    sandbox: Sandbox,
    uid: u32,
}

fn sandbox(engine: &Engine, uid: u32) -> Sandbox {
    let mut sandbox = Sandbox::new().flags(["--backend", "docker", "--image", "bb"]).env("DOCKER_HOST", engine.host());
    if uid != 0 {
        let program = sandbox.root().join("hermes-sandbox");
        copy_binary(&program);
        fs::set_permissions(sandbox.root(), fs::Permissions::from_mode(0o755)).expect("chmod");
        for path in [&sandbox.home, &sandbox.workspace, &sandbox.outside] {
            chown(path, Some(uid), Some(uid)).expect("chown");
        }
        let id = uid.to_string();
        sandbox = sandbox.by_way_of(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    sandbox
}

/// Runs a script that makes a file `up`, which is there when this returns.
fn begun(sandbox: &Sandbox, script: &str) -> Child {
    let mut command = sandbox.inside(["sh", "-c", script]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    assert!(wait_until(30, || sandbox.workspace.join("up").exists()));
    child
}

/// Every engine that is to be had, for root and for an ordinary user; what is not to be had is a skip with its name.
fn cases() -> Vec<Case> {
    if !Engine::can_run(&binary()) {
        record_skip("the program needs libraries, which no image has: build it for a musl target");
        return Vec::new();
    }
    let mut cases = Vec::new();
    for (name, engine) in [("docker", Engine::docker()), ("podman", Engine::podman())] {
        match engine {
            Err(why) => record_skip(&format!("{name}: {why}")),
            Ok(engine) => {
                for uid in [USER, 0] {
                    let name = format!("{name} as {}", if uid == 0 { "root" } else { "a user" });
                    cases.push(Case { name, engine, sandbox: sandbox(engine, uid), uid });
                }
            }
        }
    }
    cases
}

/// The first case with Docker, for what does not depend on the engine.
fn docker_case() -> Option<Case> {
    cases().into_iter().find(|case| case.engine.name == "docker")
}

#[test]
fn commands_run_with_their_streams_and_their_end() {
    let _alone = alone();
    for Case { name, engine, sandbox, .. } in cases() {
        eprintln!("{name}");
        sandbox.sh("echo out; echo err >&2; exit 7").exits(7).says("out").tells("err");
        sandbox.sh("kill -9 $$").exits(137);
        sandbox.run(["nothing-of-this-name"]).exits(127);
        let bytes: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
        let through = sandbox.run_with_input(["cat"], &bytes);
        assert!(through.exits(0).stdout == bytes, "{name}: {} of {} bytes", through.stdout.len(), bytes.len());
        let mut live = sandbox.inside(["sh", "-c", "trap 'echo got; exit 9' TERM; echo up; while :; do sleep 0.1; done"]);
        let child = live.stdout(std::process::Stdio::piped()).spawn().expect("spawn");
        assert!(wait_until(20, || engine.containers().len() == 1), "{name}: no container");
        std::thread::sleep(Duration::from_millis(2500));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGTERM).expect("kill");
        let output = child.wait_with_output().expect("wait");
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()), (Some(9), "up\ngot\n"), "{name}");
        assert!(wait_until(10, || engine.containers().is_empty()), "{name}: left {:?}", engine.containers());
    }
}

#[test]
fn files_are_the_callers_and_nothing_else_is_seen() {
    let _alone = alone();
    for Case { name, sandbox, uid, .. } in cases() {
        eprintln!("{name}");
        let secret = sandbox.write(sandbox.outside.join("secret"), sandbox.canary("outside"));
        let canary = sandbox.canary("home");
        sandbox.write(sandbox.home.join("secret"), &canary);
        let script = format!(
            "echo x >made; mkdir d; cat {secret} {home}/secret; ls -A {home}; echo HOME=$HOME; touch $HOME/h /tmp/t /dev/shm/s /data/v && echo places; id -u; \
             ls /.. ; touch /etc/x /bin/x 2>/dev/null && echo WRITTEN; true",
            secret = secret.display(),
            home = sandbox.home.display()
        );
        let result = sandbox.sh(&script);
        result.exits(0).never_says(&canary).never_says(&sandbox.canary("outside")).never_says("WRITTEN").says("places");
        result.says(&format!("HOME={}", sandbox.home.display())).says(&format!("\n{uid}\n"));
        for made in ["made", "d"] {
            let meta = fs::metadata(sandbox.workspace.join(made)).unwrap_or_else(|e| panic!("{name}: {made}: {e}"));
            assert_eq!(meta.uid(), uid, "{name}: {made}");
        }
        // The control: what is granted is seen, and only as it is granted.
        let granted = sandbox_again(sandbox, &secret);
        granted.sh(&format!("cat {0}; echo y >{0}", secret.display())).says(&granted.canary("outside"));
        assert_eq!(granted.read(&secret), granted.canary("outside"), "{name}: it was granted read-only");
    }
}

fn sandbox_again(sandbox: Sandbox, granted: &Path) -> Sandbox {
    sandbox.flags([Path::new("--ro"), granted])
}

#[test]
fn the_environment_is_the_policys_on_the_images() {
    let _alone = alone();
    for Case { name, sandbox, .. } in cases() {
        eprintln!("{name}");
        let canary = sandbox.canary("token");
        let sandbox = sandbox.env("SERVICE_TOKEN", &canary).env("WANTED", "yes").env("EDITOR", "vi").flags([
            "--env",
            "WANTED",
            "--set-env",
            "SET=1",
        ]);
        let result = sandbox.run(["env"]);
        result.exits(0).never_says(&canary).says("WANTED=yes").says("SET=1").says("FROM_IMAGE=yes").says("PATH=/bin\n");
    }
}

#[test]
fn the_engine_shows_what_was_asked_for_and_nothing_else() {
    let _alone = alone();
    let Some(Case { engine, sandbox, uid, .. }) = docker_case() else { return };
    let sandbox =
        sandbox.flags(["--limit", "memory=64MiB", "--limit", "processes=60", "--limit", "cpu=50%", "--limit", "shm=8MiB"]);
    let mut child = sandbox.inside(["sleep", "60"]).spawn().expect("spawn");
    assert!(wait_until(20, || !engine.containers().is_empty()));
    let id = engine.containers().remove(0);
    assert!(wait_until(20, || engine.says(&["inspect", "-f", "{{.State.Running}}", &id]) == "true"));
    let shown = |format: &str| engine.says(&["inspect", "-f", format, &id]);
    let expected = [
        ("{{.HostConfig.CapDrop}} {{.HostConfig.CapAdd}} {{.HostConfig.Privileged}}", "[ALL] [] false"),
        (
            "{{.HostConfig.NetworkMode}} {{.HostConfig.IpcMode}} [{{.HostConfig.PidMode}}] [{{.HostConfig.UTSMode}}]",
            "none private [] []",
        ),
        ("{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.AutoRemove}} {{.HostConfig.LogConfig.Type}}", "true true none"),
        (
            "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.PidsLimit}} {{.HostConfig.NanoCpus}}",
            "67108864 67108864 60 500000000",
        ),
        ("{{.HostConfig.ShmSize}} {{.HostConfig.Binds}} {{.HostConfig.Devices}}", "8388608 [] []"),
        ("{{.Config.Entrypoint}} {{.Config.Cmd}}", "[/.hermes-sandbox remote] []"),
    ];
    for (format, value) in expected {
        assert_eq!(shown(format), value, "{format}");
    }
    assert_eq!(shown("{{.Config.User}}"), format!("{uid}:{uid}"));
    let workspace = sandbox.workspace.display().to_string();
    let mounts = shown("{{range .Mounts}}{{.Type}} {{.Destination}} {{.RW}}\n{{end}}");
    let mut mounts: Vec<&str> = mounts.lines().collect();
    mounts.sort_unstable();
    let mut wanted =
        vec!["bind /.hermes-sandbox false".to_owned(), format!("bind {workspace} true"), "tmpfs /data true".to_owned()];
    wanted.sort_unstable();
    assert_eq!(mounts, wanted);
    assert!(shown("{{.HostConfig.SecurityOpt}}").contains("no-new-privileges"));
    assert!(!shown("{{json .}}").contains("sleep"), "the command is not for everybody to see");
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn limits_and_the_missing_network_are_real() {
    let _alone = alone();
    for Case { name, sandbox, .. } in cases() {
        eprintln!("{name}");
        let limited = sandbox.flags(["--limit", "memory=48MiB", "--limit", "processes=40"]);
        limited.sh("head -c 8000000 /dev/zero | tail -c 1 | wc -c").exits(0).says("1");
        let memory = limited.sh("x=$(dd if=/dev/zero bs=1M count=200 2>/dev/null | tail -c 180000000 | wc -c); echo held $x");
        memory.never_says("held 180000000");
        let forks = limited.sh("n=0; while [ $n -lt 80 ]; do sleep 5 & n=$((n + 1)); done; echo all");
        forks.never_says("all");
        let network = limited.sh("cat /proc/net/dev");
        let devices: Vec<String> =
            network.out().lines().skip(2).map(|line| line.split(':').next().unwrap_or("").trim().to_owned()).collect();
        assert_eq!(devices, ["lo"], "{name}");
    }
}

#[test]
fn what_is_planted_is_put_aside_on_this_side() {
    let _alone = alone();
    for Case { name, sandbox, uid, .. } in cases() {
        eprintln!("{name}");
        fs::create_dir_all(sandbox.workspace.join(".git/hooks")).expect("mkdir");
        sandbox.write(".git/HEAD", "ref: refs/heads/main\n");
        sandbox.write(".git/config", "[core]\n\tbare = false\n");
        fs::create_dir_all(sandbox.workspace.join(".git/objects")).expect("mkdir");
        fs::create_dir_all(sandbox.workspace.join(".git/refs")).expect("mkdir");
        let owned = Command::new("chown").arg("-R").arg(format!("{uid}:{uid}")).arg(&sandbox.workspace).status();
        assert!(owned.is_ok_and(|status| status.success()));
        let result = sandbox.sh("echo evil >.git/hooks/pre-commit; echo evil >.envrc; echo fine >code; cat .envrc");
        result.exits(0).says("evil").tells("put aside");
        assert!(
            !sandbox.workspace.join(".git/hooks/pre-commit").exists() && !sandbox.workspace.join(".envrc").exists(),
            "{name}"
        );
        assert_eq!(sandbox.read("code"), "fine\n", "{name}: the control");
    }
}

#[test]
fn a_killed_supervisor_leaves_nothing_behind() {
    let _alone = alone();
    for Case { name, engine, sandbox, .. } in cases() {
        eprintln!("{name}");
        let mut child = sandbox.inside(["sh", "-c", "echo evil >.envrc; echo up >up; sleep 60"]).spawn().expect("spawn");
        assert!(wait_until(30, || sandbox.workspace.join("up").exists()), "{name}: it does not start");
        child.kill().expect("kill");
        let _ = child.wait();
        assert!(wait_until(20, || engine.containers().is_empty()), "{name}: its standard input has ended, and so must it");
        // What was made and never started has no standard input that could end.
        let dead = ["create", "--label", "hermes-sandbox.pid=4194000", "--label", "hermes-sandbox.started=1"];
        let labels = own_labels(engine, &sandbox);
        let labels: Vec<&str> = labels.iter().flat_map(|label| ["--label", label.as_str()]).collect();
        let orphan = engine.says(&[&dead[..], &labels, &["bb", "true"]].concat());
        let stranger = engine.says(&["create", "--label", "hermes-sandbox.owner=99999", "bb", "true"]);
        assert!(engine.containers().len() == 2, "{name}: {orphan} {stranger}");
        let next = sandbox.sh("cat .envrc; true");
        next.exits(0).never_says("evil");
        let again = engine.says(&[&dead[..], &labels, &["bb", "true"]].concat());
        run_to_end(sandbox.hermes().args(["doctor", "--clean"])).exits(0).says(&format!("removed {again}"));
        run_to_end(sandbox.hermes().args(["doctor", "--clean"])).exits(0).says("no container was left over");
        assert_eq!(engine.containers(), std::slice::from_ref(&stranger), "{name}: somebody else's stays");
        engine.client(&["rm", &stranger]);
    }
}

/// Labels of a container of this sandbox's user that say where its maker lived.
fn own_labels(engine: &Engine, sandbox: &Sandbox) -> Vec<String> {
    let mut child = sandbox.inside(["sleep", "60"]).spawn().expect("spawn");
    assert!(wait_until(20, || engine.containers().len() == 1));
    let id = engine.containers().remove(0);
    let labels = ["owner", "boot", "machine", "pid-namespace"].map(|name| {
        let value = engine.says(&["inspect", "-f", &format!("{{{{index .Config.Labels \"hermes-sandbox.{name}\"}}}}"), &id]);
        assert!(!value.is_empty(), "{name}");
        format!("hermes-sandbox.{name}={value}")
    });
    let _ = child.kill();
    let _ = child.wait();
    assert!(wait_until(20, || engine.containers().is_empty()));
    labels.into()
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let _alone = alone();
    let Some(Case { engine, sandbox, uid, .. }) = docker_case() else { return };
    let with =
        |flags: &[&str]| run_to_end(sandbox.hermes().args(["run", "--backend", "docker"]).args(flags).args(["--", "true"]));
    with(&["--image", "absent"]).refused(125).tells("has no image absent").tells("docker pull absent");
    with(&[]).refused(125).tells("needs --image");
    with(&["--image", "bb", "--net", "host"]).refused(125).tells("--net host");
    with(&["--image", "bb", "--overlay"]).refused(125).tells("copy-on-write");
    with(&["--image", "bb", "--ro", "/"]).refused(125).tells("/ (--ro) cannot be granted");
    let directory = engine.dir.display().to_string();
    with(&["--image", "bb", "--ro", &directory]).refused(125).tells("engine's socket");
    run_to_end(sandbox.hermes().args(["run", "--image", "bb", "--", "true"]))
        .refused(125)
        .tells("--image needs --backend docker");
    let nowhere = sandbox_without_engine(uid);
    nowhere.sh("true").refused(125).tells("no container engine answers").tells("nothing was started elsewhere");
    for elsewhere in ["tcp://127.0.0.1:2375", "ssh://me@host.example.test"] {
        nowhere_at(elsewhere, uid).sh("true").refused(125).tells(elsewhere);
    }
    assert!(engine.containers().is_empty());
    engine.import("nothing", &[]).expect("an image with nothing in it");
    with(&["--image", "nothing"]).refused(127);
}

fn nowhere_at(host: &str, uid: u32) -> Sandbox {
    sandbox(Engine::docker().expect("it was there"), uid).env("DOCKER_HOST", host)
}

fn sandbox_without_engine(uid: u32) -> Sandbox {
    nowhere_at("unix:///nonexistent/engine.sock", uid)
}

#[test]
fn an_engine_that_is_killed_ends_the_run() {
    let _alone = alone();
    if !Engine::can_run(&binary()) {
        skip!("the program needs libraries, which no image has: build it for a musl target");
    }
    let mut engine = match Engine::start("docker") {
        Ok(engine) => engine,
        Err(why) => skip!("docker: {why}"),
    };
    let sandbox = sandbox(&engine, USER);
    let child = begun(&sandbox, "echo evil >.envrc; echo up >up; sleep 60");
    engine.kill();
    let output = child.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("was lost") && said.contains("put aside"), "{said}");
    assert!(!sandbox.workspace.join(".envrc").exists());
}

#[test]
fn hosts_are_reached_by_the_rules_of_this_side() {
    let _alone = alone();
    let Some(internet) = Internet::here() else { return };
    for Case { name, engine, uid, .. } in cases() {
        eprintln!("{name}");
        if uid != 0 {
            // The test's internet is a namespace that only root gets into; there root is the caller.
            continue;
        }
        let sandbox = internet
            .with(&[Route::to("plain.test", &[80])])
            .flags(["--backend", "docker", "--image", "bb"])
            .env("DOCKER_HOST", engine.host());
        // busybox knows no names without a C library's files, so it asks the proxy.
        let allowed = sandbox.sh("wget -q -O- http://plain.test/from-a-container && echo reached");
        allowed.exits(0).says("reached");
        assert!(!internet.seen("from-a-container").is_empty(), "{name}: the control");
        let refused = sandbox.sh(
            "wget -q -O- http://open.test/not-allowed && echo reached; wget -q -T 2 -O- http://192.0.2.1/ && echo reached; true",
        );
        refused.exits(0).never_says("reached");
        internet.never_saw("not-allowed", &refused);
    }
}

#[test]
fn a_session_lives_in_one_container() {
    let _alone = alone();
    for Case { name, engine, sandbox, .. } in cases() {
        eprintln!("{name}");
        let session = |words: &[&str]| run_to_end(sandbox.hermes().arg("session").args(words));
        let workspace = sandbox.workspace.display().to_string();
        session(&["start", "--backend", "docker", "--image", "bb", "--workspace", &workspace, "work"]).exits(0);
        session(&["exec", "work", "--", "sh", "-c", "echo kept >/tmp/kept; cd /tmp"]).exits(0);
        session(&["exec", "work", "--", "cat", "/tmp/kept"]).exits(0).says("kept");
        assert_eq!(engine.containers().len(), 1, "{name}");
        let label = engine.says(&["ps", "--filter", "label=hermes-sandbox.session=work", "-q"]);
        assert!(!label.is_empty(), "{name}: the session's name is on it");
        session(&["exec", "work", "--", "sh", "-c", "echo evil >.envrc"]).exits(0);
        session(&["stop", "work"]).exits(0);
        assert!(wait_until(15, || engine.containers().is_empty()), "{name}");
        assert!(wait_until(15, || !sandbox.workspace.join(".envrc").exists()), "{name}: put aside");
    }
}

#[test]
fn a_paused_container_is_named() {
    let _alone = alone();
    let Some(Case { engine, sandbox, .. }) = docker_case() else { return };
    let child = begun(&sandbox, "echo up >up; sleep 120");
    let id = engine.containers().remove(0);
    assert!(engine.client(&["pause", &id]).status.success());
    let output = child.wait_with_output().expect("wait");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && said.contains("is paused"), "{said}");
    assert!(wait_until(10, || engine.containers().is_empty()));
}
