//! What the throw-away children do. Each runs in a process of its own and ends with it.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, mkdir};

use super::{Finding, Item, mediate};
use crate::host::Probe;
use crate::local::sys::mount::{Attributes, attach, clone_tree, set_attributes};
use crate::local::sys::notify::{Listener, pidfd_getfd, pidfd_open};
use crate::local::sys::probe as sys;
use crate::local::sys::process::{OneUser, user_namespace};
use crate::local::sys::thread::{load_filter, loopback_up};
use crate::step::{At, Step, StepError};

pub(super) type Outcome = Result<(), StepError>;

/// `nobody`: an id that owns nothing. Which unprivileged id a root caller gets does not change what works.
pub(super) const NOBODY: u32 = 65534;

/// Namespaces of a sandbox, without the network's.
const NAMESPACES: libc::c_int =
    libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Milliseconds that a step between two of our own processes may take.
const STEP_TIMEOUT: u16 = 1000;

/// Tells the parent at once, so that a filter that kills on a later step spoils only the later ones.
pub(super) fn tell(out: &OwnedFd, item: Item, outcome: Outcome) {
    let finding: Finding = (item, outcome.map_or_else(Probe::Fails, |()| Probe::Works));
    if let Ok(bytes) = postcard::to_stdvec(&finding) {
        let _ = nix::unistd::write(out, &bytes);
    }
}

/// A process that has left root is undumpable, so that its own /proc files are root's and it cannot write its id map. Init
/// makes itself dumpable for that too; a probe's child lives for milliseconds.
pub(super) fn own_proc_files() {
    let _ = prctl::set_dumpable(true);
}

/// The first child: runs the others one after another.
pub(super) fn launch(out: &OwnedFd, root: bool) {
    own_proc_files();
    if root {
        tell(out, Item::Idmap, idmapped_mount());
        // A uid 0 that is itself mapped from an ordinary user cannot change, and need not.
        let _ = sys::become_user(NOBODY);
    }
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let inner = sys::clone(NAMESPACES, || match in_namespaces(out, uid, gid) {
        Ok(()) => 0,
        Err(error) => {
            tell(out, Item::Userns, Err(error));
            1
        }
    });
    let broker_was_tried_inside = match inner {
        Ok(pid) => matches!(waitpid(pid, None), Ok(WaitStatus::Exited(_, 0))),
        Err(errno) => {
            tell(out, Item::Userns, Err(StepError::new(Step::Namespaces, errno)));
            false
        }
    };
    if !broker_was_tried_inside {
        let alone = sys::clone(libc::CLONE_NEWUSER, || 0).map(|pid| {
            let _ = waitpid(pid, None);
        });
        tell(out, Item::UsernsAlone, alone.at(Step::Namespaces));
        notifications(out);
    }
    mediate::tell_all(out);
}

/// Pid 1 of the new namespaces. What it does after the tmpfs is told item by item.
fn in_namespaces(out: &OwnedFd, uid: u32, gid: u32) -> Outcome {
    write_maps((uid, gid))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).at(Step::Propagation)?;
    let root = own_tmpfs()?;
    tell(out, Item::Proc, fresh_proc(&root));
    tell(out, Item::Recursive, recursive_attributes(&root));
    tell(out, Item::Overlay, overlay(&root));
    tell(out, Item::PerUserns, processes_are_counted_here());
    notifications(out);
    tell(out, Item::Netns, own_network());
    pivot(&root)?;
    tell(out, Item::Userns, Ok(()));
    Ok(())
}

/// The id map of a new user namespace: the own ids, for themselves.
pub(super) fn write_maps((uid, gid): (u32, u32)) -> Outcome {
    write_proc("/proc/self/setgroups", "deny")?;
    write_proc("/proc/self/uid_map", &format!("{uid} {uid} 1"))?;
    write_proc("/proc/self/gid_map", &format!("{gid} {gid} 1"))
}

