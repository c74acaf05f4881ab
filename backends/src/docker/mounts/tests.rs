use super::*;

fn facts(kind: Kind, socket: &Path, root: &Path) -> Facts {
    Facts { kind, ..Facts::sample(socket, root) }
}

fn grant(path: impl Into<PathBuf>) -> Grant {
    let path = path.into();
    Grant { source: path.clone(), target: path, writable: false }
}

#[test]
fn what_would_undo_the_container_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("engine/data")).unwrap();
    std::fs::create_dir_all(at("work")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("engine/docker.sock")).unwrap();
    let refused = |kind, path: PathBuf| {
        let known = facts(kind, &at("engine/docker.sock"), &at("engine/data"));
        refuse_dangerous(&[grant(path)], &known).err().map(|error| error.message)
    };
    let docker = |path: PathBuf| refused(Kind::Docker, path).unwrap_or_default();
    assert_eq!(refused(Kind::Docker, at("work")), None);
    assert!(docker("/".into()).contains("the whole machine"));
    assert!(docker(at("engine/docker.sock")).contains("engine's socket"));
    assert!(docker(at("engine")).contains("engine's socket"));
    assert!(docker(dir.path().into()).contains("engine's socket"));
    assert!(docker(at("engine/data")).contains("own files"));
    assert!(docker(at("engine/data/overlay2")).contains("own files"));
    assert!(docker("/proc/1/root".into()).contains("/proc"));
    assert!(docker("/dev/vda".into()).contains("/dev"));
    assert!(docker("/sys".into()).contains("/sys"));
    assert!(docker(PROGRAM.into()).contains(PROGRAM));
    assert_eq!(refused(Kind::Docker, at("a,b=c")), None, "JSON takes it");
    assert!(refused(Kind::Podman, at("a,rw=true")).unwrap().contains("Podman does not take such a name"));
    assert!(docker(at("a\nb")).contains("does not take such a name"));
}

#[test]
fn a_source_is_what_it_was_or_nothing_runs() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    std::fs::create_dir_all(root.join("real/ws")).unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
    let seen = expected(&[grant(root.join("real/ws"))]).unwrap();
    verify(&seen).unwrap();
    assert!(expected(&[grant(root.join("link/ws"))]).is_err(), "a symlink on the way");
    std::fs::rename(root.join("real/ws"), root.join("real/old")).unwrap();
    assert!(verify(&seen).is_err(), "gone");
    std::fs::create_dir(root.join("real/ws")).unwrap();
    let error = verify(&seen).unwrap_err();
    assert!(error.message.contains("mounted something else"), "{error}");
    std::os::unix::fs::symlink(root.join("real/old"), root.join("real/swapped")).unwrap();
    assert!(verify(&[Expected { target: root.join("real/swapped"), ..seen[0].clone() }]).is_err(), "not through a symlink");
}

#[test]
fn file_systems_below_are_told() {
    let mountinfo = "22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:9 / /home/joe/ws/cache rw - tmpfs t rw\n31 22 0:9 / /home/joe/ws2 rw - tmpfs t rw\n";
    let grants = [grant("/home/joe/ws"), grant("/home/joe/other"), grant("/home/joe/ws2")];
    assert_eq!(hidden_below(&grants, mountinfo), [Path::new("/home/joe/ws")]);
}
