//! The merge of git's configuration, against git's own reading where git is on the machine.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use hermes_profiles::guard::git_config::{Merged, merge};
use proptest::prelude::*;

const HOST: &str = "\
# mine
[core]
\trepositoryformatversion = 0
\tbare = false ; really
[remote \"origin\"]
\turl = https://a.test/a.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch \"main\"]
\tremote = origin
\tmerge = refs/heads/main
[alias]
\tst = status
";

fn merged(before: &str, now: &str, host: &str) -> Merged {
    merge(before.as_bytes(), now.as_bytes(), host.as_bytes()).unwrap()
}

/// What becomes of the host's file when `change` is done to the same file inside.
fn changed(change: impl Fn(&str) -> String) -> (String, Vec<String>) {
    let merged = merged(HOST, &change(HOST), HOST);
    (String::from_utf8(merged.text).unwrap(), merged.refused)
}

fn appended(text: &str) -> (String, Vec<String>) {
    changed(|host| format!("{host}{text}"))
}

#[track_caller]
fn taken(text: &str) {
    let (now, refused) = appended(text);
    assert_eq!(refused, [""; 0], "{text}");
    let mut lines = now.lines();
    assert!(HOST.lines().all(|line| lines.any(|kept| kept == line)) && now != HOST, "{now}");
}

#[track_caller]
fn refused(text: &str, keys: &[&str]) {
    let (now, refused) = appended(text);
    assert_eq!((now.as_str(), refused), (HOST, keys.iter().map(|key| (*key).to_owned()).collect()), "{text}");
}

#[test]
fn everyday_changes_reach_the_host_and_keep_its_layout() {
    let (text, refused) = appended("[branch \"topic\"]\n\tremote = origin\n\tmerge = refs/heads/topic\n");
    assert_eq!(refused, [""; 0]);
    assert_eq!(text, format!("{HOST}[branch \"topic\"]\n\tmerge = refs/heads/topic\n\tremote = origin\n"));
    let (text, _) = changed(|host| host.replace("bare = false", "bare = true"));
    assert_eq!(text, HOST.replace("bare = false", "bare = true"));
    let (text, _) =
        changed(|host| host.replace("\tremote = origin\n\tmerge = refs/heads/main\n", "").replace("[branch \"main\"]\n", ""));
    assert_eq!(text, HOST.replace("[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n", ""));
    let (text, _) = changed(|host| host.replace("\tmerge = ", "\trebase = true\n\tmerge = "));
    assert!(text.contains("\tmerge = refs/heads/main\n\trebase = true\n[alias]"), "{text}");
    let (text, _) = changed(|host| host.replace("/origin/*\n", "/origin/*\n\tfetch = refs/tags/*:refs/tags/*\n"));
    assert!(text.contains("/origin/*\n\tfetch = refs/tags/*:refs/tags/*\n[branch"), "{text}");
}

#[test]
fn a_comment_does_not_follow_a_key_that_loses_its_value() {
    let (text, refused) = changed(|host| host.replace("\tbare = false ; really", "\tbare"));
    assert!(refused.is_empty() && text.contains("\tbare\n"), "{text}");
}

#[test]
fn what_others_changed_on_the_host_stays() {
    let now = format!("{HOST}[user]\n\tname = inside\n");
    let host = HOST.replace("origin/*", "elsewhere/*") + "[core] hookspath = mine\n";
    let merged = merged(HOST, &now, &host);
    assert_eq!(merged.text, format!("{host}[user]\n\tname = inside\n").into_bytes());
    // A file without a newline at its end, and a section in the middle of a line.
    for host in ["[user] email = e", "[user][core] bare = true", "[user]\r\n\temail = e\r\n", "\u{feff}[user]\n"] {
        let text = String::from_utf8(self::merged("", "[user]\nname = \" a;b\\n\\\"c\\\\ \"\n", host).text).unwrap();
        let again = self::merged("", "[user]\nname = \" a;b\\n\\\"c\\\\ \"\n", &text);
        assert_eq!(again.text, text.as_bytes(), "nothing is left to do: {text}");
    }
}

#[test]
fn harmless_keys_are_taken() {
    taken("[user]\n\tname = A B\n\temail = a@b.test\n");
    taken("[core]\n\tfsmonitor = true\n\tsparsecheckout = true\n");
    taken("[remote \"fork\"]\n\turl = git@host.test:a/b.git\n\tpushurl = ssh://git@host.test/a\n");
    taken("[submodule \"lib\"]\n\turl = https://a.test/lib\n\tactive = true\n");
    taken("[branch \"x\"]\n\tdescription = \"two\\nlines\"\n");
    taken("[color]\n\tui = always\n[advice]\n\tdetachedHead = false\n");
    taken("[extensions]\n\tworktreeConfig = true\n[push]\n\tautoSetupRemote\n");
}

#[test]
fn what_runs_or_leads_elsewhere_is_refused_by_name() {
    refused("[core]\n\tfsmonitor = ./x\n", &["core.fsmonitor"]);
    refused("[CORE]\n\tHooksPath = x\n", &["core.hookspath"]);
    refused("[core] sshCommand = x\n", &["core.sshcommand"]);
    refused("[core]\n\tsshCom\\\nmand = x\n".replace("Com\\\nmand", "Command").as_str(), &["core.sshcommand"]);
    refused("[filter \"a b\"]\n\tclean = x\n[alias]\n\tx = !x\n", &["alias.x", "filter.a b.clean"]);
    refused("[include]\n\tpath = x\n[includeIf \"gitdir:/\"]\n\tpath = x\n", &["include.path", "includeif.gitdir:/.path"]);
    refused("[diff]\n\texternal = x\n[credential]\n\thelper = x\n", &["credential.helper", "diff.external"]);
    refused("[hook \"x\"]\n\tcommand = x\n\tevent = y\n", &["hook.x.command", "hook.x.event"]);
    refused("[url \"https://evil.test\"]\n\tinsteadOf = https://a.test\n", &["url.https://evil.test.insteadof"]);
    refused("[remote \"origin\"]\n\turl = https://evil.test\n", &["remote.origin.url"]);
    refused("[remote \"origin\"]\n\tpushurl = https://evil.test\n", &["remote.origin.pushurl"]);
    refused("[remote \"origin\"]\n\tpush = +refs/heads/*:refs/heads/*\n", &["remote.origin.push"]);
    refused("[remote \"origin\"]\n\tuploadpack = ./x\n", &["remote.origin.uploadpack"]);
    for url in
        ["ext::sh -c x", "-x", "/tmp/x", "./x", "../x", "file:///tmp/x", "ssh://-oProxyCommand=x/y", "a/b:c", "-x:y", "x::y", ""]
    {
        refused(&format!("[remote \"new\"]\n\turl = \"{url}\"\n"), &["remote.new.url"]);
    }
    // A remote in the place of an address.
    refused("[remote \"https://a.test/a.git\"]\n\turl = https://evil.test\n", &["remote.https://a.test/a.git.url"]);
    refused("[remote \"../x\"]\n\tfetch = x\n", &["remote.../x.fetch"]);
    refused("[submodule \"a\"]\n\tupdate = !x\n", &["submodule.a.update"]);
    refused("[pull]\n\trebase = interactive\n[core]\n\tsharedRepository = all\n", &["core.sharedrepository", "pull.rebase"]);
    refused("[user]\n\tsigningkey = x\n[gpg]\n\tprogram = x\n", &["gpg.program", "user.signingkey"]);
    refused(&format!("[user]\n\tname = {}\n", "x".repeat(5000)), &["user.name"]);
}

#[test]
fn a_way_that_was_there_is_not_changed() {
    let fork = "[remote \"fork\"]\n\turl = https://fork.test/a\n";
    // A branch that had none may get one; one that had origin keeps it.
    taken(&format!("{fork}[branch \"topic\"]\n\tremote = fork\n"));
    let (text, refused) = changed(|host| host.replace("remote = origin", "remote = fork") + fork);
    assert_eq!(refused, ["branch.main.remote"]);
    assert!(text.contains("\tremote = origin\n") && text.ends_with(fork));
    let (_, refused) = changed(|host| format!("{host}{fork}[branch \"main\"]\n\tpushRemote = fork\n"));
    assert_eq!(refused, ["branch.main.pushremote"]);
    // A remote goes as a whole or not at all.
    let url = "\turl = https://a.test/a.git\n";
    assert_eq!(changed(|host| host.replace(url, "")).1, ["remote.origin.url"]);
    let remote = format!("[remote \"origin\"]\n{url}\tfetch = +refs/heads/*:refs/remotes/origin/*\n");
    let (text, refused) = changed(|host| host.replace(&remote, ""));
    assert_eq!((text, refused.len()), (HOST.replace(&remote, ""), 0));
    // Gone on the host meanwhile, and called otherwise here: not the same remote.
    let merged = merged(HOST, &HOST.replace("a.test", "evil.test"), &HOST.replace(&remote, ""));
    assert_eq!(merged.refused, ["remote.origin.url"]);
    // To take out what runs is the host's business, too.
    assert_eq!(changed(|host| host.replace("[alias]\n\tst = status\n", "")).1, ["alias.st"]);
}

#[test]
fn what_git_does_not_read_is_not_read() {
    for bad in [
        "[core",
        "x = 1\n",
        "[core]\n1x = 2\n",
        "[core]\nx y\n",
        "[core]\nx = \"a\n",
        "[core]\nx = \\q\n",
        "[a \"b\n\"]\n",
        "[a \"b\"c]\n",
        "[core]\nx = a\0b\n",
        "[]\nx=1\n",
        "[a_b]\n",
    ] {
        assert!(merge(b"", bad.as_bytes(), b"").is_err(), "{bad}");
    }
    let error = merge(b"", b"[core]\n\n\tx y\n", b"").unwrap_err();
    assert_eq!(error.to_string(), "is not git configuration (line 3)");
    assert!(merge(b"", &vec![b'\n'; 1 << 20], b"").is_err());
}

/// Keys and values as git reads them; `None` when it does not.
fn git_reads(text: &[u8]) -> Option<Vec<(String, Option<String>)>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    fs::write(&file, text).unwrap();
    let mut git = Command::new("git");
    git.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", directory.path()).env("GIT_CONFIG_NOSYSTEM", "1");
    let output = git.current_dir(&directory).args(["config", "--no-includes", "--list", "-z", "-f"]).arg(&file).output().unwrap();
    let entry = |entry: &str| match entry.split_once('\n') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (entry.to_owned(), None),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.split_terminator('\0').map(entry).collect())
}

