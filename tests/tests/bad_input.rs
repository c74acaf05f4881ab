//! Awkward input and awkward hosts: one clear line, the right status, nothing left behind.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use hermes_tests::{
    Outcome, PYTHON, Sandbox, TreeSnapshot, binary, copy_binary, is_root, let_files_age, need, run_to_end, shell_line, skip,
};

/// A mistake of the caller: never runs the command, says why in one line, leaves nothing.
#[track_caller]
fn assert_mistake(result: &Outcome) {
    assert!(result.stdout.is_empty() && !matches!(result.code(), 0 | -1), "{}", result.report());
    assert!(!result.stderr.is_empty(), "no word about it\n{}", result.report());
    result.no_panic();
}

fn with_profile(text: &[u8]) -> Outcome {
    let sandbox = Sandbox::new();
    let profile = sandbox.write(sandbox.outside.join("p.toml"), text);
    sandbox.flags([Path::new("--profile"), &profile]).sh("echo RAN")
}

#[test]
fn malformed_policy_files_are_refused_with_file_and_line() {
    for text in [
        "schema = 1\n[filesystem\n",
        "schema = 1\nnonsense = true\n",
        "schema = 1\n[filesystem]\nreed = [\"/etc\"]\n",
        "schema = 1\n[filesystem]\nread = [\"/etc\"]\nread = [\"/usr\"]\n",
        "schema = 1\n[filesystem]\nread = \"/etc\"\n",
        "schema = 1\n[filesystem]\nworkspace = \"everything\"\n",
        "schema = 1\n[network]\nmode = \"sideways\"\n",
        "schema = 1\n[limits]\nmemory = \"lots\"\n",
        "schema = 1\n[limits]\nprocesses = -5\n",
    ] {
        let result = with_profile(text.as_bytes());
        result.refused(125);
        assert!(result.err().contains("p.toml"), "the file is not named for {text:?}\n{}", result.report());
    }
    let result = with_profile(b"schema = 1\n\n\n[filesystem]\nreed = [\"/etc\"]\n");
    assert!(result.err().contains("p.toml:5") && result.err().contains("read"), "line and suggestion\n{}", result.report());
}

#[test]
fn policies_that_cannot_be_meant_are_refused() {
    for text in [
        &b"schema = 99\n"[..],
        b"schema = \"1\"\n",
        b"schema = 1\nincludes = [\"no-such-profile\"]\n",
        b"schema = 1\n[filesystem]\nread = [\"relative/../../path\\u0000x\"]\n",
        b"schema = 1\n[filesystem]\nread = [\"/a\\nb\\u0000\"]\n",
        b"\xff\xfe\x00schema",
        b"\x00\x01\x02",
    ] {
        with_profile(text).refused(125);
    }
}

#[test]
fn a_cycle_of_includes_is_named() {
    let sandbox = Sandbox::new();
    let (a, b) = (sandbox.outside.join("a.toml"), sandbox.outside.join("b.toml"));
    sandbox.write(&a, format!("schema = 1\nincludes = [\"{}\"]\n", b.display()));
    sandbox.write(&b, format!("schema = 1\nincludes = [\"{}\"]\n", a.display()));
    let result = sandbox.flags([Path::new("--profile"), &a]).sh("echo RAN");
    result.refused(125);
}

#[test]
fn strange_policy_files_are_refused_at_once() {
    let sandbox = Sandbox::new();
    let fifo = sandbox.outside.join("fifo.toml");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let huge = sandbox.outside.join("huge.toml");
    fs::File::create(&huge).unwrap().set_len(1 << 34).unwrap();
    let dangling = sandbox.outside.join("dangling.toml");
    symlink("/no/such/file", &dangling).unwrap();
    let outside = sandbox.outside.clone();
    let places = [
        fifo,
        huge,
        dangling,
        outside,
        PathBuf::from("/dev/zero"),
        PathBuf::from("/no/such/profile.toml"),
        PathBuf::from("no-such-name"),
    ];
    for path in places {
        let sandbox = Sandbox::new().flags([Path::new("--profile"), &path]);
        let result = sandbox.sh("echo RAN");
        result.refused(125);
        assert!(result.time.as_secs() < 20, "{}", result.report());
    }
}

