//! Everyday work is never touched: version control, package managers, and files that only a person's build runs.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use hermes_tests::{GITCONFIG, PYTHON, Sandbox, need};

/// Files that a repository may track and that would be put aside if the job had made them.
const TRACKED: &[&str] =
    &[".vscode/settings.json", ".vscode/tasks.json", ".claude/settings.json", ".envrc", "sub/.cargo/config.toml"];

/// A repository whose branch `other` tracks guarded files; `main` does not.
fn with_tracked_files() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write(sandbox.home.join(".gitconfig"), GITCONFIG);
    sandbox.plain_sh("set -e; git init -q .; echo a > a; git add a; git commit -qm one; git checkout -qb other").ok();
    for path in TRACKED {
        sandbox.write(path, format!("{{ \"task.{path}\": \"run\" }}\n"));
    }
    sandbox.plain_sh("set -e; git add -A; git commit -qm tracked; git checkout -q main; test ! -e .envrc").ok();
    sandbox
}

fn present(sandbox: &Sandbox) -> usize {
    TRACKED.iter().filter(|path| sandbox.workspace.join(path).exists()).count()
}

#[test]
fn a_checkout_of_what_was_tracked_before_is_left_alone() {
    need!("git");
    for form in [
        "true",
        "git gc -q",
        "git pack-refs --all",
        "git tag keep other && git branch -D other",
        "git update-ref refs/remotes/o/other other && git branch -D other",
    ] {
        let sandbox = with_tracked_files();
        let tip = sandbox.plain_sh("git rev-parse other").out();
        sandbox.plain_sh(form).ok();
        let run = sandbox.sh(&format!("set -e; git checkout -q {0}; git checkout -q main; git checkout -q {0}", tip.trim()));
        run.ok();
        sandbox.assert_nothing_put_aside(&run);
        assert_eq!(present(&sandbox), TRACKED.len(), "after {form}");
        assert_eq!(sandbox.plain_sh("git status --porcelain").out(), "");
    }
}

#[test]
fn what_the_job_itself_commits_is_put_aside() {
    need!("git");
    let plant = "mkdir -p .vscode .claude sub/.cargo; for f in .vscode/settings.json .vscode/tasks.json .claude/settings.json .envrc sub/.cargo/config.toml; do \
        echo '{ \"task.x\": \"run\", \"hooks\": {\"a\": \"b\"}, \"build.rustc-wrapper\": \"x\" }' > $f; done; printf '[build]\\nrustc-wrapper = \"x\"\\n' > sub/.cargo/config.toml";
    for forge in [
        "git add -A; git commit -qm mine",
        "git add -A; git commit -qm mine; git branch -f other; git tag -f t",
        "git add -A; git commit -qm mine; git replace -f other HEAD; git replace -f HEAD~1 HEAD",
        "git add -A; git commit -qm mine; git update-ref refs/heads/other HEAD; git reflog expire --expire=now --all; git gc -q --prune=now",
    ] {
        let sandbox = with_tracked_files();
        let run = sandbox.sh(&format!("set -e; {plant}; {forge}; test -e .envrc"));
        run.ok();
        assert_eq!(present(&sandbox), 0, "after {forge}\n{}", run.report());
        let all = sandbox.put_aside();
        for path in TRACKED {
            assert!(all.iter().any(|one| one.concerns(path)), "{path} is not in the quarantine after {forge}");
        }
    }
}

#[test]
fn tracked_content_counts_at_its_own_path_only() {
    need!("git");
    let sandbox = with_tracked_files();
    let run = sandbox.sh("set -e; mkdir -p else/.vscode; git show other:.vscode/tasks.json > else/.vscode/tasks.json; git show other:.envrc > .envrc");
    run.ok();
    assert!(!sandbox.workspace.join("else/.vscode/tasks.json").exists());
    assert!(sandbox.workspace.join(".envrc").exists(), "at its own path it is what refs track");
    // A tracked file that is changed is not excused by being tracked.
    let sandbox = with_tracked_files();
    sandbox.sh("set -e; git checkout -q other; echo more >> .envrc").ok();
    assert!(!sandbox.read(".envrc").contains("more"));
}

