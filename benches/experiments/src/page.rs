//! docs/EXPERIMENTS.md and its plots, from the kept runs
//! (`benches/experiments/results/RUN/PART.json`): the latest run of each part, and the ranges over
//! all runs of [`crate::bulk`].

use crate::outcome::{Figure, Goal, Item, Outcome, Table, number, read};
use crate::{PARTS, bulk, chart};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Folder of the kept runs.
const RESULTS: &str = "benches/experiments/results";
/// The page.
const PAGE: &str = "docs/EXPERIMENTS.md";
/// Folder of the plots.
const PLOTS: &str = "docs/plots/experiments";

/// Runs of each part, the oldest first.
type Kept = BTreeMap<String, Vec<(String, Outcome)>>;

/// Writes the page. With `check`, only compares it with the output for the kept runs.
pub(crate) fn write(root: &Path, check: bool) -> Result<()> {
    let kept = kept(&root.join(RESULTS))?;
    let mut files = vec![(root.join(PAGE), page(&kept)?)];
    for (_, outcome) in kept.keys().filter_map(|part| latest(&kept, part)) {
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

/// Returns the latest run of the part.
fn latest<'a>(kept: &'a Kept, part: &str) -> Option<&'a (String, Outcome)> {
    kept.get(part)?.last()
}

fn kept(folder: &Path) -> Result<Kept> {
    let mut kept = Kept::new();
    for run in names(folder)? {
        for file in names(&folder.join(&run))? {
            let path: PathBuf = folder.join(&run).join(&file);
            let part = file.strip_suffix(".json").with_context(|| format!("{}: no part's results", path.display()))?;
            kept.entry(part.to_owned()).or_default().push((run.clone(), read(&path)?));
        }
    }
    Ok(kept)
}

/// Returns the sorted names in a folder; empty if the folder does not exist.
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

fn page(kept: &Kept) -> Result<String> {
    let mut text = String::from(
        "# The papers' experiments\n\n\
         fastsock comes from four papers. This page has their experiments on ours, each with the\n\
         paper's number, the kernel's and ours of one run, the latest; Bulk has the ranges over all runs as well. It is written by `make experiments` (`QUICK=1`: short, at small sizes) from the\n\
         runs that are kept in `benches/experiments/results`; nobody types a figure. `cargo xtask experiments PART` runs a part, with `--keep` into this page.\n\n\
         The papers' machines had 4 to 24 cores and real network cards; this one has what stands beside each part, both ends on it. What needs more\n\
         cores is shown by counts (locks, messages, instructions) and by simulation, and says so.\n\n\
         Figures under `fastsock run` are of the preload library that decision 0033 replaced. They are measured again with\n\
         the next kept run of each part.\n",
    );
    let goals: Vec<[String; 4]> = PARTS
        .iter()
        .filter_map(|part| Some((part.name, &latest(kept, part.name)?.1)))
        .flat_map(|(name, outcome)| {
            outcome.items.iter().filter_map(move |item| match item {
                Item::Goal(goal) => Some(self::goal(kept, name, goal)),
                _ => None,
            })
        })
        .collect::<Result<_>>()?;
    if !goals.is_empty() {
        let met = goals.iter().filter(|[.., met]| met.starts_with(MET)).count();
        let _ = writeln!(
            text,
            "\n## Goals\n\n{met} of {} are met.\n\n| part | goal | measured | |\n|---|---|---|---|",
            goals.len()
        );
        for cells in goals {
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    for part in PARTS {
        let _ = writeln!(text, "\n## {}\n\n{}", part.title, part.about);
        let Some((run, outcome)) = latest(kept, part.name) else {
            let _ = writeln!(text, "\nNot measured yet: `cargo xtask experiments --keep {}`.", part.name);
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
        if part.name == bulk::NAME
            && let Some(table) = bulk::ranges(&kept[part.name])?
        {
            self::table(&mut text, &table);
        }
        for missing in &outcome.missing {
            let _ = writeln!(text, "\nNot measured: {missing}");
        }
    }
    Ok(text)
}

/// Prefix of the last cell of a goal that is met.
const MET: &str = "met";

/// Formats a goal's row.
fn goal(kept: &Kept, part: &str, goal: &Goal) -> Result<[String; 4]> {
    let verdict = |met: bool| if met { MET } else { "**not met**" };
    let (measured, verdict) = if part == bulk::NAME {
        let (measured, held) = bulk::in_all(goal, &kept[part])?;
        let of_runs = match held.met {
            met if met == held.runs => "in every run".to_owned(),
            0 => "in no run".to_owned(),
            met => format!("met in {met} of {} runs", held.runs),
        };
        (measured, format!("{} ({of_runs})", verdict(held.met == held.runs)))
    } else {
        (goal.measured.clone(), verdict(goal.met).to_owned())
    };
    Ok([part.to_owned(), goal.goal.clone(), measured, verdict])
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
    fn page_has_figures_with_runs_and_unmet_goals() {
        let runs = ["2025-12-31T0000", "2026-01-01T0000"].map(|run| (run.to_owned(), outcome()));
        let text = page(&[(PARTS[0].name.to_owned(), runs.to_vec())].into()).unwrap();
        for part in [
            "Run 2026-01-01T0000, `--quick`: Linux 6.0, 2 CPUs, 3 s.",
            "| 8 | 1,230 |\n| 64 | – |",
            "![A figure](plots/experiments/f.svg)",
            "0 of 1 are met.",
            "| ≥ 2 × | 1.5 × | **not met** |",
            "Not measured: gVisor: no go",
            "It means this.",
            "Not measured yet: `cargo xtask experiments --keep ",
        ] {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
    }

    #[test]
    fn bulk_goal_is_met_if_every_kept_run_met_it() {
        let run = |name: &str, measured: &str, met: bool| {
            let goal = Goal { goal: "≥ 0.9 ×".into(), measured: measured.into(), met };
            (name.to_owned(), Outcome { items: vec![Item::Goal(goal)], ..Outcome::default() })
        };
        let runs = [run("2026-01-01T0000", "0.800 ×", false), run("2026-01-02T0000", "0.910 to 1.20 ×", true)];
        for (kept, wanted, met) in [
            (&runs[..], "worst round of each run 0.800 to 0.910 × | **not met** (met in 1 of 2 runs) |", 0),
            (&runs[..1], "worst round of each run 0.800 × | **not met** (in no run) |", 0),
            (&runs[1..], "worst round of each run 0.910 × | met (in every run) |", 1),
        ] {
            let text = page(&[(bulk::NAME.to_owned(), kept.to_vec())].into()).unwrap();
            assert!(text.contains(&format!("| bulk | ≥ 0.9 × | {wanted}\n")), "{text}");
            assert!(text.contains(&format!("{met} of 1 are met.")), "{text}");
        }
    }

    #[test]
    fn committed_page_equals_generated_page() {
        write(fs_tests::apps::workspace(), true).unwrap();
    }
}
