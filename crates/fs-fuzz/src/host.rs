//! One stack on a raw IP link, with the frames that its device holds.

use crate::packet::{self, LOCAL};
use crate::pool::Pool;
use crate::trace;
use fs_core::PortSet;
use fs_core::{
    Addressing, Cidr, CoreId, Duration, Event, FramePool, Framing, IfaceId, Instant, Interface, Limits, Route, RxFrame,
    Secret, Stack, StackConfig, TcpConfig, TxFrame,
};
use std::net::IpAddr;

/// The first interface, in most targets the only one.
pub const IFACE: IfaceId = IfaceId(0);

/// A stack, and the frames and events of its device.
pub struct Host {
    /// The engine.
    pub stack: Stack<Pool>,
    /// The host's clock.
    pub now: Instant,
    /// Events since they were last taken.
    pub events: Vec<Event>,
    /// Number of frames that the target itself holds.
    pub outside: usize,
    ifaces: u8,
    framing: Framing,
    last: u8,
    tx: Vec<TxFrame>,
    rx: Vec<RxFrame>,
    /// Frames that a slow device has not returned.
    held: Vec<TxFrame>,
    packet: Vec<u8>,
}

/// Configuration of a host.
pub struct Plan {
    /// TCP's constants.
    pub tcp: TcpConfig,
    /// Number of frames.
    pub frames: usize,
    /// Size of a frame in bytes.
    pub frame_size: usize,
    /// Link MTU.
    pub mtu: u16,
    /// The last byte of the address.
    pub last: u8,
    /// The device completes checksums.
    pub tx_checksum: bool,
    /// Upper bounds.
    pub limits: Limits,
    /// Framing of packets on the link.
    pub framing: Framing,
    /// This core's number, and the number of cores.
    pub cores: (u16, u16),
    /// Prefix length of the network on the link; 0: all addresses.
    pub prefix: u8,
    /// IPv6 addresses, fd00::`last`, instead of IPv4's.
    pub v6: bool,
    /// Number of interfaces. The further ones are for IPv4, each with its own network: see
    /// [`Host::route`].
    pub ifaces: u8,
}

/// Returns a host's address on one of its interfaces.
fn address_on(iface: u8, last: u8) -> IpAddr {
    IpAddr::from([10, iface, 0, last])
}

/// Returns the link address of a host's interface.
fn mac(iface: u8, last: u8) -> [u8; 6] {
    [2, 0, 0, 0, iface, last]
}

/// Returns a host's address.
pub fn address(v6: bool, last: u8) -> IpAddr {
    if v6 { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)]) } else { IpAddr::from([10, 0, 0, last]) }
}

impl Plan {
    /// Makes a plan with many small frames.
    pub fn new(tcp: TcpConfig) -> Self {
        let limits = Limits {
            connections: 12,
            syn_cache: 4,
            time_wait: 4,
            udp_sockets: 4,
            receive_pool_percent: 50,
            send_pool_percent: 40,
            neighbour_queue: 4,
        };
        let (framing, cores, prefix) = (Framing::Ip, (0, 1), 24);
        Self {
            limits,
            framing,
            cores,
            prefix,
            tcp,
            frames: 128,
            frame_size: 2048,
            mtu: 1500,
            last: LOCAL[3],
            tx_checksum: false,
            v6: false,
            ifaces: 1,
        }
    }
}

impl Host {
    /// Makes a stack with tiny limits.
    pub fn new(plan: Plan) -> Self {
        let config = StackConfig {
            tcp: plan.tcp,
            limits: plan.limits,
            core: CoreId(plan.cores.0),
            cores: plan.cores.1,
            // Few ports: each costs time when the set is made.
            ephemeral_ports: PortSet::from_range(50000..=50015),
            ..StackConfig::new(Secret([plan.last; 32]))
        };
        let mut stack = Stack::new(config, Pool::new(plan.frames, plan.frame_size));
        let mut routes = Vec::new();
        for iface in 0..plan.ifaces {
            let addr = if plan.v6 { address(true, plan.last) } else { address_on(iface, plan.last) };
            let addr = Cidr { addr, prefix: if plan.v6 { 64 } else { plan.prefix } };
            let iface = stack.add_interface(Interface {
                framing: plan.framing,
                mac: mac(iface, plan.last),
                vlan: None,
                mtu: plan.mtu,
                addrs: vec![addr],
                addressing: Addressing::Standalone,
                tx_checksum: plan.tx_checksum,
                accept_partial_checksum: false,
            });
            routes.push(Route { to: addr, gateway: None, iface, metric: 0, source: None, refusal: None });
        }
        stack.set_routes(routes);
        let now = Instant::from_millis(5);
        stack.set_now(now);
        stack.set_fast_paths(trace::fast_paths());
        Self {
            stack,
            now,
            events: Vec::new(),
            outside: 0,
            ifaces: plan.ifaces,
            framing: plan.framing,
            last: plan.last,
            tx: Vec::new(),
            rx: Vec::new(),
            held: Vec::new(),
            packet: Vec::new(),
        }
    }

    /// Receives a packet.
    pub fn receive(&mut self, packet: &[u8], verified: bool) {
        self.receive_on(IFACE, packet, verified);
    }

