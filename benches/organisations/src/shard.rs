//! One instance of the engine with its application's calls.

use crate::wire::{ETHERNET, Load, MESSAGE, Run, Sent};
use fs_core::{
    Addressing, Cidr, Error, Event, FramePool, Framing, HeapPool, IfaceId, Instant, Interface, Limits, Listen,
    ListenerId, Route, RxChecksum, RxFrame, Secret, Stack, StackConfig, TcpId, TcpOptions, TxFrame,
};
use fs_memory::client::{Clients, GATEWAY, GATEWAY_MAC, SERVER, SERVER_MAC};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const IFACE: IfaceId = IfaceId(0);
/// Send buffer of a bulk connection: a few segments, so that many connections fit into the caches
/// as in the paper, and no window is the limit.
const SEND_BUFFER: u32 = 16 << 10;
/// Frames of a connection: those of its send buffer, and some in flight.
const FRAMES: usize = 24;
/// Frames in addition to those of the connections.
const SPARE: usize = 128;

/// A socket whose application has work.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The flow.
    pub flow: u32,
    /// The socket's connection in its instance.
    pub id: TcpId,
}

/// An instance of the engine.
pub struct Shard {
    stack: Stack<HeapPool>,
    listener: ListenerId,
    load: Load,
    /// The flow of each connection, by the index of its id.
    flows: Vec<u32>,
    rx: Vec<RxFrame>,
    tx: Vec<TxFrame>,
    events: Vec<Event>,
    /// The core that accessed it last.
    pub last_core: usize,
    /// The next time at which the shared timers run it (MsgP).
    pub armed: Option<Instant>,
}

impl Shard {
    /// Creates an instance for `connections` connections.
    pub fn new(connections: usize, load: Load) -> Shard {
        let mut config = StackConfig::new(Secret([7; 32]));
        let most = connections.max(1) as u32;
        config.limits = Limits {
            connections: most,
            syn_cache: most.min(1 << 14),
            time_wait: 1,
            udp_sockets: 1,
            send_pool_percent: 90,
            receive_pool_percent: 90,
            ..Limits::default()
        };
        let frames = match load {
            Load::Bulk => FRAMES * connections,
            Load::Requests => 2 * connections,
        };
        // A single connection gets what it can use. Several share the spare frames.
        let spare = if connections == 1 { 8 } else { SPARE };
        let mut stack = Stack::new(config, HeapPool::new(frames + spare, 2048));
        let (at, gateway): (IpAddr, IpAddr) = (Ipv4Addr::from(SERVER.0).into(), Ipv4Addr::from(GATEWAY).into());
        stack.add_interface(Interface {
            framing: Framing::Ethernet,
            mac: SERVER_MAC,
            vlan: None,
            mtu: 1500,
            addrs: vec![Cidr { addr: at, prefix: 30 }],
            addressing: Addressing::Host,
            tx_checksum: false,
            accept_partial_checksum: false,
        });
        let to = Cidr { addr: Ipv4Addr::UNSPECIFIED.into(), prefix: 0 };
        stack.set_routes(vec![Route {
            to,
            gateway: Some(gateway),
            iface: IFACE,
            metric: 0,
            source: None,
            refusal: None,
        }]);
        stack.set_neighbour(IFACE, gateway, Some(GATEWAY_MAC));
        let options = TcpOptions { nodelay: true, send_buffer: Some(SEND_BUFFER), ..TcpOptions::default() };
        let at = SocketAddr::new(at, SERVER.1);
        let listen = Listen { at, backlog: most.min(4096), v6_only: false, fast_open: 0, options };
        let listener = stack.tcp_listen(listen).expect("a listener on a stack that has none");
        Shard {
            stack,
            listener,
            load,
            flows: Vec::new(),
            rx: Vec::new(),
            tx: Vec::new(),
            events: Vec::new(),
            last_core: 0,
            armed: None,
        }
    }

