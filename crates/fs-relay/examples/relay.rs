//! Runs a relay without a daemon: `relay FILE [SECONDS]`. FILE has the section `[wire]` of the daemon's
//! configuration. Prints "ready". SIGTERM ends it after at most that many seconds (10), and it prints
//! its counters.

use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let file = std::env::args().nth(1).ok_or("usage: relay FILE [SECONDS]")?;
    let longest = Duration::from_secs(std::env::args().nth(2).map_or(Ok(10), |seconds| seconds.parse())?);
    let config: fs_relay::ConfigFile = toml::from_str(&std::fs::read_to_string(file)?)?;
    let relay = fs_relay::Relay::start(config.check()?).map_err(|error| error.to_string())?;
    println!("ready");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        signal(SignalKind::terminate())?.recv().await;
        relay.drain(longest);
        std::io::Result::Ok(())
    })?;
    let counters = relay.counters();
    relay.join();
    println!("{counters:?}");
    Ok(())
}
