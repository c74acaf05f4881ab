//! The supervisor's listeners that the mediator leads connections to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::local;
use crate::local::gateway::{Listening as Made, tcp};
use crate::step::{At, Step, StepError};
use crate::wire::Listener;

/// Where one listener is, on the loopback of each family.
#[derive(Debug, Clone, Copy)]
pub struct Listening {
    pub(super) v4: SocketAddr,
    pub(super) v6: Option<SocketAddr>,
}

/// Where all of them are.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    pub(super) dns: Listening,
    pub(super) explicit: Listening,
    pub(super) transparent: Listening,
}

/// Makes listeners on the loopback of the calling thread's network namespace.
///
/// # Errors
/// [`Step::Gateway`].
pub fn listeners() -> Result<(Ends, Vec<Made>), StepError> {
    let mut all = Vec::with_capacity(6);
    let mut make = |kind: Listener| -> Result<Listening, StepError> {
        let mut one = |ip: IpAddr| -> Result<SocketAddr, Errno> {
            let fd: OwnedFd = tcp(ip, 0)?;
            let at = local(&fd)?;
            all.push((kind, fd));
            Ok(at)
        };
        let v4 = one(Ipv4Addr::LOCALHOST.into()).at(Step::Gateway)?;
        // A host without IPv6 has no such address.
        let v6 = one(Ipv6Addr::LOCALHOST.into()).ok();
        Ok(Listening { v4, v6 })
    };
    let ends =
        Ends { dns: make(Listener::DnsTcp)?, explicit: make(Listener::Proxy)?, transparent: make(Listener::Transparent(0))? };
    Ok((ends, all))
}
