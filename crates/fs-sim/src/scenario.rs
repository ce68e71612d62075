//! Named worlds. Each draws what it does not fix from the seed.

use crate::host::{self, HostConfig};
use crate::link::LinkConfig;
use crate::plan::{self, Kind, Plan, Sizes};
use crate::rng::Rng;
use crate::rss::Rss;
use crate::topology::Topology;
use crate::world::{Failure, Report, World, WorldConfig};
use fs_core::{Addressing, CongestionControl, Duration, Framing, Limits, TcpConfig};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Highest rate of loss, reordering, duplication and corruption: 5 %.
pub const BAD_PPM: u32 = 50_000;
/// Ports that hosts listen on.
const PORTS: [u16; 4] = [80, 443, 6379, 8080];
/// Nobody listens there.
const CLOSED_PORT: u16 = 9;

/// A named world.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is about.
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
    /// Kinds of the short connections.
    kinds: Vec<Kind>,
    sizes: Sizes,
    concurrency: usize,
    gap: Duration,
    v4: bool,
    v6: bool,
}

impl Draft {
    /// Two hosts, both addresses families, 200 short and 8 bulk connections.
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
            kinds: Kind::ORDERLY.to_vec(),
            sizes: Sizes::default(),
            concurrency: 32,
            gap: Duration::from_millis(2),
            v4: true,
            v6: true,
        }
    }

    fn bad(rng: &mut Rng) -> Self {
        Self::two(|| LinkConfig::draw(rng, BAD_PPM))
    }

    fn each_host(mut self, mut change: impl FnMut(&mut HostConfig)) -> Self {
        self.hosts.iter_mut().for_each(&mut change);
        self
    }
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "mixed",
        about: "10,000 short and 100 bulk connections over a bad link",
        build: |rng| {
            let mut draft = Draft::bad(rng);
            draft.kinds.extend(Kind::RUDE);
            Draft { short: 10_000, bulk: 100, concurrency: 200, ..draft }.each_host(|host| draw_tcp(host, rng))
        },
    },
    Scenario {
        name: "clean",
        about: "a perfect link: nothing may be retransmitted or dropped",
        build: |_| {
            let draft = Draft::two(|| LinkConfig::clean(Duration::from_micros(200)));
            // Room for everybody who connects before the first neighbour is known.
            draft.each_host(|host| host.limits.neighbour_queue = 256)
        },
    },
    Scenario {
        name: "small",
        about: "a small `mixed`",
        build: |rng| {
            let mut draft = Draft::bad(rng);
            draft.kinds.extend(Kind::RUDE);
            draft.each_host(|host| draw_tcp(host, rng))
        },
    },
    Scenario {
        name: "rude",
        about: "aborts, unread data, nobody listening",
        build: |rng| Draft { kinds: Kind::RUDE.to_vec(), bulk: 0, ..Draft::bad(rng) },
    },
    Scenario {
        name: "time-wait",
        about: "orderly connections; TIME-WAIT outlives the world, so each is counted",
        build: |rng| {
            let draft = Draft::bad(rng);
            draft.each_host(|host| host.tcp.time_wait = Duration::from_secs(36_000))
        },
    },
    Scenario {
        name: "reuse",
        about: "few ports and a short TIME-WAIT: address pairs come back soon",
        build: |rng| {
            let draft = Draft { short: 1000, bulk: 0, v6: false, ..Draft::bad(rng) };
            let wait = Duration::from_millis(rng.range(10, 5000));
            draft.each_host(|host| {
                host.ephemeral_ports = (50_000, 50_040);
                host.tcp.time_wait = wait;
            })
        },
    },
    Scenario {
        name: "bulk",
        about: "long transfers over a bad link",
        build: |rng| Draft {
            short: 0,
            bulk: 12,
            sizes: Sizes { bulk_min: 256 << 10, bulk_max: 8 << 20, ..Sizes::default() },
            ..Draft::bad(rng)
        },
    },
    Scenario {
        name: "open-both",
        about: "simultaneous open",
        build: |rng| Draft { short: 100, bulk: 0, kinds: vec![Kind::SimultaneousOpen], ..Draft::bad(rng) },
    },
    Scenario {
        name: "cores",
        about: "several cores, packets on the wrong ones, tables that change",
        build: |rng| {
            let addressing = rng.pick(&[Addressing::Host, Addressing::Standalone]);
            let draft = Draft::bad(rng);
            draft.each_host(|host| {
                host.cores = rng.pick(&[1, 2, 3, 4]);
                host.rss = rng.pick(&[Rss::Flow, Rss::Changing, Rss::Random, Rss::One]);
                host.listen_on_one = rng.chance(300_000);
                host.addressing = addressing;
                host.frames = 4096;
            })
        },
    },
    Scenario {
        name: "pressure",
        about: "few frames, small buffers, slow readers",
        build: |rng| {
            let mut draft = Draft { bulk: 24, short: 100, ..Draft::bad(rng) };
            draft.sizes.bulk_max = 256 << 10;
            draft.each_host(|host| {
                host.frames = rng.range(400, 1000) as usize;
                host.tcp.send_buffer = 32 << 10;
                host.tcp.receive_buffer_initial = rng.pick(&[4 << 10, 16 << 10, 64 << 10]);
                host.tcp.receive_buffer_max = 128 << 10;
                host.tx_ring = 16;
            })
        },
    },
    Scenario {
        name: "jumbo",
        about: "packets of several frames",
        build: |rng| {
            let draft = Draft { mtu: 9000, ..Draft::bad(rng) };
            draft.each_host(|host| host.frame_size = rng.pick(&[2048, 4096]))
        },
    },
    Scenario {
        name: "mtu",
        about: "odd MTUs, checksums finished by the device",
        build: |rng| {
            let mtu = rng.range(1280, 1500) as u16;
            Draft { mtu, ..Draft::bad(rng) }.each_host(|host| host.tx_checksum = true)
        },
    },
    Scenario {
        name: "raw-ip",
        about: "no Ethernet, as on TUN",
        build: |rng| Draft { framing: Framing::Ip, ..Draft::bad(rng) },
    },
    Scenario { name: "vlan", about: "one VLAN tag", build: |rng| Draft { vlan: Some(77), ..Draft::bad(rng) } },
    Scenario {
        name: "standalone",
        about: "ARP and NDISC of our own, over a bad link",
        build: |rng| Draft::bad(rng).each_host(|host| host.addressing = Addressing::Standalone),
    },
    Scenario {
        name: "hosts",
        about: "five hosts",
        build: |rng| {
            let mut draft = Draft::bad(rng);
            for _ in 0..3 {
                draft.hosts.push(HostConfig { link: LinkConfig::draw(rng, BAD_PPM), ..HostConfig::plain() });
            }
            draft
        },
    },
    Scenario {
        name: "flood",
        about: "more handshakes than the SYN cache and the backlog hold",
        build: |rng| {
            // Clients that speak first: one that waits for the server's first word would wait for ever if its
            // only ACK found the accept queue full, since nothing was kept of its handshake.
            let kinds = vec![Kind::PingPong, Kind::HalfClose];
            let draft = Draft {
                short: 600,
                bulk: 0,
                concurrency: 300,
                gap: Duration::from_micros(100),
                kinds,
                ..Draft::bad(rng)
            };
            draft.each_host(|host| {
                host.limits.syn_cache = 8;
                host.backlog = rng.pick(&[4, 1024]);
            })
        },
    },
    Scenario {
        name: "plain-tcp",
        about: "no window scaling, timestamps or SACK",
        build: |rng| {
            let draft = Draft::bad(rng);
            draft.each_host(|host| {
                (host.tcp.window_scaling, host.tcp.timestamps, host.tcp.sack) = (false, false, false);
            })
        },
    },
];

