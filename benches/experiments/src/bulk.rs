//! One flow as fast as it goes, beside raw AF_XDP and the kernel: the bench's figures (`lab/bench bulk`), held against the goals.

use crate::Run;
use crate::outcome::{Goal, Item, Table, number, times};
use anyhow::{Context, Result, ensure};
use fs_tests::apps::target_dir;
use serde::Deserialize;
use std::process::Command;

pub(crate) const ABOUT: &str = "\
One flow over veth, sender on CPU 1 and receiver on CPU 0 (`lab/bench bulk`). Raw AF_XDP sends and receives the same frames without TCP; *copied* has both ends copy each byte once,
as a socket has to. Without offloads the kernel's TCP sends frames of the MTU, as ours does; with them veth hands on up to 64 KiB at a time. The goals hold for the worst round.";

#[derive(Deserialize)]
struct Bench {
    rows: Vec<Row>,
}

/// A row of the bench.
#[derive(Deserialize)]
struct Row {
    what: String,
    peer_name: String,
    ours: f64,
    peer: f64,
    our_rounds: Vec<f64>,
    peer_rounds: Vec<f64>,
}

impl Row {
    /// The least and the greatest ratio of a round.
    fn ratios(&self) -> Option<(f64, f64)> {
        let ratios = || self.our_rounds.iter().zip(&self.peer_rounds).map(|(ours, peer)| ours / peer);
        Some((ratios().reduce(f64::min)?, ratios().reduce(f64::max)?))
    }
}

pub(crate) fn run(run: &mut Run) -> Result<()> {
    let mut command = Command::new(target_dir().join("release/veth"));
    command.args(run.choose(Some("--quick"), None)).args(run.smoke.then_some("--dry-run")).arg("bulk");
    let status = command.status().context("veth")?;
    ensure!(status.success(), "veth bulk: {status}");
    // The bench itself has its quick run in the tests.
    if run.smoke {
        return Ok(());
    }
    let path = target_dir().join("bench/bulk.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let bench: Bench = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    for (peer, least) in [("raw AF_XDP, copied", 0.9), ("kernel, offloads off", 1.0)] {
        for row in bench.rows.iter().filter(|row| row.peer_name == peer) {
            let ratios = row.ratios();
            run.items.push(Item::Goal(Goal {
                goal: format!("{} ≥ {least} × {peer}", row.what),
                measured: times(ratios),
                met: ratios.is_some_and(|(worst, _)| worst >= least),
            }));
        }
    }
    let rows = bench.rows.iter().map(|row| {
        vec![row.what.clone(), number(row.ours), row.peer_name.clone(), number(row.peer), times(row.ratios())]
    });
    run.items.push(Item::Table(Table {
        title: "One flow".into(),
        paper: "None of the four papers has a single flow over a device that carries 64 KiB at once.".into(),
        means: "Where a device takes offloads the kernel's bulk flows are ahead; docs/OPERATING.md says how to leave such programs and ports to it.".into(),
        head: ["", "fastsock, Gb/s", "peer", "its Gb/s", "ratio"].map(String::from).to_vec(),
        rows: rows.collect(),
    }));
    Ok(())
}
