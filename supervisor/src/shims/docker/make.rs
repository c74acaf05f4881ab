//! Making and starting containers.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use hermes_profiles::paths::covers;
use hermes_profiles::{Limits, Network, Policy, trust};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, mkdirat};
use nix::unistd::{getegid, geteuid};
use serde_json::json;

use super::container::{Container, Record};
use super::wanted::{self, Allowed, Bind, Wanted};
use super::{How, daemon, in_container};
use crate::args::docker::{Create, Run};
use crate::args::{Net, PolicyArgs};
use crate::beneath::{Root, kind};
use crate::clock;
use crate::engine;
use crate::error::Error;
use crate::fresh;
use crate::output;
use crate::request;
use crate::session::command::{START, launch, print_log};
use crate::session::place::{OF_SHIM, Place, starting};
use crate::shims::options;
use crate::shims::shim::Shim;
use crate::state::private_directory;

/// Tells the policies of shims apart.
pub(super) fn fingerprint(shim: &Shim) -> Result<String, Error> {
    let all = json!({"version": env!("CARGO_PKG_VERSION"), "options": shim.header.options, "policy": shim.base()?});
    let bytes = serde_json::to_vec(&all).map_err(|e| Error::setup(format!("cannot compare policies: {e}")))?;
    Ok(trust::hash(&bytes))
}

pub(super) fn allowed(policy: &Policy) -> Allowed {
    Allowed {
        host_network: policy.network == Network::Host,
        broad: policy.allow_broad,
        home: policy.home.dir.clone(),
        sockets: policy.unix.connect.clone(),
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
    }
}

fn wanted(shim: &Shim, create: &Create) -> Result<Wanted, Error> {
    let allowed = allowed(shim.base()?);
    let wanted = wanted::wanted(create, &allowed, &|name| std::env::var(name).ok()).map_err(Error::usage)?;
    for bind in &wanted.binds {
        let shown = output::path(&bind.host);
        let real = std::fs::canonicalize(&bind.host)
            .map_err(|e| Error::usage(format!("-v {shown}: {e}")).hint("make it first: this shim makes nothing on the host"))?;
        let metadata = real.metadata().map_err(|e| Error::usage(format!("-v {shown}: {e}")))?;
        if metadata.file_type().is_socket() {
            wanted::refuse_socket(bind, &real, &allowed).map_err(Error::usage)?;
        }
        // The text of the path was judged; here is what it leads to.
        if !allowed.broad && hermes_profiles::is_broad(&real, allowed.home.as_deref()) {
            return Err(Error::usage(format!("-v {shown} is refused: it leads to {}, which is too much", output::path(&real))));
        }
    }
    Ok(wanted)
}

/// `create`: remembers a container.
pub(super) fn create(shim: &Shim, create: &Create) -> Result<(), Error> {
    let wanted = wanted(shim, create)?;
    let container = make(shim, create, wanted)?;
    output::print(&format!("{}\n", container.record.id))
}

/// `run`: with `-d` a container that stays until its client ends; the id is printed. Else a command in one of its own.
pub(super) fn run(shim: &Shim, run: &Run) -> Result<u8, Error> {
    let wanted = wanted(shim, &run.create)?;
    if run.detach
        && let Some(same) = same(shim, &wanted)?
    {
        return output::print(&format!("{}\n", same.record.id)).map(|()| 0);
    }
    let mut container = make(shim, &run.create, wanted)?;
    if let Err(error) = start(shim, &mut container) {
        container.place.remove();
        return Err(error);
    }
    let lost = || Error::setup("the container has ended at once");
    let command = container.record.wanted.command.clone();
    let how = How { detach: run.detach, interactive: run.create.interactive, tty: run.create.tty, workdir: None };
    if run.detach {
        // To sleep is all that keeps a container there; a sandbox is there without.
        if !(command.is_empty() || command[0] == "sleep") {
            in_container(&container, &mut container.reach().ok_or_else(lost)?, &command, Default::default(), how)?;
        }
        return output::print(&format!("{}\n", container.record.id)).map(|()| 0);
    }
    let mut client = container.reach().ok_or_else(lost)?;
    let status = match command.is_empty() {
        true => Ok(0),
        false => in_container(&container, &mut client, &command, Default::default(), how),
    };
    drop(client);
    match run.create.rm {
        true => container.stop().map(|()| container.place.remove())?,
        false => container.stop()?,
    }
    status
}

