//! The experiments of the papers on which fastsock is based: `cargo xtask experiments`,
//! `docs/EXPERIMENTS.md`.
//!
//! ```text
//! fs-experiments [--quick | --smoke] [PART…]   runs them; target/experiments/PART.json
//! fs-experiments page [--check]      writes docs/EXPERIMENTS.md from the kept runs
//! fs-experiments play ADDRESS FILE         plays a trace (JSON, .har, .pcap) on the kernel's sockets; a line of JSON
//! fs-experiments flows ADDRESS N SECONDS   receives on N connections; a line of JSON
//! fs-experiments handshakes ADDRESS CERTIFICATE N SECONDS   makes TLS handshakes, N at once; a line of JSON
//! ```

mod applications;
mod bulk;
mod callgrind;
mod chart;
mod clients;
mod cpu;
mod fastsocket;
mod handshakes;
mod messages;
mod mtcp;
mod one_host;
mod organisations;
mod outcome;
mod page;
mod peers;
mod replay;
mod server;
mod sockmap;
mod ssl;
mod trace;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use fs_tests::apps::{target_dir, workspace};
use fs_tests::unmodified::Stage;
use outcome::{Item, Outcome};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// One experiment.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The measurement, and its differences from the paper.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&mut Run) -> Result<()>,
}

/// A part in progress.
pub(crate) struct Run {
    pub(crate) quick: bool,
    /// Tests only that everything works: uses the smallest sizes, and a failed measurement is an
    /// error.
    pub(crate) smoke: bool,
    pub(crate) failed: bool,
    pub(crate) items: Vec<Item>,
    pub(crate) missing: Vec<String>,
}

impl Run {
    /// Returns the first in a quick run, otherwise the second.
    pub(crate) fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns all, or only the first in a smoke run.
    pub(crate) fn few<'a, T>(&self, all: &'a [T]) -> &'a [T] {
        if self.smoke { &all[..1] } else { all }
    }

    /// In a smoke run the connections get their rings before their first byte: a busy machine's daemon
    /// may serve none in so short a time.
    pub(crate) fn stage<'a>(&self, stage: Stage<'a>) -> Stage<'a> {
        if self.smoke { stage.eager() } else { stage }
    }

    /// Returns the value of `measured`. The page gives the reason if the measurement failed.
    pub(crate) fn attempt<T>(&mut self, what: &str, measured: Result<T>) -> Option<T> {
        match measured {
            Ok(value) => Some(value),
            Err(error) => {
                let said = format!("{error:#}");
                let line = said.lines().next().unwrap_or_default();
                println!("  {what}: NOT MEASURED: {said}");
                self.missing.push(format!("{what}: {line}."));
                self.failed = true;
                None
            }
        }
    }
}

/// All parts, in the page's order.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "organisations",
        title: "Organisations of a network stack (Willmann, Rixner, Cox 2006)",
        about: organisations::ABOUT,
        run: organisations::run,
    },
    Part {
        name: "messages",
        title: "Messages within a host (SocksDirect, SIGCOMM 2019)",
        about: messages::ABOUT,
        run: messages::run,
    },
    Part {
        name: "fastsocket",
        title: "Locality, locks, balance (Fastsocket, ASPLOS 2016)",
        about: fastsocket::ABOUT,
        run: fastsocket::run,
    },
    Part {
        name: "mtcp",
        title: "Short connections, fairness, batching (mTCP, NSDI 2014)",
        about: mtcp::ABOUT,
        run: mtcp::run,
    },
    Part { name: "replay", title: "WebReplay (mTCP, NSDI 2014)", about: replay::ABOUT, run: replay::run },
    Part {
        name: "applications",
        title: "Applications: lighttpd, ab, an SSL proxy (mTCP, NSDI 2014)",
        about: applications::ABOUT,
        run: applications::run,
    },
    Part { name: bulk::NAME, title: "Bulk", about: bulk::ABOUT, run: bulk::run },
    Part { name: "peers", title: "Peers", about: peers::ABOUT, run: peers::run },
];

/// Runs the experiments of the papers next to the kernel and other stacks.
#[derive(Debug, Parser)]
#[command(name = "fs-experiments", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Measures with fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Only tests that each part works, with the smallest sizes.
    #[arg(long)]
    smoke: bool,
    /// The parts to run; by default all.
    #[arg(value_name = "PART", value_parser = PossibleValuesParser::new(PARTS.iter().map(|part| part.name)))]
    parts: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes docs/EXPERIMENTS.md from kept results.
    Page {
        /// Only compares: fails if the page is different.
        #[arg(long)]
        check: bool,
    },
    /// Replays a trace of requests, for the part `replay`.
    #[command(hide = true)]
    Play { to: SocketAddr, file: PathBuf },
    /// Receives on several connections, for the part `mtcp`.
    #[command(hide = true)]
    Flows { to: SocketAddr, count: usize, seconds: f64 },
    /// Makes TLS connections, for the part `applications`.
    #[command(hide = true)]
    Handshakes { to: SocketAddr, certificate: PathBuf, connections: usize, seconds: f64 },
}

fn main() -> ExitCode {
    fs_benches::run(|arguments: Arguments| match &arguments.command {
        None => experiments(&arguments),
        Some(command) => command.run().map(|()| true),
    })
}

impl Command {
    fn run(&self) -> Result<()> {
        let line = match self {
            Command::Page { check } => return page::write(workspace(), *check),
            Command::Play { to, file } => {
                fs_stacks::usage::raise_open_files(1 << 20)?;
                serde_json::to_string(&clients::replay(*to, trace::read(file)?)?)?
            }
            Command::Flows { to, count, seconds } => {
                fs_stacks::usage::raise_open_files(1 << 20)?;
                serde_json::to_string(&clients::flows(*to, *count, *seconds)?)?
            }
            Command::Handshakes { to, certificate, connections, seconds } => {
                fs_stacks::usage::raise_open_files(1 << 20)?;
                serde_json::to_string(&handshakes::run(*to, certificate, *connections, *seconds)?)?
            }
        };
        println!("{line}");
        Ok(())
    }
}

fn experiments(arguments: &Arguments) -> Result<bool> {
    let Arguments { smoke, parts: ref wanted, .. } = *arguments;
    let quick = arguments.quick || smoke;
    let folder = target_dir().join("experiments");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut complete = true;
    for part in PARTS {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == part.name) {
            continue;
        }
        println!("{}:", part.name);
        let start = Instant::now();
        let mut run = Run { quick, smoke, failed: false, items: Vec::new(), missing: Vec::new() };
        if let Err(error) = (part.run)(&mut run) {
            println!("  {}: FAILED: {error:#}", part.name);
            complete = false;
            continue;
        }
        complete &= !(smoke && run.failed);
        let outcome = Outcome {
            kernel: fs_benches::report::kernel(),
            processors: std::thread::available_parallelism()?.get(),
            quick,
            took_seconds: start.elapsed().as_secs_f64(),
            items: run.items,
            missing: run.missing,
        };
        for item in &outcome.items {
            if let Item::Goal(goal) = item {
                println!("  {}: {} ({})", goal.goal, goal.measured, if goal.met { "met" } else { "NOT met" });
            }
        }
        let path = folder.join(format!("{}.json", part.name));
        if !smoke {
            outcome::write(&path, &outcome)?;
        }
        println!("  {:.0} s: {}", outcome.took_seconds, path.display());
    }
    Ok(complete)
}
