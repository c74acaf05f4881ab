//! Clients, led to the other side. What they want to know of the network is answered here, where it is decided about.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::sync::Mutex;

use super::routes::LiveRoutes;
use crate::network::NO_WAY_OUT;
use crate::remote::hello::{self, Wanted};
use crate::remote::mux::Mux;
use crate::session::protocol::{Code, Failure, LONGEST, Request, Routes};
use crate::session::server::{answer, parameters, result};

/// Leads a client to the far half until one of them has had enough.
pub(super) async fn lead(mux: Mux, client: UnixStream, wanted: Wanted, routes: Option<Arc<LiveRoutes>>) {
    let led = async {
        client.set_nonblocking(true)?;
        let mut client = tokio::net::UnixStream::from_std(client)?;
        let mut stream = mux.open().await?;
        hello::write(&mut stream, &wanted).await?;
        if wanted == Wanted::Mcp {
            return copy_bidirectional(&mut client, &mut stream).await.map(drop);
        }
        let ((from, to), (reader, writer)) = (client.into_split(), tokio::io::split(stream));
        let to = Arc::new(Mutex::new(to));
        let back = Arc::clone(&to);
        tokio::try_join!(requests(from, writer, &to, routes.as_deref()), answers(reader, &back)).map(drop)
    };
    let _ = led.await;
}

/// One line, or as much as fits into a line's bounds.
async fn line(from: &mut (impl AsyncBufReadExt + Unpin), line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    Ok(from.take(8 * LONGEST as u64).read_until(b'\n', line).await? > 0)
}

async fn requests(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    back: &Mutex<impl AsyncWrite + Unpin>,
    routes: Option<&LiveRoutes>,
) -> io::Result<()> {
    let (mut from, mut buffer, mut introduced) = (BufReader::new(from), Vec::new(), false);
    while line(&mut from, &mut buffer).await? {
        match about_routes(&buffer).filter(|_| introduced) {
            Some(request) => {
                let answer = answer(&request.id, answered(&request, routes).await);
                back.lock().await.write_all(answer.as_bytes()).await?;
            }
            None => {
                introduced = true;
                to.write_all(&buffer).await?;
                if from.buffer().is_empty() {
                    to.flush().await?;
                }
            }
        }
    }
    to.shutdown().await
}

async fn answers(from: impl AsyncRead + Unpin, to: &Mutex<impl AsyncWrite + Unpin>) -> io::Result<()> {
    let (mut from, mut buffer) = (BufReader::new(from), Vec::new());
    while line(&mut from, &mut buffer).await? {
        to.lock().await.write_all(&buffer).await?;
    }
    to.lock().await.shutdown().await
}

/// A request that is answered here.
fn about_routes(line: &[u8]) -> Option<Request> {
    // Most are not, and need not be understood.
    let named = line.windows(6).any(|word| word == b"routes");
    let request: Request = named.then(|| serde_json::from_slice(line).ok())??;
    (request.jsonrpc == "2.0" && matches!(request.method.as_str(), "routes" | "set-routes")).then_some(request)
}

async fn answered(request: &Request, routes: Option<&LiveRoutes>) -> Result<Box<RawValue>, Failure> {
    match (request.method.as_str(), routes) {
        ("routes", Some(routes)) => result(&routes.show()?),
        ("routes", None) => result(&Routes::default()),
        (_, Some(routes)) => result(&routes.set_spoken(parameters(request.params.as_deref())?).await?),
        (_, None) => Err(Failure::new(Code::Parameters, NO_WAY_OUT)),
    }
}
