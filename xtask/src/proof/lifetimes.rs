//! Connections of random lifetimes between processes that exit or are killed on both sides, on
//! kernel sockets and on ours. The counts of both sides must agree (`tests/lifetimes/lifetimes.c`
//! describes them).

use super::commands::{release, variable};
use crate::labs::Namespace;
use crate::part::Outcome;
use crate::run::{Run, target};
use crate::tools::{self, is_root, output_of};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

/// A daemon that ends when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Returns how many connections have got a ring; `None` if the daemon does not run.
fn promoted(fastsock: &Path, control: &Path) -> Option<u64> {
    let text = output_of(Command::new(fastsock).arg("stat").env("FASTSOCK_CONTROL", control))?;
    text.lines().find_map(|line| line.strip_prefix("pairs_promoted "))?.parse().ok()
}

/// Half of CONNECTIONS without kills, where every connection must be counted on both sides, and
/// half with kills.
pub(super) fn lifetimes(run: &mut Run) -> Outcome {
    if !is_root() {
        run.note("skipped: not root (a network namespace)");
        return Outcome::skipped();
    }
    let Ok(connections) = variable(run, "CONNECTIONS", "1000000").parse::<u64>() else {
        return Outcome::one("CONNECTIONS: no number", false);
    };
    let seed = variable(run, "SEED", &std::process::id().to_string());
    let folder = target().join("proof/lifetimes");
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::create_dir_all(&folder);
    let program = folder.join("lifetimes");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu17", "-O1", "-D_GNU_SOURCE", "-pthread", "-Wall", "-o"]).arg(&program);
    if !release(run) || !run.succeeds(cc.arg("tests/lifetimes/lifetimes.c"), 60) {
        return Outcome::one("lifetimes: build", false);
    }
    let namespace = match Namespace::new("lifetimes") {
        Ok(namespace) => namespace,
        Err(error) => return Outcome::one(&error, false),
    };
    let (fastsock, control) = (tools::release("fastsock"), folder.join("control.sock"));
    let up = namespace.command(&fastsock).arg("up").env("FASTSOCK_CONTROL", &control).spawn();
    let Ok(_daemon) = up.map(Daemon) else { return Outcome::one("fastsock up", false) };
    for _ in 0..1000 {
        if control.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if !control.exists() {
        return Outcome::one("fastsock up: no control socket", false);
    }
    let mut outcome = Outcome::default();
    for kills in [0, connections / 2000] {
        for ours in [false, true] {
            let mut command = if ours { namespace.command(&fastsock) } else { namespace.command(&program) };
            if ours {
                command.args(["run", "--quiet", "--"]).arg(&program);
            }
            command.args([&(connections / 2).to_string(), &seed, &kills.to_string()]).env("FASTSOCK_CONTROL", &control);
            let name = format!("{}, seed {seed}, {kills} kills", if ours { "fastsock" } else { "kernel" });
            let before = promoted(&fastsock, &control);
            let passed = run.succeeds(&mut command, 24 * 3600);
            // Without a daemon, or with a library that does nothing, the kernel would be tested.
            let by_ring = promoted(&fastsock, &control).zip(before).map_or(0, |(now, before)| now - before);
            run.note(&format!("{name}: {by_ring} connections got a ring"));
            outcome.add(Outcome::one(&name, passed && (by_ring > 0) == ours));
        }
    }
    // Resources that the daemon still holds after all processes have ended.
    run.succeeds(Command::new(&fastsock).arg("stat").env("FASTSOCK_CONTROL", &control), 60);
    outcome
}