/// Draws a host's TCP constants.
fn draw_tcp(host: &mut HostConfig, rng: &mut Rng) {
    let TcpConfig { congestion_control, window_scaling, timestamps, sack, time_wait, .. } = &mut host.tcp;
    *congestion_control = rng.pick(&[CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::Bbr]);
    *window_scaling = rng.chance(800_000);
    *timestamps = rng.chance(800_000);
    *sack = rng.chance(800_000);
    *time_wait = rng.pick(&[Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(36_000)]);
    host.latency = rng.duration(Duration::ZERO, Duration::from_micros(200));
}

impl Scenario {
    /// By name.
    pub fn named(name: &str) -> Option<Scenario> {
        SCENARIOS.iter().copied().find(|s| s.name == name)
    }

    /// The world that a seed makes of it.
    pub fn world(&self, seed: u64, pcap: Option<PathBuf>) -> WorldConfig {
        let mut rng = Rng::new(seed ^ 0x7363_656e_6172_696f);
        let mut draft = (self.build)(&mut rng);
        let plans = plans(&draft, &mut rng);
        for host in &mut draft.hosts {
            // Both ends of every connection hold frames; a world must not fail for want of slots.
            host.limits = Limits { connections: host.limits.connections.max(4096), ..host.limits.clone() };
        }
        let listen = PORTS.map(|port| (port, plan::options(&mut rng, true))).to_vec();
        WorldConfig {
            seed,
            framing: draft.framing,
            vlan: draft.vlan,
            mtu: draft.mtu,
            hosts: draft.hosts,
            topology: Topology::switch(),
            changes: Vec::new(),
            policed: true,
            listen,
            plans,
            concurrency: draft.concurrency,
            gap: draft.gap,
            time_max: Duration::from_secs(24 * 3600),
            pcap,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// What the oracle found. A panic of the engine is a failure as well.
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
            options: plan::options(rng, kind.resets()),
            client_script,
            server_script,
            seed: rng.next(),
        }
    };
    kinds.iter().enumerate().map(make).collect()
}

/// Runs a seed; after a failure, runs it again with its packets written to `folder`, and says how to replay.
///
/// # Errors
/// What the oracle found, the line that replays it, and where the packets are.
pub fn run_or_explain(scenario: Scenario, seed: u64, folder: &Path) -> Result<Report, String> {
    explain(scenario.name, seed, folder, |pcap| scenario.run(seed, pcap))
}

/// [`run_or_explain`] for a world that is run by `run` (with the file that its packets shall go to).
///
/// # Errors
/// As there.
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
