//! Copy-on-write workspaces where something is in the way: what cannot be is refused by name, and nothing is half done.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hermes_tests::{Sandbox, TreeSnapshot, is_root, let_files_age, need, run_to_end, skip};

#[test]
fn what_cannot_be_kept_is_refused_by_name_and_nothing_is_written() {
    let sandbox = Sandbox::overlaid().flags(["--tier", "landlock"]);
    let before = TreeSnapshot::of(&sandbox.workspace);
    let refused = sandbox.sh("echo x > f");
    assert!(refused.refused(125).err().contains("workspace-overlaid cannot be given here"), "{}", refused.report());
    before.assert_unchanged(&sandbox.workspace);

    // The state directory in the workspace itself.
    let inside = Sandbox::overlaid();
    let state = inside.workspace.join("state");
    fs::create_dir(&state).unwrap();
    let inside = inside.env("XDG_STATE_HOME", &state);
    let refused = inside.sh("echo x > f");
    assert!(refused.refused(125).err().contains("lies in the workspace"), "{}", refused.report());
    assert!(refused.err().contains("workspace-overlaid"));
    assert!(!inside.workspace.join("f").exists());
    let homeless = Sandbox::overlaid().env("HOME", "/nonexistent");
    let refused = homeless.sh("echo x > f");
    assert!(refused.refused(125).err().contains("/nonexistent is no directory"), "{}", refused.report());

    // A state directory that cannot be written.
    let locked = Sandbox::overlaid().env("XDG_STATE_HOME", "/proc/self");
    assert!(locked.sh("echo x > f").refused(125).err().contains("workspace-overlaid"));
    // Accepted, the workspace is read-only and never the host's to write.
    let accepted = Sandbox::overlaid().env("XDG_STATE_HOME", "/proc/self").flags(["--accept-loss", "workspace-overlaid"]);
    let ran = accepted.sh("echo x > f; echo RAN");
    ran.says("RAN");
    assert!(!accepted.workspace.join("f").exists());
}

#[test]
fn a_state_directory_that_cannot_be_written_can_be_looked_at() {
    if !is_root() {
        skip!("needs root to make it read-only");
    }
    need!("unshare");
    let sandbox = Sandbox::overlaid();
    sandbox.sh("echo x > f").ok();
    let state = sandbox.home.join(".local/state");
    let script = format!(
        "mount --bind '{0}' '{0}' && mount -o remount,ro,bind '{0}' && \"$0\" changes list; \"$0\" changes list --all; \
         \"$0\" run --overlay -- touch g; echo \"status $?\"",
        state.display()
    );
    let outcome =
        run_to_end(sandbox.plain_command("unshare").args(["-m", "/bin/sh", "-c", &script]).arg(sandbox.hermes().get_program()));
    outcome.ok().says("layer 1       20").says("1 added").says("  layer 1 ").says("status 125\n");
    assert!(
        outcome.err().contains("cannot be written") && outcome.err().contains("Read-only file system"),
        "{}",
        outcome.report()
    );
}

#[test]
fn an_upper_layer_on_an_overlay_is_refused_by_name() {
    if !is_root() {
        skip!("needs root to mount an overlay for the host");
    }
    need!("unshare");
    let sandbox = Sandbox::overlaid();
    let at = sandbox.root().join("mounted");
    let script = format!(
        "mkdir -p {0}/t && mount -t tmpfs t {0}/t && mkdir {0}/t/l {0}/t/u {0}/t/w {0}/m && \
         mount -t overlay o -o lowerdir={0}/t/l,upperdir={0}/t/u,workdir={0}/t/w {0}/m && \
         XDG_STATE_HOME={0}/m exec \"$@\"",
        at.display()
    );
    let run = sandbox.inside(["/bin/sh", "-c", "echo x > f"]);
    let mut command = sandbox.plain_command("unshare");
    command.args(["-m", "/bin/sh", "-c", &script, "sh"]).arg(run.get_program()).args(run.get_args());
    let refused = run_to_end(&mut command);
    assert!(refused.refused(125).err().contains("workspace-overlaid"), "{}", refused.report());
    assert!(!sandbox.workspace.join("f").exists());
}

