//! One program: a server of each framework at every address of the host, and clients of each to
//! peers behind every carrier at once, all with `fastsock::net`. Clients of PostgreSQL and redis do
//! the same.

use crate::pattern::{Digest, digest};
use crate::{clients, pattern, servers};
use anyhow::{Context, Result, ensure};
use fastsock::net;
use futures_util::StreamExt;
use redis::AsyncCommands;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Bytes of the bodies, in turn.
const BYTES: [u64; 4] = [0, 1, 65_537, 1_000_000];
/// An echo that has not come by then is lost.
const LOST: Duration = Duration::from_secs(30);
/// The time between two attempts to reach a peer that may be absent.
const AWAY: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Devices of the runtime.
    #[arg(long, required = true)]
    device: Vec<String>,
    /// Peers with a server of each framework. No request to them may fail.
    #[arg(long, value_delimiter = ',')]
    ask: Vec<IpAddr>,
    /// A peer whose device may go and come back. Its requests may fail; each that succeeds prints
    /// "reached".
    #[arg(long)]
    visit: Option<IpAddr>,
    /// PostgreSQL, with a user and a database "postgres".
    #[arg(long)]
    postgres: Option<SocketAddr>,
    #[arg(long)]
    redis: Option<SocketAddr>,
}

/// State that all clients share.
#[derive(Clone, Default)]
struct Asked {
    /// Requests by client and peer.
    requests: Arc<Mutex<BTreeMap<String, u64>>>,
    /// SIGTERM has come.
    over: Arc<AtomicBool>,
}

impl Asked {
    fn count(&self, what: String) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

pub(crate) async fn run(args: Args) -> Result<()> {
    let mut builder = fastsock::Runtime::builder().cores([0]).pin(false);
    for device in &args.device {
        builder = builder.device(device);
    }
    let stack = net::Background::start(builder.build()?)?;
    let _servers = servers::on_fastsock(Ipv4Addr::UNSPECIFIED.into(), &stack.handle()).await?;
    println!("ready");
    std::io::stdout().flush()?;
    let asked = Asked::default();
    for &addr in &args.ask {
        println!("{addr}: {:?}", net::TcpStream::connect((addr, 8001)).await?.carrier());
    }
    let mut tasks = tokio::task::JoinSet::new();
    for &addr in &args.ask {
        for &(name, port) in servers::PORTS.iter().filter(|(name, _)| *name != "reqwest") {
            tasks.spawn(frameworks(name, (addr, port).into(), asked.clone()));
        }
    }
    if let Some(at) = args.postgres {
        tasks.spawn(postgres(at, asked.clone()));
    }
    if let Some(at) = args.redis {
        tasks.spawn(redis(at, asked.clone()));
    }
    if let Some(addr) = args.visit {
        tasks.spawn(visits((addr, 8001).into(), asked.clone()));
    }
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => asked.over.store(true, Ordering::Relaxed),
            ended = tasks.join_next() => match ended {
                Some(ended) => ended??,
                None => break,
            },
        }
    }
    for (what, times) in asked.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("{what} {times}");
    }
    tokio::task::spawn_blocking(move || stack.shutdown(Duration::from_secs(5))).await??;
    Ok(())
}

/// Asks one server with one framework until the end, a new connection each time.
async fn frameworks(name: &'static str, at: SocketAddr, asked: Asked) -> Result<()> {
    for len in BYTES.into_iter().cycle() {
        if asked.is_over() {
            break;
        }
        let echo = tokio::time::timeout(LOST, clients::on_fastsock(name, at, len)).await;
        let echo = echo.map_err(anyhow::Error::from).and_then(|echo| echo);
        let echo = echo.with_context(|| format!("{name} at {at}, {len} bytes"))?;
        ensure!(echo == digest(len), "{name} at {at}: {len} bytes were not echoed correctly");
        asked.count(format!("{name} {}", at.ip()));
    }
    Ok(())
}

async fn bytes(len: u64) -> Vec<u8> {
    pattern::body(len)
        .fold(Vec::new(), async |mut all, piece| {
            all.extend_from_slice(&piece);
            all
        })
        .await
}

fn digest_of(bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.add(bytes);
    digest.end()
}

/// Sends bodies to PostgreSQL and gets them back, on connections of 20 queries.
async fn postgres(at: SocketAddr, asked: Asked) -> Result<()> {
    while !asked.is_over() {
        let stream = net::TcpStream::connect(at).await?;
        let carrier = format!("{:?}", stream.carrier());
        let mut config = tokio_postgres::Config::new();
        let (client, connection) =
            config.user("postgres").dbname("postgres").connect_raw(stream, tokio_postgres::NoTls).await?;
        let serving = tokio::spawn(connection);
        for len in BYTES.into_iter().cycle().take(20) {
            let body = bytes(len).await;
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&body];
            let query = client.query_one("SELECT $1::bytea", &parameters);
            let row = tokio::time::timeout(LOST, query).await.context("PostgreSQL")??;
            ensure!(digest_of(row.try_get(0)?) == digest(len), "PostgreSQL: other bytes of {len}");
            asked.count(format!("tokio-postgres {carrier}"));
        }
        drop(client);
        serving.await??;
    }
    Ok(())
}

/// The same with redis, whose client sends several requests at once.
async fn redis(at: SocketAddr, asked: Asked) -> Result<()> {
    // The default limit of 500 ms is short on a busy machine.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(LOST));
    while !asked.is_over() {
        let stream = net::TcpStream::connect(at).await?;
        let carrier = format!("{:?}", stream.carrier());
        let info = redis::RedisConnectionInfo::default();
        let (mut client, driver) =
            redis::aio::MultiplexedConnection::new_with_config(&info, stream, config.clone()).await?;
        let driver = tokio::spawn(driver);
        for len in BYTES {
            let key = format!("body{len}");
            let sent = bytes(len).await;
            let round = async {
                let () = client.set(&key, sent).await?;
                client.get::<_, Vec<u8>>(&key).await
            };
            let came = tokio::time::timeout(LOST, round).await.context("redis")??;
            ensure!(digest_of(&came) == digest(len), "redis: other bytes of {len}");
            asked.count(format!("redis {carrier}"));
        }
        drop(client);
        driver.abort();
    }
    Ok(())
}

/// Asks a peer that may be away.
async fn visits(at: SocketAddr, asked: Asked) -> Result<()> {
    while !asked.is_over() {
        let echo = tokio::time::timeout(AWAY, clients::on_fastsock("pooled", at, 65_537)).await;
        if let Ok(Ok(echo)) = echo {
            ensure!(echo == digest(65_537), "{at}: other bytes");
            println!("reached");
            std::io::stdout().flush()?;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
