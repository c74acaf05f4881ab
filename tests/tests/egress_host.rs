//! What the host's own configuration makes of the way out: how names are looked up, and which certificates are trusted.
#![allow(clippy::unwrap_used)]

use hermes_tests::{Internet, PYTHON, Route, need, run_to_end};

/// Modules that are not installed, that ask daemons, that know nothing, and that end the search: as distributions have them.
const NAME_SERVICES: [&str; 4] = [
    "files mdns4_minimal [NOTFOUND=return] dns",
    "mymachines resolve [!UNAVAIL=return] files myhostname",
    "files [NOTFOUND=return] resolve",
    "files",
];

#[test]
fn names_are_resolved_whatever_modules_the_host_names() {
    need!("getent", "unshare", "mount");
    let Some(internet) = Internet::here() else { return };
    for hosts in NAME_SERVICES {
        let sandbox = internet.with(&[Route::to("plain.test", &[80])]);
        let file = sandbox.write(
            sandbox.outside.join("nsswitch.conf"),
            format!("# the host's\npasswd: files systemd\ngroup: files\nhosts: {hosts}\nservices: files\n"),
        );
        // The proxy outside looks names up as the host does, and finds this one.
        let known = sandbox.write(sandbox.outside.join("hosts"), "127.0.0.1 localhost\n93.184.216.34 plain.test\n");
        let mount = format!(
            "mount --bind '{}' /etc/nsswitch.conf && mount --bind '{}' /etc/hosts && exec \"$@\"",
            file.display(),
            known.display()
        );
        let users = if hermes_tests::is_root() { vec![] } else { vec!["-U", "--map-current-user", "--keep-caps"] };
        let sandbox = sandbox.by_way_of([&["unshare", "-m"], &users[..], &["sh", "-c", &mount, "sh"]].concat());
        let ask = "getent ahostsv4 plain.test; getent hosts other.test || echo UNKNOWN; getent hosts localhost; getent passwd root; \
                   grep -v '^hosts' /etc/nsswitch.conf";
        let result = sandbox.sh(ask);
        result.ok().says("198.18.").says("UNKNOWN").says("localhost").says("root:x:0:0").says("passwd: files systemd");
        // By a program, as any program does.
        let reach = sandbox.probe("tell('by name', exchange(('plain.test', 80), get(b'/', b'plain.test')))");
        sandbox.python(&reach).ok().says("REACHED by name");
        // The control: the file holds outside, where DNS is not asked (but by a search that goes on to it).
        let plain = sandbox.plain_sh("getent ahostsv4 other.test || echo UNKNOWN; grep '^hosts' /etc/nsswitch.conf");
        plain.ok().says(hosts);
        assert_eq!(plain.out().contains("UNKNOWN"), !hosts.ends_with("dns"), "{}", plain.report());
        // Without routes nothing of it is touched.
        let untouched = sandbox.hermes().args(["plan", "--workspace", "."]).output().unwrap();
        assert!(!String::from_utf8_lossy(&untouched.stdout).contains("nsswitch"));
    }
}

#[test]
fn certificates_of_the_caller_that_cannot_be_used_are_no_start() {
    need!(PYTHON);
    let Some(internet) = Internet::here() else { return };
    let sandbox = || internet.with(&[Route::rule("read.test", &[443], "methods = [\"GET\"]")]);
    for (file, why) in [
        ("/nowhere/ca.pem".to_owned(), "No such file"),
        ("/dev/null".to_owned(), "no certificate"),
        ("/etc".to_owned(), "directory"),
    ] {
        let sandbox = sandbox().env("SSL_CERT_FILE", &file);
        let result = sandbox.sh("echo RAN");
        result.refused(125).never_says("RAN");
        let told = result.err();
        assert!(["SSL_CERT_FILE", &file, why, "unset it"].iter().all(|word| told.contains(word)), "{}", result.report());
        // Where nothing is trusted by it, it is nobody's business.
        let mut command = sandbox.hermes();
        command.args(["run", "--workspace", ".", "--", "echo", "RAN"]);
        run_to_end(&mut command).ok().says("RAN");
    }
    // The controls: one that can be used is, an empty variable names nothing.
    let reach = |sandbox: hermes_tests::Sandbox| {
        sandbox.python(&sandbox.probe("tell('read', exchange(('read.test', 443), get(b'/', b'read.test'), 'read.test'))"))
    };
    reach(sandbox()).ok().says("REACHED read");
    let result = reach(sandbox().env("SSL_CERT_FILE", ""));
    assert_ne!(result.code(), 125, "{}", result.report());
}