#[test]
fn files_that_a_persons_build_runs_are_never_reverted() {
    let files = [
        "package.json",
        "Makefile",
        "justfile",
        ".github/workflows/ci.yml",
        ".gitlab-ci.yml",
        "Dockerfile",
        "compose.yml",
        "build.rs",
        "Cargo.toml",
        "setup.py",
        "pyproject.toml",
        "conftest.py",
        "tox.ini",
        "src/main.c",
        "README.md",
        "AGENTS.md",
        ".gitignore",
        ".editorconfig",
        "docs/hooks/index.md",
        "hooks/useState.ts",
        "config",
        "src/config/settings.json",
        "tasks.json",
        "lib/envrc",
        "Rakefile",
        "CMakeLists.txt",
        "composer.json",
        "HEAD",
        "objects/a",
    ];
    let sandbox = Sandbox::new();
    for file in files {
        sandbox.write(file, "{ \"name\": \"old\" }\n");
    }
    let names = files.join(" ");
    let run = sandbox
        .sh(&format!("set -e; for f in {names}; do sed -i s/old/new/ $f; mkdir -p made/$(dirname $f); cp $f made/$f; done"));
    run.ok();
    sandbox.assert_nothing_put_aside(&run);
    for file in files {
        assert!(sandbox.read(file).contains("new") && sandbox.read(Path::new("made").join(file)).contains("new"), "{file}");
    }
}

#[test]
fn a_virtual_environment_made_inside_works_outside() {
    need!(PYTHON);
    let sandbox = Sandbox::new();
    let run = sandbox.sh(&format!("{PYTHON} -m venv --without-pip venv && venv/bin/python -c 'import sys; print(sys.prefix)'"));
    run.ok().says("/ws/venv");
    sandbox.assert_nothing_put_aside(&run);
    let check = "venv/bin/python -c 'import sys; print(sys.prefix, sys.prefix != sys.base_prefix)'";
    sandbox.plain_sh(check).ok().says("/ws/venv True");
    // Used again, and by a tool that writes into it.
    let run = sandbox.sh(&format!("d=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))'); echo 'x = 42' > $d/mod.py; printf '#!/bin/sh\\necho TOOL\\n' > venv/bin/tool; chmod +x venv/bin/tool; {check}"));
    run.ok();
    sandbox.assert_nothing_put_aside(&run);
    sandbox.plain_sh("venv/bin/tool && venv/bin/python -c 'import mod; print(mod.x)'").ok().says("TOOL\n42");
}

#[test]
fn what_npm_installs_with_scripts_works_outside() {
    need!("node", "npm");
    let sandbox = Sandbox::new();
    sandbox.write("dep/package.json", "{\"name\":\"dep\",\"version\":\"1.0.0\",\"bin\":{\"dep-tool\":\"tool.js\"},\"scripts\":{\"postinstall\":\"echo x > ran\"}}");
    sandbox.script("dep/tool.js", "#!/usr/bin/env node\nconsole.log('DEP-TOOL')\n");
    sandbox.write("package.json", "{\"name\":\"t\",\"version\":\"1.0.0\",\"scripts\":{\"go\":\"dep-tool\"}}");
    let run = sandbox.sh("npm install --offline --no-audit --no-fund --save-dev --install-links ./dep && npm run -s go");
    run.ok().says("DEP-TOOL");
    sandbox.assert_nothing_put_aside(&run);
    assert!(sandbox.read("package.json").contains("devDependencies"), "package.json keeps its new entry");
    assert!(sandbox.workspace.join("node_modules/.bin/dep-tool").exists());
    sandbox.plain_sh("npm run -s go").ok().says("DEP-TOOL");
}