#[test]
fn a_renamed_workspace_keeps_its_changes_and_a_link_leads_to_them() {
    let sandbox = Sandbox::overlaid();
    sandbox.sh("echo x > f").ok();
    let renamed = sandbox.home.join("renamed");
    fs::rename(&sandbox.workspace, &renamed).unwrap();
    let about = |path: &Path, words: &[&str]| {
        run_to_end(sandbox.hermes().current_dir(&sandbox.home).arg("changes").args(words).arg("--workspace").arg(path))
    };
    symlink(&renamed, sandbox.home.join("link")).unwrap();
    about(&sandbox.home.join("link"), &["diff"]).ok().says("+x");
    assert!(about(&sandbox.workspace, &["list"]).refused(125).err().contains("cannot open the directory"));
    about(&renamed, &["apply"]).ok();
    assert_eq!(fs::read_to_string(renamed.join("f")).unwrap(), "x\n");
    fs::rename(&renamed, &sandbox.workspace).unwrap();
}

#[test]
fn names_of_any_bytes_and_things_that_are_no_files() {
    let sandbox = Sandbox::overlaid();
    sandbox
        .python("import os, socket\nopen(b'n\\nl\\xff', 'w').write('x')\nos.mkfifo('fifo')\ns = socket.socket(socket.AF_UNIX); s.bind('sock')\nos.symlink(b'\\xff', 'link')")
        .ok();
    let applied = sandbox.changes(&["apply"]);
    let err = applied.ok().err();
    assert!(err.contains("fifo: a FIFO is not carried over") && err.contains("sock: a socket is not carried over"), "{err}");
    assert_eq!(sandbox.read(OsStr::from_bytes(b"n\nl\xff")), "x");
    assert!(!sandbox.workspace.join("fifo").exists() && !sandbox.workspace.join("sock").exists());
    assert_eq!(fs::read_link(sandbox.workspace.join("link")).unwrap(), Path::new(OsStr::from_bytes(b"\xff")));
}

#[test]
fn sparse_files_stay_sparse_on_the_way_from_another_file_system() {
    let memory = tempfile::Builder::new().prefix("hsbx-").tempdir_in("/dev/shm").unwrap();
    let sandbox = Sandbox::overlaid().env("XDG_STATE_HOME", memory.path());
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    assert_ne!(device(memory.path()), device(&sandbox.workspace), "contents have to be copied");
    sandbox.write("old", "old");
    let_files_age();
    sandbox
        .sh("truncate -s 10G big; printf x | dd of=big bs=1 seek=5G conv=notrunc 2>/dev/null; echo more >> old; chmod 600 old; ln -s x link")
        .ok();
    assert!(!sandbox.workspace.join("big").exists());
    let applied = sandbox.changes(&["apply"]);
    assert!(applied.ok().time < Duration::from_secs(20));
    let meta = fs::metadata(sandbox.workspace.join("big")).unwrap();
    assert_eq!(meta.len(), 10 << 30);
    assert!(meta.blocks() < 1 << 14, "{} blocks", meta.blocks());
    assert_eq!(sandbox.read("old"), "oldmore\n");
    assert_eq!(fs::metadata(sandbox.workspace.join("old")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&sandbox.workspace).unwrap().count(), 3, "nothing of ours is left");
}

#[test]
fn a_full_disk_leaves_nothing_half_done() {
    if !is_root() {
        skip!("needs root to mount a small file system");
    }
    need!("unshare", "truncate");
    let sandbox = Sandbox::overlaid();
    let small = sandbox.root().join("small");
    fs::create_dir(&small).unwrap();
    let program = sandbox.hermes().get_program().to_owned();
    let script = format!(
        "set -e; mount -t tmpfs -o size=4m t '{0}'; mkdir '{0}/ws'; cd '{0}/ws'; echo old > a; sleep 0.1; \
         \"$0\" run --overlay -- sh -c 'echo new > a; echo new > b; head -c 8000000 /dev/zero | tr \"\\\\0\" x > c'; \
         if \"$0\" changes apply; then echo APPLIED; fi; cat a; ls -A; echo CONTROL; \
         \"$0\" changes apply a b; cat a; ls -A; \"$0\" changes discard; ls -A",
        small.display()
    );
    let outcome = run_to_end(sandbox.plain_command("unshare").args(["-m", "/bin/sh", "-c", &script]).arg(program));
    outcome.ok().says("old\na\nCONTROL\nnew\na\nb\na\nb\n").never_says("APPLIED");
    assert!(outcome.err().contains("nothing was changed") && outcome.err().contains("free some space"), "{}", outcome.report());
}

