//! A reverse proxy for TCP (L4), HTTP/1.1 and HTTP/2 (L7). docs/PROXY.md is the user's page.
//!
//! Every core runs the same program, with its own listeners, connections to the servers and
//! counters. A request uses no state that cores share; the modules document the few exceptions.
//!
//! SIGHUP reads the configuration again (`reload`). SIGUSR2 starts another process, which gets the
//! listening sockets (`handover`). After SIGTERM, SIGINT or SIGQUIT, open
//! connections have `drain` to end. A second signal ends the process at once.
//!
//! | module | what it is |
//! |---|---|
//! | `config`, `reload`, `handover` | the configuration file; SIGHUP; SIGUSR2 |
//! | `worker`, `serve`, `site` | one core: its listeners, a connection's protocol, what its connections share |
//! | `tcp`, `relay`, `splice`, `spliced` | TCP mode: two connections, copied in user space or joined in the kernel |
//! | `http1` | ordinary HTTP/1.1 requests, without hyper |
//! | `odd` | all other HTTP requests, on hyper: HTTP/2, tunnels, HTTP/1.0 |
//! | `routes`, `upstream`, `health` | which upstream, which server, and whether it is used |
//! | `fields`, `edits`, `refusal` | header fields, changes to them, the proxy's own responses |
//! | `tls`, `client_hello`, `proxy_protocol`, `introduction` | what comes before a stream's first byte |
//! | `stats`, `metrics`, `status`, `admin`, `operator`, `access_log` | what an operator sees and sets |

// They panic if the output is a full disk or a pipe that nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod access_log;
mod addresses;
mod admin;
#[cfg(feature = "tls")]
mod client_hello;
#[cfg(not(feature = "tls"))]
#[path = "no_client_hello.rs"]
mod client_hello;
mod clients;
mod config;
mod edits;
pub mod fields;
mod flows;
mod handover;
mod handshake;
mod health;
pub mod http1;
mod introduction;
mod log_entry;
mod metrics;
mod odd;
mod operator;
mod proxy_protocol;
mod refusal;
mod relay;
mod reload;
mod routes;
mod serve;
mod service;
mod site;
mod socket;
mod splice;
mod spliced;
mod stats;
mod status;
mod table;
mod tcp;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod upstream;
mod worker;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use config::{Config, ConfigError};
use fs_stacks::{Cores, StackArgs, StackKind};
use handover::Inherited;
use metrics::Metrics;
use reload::{Generation, Logs, Reloader};
use rustix::net::netdevice::name_to_index;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// Distributes HTTP or TCP connections over several servers.
#[derive(Parser, Clone, Debug)]
#[command(name = "fs-proxy", version, disable_help_subcommand = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    question: Option<operator::Question>,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE", required_unless_present = "file")]
    config: Option<PathBuf>,
    /// Same as `--config FILE`.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Check the configuration and the files that it names, look up the names of servers, and exit.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    stack: StackArgs,
}

/// Returns the program's options, for its manual page.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// The exit status for an error in the configuration's text (EX_CONFIG of sysexits.h). The unit does not try again.
const WRONG_FILE: u8 = 78;

/// Runs the program with the process's arguments until it is stopped.
#[must_use]
pub fn run() -> ExitCode {
    let args = Args::parse();
    fs_stacks::init_log();
    let result = match &args.question {
        Some(question) => operator::run(question),
        None => serve(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a backtrace: the usual error is a typo in the configuration.
            let _unheard = writeln!(std::io::stderr(), "Error: {error:#}");
            let is_final = error.downcast_ref::<ConfigError>().is_some_and(|error| error.is_of_text);
            if is_final { ExitCode::from(WRONG_FILE) } else { ExitCode::FAILURE }
        }
    }
}

fn serve(mut args: Args) -> anyhow::Result<()> {
    // First, because a rotation of the log signals all processes of the unit: SIGUSR1 must end no successor that starts,
    // and no check of a file. Later signals may follow the first output at once.
    let (channel, orders) = reload::Channel::open()?;
    let file = args.config.take().or(args.file.take()).context("no configuration file")?;
    let config = Arc::new(Config::load(&file)?);
    config.check_stack(&file, args.stack.stack)?;
    if args.check {
        return Ok(());
    }
    let inherited = Arc::new(Inherited::receive(args.stack.stack)?);
    args.stack.late_devices = inherited.has_predecessor();
    if opens_device(&args.stack) {
        check_addresses(&config)?;
    }
    let files = fs_stacks::usage::raise_open_files(1 << 20)?;
    let count = args.stack.cores.0.len();
    let budget = clients::connections(args.stack.stack, count, files, args.stack.max_connections());
    let stats = Arc::new(stats::Stats::new(&config, count, None));
    stats.keep_weights(&inherited.weights);
    let (log, logs) = (config.access_log.as_deref().map(access_log::Writer::start).transpose()?, Logs::default());
    let metrics = config.metrics.map(|address| metrics::bind(address, &inherited)).transpose()?;
    if let Some(bound) = &metrics {
        service::say(format_args!("metrics {}", bound.local_addr()?));
    }
    let admin = Arc::new(Mutex::new(config.admin.as_deref().map(admin::Opened::new).transpose()?));
    let sender = log.as_ref().map(access_log::Writer::sender);
    logs.add(log);
    let current = Arc::new(Generation { number: 0, config, stats: stats.clone(), log: sender });
    let successor = handover::Starting::default();
    let (first, starting) = (current.clone(), successor.clone());
    let start =
        move |core| worker::run(core, budget, first.clone(), orders.clone(), inherited.clone(), starting.clone());
    let cores = Cores::start(&args.stack, start)?;
    let counters = cores.counters();
    let metrics = Metrics::start(metrics, stats, counters.clone())?;
    let stack = args.stack.stack;
    Reloader {
        file,
        stack,
        below: counters,
        cores: count,
        lookup_interval: current.config.lookup_interval(),
        current,
        metrics,
        admin: None,
        logs: logs.clone(),
        successor,
        is_succeeded: false,
    }
    .start(channel, admin.clone())?;
    let result = cores.join();
    drop(admin.lock().unwrap_or_else(PoisonError::into_inner).take());
    logs.finish();
    result
}

/// Returns true if this process will open a device of its network namespace, with the kernel's addresses. A
/// device that does not exist here may be one that a daemon shares from another namespace.
fn opens_device(args: &StackArgs) -> bool {
    let opens = args.stack == StackKind::Fastsock && !args.late_devices && args.standalone.is_empty();
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) else { return false };
    opens && args.devices.iter().any(|name| name_to_index(&socket, name).is_ok())
}

/// Fails if the kernel refuses a listener's address. Called before a device is opened, which may take it down,
/// because systemd tries again until the address is there.
fn check_addresses(config: &Config) -> anyhow::Result<()> {
    for listener in &config.listeners {
        let address = *listener.address.get_ref();
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    }
    Ok(())
}
