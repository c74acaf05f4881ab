//! The client, in the sandbox or beside it: measures what it is told to.

use std::io::{self, BufRead};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::server::BULK;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Carries out lines of `latency`, `bulk` or `crowd`, an address, a port, `bytes`, `http` or `tls`, and numbers.
pub fn run(runtime: &Runtime) {
    let tls = trusting();
    crate::say(&json!("ready"));
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        let way = Way { address, port, kind: words[3].into(), tls: tls.clone() };
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        crate::say(&runtime.block_on(async {
            match words[0] {
                "latency" => latency(&way, number(4)).await,
                "bulk" => bulk(&way).await,
                _ => crowd(&way, number(4), number(5)).await,
            }
        }));
    }
}

/// Trusts what programs in this place do. Handshakes are whole ones.
fn trusting() -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let file = std::env::var("SSL_CERT_FILE").unwrap();
    roots.add_parsable_certificates(CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap));
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

#[derive(Clone)]
struct Way {
    address: IpAddr,
    port: u16,
    kind: String,
    tls: Arc<ClientConfig>,
}

impl Way {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.address, self.port)).await?;
        stream.set_nodelay(true)?;
        if self.kind != "tls" {
            return Ok(Box::new(stream));
        }
        let name = ServerName::IpAddress(self.address.into());
        Ok(Box::new(TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await?))
    }

    fn request(&self, path: &str) -> Vec<u8> {
        match self.kind.as_str() {
            // No protocol that anybody knows: relayed as bytes.
            "bytes" => format!("\0{path}\r\n\r\n"),
            _ => format!("GET {path} HTTP/1.1\r\nHost: {}:{}\r\n\r\n", self.address, self.port),
        }
        .into_bytes()
    }
}

async fn get(stream: &mut dyn Stream, request: &[u8]) -> io::Result<()> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let (mut buffer, mut filled) = ([0; 1024], 0);
    while !buffer[..filled].ends_with(b"\r\n\r\nok") {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => filled += length,
        }
    }
    Ok(())
}

/// Medians, in microseconds, of a request on a connection that lasts, and of one with a new connection.
async fn latency(way: &Way, count: usize) -> Value {
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    let request = way.request("/x");
    let mut stream = way.connect().await.unwrap();
    get(&mut stream, &request).await.unwrap();
    let (mut kept, mut new) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let began = Instant::now();
        get(&mut stream, &request).await.unwrap();
        kept.push(began.elapsed());
    }
    for _ in 0..count / 10 {
        let began = Instant::now();
        get(&mut way.connect().await.unwrap(), &request).await.unwrap();
        new.push(began.elapsed());
    }
    json!({ "kept": median(kept), "new": median(new) })
}

/// MiB a second of one large answer.
async fn bulk(way: &Way) -> Value {
    let mut stream = way.connect().await.unwrap();
    stream.write_all(&way.request("/bulk")).await.unwrap();
    stream.flush().await.unwrap();
    let mut buffer = vec![0; 256 << 10];
    let (began, mut total) = (Instant::now(), 0);
    while total < BULK {
        match stream.read(&mut buffer).await.unwrap() {
            0 => panic!("cut off after {total} bytes"),
            length => total += length,
        }
    }
    json!({ "bulk": total as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20) })
}

/// Many connections at a time, each with requests of its own one after the other: these a second once all are connected.
async fn crowd(way: &Way, connections: usize, each: usize) -> Value {
    let start = Arc::new(tokio::sync::Barrier::new(connections + 1));
    let one = |way: Way, start: Arc<tokio::sync::Barrier>| async move {
        let request = way.request("/x");
        let stream = way.connect().await;
        start.wait().await;
        let Ok(mut stream) = stream else { return each };
        for done in 0..each {
            if get(&mut stream, &request).await.is_err() {
                return each - done;
            }
        }
        0
    };
    let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(one(way.clone(), Arc::clone(&start)))).collect();
    start.wait().await;
    let (began, mut failed) = (Instant::now(), 0);
    for task in tasks {
        failed += task.await.unwrap();
    }
    json!({ "rate": (connections * each) as f64 / began.elapsed().as_secs_f64(), "failed": failed })
}
