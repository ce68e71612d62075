//! smoltcp's TCP as a peer that shares no code with ours: transfers in both directions over bad
//! links, either side opening, IPv4 and IPv6, raw IP and Ethernet with both sides' own address
//! resolution.

use fs_core::{
    Addressing, Cidr, Connect, Duration, Event, FramePool, Framing, IfaceId, Instant, Interface, Listen, Route,
    RxChecksum, RxFrame, Secret, Stack, StackConfig, TcpOptions, TxFrame,
};
use fs_sim::conn::{Conn, Progress, Side};
use fs_sim::plan::{Kind, Plan, Step};
use fs_sim::pool_unsafe::SharedPool;
use fs_sim::rng::Rng;
use fs_sim::{Link, LinkConfig, host, pattern, wire};
use proptest::prelude::*;
use smoltcp::iface::{Config, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

const IFACE: IfaceId = IfaceId(0);
const PORT: u16 = 7000;
/// Our host is 0, smoltcp's is 1.
const OURS: usize = 0;
const SMOL: usize = 1;

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    v6: bool,
    ethernet: bool,
    we_open: bool,
    we_send: u64,
    smol_sends: u64,
    smol_buffer: usize,
    bad_ppm: u32,
}

/// smoltcp's device: packets in, packets out.
struct Port {
    medium: Medium,
    rx: VecDeque<Vec<u8>>,
    tx: Vec<Vec<u8>>,
}

struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl smoltcp::phy::RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl smoltcp::phy::TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}

impl Device for Port {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Rx, Tx<'_>)> {
        let packet = self.rx.pop_front()?;
        Some((Rx(packet), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        capabilities.max_transmission_unit = if self.medium == Medium::Ethernet { 1514 } else { 1500 };
        capabilities
    }
}

/// A packet in transit: its arrival time, number, destination, bytes.
type Flying = (Instant, u64, usize, Vec<u8>);

/// Our side: an engine and one application.
struct Ours {
    stack: Stack<SharedPool>,
    conn: Option<Conn>,
    plan: Rc<Plan>,
    over: bool,
    events: Vec<Event>,
    tx: Vec<TxFrame>,
}

/// smoltcp's side.
struct Smol {
    iface: smoltcp::iface::Interface,
    port: Port,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    sent: u64,
    read: u64,
    to_send: u64,
    to_read: u64,
    seeds: (u64, u64),
    eof: bool,
}

fn smol_time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(now.as_micros() as i64)
}

fn address(case: &Case, which: usize) -> IpAddr {
    if case.v6 { host::ipv6(which) } else { host::ipv4(which) }
}

impl Ours {
    fn new(case: &Case) -> Result<Self, String> {
        let pool = SharedPool::split(1, 4096, 2048).pop().ok_or("a pool")?;
        let mut stack = Stack::new(StackConfig::new(Secret([case.seed as u8; 32])), pool);
        let addrs = vec![Cidr { addr: host::ipv4(OURS), prefix: 24 }, Cidr { addr: host::ipv6(OURS), prefix: 64 }];
        stack.add_interface(Interface {
            framing: if case.ethernet { Framing::Ethernet } else { Framing::Ip },
            mac: host::mac(OURS),
            vlan: None,
            mtu: 1500,
            addrs: addrs.clone(),
            addressing: if case.ethernet { Addressing::Standalone } else { Addressing::Host },
            tx_checksum: false,
            accept_partial_checksum: false,
        });
        stack.set_routes(
            addrs
                .iter()
                .map(|&to| Route { to, gateway: None, iface: IFACE, metric: 0, source: None, refusal: None })
                .collect(),
        );
        let (we, they) = (SocketAddr::new(address(case, OURS), PORT), SocketAddr::new(address(case, SMOL), PORT));
        let exchange =
            vec![Step::Exchange(case.we_send, case.smol_sends), Step::ShutdownWrite, Step::ExpectEof, Step::Close];
        let smol = vec![Step::Exchange(case.smol_sends, case.we_send)];
        let mut rng = Rng::new(case.seed);
        // The plan's client is the end that opens; `seeds` below follows from that.
        let (client_script, server_script) = if case.we_open { (exchange, smol) } else { (smol, exchange) };
        let plan = Rc::new(Plan {
            id: 0,
            kind: Kind::BothShut,
            client: if case.we_open { OURS } else { SMOL },
            server: if case.we_open { SMOL } else { OURS },
            to: if case.we_open { they } else { we },
            from: None,
            options: TcpOptions::default(),
            client_script,
            server_script,
            seed: case.seed,
        });
        let mut ours = Self { stack, conn: None, plan, over: false, events: Vec::new(), tx: Vec::new() };
        if case.we_open {
            let connect = Connect { remote: they, local: None, options: TcpOptions::default() };
            let id = ours.stack.tcp_connect(connect).map_err(|e| format!("connect: {e}"))?;
            ours.conn = Some(Conn::new(ours.plan.clone(), Side::Client, id, true, rng.fork()));
        } else {
            let listen = Listen { at: we, backlog: 8, v6_only: false, fast_open: 0, options: TcpOptions::default() };
            ours.stack.tcp_listen(listen).map_err(|e| format!("listen: {e}"))?;
        }
        Ok(ours)
    }

