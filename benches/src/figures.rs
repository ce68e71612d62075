//! The figures of the documentation, from the runs that `cargo xtask bench --keep` keeps
//! (`benches/results/RUN/PART.json`): tables between the marks of a page, and charts. No figure is
//! written by hand.

use crate::plot;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// A kept run, named by its date and time (UTC).
pub struct Run {
    name: String,
    parts: BTreeMap<String, Part>,
}

#[derive(Deserialize)]
struct Part {
    kernel: String,
    /// Absent in the in-memory part, which has `quick` instead.
    rounds: Option<usize>,
    quick: Option<bool>,
    rows: Vec<Row>,
}

/// The fields of a row that all parts have.
#[derive(Deserialize)]
struct Row {
    what: String,
    unit: String,
    ours: f64,
    peer_name: Option<String>,
    peer: Option<f64>,
    /// Quartiles of the ratios of pairs of rounds, of a row that is judged by them.
    of_pairs: Option<[f64; 3]>,
}

/// A row, with its values of all runs that contain it.
struct Series<'a> {
    row: &'a Row,
    ours: Vec<f64>,
    peer: Vec<f64>,
    ratio: Vec<f64>,
}

/// The rows of the README: the part, the row's name in its bench, and its peer.
const SUMMARY: [(&str, &str, &str); 10] = [
    ("redis", "redis GET, 50 clients", "kernel"),
    ("redis", "redis GET, 50 clients, one core", "kernel"),
    ("nginx", "nginx 612 B, 8 connections: rate", "kernel"),
    ("pair", "connect, a byte each way, close, two cores", "kernel"),
    ("pair", "8-byte round trip, two cores", "kernel"),
    ("short", "short connections", "kernel"),
    ("latency", "ping-pong, spinning: p50", "kernel"),
    ("bulk", "bulk, MTU 1500", "kernel, offloads off"),
    ("bulk", "bulk, MTU 1500", "kernel, offloads on"),
    ("proxy", "HTTP proxy, keep-alive: per proxy CPU s", "kernel"),
];

/// Returns all kept runs, the oldest first.
pub fn runs(folder: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in read_folder(folder)? {
        let mut parts = BTreeMap::new();
        for file in read_folder(&folder.join(&entry))? {
            let path = folder.join(&entry).join(&file);
            let Some(part) = file.strip_suffix(".json") else { bail!("{}: not a part's rows", path.display()) };
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            parts.insert(part.to_owned(), serde_json::from_str(&text).with_context(|| path.display().to_string())?);
        }
        runs.push(Run { name: entry, parts });
    }
    Ok(runs)
}

/// Returns the sorted names in a folder; empty if it does not exist.
fn read_folder(folder: &Path) -> Result<Vec<String>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names: Vec<String> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// Returns `page` with the contents of its marks: `<!-- figures: NAME… -->` and `<!-- end of
/// figures -->` around a table of parts, of the `summary`, or of the `runs`.
pub fn fill(page: &str, runs: &[Run]) -> Result<String> {
    const START: &str = "<!-- figures: ";
    const END: &str = "<!-- end of figures -->";
    let mut filled = String::new();
    let mut rest = page;
    while let Some(at) = rest.find(START) {
        let (before, marked) = rest.split_at(at);
        let head = marked.find("-->").context("a mark without its end")? + 3;
        let end = marked.find(END).context("figures without their end mark")?;
        let names: Vec<&str> = marked[START.len()..head - 3].split_whitespace().collect();
        let body = match names[..] {
            ["summary"] => table(SUMMARY.iter().filter_map(|&(part, what, peer)| series(runs, part, what, peer)), runs),
            ["runs"] => list(runs),
            ref parts => tables(parts, runs)?,
        };
        write!(filled, "{before}{}\n{body}{END}", &marked[..head])?;
        rest = &marked[end + END.len()..];
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Returns the charts: one for the rows of a part with a common unit and the kernel as peer, of the
/// part's latest run.
pub fn charts(runs: &[Run]) -> Result<BTreeMap<String, String>> {
    let mut charts = BTreeMap::new();
    let parts: Vec<&String> = runs.iter().flat_map(|run| run.parts.keys()).collect();
    for name in parts {
        let Some((run, part)) = runs.iter().rev().find_map(|run| Some((run, run.parts.get(name)?))) else { continue };
        let mut units: BTreeMap<&str, Vec<(String, f64, f64)>> = BTreeMap::new();
        for row in part.rows.iter().filter(|row| row.peer_name.as_deref() == Some("kernel")) {
            let bars = units.entry(&row.unit).or_default();
            bars.push((row.what.replace(": ", ", "), row.ours, row.peer.unwrap_or(f64::NAN)));
        }
        for (unit, bars) in units.into_iter().filter(|(_, bars)| (2..=4).contains(&bars.len())) {
            let file = format!("{name}-{}.svg", unit.replace(['/', ' '], "").replace('µ', "u").to_lowercase());
            let title = format!("{name}, {unit}: fastsock and the kernel ({})", run.name);
            charts.insert(file, plot::file(&title, &bars)?);
        }
    }
    Ok(charts)
}

fn list(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs {
        let kernels: Vec<&str> = run.parts.values().map(|part| part.kernel.as_str()).collect();
        let quick = run.parts.values().any(|part| part.quick == Some(true) || part.rounds == Some(1));
        let parts: Vec<&str> = run.parts.keys().map(String::as_str).collect();
        let _ = writeln!(
            text,
            "- {}, Linux {}{}: {}",
            run.name,
            kernels.first().unwrap_or(&""),
            if quick { ", `--quick`" } else { "" },
            parts.join(", ")
        );
    }
    text
}

fn tables(parts: &[&str], runs: &[Run]) -> Result<String> {
    let mut rows: Vec<Series> = Vec::new();
    for part in parts {
        let Some(latest) = runs.iter().rev().find_map(|run| run.parts.get(*part)) else {
            bail!("no kept run has the part {part}");
        };
        rows.extend(latest.rows.iter().filter_map(|row| {
            let peer = row.peer_name.as_deref().unwrap_or_default();
            series(runs, part, &row.what, peer)
        }));
    }
    let mut text = table(rows.into_iter(), runs);
    let charts = charts(runs)?;
    for part in parts {
        for file in charts.keys().filter(|file| file.rsplit_once('-').is_some_and(|(of, _)| of == *part)) {
            let _ = write!(text, "\n![{part}](plots/{file})\n");
        }
    }
    Ok(text)
}

/// Returns a row of all runs; `None` if none contains it.
fn series<'a>(runs: &'a [Run], part: &str, what: &str, peer: &str) -> Option<Series<'a>> {
    let of_run = |run: &'a Run| {
        let rows = &run.parts.get(part)?.rows;
        rows.iter().find(|row| row.what == what && row.peer_name.as_deref().unwrap_or_default() == peer)
    };
    let rows: Vec<&Row> = runs.iter().filter_map(of_run).collect();
    let row = *rows.last()?;
    let ours = rows.iter().map(|row| row.ours).collect();
    let peer = rows.iter().filter_map(|row| row.peer).collect();
    let ratio = |row: &&Row| row.of_pairs.map(|[_, median, _]| median).or(Some(row.ours / row.peer?));
    let ratio = rows.iter().filter_map(ratio).collect();
    Some(Series { row, ours, peer, ratio })
}

