//! Goodput over loss and round-trip time, at 1 Gb/s: fastsock as sender and as receiver, compared with
//! the kernel at both ends. All use the same path with the same seeds (the program `relay` of the
//! tests). Each has its default buffers and windows. All offloads are off, so that both send packets of
//! the MTU.
//!
//! A figure is the goodput of the first seconds after the first byte, slow start included, as the
//! median of its rounds. The queue before the bottleneck holds one bandwidth-delay product, at least
//! 128 KiB. Losses are in both directions.

mod cell;
mod ends;
mod report;

use anyhow::{Context, Result};
use cell::{Cell, Ends};
use clap::{Parser, Subcommand};
use fs_tests::{Lab, Ns};
use report::Row;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Measures goodput over losses and round-trip times, with fastsock as sender, as receiver, and with
/// the kernel at both ends.
#[derive(Debug, Parser)]
#[command(name = "grid", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// Parses the arguments only.
    #[arg(long)]
    dry_run: bool,
    /// Measures once with losses of 0 and 1 % and round-trip times of 1 and 10 ms.
    #[arg(long)]
    quick: bool,
    /// Number of rounds of a cell. The cell shows their median.
    #[arg(long, value_name = "N", default_value = "3", default_value_if("quick", "true", "1"))]
    rounds: usize,
    /// Duration of a transfer.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Losses in each direction.
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_value = "0,0.1,1,2,5")]
    #[arg(default_value_if("quick", "true", "0,1"))]
    loss: Vec<f64>,
    /// Round-trip times.
    #[arg(long, value_name = "MS,…", value_delimiter = ',', default_value = "0.1,1,10,50")]
    #[arg(default_value_if("quick", "true", "1,10"))]
    rtt: Vec<f64>,
    /// Congestion controls, a table each.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "cubic,bbr")]
    congestion: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The kernel's end that receives, for the bench.
    #[command(hide = true)]
    Receive { addr: SocketAddr, seconds: f64 },
    /// The kernel's end that sends, for the bench.
    #[command(hide = true)]
    Send { addr: SocketAddr, seconds: f64, rtt: f64, congestion: String },
}

fn main() -> ExitCode {
    fs_benches::run(run)
}

fn run(plan: Arguments) -> Result<bool> {
    match &plan.role {
        Some(Role::Receive { addr, seconds }) => return ends::receive(*addr, *seconds).map(|()| true),
        Some(Role::Send { addr, seconds, rtt, congestion }) => {
            return ends::send(*addr, *seconds, *rtt, congestion).map(|()| true);
        }
        None if plan.dry_run => return Ok(true),
        None => {}
    }
    let folder = fs_tests::apps::target_dir().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lab = Lab::require(&["--queues", "1", "--offload", "off", "--wire"])?;
    // The kernel must not apply metrics of one path to a connection on the next.
    for end in [Ns::Client, Ns::Backend] {
        lab.run(end, "sh", &["-c", "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save"])?;
    }
    let mut rows = Vec::new();
    for congestion in &plan.congestion {
        println!("\n{}", report::head(congestion, &plan));
        for &loss in &plan.loss {
            for &rtt in &plan.rtt {
                let cell = Cell { congestion, loss, rtt };
                let row = measure(&lab, &plan, cell).inspect_err(|_| lab.print_logs())?;
                println!("{row}");
                rows.push(row);
            }
        }
        println!("{}", report::summary(rows.iter().filter(|r| r.congestion == *congestion)));
    }
    let path = folder.join("grid.json");
    std::fs::write(&path, serde_json::to_string_pretty(&rows)? + "\n")?;
    println!("results: {}", path.display());
    Ok(true)
}

/// Measures all pairs in turns, so that other load on the machine affects all of them.
fn measure(lab: &Lab, plan: &Arguments, cell: Cell<'_>) -> Result<Row> {
    let mut figures = Ends::ALL.map(|_| Vec::new());
    let mut missed = 0;
    for round in 0..plan.rounds {
        for (ends, figures) in Ends::ALL.into_iter().zip(&mut figures) {
            let result = cell::run(lab, ends, cell, round as u64 + 1, Duration::from_secs_f64(plan.seconds))
                .with_context(|| format!("{ends:?}, {cell:?}, round {round}"))?;
            figures.push(result.megabits);
            missed += result.missed;
        }
    }
    Ok(Row::new(cell, figures, missed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_selects_fewer_cells() {
        let parse = |line: &str| Arguments::parse_from(line.split(' '));
        let Arguments { rounds, loss, rtt, congestion, .. } = parse("grid");
        assert_eq!((rounds, loss.len(), rtt.len(), congestion.len()), (3, 5, 4, 2));
        let Arguments { rounds, loss, rtt, .. } = parse("grid --quick --rtt 5");
        assert_eq!((rounds, loss, rtt), (1, vec![0.0, 1.0], vec![5.0]));
    }
}
