//! Builds the root file system of the namespaces tier: a tmpfs with what the policy grants, then `pivot_root`.
//!
//! Every source is opened once, compared with the file that was checked, and mounted by descriptor. Nothing is ever
//! created in a host tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, fstat, mkdirat, mode_t};
use nix::unistd::{UnlinkatFlags, fchdir, pivot_root, symlinkat, unlinkat};

use super::contents;
use super::sys::mount::{Attributes, attach, clone_tree, set_attributes, share};
use crate::plan::{Layer, MountStep, Source};
use crate::step::{At, Step, StepError};
use crate::wire::Setup;

const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NO_SUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NO_DEV: u64 = libc::MOUNT_ATTR_NODEV;
const NO_EXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Parts of /proc that act on the whole machine (core_pattern, sysrq, interrupt affinity).
const PROC_READ_ONLY: &[&str] = &["sys", "irq", "bus", "fs", "sysrq-trigger"];
/// Parts of /proc that show memory, keys or timers of others.
const PROC_MASKED: &[&str] = &["kcore", "keys", "timer_list"];
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("ptmx", "pts/ptmx"),
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Detached, id-mapped trees that a root caller's supervisor made, by index of their mount step. An overlay has its lower
/// layer first, then its kept upper layer.
pub type Trees = Vec<(usize, OwnedFd)>;

fn take(trees: &mut Trees, index: usize) -> Option<OwnedFd> {
    let at = trees.iter().position(|(of, _)| *of == index)?;
    Some(trees.remove(at).1)
}

/// Opens a path that must be free of symlinks and still be the file that was checked.
///
/// # Errors
/// [`Step::Open`], or [`Step::Changed`] when a symlink is in the way or device or inode differ.
pub fn open_source(source: &Source) -> Result<OwnedFd, StepError> {
    let fd = open_without_links(&source.path).map_err(|errno| {
        let step = if errno == Errno::ELOOP { Step::Changed } else { Step::Open };
        StepError::on(step, &source.path, errno)
    })?;
    let stat = fstat(&fd).at_path(Step::Open, &source.path)?;
    if (stat.st_dev, stat.st_ino) != (source.dev, source.ino) {
        return Err(StepError::on(Step::Changed, &source.path, Errno::ESTALE));
    }
    Ok(fd)
}

/// Opens a path of which no part is a symlink.
pub(super) fn open_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(AT_FDCWD, path, how) {
        // Inside another sandbox, whose filter cannot see openat2's mode: one name after the other.
        Err(Errno::ENOSYS | Errno::EPERM) => {}
        other => return other,
    }
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut fd = openat(AT_FDCWD, "/", flags, Mode::empty())?;
    for name in path.components().skip(1) {
        fd = openat(&fd, name.as_os_str(), flags, Mode::empty())?;
        if fstat(&fd)?.st_mode & libc::S_IFMT == libc::S_IFLNK {
            return Err(Errno::ELOOP);
        }
    }
    Ok(fd)
}

/// Builds the tree that `steps` describe and makes it the root. Returns the device numbers of the file systems that were
/// mounted new: no process outside can have bound a socket there.
pub fn enter(setup: &Setup, mut trees: Trees) -> Result<Vec<u64>, StepError> {
    let root = c"/";
    mount(None::<&str>, root, None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).at(Step::Propagation)?;
    let prepared = prepare(&setup.mounts, &mut trees)?;
    let mut builder = Builder::new(setup.scratch)?;
    for (step, source) in setup.mounts.iter().zip(prepared) {
        match step {
            MountStep::File { target, content } => {
                builder.file(target, &contents::bytes(target, content, &setup.certificates))?
            }
            _ => builder.apply(step, source)?,
        }
    }
    let own = builder.own.union(&builder.layers).copied().collect();
    builder.pivot()?;
    Ok(own)
}

/// What was opened for a step before the base is mounted over part of the old tree.
enum Prepared {
    Nothing,
    /// A detached tree with its attributes set.
    Tree(OwnedFd),
    /// The lower layer of an overlay, and its upper one if that is kept.
    Layers(Place, Option<Place>),
}

enum Place {
    /// A directory in the old tree.
    Here(OwnedFd),
    /// A detached, id-mapped tree.
    Mapped(OwnedFd),
}

impl Place {
    fn open(tree: Option<OwnedFd>, source: &Source) -> Result<Self, StepError> {
        tree.map_or_else(|| open_source(source).map(Self::Here), |tree| Ok(Self::Mapped(tree)))
    }

