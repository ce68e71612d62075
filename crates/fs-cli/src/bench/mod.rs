//! `fastsock bench`: measures what this machine gains, compared with the kernel, in a minute.
//!
//! Each round measures a case on the kernel and then with rings, with its own daemon. Two processes
//! of this program exchange eight bytes. redis is measured too if it is installed.

mod lab;
mod pair;
mod redis;

use crate::run;
use anyhow::{Context, bail};
use fs_pairs::counters::count;
use lab::Lab;
use std::io::Write;
use std::process::ExitCode;

pub(crate) use pair::{PairArgs, pair};

/// Options of `fastsock bench`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Rounds: each measures every case on the kernel and with rings.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// Seconds of each measurement of the built-in pair.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=60))]
    seconds: u8,
    /// Leave redis out.
    #[arg(long)]
    no_redis: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// A measurement, in operations per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Pair { connections: u32 },
    Redis { clients: u32 },
}

impl Case {
    fn name(self) -> String {
        let plural = |n: u32| if n == 1 { "" } else { "s" };
        match self {
            Case::Pair { connections } => {
                format!("8 byte round trips, {connections} connection{}", plural(connections))
            }
            Case::Redis { clients } => format!("redis GET, {clients} client{}", plural(clients)),
        }
    }
}

/// The rates of a case: for each round the kernel's and that with rings.
#[derive(Debug)]
struct Measured {
    case: Case,
    rounds: Vec<[f64; 2]>,
}

pub(crate) fn bench(args: Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::now();
    let library = run::library()?;
    let lab = Lab::start(&library)?;
    let mut cases = vec![Case::Pair { connections: 1 }, Case::Pair { connections: 50 }];
    let has_redis = !args.no_redis && redis::is_installed();
    if has_redis {
        cases.extend([Case::Redis { clients: 1 }, Case::Redis { clients: 50 }]);
    }
    let mut all = Vec::new();
    for case in cases {
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            let kernel = measure(&lab, case, false, args.seconds)?;
            let before = count(&lab.control())?.promoted;
            let ring = measure(&lab, case, true, args.seconds)?;
            if count(&lab.control())?.promoted == before {
                bail!("no connection got a ring: `fastsock doctor` says what the machine lacks");
            }
            rounds.push([kernel, ring]);
        }
        all.push(Measured { case, rounds });
    }
    let text = if args.json { format!("{:#}\n", json(&all, &machine)) } else { table(&all, &machine, has_redis) };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Properties of the machine on which the rates depend.
#[derive(Debug)]
struct Machine {
    cpus: usize,
    /// The load average of the minute before, as /proc/loadavg has it.
    load: String,
}

impl Machine {
    fn now() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self { cpus, load: load.split(' ').next().unwrap_or_default().to_owned() }
    }
}

/// Returns the smallest and the largest value.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::INFINITY, 0.0], |[low, high], value| [value.min(low), value.max(high)])
}

impl Measured {
    fn kernel(&self) -> [f64; 2] {
        spread(self.rounds.iter().map(|round| round[0]))
    }

    fn ring(&self) -> [f64; 2] {
        spread(self.rounds.iter().map(|round| round[1]))
    }

    /// Returns the lowest and the highest ratio of a round's two rates.
    fn ratio(&self) -> [f64; 2] {
        spread(self.rounds.iter().map(|[kernel, ring]| ring / kernel))
    }
}

fn table(all: &[Measured], machine: &Machine, has_redis: bool) -> String {
    let range = |[low, high]: [f64; 2]| format!("{} to {}", thousands(low), thousands(high));
    let Machine { cpus, load } = machine;
    let rounds = all.first().map_or(0, |measured| measured.rounds.len());
    let mut text = format!(
        "{:<44}{:<26}{:<26}with rings / kernel\n",
        format!("per second, {cpus} CPUs, load {load}, {rounds} rounds"),
        "kernel",
        "with rings"
    );
    for measured in all {
        let [low, high] = measured.ratio();
        let (name, kernel, ring) = (measured.case.name(), range(measured.kernel()), range(measured.ring()));
        text += &format!("{name:<44}{kernel:<26}{ring:<26}{low:.1} to {high:.1}\n");
    }
    if !has_redis {
        text += "redis was not measured.\n";
    }
    text + "Other programs that use the CPUs make both slower, and rings more so: repeat it under your own load.\n"
}

fn json(all: &[Measured], machine: &Machine) -> serde_json::Value {
    let object = |measured: &Measured| {
        serde_json::json!({
            "case": measured.case.name(),
            "kernel_per_second": measured.rounds.iter().map(|round| round[0]).collect::<Vec<_>>(),
            "ring_per_second": measured.rounds.iter().map(|round| round[1]).collect::<Vec<_>>(),
            "ratio": measured.ratio(),
        })
    };
    serde_json::json!({ "cpus": machine.cpus, "load": machine.load, "cases": all.iter().map(object).collect::<Vec<_>>() })
}

/// Formats a rate with three significant digits: 1234567 is 1,230,000.
fn thousands(rate: f64) -> String {
    let mut step = 1.0;
    while rate / step >= 1000.0 {
        step *= 10.0;
    }
    let digits = format!("{:.0}", (rate / step).round() * step);
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn measure(lab: &Lab, case: Case, ring: bool, seconds: u8) -> anyhow::Result<f64> {
    match case {
        Case::Pair { connections } => pair::measure(lab, connections, seconds, ring),
        Case::Redis { clients } => redis::measure(lab, clients, ring),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_and_ratio_are_those_of_rounds() {
        let rounds = vec![[100.0, 1_234_567.0], [200.0, 1000.0]];
        let all = [Measured { case: Case::Redis { clients: 50 }, rounds }];
        let machine = Machine { cpus: 2, load: "0.5".into() };
        let text = table(&all, &machine, false);
        let line = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["redis GET, 50 clients", "100 to 200", "1,000 to 1,230,000", "5.0 to 12345.7"]);
        assert!(text.starts_with("per second, 2 CPUs, load 0.5, 2 rounds"), "{text}");
        assert!(text.contains("redis was not measured"));
        let json = json(&all, &machine);
        assert_eq!((&json["cpus"], &json["cases"][0]["ratio"][0]), (&2.into(), &5.0.into()));
    }
}
