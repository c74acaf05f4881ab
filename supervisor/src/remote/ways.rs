//! Connections out of a sandbox on the other side: each is given to the engine here, which decides about it.
//!
//! The engine copies between sockets in the kernel, so each connection is given to it as one: a pair on the loopback of this host,
//! whose other end is ours. Nobody else's connection gets there: a listener lives for one pair, and takes only the address that
//! we connect from.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use hermes_egress::Egress;
use hermes_egress::proxy::Arrived;
use hermes_egress::relay::abort;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::hello;
use super::mux::Stream;
use crate::network::Way;

/// How long a stream may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections of others that a pair's listener turns away before it gives up.
const STRANGERS: usize = 64;

/// Serves one stream until it ends.
pub(super) async fn take(egress: Arc<Egress>, mut stream: Stream) -> io::Result<()> {
    let arrived = match tokio::time::timeout(PATIENCE, hello::read(&mut stream)).await?? {
        Way::Names => return egress.answer_names(stream).await,
        Way::Transparent(meant) => Arrived::Transparent(meant),
        Way::Explicit => Arrived::Explicit,
    };
    let (ours, theirs) = pair().await?;
    tokio::join!(egress.take(arrived, theirs), pump(ours, stream));
    Ok(())
}

async fn pump(mut ours: TcpStream, mut stream: Stream) {
    let _ = ours.set_nodelay(true);
    if copy_bidirectional(&mut ours, &mut stream).await.is_err() {
        // The stream is reset as it is dropped.
        abort(&ours);
    }
}

/// Two ends of one connection.
async fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let ours = TcpStream::connect(listener.local_addr()?).await?;
    let own = ours.local_addr()?;
    for _ in 0..STRANGERS {
        let (theirs, peer) = listener.accept().await?;
        if peer == own {
            return Ok((ours, theirs));
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn a_pair_is_of_two_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut a, mut b) = pair().await.unwrap();
            a.write_all(b"x").await.unwrap();
            assert_eq!(b.read_u8().await.unwrap(), b'x');
            assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
        });
    }
}
