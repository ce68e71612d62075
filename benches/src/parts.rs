//! A bench of several parts: `BENCH [--quick] [--dry-run] [PART…]`.

use crate::report::{self, Row};
pub use crate::report::{Plan, median};
use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, Command, FromArgMatches};
use std::process::ExitCode;

/// A part's name, and the function that measures its rows.
pub type Part = (&'static str, fn(&Plan) -> Result<Vec<Row>>);

/// The arguments of such a bench.
#[derive(Debug, Args)]
struct Arguments {
    /// Measures with fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Parses the arguments only.
    #[arg(long)]
    dry_run: bool,
    /// The parts to measure; by default all.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// Parses the arguments of the bench `name`, measures the parts that they choose, prints the rows
/// and writes them to `target/bench/PART.json`. `--quick` selects the second plan. The status is 0
/// if every part could be measured: a missed goal is a figure, not a failure.
pub fn main(name: &'static str, about: &'static str, parts: &[Part], plans: [Plan; 2]) -> ExitCode {
    let names = PossibleValuesParser::new(parts.iter().map(|&(name, _)| name));
    let command = Arguments::augment_args(Command::new(name)).about(about);
    let matches = command.mut_arg("parts", |argument| argument.value_parser(names)).get_matches();
    let measured = Arguments::from_arg_matches(&matches).map_err(anyhow::Error::from);
    crate::exit_code(measured.and_then(|arguments| measure(parts, plans, &arguments)))
}

fn measure(parts: &[Part], [full, quick]: [Plan; 2], arguments: &Arguments) -> Result<bool> {
    let plan = if arguments.quick { quick } else { full };
    let wanted = &arguments.parts;
    if arguments.dry_run {
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
