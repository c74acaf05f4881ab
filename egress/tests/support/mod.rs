//! A way out on loopback, with servers outside and sockets that programs inside would have.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

pub mod server;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hermes_egress::dial::{Resolve, Resolving};
use hermes_egress::event::{Channel, Event};
use hermes_egress::host::Host;
use hermes_egress::names::Block;
use hermes_egress::reason::Reason;
use hermes_egress::secret::{Secret, Secrets};
use hermes_egress::tls::Clients;
use hermes_egress::{Config, Egress, Listeners};
use hermes_profiles::{IpNetwork, Origin, Route};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// As long as anything may take here.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How many synthetic addresses are listened on.
const ADDRESSES: u8 = 6;

/// Answers for every name, changeable.
#[derive(Clone, Default)]
pub struct Names(pub Arc<Mutex<HashMap<String, Vec<IpAddr>>>>);

impl Names {
    pub fn set(&self, name: &str, address: &str) {
        self.0.lock().unwrap().insert(name.into(), vec![address.parse().unwrap()]);
    }
}

impl Resolve for Names {
    fn resolve<'a>(&'a self, name: &'a str) -> Resolving<'a> {
        let found = self.0.lock().unwrap().get(name).cloned();
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }
}

/// One secret, `model`, whose placeholder is `PLACEHOLDER-1`.
#[derive(Default)]
pub struct OneSecret(pub Mutex<Vec<u16>>);

impl Secrets for OneSecret {
    fn placeholder_in(&self, text: &[u8]) -> Option<String> {
        text.windows(13).any(|part| part == b"PLACEHOLDER-1").then(|| "model".into())
    }
    fn placeholder(&self, name: &str) -> Option<String> {
        (name == "model").then(|| "PLACEHOLDER-1".into())
    }
    fn value(&self, name: &str) -> Option<Secret> {
        (name == "model").then(|| Secret { value: Zeroizing::new("real-value".into()), member: 0 })
    }
    fn answered(&self, _: &str, _: usize, status: u16) {
        self.0.lock().unwrap().push(status);
    }
}

/// A running way out.
pub struct World {
    pub egress: Arc<Egress>,
    pub names: Names,
    pub secrets: Arc<OneSecret>,
    pub port: u16,
    pub explicit: SocketAddr,
    pub dns: SocketAddr,
    events: Mutex<mpsc::Receiver<Event>>,
    serving: AbortHandle,
}

impl Drop for World {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A route to a server on loopback, which its address is named for.
pub fn route(host: &str, port: u16) -> Route {
    let mut route = Route::new(host, [port], Origin::Flag("--allow-host".into()));
    route.rules.addresses = vec![loopback()];
    route
}

pub fn with(mut route: Route, methods: &[&str], paths: &[&str]) -> Route {
    route.rules.methods = methods.iter().map(|text| (*text).to_owned()).collect();
    route.rules.paths = paths.iter().map(|text| (*text).to_owned()).collect();
    route
}

pub fn loopback() -> IpNetwork {
    IpNetwork { address: Ipv4Addr::LOCALHOST.into(), prefix: 8 }
}

impl World {
    /// `port` is where the servers listen, so where programs connect to.
    pub async fn new(port: u16, routes: &[Route], change: impl FnOnce(&mut Config)) -> Self {
        // Every run of a test has addresses of its own: servers outside listen on 127.0.0.1.
        let first = Ipv4Addr::new(127, 64, 0, 0);
        let names = Names::default();
        for name in ["a.test", "b.test", "www.cdn.test", "other.test"] {
            names.set(name, "127.0.0.1");
        }
        let secrets = Arc::new(OneSecret::default());
        let (channel, events) = Channel::new(4096);
        let mut config = Config::new("test");
        config.synthetic = Block { first, prefix: 16 };
        config.resolver = Arc::new(names.clone());
        config.events = Arc::new(channel);
        config.secrets = Arc::clone(&secrets) as Arc<dyn Secrets>;
        config.clients = Some(Clients::new([server::authority().certificate.der().clone()]).unwrap());
        change(&mut config);
        let egress = Egress::new(config, routes).unwrap();
        let explicit = TcpListener::bind("127.0.0.1:0").unwrap();
        // One port for both: another test may have the TCP one.
        let pair = || {
            let udp = UdpSocket::bind("127.0.0.1:0").ok()?;
            let tcp = TcpListener::bind(udp.local_addr().ok()?).ok()?;
            Some((udp, tcp))
        };
        let (dns_udp, dns_tcp) = (0..100).find_map(|_| pair()).unwrap();
        let transparent = (0..ADDRESSES).map(|n| TcpListener::bind((Ipv4Addr::new(127, 64, 1, n), port)).unwrap()).collect();
        let (explicit_address, dns) = (explicit.local_addr().unwrap(), dns_udp.local_addr().unwrap());
        let listeners = Listeners { transparent, explicit: vec![explicit], dns_udp: vec![dns_udp], dns_tcp: vec![dns_tcp] };
        let serving = tokio::spawn({
            let egress = Arc::clone(&egress);
            async move { egress.serve(listeners).await.unwrap() }
        });
        let (explicit, serving) = (explicit_address, serving.abort_handle());
        Self { egress, names, secrets, port, explicit, dns, events: Mutex::new(events), serving }
    }

