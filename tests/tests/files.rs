//! Which files of the host can be read, written and hidden, and that nothing else changes there.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use hermes_tests::{Listener, PYTHON, Sandbox, TreeSnapshot, let_files_age, need, wait_until};

/// Places where credentials lie in a home directory.
const CREDENTIALS: &[&str] = &[
    ".ssh/id_ed25519",
    ".ssh/config",
    ".aws/credentials",
    ".azure/accessTokens.json",
    ".config/gcloud/credentials.db",
    ".config/gh/hosts.yml",
    ".kube/config",
    ".docker/config.json",
    ".gnupg/private-keys-v1.d/key",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".pgpass",
    ".bash_history",
    ".password-store/entry.gpg",
    ".mozilla/firefox/profile/logins.json",
    ".config/hub",
    ".vault-token",
    ".env",
];

/// Credentials that tools keep among files that the sandbox may use as caches.
const CREDENTIALS_IN_CACHES: &[&str] = &[
    ".cargo/credentials.toml",
    ".cargo/credentials",
    ".gradle/gradle.properties",
    ".m2/settings.xml",
    ".cache/huggingface/token",
];

fn cat_all(paths: impl IntoIterator<Item = String>) -> String {
    paths.into_iter().map(|path| format!("cat '{path}' 2>/dev/null; ")).collect::<String>() + "echo END"
}

#[test]
fn work_in_the_workspace_reaches_the_host() {
    let sandbox = Sandbox::new();
    sandbox
        .sh("umask 022; mkdir -p a/b && echo one > a/b/f && mv a/b/f a/g && ln a/g a/h && ln -s g a/s && chmod 750 a/g && \
             echo two >> a/g && rm a/h && truncate -s 1 a/b/t && touch -d 2001-01-01 a/b/t && rmdir a/b 2>/dev/null; cat a/s")
        .ok()
        .says("one\ntwo");
    let meta = fs::metadata(sandbox.workspace.join("a/g")).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o750);
    assert_eq!(meta.uid(), nix::unistd::geteuid().as_raw(), "files made inside belong to the caller");
    assert_eq!(sandbox.read("a/g"), "one\ntwo\n");
    assert_eq!(fs::metadata(sandbox.workspace.join("a/b/t")).unwrap().mtime(), 978_307_200);
}

#[test]
fn directories_of_the_workspace_can_be_crossed_by_rename_and_link() {
    let sandbox = Sandbox::new();
    sandbox.sh("mkdir one two && echo x > one/f && ln one/f two/hard && mkdir two/new && mv one/f two/new/f && mv two/new one/ && cat one/new/f").ok();
    assert_eq!(sandbox.read("one/new/f"), "x\n");
    assert_eq!(sandbox.read("two/hard"), "x\n");
}

#[test]
fn credentials_in_the_home_directory_stay_unread() {
    let sandbox = Sandbox::new();
    for path in CREDENTIALS {
        sandbox.write(sandbox.home.join(path), sandbox.canary("home"));
    }
    let script = cat_all(CREDENTIALS.iter().map(|path| sandbox.home.join(path).display().to_string()));
    assert_eq!(sandbox.plain_sh(&script).ok().out().matches("CANARY").count(), CREDENTIALS.len(), "positive control");
    sandbox.sh(&script).ok().says("END").never_says("CANARY");
    sandbox
        .sh("grep -rsl CANARY ~ / --include=id_ed25519 --include=credentials --exclude-dir=proc; echo END")
        .says("END")
        .never_says("id_ed25519");
}