fn write_proc(path: &str, text: &str) -> Outcome {
    let mut file = std::fs::OpenOptions::new().write(true).open(path).at_path(Step::IdMap, path)?;
    file.write_all(text.as_bytes()).at_path(Step::IdMap, path)
}

/// A tmpfs over the first usual directory that exists; /proc must, the id map went through it.
pub(super) fn own_tmpfs() -> Result<PathBuf, StepError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    for target in ["/tmp", "/run", "/dev", "/proc"] {
        match mount(Some("tmpfs"), target, Some("tmpfs"), flags, Some("mode=0755,size=1m")) {
            Ok(()) => return Ok(PathBuf::from(target)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(errno) => return Err(StepError::on(Step::Tmpfs, target, errno)),
        }
    }
    Err(StepError::new(Step::Tmpfs, Errno::ENOENT))
}

pub(super) fn open_path(path: &Path) -> Result<OwnedFd, StepError> {
    nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).at_path(Step::Open, path)
}

fn directory(path: &Path) -> Result<&Path, StepError> {
    mkdir(path, Mode::from_bits_truncate(0o755)).at_path(Step::Create, path)?;
    Ok(path)
}

fn file(path: &Path) -> Outcome {
    std::fs::write(path, b"x").at_path(Step::Create, path)
}

/// Fails with EPERM where parts of the host's /proc are mounted over, as in most containers.
fn fresh_proc(root: &Path) -> Outcome {
    let target = root.join("p");
    directory(&target)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &target, Some("proc"), flags, None::<&str>).at(Step::Proc)?;
    // The pid namespace must be the one that /proc shows.
    match std::fs::read_link(target.join("self")) {
        Ok(pid) if pid == Path::new("1") => Ok(()),
        Ok(_) => Err(StepError::new(Step::Proc, Errno::ESTALE)),
        Err(_) => Err(StepError::new(Step::Proc, Errno::ENOENT)),
    }
}

/// A read-only clone of a tree with a mount in it must be read-only in that mount too.
fn recursive_attributes(root: &Path) -> Outcome {
    let (source, target) = (root.join("rs"), root.join("rt"));
    let inner = source.join("m");
    directory(&source)?;
    directory(&inner)?;
    directory(&target)?;
    mount(Some("tmpfs"), &inner, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).at(Step::Tmpfs)?;
    let tree = clone_tree(open_path(&source)?.as_fd(), true).at(Step::Bind)?;
    let read_only = Attributes { set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID, ..Attributes::default() };
    set_attributes(tree.as_fd(), c"", read_only, true).at(Step::Attributes)?;
    attach(tree, open_path(&target)?.as_fd(), c"").at(Step::Attach)?;
    match std::fs::write(target.join("m/f"), b"x") {
        Err(error) if error.raw_os_error() == Some(libc::EROFS) => Ok(()),
        _ => Err(StepError::new(Step::Attributes, Errno::EBADE)),
    }
}

/// All that a copy-on-write tree needs: a whiteout made by hand, copying up, deleting, and a directory made again in the
/// place of a deleted one (which needs extended attributes on the upper layer: tmpfs has them from 6.6 on).
fn overlay(root: &Path) -> Outcome {
    let base = root.join("o");
    let (lower, upper, work, merged) = (base.join("l"), base.join("u"), base.join("w"), base.join("m"));
    directory(&base)?;
    for path in [&lower, &upper, &work, &merged] {
        directory(path)?;
    }
    directory(&lower.join("d"))?;
    file(&lower.join("d/f"))?;
    file(&lower.join("hidden"))?;
    file(&lower.join("kept"))?;
    let whiteout = upper.join("hidden");
    mknod(&whiteout, SFlag::S_IFCHR, Mode::empty(), 0).at_path(Step::Overlay, "whiteout")?;
    let options = format!("userxattr,lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    mount(Some("overlay"), &merged, Some("overlay"), MsFlags::empty(), Some(options.as_str())).at(Step::Overlay)?;
    if merged.join("hidden").exists() {
        return Err(StepError::on(Step::Overlay, "whiteout", Errno::EEXIST));
    }
    std::fs::write(merged.join("kept"), b"changed").at_path(Step::Overlay, "copy-up")?;
    std::fs::remove_dir_all(merged.join("d")).at_path(Step::Overlay, "deletion")?;
    mkdir(&merged.join("d"), Mode::from_bits_truncate(0o755)).at_path(Step::Overlay, "opaque directory")?;
    if merged.join("d/f").exists() {
        return Err(StepError::on(Step::Overlay, "opaque directory", Errno::EEXIST));
    }
    Ok(())
}

fn own_network() -> Outcome {
    unshare(CloneFlags::CLONE_NEWNET).at(Step::Namespaces)?;
    let any = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).at(Step::Loopback)?;
    loopback_up(any.as_fd()).at(Step::Loopback)
}