    /// Receives a packet on one of the interfaces.
    pub fn receive_on(&mut self, iface: IfaceId, packet: &[u8], verified: bool) {
        if packet.is_empty() || packet::frames(self.stack.pool_mut(), packet, verified, &mut self.rx).is_none() {
            return;
        }
        self.rx.iter_mut().for_each(|rx| rx.iface = iface);
        self.stack.rx_batch(&mut self.rx);
    }

    /// Routes packets for the host `other`'s first address by `iface` from now on. Its neighbours
    /// there are known.
    pub fn route(&mut self, iface: u8, other: u8) {
        let net = |iface: u8| Cidr { addr: address_on(iface, 0), prefix: 24 };
        let mut routes: Vec<_> = (0..self.ifaces)
            .map(|i| Route { to: net(i), gateway: None, iface: IfaceId(i), metric: 0, source: None, refusal: None })
            .collect();
        for iface in 0..self.ifaces {
            let (addr, mac) = (address_on(iface, other), mac(iface, other));
            self.stack.set_neighbour(IfaceId(iface), addr, Some(mac));
        }
        if iface > 0 {
            let to = Cidr { addr: address_on(0, other), prefix: 32 };
            let gateway = Some(address_on(iface, other));
            routes.push(Route { to, gateway, iface: IfaceId(iface), metric: 0, source: None, refusal: None });
        }
        self.stack.set_routes(routes);
    }

    /// Advances the time.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        self.stack.set_now(self.now);
        self.stack.tick();
    }

    /// Advances the time to the next deadline. Returns false if there is none.
    pub fn advance_to_deadline(&mut self) -> bool {
        let Some(next) = self.stack.next_deadline() else { return false };
        let by = next.since(self.now);
        self.advance(by);
        true
    }

    /// Passes the packets that the stack sends to `seen`, in batches of at most `budget`. With
    /// `hold` the device keeps the frames. Panics if the stack never stops sending.
    pub fn transmit(&mut self, budget: usize, hold: bool, mut seen: impl FnMut(&[u8])) -> usize {
        self.transmit_by(budget, hold, |_, packet| seen(packet))
    }

    /// Like [`Host::transmit`], with the interface of each packet.
    pub fn transmit_by(&mut self, budget: usize, hold: bool, mut seen: impl FnMut(IfaceId, &[u8])) -> usize {
        (0..self.ifaces).map(|iface| self.transmit_one(iface, budget, hold, &mut seen)).sum()
    }

    fn transmit_one(&mut self, iface: u8, budget: usize, hold: bool, seen: &mut impl FnMut(IfaceId, &[u8])) -> usize {
        let mut count = 0;
        loop {
            let sent = self.stack.tx_batch(IfaceId(iface), budget, &mut self.tx);
            let mut at = 0;
            while at < self.tx.len() {
                at += packet::gather(self.stack.pool(), &self.tx[at..], &mut self.packet);
                count += 1;
                let own = self.framing != Framing::Ethernet || self.packet[6..12] == mac(iface, self.last);
                assert!(own, "interface {iface} sends another's packet: {:02x?}", self.packet);
                trace::note(&self.packet);
                seen(IfaceId(iface), &self.packet);
            }
            if hold {
                self.held.append(&mut self.tx);
            } else {
                self.tx.drain(..).for_each(|tx| self.stack.pool_mut().free(tx.frame));
            }
            if sent == 0 {
                break;
            }
            assert!(count < 20_000, "the stack sends and sends");
        }
        self.events.clear();
        self.stack.drain_events(&mut self.events);
        if trace::is_on() {
            trace::note(format!("{:?} {:?}", self.events, self.stack.next_deadline()).as_bytes());
        }
        count
    }

    /// Returns the frames of the slow device.
    pub fn release(&mut self) {
        self.held.drain(..).for_each(|tx| self.stack.pool_mut().free(tx.frame));
    }

    /// Returns true if the pool is far from every limit on frames.
    pub fn has_room(&self) -> bool {
        let pool = self.stack.pool();
        pool.in_use() * 4 < pool.capacity()
    }

    /// Checks all invariants. Frames are counted if no device holds any.
    pub fn check(&self) {
        self.stack.check(self.held.is_empty().then_some(self.outside));
    }

    /// Checks that nothing is left, after everything was closed and time has passed.
    pub fn check_empty(&self) {
        let stack = &self.stack;
        let left = (stack.tcp_connections(), stack.tcp_handshakes(), stack.tcp_time_waits(), stack.pool().in_use());
        assert_eq!(left, (0, 0, 0, 0), "connections, handshakes, TIME-WAITs and frames at the end: {stack:?}");
    }

    /// Returns the coverage of this execution, for the driver: counters by order of magnitude.
    pub fn signature(&self) -> u64 {
        let stats = self.stack.stats();
        if trace::is_on() {
            trace::note(format!("{stats:?}").as_bytes());
            trace::took(self.stack.fast_paths_taken());
        }
        let class = |n: u64| u64::from(n.min(3).next_power_of_two().trailing_zeros() + u32::from(n > 0));
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for n in stats.counters().map(|(_, n)| n).skip(4).chain(stats.drops) {
            hash = (hash ^ class(n)).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    }
}
