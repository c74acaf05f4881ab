//! Real programs do their work inside.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use hermes_tests::{PYTHON, Pty, Sandbox, Step, fixture, need, program, skip};

fn git_identity(sandbox: &Sandbox) {
    let text = "[user]\n\tname = Tester\n\temail = tester@example.test\n[init]\n\tdefaultBranch = main\n[protocol \"file\"]\n\tallow = always\n";
    sandbox.write(sandbox.home.join(".gitconfig"), text);
}

#[test]
fn git_commits_branches_and_merges() {
    need!("git");
    let sandbox = Sandbox::new();
    git_identity(&sandbox);
    sandbox
        .sh("set -e; git init -q .; echo a > a; git add a; git commit -qm one; git checkout -qb side; echo b > b; git add b; git commit -qm two; \
             git checkout -q main; git merge -q --no-ff -m merge side; git stash list; git tag v1; git gc -q; git status --porcelain; git log --oneline | wc -l")
        .ok()
        .says("3");
    assert_eq!(sandbox.plain_sh("git log -1 --format=%an,%s").ok().out(), "Tester,merge\n");
}

#[test]
fn git_works_in_a_linked_worktree() {
    need!("git");
    let sandbox = Sandbox::new();
    git_identity(&sandbox);
    let main = sandbox.home.join("main");
    let script = format!(
        "set -e; git init -q '{0}'; cd '{0}'; echo a > a; git add a; git commit -qm one; git worktree add -q ../linked -b linked",
        main.display()
    );
    sandbox.plain_sh(&script).ok();
    let linked = sandbox.home.join("linked");
    let sandbox = sandbox.flags([Path::new("--workspace"), &linked]);
    let mut command = sandbox.inside([
        "/bin/sh",
        "-c",
        "echo b > b && git add b && git commit -qm two && git checkout -qb other && git status --porcelain",
    ]);
    hermes_tests::run_to_end(command.current_dir(&linked)).ok();
    assert_eq!(sandbox.plain_sh(&format!("git -C '{}' log -1 --format=%s other", main.display())).ok().out(), "two\n");
}

#[test]
fn git_pushes_to_a_local_remote() {
    need!("git");
    let sandbox = Sandbox::new();
    git_identity(&sandbox);
    let remote = sandbox.outside.join("remote.git");
    sandbox.plain_sh(&format!("set -e; git init -q --bare '{0}'; git init -q .; echo a > a; git add a; git commit -qm one; git remote add origin '{0}'", remote.display())).ok();
    let sandbox = sandbox.flags([Path::new("--rw"), &remote]);
    sandbox.sh("git push -q -u origin main && git fetch -q && git status -sb").ok();
    assert_eq!(sandbox.plain_sh(&format!("git -C '{}' log -1 --format=%s main", remote.display())).ok().out(), "one\n");
    assert!(!sandbox.workspace.join(".git/config.lock").exists());
}

/// A Rust toolchain that the caller can read: the one of `HERMES_TEST_RUST`, or of the caller's own rustup.
fn toolchain() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("HERMES_TEST_RUST") {
        return Some(PathBuf::from(path)).filter(|path| path.join("bin/cargo").exists());
    }
    let output = std::process::Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.join("bin/cargo").exists().then_some(path)
}

