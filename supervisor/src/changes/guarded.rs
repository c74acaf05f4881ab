//! Files that tools of the host execute or obey later. Changes to them are applied only when that is asked for.
//!
//! The one seam to the rules of the workspace guard.

use std::path::Path;

/// Says why a change is guarded.
pub(crate) trait Guarded {
    /// Why `path` needs a decision of its own; `None` when it does not. `now` is its new content, if it is a short file.
    fn why(&self, path: &Path, before: Option<&[u8]>, now: Option<&[u8]>) -> Option<String>;
}

/// The best known of those files, by name.
#[derive(Debug, Default)]
pub(crate) struct ByName;

const ANYWHERE: &[&str] = &[
    ".envrc",
    ".mcp.json",
    ".husky/",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".vscode/mcp.json",
    ".devcontainer/",
    ".idea/",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/hooks/",
    ".cursor/mcp.json",
    ".cargo/config.toml",
    ".npmrc",
    ".yarnrc.yml",
    "mise.toml",
    ".mise.toml",
];
const GIT: &[&str] = &["hooks/", "config", "config.worktree", "commondir", "info/attributes"];

impl Guarded for ByName {
    fn why(&self, path: &Path, _before: Option<&[u8]>, _now: Option<&[u8]>) -> Option<String> {
        let text = path.to_string_lossy();
        let at_end_of = |name: &&&str| {
            let inside = name.strip_suffix('/');
            match inside {
                Some(directory) => text.starts_with(**name) || text.contains(&format!("/{directory}/")),
                None => text == **name || text.ends_with(&format!("/{name}")),
            }
        };
        if let Some(name) = ANYWHERE.iter().find(at_end_of) {
            return Some(format!("tools obey {name}"));
        }
        let git = super::order::in_git(path)?;
        let git = git.to_string_lossy();
        if git.is_empty() {
            return Some("git follows it to another repository".to_owned());
        }
        let name = GIT.iter().find(|name| match name.strip_suffix('/') {
            Some(_) => git.starts_with(**name) && !git.ends_with(".sample"),
            None => git == **name || git.ends_with(&format!("/{name}")),
        });
        name.map(|name| format!("git obeys {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_obey_is_guarded_and_nothing_else() {
        let guarded = |path: &str| ByName.why(Path::new(path), None, None).is_some();
        for path in
            [".envrc", "sub/.envrc", ".git/config", "sub/.git/hooks/pre-commit", ".husky/pre-commit", ".vscode/tasks.json"]
        {
            assert!(guarded(path), "{path}");
        }
        for path in ["envrc", ".git/index", ".git/hooks/x.sample", "src/config", "hooks/pre-commit", ".git/refs/heads/config-x"] {
            assert!(!guarded(path), "{path}");
        }
    }
}
