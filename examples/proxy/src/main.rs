//! A reverse proxy for TCP (L4) and HTTP/1.1 (L7).
//!
//! Every core runs the same program beside the others: its own listeners, its own connections to the servers, its own
//! counters. Nothing on the way of a request is shared between cores; see `docs` of the modules for the few exceptions.
//!
//! SIGHUP reads the configuration again (`reload`). SIGTERM, SIGINT and SIGQUIT let what is open end within `drain`; a
//! second one ends the process at once.

mod access_log;
mod clients;
mod config;
mod handshake;
mod health;
mod metrics;
mod relay;
mod reload;
mod site;
mod stats;
mod tcp;
mod upstream;
mod web;
mod worker;

use anyhow::Context;
use clap::Parser;
use config::Config;
use fs_example_common::{Cores, StackArgs};
use metrics::Metrics;
use reload::{Generation, Logs, Reloader};
use std::path::PathBuf;
use std::sync::Arc;

/// Requests are made of many small allocations of one core's: an allocator with lists of each thread's own serves them without the
/// searches and locks of the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// TCP and HTTP/1.1 reverse proxy.
#[derive(Parser, Clone, Debug)]
#[command(version)]
struct Args {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", required_unless_present = "file")]
    config: Option<PathBuf>,
    /// The same.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    #[command(flatten)]
    stack: StackArgs,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    fs_example_common::init_log();
    let file = args.config.or(args.file).context("no configuration file")?;
    let config = Arc::new(Config::load(&file)?);
    let files = fs_example_common::usage::raise_open_files(1 << 20)?;
    let count = args.stack.cores.0.len();
    let budget = clients::connections(args.stack.stack, count, files, args.stack.max_connections());
    let stats = Arc::new(stats::Stats::new(&config, count, None));
    let (log, logs) = (config.access_log.as_deref().map(access_log::Writer::start).transpose()?, Logs::default());
    let metrics = config.metrics.map(metrics::bind).transpose()?;
    if let Some(bound) = &metrics {
        println!("metrics {}", bound.local_addr()?);
    }
    let sender = log.as_ref().map(access_log::Writer::sender);
    logs.add(log);
    let current = Arc::new(Generation { number: 0, config, stats: stats.clone(), log: sender });
    // Before the cores: what they announce may be answered by a signal at once.
    let (channel, orders) = reload::Channel::open()?;

    let first = current.clone();
    let cores = Cores::start(&args.stack, move |core| worker::run(core, budget, first.clone(), orders.clone()))?;
    let metrics = Metrics::start(metrics, stats, cores.counters())?;
    Reloader { file, cores: count, current, metrics, logs: logs.clone() }.start(channel)?;
    let result = cores.join();
    logs.finish();
    result
}
