//! A host: shards, each a stack with the applications that run on its core.

use crate::conn::Conn;
use crate::link::LinkConfig;
use crate::pool_unsafe::SharedPool;
use crate::rng::Rng;
use crate::rss::Rss;
use fs_core::PortSet;
use fs_core::{
    Addressing, Cidr, CoreId, CoreMessage, Duration, Event, Framing, IfaceId, Instant, Interface, Limits, ListenerId,
    Outbound, Route, RxFrame, Secret, Stack, StackConfig, TcpConfig, TcpId, TxFrame,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The only interface of a host.
pub const IFACE: IfaceId = IfaceId(0);

/// Configuration of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Number of shards.
    pub cores: u16,
    /// Distribution of received packets over them.
    pub rss: Rss,
    /// Frames per shard.
    pub frames: usize,
    /// Size of a frame in bytes.
    pub frame_size: usize,
    /// The party that resolves neighbours.
    pub addressing: Addressing,
    /// TCP's constants.
    pub tcp: TcpConfig,
    /// Upper bounds.
    pub limits: Limits,
    /// Ephemeral ports.
    pub ephemeral_ports: (u16, u16),
    /// Number of packets that the device accepts before the first is sent.
    pub tx_ring: usize,
    /// The device completes checksums.
    pub tx_checksum: bool,
    /// Maximum delay of a packet until the stack processes it, so that batches form.
    pub latency: Duration,
    /// Only the first shard listens: the others use the global listen table.
    pub listen_on_one: bool,
    /// Size of accept queues.
    pub backlog: u32,
    /// TCP Fast Open: applications connect with data, and listeners accept it.
    pub fast_open: bool,
    /// Linux's late ACKs (`__tcp_ack_snd_check`): one that offers less than the last waits until the
    /// application reads, for at most 40 ms.
    pub late_acks: bool,
    /// The link from this host to the others.
    pub link: LinkConfig,
}

impl HostConfig {
    /// One core with generous limits on a clean link.
    pub fn plain() -> Self {
        Self {
            cores: 1,
            rss: Rss::One,
            frames: 16 << 10,
            frame_size: 2048,
            addressing: Addressing::Host,
            tcp: TcpConfig { syn_retries: 15, syn_ack_retries: 15, ..TcpConfig::default() },
            limits: Limits { connections: 1 << 14, ..Limits::default() },
            ephemeral_ports: (32768, 60999),
            tx_ring: 256,
            tx_checksum: false,
            latency: Duration::from_micros(20),
            listen_on_one: false,
            backlog: 1024,
            fast_open: false,
            late_acks: false,
            link: LinkConfig::clean(Duration::from_micros(100)),
        }
    }
}

/// Returns the MAC address of host number `host`.
pub fn mac(host: usize) -> [u8; 6] {
    [2, 0x77, 0, 0, 0, host as u8 + 1]
}

/// Returns the IPv4 address of host number `host`.
pub fn ipv4(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 77, 0, host as u8 + 1).into()
}

/// Returns the IPv6 address of host number `host`.
pub fn ipv6(host: usize) -> IpAddr {
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host as u16 + 1).into()
}

/// Returns the number of the host with that MAC address.
pub fn by_mac(mac: &[u8], hosts: usize) -> Option<usize> {
    let &[2, 0x77, 0, 0, 0, n] = mac else { return None };
    (1..=hosts).contains(&usize::from(n)).then(|| usize::from(n) - 1)
}

/// Returns the number of the host with that IP address.
pub fn by_ip(ip: IpAddr, hosts: usize) -> Option<usize> {
    (0..hosts).find(|&h| ipv4(h) == ip || ipv6(h) == ip)
}

/// A listener of an application.
#[derive(Debug)]
pub struct Listener {
    /// The listener's handle.
    pub id: ListenerId,
    /// An event has reported a connection to accept.
    pub ready: bool,
}