#[test]
fn a_readable_home_still_hides_credentials() {
    let sandbox = Sandbox::new();
    for path in CREDENTIALS {
        sandbox.write(sandbox.home.join(path), sandbox.canary("home"));
    }
    sandbox.write(sandbox.home.join("notes.txt"), "PLAIN NOTES");
    let profile = sandbox.write(
        sandbox.outside.join("p.toml"),
        "schema = 1\nincludes = [\"base\"]\n[filesystem]\nhome = \"read\"\nworkspace = \"write\"\n",
    );
    let sandbox = sandbox.flags([Path::new("--profile"), &profile]);
    let script =
        "cat ~/notes.txt; ".to_owned() + &cat_all(CREDENTIALS.iter().map(|path| sandbox.home.join(path).display().to_string()));
    sandbox.sh(&script).ok().says("PLAIN NOTES").says("END");
    // Histories and files that only may hold secrets are not all on the list; keys and tokens are.
    for path in [
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".netrc",
        ".git-credentials",
        ".kube/config",
        ".docker/config.json",
        ".gnupg/private-keys-v1.d/key",
    ] {
        sandbox.sh(&format!("cat ~/{path}; echo END")).says("END").never_says("CANARY");
    }
}

#[test]
fn files_outside_the_grants_stay_unread_and_unwritten() {
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.outside.join("secret"), sandbox.canary("outside"));
    let (outside, home) = (sandbox.outside.display().to_string(), sandbox.home.display().to_string());
    let script = format!(
        "cat '{outside}/secret'; for d in '{outside}' '{home}' /etc /usr /var/tmp /opt /srv /root /; do echo x > $d/{token}; mkdir $d/{token}.d; done 2>/dev/null; \
         echo y >> '{outside}/secret'; rm -f '{outside}/secret'; mv '{outside}' '{outside}.moved'; echo END",
        token = sandbox.canary("made"),
    );
    let before = TreeSnapshot::of(&sandbox.outside);
    let result = sandbox.sh(&script);
    result.says("END").never_says(&sandbox.canary("outside"));
    before.assert_unchanged(&sandbox.outside);
    let dirs = [&outside, &home, "/etc", "/usr", "/var/tmp", "/opt", "/srv", "/root", "/"];
    let mut made = Vec::new();
    for path in dirs.iter().map(|dir| Path::new(dir).join(sandbox.canary("made"))) {
        made.extend(fs::remove_file(&path).is_ok().then(|| path.clone()));
        made.extend(fs::remove_dir(path.with_extension("d")).is_ok().then(|| path.with_extension("d")));
    }
    assert!(made.is_empty(), "made on the host: {made:?}");
    assert!(secret.exists());
    sandbox
        .plain_sh(&format!("cat '{outside}/secret' && echo x > '{outside}/made' && rm '{outside}/secret'"))
        .ok()
        .says("CANARY");
}

#[test]
fn system_directories_cannot_be_changed() {
    // Each act leaves the file as it is even where it succeeds.
    let sandbox = Sandbox::new();
    let script = |files: &str| {
        format!(
            "for f in {files}; do ( : >> $f ) 2>/dev/null && echo OPENED $f; chmod $(stat -Lc %a $f) $f 2>/dev/null && echo CHMOD $f; \
             python3 -c 'import os,sys; os.rename(sys.argv[1], sys.argv[1])' $f 2>/dev/null && echo RENAMED $f; done; echo END"
        )
    };
    let control = sandbox.write("own", "x").display().to_string();
    sandbox.plain_sh(&script(&control)).says("OPENED").says("CHMOD").says("RENAMED");
    sandbox
        .sh(&script("/etc/passwd /etc/hosts /usr/bin/env /usr/lib/os-release"))
        .says("END")
        .never_says("OPENED")
        .never_says("CHMOD")
        .never_says("RENAMED");
}

