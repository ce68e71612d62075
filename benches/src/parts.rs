//! A bench of several parts: `BENCH [--quick] [--dry-run] [PART…]`.

use crate::report::{self, Row};
pub use crate::report::{Plan, median};
use anyhow::{Context, Result, bail};

/// A part's name, and the function that measures its rows.
pub type Part = (&'static str, fn(&Plan) -> Result<Vec<Row>>);

/// Measures the parts in `words`, or all parts if it is empty, prints their rows and writes them to
/// `target/bench/PART.json`. `--quick` selects the second plan. `--dry-run` only parses `words`.
/// Returns true if every part could be measured: a missed goal is a figure, not a failure.
pub fn run(usage: &str, parts: &[Part], [full, quick]: [Plan; 2], words: Vec<String>) -> Result<bool> {
    let mut plan = full;
    let mut wanted = Vec::new();
    let mut dry = false;
    for word in words {
        match word.as_str() {
            "--quick" => plan = quick,
            "--dry-run" => dry = true,
            name if parts.iter().any(|(part, _)| *part == name) => wanted.push(word),
            other => bail!("unknown part or option {other}; {usage}"),
        }
    }
    if dry {
        return Ok(true);
    }
    let folder = fs_tests::apps::target_dir().join("bench");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut all = Vec::new();
    let mut complete = true;
    for (name, part) in parts {
        if !wanted.is_empty() && !wanted.iter().any(|want| want == name) {
            continue;
        }
        println!("{name}: {} × {} s for each side", plan.rounds, plan.seconds);
        match part(&plan) {
            Ok(rows) => {
                report::save(&folder.join(format!("{name}.json")), &rows, &plan)?;
                all.extend(rows);
            }
            Err(error) => {
                complete = false;
                println!("  {name}: NOT MEASURED: {error:#}");
            }
        }
    }
    println!("\n{}", report::table(&all));
    println!("results: {}", folder.display());
    Ok(complete)
}

/// Measures the sides in turns, `plan.rounds` times each. Returns each side's figures.
pub fn in_turns<S: Copy, T>(plan: &Plan, sides: &[S], mut measure: impl FnMut(S) -> Result<T>) -> Result<Vec<Vec<T>>> {
    let mut figures: Vec<Vec<T>> = sides.iter().map(|_| Vec::new()).collect();
    for _ in 0..plan.rounds {
        for (side, figures) in sides.iter().zip(&mut figures) {
            figures.push(measure(*side)?);
        }
    }
    Ok(figures)
}
