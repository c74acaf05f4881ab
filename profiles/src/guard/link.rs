//! Where a symlink leads, as far as its text says.

use std::path::{Path, PathBuf};

use crate::paths::{covers, normalise};

/// The absolute target of the symlink `at` (relative to the absolute `tree`), when it lies outside of the tree.
///
/// Lexically: `..` after another symlink leads elsewhere on the disk. Such a link is one of the tree itself, judged by
/// itself.
pub fn link_leads_out(tree: &Path, at: &Path, target: &Path) -> Option<PathBuf> {
    let from = tree.join(at);
    let target = normalise(&from.parent().unwrap_or(tree).join(target));
    (!covers(&normalise(tree), &target)).then_some(target)
}
