//! Remembers what was measured, for this boot, this program and this confinement of the caller.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::prctl;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, stat};
use nix::unistd::{UnlinkatFlags, getegid, geteuid, getgroups, unlinkat};
use serde::{Deserialize, Serialize};

use super::{cause, facts};
use crate::host::{Host, Probe};
use crate::limits::cgroup;
use crate::local::sys::probe as sys;
use crate::step::errno_of;

const FILE: &str = "host";

/// `off` here switches the cache off.
const SWITCH: &str = "HERMES_SANDBOX_PROBE_CACHE";

/// More than a [`Record`] ever needs.
const LARGEST: usize = 16 * 1024;

/// Everything that the findings depend on and that can change between two starts.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    /// Of the format and the questions asked.
    version: u32,
    boot: Vec<u8>,
    /// Device, inode, change time of the running program: another build asks other questions.
    program: (u64, u64, i64, i64),
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// User, mount, pid and network namespace.
    namespaces: [u64; 4],
    no_new_privileges: bool,
    seccomp_mode: i32,
    capabilities: [u64; 2],
    /// AppArmor's or SELinux's name for us.
    label: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    key: Key,
    /// `/proc/self/cgroup`; the control group alone is looked at again when it differs, as it does in every terminal.
    cgroup: Vec<u8>,
    /// Switches that were in force when user namespaces were refused: somebody may follow the printed remedy.
    switches: Vec<String>,
    host: Host,
}

/// As [`super::probe`], from `cache_dir` when nothing has changed since it was measured.
///
/// The directory is made (0700) when it is absent, and not used unless it is the caller's alone. It must lie outside
/// everything that a sandbox may write: who writes here decides what the next start believes of the machine.
/// `HERMES_SANDBOX_PROBE_CACHE=off` switches the cache off.
pub fn cached(cache_dir: &Path) -> Host {
    let key = match std::env::var_os(SWITCH) {
        Some(value) if value == OsStr::new("off") => None,
        _ => Key::now(),
    };
    let Some(key) = key else { return super::probe() };
    let cgroup = own_cgroup();
    let directory = private_directory(cache_dir);
    let known = directory.as_ref().ok().and_then(load).filter(|record| record.key == key);
    let record = match known {
        Some(record) if record.host.userns.works() || record.switches == cause::switches() => {
            if record.cgroup == cgroup {
                return record.host;
            }
            let uid = record.host.uid;
            let host = Host { cgroup: cgroup::detect(uid), memory: facts::memory(), ..record.host };
            Record { cgroup, host, ..record }
        }
        _ => {
            let host = super::probe();
            let switches = if host.userns.works() { Vec::new() } else { cause::switches() };
            Record { key, cgroup, switches, host }
        }
    };
    if !failures(&record.host).any(is_momentary) {
        // A cache that cannot be written costs time, nothing else.
        let directory = directory.or_else(|_| make_directory(cache_dir));
        let _ = directory.and_then(|directory| store(&directory, &record));
    }
    record.host
}

/// What a failure may be by the next start: the machine was out of something, or the child was killed before its answer.
const MOMENTARY: &[Errno] =
    &[Errno::EPIPE, Errno::ETIMEDOUT, Errno::EAGAIN, Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE, Errno::EINTR];

pub(super) fn is_momentary(errno: Errno) -> bool {
    MOMENTARY.contains(&errno)
}

/// Why something does not work here.
pub(super) fn failures(host: &Host) -> impl Iterator<Item = Errno> + '_ {
    let Host { userns, netns, proc_mount, overlay, recursive_attributes, idmap, notify, mediation, borrowing, seccomp, .. } =
        host;
    let all = [userns, netns, proc_mount, overlay, recursive_attributes, idmap, notify, mediation, borrowing, seccomp];
    all.into_iter().filter_map(|probe| match probe {
        Probe::Works => None,
        Probe::Fails(error) => Some(error.errno()),
    })
}

/// Forgets what was measured; absent is fine.
pub fn forget(cache_dir: &Path) {
    if let Ok(directory) = private_directory(cache_dir) {
        let _ = unlinkat(&directory, FILE, UnlinkatFlags::NoRemoveDir);
    }
}

impl Key {
    /// `None` where something cannot be read: then nothing is believed.
    fn now() -> Option<Self> {
        let boot = read_small("/proc/sys/kernel/random/boot_id");
        if boot.is_empty() {
            return None;
        }
        let program = stat("/proc/self/exe").ok()?;
        let mut namespaces = [0; 4];
        for (slot, name) in namespaces.iter_mut().zip(["user", "mnt", "pid", "net"]) {
            *slot = stat(Path::new("/proc/self/ns").join(name).as_path()).ok()?.st_ino;
        }
        Some(Self {
            version: 1,
            boot,
            program: (program.st_dev, program.st_ino, program.st_ctime, program.st_ctime_nsec),
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: getgroups().ok()?.into_iter().map(|gid| gid.as_raw()).collect(),
            namespaces,
            no_new_privileges: prctl::get_no_new_privs().ok()?,
            seccomp_mode: sys::seccomp_mode(),
            capabilities: sys::capabilities(),
            label: read_small("/proc/self/attr/current"),
        })
    }
}

/// The start of a file; empty when it cannot be read.
fn read_small(path: &str) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let read = std::fs::File::open(path).and_then(|mut file| file.read(&mut bytes));
    bytes.truncate(read.unwrap_or(0));
    bytes
}

