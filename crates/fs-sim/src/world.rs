//! The world: hosts, links and a clock that jumps from one event to the next.

use crate::change::{Change, HostChange, LinkAt};
use crate::conn::{Conn, End, Progress, Side};
use crate::digest::Digest;
use crate::host::{self, Host, HostConfig, IFACE, Listener, Shard};
use crate::link::{Delivery, Link, LinkConfig, LinkStats};
use crate::pcap::Pcap;
use crate::plan::{Kind, Plan, Step};
use crate::police::Police;
use crate::rng::Rng;
use crate::rss::Rss;
use crate::topology::Topology;
use crate::wire;
use fs_core::{
    Connect, CoreId, Duration, Event, FramePool, Framing, Instant, Listen, Ready, RxChecksum, RxFrame, Stats, TcpId,
    TcpInfo, TcpOptions, TxFrame,
};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;

mod changes;
mod late_acks;
mod network;
mod oracle;
mod queue;
mod states;
mod turn;
mod waits;

use queue::{Action, Entry};

/// How long transfers may wait without a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongestWaits {
    /// A sender with whole segments and space in both windows sends nothing.
    pub sender: Duration,
    /// A reader has read all that has arrived, and its peer has written more. `None` if packets are lost.
    pub reader: Option<Duration>,
}

/// Configuration of a world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Seed of all randomness.
    pub seed: u64,
    /// Framing of packets on all interfaces.
    pub framing: Framing,
    /// VLAN that all hosts are on.
    pub vlan: Option<u16>,
    /// MTU of all interfaces.
    pub mtu: u16,
    /// The hosts.
    pub hosts: Vec<HostConfig>,
    /// The links and routers between the hosts.
    pub topology: Topology,
    /// Changes and their times.
    pub changes: Vec<(Duration, Change)>,
    /// No transfer waits without a cause for longer than this.
    pub longest_waits: Option<LongestWaits>,
    /// The police checks every packet.
    pub policed: bool,
    /// Stacks get their packets one at a time, and every connection's state is checked after each.
    pub one_by_one: bool,
    /// Ports that every host listens on, with the options of accepted connections.
    pub listen: Vec<(u16, TcpOptions)>,
    /// Plans of the connections.
    pub plans: Vec<Plan>,
    /// Number of concurrent connections.
    pub concurrency: usize,
    /// Maximum pause between one connection's end and the next one's start.
    pub gap: Duration,
    /// Time by which the plans must be complete.
    pub time_max: Duration,
    /// File for all packets.
    pub pcap: Option<PathBuf>,
}

impl WorldConfig {
    /// Makes hosts on one switch, with Ethernet and an MTU of 1500, without connections.
    pub fn new(seed: u64, hosts: Vec<HostConfig>) -> Self {
        Self {
            seed,
            framing: Framing::Ethernet,
            vlan: None,
            mtu: 1500,
            hosts,
            topology: Topology::switch(),
            changes: Vec::new(),
            longest_waits: None,
            policed: true,
            one_by_one: false,
            listen: Vec::new(),
            plans: Vec::new(),
            concurrency: usize::MAX,
            gap: Duration::ZERO,
            time_max: Duration::from_secs(24 * 3600),
            pcap: None,
        }
    }
}

/// A detected error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Virtual time at which it was detected.
    pub at: Instant,
    /// The oracle's message.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {:.6} s: {}", self.at.as_nanos() as f64 / 1e9, self.what)
    }
}

/// Summary of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Hash of all packets and their times.
    pub digest: Digest,
    /// Packets sent.
    pub packets: u64,
    /// Elapsed virtual time.
    pub took: Duration,
    /// Number of connections.
    pub connections: usize,
    /// Counters of all stacks.
    pub stats: Stats,
    /// Counters of all links.
    pub links: LinkStats,
    /// Packets that found no free frame on arrival.
    pub rx_dropped: u64,
    /// Turns without received and without sent packets.
    pub idle_turns: u64,
    /// Turns in which a sender with whole segments and space in both windows sent nothing
    /// ([`WorldConfig::longest_waits`]): fs-core's `send_window` was below cwnd.
    pub held_back: u64,
    /// SYNs with data, as counted by the police.
    pub syn_data: u64,
    /// Observed changes of state (`WorldConfig::one_by_one`), by name.
    pub transitions: BTreeSet<(String, String)>,
}

