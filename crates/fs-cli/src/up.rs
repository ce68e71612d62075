//! `fastsock up`: the daemon.

use crate::control::ControlArgs;
use crate::pairs::Pairs;
use crate::{said, service};
use anyhow::{Context, bail};
use fs_daemon::{Config, Daemon, Handle, XdpMode};
use fs_xdp::NetDevice;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args, Debug)]
#[command(group(clap::ArgGroup::new("what").args(["device", "only_local"])))]
pub(crate) struct Args {
    /// Serve connections to and from other hosts on this device too; needs root, or CAP_NET_ADMIN,
    /// CAP_NET_RAW, CAP_BPF and CAP_PERFMON.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Serve connections between processes of this host only; needs no device and no privileges.
    #[arg(long)]
    only_local: bool,
    /// Number of device queues to use, one core for each [default: all].
    #[arg(long, value_name = "N", requires = "device")]
    queues: Option<usize>,
    /// Accept packets with an unfinished checksum, as virtual links such as veth deliver them.
    #[arg(long, requires = "device")]
    partial_checksums: bool,
    /// XDP mode: how packets come from the device.
    #[arg(long, value_enum, value_name = "MODE", default_value_t, requires = "device")]
    xdp: Xdp,
    /// Configuration file (TOML): device, rules, policies, limits, joined network namespaces.
    /// Options of the command line override it. SIGHUP reloads rules, policies and limits.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and that its device and network namespaces exist, print what is
    /// wrong, and exit. `--check=file` checks only the file, as a reload does.
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        requires = "config",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "host"
    )]
    check: Option<Check>,
    /// Seconds that open connections may continue after SIGTERM [default: 10].
    #[arg(long, value_name = "SECONDS")]
    drain: Option<u64>,
    #[command(flatten)]
    control: ControlArgs,
}

/// See [`XdpMode`].
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default)]
enum Xdp {
    /// The fastest mode that the card and its driver support.
    #[default]
    Auto,
    /// In the driver, with a copy of each packet; for drivers whose zero copy fails.
    Copy,
    /// In the kernel's receive path; works with any driver, slowest.
    Generic,
}

/// What `--check` checks.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Check {
    /// The file, and that the device and the network namespaces that it names exist.
    Host,
    /// The file alone: a reload must not fail because a device or namespace, which only a start
    /// looks for, is missing.
    File,
}

pub(crate) fn up(args: Args) -> anyhow::Result<ExitCode> {
    init_log();
    let mut config = args.config.as_deref().map(Config::load).transpose()?.unwrap_or_default();
    match args.check {
        Some(Check::File) => return Ok(ExitCode::SUCCESS),
        Some(Check::Host) => {
            let configured = config.device.as_ref().map(|device| device.name.as_str()).filter(|_| !args.only_local);
            if let Some(device) = args.device.as_deref().or(configured) {
                NetDevice::find(device)?;
            }
            config.check_joins()?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    fs_daemon::confine().context("cannot drop capabilities that are not needed")?;
    let as_read = config.clone();
    if args.only_local {
        config.device = None;
    } else if args.device.is_none() && args.config.is_none() {
        bail!("there is nothing to serve: give --device DEVICE, --only-local or --config FILE");
    }
    let control = args.control.path()?;
    let mut builder = Daemon::builder(&control).config(config);
    if let Some(drain) = args.drain {
        builder = builder.drain_for(Duration::from_secs(drain));
    }
    if let Some(socket) = service::socket()? {
        builder = builder.socket(socket);
    }
    if let Some(device) = args.device {
        builder = builder.device(device);
        if let Some(queues) = args.queues {
            builder = builder.queues(queues);
        }
        builder = builder.xdp(match args.xdp {
            Xdp::Auto => XdpMode::Auto,
            Xdp::Copy => XdpMode::Copy,
            Xdp::Generic => XdpMode::Generic,
        });
        if args.partial_checksums {
            builder = builder.accept_partial_checksum(true);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Signals are caught before another process can know that the daemon runs.
    let (mut term, mut int, mut hup) = {
        let _entered = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?)
    };
    let daemon = builder.start()?;
    let pairs = Pairs::start(&control, &as_read)?;
    for group in daemon.joined().lines() {
        let _unheard = writeln!(std::io::stderr(), "fastsock: joined network namespaces: {group}");
    }
    let mut output = std::io::stdout();
    writeln!(output, "ready").and_then(|()| output.flush()).context("cannot write to standard output")?;
    service::ready("serving");
    let handle = daemon.handle();
    runtime.block_on(async move {
        let mut ended = tokio::task::spawn_blocking(move || daemon.join());
        // The first signal lets connections end. The second one ends at once.
        for stop in [false, true] {
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
                        reload(args.config.as_deref(), &as_read, &handle, &pairs);
                    }
                }
            }
            service::stopping();
            if stop { handle.stop() } else { handle.drain() }
        }
        ended.await
    })??;
    Ok(ExitCode::SUCCESS)
}

/// Reloads the configuration. An invalid one changes nothing. `at_start` is the configuration that
/// the daemon started with.
fn reload(config: Option<&Path>, at_start: &Config, handle: &Handle, pairs: &Pairs) {
    service::reloading();
    let result = config
        .context("the daemon was started without --config, so there is nothing to reload")
        .and_then(|path| Ok(Config::load(path)?));
    let says = match result {
        Ok(config) => {
            let waiting = at_start.waits_for_restart(&config);
            pairs.reload(&config);
            handle.reload(config);
            let read = "reloaded rules, policies and limits";
            if waiting.is_empty() {
                read.to_owned()
            } else {
                format!("{read}; restart the daemon to apply changes of {}", waiting.join(", "))
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
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
