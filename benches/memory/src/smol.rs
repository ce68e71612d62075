//! The same server on smoltcp. Each connection has its own socket set, and only the addressed set
//! is polled, which avoids a search of all sockets for every packet. It uses raw IP instead of
//! Ethernet, so it also has no link header and no neighbour table. It computes checksums, as
//! fastsock does.

use crate::client::{Clients, Dice, Role, SERVER, flag};
use crate::{BATCH, RESPONSE, Server};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Address};
use std::time::{Duration, Instant};

/// Received and sent packets, in reused buffers.
#[derive(Default)]
struct Wire {
    rx: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    tx: Vec<Vec<u8>>,
}

struct Rx<'a>(Vec<u8>, &'a mut Vec<Vec<u8>>);
struct Tx<'a>(&'a mut Vec<Vec<u8>>, Option<Vec<u8>>);

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.0);
        self.1.push(self.0);
        result
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = self.1.unwrap_or_default();
        packet.clear();
        packet.resize(len, 0);
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}

/// Collects the buffers of received packets until the generator reuses them.
struct Port {
    wire: Wire,
    used: Vec<Vec<u8>>,
}

impl Device for Port {
    type RxToken<'a> = Rx<'a>;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: SmolInstant) -> Option<(Rx<'_>, Tx<'_>)> {
        let packet = self.wire.rx.pop()?;
        let spare = self.wire.spare.pop();
        Some((Rx(packet, &mut self.used), Tx(&mut self.wire.tx, spare)))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Tx<'_>> {
        let spare = self.wire.spare.pop();
        Some(Tx(&mut self.wire.tx, spare))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = 1500;
        capabilities
    }
}

/// The server on smoltcp.
pub struct Smol {
    iface: Interface,
    port: Port,
    sets: Vec<SocketSet<'static>>,
    /// Handle of the only socket in a set, which is equal in every set.
    handle: SocketHandle,
    clients: Clients,
    dice: Dice,
    now: SmolInstant,
    timed: Duration,
}

impl Smol {
    /// Creates `sockets` sockets with `buffer` bytes each way. All are connected if `open`,
    /// otherwise they listen.
    pub fn new(sockets: usize, buffer: usize, open: bool) -> Self {
        let mut port = Port { wire: Wire::default(), used: Vec::new() };
        let now = SmolInstant::from_millis(1000);
        let mut iface = Interface::new(Config::new(HardwareAddress::Ip), &mut port, now);
        let address = Ipv4Address::from(SERVER.0);
        iface.update_ip_addrs(|addrs| addrs.push(IpCidr::new(address.into(), 30)).expect("room for an address"));
        iface.routes_mut().add_default_ipv4_route(Ipv4Address::from(crate::client::GATEWAY)).expect("room for a route");
        let mut handle = None;
        let mut set = |_| {
            let mut socket = Socket::new(SocketBuffer::new(vec![0; buffer]), SocketBuffer::new(vec![0; buffer]));
            socket.set_nagle_enabled(false);
            socket.listen(SERVER.1).expect("a listening socket");
            let mut set = SocketSet::new(Vec::with_capacity(1));
            handle = Some(set.add(socket));
            set
        };
        let sets: Vec<_> = (0..sockets).map(&mut set).collect();
        let clients = Clients::new(sockets, false, false, Role::Clients);
        let handle = handle.expect("at least one socket");
        let mut server = Self { iface, port, sets, handle, clients, dice: Dice::default(), now, timed: Duration::ZERO };
        if open {
            for flow in 0..sockets {
                server.turn(&[flow], flag::SYN, 0);
                server.turn(&[flow], flag::ACK, 0);
            }
            let established = |set: &SocketSet| set.get::<Socket>(handle).state() == State::Established;
            assert!(server.sets.iter().all(established), "connections that did not open");
        }
        server
    }

    /// Sends one packet of each flow and reads its answer.
    fn turn(&mut self, flows: &[usize], flags: u8, payload: usize) {
        for &flow in flows.iter().rev() {
            let mut packet = self.port.used.pop().unwrap_or_default();
            packet.resize(1500, 0);
            let len = self.clients.build(flow, flags, payload, &mut packet);
            packet.truncate(len);
            self.port.wire.rx.push(packet);
        }
        self.now += smoltcp::time::Duration::from_micros(1);
        let began = Instant::now();
        self.counted_turn(flows);
        self.timed += began.elapsed();
        for packet in self.port.wire.tx.drain(..) {
            self.clients.answer(&packet, |_| true);
            self.port.wire.spare.push(packet);
        }
    }

    /// The server's part of a turn; `icount` counts by its name.
    #[inline(never)]
    fn counted_turn(&mut self, flows: &[usize]) {
        for &flow in flows {
            let set = &mut self.sets[flow];
            self.iface.poll_ingress_single(self.now, &mut self.port, set);
            application(set.get_mut(self.handle));
            self.iface.poll_egress(self.now, &mut self.port, set);
        }
    }

    /// Makes sockets whose connections have ended listen again.
    #[inline(never)]
    fn counted_turn_relisten(&mut self, flows: &[usize]) {
        for &flow in flows {
            let socket = self.sets[flow].get_mut::<Socket>(self.handle);
            assert_eq!(socket.state(), State::Closed, "a short connection that did not end");
            socket.listen(SERVER.1).expect("listens again");
        }
    }
}

fn application(socket: &mut Socket) {
    let mut buf = [0u8; 2048];
    if socket.can_recv() {
        socket.recv_slice(&mut buf).expect("recv");
        socket.send_slice(&buf[..RESPONSE]).expect("send");
    }
    if socket.state() == State::CloseWait {
        socket.close();
    }
}

impl Server for Smol {
    fn transactions(&mut self, n: u64, request: usize) -> Duration {
        self.timed = Duration::ZERO;
        let mut left = n as usize;
        while left > 0 {
            let mut flows = Vec::with_capacity(BATCH);
            while flows.len() < BATCH.min(left) {
                let flow = self.dice.roll(self.sets.len());
                if !flows.contains(&flow) {
                    flows.push(flow);
                }
            }
            self.turn(&flows, flag::PSH | flag::ACK, request);
            left -= flows.len();
        }
        self.timed
    }

    fn short(&mut self, n: u64) -> Duration {
        self.timed = Duration::ZERO;
        let mut left = n as usize;
        while left > 0 {
            let mut flows = Vec::with_capacity(BATCH);
            while flows.len() < BATCH.min(left) {
                let flow = self.dice.roll(self.sets.len());
                if !flows.contains(&flow) {
                    flows.push(flow);
                }
            }
            self.turn(&flows, flag::SYN, 0);
            self.turn(&flows, flag::ACK, 0);
            self.turn(&flows, flag::PSH | flag::ACK, 64);
            self.turn(&flows, flag::FIN | flag::ACK, 0);
            self.turn(&flows, flag::ACK, 0);
            let began = Instant::now();
            self.counted_turn_relisten(&flows);
            self.timed += began.elapsed();
            left -= flows.len();
        }
        self.timed
    }
}
