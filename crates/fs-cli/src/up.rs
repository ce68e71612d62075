//! `fastsock up`: the daemon.

use crate::control::ControlArgs;
use crate::{said, service};
use anyhow::{Context, anyhow};
use fs_daemon::{Config, Daemon, Handle};
use fs_relay::Relay;
use rustix::process::Signal;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Maximum time for connections over a device to end after SIGTERM.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Configuration file (TOML): policies, limits, ports that are served over a device.
    /// SIGHUP reloads policies.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, print what is wrong, and exit.
    #[arg(long, requires = "config")]
    check: bool,
    /// Share this device between programs, in addition to those of the configuration; repeatable. Needs root.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,
    #[command(flatten)]
    control: ControlArgs,
}

pub(crate) fn up(args: Args) -> anyhow::Result<ExitCode> {
    init_log();
    let config = load(args.config.as_deref(), &args.device)?;
    // Also before a start: `[wire]` may take its device down, and systemd tries again until all devices are there.
    check_devices(&config)?;
    if args.check {
        return check_wire(&config).map(|()| ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Signals are caught before another process can notice the daemon.
    let (mut term, mut int, mut hup) = {
        let _entered = runtime.enter();
        // A file size limit applies to the memory of rings, too. With a handler, exceeding it fails
        // a ring. By default it would kill the daemon.
        drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?)
    };
    let daemon = Daemon::bind(&args.control.path()?, &config)?;
    fs_daemon::confine(config.wire().is_some(), !config.devices().is_empty())
        .context("cannot drop capabilities that are not needed")?;
    let relay = config.wire().cloned().map(Relay::start).transpose().context("cannot serve [wire]")?;
    let daemon = match &relay {
        Some(relay) => daemon.with_relay(relay),
        None => daemon,
    };
    let daemon = daemon.with_devices(&config).context("cannot share devices")?;
    let handle = daemon.handle();
    let mut output = std::io::stdout();
    writeln!(output, "ready").and_then(|()| output.flush()).context("cannot write to standard output")?;
    service::ready("serving");
    runtime.block_on(async {
        let mut ended = tokio::task::spawn_blocking(move || daemon.run());
        loop {
            tokio::select! {
                result = &mut ended => return result,
                _ = term.recv() => break,
                _ = int.recv() => break,
                // The terminal was closed, or a reload is requested.
                _ = hup.recv() => {
                    if std::io::stdin().is_terminal() {
                        break;
                    }
                    reload(args.config.as_deref(), &args.device, &config, &handle);
                }
            }
        }
        service::stopping();
        handle.stop();
        ended.await
    })??;
    if let Some(relay) = relay {
        // A second signal ends the connections over the device at once.
        relay.drain(DRAIN);
        let ended = runtime.spawn_blocking(move || relay.join());
        runtime.block_on(async move {
            tokio::select! {
                result = ended => result,
                _ = term.recv() => Ok(()),
                _ = int.recv() => Ok(()),
            }
        })?;
        runtime.shutdown_background();
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the file, and adds the devices of the command line.
fn load(file: Option<&Path>, devices: &[String]) -> anyhow::Result<Config> {
    Ok(file.map(Config::load).transpose()?.unwrap_or_default().with_shared(devices)?)
}

/// Fails for shared devices that do not exist.
fn check_devices(config: &Config) -> anyhow::Result<()> {
    for device in config.devices() {
        fs_daemon::shared::check(device).with_context(|| format!("devices: {device}"))?;
    }
    Ok(())
}

/// Fails if the device of `[wire]` does not exist.
fn check_wire(config: &Config) -> anyhow::Result<()> {
    if let Some(wire) = config.wire() {
        fs_daemon::shared::check(&wire.device).with_context(|| format!("[wire]: device {}", wire.device))?;
    }
    Ok(())
}

/// Reloads the configuration. An invalid one changes nothing. `at_start` is the configuration that
/// the daemon started with.
fn reload(config: Option<&Path>, devices: &[String], at_start: &Config, handle: &Handle) {
    service::reloading();
    let result = config
        .ok_or_else(|| anyhow!("the daemon was started without --config, so there is nothing to reload"))
        .and_then(|path| load(Some(path), devices));
    let says = match result {
        Ok(config) => {
            handle.reload(&config);
            let read = "reloaded policies";
            match &at_start.waits_for_restart(&config)[..] {
                [] => read.to_owned(),
                waiting => format!("{read}; restart the daemon to apply changes of {}", waiting.join(", ")),
            }
        }
        Err(error) => format!("kept the old configuration, because the new one is wrong: {}", said(&error)),
    };
    let _unheard = writeln!(std::io::stderr(), "fastsock: SIGHUP: {says}");
    service::ready(&says);
}

/// `RUST_LOG` sets the log level (default: warnings).
fn init_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // A line that cannot be written is lost. Otherwise the subscriber would report it by `eprintln`, which panics.
    log.log_internal_errors(false).init();
}