fn table<'a>(rows: impl Iterator<Item = Series<'a>>, runs: &[Run]) -> String {
    let mut text = String::from("| what | fastsock | compared with | ratio | runs |\n|---|---|---|---|---|\n");
    for Series { row, ours, peer, ratio } in rows {
        let beside = match &row.peer_name {
            Some(name) => format!("{name} {}", range(&peer)),
            None => String::new(),
        };
        let ratio = if ratio.is_empty() { String::new() } else { format!("{} ×", range(&ratio)) };
        let _ = writeln!(
            text,
            "| {} | {} {} | {beside} | {ratio} | {} of {} |",
            row.what,
            range(&ours),
            row.unit,
            ours.len(),
            runs.len()
        );
    }
    text
}

/// Formats the lowest and the highest.
fn range(figures: &[f64]) -> String {
    let least = number(figures.iter().copied().fold(f64::INFINITY, f64::min));
    let most = number(figures.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    if least == most { least } else { format!("{least} to {most}") }
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => {
            let unit = 10_f64.powi(v.log10().floor() as i32 - 2);
            let digits = format!("{:.0}", (value / unit).round() * unit);
            let groups: Vec<&str> =
                digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or_default()).collect();
            groups.join(",")
        }
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, ours: f64) -> Run {
        let text = format!(
            r#"{{ "kernel": "6.0", "rounds": 1, "rows": [
                {{ "what": "GET: rate", "unit": "/s", "ours": {ours}, "peer_name": "kernel", "peer": 1000.0 }},
                {{ "what": "GET: rate, one core", "unit": "/s", "ours": 1.0, "peer_name": "kernel", "peer": 2.0 }},
                {{ "what": "alone", "unit": "B", "ours": 7.0, "peer_name": null, "peer": null }} ] }}"#
        );
        Run { name: name.into(), parts: [("web".to_owned(), serde_json::from_str(&text).unwrap())].into() }
    }

    #[test]
    fn page_has_range_over_runs() {
        let runs = [run("monday", 1_234_567.0), run("tuesday", 2000.0)];
        let page = "before\n<!-- figures: web -->\nold\n<!-- end of figures -->\nafter <!-- figures: runs -->\n<!-- end of figures -->";
        let filled = fill(page, &runs).unwrap();
        assert!(
            filled.contains("| GET: rate | 2,000 to 1,230,000 /s | kernel 1,000 | 2.00 to 1,230 × | 2 of 2 |"),
            "{filled}"
        );
        assert!(filled.contains("| alone | 7.00 B |  |  | 2 of 2 |"), "{filled}");
        assert!(filled.contains("- monday, Linux 6.0, `--quick`: web\n"), "{filled}");
        assert!(filled.contains("![web](plots/web-s.svg)"), "{filled}");
        assert!(!filled.contains("old") && filled.starts_with("before\n<!--") && filled.contains("after"), "{filled}");
        assert_eq!(fill(&filled, &runs).unwrap(), filled);
        assert!(fill("<!-- figures: no-such-part -->\n<!-- end of figures -->", &runs).is_err());
        assert!(fill("<!-- figures: web -->", &runs).is_err());
    }

    #[test]
    fn chart_is_of_latest_run() {
        let charts = charts(&[run("monday", 5.0), run("tuesday", 6.0)]).unwrap();
        let svg = &charts["web-s.svg"];
        assert!(svg.contains("tuesday") && svg.contains("prefers-color-scheme: dark"));
    }
}