#[test]
fn metadata_outside_the_grants_cannot_be_changed() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let file = sandbox.write(sandbox.outside.join("f"), "x");
    let program = format!(
        "import os\nf='{}'\nfor name,act in dict(chmod=lambda: os.chmod(f,0o777), utime=lambda: os.utime(f,(1,1)), xattr=lambda: os.setxattr(f,'user.x',b'y'), \
         truncate=lambda: os.truncate(f,0), chown=lambda: os.chown(f,os.getuid(),os.getgid())).items():\n try: act(); print('DONE',name)\n except OSError as e: print('no',name,e.errno)\nprint('END')",
        file.display()
    );
    let before = TreeSnapshot::of(&sandbox.outside);
    let mtime = fs::metadata(&file).unwrap().mtime();
    sandbox.python(&program).ok().says("END").never_says("DONE");
    before.assert_unchanged(&sandbox.outside);
    assert_eq!(fs::metadata(&file).unwrap().mtime(), mtime);
    sandbox.plain_python(&program).ok().says("DONE chmod").says("DONE utime").says("DONE truncate");
}

#[test]
fn read_only_grants_can_be_read_and_not_written() {
    let sandbox = Sandbox::new();
    let file = sandbox.write(sandbox.outside.join("ro/f"), "READABLE");
    let dir = sandbox.outside.join("ro").display().to_string();
    let sandbox = sandbox.flags(["--ro", &dir]);
    let before = TreeSnapshot::of(&sandbox.outside);
    sandbox
        .sh(&format!(
            "cat '{dir}/f'; cd '{dir}' && {{ echo x > g; echo x >> f; rm -f f; mv f h; ln f h; chmod 777 f; touch -d 2001-01-01 f; ln f ~/ws/hard; }} 2>/dev/null; \
             echo x >> ~/ws/hard; echo END"
        ))
        .says("READABLE")
        .says("END");
    before.assert_unchanged(&sandbox.outside);
    assert_eq!(fs::read_to_string(file).unwrap(), "READABLE");
}

#[test]
fn writable_grants_reach_the_host() {
    let sandbox = Sandbox::new();
    let dir = sandbox.outside.join("rw");
    fs::create_dir(&dir).unwrap();
    let sandbox = sandbox.flags([Path::new("--rw"), &dir]);
    sandbox.sh(&format!("echo made > '{}/f'", dir.display())).ok();
    assert_eq!(fs::read_to_string(dir.join("f")).unwrap(), "made\n");
}

#[test]
fn a_hidden_path_in_a_granted_tree_cannot_be_had_by_any_trick() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let secret = sandbox.write("conf/secret", sandbox.canary("hidden"));
    let tree = sandbox.write("private/deep/secret", sandbox.canary("hidden"));
    let sandbox = sandbox.flags([Path::new("--deny"), &secret, Path::new("--deny"), &sandbox_path(&tree, 2)]);
    sandbox.plain_sh("cat conf/secret private/deep/secret").ok().says("CANARY");
    for trick in [
        "cat conf/secret private/deep/secret",
        "ln conf/secret h && cat h",
        "ln -s conf/secret s && cat s",
        "mv conf moved && cat moved/secret; mv moved conf",
        "mv private moved2 && cat moved2/deep/secret; mv moved2 private",
        "cp -r conf private /tmp/ && cat /tmp/conf/secret /tmp/private/deep/secret",
        "cat /proc/self/cwd/conf/secret /proc/1/cwd/conf/secret /proc/self/root/$PWD/conf/secret",
        "chmod -R 777 conf private; cat conf/secret private/deep/secret",
        "tar cf - conf private | cat",
        "python3 -c 'import os; d=os.open(\"conf\",os.O_PATH); print(open(os.open(\"secret\",os.O_RDONLY,dir_fd=d)).read())'",
        "python3 -c 'import mmap,os; f=os.open(\"conf/secret\",os.O_RDONLY); print(mmap.mmap(f,0,prot=1)[:])'",
        "rm -f conf/secret; rm -rf private; umount conf/secret private; cat conf/secret private/deep/secret",
        "echo evil > e; mv e conf/secret; echo evil > conf/secret; truncate -s 0 conf/secret",
    ] {
        sandbox.sh(&format!("{{ {trick}; }} 2>/dev/null; echo END")).says("END").never_says("CANARY");
        assert!(sandbox.read("conf/secret").contains("CANARY"), "the host's hidden file was changed by: {trick}");
        assert!(sandbox.read("private/deep/secret").contains("CANARY"), "the host's hidden tree was changed by: {trick}");
    }
}

