//! Ports of the host's loopback that are open on the sandbox's own.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// How long to wait when there is no descriptor for the next connection.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// Connections to one port at a time; more wait.
const MOST: usize = 512;

/// Serves until it is dropped.
pub(super) async fn serve(listeners: Vec<(TcpListener, u16)>) -> io::Result<()> {
    let mut loops = JoinSet::new();
    for (listener, port) in listeners {
        loops.spawn(accept(tokio::net::TcpListener::from_std(listener)?, port));
    }
    while let Some(ended) = loops.join_next().await {
        ended.map_err(io::Error::other)?;
    }
    pending().await
}

async fn accept(listener: tokio::net::TcpListener, port: u16) {
    let mut running = JoinSet::new();
    loop {
        while running.len() >= MOST {
            running.join_next().await;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = running.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => drop(running.spawn(relay(stream, port))),
            Err(_) => tokio::time::sleep(EXHAUSTED).await,
        }
    }
}

async fn relay(mut inside: TcpStream, port: u16) {
    // Who listens on the other family's loopback alone is found as well.
    let outside = match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Err(_) => TcpStream::connect((std::net::Ipv6Addr::LOCALHOST, port)).await,
        connected => connected,
    };
    let Ok(mut outside) = outside else {
        // As if nobody listened: the program learns it at once.
        hermes_egress::relay::abort(&inside);
        return;
    };
    let _ = (inside.set_nodelay(true), outside.set_nodelay(true));
    let _ = copy_bidirectional(&mut inside, &mut outside).await;
}
