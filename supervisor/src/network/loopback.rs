//! Ports that the host's loopback and the sandbox's share, in either direction.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hermes_backends::wire::{Channel, Request};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::error::Error;

/// How long to wait when there is no descriptor for the next connection.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// Connections to one port at a time; more wait.
const MOST: usize = 512;

/// Makes sockets in the sandbox's own network, by asking init.
pub(super) struct Inside {
    channel: Channel,
    /// In the order in which they were asked for.
    waiting: Mutex<VecDeque<oneshot::Sender<Option<OwnedFd>>>>,
    connections: AtomicUsize,
}

impl Inside {
    pub(super) fn new(channel: Channel) -> Self {
        Self { channel, waiting: Mutex::default(), connections: AtomicUsize::new(0) }
    }

    /// A socket that was asked for.
    pub(super) fn give(&self, socket: Option<OwnedFd>) {
        if let Some(waits) = self.waiting().pop_front() {
            let _ = waits.send(socket);
        }
    }

    /// How many connections there are in either direction.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<Option<OwnedFd>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self, address: IpAddr, port: u16) -> io::Result<TcpStream> {
        let (give, given) = oneshot::channel();
        {
            let mut waiting = self.waiting();
            self.channel.try_send(&Request::Socket { ipv6: address.is_ipv6() }, &[])?;
            waiting.push_back(give);
        }
        let socket = given.await.ok().flatten().ok_or(io::ErrorKind::ConnectionRefused)?;
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
        socket.connect(SocketAddr::new(address, port)).await
    }
}

/// Listens on the host's loopback for a port of the sandbox.
///
/// # Errors
/// The port is taken, or is one that only root may have.
pub(super) fn publish(port: u16) -> Result<(TcpListener, u16), Error> {
    let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener, port))
    });
    listening.map_err(|e| {
        Error::setup(format!("cannot show port {port} on 127.0.0.1: {e}")).hint("free the port, or leave --publish out")
    })
}

/// Leads connections on the sandbox's loopback to the same port of the host's, until it is dropped.
pub(super) async fn serve_connect(inside: Arc<Inside>, listener: TcpListener, port: u16) -> io::Result<()> {
    accept(&inside, listener, move || either(move |address| TcpStream::connect((address, port)))).await
}

/// Leads connections on the host's loopback to the same port of the sandbox's, until it is dropped.
pub(super) async fn serve_published(inside: Arc<Inside>, listener: TcpListener, port: u16) -> io::Result<()> {
    let counted = Arc::clone(&inside);
    accept(&counted, listener, move || {
        let inside = Arc::clone(&inside);
        async move { either(|address| inside.connect(address, port)).await }
    })
    .await
}

/// Connects on the loopback of IPv4, or on that of IPv6 where a server listens there alone.
async fn either<F>(connect: impl Fn(IpAddr) -> F) -> io::Result<TcpStream>
where
    F: Future<Output = io::Result<TcpStream>>,
{
    match connect(Ipv4Addr::LOCALHOST.into()).await {
        Err(_) => connect(Ipv6Addr::LOCALHOST.into()).await,
        connected => connected,
    }
}

async fn accept<F>(inside: &Arc<Inside>, listener: TcpListener, connect: impl Fn() -> F) -> io::Result<()>
where
    F: Future<Output = io::Result<TcpStream>> + Send + 'static,
{
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut running = JoinSet::new();
    loop {
        while running.len() >= MOST {
            running.join_next().await;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = running.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let (inside, relayed) = (Arc::clone(inside), relay(stream, connect()));
                inside.connections.fetch_add(1, Ordering::Relaxed);
                running.spawn(async move {
                    relayed.await;
                    inside.connections.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Err(_) => tokio::time::sleep(EXHAUSTED).await,
        }
    }
}

async fn relay(mut from: TcpStream, connect: impl Future<Output = io::Result<TcpStream>>) {
    let Ok(mut to) = connect.await else {
        // As if nobody listened: the program learns it at once.
        hermes_egress::relay::abort(&from);
        return;
    };
    let _ = (from.set_nodelay(true), to.set_nodelay(true));
    let _ = copy_bidirectional(&mut from, &mut to).await;
}
