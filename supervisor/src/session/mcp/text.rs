//! What models read.

use std::fmt::Write;
use std::path::Path;

use hermes_backends::plan::{NetworkPlan, Plan, Tier};
use hermes_profiles::{Access, Guarantee, HomeMode, Policy};

use crate::output;
use crate::session::keep::whole;
use crate::session::protocol::End;

/// What a model should know about the sandbox. `guarded`: are files that tools of the host obey put aside?
pub(super) fn instructions(policy: &Policy, plan: &Plan, guarded: bool) -> String {
    let mut text = String::from(
        "These tools act in one sandbox of hermes-sandbox, with its view of the file system and its rights. What is refused \
         there is refused by policy: do not look for a way around, say what you need.\n",
    );
    let workspace = match policy.workspace_access {
        Access::Write => "can be changed",
        Access::Read => "read-only",
        Access::Overlay => "can be changed; the user decides later what becomes of the changes",
        Access::Hidden => "hidden",
    };
    let _ = writeln!(text, "Workspace: {} ({workspace}).", output::path(&policy.workspace));
    let _ = writeln!(text, "Relative paths start at {}.", output::path(&plan.cwd));
    let home = match policy.home.mode {
        _ if plan.lost.iter().any(|lost| lost.guarantee == Guarantee::HomePrivate) => "",
        HomeMode::Private => "/tmp and the home directory are the sandbox's own and end with it.\n",
        HomeMode::Hidden => "/tmp is the sandbox's own and ends with it. The home directory is empty.\n",
        HomeMode::Read => "/tmp is the sandbox's own and ends with it. The home directory is read-only.\n",
    };
    text.push_str(home);
    let network = match plan.network {
        NetworkPlan::Private if plan.gateway.is_some() => "the hosts that the policy names, and the sandbox's own loopback",
        NetworkPlan::Private => "none but the sandbox's own loopback",
        NetworkPlan::NoSockets => "none",
        NetworkPlan::Notified => "TCP to the hosts that routes name, and servers of its own on the loopback",
        NetworkPlan::Host => "the host's",
    };
    let _ = writeln!(text, "Network: {network}.");
    if guarded {
        text.push_str(
            "Files that programs outside would run or obey later (git hooks, .envrc, editor settings, ...) work here, but \
             changes to them are put aside at the end until the user has looked at them.\n",
        );
    }
    let tier = match plan.tier {
        Tier::Namespaces => "namespaces",
        Tier::Landlock => "landlock",
    };
    let lost: Vec<_> = plan.lost.iter().map(|lost| lost.guarantee.name()).collect();
    let lost = if lost.is_empty() { "nothing".to_owned() } else { lost.join(", ") };
    let _ = write!(text, "Confined by: {tier}. Not guaranteed on this machine: {lost}.");
    text
}

/// How a command ended. `cwd`: where the next command line would have begun before.
pub(super) fn ended(end: &End, cwd: &Path) -> String {
    let mut text = String::new();
    section(&mut text, &end.stdout);
    if let Some(stderr) = end.stderr.as_deref().filter(|stderr| !stderr.is_empty()) {
        text.push_str("[standard error]\n");
        section(&mut text, stderr);
    }
    let _ = match (&end.note, &end.exit.signal) {
        (Some(note), _) => write!(text, "{note}\n[status {}]", end.exit.status),
        (None, Some(signal)) => write!(text, "[status {}: ended by signal {signal}]", end.exit.status),
        (None, None) => write!(text, "[status {}]", end.exit.status),
    };
    if let Some(next) = end.cwd.as_ref().filter(|next| **next != output::path(cwd)) {
        let _ = write!(text, "\n[the next command line begins in {next}]");
    }
    text
}

fn section(text: &mut String, part: &str) {
    text.push_str(part);
    if !part.is_empty() && !part.ends_with('\n') {
        text.push('\n');
    }
}

/// A part of a text file, and what there is to say about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) text: String,
    pub(super) note: Option<String>,
}