#[test]
fn a_hidden_path_stays_hidden_in_the_next_run_though_its_parent_was_renamed() {
    let sandbox = Sandbox::new();
    let secret = sandbox.write("conf/secret", sandbox.canary("hidden"));
    let sandbox = sandbox.flags([Path::new("--deny"), &secret]);
    sandbox.sh("mv conf moved; mkdir conf; ln -s ../moved conf/link; echo END").says("END");
    sandbox.sh("cat moved/secret conf/link/secret conf/secret; grep -r CANARY . ; echo END").says("END").never_says("CANARY-");
}

fn sandbox_path(path: &Path, up: usize) -> std::path::PathBuf {
    path.ancestors().nth(up).unwrap().to_owned()
}

#[test]
fn hiding_wins_over_a_longer_grant() {
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.outside.join("a/b/secret"), sandbox.canary("hidden"));
    let (tree, deeper) = (sandbox_path(&secret, 2), sandbox_path(&secret, 1));
    sandbox.plain_sh(&format!("cat '{}'", secret.display())).says("CANARY");
    let sandbox = sandbox.flags([Path::new("--deny"), &tree, Path::new("--ro"), &deeper]);
    let result = sandbox.sh(&format!("cat '{}'; echo END", secret.display()));
    // Refusing the contradiction is right too.
    if result.code() == 125 {
        result.refused(125);
    } else {
        result.says("END").never_says("CANARY");
    }
}

#[test]
fn hiding_what_does_not_exist_is_fine_and_makes_nothing() {
    let sandbox = Sandbox::new();
    let before = TreeSnapshot::of(&sandbox.workspace);
    let (near, far) = (sandbox.workspace.join("absent"), sandbox.workspace.join("no/such/place"));
    let sandbox = sandbox.flags([Path::new("--deny"), &near, Path::new("--deny"), &far]);
    sandbox.sh("ls -A; echo END").ok().says("END").never_says("absent");
    before.assert_unchanged(&sandbox.workspace);
}

#[test]
fn a_symlink_in_the_workspace_gives_no_access_to_its_target() {
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.home.join(".ssh/key"), sandbox.canary("link"));
    symlink(&secret, sandbox.workspace.join("file")).unwrap();
    symlink(sandbox.home.join(".ssh"), sandbox.workspace.join("dir")).unwrap();
    symlink("..", sandbox.workspace.join("up")).unwrap();
    let script = "cat file dir/key up/.ssh/key 2>/dev/null; echo x > dir/new; ln -s ~/.ssh/key made; cat made; echo END";
    sandbox.sh(script).says("END").never_says("CANARY");
    assert!(!sandbox.home.join(".ssh/new").exists());
    sandbox.plain_sh("cat file dir/key up/.ssh/key").ok().says("CANARY");
}

#[test]
fn a_granted_symlink_is_reachable_by_both_names() {
    let sandbox = Sandbox::new();
    let real = sandbox.write(sandbox.outside.join("real/f"), "BOTH");
    let link = sandbox.outside.join("link");
    symlink("real", &link).unwrap();
    let sandbox = sandbox.flags([Path::new("--ro"), &link]);
    sandbox.sh(&format!("cat '{}/f' '{}'", link.display(), real.display())).ok().says("BOTHBOTH");
}

