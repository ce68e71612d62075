//! A server on fastsock's engine, fed by the generator.

use super::client::{Clients, Dice, GATEWAY, GATEWAY_MAC, SERVER, SERVER_MAC, flag};
use super::{BATCH, RESPONSE, Server};
use fs_core::{
    Addressing, Cidr, Error, Event, FramePool, Framing, HeapPool, IfaceId, Interface, Limits, Listen, ListenerId,
    Ready, Route, RxChecksum, RxFrame, Secret, Stack, StackConfig, TcpConfig, TcpOptions, TxFrame,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const IFACE: IfaceId = IfaceId(0);
const ETHERNET: usize = 14;
/// Virtual time per turn. Slow, so that of a million connections none reaches its retransmission time-out
/// before its turn comes to acknowledge: what is measured is the data path, not an idle clock.
const TURN: Duration = Duration::from_nanos(300);
/// Clients of short connections, after those that stay.
const SHORT_FLOWS: usize = 1 << 15;

/// Who closes first in short connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Closer {
    Client,
    Server,
}

pub struct Ours {
    stack: Stack<HeapPool>,
    listener: ListenerId,
    clients: Clients,
    /// Connections that stay open.
    open: usize,
    next_short: usize,
    closer: Closer,
    now: fs_core::Instant,
    dice: Dice,
    rx: Vec<RxFrame>,
    tx: Vec<TxFrame>,
    events: Vec<Event>,
    timed: Duration,
}

