//! Instructions per piece of work, counted by callgrind: equal on an idle and on a busy machine.
//!
//! Only functions named `counted_turn` count: an engine's turn with the application's calls,
//! without the generator. Each scenario runs for n and for 2 n pieces of work. The difference is
//! divided by n, so that set-up and warm-up cancel. See `cargo xtask icount` for the build that the
//! record holds for.

mod scenario;
mod table;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use scenario::{ALL, Scenario};
use std::process::{Command, ExitCode};
use table::{Line, Record};

/// The largest relative difference of a figure from its record.
const TOLERANCE: f64 = 0.03;

/// Counts instructions per piece of work with callgrind, and compares them with benches/icount.md.
#[derive(Debug, Parser)]
#[command(name = "icount")]
struct Arguments {
    /// Fails if a scenario has changed by more than 3 % in either direction.
    #[arg(long, conflicts_with = "record")]
    check: bool,
    /// Writes benches/icount.md, with all scenarios.
    #[arg(long, conflicts_with = "scenarios")]
    record: bool,
    /// Does the work of one scenario without counting, for valgrind.
    #[arg(long, num_args = 2, value_names = ["SCENARIO", "PIECES"], exclusive = true, hide = true)]
    run: Option<Vec<String>>,
    /// The scenarios; by default all.
    #[arg(value_name = "SCENARIO", value_parser = PossibleValuesParser::new(ALL.iter().map(|scenario| scenario.name)))]
    scenarios: Vec<String>,
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("icount: {error:#}");
        ExitCode::from(2)
    })
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some([name, pieces]) = arguments.run.as_deref() {
        println!("{}", (find(name)?.run)(pieces.parse().context("number of pieces of work")?)?);
        return Ok(ExitCode::SUCCESS);
    }
    let Arguments { check, record, scenarios: ref names, .. } = *arguments;
    let scenarios = match names.is_empty() {
        true => ALL.iter().collect(),
        false => names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?,
    };
    let recorded = Record::read()?;
    if check && recorded.toolchain != table::TOOLCHAIN {
        println!("skipped: benches/icount.md is for {}, this is {}", recorded.toolchain, table::TOOLCHAIN);
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = Vec::new();
    let mut off = Vec::new();
    println!("{:66} {:>8} {:>8} {:>7}", "instructions", "counted", "recorded", "change");
    for scenario in scenarios {
        let counted = count(scenario)?;
        let line = recorded.lines.iter().find(|l| l.name == scenario.name);
        let before = line.map(|l| l.counted);
        let change = before.map(|b| counted / b - 1.0);
        let wrong = scenario.checked && change.is_none_or(|c| c.abs() > TOLERANCE);
        if wrong {
            off.push(scenario.name);
        }
        println!(
            "{:66} {counted:>8.0} {:>8} {:>7} {}",
            scenario.what,
            before.map_or("-".into(), |b| format!("{b:.0}")),
            change.map_or(String::new(), |c| format!("{:+.1} %", c * 100.0)),
            if wrong && !record { scenario.name } else { "" },
        );
        let first = line.and_then(|l| l.first);
        lines.push(Line { name: scenario.name.into(), what: scenario.what.into(), counted, first });
    }
    if record {
        Record { toolchain: table::TOOLCHAIN.into(), lines }.write()?;
    } else if check && !off.is_empty() {
        println!("changed by more than {:.0} %: {}", TOLERANCE * 100.0, off.join(", "));
        println!("worse: mend it; meant or better: cargo xtask icount --record, and say why in the commit");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn find(name: &str) -> Result<&'static Scenario> {
    ALL.iter().find(|s| s.name == name).with_context(|| format!("no scenario {name}"))
}

/// Returns the instructions per piece of work.
fn count(scenario: &Scenario) -> Result<f64> {
    let (instructions, pieces) = callgrind(scenario, scenario.pieces)?;
    let (more_instructions, more_pieces) = callgrind(scenario, 2 * scenario.pieces)?;
    ensure!(more_pieces > pieces, "{}: no work was added", scenario.name);
    Ok((more_instructions - instructions) as f64 / (more_pieces - pieces) as f64)
}

/// Runs a scenario under callgrind. Returns the instructions and the pieces of work.
fn callgrind(scenario: &Scenario, pieces: u64) -> Result<(u64, u64)> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_turn*"])
        .arg(std::env::current_exe()?)
        .args(["--run", scenario.name, &pieces.to_string()])
        .output()
        .context("valgrind (lab/install test)")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{} under valgrind: {}\n{out}{err}", scenario.name, output.status);
    let done = out.trim().parse().with_context(|| format!("{}: pieces of work in {out:?}", scenario.name))?;
    let collected = err.lines().find_map(|l| l.split_once("Collected : ")).map(|(_, n)| n.trim());
    let collected = collected.with_context(|| format!("no count in valgrind's answer:\n{err}"))?;
    let collected: u64 = collected.parse().with_context(|| format!("valgrind's count {collected:?}"))?;
    ensure!(collected > 0, "{}: nothing was counted: is counted_turn a symbol?", scenario.name);
    Ok((collected, done))
}
