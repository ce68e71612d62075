//! The public items of crates, a sorted line each, from what rustdoc has written of them as JSON: the records that `lab/api` keeps in
//! docs/api and holds crates against.

use anyhow::{Context, Result};
use clap::Parser;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    /// The folder of the records, `<crate>.txt`.
    #[arg(long)]
    records: PathBuf,
    /// Compare only: what is new and what is gone is printed, and is a failure.
    #[arg(long)]
    check: bool,
    /// What rustdoc wrote: `<crate>.json`.
    #[arg(required = true)]
    json: Vec<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some((writes, reads)) = other_format(&args.json[0])? {
        println!(
            "skipped: this rustdoc writes format {writes}, the crate public-api in tests/Cargo.toml reads {reads}"
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = String::new();
    let mut known = BTreeSet::new();
    for json in &args.json {
        let name = json.file_stem().and_then(|name| name.to_str()).context("a file's name")?.replace('_', "-");
        let record = args.records.join(&name).with_extension("txt");
        let items = items(json)?;
        if args.check {
            let was = std::fs::read_to_string(&record).unwrap_or_default();
            compare(&name, &was, &items, &mut report);
        } else {
            std::fs::write(&record, &items).with_context(|| record.display().to_string())?;
            println!("{name}: {} items", items.lines().count());
        }
        known.insert(record);
    }
    // A record whose crate is gone.
    for entry in std::fs::read_dir(&args.records)? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "txt") && !known.contains(&path) {
            writeln!(report, "{} is of no crate that is published", path.display())?;
        }
    }
    if report.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    print!("{report}");
    println!("If that is wanted: lab/api writes the records anew.");
    Ok(ExitCode::FAILURE)
}

/// Both versions of the format, when they are not one.
fn other_format(json: &Path) -> Result<Option<(u64, u64)>> {
    // Of rustdoc-types 0.57, which public-api 0.52.1 has.
    const READS: u64 = 57;
    #[derive(serde::Deserialize)]
    struct Head {
        format_version: u64,
    }
    let text = std::fs::read(json).with_context(|| json.display().to_string())?;
    let head: Head = serde_json::from_slice(&text)?;
    Ok((head.format_version != READS).then_some((head.format_version, READS)))
}

/// A line each. Implementations that a derive wrote, auto traits and blanket implementations are left out: they follow from the rest.
fn items(json: &Path) -> Result<String> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .sorted(true)
        .omit_auto_derived_impls(true)
        .omit_auto_trait_impls(true)
        .omit_blanket_impls(true)
        .build()
        .with_context(|| json.display().to_string())?;
    let lines: BTreeSet<String> = api.items().map(|item| item.to_string()).collect();
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

fn compare(name: &str, was: &str, is: &str, report: &mut String) {
    let (was, is): (BTreeSet<&str>, BTreeSet<&str>) = (was.lines().collect(), is.lines().collect());
    if was == is {
        return;
    }
    let _ = writeln!(report, "{name}: its public items are not those of docs/api/{name}.txt");
    for line in was.difference(&is) {
        let _ = writeln!(report, "  - {line}");
    }
    for line in is.difference(&was) {
        let _ = writeln!(report, "  + {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_and_what_is_gone_is_told() {
        let mut report = String::new();
        compare("fs-x", "a\nb\n", "a\nb\n", &mut report);
        assert_eq!(report, "");
        compare("fs-x", "a\nb\n", "b\nc\n", &mut report);
        assert_eq!(report, "fs-x: its public items are not those of docs/api/fs-x.txt\n  - a\n  + c\n");
    }
}