impl Ours {
    /// A server with `open` established connections.
    pub fn new(open: usize, timestamps: bool, closer: Closer) -> Self {
        let mut config = StackConfig::new(Secret([7; 32]));
        // Each connection holds its latest response until its next request acknowledges it.
        let connections = (open + 4096) as u32;
        config.limits = Limits { connections, send_pool_percent: 90, ..Limits::default() };
        // Short, in virtual time, so that its end is part of what is measured.
        config.tcp = TcpConfig { time_wait: Duration::from_millis(2), ..TcpConfig::default() };
        let mut stack = Stack::new(config, HeapPool::new(8192 + open + open / 4, 2048));
        stack.add_interface(Interface {
            framing: Framing::Ethernet,
            mac: SERVER_MAC,
            vlan: None,
            mtu: 1500,
            addrs: vec![Cidr { addr: Ipv4Addr::from(SERVER.0).into(), prefix: 30 }],
            addressing: Addressing::Host,
            tx_checksum: false,
            accept_partial_checksum: false,
        });
        let gateway = IpAddr::from(GATEWAY);
        let all = Cidr { addr: Ipv4Addr::UNSPECIFIED.into(), prefix: 0 };
        stack.set_routes(vec![Route { to: all, gateway: Some(gateway), iface: IFACE, metric: 0 }]);
        stack.set_neighbour(IFACE, gateway, Some(GATEWAY_MAC));
        let at = SocketAddr::new(Ipv4Addr::from(SERVER.0).into(), SERVER.1);
        let options = TcpOptions { nodelay: true, ..TcpOptions::default() };
        let listener = stack.tcp_listen(Listen { at, backlog: 4096, v6_only: false, fast_open: 0, options }).expect("a listener");
        let mut server = Self {
            stack,
            listener,
            clients: Clients::new(open + SHORT_FLOWS, timestamps),
            open,
            next_short: 0,
            closer,
            now: fs_core::Instant::from_millis(1000),
            dice: Dice::new(),
            rx: Vec::with_capacity(BATCH),
            tx: Vec::with_capacity(4 * BATCH),
            events: Vec::with_capacity(4 * BATCH),
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

    /// Frames out of the pool now: idle connections must hold none.
    pub fn frames(&self) -> usize {
        self.stack.pool().in_use()
    }

    /// Bytes of the generator's own state, to be left out of the server's.
    pub fn client_bytes(&self) -> usize {
        self.clients.flows.capacity() * size_of::<super::client::Flow>()
    }

    /// Bytes of the frame pool, which idle connections do not use.
    pub fn pool_bytes(&self) -> usize {
        self.stack.pool().capacity() * (self.stack.pool().chunk_size() + 5)
    }

    /// One packet of each flow in, one turn of the server, answers out. `answers` must come.
    fn turn(&mut self, flows: &[usize], flags: u8, payload: usize, answers: usize) {
        for &flow in flows {
            let mut frame = self.stack.pool_mut().alloc().expect("a frame");
            frame.grow_back(self.stack.pool().payload_room().min(1600));
            let bytes = self.stack.pool_mut().bytes_mut(&mut frame);
            bytes[..6].copy_from_slice(&SERVER_MAC);
            bytes[6..12].copy_from_slice(&GATEWAY_MAC);
            bytes[12..14].copy_from_slice(&[8, 0]);
            let len = self.clients.build(flow, flags, payload, &mut bytes[ETHERNET..]);
            frame.truncate(ETHERNET + len);
            self.rx.push(RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown });
        }
        self.now = self.now + TURN;
        self.clients.now_ms = self.now.as_millis() as u32;

        let began = Instant::now();
        self.stack.set_now(self.now);
        self.stack.rx_batch(&mut self.rx);
        self.stack.tick();
        self.stack.drain_events(&mut self.events);
        self.application();
        while self.stack.tx_batch(IFACE, 2 * BATCH, &mut self.tx) == 2 * BATCH {}
        self.timed += began.elapsed();

        let mut seen = 0;
        let mut chained = false;
        for TxFrame { mut frame, checksum } in self.tx.drain(..) {
            assert!(checksum.is_none(), "checksums are the server's work here");
            // A chain's later frames are payload.
            if !chained {
                self.clients.answer(&self.stack.pool().bytes(&frame)[ETHERNET..]);
                seen += 1;
            }
            chained = frame.more();
            frame.set_more(false);
            self.stack.pool_mut().free(frame);
        }
        assert!(seen >= answers, "{seen} answers, expected {answers}");
    }

    /// Echo-like: a request is answered with [`RESPONSE`] bytes; an end is answered with an end.
    fn application(&mut self) {
        let Self { stack, events, listener, closer, open, .. } = self;
        let mut buf = [0u8; 2048];
        for event in events.drain(..) {
            match event {
                Event::Accept(_) => while stack.tcp_accept(*listener).is_ok() {},
                Event::Tcp(id, ready) if ready.intersects(Ready::READ) => match stack.tcp_recv(id, &mut buf) {
                    Ok(0) => stack.tcp_close(id),
                    Ok(_) => {
                        assert_eq!(stack.tcp_send(id, &buf[..RESPONSE]), Ok(RESPONSE));
                        if *closer == Closer::Server && *open == 0 {
                            stack.tcp_close(id);
                        }
                    }
                    // Several reasons in one event: an earlier one of the batch took the bytes.
                    Err(Error::WouldBlock | Error::BadSocket) => {}
                    Err(e) => panic!("recv: {e}"),
                },
                _ => {}
            }
        }
    }

    /// What must not have happened, or the figures mean something else.
    pub fn check(&self) {
        let stats = self.stack.stats();
        assert_eq!((stats.retransmits, stats.rto_fired), (0, 0), "retransmissions in a lossless world");
        assert_eq!(stats.drops.iter().sum::<u64>(), 0, "drops: {stats:?}");
        assert_eq!((stats.resets_sent, stats.resets_received), (0, 0), "resets");
    }
}

impl Server for Ours {
    fn transactions(&mut self, n: u64, request: usize) -> Duration {
        self.timed = Duration::ZERO;
        let mut left = n as usize;
        let mut flows = Vec::with_capacity(BATCH);
        while left > 0 {
            flows.clear();
            while flows.len() < BATCH.min(left) {
                let flow = self.dice.roll(self.open);
                if !flows.contains(&flow) {
                    flows.push(flow);
                }
            }
            self.turn(&flows, flag::PSH | flag::ACK, request, flows.len());
            left -= flows.len();
        }
        self.timed
    }

    fn short(&mut self, n: u64) -> Duration {
        self.timed = Duration::ZERO;
        let mut left = n as usize;
        while left > 0 {
            let count = BATCH.min(left);
            let first = self.next_short;
            let flows: Vec<_> = (first..first + count).map(|i| self.open + i % SHORT_FLOWS).collect();
            self.next_short = (first + count) % SHORT_FLOWS;
            self.turn(&flows, flag::SYN, 0, count);
            self.turn(&flows, flag::ACK, 0, 0);
            self.turn(&flows, flag::PSH | flag::ACK, 64, count);
            match self.closer {
                // Its FIN acknowledges the response; the server's FIN comes back.
                Closer::Client => {
                    self.turn(&flows, flag::FIN | flag::ACK, 0, count);
                    self.turn(&flows, flag::ACK, 0, 0);
                }
                // The server's FIN came with the response.
                Closer::Server => {
                    self.turn(&flows, flag::ACK, 0, 0);
                    self.turn(&flows, flag::FIN | flag::ACK, 0, count);
                }
            }
            left -= count;
        }
        assert_eq!(self.stack.tcp_connections(), self.open, "short connections left over");
        self.timed
    }
}