#[test]
fn what_the_host_does_not_let_change_is_refused_by_name() {
    let sandbox = Sandbox::overlaid();
    sandbox.write("locked/f", "old\n");
    sandbox.write("free", "old\n");
    let places = [sandbox.workspace.clone(), sandbox.workspace.join("locked")];
    let lock = |mode| places.iter().for_each(|at| fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap());
    lock(0o555);
    let_files_age();
    sandbox.sh("chmod u+w . locked; echo new > locked/f; echo new > free; chmod u-w . locked").ok();
    if is_root() {
        need!("chattr");
        let file = sandbox.workspace.join("locked/f");
        run_to_end(Command::new("chattr").arg("+i").arg(&file)).ok();
        let refused = sandbox.changes(&["apply"]);
        let named = sandbox.changes(&["apply", "free", "locked"]);
        run_to_end(Command::new("chattr").arg("-i").arg(&file)).ok();
        assert!(refused.exits(1).err().contains("locked/f: it is immutable"), "{}", refused.report());
        assert!(named.exits(1).err().contains("1 file applied"), "{}", named.report());
        assert_eq!((sandbox.read("free"), sandbox.read("locked/f")), ("new\n".into(), "old\n".into()));
        // The bit itself was a change by the host.
        sandbox.changes(&["apply", "--take-layer", "locked/f"]).ok();
    } else {
        // Its owner can give himself the right, and takes it away again.
        sandbox.changes(&["apply"]).ok();
    }
    assert_eq!((sandbox.read("free"), sandbox.read("locked/f")), ("new\n".into(), "new\n".into()));
    assert!(places.iter().all(|at| fs::metadata(at).unwrap().mode() & 0o7777 == 0o555));
    lock(0o755);
}

#[test]
fn killed_again_and_again_it_comes_to_an_end() {
    let sandbox = Sandbox::overlaid();
    sandbox.write("a/gone", "x");
    let_files_age();
    sandbox.sh("rm -r a; for i in $(seq 300); do mkdir -p d$((i%7)); echo $i > d$((i%7))/f$i; done").ok();
    let mut applied = false;
    for delay in 0..40u64 {
        let mut child = sandbox.hermes().args(["changes", "apply"]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(delay * 700));
        let _ = child.kill();
        applied |= child.wait().unwrap().success();
        if applied {
            break;
        }
    }
    let last = sandbox.changes(&["apply"]);
    assert!(last.code() == 0 || last.err().contains("no changes wait"), "{}", last.report());
    for i in 1..=300 {
        assert_eq!(sandbox.read(format!("d{}/f{i}", i % 7)), format!("{i}\n"));
    }
    assert!(!sandbox.workspace.join("a").exists());
    assert_eq!(fs::read_dir(&sandbox.workspace).unwrap().count(), 7, "nothing of ours is left");
    sandbox.changes(&["list"]).ok().says("nothing waits");
}

#[test]
fn a_read_only_workspace_is_refused_by_name() {
    if !is_root() {
        skip!("needs root to mount the workspace read-only");
    }
    need!("unshare");
    let sandbox = Sandbox::overlaid();
    sandbox.write("d/f", "old\n");
    let_files_age();
    let script = format!(
        "mount --bind '{0}' '{0}' && mount -o remount,ro,bind '{0}' && cd '{0}' && \"$0\" run --overlay -- sh -c 'echo new > d/f; echo x > n' && \
         \"$0\" changes apply; echo \"status $?\"",
        sandbox.workspace.display()
    );
    let outcome =
        run_to_end(sandbox.plain_command("unshare").args(["-m", "/bin/sh", "-c", &script]).arg(sandbox.hermes().get_program()));
    outcome.ok().says("status 1\n");
    assert!(outcome.err().contains("d/f, n: its directory cannot be written: Read-only file system"), "{}", outcome.report());
    // Writable again, nothing is lost.
    sandbox.changes(&["apply"]).ok();
    assert_eq!((sandbox.read("d/f"), sandbox.read("n")), ("new\n".into(), "x\n".into()));
}

#[test]
fn many_that_start_at_once_lose_nothing() {
    let sandbox = Sandbox::overlaid();
    let start = |n: usize| {
        sandbox.inside(["/bin/sh", "-c", &format!("sleep 0.3; echo {n} > f{n}")]).stderr(Stdio::null()).spawn().unwrap()
    };
    let children: Vec<_> = (0..8).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let list: serde_json::Value = serde_json::from_slice(&sandbox.changes(&["list", "--json"]).ok().stdout).unwrap();
    for layer in list["layers"].as_array().unwrap() {
        sandbox.changes(&["apply", "--layer", &layer["layer"].to_string()]).ok();
    }
    assert!((0..8).all(|n| sandbox.read(format!("f{n}")) == format!("{n}\n")));
    sandbox.changes(&["list"]).ok().says("nothing waits");
}
