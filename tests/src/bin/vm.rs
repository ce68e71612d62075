//! `cargo xtask vm`: see `fs_tests::vm`.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use fs_tests::vm::cards::{CARDS, Card};
use fs_tests::vm::kernels::{KERNELS, Kernel};
use fs_tests::vm::table::{Cell, Verdict, cache, write};
use fs_tests::vm::{Extent, echo, guest, machine};
use std::net::SocketAddr;
use std::process::ExitCode;

/// Other kernels and cards, in QEMU.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask vm")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Kernels, cards, modes and extents.
    List,
    /// One cell; with what it left in target/vm/runs.
    Run {
        /// A kernel of the list.
        kernel: String,
        /// A card of the list.
        card: String,
        /// How much of the steps.
        #[arg(value_enum, default_value = "quick")]
        job: Extent,
        /// What `fastsock up --xdp` gets.
        #[arg(long, default_value = "auto")]
        mode: String,
        /// Run by a shell in the guest in place of the steps; what it prints is shown.
        #[arg(long)]
        script: Option<String>,
        /// Writes its row into docs/PLATFORMS.md.
        #[arg(long)]
        write: bool,
    },
    /// All cells, their table written into docs/PLATFORMS.md.
    Matrix {
        /// Only what `make test` has: every kernel loads and attaches, one zero-copy and one RSS
        /// cell carry traffic. Writes nothing.
        #[arg(long)]
        quick: bool,
        /// Only cells whose names (kernel/card/mode) contain this.
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Fetches QEMU and the kernels.
    Fetch,
    /// The guest's half of a run.
    #[command(hide = true)]
    Guest,
    /// An echo server.
    #[command(hide = true)]
    Serve { port: u16 },
    /// A client of it.
    #[command(hide = true)]
    Echo { to: SocketAddr, bytes: u64 },
    /// Many of them.
    #[command(hide = true)]
    Connections { to: SocketAddr, count: u32 },
}

fn main() -> ExitCode {
    act().unwrap_or_else(|error| {
        eprintln!("cargo xtask vm: {error:#}");
        ExitCode::FAILURE
    })
}

fn act() -> Result<ExitCode> {
    match Args::parse().command {
        Command::List => list(),
        Command::Run { kernel, card, job, mode, script, write } => {
            return cells(&[Cell { kernel, card, mode, extent: job }], script, write);
        }
        Command::Matrix { quick: true, .. } => {
            // If Debian's packages are not reachable, there is nothing to run. Other errors are
            // failures.
            if let Err(error) = fetch(|kernel| quick().iter().any(|cell| cell.kernel == kernel.name)) {
                println!("skipped: QEMU and its kernels cannot be had: {error:#}");
                return Ok(ExitCode::SUCCESS);
            }
            return cells(&quick(), None, false);
        }
        Command::Matrix { only, .. } => {
            let mut all = matrix();
            all.retain(|cell| format!("{}/{}/{}", cell.kernel, cell.card, cell.mode).contains(&only));
            return cells(&all, None, true);
        }
        Command::Fetch => fetch(|_| true)?,
        Command::Guest => guest::main()?,
        Command::Serve { port } => echo::serve(port)?,
        Command::Echo { to, bytes } => println!("{}", echo::echo(to, bytes)?),
        Command::Connections { to, count } => println!("{}", echo::connections(to, count)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// Downloads the packages for the guests of these kernels.
fn fetch(wanted: impl Fn(&Kernel) -> bool) -> Result<()> {
    machine::Tools::find(&cache())?;
    for kernel in KERNELS.iter().filter(|kernel| wanted(kernel)) {
        println!("{}: {}", kernel.name, kernel.unpacked(&cache())?.release);
    }
    Ok(())
}

fn list() {
    for kernel in KERNELS {
        let here = kernel.present(&cache()).map_or("not fetched".into(), |kernel| kernel.release);
        println!("kernel {:<12} {:<18} {here}", kernel.name, kernel.suite);
    }
    for card in CARDS {
        println!("card   {:<12} {}{}", card.name, card.device, card.properties);
    }
    println!("mode   auto copy generic");
    println!("job    attach quick full long");
}

fn cell(kernel: &str, card: &str, mode: &str, extent: Extent) -> Cell {
    Cell { kernel: kernel.into(), card: card.into(), mode: mode.into(), extent }
}

/// Kernels whose verifiers and sockets differ. Of QEMU's cards, igb with all its queues uses zero
/// copy.
fn quick() -> Vec<Cell> {
    let mut cells: Vec<Cell> =
        ["6.1", "6.12"].into_iter().map(|kernel| cell(kernel, "virtio1", "auto", Extent::Attach)).collect();
    cells.push(cell("6.17", "virtio4", "auto", Extent::Quick));
    cells.push(cell("newest", "igb8", "auto", Extent::Quick));
    cells
}

/// The kernel that carries most.
const LONG: &str = "6.17";

fn matrix() -> Vec<Cell> {
    let mut cells = Vec::new();
    for kernel in KERNELS {
        for card in CARDS {
            cells.push(cell(kernel.name, card.name, "auto", Extent::Full));
        }
        // One kernel transfers 100 MiB in each mode: zero copy (`igb8`), copy, and generic.
        let extent = if kernel.name == LONG { Extent::Long } else { Extent::Full };
        cells.push(cell(kernel.name, "virtio4", "copy", extent));
        cells.push(cell(kernel.name, "virtio4", "generic", extent));
    }
    for cell in cells.iter_mut().filter(|cell| cell.kernel == LONG && cell.card == "igb8") {
        cell.extent = Extent::Long;
    }
    cells
}

/// Runs cells, one guest at a time.
fn cells(cells: &[Cell], script: Option<String>, to_write: bool) -> Result<ExitCode> {
    let mut wrong = 0;
    for cell in cells {
        let kernel = Kernel::find(&cell.kernel)
            .with_context(|| format!("no kernel {}: see cargo xtask vm list", cell.kernel))?;
        let card = Card::find(&cell.card).with_context(|| format!("no card {}: see cargo xtask vm list", cell.card))?;
        let name = format!("{}/{}/{}", cell.kernel, cell.card, cell.mode);
        let report = match machine::boot(&cache(), kernel, card, &cell.mode, cell.extent, script.clone()) {
            Ok(report) => report,
            Err(error) => {
                println!("{name}: {error:#}");
                wrong += 1;
                continue;
            }
        };
        if script.is_some() {
            for step in report.steps.iter().filter(|step| !step.ok) {
                println!("{name}: {}: {}", step.name, step.says);
            }
            // The guest stores the script's output. Without it the script has not run.
            let printed = std::fs::read_to_string(report.folder.join("results/script"));
            wrong += usize::from(printed.is_err() || !report.ended);
            println!("{}", printed.unwrap_or_default());
            continue;
        }
        let verdict = Verdict::of(&cell.mode, &report);
        println!("{name} ({}, {} s): {verdict:?}", report.release, report.seconds);
        for sleeper in &report.sleepers {
            println!("  sleeps: {sleeper}");
        }
        if cells.len() == 1 {
            for step in &report.steps {
                println!("  {:<4} {:<18} {}", if step.ok { "ok" } else { "BAD" }, step.name, step.says);
            }
            println!("  {}", report.folder.display());
        }
        if to_write {
            write(cell, &report, &verdict)?;
        }
        wrong += usize::from(matches!(verdict, Verdict::Wrong(_)));
    }
    println!("{} passed, {wrong} failed", cells.len() - wrong);
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
