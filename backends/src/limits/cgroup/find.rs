//! Where a control group can be made.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::{AccessFlags, access};

use super::PREFIX;
use crate::host::CgroupAccess;

/// Controllers that carry a limit of ours.
const WANTED: [&str; 3] = ["memory", "pids", "cpu"];

/// Our own control groups as directories.
#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    v2: Option<Place>,
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
struct Place {
    directory: PathBuf,
    mount: PathBuf,
}

/// Where this process may make a control group with limits. Makes one and removes it again to know.
pub fn detect(uid: u32) -> CgroupAccess {
    let own = Own::read();
    if let Some(access) = own.v2.as_ref().and_then(v2) {
        return access;
    }
    let memory = own.memory.filter(|directory| child_has(directory, "memory.limit_in_bytes"));
    let pids = own.pids.filter(|directory| child_has(directory, "pids.max"));
    let cpu = own.cpu.filter(|directory| child_has(directory, "cpu.cfs_quota_us"));
    if memory.is_some() || pids.is_some() {
        return CgroupAccess::V1 { memory, pids, cpu };
    }
    if systemd(uid) { CgroupAccess::Systemd } else { CgroupAccess::None }
}

/// Bytes that our own control group allows; `None` when it sets no limit.
pub fn memory_limit() -> Option<u64> {
    let own = Own::read();
    let v1 = own.memory.and_then(|directory| {
        let stat = std::fs::read_to_string(directory.join("memory.stat")).ok()?;
        stat.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit ")?.parse().ok())
    });
    let v2 = own.v2.and_then(|place| {
        let above = place.directory.ancestors().take_while(|directory| directory.starts_with(&place.mount));
        above.filter_map(|directory| std::fs::read_to_string(directory.join("memory.max")).ok()?.trim().parse().ok()).min()
    });
    v1.into_iter().chain(v2).min()
}

/// The nearest directory at or above our own whose children get controllers and which we may move ourselves below.
///
/// cgroup-v2.rst, "No Internal Process Constraint": a group that holds processes cannot give controllers to children, so
/// our own group is rarely the one, but a group delegated to the user by systemd above it is.
fn v2(own: &Place) -> Option<CgroupAccess> {
    let above = own.directory.ancestors().take_while(|directory| directory.starts_with(&own.mount));
    above.map(Path::to_path_buf).find_map(|directory| {
        let controllers = controllers_of_a_child(&directory)?;
        // "Delegation Containment": who moves a process needs the common ancestor's cgroup.procs, which is this one's.
        let movable = access(&directory.join("cgroup.procs"), AccessFlags::W_OK).is_ok();
        let file = if controllers.iter().any(|name| name == "memory") { "memory.max" } else { "pids.max" };
        (movable && child_has(&directory, file)).then_some(CgroupAccess::V2 { directory, controllers })
    })
}

fn controllers_of_a_child(directory: &Path) -> Option<Vec<String>> {
    let given = std::fs::read_to_string(directory.join("cgroup.subtree_control")).ok()?;
    let wanted: Vec<String> = given.split_ascii_whitespace().filter(|name| WANTED.contains(name)).map(str::to_owned).collect();
    wanted.iter().any(|name| name == "memory" || name == "pids").then_some(wanted)
}

fn child_has(directory: &Path, file: &str) -> bool {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let child = directory.join(format!("{PREFIX}{}-probe{count}", std::process::id()));
    if std::fs::create_dir(&child).is_err() {
        return false;
    }
    let writable = access(&child.join(file), AccessFlags::W_OK).is_ok();
    let removed = std::fs::remove_dir(&child).is_ok();
    writable && removed
}

/// Does the user's systemd manager answer, with controllers to give?
fn systemd(uid: u32) -> bool {
    let slice = format!("/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers");
    let (socket, controllers) = match uid {
        0 => (PathBuf::from("/run/systemd/private"), Path::new("/sys/fs/cgroup/cgroup.controllers")),
        _ => (PathBuf::from(format!("/run/user/{uid}/systemd/private")), Path::new(&slice)),
    };
    let delegated = std::fs::read_to_string(controllers)
        .is_ok_and(|given| given.split_ascii_whitespace().any(|name| name == "memory" || name == "pids"));
    delegated && socket.exists() && on_path("systemd-run")
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| access(&directory.join(program), AccessFlags::X_OK).is_ok())
}