    /// Receives packets, and adds sockets that became ready to `ready`.
    pub fn receive(&mut self, packets: Run<'_>, now: Instant, ready: &mut Vec<Ready>) -> u64 {
        for (_, bytes) in packets.iter() {
            // The device drops a packet for which there is no frame.
            let Some(mut frame) = self.stack.pool_mut().alloc() else { continue };
            frame.grow_back(bytes.len());
            self.stack.pool_mut().bytes_mut(&mut frame).copy_from_slice(bytes);
            self.rx.push(RxFrame { frame, iface: IFACE, checksum: RxChecksum::Unknown });
        }
        let count = self.rx.len() as u64;
        self.stack.set_now(now);
        self.stack.rx_batch(&mut self.rx);
        self.tick(now, ready);
        count
    }

    /// Runs timers, and adds sockets that became ready to `ready`.
    pub fn tick(&mut self, now: Instant, ready: &mut Vec<Ready>) {
        self.stack.set_now(now);
        self.stack.tick();
        self.stack.drain_events(&mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::Accept(_) => {
                    while let Ok((id, peer)) = self.stack.tcp_accept(self.listener) {
                        let IpAddr::V4(ip) = peer.ip() else { continue };
                        let flow = Clients::flow_of(u32::from(ip), peer.port()) as u32;
                        let index = id.index as usize;
                        if self.flows.len() <= index {
                            self.flows.resize(index + 1, 0);
                        }
                        self.flows[index] = flow;
                        if self.load == Load::Bulk {
                            ready.push(Ready { flow, id });
                        }
                    }
                }
                Event::Tcp(id, _) => {
                    if let Some(&flow) = self.flows.get(id.index as usize) {
                        ready.push(Ready { flow, id });
                    }
                }
                _ => {}
            }
        }
    }

    /// Makes the application's calls on a ready socket.
    pub fn serve(&mut self, ready: Ready, buffer: &mut [u8]) {
        match self.load {
            Load::Bulk => while self.stack.tcp_send(ready.id, buffer).is_ok() {},
            Load::Requests => match self.stack.tcp_recv(ready.id, buffer) {
                Ok(n) if n > 0 => {
                    let sent = self.stack.tcp_send(ready.id, &buffer[..MESSAGE]);
                    debug_assert_eq!(sent, Ok(MESSAGE));
                }
                // A second event for the same bytes.
                Ok(_) | Err(Error::WouldBlock) => {}
                Err(error) => panic!("recv: {error}"),
            },
        }
    }

    /// Takes the packets that the instance sends. Its frames are free again at once, as after a
    /// device's completion.
    pub fn transmit(&mut self, sent: &mut Vec<Sent>) {
        const BATCH: usize = 64;
        loop {
            let count = self.stack.tx_batch(IFACE, BATCH, &mut self.tx);
            let mut chained = false;
            for TxFrame { mut frame, .. } in self.tx.drain(..) {
                let first = !chained;
                chained = frame.more();
                frame.set_more(false);
                if first {
                    let bytes = &self.stack.pool().bytes(&frame)[ETHERNET..];
                    let mut head = [0; 80];
                    let len = bytes.len().min(80);
                    head[..len].copy_from_slice(&bytes[..len]);
                    let to = u32::from_be_bytes([head[16], head[17], head[18], head[19]]);
                    let flow = Clients::flow_of(to, u16::from_be_bytes([head[22], head[23]])) as u32;
                    sent.push(Sent { head, flow });
                }
                self.stack.pool_mut().free(frame);
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// Returns the next deadline of its timers.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.stack.next_deadline()
    }

    /// Returns the number of established connections.
    pub fn connections(&self) -> usize {
        self.stack.tcp_connections()
    }

    /// Returns the packets that the engine dropped, which should be none.
    pub fn drops(&self) -> u64 {
        self.stack.stats().drops.iter().sum()
    }
}
