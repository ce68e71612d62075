//! The table.

use crate::Arguments;
use crate::cell::Cell;
use serde::Serialize;
use std::fmt;

/// Figures of one cell in Mb/s.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) congestion: String,
    loss_percent: f64,
    rtt_ms: f64,
    kernel: f64,
    from_fastsock: f64,
    to_fastsock: f64,
    rounds: [Vec<f64>; 3],
    missed_by_the_relay: u64,
}

impl Row {
    pub(crate) fn new(cell: Cell<'_>, rounds: [Vec<f64>; 3], missed: u64) -> Row {
        let [kernel, from_fastsock, to_fastsock] = rounds.each_ref().map(|r| median(r));
        Row {
            congestion: cell.congestion.into(),
            loss_percent: cell.loss,
            rtt_ms: cell.rtt,
            kernel,
            from_fastsock,
            to_fastsock,
            rounds,
            missed_by_the_relay: missed,
        }
    }

    fn sender_ratio(&self) -> f64 {
        self.from_fastsock / self.kernel
    }

    fn receiver_ratio(&self) -> f64 {
        self.to_fastsock / self.kernel
    }
}

/// Returns the median; the lower of two.
fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn head(congestion: &str, plan: &Arguments) -> String {
    format!(
        "{congestion}: goodput in Mb/s, median of {} × {} s\n{:>6} {:>7} {:>14} {:>18} {:>6} {:>18} {:>6}",
        plan.rounds, plan.seconds, "loss", "RTT", "Linux→Linux", "fastsock→Linux", "ratio", "Linux→fastsock", "ratio"
    )
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>4} % {:>4} ms {:>14.1} {:>18.1} {:>6.2} {:>18.1} {:>6.2}",
            self.loss_percent,
            self.rtt_ms,
            self.kernel,
            self.from_fastsock,
            self.sender_ratio(),
            self.to_fastsock,
            self.receiver_ratio()
        )?;
        match self.missed_by_the_relay {
            0 => Ok(()),
            missed => write!(f, "  (the relay missed {missed} packets)"),
        }
    }
}

/// Summarises the cells against the goal.
pub(crate) fn summary<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> String {
    let line = |direction: &str, ratio: fn(&Row) -> f64| {
        let ratios: Vec<f64> = rows.clone().map(ratio).collect();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let count = |least: f64| ratios.iter().filter(|r| **r >= least).count();
        format!("{direction}: {} of {} cells ≥ 0.9, {} ≥ 0.8, lowest {low:.2}", count(0.9), ratios.len(), count(0.8))
    };
    format!("{}; {}", line("sending", Row::sender_ratio), line("receiving", Row::receiver_ratio))
}
