//! Takes what was judged out of the tree, so that another supervisor can go on at any point.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hermes_profiles::guard::Rule;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, renameat};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};

use super::{Candidate, Settler};
use crate::beneath::{Root, by_descriptor, errno, kind, rename_to_free};
use crate::fresh;
use crate::guard::quarantine::{Entry, Stage, What};
use crate::guard::snapshot::{Change, Is, LONGEST};

impl Settler<'_> {
    /// Puts a directory aside that stands where a guarded file was.
    pub(super) fn put_directory_aside(&mut self, change: &Change, rule: &Rule) -> io::Result<()> {
        let Some(old) = &change.before else { return Ok(()) };
        let now = old.with(Is::Special, 0o700);
        let (entry, _, before) = self.entry(&change.path, rule, "now a directory".to_owned(), &now, Some(old));
        let entry = Entry { what: What::Directory, ..entry };
        let id = self.quarantine.add(&entry, &[], &before)?;
        self.quarantine.sync(&[id])?;
        self.finish(id, entry, Some((old.is.clone(), old.mode)))
    }

    /// Puts aside what nothing excuses.
    pub(crate) fn put_aside(&mut self, candidates: Vec<Candidate<'_>>) -> io::Result<()> {
        let mut copied = Vec::new();
        for Candidate { change, rule, why, instead } in candidates {
            let Some(now) = change.now else { continue };
            let (entry, content, old) = self.entry(&change.path, rule, why, &now, change.before.as_ref());
            match self.quarantine.add(&entry, &content, &old) {
                Ok(id) => copied.push((id, entry, instead)),
                Err(e) => self.note(&change.path, Err(e)),
            }
        }
        let ids: Vec<u64> = copied.iter().map(|(id, ..)| *id).collect();
        // Before the tree loses them.
        self.quarantine.sync(&ids)?;
        for (id, entry, instead) in copied {
            let path = entry.path.clone();
            let done = self.finish(id, entry, instead);
            self.note(&path, done);
        }
        self.quarantine.sync(&ids)
    }

    /// Takes the name away and puts the right thing in its place: the second half of putting aside, which another
    /// supervisor can do again.
    pub(crate) fn finish(&mut self, id: u64, entry: Entry, instead: Option<(Is, u32)>) -> io::Result<()> {
        let taken = match self.tree.root.parent(&entry.path) {
            Ok((parent, name)) => Some((parent, name.to_owned())),
            // Its directory has gone meanwhile, and it with it.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => None,
            Err(errno) => return Err(errno.into()),
        };
        if let Some((parent, name)) = taken {
            self.take_away(&parent, &name, id, &entry)?;
            if let Some((is, mode)) = instead {
                put_back(&parent, &name, &is, mode)?;
            }
        }
        let entry = Entry { stage: Stage::Done, ..entry };
        self.quarantine.update(id, &entry)?;
        self.outcome.put_aside.push((self.tree.path.clone(), id, entry));
        Ok(())
    }

    fn take_away(&self, parent: &OwnedFd, name: &std::ffi::OsStr, id: u64, entry: &Entry) -> io::Result<()> {
        let away = self.about.away(id);
        let take = || rename_to_free(parent, name, parent, away.as_ref());
        let taken = take().or_else(|errno| match errno {
            Errno::EACCES => {
                self.tree.root.make_writable(entry.path.parent().unwrap_or(Path::new("")))?;
                take()
            }
            errno => Err(errno),
        });
        match taken {
            Ok(()) | Err(Errno::EEXIST | Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let moved = Root::from_fd(parent.try_clone()?);
        let Ok(stat) = moved.stat(Path::new(&away)) else { return Ok(()) };
        match kind(&stat) {
            SFlag::S_IFDIR if entry.what == What::Directory => {
                let kept = self.quarantine.content_path(id);
                let holder = Root::open(kept.parent().unwrap_or(Path::new("/")))?;
                return match rename_to_free(parent, away.as_ref(), &holder, "directory".as_ref()) {
                    // It stays on its file system, under a name that nothing looks for.
                    Err(Errno::EXDEV) => {
                        let mut beside = name.to_owned();
                        beside.push(format!(".put-aside-{id}"));
                        match rename_to_free(parent, away.as_ref(), parent, &beside) {
                            // Neither does anything look for the name that it has.
                            Err(Errno::EEXIST | Errno::ENAMETOOLONG) => Ok(()),
                            other => other,
                        }
                    }
                    other => other,
                }
                .map_err(Into::into);
            }
            SFlag::S_IFDIR => {
                // Somebody made a directory of that name since: it is not what was judged.
                return rename_to_free(parent, away.as_ref(), parent, name).map_err(Into::into);
            }
            SFlag::S_IFREG if entry.what == What::LongFile => self.keep_long(parent, &away, id)?,
            SFlag::S_IFREG => {
                // What was written between the look and now comes along.
                if let Ok((content, _)) = moved.read(Path::new(&away), LONGEST)
                    && self.quarantine.content(id).is_ok_and(|known| known != content)
                {
                    std::fs::write(self.quarantine.content_path(id), content)?;
                }
            }
            _ => {}
        }
        match unlinkat(parent, away.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn keep_long(&self, parent: &OwnedFd, away: &str, id: u64) -> io::Result<()> {
        let kept = self.quarantine.content_path(id);
        let holder = Root::open(kept.parent().unwrap_or(Path::new("/")))?;
        let root = Root::from_fd(parent.try_clone()?);
        // What has other names can be changed by them.
        let alone = root.stat(Path::new(away))?.st_nlink == 1;
        let moved = if alone { renameat(parent, away, holder.as_fd(), "content") } else { Err(Errno::EXDEV) };
        match moved {
            Ok(()) => std::fs::set_permissions(&kept, Permissions::from_mode(0o600)),
            Err(Errno::EXDEV) => {
                let from = root.open_file(Path::new(away))?.0;
                let mut to = std::fs::File::create(&kept)?;
                io::copy(&mut &from, &mut to).map(drop)
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Puts a fresh file or symlink at a free name. Something that is there by now is somebody's own and stays.
pub(crate) fn put_back(parent: &OwnedFd, name: &std::ffi::OsStr, is: &Is, mode: u32) -> io::Result<()> {
    let done = match is {
        Is::Link(target) => symlinkat(std::ffi::OsStr::from_bytes(target), parent, name),
        Is::File(content) => put_file(parent, name, content, mode)?,
        Is::Unread | Is::Special => Ok(()),
    };
    match done {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn put_file(parent: &OwnedFd, name: &std::ffi::OsStr, content: &[u8], mode: u32) -> io::Result<Result<(), Errno>> {
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
    match nix::fcntl::openat(parent, ".", flags, Mode::from_bits_truncate(0o600)) {
        Ok(fd) => {
            let mut file = std::fs::File::from(fd);
            file.write_all(content)?;
            file.set_permissions(Permissions::from_mode(mode & 0o777))?;
            let cwd = nix::fcntl::AT_FDCWD;
            Ok(linkat(cwd, by_descriptor(&file).as_os_str(), parent, name, AtFlags::AT_SYMLINK_FOLLOW))
        }
        Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT) => {
            let file = fresh::file(parent, mode, |file| file.write_all(content))?;
            Ok(fresh::put(file, parent, name, false).map_err(|e| errno(&e)))
        }
        Err(errno) => Ok(Err(errno)),
    }
}