    fn turn(&mut self, now: Instant, arrived: &mut Vec<Vec<u8>>, rng: &mut Rng) -> Result<Vec<Vec<u8>>, String> {
        self.stack.set_now(now);
        let mut rx = Vec::new();
        for packet in arrived.drain(..) {
            let mut frame = self.stack.pool_mut().alloc().ok_or("no frame for a received packet")?;
            frame.grow_back(packet.len());
            self.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(&packet);
            rx.push(RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown });
        }
        self.stack.rx_batch(&mut rx);
        self.stack.tick();
        let mut out = Vec::new();
        self.events(rng)?;
        self.transmit(&mut out)?;
        // Sending makes space.
        while self.events(rng)? {
            self.transmit(&mut out)?;
        }
        if let Some(conn) = &self.conn {
            conn.check_events(&self.stack)?;
        }
        Ok(out)
    }

    /// Handles events. Returns false if there were none.
    fn events(&mut self, rng: &mut Rng) -> Result<bool, String> {
        let mut any = false;
        loop {
            let mut events = core::mem::take(&mut self.events);
            self.stack.drain_events(&mut events);
            if events.is_empty() {
                return Ok(any);
            }
            any = true;
            for event in events.drain(..) {
                match event {
                    Event::Accept(listener) => {
                        let (id, _) = self.stack.tcp_accept(listener).map_err(|e| format!("accept: {e}"))?;
                        if self.conn.is_some() {
                            return Err("accepted twice".into());
                        }
                        self.conn = Some(Conn::new(self.plan.clone(), Side::Server, id, false, rng.fork()));
                        self.progress()?;
                    }
                    Event::Tcp(id, ready) => {
                        if let Some(conn) = self.conn.as_mut().filter(|c| c.id == id) {
                            conn.event(ready);
                            self.progress()?;
                        }
                    }
                    Event::Udp(..) => return Err("an event of UDP".into()),
                    Event::NeighbourNeeded(..) => return Err("the stack resolves its neighbours itself".into()),
                }
            }
        }
    }

    fn transmit(&mut self, out: &mut Vec<Vec<u8>>) -> Result<(), String> {
        while self.stack.tx_batch(IFACE, 64, &mut self.tx) > 0 {
            let mut packet = Vec::new();
            for TxFrame { mut frame, checksum } in self.tx.drain(..) {
                if checksum.is_some() {
                    return Err("a checksum left to a device that cannot".into());
                }
                packet.extend_from_slice(self.stack.pool().bytes(&frame));
                let more = frame.more();
                frame.set_more(false);
                self.stack.pool_mut().free(frame);
                if !more {
                    out.push(core::mem::take(&mut packet));
                }
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<(), String> {
        let Some(conn) = &mut self.conn else { return Ok(()) };
        match conn.progress(&mut self.stack) {
            Ok(Progress::Over(_)) => (self.conn, self.over) = (None, true),
            Ok(_) => {}
            Err(what) => return Err(format!("{what}\n{}", conn.describe(&self.stack))),
        }
        Ok(())
    }
}

impl Smol {
    fn new(case: &Case) -> Result<Self, String> {
        let medium = if case.ethernet { Medium::Ethernet } else { Medium::Ip };
        let mut port = Port { medium, rx: VecDeque::new(), tx: Vec::new() };
        let hardware = if case.ethernet {
            HardwareAddress::Ethernet(EthernetAddress(host::mac(SMOL)))
        } else {
            HardwareAddress::Ip
        };
        let mut config = Config::new(hardware);
        config.random_seed = case.seed;
        let mut iface = smoltcp::iface::Interface::new(config, &mut port, smol_time(Instant::ZERO));
        let prefix = if case.v6 { 64 } else { 24 };
        let mut full = false;
        iface.update_ip_addrs(|a| full = a.push(IpCidr::new(address(case, SMOL).into(), prefix)).is_err());
        if full {
            return Err("no room for an address".into());
        }
        let buffer = || SocketBuffer::new(vec![0; case.smol_buffer]);
        let mut socket = Socket::new(buffer(), buffer());
        if case.we_open {
            socket.listen(PORT).map_err(|e| format!("smoltcp listen: {e}"))?;
        } else {
            let to: (IpAddress, u16) = (address(case, OURS).into(), PORT);
            socket.connect(iface.context(), to, PORT).map_err(|e| format!("smoltcp connect: {e}"))?;
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        // The opener's bytes have the plan's seed, the other end's the next.
        let seeds = if case.we_open { (case.seed + 1, case.seed) } else { (case.seed, case.seed + 1) };
        let (to_send, to_read) = (case.smol_sends, case.we_send);
        Ok(Self { iface, port, sockets, handle, sent: 0, read: 0, to_send, to_read, seeds, eof: false })
    }

    fn turn(&mut self, now: Instant) -> Result<Vec<Vec<u8>>, String> {
        self.iface.poll(smol_time(now), &mut self.port, &mut self.sockets);
        let socket = self.sockets.get_mut::<Socket>(self.handle);
        let mut buf = [0; 4096];
        while socket.can_recv() {
            let n = socket.recv_slice(&mut buf).map_err(|e| format!("smoltcp recv: {e}"))?;
            pattern::check(self.seeds.1, self.read, &buf[..n]).map_err(|at| format!("smoltcp got byte {at} wrong"))?;
            self.read += n as u64;
        }
        while self.sent < self.to_send && socket.can_send() {
            let n = (self.to_send - self.sent).min(buf.len() as u64) as usize;
            pattern::fill(self.seeds.0, self.sent, &mut buf[..n]);
            self.sent += socket.send_slice(&buf[..n]).map_err(|e| format!("smoltcp send: {e}"))? as u64;
        }
        if self.sent == self.to_send && socket.may_send() {
            socket.close();
        }
        if self.read == self.to_read && !socket.may_recv() && !socket.is_listening() {
            self.eof = true;
        }
        self.iface.poll(smol_time(now), &mut self.port, &mut self.sockets);
        Ok(core::mem::take(&mut self.port.tx))
    }

    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        // At least a microsecond later: the resolution of smoltcp's clock.
        let at = self.iface.poll_at(smol_time(now), &self.sockets)?;
        Some(Instant::from_micros(at.total_micros() as u64).max(now + Duration::from_micros(1)))
    }
}

/// Number of requests before a neighbour is given up: RFC 4861 section 10, MAX_MULTICAST_SOLICIT.
const REQUESTS: usize = 3;
/// Error of a connect that found no neighbour.
const NO_ROUTE: &str = "connect: no route to host";

/// Returns true for an ARP request or a neighbour solicitation, on Ethernet.
fn asks_for_neighbour(packet: &[u8]) -> bool {
    let (ethertype, next_header, kind) = (packet.get(12..14), packet.get(20), packet.get(54));
    match ethertype {
        Some([0x08, 0x06]) => packet.get(20..22) == Some(&[0, 1]),
        Some([0x86, 0xdd]) => (next_header, kind) == (Some(&58), Some(&135)),
        _ => false,
    }
}

fn run(case: &Case) -> Result<(), String> {
    let mut rng = Rng::new(case.seed);
    let framing = if case.ethernet { Framing::Ethernet } else { Framing::Ip };
    let mut link = || {
        let mut config = LinkConfig::draw(&mut rng, case.bad_ppm);
        config.queue = config.queue.max(200);
        Link::new(config, framing, rng.fork())
    };
    let mut links = [link(), link()];
    let (mut ours, mut smol) = (Ours::new(case)?, Smol::new(case)?);
    let mut now = Instant::ZERO;
    let mut flying: BinaryHeap<Reverse<Flying>> = BinaryHeap::new();
    let (mut order, mut arrived, mut asked) = (0, Vec::new(), 0);
    loop {
        while flying.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, to, packet))) = flying.pop() else { break };
            if to == OURS { arrived.push(packet) } else { smol.port.rx.push_back(packet) }
        }
        let mut send = |from: usize, packets: Vec<Vec<u8>>| {
            let mut out = Vec::new();
            for packet in packets {
                links[from].send(now, &packet, &mut out);
            }
            for delivery in out {
                order += 1;
                flying.push(Reverse((delivery.at, order, 1 - from, delivery.bytes)));
            }
        };
        let packets = match ours.turn(now, &mut arrived, &mut rng) {
            // Correct, if that many requests were sent, and a bad link has lost them or their
            // replies.
            Err(what) if asked >= REQUESTS && case.bad_ppm > 0 && what.starts_with(NO_ROUTE) => return Ok(()),
            packets => packets?,
        };
        asked += packets.iter().filter(|packet| case.ethernet && asks_for_neighbour(packet)).count();
        for packet in &packets {
            wire::check(packet, framing, false, 1500)
                .map_err(|e| format!("we sent a bad packet: {e}: {packet:02x?}"))?;
        }
        send(OURS, packets);
        send(SMOL, smol.turn(now)?);
        let done = ours.over && smol.eof && smol.sent == smol.to_send;
        if done && ours.stack.tcp_connections() == 0 && ours.stack.tcp_time_waits() == 0 && flying.is_empty() {
            break;
        }
        let next = [flying.peek().map(|Reverse((at, ..))| *at), ours.stack.next_deadline(), smol.deadline(now)];
        let next = next.into_iter().flatten().min().ok_or("nothing will ever happen again")?;
        now = next.max(now + Duration::from_nanos(1));
        if now > Instant::from_millis(4 * 3600 * 1000) {
            let conn = ours.conn.as_ref().map(|c| c.describe(&ours.stack));
            let state = smol.sockets.get::<Socket>(smol.handle).state();
            return Err(format!(
                "not done: {conn:?}; smoltcp in {state} sent {} of {}, read {} of {}",
                smol.sent, smol.to_send, smol.read, smol.to_read
            ));
        }
    }
    match ours.stack.pool().in_use() {
        0 => Ok(()),
        n => Err(format!("{n} frames left")),
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let size = || prop_oneof![Just(0u64), Just(1), 1u64..3000, 1u64..200_000];
    let buffer = prop_oneof![Just(600usize), Just(4096), Just(65_535), Just(200_000)];
    (any::<u32>(), any::<[bool; 3]>(), size(), size(), buffer, prop_oneof![Just(0u32), 0u32..50_000]).prop_map(
        |(seed, [v6, ethernet, we_open], we_send, smol_sends, smol_buffer, bad_ppm)| Case {
            seed: seed.into(),
            v6,
            ethernet,
            we_open,
            we_send,
            smol_sends,
            smol_buffer,
            bad_ppm,
        },
    )
}

/// Four consecutive timeouts request the neighbour again, but not on a link without neighbours.
#[test]
fn timeouts_request_no_neighbour_on_raw_link() {
    let (v6, ethernet, we_open) = (false, false, false);
    let (seed, bad_ppm) = (3_695_337_449, 44_325);
    let case = Case { seed, v6, ethernet, we_open, we_send: 0, smol_sends: 104_401, smol_buffer: 600, bad_ppm };
    assert_eq!(run(&case), Ok(()));
}

/// A link that loses each of three requests or its reply.
#[test]
fn silent_neighbour_is_no_route() {
    let (v6, ethernet, we_open) = (false, true, true);
    let (seed, bad_ppm) = (1_730_090_507, 40_660);
    let case = Case { seed, v6, ethernet, we_open, we_send: 0, smol_sends: 0, smol_buffer: 600, bad_ppm };
    assert_eq!(run(&case), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_byte_arrives_in_both_directions(case in cases()) {
        prop_assert_eq!(run(&case), Ok(()));
    }
}
