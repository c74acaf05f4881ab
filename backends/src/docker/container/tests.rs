use super::*;
use crate::docker::launch::enclosure;
use crate::host::Enclosure;

fn facts() -> Facts {
    Facts::sample("/run/docker.sock", "/var/lib/docker")
}

fn wanted() -> Wanted {
    Wanted {
        image: "debian".into(),
        platform: None,
        program: "/usr/bin/hermes-sandbox".into(),
        arguments: vec!["remote".into()],
        uid: 1000,
        gid: 1001,
        home: Some("/home/joe".into()),
        grants: vec![
            Grant { source: "/home/joe/ws".into(), target: "/home/joe/ws".into(), writable: true },
            Grant { source: "/data/real".into(), target: "/data/link".into(), writable: false },
        ],
        limits: TreeLimits { memory: Some(1 << 30), processes: Some(100), cpu_percent: Some(150) },
        scratch: Some(1 << 20),
        shm: Some(1 << 16),
        labels: vec![("hermes-sandbox.owner".into(), "1000".into())],
    }
}

fn image() -> Image {
    Image { id: "sha256:ab".into(), environment: Vec::new(), volumes: vec!["/var/lib/db".into(), "/tmp".into()] }
}

fn host(facts: &Facts, wanted: &Wanted) -> HostConfig {
    body(facts, wanted, &image()).host_config.unwrap_or_default()
}

#[test]
fn it_has_nothing_that_was_not_asked_for() {
    let body = body(&facts(), &wanted(), &image());
    let host = body.host_config.clone().unwrap_or_default();
    assert_eq!(host.cap_drop, Some(vec!["ALL".into()]));
    assert_eq!((host.cap_add, host.devices, host.binds, host.group_add), (None, None, None, None));
    assert_eq!((host.privileged, host.readonly_rootfs, host.auto_remove), (Some(false), Some(true), Some(true)));
    assert_eq!((host.network_mode.as_deref(), body.network_disabled), (Some("none"), Some(true)));
    assert_eq!(
        (host.ipc_mode.as_deref(), host.pid_mode.as_deref(), host.uts_mode.as_deref()),
        (Some("private"), Some(""), Some(""))
    );
    assert!(host.security_opt.unwrap_or_default().contains(&"no-new-privileges".to_owned()));
    assert_eq!(host.log_config.and_then(|log| log.typ).as_deref(), Some("none"), "the channel is not logged");
    assert_eq!(body.image.as_deref(), Some("sha256:ab"), "what was looked at, not what has its name now");
    assert_eq!(body.entrypoint, Some(vec![PROGRAM.into(), "remote".into()]));
    assert_eq!((body.cmd, body.env), (Some(Vec::new()), None));
    assert_eq!((body.open_stdin, body.stdin_once, body.tty), (Some(true), Some(true), Some(false)));
}

#[test]
fn it_sees_the_grants_and_its_own_places() {
    let host = host(&facts(), &wanted());
    let mounts: Vec<_> = host
        .mounts
        .iter()
        .flatten()
        .map(|mount| (mount.source.as_deref().unwrap_or("-"), mount.target.as_deref().unwrap_or("-"), mount.read_only))
        .collect();
    assert_eq!(
        mounts,
        [
            ("/usr/bin/hermes-sandbox", PROGRAM, Some(true)),
            ("-", "/var/lib/db", None),
            ("/home/joe/ws", "/home/joe/ws", Some(false)),
            ("/data/real", "/data/link", Some(true)),
        ]
    );
    for mount in host.mounts.iter().flatten().filter(|mount| mount.typ == Some(MountType::BIND)) {
        let options = mount.bind_options.clone().unwrap_or_default();
        assert_eq!(options.propagation, Some(MountBindOptionsPropagationEnum::RPRIVATE));
        assert_eq!((options.non_recursive, options.create_mountpoint), (Some(true), None));
    }
    let tmpfs = host.tmpfs.unwrap_or_default();
    let mut names: Vec<_> = tmpfs.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["/home/joe", "/run", "/tmp", "/var/tmp"]);
    assert_eq!(tmpfs["/home/joe"], "rw,nosuid,nodev,exec,mode=0700,uid=1000,gid=1001,size=1048576");
    assert_eq!(host.shm_size, Some(1 << 16));
}

#[test]
fn a_granted_place_is_not_its_own() {
    let grant = |path: &str| Grant { source: path.into(), target: path.into(), writable: true };
    let wanted = Wanted { grants: vec![grant("/tmp"), grant("/home/joe")], ..wanted() };
    let tmpfs = host(&facts(), &wanted).tmpfs.unwrap_or_default();
    assert!(tmpfs.len() == 2 && tmpfs.contains_key("/run") && tmpfs.contains_key("/var/tmp"), "{tmpfs:?}");
}

#[test]
fn limits_are_only_asked_for_where_they_hold() {
    let held = host(&facts(), &wanted());
    assert_eq!((held.memory, held.memory_swap), (Some(1 << 30), Some(1 << 30)), "swap included");
    assert_eq!((held.pids_limit, held.nano_cpus), (Some(100), Some(1_500_000_000)));
    let none = Facts { limits_memory: false, limits_processes: false, limits_cpu: false, ..facts() };
    let unheld = host(&none, &wanted());
    assert_eq!((unheld.memory, unheld.pids_limit, unheld.nano_cpus), (None, None, None));
    assert_eq!(enclosure(&none, &wanted()), Enclosure::default());
    assert_eq!(enclosure(&facts(), &wanted()), Enclosure { memory: true, processes: true, cpu: true });
}

#[test]
fn files_come_out_as_the_callers() {
    let who = |facts: Facts| {
        let body = body(&facts, &wanted(), &image());
        (body.user.unwrap_or_default(), body.host_config.and_then(|host| host.userns_mode).unwrap_or_default())
    };
    let pair = |user: &str, userns: &str| (user.to_owned(), userns.to_owned());
    assert_eq!(who(facts()), pair("1000:1001", ""));
    assert_eq!(who(Facts { remapped: true, ..facts() }), pair("1000:1001", "host"));
    assert_eq!(who(Facts { rootless: true, ..facts() }), pair("0:0", ""));
    assert_eq!(who(Facts { rootless: true, kind: Kind::Podman, ..facts() }), pair("1000:1001", "keep-id"));
}

#[test]
fn proc_is_bare_only_for_who_can_do_nothing_with_it() {
    let bare = |facts: &Facts, wanted: &Wanted| {
        let host = host(facts, wanted);
        assert_eq!(host.masked_paths, host.readonly_paths);
        host.masked_paths == Some(Vec::new())
    };
    assert!(bare(&facts(), &wanted()));
    assert!(!bare(&facts(), &Wanted { uid: 0, gid: 0, ..wanted() }), "root owns /proc/sys");
    assert!(!bare(&Facts { rootless: true, ..facts() }, &wanted()), "root inside");
    assert!(!bare(&Facts { apparmor: true, ..facts() }, &wanted()), "it would not help");
    let podman = Facts { kind: Kind::Podman, ..facts() };
    let options = |wanted: &Wanted| host(&podman, wanted).security_opt.unwrap_or_default();
    assert!(options(&wanted()).contains(&"unmask=ALL".to_owned()));
    assert_eq!(options(&Wanted { uid: 0, ..wanted() }), ["no-new-privileges"]);
}