#[test]
fn cargo_builds_offline() {
    need!("gcc");
    let Some(rust) = toolchain() else { skip!("no Rust toolchain that the caller can read") };
    let sandbox = Sandbox::new();
    sandbox.write(
        "Cargo.toml",
        "[package]\nname = \"k\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\ndep = { path = \"dep\" }\n",
    );
    sandbox.write("src/main.rs", "fn main() { println!(\"{}\", dep::answer()) }\n");
    sandbox.write("dep/Cargo.toml", "[package]\nname = \"dep\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    sandbox.write("dep/src/lib.rs", "pub fn answer() -> i32 { 42 }\n");
    let path = format!("{}/bin:/usr/bin:/bin", rust.display());
    let sandbox = sandbox.env("PATH", &path).flags([Path::new("--ro"), &rust]);
    let result = sandbox.sh("cargo build -q --offline && target/debug/k && cargo test -q --offline");
    result.ok().says("42");
    assert!(!sandbox.home.join(".cargo").exists(), "the host's cargo home was made");
}

#[test]
fn npm_installs_a_local_dependency() {
    need!("node", "npm");
    let sandbox = Sandbox::new();
    sandbox.write("dep/package.json", "{\"name\":\"dep\",\"version\":\"1.0.0\"}");
    sandbox.write("dep/index.js", "module.exports = 42");
    sandbox.write("package.json", "{\"name\":\"t\",\"version\":\"1.0.0\"}");
    sandbox.sh("npm install --offline --no-audit --no-fund ./dep && node -e 'console.log(require(\"dep\"))'").ok().says("42");
    assert!(sandbox.workspace.join("node_modules/dep").exists());
    assert!(!sandbox.home.join(".npm").exists(), "the host's npm cache was made");
}

#[test]
fn node_starts_threads_children_and_servers() {
    need!("node");
    let sandbox = Sandbox::new();
    sandbox.write(
        "t.js",
        "const { Worker } = require('worker_threads'), http = require('http'), { execFileSync } = require('child_process');
         const w = new Worker('require(\"worker_threads\").parentPort.postMessage(7)', { eval: true });
         w.on('message', m => { const s = http.createServer((q, r) => r.end('pong')).listen(0, '127.0.0.1', async () => {
           const t = await (await fetch('http://127.0.0.1:' + s.address().port)).text();
           console.log('NODE', m, t, execFileSync('echo', ['child']).toString().trim()); s.close(); process.exit(0) }) });",
    );
    sandbox.run(["node", "t.js"]).ok().says("NODE 7 pong child");
}

#[test]
fn python_makes_virtual_environments_and_uses_multiprocessing() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    sandbox.write(
        "t.py",
        "import multiprocessing as m, multiprocessing.shared_memory as s, asyncio, tempfile, concurrent.futures as f\n\
         def sq(x): return x*x\n\
         if __name__ == '__main__':\n    with m.Pool(3) as p: print(sum(p.map(sq, range(10))))\n    \
         b = s.SharedMemory(create=True, size=100); b.buf[0] = 7; b.close(); b.unlink()\n    \
         q = m.Queue(); q.put(1); assert q.get() == 1; l = m.Lock(); l.acquire(); l.release()\n    \
         async def child(): return await (await asyncio.create_subprocess_exec('true')).wait()\n    \
         assert asyncio.run(child()) == 0\n    tempfile.NamedTemporaryFile().write(b'x')\n    print('POOL')\n",
    );
    sandbox.run([PYTHON, "t.py"]).ok().says("285").says("POOL");
    let result =
        sandbox.sh(&format!("{PYTHON} -m venv --without-pip venv && venv/bin/python -c 'import sys; print(sys.prefix)'"));
    result.ok().says("/venv");
}

#[test]
fn a_virtual_environment_of_the_home_directory_runs_by_itself() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let venv = sandbox.home.join(".venvs/tool");
    sandbox.plain_sh(&format!("{PYTHON} -m venv --without-pip '{}'", venv.display())).ok();
    sandbox.write(venv.join("lib/marker.py"), "x = 1");
    sandbox.script(
        venv.join("bin/tool"),
        &format!("#!{}/bin/python\nimport sys, json\nprint('TOOL', sys.prefix)\n", venv.display()),
    );
    sandbox.run([venv.join("bin/tool")]).ok().says(&format!("TOOL {}", venv.display()));
}

#[test]
fn programs_of_the_callers_path_are_found() {
    let sandbox = Sandbox::new();
    sandbox.script(sandbox.home.join(".local/bin/mytool"), "#!/bin/sh\necho MYTOOL\n");
    sandbox.run(["mytool"]).ok().says("MYTOOL");
    sandbox.sh("mytool").ok().says("MYTOOL");
}

#[test]
fn a_java_virtual_machine_compiles_and_runs() {
    need!("java");
    let sandbox = Sandbox::new();
    sandbox.write("T.java", "public class T { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> System.out.println(\"JAVA\")); t.start(); t.join(); } }");
    if program("javac").is_some() {
        sandbox.run(["java", "T.java"]).ok().says("JAVA");
    } else {
        sandbox.run(["java", "-version"]).ok();
    }
}