/// Fails in a chroot and on the initial ramdisk.
fn pivot(root: &Path) -> Outcome {
    nix::unistd::chdir(root).at(Step::Pivot)?;
    nix::unistd::pivot_root(".", ".").at(Step::Pivot)?;
    umount2(".", MntFlags::MNT_DETACH).at(Step::Pivot)
}

/// We are the only process of this user namespace, but not of this user: with a limit of two, a second one starts here
/// exactly when the count is the namespace's; and with a limit of one, none does.
fn processes_are_counted_here() -> Outcome {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NPROC).at(Step::Limits)?;
    let try_with = |limit: u64| -> Outcome {
        setrlimit(Resource::RLIMIT_NPROC, limit.min(hard), hard).at(Step::Limits)?;
        let child = sys::clone(0, || 0).at(Step::Limits)?;
        let _ = waitpid(child, None);
        Ok(())
    };
    let two = try_with(2);
    let one = try_with(1);
    setrlimit(Resource::RLIMIT_NPROC, soft, hard).at(Step::Limits)?;
    two?;
    match one {
        Err(error) if error.errno() == Errno::EAGAIN => Ok(()),
        _ => Err(StepError::new(Step::Limits, Errno::EUSERS)),
    }
}

/// As root: a clone of the root file system in which root's files belong to `NOBODY`. It is never attached.
fn idmapped_mount() -> Outcome {
    let user = OneUser { uid: 0, gid: 0, host_uid: NOBODY, host_gid: NOBODY };
    let namespace = user_namespace(user).at(Step::IdMap)?;
    let tree = clone_tree(open_path(Path::new("/"))?.as_fd(), false).at(Step::Bind)?;
    let owner = || nix::sys::stat::fstat(&tree).map(|stat| stat.st_uid).at(Step::Attributes);
    let before = owner()?;
    let mapped = Attributes { userns: Some(namespace.as_fd()), ..Attributes::default() };
    set_attributes(tree.as_fd(), c"", mapped, false).at(Step::Attributes)?;
    if before == 0 && owner()? != NOBODY {
        return Err(StepError::new(Step::Attributes, Errno::EBADE));
    }
    Ok(())
}

/// A filter, a listener taken from its owner, an argument read from the caller's memory, and an answer.
fn notifications(out: &OwnedFd) {
    match start_caller() {
        Ok((caller, report)) => {
            let (seccomp, notify) = serve(caller, &report);
            tell(out, Item::Seccomp, seccomp);
            tell(out, Item::Notify, notify);
        }
        Err(error) => {
            tell(out, Item::Seccomp, Err(error.clone()));
            tell(out, Item::Notify, Err(error));
        }
    }
}

/// What stands at the address that the caller passes to `connect`.
pub(super) const ADDRESS: &[u8; 16] = b"hermes-sandbox-?";
/// An answer that `connect` never gives by itself.
pub(super) const ANSWER: Errno = Errno::EXDEV;

const fn bpf(code: u32, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf, k }
}

