//! Frameworks on sockets that are `Send`: each as in its own documentation, with `fastsock::net`
//! instead of `tokio::net` (`--stack fastsock`), or with kernel sockets for comparison (`--stack
//! kernel`).
//!
//! `serve` runs an echo server of each. `ask` sends bodies to each and compares digests.

mod clients;
mod cost;
mod everywhere;
mod grpc;
mod pattern;
mod servers;
mod tls;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use fastsock::net;
use std::io::Write;
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stack {
    Fastsock,
    Kernel,
}

#[derive(Parser)]
#[command(about = "echo servers and clients of axum, tonic, hyper-util, quinn, tokio-rustls and tungstenite")]
enum Arguments {
    /// A server of each; prints "ready" when all listen.
    Serve {
        #[command(flatten)]
        on: On,
        /// Addresses to listen at, with TCP and UDP ports from 8001 on. The certificate is written
        /// to "frameworks-PID.der" in the current directory.
        addr: IpAddr,
    },
    /// Sends bodies to each server and compares what comes back.
    Ask {
        #[command(flatten)]
        on: On,
        /// The servers' addresses.
        addr: IpAddr,
        /// Lengths of the bodies.
        #[arg(long, value_delimiter = ',', default_value = "0,1,1000000")]
        bytes: Vec<u64>,
        /// Only these. Without it all but reqwest, which takes no connections: under `fastsock run`
        /// it is `--stack kernel`.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
    /// Servers and clients of each in one program, until SIGTERM. Prints "ready", and at the end the
    /// number of requests to each server.
    Everywhere(everywhere::Args),
    /// Measures the cost of connections that any thread may use, compared with those of a core, in
    /// memory.
    Cost,
}

#[derive(clap::Args)]
struct On {
    /// Sockets of fastsock or of the kernel.
    #[arg(long, value_enum, default_value = "fastsock")]
    stack: Stack,
    /// fastsock's device.
    #[arg(long, default_value = "eth0")]
    device: String,
    /// fastsock's cores.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    cores: Vec<usize>,
}

impl On {
    /// Starts fastsock's cores if `--stack` selects them.
    fn start(&self) -> Result<Option<net::Background>> {
        if self.stack == Stack::Kernel {
            return Ok(None);
        }
        let runtime = fastsock::Runtime::builder().device(&*self.device).cores(self.cores.iter().copied()).pin(false);
        let runtime = runtime.build()?;
        Ok(Some(net::Background::start(runtime)?))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Cost => cost::cost().await,
        Arguments::Everywhere(args) => everywhere::run(args).await,
        Arguments::Serve { on, addr } => {
            let stack = on.start()?;
            let all = match &stack {
                Some(stack) => servers::on_fastsock(addr, &stack.handle()).await?,
                None => servers::on_kernel(addr).await?,
            };
            println!("ready");
            std::io::stdout().flush()?;
            // None of them ends normally.
            for server in all {
                server.await??;
            }
            bail!("the servers have ended")
        }
        Arguments::Ask { on, addr, bytes, only } => {
            let stack = on.start()?;
            let asked = servers::PORTS.iter().filter(|(name, _)| match only.is_empty() {
                true => *name != "reqwest",
                false => only.iter().any(|only| only == name),
            });
            for (name, port) in asked {
                let at = (addr, *port).into();
                for &len in &bytes {
                    let digest = match on.stack {
                        Stack::Fastsock => clients::on_fastsock(name, at, len).await,
                        Stack::Kernel => clients::on_kernel(name, at, len).await,
                    };
                    let digest = digest.with_context(|| format!("{name}, {len} bytes"))?;
                    anyhow::ensure!(digest == pattern::digest(len), "{name}: {len} bytes were not echoed correctly");
                    println!("{name} {len} {digest}");
                }
            }
            if let Some(stack) = stack {
                tokio::task::spawn_blocking(move || stack.shutdown(std::time::Duration::from_secs(5))).await??;
            }
            Ok(())
        }
    }
}