#[test]
fn caches_can_be_used_and_the_hosts_copies_never_change() {
    let sandbox = Sandbox::new();
    for dir in [".cache/tool", ".cargo/registry", ".npm/_cacache"] {
        sandbox.write(sandbox.home.join(dir).join("f"), "FROM-HOST");
    }
    // The first run keeps what it learned about the host in the cache directory.
    sandbox.sh("true").ok();
    let before: Vec<_> = [".cache", ".cargo", ".npm"].map(|dir| (dir, TreeSnapshot::of(&sandbox.home.join(dir)))).into();
    sandbox
        .sh("for d in .cache/tool .cargo/registry .npm/_cacache; do \
               echo changed >> ~/$d/f && mkdir ~/$d/new && echo n > ~/$d/new/n && cat ~/$d/new/n || echo FAILED $d; done; \
             rm -rf ~/.cache/tool; mv ~/.npm/_cacache/f ~/.npm/g; ls -A ~/.cache ~/.npm; echo END")
        .says("END")
        .never_says("FAILED");
    for (dir, snapshot) in before {
        snapshot.assert_unchanged(&sandbox.home.join(dir));
    }
}

#[test]
fn caches_show_what_the_host_has() {
    let sandbox = Sandbox::new();
    sandbox.write(sandbox.home.join(".cargo/registry/f"), "FROM-HOST");
    sandbox.write(sandbox.home.join(".npm/_cacache/f"), "FROM-HOST");
    sandbox.sh("cat ~/.cargo/registry/f ~/.npm/_cacache/f").ok().says("FROM-HOSTFROM-HOST");
}

#[test]
fn credentials_among_caches_stay_unread() {
    let sandbox = Sandbox::new();
    for path in CREDENTIALS_IN_CACHES {
        sandbox.write(sandbox.home.join(path), sandbox.canary("cache"));
    }
    let script = cat_all(CREDENTIALS_IN_CACHES.iter().map(|path| sandbox.home.join(path).display().to_string()));
    assert_eq!(sandbox.plain_sh(&script).out().matches("CANARY").count(), CREDENTIALS_IN_CACHES.len(), "positive control");
    sandbox.sh(&script).says("END").never_says("CANARY");
    for path in CREDENTIALS_IN_CACHES {
        assert!(sandbox.home.join(path).exists(), "{path} is gone from the host");
    }
}

#[test]
fn home_tmp_run_and_shm_are_the_sandboxs_own() {
    let sandbox = Sandbox::new();
    let name = sandbox.canary("tmp");
    let places: Vec<_> = ["/tmp", "/dev/shm"].into_iter().filter(|dir| fs::write(format!("{dir}/{name}"), "x").is_ok()).collect();
    let script = format!(
        "for d in ~ /tmp /dev/shm; do [ -e $d/{name} ] && echo SEEN $d; echo inside > $d/{name}.in || echo FAILED $d; done; ls -A /run | head; echo END"
    );
    let result = sandbox.sh(&script);
    for dir in &places {
        assert!(!Path::new(&format!("{dir}/{name}.in")).exists(), "{dir} is the host's");
        fs::remove_file(format!("{dir}/{name}")).unwrap();
    }
    assert_eq!(places.len(), 2, "positive control: the host's places can be written");
    result.ok().says("END").never_says("SEEN").never_says("FAILED");
    assert!(!sandbox.home.join(format!("{name}.in")).exists());
}

#[test]
fn a_workspace_below_tmp_is_kept() {
    let sandbox = Sandbox::new();
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    fs::write(dir.path().join("f"), "KEPT").unwrap();
    let sandbox = sandbox.flags([Path::new("--workspace"), dir.path()]);
    let mut command = sandbox.inside(["/bin/sh", "-c", "cat f && echo made > g"]);
    hermes_tests::run_to_end(command.current_dir(dir.path())).ok().says("KEPT");
    assert_eq!(fs::read_to_string(dir.path().join("g")).unwrap(), "made\n");
}

