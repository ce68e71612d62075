//! The world: hosts, links and a clock that jumps from one thing that happens to the next.

use crate::conn::{Conn, End, Progress, Side};
use crate::digest::Digest;
use crate::host::{self, Host, HostConfig, IFACE, Listener, Shard};
use crate::link::{Delivery, Link, LinkStats};
use crate::pcap::Pcap;
use crate::plan::{Kind, Plan};
use crate::police::Police;
use crate::rng::Rng;
use crate::rss::Rss;
use crate::wire;
use fs_core::{
    Connect, CoreId, CoreMessage, Duration, Event, Frame, FramePool, Framing, Instant, Listen, Ready, RxChecksum,
    RxFrame, Stats, TcpId, TcpOptions, TxFrame,
};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;

/// How a world is made.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// All randomness.
    pub seed: u64,
    /// How packets are framed.
    pub framing: Framing,
    /// VLAN that all hosts are on.
    pub vlan: Option<u16>,
    /// MTU of all interfaces.
    pub mtu: u16,
    /// The hosts.
    pub hosts: Vec<HostConfig>,
    /// Ports that every host listens on, with the options of what it accepts there.
    pub listen: Vec<(u16, TcpOptions)>,
    /// What connections there will be.
    pub plans: Vec<Plan>,
    /// Connections open at once.
    pub concurrency: usize,
    /// Pause between one connection's end and the next one's start, at most.
    pub gap: Duration,
    /// Failure if the plans are not done by then.
    pub time_max: Duration,
    /// Where all packets are written to.
    pub pcap: Option<PathBuf>,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When, in virtual time.
    pub at: Instant,
    /// What the oracle says.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {:.6} s: {}", self.at.as_nanos() as f64 / 1e9, self.what)
    }
}

/// What a run was.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Hash of all packets with their times.
    pub digest: Digest,
    /// Packets sent.
    pub packets: u64,
    /// Virtual time that passed.
    pub took: Duration,
    /// Connections.
    pub connections: usize,
    /// Of all stacks.
    pub stats: Stats,
    /// Of all links.
    pub links: LinkStats,
    /// Packets that found no frame on arrival.
    pub rx_dropped: u64,
}

/// How far a plan is.
#[derive(Clone, Copy, Debug, Default)]
struct Status {
    begun: bool,
    client: Option<End>,
    server_begun: bool,
    server: Option<End>,
    /// Counted as done.
    counted: bool,
}

enum Action {
    Arrive { host: usize, bytes: Vec<u8> },
    Turn { host: usize, core: usize },
    Message { host: usize, core: usize, message: CoreMessage },
    Sent { host: usize, core: usize, packets: usize, frames: Vec<Frame> },
    Start(usize),
    Resume { host: usize, core: usize, id: TcpId },
    Resolved { host: usize, addr: IpAddr },
    NewRss { host: usize },
}