/// Progress of a plan.
#[derive(Clone, Copy, Debug, Default)]
struct Status {
    begun: bool,
    client: Option<End>,
    server_begun: bool,
    server: Option<End>,
    /// True once the connection is counted as done.
    counted: bool,
}

/// Number of turns between two checks of a shard's connections for lost events.
const SWEEP_TURNS: u64 = 64;
/// Number of turns at one time after which a stack that always requests another one is spinning.
const SPINS_MAX: u32 = 10_000;
/// A SYN cache of this size or less is meant to overflow.
const SYN_CACHE_SMALL: u32 = 64;
/// Time after which a core without a free frame for sending tries again.
const TX_RETRY: Duration = Duration::from_micros(100);
/// Time for orphans (FIN-WAIT-2, keepalive, retransmission) after the last application has ended.
const DRAIN: Duration = Duration::from_secs(7200);

/// The world.
pub struct World {
    config: WorldConfig,
    plans: Vec<Rc<Plan>>,
    now: Instant,
    rng: Rng,
    hosts: Vec<Host>,
    /// Links of the hosts, then those of the topology.
    links: Vec<Link>,
    next_hops: Vec<Vec<Option<usize>>>,
    queue: BinaryHeap<Entry>,
    order: u64,
    status: Vec<Status>,
    /// The latest plan of each (client, server) address pair.
    by_tuple: BTreeMap<(SocketAddr, SocketAddr), usize>,
    next_plan: usize,
    active: usize,
    done: usize,
    on_the_way: usize,
    digest: Digest,
    packets: u64,
    idle_turns: u64,
    held_back: u64,
    transitions: BTreeSet<(String, String)>,
    police: Option<Police>,
    pcap: Option<Pcap>,
    arrivals: Vec<Delivery>,
}

impl World {
    /// Makes the world and schedules its beginning.
    ///
    /// # Errors
    /// Returned if the pcap file cannot be made.
    pub fn new(mut config: WorldConfig) -> Result<Self, Failure> {
        let mut rng = Rng::new(config.seed);
        let plans: Vec<_> = core::mem::take(&mut config.plans).into_iter().map(Rc::new).collect();
        let pcap = match &config.pcap {
            Some(path) => Some(
                Pcap::create(path, config.framing)
                    .map_err(|e| Failure { at: Instant::ZERO, what: format!("{}: {e}", path.display()) })?,
            ),
            None => None,
        };
        let make = |(number, host): (usize, &HostConfig)| {
            Host::new(number, host.clone(), config.framing, config.vlan, config.mtu, rng.fork())
        };
        let hosts: Vec<_> = config.hosts.iter().enumerate().map(make).collect();
        let own = config.hosts.iter().map(|h| &h.link);
        let pipes = config.topology.pipes.iter().map(|p| &p.link);
        let links = own.chain(pipes).map(|link| Link::new(link.clone(), config.framing, rng.fork())).collect();
        // Each core answers a SYN itself, and cookies answer it again: flows with two handshakes
        // are checked by their bytes only.
        let one_answer = config.hosts.iter().all(|h| h.cores == 1 && h.limits.syn_cache > SYN_CACHE_SMALL);
        let initial_window = config.hosts.iter().map(|h| h.tcp.initial_window).max().unwrap_or_default();
        let police = (one_answer && config.policed).then(|| Police::new(config.framing, initial_window));
        let mut world = Self {
            status: vec![Status::default(); plans.len()],
            plans,
            now: Instant::ZERO,
            rng,
            hosts,
            links,
            next_hops: config.topology.next_hops(),
            queue: BinaryHeap::new(),
            order: 0,
            by_tuple: BTreeMap::new(),
            next_plan: 0,
            active: 0,
            done: 0,
            on_the_way: 0,
            digest: Digest::default(),
            packets: 0,
            idle_turns: 0,
            held_back: 0,
            transitions: BTreeSet::new(),
            police,
            pcap,
            arrivals: Vec::new(),
            config,
        };
        world.listen()?;
        for host in 0..world.hosts.len() {
            for core in 0..world.hosts[host].shards.len() {
                world.turn_by(host, core, Instant::ZERO);
            }
            if matches!(world.hosts[host].config.rss, Rss::Changing | Rss::Random) {
                world.schedule(Duration::from_millis(50), Action::NewRss { host });
            }
        }
        for (number, &(after, _)) in world.config.changes.clone().iter().enumerate() {
            world.schedule(after, Action::Change(number));
        }
        // Connections begin when all cores know all cores' listeners.
        let first = world.config.concurrency.min(world.plans.len());
        for _ in 0..first {
            world.start_next(Duration::from_millis(1));
        }
        Ok(world)
    }

