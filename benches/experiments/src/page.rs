//! docs/EXPERIMENTS.md and its plots, from the kept runs (`benches/experiments/results/RUN/PART.json`): of each part the latest.

use crate::outcome::{Figure, Goal, Item, Outcome, Table, number, read};
use crate::{PARTS, chart};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Where kept runs are.
const RESULTS: &str = "benches/experiments/results";
/// The page.
const PAGE: &str = "docs/EXPERIMENTS.md";
/// Where its plots are.
const PLOTS: &str = "docs/plots/experiments";

/// Of each part the latest run that has it.
type Latest = BTreeMap<String, (String, Outcome)>;

/// Writes the page; with `check` only says whether it is what the kept runs make.
pub(crate) fn write(root: &Path, check: bool) -> Result<()> {
    let latest = latest(&root.join(RESULTS))?;
    let mut files = vec![(root.join(PAGE), page(&latest))];
    for (_, outcome) in latest.values() {
        for figure in figures(outcome) {
            files.push((root.join(PLOTS).join(format!("{}.svg", figure.name)), chart::file(figure)?));
        }
    }
    if !check {
        std::fs::create_dir_all(root.join(PLOTS))?;
    }
    for (path, text) in files {
        if check {
            let there = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            ensure!(
                there == text,
                "{} has other figures than {RESULTS}: run `cargo run -p fs-experiments -- page`",
                path.display()
            );
        } else {
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

fn figures(outcome: &Outcome) -> impl Iterator<Item = &Figure> {
    outcome.items.iter().filter_map(|item| match item {
        Item::Figure(figure) => Some(figure),
        _ => None,
    })
}

fn latest(folder: &Path) -> Result<Latest> {
    let mut latest = Latest::new();
    for run in names(folder)? {
        for file in names(&folder.join(&run))? {
            let path: PathBuf = folder.join(&run).join(&file);
            let part = file.strip_suffix(".json").with_context(|| format!("{}: no part's results", path.display()))?;
            latest.insert(part.to_owned(), (run.clone(), read(&path)?));
        }
    }
    Ok(latest)
}

/// What is in a folder, in order; nothing where there is none.
fn names(folder: &Path) -> Result<Vec<String>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names: Vec<String> =
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn page(latest: &Latest) -> String {
    let mut text = String::from(
        "# The papers' experiments\n\n\
         fastsock comes from four papers. This page has their experiments on ours, each with the\n\
         paper's number, the kernel's and ours of one run. It is written by `make experiments` (`QUICK=1`: short, at small sizes) from the\n\
         runs that are kept in `benches/experiments/results`; nobody types a figure. `lab/experiments PART` runs a part, with `--keep` into this page.\n\n\
         The papers' machines had 4 to 24 cores and real network cards; this one has what stands beside each part, both ends on it. What needs more\n\
         cores is shown by counts (locks, messages, instructions) and by simulation, and says so.\n",
    );
    let goals: Vec<(&str, &Goal)> = PARTS
        .iter()
        .filter_map(|part| Some((part.name, &latest.get(part.name)?.1)))
        .flat_map(|(name, outcome)| {
            outcome.items.iter().filter_map(move |item| match item {
                Item::Goal(goal) => Some((name, goal)),
                _ => None,
            })
        })
        .collect();
    if !goals.is_empty() {
        let met = goals.iter().filter(|(_, goal)| goal.met).count();
        let _ = writeln!(
            text,
            "\n## Goals\n\n{met} of {} are met.\n\n| part | goal | measured | |\n|---|---|---|---|",
            goals.len()
        );
        for (part, goal) in goals {
            let met = if goal.met { "met" } else { "**not met**" };
            let _ = writeln!(text, "| {part} | {} | {} | {met} |", goal.goal, goal.measured);
        }
    }
    for part in PARTS {
        let _ = writeln!(text, "\n## {}\n\n{}", part.title, part.about);
        let Some((run, outcome)) = latest.get(part.name) else {
            let _ = writeln!(text, "\nNot measured yet: `lab/experiments --keep {}`.", part.name);
            continue;
        };
        let quick = if outcome.quick { ", `--quick`" } else { "" };
        let _ = writeln!(
            text,
            "\nRun {run}{quick}: Linux {}, {} CPUs, {:.0} s.",
            outcome.kernel, outcome.processors, outcome.took_seconds
        );
        for item in &outcome.items {
            match item {
                Item::Figure(figure) => self::figure(&mut text, figure),
                Item::Table(table) => self::table(&mut text, table),
                Item::Goal(_) => {}
            }
        }
        for missing in &outcome.missing {
            let _ = writeln!(text, "\nNot measured: {missing}");
        }
    }
    text
}

fn figure(text: &mut String, figure: &Figure) {
    let Figure { name, title, paper, means, over, categories, unit, series, log: _ } = figure;
    let _ = writeln!(text, "\n### {title}\n\n{paper}\n\n![{title}](plots/experiments/{name}.svg)\n");
    let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
    let _ = writeln!(text, "| {over} ({unit}) | {} |\n|---|{}", names.join(" | "), "--:|".repeat(names.len()));
    for (at, category) in categories.iter().enumerate() {
        let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
        let cells: Vec<String> = series.iter().map(|series| cell(series.values.get(at).copied().flatten())).collect();
        let _ = writeln!(text, "| {category} | {} |", cells.join(" | "));
    }
    let _ = writeln!(text, "\n{means}");
}

fn table(text: &mut String, table: &Table) {
    let Table { title, paper, means, head, rows } = table;
    let _ = writeln!(text, "\n### {title}\n\n{paper}\n");
    let _ = writeln!(text, "| {} |\n|---|{}", head.join(" | "), "--:|".repeat(head.len().saturating_sub(1)));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    let _ = writeln!(text, "\n{means}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Series;

    fn outcome() -> Outcome {
        let series = Series { name: "ours".into(), values: vec![Some(1234.5), None] };
        Outcome {
            kernel: "6.0".into(),
            processors: 2,
            quick: true,
            took_seconds: 3.0,
            items: vec![
                Item::Figure(Figure {
                    name: "f".into(),
                    title: "A figure".into(),
                    paper: "Figure 1 has 7.".into(),
                    means: "It means this.".into(),
                    over: "bytes".into(),
                    categories: vec!["8".into(), "64".into()],
                    unit: "/s".into(),
                    log: false,
                    series: vec![series],
                }),
                Item::Goal(Goal { goal: "≥ 2 ×".into(), measured: "1.5 ×".into(), met: false }),
            ],
            missing: vec!["gVisor: no go".into()],
        }
    }

    #[test]
    fn the_page_has_each_figure_with_its_run_and_says_which_goals_are_not_met() {
        let text = page(&[(PARTS[0].name.to_owned(), ("2026-01-01T0000".to_owned(), outcome()))].into());
        for part in [
            "Run 2026-01-01T0000, `--quick`: Linux 6.0, 2 CPUs, 3 s.",
            "| 8 | 1,230 |\n| 64 | – |",
            "![A figure](plots/experiments/f.svg)",
            "0 of 1 are met.",
            "| ≥ 2 × | 1.5 × | **not met** |",
            "Not measured: gVisor: no go",
            "It means this.",
            "Not measured yet: `lab/experiments --keep ",
        ] {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
    }

    #[test]
    fn the_page_in_the_tree_is_what_the_kept_runs_make() {
        write(fs_tests::apps::workspace(), true).unwrap();
    }
}
