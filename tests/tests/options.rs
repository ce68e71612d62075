//! setsockopt(2) and getsockopt(2) on a connection over the wire. One program checks its TCP_INFO,
//! its queues and the packets at a peer on the kernel, on kernel sockets and preloaded.

use anyhow::{Result, ensure};
use fs_tests::Lab;
use fs_tests::apps::{READY_LIMIT, workspace};
use fs_tests::lab::{CLIENT, FRONT, Ns};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::stage::finish;
use std::process::Command;

const PORT: u16 = 7500;

fn run(lab: &Lab, mut app: Command) -> Result<()> {
    let script = workspace().join("tests/unmodified/options.py");
    let mut peer = lab.command(Ns::Host, "python3");
    let mut peer = lab.spawn("peer", peer.arg(&script).args(["peer", FRONT, &PORT.to_string(), "front0"]))?;
    let log = peer.log_path().to_owned();
    peer.wait_for("answer", READY_LIMIT, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready")))?;
    let said = finish(app.arg(&script).args(["app", FRONT, &PORT.to_string(), CLIENT]), "options.py")?;
    ensure!(said.ends_with("all\n"), "{said}");
    peer.kill()
}

#[test]
fn on_the_kernel() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1", "--offload", "off"])? else { return Ok(()) };
    lab.check(|lab| run(lab, lab.command(Ns::Client, "python3")))
}

#[test]
fn on_the_cores() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1", "--offload", "off"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut daemon = Daemon::start(lab, Ns::Client, Reach::Wire)?;
        let before = daemon.counters(lab)?;
        run(lab, daemon.command(lab, "python3"))?;
        let bytes = daemon.counters(lab)?.since(&before, "wire_bytes");
        // The bytes of tcp_info alone.
        ensure!(bytes > 150_000, "{bytes} bytes went over the wire: the kernel carried the rest");
        daemon.stop()
    })
}
