//! Connections out of a sandbox that somebody else decides about: accepted here, and led there one by one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hermes_egress::Listeners;
use hermes_egress::proxy::Meant;
use hermes_egress::relay::abort;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long to wait when there is no descriptor for the next connection.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// How long an answer about a name may take.
const NAMED: Duration = Duration::from_secs(10);

/// A stream that leads somewhere.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// What a stream is that leads to who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// A connection to this address.
    Transparent(SocketAddr),
    /// One to the proxy.
    Explicit,
    /// Queries for names, as over TCP (RFC 7766).
    Names,
}

/// Opens a stream that leads to who decides.
pub(crate) type Opening = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// What the other side gives and takes.
pub(crate) struct Offer {
    /// Leads there.
    pub(crate) open: Arc<dyn Fn(Way) -> Opening + Send + Sync>,
    /// The certificate, in PEM, that must be trusted inside.
    pub(crate) authority: String,
    /// Variables that programs expect secrets in, and what stands in the place of these.
    pub(crate) placeholders: Vec<(String, String)>,
}

/// Who decides, seen from here.
pub(super) struct Elsewhere {
    offer: Offer,
    meant: Arc<dyn Meant>,
    connections: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Transparent,
    Explicit,
    Names,
}

impl Elsewhere {
    pub(super) fn new(offer: Offer, meant: Arc<dyn Meant>) -> Self {
        Self { offer, meant, connections: AtomicUsize::new(0) }
    }

    pub(super) fn authority(&self) -> &str {
        &self.offer.authority
    }

    pub(super) fn placeholders(&self) -> &[(String, String)] {
        &self.offer.placeholders
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Leads what arrives until it is dropped.
    pub(super) async fn serve(self: Arc<Self>, listeners: Listeners) -> io::Result<()> {
        let mut loops = JoinSet::new();
        let kinds =
            [(listeners.transparent, Kind::Transparent), (listeners.explicit, Kind::Explicit), (listeners.dns_tcp, Kind::Names)];
        for (listeners, kind) in kinds {
            for listener in listeners {
                loops.spawn(Arc::clone(&self).accept(listener, kind));
            }
        }
        for socket in listeners.dns_udp {
            let this = Arc::clone(&self);
            loops.spawn(hermes_egress::dns::relay_udp(socket, move |query| ask((this.offer.open)(Way::Names), query)));
        }
        while let Some(ended) = loops.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(())
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, kind: Kind) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut running = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = running.join_next() => continue,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let this = Arc::clone(&self);
                    this.connections.fetch_add(1, Ordering::Relaxed);
                    running.spawn(async move {
                        this.lead(stream, peer, kind).await;
                        this.connections.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Err(_) => tokio::time::sleep(EXHAUSTED).await,
            }
        }
    }

    async fn lead(&self, mut stream: TcpStream, peer: SocketAddr, kind: Kind) {
        let _ = stream.set_nodelay(true);
        let Some(meant) = self.meant.address(&stream, peer) else { return abort(&stream) };
        let way = match kind {
            Kind::Transparent => Way::Transparent(meant),
            Kind::Explicit => Way::Explicit,
            Kind::Names => Way::Names,
        };
        let Ok(mut there) = (self.offer.open)(way).await else { return abort(&stream) };
        if copy_bidirectional(&mut stream, &mut there).await.is_err() {
            // What is refused there is refused here the same way.
            abort(&stream);
        }
    }
}

/// Has a query for a name answered.
async fn ask(opening: Opening, query: Vec<u8>) -> Option<Vec<u8>> {
    let asked = async {
        let mut stream = opening.await?;
        let length = u16::try_from(query.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], &query].concat()).await?;
        stream.flush().await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        io::Result::Ok(answer)
    };
    tokio::time::timeout(NAMED, asked).await.ok()?.ok()
}
