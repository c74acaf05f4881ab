#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// A home with a workspace in it that the sandbox may write, and a private tree.
struct World {
    _keep: tempfile::TempDir,
    home: PathBuf,
}

impl World {
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let home = keep.path().canonicalize().unwrap().join("u");
        std::fs::create_dir_all(home.join("work")).unwrap();
        Self { _keep: keep, home }
    }

    fn file(&self, path: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.home.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    fn program(&self, path: &str, text: &str) -> PathBuf {
        self.file(path, text, 0o755)
    }

    fn link(&self, path: &str, to: impl AsRef<Path>) {
        let path = self.home.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    fn of(&self, command: &str, path_var: &str) -> Closure {
        let work = self.home.join("work");
        let system = |path: &Path| ["/usr", "/bin", "/lib"].iter().any(|root| path.starts_with(root));
        let ground = Ground {
            home: Some(&self.home),
            trusted: &|path| !path.starts_with(&work),
            granted: &|path| path.starts_with(&work) || system(path),
        };
        closure(OsStr::new(command), Some(OsStr::new(path_var)), &work, &ground)
    }

    fn granted(&self, closure: &Closure) -> Vec<String> {
        let relative = |grant: &Grant| grant.path.strip_prefix(&self.home).unwrap_or(&grant.path).display().to_string();
        closure.grants.iter().map(relative).collect()
    }
}

#[test]
fn a_system_program_needs_nothing() {
    let world = World::new();
    let closure = world.of("true", "/usr/bin");
    assert_eq!(closure.program, Ok("/usr/bin/true".into()));
    assert!(closure.grants.is_empty() && closure.refused.is_empty());
}

#[test]
fn search_is_execvp_s() {
    let world = World::new();
    let tool = world.program("b/tool", "");
    let text = world.file("a/tool", "", 0o644);
    let path = format!("{}:{}", world.home.join("a").display(), world.home.join("b").display());
    assert_eq!(world.of("tool", &path).program, Ok(tool));
    assert_eq!(world.of("tool", world.home.join("a").to_str().unwrap()).program, Err(Missing::NotExecutable(text)));
    assert_eq!(world.of("none", &path).program, Err(Missing::NotFound));
    assert_eq!(world.of("", &path).program, Err(Missing::NotFound));
    assert_eq!(world.of("/none/such", &path).program, Err(Missing::NotFound));
    assert!(matches!(world.of(world.home.to_str().unwrap(), &path).program, Err(Missing::NotExecutable(_))));
    let here = world.program("work/here", "");
    assert_eq!(world.of("./here", "").program, Ok(world.home.join("work/./here")));
    assert_eq!(world.of("here", ":/usr/bin").program.unwrap().canonicalize().unwrap(), here);
}

#[test]
fn a_tool_in_home_with_its_interpreter() {
    let world = World::new();
    world.program("prefix/bin/interp", "\x7fELF");
    world.program("prefix/lib/x.so", "");
    world.program(".local/bin/tool", &format!("#!{}\n", world.home.join("prefix/bin/interp").display()));
    let closure = world.of("tool", world.home.join(".local/bin").to_str().unwrap());
    assert_eq!(world.granted(&closure), [".local/bin/tool", "prefix/bin", "prefix/lib"]);
}

#[test]
fn env_searches_the_inside_path() {
    let world = World::new();
    world.program(".nvm/versions/node/v22/bin/node", "\x7fELF");
    world.program("work/cli.js", "#!/usr/bin/env node\n");
    let closure = world.of("./cli.js", &format!("{}:/usr/bin", world.home.join(".nvm/versions/node/v22/bin").display()));
    assert_eq!(world.granted(&closure), [".nvm/versions/node/v22"]);
}

#[test]
fn npm_global_package() {
    let world = World::new();
    world.program(".local/lib/node_modules/pkg/cli.js", "#!/usr/bin/true\n");
    world.link(".local/bin/pkg", "../lib/node_modules/pkg/cli.js");
    let closure = world.of("pkg", world.home.join(".local/bin").to_str().unwrap());
    assert_eq!(world.granted(&closure), [".local/lib/node_modules", ".local/bin/pkg"]);
}

fn environment(world: &World, at: &str, python: &str) {
    world.program(python, "\x7fELF");
    let bin = world.home.join(python);
    world.file(&format!("{at}/pyvenv.cfg"), &format!("home = {}\n", bin.parent().unwrap().display()), 0o644);
    world.link(&format!("{at}/bin/python"), &bin);
    world.link(&format!("{at}/bin/python3"), "python");
}

fn editable_install(world: &World, environment: &str, project: &str) {
    std::fs::create_dir_all(world.home.join(project)).unwrap();
    let site = format!("{environment}/lib/python3.11/site-packages");
    world.file(&format!("{site}/__editable__.agent-1.pth"), "", 0o644);
    let url = format!("{{\"url\":\"file://{}\",\"dir_info\":{{\"editable\":true}}}}", world.home.join(project).display());
    world.file(&format!("{site}/agent-1.dist-info/direct_url.json"), &url, 0o644);
}

#[test]
fn hostile_editable_install() {
    let world = World::new();
    world.program("work/.venv/bin/run", "");
    world.file("work/.venv/pyvenv.cfg", "home = /usr/bin\n", 0o644);
    for project in [".ssh", "other", "."] {
        editable_install(&world, "work/.venv", project);
        let closure = world.of(".venv/bin/run", "");
        assert_eq!(closure.grants, [], "{project}");
        assert_eq!(closure.refused.len(), 1, "{project}");
    }
}

#[test]
fn environment_outside_the_workspace() {
    let world = World::new();
    environment(&world, "tools/venv", ".pyenv/versions/3.11.7/bin/python3");
    world.program("tools/venv/bin/agent", &format!("#!{}\n", world.home.join("tools/venv/bin/python3").display()));
    editable_install(&world, "tools/venv", "src/agent");
    let closure = world.of(world.home.join("tools/venv/bin/agent").to_str().unwrap(), "");
    assert_eq!(world.granted(&closure), ["tools/venv", "src/agent", ".pyenv"]);
    assert!(closure.refused.is_empty());
}

#[test]
fn environment_in_the_workspace_over_a_known_toolchain() {
    let world = World::new();
    environment(&world, "work/.venv", ".local/share/uv/python/cpython-3.12/bin/python3");
    let closure = world.of(".venv/bin/python3", "");
    let granted = world.granted(&closure);
    assert!(granted.contains(&".local/share/uv/python/cpython-3.12".to_owned()), "{granted:?}");
    assert!(closure.refused.is_empty(), "{:?}", closure.refused);
}

#[test]
fn hostile_shebang() {
    let world = World::new();
    world.file(".ssh/id_test", "KEY", 0o600);
    world.program("other/bin/secret-tool", "");
    world.program(".local/bin/mine", "");
    for target in [".ssh/id_test", ".ssh", "other/bin/secret-tool", ".local/bin/mine", "none"] {
        world.program("work/run", &format!("#!{}\n", world.home.join(target).display()));
        let closure = world.of("./run", "");
        assert_eq!(world.granted(&closure), [""; 0], "{target}");
        assert_eq!(closure.refused.is_empty(), target == "none", "{target}");
    }
    for target in ["/etc/shadow", "/etc/passwd", "/"] {
        world.program("work/run", &format!("#!{target}\n"));
        assert_eq!(world.of("./run", "").grants, [], "{target}");
    }
}

#[test]
fn hostile_name_for_env() {
    let world = World::new();
    world.program("other/bin/tool", "");
    for line in ["/usr/bin/env ../other/bin/tool", "/usr/bin/env -S ../other/bin/tool x"] {
        world.program("work/run", &format!("#!{line}\n"));
        assert_eq!(world.of("./run", "/usr/bin").grants, [], "{line}");
    }
}

#[test]
fn hostile_environment() {
    let world = World::new();
    world.file(".ssh/python3", "KEY", 0o600);
    world.program("other/bin/python3", "");
    world.program("other/lib/data", "");
    world.program("work/.venv/bin/run", "");
    for home in [".ssh", "other/bin"] {
        world.file("work/.venv/pyvenv.cfg", &format!("home = {}\n", world.home.join(home).display()), 0o644);
        let closure = world.of(".venv/bin/run", "");
        assert_eq!(closure.grants, [], "{home}");
        assert_eq!(closure.refused.len(), 1, "{home}");
    }
}

/// The way to it does not make a file in the workspace any better.
#[test]
fn hostile_environment_by_another_name() {
    let world = World::new();
    world.program("other/bin/python3", "");
    world.program("work/.venv/bin/run", "");
    world.link("alias", "work");
    world.file("work/.venv/pyvenv.cfg", &format!("home = {}\n", world.home.join("other/bin").display()), 0o644);
    for command in ["../x/../work/.venv/bin/run", "../alias/.venv/bin/run"] {
        std::fs::create_dir_all(world.home.join("x")).unwrap();
        let closure = world.of(command, "");
        assert!(!world.granted(&closure).iter().any(|path| path.contains("other")), "{command}: {closure:?}");
        assert!(!closure.refused.is_empty(), "{command}");
    }
}

#[test]
fn hostile_symlink() {
    let world = World::new();
    world.file(".ssh/id_test", "KEY", 0o600);
    world.program("other/bin/tool", "");
    for target in [".ssh/id_test", "other/bin/tool", "other"] {
        let _ = std::fs::remove_file(world.home.join("work/l"));
        world.link("work/l", world.home.join(target));
        assert_eq!(world.of("./l", "").grants, [], "{target}");
        assert_eq!(world.of("./l/bin/tool", "").grants, [], "{target}");
    }
    // Over a trusted symlink that leads to a private place.
    world.link("other/way", world.home.join(".ssh"));
    world.program(".ssh/run", "");
    world.program("work/run", &format!("#!{}\n", world.home.join("other/way/run").display()));
    assert_eq!(world.of("./run", "").grants, []);
    // And over one that leads to a public place: its own place is not told either.
    world.link("other/true", "/usr/bin/true");
    world.program("work/run", &format!("#!{}\n", world.home.join("other/true").display()));
    assert_eq!(world.of("./run", "").grants, []);
}

/// A workspace that is itself somebody's `bin`, or lies in somebody's packages.
#[test]
fn a_hostile_program_does_not_open_its_surroundings() {
    let world = World::new();
    world.file("lib/private", "", 0o644);
    world.file("share/private", "", 0o644);
    world.program("p/bin/run", "");
    world.program("p/lib/private", "");
    world.program("q/node_modules/w/run", "");
    for (workspace, program) in [("p/bin", "p/bin/run"), ("q/node_modules/w", "q/node_modules/w/run")] {
        let workspace = world.home.join(workspace);
        let ground = Ground {
            home: Some(&world.home),
            trusted: &|path| !path.starts_with(&workspace),
            granted: &|path| path.starts_with(&workspace),
        };
        let closure = closure(world.home.join(program).as_os_str(), None, &workspace, &ground);
        assert_eq!(closure.grants, [], "{program}");
    }
}

#[test]
fn a_tool_in_home_itself_grants_no_more_than_itself() {
    let world = World::new();
    world.program("bin/tool", "");
    world.program("lib/x", "");
    let closure = world.of("tool", world.home.join("bin").to_str().unwrap());
    assert_eq!(world.granted(&closure), ["bin/tool"]);
}

#[test]
fn loops_end() {
    let world = World::new();
    let a = world.program("a", &format!("#!{}\n", world.home.join("b").display()));
    world.program("b", &format!("#!{}\n", a.display()));
    assert_eq!(world.granted(&world.of(a.to_str().unwrap(), "")), ["a", "b"]);
}
