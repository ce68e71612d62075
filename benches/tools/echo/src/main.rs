//! Sends back what it receives, or only receives (`--sink`), or only sends (`--source`).

mod tcp;
mod udp;

use clap::Parser;
use fs_stacks::{Core, Cores, LocalStop, StackArgs};
use std::net::SocketAddr;
use std::time::Duration;

/// TCP and UDP echo server; also a sink and a source of bytes for throughput measurements.
#[derive(Parser, Clone, Debug)]
#[command(version)]
struct Args {
    /// Address to listen on.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7007")]
    listen: SocketAddr,
    /// Throw away what comes in, and close when the peer has finished.
    #[arg(long, conflicts_with_all = ["source", "udp"])]
    sink: bool,
    /// Send until the peer closes or has finished.
    #[arg(long, conflicts_with = "udp")]
    source: bool,
    /// Echo datagrams instead of TCP.
    #[arg(long)]
    udp: bool,
    /// Echo at this address too, beside a sink or a source.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "udp")]
    echo: Option<SocketAddr>,
    /// Seconds that open connections get to finish after SIGTERM.
    #[arg(long, default_value_t = 1)]
    drain: u64,
    #[command(flatten)]
    stack: StackArgs,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    fs_stacks::init_log();
    fs_stacks::usage::raise_open_files(1 << 20)?;
    let stack = args.stack.clone();
    Cores::start(&stack, move |core| serve(core, args.clone()))?.join()
}

async fn serve(core: Core, args: Args) -> anyhow::Result<()> {
    if args.udp {
        return udp::serve(core, args.listen).await;
    }
    let stop = LocalStop::default();
    let listener = core.listen(args.listen).await?;
    let mode = match (args.sink, args.source) {
        (true, _) => tcp::Mode::Sink,
        (_, true) => tcp::Mode::Source,
        _ => tcp::Mode::Echo,
    };
    let echo = match args.echo {
        Some(address) => Some(core.listen(address).await?),
        None => None,
    };
    announce(&core, listener.local_addr()?);
    tokio::select! {
        result = tcp::accept(&listener, mode, &stop) => result?,
        result = tcp::accept_echo(echo.as_ref(), &stop) => result?,
        () = core.stop_requested() => {}
    }
    drop((listener, echo));
    stop.request();
    if tokio::time::timeout(Duration::from_secs(args.drain), stop.drained()).await.is_err() {
        tracing::warn!("{} connections still open on core {}: closing them", stop.open_count(), core.index);
    }
    Ok(())
}

/// Prints the address, so that the parent process knows that we listen.
fn announce(core: &Core, addr: SocketAddr) {
    if core.index == 0 {
        println!("listening {addr}");
    }
    if core.is_last_ready() {
        println!("ready");
    }
}
