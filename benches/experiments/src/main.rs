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

use anyhow::{Context, Result, bail};
use fs_tests::apps::{target_dir, workspace};
use outcome::{Item, Outcome};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: fs-experiments [--quick | --smoke] [PART…] | page [--check] | play ADDRESS FILE | flows ADDRESS N SECONDS | \
                     handshakes ADDRESS CERTIFICATE N SECONDS; parts: organisations messages fastsocket mtcp replay applications bulk peers";

/// One experiment.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What is measured, and how it differs from the paper.
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

fn main() -> ExitCode {
    fs_benches::run(USAGE, |words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["page"] => page::write(workspace(), false).map(|()| true),
            ["page", "--check"] => page::write(workspace(), true).map(|()| true),
            ["play", to, file] => {
                fs_stacks::usage::raise_open_files(1 << 20)?;
                let replayed = clients::replay(to.parse().context(USAGE)?, trace::read(Path::new(file))?)?;
                println!("{}", serde_json::to_string(&replayed)?);
                Ok(true)
            }
            ["flows", to, count, seconds] => {
                fs_stacks::usage::raise_open_files(1 << 20)?;
                let seconds: f64 = seconds.parse().context(USAGE)?;
                let flows = clients::flows(to.parse().context(USAGE)?, count.parse().context(USAGE)?, seconds)?;
                println!("{}", serde_json::to_string(&flows)?);
                Ok(true)
            }
            ["handshakes", to, certificate, connections, seconds] => {
                fs_stacks::usage::raise_open_files(1 << 20)?;
                let (to, certificate) = (to.parse().context(USAGE)?, Path::new(certificate));
                let connections = connections.parse().context(USAGE)?;
                let made = handshakes::run(to, certificate, connections, seconds.parse().context(USAGE)?)?;
                println!("{}", serde_json::to_string(&made)?);
                Ok(true)
            }
            _ => experiments(&words),
        }
    })
}

fn experiments(words: &[&str]) -> Result<bool> {
    let (mut quick, mut smoke, mut wanted) = (false, false, Vec::new());
    for &word in words {
        match word {
            "--quick" => quick = true,
            "--smoke" => (quick, smoke) = (true, true),
            name if PARTS.iter().any(|part| part.name == name) => wanted.push(name),
            other => bail!("unknown part or option {other}; {USAGE}"),
        }
    }
    let folder = target_dir().join("experiments");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut complete = true;
    for part in PARTS {
        if !wanted.is_empty() && !wanted.contains(&part.name) {
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
