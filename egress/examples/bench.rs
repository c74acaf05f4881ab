//! What the way out costs, on loopback: `cargo run --release -p hermes-egress --example bench`
//!
//! Server, proxy and client have a thread and a runtime each. Every number through the proxy stands beside the same without it,
//! measured in turns.
#![allow(clippy::unwrap_used)]

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hermes_egress::dial::{Resolve, Resolving};
use hermes_egress::names::Block;
use hermes_egress::tls::Clients;
use hermes_egress::{Config, Egress, Listeners};
use hermes_profiles::{IpNetwork, Origin, Route};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const BULK: usize = 512 << 20;
const REQUEST: &[u8] = b"GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

fn thread<T: Send + 'static>(work: impl AsyncFnOnce(std::sync::mpsc::Sender<T>) + Send + 'static) -> T {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work(sender));
    });
    receiver.recv().unwrap()
}

struct Everywhere;

impl Resolve for Everywhere {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(async { Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) })
    }
}

async fn answer(mut stream: impl Stream) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    let part = vec![b'x'; 256 << 10];
    let mut filled = 0;
    loop {
        let length = stream.read(&mut buffer[filled..]).await?;
        if length == 0 {
            return Ok(());
        }
        filled += length;
        if !buffer[..filled].ends_with(b"\r\n\r\n") {
            continue;
        }
        if buffer[..filled].windows(5).any(|part| part == b"/bulk") {
            stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {BULK}\r\n\r\n").as_bytes()).await?;
            for _ in 0..BULK / part.len() {
                stream.write_all(&part).await?;
            }
        } else {
            stream.write_all(ANSWER).await?;
        }
        stream.flush().await?;
        filled = 0;
    }
}

fn server(tls: Option<Arc<ServerConfig>>) -> u16 {
    thread(async move |port| {
        let listener = tokio::net::TcpSocket::new_v4().unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listener.listen(4096).unwrap();
        port.send(listener.local_addr().unwrap().port()).unwrap();
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
    })
}

/// A proxy for the two ports; the addresses that its name has on them, and its certificate.
fn proxy(plain: u16, tls: u16, root: CertificateDer<'static>) -> (Ipv4Addr, Ipv4Addr, String) {
    thread(async move |ready| {
        let route = |host: &str, port: u16, paths: &[&str]| {
            let mut route = Route::new(host, [port], Origin::Derived("bench".into()));
            route.rules.addresses = vec![IpNetwork { address: Ipv4Addr::LOCALHOST.into(), prefix: 8 }];
            route.rules.paths = paths.iter().map(|path| (*path).to_owned()).collect();
            route
        };
        let mut config = Config::new("bench");
        config.synthetic = Block { first: Ipv4Addr::new(127, 64, 0, 0), prefix: 16 };
        config.resolver = Arc::new(Everywhere);
        config.clients = Some(Clients::new([root]).unwrap());
        let routes = [
            route("pass.test", plain, &[]),
            route("pass.test", tls, &[]),
            route("read.test", plain, &["/**"]),
            route("read.test", tls, &["/**"]),
        ];
        let egress = Egress::new(config, &routes).unwrap();
        let dns = UdpSocket::bind("127.0.0.1:0").unwrap();
        let dns_address = dns.local_addr().unwrap();
        let bind = |n: u8, port: u16| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 64, 1, n), port)).into()).unwrap();
            socket.listen(4096).unwrap();
            TcpListener::from(socket)
        };
        let transparent = vec![bind(0, plain), bind(0, tls), bind(1, plain), bind(1, tls)];
        let pem = egress.authority().unwrap().pem().to_owned();
        let listeners = Listeners { transparent, dns_udp: vec![dns], ..Listeners::default() };
        let serving = tokio::spawn(async move { egress.serve(listeners).await });
        let (pass, read) = (look_up(dns_address, "pass").await, look_up(dns_address, "read").await);
        ready.send((pass, read, pem)).unwrap();
        serving.await.unwrap().unwrap();
    })
}

async fn look_up(dns: SocketAddr, label: &str) -> Ipv4Addr {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let query = [&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4][..], label.as_bytes(), b"\x04test\0\0\x01\0\x01"].concat();
    socket.send_to(&query, dns).await.unwrap();
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply).await.unwrap();
    Ipv4Addr::from_bits(u32::from_be_bytes(reply[length - 4..length].try_into().unwrap()))
}

/// Where to connect to, as whom, and whom to trust.
#[derive(Clone)]
struct Way {
    address: Ipv4Addr,
    port: u16,
    host: &'static str,
    tls: Option<Arc<ClientConfig>>,
}

