//! The cost of sockets for any thread: the same server on its core and with `fastsock::net`, in
//! one run, over links in memory. The client always has its own core.

use anyhow::{Context, Result};
use fastsock::{LinkChoice, Runtime, Standalone};
use fastsock::{local::TcpStream, net};
use fs_core::Framing;
use fs_xdp::Link;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
/// The cost of the server on its core, and of the server with `send`.
const PORTS: [u16; 2] = [7, 8];
const ROUNDS: usize = 5;
const TRIPS: u32 = 5_000;
const BULK: usize = 64 << 20;

fn start(link: Box<dyn Link>, at: IpAddr) -> Result<net::Background> {
    let runtime = Runtime::builder().device("memory").cores([0]).pin(false);
    let runtime = runtime.link(LinkChoice::Memory(vec![link])).standalone(Standalone::new().addr(at, 24));
    Ok(net::Background::start(runtime.build()?)?)
}

/// Echoes. If the first byte is 1, reads to the end instead and confirms with a byte.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut buf = vec![0; 64 << 10];
    let mut bulk = false;
    loop {
        let n = stream.read(&mut buf).await?;
        bulk |= buf[..n].first() == Some(&1);
        match (n, bulk) {
            (0, _) => {
                stream.write_all(&[0]).await?;
                return stream.shutdown().await;
            }
            (n, false) => stream.write_all(&buf[..n]).await?,
            (_, true) => {}
        }
    }
}

/// Measures a round trip of 64 bytes, and the time of all of [`BULK`].
async fn measure(at: SocketAddr) -> std::io::Result<(Duration, Duration)> {
    let mut stream = TcpStream::connect(at).await?;
    stream.set_nodelay(true)?;
    let mut buf = [0; 64];
    let began = Instant::now();
    for _ in 0..TRIPS {
        stream.write_all(&[0; 64]).await?;
        stream.read_exact(&mut buf).await?;
    }
    let trip = began.elapsed() / TRIPS;
    let chunk = vec![1; 64 << 10];
    let began = Instant::now();
    for _ in 0..BULK / chunk.len() {
        stream.write_all(&chunk).await?;
    }
    stream.shutdown().await?;
    while stream.read(&mut buf).await? > 0 {}
    Ok((trip, began.elapsed()))
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

pub(crate) async fn cost() -> Result<()> {
    let (a, b) = fs_xdp::memory_pair(Framing::Ethernet, 1500)?;
    let (servers, clients) = (start(Box::new(a), SERVER)?, start(Box::new(b), CLIENT)?);
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    servers.handle().spawn_on(0, move || async move {
        let bound = fastsock::local::TcpListener::bind((SERVER, PORTS[0])).await;
        let Ok(listener) = bound else { return };
        let _ = ready.send(());
        while let Ok((stream, _)) = listener.accept().await {
            fastsock::spawn_local(serve(stream));
        }
    })?;
    is_ready.await.context("the core's listener")?;
    let listener = net::TcpListener::bind_on(&servers.handle(), (SERVER, PORTS[1])).await?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    let mut trips = [Vec::new(), Vec::new()];
    let mut bulks = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (way, port) in PORTS.into_iter().enumerate() {
            let (answer, answered) = tokio::sync::oneshot::channel();
            let at = (SERVER, port).into();
            clients.handle().spawn_on(0, move || async move { drop(answer.send(measure(at).await)) })?;
            let (trip, bulk) = answered.await.context("the client")??;
            trips[way].push(trip.as_secs_f64() * 1e6);
            bulks[way].push(BULK as f64 / bulk.as_secs_f64() / 1e6);
        }
    }
    for (what, unit, [core, send]) in [("round trip of 64 bytes", "us", &mut trips), ("bulk", "MB/s", &mut bulks)] {
        let (core, send) = (median(core), median(send));
        println!("{what}: on the core {core:.1} {unit}, by send {send:.1} {unit}, ratio {:.2}", send / core);
    }
    tokio::task::spawn_blocking(move || drop((clients, servers))).await?;
    Ok(())
}
