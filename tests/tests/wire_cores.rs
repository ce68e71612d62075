//! A daemon with two cores: incoming and outgoing connections of one program are on both of them,
//! and every byte is right.

use anyhow::{Result, ensure};
use fs_tests::lab::Lab;
use fs_tests::unmodified::programs::group;
use fs_tests::unmodified::{Placement, Stage};

/// Runs all clients of these programs in this placement, with daemons of two cores on devices of
/// two queues.
fn run(placement: Placement, groups: &[&str]) -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "2"])? else { return Ok(()) };
    lab.check(|lab| {
        let stage = Stage::set_with(lab, placement, &["--queues", "2"])?;
        let start = stage.counters()?;
        for (number, name) in groups.iter().enumerate() {
            let (group, port) = (group(name)?, 7500 + 10 * number as u16);
            let server = (group.server)(&stage, port)?;
            for row in &group.rows {
                let before = stage.counters()?;
                (row.client)(&stage, port)?;
                stage.proven(&before, row.bytes)?;
                println!("{}: {}: ok", placement.name(), row.name);
            }
            server.end()?;
        }
        for (before, after) in start.iter().zip(stage.counters()?) {
            for core in 0..2 {
                let packets = after.since(before, &format!("stack_rx_packets{{core=\"{core}\"}}"));
                ensure!(packets > 100, "core {core} took only {packets} packets");
            }
        }
        stage.end()
    })
}

#[test]
fn servers_on_two_cores() -> Result<()> {
    run(Placement::Server, &["nginx reuseport", "redis"])
}

#[test]
#[ignore = "long: make proof"]
fn both_ends_on_two_cores() -> Result<()> {
    run(Placement::TwoHosts, &["nginx", "redis"])
}
