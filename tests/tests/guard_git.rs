//! What is planted into git's own files runs nowhere on the host; the same plants without the sandbox do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use hermes_tests::{GITCONFIG, Live, Outcome, PYTHON, Sandbox, need, run_to_end, skip, wait_until};

/// When the host must already be safe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// While the sandbox lives: the repository existed at the start, so it can be shadowed.
    Alive,
    /// When it has ended.
    Ended,
}
use When::{Alive, Ended};

/// A plant in a repository of its own: its name, when, what the host prepares, what is done inside, what the host then
/// does. `$FIRE` is a command that leaves a trace on the host.
type Plant = (&'static str, When, &'static str, &'static str, &'static str);

/// Shell functions of all steps.
const PRELUDE: &str = r#"
export GIT_TERMINAL_PROMPT=0 EDITOR=true
umask 022
script() { mkdir -p "$(dirname "$1")"; printf '#!/bin/sh\n%s\n' "$FIRE" > "$1"; chmod +x "$1"; }
hook() { mkdir -p "$1/hooks"; script "$1/hooks/post-index-change"; }
monitor() { git config -f "$1" core.fsmonitor "$FIRE"; }
with_sub() { git submodule -q add "$PWD/../../subsrc" sub; git commit -qm sub; }
bare() { mkdir -p "$1/objects" "$1/refs"; echo 'ref: refs/heads/main' > "$1/HEAD"; printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "%s"\n' "$FIRE" > "$1/config"; }
points() { [ "$1" = https://example.invalid/repo.git ] || eval "$FIRE"; }
"#;

/// Opens the host's configuration while nothing covers it, and changes it by a descriptor or a mapping that stays.
const CATCH: &str = r#"
import mmap, os, sys, time
covered = os.stat('.git/config').st_ino
open('looking', 'w').close()
while True:
    try: fd = os.open('.git/config', os.O_RDWR)
    except OSError: continue
    was = os.fstat(fd)
    if was.st_ino != covered and was.st_nlink == 1: break
    os.close(fd)
evil = b'[alias]evil=!x\n'
if sys.argv[1] == 'map':
    mapped = mmap.mmap(fd, was.st_size)
    rest = mapped[:]
    mapped[:] = (evil + rest[:rest.rfind(b'\n', 0, was.st_size - len(evil)) + 1]).ljust(was.st_size, b'\n')
else:
    os.pwrite(fd, os.pread(fd, 9999, 0) + evil, 0)
    time.sleep(1)
    os.pwrite(fd, os.pread(fd, 9999, 0) + evil, 0)
time.sleep(1)
open('caught', 'w').close()
"#;

const STATUS: &str = "touch a; git status";
const COMMIT: &str = "git commit --allow-empty -qm x";

const PLANTS: &[Plant] = &[
    ("hook_new", Alive, "", "hook .git", STATUS),
    ("hook_changed", Alive, "FIRE=:; script .git/hooks/pre-commit", "echo \"$FIRE\" >> .git/hooks/pre-commit", COMMIT),
    ("hook_renamed_in", Alive, "", "script h; mkdir -p .git/hooks; mv h .git/hooks/pre-commit", COMMIT),
    ("hook_symlink", Alive, "", "script tool.sh; mkdir -p .git/hooks; ln -s ../../tool.sh .git/hooks/pre-commit", COMMIT),
    ("hook_hard_link", Alive, "", "script tool.sh; mkdir -p .git/hooks; ln tool.sh .git/hooks/pre-commit", COMMIT),
    ("hooks_made", Alive, "rm -rf .git/hooks", "hook .git", STATUS),
    ("hooks_replaced", Alive, "", "hook evil; rm -rf .git/hooks; mv evil/hooks .git/hooks", STATUS),
    ("hooks_linked", Alive, "", "hook evil; rm -rf .git/hooks; ln -s ../evil/hooks .git/hooks", STATUS),
    ("monitor", Alive, "", "monitor .git/config", STATUS),
    ("monitor_appended", Alive, "", "printf '[core]\\n\\tfsmonitor = \"%s\"\\n' \"$FIRE\" >> .git/config", STATUS),
    ("monitor_shouted", Alive, "", "printf '[CORE]FSMonitor=\"%s\"\\n' \"$FIRE\" >> .git/config", STATUS),
    (
        "monitor_continued",
        Alive,
        "",
        "cp .git/config c; { printf '\\357\\273\\277[core]\\r\\n fsmonitor = \\\\\\n \"%s\" # x\\n' \"$FIRE\"; cat c; } > .git/config",
        STATUS,
    ),
    ("monitor_renamed_in", Alive, "", "cp .git/config c; monitor c; mv -f c .git/config", STATUS),
    ("monitor_in_place", Alive, "", "cp .git/config c; monitor c; cat c > .git/config", STATUS),
    ("hooks_path", Alive, "", "hook .; git config core.hooksPath hooks", STATUS),
    (
        "hooks_path_file",
        Ended,
        "FIRE=:; script tools/git/pre-commit; git config core.hooksPath tools/git",
        "echo \"$FIRE\" >> tools/git/pre-commit",
        COMMIT,
    ),
    (
        "hooks_path_new_file",
        Ended,
        "FIRE=:; script tools/git/pre-commit; git config core.hooksPath tools/git",
        "script tools/git/post-index-change",
        STATUS,
    ),
    (
        "hooks_path_called_hooks",
        Ended,
        "FIRE=:; script tools/hooks/pre-commit; git config core.hooksPath tools/hooks",
        "echo \"$FIRE\" >> tools/hooks/pre-commit",
        COMMIT,
    ),
    (
        "hooks_path_led_away",
        Ended,
        "FIRE=:; script dev/hooks/pre-commit; git config core.hooksPath dev/hooks",
        "mv dev old; script planted/hooks/pre-commit; ln -s planted dev",
        COMMIT,
    ),
    (
        "hooks_path_through_a_link",
        Ended,
        "FIRE=:; script real/git/pre-commit; ln -s real dev; git config core.hooksPath dev/git",
        "echo \"$FIRE\" >> real/git/pre-commit",
        COMMIT,
    ),
    (
        "include_led_away",
        Ended,
        "mkdir cfg; git config -f cfg/team.cfg alias.lg log; git config include.path ../cfg/team.cfg",
        "mv cfg old; mkdir planted; monitor planted/team.cfg; ln -s planted cfg",
        STATUS,
    ),
    (
        "objects_elsewhere",
        Ended,
        "",
        "mkdir apart other; cp .git/HEAD apart; cp -r .git/objects .git/refs .git/config other; echo ../other > apart/commondir
        script other/hooks/reference-transaction",
        "cd apart && git branch new",
    ),
    (
        "monitor_of_the_worktree",
        Alive,
        "",
        "git config extensions.worktreeConfig true; monitor .git/config.worktree; sleep 0.3",
        STATUS,
    ),
    ("include", Alive, "", "monitor evil.cfg; git config include.path ../evil.cfg", STATUS),
    ("include_if", Alive, "", "monitor evil.cfg; git config 'includeIf.gitdir:**.path' ../evil.cfg", STATUS),
    (
        "include_of_the_host",
        Ended,
        "git config -f team.cfg alias.lg log; git config include.path ../team.cfg",
        "monitor team.cfg",
        STATUS,
    ),
    ("alias", Alive, "", "git config alias.x \"!$FIRE\"", "git x"),
    ("alias_changed", Alive, "git config alias.x status", "git config alias.x \"!$FIRE\"", "git x"),
    (
        "filter",
        Alive,
        "",
        "git config filter.z.clean \"$FIRE; cat\"; echo '* filter=z' > .gitattributes",
        "echo y > b; git add b",
    ),
    (
        "textconv",
        Alive,
        "",
        "git config diff.z.textconv \"$FIRE; cat\"; echo '* diff=z' > .gitattributes",
        "echo y >> a; git diff",
    ),
    ("diff_external", Alive, "", "git config diff.external \"$FIRE; :\"", "echo y >> a; git diff"),
    ("merge_driver", Alive, "", "git config merge.z.driver \"$FIRE\"; echo '* merge=z' > .gitattributes", "git merge side"),
    ("instead_of", Alive, "", "git config url./evil/.insteadOf https://", "points \"$(git ls-remote --get-url origin)\""),
    (
        "push_instead_of",
        Alive,
        "",
        "git config url./evil/.pushInsteadOf https://",
        "points \"$(git remote get-url --push origin)\"",
    ),
    ("url_changed", Alive, "", "git remote set-url origin /evil", "points \"$(git remote get-url origin)\""),
    ("url_added", Alive, "", "git remote set-url --add --push origin /evil", "points \"$(git remote get-url --push origin)\""),
    (
        "submodule_update",
        Alive,
        "with_sub",
        "git config submodule.sub.update \"!$FIRE; :\"",
        "git -C sub checkout -q HEAD~1; git submodule update",
    ),
    ("submodule_hook", Alive, "with_sub", "hook .git/modules/sub", "touch sub/a; git -C sub status"),
    ("submodule_monitor", Alive, "with_sub", "monitor .git/modules/sub/config", "touch sub/a; git -C sub status"),
    (
        "worktree_pointer",
        Ended,
        "git worktree add -q wt",
        "cp -r .git ev; monitor ev/config; rm -f wt/.git; echo \"gitdir: $PWD/ev\" > wt/.git",
        "git -C wt status",
    ),
    (
        "worktree_commondir",
        Ended,
        "git worktree add -q wt",
        "cp -r .git ev; monitor ev/config; echo ../../../ev > .git/worktrees/wt/commondir",
        "git -C wt status",
    ),
    (
        "config_worktree",
        Alive,
        "git config extensions.worktreeConfig true; git config --worktree core.quotePath true",
        "git config --worktree core.fsmonitor \"$FIRE\"",
        STATUS,
    ),
    (
        "config_worktree_made",
        Ended,
        "git config extensions.worktreeConfig true; rm -f .git/config.worktree",
        "git config --worktree core.fsmonitor \"$FIRE\"",
        STATUS,
    ),
    (
        "config_of_linked",
        Ended,
        "git worktree add -q wt; git config extensions.worktreeConfig true",
        "git -C wt config --worktree core.fsmonitor \"$FIRE\"",
        "git -C wt status",
    ),
    ("commondir", Ended, "", "cp -r .git evil; monitor evil/config; echo ../evil > .git/commondir", STATUS),
    ("pointer", Ended, "", "mkdir sub; cp -r .git ev; monitor ev/config; echo 'gitdir: ../ev' > sub/.git", "git -C sub status"),
    ("pointer_link", Ended, "", "mkdir sub; cp -r .git ev; monitor ev/config; ln -s ../ev sub/.git", "git -C sub status"),
    ("buried", Ended, "", "bare docs/x", "cd docs/x && git status"),
    ("buried_with_odd_name", Ended, "", "bare \"$(printf 'o\\nd\\377d')\"", "cd o?d* && git status"),
    (
        "nested",
        Ended,
        "",
        "git init -q nest; cd nest; touch a; git add a; git commit -qm x; monitor .git/config",
        "git -C nest status",
    ),
    (
        "nested_hook",
        Ended,
        "",
        "git init -q nest; cd nest; touch a; git add a; git commit -qm x; hook .git",
        "touch nest/a; git -C nest status",
    ),
    ("cloned", Ended, "", "git clone -q . deep/er/copy; monitor deep/er/copy/.git/config", "git -C deep/er/copy status"),
    ("unpacked", Ended, "", "git clone -q . n; monitor n/.git/config; tar cf n.tar n; rm -rf n; tar xf n.tar", "git -C n status"),
    ("git_dir_replaced", Ended, "", "mv .git old; cp -r old .git; monitor .git/config", STATUS),
    (
        "repository_moved",
        Ended,
        "mkdir in; mv .git a in",
        "mv in moved; cp -r moved in; monitor in/.git/config; monitor moved/.git/config",
        "git -C in status; git -C moved status",
    ),
    (
        "rebase_new",
        Ended,
        "",
        "GIT_SEQUENCE_EDITOR='sed -i 1s/^pick/edit/' git rebase -q -i HEAD~2; echo \"exec $FIRE\" >> .git/rebase-merge/git-rebase-todo",
        "git rebase --continue",
    ),
    (
        "rebase_of_the_host",
        Ended,
        "GIT_SEQUENCE_EDITOR='sed -i 1s/^pick/edit/' git rebase -q -i HEAD~2",
        "echo \"exec $FIRE\" >> .git/rebase-merge/git-rebase-todo",
        "git rebase --continue",
    ),
    ("gpg", Alive, "", "script gpg.sh; git config gpg.program \"$PWD/gpg.sh\"; git config commit.gpgsign true", COMMIT),
    ("editor", Alive, "", "git config core.editor \"$FIRE; :\"", "git commit --allow-empty"),
    ("sequence_editor", Alive, "", "git config sequence.editor \"$FIRE; :\"", "git rebase -i HEAD~1"),
    ("ssh", Alive, "git remote add far ssh://example.invalid/x", "git config core.sshCommand \"$FIRE; :\"", "git fetch far"),
    (
        "upload_pack",
        Alive,
        "git remote add near ../../subsrc",
        "git config remote.near.uploadpack \"$FIRE; :\"",
        "git fetch near",
    ),
    ("ext", Alive, "", "git config protocol.ext.allow always; git remote add evil \"ext::$FIRE\"", "git fetch evil"),
    ("archive", Alive, "", "git config tar.z.command \"$FIRE; cat\"", "git archive --format=z HEAD"),
    (
        "credential",
        Alive,
        "",
        "git config credential.helper \"!$FIRE; :\"",
        "printf 'protocol=https\\nhost=example.invalid\\n\\n' | git credential fill",
    ),
];

/// A mount may refuse these inside; then there is nothing to put aside.
const PREVENTABLE: &[&str] = &[
    "git_dir_replaced",
    "hook_hard_link",
    "hooks_linked",
    "hooks_replaced",
    "monitor_renamed_in",
    "worktree_commondir",
    "worktree_pointer",
];

/// The plants of a test, each with its repository in `g/NAME`.
struct Field {
    sandbox: Sandbox,
    plants: Vec<&'static Plant>,
}

impl Field {
    fn new(flags: &[&str], wanted: impl Fn(&Plant) -> bool) -> Self {
        let sandbox = Sandbox::new().flags(flags);
        sandbox.write(sandbox.home.join(".gitconfig"), GITCONFIG);
        fs::create_dir(sandbox.outside.join("fired")).unwrap();
        let field = Self { sandbox, plants: PLANTS.iter().filter(|plant| wanted(plant)).collect() };
        let template = "set -e; mkdir g; git init -q --template= subsrc; cd subsrc; for i in 1 2 3; do echo $i > a; git add a; git commit -qm $i; done; cd ..; \
            git clone -q --template= subsrc tmpl; cd tmpl; git remote set-url origin https://example.invalid/repo.git; \
            git checkout -qb side; echo side > a; git commit -qam side; git checkout -q main; echo main > a; git commit -qam main; mkdir -p .git/hooks";
        field.sandbox.plain_sh(template).ok();
        let names: String = field.plants.iter().map(|plant| format!("cp -r tmpl g/{}; ", plant.0)).collect();
        field.sandbox.plain_sh(&format!("set -e; {names} rm -rf tmpl")).ok();
        field.sandbox.plain_sh(&field.each(|plant| plant.2)).ok();
        assert_eq!(field.fired(), BTreeSet::new(), "the preparation fires by itself");
        field
    }

    /// One script that does a step of every plant.
    fn each(&self, step: impl Fn(&Plant) -> &'static str) -> String {
        let fired = self.sandbox.outside.join("fired");
        let lines = self.plants.iter().map(|plant| {
            let name = plant.0;
            let fire = format!("touch {}/{name}", fired.display());
            format!("( cd g/{name} && FIRE='{fire}' && {{\n:; {}\n}} ) </dev/null >/dev/null 2>&1\n", step(plant))
        });
        format!("{PRELUDE}\n{}\ntrue", lines.collect::<String>())
    }

    /// Whose command ran on the host.
    fn fired(&self) -> BTreeSet<String> {
        let fired = self.sandbox.outside.join("fired");
        fs::read_dir(&fired).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// The host's turn.
    fn pull_the_triggers(&self) {
        self.sandbox.plain_sh(&self.each(|plant| plant.4)).ok();
    }

    fn forget(&self) {
        for name in self.fired() {
            fs::remove_file(self.sandbox.outside.join("fired").join(name)).unwrap();
        }
    }

    /// Every plant fires when made without a sandbox.
    fn control() {
        let field = Self::new(&[], |_| true);
        field.sandbox.plain_sh(&field.each(|plant| plant.3)).ok();
        field.forget();
        field.pull_the_triggers();
        let fired = field.fired();
        let dull: Vec<_> = field.plants.iter().map(|plant| plant.0).filter(|name| !fired.contains(*name)).collect();
        assert!(dull.is_empty(), "positive control: these do not fire without a sandbox: {dull:?}");
    }

    /// Plants all in one sandbox; none fires when it has ended.
    fn after_the_end(flags: &[&str]) -> (Self, Outcome) {
        let field = Self::new(flags, |_| true);
        let run = field.sandbox.sh(&field.each(|plant| plant.3));
        run.ok();
        assert_eq!(field.fired(), BTreeSet::new(), "fired before the host did anything");
        field.pull_the_triggers();
        assert_eq!(field.fired(), BTreeSet::new(), "these ran on the host\n{}", run.report());
        (field, run)
    }
}

#[test]
fn what_is_planted_into_git_does_not_run_on_the_host_afterwards() {
    need!("git");
    Field::control();
    let (field, run) = Field::after_the_end(&[]);
    run.clear_message();
    assert!(run.err().contains("quarantine list"), "{}", run.report());
    let all = field.sandbox.put_aside();
    let silent: Vec<_> = (field.plants.iter().map(|plant| plant.0))
        .filter(|name| !all.iter().any(|one| one.concerns(&format!("g/{name}"))))
        .filter(|name| !PREVENTABLE.contains(name))
        .collect();
    assert!(silent.is_empty(), "nothing in the quarantine of {silent:?}: {all:#?}");
    // What is left are sound repositories.
    field.sandbox.plain_sh("for d in g/hook_new g/monitor g/alias g/url_changed; do git -C $d fsck || exit 1; done").ok();
}

#[test]
fn what_is_planted_into_git_settles_with_landlock_alone() {
    need!("git");
    if let Some(why) = no_landlock() {
        skip!("{why}");
    }
    Field::after_the_end(&["--tier", "landlock"]);
}

/// Why the Landlock tier cannot start here.
fn no_landlock() -> Option<String> {
    let ran = Sandbox::new().flags(["--tier", "landlock"]).sh("true");
    (ran.code() == 125).then(|| ran.err().lines().next().unwrap_or_default().to_owned())
}

#[test]
fn what_is_planted_into_git_does_not_run_while_the_sandbox_lives() {
    need!("git");
    // That all fire without a sandbox is shown above.
    let field = Field::new(&[], |plant| plant.1 == Alive);
    let plant = field.each(|plant| plant.3) + "\ntouch planted; while [ ! -e go ]; do sleep 0.02; done";
    let mut child = Live::start(field.sandbox.inside(["/bin/sh", "-c", &plant]).stderr(Stdio::null()));
    assert!(wait_until(60, || field.sandbox.workspace.join("planted").exists()));
    field.pull_the_triggers();
    let live = field.fired();
    field.sandbox.write("go", "");
    child.end();
    assert_eq!(live, BTreeSet::new(), "these ran on the host while the sandbox lived");
}

/// A repository of the host in the workspace, and a remote that may be written.
fn repository(flags: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write(sandbox.home.join(".gitconfig"), GITCONFIG);
    let remote = sandbox.outside.join("remote.git").display().to_string();
    let script = format!(
        "set -e; git init -q --bare '{remote}'; git init -q .; echo a > a; git add a; git commit -qm one; git remote add origin '{remote}'"
    );
    sandbox.plain_sh(&script).ok();
    sandbox.flags(["--rw", &remote]).flags(flags)
}

#[test]
fn harmless_keys_reach_the_hosts_config_while_the_sandbox_lives() {
    need!("git");
    let sandbox = repository(&[]);
    let script = "set -e; git remote add other https://example.test/x.git; git config user.name Inside; git checkout -qb topic; \
        git push -q -u origin topic; git config branch.topic.description words; touch done; while [ ! -e go ]; do sleep 0.02; done";
    let keys = [
        ("remote.other.url", "https://example.test/x.git"),
        ("remote.other.fetch", "+refs/heads/*:refs/remotes/other/*"),
        ("user.name", "Inside"),
        ("branch.topic.remote", "origin"),
        ("branch.topic.merge", "refs/heads/topic"),
        ("branch.topic.description", "words"),
    ];
    let missing = || {
        let config = sandbox.plain_sh("git config -f .git/config -l").out();
        keys.iter().filter(|(key, value)| !config.lines().any(|line| line == format!("{key}={value}"))).collect::<Vec<_>>()
    };
    assert_eq!(missing().len(), keys.len(), "nothing of it stands there before");
    let mut child = Live::start(&mut sandbox.inside(["/bin/sh", "-c", script]));
    assert!(wait_until(60, || sandbox.workspace.join("done").exists()));
    wait_until(5, || missing().is_empty());
    let late = format!("{:?}", missing());
    sandbox.write("go", "");
    assert!(child.end().success());
    assert_eq!(late, "[]", "not in the host's config while the sandbox lives");
    assert!(missing().is_empty(), "not in the host's config afterwards: {:?}", missing());
    let run =
        sandbox.sh("git config --unset branch.topic.description; git remote rename other another; git branch -m topic renamed");
    run.ok();
    let config = sandbox.plain_sh("git config -f .git/config -l").out();
    assert!(!config.contains("description") && !config.contains("remote.other."), "{config}");
    assert!(config.contains("remote.another.url=") && config.contains("branch.renamed.merge="), "{config}");
    sandbox.assert_nothing_put_aside(&run);
}

#[test]
fn a_harmless_key_beside_a_harmful_one_reaches_the_host() {
    need!("git");
    let sandbox = repository(&[]);
    let run = sandbox.sh("git config user.name Inside; git config core.fsmonitor 'touch x'; git config core.fsmonitor");
    run.ok().says("touch x");
    let config = sandbox.read(".git/config");
    assert!(config.contains("Inside") && !config.contains("fsmonitor"), "{config}");
    assert!(run.err().contains("quarantine list"), "{}", run.report());
    assert!(sandbox.put_aside().iter().any(|one| one.path == ".git/config"));
}

#[test]
fn what_the_host_does_to_its_config_meanwhile_is_kept() {
    need!("git");
    let sandbox = repository(&[]);
    let script = "git config core.fsmonitor false; git config alias.evil '!x'; touch done; while [ ! -e go ]; do sleep 0.02; done; git config user.email inside@example.test";
    let mut child = Live::start(sandbox.inside(["/bin/sh", "-c", script]).stderr(Stdio::null()));
    assert!(wait_until(60, || sandbox.workspace.join("done").exists()));
    // The host may set anything, what executes too; a run that may be over at once is not watched yet.
    std::thread::sleep(Duration::from_millis(400));
    // Each takes the cover off until it is mounted again; what comes meanwhile could be the job's.
    for own in ["git config alias.mine '!echo MINE'", "git config user.name Host"] {
        sandbox.plain_sh(own).ok();
        std::thread::sleep(Duration::from_millis(500));
    }
    sandbox.write("go", "");
    assert!(child.end().success());
    sandbox.plain_sh("git mine; git config user.name").ok().says("MINE").says("Host");
    assert_ne!(sandbox.plain_sh("git config alias.evil").code(), 0);
    assert_eq!(sandbox.plain_sh("git config user.email").out(), "inside@example.test\n");
}

#[test]
fn what_a_job_has_open_or_mapped_is_never_the_hosts_own_word() {
    need!("git", PYTHON);
    for hold in ["write", "map"] {
        let sandbox = repository(&[]);
        sandbox.write("catch.py", CATCH);
        let mut child = Live::start(&mut sandbox.inside([PYTHON, "catch.py", hold]));
        assert!(wait_until(60, || sandbox.workspace.join("looking").exists()));
        // Each takes the cover off for a moment.
        let caught = wait_until(60, || {
            sandbox.plain_sh("git config alias.mine '!echo MINE'; git config alias.mine2 '!echo MINE'").ok();
            std::thread::sleep(Duration::from_millis(300));
            sandbox.workspace.join("caught").exists()
        });
        assert!(caught, "{hold}: the job had no luck");
        assert!(child.end().success());
        let config = sandbox.read(".git/config");
        assert!(!config.contains("evil"), "{hold}: {config}");
        assert!(sandbox.put_aside().iter().any(|one| one.concerns(".git/config")), "{hold}");
    }
}

#[test]
fn a_lock_that_a_job_leaves_keeps_nothing_from_starting() {
    need!("git");
    let sandbox = repository(&[]);
    let run = sandbox.sh("git config user.name Inside; touch .git/config.lock");
    assert!(run.ok().err().contains("put aside .git/config"), "{}", run.report());
    sandbox.sh("true").ok();
    let sandbox = repository(&[]);
    sandbox.sh("git config user.name Inside; chmod 555 .git").ok();
    sandbox.sh("true").ok();
    assert!(sandbox.read(".git/config").contains("Inside"));
}

#[test]
fn a_hook_installed_inside_runs_inside() {
    need!("git");
    let sandbox = repository(&[]);
    let hook = "printf '#!/bin/sh\\necho ran >> hook-ran\\n' > .git/hooks/new && chmod +x .git/hooks/new && mv .git/hooks/new .git/hooks/pre-commit";
    let run = sandbox.sh(&format!("set -e; mkdir -p .git/hooks; {hook}; git commit --allow-empty -qm two; cat hook-ran"));
    run.ok().says("ran");
    assert!(!sandbox.workspace.join(".git/hooks/pre-commit").exists(), "the hook came out");
    sandbox.plain_sh("rm hook-ran; git commit --allow-empty -qm three; test ! -e hook-ran").ok();
    assert!(sandbox.put_aside().iter().any(|one| one.concerns(".git/hooks/pre-commit")));
    // Control: the host's own hook runs there and here, and stays.
    sandbox.plain_sh(&hook.replace("ran >>", "own >>")).ok();
    let run = sandbox.sh("git commit --allow-empty -qm four && cat hook-ran");
    run.ok().says("own");
    sandbox.plain_sh("git commit --allow-empty -qm five && [ $(grep -c own hook-ran) = 2 ]").ok();
}

#[test]
fn hooks_of_a_linked_worktrees_common_directory_are_guarded_too() {
    need!("git");
    let sandbox = repository(&[]);
    let main = sandbox.home.join("main");
    sandbox.plain_sh(&format!("git clone -q . '{0}' && git -C '{0}' worktree add -q ../linked", main.display())).ok();
    let linked = sandbox.home.join("linked");
    let sandbox = sandbox.flags(["--workspace".as_ref(), linked.as_os_str()]);
    let plant = "common=$(git rev-parse --git-common-dir); git config core.fsmonitor 'touch CANARY'; \
        printf '#!/bin/sh\\ntouch FIRED\\n' > $common/hooks/pre-commit; chmod +x $common/hooks/pre-commit; git commit --allow-empty -qm inside";
    let run = run_to_end(sandbox.inside(["/bin/sh", "-c", plant]).current_dir(&linked));
    run.ok();
    assert!(linked.join("FIRED").exists(), "inside the hook runs\n{}", run.report());
    fs::remove_file(linked.join("FIRED")).unwrap();
    let _ = fs::remove_file(linked.join("CANARY"));
    for dir in [&linked, &main] {
        sandbox.plain_sh(&format!("cd '{}' && git status && git commit --allow-empty -qm x", dir.display())).ok();
        assert!(!dir.join("FIRED").exists() && !dir.join("CANARY").exists(), "{} runs what was planted", dir.display());
    }
}

#[test]
fn a_repository_made_inside_can_be_used_outside() {
    need!("git");
    let sandbox = Sandbox::new();
    sandbox.write(sandbox.home.join(".gitconfig"), GITCONFIG);
    let run = sandbox.sh(
        "set -e; git init -q proj; cd proj; git config core.autocrlf input; git remote add origin https://example.test/x.git; \
        echo a > a; git add a; git commit -qm one; git checkout -qb topic; git clone -q . ../copy",
    );
    run.ok();
    sandbox.assert_nothing_put_aside(&run);
    sandbox
        .plain_sh("set -e; cd proj; git fsck; git config core.autocrlf; git remote get-url origin; git branch --show-current; git -C ../copy log --format=%s")
        .ok()
        .says("input\nhttps://example.test/x.git\ntopic\none");
}

#[test]
fn a_stopped_rebase_without_commands_is_left_alone() {
    need!("git");
    let sandbox = repository(&[]);
    sandbox.plain_sh("for i in 2 3 4; do echo $i > a; git commit -qam $i; done").ok();
    let run = sandbox.sh("GIT_SEQUENCE_EDITOR='sed -i 1s/^pick/edit/' git rebase -q -i HEAD~2");
    run.ok();
    sandbox.assert_nothing_put_aside(&run);
    sandbox.plain_sh("git rebase --continue && git log --format=%s").ok().says("4\n3\n2\none");
}