impl Own {
    fn read() -> Self {
        let read = |path| std::fs::read(path).unwrap_or_default();
        Self::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    fn parse(cgroup: &[u8], mountinfo: &[u8]) -> Self {
        let mounts: Vec<Mount<'_>> = mountinfo.split(|&b| b == b'\n').filter_map(Mount::parse).collect();
        let mut own = Self::default();
        for line in cgroup.split(|&b| b == b'\n') {
            let mut fields = line.splitn(3, |&b| b == b':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            if controllers.is_empty() {
                let mut unified = mounts.iter().filter(|mount| mount.kind == b"cgroup2");
                own.v2 = unified.find_map(|mount| Some(Place { directory: mount.directory(&path)?, mount: mount.point.clone() }));
                continue;
            }
            for controller in controllers.split(|&b| b == b',') {
                let slot = match controller {
                    b"memory" => &mut own.memory,
                    b"pids" => &mut own.pids,
                    b"cpu" => &mut own.cpu,
                    _ => continue,
                };
                let mut hierarchies = mounts.iter().filter(|mount| mount.kind == b"cgroup" && mount.has(controller));
                *slot = hierarchies.find_map(|mount| mount.directory(&path));
            }
        }
        own
    }
}

/// A line of mountinfo, proc_pid_mountinfo(5).
struct Mount<'a> {
    root: PathBuf,
    point: PathBuf,
    kind: &'a [u8],
    options: &'a [u8],
}

impl<'a> Mount<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|&b| b == b' ');
        let root = unescape(fields.nth(3)?);
        let point = unescape(fields.next()?);
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, options) = (rest.next()?, rest.nth(1)?);
        Some(Self { root, point, kind, options })
    }

    fn has(&self, option: &[u8]) -> bool {
        self.options.split(|&b| b == b',').any(|o| o == option)
    }

    /// The directory of the group at `path`; `None` when it lies outside what is mounted.
    fn directory(&self, path: &Path) -> Option<PathBuf> {
        if path.components().any(|component| component == std::path::Component::ParentDir) {
            return None;
        }
        let below = path.strip_prefix(&self.root).ok()?;
        Some(if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) })
    }
}

/// Space, tab, newline and backslash stand as `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        if let Some(digits) = octal {
            bytes.push(digits.iter().fold(0_u8, |value, d| value.wrapping_mul(8).wrapping_add(d - b'0')));
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn version_two_in_a_user_session() {
        let mounts =
            b"25 1 0:22 / /proc rw - proc proc rw\n30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let own = Own::parse(b"0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope\n", mounts);
        let place = own.v2.unwrap();
        assert_eq!(place.directory, Path::new("/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope"));
        assert_eq!(place.mount, Path::new("/sys/fs/cgroup"));
        assert_eq!(own.memory, None);
    }

    #[test]
    fn version_one_in_a_container() {
        let mounts = b"41 39 0:35 /docker/abc /sys/fs/cgroup/memory\\040x ro master:1 - cgroup cgroup rw,memory\n\
            42 39 0:36 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
        let own = Own::parse(b"5:memory:/docker/abc/inner\n4:cpu,cpuacct:/docker/abc\n3:pids:/docker/abc\n", mounts);
        assert_eq!(own.memory.unwrap(), Path::new("/sys/fs/cgroup/memory x/inner"));
        assert_eq!(own.cpu.unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(own.pids, None);
    }

    #[test]
    fn a_group_outside_what_is_mounted_is_not_ours_to_use() {
        let mounts = b"41 39 0:35 /other /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(Own::parse(b"0::/here\n", mounts).v2, None);
        let mounts = b"41 39 0:35 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(Own::parse(b"0::/../other\n", mounts).v2, None);
    }
}
