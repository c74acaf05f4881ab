//! Can the upper layer of an overlay lie in this directory of the host? Asked of the directory itself: it depends on its
//! file system, and nothing that is known of another one answers it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::wait::waitpid;
use nix::unistd::mkdir;

use super::child::{NOBODY, Outcome, own_tmpfs, write_maps};
use super::{Answers, Item, PATIENCE, child, decode, read_until};
use crate::host::Probe;
use crate::local::sys::mount::{Attributes, attach, clone_tree, set_attributes};
use crate::local::sys::probe as sys;
use crate::local::sys::process::{OneUser, user_namespace};
use crate::step::{At, Step, StepError};

/// Mounts an overlay over `lower` with an upper layer in `place`, which must be empty and stays littered, and needs of it
/// what a copy-on-write tree needs: deleting, and making again in the place of what was deleted.
///
/// Forks; meant for a process that has not started any thread. Takes about a millisecond and a half.
pub fn overlay_in(place: &Path, lower: &Path) -> Probe {
    let tried = || -> Result<Probe, StepError> {
        for name in ["upper", "work", "lower", "lower/d"] {
            mkdir(&place.join(name), Mode::S_IRWXU).at_path(Step::Create, place)?;
        }
        let root = nix::unistd::geteuid().is_root();
        let tree = if root { Some(mapped(place)?) } else { None };
        let (receiver, sender) = nix::unistd::pipe2(OFlag::O_CLOEXEC).at(Step::Overlay)?;
        let child = sys::fork(|| {
            child::own_proc_files();
            if root {
                let _ = sys::become_user(NOBODY);
            }
            let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
            let inner = sys::clone(libc::CLONE_NEWUSER | libc::CLONE_NEWNS, || {
                child::tell(&sender, Item::Overlay, in_namespaces(place, lower, tree.as_ref(), (uid, gid)));
                0
            });
            match inner {
                Ok(pid) => drop(waitpid(pid, None)),
                Err(errno) => child::tell(&sender, Item::Overlay, Err(StepError::new(Step::Namespaces, errno))),
            }
            0
        })
        .at(Step::Overlay)?;
        drop(sender);
        let mut bytes = Vec::new();
        let finished = read_until(receiver.into(), &mut bytes, Instant::now() + PATIENCE);
        if !finished {
            let _ = kill(child, Signal::SIGKILL);
        }
        let _ = waitpid(child, None);
        let silence = if finished { Errno::EPIPE } else { Errno::ETIMEDOUT };
        Ok(Answers { findings: decode(&bytes), silence }.get(Item::Overlay))
    };
    tried().unwrap_or_else(Probe::Fails)
}

/// As a root caller's layer is handed in: root's files belong to an unprivileged id.
fn mapped(place: &Path) -> Result<OwnedFd, StepError> {
    let user = OneUser { uid: 0, gid: 0, host_uid: NOBODY, host_gid: NOBODY };
    let namespace = user_namespace(user).at(Step::IdMap)?;
    let tree = clone_tree(child::open_path(place)?.as_fd(), false).at_path(Step::Bind, place)?;
    let attributes = Attributes { userns: Some(namespace.as_fd()), ..Attributes::default() };
    set_attributes(tree.as_fd(), c"", attributes, false).at_path(Step::Attributes, place)?;
    Ok(tree)
}

fn in_namespaces(place: &Path, lower: &Path, tree: Option<&OwnedFd>, ids: (u32, u32)) -> Outcome {
    write_maps(ids)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).at(Step::Propagation)?;
    let held = match tree {
        Some(_) => None,
        None => Some((child::open_path(place)?, child::open_path(lower)?)),
    };
    let root = own_tmpfs()?;
    let at = child::open_path(&root)?;
    mkdirat(&at, "p", Mode::S_IRWXU).at(Step::Create)?;
    mkdirat(&at, "m", Mode::S_IRWXU).at(Step::Create)?;
    let target = root.join("m");
    let by_descriptor = |fd: &OwnedFd| format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
    let overlay = |lower: &str, place: &str| {
        let options = format!("userxattr,index=off,lowerdir={lower},upperdir={place}/upper,workdir={place}/work");
        mount(Some("overlay"), &target, Some("overlay"), MsFlags::empty(), Some(options.as_str())).at(Step::Overlay)
    };
    let place = match (tree, &held) {
        (Some(tree), _) => {
            attach(tree, at.as_fd(), c"p").at(Step::Attach)?;
            root.join("p").display().to_string()
        }
        (None, Some((place, lower))) => {
            // The tree that it will be about: one around the layer, or a layer itself, is refused by the kernel (ELOOP).
            overlay(&by_descriptor(lower), &by_descriptor(place))?;
            nix::mount::umount(&target).at(Step::Overlay)?;
            by_descriptor(place)
        }
        (None, None) => return Err(StepError::new(Step::Overlay, Errno::EBADF)),
    };
    overlay(&format!("{place}/lower"), &place)?;
    nix::unistd::unlinkat(nix::fcntl::AT_FDCWD, &target.join("d"), nix::unistd::UnlinkatFlags::RemoveDir)
        .at_path(Step::Overlay, "deletion")?;
    mkdir(&target.join("d"), Mode::S_IRWXU).at_path(Step::Overlay, "opaque directory")
}
