//! What the mediator promises the proxy: that a connection is the sandbox's, and what it is meant for.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use super::diag::Diag;
use super::local;
use crate::local::gateway::tcp;
use crate::local::sys::notify::cookie;

/// More than the queues of all listeners hold. A connection that ends before it is accepted leaves its promise behind.
const MOST: usize = 8192;

/// Promises by the cookie (`SO_COOKIE`) of the caller's socket, which the kernel gives to no other one as long as it runs. An
/// address would not do: whoever gets the port next would find the promise.
#[derive(Debug)]
pub struct Promises {
    open: Mutex<Open>,
    diag: Mutex<Diag>,
}

#[derive(Debug, Default)]
struct Open {
    by_cookie: HashMap<u64, (SocketAddr, u64)>,
    made: u64,
}

impl Promises {
    /// None yet.
    ///
    /// # Errors
    /// The kernel's answer when it cannot be asked about sockets.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { open: Mutex::default(), diag: Mutex::new(Diag::open()?) })
    }

    /// The address that the connection from `peer` to `local` is meant for; `None` for one that nobody has promised.
    /// `lives` says whether the accepted end still has a peer: while it does, no other connection has its addresses.
    pub fn redeem(&self, peer: SocketAddr, local: SocketAddr, lives: impl FnOnce() -> bool) -> Option<SocketAddr> {
        let cookie = lock(&self.diag).cookie(peer, local).ok()??;
        if lives() { lock(&self.open).take(cookie) } else { None }
    }

    /// Does the kernel answer questions about sockets?
    ///
    /// # Errors
    /// Its answer when it does not.
    pub fn probe(&self) -> Result<(), Errno> {
        // A question of a kind that the kernel does not know is answered as one about a socket that is not there.
        let listener = tcp(Ipv4Addr::LOCALHOST.into(), 0)?;
        match lock(&self.diag).listener(local(&listener)?)? {
            Some(told) if told == cookie(listener.as_fd())? => Ok(()),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    pub(super) fn make(&self, cookie: u64, meant: SocketAddr) -> Option<SocketAddr> {
        lock(&self.open).insert(cookie, meant)
    }

    pub(super) fn withdraw(&self, cookie: u64, before: Option<SocketAddr>) {
        let mut open = lock(&self.open);
        open.take(cookie);
        if let Some(before) = before {
            open.insert(cookie, before);
        }
    }
}

impl Open {
    /// Returns what was promised before.
    fn insert(&mut self, cookie: u64, meant: SocketAddr) -> Option<SocketAddr> {
        self.made += 1;
        let before = self.by_cookie.insert(cookie, (meant, self.made));
        if self.by_cookie.len() > MOST {
            // Half at once, so that a flood pays for it rarely.
            let kept = self.made - MOST as u64 / 2;
            self.by_cookie.retain(|_, (_, made)| *made > kept);
        }
        before.map(|(meant, _)| meant)
    }

    fn take(&mut self, cookie: u64) -> Option<SocketAddr> {
        self.by_cookie.remove(&cookie).map(|(meant, _)| meant)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 443))
    }

    #[test]
    fn only_the_promised_socket_is_let_in_and_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let promises = Promises::new().unwrap();
        let (ours, theirs) = (TcpStream::connect(at).unwrap(), TcpStream::connect(at).unwrap());
        promises.make(cookie(ours.as_fd()).unwrap(), address(1));
        let redeem = |client: &TcpStream| promises.redeem(client.local_addr().unwrap(), at, || true);
        assert_eq!(redeem(&theirs), None);
        assert_eq!(promises.redeem(ours.local_addr().unwrap(), at, || false), None, "that connection is over");
        assert_eq!(redeem(&ours), Some(address(1)));
        assert_eq!(redeem(&ours), None);
        // Who sends and goes away at once is known all the same.
        let (mut brief, at_home) = (TcpStream::connect(at).unwrap(), listener.incoming().nth(2));
        let (peer, known) = (brief.local_addr().unwrap(), cookie(brief.as_fd()).unwrap());
        promises.make(known, address(2));
        std::io::Write::write_all(&mut brief, b"x").unwrap();
        drop(brief);
        assert_eq!(promises.redeem(peer, at, || at_home.unwrap().unwrap().peer_addr().is_ok()), Some(address(2)));
    }

    #[test]
    fn a_promise_that_is_withdrawn_leaves_the_one_before() {
        let promises = Promises::new().unwrap();
        assert_eq!(promises.make(7, address(1)), None);
        let before = promises.make(7, address(2));
        promises.withdraw(7, before);
        assert_eq!(lock(&promises.open).take(7), Some(address(1)));
        assert_eq!(lock(&promises.open).take(7), None);
    }

    #[test]
    fn forgotten_promises_do_not_pile_up() {
        let mut open = Open::default();
        for cookie in 0..100_000 {
            open.insert(cookie, address(1));
        }
        assert!(open.by_cookie.len() <= MOST);
        assert_eq!(open.take(99_999), Some(address(1)));
    }
}