fn git_is_here() -> bool {
    Command::new("git").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn by_key(entries: &[(String, Option<String>)]) -> BTreeMap<&str, Vec<Option<&str>>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for (key, value) in entries {
        all.entry(key.as_str()).or_default().push(value.as_deref());
    }
    all
}

/// Texts that are nearly configuration, with everything that its grammar has.
fn some_config() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "[core]",
        "[CORE]",
        "[remote \"new\"]",
        "[remote \"origin\"]",
        "[branch \"ma\\in\"]",
        "[branch.Main]",
        "[alias]",
        "[filter \"x\"]",
        "[include]",
        "[user]",
        "\n",
        "\n",
        "\n",
        "\r\n",
        "\r",
        "\t",
        " ",
        "fsmonitor",
        "hooksPath",
        "bare",
        "url",
        "path",
        "remote",
        "name",
        "clean",
        " = ",
        "=",
        "true",
        "./x",
        "https://a.test/x",
        "ext::x",
        "\"",
        "\\",
        "\\\n",
        "\\n",
        "\\\"",
        "#",
        ";",
        "# x\n",
        "a b",
        "\u{feff}",
        "\u{e9}",
        "name = a\n",
        "\tbare = true\n",
        "\tfsmonitor = ./x\n",
        "[core] sshCommand = x\n",
        "\turl = https://b.test/y ; z\n",
    ]);
    prop::collection::vec(piece, 0..25).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn git_finds_nothing_in_the_result_that_is_not_good(now in some_config(), more in some_config()) {
        if !git_is_here() {
            eprintln!("git is not on this machine: nothing is compared");
            return Ok(());
        }
        // Half of the texts are sure to be configuration.
        let now = if git_reads(now.as_bytes()).is_some() { now } else { format!("{HOST}{}", more.replace(['"', '\\', '['], "")) };
        let read = git_reads(now.as_bytes());
        let merged = merge(HOST.as_bytes(), now.as_bytes(), HOST.as_bytes());
        let (read, merged) = match (read, merged) {
            (None, merged) => {
                prop_assert!(merged.is_err(), "git does not read this: {now:?}");
                return Ok(());
            }
            (Some(read), Err(error)) => {
                // Stricter than git only about keys before any section.
                prop_assert!(read.iter().any(|(key, _)| !key.contains('.')), "{error}: {now:?}");
                return Ok(());
            }
            (Some(read), Ok(merged)) => (read, merged),
        };
        let result = git_reads(&merged.text).expect("git reads the result");
        let (result, read, host) = (by_key(&result), by_key(&read), git_reads(HOST.as_bytes()).unwrap());
        let host = by_key(&host);
        for (key, values) in &result {
            let (inside, outside) = (read.get(key), host.get(key));
            prop_assert!(Some(values) == inside || Some(values) == outside, "{key}: {values:?} is neither's");
            if Some(values) != outside {
                let runs = ["alias.", "filter.", "include.", "core.hookspath", "core.sshcommand", "remote.origin.url"];
                prop_assert!(!runs.iter().any(|runs| key.starts_with(runs)), "{key}");
                prop_assert!(*key != "core.fsmonitor" || values.iter().all(|value| value.is_none_or(|value| value == "true" || value.is_empty())));
                prop_assert!(!values.iter().flatten().any(|value| value.contains("::")), "{values:?}");
            }
        }
        // Every key that differs is either taken or told of.
        for key in read.keys().chain(host.keys()) {
            let told = merged.refused.iter().any(|refused| refused == key);
            prop_assert!(result.get(key) == read.get(key) || told, "{key} of {now:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back_the_same(value in "[ -~\u{e9}\t\n]{0,12}", section in "[ -!#-\\[\\]-~]{1,6}") {
        prop_assume!(git_is_here());
        let quoted = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let now = format!("[branch \"{section}\"]\n\tdescription = \"{quoted}\"\n");
        for host in ["", "[core]\n\tbare = true", "[branch \"x\"] remote = y # z\n"] {
            let merged = merged("", &now, host);
            prop_assert_eq!(&merged.refused, &Vec::<String>::new());
            let read = git_reads(&merged.text).unwrap();
            let wanted = (format!("branch.{section}.description"), Some(value.clone()));
            prop_assert!(read.contains(&wanted), "{:?}", String::from_utf8_lossy(&merged.text));
        }
    }
}
