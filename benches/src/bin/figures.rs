//! Writes the figures of kept runs into README.md, docs/PERFORMANCE.md and docs/plots. With
//! `--check` it only compares.

use anyhow::{Context, Result, ensure};
use fs_benches::figures;
use fs_tests::apps::workspace;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes the figures of kept runs into README.md, docs/PERFORMANCE.md and docs/plots.
#[derive(Debug, clap::Parser)]
#[command(name = "figures")]
struct Arguments {
    /// Only compares: fails if a file has other figures.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    fs_benches::run(|arguments: Arguments| run(arguments.check).map(|()| true))
}

fn run(check: bool) -> Result<()> {
    let root = workspace();
    let runs = figures::runs(&root.join("benches/results"))?;
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for page in ["README.md", "docs/PERFORMANCE.md"] {
        let path = root.join(page);
        let text = std::fs::read_to_string(&path).context(page)?;
        files.push((path, figures::fill(&text, &runs).context(page)?));
    }
    let plots = root.join("docs/plots");
    for (file, svg) in figures::charts(&runs)? {
        files.push((plots.join(file), svg));
    }
    if !check {
        std::fs::create_dir_all(&plots)?;
    }
    for (path, text) in files {
        if check {
            let there = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            ensure!(
                there == text,
                "{} has other figures than benches/results: run `cargo run -p fs-benches --bin figures`",
                path.display()
            );
        } else {
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
