//! A server (or client) on fastsock's engine, fed by the generator.

use crate::client::{
    Answer, Clients, Dice, GATEWAY, GATEWAY_MAC, GATEWAY_V6, REMOTE, Role, SERVER, SERVER_MAC, SERVER_V6, flag,
};
use crate::{BATCH, RESPONSE, Server};
use fs_core::{
    Addressing, Cidr, Connect, Error, Event, Frame, FramePool, Framing, HeapPool, IfaceId, Interface, Limits, Listen,
    ListenerId, Ready, Route, RxChecksum, RxFrame, Secret, Stack, StackConfig, TcpConfig, TcpId, TcpOptions, TxFrame,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

const IFACE: IfaceId = IfaceId(0);
const ETHERNET: usize = 14;
/// Virtual time per turn. Slow, so that none of a million connections reaches its retransmission
/// timeout before its next acknowledgment: the subject is the data path, not an idle clock.
const TURN: Duration = Duration::from_nanos(300);
/// Virtual time per turn of bulk transfers: their path is a network's, whose rates and pacing have
/// an effect.
const BULK_TURN: Duration = Duration::from_micros(50);
/// Clients of short connections, after those that stay open.
const SHORT_FLOWS: usize = 1 << 15;

/// Value of this field in the engine's configuration, if set, as in the runtime. Also applies to
/// the frame pool, as to a UMEM.
pub static LARGE_TABLE: std::sync::OnceLock<fn(*const u8, usize)> = std::sync::OnceLock::new();

/// The side that closes first in short connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closer {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// The application's work on its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum App {
    /// Answers a request with [`RESPONSE`] bytes, and a FIN with a FIN (or the answer closes).
    Echo(Closer),
    /// Reads everything.
    Sink,
    /// Writes as much as fits.
    Source,
    /// A client: sends a request when connected, and closes after the answer.
    Client,
}

/// Set-up of a server.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Connections that are open from the start.
    pub open: usize,
    /// True if the peers offer timestamps.
    pub timestamps: bool,
    /// Use IPv6 instead of IPv4.
    pub v6: bool,
    /// The application.
    pub app: App,
    /// Packets per turn.
    pub batch: usize,
}

/// The engine, its application and the generator.
pub struct Ours {
    stack: Stack<HeapPool>,
    listener: ListenerId,
    clients: Clients,
    /// Number of connections that stay open.
    open: usize,
    next_short: usize,
    app: App,
    batch: usize,
    connects: usize,
    source: Option<TcpId>,
    now: fs_core::Instant,
    dice: Dice,
    rx: Vec<RxFrame>,
    tx: Vec<TxFrame>,
    events: Vec<Event>,
    answers: Vec<Answer>,
    /// Packets that a turn may send.
    tx_budget: usize,
    /// Loses every n-th segment; 0: none.
    lose: u64,
    /// Number of segments with payload from the stack.
    seen: u64,
    /// Number of those that arrived and are not acknowledged.
    owed: u32,
    buf: Vec<u8>,
    timed: Duration,
}

impl Ours {
    /// Creates an IPv4 server with `open` established connections.
    pub fn new(open: usize, timestamps: bool, closer: Closer) -> Self {
        Self::with(Setup { open, timestamps, v6: false, app: App::Echo(closer), batch: BATCH })
    }