struct Entry {
    at: Instant,
    /// Order of entries of the same time: first come, first served.
    order: u64,
    action: Action,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// Reversed: the heap's greatest entry is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Turns between two sweeps of a shard's connections for lost events.
const SWEEP_TURNS: u64 = 64;
/// Turns at one time after which a stack that always wants another one is called spinning.
const SPINS_MAX: u32 = 10_000;
/// A SYN cache of this size or less is meant to overflow.
const SYN_CACHE_SMALL: u32 = 64;
/// How soon a core that had no frame to send with tries again.
const TX_RETRY: Duration = Duration::from_micros(100);
/// How long orphans (FIN-WAIT-2, keepalive, retransmission) may need after the last application is done.
const DRAIN: Duration = Duration::from_secs(7200);

/// The world.
pub struct World {
    config: WorldConfig,
    plans: Vec<Rc<Plan>>,
    now: Instant,
    rng: Rng,
    hosts: Vec<Host>,
    links: Vec<Link>,
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
    police: Option<Police>,
    pcap: Option<Pcap>,
    arrivals: Vec<Delivery>,
}

impl World {
    /// Makes the world and schedules its beginning.
    ///
    /// # Errors
    /// When the pcap file cannot be made.
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
        let links = config.hosts.iter().map(|h| Link::new(h.link.clone(), config.framing, rng.fork())).collect();
        // Cores answer a SYN each on its own, and cookies answer it again: flows with two handshakes are
        // judged by their bytes only.
        let one_answer = config.hosts.iter().all(|h| h.cores == 1 && h.limits.syn_cache > SYN_CACHE_SMALL);
        let police = one_answer.then(|| Police::new(config.framing, config.vlan.is_some()));
        let mut world = Self {
            status: vec![Status::default(); plans.len()],
            plans,
            now: Instant::ZERO,
            rng,
            hosts,
            links,
            queue: BinaryHeap::new(),
            order: 0,
            by_tuple: BTreeMap::new(),
            next_plan: 0,
            active: 0,
            done: 0,
            on_the_way: 0,
            digest: Digest::default(),
            packets: 0,
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
            if world.hosts[host].config.rss == Rss::Changing {
                world.schedule(Duration::from_millis(50), Action::NewRss { host });
            }
        }
        // Connections begin when the listeners of all cores are known to all cores.
        let first = world.config.concurrency.min(world.plans.len());
        for _ in 0..first {
            world.start_next(Duration::from_millis(1));
        }
        Ok(world)
    }

    fn listen(&mut self) -> Result<(), Failure> {
        for host in &mut self.hosts {
            let cores = if host.config.listen_on_one { 1 } else { host.shards.len() };
            for shard in &mut host.shards[..cores] {
                for &(port, options) in &self.config.listen {
                    let at = SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), port);
                    let listen = Listen { at, backlog: host.config.backlog, v6_only: false, options };
                    let id = shard
                        .stack
                        .tcp_listen(listen)
                        .map_err(|e| Failure { at: Instant::ZERO, what: format!("listen on {at}: {e}") })?;
                    shard.listeners.push(Listener { id, ready: false });
                }
            }
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

    /// Makes sure that the shard has a turn at `at` or earlier.
    fn turn_by(&mut self, host: usize, core: usize, at: Instant) {
        let shard = &mut self.hosts[host].shards[core];
        if shard.turn_at.is_none_or(|already| at < already) {
            shard.turn_at = Some(at);
            self.schedule_at(at, Action::Turn { host, core });
        }
    }

    /// As an interrupt or a polling loop would: soon.
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

    /// Runs the world to its end.
    ///
    /// # Errors
    /// What the oracle found.
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

    fn finish(mut self) -> Result<Report, Failure> {
        let mut report = Report {
            digest: self.digest,
            packets: self.packets,
            took: self.now.since(Instant::ZERO),
            connections: self.done,
            ..Report::default()
        };
        for (number, host) in self.hosts.iter_mut().enumerate() {
            for (core, shard) in host.shards.iter_mut().enumerate() {
                report.stats.add(shard.stack.stats());
                report.rx_dropped += shard.rx_dropped;
                let Shard { stack, rx, mailbox, conns, .. } = shard;
                let (c, t, f) = (stack.tcp_connections(), stack.tcp_time_waits(), stack.pool().in_use());
                let apps = conns.iter().flatten().count();
                let waiting = rx.len() + mailbox.len();
                if (c, t, f, apps, waiting) != (0, 0, 0, 0, 0) {
                    let what = format!(
                        "at the end host {number} core {core} has {c} connections, {t} TIME-WAITs, {f} frames, {apps} applications, {waiting} packets"
                    );
                    return Err(Failure { at: self.now, what });
                }
            }
        }
        for link in &self.links {
            let LinkStats { sent, lost, overflowed, reordered, duplicated, corrupted } = link.stats;
            report.links.sent += sent;
            report.links.lost += lost;
            report.links.overflowed += overflowed;
            report.links.reordered += reordered;
            report.links.duplicated += duplicated;
            report.links.corrupted += corrupted;
        }
        Ok(report)
    }

