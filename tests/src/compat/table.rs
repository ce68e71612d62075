//! The table of `make compat` in docs/COMPATIBILITY.md: a program's row is replaced when it runs,
//! the others stay.

use super::{Outcome, Program};
use anyhow::Result;
use std::path::PathBuf;

/// The markers of the table.
const BEGIN: &str = "<!-- compat: written by make compat -->";
const END: &str = "<!-- compat: end -->";

const HEAD: &str = "\
# Under load and faults

`make compat` (`PROGRAMS=…`, `REQUESTS=…`) runs each program on the kernel and then under `fastsock run`,
with clients and server on one host. Eight clients connect for each request, eight keep their
connection. One request in a hundred comes from a process that exits afterwards. One client closes
without waiting for the response. A client repeats each request until the response is correct.
During the run each fault happens twice.

| column | meaning |
|---|---|
| right | correct responses, the same number on both |
| rings | sockets of servers and clients that had a ring, or why the kernel carries; of a killed process none is counted |
| failures | errors before the correct response, kernel / fastsock; stale: a kept connection was closed before the next request |
| descriptors, mappings | of the server's largest process on fastsock, after the first requests → at the end |
| resident | MiB of all server processes, in the same form |
| daemon | its descriptors, before → when all have ended |
| seconds | kernel / fastsock |

The bytes of kernel connections are in no process's resident memory; those of rings are in both ends'. So the server's memory without rings may grow by 16 MiB more than on the kernel, and the
rings by 32 MiB.

| program | faults | right | rings | failures | descriptors | mappings | resident | daemon | seconds | verdict |
|---|---|---|---|---|---|---|---|---|---|---|
";

fn path() -> PathBuf {
    crate::apps::workspace().join("docs/COMPATIBILITY.md")
}

/// Returns this table's part of docs/COMPATIBILITY.md, with its markers; empty if there is none.
pub fn section() -> String {
    let text = std::fs::read_to_string(path()).unwrap_or_default();
    text.find(BEGIN).map(|at| text[at..].to_owned()).unwrap_or_default()
}

fn failures(outcome: &Outcome) -> String {
    let all: Vec<_> = outcome.answers.wrong.iter().map(|(kind, many)| format!("{many} {kind}")).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// A program's row.
pub fn row(program: &Program, kernel: &Outcome, ours: &Outcome, wrong: &[String]) -> String {
    let faults: Vec<_> = program.faults.iter().map(|fault| fault.name).collect();
    let rings = match program.carried {
        Some(why) if ours.by_ring.promoted == 0 => format!("none: {why}"),
        _ => ours.by_ring.promoted.to_string(),
    };
    let daemon = ours.kept.map_or_else(String::new, |(a, b)| format!("{} → {}", a.descriptors, b.descriptors));
    format!(
        "| {} | {} | {} | {rings} | {} / {} | {} → {} | {} → {} | {} → {} | {daemon} | {:.0} / {:.0} | {} |",
        program.name,
        faults.join(", "),
        ours.answers.right,
        failures(kernel),
        failures(ours),
        ours.held.0.descriptors,
        ours.held.1.descriptors,
        ours.held.0.mappings,
        ours.held.1.mappings,
        ours.held.0.resident_kib >> 10,
        ours.held.1.resident_kib >> 10,
        kernel.answers.seconds,
        ours.answers.seconds,
        if wrong.is_empty() { "as on the kernel".into() } else { wrong.join("; ") },
    )
}

/// Returns a program's row if it did not run to its end.
pub fn failed(program: &Program, why: &str) -> String {
    let first = why.lines().next().unwrap_or_default().replace('|', "/");
    format!("| {} | | | | | | | | | | {first} |", program.name)
}

/// Puts rows into the document, in the order of `programs`.
pub fn write(programs: &[Program], rows: &[String]) -> Result<()> {
    let text = std::fs::read_to_string(path())?;
    let first_cell = |row: &str| row.split('|').nth(1).map(|cell| cell.trim().to_owned());
    let old: Vec<String> = section().lines().filter(|line| line.starts_with("| ")).map(str::to_owned).collect();
    let mut table = String::new();
    for program in programs {
        let named = |row: &&String| first_cell(row).is_some_and(|name| name == program.name);
        if let Some(row) = rows.iter().find(named).or_else(|| old.iter().find(named)) {
            table += row;
            table.push('\n');
        }
    }
    let before = text.find(BEGIN).map_or(text.as_str(), |at| &text[..at]).trim_end();
    std::fs::write(path(), format!("{before}\n\n{BEGIN}\n{HEAD}{table}{END}\n"))?;
    Ok(())
}