#[test]
fn no_ghost_files_during_or_after_a_run() {
    let sandbox = Sandbox::new();
    sandbox.write("src/main", "x");
    sandbox.write(".git/config", "[core]\n");
    // What the supervisor remembers of them is final only then.
    let_files_age();
    sandbox.sh("true").ok();
    let (workspace, home) = (TreeSnapshot::of(&sandbox.workspace), TreeSnapshot::of(&sandbox.home));
    let listing = sandbox.sh("find . | sort").ok().out();
    assert_eq!(listing, sandbox.plain_sh("find . | sort").out(), "inside the workspace looks the same");
    home.assert_unchanged(&sandbox.home);
    let mut child = sandbox.inside(["/bin/sh", "-c", "sleep 30"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    workspace.assert_unchanged(&sandbox.workspace);
    // SIGKILL: nobody can tidy up afterwards.
    child.kill().unwrap();
    child.wait().unwrap();
    workspace.assert_unchanged(&sandbox.workspace);
    // What the killed run had on record goes with the next command.
    hermes_tests::run_to_end(sandbox.hermes().args(["quarantine", "list", "--workspace"]).arg(&sandbox.workspace)).ok();
    home.assert_unchanged(&sandbox.home);
}

#[test]
fn devices_and_kernel_files_are_out_of_reach() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let program = "
import os, stat
for p in ('/dev/mem','/dev/kmsg','/dev/sda','/dev/vda','/dev/kvm','/dev/fuse','/dev/net/tun','/dev/uinput','/dev/tty1','/proc/kcore'):
    try:
        f = os.open(p, os.O_RDONLY | os.O_NONBLOCK); n = os.read(f, 16) if p == '/proc/kcore' else b'x'
        print('OPENED', p) if n else None
    except OSError: pass
for p in ('/proc/sys/kernel/core_pattern','/proc/sys/kernel/modprobe','/proc/sys/vm/drop_caches','/proc/sysrq-trigger','/proc/sys/kernel/hostname','/proc/irq/default_smp_affinity'):
    try: os.close(os.open(p, os.O_WRONLY)); print('OPENED', p)
    except OSError: pass
for kind, dev in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
    try: os.mknod('node', kind | 0o600, dev); print('OPENED node')
    except OSError: pass
for p in ('null','zero','full','random','urandom','tty','fd','stdin','stdout','stderr','ptmx','pts','shm'):
    if not os.path.lexists('/dev/' + p): print('MISSING', p)
open('/dev/null','w').write('x'); assert open('/dev/zero','rb').read(4) == bytes(4); assert len(open('/dev/urandom','rb').read(4)) == 4
print('END')";
    sandbox.python(program).ok().says("END").never_says("OPENED").never_says("MISSING");
}

#[test]
fn the_hosts_root_cannot_be_walked_to_through_proc() {
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.outside.join("secret"), sandbox.canary("proc")).display().to_string();
    let script = |processes: &str| {
        format!(
            "for p in {processes}; do cat $p/root{secret} $p/cwd/../../outside/secret; ls $p/fd/ $p/map_files; done 2>/dev/null; echo END"
        )
    };
    sandbox.sh(&script("/proc/[0-9]* /proc/self /proc/thread-self")).says("END").never_says("CANARY");
    sandbox.plain_sh(&script("/proc/self")).says("CANARY");
}

