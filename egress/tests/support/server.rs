//! Servers outside.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

/// A certificate authority that signs for the servers outside.
pub struct TestAuthority {
    pub certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

pub fn authority() -> &'static TestAuthority {
    static AUTHORITY: LazyLock<TestAuthority> = LazyLock::new(|| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        TestAuthority { certificate, issuer: Issuer::new(params, key) }
    });
    &AUTHORITY
}

pub fn tls_server(names: &[&str], alpn: &[&str]) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    let leaf = params.signed_by(&key, &authority().issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

pub fn tls_client(root_pem: &str, alpn: &[&str]) -> ClientConfig {
    use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root_pem.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

/// TLS over `stream`, for `name`, trusting `root_pem`.
pub async fn tls(stream: TcpStream, name: &str, root_pem: &str, alpn: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(tls_client(root_pem, alpn))).connect(name, stream).await
}

/// What servers saw: the head of each request, one per entry.
pub type Seen = Arc<Mutex<Vec<String>>>;

/// An HTTP server, over TLS if `config` is given. `/events` sends two events half a second apart, `/big` many bytes, `/echo` upgrades.
pub async fn http(config: Option<Arc<ServerConfig>>) -> (SocketAddr, Seen) {
    listen(move |stream, seen| {
        stream.set_nodelay(true).unwrap();
        let config = config.clone();
        async move {
            match config {
                None => serve(stream, false, seen).await,
                Some(config) => {
                    let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else { return };
                    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    serve(stream, h2, seen).await;
                }
            }
        }
    })
    .await
}

/// A server on the loopback that gives each connection to `serve`.
async fn listen<F>(serve: impl Fn(TcpStream, Seen) -> F + Send + 'static) -> (SocketAddr, Seen)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    tokio::spawn({
        let seen = Arc::clone(&seen);
        async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, Arc::clone(&seen)));
            }
        }
    });
    (address, seen)
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, h2: bool, seen: Seen) {
    let service = service_fn(move |request| {
        let seen = Arc::clone(&seen);
        async move { Ok::<_, Infallible>(answer(request, seen).await) }
    });
    let io = TokioIo::new(stream);
    if h2 {
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
    } else {
        let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).with_upgrades().await;
    }
}

async fn answer(mut request: Request<Incoming>, seen: Seen) -> Response<BoxBody<Bytes, Infallible>> {
    let mut head = format!("{} {} {:?}\n", request.method(), request.uri(), request.version());
    for (name, value) in request.headers() {
        head.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    let path = request.uri().path().to_owned();
    if path == "/echo" {
        seen.lock().unwrap().push(head);
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; 64];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                stream.write_all(&buffer[..length]).await.unwrap();
                stream.flush().await.unwrap();
            }
        });
        let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "websocket");
        return response.body(full(Bytes::new())).unwrap();
    }
    let request_header = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    head.push_str(&format!("\nbody {}\n", body.len()));
    seen.lock().unwrap().push(head.clone());
    let response = Response::builder();
    let sent = request_header.unwrap_or_default();
    match path.as_str() {
        "/v1/mirror" => return response.header("content-length", head.len()).body(full(Bytes::from(head))).unwrap(),
        "/v1/mirror-encoded" => return response.header("content-encoding", "br").body(full(Bytes::from(head))).unwrap(),
        "/v1/mirror-header" => return response.header("x-sent", sent).header("x-other", "o").body(full("fine".into())).unwrap(),
        "/v1/mirror-pieces" => {
            let (first, second) = sent.split_at(sent.len() - 4);
            let parts = vec![format!("data: {first}"), format!("{second}\n\n"), "data: after\n\n".to_owned()];
            return response.body(futures_stream(parts, Duration::from_millis(50))).unwrap();
        }
        // Ends with what may be the beginning of the value.
        "/v1/nearly" => return response.header("content-length", 9).body(full("real-valu".into())).unwrap(),
        _ => {}
    }
    // What was sent is in `seen`; an answer with a secret in it would be cut off.
    let head: String = head.split_inclusive('\n').filter(|line| !line.starts_with("authorization")).collect();
    match path.as_str() {
        "/events" => {
            let frames = futures_stream(["data: one\n\n", "data: two\n\n"], Duration::from_millis(500));
            response.header("content-type", "text/event-stream").body(frames).unwrap()
        }
        "/forever" => response.body(futures_stream(vec!["x"; 10_000], Duration::from_millis(50))).unwrap(),
        "/big" => response.body(full(Bytes::from(vec![b'x'; 8 << 20]))).unwrap(),
        "/forbidden" => response.status(403).header("x-hermes-sandbox", "refused").body(full("their own".into())).unwrap(),
        _ => response.header("alt-svc", "h3=\":443\"").body(full(Bytes::from(head))).unwrap(),
    }
}

fn full(bytes: Bytes) -> BoxBody<Bytes, Infallible> {
    http_body_util::Full::new(bytes).boxed()
}

/// Parts with a pause between them.
fn futures_stream<T>(
    parts: impl IntoIterator<Item = T, IntoIter: Send> + Send + 'static,
    pause: Duration,
) -> BoxBody<Bytes, Infallible>
where
    Bytes: From<T>,
    T: Send,
{
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for part in parts {
            if sender.send(Bytes::from(part)).await.is_err() {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let part = receiver.recv().await?;
        Some((Ok(Frame::data(part)), receiver))
    });
    BodyExt::boxed(StreamBody::new(SyncStream(Mutex::new(Box::pin(stream)))))
}

struct SyncStream<S>(Mutex<std::pin::Pin<Box<S>>>);

impl<S: futures_util::Stream> futures_util::Stream for SyncStream<S> {
    type Item = S::Item;
    fn poll_next(self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        self.0.lock().unwrap().as_mut().poll_next(cx)
    }
}

/// A server that keeps every byte it gets, and answers each connection with `answer` at once.
pub async fn raw(answer: &'static [u8]) -> (SocketAddr, Seen) {
    listen(move |mut stream, seen| async move {
        let at = {
            let mut seen = seen.lock().unwrap();
            seen.push(String::new());
            seen.len() - 1
        };
        let _ = stream.write_all(answer).await;
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            seen.lock().unwrap()[at].push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
    })
    .await
}
