//! The cells of docs/COMPATIBILITY.md: run, kept in the target folder, and written as a table.

use crate::lab::Lab;
use crate::unmodified::programs::{Group, group, groups};
use crate::unmodified::{Placement, Stage};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The result of a row in a placement: `None` if it passed.
pub type Outcome = Option<String>;

/// The outcomes of a placement by row.
pub type Column = BTreeMap<String, Outcome>;

fn kept(placement: Placement) -> PathBuf {
    crate::apps::target_dir().join("compatibility").join(format!("{}.json", placement.name()))
}

/// Runs every row in this placement and stores the results. The error names the rows that failed.
/// With `FS_TEST_APP` only groups whose name contains it run, and nothing is stored.
pub fn run(placement: Placement) -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    let wanted = std::env::var("FS_TEST_APP").unwrap_or_default();
    let mut column = Column::new();
    lab.check(|lab| {
        // With rings from the first byte: a busy machine may take longer than a connection lasts.
        let stage = Stage::set(lab, placement)?.eager();
        for (number, group) in groups().iter().enumerate().filter(|(_, group)| group.name.contains(&wanted)) {
            // Its own ports, so that leftovers of one group cannot disturb the next.
            run_group(&stage, group, 7100 + 10 * number as u16, &mut column);
        }
        if wanted.is_empty() {
            let path = kept(placement);
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            std::fs::write(&path, serde_json::to_string_pretty(&column)?)?;
        }
        all_passed(&column)?;
        stage.end()
    })
}

/// Runs the rows of one group in this placement; an error names the rows that failed.
pub fn run_group_of(placement: Placement, name: &str) -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let stage = Stage::set(lab, placement)?.yielding();
        let mut column = Column::new();
        run_group(&stage, &group(name)?, 7100, &mut column);
        all_passed(&column)?;
        stage.end()
    })
}

fn all_passed(column: &Column) -> Result<()> {
    let failed: Vec<_> = column.iter().filter(|(_, outcome)| outcome.is_some()).map(|(row, _)| row.as_str()).collect();
    ensure!(failed.is_empty(), "{} of {} rows failed: {}", failed.len(), column.len(), failed.join("; "));
    Ok(())
}

fn run_group(stage: &Stage, group: &Group, port: u16, column: &mut Column) {
    let mut put = |row: &str, result: Result<()>| {
        let outcome = result.err().map(|error| format!("{error:#}"));
        match &outcome {
            None => println!("{}: {row}: ok", stage.placement.name()),
            Some(why) => println!("{}: {row}: FAILED: {why}", stage.placement.name()),
        }
        column.insert(row.to_owned(), outcome);
    };
    let begun = stage.reported();
    let server = match (group.server)(stage, port) {
        Ok(server) => server,
        Err(error) => {
            let why = format!("{error:#}");
            for row in &group.rows {
                put(row.name, Err(anyhow::anyhow!("server: {why}")));
            }
            return;
        }
    };
    for row in &group.rows {
        let run = || {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let before = stage.reported();
                (row.client)(stage, port)?;
                let promoted = if row.by_ring { stage.promoted(before) } else { Ok(()) };
                // Both ends must ask for a ring within a time that a busy machine may exceed.
                if promoted.is_ok() || stage.placement != Placement::OneHost || Instant::now() > end {
                    return promoted;
                }
            }
        };
        put(row.name, run());
    }
    // The server reports at its end.
    let ended = server.end().and_then(|()| {
        let is_used = group.rows.iter().any(|row| row.by_ring);
        if is_used { stage.proven(begun) } else { Ok(()) }
    });
    if let Err(error) = ended {
        put(group.rows.first().map_or(group.name, |row| row.name), Err(error));
    }
}

/// The page above the table.
const ABOUT: &str = "\
# Unmodified programs

Which of Debian's programs run under `fastsock run`. Every socket of such a program is a kernel
socket. The tests show that programs also work when their connections have rings.

`make compat` writes the table under load below. It has run with 10,000 requests for each program, on
a machine that other work kept busy, so its seconds say little. `cargo xtask proof kills` runs the same
programs while the daemon is killed and exchanged. `cargo xtask proof unmodified` runs one program with
another, and writes the first table with `cargo run --release -p fs-tests --bin compatibility`.

Some programs work, and the kernel alone carries their connections:

| program | why |
|---|---|
| PostgreSQL, Exim, vsftpd, sshd | A process is forked for each connection, and a socket that came by fork stays the kernel's. |
| Node's cluster whose primary accepts | The primary passes sockets to its workers by SCM_RIGHTS. |
| MariaDB | InnoDB uses io_uring, after which the library promotes nothing. |
| gunicorn's sync workers, `http.server` of Python | A connection ends after one request. |
| Go's programs | Go calls no C library. |
| programs with `ulimit -n` below 64 | The library keeps no descriptor for itself. |

# One program with another

Server and client are on one host. A column says where the library is: in both, or in one, whose peer
is on the kernel alone.

- *yes*: every reply was correct. If both have the library, connections had rings from their first
  byte, and these carried.
- *yes, kernel*: the same, and the kernel carried.
- An empty cell was not run.

| program |";

/// Returns the table of the last runs' results.
pub fn markdown() -> Result<String> {
    let columns =
        [(Placement::OneHost, "both"), (Placement::MixedServer, "server"), (Placement::MixedClient, "client")];
    let mut ran = Vec::new();
    for (placement, title) in columns {
        let text = std::fs::read_to_string(kept(placement)).unwrap_or_else(|_| "{}".into());
        ran.push((title, serde_json::from_str::<Column>(&text)?));
    }
    let mut out = String::from(ABOUT);
    for (title, _) in &ran {
        write!(out, " {title} |")?;
    }
    out += "\n|---|";
    out += &"---|".repeat(ran.len());
    out += "\n";
    let mut failures = String::new();
    for row in groups().iter().flat_map(|group| &group.rows) {
        write!(out, "| {} |", row.name)?;
        for (title, column) in &ran {
            match column.get(row.name) {
                None => out += " |",
                Some(None) if *title == "both" && !row.by_ring => out += " yes, kernel |",
                Some(None) => out += " yes |",
                Some(Some(why)) => {
                    out += " no |";
                    let first =
                        why.lines().next().unwrap_or_default().replace(&*std::env::temp_dir().to_string_lossy(), "");
                    writeln!(failures, "- {}, {title}: {first}", row.name)?;
                }
            }
        }
        out += "\n";
    }
    if !failures.is_empty() {
        write!(out, "\nReasons for each *no*:\n\n{failures}")?;
    }
    Ok(out)
}