#[test]
fn modes_and_umask_are_kept() {
    let sandbox = Sandbox::new();
    sandbox.sh("umask 027; echo x > f; mkdir d; echo y > g; chmod 711 g").ok();
    let mode = |name: &str| fs::metadata(sandbox.workspace.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d"), mode("g")), (0o640, 0o750, 0o711));
}

#[test]
fn no_program_is_left_that_lends_its_owners_rights() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let program = "import os\n\
        def tell(name, act):\n try: act(); print('DONE', name)\n except OSError as e: print('REFUSED', name, e.errno)\n\
        open('f', 'w').close(); f = os.open('f', os.O_RDWR)\n\
        create = os.O_CREAT | os.O_EXCL | os.O_WRONLY\n\
        for bit in (0, 0o2000, 0o4000):\n\
        \x20mode = bit | 0o711\n\
        \x20tell('chmod %o' % bit, lambda: os.chmod('f', mode))\n\
        \x20tell('fchmod %o' % bit, lambda: os.fchmod(f, mode))\n\
        \x20tell('mknod %o' % bit, lambda: os.mknod('n%o' % bit, mode))\n\
        \x20tell('open %o' % bit, lambda: os.open('o%o' % bit, create, mode))\n";
    sandbox.plain_python(program).ok().never_says("REFUSED").says("DONE open 4000");
    for entry in fs::read_dir(&sandbox.workspace).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let ran = sandbox.python(program);
    ran.ok();
    for call in ["chmod", "fchmod", "mknod", "open"] {
        ran.says(&format!("DONE {call} 0")).says(&format!("REFUSED {call} 2000 1")).says(&format!("REFUSED {call} 4000 1"));
    }
    for entry in fs::read_dir(&sandbox.workspace).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().permissions().mode() & 0o6000, 0);
    }
}

#[test]
fn nothing_can_be_mounted() {
    // Only scratch directories are named; the fixture takes mounts below itself away.
    let sandbox = Sandbox::new();
    sandbox
        .sh("mkdir m n; mount -t tmpfs t m && echo MOUNTED; mount --bind n m && echo MOUNTED; chroot . /bin/true && echo MOUNTED; \
             unshare -Urm true && echo MOUNTED; unshare -m true && echo MOUNTED; echo END")
        .says("END")
        .never_says("MOUNTED");
}

#[test]
fn a_huge_hidden_directory_costs_nothing() {
    let sandbox = Sandbox::new();
    let dir = sandbox.workspace.join("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..5000 {
        fs::write(dir.join(i.to_string()), "x").unwrap();
    }
    let plain = sandbox.sh("true").ok().time;
    let sandbox = sandbox.flags([Path::new("--deny"), &dir]);
    let result = sandbox.sh("ls many | wc -l");
    assert!(result.time < plain + Duration::from_secs(2), "{:?} against {plain:?}", result.time);
    result.ok().says("0");
}

#[test]
fn a_host_file_made_later_under_a_hidden_name_is_not_shown() {
    let sandbox = Sandbox::new();
    let dir = sandbox.workspace.join("later");
    let sandbox = sandbox.flags([Path::new("--deny"), &dir]);
    let mut child = sandbox
        .inside([
            "/bin/sh",
            "-c",
            "echo READY > ready; while [ ! -e go ]; do sleep 0.05; done; cat later/secret > got 2>&1; echo END >> got",
        ])
        .spawn()
        .unwrap();
    assert!(wait_until(20, || sandbox.workspace.join("ready").exists()));
    sandbox.write("later/secret", sandbox.canary("later"));
    sandbox.write("go", "");
    assert!(wait_until(20, || sandbox.read("got").contains("END")));
    child.wait().unwrap();
    // A mask in a live tree cannot cover a name that did not exist; then the plan has to say so.
    if sandbox.read("got").contains("CANARY") {
        let plan = hermes_tests::run_to_end(
            sandbox.hermes().args(["plan", "--workspace"]).arg(&sandbox.workspace).arg("--deny").arg(&dir),
        );
        plan.says("hidden-survives-replacement");
    }
}

#[test]
fn a_socket_of_the_host_in_the_workspace_is_no_way_out() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let path = sandbox.workspace.join("host.sock");
    let listener = Listener::unix(&path);
    let program = format!(
        "import socket\ns=socket.socket(socket.AF_UNIX)\ntry: s.connect('{}'); print('REACHED')\nexcept OSError as e: print('refused')",
        path.display()
    );
    sandbox.python(&program).ok().says("refused");
    assert_eq!(listener.hits(), 0);
    sandbox.plain_python(&program).ok().says("REACHED");
    assert_eq!(listener.hits(), 1);
}