    /// Creates a server or client.
    pub fn with(setup: Setup) -> Self {
        let Setup { open, timestamps, v6, app, batch } = setup;
        let mut config = StackConfig::new(Secret([7; 32]));
        // Each connection keeps its latest response until its next request acknowledges it.
        let connections = (open + 4096) as u32;
        config.limits = Limits { connections, send_pool_percent: 90, ..Limits::default() };
        config.large_table = LARGE_TABLE.get().copied();
        // Short, in virtual time, so that its end is part of the measurement.
        config.tcp = TcpConfig { time_wait: Duration::from_millis(2), ..TcpConfig::default() };
        let mut pool = HeapPool::new(8192 + open + open / 4, 2048);
        pool.populate(config.large_table);
        let mut stack = Stack::new(config, pool);
        let (at, gateway, any): (IpAddr, IpAddr, IpAddr) = if v6 {
            (Ipv6Addr::from(SERVER_V6).into(), Ipv6Addr::from(GATEWAY_V6).into(), Ipv6Addr::UNSPECIFIED.into())
        } else {
            (Ipv4Addr::from(SERVER.0).into(), Ipv4Addr::from(GATEWAY).into(), Ipv4Addr::UNSPECIFIED.into())
        };
        stack.add_interface(Interface {
            framing: Framing::Ethernet,
            mac: SERVER_MAC,
            vlan: None,
            mtu: 1500,
            addrs: vec![Cidr { addr: at, prefix: if v6 { 126 } else { 30 } }],
            addressing: Addressing::Host,
            tx_checksum: false,
            accept_partial_checksum: false,
        });
        let all = Cidr { addr: any, prefix: 0 };
        stack.set_routes(vec![Route {
            to: all,
            gateway: Some(gateway),
            iface: IFACE,
            metric: 0,
            source: None,
            refusal: None,
        }]);
        stack.set_neighbour(IFACE, gateway, Some(GATEWAY_MAC));
        let at = SocketAddr::new(at, SERVER.1);
        let options = TcpOptions { nodelay: true, ..TcpOptions::default() };
        let listener = Listen { at, backlog: 4096, v6_only: false, fast_open: 0, options };
        let listener = stack.tcp_listen(listener).expect("a listener");
        let flows = if app == App::Client { 1 << 16 } else { open + SHORT_FLOWS };
        let role = if app == App::Client { Role::Server } else { Role::Clients };
        let mut server = Self {
            stack,
            listener,
            clients: Clients::new(flows, timestamps, v6, role),
            open,
            next_short: 0,
            app,
            batch,
            connects: 0,
            source: None,
            now: fs_core::Instant::from_millis(1000),
            dice: Dice::default(),
            rx: Vec::with_capacity(2 * BATCH),
            tx: Vec::with_capacity(4 * BATCH),
            events: Vec::with_capacity(4 * BATCH),
            answers: Vec::with_capacity(4 * BATCH),
            tx_budget: usize::MAX,
            lose: 0,
            seen: 0,
            owed: 0,
            buf: vec![0; 1 << 16],
            timed: Duration::ZERO,
        };
        for first in (0..open).step_by(BATCH) {
            let flows: Vec<_> = (first..open.min(first + BATCH)).collect();
            server.turn(&flows, flag::SYN, 0, flows.len());
            server.turn(&flows, flag::ACK, 0, 0);
        }
        assert_eq!(server.stack.tcp_connections(), open, "connections that did not open");
        server
    }

    /// Returns the frames in use: idle connections must use none.
    pub fn frames(&self) -> usize {
        self.stack.pool().in_use()
    }

    /// Returns the bytes of the generator's state, which do not count as the server's.
    pub fn client_bytes(&self) -> usize {
        self.clients.flows.capacity() * size_of::<crate::client::Flow>() + self.buf.capacity()
    }

    /// Returns the bytes of the frame pool, which idle connections do not use.
    pub fn pool_bytes(&self) -> usize {
        self.stack.pool().capacity() * (self.stack.pool().chunk_size() + 5)
    }