fn own_cgroup() -> Vec<u8> {
    read_small("/proc/self/cgroup")
}

fn ours_alone(stat: &FileStat, kind: SFlag) -> bool {
    let mode = stat.st_mode;
    mode & SFlag::S_IFMT.bits() == kind.bits() && stat.st_uid == geteuid().as_raw() && mode & 0o022 == 0
}

fn private_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = nix::fcntl::open(path, flags, Mode::empty())?;
    if ours_alone(&fstat(&directory)?, SFlag::S_IFDIR) { Ok(directory) } else { Err(Errno::EPERM) }
}

/// Makes the directory and at most the one around it (`~/.cache`), in a home that is there and ours: a wrong HOME gets no
/// directories made.
fn make_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let around = path.parent().and_then(|parent| if parent.exists() { Some(parent) } else { parent.parent() });
    let around = around.filter(|around| around.parent().is_some()).ok_or(Errno::ENOENT)?;
    if stat(around)?.st_uid != geteuid().as_raw() {
        return Err(Errno::EPERM);
    }
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(errno_of)?;
    private_directory(path)
}

fn load(directory: &OwnedFd) -> Option<Record> {
    // O_NONBLOCK: a FIFO must not hold us up.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(directory, FILE, flags, Mode::empty()).ok()?;
    if !ours_alone(&fstat(&file).ok()?, SFlag::S_IFREG) {
        return None;
    }
    let mut bytes = vec![0; LARGEST];
    let length = nix::unistd::read(file.as_fd(), &mut bytes).ok()?;
    postcard::from_bytes(&bytes[..length]).ok()
}

fn store(directory: &OwnedFd, record: &Record) -> Result<(), Errno> {
    let bytes = postcard::to_stdvec(record).map_err(|_| Errno::EINVAL)?;
    if bytes.len() > LARGEST {
        return Err(Errno::EFBIG);
    }
    let temporary = format!("{FILE}.{}", std::process::id());
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = || openat(directory, temporary.as_str(), flags, Mode::from_bits_truncate(0o600));
    let file = match open() {
        // Left behind by a process of our number that is gone.
        Err(Errno::EEXIST) => {
            unlinkat(directory, temporary.as_str(), UnlinkatFlags::NoRemoveDir)?;
            open()
        }
        other => other,
    }?;
    let written = std::fs::File::from(file).write_all(&bytes).map_err(|_| Errno::EIO);
    let result = written.and_then(|()| renameat(directory, temporary.as_str(), directory, FILE));
    if result.is_err() {
        let _ = unlinkat(directory, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
    }
    result
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::step::{Step, StepError};

    #[test]
    fn is_written_once_and_believed() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("a/b");
        let host = cached(&directory);
        let file = directory.join(FILE);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));

        let open = private_directory(&directory).unwrap();
        let mut record = load(&open).unwrap();
        assert_eq!(record.host, host);
        record.host.kernel = "from the cache".into();
        store(&open, &record).unwrap();
        assert_eq!(cached(&directory).kernel, "from the cache");

        record.cgroup = b"0::/elsewhere\n".to_vec();
        record.host.memory = 1;
        store(&open, &record).unwrap();
        let host = cached(&directory);
        assert_eq!((host.kernel.as_str(), host.memory == 1), ("from the cache", false));

        record.key.version = 0;
        store(&open, &record).unwrap();
        assert_ne!(cached(&directory).kernel, "from the cache");

        forget(&directory);
        assert!(!file.exists());
        forget(&directory);
    }

    #[test]
    fn what_may_be_otherwise_by_the_next_start_is_not_remembered() {
        let fails = |errno| Probe::Fails(StepError::new(Step::Namespaces, errno));
        let host = |userns, seccomp| Host { userns, seccomp, ..super::super::probe() };
        let lasts = |host: &Host| !failures(host).any(is_momentary);
        assert!(lasts(&host(fails(Errno::EPERM), Probe::Works)));
        assert!(!lasts(&host(fails(Errno::EPIPE), Probe::Works)), "the child was killed");
        assert!(!lasts(&host(Probe::Works, fails(Errno::EAGAIN))));
    }

    #[test]
    fn a_directory_or_file_that_others_can_write_is_not_believed() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("d");
        cached(&directory);
        let plant = |directory: &OwnedFd| {
            let mut record = load(directory).unwrap();
            record.host.kernel = "planted".into();
            store(directory, &record).unwrap();
        };
        plant(&private_directory(&directory).unwrap());
        let chmod = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        chmod(&directory, 0o770);
        assert_ne!(cached(&directory).kernel, "planted");
        chmod(&directory, 0o700);
        chmod(&directory.join(FILE), 0o622);
        assert_ne!(cached(&directory).kernel, "planted");

        let link = home.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        plant(&private_directory(&directory).unwrap());
        assert_ne!(cached(&link).kernel, "planted");
    }

    #[test]
    fn rubbish_and_fifos_are_not_believed() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(FILE);
        std::fs::write(&file, [0xff; 64]).unwrap();
        assert!(!cached(home.path()).kernel.is_empty());
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, Mode::from_bits_truncate(0o600)).unwrap();
        assert!(!cached(home.path()).kernel.is_empty());
    }
}