/// Operations of git, in this order in one clone; each ends with the same status inside and outside.
const OPERATIONS: &[(&str, &str)] = &[
    ("status", "git status"),
    ("add and commit", "echo b > b && git add b && git commit -qm b"),
    ("commit -a", "echo c >> b && git commit -qam c"),
    ("commit --amend", "git commit -q --amend -m c2"),
    ("push", "git push -q origin main"),
    ("push -u", "git checkout -qb topic && git push -q -u origin topic && git rev-parse topic@{u}"),
    ("config", "git config user.name Other && git config user.name"),
    ("config --unset", "git config --unset user.name"),
    ("config section", "git config branch.topic.description d && git config --remove-section branch.topic"),
    ("remote add", "git remote add second ../second.git"),
    ("remote rename", "git remote rename second third"),
    ("remote set-branches", "git remote set-branches third main"),
    ("remote remove", "git remote remove third"),
    ("fetch", "git fetch -q origin"),
    ("fetch --prune", "git fetch -q --prune --tags origin"),
    ("pull", "git checkout -q main && git pull -q --ff-only origin main"),
    ("branch track", "git branch -q --track follow origin/main && git rev-parse follow@{u}"),
    ("branch rename", "git branch -m follow followed && git rev-parse followed@{u}"),
    ("branch set-upstream", "git branch -q -u origin/topic followed"),
    ("branch delete", "git branch -q -D followed"),
    ("submodule add", "git submodule -q add \"$PWD/../sub\" s"),
    ("submodule commit", "git commit -qm sub && echo x > s/x && git -C s add x && git -C s commit -qm x"),
    ("submodule update", "git submodule -q update --init --force"),
    ("submodule foreach", "git submodule -q foreach 'git status'"),
    ("submodule sync", "git submodule -q sync"),
    ("submodule deinit", "git submodule -q deinit -f s"),
    ("worktree add", "git worktree add -q ../wt -b wt"),
    ("worktree commit", "cd ../wt && echo w > w && git add w && git commit -qm w"),
    (
        "worktree config",
        "git config extensions.worktreeConfig true && git -C ../wt config --worktree user.name W && git -C ../wt config user.name",
    ),
    ("worktree list", "git worktree list && git worktree prune"),
    ("worktree remove", "git worktree remove --force ../wt && git branch -q -D wt"),
    ("stash", "echo z >> b && git stash -q && git stash list && git stash pop -q && git checkout -q b"),
    ("rebase", "git checkout -q -b r main~2 && echo r > r && git add r && git commit -qm r && git rebase -q main"),
    ("rebase -i", "GIT_SEQUENCE_EDITOR='sed -i 1s/pick/reword/' GIT_EDITOR=true git rebase -q -i HEAD~1"),
    ("rebase --exec", "git rebase -q --exec true HEAD~1"),
    ("rebase --abort", "GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' git rebase -q -i HEAD~1 && git rebase --abort"),
    ("merge", "git checkout -q main && git merge -q --no-ff -m m r"),
    (
        "merge --abort",
        "git checkout -qb l main && echo l > a && git commit -qam l && git checkout -qb k main && echo k > a && git commit -qam k && ! git merge -q l && git merge --abort",
    ),
    ("cherry-pick", "git checkout -qb p main~1 && git cherry-pick r"),
    ("revert", "git revert --no-edit HEAD"),
    ("reset", "git reset -q --hard HEAD~1"),
    ("tag", "git tag v1 && git tag -a -m v2 v2 && git push -q origin v1 v2 && git tag -d v1"),
    ("notes", "git notes add -m n && git notes show"),
    ("mv and rm", "git mv a moved && git commit -qm mv && git rm -q moved && git commit -qm rm"),
    ("switch and restore", "git switch -q main && echo q > a && git restore a"),
    (
        "format-patch and am",
        "git checkout -qb am main && echo am > am && git add am && git commit -qm am && git format-patch -q -1 -o ../patches && git reset -q --hard HEAD~1 && git am -q ../patches/*",
    ),
    (
        "apply",
        "git checkout -q main && echo q >> a && git diff > ../d && git checkout -q a && git apply ../d && git checkout -q a",
    ),
    ("bisect", "git bisect start HEAD HEAD~2 && git bisect reset"),
    ("blame, grep, log, show", "git blame a && git grep -q . && git log -p && git show"),
    ("archive and bundle", "git archive HEAD | tar t && git bundle create ../b.bundle main && git bundle verify -q ../b.bundle"),
    ("clone", "git clone -q . ../copy && git -C ../copy status"),
    ("clone --bare", "git clone -q --bare . ../copy.git && git -C ../copy.git log -1"),
    ("clone --depth", "git clone -q --depth 1 \"file://$PWD\" ../shallow"),
    ("clone --recurse", "git clone -q --recurse-submodules . ../recursed"),
    ("init", "git init -q ../fresh && git init -q && git init -q --bare ../fresh.git"),
    ("sparse-checkout", "git sparse-checkout set --no-cone /a && test ! -e b && git sparse-checkout disable && test -e b"),
    ("reflog expire", "git reflog expire --expire=now --all"),
    ("repack", "git repack -qad"),
    ("gc", "git gc -q --prune=now"),
    ("pack-refs", "git pack-refs --all && git prune"),
    (
        "update-index",
        "git update-index --refresh && git update-index --assume-unchanged a && git update-index --no-assume-unchanged a",
    ),
    ("rerere", "git config rerere.enabled true; git rerere status; git config --unset rerere.enabled"),
    ("clean", "touch junk && git clean -qfd && test ! -e junk"),
    ("fsck", "git fsck"),
    (
        "hook by rename",
        "mkdir -p .git/hooks && printf '#!/bin/sh\\necho 1 > \"$(git rev-parse --git-dir)/../hooked\"\\n' > .git/hooks/t && chmod +x .git/hooks/t && mv .git/hooks/t .git/hooks/pre-commit",
    ),
    ("hook runs", "git commit -q --allow-empty -m h && test -e hooked"),
    ("hook removed", "rm .git/hooks/pre-commit hooked && git commit -q --allow-empty -m h && test ! -e hooked"),
    (
        "husky",
        "mkdir -p .husky/_ && git config core.hooksPath .husky/_ && printf '#!/bin/sh\\n. .husky/pre-commit\\n' > .husky/_/pre-commit && chmod +x .husky/_/pre-commit && echo 'echo 1 > husky-ran' > .husky/pre-commit && git commit -q --allow-empty -m h && test -e husky-ran",
    ),
    ("hooksPath unset", "git config --unset core.hooksPath && rm -rf .husky husky-ran"),
];

