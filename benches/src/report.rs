//! Rows of results: a figure, its peer from the same run, their ratio, and the goal.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Number and length of the rounds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds per side.
    pub rounds: usize,
    /// Seconds per round.
    pub seconds: u32,
}

/// Returns the median; the lower of two.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// The goal for a ratio.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The ratio shall be at least this.
    AtLeast(f64),
    /// The ratio shall be at most this.
    AtMost(f64),
    /// Our figure shall exceed the peer's by at most this.
    Plus(f64),
    /// No goal: for comparison only.
    None,
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the measurement.
    pub what: String,
    /// The figure's unit.
    pub unit: &'static str,
    /// Our figure, the median.
    pub ours: f64,
    /// Name of the peer.
    pub peer_name: String,
    /// The peer's figure, the median.
    pub peer: f64,
    /// The goal for `ours / peer`.
    pub goal: Goal,
    /// All rounds of ours.
    pub our_rounds: Vec<f64>,
    /// All rounds of the peer.
    pub peer_rounds: Vec<f64>,
    /// Quartiles of the ratios of rounds that ran one after the other; the ratio is the second one.
    /// `None`: the ratio is that of the medians.
    pub of_pairs: Option<[f64; 3]>,
}

impl Row {
    /// Makes a row of two series of rounds.
    pub fn new(what: &str, unit: &'static str, ours: &[f64], peer_name: &str, peer: &[f64], goal: Goal) -> Row {
        Row {
            what: what.into(),
            unit,
            ours: median(ours.iter().copied()),
            peer_name: peer_name.into(),
            peer: median(peer.iter().copied()),
            goal,
            our_rounds: ours.to_vec(),
            peer_rounds: peer.to_vec(),
            of_pairs: None,
        }
    }

    /// Judges the row by the ratio of each pair of rounds. On a busy machine a round differs from
    /// the next one by a factor of two on either side, and more between one minute and the next:
    /// two rounds that follow each other share most of that.
    #[must_use]
    pub fn by_pairs(mut self) -> Row {
        let ratio = |(ours, peer): (&f64, &f64)| ours / peer;
        let mut ratios: Vec<f64> = self.our_rounds.iter().zip(&self.peer_rounds).map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        self.of_pairs =
            Some([1, 2, 3].map(|i| ratios.get(i * ratios.len().saturating_sub(1) / 4).copied().unwrap_or(f64::NAN)));
        self
    }

    fn ratio(&self) -> f64 {
        self.of_pairs.map_or(self.ours / self.peer, |[_, median, _]| median)
    }

    fn spread(&self) -> String {
        let Some([low, _, high]) = self.of_pairs else { return String::new() };
        format!("; {} pairs, quartiles {} to {}", self.our_rounds.len(), number(low), number(high))
    }

    fn verdict(&self) -> String {
        let (reached, goal) = match self.goal {
            Goal::AtLeast(goal) => (self.ratio() >= goal, format!("≥ {goal}")),
            Goal::AtMost(goal) => (self.ratio() <= goal, format!("≤ {}", number(goal))),
            Goal::Plus(more) => (self.ours - self.peer <= more, format!("≤ peer + {more}")),
            Goal::None => return String::new(),
        };
        format!("{goal}: {}", if reached { "reached" } else { "MISSED" })
    }
}

/// Formats all rows as text.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{:<50} {:>12} {:>12}  {:<14} {:>7}  goal", "", "fastsock", "peer", "unit", "ratio");
    for row in rows {
        let _ = writeln!(
            text,
            "{:<50} {:>12} {:>12}  {:<14} {:>7}  {}{}",
            format!("{} / {}", row.what, row.peer_name),
            number(row.ours),
            number(row.peer),
            row.unit,
            number(row.ratio()),
            row.verdict(),
            row.spread()
        );
    }
    text
}

fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        small if small < 0.1 => format!("{value:.4}"),
        _ => format!("{value:.2}"),
    }
}

#[derive(Serialize)]
struct File<'a> {
    rounds: usize,
    seconds: u32,
    kernel: String,
    rows: Vec<Saved<'a>>,
}

#[derive(Serialize)]
struct Saved<'a> {
    #[serde(flatten)]
    row: &'a Row,
    ratio: f64,
}

/// Returns the running kernel's release.
pub fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Writes a part's rows.
pub fn save(path: &Path, rows: &[Row], plan: &Plan) -> Result<()> {
    let rows = rows.iter().map(|row| Saved { row, ratio: row.ratio() }).collect();
    let file = File { rounds: plan.rounds, seconds: plan.seconds, kernel: kernel(), rows };
    let text = serde_json::to_string_pretty(&file)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}
