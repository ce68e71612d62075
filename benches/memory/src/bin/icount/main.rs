//! Instructions per piece of work, counted by callgrind: equal on an idle and on a busy machine.
//!
//! ```text
//! icount                   counts every scenario and prints them with the recorded counts
//! icount NAME…             counts these scenarios
//! icount --check           fails if one has changed by more than 3 % in either direction
//! icount --record          writes benches/icount.md
//! icount --run NAME N      does the work, for valgrind
//! ```
//!
//! Only functions named `counted_turn` count: an engine's turn with the application's calls,
//! without the generator. Each scenario runs for n and for 2 n pieces of work. The difference is divided by n, so that set-up and
//! warm-up cancel. See `cargo xtask icount` for the build that the record holds for.

mod scenario;
mod table;

use anyhow::{Context, Result, bail, ensure};
use scenario::{ALL, Scenario};
use std::process::{Command, ExitCode};
use table::{Line, Record};

/// The largest relative difference of a figure from its record.
const TOLERANCE: f64 = 0.03;

/// Usage message.
const USAGE: &str = "usage: icount [--check | --record | SCENARIO…]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "-h" || a == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    run(&args).unwrap_or_else(|error| {
        eprintln!("icount: {error:#}");
        ExitCode::from(2)
    })
}

fn run(args: &[String]) -> Result<ExitCode> {
    if let [run, name, n] = args
        && run == "--run"
    {
        let scenario = find(name)?;
        let n = n.parse().context("how many pieces?")?;
        println!("{}", (scenario.run)(n)?);
        return Ok(ExitCode::SUCCESS);
    }
    let (flags, names): (Vec<_>, Vec<_>) = args.iter().partition(|a| a.starts_with("--"));
    let (mut check, mut record) = (false, false);
    for flag in flags {
        match flag.as_str() {
            "--check" => check = true,
            "--record" => record = true,
            other => bail!("unknown option {other}; {USAGE}"),
        }
    }
    ensure!(!record || names.is_empty(), "a record has all scenarios");
    let scenarios = match names.is_empty() {
        true => ALL.iter().collect(),
        false => names.into_iter().map(|n| find(n)).collect::<Result<Vec<_>>>()?,
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
    let names = || ALL.iter().map(|s| s.name).collect::<Vec<_>>().join(" ");
    ALL.iter().find(|s| s.name == name).with_context(|| format!("no scenario {name}; there are: {}", names()))
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
