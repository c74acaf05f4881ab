//! What can simply be asked.

use nix::unistd::{getegid, getgroups};

use crate::limits::cgroup;

/// Groups whose members can take over the host, or read what only root should, without a password.
const POWERFUL: [&str; 12] =
    ["docker", "podman", "lxd", "incus", "incus-admin", "libvirt", "libvirtd", "microk8s", "disk", "kmem", "shadow", "root"];

/// The kernel's release.
pub(super) fn kernel() -> String {
    nix::sys::utsname::uname().map_or_else(|_| String::new(), |name| name.release().to_string_lossy().into_owned())
}

/// Powerful groups among the caller's. A root caller's are not asked for: they are dropped with root.
pub(super) fn powerful_groups(uid: u32) -> Vec<String> {
    if uid == 0 {
        return Vec::new();
    }
    let mut ids: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(|gid| gid.as_raw()).collect();
    ids.push(getegid().as_raw());
    match std::fs::read("/etc/group") {
        Ok(table) => powerful(&ids, &String::from_utf8_lossy(&table)),
        Err(_) => Vec::new(),
    }
}

fn powerful(ids: &[u32], table: &str) -> Vec<String> {
    let names = table.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id: u32 = fields.nth(1)?.parse().ok()?;
        (ids.contains(&id) && POWERFUL.contains(&name)).then(|| name.to_owned())
    });
    names.collect()
}

/// Bytes of memory: the machine's, or the own control group's limit when that is less.
pub(super) fn memory() -> u64 {
    let machine = nix::sys::sysinfo::sysinfo().map_or(u64::MAX, |info| info.ram_total());
    cgroup::memory_limit().map_or(machine, |limit| limit.min(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_groups_that_matter() {
        let table = "root:x:0:\nbin:x:2:\ndisk:x:6:\ndocker:x:998:alice\nusers:x:100:\nbroken\nlxd:x:nine:\n";
        assert_eq!(powerful(&[100, 998, 2], table), ["docker"]);
        assert!(powerful(&[100], table).is_empty());
    }
}
