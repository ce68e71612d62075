//! The experiments of the papers that fastsock comes from: `lab/experiments`, `docs/EXPERIMENTS.md`.
//!
//! ```text
//! experiments [--quick] [PART…]   runs them; target/experiments/PART.json
//! experiments page [--check]      writes docs/EXPERIMENTS.md from the kept runs
//! ```

mod callgrind;
mod chart;
mod organisations;
mod outcome;
mod page;

use anyhow::{Context, Result, bail};
use fs_tests::apps::{target_dir, workspace};
use outcome::{Item, Outcome};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: experiments [--quick] [--dry-run] [PART…] | page [--check]; \
                     parts: organisations messages fastsocket mtcp replay peers";

/// One experiment.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What is measured, and what differs from the paper.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&mut Run) -> Result<()>,
}

/// A part under way.
pub(crate) struct Run {
    pub(crate) quick: bool,
    pub(crate) items: Vec<Item>,
    pub(crate) missing: Vec<String>,
}

impl Run {
    /// The first in a quick run, else the second.
    pub(crate) fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// What `measured` gives; where it cannot be measured, the page says why.
    pub(crate) fn attempt<T>(&mut self, what: &str, measured: Result<T>) -> Option<T> {
        match measured {
            Ok(value) => Some(value),
            Err(error) => {
                let said = format!("{error:#}");
                let line = said.lines().next().unwrap_or_default();
                println!("  {what}: NOT MEASURED: {said}");
                self.missing.push(format!("{what}: {line}."));
                None
            }
        }
    }
}

/// All of them, in the page's order.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "organisations",
        title: "Organisations of a network stack (Willmann, Rixner, Cox 2006)",
        about: organisations::ABOUT,
        run: organisations::run,
    },
];

fn main() -> ExitCode {
    fs_benches::run(USAGE, |words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["page"] => page::write(&workspace(), false).map(|()| true),
            ["page", "--check"] => page::write(&workspace(), true).map(|()| true),
            _ => experiments(&words),
        }
    })
}

fn experiments(words: &[&str]) -> Result<bool> {
    let (mut quick, mut dry, mut wanted) = (false, false, Vec::new());
    for &word in words {
        match word {
            "--quick" => quick = true,
            "--dry-run" => dry = true,
            name if PARTS.iter().any(|part| part.name == name) => wanted.push(name),
            other => bail!("unknown part or option {other}; {USAGE}"),
        }
    }
    if dry {
        return Ok(true);
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
        let mut run = Run { quick, items: Vec::new(), missing: Vec::new() };
        if let Err(error) = (part.run)(&mut run) {
            println!("  {}: FAILED: {error:#}", part.name);
            complete = false;
            continue;
        }
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
        outcome::write(&path, &outcome)?;
        println!("  {:.0} s: {}", outcome.took_seconds, path.display());
    }
    Ok(complete)
}
