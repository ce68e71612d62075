//! `fs-sim goodput`: one flow over loss × round-trip time, as a table.

use fs_core::{CongestionControl, Duration};
use fs_sim::measure::{Experiment, Flow, Measured, Path};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn usage() -> String {
    let cc = names("|");
    format!(
        "fs-sim goodput [--cc {cc}] [--seconds N] [--seeds N] [--mbps N] [--queue PACKETS] [--veth] \
                         [--loss PERCENT,…] [--rtt MS,…] [--detail] [--threads N] [--pcap FILE]"
    )
}

/// Returns Linux's names of all congestion controls.
fn names(between: &str) -> String {
    CongestionControl::ALL.iter().map(|control| control.name()).collect::<Vec<_>>().join(between)
}

/// Loss rates in parts per million.
const LOSSES: [u32; 5] = [0, 1_000, 10_000, 20_000, 50_000];
const RTTS_US: [u64; 4] = [100, 1_000, 10_000, 50_000];

struct Args {
    control: CongestionControl,
    seconds: u64,
    seeds: u64,
    mbps: u64,
    queue: Option<usize>,
    /// Uses the path of the interop bench.
    veth: bool,
    losses: Vec<u32>,
    rtts_us: Vec<u64>,
    detail: bool,
    threads: usize,
    pcap: Option<String>,
}

/// Looks a congestion control up by Linux's name.
fn control(name: &str) -> Result<CongestionControl, String> {
    let unknown = || format!("no congestion control {name}; there are: {}", names(", "));
    CongestionControl::from_name(name).ok_or_else(unknown)
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut parsed = Args {
        control: CongestionControl::Cubic,
        seconds: 10,
        seeds: 3,
        mbps: 1000,
        queue: None,
        veth: false,
        losses: LOSSES.to_vec(),
        rtts_us: RTTS_US.to_vec(),
        detail: false,
        threads: 2,
        pcap: None,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        // 0.1 % is 1000 ppm, 0.1 ms are 100 µs.
        let list = |text: String, scale: f64| -> Result<Vec<u64>, String> {
            let one = |part: &str| part.parse::<f64>().map_err(|e| format!("{part}: {e}"));
            text.split(',').map(|part| Ok((one(part)? * scale).round() as u64)).collect()
        };
        match arg.as_str() {
            "--cc" => parsed.control = control(&value()?)?,
            "--seconds" => parsed.seconds = number(value()?)?.max(1),
            "--seeds" => parsed.seeds = number(value()?)?.max(1),
            "--mbps" => parsed.mbps = number(value()?)?.max(1),
            "--queue" => parsed.queue = Some(number(value()?)? as usize),
            "--loss" => parsed.losses = list(value()?, 10_000.0)?.into_iter().map(|ppm| ppm as u32).collect(),
            "--rtt" => parsed.rtts_us = list(value()?, 1_000.0)?,
            "--veth" => parsed.veth = true,
            "--detail" => parsed.detail = true,
            "--threads" => parsed.threads = number(value()?)?.max(1) as usize,
            "--pcap" => parsed.pcap = Some(value()?),
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    Ok(parsed)
}

impl Args {
    fn path(&self, rtt_us: u64, loss_ppm: u32) -> Path {
        let new = if self.veth { Path::veth } else { Path::new };
        let path = new(self.mbps * 1_000_000, Duration::from_micros(rtt_us), loss_ppm);
        Path { queue: self.queue.unwrap_or(path.queue), ..path }
    }

    /// Returns a cell: the run with the median goodput, or the error.
    fn cell(&self, loss_ppm: u32, rtt_us: u64) -> Result<Measured, String> {
        let flows = vec![Flow::new(self.control)];
        let mut experiment = Experiment::new(self.path(rtt_us, loss_ppm), flows, Duration::from_secs(self.seconds));
        experiment.pcap = self.pcap.as_ref().map(Into::into);
        let run = |seed| experiment.run(seed).map_err(|e| format!("seed {seed}: {e}"));
        // Without loss all seeds yield nearly the same, long run.
        let seeds = if loss_ppm == 0 { 1 } else { self.seeds };
        let mut runs = (0..seeds).map(run).collect::<Result<Vec<_>, _>>()?;
        runs.sort_by(|a, b| a.total().total_cmp(&b.total()));
        Ok(runs.swap_remove(runs.len() / 2))
    }
}

pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let args = parse(args)?;
    let cells: Vec<_> = args.losses.iter().flat_map(|&loss| args.rtts_us.iter().map(move |&rtt| (loss, rtt))).collect();
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
    for (row, &loss) in args.losses.iter().enumerate() {
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
