//! What must hold before anything else is done.
//!
//! Closed standard descriptors and SIGPIPE are the runtime's work: Rust's own start opens `/dev/null` over missing
//! descriptors 0 to 2 and ignores SIGPIPE, so a write to a gone reader is an error value and never a death.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, geteuid, getresgid, getresuid, initgroups, setresgid, setresuid};

use crate::error::Error;

/// Refuses to run with somebody else's rights. A set-uid or set-gid copy of this program would read policy files,
/// variables and paths chosen by one user with the rights of another.
pub(crate) fn refuse_borrowed_rights() -> Result<(), Error> {
    let same = getresuid().is_ok_and(|ids| ids.real == ids.effective && ids.real == ids.saved)
        && getresgid().is_ok_and(|ids| ids.real == ids.effective && ids.real == ids.saved);
    if same {
        return Ok(());
    }
    Err(Error::setup("real and effective user or group differ: this program must not be set-uid or set-gid")
        .hint("remove the bit: chmod ug-s on the binary"))
}

/// Becomes `name` for good, with that user's groups and nobody else's. Only root can; naming oneself is fine.
pub(crate) fn become_user(name: &str) -> Result<User, Error> {
    let user = User::from_name(name)
        .ok()
        .flatten()
        .ok_or_else(|| Error::usage(format!("there is no user `{}`", crate::output::clean(name))))?;
    if user.uid == geteuid() {
        return Ok(user);
    }
    let refuse = |why: &str| Error::setup(format!("cannot become user `{name}`: {why}"));
    if !geteuid().is_root() {
        return Err(refuse("only root can run as somebody else"));
    }
    if user.uid.is_root() {
        return Err(refuse("real root never enters a sandbox").hint("name an ordinary user"));
    }
    let c_name = CString::new(name).map_err(|_| refuse("the name holds a NUL byte"))?;
    let ids = |uid: Uid, gid: Gid| {
        initgroups(&c_name, gid)?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)
    };
    ids(user.uid, user.gid).map_err(|errno| refuse(errno.desc()))?;
    Ok(user)
}
