//! Connections of random lifetimes between processes that start, end and are killed: the counts of
//! both sides agree (`tests/lifetimes/lifetimes.c`). The long run is `make lifetimes`.

use anyhow::{Result, anyhow, ensure};
use fs_tests::apps::compile;
use fs_tests::unmodified::Daemon;
use fs_tests::unmodified::stage::finish;
use fs_tests::{Lab, Ns};
use std::process::Command;
use std::time::Duration;

/// Connections of each of the two runs; `make lifetimes` makes a million.
const CONNECTIONS: &str = "2000";

#[test]
fn no_connection_is_lost_or_hangs() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let program = compile("lifetimes", &[])?;
        let mut daemon = Daemon::start(lab, Ns::Backend)?.eager();
        // Without kills the counts agree exactly; with kills, except for connections of killed
        // processes.
        for kills in ["0", "40"] {
            let mut command = daemon.command(lab, "timeout");
            let said = finish(command.args(["300"]).arg(&program).args([CONNECTIONS, "1", kills]), "lifetimes")?;
            println!("{kills} kills: {said}");
            ensure!(said.lines().any(|line| line == "right"), "{said}");
        }
        let [promoted, sends] = ["promoted", "ring_sends"].map(|name| daemon.reported(name));
        println!("{promoted} sockets got a ring, {sends} sends by it");
        ensure!(promoted > 0 && sends > 0, "the ring was not used");
        daemon.stop()
    })
}

/// A service that gets no CPU for seconds, for which its processes wait.
#[test]
#[ignore = "long: make proof"]
fn no_connection_is_lost_while_the_service_is_stopped() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let program = compile("lifetimes", &[])?;
        let mut daemon = Daemon::start(lab, Ns::Backend)?.eager();
        let pid = daemon.proc.pid().to_string();
        let mut command = daemon.command(lab, "timeout");
        command.args(["200"]).arg(&program).args(["20000", "2", "0"]);
        let signal = |name: &str| Command::new("kill").args([name, &pid]).status();
        let (said, stops) = std::thread::scope(|scope| {
            let runs = scope.spawn(|| finish(&mut command, "lifetimes"));
            let mut stops = 0;
            while !runs.is_finished() && stops < 3 {
                std::thread::sleep(Duration::from_millis(500));
                signal("-STOP")?;
                std::thread::sleep(Duration::from_secs(3));
                stops += u32::from(!runs.is_finished());
                signal("-CONT")?;
            }
            anyhow::Ok((runs.join().map_err(|_| anyhow!("it did not run"))??, stops))
        })?;
        let promoted = daemon.reported("promoted");
        println!("{said}{stops} stops, {promoted} sockets got a ring");
        ensure!(stops >= 1 && promoted > 0, "{stops} stops, {promoted} sockets with a ring");
        ensure!(said.lines().any(|line| line == "right"), "{said}");
        daemon.stop()
    })
}
