//! The daemon ends and another one starts while nginx serves requests: connections stay open,
//! whatever carries them.

use anyhow::{Context, Result, ensure};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::load::Load;
use fs_tests::unmodified::slow::Slow;
use fs_tests::unmodified::{Placement, Stage};
use fs_tests::{Lab, Ns};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const PORT: u16 = 7310;

fn until(what: &str, mut so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !so()? {
        ensure!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn slow_client(stage: &Stage, name: &str) -> Result<Slow> {
    Slow::start(stage, name, stage.endless_client("/usr/bin/python3"), PORT)
}

/// Connections that the kernel of the host has on the port.
fn in_kernel(lab: &Lab) -> Result<usize> {
    let filter = format!("sport = :{PORT}");
    Ok(lab.run(Ns::Host, "ss", &["-Htn", "state", "established", &filter])?.lines().count())
}

#[test]
#[ignore = "long: make proof"]
fn clients_do_not_notice_a_new_daemon() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "1"])? else { return Ok(()) };
    lab.check(|lab| {
        let mut stage = Stage::set_with(lab, Placement::Server, &["--drain", "30"])?;
        let dir = stage.folder("nginx")?;
        let (d, files, host) = (dir.display().to_string(), stage.files().display().to_string(), stage.host);
        std::fs::write(
            dir.join("nginx.conf"),
            format!(
                "user root;\nworker_processes 2;\ndaemon off;\npid {d}/pid;\nerror_log {d}/error.log;\n\
                 events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  client_body_temp_path {d}/body;\n\
                 proxy_temp_path {d}/t1;\n  fastcgi_temp_path {d}/t2;\n  uwsgi_temp_path {d}/t3;\n\
                 scgi_temp_path {d}/t4;\n  server {{ listen {host}:{PORT}; root {files}; }}\n}}\n"
            ),
        )?;
        let mut command = stage.server("/usr/sbin/nginx");
        command.arg("-e").arg(dir.join("error.log")).arg("-c").arg(dir.join("nginx.conf"));
        let mut nginx = stage.serve("nginx", &mut command, PORT)?;
        let mut load = Load::start(&stage, PORT, "/10k")?;
        // The probes of before have ended, and the kernel need not have seen that.
        until("nothing in the kernel at first", || Ok(in_kernel(lab)? == 0))?;
        let slow = slow_client(&stage, "slow-1")?;
        // The daemon is told to end: open connections continue, and new ones are the kernel's.
        let old = stage.daemon().context("a daemon")?;
        let before = old.counters(lab)?;
        old.proc.signal("TERM")?;
        until("new connections by the kernel", || Ok(in_kernel(lab)? > 0))?;
        let late = slow_client(&stage, "slow-2")?;
        ensure!(in_kernel(lab)? > 0, "new connections are not the kernel's");
        load.goes_on(50)?;
        slow.whole().context("a connection of the old daemon")?;
        let old = stage.daemon().context("a daemon")?;
        let status = old.proc.wait_end(PATIENCE).context("the old daemon, which has nothing left to do")?;
        ensure!(status.success(), "{status}: {}", old.proc.log());
        println!("old daemon's connections: {}", before.value("wire_connections"));
        load.goes_on(50)?;
        late.whole().context("a connection of the kernel, while the daemon ended")?;
        // Another daemon starts: connections of the kernel stay with it.
        let kept = slow_client(&stage, "slow-3")?;
        let mut new = Daemon::start(lab, Ns::Host, Reach::Wire)?;
        let new_ones = |new: &Daemon| -> Result<u64> { Ok(new.counters(lab)?.value("wire_connections")) };
        if let Err(error) = until("new connections by the new daemon", || Ok(new_ones(&new)? > 20)) {
            println!("{:?}\n{}", new.counters(lab), new.sockets(lab));
            println!("{}", lab.run(Ns::Client, "ss", &["-tan"])?);
            return Err(error);
        }
        load.goes_on(50)?;
        kept.whole().context("a connection of the kernel, as the new daemon began")?;
        until("nothing in the kernel", || Ok(in_kernel(lab)? == 0))?;
        let met = load.end()?;
        println!("{} requests, errors: {:?}", met.requests, met.errors);
        ensure!(met.errors.is_empty(), "the client met errors: {met:?}");
        ensure!(nginx.ended()?.is_none(), "nginx ended: {}", nginx.log());
        new.stop()
    })
}
