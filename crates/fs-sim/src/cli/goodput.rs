//! `fs-sim goodput`: one flow over loss × round-trip time, as a table.

use clap::value_parser;
use fs_core::{CongestionControl, Duration};
use fs_sim::measure::{Experiment, Flow, Measured, Path};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Options of `fs-sim goodput`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The sender's congestion control, by Linux's name.
    #[arg(long = "cc", value_name = "NAME", value_parser = control, default_value = "cubic")]
    control: CongestionControl,
    /// Virtual seconds of a run.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u64).range(1..))]
    seconds: u64,
    /// Number of runs of a cell with losses. The cell shows their median.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// Rate of the bottleneck in Mb/s.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u64).range(1..=100_000_000))]
    mbps: u64,
    /// Length of the bottleneck's queue; by default one bandwidth-delay product and 100 packets.
    #[arg(long, value_name = "PACKETS")]
    queue: Option<usize>,
    /// Simulates the path of `cargo xtask bench grid`: losses in both directions.
    #[arg(long)]
    veth: bool,
    /// Losses in percent, a row of the table each.
    #[arg(long = "loss", value_name = "PERCENT,…", value_delimiter = ',', value_parser = percent, default_value = "0,0.1,1,2,5")]
    losses_ppm: Vec<u32>,
    /// Round-trip times in milliseconds, a column of the table each.
    #[arg(long = "rtt", value_name = "MS,…", value_delimiter = ',', value_parser = milliseconds, default_value = "0.1,1,10,50")]
    rtts_us: Vec<u64>,
    /// Prints the sender's and the bottleneck's counters for every cell.
    #[arg(long)]
    detail: bool,
    /// Number of cells that are measured at the same time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..))]
    threads: u16,
    /// Writes the packets of each run to this file.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

/// Looks a congestion control up by Linux's name.
fn control(name: &str) -> Result<CongestionControl, String> {
    let names = || CongestionControl::ALL.iter().map(|control| control.name()).collect::<Vec<_>>().join(", ");
    CongestionControl::from_name(name)
        .ok_or_else(|| format!("no congestion control has this name; there are {}", names()))
}

/// Converts percent to parts per million: 0.1 % is 1000 ppm.
fn percent(text: &str) -> Result<u32, String> {
    scaled(text, 10_000.0, 100.0).map(|ppm| ppm as u32)
}

/// Converts milliseconds to microseconds.
fn milliseconds(text: &str) -> Result<u64, String> {
    scaled(text, 1_000.0, 1e9)
}

fn scaled(text: &str, scale: f64, max: f64) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=max).contains(&number) => Ok((number * scale).round() as u64),
        _ => Err(format!("not a number from 0 to {max}")),
    }
}

impl Arguments {
    fn path(&self, rtt_us: u64, loss_ppm: u32) -> Path {
        let new = if self.veth { Path::veth } else { Path::new };
        let path = new(self.mbps * 1_000_000, Duration::from_micros(rtt_us), loss_ppm);
        Path { queue: self.queue.unwrap_or(path.queue), ..path }
    }

    /// Returns a cell: the run with the median goodput, or the error.
    fn cell(&self, loss_ppm: u32, rtt_us: u64) -> Result<Measured, String> {
        let flows = vec![Flow::new(self.control)];
        let mut experiment = Experiment::new(self.path(rtt_us, loss_ppm), flows, Duration::from_secs(self.seconds));
        experiment.pcap = self.pcap.clone();
        let run = |seed| experiment.run(seed).map_err(|e| format!("seed {seed}: {e}"));
        // Without loss all seeds yield nearly the same, long run.
        let seeds = if loss_ppm == 0 { 1 } else { self.seeds };
        let mut runs = (0..seeds).map(run).collect::<Result<Vec<_>, _>>()?;
        runs.sort_by(|a, b| a.total().total_cmp(&b.total()));
        Ok(runs.swap_remove(runs.len() / 2))
    }
}

pub(crate) fn run(args: &Arguments) -> Result<ExitCode, String> {
    let cells: Vec<_> =
        args.losses_ppm.iter().flat_map(|&loss| args.rtts_us.iter().map(move |&rtt| (loss, rtt))).collect();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<Measured, String>>>> = Mutex::new(vec![None; cells.len()]);
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                while let Some(&(loss, rtt)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = args.cell(loss, rtt);
                    let at = cells.iter().position(|&c| c == (loss, rtt)).unwrap_or_default();
                    results.lock().unwrap_or_else(|e| e.into_inner())[at] = Some(result);
                }
            });
        }
    });
    let results = results.into_inner().map_err(|e| e.to_string())?;
    println!(
        "{:?}, goodput in Mb/s, one flow of {} s, {} Mb/s, queue {}, loss {}, median of {} seed(s)",
        args.control,
        args.seconds,
        args.mbps,
        match args.queue {
            Some(queue) => format!("{queue} packets"),
            None if args.veth => "128 KiB or 1 BDP".into(),
            None => "1 BDP + 100 packets".into(),
        },
        if args.veth { "both ways" } else { "of data packets only" },
        args.seeds
    );
    let heads: String = args.rtts_us.iter().map(|&us| format!(" {:>9}", format!("{} ms", us as f64 / 1e3))).collect();
    println!("{:>10}{heads}", "loss \\ RTT");
    let mut failures = Vec::new();
    for (row, &loss) in args.losses_ppm.iter().enumerate() {
        print!("{:>10}", format!("{} %", f64::from(loss) / 1e4));
        for column in 0..args.rtts_us.len() {
            match &results[row * args.rtts_us.len() + column] {
                Some(Ok(measured)) => print!(" {:>9.2}", measured.total() / 1e6),
                Some(Err(what)) => {
                    print!(" {:>9}", "FAILED");
                    failures.push(format!("loss {loss} ppm, RTT {} µs: {what}", args.rtts_us[column]));
                }
                None => print!(" {:>9}", "-"),
            }
        }
        println!();
    }
    if args.detail {
        for (&(loss, rtt), result) in cells.iter().zip(&results) {
            if let Some(Ok(m)) = result {
                detail(loss, rtt, m);
            }
        }
    }
    for failure in &failures {
        eprintln!("{failure}");
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn detail(loss: u32, rtt_us: u64, m: &Measured) {
    let (s, i, b) = (&m.senders[0], &m.info[0], &m.bottleneck);
    println!(
        "loss {} % RTT {} ms: {:.2} Mb/s; retransmits {} fast recoveries {} time-outs {}; cwnd {} ssthresh {} srtt {} µs \
         min {} µs pacing {} B/s {:?}; bottleneck sent {} lost {} overflowed {} marked {} dropped {} longest queue {}",
        f64::from(loss) / 1e4,
        rtt_us as f64 / 1e3,
        m.total() / 1e6,
        s.retransmits,
        s.fast_recoveries,
        s.rto_fired,
        i.snd_cwnd,
        i.snd_ssthresh,
        i.rtt_us,
        i.min_rtt_us,
        i.pacing_rate,
        i.ca_state,
        b.sent,
        b.lost,
        b.overflowed,
        b.marked,
        b.dropped,
        b.queue_max,
    );
}
