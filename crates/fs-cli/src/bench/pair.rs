//! Two processes of this program: one sends eight bytes back, the other counts round trips.

use super::lab::{Killed, Lab, line_of, own};
use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Time before counting starts, in which connections get their rings.
const BEFORE: Duration = Duration::from_millis(500);

/// Options of `fastsock bench-pair`, which only [`measure`] uses.
#[derive(clap::Args, Debug)]
pub(crate) struct PairArgs {
    /// Port of the server. Without it this is the server.
    #[arg(long)]
    port: Option<u16>,
    #[arg(long)]
    connections: u32,
    #[arg(long, default_value_t = 1)]
    seconds: u8,
}

/// Returns round trips per second.
pub(super) fn measure(lab: &Lab, connections: u32, seconds: u8, ring: bool) -> anyhow::Result<f64> {
    let connections = connections.to_string();
    let start = |args: &[&str]| -> anyhow::Result<Killed> {
        let mut command = own(&["bench-pair", "--connections", &connections])?;
        lab.with(command.args(args), ring).stdout(Stdio::piped());
        Ok(Killed(command.spawn().context("cannot start a process of the pair")?))
    };
    let mut server = start(&[])?;
    let port = line_of(&mut server.0)?;
    let mut client = start(&["--port", &port, "--seconds", &seconds.to_string()])?;
    let rate = line_of(&mut client.0)?;
    rate.parse().with_context(|| format!("the client of the pair failed: {rate}"))
}

/// Runs the server or the client. One connection is served by blocking calls, as in simple
/// programs. Several are served by epoll.
pub(crate) fn pair(args: PairArgs) -> anyhow::Result<ExitCode> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match (args.port, args.connections) {
        (None, one) => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let mut output = std::io::stdout();
            writeln!(output, "{}", listener.local_addr()?.port()).and_then(|()| output.flush())?;
            if one == 1 {
                echo(listener.accept()?.0)?;
            } else {
                runtime()?.block_on(echo_all(listener))?;
            }
        }
        (Some(port), connections) => {
            let (before, after) = (Instant::now() + BEFORE, Duration::from_secs(args.seconds.into()));
            let trips = match connections {
                1 => trips(port, before, before + after)?,
                _ => runtime()?.block_on(all_trips(port, connections, before, before + after))?,
            };
            if trips == 0 {
                bail!("no round trip was made");
            }
            writeln!(std::io::stdout(), "{}", trips as f64 / after.as_secs_f64())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; 8];
    while stream.read_exact(&mut bytes).is_ok() {
        stream.write_all(&bytes)?;
    }
    Ok(())
}

async fn echo_all(listener: TcpListener) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut bytes = [0; 8];
            while stream.read_exact(&mut bytes).await.is_ok() && stream.write_all(&bytes).await.is_ok() {}
        });
    }
}

/// Returns the round trips between two times.
fn trips(port: u16, from: Instant, to: Instant) -> std::io::Result<u64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let (mut bytes, mut trips) = ([7; 8], 0);
    loop {
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
        let now = Instant::now();
        trips += u64::from(now >= from);
        if now >= to {
            return Ok(trips);
        }
    }
}

async fn all_trips(port: u16, connections: u32, from: Instant, to: Instant) -> anyhow::Result<u64> {
    let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(async_trips(port, from, to))).collect();
    let mut trips = 0;
    for task in tasks {
        trips += task.await??;
    }
    Ok(trips)
}

/// Like [`trips`].
async fn async_trips(port: u16, from: Instant, to: Instant) -> std::io::Result<u64> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (mut bytes, mut trips) = ([7; 8], 0);
    loop {
        stream.write_all(&bytes).await?;
        stream.read_exact(&mut bytes).await?;
        let now = Instant::now();
        trips += u64::from(now >= from);
        if now >= to {
            return Ok(trips);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_counted_within_the_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || echo(listener.accept().unwrap().0));
        let now = Instant::now();
        assert!(trips(port, now, now + Duration::from_millis(20)).unwrap() > 0);
        server.join().unwrap().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let trips = runtime.block_on(async {
            let server = tokio::spawn(echo_all(listener));
            let now = Instant::now();
            let trips = all_trips(port, 3, now, now + Duration::from_millis(20)).await;
            server.abort();
            trips
        });
        assert!(trips.unwrap() >= 3);
    }
}
