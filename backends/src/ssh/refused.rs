//! Why nothing runs on another host, in one line, from what `ssh` and the shell there have said.

use super::Destination;
use super::bootstrap::Stopped;

/// What went wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What failed, on what, why.
    pub what: String,
    /// What to do; may be empty.
    pub remedy: String,
}

impl Refused {
    pub(super) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

/// Words of `ssh`, which its manual does not promise but which have been the same for decades; what they mean, and what to do.
const KNOWN: &[(&[&str], &str, &str)] = &[
    (
        &[
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
            "Host key verification failed",
            "No matching host key",
            "host key is known for",
        ],
        "its host key is not the one that is known",
        "check the key with whoever runs the host, then put it into known_hosts (`ssh HOST` once does, after asking you)",
    ),
    (
        &["Permission denied (", "Too many authentication failures", "no mutual signature"],
        "it does not let you in",
        "`ssh -o BatchMode=yes HOST true` must work: load the key into the agent, or name it in ~/.ssh/config",
    ),
    (&["Could not resolve hostname", "Name or service not known"], "there is no such host", "correct the name"),
    (
        &[
            "Connection refused",
            "timed out",
            "No route to host",
            "Network is unreachable",
            "Connection closed by",
            "Connection reset",
        ],
        "it cannot be reached",
        "see that the host is up and that `ssh HOST true` works",
    ),
    (
        &["Bad owner or permissions", "Bad configuration option", "terminating,"],
        "ssh's configuration is not usable",
        "correct it",
    ),
];

/// The refusal.
pub(super) fn why(destination: &Destination, stopped: &Stopped, status: Option<i32>, words: &str) -> Refused {
    let said = last_line(words);
    let because = if said.is_empty() { String::new() } else { format!(" ({said})") };
    let on = |what: &str| format!("cannot use {destination}: {what}{because}");
    match stopped {
        Stopped::Unreached if status == Some(255) || status.is_none() => {
            let known = KNOWN.iter().find(|(texts, ..)| texts.iter().any(|text| words.contains(text)));
            match known {
                Some((_, what, remedy)) => Refused::new(on(what), remedy.replace("HOST", destination.as_str())),
                None if status.is_none() => Refused::new(on("it does not answer"), ""),
                None => Refused::new(on("ssh ended with status 255"), format!("see that `ssh {destination} true` works")),
            }
        }
        Stopped::Unreached => Refused::new(
            on("it gives no shell that runs commands"),
            "log in as a user with an ordinary shell, and without a forced command",
        ),
        Stopped::OtherMachine(machine) => Refused::new(
            format!("cannot use {destination}: it is {machine}, and this program is for Linux {}", std::env::consts::ARCH),
            "use a host of the same architecture",
        ),
        Stopped::Tools => Refused::new(on("it has no `sha256sum` or no `head`"), "install coreutils there"),
        Stopped::Directory(directory) if words.contains("No space left") || words.contains("quota") => {
            Refused::new(format!("cannot use {destination}: there is no space left in {directory}"), "make some")
        }
        Stopped::Directory(directory) => {
            Refused::new(on(&format!("cannot put the program into {directory}")), "make it a directory that you can write")
        }
        Stopped::Damaged(directory) if words.contains("No space left") => {
            Refused::new(format!("cannot use {destination}: there is no space left in {directory}"), "make some")
        }
        Stopped::Damaged(directory) => Refused::new(on(&format!("the program did not arrive whole in {directory}")), "try again"),
        Stopped::NoExec(directory) => Refused::new(
            on(&format!("nothing can be executed in {directory}")),
            "its file system must not be mounted noexec; set XDG_CACHE_HOME for that user on the host to one that is not",
        ),
        Stopped::NotStarted if status == Some(126) => Refused::new(
            on("the program cannot be executed there"),
            "see who may execute programs in that user's cache directory",
        ),
        Stopped::NotStarted => Refused::new(on("the program ended there before it said anything"), ""),
    }
}

fn last_line(words: &str) -> String {
    let line = words.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    line.chars().take(200).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_words_of_its_own() {
        let destination: Destination = "u@h.example.test".parse().unwrap();
        let why = |stopped: Stopped, status, words: &str| why(&destination, &stopped, status, words).what;
        for (words, part) in [
            ("ssh: Could not resolve hostname h: Name or service not known\n", "no such host"),
            ("ssh: connect to host h port 22: Connection refused\r\n", "cannot be reached (ssh: connect"),
            ("Host key verification failed.\n", "host key"),
            ("u@h: Permission denied (publickey).\n", "does not let you in"),
            ("", "status 255"),
        ] {
            let what = why(Stopped::Unreached, Some(255), words);
            assert!(what.contains(part), "{what}");
        }
        assert!(why(Stopped::Unreached, Some(1), "This account is not available").contains("no shell"));
        assert!(
            why(Stopped::Directory("/d".into()), Some(1), "sh: write error: No space left on device")
                .contains("no space left in /d")
        );
        assert!(why(Stopped::NotStarted, Some(126), "exec: Permission denied").contains("cannot be executed"));
        assert!(why(Stopped::OtherMachine("Linux riscv64".into()), None, "").contains("it is Linux riscv64"));
    }
}
