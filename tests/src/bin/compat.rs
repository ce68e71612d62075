//! `make compat`: runs the programs of `fs_tests::compat` on kernel sockets and on ours, and writes
//! their table in docs/COMPATIBILITY.md.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use fs_tests::Lab;
use fs_tests::compat::{Program, judge, programs, table};
use std::process::ExitCode;

#[derive(Parser, Debug)]
struct Args {
    /// Only programs whose name contains one of these.
    programs: Vec<String>,
    /// Requests for each program.
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// Does not write the table.
    #[arg(long)]
    dry: bool,
    /// Kills the daemon again and again instead of the programs' own faults; writes no table.
    #[arg(long)]
    kill_daemon: bool,
    /// Lists the programs.
    #[arg(long)]
    list: bool,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let all = programs::all();
    if args.list {
        all.iter().for_each(|program| println!("{}", program.name));
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = |name: &str| args.programs.is_empty() || args.programs.iter().any(|part| name.contains(part));
    for part in &args.programs {
        ensure!(all.iter().any(|program| program.name.contains(part)), "no program with {part} in its name: --list");
    }
    let lab = Lab::up(&["--queues", "1"])?.context("compat needs root, for network namespaces")?;
    if args.kill_daemon {
        return kill_daemon(&lab, all, &wanted, args.requests);
    }
    let (mut rows, mut wrong) = (Vec::new(), 0);
    for (number, program) in all.iter().enumerate().filter(|(_, program)| wanted(program.name)) {
        match judge::compare(&lab, program, 7000 + 10 * number as u16, args.requests) {
            Ok(judge::Verdict::Skipped(why)) => println!("{}: skipped: {why}", program.name),
            Ok(judge::Verdict::Ran { row, wrong: differences }) => {
                println!("{row}");
                wrong += u64::from(!differences.is_empty());
                rows.push(row);
            }
            Err(error) => {
                println!("{}: {error:#}", program.name);
                wrong += 1;
                rows.push(table::failed(program, &format!("{error:#}")));
            }
        }
        if !args.dry {
            table::write(&all, &rows)?;
        }
    }
    println!("{} programs ran, {wrong} of them not as on the kernel", rows.len());
    if rows.is_empty() {
        println!("skipped: none of the programs is installed");
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn kill_daemon(lab: &Lab, all: Vec<Program>, wanted: &dyn Fn(&str) -> bool, requests: u64) -> Result<ExitCode> {
    let (mut kills, mut exchanges, mut wrong, mut ran) = (0, 0, 0, 0);
    for (number, program) in all.into_iter().enumerate().filter(|(_, program)| wanted(program.name)) {
        let name = program.name;
        match judge::under_kills(lab, program, 7000 + 10 * number as u16, requests) {
            Ok(None) => println!("{name}: skipped"),
            Ok(Some(seen)) => {
                ran += 1;
                println!(
                    "{name}: {} right answers, {} sockets with a ring, {} kills, {} exchanges: {}",
                    seen.right,
                    seen.promoted,
                    seen.kills,
                    seen.exchanges,
                    if seen.wrong.is_empty() { "as on the kernel".into() } else { seen.wrong.join("; ") }
                );
                (kills, exchanges) = (kills + seen.kills, exchanges + seen.exchanges);
                wrong += u64::from(!seen.wrong.is_empty());
            }
            Err(error) => {
                println!("{name}: {error:#}");
                wrong += 1;
            }
        }
    }
    println!(
        "the daemon was killed {kills} times and exchanged {exchanges} times, {wrong} programs not as on the kernel"
    );
    if ran + wrong == 0 {
        println!("skipped: none of the programs is installed");
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