/// A container of this client that runs with exactly what is wanted, labels included, under this policy. The agent leaves one
/// running when it has not been used for some time, and asks for another later.
fn same(shim: &Shim, wanted: &Wanted) -> Result<Option<Container>, Error> {
    if !wanted.labels.contains_key("hermes-task-id") {
        return Ok(None);
    }
    let (policy, client) = (fingerprint(shim)?, shim.client.to_string());
    let same = |container: &Container| {
        let record = &container.record;
        record.policy == policy && record.client == client && record.wanted == *wanted && container.reach().is_some()
    };
    Ok(Container::all()?.into_iter().find(same))
}

/// Makes the directory of a container and what is remembered.
fn make(shim: &Shim, create: &Create, wanted: Wanted) -> Result<Container, Error> {
    let random = fresh::random::<32>().map_err(|e| Error::setup(format!("cannot make an id: {e}")))?;
    let id = trust::hash(&random);
    let name = create.name.clone().unwrap_or_else(|| format!("container-{}", &id[..12]));
    if name.starts_with(OF_SHIM) {
        return Err(Error::usage(format!("a container cannot be called {}", output::clean(&name))));
    }
    let _lock = starting()?;
    let place = Place::of(&name)?;
    if place.dir.exists() {
        let message = format!("Conflict. The container name \"/{name}\" is already in use");
        return Err(Error { kind: crate::error::Kind::Usage, ..daemon(message) });
    }
    let cannot = |e: std::io::Error| Error::setup(format!("cannot keep a container in {}: {e}", output::path(&place.dir)));
    private_directory(&place.dir, true).map_err(cannot)?;
    let work = place.work();
    if let Some(all) = work.parent() {
        private_directory(all, true).map_err(cannot)?;
    }
    private_directory(&work, true).map_err(cannot)?;
    let machine = engine::measure(request::cache_dir(&shim.caller).as_deref()).memory;
    let args = policy_of(&shim.args, shim.base()?, machine, &wanted, &work);
    let home = ["/root"].into_iter().find(|home| is_placed(&wanted, Path::new(home))).map(str::to_owned);
    let record = Record {
        id,
        created: clock::milliseconds(),
        finished: None,
        policy: fingerprint(shim)?,
        client: shim.client.to_string(),
        home,
        options: options::record(&args, Path::new("/"))?,
        wanted,
    };
    // Refused here rather than in the log of a session.
    let made = shim.policy(&args).and_then(|_| {
        let container = Container { place, record };
        container.save().map(|()| container)
    });
    made.inspect_err(|_| Place::of(&name).iter().for_each(Place::remove))
}

/// Is there something at this path that was asked for?
fn is_placed(wanted: &Wanted, at: &Path) -> bool {
    wanted.binds.iter().any(|bind| bind.inside == at) || wanted.scratch.iter().any(|scratch| scratch == at)
}

