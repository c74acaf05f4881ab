//! What the way out costs, on loopback: `cargo run --release -p hermes-egress --example bench [WAY..]`
//!
//! Client and server have a thread and a runtime each; what is between them is a process of its own. Each round measures every way
//! once, so that what else the machine does falls on all of them; the best of the rounds counts. Beside the proxy stands a loop that
//! only copies: what a machine on which all three sides share the processors gives at most.
#![allow(clippy::unwrap_used)]

mod between;

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use between::Between;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Each way is measured so many times.
const ROUNDS: usize = 5;
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

fn trusting(root: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    Arc::new(builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth())
}

/// Many connections at a time, each with requests of its own one after the other.
struct Crowd {
    rate: f64,
    failed: usize,
    /// Of what is between, for a request, in microseconds.
    busy: f64,
    /// Of what is between, in KiB: the most seen while they ran.
    resident: u64,
    share: u64,
}

fn crowd(runtime: &tokio::runtime::Runtime, way: &Way, between: Option<&Between>, connections: usize, each: usize) -> Crowd {
    let (busy, began) = (between.map(Between::busy), Instant::now());
    let (done, over) = channel::<()>();
    let (mut resident, mut share) = (0, 0);
    let failed = std::thread::scope(|scope| {
        let watching = scope.spawn(move || {
            let (mut resident, mut share) = (0, 0);
            while over.recv_timeout(Duration::from_millis(50)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if let Some((now, part)) = between.map(Between::memory) {
                    (resident, share) = (now.max(resident), part.max(share));
                }
            }
            (resident, share)
        });
        let failed = runtime.block_on(async {
            let one = |way: Way| async move {
                let request = way.request("/x");
                let Ok(mut stream) = way.connect().await else { return each };
                let mut failed = 0;
                for _ in 0..each {
                    failed += usize::from(get(&mut stream, &request).await.is_err());
                }
                failed
            };
            let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(one(way.clone()))).collect();
            let mut failed = 0;
            for task in tasks {
                failed += task.await.unwrap();
            }
            failed
        });
        drop(done);
        (resident, share) = watching.join().unwrap();
        failed
    });
    let requests = (connections * each) as f64;
    let rate = requests / began.elapsed().as_secs_f64();
    let busy = between.zip(busy).map_or(0.0, |(between, before)| (between.busy() - before).as_secs_f64() * 1e6 / requests);
    Crowd { rate, failed, busy, resident, share }
}

/// The best of what was measured of one way.
#[derive(Clone, Copy)]
struct Best {
    kept: f64,
    fresh: f64,
    bulk: f64,
    rate: f64,
    /// Processor time of what is between, in milliseconds for a GiB, and in microseconds for a request.
    busy_bulk: f64,
    busy_request: f64,
    failed: usize,
}

fn measure(runtime: &tokio::runtime::Runtime, way: &Way, between: Option<&Between>) -> Best {
    let (kept, fresh) = runtime.block_on(latency(way, 1_000));
    let before = between.map(Between::busy);
    let bulk = runtime.block_on(throughput(way));
    let busy = between.zip(before).map_or(0.0, |(between, before)| (between.busy() - before).as_secs_f64() * 1e3);
    let many = crowd(runtime, way, between, 50, 400);
    let busy_bulk = busy * f64::from(1 << 30) / BULK as f64;
    Best { kept, fresh, bulk, rate: many.rate, busy_bulk, busy_request: many.busy, failed: many.failed }
}

