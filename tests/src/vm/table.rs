//! docs/PLATFORMS.md: the results of the matrix.

use super::Extent;
use super::guest::REFUSED;
use super::machine::Report;
use super::packages::version_order;
use super::peer::ANEW;
use crate::apps::target_dir;
use anyhow::{Context, Result};
use std::path::PathBuf;

/// A cell: kernel, card, mode and extent as they are asked for.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Of [`super::kernels::KERNELS`].
    pub kernel: String,
    /// Of [`super::cards::CARDS`].
    pub card: String,
    /// `auto`, `copy` or `generic`.
    pub mode: String,
    /// How much.
    pub extent: Extent,
}

/// The result of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every step works, in the requested mode, or for `auto` in the best one.
    Works(String),
    /// Every step, in a lower mode.
    FallsBack(String),
    /// The daemon did not start, gave the reason, and left the card to the kernel.
    Refused(String),
    /// Anything else.
    Wrong(String),
}

impl Verdict {
    /// Of a report.
    pub fn of(mode: &str, report: &Report) -> Verdict {
        let got = report.steps.iter().find(|step| step.name == "mode").map_or("", |step| step.says.as_str());
        let after = report.steps.iter().any(|step| step.name == "kernel after" && step.ok);
        if let Some(step) = report.steps.iter().find(|step| !step.ok) {
            return match step.name.as_str() {
                "up" if step.says.starts_with(REFUSED) && after => {
                    Verdict::Refused(step.says.trim_start_matches(REFUSED).to_owned())
                }
                name => Verdict::Wrong(format!("{name}: {} ({got})", step.says)),
            };
        }
        if !report.ended {
            let last = report.steps.last().map_or("boot", |step| step.name.as_str());
            return Verdict::Wrong(format!("hung after {last}"));
        }
        let as_asked = match mode {
            "auto" => got.starts_with("native, zero copy,"),
            "copy" => got.starts_with("native, copy"),
            _ => got.starts_with("generic"),
        };
        if as_asked { Verdict::Works(got.into()) } else { Verdict::FallsBack(got.into()) }
    }

    /// A cell of the table.
    fn text(&self) -> String {
        let (is, says) = match self {
            Verdict::Works(says) => ("works", says),
            Verdict::FallsBack(says) => ("falls back to", says),
            Verdict::Refused(says) => ("refused:", says),
            Verdict::Wrong(says) => ("**wrong**:", says),
        };
        format!("{is} {says}").replace('|', "/").replace('\n', " ")
    }
}

const BEGIN: &str = "<!-- cells -->";
const END: &str = "<!-- end of cells -->";

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/PLATFORMS.md")
}

/// Writes a cell's row into the table, replacing an older one.
pub fn write(cell: &Cell, report: &Report, verdict: &Verdict) -> Result<()> {
    let path = path();
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let begin = text.find(BEGIN).context("no cells in docs/PLATFORMS.md")? + BEGIN.len();
    let end = text.find(END).context("no end of cells in docs/PLATFORMS.md")?;
    let head = "| kernel | card | mode asked for | result | steps |\n|---|---|---|---|---|\n";
    let mut rows: Vec<String> = text[begin..end]
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| kernel"))
        .map(str::to_owned)
        .collect();
    let key = |row: &str| row.split(" | ").take(3).collect::<Vec<_>>().join(" | ");
    let row = format!("{} | {} |", row_begin(cell, report, verdict), steps(report));
    // One kernel per series: a newer release replaces the row of the previous one.
    let series = |row: &str| {
        let key = key(row);
        let (release, rest) = key.split_once(" | ").map_or(("", ""), |(release, rest)| (release, rest));
        let numbers: Vec<&str> = release.trim_start_matches("| ").split('.').take(2).collect();
        format!("{} {rest}", numbers.join("."))
    };
    rows.retain(|old| series(old) != series(&row));
    rows.push(row);
    rows.sort_by(|a, b| {
        let parts = |row: &str| row.split(" | ").map(str::to_owned).collect::<Vec<_>>();
        let (a, b) = (parts(a), parts(b));
        version_order(&a[0], &b[0]).then_with(|| a[1..3].cmp(&b[1..3]))
    });
    let table = format!("\n{head}{}\n", rows.join("\n"));
    Ok(std::fs::write(&path, format!("{}{table}{}", &text[..begin], &text[end..]))?)
}

fn row_begin(cell: &Cell, report: &Report, verdict: &Verdict) -> String {
    format!("| {} | {} | {} | {}", report.release, cell.card, cell.mode, verdict.text())
}

/// Returns the steps, with their figures if any.
fn steps(report: &Report) -> String {
    let told = ["1 MiB", "100 MiB", "connections", "kernel's server", "active", "killed", "1 MiB again"];
    let ran = report.steps.iter().filter(|step| step.ok && told.contains(&step.name.as_str()));
    ran.map(|step| match step.name.as_str() {
        "connections" | "active" => step.says.clone(),
        name if step.says.contains(ANEW) => format!("{name}, {ANEW}"),
        name => name.to_owned(),
    })
    .collect::<Vec<_>>()
    .join("; ")
}

/// Returns the folder of downloads and results.
pub fn cache() -> PathBuf {
    target_dir().join("vm")
}