    /// TIME-WAIT is where the first FIN came from, and nowhere else. Only exact while no record has run out.
    fn check_time_waits(&self) -> Result<(), Failure> {
        use crate::plan::FirstFin;
        for (number, host) in self.hosts.iter().enumerate() {
            if self.now.since(Instant::ZERO) >= host.config.tcp.time_wait {
                continue;
            }
            let (mut least, mut most) = (0, 0);
            for &plan in self.by_tuple.values() {
                let plan = &self.plans[plan];
                let (is_client, is_server) = (plan.client == number, plan.server == number);
                match plan.kind.first_fin() {
                    FirstFin::Client => (least, most) = (least + usize::from(is_client), most + usize::from(is_client)),
                    FirstFin::Server => (least, most) = (least + usize::from(is_server), most + usize::from(is_server)),
                    FirstFin::Any | FirstFin::Reset => most += usize::from(is_client || is_server),
                }
            }
            // An exact RST ends a TIME-WAIT: the answer of a peer that has forgotten the connection to an ACK
            // that an old duplicate drew.
            let resets = self.hosts.iter().flat_map(|h| &h.shards).map(|s| s.stack.stats().resets_sent as usize).sum();
            let least = usize::saturating_sub(least, resets);
            let have = host.left().1;
            if !(least..=most).contains(&have) {
                return self.fail(format!("host {number} has {have} TIME-WAITs, expected {least} to {most}"));
            }
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), Failure> {
        match action {
            Action::Arrive { host, bytes } => {
                self.on_the_way -= 1;
                self.arrive(host, &bytes);
            }
            Action::Turn { host, core } => {
                // Superseded by an earlier turn?
                if self.hosts[host].shards[core].turn_at == Some(self.now) {
                    self.hosts[host].shards[core].turn_at = None;
                    self.turn(host, core)?;
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
            Action::Start(plan) => self.start(plan)?,
            Action::Resume { host, core, id } => {
                if let Some(conn) = self.hosts[host].shards[core].conn(id) {
                    conn.pausing = false;
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

    /// The device of `host` receives a packet.
    fn arrive(&mut self, host: usize, bytes: &[u8]) {
        let Host { config, shards, rss_epoch, rng, .. } = &mut self.hosts[host];
        let core = config.rss.queue(bytes, self.config.framing, shards.len(), *rss_epoch, rng);
        let shard = &mut shards[core];
        let first = shard.rx.len();
        let room = shard.stack.pool().payload_room();
        for piece in bytes.chunks(room) {
            let Some(mut frame) = shard.stack.pool_mut().alloc() else {
                shard.rx_dropped += 1;
                for part in shard.rx.drain(first..) {
                    shard.stack.pool_mut().free(part.frame);
                }
                return;
            };
            frame.grow_back(piece.len());
            shard.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(piece);
            if let Some(before) = shard.rx[first..].last_mut() {
                before.frame.set_more(true);
            }
            shard.rx.push(RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown });
        }
        let WorldConfig { framing, vlan, mtu, .. } = self.config;
        if let Some(police) = &mut self.police
            && wire::check(bytes, framing, vlan.is_some(), mtu.into()).is_ok()
        {
            police.arrived(bytes);
        }
        self.turn_soon(host, core);
    }

    /// One turn of a core's loop, in the order that the engine documents.
    fn turn(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let now = self.now;
        let shard = &mut self.hosts[host].shards[core];
        shard.turns += 1;
        shard.stack.set_now(now);
        while let Some(message) = shard.mailbox.pop_front() {
            shard.stack.deliver(message);
        }
        let mut rx = core::mem::take(&mut shard.rx);
        shard.stack.rx_batch(&mut rx);
        if !rx.is_empty() {
            return self.fail(format!("rx_batch left {} frames", rx.len()));
        }
        shard.rx = rx;
        shard.stack.tick();
        self.events(host, core)?;
        self.transmit(host, core)?;
        self.messages(host, core)?;
        if self.hosts[host].shards[core].turns.is_multiple_of(SWEEP_TURNS) {
            self.sweep(host, core)?;
        }
        self.next_turn(host, core)
    }

    fn next_turn(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        let Some(deadline) = shard.stack.next_deadline() else { return Ok(()) };
        if deadline > self.now {
            shard.spins = 0;
            self.turn_by(host, core, deadline);
            return Ok(());
        }
        shard.spins += 1;
        if shard.spins > SPINS_MAX {
            return self.fail(format!("host {host} core {core} spins: deadline {deadline:?} is never dealt with"));
        }
        self.turn_by(host, core, self.now + Duration::from_micros(1));
        Ok(())
    }

    /// Applications run until there are no more events.
    fn events(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        loop {
            let shard = &mut self.hosts[host].shards[core];
            let mut events = core::mem::take(&mut shard.events);
            shard.stack.drain_events(&mut events);
            if events.is_empty() {
                shard.events = events;
                return Ok(());
            }
            for &event in &events {
                self.event(host, core, event)?;
            }
            events.clear();
            self.hosts[host].shards[core].events = events;
        }
    }

    fn event(&mut self, host: usize, core: usize, event: Event) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        match event {
            Event::Tcp(id, ready) => {
                if ready == Ready(0) {
                    return self.fail(format!("an event of {id:?} that says nothing"));
                }
                // None: closed by an earlier event of the batch, or not yet accepted.
                if let Some(conn) = shard.conn(id) {
                    conn.event(ready);
                    if !conn.pausing {
                        self.run_conn(host, core, id)?;
                    }
                }
            }
            Event::Accept(id) => {
                let Some(listener) = shard.listeners.iter_mut().find(|l| l.id == id) else {
                    return self.fail(format!("accept event of {id:?}, which is nobody's"));
                };
                listener.ready = true;
                self.accept(host, core)?;
            }
            Event::Udp(id, _) => return self.fail(format!("event of {id:?}, which is nobody's")),
            Event::NeighbourNeeded(_, addr) => {
                let wait = self.rng.duration(Duration::from_micros(10), Duration::from_millis(2));
                self.schedule(wait, Action::Resolved { host, addr });
            }
        }
        Ok(())
    }

    fn accept(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        for listener in 0..self.hosts[host].shards[core].listeners.len() {
            while self.hosts[host].shards[core].listeners[listener].ready {
                let shard = &mut self.hosts[host].shards[core];
                let Listener { id, ready } = &mut shard.listeners[listener];
                match shard.stack.tcp_accept(*id) {
                    Ok((id, remote)) => self.accepted(host, core, id, remote)?,
                    Err(fs_core::Error::WouldBlock) => *ready = false,
                    Err(e) => return self.fail(format!("accept: {e}")),
                }
            }
        }
        Ok(())
    }

    fn accepted(&mut self, host: usize, core: usize, id: TcpId, remote: SocketAddr) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        let (local, again) = (shard.stack.tcp_local(id), shard.stack.tcp_remote(id));
        let Ok(local) = local else { return self.fail(format!("accepted {id:?} has no local address: {local:?}")) };
        if again != Ok(remote) {
            return self.fail(format!("accept says {remote}, tcp_remote {again:?}"));
        }
        let Some(&plan) = self.by_tuple.get(&(remote, local)) else {
            return self.fail(format!("accepted a connection from {remote} to {local} that nobody made"));
        };
        let status = &mut self.status[plan];
        if core::mem::replace(&mut status.server_begun, true) {
            if status.server.is_some() && shard.stack.stats().syn_cookies_ok > 0 {
                // A late duplicate of the segment that carried the cookie, after the connection's end: nothing
                // was kept that could tell it from a new connection (as on Linux).
                shard.stack.tcp_abort(id);
                return Ok(());
            }
            return self.fail(format!("connection {plan} from {remote} to {local} was accepted twice"));
        }
        let conn = Conn::new(self.plans[plan].clone(), Side::Server, id, false, self.rng.fork());
        if let Err(what) = shard.insert(conn) {
            return self.fail(what);
        }
        self.run_conn(host, core, id)
    }

    /// Starts a plan: its client connects (in a simultaneous open, both ends do).
    fn start(&mut self, plan: usize) -> Result<(), Failure> {
        let Plan { kind, client, server, to, from, options, .. } = *self.plans[plan];
        if !self.connect(plan, Side::Client, client, Connect { remote: to, local: from, options })? {
            // No port free: TIME-WAITs hold them all for a while.
            self.schedule(Duration::from_secs(1), Action::Start(plan));
            return Ok(());
        }
        if let (Kind::SimultaneousOpen, Some(from)) = (kind, from) {
            let connect = Connect { remote: from, local: Some(to), options };
            self.status[plan].server_begun = true;
            if !self.connect(plan, Side::Server, server, connect)? {
                return self.fail(format!("connection {plan}: no port for its other end"));
            }
        }
        Ok(())
    }

    /// False when no port was free.
    fn connect(&mut self, plan: usize, side: Side, host: usize, connect: Connect) -> Result<bool, Failure> {
        let core = self.rng.below(self.hosts[host].shards.len() as u64) as usize;
        let shard = &mut self.hosts[host].shards[core];
        shard.stack.set_now(self.now);
        let id = match shard.stack.tcp_connect(connect) {
            Ok(id) => id,
            Err(fs_core::Error::AddrNotAvailable) => return Ok(false),
            Err(e) => return self.fail(format!("connection {plan}: connect: {e}")),
        };
        let (local, remote) = (shard.stack.tcp_local(id), shard.stack.tcp_remote(id));
        let Ok(local) = local else { return self.fail(format!("connection {plan}: tcp_local: {local:?}")) };
        if remote != Ok(connect.remote) {
            return self.fail(format!("connection {plan} to {}: tcp_remote: {remote:?}", connect.remote));
        }
        self.status[plan].begun = true;
        if side == Side::Client {
            self.by_tuple.insert((local, connect.remote), plan);
        }
        let conn = Conn::new(self.plans[plan].clone(), side, id, true, self.rng.fork());
        if let Err(what) = self.hosts[host].shards[core].insert(conn) {
            return self.fail(what);
        }
        self.turn_soon(host, core);
        Ok(true)
    }

    /// Lets an application go on.
    fn run_conn(&mut self, host: usize, core: usize, id: TcpId) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        shard.stack.set_now(self.now);
        let Some(slot) = shard.conns.get_mut(id.index as usize) else { return Ok(()) };
        let Some(conn) = slot else { return Ok(()) };
        let progress = conn.progress(&mut shard.stack);
        let (plan, side) = (conn.plan.id as usize, conn.side);
        match progress {
            Ok(Progress::Blocked) => Ok(()),
            Ok(Progress::Pause(d)) => {
                self.schedule(d, Action::Resume { host, core, id });
                Ok(())
            }
            Ok(Progress::Over(end)) => {
                *slot = None;
                self.over(plan, side, end)
            }
            Err(what) => {
                let what = format!("{what}\n{}", conn.describe(&shard.stack));
                self.fail(what)
            }
        }
    }

    fn over(&mut self, plan: usize, side: Side, end: End) -> Result<(), Failure> {
        let kind = self.plans[plan].kind;
        let status = &mut self.status[plan];
        match side {
            Side::Client => status.client = Some(end),
            Side::Server => status.server = Some(end),
        }
        if status.done(kind) && !core::mem::replace(&mut status.counted, true) {
            self.done += 1;
            self.active -= 1;
            self.start_next(Duration::ZERO);
        }
        Ok(())
    }

    /// The device takes what it has room for and puts it on the link.
    fn transmit(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let mut tx = core::mem::take(&mut self.hosts[host].shards[core].tx);
        loop {
            let Host { config, shards, .. } = &mut self.hosts[host];
            let shard = &mut shards[core];
            let budget = config.tx_ring - shard.tx_outstanding;
            if budget == 0 {
                break;
            }
            let built = shard.stack.tx_batch(IFACE, budget, &mut tx);
            if built > budget {
                return self.fail(format!("tx_batch built {built} of {budget}"));
            }
            if built == 0 {
                // Only want of frames may hold back what is pending; a runtime looks again later.
                if shard.stack.tx_pending(IFACE) {
                    if shard.stack.pool().available() > 0 {
                        return self.fail("tx_pending, and tx_batch builds nothing although there are frames");
                    }
                    self.turn_by(host, core, self.now + TX_RETRY);
                }
                break;
            }
            shard.tx_outstanding += built;
            self.send(host, core, built, &mut tx)?;
        }
        self.hosts[host].shards[core].tx = tx;
        Ok(())
    }

    fn send(&mut self, host: usize, core: usize, built: usize, tx: &mut Vec<TxFrame>) -> Result<(), Failure> {
        let mut frames = Vec::with_capacity(tx.len());
        let (mut packets, mut departed) = (0, self.now);
        let mut packet = Vec::new();
        let mut request = None;
        for TxFrame { mut frame, checksum } in tx.drain(..) {
            let pool = self.hosts[host].shards[core].stack.pool_mut();
            if packet.is_empty() {
                request = checksum;
            }
            packet.extend_from_slice(pool.bytes(&frame));
            let more = frame.more();
            frame.set_more(false);
            frames.push(frame);
            if more {
                continue;
            }
            packets += 1;
            if let Some(request) = request.take() {
                wire::finish_checksum(&mut packet, request).or_else(|e| self.fail(e))?;
            }
            departed = departed.max(self.put_on_link(host, &packet)?);
            packet.clear();
        }
        if packets != built || !packet.is_empty() {
            return self
                .fail(format!("tx_batch says {built} packets and gives {packets}, {} bytes over", packet.len()));
        }
        // The device holds the frames until the last of them has left, as a TX ring does.
        self.on_the_way += 1;
        self.schedule_at(departed + Duration::from_nanos(500), Action::Sent { host, core, packets, frames });
        Ok(())
    }

    fn put_on_link(&mut self, host: usize, packet: &[u8]) -> Result<Instant, Failure> {
        let framing = self.config.framing;
        wire::check(packet, framing, self.config.vlan.is_some(), self.config.mtu.into())
            .or_else(|e| self.fail(format!("host {host} sent a bad packet: {e}: {packet:02x?}")))?;
        if let Some(police) = &mut self.police {
            police.sent(packet).or_else(|what| Err(Failure { at: self.now, what: format!("host {host}: {what}") }))?;
        }
        self.packets += 1;
        self.digest.packet(self.now, host, packet);
        if let Some(pcap) = &mut self.pcap {
            pcap.packet(self.now, packet).or_else(|e| Err(Failure { at: self.now, what: format!("pcap: {e}") }))?;
        }
        let mut arrivals = core::mem::take(&mut self.arrivals);
        let departed = self.links[host].send(self.now, packet, &mut arrivals);
        for Delivery { at, bytes } in arrivals.drain(..) {
            for to in self.switch(host, &bytes) {
                self.on_the_way += 1;
                self.schedule_at(at, Action::Arrive { host: to, bytes: bytes.clone() });
            }
        }
        self.arrivals = arrivals;
        Ok(departed)
    }

    /// Whom a packet reaches: a switch that knows all addresses.
    fn switch(&self, from: usize, packet: &[u8]) -> Vec<usize> {
        let hosts = self.hosts.len();
        if hosts == 2 && self.config.framing == Framing::Ip {
            return vec![1 - from];
        }
        let one = match self.config.framing {
            Framing::Ethernet if packet.len() < 6 => None,
            Framing::Ethernet if packet[0] & 1 == 1 => return (0..hosts).filter(|&h| h != from).collect(),
            Framing::Ethernet => host::by_mac(&packet[..6], hosts),
            Framing::Ip => match packet.first().map(|b| b >> 4) {
                Some(4) if packet.len() >= 20 => {
                    host::by_ip(IpAddr::from(<[u8; 4]>::try_from(&packet[16..20]).unwrap_or_default()), hosts)
                }
                Some(6) if packet.len() >= 40 => {
                    host::by_ip(IpAddr::from(<[u8; 16]>::try_from(&packet[24..40]).unwrap_or_default()), hosts)
                }
                _ => None,
            },
        };
        one.into_iter().filter(|&h| h != from).collect()
    }

    fn messages(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let mut outbound = core::mem::take(&mut self.hosts[host].shards[core].outbound);
        self.hosts[host].shards[core].stack.drain_outbound(&mut outbound);
        for fs_core::Outbound { to: CoreId(to), message } in outbound.drain(..) {
            let to = usize::from(to);
            if to >= self.hosts[host].shards.len() || to == core {
                return self.fail(format!("host {host} core {core} has a message for core {to}: {message:?}"));
            }
            self.on_the_way += 1;
            // Constant, so that messages of one core to another keep their order, as in a ring.
            self.schedule(Duration::from_nanos(300), Action::Message { host, core: to, message });
        }
        self.hosts[host].shards[core].outbound = outbound;
        Ok(())
    }

    /// The level check on all of a shard's applications.
    fn sweep(&mut self, host: usize, core: usize) -> Result<(), Failure> {
        let shard = &mut self.hosts[host].shards[core];
        let Shard { stack, conns, listeners, .. } = shard;
        for conn in conns.iter().flatten() {
            if let Err(what) = conn.check_events(stack) {
                let what = format!("{what}\n{}", conn.describe(stack));
                return self.fail(what);
            }
        }
        for listener in listeners {
            if !listener.ready && stack.tcp_accept(listener.id).is_ok() {
                return self.fail("lost event: a connection waits to be accepted");
            }
        }
        Ok(())
    }

    /// What is not done, for a failure's report.
    fn describe(&self) -> String {
        const LINES_MAX: usize = 20;
        let mut lines = Vec::new();
        for (number, host) in self.hosts.iter().enumerate() {
            for (core, shard) in host.shards.iter().enumerate() {
                lines.push(format!(
                    "host {number} core {core}: {} connections, {} TIME-WAITs, {} frames out, next deadline {:?}, tx pending {}, device holds {}",
                    shard.stack.tcp_connections(),
                    shard.stack.tcp_time_waits(),
                    shard.stack.pool().in_use(),
                    shard.stack.next_deadline(),
                    shard.stack.tx_pending(IFACE),
                    shard.tx_outstanding,
                ));
                for conn in shard.conns.iter().flatten() {
                    let lost = conn.check_events(&shard.stack).err().map(|e| format!(" !! {e}")).unwrap_or_default();
                    lines.push(format!("  {}{lost}", conn.describe(&shard.stack)));
                }
            }
        }
        for (plan, status) in self.plans.iter().zip(&self.status) {
            if status.begun && !status.done(plan.kind) {
                lines.push(format!(
                    "plan {} {:?} from host {} to {}: {status:?}",
                    plan.id, plan.kind, plan.client, plan.to
                ));
            }
        }
        let more = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        if more > 0 {
            lines.push(format!("… and {more} lines more"));
        }
        lines.join("\n")
    }
}

impl Status {
    /// Both ends are over; a server that never saw the connection does not count if the client gave it up.
    fn done(&self, kind: Kind) -> bool {
        let server_may_miss = kind.resets();
        self.client.is_some() && (self.server.is_some() || (server_may_miss && !self.server_begun))
    }
}
