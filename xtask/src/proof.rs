//! `make proof`: the long tests that `make test` leaves out, part by part. The results are kept in
//! target/proof, so that a run continues where the last run of this commit stopped.

mod api;
mod commands;
mod lifetimes;
mod nostd;
mod package;
mod parts;
mod processors;
mod readme;
mod table;

pub(crate) use parts::PROOF;

use crate::part::{Outcome, Part};
use crate::parts::{TEST, chosen, print_outcome};
use crate::run::{Run, root, target};
use crate::tools::{date, output_of};
use std::fs;
use std::path::Path;
use std::process::Command;
use table::{PAGE, Row, Table};

/// Lists the parts, one per line.
pub(crate) fn list() {
    println!("make test:");
    TEST.iter().for_each(|part| println!("  {:<14} {}", part.name, part.about));
    println!("make proof:");
    PROOF.iter().for_each(|part| println!("  {:<14} {}", part.name, part.about));
}

/// Options of `cargo xtask proof`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also runs parts that have passed on this commit
    #[arg(long)]
    again: bool,
    /// Runs nothing, and writes the table of results into docs/PROOF-RUN.md
    #[arg(long)]
    keep: bool,
    /// The parts to run; by default all. `cargo xtask parts` lists them
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// Runs the chosen parts. `Ok(true)` if nothing failed.
pub(crate) fn proof(options: &Options) -> Result<bool, String> {
    let parts = chosen(PROOF, &options.parts)?;
    let folder = target().join("proof");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut table = Table::read(&folder.join("state.tsv"));
    if options.keep {
        write(&root().join(PAGE), &table.markdown(PROOF))?;
        println!("{PAGE}");
        return Ok(true);
    }
    let commit = commit();
    let mut good = true;
    for part in &parts {
        let held = table.row(part.name).filter(|row| row.holds_for(&commit, commands::is_set) && !options.again);
        if let Some(row) = held {
            println!("{:<14} {} on this commit, {}", part.name, row.result, row.date);
            continue;
        }
        let row = run(part, &commit, &folder)?;
        good &= !row.has_failed();
        table.put(row);
        write(&folder.join("state.tsv"), &table.text())?;
        write(&folder.join("PROOF-RUN.md"), &table.markdown(PROOF))?;
    }
    println!("\n{}", table.markdown(parts));
    println!("The whole table: {}; --keep writes it into {PAGE}.", folder.join("PROOF-RUN.md").display());
    Ok(good)
}

fn run(part: &Part, commit: &str, logs: &Path) -> Result<Row, String> {
    let mut run = Run::begin(part.name, logs)?;
    let outcome = (part.run)(&mut run);
    print_outcome(&run, &outcome);
    let log = fs::read_to_string(run.log()).unwrap_or_default();
    Ok(Row {
        part: part.name.into(),
        commit: commit.into(),
        date: date("%Y-%m-%d"),
        seconds: run.seconds(),
        result: result(&outcome, &log),
    })
}

/// The table's last cell: "passed: 12", "failed: 1 of 12: NAME", "skipped: REASON", each with what
/// the environment chose.
fn result(outcome: &Outcome, log: &str) -> String {
    let Outcome { passed, skipped, failed } = outcome;
    let lines = |start: &'static str| log.lines().filter_map(move |line| line.strip_prefix(start));
    let reasons: Vec<&str> = lines("skipped: ").collect();
    let mut text = match (failed.first(), passed) {
        (Some(name), _) => format!("failed: {} of {}: {name}", failed.len(), failed.len() + passed),
        (None, 0) => format!("skipped: {}", reasons.last().unwrap_or(&"no reason told")),
        (None, _) if *skipped > 0 => format!("passed: {passed}, {skipped} skipped"),
        (None, _) => format!("passed: {passed}"),
    };
    lines(commands::CHOSEN).for_each(|choice| text += &format!(", {choice}"));
    text
}

/// Returns the commit, with `+` if the tree's sources differ from it. Documents do not count,
/// because parts write some.
fn commit() -> String {
    let head = output_of(Command::new("git").args(["rev-parse", "--short=10", "HEAD"]));
    let Some(head) = head else { return "no commit+".into() };
    let clean = Command::new("git").args(["diff", "--quiet", "HEAD", "--", ".", ":!docs"]).current_dir(root()).status();
    let mark = if clean.is_ok_and(|status| status.success()) { "" } else { "+" };
    format!("{}{mark}", head.trim())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_the_result_of_a_part() {
        let outcome = |passed, skipped, failed: &[&str]| Outcome {
            passed,
            skipped,
            failed: failed.iter().map(|&name| name.into()).collect(),
        };
        assert_eq!(result(&outcome(12, 0, &[]), ""), "passed: 12");
        assert_eq!(result(&outcome(12, 2, &[]), "skipped: x\n"), "passed: 12, 2 skipped");
        assert_eq!(result(&outcome(12, 0, &["a::b"]), ""), "failed: 1 of 13: a::b");
        assert_eq!(result(&outcome(12, 0, &[]), "x\nchosen: SECONDS=60\n"), "passed: 12, SECONDS=60");
        assert_eq!(result(&outcome(0, 1, &[]), "a\nskipped: no QEMU\n"), "skipped: no QEMU");
    }

    #[test]
    fn has_a_name_once() {
        for (number, part) in PROOF.iter().enumerate() {
            assert!(PROOF[..number].iter().all(|earlier| earlier.name != part.name), "{}", part.name);
        }
    }
}