#[test]
fn deep_nesting_and_long_lists_do_not_crash() {
    let deep = "schema = 1\nx = ".to_owned() + &"[".repeat(100_000);
    with_profile(deep.as_bytes()).refused(125);
    let many: String = (0..5000).map(|i| format!("\"?/no/such/{i}\",")).collect();
    let result = with_profile(format!("schema = 1\nincludes = [\"base\"]\n[filesystem]\nread = [{many}]\n").as_bytes());
    result.no_panic();
    assert!(matches!(result.code(), 0 | 125), "{}", result.report());
}

#[test]
fn a_whole_machine_or_home_as_workspace_needs_a_word() {
    let sandbox = Sandbox::new();
    let home = sandbox.home.clone();
    for broad in [Path::new("/"), Path::new("/usr"), Path::new("/etc"), Path::new("/var"), &home] {
        let sandbox = Sandbox::new().env("HOME", &home).flags([Path::new("--workspace"), broad]);
        sandbox.sh("echo RAN").refused(125);
    }
    let broad = sandbox.flags([OsStr::new("--workspace"), home.as_os_str(), OsStr::new("--allow-broad")]);
    let secret = broad.write(broad.home.join(".ssh/id_ed25519"), broad.canary("broad"));
    broad.sh(&format!("echo RAN; cat '{}'", secret.display())).says("RAN").never_says("CANARY");
}

#[test]
fn workspaces_by_symlink_work_under_both_names() {
    let sandbox = Sandbox::new();
    sandbox.write("f", "CONTENT");
    let link = sandbox.outside.join("link");
    symlink(&sandbox.workspace, &link).unwrap();
    let linked = Sandbox::new().flags([Path::new("--workspace"), &link]);
    let mut command = linked.inside(["/bin/sh", "-c", "cat f && echo made > made"]);
    run_to_end(command.current_dir(&link)).ok().says("CONTENT");
    assert_eq!(sandbox.read("made"), "made\n");
    // A link to somewhere broad is as broad as its target.
    let root = linked.outside.join("root");
    symlink("/", &root).unwrap();
    Sandbox::new().flags([Path::new("--workspace"), &root]).sh("echo RAN").refused(125);
}

#[test]
fn missing_paths_are_named() {
    for flag in ["--workspace", "--ro", "--rw"] {
        let sandbox = Sandbox::new();
        let result = sandbox.flags([flag, "/no/such/path"]).sh("echo RAN");
        result.refused(125);
        assert!(result.err().contains("/no/such/path"), "{}", result.report());
    }
    let sandbox = Sandbox::new();
    let file = sandbox.write("plain", "x");
    sandbox.flags([Path::new("--workspace"), &file]).sh("echo RAN").refused(125);
}

#[test]
fn a_deleted_working_directory_is_no_crash() {
    let sandbox = Sandbox::new();
    let line = shell_line(&sandbox.inside(["/bin/sh", "-c", "echo RAN"]));
    let result = run_to_end(
        sandbox.plain_command("/bin/sh").args(["-c", &format!("mkdir gone && cd gone && rmdir ../gone && exec {line}")]),
    );
    result.no_panic();
    assert!(matches!(result.code(), 0 | 125), "{}", result.report());
    // Without a workspace there is nothing to fall back to.
    let line = shell_line(sandbox.hermes().args(["run", "--", "/bin/sh", "-c", "echo RAN"]));
    let result = run_to_end(
        sandbox.plain_command("/bin/sh").args(["-c", &format!("mkdir gone && cd gone && rmdir ../gone && exec {line}")]),
    );
    result.refused(125);
}