    fn listen(&mut self) -> Result<(), Failure> {
        for host in 0..self.hosts.len() {
            let cores = if self.hosts[host].config.listen_on_one { 1 } else { self.hosts[host].shards.len() };
            (0..cores).try_for_each(|core| self.listen_on(host, core))?;
        }
        Ok(())
    }

    fn listen_on(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let Host { config: HostConfig { backlog, fast_open, .. }, ref mut shards, .. } = self.hosts[host];
        for &(port, options) in &self.config.listen {
            let at = SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), port);
            let fast_open = if fast_open { backlog } else { 0 };
            let listen = Listen { at, backlog, v6_only: false, fast_open, options };
            let listened = shards[core].stack.tcp_listen(listen);
            let failed = |e| Failure { at: self.now, what: format!("listen on {at}: {e}") };
            shards[core].listeners.push(Listener { id: listened.map_err(failed)?, ready: false });
        }
        Ok(())
    }

    fn schedule(&mut self, after: Duration, action: Action) {
        self.schedule_at(self.now + after, action);
    }

    fn schedule_at(&mut self, at: Instant, action: Action) {
        self.order += 1;
        self.queue.push(Entry { at, order: self.order, action });
    }

    /// Ensures that the shard has a turn at `at` or earlier.
    fn turn_by(&mut self, host: usize, core: usize, at: Instant) {
        let shard = &mut self.hosts[host].shards[core];
        if shard.turn_at.is_none_or(|already| at < already) {
            shard.turn_at = Some(at);
            self.schedule_at(at, Action::Turn { host, core });
        }
    }

    /// Schedules a turn soon, as an interrupt or a polling loop would.
    fn turn_soon(&mut self, host: usize, core: usize) {
        let config = &self.hosts[host].config;
        let wait = self.rng.duration(Duration::ZERO, config.latency);
        self.turn_by(host, core, self.now + wait);
    }

    fn start_next(&mut self, after: Duration) {
        if self.next_plan < self.plans.len() {
            let wait = after + self.rng.duration(Duration::ZERO, self.config.gap);
            self.schedule(wait, Action::Start(self.next_plan));
            self.next_plan += 1;
            self.active += 1;
        }
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, Failure> {
        Err(Failure { at: self.now, what: what.into() })
    }

    /// Runs the world up to a time, for worlds whose plans never end.
    ///
    /// # Errors
    /// The error that the oracle has detected.
    pub fn run_until(&mut self, until: Instant) -> Result<(), Failure> {
        while self.queue.peek().is_some_and(|entry| entry.at <= until) {
            let Some(Entry { at, action, .. }) = self.queue.pop() else { break };
            self.now = at;
            self.act(action)?;
        }
        self.now = until;
        Ok(())
    }

    /// Returns an application's end of a plan while it exists: bytes sent and read, and the
    /// connection's TCP_INFO.
    pub fn flow(&self, plan: usize, side: Side) -> Option<(u64, u64, TcpInfo)> {
        let shards = self.hosts.iter().flat_map(|h| &h.shards);
        let mut all = shards.flat_map(|s| s.conns.iter().flatten().map(move |c| (s, c)));
        let (shard, conn) = all.find(|(_, c)| c.plan.id as usize == plan && c.side == side)?;
        let (sent, read) = conn.moved();
        Some((sent, read, shard.stack.tcp_info(conn.id).ok()?))
    }

    /// Returns the number of packets sent so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of turns of all cores so far.
    pub fn turns(&self) -> u64 {
        self.hosts.iter().flat_map(|h| &h.shards).map(|s| s.turns).sum()
    }

    /// Returns the counters of a host's stacks.
    pub fn host_stats(&self, host: usize) -> Stats {
        let mut all = Stats::default();
        self.hosts[host].shards.iter().for_each(|s| all.add(s.stack.stats()));
        all
    }

    /// Returns the counters of the links: those of the hosts, then those of the topology.
    pub fn link_stats(&self) -> Vec<LinkStats> {
        self.links.iter().map(|link| link.stats).collect()
    }

    /// Runs the world to its end.
    ///
    /// # Errors
    /// The error that the oracle has detected.
    pub fn run(mut self) -> Result<Report, Failure> {
        let mut plans_done_at = None;
        let mut time_waits_checked = false;
        while let Some(Entry { at, action, .. }) = self.queue.pop() {
            self.now = at;
            self.act(action)?;
            if self.done < self.plans.len() {
                if self.now > Instant::ZERO + self.config.time_max {
                    return self.fail(format!(
                        "{} plans are not done\n{}",
                        self.plans.len() - self.done,
                        self.describe()
                    ));
                }
                continue;
            }
            let since = *plans_done_at.get_or_insert(self.now);
            let left: Vec<_> = self.hosts.iter().map(Host::left).collect();
            if left.iter().all(|l| l.0 == 0) && self.on_the_way == 0 {
                if !time_waits_checked {
                    time_waits_checked = true;
                    self.check_time_waits()?;
                }
                if left.iter().all(|l| l.1 == 0 && l.2 == 0) {
                    return self.finish();
                }
            }
            let longest = self.hosts.iter().map(|h| h.config.tcp.time_wait).max().unwrap_or_default();
            if self.now.since(since) > DRAIN + longest {
                return self.fail(format!("(connections, TIME-WAITs, frames) left per host: {left:?}"));
            }
        }
        if self.done < self.plans.len() {
            return self.fail(format!("nothing will ever happen again\n{}", self.describe()));
        }
        self.finish()
    }

    fn act(&mut self, action: Action) -> Result<(), Failure> {
        match action {
            Action::Arrive { host, bytes } => {
                self.on_the_way -= 1;
                self.arrive(host, &bytes);
            }
            Action::Forward { router, host, bytes } => {
                self.on_the_way -= 1;
                self.forward(router, host, bytes)?;
            }
            Action::Change(number) => self.change(self.config.changes[number].1),
            Action::Relieve { host } => self.relieve(host),
            Action::Turn { host, core } => {
                // Superseded by an earlier turn?
                let Host { shards, paused_until, .. } = &mut self.hosts[host];
                if shards[core].turn_at == Some(self.now) {
                    shards[core].turn_at = None;
                    match *paused_until {
                        until if until > self.now => self.turn_by(host, core, until),
                        _ => self.turn(host, core)?,
                    }
                }
            }
            Action::Message { host, core, message } => {
                self.on_the_way -= 1;
                self.hosts[host].shards[core].mailbox.push_back(message);
                self.turn_soon(host, core);
            }
            Action::Sent { host, core, packets, frames } => {
                self.on_the_way -= 1;
                let shard = &mut self.hosts[host].shards[core];
                shard.tx_outstanding -= packets;
                for frame in frames {
                    shard.stack.pool_mut().free(frame);
                }
                if shard.stack.tx_pending(IFACE) {
                    self.turn_soon(host, core);
                }
            }
            Action::Start(plan) => match self.hosts[self.plans[plan].client].paused_until {
                until if until > self.now => self.schedule_at(until, Action::Start(plan)),
                _ => self.start(plan)?,
            },
            Action::Resume { host, core, id } if self.hosts[host].paused_until > self.now => {
                self.schedule_at(self.hosts[host].paused_until, Action::Resume { host, core, id });
            }
            Action::Resume { host, core, id } => {
                if let Some(conn) = self.hosts[host].shards[core].conn(id) {
                    conn.resume();
                    self.run_conn(host, core, id)?;
                    self.turn_soon(host, core);
                }
            }
            Action::Resolved { host, addr } => {
                let hosts = self.hosts.len();
                let mac = host::by_ip(addr, hosts).map(host::mac);
                for core in 0..self.hosts[host].shards.len() {
                    self.hosts[host].shards[core].stack.set_neighbour(IFACE, addr, mac);
                    self.turn_soon(host, core);
                }
            }
            Action::Listen { host, core } => {
                self.listen_on(host, core)?;
                self.turn_soon(host, core);
            }
            Action::LateAck { host, flow, number } => self.end_late(host, flow, Some(number))?,
            Action::NewRss { host } => {
                self.hosts[host].rss_epoch += 1;
                if self.done < self.plans.len() {
                    let next = self.rng.duration(Duration::from_millis(5), Duration::from_millis(500));
                    self.schedule(next, Action::NewRss { host });
                }
            }
        }
        Ok(())
    }
}

impl Status {
    /// Returns true if both ends are done. A server that never saw the connection is ignored if the
    /// client has aborted it.
    fn done(&self, kind: Kind) -> bool {
        let server_may_miss = kind.resets();
        self.client.is_some() && (self.server.is_some() || (server_may_miss && !self.server_begun))
    }
}