    /// Adds a packet of `flow` to the receive batch.
    fn push(&mut self, flow: usize, ahead: u32, flags: u8, payload: usize) {
        let mut frame = self.stack.pool_mut().alloc().expect("a frame");
        frame.grow_back(self.stack.pool().payload_room().min(1600));
        let bytes = self.stack.pool_mut().bytes_mut(&mut frame);
        bytes[..6].copy_from_slice(&SERVER_MAC);
        bytes[6..12].copy_from_slice(&GATEWAY_MAC);
        bytes[12..14].copy_from_slice(if self.clients.v6 { &[0x86, 0xdd] } else { &[8, 0] });
        let len = self.clients.build_at(flow, ahead, flags, payload, &mut bytes[ETHERNET..]);
        frame.truncate(ETHERNET + len);
        self.rx.push(RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown });
    }

    /// Sends one packet of each flow, runs one turn of the server, and reads the answers. There
    /// must be `answers` answers.
    fn turn(&mut self, flows: &[usize], flags: u8, payload: usize, answers: usize) {
        for &flow in flows {
            self.push(flow, 0, flags, payload);
        }
        self.advance(TURN, true);
        let seen = self.answers.len();
        assert!(seen >= answers, "{seen} answers, expected {answers}");
    }

    /// Advances the time, runs the server on the receive batch, and reads its packets.
    fn advance(&mut self, time: Duration, counted: bool) {
        self.now = self.now + time;
        self.clients.now_ms = self.now.as_millis() as u32;
        let began = Instant::now();
        if counted {
            self.counted_turn();
        } else {
            self.server_turn();
        }
        self.timed += began.elapsed();

        self.answers.clear();
        let mut chained = false;
        let mut sent = std::mem::take(&mut self.tx);
        for TxFrame { mut frame, checksum } in sent.drain(..) {
            assert!(checksum.is_none(), "checksums are the server's work here");
            // The later frames of a chain are payload.
            let first = !chained;
            chained = frame.more();
            frame.set_more(false);
            if first {
                self.packet(&frame);
            }
            self.stack.pool_mut().free(frame);
        }
        self.tx = sent;
    }

    /// Handles a packet of the stack, which arrives or is lost. A receiver of bulk acknowledges
    /// every second segment, and every segment during a gap.
    fn packet(&mut self, frame: &Frame) {
        let Self { lose, seen, clients, stack, .. } = self;
        let mut lost = false;
        let answer = clients.answer(&stack.pool().bytes(frame)[ETHERNET..], |answer| {
            *seen += u64::from(answer.payload > 0);
            lost = *lose > 0 && answer.payload > 0 && *seen % *lose == 0;
            !lost
        });
        self.answers.push(answer);
        if self.app == App::Source && answer.payload > 0 && !lost {
            self.owed += 1;
            if self.owed == 2 || self.clients.missing() {
                self.owed = 0;
                self.push(answer.flow, 0, flag::ACK, 0);
            }
        }
    }

    /// Runs [`Ours::server_turn`] under the name by which `icount` counts.
    #[inline(never)]
    fn counted_turn(&mut self) {
        self.server_turn();
    }

    /// Runs the server's part of a turn.
    #[inline(never)]
    fn server_turn(&mut self) {
        self.stack.set_now(self.now);
        self.stack.rx_batch(&mut self.rx);
        self.stack.tick();
        self.stack.drain_events(&mut self.events);
        self.application();
        let mut left = self.tx_budget;
        while left > 0 {
            let want = left.min(2 * BATCH);
            let sent = self.stack.tx_batch(IFACE, want, &mut self.tx);
            if sent < want {
                break;
            }
            left -= sent;
        }
    }

    fn application(&mut self) {
        let Self { stack, events, listener, app, open, buf, source, connects, clients, .. } = self;
        for event in events.drain(..) {
            match event {
                Event::Accept(_) => {
                    while let Ok((id, _)) = stack.tcp_accept(*listener) {
                        *source = Some(id);
                    }
                }
                Event::Tcp(id, ready) => match app {
                    App::Echo(_) | App::Sink if !ready.intersects(Ready::READ) => {}
                    App::Echo(closer) => match stack.tcp_recv(id, buf) {
                        Ok(0) => stack.tcp_close(id),
                        Ok(_) => {
                            assert_eq!(stack.tcp_send(id, &buf[..RESPONSE]), Ok(RESPONSE));
                            if *closer == Closer::Server && *open == 0 {
                                stack.tcp_close(id);
                            }
                        }
                        // One batch can have several events of a socket: an earlier event took the
                        // bytes.
                        Err(Error::WouldBlock | Error::BadSocket) => {}
                        Err(e) => panic!("recv: {e}"),
                    },
                    App::Sink => while stack.tcp_recv(id, buf).is_ok_and(|n| n == buf.len()) {},
                    App::Client if ready.intersects(Ready::READ) => match stack.tcp_recv(id, buf) {
                        Ok(0) => {}
                        Ok(_) => stack.tcp_close(id),
                        Err(Error::WouldBlock | Error::BadSocket) => {}
                        Err(e) => panic!("recv: {e}"),
                    },
                    App::Client if ready.intersects(Ready::WRITE) => {
                        assert_eq!(stack.tcp_send(id, &buf[..RESPONSE]), Ok(RESPONSE));
                    }
                    App::Source | App::Client => {}
                },
                _ => {}
            }
        }
        if *app == App::Source
            && let Some(id) = source
        {
            while stack.tcp_send(*id, &buf[..16384]).is_ok() {}
        }
        for _ in 0..std::mem::take(connects) {
            let options = TcpOptions { nodelay: true, ..TcpOptions::default() };
            let ip = if clients.v6 { clients.remote_v6() } else { Ipv4Addr::from(REMOTE.0).into() };
            let connect = Connect { remote: SocketAddr::new(ip, REMOTE.1), local: None, options };
            stack.tcp_connect(connect).expect("a connect");
        }
    }

    /// Asserts the conditions without which the figures are invalid.
    pub fn check(&self) {
        let stats = self.stack.stats();
        assert_eq!((stats.retransmits, stats.rto_fired), (0, 0), "retransmissions in a lossless world");
        assert_eq!(stats.drops.iter().sum::<u64>(), 0, "drops: {stats:?}");
        assert_eq!((stats.resets_sent, stats.resets_received), (0, 0), "resets");
    }

    /// Returns random flows, each once.
    fn pick(&mut self, count: usize) -> Vec<usize> {
        let mut flows = Vec::with_capacity(count);
        while flows.len() < count.min(self.open) {
            let flow = self.dice.roll(self.open);
            if !flows.contains(&flow) {
                flows.push(flow);
            }
        }
        flows
    }

    /// Receives `n` full segments on the only connection, in order or with each pair swapped.
    /// Returns their number.
    pub fn bulk_in(&mut self, n: u64, swapped: bool) -> u64 {
        let full = if self.clients.timestamps { 1448 } else { 1460 };
        let mut done = 0;
        while done < n {
            for _ in 0..self.batch.div_ceil(2) {
                if swapped {
                    self.push(0, full, flag::ACK, full as usize);
                    self.push(0, 0, flag::ACK, full as usize);
                    self.clients.flows[0].snd_nxt = self.clients.flows[0].snd_nxt.wrapping_add(full);
                } else {
                    self.push(0, 0, flag::ACK, full as usize);
                    self.push(0, 0, flag::ACK, full as usize);
                }
                done += 2;
            }
            self.advance(BULK_TURN, true);
        }
        done
    }

    /// Sends at least `n` segments on the only connection, acknowledged one turn later, and loses
    /// every `lose`-th. Returns their number.
    pub fn bulk_out(&mut self, n: u64, lose: u64) -> u64 {
        self.lose = lose;
        self.tx_budget = self.batch;
        let start = self.seen;
        while self.seen - start < n {
            self.advance(BULK_TURN, true);
            if self.answers.is_empty() && self.rx.is_empty() && self.owed > 0 {
                // The receiver's delayed ACK.
                self.owed = 0;
                self.push(0, 0, flag::ACK, 0);
            }
        }
        self.seen - start
    }

    /// Acknowledges `n` responses by pure ACKs; only the ACKs' turns are counted.
    pub fn pure_acks(&mut self, n: u64) -> u64 {
        let mut done = 0;
        while done < n {
            let flows = self.pick(self.batch);
            for &flow in &flows {
                self.push(flow, 0, flag::PSH | flag::ACK, 64);
            }
            self.advance(TURN, false);
            for &flow in &flows {
                self.push(flow, 0, flag::ACK, 0);
            }
            self.advance(TURN, true);
            done += flows.len() as u64;
        }
        done
    }

    /// Runs `n` turns without packets or expired timers.
    pub fn idle(&mut self, n: u64) -> u64 {
        for _ in 0..n {
            self.advance(BULK_TURN, true);
        }
        n
    }

    /// Performs `n` short connections as the client, which receive SYN-ACK, response, and FIN with
    /// ACK. The stack has the TIME-WAIT state.
    pub fn connects(&mut self, n: u64) -> u64 {
        let mut done = 0;
        while done < n {
            self.connects = self.batch;
            self.advance(BULK_TURN, true);
            let flows: Vec<_> = self.answers.iter().map(|a| a.flow).collect();
            assert_eq!(flows.len(), self.batch, "SYNs");
            for (flags, payload) in
                [(flag::SYN | flag::ACK, 0), (flag::PSH | flag::ACK, 64), (flag::FIN | flag::ACK, 0)]
            {
                for &flow in &flows {
                    self.push(flow, 0, flags, payload);
                }
                self.advance(BULK_TURN, true);
            }
            done += flows.len() as u64;
        }
        assert_eq!(self.stack.tcp_connections(), self.open, "short connections left over");
        done
    }
}

