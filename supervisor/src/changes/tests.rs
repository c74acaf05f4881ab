//! Layers made by hand, as overlayfs writes them, and commands that are killed at every point.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use hermes_profiles::GuardRules;
use nix::sys::stat::{Mode, SFlag, mknod};

use super::apply::{self, Held};
use super::checkpoint::{self, Checkpoint};
use super::decide::Wanted;
use super::fault::killed_at;
use super::journal::Spot;
use super::layer::{Found, Layer, Part, find};
use super::scan::scan;
use crate::state::Tree;

struct World {
    dir: tempfile::TempDir,
}

/// Kind, mode and content by path.
type Picture = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn picture(root: &Path) -> Picture {
    let mut picture = Picture::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = match meta.file_type() {
            kind if kind.is_symlink() => path.read_link().unwrap().into_os_string().into_encoded_bytes(),
            kind if kind.is_file() => std::fs::read(&path).unwrap(),
            _ => Vec::new(),
        };
        if meta.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        picture.insert(path.strip_prefix(root).unwrap().to_owned(), (meta.mode(), content));
    }
    picture
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

impl World {
    fn new() -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(world.ws()).unwrap();
        for path in ["keep", "change", "gone", "dir/a", "dir/deep/b", "again/old", "again/in/older", "to-file/x", "to-dir"] {
            write(&world.ws().join(path), &format!("host {path}\n"));
        }
        symlink("keep", world.ws().join("link")).unwrap();
        // Names of one file, which change its time when they go.
        std::fs::hard_link(world.ws().join("gone"), world.ws().join("dir/gone too")).unwrap();
        std::fs::hard_link(world.ws().join("gone"), world.ws().join("again/gone too")).unwrap();
        world
    }

    fn ws(&self) -> PathBuf {
        self.dir.path().join("ws")
    }

    fn tree(&self) -> Tree {
        Tree::open(&self.dir.path().join("state"), &self.ws(), true).unwrap().unwrap()
    }

    fn held(&self) -> Held {
        Held::new(self.tree()).unwrap().0
    }

    fn layer(&self) -> Option<Layer> {
        loop {
            match find(&self.tree()).pop()? {
                Found::Free(layer) => return Some(layer),
                // A process that another test starts holds copies of all locks until it executes its program.
                Found::Busy(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        }
    }

    /// A layer with everything in it that a layer can have. The host's files are old by then.
    fn overlaid(&self) -> PathBuf {
        std::thread::sleep(std::time::Duration::from_millis(60));
        let tree = self.tree();
        let mut layer = Layer::take(&tree, std::slice::from_ref(&tree.path)).unwrap();
        layer.begin(&tree, &GuardRules::default()).unwrap();
        crate::clock::await_tick();
        let upper = layer.dir.join("0/upper");
        write(&upper.join("change"), "changed\n");
        write(&upper.join("new"), "new\n");
        std::fs::set_permissions(upper.join("new"), std::fs::Permissions::from_mode(0o751)).unwrap();
        write(&upper.join("made/inner/f"), "inner\n");
        std::fs::set_permissions(upper.join("made"), std::fs::Permissions::from_mode(0o750)).unwrap();
        whiteout(&upper.join("gone"));
        whiteout(&upper.join("dir"));
        write(&upper.join("again/fresh"), "fresh\n");
        // A directory in an opaque one is not marked itself.
        write(&upper.join("again/in/young"), "young\n");
        opaque(&upper.join("again"));
        write(&upper.join("to-file"), "a file now\n");
        write(&upper.join("to-dir/y"), "y\n");
        opaque(&upper.join("to-dir"));
        symlink("new", upper.join("link")).unwrap();
        write(&upper.join(".envrc"), "echo obeyed\n");
        upper
    }

    fn apply(&self, wanted: &Wanted) -> apply::Applied {
        apply::apply(&self.held(), self.layer().unwrap(), wanted, false).unwrap()
    }

    fn apply_everything(&self) -> apply::Applied {
        apply::apply(&self.held(), self.layer().unwrap(), &Wanted::default(), true).unwrap()
    }
}

fn spot(path: &str) -> Spot {
    Spot { part: 0, path: path.into() }
}

fn whiteout(path: &Path) {
    mknod(path, SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
}

fn opaque(path: &Path) {
    rustix::fs::setxattr(path, c"user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
}

fn expected(world: &World) -> Picture {
    let mut after = picture(&world.ws());
    let file = |mode: u32, text: &str| (0o100_000 | mode, text.as_bytes().to_vec());
    let usual = picture(&world.ws())[Path::new("keep")].0 & 0o777;
    let directory = after[Path::new("dir")].0;
    for gone in [
        "gone",
        "dir",
        "dir/a",
        "dir/deep",
        "dir/deep/b",
        "dir/gone too",
        "again/gone too",
        "again/old",
        "again/in/older",
        "to-file/x",
    ] {
        after.remove(Path::new(gone)).unwrap();
    }
    let mut put = |path: &str, node| drop(after.insert(path.into(), node));
    put("change", file(usual, "changed\n"));
    put("new", file(0o751, "new\n"));
    put("made", (0o040_750, Vec::new()));
    put("made/inner", (directory, Vec::new()));
    put("made/inner/f", file(usual, "inner\n"));
    put("again/fresh", file(usual, "fresh\n"));
    put("again/in/young", file(usual, "young\n"));
    put("to-file", file(usual, "a file now\n"));
    put("to-dir", (directory, Vec::new()));
    put("to-dir/y", file(usual, "y\n"));
    put("link", (0o120_777, b"new".to_vec()));
    put(".envrc", file(usual, "echo obeyed\n"));
    after
}

#[test]
fn everything_that_a_layer_can_say_comes_to_the_host() {
    let world = World::new();
    let after = expected(&world);
    world.overlaid();
    let applied = world.apply_everything();
    assert!(applied.refused.is_empty() && !applied.left, "{applied:?}");
    assert_eq!(picture(&world.ws()), after);
    assert!(world.layer().is_none(), "an empty layer goes");
}

#[test]
fn what_tools_obey_waits_until_it_is_asked_for() {
    let world = World::new();
    world.overlaid();
    let applied = world.apply(&Wanted::default());
    assert!(applied.left && applied.guarded.len() == 1, "{applied:?}");
    assert!(!world.ws().join(".envrc").exists() && world.ws().join("new").exists());
    let left: Vec<_> = scan(&world.layer().unwrap(), &world.tree()).unwrap().0.changes;
    assert_eq!(left.iter().map(|change| change.path.to_str().unwrap()).collect::<Vec<_>>(), [".envrc"]);
    assert!(!world.apply_everything().left);
    assert!(world.ws().join(".envrc").exists() && world.layer().is_none());
}

#[test]
fn killed_at_any_moment_the_next_command_finishes_it_or_nothing_happened() {
    for n in 0.. {
        let world = World::new();
        let (before, after) = (picture(&world.ws()), expected(&world));
        world.overlaid();
        if killed_at(n, || world.apply_everything()).is_some() {
            assert!(n > 20, "only {n} places");
            break;
        }
        drop(world.held());
        let now = picture(&world.ws());
        if now != after {
            assert_eq!(now, before, "killed at {n}");
            assert!(world.layer().is_some(), "killed at {n}: the layer is lost");
            assert!(!world.apply_everything().left);
        }
        assert_eq!(picture(&world.ws()), after, "killed at {n}");
        let left = std::fs::read_dir(world.tree().state).unwrap().map(|e| e.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name != "layers" && name != "lock" && name != "path").collect();
        assert!(left.is_empty(), "killed at {n}: {left:?}");
        assert!(world.layer().is_none(), "killed at {n}");
    }
}

#[test]
fn killed_twice_is_no_worse() {
    for n in [12, 20, 30] {
        for m in 0..12 {
            let world = World::new();
            let after = expected(&world);
            world.overlaid();
            assert!(killed_at(n, || world.apply_everything()).is_none());
            killed_at(m, || drop(world.held()));
            drop(world.held());
            if world.layer().is_some() {
                world.apply_everything();
            }
            assert_eq!(picture(&world.ws()), after, "killed at {n}, then at {m}");
        }
    }
}

#[test]
fn nothing_is_applied_when_the_host_has_changed_the_same() {
    let world = World::new();
    world.overlaid();
    write(&world.ws().join("change"), "by the host\n");
    write(&world.ws().join("dir/new by the host"), "x");
    let before = picture(&world.ws());
    let applied = world.apply_everything();
    let refused: Vec<_> = applied.refused.iter().map(|(spot, _)| spot.path.to_str().unwrap()).collect();
    assert!(applied.nothing && refused.contains(&"change") && refused.contains(&"dir/new by the host"), "{refused:?}");
    assert_eq!(picture(&world.ws()), before);

    // What is named is done where it can be.
    let some = Wanted { paths: vec![spot("change"), spot("new")], ..Wanted::default() };
    let applied = world.apply(&some);
    assert_eq!((applied.done, applied.refused.len()), (1, 1), "{applied:?}");
    assert!(world.ws().join("new").exists() && !world.ws().join("made").exists());

    let taken = Wanted { paths: vec![spot("change")], take: vec![spot("change")] };
    assert_eq!(world.apply(&taken).done, 1);
    assert_eq!(std::fs::read_to_string(world.ws().join("change")).unwrap(), "changed\n");

    // A directory that something of the host stays in stays itself; the rest of it goes.
    let dir = Wanted { paths: vec![spot("dir")], ..Wanted::default() };
    let applied = world.apply(&dir);
    assert!(applied.refused.iter().any(|(spot, _)| spot.path == Path::new("dir")), "{applied:?}");
    assert!(world.ws().join("dir/new by the host").exists() && !world.ws().join("dir/a").exists());
}

#[test]
fn the_same_change_on_both_sides_is_none() {
    let world = World::new();
    world.overlaid();
    write(&world.ws().join("change"), "changed\n");
    let applied = world.apply_everything();
    assert!(applied.refused.is_empty() && !applied.left, "{applied:?}");
}

#[test]
fn single_paths_leave_the_meaning_of_the_rest() {
    let world = World::new();
    let after = expected(&world);
    world.overlaid();
    // Out of an opaque directory, one after another.
    for path in ["again/fresh", "again/in", "to-dir", "made/inner/f", "dir/a"] {
        world.apply(&Wanted { paths: vec![spot(path)], ..Wanted::default() });
        assert!(!world.ws().join("gone").exists() || world.ws().join("keep").exists());
    }
    let left: Vec<_> = scan(&world.layer().unwrap(), &world.tree()).unwrap().0.changes;
    assert!(left.iter().any(|change| change.path == Path::new("again/old") && change.is_deletion()), "{left:?}");
    assert!(left.iter().all(|change| change.path != Path::new("again/in/older")));
    world.apply_everything();
    assert_eq!(picture(&world.ws()), after);
}

#[test]
fn discarded_paths_show_the_host_again() {
    let world = World::new();
    let before = picture(&world.ws());
    world.overlaid();
    for path in ["again/old", "change", "made", "to-file"] {
        assert!(apply::discard(&world.held(), world.layer().unwrap(), &[spot(path)]).unwrap() > 0, "{path}");
    }
    let left = scan(&world.layer().unwrap(), &world.tree()).unwrap().0.changes;
    let names: Vec<_> = left.iter().map(|change| change.path.to_str().unwrap()).collect();
    for gone in ["again/old", "change", "made", "made/inner", "made/inner/f", "to-file", "to-file/x"] {
        assert!(!names.contains(&gone), "{gone} in {names:?}");
    }
    assert!(names.contains(&"again/in/older") && names.contains(&"again/fresh") && names.contains(&"new"), "{names:?}");
    let error = apply::discard(&world.held(), world.layer().unwrap(), &[spot("dir/a")]).unwrap_err();
    assert!(error.message.contains("dir/a is gone because dir is"), "{error}");
    apply::discard(&world.held(), world.layer().unwrap(), &[]).unwrap();
    assert!(world.layer().is_none());
    assert_eq!(picture(&world.ws()), before);
}

#[test]
fn a_layer_of_hostile_shape_is_removed() {
    let world = World::new();
    let upper = world.overlaid();
    let mut deep = upper.clone();
    for _ in 0..300 {
        deep.push("d");
        std::fs::create_dir(&deep).unwrap();
    }
    for at in deep.ancestors().take_while(|at| *at != upper) {
        std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    apply::discard(&world.held(), world.layer().unwrap(), &[]).unwrap();
    assert!(!upper.exists() && world.layer().is_none());
}

fn parts(tree: &Tree) -> Vec<Part> {
    let meta = std::fs::metadata(&tree.path).unwrap();
    vec![Part { path: tree.path.clone(), dev: meta.dev(), ino: meta.ino() }]
}

fn take(world: &World) -> u64 {
    let held = world.held();
    checkpoint::take(&held, &parts(&held.tree), &[&held.tree.root], None, String::new()).unwrap().number
}

fn roll_back(world: &World, number: u64) {
    let held = world.held();
    let back = Checkpoint::open(&held.tree, Some(number)).unwrap();
    let parts = back.parts(&held.tree);
    let (wishes, _) = back.way(&parts, &[&held.tree.root], None).unwrap();
    let journal = checkpoint::begin(&held, &parts, &[&held.tree.root], wishes).unwrap();
    assert!(apply::complete(&held.tree, journal).unwrap().is_empty());
}

fn havoc(world: &World) {
    let ws = world.ws();
    write(&ws.join("change"), "x");
    std::fs::remove_file(ws.join("gone")).unwrap();
    std::fs::remove_dir_all(ws.join("again")).unwrap();
    write(&ws.join("again"), "a file");
    write(&ws.join("more/and/more"), "m");
    std::fs::remove_file(ws.join("to-dir")).unwrap();
    write(&ws.join("to-dir/z"), "z");
    std::fs::remove_file(ws.join("link")).unwrap();
    symlink("/", ws.join("link")).unwrap();
    std::fs::set_permissions(ws.join("dir"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(ws.join("keep"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_checkpoint_brings_everything_back_and_can_be_undone() {
    let world = World::new();
    let before = picture(&world.ws());
    let first = take(&world);
    havoc(&world);
    let wild = picture(&world.ws());
    let second = take(&world);
    roll_back(&world, first);
    assert_eq!(picture(&world.ws()), before);
    roll_back(&world, second);
    assert_eq!(picture(&world.ws()), wild);
    roll_back(&world, first);
    assert_eq!(picture(&world.ws()), before);
}

#[test]
fn a_way_back_that_is_killed_is_finished_or_did_not_begin() {
    for n in 0.. {
        let world = World::new();
        let before = picture(&world.ws());
        let number = take(&world);
        havoc(&world);
        let wild = picture(&world.ws());
        if killed_at(n, || roll_back(&world, number)).is_some() {
            assert!(n > 20, "only {n} places");
            break;
        }
        drop(world.held());
        let now = picture(&world.ws());
        if now != before {
            assert_eq!(now, wild, "killed at {n}");
            roll_back(&world, number);
        }
        assert_eq!(picture(&world.ws()), before, "killed at {n}");
    }
}

#[test]
fn unchanged_files_are_stored_once_and_go_with_the_last_checkpoint_of_them() {
    let world = World::new();
    std::thread::sleep(std::time::Duration::from_millis(60));
    let before = picture(&world.ws());
    let first = take(&world);
    write(&world.ws().join("change"), "x");
    let second = take(&world);
    let dir = |number: u64| world.tree().state.join("checkpoints").join(number.to_string());
    let meta = |number: u64, pack: u64| std::fs::metadata(dir(number).join(format!("pack-{pack}"))).unwrap();
    assert_eq!((meta(second, second).len(), meta(second, first).ino()), (1, meta(first, first).ino()));
    let changed = picture(&world.ws());
    roll_back(&world, first);
    assert_eq!(picture(&world.ws()), before);
    std::fs::remove_dir_all(dir(first)).unwrap();
    roll_back(&world, second);
    assert_eq!(picture(&world.ws()), changed);
    for _ in 0..12 {
        take(&world);
    }
    assert_eq!(checkpoint::list(&world.tree()).len(), 8, "old ones go");
}

#[test]
fn a_checkpoint_that_is_killed_is_none() {
    for n in 0.. {
        let world = World::new();
        if killed_at(n, || take(&world)).is_some() {
            assert!(n > 5);
            break;
        }
        assert!(checkpoint::list(&world.tree()).is_empty(), "killed at {n}");
        let number = take(&world);
        assert_eq!(checkpoint::list(&world.tree()).len(), 1);
        assert!(number > 0);
    }
}

#[test]
fn holes_stay_holes() {
    let world = World::new();
    let sparse = world.ws().join("sparse");
    let file = std::fs::File::create(&sparse).unwrap();
    file.set_len(10 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 5 << 30).unwrap();
    let number = take(&world);
    std::fs::remove_file(&sparse).unwrap();
    let begun = std::time::Instant::now();
    roll_back(&world, number);
    let meta = std::fs::metadata(&sparse).unwrap();
    assert_eq!(meta.len(), 10 << 30);
    assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
    assert!(begun.elapsed().as_secs() < 5);
    let mut middle = [0; 6];
    std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::open(&sparse).unwrap(), &mut middle, 5 << 30).unwrap();
    assert_eq!(&middle, b"middle");
}

#[test]
fn nobody_knows_who_changed_the_mode_of_a_directory() {
    let world = World::new();
    let upper = world.overlaid();
    let chmod = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    // The layer has the directory with the mode that it had; the host takes a right away since.
    chmod(&upper.join("again"), 0o755);
    chmod(&world.ws().join("again"), 0o700);
    let applied = world.apply(&Wanted { paths: vec![spot("again")], ..Wanted::default() });
    assert!(applied.refused.iter().any(|(spot, _)| spot.path == Path::new("again")), "{applied:?}");
    assert_eq!(std::fs::metadata(world.ws().join("again")).unwrap().mode() & 0o777, 0o700);
}
