//! A server for the tests of steering: each core has a listener, and one of them can be closed
//! while the port is under load. Each core says when it has accepted many connections. On SIGTERM
//! the server prints each core's counters as one line of JSON and ends.

use anyhow::{Context, Result};
use clap::Parser;
use fs_compat::{TcpListener, TcpStream};
use fs_rt::{CoreCtx, Runtime};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

/// Accepted connections after which a core says so.
const MANY: u32 = 200;

/// Answers each connection's request with one HTTP response and closes.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Address to listen on.
    #[arg(long)]
    listen: SocketAddr,
    /// Device.
    #[arg(long)]
    device: String,
    /// Number of cores, on CPUs 0, 1, ….
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// This core's listener is closed on SIGUSR1, while the others stay.
    #[arg(long)]
    leaving: Option<usize>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let runtime = Runtime::builder()
        .device(&args.device)
        .cores(0..args.cores)
        .accept_partial_checksum(true)
        .build()
        .context("runtime")?;
    let handle = runtime.handle();
    let stats = handle.clone();
    runtime.run(move |core| {
        let (args, handle) = (args.clone(), handle.clone());
        async move {
            if let Err(error) = serve(&core, &args, &handle).await {
                eprintln!("core {}: {error:#}", core.index());
                handle.shutdown(Duration::ZERO);
            }
        }
    })?;
    print_counters(&stats);
    Ok(())
}

async fn serve(core: &CoreCtx, args: &Args, handle: &fs_rt::Handle) -> Result<()> {
    let listener = TcpListener::bind(args.listen).await?;
    let mut leave = signal(SignalKind::user_defined1())?;
    let mut end = signal(SignalKind::terminate())?;
    let mut count = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                fs_rt::spawn_local(async move {
                    // A client that closes early is ignored.
                    let _ = answer(stream).await;
                });
                count += 1;
                if count == MANY {
                    println!("core {}: accepted many", core.index());
                }
            }
            _ = leave.recv() => if args.leaving == Some(core.index()) { break },
            _ = end.recv() => return stop(core, handle),
        }
    }
    drop(listener);
    println!("core {}: closed its listener", core.index());
    end.recv().await;
    stop(core, handle)
}

fn stop(core: &CoreCtx, handle: &fs_rt::Handle) -> Result<()> {
    if core.index() == 0 {
        handle.shutdown(Duration::from_secs(1));
    }
    Ok(())
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 1024];
    let mut len = 0;
    while !request[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut request[len..]).await? {
            0 => return Ok(()),
            n => len += n,
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await?;
    stream.shutdown().await
}

fn print_counters(handle: &fs_rt::Handle) {
    let cores: Vec<serde_json::Value> = handle
        .stats()
        .into_iter()
        .map(|core| {
            let mut counters: serde_json::Map<_, _> =
                core.stack.counters().map(|(name, value)| (name.to_owned(), value.into())).collect();
            counters.insert("core".into(), core.core.into());
            counters.insert("mailbox_full".into(), core.runtime.mailbox_full.into());
            counters.into()
        })
        .collect();
    println!("{}", serde_json::Value::from(cores));
}