#[test]
fn contradictions_and_missing_commands_are_mistakes() {
    let sandbox = Sandbox::new();
    let cases: &[&[&str]] = &[
        &["run"],
        &["run", "--"],
        &["run", "--net"],
        &["run", "--net", "off", "--net", "host", "--", "echo", "RAN"],
        &["run", "--no-such-flag", "--", "echo", "RAN"],
        &["run", "--accept-loss", "everything", "--", "echo", "RAN"],
        &["run", "--tier", "prayer", "--", "echo", "RAN"],
        &["run", "--backend", "wishful", "--", "echo", "RAN"],
        &["run", "--allow-host", "http://example.test/", "--", "echo", "RAN"],
        &["run", "--allow-host", "example.test:99999", "--", "echo", "RAN"],
        &["run", "--allow-host", "", "--", "echo", "RAN"],
        &["no-such-command"],
        &[],
    ];
    for args in cases {
        let result = run_to_end(sandbox.hermes().args(*args));
        assert!(!result.out().contains("RAN"), "{}", result.report());
        assert!(!matches!(result.code(), 0 | -1) && !result.all().is_empty(), "{}", result.report());
        result.no_panic();
    }
}

#[test]
fn two_mebibytes_of_arguments_are_handled() {
    let sandbox = Sandbox::new();
    let words: Vec<String> = (0..20).map(|i| char::from(b'a' + i).to_string().repeat(100_000)).collect();
    let argv = ["/bin/sh", "-c", "echo $#"].into_iter().chain(["sh"]).chain(words.iter().map(String::as_str)).collect::<Vec<_>>();
    // What the kernel takes from the caller must arrive, or the answer is one clear line.
    if sandbox.plain_command("/bin/true").args(&argv).status().is_err() {
        skip!("this kernel takes no 2 MiB of arguments");
    }
    let result = sandbox.run(argv);
    if result.code() == 0 {
        result.says("20");
    } else {
        result.refused(result.code());
        assert!(matches!(result.code(), 125 | 126), "{}", result.report());
    }
}

#[test]
fn bytes_that_are_no_utf8_pass_as_arguments_and_paths() {
    let sandbox = Sandbox::new();
    let name = OsStr::from_bytes(b"caf\xe9");
    sandbox.write(name, "CONTENT");
    let argv = [
        OsStr::new("/bin/sh"),
        OsStr::new("-c"),
        OsStr::new("cat \"$1\"; printf %s \"$1\" | od -An -tx1"),
        OsStr::new("sh"),
        name,
    ];
    sandbox.run(argv).ok().says("CONTENT").says("63 61 66 e9");
    let odd = sandbox.outside.join(OsStr::from_bytes(b"d\xff r"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("f"), "ODD").unwrap();
    let sandbox = sandbox.flags([Path::new("--ro"), &odd]);
    let argv = [OsStr::new("cat").to_owned(), odd.join("f").into_os_string()];
    sandbox.run(argv).ok().says("ODD");
    let weird = Sandbox::new();
    let place = weird.outside.join(OsStr::from_bytes(b"w\nx\xfe"));
    fs::create_dir(&place).unwrap();
    let weird = weird.flags([Path::new("--workspace"), &place]);
    run_to_end(weird.inside(["/bin/sh", "-c", "echo made > made"]).current_dir(&place)).ok();
    assert!(place.join("made").exists());
}

#[test]
fn control_characters_from_names_are_not_printed_raw() {
    let sandbox = Sandbox::new().flags(["--ro", "/no/such/\u{1b}[31mred\u{7}"]);
    let result = sandbox.sh("echo RAN");
    result.refused(125);
    assert!(!result.err().contains('\u{1b}') && !result.err().contains('\u{7}'), "{}", result.report());
    let result = Sandbox::new().run(["/no/such/\u{1b}[31m"]);
    result.refused(127);
    assert!(!result.err().contains('\u{1b}'), "{}", result.report());
}

#[test]
fn a_caller_without_home_or_path_is_served_or_told() {
    for missing in [&["HOME"][..], &["PATH"], &["HOME", "PATH", "USER", "TERM", "LANG"]] {
        let sandbox = missing.iter().fold(Sandbox::new(), |sandbox, name| sandbox.without_env(name));
        let result = sandbox.run(["/bin/sh", "-c", "echo RAN"]);
        if result.code() != 0 {
            result.refused(125);
        }
    }
    let strays = [Path::new("/no/such/home"), Path::new("/.cache")].map(|path| (path, path.exists()));
    for home in ["", "relative", "/no/such/home", "/", "/dev/null"] {
        let result = Sandbox::new().env("HOME", home).run(["/bin/sh", "-c", "echo RAN"]);
        for (path, there) in strays {
            let made = !there && path.exists();
            if made {
                fs::remove_dir_all(path).unwrap();
            }
            assert!(!made, "HOME={home}: {} was made on the host", path.display());
        }
        if result.code() != 0 {
            result.refused(125);
        }
    }
}

#[test]
fn an_unreadable_home_is_no_crash() {
    if is_root() {
        skip!("root can read every home");
    }
    let sandbox = Sandbox::new();
    let home = sandbox.outside.join("locked");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o000)).unwrap();
    let sandbox = sandbox.env("HOME", &home);
    let result = sandbox.sh("echo RAN");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700)).unwrap();
    if result.code() != 0 {
        result.refused(125);
    }
}