impl Best {
    fn or(self, other: Self) -> Self {
        Self {
            kept: self.kept.min(other.kept),
            fresh: self.fresh.min(other.fresh),
            bulk: self.bulk.max(other.bulk),
            rate: self.rate.max(other.rate),
            busy_bulk: self.busy_bulk.min(other.busy_bulk),
            busy_request: self.busy_request.min(other.busy_request),
            failed: self.failed + other.failed,
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [what, plain, tls] = &arguments[..]
        && let (Ok(plain), Ok(tls)) = (plain.parse(), tls.parse())
    {
        return between::run(what, plain, tls);
    }
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap();
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
    let proxy = Between::start("proxy", plain, tls, &root.pem());
    let copying = Between::start("copying", plain, tls, "");
    let address = |text: &str| text.parse::<Ipv4Addr>().unwrap();
    let (pass, read, copied) = (address(&proxy.said[0]), address(&proxy.said[1]), address(&copying.said[0]));
    let theirs = trusting(root.der().clone());
    let ours = trusting(CertificateDer::from_pem_slice(proxy.pem.as_bytes()).unwrap());
    let way = |address, port, host, tls: Option<&Arc<ClientConfig>>| Way { address, port, host, tls: tls.cloned() };
    let direct = Ipv4Addr::LOCALHOST;
    // Each with what is between, and with how many lines above it the direct one stands.
    let ways = [
        ("bytes direct", way(direct, plain, "", None), None, 0),
        ("bytes copied", way(copied, plain, "", None), Some(&copying), 1),
        ("bytes passed", way(pass, plain, "", None), Some(&proxy), 2),
        ("http direct", way(direct, plain, "pass.test", None), None, 0),
        ("http copied", way(copied, plain, "pass.test", None), Some(&copying), 1),
        ("http read", way(read, plain, "read.test", None), Some(&proxy), 2),
        ("tls direct", way(direct, tls, "pass.test", Some(&theirs)), None, 0),
        ("tls copied", way(copied, tls, "pass.test", Some(&theirs)), Some(&copying), 1),
        ("tls passed", way(pass, tls, "pass.test", Some(&theirs)), Some(&proxy), 2),
        ("tls read", way(read, tls, "read.test", Some(&ours)), Some(&proxy), 3),
    ];
    let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| name.contains(argument.as_str()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut best = [None::<Best>; 10];
    for _ in 0..ROUNDS {
        for ((name, way, between, _), best) in ways.iter().zip(&mut best) {
            if wanted(name) {
                let now = measure(&runtime, way, *between);
                *best = Some(best.map_or(now, |before| before.or(now)));
            }
        }
    }
    println!("One connection at a time; then 50 with 400 requests each. cpu: of what is between.");
    println!(
        "{:14} {:>16} {:>16} {:>16} {:>18} {:>18}",
        "", "kept, us (+)", "new, us (+)", "MiB/s (ratio)", "requests/s (ratio)", "cpu ms/GiB, us/req"
    );
    for (at, (name, _, _, above)) in ways.iter().enumerate() {
        let (Some(this), Some(direct)) = (best[at], best[at - above]) else { continue };
        println!(
            "{name:14} {:>7.0} {:>8.0} {:>7.0} {:>8.0} {:>8.0} {:>7.2} {:>10.0} {:>7.2} {:>9.0} {:>8.1}{}",
            this.kept,
            this.kept - direct.kept,
            this.fresh,
            this.fresh - direct.fresh,
            this.bulk,
            this.bulk / direct.bulk,
            this.rate,
            this.rate / direct.rate,
            this.busy_bulk,
            this.busy_request,
            if this.failed > 0 { format!(" {} FAILED", this.failed) } else { String::new() }
        );
        io::stdout().flush().unwrap();
    }
    println!("1,000 connections at a time, 100 requests each: 100,000 requests.");
    println!(
        "{:14} {:>18} {:>8} {:>10} {:>26} {:>14}",
        "", "requests/s (ratio)", "failed", "cpu us/req", "resident, share of it, MiB", "after it, MiB"
    );
    let mut rates = [None; 10];
    for (at, (name, way, between, above)) in ways.iter().enumerate() {
        if !wanted(name) {
            continue;
        }
        let many = (0..2).map(|_| crowd(&runtime, way, *between, 1_000, 100));
        let many = many.reduce(|a, b| Crowd {
            rate: a.rate.max(b.rate),
            failed: a.failed + b.failed,
            busy: a.busy.min(b.busy),
            resident: a.resident.max(b.resident),
            share: a.share.max(b.share),
        });
        let many = many.unwrap();
        rates[at] = Some(many.rate);
        let ratio = rates[at - above].map_or(0.0, |direct| many.rate / direct);
        std::thread::sleep(Duration::from_millis(200));
        let after = between.map_or(0, |between| between.memory().0);
        let mib = |kib: u64| kib as f64 / 1024.0;
        println!(
            "{name:14} {:>10.0} {ratio:>7.2} {:>8} {:>10.1} {:>13.1} {:>12.1} {:>14.1}",
            many.rate,
            many.failed,
            many.busy,
            mib(many.resident),
            mib(many.share),
            mib(after)
        );
        io::stdout().flush().unwrap();
    }
}
