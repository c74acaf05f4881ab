//! What must hold before anything else is done.
//!
//! Closed standard descriptors and SIGPIPE are the runtime's work: Rust's own start opens `/dev/null` over missing
//! descriptors 0 to 2 and ignores SIGPIPE, so a write to a gone reader is an error value and never a death.

use nix::unistd::{getresgid, getresuid};

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
