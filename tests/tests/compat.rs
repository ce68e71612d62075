//! A short `make compat`: a few programs under load and faults see the same on kernel sockets and
//! on ours.

use anyhow::{Context, Result, ensure};
use fs_tests::Lab;
use fs_tests::compat::{judge, programs};

/// So many that the clients still ask when the last fault happens.
const REQUESTS: u64 = 20_000;

fn as_on_the_kernel(name: &str) -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let all = programs::all();
        let (number, program) =
            all.iter().enumerate().find(|(_, program)| program.name == name).context("no such program")?;
        match judge::compare(lab, program, 7000 + 10 * number as u16, REQUESTS)? {
            judge::Verdict::Skipped(why) => println!("skipped: {name}: {why}"),
            judge::Verdict::Ran { row, wrong } => {
                println!("{row}");
                ensure!(wrong.is_empty(), "{}", wrong.join("; "));
            }
        }
        Ok(())
    })
}

#[test]
#[ignore = "long: make proof"]
fn nginx() -> Result<()> {
    as_on_the_kernel("nginx, 2 workers")
}

#[test]
#[ignore = "long: make proof"]
fn haproxy() -> Result<()> {
    as_on_the_kernel("haproxy, master and worker, at its maxconn")
}

#[test]
#[ignore = "long: make proof"]
fn redis() -> Result<()> {
    as_on_the_kernel("redis-server")
}

#[test]
#[ignore = "long: make proof"]
fn python() -> Result<()> {
    as_on_the_kernel("Python's socketserver, 3 processes, and Python's client")
}