    /// What a program gets when it asks for a name.
    pub async fn look_up(&self, name: &str) -> Option<Ipv4Addr> {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.dns).await.unwrap();
        socket.send(&query(name, 1)).await.unwrap();
        let mut buffer = [0; 512];
        let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.unwrap().unwrap();
        address_in(&buffer[..length])
    }

    /// Connects as a program does that knows nothing of proxies.
    pub async fn connect(&self, name: &str) -> TcpStream {
        let address = self.look_up(name).await.unwrap_or_else(|| panic!("{name} has no address"));
        TcpStream::connect((address, self.port)).await.unwrap()
    }

    /// Connects, sends, and reads all there is.
    pub async fn exchange(&self, name: &str, request: &str) -> String {
        talk(self.connect(name).await, request.as_bytes()).await
    }

    /// The same to the explicit proxy.
    pub async fn proxied(&self, request: &str) -> String {
        talk(TcpStream::connect(self.explicit).await.unwrap(), request.as_bytes()).await
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.events.lock().unwrap();
        std::iter::from_fn(|| events.try_recv().ok()).collect()
    }

    /// The reasons of all refusals so far.
    pub fn refusals(&self) -> Vec<Reason> {
        let reason = |event| match event {
            Event::Refused(refusal) => Some(refusal.reason),
            _ => None,
        };
        self.events().into_iter().filter_map(reason).collect()
    }

    /// Waits for a refusal.
    pub async fn refusal(&self) -> Reason {
        for _ in 0..500 {
            if let Some(reason) = self.refusals().pop() {
                return reason;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nothing was refused");
    }
}

/// Sends all, says that no more will come, and reads to the end. A reset ends it, too.
pub async fn talk(mut stream: TcpStream, request: &[u8]) -> String {
    let _ = stream.write_all(request).await;
    let _ = stream.shutdown().await;
    read_all(&mut stream).await
}

pub async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end of the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads until `text` has come.
pub async fn read_until(stream: &mut (impl tokio::io::AsyncRead + Unpin), text: &str) -> String {
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&answer).contains(text) {
        let length = timeout(PATIENCE, stream.read(&mut buffer)).await.expect(text).unwrap();
        assert!(length > 0, "the connection ended before {text:?}: {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..length]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The JSON of one of our refusals.
pub fn refusal_in(answer: &str) -> serde_json::Value {
    assert!(answer.contains("x-hermes-sandbox: refused"), "{answer}");
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

pub fn get(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

/// A query, by hand: the library is what is tested.
pub fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

/// The address in a reply with one.
pub fn address_in(reply: &[u8]) -> Option<Ipv4Addr> {
    (reply[7] == 1).then(|| Ipv4Addr::from_bits(u32::from_be_bytes(reply[reply.len() - 4..].try_into().unwrap())))
}

pub fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}