/// The policy of a container: the shim's own, with what is mounted, and with limits that are never wider. `machine` is the memory
/// of this one.
fn policy_of(shim: &PolicyArgs, policy: &Policy, machine: u64, wanted: &Wanted, work: &Path) -> PolicyArgs {
    let mut args = shim.clone();
    // The guard looks after what the agent works on; without such a mount there is a directory for it.
    let workspace =
        wanted.binds.iter().find(|bind| bind.inside == Path::new("/workspace") && !bind.read_only && bind.host.is_dir());
    args.workspace = Some(workspace.map_or(work, |bind| &bind.host).to_owned());
    for bind in &wanted.binds {
        let list = if bind.read_only { &mut args.ro } else { &mut args.rw };
        list.push(bind.host.clone());
    }
    for Bind { host, inside, .. } in wanted.binds.iter().filter(|bind| bind.host != bind.inside) {
        args.alias.push(format!("{}={}", inside.display(), host.display()));
    }
    args.scratch_at.extend(wanted.scratch.iter().cloned());
    if wanted.offline {
        args.net = Some(Net::Off);
        args.allow_host.clear();
    }
    let Limits { memory, memory_percent, processes, cpu_percent, shm, .. } = policy.limits;
    let share = memory_percent.map(|percent| machine / 100 * u64::from(percent));
    let least = |asked: Option<u64>, own: Option<u64>| asked.map(|asked| own.map_or(asked, |own| own.min(asked)));
    let limits = [
        ("memory", least(wanted.memory, memory.into_iter().chain(share).min()).map(|bytes| bytes.to_string())),
        ("processes", least(wanted.processes, processes).map(|number| number.to_string())),
        ("shm", least(wanted.shm, shm).map(|bytes| bytes.to_string())),
        ("cpu", least(wanted.cpu.map(u64::from), cpu_percent.map(u64::from)).map(|share| format!("{share}%"))),
    ];
    args.limit.extend(limits.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))));
    args
}

/// The mount of a host directory that another one is to be mounted in.
fn around<'a>(wanted: &'a Wanted, inside: &Path) -> Option<&'a Bind> {
    let in_it = |bind: &&Bind| bind.inside != inside && covers(&bind.inside, inside);
    wanted.binds.iter().filter(in_it).max_by_key(|bind| bind.inside.as_os_str().len())
}

/// Starts a container's session. It ends with the process that has it started.
pub(super) fn start(shim: &Shim, container: &mut Container) -> Result<(), Error> {
    if container.reach().is_some() {
        return Ok(());
    }
    let lock = starting()?;
    for bind in &container.record.wanted.binds {
        if let Some(outer) = around(&container.record.wanted, &bind.inside) {
            make_point(outer, bind, bind.host.is_dir()).map_err(|why| {
                let (inside, outer) = (output::path(&bind.inside), output::path(&outer.host));
                Error::setup(format!("nothing can be mounted at {inside}: a mount point cannot be made in {outer}: {why}"))
                    .hint("remove what is there; it may be the work of an earlier container")
            })?;
        }
    }
    let mut words: Vec<OsString> = ["--client".into(), shim.client.to_string().into()].to_vec();
    words.extend(container.record.options.iter().map(Into::into));
    words.push(container.place.name.clone().into());
    let status = launch(&container.place, &words, START, |command| {
        command.env_clear().envs(shim.caller.variables.iter().map(|(name, value)| (name, value)));
        // Where the caller stands must not matter.
        command.current_dir(&container.place.dir);
    })?;
    drop(lock);
    print_log(&container.place, 0);
    match status {
        None => {
            container.record.finished = None;
            container.record.client = shim.client.to_string();
            container.save()
        }
        Some(_) => Err(Error::setup("the sandbox of this container could not be started")),
    }
}