#[test]
fn git_does_inside_what_it_does_outside() {
    need!("git");
    let script = |sandbox: &Sandbox| {
        sandbox.write(sandbox.home.join(".gitconfig"), GITCONFIG);
        let remote = sandbox.workspace.join("origin.git").display().to_string();
        sandbox.plain_sh(&format!("set -e; git init -q sub; cd sub; echo s > s; git add s; git commit -qm s; cd ..; git init -q --bare '{remote}'; git init -q w; cd w; \
            for i in 1 2 3; do echo $i > a; git add a; git commit -qm $i; done; git remote add origin '{remote}'; git push -q origin main")).ok();
        let lines: String = OPERATIONS.iter().map(|(name, command)| {
            format!("( cd w && {{ {command}\n}} ) </dev/null >out 2>&1; s=$?; echo \"{name}: $s\"; [ $s = 0 ] || sed 's/^/    /' out >&2\n")
        }).collect();
        format!("umask 022; export GIT_TERMINAL_PROMPT=0 GIT_ADVICE=0\n{lines}rm -f out")
    };
    let outside = Sandbox::new();
    let control = outside.plain_sh(&script(&outside));
    let expected: String = OPERATIONS.iter().map(|(name, _)| format!("{name}: 0\n")).collect();
    assert_eq!(control.out(), expected, "positive control\n{}", control.err());
    let sandbox = Sandbox::new();
    let run = sandbox.sh(&script(&sandbox));
    assert_eq!(run.out(), expected, "{}", run.err());
    sandbox
        .plain_sh("set -e; git -C w fsck; git -C w status; git -C copy.git log -1; git -C recursed status; git -C w log -1")
        .ok();
    let list = "cd w && git for-each-ref --format='%(refname)' && git config -f .git/config -l --name-only | sort | uniq";
    assert_eq!(sandbox.plain_sh(list).out(), outside.plain_sh(list).out(), "refs and configuration keys that came out");
    assert_eq!(sandbox.plain_sh("ls -A . w w/.git").out(), outside.plain_sh("ls -A . w w/.git").out(), "files that came out");
    let all = sandbox.put_aside();
    let other: Vec<_> =
        all.iter().filter(|one| !["husky", "hooks", "config"].iter().any(|word| one.path.contains(word))).collect();
    assert!(other.is_empty(), "put aside: {other:#?}");
}

/// Commits what nobody tracked.
const COMMIT: &str = "git checkout -q -b aaa; echo PLANT > .pre-commit-config.yaml; git add .pre-commit-config.yaml;
    git -c user.name=t -c user.email=t@example.test commit -qm plant;";

#[test]
fn what_one_run_committed_excuses_nothing_in_the_next() {
    need!("git");
    let many = "t=$(git rev-parse HEAD^{tree}); i=0; while [ $i -lt 4200 ]; do i=$((i+1)); echo x > f; \
        c=$(printf \"tree $t\\nauthor a <a@b> $i +0000\\ncommitter a <a@b> $i +0000\\n\\nx\\n\" | git hash-object -t commit -w --stdin); \
        echo \"create refs/tags/t$i $c\"; done | git update-ref --stdin;";
    let ways = [
        ("beside others", "true".to_owned(), format!("{COMMIT} git checkout -q main; {many}"), "."),
        ("in a worktree", "git worktree add -q wt -b wt;".into(), format!("{COMMIT} git checkout -q main"), "wt"),
        ("without a history", "rm -rf .git; git init -q".into(), COMMIT.to_owned(), "."),
        ("in a repository of its own", "rm -rf .git".into(), format!("git init -q; {COMMIT}"), "."),
    ];
    for (way, prepare, first, at) in ways {
        let sandbox = with_tracked_files();
        sandbox.plain_sh(&prepare).ok();
        sandbox.sh(&first).ok();
        let run = sandbox.sh(&format!("cd {at}; git checkout -q aaa -- .pre-commit-config.yaml; cat .pre-commit-config.yaml"));
        run.ok().says("PLANT");
        assert!(!sandbox.workspace.join(at).join(".pre-commit-config.yaml").exists(), "{way}: {}", run.report());
    }
}
