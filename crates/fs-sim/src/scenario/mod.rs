//! Named worlds. The seed determines everything that a scenario does not fix.

mod hosts;
mod paths;

use crate::change::Change;
use crate::host::{self, HostConfig};
use crate::link::LinkConfig;
use crate::plan::{self, Kind, Plan, Sizes};
use crate::rng::Rng;
use crate::topology::Topology;
use crate::world::{Failure, Report, World, WorldConfig};
use fs_core::{CongestionControl, Duration, Framing, Limits, TcpConfig, TcpOptions};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Maximum rate of loss, reordering, duplication and corruption: 5 %.
pub const BAD_PPM: u32 = 50_000;
/// Ports that hosts listen on.
const PORTS: [u16; 4] = [80, 443, 6379, 8080];
/// A port without a listener.
const CLOSED_PORT: u16 = 9;

/// A named world.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it tests.
    pub about: &'static str,
    build: fn(&mut Rng) -> Draft,
}

/// A scenario before its connections are drawn.
struct Draft {
    framing: Framing,
    vlan: Option<u16>,
    mtu: u16,
    hosts: Vec<HostConfig>,
    short: usize,
    bulk: usize,
    /// Clients use keepalive, for every kind of connection.
    keepalive: bool,
    /// Kinds of the short connections.
    kinds: Vec<Kind>,
    sizes: Sizes,
    concurrency: usize,
    gap: Duration,
    v4: bool,
    v6: bool,
    topology: Topology,
    changes: Vec<(Duration, Change)>,
    /// Urgent bytes stay in the stream; both ends send some, and ends of records.
    oob_inline: bool,
    /// TCP_USER_TIMEOUT of all connections.
    user_timeout: Option<Duration>,
}

impl Draft {
    /// Makes a draft with two hosts, both address families, 200 short and 8 bulk connections.
    fn two(link: impl FnMut() -> LinkConfig) -> Self {
        let mut link = link;
        let host = |link| HostConfig { link, ..HostConfig::plain() };
        Self {
            framing: Framing::Ethernet,
            vlan: None,
            mtu: 1500,
            hosts: vec![host(link()), host(link())],
            short: 200,
            bulk: 8,
            keepalive: false,
            kinds: Kind::ORDERLY.to_vec(),
            sizes: Sizes::default(),
            concurrency: 32,
            gap: Duration::from_millis(2),
            v4: true,
            v6: true,
            topology: Topology::switch(),
            changes: Vec::new(),
            oob_inline: false,
            user_timeout: None,
        }
    }

    /// Adds the options that all its connections share.
    fn mark(&self, options: TcpOptions) -> TcpOptions {
        TcpOptions { oob_inline: self.oob_inline, user_timeout: self.user_timeout, ..options }
    }

    fn bad(rng: &mut Rng) -> Self {
        Self::two(|| LinkConfig::draw(rng, BAD_PPM))
    }

    fn each_host(mut self, mut change: impl FnMut(&mut HostConfig)) -> Self {
        self.hosts.iter_mut().for_each(&mut change);
        self
    }
}

/// Returns all scenarios.
pub fn scenarios() -> impl Iterator<Item = Scenario> {
    hosts::HOSTS.iter().chain(paths::PATHS).copied()
}

/// Draws a host's TCP constants.
fn draw_tcp(host: &mut HostConfig, rng: &mut Rng) {
    let TcpConfig { congestion_control, window_scaling, timestamps, sack, time_wait, .. } = &mut host.tcp;
    *congestion_control = rng.pick(CongestionControl::ALL);
    *window_scaling = rng.chance(800_000);
    *timestamps = rng.chance(800_000);
    *sack = rng.chance(800_000);
    *time_wait = rng.pick(&[Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(36_000)]);
    host.latency = rng.duration(Duration::ZERO, Duration::from_micros(200));
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
        let listen = PORTS.map(|port| (port, draft.mark(plan::options(&mut rng, true)))).to_vec();
        WorldConfig {
            seed,
            framing: draft.framing,
            vlan: draft.vlan,
            mtu: draft.mtu,
            hosts: draft.hosts,
            topology: draft.topology,
            changes: draft.changes,
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
        let (client_script, server_script) = kind.scripts(rng, &draft.sizes);
        Plan {
            id: id as u32,
            kind,
            client,
            server,
            to: SocketAddr::new(address(server), port),
            from: (kind == Kind::SimultaneousOpen).then(|| SocketAddr::new(address(client), 20_000 + id as u16)),
            options: draft.mark(plan::options(rng, kind.resets() || draft.keepalive)),
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

/// As [`run_or_explain`], for a world that is run by `run` (with the file for its packets).
///
/// # Errors
/// As [`run_or_explain`].
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