const ALLOW_ALL: [libc::sock_filter; 1] = [bpf(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW)];

pub(super) const LISTEN_FOR_CONNECT: [libc::sock_filter; 4] = [
    bpf(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, std::mem::offset_of!(libc::seccomp_data, nr) as u32),
    bpf(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_connect as u32),
    bpf(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF),
    ALLOW_ALL[0],
];

/// Starts the process that makes the call. It writes two numbers: the errno of a plain filter, and its listener (or the
/// negated errno of that).
fn start_caller() -> Result<(Pid, OwnedFd), StepError> {
    let (receiver, sender) = nix::unistd::pipe2(OFlag::O_CLOEXEC).at(Step::Broker)?;
    let caller = sys::clone(0, || {
        let plain = prctl::set_no_new_privs().and_then(|()| load_filter(&ALLOW_ALL, false));
        let listener = load_filter(&LISTEN_FOR_CONNECT, true).and_then(|fd| fd.ok_or(Errno::EBADF));
        let numbers = [
            plain.err().map_or(0, |errno| errno as i32),
            match &listener {
                Ok(listener) => listener.as_raw_fd(),
                Err(errno) => -(*errno as i32),
            },
        ];
        let [a, b] = numbers.map(i32::to_ne_bytes);
        let _ = nix::unistd::write(&sender, &[a, b].concat());
        i32::from(listener.is_err() || sys::connect_nowhere(ADDRESS) != ANSWER)
    })
    .at(Step::Broker)?;
    Ok((caller, receiver))
}

pub(super) fn readable(fd: impl AsFd) -> Result<(), Errno> {
    match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], STEP_TIMEOUT)? {
        0 => Err(Errno::ETIMEDOUT),
        _ => Ok(()),
    }
}

fn serve(caller: Pid, report: &OwnedFd) -> (Outcome, Outcome) {
    let (seccomp, answered) = match read_numbers(report) {
        Ok((plain, listener)) => {
            let seccomp = if plain == 0 { Ok(()) } else { Err(Errno::from_raw(plain)) };
            (seccomp, if listener < 0 { Err(Errno::from_raw(-listener)) } else { answer(caller, listener) })
        }
        Err(errno) => (Err(errno), Err(errno)),
    };
    if answered.is_err() {
        let _ = kill(caller, Signal::SIGKILL);
    }
    let status = waitpid(caller, None);
    let got_it = if matches!(status, Ok(WaitStatus::Exited(_, 0))) { Ok(()) } else { Err(Errno::EBADE) };
    let notify = answered.and(got_it);
    (seccomp.at(Step::Seccomp), notify.at(Step::Broker))
}

fn read_numbers(report: &OwnedFd) -> Result<(i32, i32), Errno> {
    readable(report)?;
    let mut bytes = [0; 8];
    if nix::unistd::read(report, &mut bytes)? != bytes.len() {
        return Err(Errno::EPIPE);
    }
    let [a, b, c, d, e, f, g, h] = bytes;
    Ok((i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])))
}

fn answer(caller: Pid, listener: i32) -> Result<(), Errno> {
    let listener = Listener::new(pidfd_getfd(pidfd_open(caller.as_raw(), false)?.as_fd(), listener)?);
    readable(&listener)?;
    let call = listener.receive()?;
    check_address(caller, call.args[1])?;
    listener.answer(call.id, ANSWER as i32);
    Ok(())
}

/// Reads the address of the call from the caller's memory.
pub(super) fn check_address(caller: Pid, pointer: u64) -> Result<(), Errno> {
    let mut seen = [0; ADDRESS.len()];
    let remote = RemoteIoVec { base: pointer as usize, len: seen.len() };
    process_vm_readv(caller, &mut [std::io::IoSliceMut::new(&mut seen)], &[remote])?;
    if seen != *ADDRESS {
        return Err(Errno::EBADE);
    }
    Ok(())
}
