//! The benches of unmodified programs: with `libfastsock.so`, and on the kernel's sockets, in
//! turns, both in one lab. Prints each ratio with its goal and writes `target/bench/PART.json`.
//!
//! Both ends are programs of one host. What processes report proves that their connections had a ring that carried.

mod idle;
mod nginx;
mod pair;
mod redis;
mod start;

use anyhow::Result;
use fs_benches::parts::{self, Part, Plan};
use fs_tests::lab::Lab;
use fs_tests::unmodified::programs::Server;
use fs_tests::unmodified::{Placement, Stage};
use std::process::{Child, Command, ExitCode, Stdio};

const PARTS: [Part; 5] =
    [("pair", pair::run), ("redis", redis::run), ("nginx", nginx::run), ("start", start::run), ("idle", idle::run)];

const ABOUT: &str = "Measures unmodified programs under `fastsock run` and on the kernel, in turns.";

fn main() -> ExitCode {
    let plans = [Plan { rounds: 5, seconds: 1 }, Plan { rounds: 1, seconds: 1 }];
    parts::main("unmodified", ABOUT, &PARTS, plans)
}

/// Starts a server of a stage on a port.
type Start = fn(&Stage, u16) -> Result<Server>;

/// CPUs of server and client.
#[derive(Clone, Copy, Debug)]
struct Cpus {
    server: Option<usize>,
    client: Option<usize>,
}

/// Any CPU that the kernel chooses.
const ANY: Cpus = Cpus { server: None, client: None };
/// A core each.
const TWO: Cpus = Cpus { server: Some(1), client: Some(0) };
/// Both processes on the same core.
const ONE: Cpus = Cpus { server: Some(0), client: Some(0) };

/// Processes that want a CPU all the time, one on each of the first CPUs. The scheduler would move
/// one that shares a CPU with the programs to a CPU that they do not use.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Result<Busy> {
        let mut busy = Busy(Vec::new());
        for cpu in 0..count {
            let mut command = Command::new("taskset");
            busy.0.push(command.args(["-c", &cpu.to_string(), "yes"]).stdout(Stdio::null()).spawn()?);
        }
        Ok(busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // An error: it has ended already.
            let _ended = child.kill().and_then(|()| child.wait());
        }
    }
}

/// The two sides of a comparison, on two hosts of one lab.
struct Sides<'a> {
    ours: Stage<'a>,
    kernel: Stage<'a>,
}

impl Sides<'_> {
    /// Runs `body` with both sides of one host set up.
    fn with<T>(body: impl FnOnce(&mut Sides) -> Result<T>) -> Result<T> {
        let lab = Lab::require(&["--queues", "1"])?;
        let mut result = None;
        lab.check(|lab| {
            let mut sides =
                Sides { ours: Stage::set(lab, Placement::OneHost)?, kernel: Stage::set(lab, Placement::Kernel)? };
            result = Some(body(&mut sides)?);
            sides.ours.end()?;
            sides.kernel.end()
        })?;
        result.ok_or_else(|| anyhow::anyhow!("nothing was measured"))
    }

    /// Starts the server on both sides and measures them in turns. Returns the figures of fastsock
    /// and of the kernel. `is_proven`: returns an error if no ring carried in one of fastsock's rounds.
    fn compare<T>(
        &mut self,
        plan: &Plan,
        start: Start,
        cpus: Cpus,
        is_proven: bool,
        measure: impl Fn(&Stage, u16) -> Result<T>,
    ) -> Result<[Vec<T>; 2]> {
        let mut servers = Vec::new();
        for (stage, port) in [(&mut self.ours, PORTS[0]), (&mut self.kernel, PORTS[1])] {
            stage.cpu = cpus.server;
            servers.push(start(stage, port)?);
            stage.cpu = cpus.client;
        }
        let (ours, kernel) = (&self.ours, &self.kernel);
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..plan.rounds {
            // In alternating order: what begins or ends in the middle of a pair favours neither side.
            for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                let (stage, before) = ([ours, kernel][side], ours.reported());
                figures[side].push(measure(stage, PORTS[side])?);
                if side == 0 && is_proven {
                    ours.proven(before)?;
                }
            }
        }
        servers.into_iter().try_for_each(Server::end)?;
        Ok(figures)
    }
}

/// Ports of fastsock and of the kernel. They differ, since they name the files in the lab's folder.
const PORTS: [u16; 2] = [7500, 7600];
