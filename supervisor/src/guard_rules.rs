//! `explain guard`: which files of a writable tree the host would run or obey later, and what becomes of changes to them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hermes_profiles::guard::{self, Action, Guard, Rule, Trigger};
use hermes_profiles::{Access, FileRule, Policy, ospath, paths};
use serde::Serialize;

use crate::output::{clean, path};
use crate::table::{Row, section};

/// A rule as this policy has it.
#[derive(Debug, Serialize)]
pub(crate) struct Held {
    id: String,
    runs: String,
    source: String,
    files: Vec<String>,
    trigger: Trigger,
    /// `None`: the policy lets it change.
    action: Option<Action>,
    tracked: bool,
}

/// What holds for one path.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    #[serde(with = "ospath")]
    path: PathBuf,
    /// The writable tree that it lies in.
    #[serde(with = "ospath::option")]
    tree: Option<PathBuf>,
    rule: Option<Held>,
    /// Read-only at once, where it exists.
    prevented: bool,
}

fn held(rule: &Rule, action: Option<Action>) -> Held {
    Held {
        id: rule.id.to_string(),
        runs: rule.runs.to_string(),
        source: rule.source.to_string(),
        files: rule.files.iter().map(|files| files.to_string()).collect(),
        trigger: rule.trigger,
        action,
        tracked: rule.tracked,
    }
}

/// All rules that ship, in the order in which they decide.
pub(crate) fn all(policy: &Policy) -> Vec<Held> {
    let guard = Guard::new(&policy.guard, &policy.workspace);
    guard::builtin().map(|rule| held(rule, guard.by_id(&rule.id).map(|rule| rule.action))).collect()
}

/// What no rule can hold.
const OPEN: [&str; 5] = [
    "while a sandbox lives, its files lie on the host as it left them, but for git's hooks and configuration",
    "a repository that it makes is covered once it is found: mostly within 0.1 s of a name in a known directory, else within seconds",
    "without a mount namespace (tier landlock) nothing is covered: all is put aside when the run ends",
    "on network file systems (NFS, CIFS, 9p, FUSE) times are not believed, and every look reads the whole tree",
    "what a person builds, tests or runs is the project's own code, which is told of but left alone",
];

/// All rules for people.
pub(crate) fn as_table(policy: &Policy) -> String {
    let rules = all(policy);
    let titles = [
        (Trigger::Unasked, "without being asked: any git command, a prompt, an editor that looks around"),
        (Trigger::OnOpen, "when a person opens the project, or starts a tool in it"),
        (Trigger::OnBuild, "when a person builds, tests or runs the project"),
        (Trigger::OnPush, "after a push"),
    ];
    let mut text = String::from("files that tools of the host run or obey later, by what it takes\n");
    for (trigger, title) in titles {
        let row = |rule: &Held| -> Row {
            let action = rule.action.map_or("may change".to_owned(), |action| action.to_string());
            (rule.id.clone(), action, rule.runs.clone())
        };
        let rows: Vec<Row> = rules.iter().filter(|rule| rule.trigger == trigger).map(row).collect();
        section(&mut text, title, &rows);
    }
    section(&mut text, "what stays open", &OPEN.map(|line| (line.to_owned(), String::new(), String::new())));
    text.push_str("\n`explain guard PATH` says which of them holds for a path; `explain policy` what the policy adds.\n");
    text
}

/// The rule for an absolute path, with `real` to look up where the tree really is.
pub(crate) fn about(policy: &Policy, path: &Path, real: impl Fn(&Path) -> Option<PathBuf>) -> Answer {
    let writable = |rule: &&FileRule| rule.access == Access::Write && paths::covers(&rule.path, path);
    let granted = policy.rule_for(path).filter(|rule| rule.access == Access::Write);
    let tree = granted.and_then(|_| policy.files.iter().filter(writable).max_by_key(|rule| rule.path.as_os_str().len()));
    let Some(tree) = tree else { return Answer { path: path.to_path_buf(), tree: None, rule: None, prevented: false } };
    let real = real(&tree.path).unwrap_or_else(|| tree.path.clone());
    let guard = Guard::named(&policy.guard, &[&real, &tree.path]);
    let inside = path.strip_prefix(&tree.path).unwrap_or(path);
    let rule = guard.rule_for(inside);
    Answer {
        path: path.to_path_buf(),
        tree: Some(tree.path.clone()),
        prevented: rule.is_some_and(|rule| guard.prevents(inside, rule)),
        rule: rule.map(|rule| held(rule, Some(rule.action))),
    }
}

