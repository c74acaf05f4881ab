//! What stands between client and server, as a process of its own: the proxy, or a loop that only copies.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use hermes_egress::dial::{Resolve, Resolving};
use hermes_egress::names::Block;
use hermes_egress::tls::Clients;
use hermes_egress::{Config, Egress, Listeners};
use hermes_profiles::{IpNetwork, Origin, Route};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};

/// A process between client and server. It ends with this value.
pub struct Between {
    child: Child,
    /// What it said first, one word each.
    pub said: Vec<String>,
    /// The rest of that: a certificate.
    pub pem: String,
}

impl Between {
    /// Starts one: `what` is a word that [`run`] knows.
    pub fn start(what: &str, plain: u16, tls: u16, root: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([what, &plain.to_string(), &tls.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.as_mut().unwrap();
        input.write_all(format!("{root}\0").as_bytes()).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut pem) = (String::new(), Vec::new());
        output.read_line(&mut line).unwrap();
        output.read_until(0, &mut pem).unwrap();
        let pem = String::from_utf8(pem).unwrap().trim_end_matches('\0').to_owned();
        Self { child, said: line.split_whitespace().map(str::to_owned).collect(), pem }
    }

    /// What the kernel says of its memory, in KiB: resident, and its share of that.
    pub fn memory(&self) -> (u64, u64) {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        (value("Rss:"), value("Pss:"))
    }

    /// How long its threads have been on a processor.
    pub fn busy(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let spent = |thread: io::Result<std::fs::DirEntry>| -> Option<u64> {
            let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        Duration::from_nanos(threads.filter_map(spent).sum())
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is what [`Between::start`] started.
pub fn run(what: &str, plain: u16, tls: u16) {
    let mut root = Vec::new();
    BufReader::with_capacity(1, io::stdin()).read_until(0, &mut root).unwrap();
    root.pop();
    // The end of the bench is the end of this.
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match what {
            "proxy" => proxy(plain, tls, &root).await,
            _ => copying([plain, tls]).await,
        }
    });
}

fn say(line: &str, pem: &str) {
    let mut output = io::stdout().lock();
    output.write_all(format!("{line}\n{pem}\0").as_bytes()).unwrap();
    output.flush().unwrap();
}

struct Everywhere;

impl Resolve for Everywhere {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolving<'a> {
        Box::pin(async { Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) })
    }
}

/// A proxy for the two ports. It says which addresses its names have, and its certificate.
async fn proxy(plain: u16, tls: u16, root: &[u8]) {
    let route = |host: &str, port: u16, paths: &[&str]| {
        let mut route = Route::new(host, [port], Origin::Derived("bench".into()));
        route.rules.addresses = vec![IpNetwork { address: Ipv4Addr::LOCALHOST.into(), prefix: 8 }];
        route.rules.paths = paths.iter().map(|path| (*path).to_owned()).collect();
        route
    };
    let mut config = Config::new("bench");
    config.synthetic = Block { first: Ipv4Addr::new(127, 64, 0, 0), prefix: 16 };
    config.resolver = Arc::new(Everywhere);
    config.clients = Some(Clients::new([CertificateDer::from_pem_slice(root).unwrap()]).unwrap());
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
    say(&format!("{pass} {read}"), &pem);
    serving.await.unwrap().unwrap();
}

async fn look_up(dns: SocketAddr, label: &str) -> Ipv4Addr {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let query = [&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4][..], label.as_bytes(), b"\x04test\0\0\x01\0\x01"].concat();
    socket.send_to(&query, dns).await.unwrap();
    let mut reply = [0; 512];
    let length = socket.recv(&mut reply).await.unwrap();
    Ipv4Addr::from_bits(u32::from_be_bytes(reply[length - 4..length].try_into().unwrap()))
}

/// The floor: accepts, connects, copies, and knows nothing. It says which address it listens on.
async fn copying(ports: [u16; 2]) {
    let address = Ipv4Addr::new(127, 64, 2, 0);
    for port in ports {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((address, port).into()).unwrap();
        let listener = socket.listen(4096).unwrap();
        tokio::spawn(async move {
            loop {
                let (mut inside, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut outside = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                    inside.set_nodelay(true)?;
                    outside.set_nodelay(true)?;
                    tokio::io::copy_bidirectional_with_sizes(&mut inside, &mut outside, 64 << 10, 64 << 10).await
                });
            }
        });
    }
    say(&address.to_string(), "");
    std::future::pending().await
}
