//! What a policy's rules mean for the one who calls: programs and hooks that his own tools find in a tree by his settings.

use std::path::{Component, Path, PathBuf};

use hermes_profiles::guard::{Selector, literal};
use hermes_profiles::paths::normalise;
use hermes_profiles::{Caller, GuardRules};

use super::leads::{self, Lead, leads};

/// How far includes are followed from one to the next, as git does.
const MOST_STEPS: usize = 10;

/// The rules with what they mean for `caller` in these trees. Programs in a directory of his `PATH` are run by name, whatever
/// they are called; his git runs hooks and takes configuration where his own configuration says; and what a rule names may be
/// reached through symlinks, while trees are known by their real paths.
pub(crate) fn for_caller(rules: &GuardRules, caller: &Caller, trees: &[&Path]) -> GuardRules {
    let mut rules = GuardRules { home: caller.home.clone(), ..rules.clone() };
    let git = of_git(caller);
    rules.add.extend(git.iter().filter_map(|place| match place.is_absolute() {
        true => trees.iter().any(|tree| place.starts_with(tree)).then(|| literal(place).map(Selector::Absolute))?,
        // From the top of each working tree.
        false => literal(place).map(Selector::Anywhere),
    }));
    for list in [&mut rules.add, &mut rules.allow, &mut rules.prevent, &mut rules.stage] {
        let real: Vec<Selector> = list.iter().filter_map(real_selector).collect();
        list.extend(real);
    }
    for directory in caller.variable("PATH").into_iter().flat_map(std::env::split_paths) {
        let real = std::fs::canonicalize(&directory).unwrap_or(directory);
        if trees.iter().any(|tree| real.starts_with(tree)) {
            rules.add.extend(literal(&real).map(Selector::Absolute));
        }
    }
    rules
}

/// A selector whose directories, as far as they are plain names, are replaced by their real path; `None` when they are real.
fn real_selector(selector: &Selector) -> Option<Selector> {
    let Selector::Absolute(glob) = selector else { return None };
    let plain = glob.find(['*', '?', '[', '{', '\\']).map_or(glob.as_str(), |at| &glob[..at]);
    let (plain, _) = plain.rsplit_once('/').filter(|(plain, _)| !plain.is_empty())?;
    let there = Path::new(plain).ancestors().find_map(|at| Some((at, std::fs::canonicalize(at).ok()?)));
    let (at, real) = there.filter(|(at, real)| at != real)?;
    Some(Selector::Absolute(literal(&real)? + &glob[at.as_os_str().len()..]))
}

/// Where git's own configuration of this user and machine has it look for hooks and more configuration: absolute, or relative to
/// the top of a working tree. Its files are those of git-config(1), FILES.
fn of_git(caller: &Caller) -> Vec<PathBuf> {
    let home = caller.home.as_deref();
    let named = |name: &str| caller.variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = match named("GIT_CONFIG_GLOBAL") {
        Some(global) => vec![global],
        None => {
            let xdg = named("XDG_CONFIG_HOME").or_else(|| home.map(|home| home.join(".config")));
            let files = [xdg.map(|dir| dir.join("git/config")), home.map(|home| home.join(".gitconfig"))];
            files.into_iter().flatten().collect()
        }
    };
    let system = named("GIT_CONFIG_SYSTEM").unwrap_or_else(|| PathBuf::from("/etc/gitconfig"));
    let mut pending: Vec<(PathBuf, usize)> = own.into_iter().chain([system]).map(|file| (file, 0)).collect();
    let mut places = Vec::new();
    while let Some((file, steps)) = pending.pop() {
        for lead in leads(&content(&file).unwrap_or_default(), home) {
            match lead {
                Lead::Hooks(place) => places.push(place),
                Lead::Included(path) => {
                    let included = normalise(&file.parent().unwrap_or(Path::new("/")).join(path));
                    places.push(included.clone());
                    pending.extend((steps < MOST_STEPS).then_some((included, steps + 1)));
                }
            }
        }
    }
    places.iter().filter_map(|place| plain(place)).collect()
}

/// Without `.` and `..`; `None` for what leads above where it begins, or is that itself.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    (!plain.as_os_str().is_empty() && plain != Path::new("/")).then_some(plain)
}

/// What a regular file holds; nothing that blocks is opened.
fn content(file: &Path) -> Option<Vec<u8>> {
    // Reached through symlinks as git reaches it: dotfiles often are.
    let real = std::fs::canonicalize(file).ok()?;
    leads::content(real.parent()?, real.file_name()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_git_configuration_says_where_hooks_are() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir_all(at(".config/git")).unwrap();
        std::fs::write(at(".gitconfig"), "[core]\n\thooksPath = ./my/../hooks\n[include]\n\tpath = more\n").unwrap();
        std::fs::write(at("more"), "[core]\n\thooksPath = ~/tree/h\n[include]\n\tpath = ~/tree/inc\n").unwrap();
        std::fs::write(at(".config/git/config"), "[core]\n\thooksPath = ../above\n").unwrap();
        let caller = |more: &[(&str, &str)]| {
            let variables = [("HOME", home.path().to_str().unwrap()), ("GIT_CONFIG_SYSTEM", "/nonexistent")];
            let variables = variables.iter().chain(more).map(|(name, value)| (name.into(), value.into())).collect();
            Caller::from_variables("/".into(), variables)
        };
        let mut found = of_git(&caller(&[]));
        found.sort();
        let mut expected = [at("more"), at("tree/h"), at("tree/inc"), PathBuf::from("hooks")];
        expected.sort();
        assert_eq!(found, expected);
        assert!(of_git(&caller(&[("GIT_CONFIG_GLOBAL", "/nonexistent")])).is_empty());
        let tree = at("tree");
        let add = for_caller(&GuardRules::default(), &caller(&[]), &[&tree]).add;
        let add: Vec<String> = add.iter().map(ToString::to_string).collect();
        assert!(add.contains(&"hooks".to_owned()) && add.contains(&at("tree/h").display().to_string()), "{add:?}");
        assert!(!add.contains(&at("more").display().to_string()), "no tree that is written");
    }
}