/// A core of a host.
#[derive(Debug)]
pub struct Shard {
    /// The engine.
    pub stack: Stack<SharedPool>,
    /// Received packets that are not processed yet.
    pub rx: Vec<RxFrame>,
    /// Messages of other cores that are not processed yet.
    pub mailbox: VecDeque<CoreMessage>,
    /// Applications' connections, by `TcpId::index`.
    pub conns: Vec<Option<Conn>>,
    /// Applications' listeners.
    pub listeners: Vec<Listener>,
    /// Time of the next turn.
    pub turn_at: Option<Instant>,
    /// Packets that the device has not yet sent.
    pub tx_outstanding: usize,
    /// Consecutive turns at one time at which the stack requested another turn at once.
    pub spins: u32,
    /// Number of turns.
    pub turns: u64,
    /// Packets that arrived when no frame was free.
    pub rx_dropped: u64,
    /// Reused buffers.
    pub events: Vec<Event>,
    /// Reused buffers.
    pub outbound: Vec<Outbound>,
    /// Reused buffers.
    pub tx: Vec<TxFrame>,
}

impl Shard {
    /// Returns the application's end with this id.
    pub fn conn(&mut self, id: TcpId) -> Option<&mut Conn> {
        self.conns.get_mut(id.index as usize)?.as_mut().filter(|c| c.id == id)
    }

    /// Stores an application's end, and makes space for it.
    pub fn insert(&mut self, conn: Conn) -> Result<(), String> {
        let at = conn.id.index as usize;
        if self.conns.len() <= at {
            self.conns.resize_with(at + 1, || None);
        }
        match self.conns[at].replace(conn) {
            None => Ok(()),
            Some(old) => {
                Err(format!("{:?} was given out while connection {} still has that slot", old.id, old.plan.id))
            }
        }
    }
}

/// A host.
#[derive(Debug)]
pub struct Host {
    /// The host's configuration.
    pub config: HostConfig,
    /// The host's cores.
    pub shards: Vec<Shard>,
    /// Number of changes of the device's indirection table.
    pub rss_epoch: u64,
    /// The host's own randomness.
    pub rng: Rng,
    /// The host's clock.
    pub clock: Clock,
    /// Nothing runs on it until then.
    pub paused_until: Instant,
    /// Its late ACKs, by (source, destination).
    pub late: BTreeMap<(SocketAddr, SocketAddr), LateAck>,
}

/// The ACKs of one direction of a connection, on a host with [`HostConfig::late_acks`].
#[derive(Debug, Default)]
pub struct LateAck {
    /// The window of the last packet sent; `None`: there is none, or it had SACK blocks.
    pub window: Option<u32>,
    /// The packet that waits.
    pub packet: Option<Vec<u8>>,
    /// Number of packets that waited.
    pub number: u64,
    /// Number of ACKs that did not.
    pub at_once: u32,
}

/// A host's clock: the world's, until it jumps or stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Difference to the world's clock; negative after a stall.
    ahead_ns: i64,
    /// The stopped clock's time, and the world's time at which it continues.
    stalled: Option<(Instant, Instant)>,
}

impl Clock {
    /// Returns the clock's time.
    pub fn local(&self, now: Instant) -> Instant {
        match self.stalled {
            Some((shows, _)) => shows,
            None => Instant(now.0.saturating_add_signed(self.ahead_ns)),
        }
    }

    /// Returns when the clock will show `local`, if that is later than its time at `now`; while it
    /// is stopped, the time at which it continues.
    pub fn when(&self, local: Instant) -> Instant {
        match self.stalled {
            Some((_, until)) => until,
            None => Instant(local.0.saturating_add_signed(-self.ahead_ns)),
        }
    }

    /// Makes the clock jump.
    pub fn jump(&mut self, by: Duration) {
        match &mut self.stalled {
            Some((shows, _)) => *shows = *shows + by,
            None => self.ahead_ns += by.as_nanos() as i64,
        }
    }

    /// Stops the clock until `until`, when [`Clock::go_on`] has to be called.
    pub fn stall(&mut self, now: Instant, until: Instant) {
        let before = self.stalled.map_or(until, |(_, before)| before);
        self.stalled = Some((self.local(now), until.max(before)));
    }