    /// A path for mount options. A detached tree is attached below `room`, which goes away with the old root.
    fn path(&self, room: &OwnedFd, name: &CStr) -> Result<String, Errno> {
        match self {
            Self::Here(fd) => Ok(format!("/proc/self/fd/{}", fd.as_raw_fd())),
            Self::Mapped(tree) => {
                mkdirat(room.as_fd(), name, Mode::S_IRWXU)?;
                attach(tree, room.as_fd(), name)?;
                Ok(format!("/proc/self/fd/{}/{}", room.as_raw_fd(), name.to_string_lossy()))
            }
        }
    }
}

fn prepare(steps: &[MountStep], trees: &mut Trees) -> Result<Vec<Prepared>, StepError> {
    steps
        .iter()
        .enumerate()
        .map(|(index, step)| match step {
            MountStep::Bind { source, writable, device, directory, .. } => {
                let tree = match take(trees, index) {
                    Some(tree) => tree,
                    None => clone_tree(open_source(source)?.as_fd(), *directory).at_path(Step::Bind, &source.path)?,
                };
                let mut set = NO_SUID;
                if !writable {
                    set |= READ_ONLY;
                }
                set |= if *device { NO_EXEC } else { NO_DEV };
                set_attributes(tree.as_fd(), c"", Attributes { set, ..Attributes::default() }, *directory)
                    .at_path(Step::Attributes, &source.path)?;
                Ok(Prepared::Tree(tree))
            }
            MountStep::Overlay { source, layer, target, .. } => {
                let lower = Place::open(take(trees, index), source)?;
                let upper = match layer {
                    Layer::Private => None,
                    Layer::Kept(source) => Some(Place::open(take(trees, index), source)?),
                    Layer::Planned => return Err(StepError::on(Step::Overlay, target, Errno::ENOENT)),
                };
                Ok(Prepared::Layers(lower, upper))
            }
            _ => Ok(Prepared::Nothing),
        })
        .collect()
}

struct Builder {
    base: OwnedFd,
    /// The root of the one tmpfs that all of the sandbox's own directories and upper layers are in.
    scratch: OwnedFd,
    /// How many directories it has.
    rooms: u32,
    /// Mounts that become read-only when everything below them is in place.
    seal: Vec<OwnedFd>,
    /// Device numbers of file systems that we mounted: the only places where anything may be created.
    own: BTreeSet<u64>,
    /// Device numbers of overlays whose changes are kept: ours too, but what is made there would be a change.
    layers: BTreeSet<u64>,
    directories: BTreeMap<PathBuf, OwnedFd>,
    masks: Option<(OwnedFd, OwnedFd)>,
    /// How many files were made.
    files: u32,
}

/// A tmpfs on a directory of the old root.
fn mount_and_open(at: &str, options: &str) -> Result<OwnedFd, StepError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options)).at_path(Step::Tmpfs, at)?;
    openat(AT_FDCWD, at, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).at_path(Step::Open, at)
}

fn c_path(path: impl AsRef<OsStr>) -> Result<CString, Errno> {
    CString::new(path.as_ref().as_bytes()).map_err(|_| Errno::EINVAL)
}

