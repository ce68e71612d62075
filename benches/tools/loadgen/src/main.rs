//! Loads a server and reports rates, latencies, errors by kind, and the load generator's own cost.
//!
//! As a measuring instrument it must be cheap. Requests are prepared once, responses are parsed in
//! a buffer that all connections of a core share, and nothing is allocated or locked per request.

mod client;
mod errors;
mod hold;
mod http;
mod load;
mod modes;
mod pace;
mod progress;
mod report;
mod session;
mod source;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use fs_stacks::{Cores, StackArgs};
use report::{CoreReport, Report};
use serde::Serialize;
use session::{Plan, Session};
use source::Sources;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The work of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// Connect, one HTTP request with `Connection: close`, read to the end, again.
    Short,
    /// HTTP requests on one connection, the next when the answer is complete.
    Keepalive,
    /// Messages of `--body` bytes to an echo server, the next when the last is back.
    Pingpong,
    /// As many bytes as possible, to `fs-echo --sink` (or from `fs-echo --source` with
    /// `--reverse`).
    Bulk,
    /// Open all connections, one request on each, keep them for `--seconds`, one more request on
    /// each, close.
    Hold,
}

/// Load generator. It ends by itself; its status is not 0 when anything went wrong.
#[derive(Parser, Clone, Debug)]
#[command(version)]
struct Args {
    /// Work of the connections.
    #[arg(long, value_enum, default_value = "keepalive", conflicts_with = "hold")]
    mode: Mode,
    /// Same as `--mode hold`.
    #[arg(long)]
    hold: bool,
    /// The server.
    #[arg(long, value_name = "ADDR:PORT")]
    connect: SocketAddr,
    /// Connections open at once, over all cores.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    conns: u32,
    /// How long to load (`hold`: how long to keep the connections).
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// Bytes of a message (pingpong: default 64), or that the body of every HTTP answer must have.
    #[arg(long, value_name = "BYTES")]
    body: Option<usize>,
    /// Path of HTTP requests.
    #[arg(long, default_value = "/")]
    path: String,
    /// Requests on a connection before it is closed and the next is opened (keepalive); 0: as many
    /// as the time allows.
    #[arg(long, value_name = "N", default_value_t = 0)]
    per_connection: u32,
    /// Requests per second, over all connections (keepalive, short). A request is due at its time whether or
    /// not the ones before it are answered, and its latency counts from then. By default a connection
    /// asks as soon as it can.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Receive instead of sending (bulk).
    #[arg(long)]
    reverse: bool,
    /// Source addresses, used in turn: `10.0.0.1`, `10.0.0.1-10.0.0.4`, or several with commas. One
    /// address is good for as many connections as it has free ports: at most 64k to one server.
    #[arg(long, value_name = "ADDRS")]
    source: Option<Sources>,
    /// Seconds after which a connection that makes no progress counts as an error.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    timeout: Duration,
    /// Connections that are being opened at the same time, per core (hold).
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    opening: u32,
    /// Print one JSON object to standard output at the end.
    #[arg(long)]
    json: bool,
    /// Exit with status 0 also when there were errors.
    #[arg(long)]
    allow_errors: bool,
    #[command(flatten)]
    stack: StackArgs,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    match Duration::try_from_secs_f64(number) {
        Ok(time) if !time.is_zero() && number <= 86_400.0 => Ok(time),
        _ => Err("must be more than 0 and at most a day".into()),
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let mut args = Args::parse();
    if args.hold {
        args.mode = Mode::Hold;
    }
    anyhow::ensure!(!args.reverse || args.mode == Mode::Bulk, "--reverse belongs to --mode bulk");
    let limited = args.per_connection > 0;
    anyhow::ensure!(!limited || args.mode == Mode::Keepalive, "--per-connection belongs to --mode keepalive");
    let paced = args.rate.is_none() || matches!(args.mode, Mode::Keepalive | Mode::Short);
    anyhow::ensure!(paced, "--rate belongs to --mode keepalive and --mode short");
    anyhow::ensure!(args.path.starts_with('/') && !args.path.contains([' ', '\r', '\n']), "--path must be a path");
    if let Some(sources) = &args.source {
        anyhow::ensure!(sources.is_v4() == args.connect.is_ipv4(), "--source and --connect differ in their IP version");
    }
    fs_stacks::init_log();
    fs_stacks::usage::raise_open_files(1 << 20)?;
    let report = load(&args)?;
    eprintln!("{report}");
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    }
    let failed = report.errors_total > 0 && !args.allow_errors;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn load(args: &Args) -> anyhow::Result<Report> {
    let plan = Arc::new(Plan::new(args));
    let progress = progress::start(plan.clone())?;
    let before = fs_stacks::usage::resource_usage();
    let started = Instant::now();
    let (sender, reports) = channel::<CoreReport>();
    let for_cores = plan.clone();
    let cores = Cores::start(&args.stack, move |core| {
        let (plan, sender) = (for_cores.clone(), sender.clone());
        async move {
            let report = load::run(Session::new(core, plan)).await;
            sender.send(report).context("the report's receiver is gone")
        }
    })?;
    cores.join()?;
    progress.stop();
    let after = fs_stacks::usage::resource_usage();
    let cores: Vec<CoreReport> = reports.try_iter().collect();
    anyhow::ensure!(cores.len() == plan.cores, "{} of {} cores have reported", cores.len(), plan.cores);
    Ok(Report::new(args, cores, started.elapsed(), before, after))
}