impl Way {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.address, self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some(config) => {
                let name = ServerName::try_from(self.host).unwrap();
                Ok(Box::new(TlsConnector::from(Arc::clone(config)).connect(name, stream).await?))
            }
        }
    }

    fn request(&self, path: &str) -> Vec<u8> {
        if self.host.is_empty() {
            // No protocol that anybody knows: relayed as bytes.
            return format!("\0{path}\r\n\r\n").into_bytes();
        }
        let text = String::from_utf8_lossy(REQUEST).replace("HOST", &format!("{}:{}", self.host, self.port));
        text.replace("/x", path).into_bytes()
    }
}

async fn get(stream: &mut dyn Stream, request: &[u8]) -> io::Result<()> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut buffer = [0; 1024];
    let mut filled = 0;
    while !buffer[..filled].ends_with(b"\r\n\r\nok") {
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => filled += length,
        }
    }
    Ok(())
}

/// The median, in microseconds, of a request on a connection that lasts, and of one with a new connection.
async fn latency(way: &Way, count: usize) -> (f64, f64) {
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6
    };
    let request = way.request("/x");
    let mut stream = way.connect().await.unwrap();
    get(&mut stream, &request).await.unwrap();
    let (mut kept, mut fresh) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let began = Instant::now();
        get(&mut stream, &request).await.unwrap();
        kept.push(began.elapsed());
    }
    for _ in 0..count / 10 {
        let began = Instant::now();
        get(&mut way.connect().await.unwrap(), &request).await.unwrap();
        fresh.push(began.elapsed());
    }
    (median(kept), median(fresh))
}

/// MiB a second of one large answer.
async fn throughput(way: &Way) -> f64 {
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
    total as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20)
}

/// Requests a second on many connections at a time, and how many failed.
async fn crowd(way: &Way, connections: usize, each: usize) -> (f64, usize) {
    let began = Instant::now();
    let tasks: Vec<_> = (0..connections)
        .map(|_| {
            let way = way.clone();
            tokio::spawn(async move {
                let request = way.request("/x");
                let Ok(mut stream) = way.connect().await else { return each };
                let mut failed = 0;
                for _ in 0..each {
                    failed += usize::from(get(&mut stream, &request).await.is_err());
                }
                failed
            })
        })
        .collect();
    let mut failed = 0;
    for task in tasks {
        failed += task.await.unwrap();
    }
    ((connections * each) as f64 / began.elapsed().as_secs_f64(), failed)
}

fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn trusting(root: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    Arc::new(builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth())
}

fn main() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap().der().clone();
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["pass.test".to_owned(), "read.test".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&leaf_key, &Issuer::new(params, key)).unwrap();
    let own = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der())))
        .unwrap();
    let (plain, tls) = (server(None), server(Some(Arc::new(own))));
    let (pass, read, pem) = proxy(plain, tls, root.clone());
    let (theirs, ours) = (trusting(root), trusting(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()));
    let way = |address, port, host, tls: Option<&Arc<ClientConfig>>| Way { address, port, host, tls: tls.cloned() };
    let ways = [
        ("bytes direct", way(Ipv4Addr::LOCALHOST, plain, "", None)),
        ("bytes passed through", way(pass, plain, "", None)),
        ("http direct", way(Ipv4Addr::LOCALHOST, plain, "pass.test", None)),
        ("http through (read)", way(read, plain, "read.test", None)),
        ("tls direct", way(Ipv4Addr::LOCALHOST, tls, "pass.test", Some(&theirs))),
        ("tls passed through", way(pass, tls, "pass.test", Some(&theirs))),
        ("tls inspected", way(read, tls, "read.test", Some(&ours))),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rounds = 3;
    println!("{:22} {:>14} {:>14} {:>12} {:>14}", "", "kept, us", "new, us", "MiB/s", "requests/s");
    for (name, way) in &ways {
        let best = |values: Vec<f64>, better: fn(f64, f64) -> f64| values.into_iter().reduce(better).unwrap();
        let latencies: Vec<_> = (0..rounds).map(|_| runtime.block_on(latency(way, 2_000))).collect();
        let kept = best(latencies.iter().map(|pair| pair.0).collect(), f64::min);
        let fresh = best(latencies.iter().map(|pair| pair.1).collect(), f64::min);
        let bulk = best((0..rounds).map(|_| runtime.block_on(throughput(way))).collect(), f64::max);
        let (rate, failed) = runtime.block_on(crowd(way, 50, 400));
        println!("{name:22} {kept:>14.0} {fresh:>14.0} {bulk:>12.0} {rate:>14.0}{}", if failed > 0 { " FAILED" } else { "" });
        io::stdout().flush().unwrap();
    }
    for (name, way) in &ways[1..4] {
        let before = memory();
        let (rate, failed) = runtime.block_on(crowd(way, 1_000, 100));
        println!(
            "{name}: 1000 connections, 100000 requests: {rate:.0} a second, {failed} failed, {} MiB more (all three sides)",
            memory().saturating_sub(before)
        );
    }
}