/// Makes a mount point in a directory of the host for what is to be mounted in it, as docker does. What lies in its way, and what it
/// would lie behind, may be the sandbox's work: no symlink is followed.
fn make_point(outer: &Bind, bind: &Bind, directory: bool) -> Result<(), String> {
    let Ok(relative) = bind.inside.strip_prefix(&outer.inside) else { return Ok(()) };
    let failed = |errno: Errno| errno.desc().to_owned();
    let root = Root::open(&outer.host).map_err(failed)?;
    if root.stat(relative).is_ok_and(|stat| (kind(&stat) == SFlag::S_IFDIR) == directory && kind(&stat) != SFlag::S_IFLNK) {
        return Ok(());
    }
    if outer.read_only {
        return Err("it is mounted read-only".to_owned());
    }
    let mode = Mode::from_bits_truncate(0o755);
    let mut at = PathBuf::new();
    for name in if directory { Some(relative) } else { relative.parent() }.into_iter().flat_map(Path::components) {
        at.push(name);
        let (parent, name) = root.parent(&at).map_err(failed)?;
        match mkdirat(&parent, name, mode) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    match directory {
        true => root.at(relative, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()),
        false => root.at(relative, OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY, Mode::from_bits_truncate(0o644)),
    }
    .map(drop)
    .map_err(failed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::request::Disk;

    fn bind(host: &Path, inside: &str, read_only: bool) -> Bind {
        Bind { host: host.to_owned(), inside: inside.into(), read_only }
    }

    #[test]
    fn limits_are_never_wider_than_the_policys() {
        let caller = request::caller_of("/".into(), vec![("HOME".into(), "/home/u".into())]);
        let own = PolicyArgs {
            workspace: Some("/w".into()),
            limit: vec!["memory=1GiB".into(), "processes=100".into(), "cpu=50%".into()],
            net: Some(Net::Host),
            ..PolicyArgs::default()
        };
        let policy = hermes_profiles::resolve(&request::request(&own, caller.clone()), &Disk).unwrap().policy;
        let of = |wanted: Wanted| {
            let args = policy_of(&own, &policy, 8 << 30, &wanted, Path::new("/work"));
            hermes_profiles::resolve(&request::request(&args, caller.clone()), &Disk).unwrap().policy
        };
        let wide = of(Wanted { memory: Some(4 << 30), processes: Some(256), cpu: Some(200), ..Wanted::default() });
        assert_eq!((wide.limits.memory, wide.limits.processes, wide.limits.cpu_percent), (Some(1 << 30), Some(100), Some(50)));
        assert_eq!((wide.network, wide.workspace), (Network::Host, PathBuf::from("/work")));
        let narrow = of(Wanted { memory: Some(1 << 20), processes: Some(5), cpu: Some(10), offline: true, ..Wanted::default() });
        assert_eq!(
            (narrow.limits.memory, narrow.limits.processes, narrow.limits.cpu_percent),
            (Some(1 << 20), Some(5), Some(10))
        );
        assert_eq!(narrow.network, Network::Off);
    }

    #[test]
    fn mounts_become_grants_at_their_own_path_and_aliases() {
        let dir = tempfile::tempdir().unwrap();
        let binds = vec![
            bind(dir.path(), "/workspace", false),
            bind(Path::new("/h"), "/root", false),
            bind(Path::new("/skills"), "/root/.hermes/skills", true),
        ];
        let args = policy_of(
            &PolicyArgs::default(),
            &hermes_profiles::resolve(
                &request::request(
                    &PolicyArgs { workspace: Some("/w".into()), ..PolicyArgs::default() },
                    request::caller_of("/".into(), Vec::new()),
                ),
                &Disk,
            )
            .unwrap()
            .policy,
            1 << 30,
            &Wanted { binds, ..Wanted::default() },
            Path::new("/work"),
        );
        assert_eq!(args.workspace.as_deref(), Some(dir.path()));
        assert_eq!((args.rw, args.ro), (vec![dir.path().to_owned(), "/h".into()], vec![PathBuf::from("/skills")]));
        assert_eq!(
            args.alias,
            [format!("/workspace={}", dir.path().display()), "/root=/h".to_owned(), "/root/.hermes/skills=/skills".to_owned()]
        );
    }

    #[test]
    fn a_mount_point_is_made_behind_no_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (home, skills, elsewhere) = (dir.path().join("home"), dir.path().join("skills"), dir.path().join("elsewhere"));
        [&home, &skills, &elsewhere].iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let (outer, inner) = (bind(&home, "/root", false), bind(&skills, "/root/.hermes/skills", true));
        make_point(&outer, &inner, true).unwrap();
        make_point(&outer, &inner, true).unwrap();
        assert!(home.join(".hermes/skills").is_dir());
        make_point(&outer, &bind(&skills, "/root/.hermes/key", true), false).unwrap();
        assert!(home.join(".hermes/key").is_file());
        assert!(make_point(&outer, &bind(&skills, "/root/.hermes/key", true), true).is_err());
        std::fs::remove_dir_all(home.join(".hermes")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, home.join(".hermes")).unwrap();
        assert!(make_point(&outer, &inner, true).is_err());
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        assert!(make_point(&bind(&home, "/root", true), &inner, true).is_err());
    }
}
