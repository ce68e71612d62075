//! The client of an echo server: sends pseudo-random bytes, reads them back at the same time, and
//! compares SHA-256 sums. On success it prints one line with the number of bytes and the sum.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fs_stacks::{Core, Cores, StackArgs, Stream};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

/// Sends bytes to an echo server and compares what comes back.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// The server.
    to: SocketAddr,
    /// Bytes to send.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// Seconds that the transfer may take.
    #[arg(long, default_value_t = 60)]
    limit: u64,
    #[command(flatten)]
    stack: StackArgs,
}

fn main() -> Result<()> {
    let args = Args::parse();
    fs_stacks::init_log();
    let stack = args.stack.clone();
    Cores::start(&stack, move |core| run(core, args.clone()))?.join()
}

async fn run(core: Core, args: Args) -> Result<()> {
    let transfer = async {
        let stream = core.connect(args.to, None).await.with_context(|| format!("connect to {}", args.to))?;
        let (reader, writer) = tokio::io::split(stream);
        tokio::try_join!(send(writer, args.bytes), receive(reader))
    };
    let limit = Duration::from_secs(args.limit);
    let (sent, (got, back)) = tokio::time::timeout(limit, transfer).await.context("the transfer takes too long")??;
    ensure!(got == args.bytes && sent == back, "{got} of {} bytes came back, sums {sent} and {back}", args.bytes);
    println!("{got} bytes {back}");
    Ok(())
}

async fn send(mut writer: WriteHalf<Stream>, bytes: u64) -> Result<String> {
    let mut sum = Sha256::new();
    let (mut left, mut random) = (bytes, fastrand::Rng::with_seed(1));
    let mut chunk = vec![0; 1 << 16];
    while left > 0 {
        random.fill(&mut chunk);
        let part = &chunk[..left.min(chunk.len() as u64) as usize];
        sum.update(part);
        writer.write_all(part).await.with_context(|| format!("write, {left} of {bytes} bytes left"))?;
        left -= part.len() as u64;
    }
    writer.shutdown().await.context("shutdown")?;
    Ok(hex(sum))
}

async fn receive(mut reader: ReadHalf<Stream>) -> Result<(u64, String)> {
    let mut sum = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    let mut got = 0;
    loop {
        match reader.read(&mut chunk).await.with_context(|| format!("read after {got} bytes"))? {
            0 => return Ok((got, hex(sum))),
            read => {
                sum.update(&chunk[..read]);
                got += read as u64;
            }
        }
    }
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
