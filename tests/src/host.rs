//! The host's side: listeners that count who reached them, and pictures of a directory tree.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Waits for something, at most this many seconds.
pub fn wait_until(seconds: u64, mut what: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        if what() {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    what()
}

/// A server of the host that says "HELLO" and counts its visitors. Its thread lives until the test process ends.
pub struct Listener {
    hits: Arc<AtomicUsize>,
    /// The port, or 0.
    pub port: u16,
}

fn serve<S: Read + Write>(hits: &AtomicUsize, stream: std::io::Result<S>) {
    if let Ok(mut stream) = stream {
        hits.fetch_add(1, Ordering::SeqCst);
        let _ = stream.write_all(b"HELLO\n");
    }
}

impl Listener {
    /// TCP on this address, e.g. `127.0.0.1:0`; `None` when the machine does not have it.
    pub fn tcp(address: &str) -> Option<Self> {
        let socket = TcpListener::bind(address).ok()?;
        let port = socket.local_addr().ok()?.port();
        let hits = Arc::new(AtomicUsize::new(0));
        let count = hits.clone();
        thread::spawn(move || socket.incoming().for_each(|stream| serve(&count, stream)));
        Some(Self { hits, port })
    }

    /// UDP on this address.
    pub fn udp(address: &str) -> Option<Self> {
        let socket = UdpSocket::bind(address).ok()?;
        let port = socket.local_addr().ok()?.port();
        let hits = Arc::new(AtomicUsize::new(0));
        let count = hits.clone();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = socket.send_to(b"HELLO\n", from);
            }
        });
        Some(Self { hits, port })
    }

    /// A stream socket at a path.
    pub fn unix(path: &Path) -> Self {
        Self::serve_unix(UnixListener::bind(path).expect("a socket in the scratch directory"))
    }

    /// A stream socket with an abstract name.
    pub fn abstract_unix(name: &str) -> Self {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a short name");
        Self::serve_unix(UnixListener::bind_addr(&address).expect("an unused name"))
    }

    fn serve_unix(socket: UnixListener) -> Self {
        let hits = Arc::new(AtomicUsize::new(0));
        let count = hits.clone();
        thread::spawn(move || socket.incoming().for_each(|stream| serve(&count, stream)));
        Self { hits, port: 0 }
    }

    /// A datagram socket at a path.
    pub fn unix_datagram(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket in the scratch directory");
        let hits = Arc::new(AtomicUsize::new(0));
        let count = hits.clone();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while socket.recv(&mut buffer).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { hits, port: 0 }
    }

    /// How many reached it, counted after a moment for those under way.
    pub fn hits(&self) -> usize {
        thread::sleep(Duration::from_millis(50));
        self.hits.load(Ordering::SeqCst)
    }
}

/// Names, kinds, modes, owners and contents of a tree.
#[derive(Debug, PartialEq, Eq)]
pub struct TreeSnapshot(BTreeMap<PathBuf, (u32, u32, u64, Vec<u8>)>);

impl TreeSnapshot {
    /// Takes the picture.
    pub fn of(root: &Path) -> Self {
        let mut entries = BTreeMap::new();
        let mut open = vec![root.to_owned()];
        while let Some(path) = open.pop() {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            let content = if meta.is_file() {
                fs::read(&path).unwrap_or_default()
            } else if meta.is_symlink() {
                fs::read_link(&path).map(|to| to.as_os_str().as_bytes().to_vec()).unwrap_or_default()
            } else {
                Vec::new()
            };
            if meta.is_dir() {
                open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
            }
            entries.insert(path, (meta.mode(), meta.uid(), content.len() as u64, content));
        }
        Self(entries)
    }

    /// Insists that the tree still looks like this.
    #[track_caller]
    pub fn assert_unchanged(&self, root: &Path) {
        let now = Self::of(root);
        let new: Vec<_> = now.0.keys().filter(|path| !self.0.contains_key(*path)).collect();
        let gone: Vec<_> = self.0.keys().filter(|path| !now.0.contains_key(*path)).collect();
        let other: Vec<_> = self
            .0
            .iter()
            .filter(|(path, entry)| now.0.get(*path).is_some_and(|now| now != *entry))
            .map(|(path, _)| path)
            .collect();
        assert!(
            new.is_empty() && gone.is_empty() && other.is_empty(),
            "the host's files changed: new {new:?}, gone {gone:?}, changed {other:?}"
        );
    }
}

/// Processes of the host whose command line holds this word.
pub fn processes_with(word: &str) -> Vec<String> {
    let own = std::process::id().to_string();
    fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy() != own)
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok().map(|line| (entry, line)))
        .map(|(entry, line)| (entry, String::from_utf8_lossy(&line).replace('\0', " ")))
        .filter(|(_, line)| line.contains(word))
        .map(|(entry, line)| format!("{} {line}", entry.file_name().to_string_lossy()))
        .collect()
}

/// Waits until there are none.
#[track_caller]
pub fn assert_gone(word: &str) {
    assert!(wait_until(15, || processes_with(word).is_empty()), "left over: {:?}", processes_with(word));
}