#[test]
fn sqlite_locks_and_journals_work() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let program = "
import fcntl, os, sqlite3
d = sqlite3.connect('d.db'); d.execute('pragma journal_mode=wal'); d.execute('create table t(x)'); d.execute('insert into t values(1)'); d.commit()
e = sqlite3.connect('d.db'); assert e.execute('select x from t').fetchone() == (1,)
f = open('lock', 'w'); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(open('lock2', 'w'), fcntl.LOCK_EX)
print('WAL', d.execute('pragma journal_mode').fetchone())";
    sandbox.python(program).ok().says("WAL ('wal',)");
    if hermes_tests::program("sqlite3").is_some() {
        sandbox
            .sh("sqlite3 c.db 'pragma journal_mode=wal; create table t(x); insert into t values(7); select x from t;'")
            .ok()
            .says("7");
    }
}

#[test]
fn compilers_make_and_run_programs() {
    need!("gcc");
    let sandbox = Sandbox::new();
    sandbox.write("t.c", "#include <stdio.h>\n#include <pthread.h>\nvoid *f(void *p) { return p; }\nint main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts(\"COMPILED\"); }\n");
    sandbox.sh("gcc -pthread -o t t.c && ./t").ok().says("COMPILED");
}

#[test]
fn tmux_runs_inside() {
    need!("tmux");
    let sandbox = Sandbox::new();
    let script = "tmux -f /dev/null -L s new-session -d -x 80 -y 24 && tmux -L s send-keys 'echo in-$((40+2))-tmux' Enter && \
                  for i in $(seq 100); do tmux -L s capture-pane -p | grep -q in-42-tmux && break; sleep 0.1; done; tmux -L s capture-pane -p; tmux -L s kill-server";
    sandbox.sh(script).ok().says("in-42-tmux");
}

#[test]
fn an_interactive_shell_works_on_a_terminal() {
    need!(PYTHON, "bash");
    if !fixture("terminal.py").exists() {
        skip!("tests/fixtures is not there");
    }
    let sandbox = Sandbox::new();
    let steps = [
        Step::Send("PS1='%% '\n"),
        Step::Expect("%% $"),
        // Not a shell with a child: a vfork under way cannot be stopped.
        Step::Send("/usr/bin/python3 -c 'import time; print(\"ST\" + \"ART\", flush=True); time.sleep(20)'\n"),
        Step::Expect("START"),
        Step::Send("\u{1a}"),
        Step::Expect("Stopped"),
        Step::Send("kill -9 %1; sleep 1; echo job-$((1+1))\n"),
        Step::Expect("job-2"),
        Step::Send("exit 4\n"),
    ];
    Pty::play(&sandbox, &sandbox.inside(["bash", "--norc", "--noprofile", "-i"]), &steps).complete().exits(4);
}

#[test]
fn shells_use_here_documents_pipes_and_process_substitution() {
    need!("bash");
    let sandbox = Sandbox::new();
    sandbox.run(["bash", "-c", "cat <<E; cat <(echo sub); mktemp >/dev/null && echo mk; echo a | tee >(cat >&2) >/dev/null; read x <<< here; echo $x\ndoc\nE"]).ok().says("doc").says("sub").says("mk").says("here");
}

#[test]
fn the_user_is_known_by_name() {
    let sandbox = Sandbox::new();
    let (inside, outside) = (sandbox.sh("id -un; id -u; whoami"), sandbox.plain_sh("id -un; id -u; whoami"));
    inside.ok();
    if !hermes_tests::is_root() {
        assert_eq!(inside.out(), outside.out());
    }
}

#[test]
fn archives_and_big_files_pass() {
    let sandbox = Sandbox::new();
    for i in 0..500 {
        sandbox.write(format!("tree/{}/{i}", i % 20), vec![b'x'; 1000]);
    }
    sandbox.sh("tar cf t.tar tree && rm -r tree && tar xf t.tar && find tree -type f | wc -l && dd if=/dev/zero of=big bs=1M count=64 2>/dev/null && stat -c %s big").ok().says("500").says("67108864");
    assert_eq!(fs::metadata(sandbox.workspace.join("big")).unwrap().len(), 64 << 20);
}