impl Server for Ours {
    fn transactions(&mut self, n: u64, request: usize) -> Duration {
        self.timed = Duration::ZERO;
        let mut left = n as usize;
        while left > 0 {
            let flows = self.pick(self.batch.min(left));
            self.turn(&flows, flag::PSH | flag::ACK, request, flows.len());
            left -= flows.len();
        }
        self.timed
    }

    fn short(&mut self, n: u64) -> Duration {
        self.timed = Duration::ZERO;
        let mut left = n as usize;
        while left > 0 {
            let count = self.batch.min(left);
            let first = self.next_short;
            let flows: Vec<_> = (first..first + count).map(|i| self.open + i % SHORT_FLOWS).collect();
            self.next_short = (first + count) % SHORT_FLOWS;
            self.turn(&flows, flag::SYN, 0, count);
            self.turn(&flows, flag::ACK, 0, 0);
            self.turn(&flows, flag::PSH | flag::ACK, 64, count);
            match self.app {
                // The server sent its FIN with the response.
                App::Echo(Closer::Server) => {
                    self.turn(&flows, flag::ACK, 0, 0);
                    self.turn(&flows, flag::FIN | flag::ACK, 0, count);
                }
                // The client's FIN acknowledges the response; the server's FIN follows.
                _ => {
                    self.turn(&flows, flag::FIN | flag::ACK, 0, count);
                    self.turn(&flows, flag::ACK, 0, 0);
                }
            }
            left -= count;
        }
        assert_eq!(self.stack.tcp_connections(), self.open, "short connections left over");
        self.timed
    }
}