    /// Ends a stall.
    pub fn go_on(&mut self, now: Instant) {
        if let Some((shows, until)) = self.stalled
            && until <= now
        {
            self.ahead_ns = shows.0 as i64 - now.0 as i64;
            self.stalled = None;
        }
    }
}

impl Host {
    /// Makes host number `number`.
    pub fn new(number: usize, config: HostConfig, framing: Framing, vlan: Option<u16>, mtu: u16, mut rng: Rng) -> Self {
        let mut secret = [0; 32];
        crate::pattern::fill(rng.next(), 0, &mut secret);
        let mut config = config;
        if config.fast_open {
            config.tcp.fast_open = fs_core::FastOpen { client: true, server: true, ..fs_core::FastOpen::OFF };
        }
        let pools = SharedPool::split(config.cores.into(), config.frames, config.frame_size);
        let shard = |(core, pool)| {
            let mut stack = Stack::new(
                StackConfig {
                    core: CoreId(core),
                    cores: config.cores,
                    secret: Secret(secret),
                    tcp: config.tcp.clone(),
                    limits: config.limits.clone(),
                    ephemeral_ports: PortSet::from_range(config.ephemeral_ports.0..=config.ephemeral_ports.1),
                    large_table: None,
                    nonlocal_bind: false,
                },
                pool,
            );
            let iface = stack.add_interface(Interface {
                framing,
                mac: mac(number),
                vlan,
                mtu,
                addrs: vec![Cidr { addr: ipv4(number), prefix: 24 }, Cidr { addr: ipv6(number), prefix: 64 }],
                addressing: config.addressing,
                tx_checksum: config.tx_checksum,
                accept_partial_checksum: false,
            });
            assert_eq!(iface, IFACE);
            let on_link = |addr, prefix| Route {
                to: Cidr { addr, prefix },
                gateway: None,
                iface,
                metric: 0,
                source: None,
                refusal: None,
            };
            stack.set_routes(vec![
                on_link(Ipv4Addr::new(10, 77, 0, 0).into(), 24),
                on_link(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0).into(), 64),
            ]);
            Shard {
                stack,
                rx: Vec::new(),
                mailbox: VecDeque::new(),
                conns: Vec::new(),
                listeners: Vec::new(),
                turn_at: None,
                tx_outstanding: 0,
                spins: 0,
                turns: 0,
                rx_dropped: 0,
                events: Vec::new(),
                outbound: Vec::new(),
                tx: Vec::new(),
            }
        };
        let shards = (0..config.cores).zip(pools).map(shard).collect();
        Self {
            config,
            shards,
            rss_epoch: 0,
            rng,
            clock: Clock::default(),
            paused_until: Instant::ZERO,
            late: BTreeMap::new(),
        }
    }

    /// Returns the connections, TIME-WAIT records and frames of all cores.
    pub fn left(&self) -> (usize, usize, usize) {
        use fs_core::FramePool;
        self.shards.iter().fold((0, 0, 0), |(c, t, f), s| {
            (c + s.stack.tcp_connections(), t + s.stack.tcp_time_waits(), f + s.stack.pool().in_use())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_jumps_and_stops_without_going_back() {
        let ms = Instant::from_millis;
        let mut clock = Clock::default();
        clock.jump(Duration::from_millis(50));
        assert_eq!((clock.local(ms(10)), clock.when(ms(70))), (ms(60), ms(20)));
        clock.stall(ms(10), ms(30));
        assert_eq!((clock.local(ms(25)), clock.when(ms(61))), (ms(60), ms(30)));
        clock.go_on(ms(20));
        assert_eq!(clock.local(ms(29)), ms(60), "not yet");
        clock.go_on(ms(30));
        assert_eq!((clock.local(ms(30)), clock.local(ms(31)), clock.when(ms(70))), (ms(60), ms(61), ms(40)));
        clock.stall(ms(40), ms(140));
        clock.go_on(ms(140));
        assert_eq!(clock.local(ms(140)), ms(70), "behind the world's");
    }
}