fn open_directory(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

impl Builder {
    fn new(size: Option<u64>) -> Result<Self, StepError> {
        // Any directory of the old root will do as a place for the new one: the old root goes away.
        let at = ["/tmp", "/mnt", "/var", "/usr"].iter().find(|at| Path::new(at).is_dir()).unwrap_or(&"/proc");
        let limit = size.map_or(String::new(), |size| format!(",size={size}"));
        let scratch = mount_and_open(at, &format!("mode=700{limit}"))?;
        // On top of it, so that both go away with the old root; what was cloned from them stays.
        let base = mount_and_open(at, "mode=755,size=16m")?;
        fchdir(&base).at_path(Step::Open, at)?;
        let device = |fd: &OwnedFd| fstat(fd).at_path(Step::Open, at).map(|stat| stat.st_dev);
        let own = BTreeSet::from([device(&base)?, device(&scratch)?]);
        Ok(Self {
            base,
            scratch,
            rooms: 0,
            seal: Vec::new(),
            own,
            layers: BTreeSet::new(),
            directories: BTreeMap::new(),
            masks: None,
            files: 0,
        })
    }

    /// A new directory of the scratch file system.
    fn room(&mut self, mode: u32) -> Result<OwnedFd, Errno> {
        let name = self.rooms.to_string();
        self.rooms += 1;
        mkdirat(&self.scratch, name.as_str(), Mode::from_bits_truncate(mode as mode_t))?;
        open_directory(self.scratch.as_fd(), OsStr::new(&name))
    }

    fn apply(&mut self, step: &MountStep, prepared: Prepared) -> Result<(), StepError> {
        match step {
            MountStep::Private { target, mode, writable } => self.private(target, *mode, *writable),
            MountStep::Pin { target } => {
                let parent = self.parent(target)?;
                let directory = self.directory(target)?;
                let tree = clone_tree(directory.as_fd(), true).at_path(Step::Bind, target)?;
                self.attach_tree(tree, &parent, target, true)
            }
            MountStep::Bind { target, directory, .. } => {
                let Prepared::Tree(tree) = prepared else { return Err(StepError::on(Step::Bind, target, Errno::EBADF)) };
                let parent = self.parent(target)?;
                self.attach_tree(tree, &parent, target, *directory)
            }
            MountStep::Overlay { target, whiteouts, .. } => self.overlay(target, whiteouts, prepared),
            MountStep::Mask { target, directory } => {
                let parent = self.parent(target)?;
                self.mask(&parent, target, *directory)
            }
            MountStep::Directory { target, mode } => {
                let parent = self.parent(target)?;
                self.make_directory(&parent, target, *mode).map(drop)
            }
            MountStep::File { target, .. } => Err(StepError::on(Step::Create, target, Errno::ENODATA)),
            MountStep::Symlink { target, to } => {
                let parent = self.parent(target)?;
                match symlinkat(to.as_path(), parent.as_fd(), name(target)?) {
                    Err(Errno::EEXIST) => Ok(()),
                    other => other.at_path(Step::Create, target),
                }
            }
            MountStep::Alias { target, of, directory } => self.alias(target, of, *directory),
            MountStep::Proc => self.proc(),
            MountStep::Dev { shm } => self.dev(*shm),
        }
    }

    /// The directory that holds `target`, made where it lies on a file system of ours.
    fn parent(&mut self, target: &Path) -> Result<OwnedFd, StepError> {
        self.directory(target.parent().unwrap_or(Path::new("/")))
    }

    fn directory(&mut self, path: &Path) -> Result<OwnedFd, StepError> {
        let error = |errno| StepError::on(Step::Create, path, errno);
        if path.parent().is_none() {
            return self.base.try_clone().at_path(Step::Open, path);
        }
        if let Some(fd) = self.directories.get(path) {
            return fd.try_clone().at_path(Step::Open, path);
        }
        let parent = self.directory(path.parent().ok_or(error(Errno::EINVAL))?)?;
        let fd = self.make_directory(&parent, path, 0o755)?;
        self.directories.insert(path.to_owned(), fd.try_clone().at_path(Step::Open, path)?);
        Ok(fd)
    }

    fn make_directory(&self, parent: &OwnedFd, path: &Path, mode: u32) -> Result<OwnedFd, StepError> {
        match open_directory(parent.as_fd(), name(path)?) {
            Err(Errno::ENOENT) => {}
            other => return other.at_path(Step::Create, path),
        }
        self.check_own(parent, path)?;
        mkdirat(parent.as_fd(), name(path)?, Mode::from_bits_truncate(mode as mode_t)).at_path(Step::Create, path)?;
        open_directory(parent.as_fd(), name(path)?).at_path(Step::Create, path)
    }

    fn check_own(&self, directory: &OwnedFd, path: &Path) -> Result<(), StepError> {
        let stat = fstat(directory).at_path(Step::Create, path)?;
        if self.own.contains(&stat.st_dev) { Ok(()) } else { Err(StepError::on(Step::Create, path, Errno::EROFS)) }
    }

    fn forget(&mut self, path: &Path) {
        self.directories.retain(|known, _| !known.starts_with(path));
    }

    fn attach_tree(&mut self, tree: OwnedFd, parent: &OwnedFd, target: &Path, directory: bool) -> Result<(), StepError> {
        if directory {
            self.make_directory(parent, target, 0o755)?;
        } else {
            self.make_file(parent, target)?;
        }
        let name = c_path(name(target)?).at_path(Step::Attach, target)?;
        attach(&tree, parent.as_fd(), &name).at_path(Step::Attach, target)?;
        self.forget(target);
        Ok(())
    }

    /// A file to mount on; an existing one (in a host tree, too) is left as it is.
    fn make_file(&self, parent: &OwnedFd, path: &Path) -> Result<(), StepError> {
        let probe = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(parent.as_fd(), name(path)?, probe, Mode::empty()) {
            Err(Errno::ENOENT) => {}
            other => return other.map(drop).at_path(Step::Create, path),
        }
        self.check_own(parent, path)?;
        let make = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(parent.as_fd(), name(path)?, make, Mode::from_bits_truncate(0o444)).map(drop).at_path(Step::Create, path)
    }

    /// Both are of one peer group (mount_namespaces(7)): what is mounted on one later, to guard or to hide, is on the other, too.
    fn alias(&mut self, target: &Path, of: &Path, directory: bool) -> Result<(), StepError> {
        let around = self.parent(of)?;
        let probe = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let source = openat(around.as_fd(), name(of)?, probe, Mode::empty()).at_path(Step::Open, of)?;
        share(source.as_fd()).at_path(Step::Propagation, of)?;
        let tree = clone_tree(source.as_fd(), true).at_path(Step::Bind, of)?;
        let parent = self.parent(target)?;
        self.attach_tree(tree, &parent, target, directory)
    }

    fn private(&mut self, target: &Path, mode: u32, writable: bool) -> Result<(), StepError> {
        let room = self.room(mode).at_path(Step::Tmpfs, target)?;
        let tree = clone_tree(room.as_fd(), false).at_path(Step::Bind, target)?;
        if !writable {
            self.seal.push(tree.try_clone().at_path(Step::Attributes, target)?);
        }
        let parent = self.parent(target)?;
        self.attach_tree(tree, &parent, target, true)
    }

    fn overlay(&mut self, target: &Path, whiteouts: &[PathBuf], layers: Prepared) -> Result<(), StepError> {
        let Prepared::Layers(lower, kept) = layers else { return Err(StepError::on(Step::Overlay, target, Errno::EBADF)) };
        let parent = self.parent(target)?;
        self.make_directory(&parent, target, 0o755)?;
        let room = self.room(0o755).at_path(Step::Overlay, target)?;
        let lower = lower.path(&room, c"lower").at_path(Step::Overlay, target)?;
        let upper = match &kept {
            Some(kept) => kept.path(&room, c"kept").at_path(Step::Overlay, target)?,
            None => {
                for name in ["upper", "work"] {
                    mkdirat(room.as_fd(), name, Mode::from_bits_truncate(0o755)).at_path(Step::Overlay, target)?;
                }
                format!("/proc/self/fd/{}", room.as_raw_fd())
            }
        };
        for path in whiteouts {
            self.whiteout(&room, path).at_path(Step::Overlay, target.join(path))?;
        }
        // An index, which a distribution may have made the default, would tie a layer to one mount of its tree.
        let index = if kept.is_some() { ",index=off" } else { "" };
        let options = format!("lowerdir={lower},upperdir={upper}/upper,workdir={upper}/work,userxattr{index}");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        fchdir(&parent).at_path(Step::Overlay, target)?;
        mount(Some("overlay"), name(target)?, Some("overlay"), flags, Some(options.as_str())).at_path(Step::Overlay, target)?;
        self.forget(target);
        let fd = self.directory(target)?;
        let device = fstat(&fd).at_path(Step::Overlay, target)?.st_dev;
        if kept.is_some() {
            self.layers.insert(device)
        } else {
            self.own.insert(device)
        };
        Ok(())
    }

    /// A character device 0:0 in the upper layer hides the lower layer's entry of that name.
    fn whiteout(&self, room: &OwnedFd, path: &Path) -> Result<(), Errno> {
        use nix::sys::stat::{SFlag, mknodat};
        let mut at = open_directory(room.as_fd(), OsStr::new("upper"))?;
        let mut components = path.components().peekable();
        while let Some(component) = components.next() {
            let name = component.as_os_str();
            if components.peek().is_none() {
                return match mknodat(at.as_fd(), name, SFlag::S_IFCHR, Mode::empty(), 0) {
                    Err(Errno::EEXIST) => Ok(()),
                    other => other,
                };
            }
            match mkdirat(at.as_fd(), name, Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                // A parent that is itself whited out hides the rest as well.
                Err(errno) => return Err(errno),
            }
            at = match open_directory(at.as_fd(), name) {
                Err(Errno::ENOTDIR) => return Ok(()),
                other => other?,
            };
        }
        Ok(())
    }

    /// Covers an existing path with an empty read-only file or directory.
    fn mask(&mut self, parent: &OwnedFd, target: &Path, directory: bool) -> Result<(), StepError> {
        if self.masks.is_none() {
            self.masks = Some(self.make_masks().at_path(Step::Create, target)?);
        }
        let Some((file, dir)) = &self.masks else { return Err(StepError::on(Step::Create, target, Errno::EBADF)) };
        let tree = clone_tree(if directory { dir.as_fd() } else { file.as_fd() }, false).at_path(Step::Bind, target)?;
        let set = READ_ONLY | NO_SUID | NO_DEV | NO_EXEC;
        set_attributes(tree.as_fd(), c"", Attributes { set, ..Attributes::default() }, false)
            .at_path(Step::Attributes, target)?;
        let name = c_path(name(target)?).at_path(Step::Attach, target)?;
        match attach(&tree, parent.as_fd(), &name) {
            // It has gone since it was looked at: nothing to hide.
            Err(Errno::ENOENT) => Ok(()),
            other => other.at_path(Step::Attach, target),
        }?;
        self.forget(target);
        Ok(())
    }

    /// A read-only file of our own, over what is there.
    fn file(&mut self, target: &Path, content: &[u8]) -> Result<(), StepError> {
        let parent = self.parent(target)?;
        let made = || -> Result<OwnedFd, Errno> {
            let make = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR | OFlag::O_CLOEXEC;
            let name = format!(".file.{}", self.files);
            let fd = openat(self.base.as_fd(), name.as_str(), make, Mode::from_bits_truncate(0o444))?;
            let mut rest = content;
            while !rest.is_empty() {
                rest = &rest[nix::unistd::write(&fd, rest)?..];
            }
            let path = openat(self.base.as_fd(), name.as_str(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
            let tree = clone_tree(path.as_fd(), false)?;
            let set = READ_ONLY | NO_SUID | NO_DEV | NO_EXEC;
            set_attributes(tree.as_fd(), c"", Attributes { set, ..Attributes::default() }, false)?;
            Ok(tree)
        };
        let tree = made().at_path(Step::Create, target)?;
        self.attach_tree(tree, &parent, target, false)?;
        // It has no name but where it is mounted.
        let name = format!(".file.{}", self.files);
        self.files += 1;
        unlinkat(&self.base, name.as_str(), UnlinkatFlags::NoRemoveDir).at_path(Step::Create, target)
    }

    fn make_masks(&self) -> Result<(OwnedFd, OwnedFd), Errno> {
        let none = Mode::empty();
        let make = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        // Readable: a program that finds its configuration unreadable stops, one that finds it empty goes on.
        drop(openat(self.base.as_fd(), ".mask", make, Mode::from_bits_truncate(0o444))?);
        mkdirat(self.base.as_fd(), ".mask.d", Mode::from_bits_truncate(0o555))?;
        let path = OFlag::O_PATH | OFlag::O_CLOEXEC;
        Ok((openat(self.base.as_fd(), ".mask", path, none)?, openat(self.base.as_fd(), ".mask.d", path, none)?))
    }

    fn proc(&mut self) -> Result<(), StepError> {
        let target = Path::new("/proc");
        let base = self.directory(Path::new("/"))?;
        self.make_directory(&base, target, 0o555)?;
        fchdir(&base).at(Step::Proc)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("proc"), "proc", Some("proc"), flags, None::<&str>).at(Step::Proc)?;
        let proc = open_directory(base.as_fd(), OsStr::new("proc")).at(Step::Proc)?;
        for part in PROC_READ_ONLY {
            let path = target.join(part);
            let fd = match openat(proc.as_fd(), *part, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
                Err(Errno::ENOENT) => continue,
                other => other.at_path(Step::Proc, &path)?,
            };
            let tree = clone_tree(fd.as_fd(), false).at_path(Step::Proc, &path)?;
            set_attributes(tree.as_fd(), c"", Attributes { set: READ_ONLY, ..Attributes::default() }, false)
                .at_path(Step::Proc, &path)?;
            attach(&tree, proc.as_fd(), &c_path(part).at(Step::Proc)?).at_path(Step::Proc, &path)?;
        }
        for part in PROC_MASKED {
            let path = target.join(part);
            match openat(proc.as_fd(), *part, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()) {
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(StepError::on(Step::Proc, path, errno)),
                Ok(fd) => {
                    let directory = fstat(&fd).at_path(Step::Proc, &path)?.st_mode & libc::S_IFMT == libc::S_IFDIR;
                    self.mask(&proc, &path, directory)?;
                }
            }
        }
        Ok(())
    }

    /// A tmpfs of its own.
    fn tmpfs(&mut self, parent: &OwnedFd, target: &Path, size: Option<u64>, mode: u32) -> Result<(), StepError> {
        self.make_directory(parent, target, 0o755)?;
        let limit = size.map_or(String::new(), |size| format!(",size={size}"));
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        fchdir(parent).at_path(Step::Tmpfs, target)?;
        mount(Some("tmpfs"), name(target)?, Some("tmpfs"), flags, Some(format!("mode={mode:o}{limit}").as_str()))
            .at_path(Step::Tmpfs, target)?;
        self.forget(target);
        let fd = self.directory(target)?;
        self.own.insert(fstat(&fd).at_path(Step::Tmpfs, target)?.st_dev);
        Ok(())
    }

    fn dev(&mut self, shm: Option<u64>) -> Result<(), StepError> {
        let target = Path::new("/dev");
        let base = self.directory(Path::new("/"))?;
        let mut trees = Vec::with_capacity(DEVICES.len());
        for device in DEVICES {
            let path = target.join(device);
            let fd = openat(AT_FDCWD, &path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
                .at_path(Step::Devices, &path)?;
            if fstat(&fd).at_path(Step::Devices, &path)?.st_mode & libc::S_IFMT != libc::S_IFCHR {
                return Err(StepError::on(Step::Devices, path, Errno::ENODEV));
            }
            let tree = clone_tree(fd.as_fd(), false).at_path(Step::Devices, &path)?;
            set_attributes(tree.as_fd(), c"", Attributes { set: NO_SUID | NO_EXEC, ..Attributes::default() }, false)
                .at_path(Step::Devices, &path)?;
            trees.push((path, tree));
        }
        self.tmpfs(&base, target, Some(1 << 20), 0o755)?;
        let dev = self.directory(target)?;
        for (path, tree) in trees {
            self.attach_tree(tree, &dev, &path, false)?;
        }
        for (link, to) in DEVICE_LINKS {
            symlinkat(*to, dev.as_fd(), *link).at_path(Step::Devices, target.join(link))?;
        }
        self.make_directory(&dev, Path::new("/dev/pts"), 0o755)?;
        fchdir(&dev).at(Step::Devices)?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        mount(Some("devpts"), "pts", Some("devpts"), flags, Some("newinstance,ptmxmode=0666,mode=620"))
            .at_path(Step::Devices, "/dev/pts")?;
        self.tmpfs(&dev, Path::new("/dev/shm"), shm, 0o1777)?;
        // No new entries: a file put here would look like a device.
        set_attributes(dev.as_fd(), c"", Attributes { set: READ_ONLY, ..Attributes::default() }, false).at(Step::Devices)
    }

    fn pivot(self) -> Result<(), StepError> {
        if self.masks.is_some() {
            unlinkat(self.base.as_fd(), ".mask", UnlinkatFlags::NoRemoveDir).at(Step::Create)?;
            unlinkat(self.base.as_fd(), ".mask.d", UnlinkatFlags::RemoveDir).at(Step::Create)?;
        }
        let read_only = Attributes { set: READ_ONLY, ..Attributes::default() };
        for mount in self.seal.iter().chain([&self.base]) {
            set_attributes(mount.as_fd(), c"", read_only, false).at(Step::Attributes)?;
        }
        fchdir(&self.base).at(Step::Pivot)?;
        // pivot_root(2), "pivot_root(".", ".")": the old root ends up stacked on the new one and is detached.
        pivot_root(".", ".").at(Step::Pivot)?;
        umount2(".", MntFlags::MNT_DETACH).at(Step::Pivot)?;
        nix::unistd::chdir("/").at(Step::Pivot)
    }
}

fn name(path: &Path) -> Result<&OsStr, StepError> {
    path.file_name().ok_or_else(|| StepError::on(Step::Create, path, Errno::EINVAL))
}
