//! What stands in the proxy's place and knows nothing: accepts in the one network, connects in the other, and moves bytes.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::str::FromStr;

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sched::{CloneFlags, setns};
use serde_json::json;
use tokio::io::Interest;
use tokio::net::TcpStream;

const PIPE: i32 = 1 << 20;

/// How bytes are moved.
#[derive(Clone, Copy)]
pub enum By {
    /// read(2) and write(2).
    Copy,
    /// splice(2).
    Splice,
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "copy" => Ok(Self::Copy),
            "splice" => Ok(Self::Splice),
            other => Err(other.to_owned()),
        }
    }
}

/// Leads connections to ports in `namespace` to the same ports of `address`.
pub async fn stand_between(by: By, namespace: &str, address: IpAddr, ports: &[u16]) {
    let (namespace, wanted) = (File::open(namespace).unwrap(), ports.to_vec());
    // A namespace is a thread's.
    let listeners = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        wanted.iter().map(|port| listen(*port)).collect::<Vec<_>>()
    });
    for (listener, port) in listeners.join().unwrap().into_iter().zip(ports.to_vec()) {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        tokio::spawn(async move {
            loop {
                let (mut inside, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut outside = TcpStream::connect((address, port)).await?;
                    inside.set_nodelay(true)?;
                    outside.set_nodelay(true)?;
                    match by {
                        By::Copy => tokio::io::copy_bidirectional_with_sizes(&mut inside, &mut outside, 64 << 10, 64 << 10)
                            .await
                            .map(drop),
                        By::Splice => tokio::try_join!(pump(&inside, &outside), pump(&outside, &inside)).map(drop),
                    }
                });
            }
        });
    }
    crate::say(&json!("ready"));
    crate::end_with_input();
    std::future::pending().await
}

fn listen(port: u16) -> TcpListener {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into()).unwrap();
    socket.listen(4096).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.into()
}

async fn pump(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (read, write): (OwnedFd, OwnedFd) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    // More than the user's share of all pipes is refused; what there is does.
    let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE));
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    loop {
        let mut left = from.async_io(Interest::READABLE, || Ok(splice(from, None, &write, None, PIPE as usize, flags)?)).await?;
        if left == 0 {
            return socket2::SockRef::from(to).shutdown(std::net::Shutdown::Write);
        }
        while left > 0 {
            left -= to.async_io(Interest::WRITABLE, || Ok(splice(&read, None, to, None, left, flags)?)).await?;
        }
    }
}