impl Answer {
    /// One line for an answer about something else than guards.
    pub(crate) fn note(&self) -> Option<String> {
        let rule = self.rule.as_ref()?;
        let happens = match rule.action? {
            Action::PutAside => "put aside when the run ends, unless it is harmless",
            Action::Stage => "put aside until it is approved",
            Action::Report => "told of when the run ends",
        };
        Some(format!("guarded ({}): a change is {happens}; `explain guard` says more", rule.id))
    }

    /// The answer for people.
    pub(crate) fn as_text(&self) -> String {
        let mut text = format!("{}\n", path(&self.path));
        let mut field = |name: &str, value: &str| _ = writeln!(text, "  {name:<8} {}", clean(value));
        match &self.tree {
            Some(tree) => field("tree", &path(tree)),
            None => field("tree", "none: the policy gives no right to change this on the host"),
        }
        match &self.rule {
            Some(rule) => {
                let action = rule.action.map(|action| action.to_string()).unwrap_or_default();
                field("rule", &format!("{}: {action} ({})", rule.id, rule.trigger));
                field("who", &rule.runs);
                field("source", &rule.source);
                if self.prevented {
                    field("prevent", "read-only at once, where it exists");
                }
                if rule.tracked {
                    field("excused", "content that version control tracked before the start");
                }
                match rule.id.as_str() {
                    "policy" | "stage" => field("allow", "unguard = [\"PATH\"] in a profile"),
                    id => field("allow", &format!("unguard = [\"rule:{id}\"], or a path in its place, in a profile")),
                }
            }
            None if self.tree.is_some() => field("rule", "none: changes stay as they are"),
            None => {}
        }
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hermes_profiles::guard::Selector;

    fn policy() -> Policy {
        let request = hermes_profiles::Request {
            caller: hermes_profiles::Caller { cwd: "/w".into(), home: Some("/home/u".into()), ..Default::default() },
            ..Default::default()
        };
        hermes_profiles::resolve(&request, &crate::request::Disk).unwrap().policy
    }

    #[test]
    fn the_rule_for_a_path_and_who_obeys_it() {
        let mut policy = policy();
        let about = |policy: &Policy, path: &str| about(policy, Path::new(path), |_| None).as_text();
        let text = about(&policy, "/w/a/.vscode/tasks.json");
        assert!(
            text.starts_with(
                "/w/a/.vscode/tasks.json\n  tree     /w\n  rule     vscode-tasks: put aside (on open)\n  who      VS Code"
            ),
            "{text}"
        );
        assert!(text.contains("unguard = [\"rule:vscode-tasks\"]") && text.contains("excused"), "{text}");
        assert!(!text.contains("read-only"), "{text}");
        assert_eq!(about(&policy, "/w/a/main.c"), "/w/a/main.c\n  tree     /w\n  rule     none: changes stay as they are\n");
        assert!(about(&policy, "/etc/.vscode/tasks.json").contains("tree     none: "));
        policy.guard.prevent.push(Selector::Everything);
        assert!(about(&policy, "/w/a/.vscode/tasks.json").contains("prevent  read-only at once"));
        policy.guard.allow.push(Selector::Rule("vscode-tasks".into()));
        assert!(about(&policy, "/w/a/.vscode/tasks.json").contains("rule     none"));
    }

    #[test]
    fn the_table_shows_what_the_policy_changes() {
        let mut policy = policy();
        let line = |policy: &Policy, id: &str| {
            as_table(policy).lines().find(|line| line.trim_start().starts_with(id)).unwrap().to_owned()
        };
        assert!(line(&policy, "husky ").contains("put aside") && line(&policy, "make-like ").contains("report"));
        policy.guard.add.push(Selector::Class(Trigger::OnBuild));
        policy.guard.allow.push(Selector::Rule("husky".into()));
        assert!(line(&policy, "husky ").contains("may change") && line(&policy, "make-like ").contains("put aside"));
        assert_eq!(all(&policy).len(), guard::builtin().len());
    }
}