#[test]
fn a_full_disk_is_told_by_the_command_not_by_us() {
    need!("unshare");
    let sandbox = Sandbox::new();
    let small = sandbox.outside.join("small");
    fs::create_dir(&small).unwrap();
    let inner = format!(
        "mount -t tmpfs -o size=64k,mode=777 t '{small}' && dd if=/dev/zero of='{small}/fill' bs=1k count=100 2>/dev/null; cd '{small}' && \
         '{program}' run --workspace '{small}' --net off -- /bin/sh -c 'echo STARTED; echo x > new && echo WROTE; ls'",
        small = small.display(),
        program = binary().display()
    );
    let result = run_to_end(sandbox.plain_command("unshare").args(["-rm", "/bin/sh", "-c", &inner]));
    if result.err().contains("unshare:") {
        skip!("no user namespace to prepare a full disk in");
    }
    result.no_panic();
    if result.out().contains("STARTED") {
        result.says("fill");
    } else {
        result.clear_message();
    }
}

#[test]
fn a_setuid_copy_of_the_program_is_refused() {
    if !is_root() {
        skip!("needs root to make a setuid-root file");
    }
    need!("setpriv");
    let sandbox = Sandbox::new();
    let copy = sandbox.root().join("copy");
    copy_binary(&copy);
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
    for path in [sandbox.root(), &sandbox.home, &sandbox.workspace] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = sandbox.plain_command("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&copy)
        .args(["run", "--workspace"])
        .arg(&sandbox.workspace);
    let result = run_to_end(command.args(["--", "/bin/sh", "-c", "echo RAN; id"]));
    result.refused(125);
}

#[test]
fn being_the_first_process_works_or_is_refused() {
    need!("unshare");
    let sandbox = Sandbox::new();
    let run = sandbox.inside(["/bin/sh", "-c", "(setsid sleep 2 &); echo RAN; exit 5"]);
    let mut command = sandbox.plain_command("unshare");
    command
        .args(if is_root() { ["-pf", "--mount-proc"] } else { ["-Upf", "--mount-proc"] })
        .arg(run.get_program())
        .args(run.get_args());
    let result = run_to_end(&mut command);
    if result.err().contains("unshare:") {
        skip!("no pid namespace to be first in");
    }
    if result.out().contains("RAN") {
        result.exits(5);
    } else {
        result.refused(125);
    }
    result.no_panic();
}

#[test]
fn under_strace_it_runs_or_says_why_not() {
    need!("strace");
    let sandbox = Sandbox::new();
    let run = sandbox.inside(["/bin/sh", "-c", "echo RAN; exit 6"]);
    let mut command = sandbox.plain_command("strace");
    command.args(["-f", "-qq", "-o", "/dev/null"]).arg(run.get_program()).args(run.get_args());
    let result = run_to_end(&mut command);
    if result.out().contains("RAN") {
        result.exits(6);
    } else {
        result.refused(125);
    }
}

#[test]
fn without_user_namespaces_it_is_another_mechanism_or_a_refusal() {
    need!("bwrap");
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.outside.join("secret"), sandbox.canary("secret"));
    let locked = ["--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--dev-bind", "/", "/", "--"];
    if !sandbox.plain_command("bwrap").args(locked).arg("true").status().is_ok_and(|status| status.success()) {
        skip!("cannot simulate a host without user namespaces");
    }
    let run = sandbox.inside([
        "/bin/sh",
        "-c",
        &format!("cat '{}'; echo x > '{}/leak'; echo x > made; echo RAN", secret.display(), sandbox.outside.display()),
    ]);
    let result = run_to_end(sandbox.plain_command("bwrap").args(locked).arg(run.get_program()).args(run.get_args()));
    result.never_says("CANARY");
    assert!(!sandbox.outside.join("leak").exists());
    if result.code() == 125 {
        result.refused(125);
        let text = result.err().to_lowercase();
        assert!(text.contains("namespace") || text.contains("real root"), "the cause is not named\n{}", result.report());
    } else {
        result.ok().says("RAN");
        assert!(sandbox.workspace.join("made").exists());
    }
}