/// The page that begins with line `offset`. `bytes` are those from there; when they are more than `most` the file goes on. `None` when
/// they are no text.
pub(super) fn page(bytes: &[u8], offset: u64, limit: u64, most: usize) -> Option<Page> {
    let mut kept = &bytes[..bytes.len().min(most)];
    if bytes.len() > most {
        kept = &kept[..whole(kept)];
    }
    let text = std::str::from_utf8(kept).ok().filter(|text| !text.contains('\0'))?;
    let lines = text.split_inclusive('\n').take(usize::try_from(limit).unwrap_or(usize::MAX));
    let length = lines.map(str::len).sum();
    let shown = &text[..length];
    let more = bytes.len() > length;
    let cut = more && length == text.len() && !shown.ends_with('\n');
    let (shown, note) = match shown.rfind('\n') {
        None if shown.is_empty() => ("", Some(nothing(offset))),
        None if cut => {
            (shown, Some(format!("[line {offset} is longer than {most} bytes and was cut; go on with offset {}]", offset + 1)))
        }
        Some(at) if cut => (&shown[..=at], None),
        _ => (shown, None),
    };
    let last = offset + (shown.matches('\n').count() as u64).max(1) - 1;
    let note = note.or_else(|| more.then(|| format!("[lines {offset} to {last}; go on with offset {}]", last + 1)));
    Some(Page { text: shown.to_owned(), note })
}

fn nothing(offset: u64) -> String {
    match offset {
        1 => "[the file is empty]".to_owned(),
        line => format!("[there is no line {line}: the file has fewer]"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::session::protocol::{Exit, Omitted};

    fn of(bytes: &str, offset: u64, limit: u64, most: usize) -> (String, String) {
        let Page { text, note } = page(bytes.as_bytes(), offset, limit, most).unwrap();
        (text, note.unwrap_or_default())
    }

    #[test]
    fn pages_end_with_lines_and_say_where_to_go_on() {
        let said = |text: &str, note: &str| (text.to_owned(), note.to_owned());
        assert_eq!(of("a\nb\n", 1, 9, 100), said("a\nb\n", ""));
        assert_eq!(of("a\nb", 1, 9, 100), said("a\nb", ""));
        assert_eq!(of("a\nb\nc\n", 3, 2, 100), said("a\nb\n", "[lines 3 to 4; go on with offset 5]"));
        assert_eq!(of("a\nb\nc", 1, 2, 100), said("a\nb\n", "[lines 1 to 2; go on with offset 3]"));
        assert_eq!(of("a\nbcdef\n", 1, 9, 5), said("a\n", "[lines 1 to 1; go on with offset 2]"));
        assert_eq!(of("abcdef\n", 7, 9, 5), said("abcde", "[line 7 is longer than 5 bytes and was cut; go on with offset 8]"));
        assert_eq!(of("abcd\nx", 1, 9, 5), said("abcd\n", "[lines 1 to 1; go on with offset 2]"));
        assert_eq!(of("", 1, 9, 5), said("", "[the file is empty]"));
        assert_eq!(of("", 8, 9, 5), said("", "[there is no line 8: the file has fewer]"));
        assert_eq!(of("\u{20ac}\u{20ac}", 1, 9, 4).0, "\u{20ac}", "a character is not cut");
        assert_eq!(page(b"a\0b", 1, 9, 9), None);
        assert_eq!(page(b"a\xffb", 1, 9, 9), None);
    }

    fn end(status: u8, signal: Option<&str>, cwd: Option<&str>) -> End {
        let exit = Exit { status, signal: signal.map(str::to_owned), timed_out: status == 124 };
        let (omitted, cwd) = (Omitted::default(), cwd.map(str::to_owned));
        End { job: 1, exit, stdout: String::new(), stderr: Some(String::new()), omitted, note: None, cwd, advice: Vec::new() }
    }

    #[test]
    fn an_end_is_told_with_what_the_model_needs() {
        let told = |end: &End| ended(end, Path::new("/w"));
        let both = End { stdout: "out".into(), stderr: Some("err\n".into()), ..end(3, None, None) };
        assert_eq!(told(&both), "out\n[standard error]\nerr\n[status 3]");
        assert_eq!(told(&end(0, None, Some("/w"))), "[status 0]");
        let killed = end(137, Some("KILL"), Some("/x"));
        assert_eq!(told(&killed), "[status 137: ended by signal KILL]\n[the next command line begins in /x]");
        let late = End { note: Some("[Command timed out after 1s]".into()), ..end(124, Some("TERM"), None) };
        assert_eq!(told(&late), "[Command timed out after 1s]\n[status 124]");
    }
}
