//! The record: a Markdown table in the tree.

use anyhow::{Context, Result};
use std::fmt::Write;
use std::path::PathBuf;

/// The compiler and the target of this program.
pub(crate) const TOOLCHAIN: &str = env!("FS_RUSTC");

/// One line.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) what: String,
    pub(crate) counted: f64,
    /// The figure of the first record, which shows the cost of the engine's later parts.
    pub(crate) first: Option<f64>,
}

/// All lines of the record.
pub(crate) struct Record {
    pub(crate) toolchain: String,
    pub(crate) lines: Vec<Line>,
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../icount.md")
}

impl Record {
    /// Reads the file; returns an empty record if it does not exist.
    pub(crate) fn read() -> Result<Self> {
        let text = match std::fs::read_to_string(path()) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e).context("benches/icount.md"),
        };
        let toolchain = text.lines().find_map(|l| l.strip_prefix("Toolchain: ")).unwrap_or("nothing").to_owned();
        let mut lines = Vec::new();
        for line in text.lines().filter(|l| l.starts_with("| `")) {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [_, name, what, counted, first, _, _] = cells[..] else { continue };
            let number = |cell: &str| cell.parse().with_context(|| format!("benches/icount.md: {line}"));
            let first = if first.is_empty() { None } else { Some(number(first)?) };
            lines.push(Line {
                name: name.trim_matches('`').into(),
                what: what.into(),
                counted: number(counted)?,
                first,
            });
        }
        Ok(Self { toolchain, lines })
    }

    /// Writes the file.
    pub(crate) fn write(&self) -> Result<()> {
        let mut text = String::from(
            "# Instructions per piece of work\n\n\
             The engine with the application's calls, in memory, on one core, checksums in software; timestamps and SACK\n\
             agreed, batches of 32 packets a turn unless said. Written by `cargo xtask icount --record`, checked by\n\
             `cargo xtask icount --check` (3 % either way) in `make proof`; counted by callgrind, so the same on every run with\n\
             one compiler and C library. `First` is what the first record said, before most of the engine's rarer parts\n\
             were there (RACK, tail loss probes, pacing, BBR, fast open, urgent data, auto-tuning of both buffers).\n\n",
        );
        writeln!(text, "Toolchain: {}\n", self.toolchain)?;
        text.push_str("| scenario | one piece of work | instructions | first | ratio |\n|---|---|--:|--:|--:|\n");
        for Line { name, what, counted, first } in &self.lines {
            match first {
                Some(first) => {
                    writeln!(text, "| `{name}` | {what} | {counted:.0} | {first:.0} | {:.3} |", counted / first)?
                }
                None => writeln!(text, "| `{name}` | {what} | {counted:.0} | | |")?,
            }
        }
        std::fs::write(path(), text).context("benches/icount.md")
    }
}