#[test]
fn few_descriptors_are_no_reason_to_be_unsafe() {
    let sandbox = Sandbox::new();
    for limit in [20, 10, 7, 5] {
        let line = shell_line(&sandbox.inside(["/bin/sh", "-c", "echo RAN"]));
        let result = run_to_end(sandbox.plain_command("/bin/sh").args(["-c", &format!("ulimit -n {limit}; exec {line}")]));
        if result.code() == 0 {
            result.says("RAN");
        } else {
            result.refused(125);
        }
    }
}

#[test]
fn an_overmounted_proc_is_refused_or_worked_around() {
    need!("unshare");
    let sandbox = Sandbox::new();
    let secret = sandbox.write(sandbox.outside.join("secret"), sandbox.canary("secret"));
    let line = shell_line(&sandbox.inside(["/bin/sh", "-c", &format!("cat '{}'; echo RAN", secret.display())]));
    for cover in ["mount -t tmpfs t /proc/sys", "mount -t tmpfs t /proc"] {
        // In a mount namespace of its own: the machine's /proc stays as it is.
        let result =
            run_to_end(sandbox.plain_command("unshare").args(["-rm", "/bin/sh", "-c", &format!("{cover} && exec {line}")]));
        if result.err().contains("unshare:") {
            skip!("no user namespace to cover /proc in");
        }
        result.never_says("CANARY").no_panic();
        if result.code() == 0 {
            result.says("RAN");
        } else {
            result.refused(125);
        }
    }
}

#[test]
fn nothing_is_left_on_the_host_by_refusals() {
    let sandbox = Sandbox::new();
    // What the supervisor remembers of them is final only then.
    let_files_age();
    sandbox.sh("true").ok();
    let before = TreeSnapshot::of(sandbox.root());
    for flags in
        [["--ro", "/no/such"], ["--net", "sideways"], ["--profile", "no-such"], ["--limit", "memory=x"], ["--workspace", "/"]]
    {
        assert_mistake(&run_to_end(sandbox.run_command().args(flags).args(["--", "/bin/true"])));
    }
    assert_mistake(&sandbox.run(["/no/such/program"]));
    before.assert_unchanged(sandbox.root());
}

#[test]
fn a_stranger_cannot_start_init_by_hand() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    for input in [&b""[..], b"garbage\n", &[0xff; 5000]] {
        let result = hermes_tests::run_to_end_with_input(sandbox.hermes().arg("init"), input);
        assert!(result.code() != 0, "{}", result.report());
        result.no_panic();
    }
    let result = run_to_end(Command::new(PYTHON).args(["-c", "import socket,subprocess,sys\na,b=socket.socketpair(socket.AF_UNIX,socket.SOCK_SEQPACKET)\na.send(b'\\xff'*3000)\np=subprocess.Popen([sys.argv[1],'init'],stdin=b,stderr=subprocess.PIPE)\nb.close(); a.close()\n_,e=p.communicate(timeout=30)\nprint(p.returncode, b'panicked' in e)"]).arg(binary()));
    result.ok();
    assert!(result.out().ends_with("False\n") && !result.out().starts_with("0 "), "{}", result.report());
}
