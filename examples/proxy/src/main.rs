//! A reverse proxy for TCP (L4) and HTTP/1.1 (L7).
//!
//! Every core runs the same program beside the others: its own listeners, its own connections to the servers, its own
//! counters. Nothing on the way of a request is shared between cores; see `docs` of the modules for the few exceptions.

mod access_log;
mod config;
mod health;
mod metrics;
mod relay;
mod site;
mod stats;
mod tcp;
mod upstream;
mod web;

use anyhow::Context;
use clap::Parser;
use config::Config;
use fs_example_common::{Cores, StackArgs};
use std::path::PathBuf;
use std::sync::Arc;

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
    fs_example_common::usage::raise_open_files(1 << 20)?;
    let stats = Arc::new(stats::Stats::new(&config, args.stack.cores.0.len()));
    let log = config.access_log.as_deref().map(access_log::Writer::start).transpose()?;
    let metrics = config.metrics.map(metrics::bind).transpose()?;

    let (for_cores, to_log) = (stats.clone(), log.as_ref().map(access_log::Writer::sender));
    let site_config = config.clone();
    let cores =
        Cores::start(&args.stack, move |core| site::run(core, site_config.clone(), for_cores.clone(), to_log.clone()))?;
    if let Some(listener) = metrics {
        metrics::serve(listener, stats, cores.counters())?;
    }
    let result = cores.join();
    if let Some(log) = log {
        log.finish();
    }
    result
}
