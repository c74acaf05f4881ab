//! The server outside, with a port for each way and a certificate of its own.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Bytes of the large answer.
pub const BULK: usize = 512 << 20;
const PART: usize = 256 << 10;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Serves on four ports, and says which: plain twice, with TLS twice. Writes the certificate to trust to `root`.
pub async fn serve(address: IpAddr, root: &Path) {
    let config = Arc::new(certified(address, root));
    let ports: Vec<u16> = [None, None, Some(&config), Some(&config)].map(|tls| listen(address, tls.cloned())).into();
    crate::say(&json!({ "ports": ports, "bulk": BULK }));
    crate::end_with_input();
    std::future::pending().await
}

fn certified(address: IpAddr, root: &Path) -> ServerConfig {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(root, params.self_signed(&key).unwrap().pem()).unwrap();
    let (issuer, leaf_key) = (Issuer::new(params, key), KeyPair::generate().unwrap());
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![SanType::IpAddress(address)];
    let chain = vec![leaf.signed_by(&leaf_key, &issuer).unwrap().der().clone()];
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der())))
        .unwrap()
}

fn listen(address: IpAddr, tls: Option<Arc<ServerConfig>>) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((address, 0).into()).unwrap();
    let listener = socket.listen(4096).unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let tls = tls.clone();
            tokio::spawn(async move {
                match tls {
                    None => answer(stream).await,
                    Some(config) => answer(TlsAcceptor::from(config).accept(stream).await?).await,
                }
            });
        }
    });
    port
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let (mut buffer, mut filled) = (vec![0; 4 << 10], 0);
    loop {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Ok(()),
            length => filled += length,
        }
        if !buffer[..filled].ends_with(b"\r\n\r\n") {
            continue;
        }
        if buffer[..filled].windows(5).any(|part| part == b"/bulk") {
            let part = vec![b'x'; PART];
            stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {BULK}\r\n\r\n").as_bytes()).await?;
            for _ in 0..BULK / PART {
                stream.write_all(&part).await?;
            }
        } else {
            stream.write_all(ANSWER).await?;
        }
        stream.flush().await?;
        filled = 0;
    }
}
