//! Named worlds. The seed determines everything that a scenario does not fix.

mod draft;
mod hosts;
mod paths;

use crate::host;
use crate::plan::{Kind, Plan};
use crate::rng::Rng;
use crate::world::{Failure, Report, World, WorldConfig};
use draft::Draft;
pub use draft::{BAD_PPM, Scenario};
use fs_core::{Duration, Limits};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Ports that hosts listen on.
const PORTS: [u16; 4] = [80, 443, 6379, 8080];
/// A port without a listener.
const CLOSED_PORT: u16 = 9;

/// Returns all scenarios.
pub fn scenarios() -> impl Iterator<Item = Scenario> {
    hosts::HOSTS.iter().chain(paths::PATHS).copied()
}

impl Scenario {
    /// Looks a scenario up by name.
    pub fn named(name: &str) -> Option<Scenario> {
        scenarios().find(|s| s.name == name)
    }

    /// Returns the world that a seed makes of it.
    pub fn world(&self, seed: u64, pcap: Option<PathBuf>) -> WorldConfig {
        let mut rng = Rng::new(seed ^ 0x7363_656e_6172_696f);
        let mut draft = (self.build)(&mut rng);
        let plans = plans(&draft, &mut rng);
        for host in &mut draft.hosts {
            // Both ends of every connection hold frames; a world must not fail because of missing
            // slots.
            host.limits = Limits { connections: host.limits.connections.max(4096), ..host.limits.clone() };
        }
        let listen = PORTS.map(|port| (port, draft.options(&mut rng, true))).to_vec();
        WorldConfig {
            seed,
            framing: draft.framing,
            vlan: draft.vlan,
            mtu: draft.mtu,
            hosts: draft.hosts,
            topology: draft.topology,
            changes: draft.changes,
            longest_waits: draft.longest_waits,
            policed: true,
            one_by_one: false,
            listen,
            plans,
            concurrency: draft.concurrency,
            gap: draft.gap,
            time_max: Duration::from_secs(24 * 3600),
            pcap,
        }
    }

    /// Runs the scenario.
    ///
    /// # Errors
    /// The error that the oracle has detected. A panic of the engine is an error as well.
    pub fn run(&self, seed: u64, pcap: Option<PathBuf>) -> Result<Report, Failure> {
        let config = self.world(seed, pcap);
        let run = AssertUnwindSafe(|| World::new(config)?.run());
        catch_unwind(run).unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().cloned();
            let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            let what = format!("panic: {}", what.unwrap_or_else(|| "of an unknown kind".into()));
            Err(Failure { at: fs_core::Instant::ZERO, what })
        })
    }
}

fn plans(draft: &Draft, rng: &mut Rng) -> Vec<Plan> {
    let mut kinds = vec![];
    kinds.extend((0..draft.short).map(|_| rng.pick(&draft.kinds)));
    kinds.extend((0..draft.bulk).map(|_| rng.pick(Kind::BULK)));
    for i in (1..kinds.len()).rev() {
        kinds.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let hosts = draft.hosts.len() as u64;
    let make = |(id, &kind): (usize, &Kind)| {
        let client = rng.below(hosts) as usize;
        let server = (client + 1 + rng.below(hosts - 1) as usize) % hosts as usize;
        let v6 = draft.v6 && (!draft.v4 || rng.chance(500_000));
        let address = |h| if v6 { host::ipv6(h) } else { host::ipv4(h) };
        let port = match kind {
            Kind::Refused => CLOSED_PORT,
            Kind::SimultaneousOpen => 10_000 + id as u16,
            _ => rng.pick(&PORTS),
        };
        let (client_script, server_script) = draft.scripts(kind, rng);
        Plan {
            id: id as u32,
            kind,
            client,
            server,
            to: SocketAddr::new(address(server), port),
            from: (kind == Kind::SimultaneousOpen).then(|| SocketAddr::new(address(client), 20_000 + id as u16)),
            options: draft.options(rng, kind.resets() || draft.keepalive),
            client_script,
            server_script,
            seed: rng.next(),
        }
    };
    kinds.iter().enumerate().map(make).collect()
}

/// Runs a seed. After a failure, runs it again with its packets written to `folder`, and returns
/// how to replay it.
///
/// # Errors
/// The error that the oracle has detected, the command that replays it, and the file of its
/// packets.
pub fn run_or_explain(scenario: Scenario, seed: u64, folder: &Path) -> Result<Report, String> {
    explain(scenario.name, seed, folder, |pcap| scenario.run(seed, pcap))
}

/// Like [`run_or_explain`], for a world that is run by `run` (with the file for its packets).
///
/// # Errors
/// The errors of [`run_or_explain`].
pub fn explain(
    name: &str,
    seed: u64,
    folder: &Path,
    run: impl Fn(Option<PathBuf>) -> Result<Report, Failure>,
) -> Result<Report, String> {
    let first = match run(None) {
        Ok(report) => return Ok(report),
        Err(failure) => failure,
    };
    let path = folder.join(format!("{name}-{seed}.pcap"));
    let same = match run(Some(path.clone())) {
        Err(second) if second == first => "",
        _ => " (AND IT DID NOT REPLAY: the run is not deterministic)",
    };
    let path = path.display();
    Err(format!("replay: cargo run -p fs-sim -- --scenario {name} --seed {seed}{same}\npackets: {path}\n{first}"))
}
